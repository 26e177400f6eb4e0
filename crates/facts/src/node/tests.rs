//! Tests every item with every verdict that it can have. Each case changes one thing on a healthy
//! node.

mod driver;
mod gpus;
mod health;
mod host;
mod installation;
mod software;

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
    Reading::Unreadable(ReadError::Os { errno: 13 })
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
        fabric: Reading::Value(FabricState { state: 3, status: 0 }),
        remapped_rows: Reading::Value(RemappedRows {
            correctable: 0,
            uncorrectable: 0,
            pending: false,
            failed: false,
        }),
        recovery_action: Reading::Value(0),
        inforom_valid: Some(Reading::Value(true)),
        application_clocks: Some(Reading::Value(GraphicsApplicationClock {
            current_mhz: 1980,
            default_mhz: 1980,
        })),
        now: Some(health::healthy_device()),
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

/// A healthy node with eight H100 on one board.
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
        installation: installation::healthy(),
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
        host: host::healthy(),
        compliance: host::compliant(),
        containers: ContainerObservation {
            runtimes: Reading::Value(vec!["containerd".to_owned()]),
            toolkit: Reading::Value(true),
            configured: Reading::Value(true),
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
        now: Some(health::healthy_host()),
    }
}

fn evaluated(node: &NodeObservation) -> NodeReport {
    evaluate(crate::FactSet::embedded(), node, date(2026, 11, 15), false)
}

#[test]
fn healthy_node_is_ok() {
    let report = evaluated(&healthy());
    let bad: Vec<&Item> = report.items.iter().filter(|item| item.verdict != Verdict::Ok).collect();
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
        "gsp-firmware-present",
        "uvm-loaded",
        "device-files-present",
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
        "inforom-valid",
        "application-clocks-default",
        "fabric-joined",
        "fabric-manager-equal",
        "fabric-manager-running",
        "container-toolkit-present",
        "container-toolkit-fixed",
        "cdi-current",
        "framework-covers-gpu",
        "ecc-errors-none",
        "pcie-wide",
        "clocks-free",
        "nvlinks-up",
        "ports-up",
        "acs-off",
        "disks-free",
        "tpm-present",
        "volumes-encrypted",
        "image-policy",
        "clock-synchronised",
        "iommu-passes",
        "gpudirect-rdma",
        "xids-none",
    ] {
        assert!(report.items.iter().any(|item| item.code == code), "no {code}");
    }
}

/// One change to the healthy node, and the expected item.
type Case = (&'static str, Verdict, fn(&mut NodeObservation));

fn nvml(node: &mut NodeObservation) -> &mut Nvml {
    match &mut node.nvml {
        NvmlReading::Answered(nvml) => nvml,
        other => panic!("{other:?}"),
    }
}

fn all(node: &mut NodeObservation, change: impl Fn(&mut NvmlDevice)) {
    nvml(node).devices.iter_mut().for_each(change);
}

fn kernels(node: &mut NodeObservation) -> &mut Vec<InstalledKernel> {
    match &mut node.kernels.installed {
        Reading::Value(kernels) => kernels,
        other => panic!("{other:?}"),
    }
}

fn license(node: &mut NodeObservation, license: &str) {
    let Reading::Value(module) = &mut kernels(node)[0].module else { panic!() };
    let Reading::Value(info) = &mut module.info else { panic!() };
    info.license = Some(license.to_owned());
}

fn packages(node: &mut NodeObservation) -> &mut Vec<Package> {
    match &mut node.packages.dpkg {
        Reading::Value(packages) => packages,
        other => panic!("{other:?}"),
    }
}

fn refused(error: NvmlStatus) -> NvmlReading {
    NvmlReading::Refused { error }
}

fn unloaded(node: &mut NodeObservation) {
    node.driver.loaded = Reading::Absent;
    node.driver.nvrm_line = Reading::Absent;
    node.nvml = refused(NvmlStatus::DRIVER_NOT_LOADED);
}

fn blackwell(node: &mut NodeObservation, name: &str, id: u32) {
    all(node, |device| {
        device.name = text(name);
        device.pci_device_id = Reading::Value(id << 16 | 0x10de);
    });
}

fn grace(node: &mut NodeObservation, mode: Option<&str>) {
    blackwell(node, "NVIDIA GB200", 0x2941);
    node.driver.parameters = Reading::Value(
        mode.map(|mode| ("CoherentGPUMemoryMode".to_owned(), mode.to_owned()))
            .into_iter()
            .collect(),
    );
}

fn check_all(cases: &[Case]) {
    for (code, verdict, change) in cases {
        let mut node = healthy();
        change(&mut node);
        let report = evaluated(&node);
        let found = report.items.iter().find(|item| item.code == *code && item.verdict == *verdict);
        let Some(found) = found else {
            let items: Vec<_> = report
                .items
                .iter()
                .map(|item| (item.code, item.verdict.name(), &item.text))
                .collect();
            panic!("no {code} ({}) in {items:#?}", verdict.name());
        };
        assert!(!found.text.is_empty() && !found.source.is_empty(), "{code}");
        assert!(report.verdict >= *verdict, "{code}: {:?}", report.verdict);
    }
}

#[test]
fn upgrade_under_running_driver_suggests_a_reboot() {
    let mut node = healthy();
    node.nvml = refused(NvmlStatus::LIB_RM_VERSION_MISMATCH);
    let newer = "580.105.08";
    node.driver.libraries = Reading::Value(vec![Library {
        path: "/usr/lib/x86_64-linux-gnu/libcuda.so.1".to_owned(),
        version: text(newer),
    }]);
    kernels(&mut node)[0].module = module(newer, true);
    let report = evaluated(&node);
    let verdict =
        |code: &str| report.items.iter().find(|item| item.code == code).map(|item| item.verdict);
    assert_eq!(verdict("driver-library-mismatch"), Some(Verdict::Blocked));
    assert_eq!(verdict("nvml-mismatch"), Some(Verdict::Blocked));
    // A reboot loads the newer module, which matches the libraries. The report suggests it.
    assert_eq!(verdict("next-kernel-ready"), Some(Verdict::Ok));
    assert!(report.remedies.iter().any(|remedy| remedy.text.contains("reboot")));
}

#[test]
fn strict_blocks_on_advisories() {
    let node = healthy();
    assert!(!evaluated(&node).notices.is_empty());
    let strict = evaluate(crate::FactSet::embedded(), &node, date(2026, 11, 15), true);
    assert_eq!(strict.verdict, Verdict::Blocked);
    assert!(strict.items.iter().any(|item| item.code == "strict-exposed"));
}

#[test]
fn findings_shared_by_two_models_are_reported_once() {
    let mut node = healthy();
    nvml(&mut node).devices[0].name = text("NVIDIA H200");
    let report = evaluated(&node);
    let count = |code: &str| report.items.iter().filter(|item| item.code == code).count();
    assert_eq!(count("supported-branch"), 1);
    assert_eq!(count("architecture-driven"), 2);
    let ids: Vec<_> = report.notices.iter().filter_map(|notice| notice.id.as_ref()).collect();
    let unique: std::collections::BTreeSet<_> = ids.iter().collect();
    assert_eq!(ids.len(), unique.len());
}

#[test]
fn observation_round_trips() {
    let node = healthy();
    let json = serde_json::to_string(&node).unwrap();
    assert_eq!(serde_json::from_str::<NodeObservation>(&json).unwrap(), node);
}
