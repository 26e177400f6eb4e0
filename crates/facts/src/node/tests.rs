//! Every item in every verdict that it can have: a healthy node, and one thing changed.

use std::collections::BTreeMap;

use super::*;
use crate::check::Verdict;
use jiff::civil::date;

const DRIVER: &str = "580.95.05";
const KERNEL: &str = "6.8.0-60-generic";
const NEWER_KERNEL: &str = "6.8.0-71-generic";

fn text(text: &str) -> Reading<String> {
    Reading::Value(text.to_owned())
}

fn denied<T>() -> Reading<T> {
    Reading::Unreadable("permission denied".to_owned())
}

fn device(index: u32) -> NvmlDevice {
    NvmlDevice {
        index,
        handle: Reading::Value(()),
        name: text("NVIDIA H100 80GB HBM3"),
        uuid: text("GPU-00000000-0000-0000-0000-000000000000"),
        pci_address: Reading::Value(format!("00000000:{index:02x}:00.0")),
        pci_device_id: Reading::Value(0x2330_10de),
        vbios: text("96.00.A5.00.01"),
        gsp_firmware: text(DRIVER),
        compute_mode: Reading::Value(0),
        persistence: Reading::Value(true),
        ecc: Reading::Value(Setting { current: true, pending: true }),
        mig: Reading::Value(Setting { current: false, pending: false }),
        power: Reading::Value(PowerLimits {
            limit_mw: 700_000,
            default_mw: 700_000,
            min_mw: 200_000,
            max_mw: 700_000,
        }),
        addressing_mode: text("none"),
        fabric: Reading::Value(Fabric { state: 3, status: 0 }),
        remapped_rows: Reading::Value(RemappedRows {
            correctable: 0,
            uncorrectable: 0,
            pending: false,
            failed: false,
        }),
        recovery_action: Reading::Value(0),
    }
}

fn module(version: &str, signed: bool) -> Reading<ModuleOnDisk> {
    Reading::Value(ModuleOnDisk {
        path: format!("/lib/modules/{KERNEL}/updates/dkms/nvidia.ko"),
        info: Reading::Value(ModuleInfo {
            version: Some(version.to_owned()),
            license: Some("Dual MIT/GPL".to_owned()),
            vermagic: Some(format!("{KERNEL} SMP preempt mod_unload modversions ")),
            signed,
        }),
    })
}

fn kernel(release: &str, module: Reading<ModuleOnDisk>) -> InstalledKernel {
    InstalledKernel {
        release: release.to_owned(),
        bootable: Reading::Value(true),
        module,
        headers: Reading::Value(true),
    }
}

fn package(name: &str, version: &str, held: bool) -> Package {
    Package {
        name: name.to_owned(),
        version: version.to_owned(),
        status: "installed".to_owned(),
        held,
    }
}

fn service() -> ServiceObservation {
    ServiceObservation {
        unit: Reading::Value(true),
        enabled: Reading::Value(true),
        masked: Reading::Value(false),
        running: Reading::Value(true),
    }
}

