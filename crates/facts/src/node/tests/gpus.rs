//! GPUs, their settings, their memory and their fabric.

use super::Verdict::{Blocked, Caveat, Ok as Fine, Unknown};
use super::*;

#[test]
fn gpus() {
    check_all(&[
        ("nvml-mismatch", Blocked, |s| s.nvml = refused(NvmlStatus::LIB_RM_VERSION_MISMATCH)),
        ("nvml-refused", Blocked, |s| s.nvml = refused(NvmlStatus::DRIVER_NOT_LOADED)),
        ("nvml-refused", Unknown, |s| s.nvml = refused(NvmlStatus::NO_PERMISSION)),
        ("nvml-hung", Unknown, |s| {
            let during = "nvmlInit_v2".to_owned();
            s.nvml = NvmlReading::Hung { after_s: 10, during, read: None };
        }),
        ("gpus-unread", Unknown, hangs_at_third_gpu),
        ("ecc-on", Fine, hangs_at_third_gpu),
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
            nvml(s).devices[3].handle = Reading::Unreadable(ReadError::nvml(15));
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
fn gpu_settings() {
    check_all(&[
        ("compute-mode-prohibited", Blocked, |s| {
            nvml(s).devices[2].compute_mode = Reading::Value(2);
        }),
        ("compute-mode-exclusive", Caveat, |s| {
            all(s, |device| device.compute_mode = Reading::Value(3));
        }),
        ("compute-mode-unknown", Unknown, |s| {
            nvml(s).devices[0].compute_mode = Reading::Unreadable(ReadError::nvml(999));
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
        ("inforom-invalid", Caveat, |s| {
            nvml(s).devices[4].inforom_valid = Some(Reading::Value(false));
        }),
        ("inforom-unknown", Unknown, |s| nvml(s).devices[0].inforom_valid = Some(denied())),
        ("application-clocks-lowered", Caveat, |s| all(s, |device| application_mhz(device, 345))),
        ("application-clocks-default", Fine, |s| all(s, |device| application_mhz(device, 2000))),
        ("application-clocks-unknown", Unknown, |s| {
            nvml(s).devices[0].application_clocks = Some(denied());
        }),
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
            nvml(s).devices[0].recovery_action = Reading::Unreadable(ReadError::nvml(15));
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

fn hangs_at_third_gpu(node: &mut NodeObservation) {
    let mut read = nvml(node).clone();
    read.devices.truncate(2);
    let during = "nvmlDeviceGetName of GPU 2".to_owned();
    node.nvml = NvmlReading::Hung { after_s: 10, during, read: Some(Box::new(read)) };
}

fn application_mhz(device: &mut NvmlDevice, current_mhz: u32) {
    let clocks = GraphicsApplicationClock { current_mhz, default_mhz: 1980 };
    device.application_clocks = Some(Reading::Value(clocks));
}

fn limit(device: &mut NvmlDevice, limit_mw: u32) {
    device.power = Reading::Value(PowerLimits {
        limit_mw,
        default_mw: 700_000,
        min_mw: 200_000,
        max_mw: 700_000,
    });
}

fn rows(node: &mut NodeObservation, pending: bool, failed: bool) {
    nvml(node).devices[0].remapped_rows =
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
            nvml(s).devices[5].fabric = Reading::Unreadable(ReadError::nvml(999));
        }),
        ("fabric-not-joined", Blocked, |s| {
            nvml(s).devices[5].fabric = Reading::Value(FabricState { state: 2, status: 0 });
        }),
        ("fabric-not-joined", Blocked, |s| {
            nvml(s).devices[5].fabric = Reading::Value(FabricState { state: 3, status: 999 });
        }),
    ]);
}

#[test]
fn unsupported_calls_of_old_libraries_are_not_unknown() {
    let mut node = healthy();
    nvml(&mut node).devices[0].recovery_action =
        Reading::Unreadable(NvmlStatus::INVALID_ARGUMENT.into());
    nvml(&mut node).devices[0].fabric = Reading::Unreadable(ReadError::MissingCall { call: None });
    let report = evaluated(&node);
    assert!(report.items.iter().all(|item| item.verdict == Fine), "{:?}", report.items);
}