/// Eight H100 on one board, all as it should be.
pub(super) fn healthy() -> NodeObservation {
    let gpu = |index: u32| PciDevice {
        address: format!("0000:{index:02x}:00.0"),
        device: "2330".to_owned(),
        class: "030200".to_owned(),
        bound: text("nvidia"),
    };
    let switch = |index: u32| PciDevice {
        address: format!("0000:8{index}:00.0"),
        device: "22a3".to_owned(),
        class: "068000".to_owned(),
        bound: text("nvidia-nvswitch"),
    };
    let library = |name: &str| Library {
        path: format!("/usr/lib/x86_64-linux-gnu/{name}"),
        version: text(DRIVER),
    };
    let services = ["nvidia-persistenced", "nvidia-fabricmanager"];
    NodeObservation {
        version: OBSERVATION_VERSION,
        pci: Reading::Value((0..8).map(gpu).chain((0..4).map(switch)).collect()),
        nvml: NvmlReading::Answered(Nvml {
            driver_version: text(DRIVER),
            library_version: text("13.580.95.05"),
            cuda_version: Reading::Value(13_000),
            count: Reading::Value(8),
            devices: (0..8).map(device).collect(),
        }),
        driver: DriverObservation {
            loaded: text(DRIVER),
            nvrm_line: Reading::Value(format!(
                "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {DRIVER}  Release Build"
            )),
            libraries: Reading::Value(vec![library("libcuda.so.1"), library("libnvidia-ml.so.1")]),
            parameters: Reading::Value(BTreeMap::new()),
            firmware: Reading::Value(vec![DRIVER.to_owned()]),
            nouveau_loaded: Reading::Value(false),
            run_file_install: Reading::Value(false),
        },
        kernels: KernelObservation {
            running: text(KERNEL),
            installed: Reading::Value(vec![kernel(KERNEL, module(DRIVER, true))]),
            boot_choice: BootChoice::Newest,
            reboot_required: Reading::Absent,
        },
        packages: PackageObservation {
            dpkg: Reading::Value(vec![
                package("nvidia-open", "580.95.05-1", true),
                package("libnvidia-compute", "1:580.95.05-1", true),
                package("nvidia-fabricmanager", "580.95.05-1", true),
                package("nvidia-container-toolkit", "1.19.1-1", false),
                package("linux-image-generic", "6.8.0-60.63", true),
                package("unattended-upgrades", "2.9", false),
            ]),
            rpm: Reading::Value(false),
            unattended: Reading::Value(Unattended { enabled: true, blacklist: Vec::new() }),
            pins: Reading::Value(Vec::new()),
        },
        dkms: Reading::Value(vec![DkmsTree {
            version: DRIVER.to_owned(),
            built_for: vec![KERNEL.to_owned()],
        }]),
        secure_boot: SecureBootObservation {
            enabled: Reading::Value(false),
            signatures_enforced: Reading::Value(false),
        },
        services: services.iter().map(|name| ((*name).to_owned(), service())).collect(),
        nvswitches: Reading::Value(4),
        containers: ContainerObservation {
            runtimes: Reading::Value(vec!["containerd".to_owned()]),
            toolkit: Reading::Value(true),
            cdi: Reading::Value(vec![CdiSpec {
                path: "/etc/cdi/nvidia.yaml".to_owned(),
                driver: text(DRIVER),
            }]),
            inside: Reading::Value(false),
        },
        python: PythonObservation {
            interpreter: text("/opt/env/bin/python3"),
            packages: Reading::Value(vec![PythonPackage {
                name: "torch".to_owned(),
                version: "2.11.0".to_owned(),
                cuda: text("13.0"),
                pinned: BTreeMap::new(),
            }]),
        },
    }
}

fn judged(seen: &NodeObservation) -> NodeReport {
    judge(crate::FactSet::embedded(), seen, date(2026, 11, 15), false)
}

#[test]
fn a_healthy_node_is_ok() {
    let report = judged(&healthy());
    let bad: Vec<&Item> = report.items.iter().filter(|it| it.verdict != Verdict::Ok).collect();
    assert!(bad.is_empty(), "{bad:#?}");
    assert_eq!(report.verdict, Verdict::Ok);
    assert!(report.remedies.is_empty(), "{:?}", report.remedies);
    for code in [
        "nvml-answers",
        "gpu-count",
        "gpu-known",
        "nouveau-absent",
        "module-loaded",
        "driver-library-equal",
        "architecture-driven",
        "module-supported",
        "supported-branch",
        "module-on-disk-equal",
        "next-kernel-ready",
        "dkms-built",
        "secure-boot-off",
        "packages-version-equal",
        "packages-held",
        "unattended-upgrades-kept-out",
        "compute-mode-default",
        "power-limit-default",
        "ecc-on",
        "mig-off",
        "persistence-on",
        "row-remap-clean",
        "recovery-none",
        "fabric-joined",
        "fabric-manager-equal",
        "fabric-manager-running",
        "container-toolkit-present",
        "container-toolkit-fixed",
        "cdi-current",
        "framework-covers-gpu",
    ] {
        assert!(report.items.iter().any(|item| item.code == code), "no {code}");
    }
}

/// One change to the healthy node, and the item that must come of it.
type Case = (&'static str, Verdict, fn(&mut NodeObservation));

fn nvml(seen: &mut NodeObservation) -> &mut Nvml {
    match &mut seen.nvml {
        NvmlReading::Answered(nvml) => nvml,
        other => panic!("{other:?}"),
    }
}

fn all(seen: &mut NodeObservation, change: impl Fn(&mut NvmlDevice)) {
    nvml(seen).devices.iter_mut().for_each(change);
}

fn kernels(seen: &mut NodeObservation) -> &mut Vec<InstalledKernel> {
    match &mut seen.kernels.installed {
        Reading::Value(kernels) => kernels,
        other => panic!("{other:?}"),
    }
}

fn license(seen: &mut NodeObservation, license: &str) {
    let Reading::Value(module) = &mut kernels(seen)[0].module else { panic!() };
    let Reading::Value(info) = &mut module.info else { panic!() };
    info.license = Some(license.to_owned());
}

fn packages(seen: &mut NodeObservation) -> &mut Vec<Package> {
    match &mut seen.packages.dpkg {
        Reading::Value(packages) => packages,
        other => panic!("{other:?}"),
    }
}

fn refused(error: &str) -> NvmlReading {
    NvmlReading::Refused { error: error.to_owned() }
}

fn unloaded(seen: &mut NodeObservation) {
    seen.driver.loaded = Reading::Absent;
    seen.driver.nvrm_line = Reading::Absent;
    seen.nvml = refused("NVML_ERROR_DRIVER_NOT_LOADED");
}

fn blackwell(seen: &mut NodeObservation, name: &str, id: u32) {
    all(seen, |device| {
        device.name = text(name);
        device.pci_device_id = Reading::Value(id << 16 | 0x10de);
    });
}

fn grace(seen: &mut NodeObservation, mode: Option<&str>) {
    blackwell(seen, "NVIDIA GB200", 0x2941);
    seen.driver.parameters = Reading::Value(
        mode.map(|mode| ("CoherentGPUMemoryMode".to_owned(), mode.to_owned()))
            .into_iter()
            .collect(),
    );
}

fn check_all(cases: &[Case]) {
    for (code, verdict, change) in cases {
        let mut seen = healthy();
        change(&mut seen);
        let report = judged(&seen);
        let found = report.items.iter().find(|item| item.code == *code && item.verdict == *verdict);
        let Some(found) = found else {
            let items: Vec<_> =
                report.items.iter().map(|it| (it.code, it.verdict.name(), &it.text)).collect();
            panic!("no {code} ({}) in {items:#?}", verdict.name());
        };
        assert!(!found.text.is_empty() && !found.source.is_empty(), "{code}");
        assert!(report.verdict >= *verdict, "{code}: {:?}", report.verdict);
    }
}

use Verdict::{Blocked, Caveat, Ok as Fine, Unknown};

#[test]
fn gpus() {
    check_all(&[
        ("nvml-mismatch", Blocked, |s| s.nvml = refused("NVML_ERROR_LIB_RM_VERSION_MISMATCH")),
        ("nvml-refused", Blocked, |s| s.nvml = refused("NVML_ERROR_DRIVER_NOT_LOADED")),
        ("nvml-refused", Unknown, |s| s.nvml = refused("NVML_ERROR_NO_PERMISSION")),
        ("nvml-hung", Unknown, |s| {
            s.nvml = NvmlReading::Hung { after_s: 10, during: "nvmlInit_v2".to_owned() };
        }),
        ("nvml-silent", Unknown, |s| s.nvml = NvmlReading::NoLibrary { why: "none".to_owned() }),
        ("nvml-silent", Unknown, |s| s.nvml = NvmlReading::Died { why: "signal 11".to_owned() }),
        ("settings-unknown", Unknown, |s| s.nvml = NvmlReading::Died { why: "x".to_owned() }),
        ("gpu-count", Unknown, |s| s.nvml = NvmlReading::NotAsked { why: "x".to_owned() }),
        ("gpu-count", Unknown, |s| s.pci = denied()),
        ("gpu-count", Unknown, |s| nvml(s).count = denied()),
        ("gpu-count", Blocked, |s| {
            nvml(s).count = Reading::Value(7);
            nvml(s).devices.pop();
        }),
        ("gpu-count", Caveat, |s| nvml(s).count = Reading::Value(9)),
        ("gpu-unreachable", Blocked, |s| {
            nvml(s).devices[3].handle = Reading::Unreadable("NVML_ERROR_GPU_IS_LOST".to_owned());
        }),
        ("gpu-unknown", Unknown, |s| blackwell(s, "NVIDIA Z9000", 0xffff)),
        ("gpu-models-mixed", Caveat, |s| {
            nvml(s).devices[0].name = text("NVIDIA H200");
        }),
        ("gpu-given-away", Caveat, |s| {
            let Reading::Value(devices) = &mut s.pci else { panic!() };
            devices[0].bound = text("vfio-pci");
            nvml(s).count = Reading::Value(7);
            nvml(s).devices.remove(0);
        }),
        ("gpu-count", Fine, |s| {
            let Reading::Value(devices) = &mut s.pci else { panic!() };
            devices[0].bound = text("vfio-pci");
            nvml(s).count = Reading::Value(7);
            nvml(s).devices.remove(0);
        }),
        ("vbios-mixed", Caveat, |s| nvml(s).devices[0].vbios = text("96.00.A5.00.02")),
        ("no-nvidia-gpu", Blocked, |s| {
            s.pci = Reading::Value(Vec::new());
            unloaded(s);
        }),
    ]);
}

#[test]
fn driver() {
    check_all(&[
        ("nouveau-loaded", Blocked, |s| s.driver.nouveau_loaded = Reading::Value(true)),
        ("nouveau-unknown", Unknown, |s| s.driver.nouveau_loaded = denied()),
        ("module-not-loaded", Blocked, unloaded),
        ("module-loaded-unknown", Unknown, |s| {
            unloaded(s);
            s.driver.loaded = denied();
        }),
        ("library-missing", Blocked, |s| s.driver.libraries = Reading::Value(Vec::new())),
        ("library-unknown", Unknown, |s| s.driver.libraries = denied()),
        ("library-unknown", Unknown, |s| {
            nvml(s).library_version = denied();
            s.driver.libraries = Reading::Value(vec![Library {
                path: "/usr/lib64/libcuda.so.1".to_owned(),
                version: Reading::Unreadable("not a link".to_owned()),
            }]);
        }),
        ("driver-library-equal", Fine, |s| {
            s.driver.libraries = Reading::Value(vec![Library {
                path: "/usr/lib/libcuda.so.1".to_owned(),
                version: Reading::Unreadable("not a link".to_owned()),
            }]);
        }),
        ("library-stray", Caveat, |s| {
            let Reading::Value(libraries) = &mut s.driver.libraries else { panic!() };
            libraries.push(Library {
                path: "/usr/local/nvidia/lib64/libcuda.so.1".to_owned(),
                version: text("570.195.03"),
            });
        }),
        ("driver-library-mismatch", Blocked, |s| {
            s.driver.libraries = Reading::Value(vec![Library {
                path: "/usr/lib64/libcuda.so.1".to_owned(),
                version: text("580.105.08"),
            }]);
        }),
        ("gsp-firmware-differs", Blocked, |s| nvml(s).devices[1].gsp_firmware = text("570.1.1")),
        ("module-open-required", Blocked, |s| {
            blackwell(s, "NVIDIA B200", 0x2901);
            s.driver.nvrm_line = text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05");
        }),
        ("module-flavour-unknown", Unknown, |s| s.driver.nvrm_line = denied()),
        ("driver-not-in-data", Unknown, |s| s.driver.loaded = text("581.15")),
        ("end-of-support", Caveat, |s| s.driver.loaded = text("550.54.15")),
        ("supported-branch", Fine, |_| {}),
    ]);
}

#[test]
fn an_item_says_what_helps_against_it_and_not_against_another() {
    let remedy = |change: fn(&mut NodeObservation), code: &str| {
        let mut seen = healthy();
        change(&mut seen);
        let report = judged(&seen);
        let of_fine = report.items.iter().find(|it| it.verdict == Fine && it.remedy.is_some());
        assert!(of_fine.is_none(), "{of_fine:?}");
        report.items.into_iter().find(|item| item.code == code).and_then(|item| item.remedy)
    };
    let load = "load the driver; the kernel log says why it fails: `modprobe nvidia`";
    assert_eq!(remedy(unloaded, "module-not-loaded").as_deref(), Some(load));
    let old = |seen: &mut NodeObservation| seen.driver.loaded = text("550.54.15");
    assert!(remedy(old, "module-on-disk-differs").is_some_and(|it| it.contains("reboot")));
    assert!(remedy(old, "end-of-support").is_some_and(|it| it.contains("move to")));
}

#[test]
fn kernels_and_modules() {
    check_all(&[
        ("module-on-disk-differs", Caveat, |s| {
            kernels(s)[0].module = module("580.105.08", true);
        }),
        ("module-on-disk-missing", Caveat, |s| kernels(s)[0].module = Reading::Absent),
        ("module-on-disk-missing", Blocked, |s| {
            unloaded(s);
            kernels(s)[0].module = Reading::Absent;
        }),
        ("module-on-disk", Fine, unloaded),
        ("module-on-disk-unknown", Unknown, |s| kernels(s)[0].module = denied()),
        ("module-vermagic", Blocked, |s| {
            s.kernels.running = text(NEWER_KERNEL);
            kernels(s)[0].release = NEWER_KERNEL.to_owned();
        }),
        ("next-kernel-without-module", Blocked, |s| {
            kernels(s).push(kernel(NEWER_KERNEL, Reading::Absent));
        }),
        ("next-kernel-ready", Fine, |s| {
            kernels(s).push(kernel(NEWER_KERNEL, Reading::Absent));
            s.kernels.boot_choice = BootChoice::Named(KERNEL.to_owned());
        }),
        ("next-kernel-ready", Fine, |s| {
            s.kernels.boot_choice = BootChoice::Unknown("GRUB_DEFAULT is `1>2`".to_owned());
        }),
        ("next-kernel-unknown", Unknown, |s| {
            kernels(s).push(kernel(NEWER_KERNEL, Reading::Absent));
            s.kernels.boot_choice = BootChoice::Unknown("GRUB_DEFAULT is `1>2`".to_owned());
        }),
        ("next-kernel-unknown", Unknown, |s| {
            kernels(s).push(kernel(NEWER_KERNEL, denied()));
        }),
        ("next-boot-mismatch", Blocked, |s| {
            kernels(s).push(kernel(NEWER_KERNEL, module("570.195.03", true)));
        }),
        ("gsp-firmware-missing", Blocked, |s| {
            s.driver.firmware = Reading::Value(vec!["570.195.03".to_owned()]);
        }),
        ("gsp-firmware-unknown", Unknown, |s| s.driver.firmware = denied()),
        ("next-boot-flavour", Caveat, |s| license(s, "NVIDIA")),
        ("next-boot-flavour", Blocked, |s| {
            blackwell(s, "NVIDIA B200", 0x2901);
            license(s, "NVIDIA");
        }),
        ("kernel-files-hidden", Unknown, |s| s.kernels.installed = denied()),
        ("kernel-files-hidden", Unknown, |s| {
            s.containers.inside = Reading::Value(true);
            let mut hidden = kernel(KERNEL, Reading::Absent);
            hidden.bootable = Reading::Absent;
            s.kernels.installed = Reading::Value(vec![hidden]);
        }),
        ("reboot-required", Caveat, |s| {
            s.kernels.reboot_required = Reading::Value(vec!["linux-image-6.8.0-71".to_owned()]);
        }),
        ("reboot-required-unknown", Unknown, |s| s.kernels.reboot_required = denied()),
        ("dkms-differs", Caveat, |s| {
            s.dkms = Reading::Value(vec![DkmsTree {
                version: "570.195.03".to_owned(),
                built_for: Vec::new(),
            }]);
        }),
        ("dkms-not-built", Caveat, |s| {
            s.dkms = Reading::Value(vec![DkmsTree {
                version: DRIVER.to_owned(),
                built_for: Vec::new(),
            }]);
        }),
        ("dkms-several", Caveat, |s| {
            let tree =
                |version: &str| DkmsTree { version: version.to_owned(), built_for: Vec::new() };
            s.dkms = Reading::Value(vec![tree(DRIVER), tree("570.195.03")]);
        }),
        ("dkms-unknown", Unknown, |s| s.dkms = denied()),
    ]);
}

#[test]
fn secure_boot() {
    check_all(&[
        ("module-signed", Fine, |s| s.secure_boot.enabled = Reading::Value(true)),
        ("module-unsigned", Blocked, |s| {
            s.secure_boot.enabled = Reading::Value(true);
            kernels(s)[0].module = module(DRIVER, false);
        }),
        ("module-unsigned", Blocked, |s| {
            s.secure_boot.signatures_enforced = Reading::Value(true);
            kernels(s)[0].module = module(DRIVER, false);
        }),
        ("module-signed-unproven", Caveat, |s| {
            s.secure_boot.enabled = Reading::Value(true);
            unloaded(s);
        }),
        ("module-signature-unknown", Unknown, |s| {
            s.secure_boot.enabled = Reading::Value(true);
            kernels(s)[0].module = denied();
        }),
        ("secure-boot-unknown", Unknown, |s| s.secure_boot.enabled = denied()),
        ("secure-boot-off", Fine, |s| s.secure_boot.enabled = Reading::Absent),
    ]);
}

#[test]
fn packages_and_upgrades() {
    check_all(&[
        ("packages-not-held", Caveat, |s| packages(s)[0].held = false),
        ("packages-held", Fine, |s| {
            packages(s)[0].held = false;
            s.packages.pins = Reading::Value(vec![Pin {
                package: "nvidia-*".to_owned(),
                pin: "version 580.95.05*".to_owned(),
                priority: 1001,
            }]);
        }),
        ("packages-not-held", Caveat, |s| {
            packages(s)[0].held = false;
            s.packages.pins = Reading::Value(vec![Pin {
                package: "nvidia-*".to_owned(),
                pin: "version 580.95.05*".to_owned(),
                priority: 500,
            }]);
        }),
        ("packages-pinned", Fine, |s| {
            packages(s)[0].held = false;
            packages(s).push(package("nvidia-driver-pinning-580", "580-1", false));
        }),
        ("packages-held-unknown", Unknown, |s| s.packages.pins = denied()),
        ("packages-broken", Blocked, |s| packages(s)[0].status = "half-configured".to_owned()),
        ("packages-versions-mixed", Caveat, |s| {
            packages(s)[1].version = "580.82.07-1".to_owned();
        }),
        ("packages-version-differs", Caveat, |s| {
            for package in &mut packages(s)[..3] {
                package.version = "580.105.08-1".to_owned();
            }
        }),
        ("packages-none", Caveat, |s| packages(s).clear()),
        ("packages-unknown", Unknown, |s| s.packages.dpkg = denied()),
        ("packages-unknown", Unknown, |s| s.packages.dpkg = Reading::Absent),
        ("packages-rpm", Unknown, |s| {
            s.packages.dpkg = Reading::Absent;
            s.packages.rpm = Reading::Value(true);
        }),
        ("packages-hidden", Unknown, |s| s.containers.inside = Reading::Value(true)),
        ("run-file-install", Caveat, |s| s.driver.run_file_install = Reading::Value(true)),
        ("unattended-upgrades-may-replace", Caveat, |s| packages(s)[4].held = false),
        ("unattended-upgrades-may-replace", Caveat, |s| packages(s)[0].held = false),
        ("unattended-upgrades-kept-out", Fine, |s| {
            packages(s)[4].held = false;
            s.packages.unattended = Reading::Value(Unattended {
                enabled: true,
                blacklist: vec!["(".to_owned(), "linux-".to_owned()],
            });
        }),
        ("unattended-upgrades-off", Fine, |s| {
            s.packages.unattended =
                Reading::Value(Unattended { enabled: false, blacklist: Vec::new() });
        }),
        ("unattended-upgrades-absent", Fine, |s| {
            packages(s).pop();
        }),
        ("unattended-upgrades-unknown", Unknown, |s| s.packages.unattended = denied()),
    ]);
}

#[test]
fn settings_of_the_gpus() {
    check_all(&[
        ("compute-mode-prohibited", Blocked, |s| {
            nvml(s).devices[2].compute_mode = Reading::Value(2);
        }),
        ("compute-mode-exclusive", Caveat, |s| {
            all(s, |device| device.compute_mode = Reading::Value(3));
        }),
        ("compute-mode-unknown", Unknown, |s| {
            nvml(s).devices[0].compute_mode = Reading::Unreadable("NVML_ERROR_UNKNOWN".to_owned());
        }),
        ("power-limit-lowered", Caveat, |s| all(s, |device| limit(device, 500_000))),
        ("power-limit-raised", Caveat, |s| {
            all(s, |device| {
                device.power = Reading::Value(PowerLimits {
                    limit_mw: 700_000,
                    default_mw: 600_000,
                    min_mw: 200_000,
                    max_mw: 700_000,
                });
            });
        }),
        ("power-limit-outside", Caveat, |s| all(s, |device| limit(device, 100_000))),
        ("power-limit-unknown", Unknown, |s| nvml(s).devices[0].power = denied()),
        ("ecc-off", Caveat, |s| {
            all(s, |device| {
                device.ecc = Reading::Value(Setting { current: false, pending: false });
            });
        }),
        ("ecc-pending", Caveat, |s| {
            nvml(s).devices[0].ecc = Reading::Value(Setting { current: true, pending: false });
        }),
        ("ecc-unknown", Unknown, |s| nvml(s).devices[0].ecc = denied()),
        ("mig-on", Caveat, |s| {
            all(s, |device| device.mig = Reading::Value(Setting { current: true, pending: true }));
        }),
        ("mig-pending", Caveat, |s| {
            nvml(s).devices[0].mig = Reading::Value(Setting { current: false, pending: true });
        }),
        ("mig-unknown", Unknown, |s| nvml(s).devices[0].mig = denied()),
        ("row-remap-failed", Blocked, |s| rows(s, false, true)),
        ("row-remap-pending", Caveat, |s| rows(s, true, false)),
        ("row-remap-unknown", Unknown, |s| nvml(s).devices[0].remapped_rows = denied()),
        ("recovery-unknown", Unknown, |s| {
            nvml(s).devices[0].recovery_action =
                Reading::Unreadable("NVML_ERROR_GPU_IS_LOST".to_owned());
        }),
        ("recovery-needed", Blocked, |s| nvml(s).devices[0].recovery_action = Reading::Value(2)),
        ("nvlink-disabled", Caveat, |s| {
            let option = ("NvLinkDisable".to_owned(), "1".to_owned());
            s.driver.parameters = Reading::Value([option].into());
        }),
        ("persistence-off", Caveat, |s| nvml(s).devices[0].persistence = Reading::Value(false)),
        ("persistence-unknown", Unknown, |s| nvml(s).devices[7].persistence = denied()),
        ("persistenced-not-enabled", Caveat, |s| {
            s.services.get_mut("nvidia-persistenced").unwrap().enabled = Reading::Value(false);
        }),
    ]);
}

fn limit(device: &mut NvmlDevice, limit_mw: u32) {
    device.power = Reading::Value(PowerLimits {
        limit_mw,
        default_mw: 700_000,
        min_mw: 200_000,
        max_mw: 700_000,
    });
}

fn rows(seen: &mut NodeObservation, pending: bool, failed: bool) {
    nvml(seen).devices[0].remapped_rows =
        Reading::Value(RemappedRows { correctable: 0, uncorrectable: 1, pending, failed });
}

#[test]
fn memory_mode_on_coherent_platforms() {
    check_all(&[
        ("cdmm-on", Fine, |s| grace(s, Some("driver"))),
        ("cdmm-off", Caveat, |s| grace(s, Some("numa"))),
        ("cdmm-off", Caveat, |s| grace(s, Some(""))),
        ("cdmm-unsupported", Caveat, |s| grace(s, None)),
        ("cdmm-unknown", Unknown, |s| grace(s, Some("other"))),
        ("cdmm-unknown", Unknown, |s| {
            grace(s, None);
            s.driver.parameters = denied();
        }),
    ]);
}

#[test]
fn fabric() {
    check_all(&[
        ("fabric-manager-differs", Blocked, |s| packages(s)[2].version = "580.82.07-1".to_owned()),
        ("fabric-manager-ahead", Blocked, |s| {
            packages(s)[2].version = "580.105.08-1".to_owned();
            s.driver.libraries = Reading::Value(vec![Library {
                path: "/usr/lib64/libcuda.so.1".to_owned(),
                version: text("580.105.08"),
            }]);
        }),
        ("fabric-manager-missing", Blocked, |s| {
            packages(s).remove(2);
        }),
        ("fabric-manager-version-unknown", Unknown, |s| s.packages.dpkg = denied()),
        ("fabric-manager-not-running", Blocked, |s| {
            s.services.get_mut("nvidia-fabricmanager").unwrap().running = Reading::Value(false);
        }),
        ("fabric-manager-running-unknown", Unknown, |s| {
            s.services.get_mut("nvidia-fabricmanager").unwrap().running = denied();
        }),
        ("fabric-manager-not-enabled", Caveat, |s| {
            s.services.get_mut("nvidia-fabricmanager").unwrap().enabled = Reading::Value(false);
        }),
        ("fabric-unknown", Unknown, |s| {
            nvml(s).devices[5].fabric = Reading::Unreadable("NVML_ERROR_UNKNOWN".to_owned());
        }),
        ("fabric-not-joined", Blocked, |s| {
            nvml(s).devices[5].fabric = Reading::Value(Fabric { state: 2, status: 0 });
        }),
        ("fabric-not-joined", Blocked, |s| {
            nvml(s).devices[5].fabric = Reading::Value(Fabric { state: 3, status: 999 });
        }),
    ]);
}

#[test]
fn containers() {
    check_all(&[
        ("container-toolkit-missing", Caveat, |s| s.containers.toolkit = Reading::Value(false)),
        ("container-toolkit-unknown", Unknown, |s| s.containers.toolkit = denied()),
        ("container-runtime-unknown", Unknown, |s| s.containers.runtimes = denied()),
        ("container-runtime-none", Fine, |s| {
            s.containers.toolkit = Reading::Value(false);
            s.containers.runtimes = Reading::Value(Vec::new());
        }),
        ("container-toolkit-exposed", Caveat, |s| packages(s)[3].version = "1.16.0-1".to_owned()),
        ("container-toolkit-version-unknown", Unknown, |s| {
            packages(s)[3].version = "experimental".to_owned();
        }),
        ("cdi-stale", Caveat, |s| {
            s.containers.cdi = Reading::Value(vec![CdiSpec {
                path: "/etc/cdi/nvidia.yaml".to_owned(),
                driver: text("570.1.1"),
            }]);
        }),
        ("cdi-unknown", Unknown, |s| s.containers.cdi = denied()),
        ("cdi-unknown", Unknown, |s| {
            s.containers.cdi = Reading::Value(vec![CdiSpec {
                path: "/etc/cdi/nvidia.yaml".to_owned(),
                driver: denied(),
            }]);
        }),
    ]);
}

fn torch(seen: &mut NodeObservation, version: &str, cuda: Reading<String>) {
    seen.python.packages = Reading::Value(vec![PythonPackage {
        name: "torch".to_owned(),
        version: version.to_owned(),
        cuda,
        pinned: BTreeMap::from([("nvidia-nccl-cu12".to_owned(), "2.27.5".to_owned())]),
    }]);
}

#[test]
fn frameworks() {
    check_all(&[
        ("python-absent", Fine, |s| s.python.packages = Reading::Absent),
        ("python-unknown", Unknown, |s| s.python.packages = denied()),
        ("framework-none", Fine, |s| s.python.packages = Reading::Value(Vec::new())),
        ("framework-without-cuda", Blocked, |s| torch(s, "2.11.0", Reading::Absent)),
        ("framework-without-cuda", Blocked, |s| torch(s, "2.11.0+cpu", Reading::Absent)),
        ("framework-not-in-data", Unknown, |s| torch(s, "2.99.0", text("13.0"))),
        ("framework-parts-differ", Caveat, |s| {
            torch(s, "2.11.0", text("13.0"));
            let Reading::Value(packages) = &mut s.python.packages else { panic!() };
            packages.push(PythonPackage {
                name: "nvidia-nccl-cu12".to_owned(),
                version: "2.20.0".to_owned(),
                cuda: Reading::Absent,
                pinned: BTreeMap::new(),
            });
        }),
        ("cuda-driver-too-old", Blocked, |s| s.driver.loaded = text("550.54.15")),
    ]);
}

#[test]
fn an_upgrade_under_a_running_driver_names_the_way_out() {
    let mut seen = healthy();
    seen.nvml = refused("NVML_ERROR_LIB_RM_VERSION_MISMATCH");
    let newer = "580.105.08";
    seen.driver.libraries = Reading::Value(vec![Library {
        path: "/usr/lib/x86_64-linux-gnu/libcuda.so.1".to_owned(),
        version: text(newer),
    }]);
    kernels(&mut seen)[0].module = module(newer, true);
    let report = judged(&seen);
    let verdict = |code: &str| report.items.iter().find(|it| it.code == code).map(|it| it.verdict);
    assert_eq!(verdict("driver-library-mismatch"), Some(Verdict::Blocked));
    assert_eq!(verdict("nvml-mismatch"), Some(Verdict::Blocked));
    // A reboot mends it, and the report says so.
    assert_eq!(verdict("next-kernel-ready"), Some(Verdict::Ok));
    assert!(report.remedies.iter().any(|remedy| remedy.text.contains("reboot")));
}

#[test]
fn strict_lets_what_is_known_against_it_decide() {
    let seen = healthy();
    assert!(!judged(&seen).notices.is_empty());
    let strict = judge(crate::FactSet::embedded(), &seen, date(2026, 11, 15), true);
    assert_eq!(strict.verdict, Verdict::Blocked);
    assert!(strict.items.iter().any(|item| item.code == "strict-exposed"));
}

#[test]
fn two_models_say_the_same_of_one_driver_once() {
    let mut seen = healthy();
    nvml(&mut seen).devices[0].name = text("NVIDIA H200");
    let report = judged(&seen);
    let count = |code: &str| report.items.iter().filter(|item| item.code == code).count();
    assert_eq!(count("supported-branch"), 1);
    assert_eq!(count("architecture-driven"), 2);
    let ids: Vec<_> = report.notices.iter().filter_map(|notice| notice.id.as_ref()).collect();
    let unique: std::collections::BTreeSet<_> = ids.iter().collect();
    assert_eq!(ids.len(), unique.len());
}

#[test]
fn an_observation_survives_its_form() {
    let seen = healthy();
    let json = serde_json::to_string(&seen).unwrap();
    assert_eq!(serde_json::from_str::<NodeObservation>(&json).unwrap(), seen);
}
