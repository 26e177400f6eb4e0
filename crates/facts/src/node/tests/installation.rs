//! Firmware, module options, device files, and the owner of the driver.

use super::Verdict::{Blocked, Caveat, Ok as Fine, Unknown};
use super::*;

pub(super) fn healthy() -> InstallationObservation {
    let minors = (0..8).map(|minor| format!("/dev/nvidia{minor}"));
    let others = ["/dev/nvidiactl", "/dev/nvidia-uvm"].map(str::to_owned);
    InstallationObservation {
        gsp_firmware: Reading::Value(vec![DRIVER.to_owned()]),
        load_disabled: Reading::Value(Vec::new()),
        uvm_loaded: text(DRIVER),
        uvm_on_disk: text(DRIVER),
        modprobe_helper: Reading::Value(true),
        device_files: Reading::Value(
            others
                .into_iter()
                .chain(minors)
                .map(|path| DeviceFile { path, exists: Reading::Value(true) })
                .collect(),
        ),
        cuda_run_file: Reading::Value(false),
        driver_container: Reading::Value(false),
    }
}

fn disable(node: &mut NodeObservation) {
    node.installation.load_disabled = Reading::Value(vec![LoadDisabled {
        path: "/etc/modprobe.d/nvidia.conf".to_owned(),
        line: "install nvidia /bin/false".to_owned(),
    }]);
}

#[test]
fn installation() {
    check_all(&[
        ("gsp-firmware-missing", Blocked, |s| {
            s.installation.gsp_firmware = Reading::Value(vec!["575.57.08".to_owned()]);
        }),
        ("gsp-firmware-unknown", Unknown, |s| s.installation.gsp_firmware = denied()),
        ("module-load-disabled", Caveat, disable),
        ("module-load-disabled", Blocked, |s| {
            disable(s);
            unloaded(s);
        }),
        ("module-load-unknown", Unknown, |s| s.installation.load_disabled = denied()),
        ("uvm-differs", Blocked, |s| s.installation.uvm_loaded = text("575.57.08")),
        ("uvm-next-boot-differs", Caveat, |s| s.installation.uvm_on_disk = text("575.57.08")),
        ("uvm-on-disk-differs", Blocked, |s| {
            s.installation.uvm_loaded = Reading::Absent;
            s.installation.uvm_on_disk = text("575.57.08");
        }),
        ("uvm-missing", Blocked, |s| {
            s.installation.uvm_loaded = Reading::Absent;
            s.installation.uvm_on_disk = Reading::Absent;
        }),
        ("uvm-on-demand", Fine, |s| s.installation.uvm_loaded = Reading::Absent),
        ("uvm-not-loaded", Blocked, |s| {
            s.installation.uvm_loaded = Reading::Absent;
            s.installation.modprobe_helper = Reading::Value(false);
        }),
        ("uvm-unknown", Unknown, |s| s.installation.uvm_loaded = denied()),
        ("device-file-missing", Blocked, |s| {
            let Reading::Value(files) = &mut s.installation.device_files else { panic!() };
            files[7].exists = Reading::Value(false);
        }),
        ("device-files-unknown", Unknown, |s| s.installation.device_files = denied()),
        ("driver-from-cuda-metapackage", Caveat, |s| {
            let Reading::Value(packages) = &mut s.packages.dpkg else { panic!() };
            packages.push(package("cuda-13-0", "13.0.2-1", false));
        }),
        ("driver-from-cuda-run-file", Caveat, |s| {
            s.driver.run_file_install = Reading::Value(true);
            s.installation.cuda_run_file = Reading::Value(true);
        }),
        ("driver-container-conflict", Blocked, |s| {
            s.installation.driver_container = Reading::Value(true);
        }),
        ("driver-in-container", Caveat, |s| {
            s.installation.driver_container = Reading::Value(true);
            s.packages.dpkg = Reading::Value(vec![package("linux-image-generic", "6.8.0", true)]);
        }),
    ]);
}

#[test]
fn toolkit_without_driver_is_no_metapackage() {
    let mut node = super::healthy();
    let Reading::Value(packages) = &mut node.packages.dpkg else { panic!() };
    for name in ["cuda-toolkit-13-0", "cuda-drivers", "cuda-compat-13-0", "cudagraph"] {
        packages.push(package(name, "580.95.05-1", true));
    }
    let report = evaluated(&node);
    assert!(report.items.iter().all(|item| item.code != "driver-from-cuda-metapackage"));
}

#[test]
fn what_an_older_capture_lacks_is_not_judged() {
    let mut node = super::healthy();
    let missing = ReadError::NotInCapture;
    node.installation = InstallationObservation {
        gsp_firmware: Reading::Unreadable(missing.clone()),
        load_disabled: Reading::Unreadable(missing.clone()),
        uvm_loaded: Reading::Unreadable(missing.clone()),
        uvm_on_disk: Reading::Unreadable(missing.clone()),
        modprobe_helper: Reading::Unreadable(missing.clone()),
        device_files: Reading::Unreadable(missing.clone()),
        cuda_run_file: Reading::Unreadable(missing.clone()),
        driver_container: Reading::Unreadable(missing),
    };
    let report = evaluated(&node);
    assert_eq!(report.verdict, Verdict::Ok);
    assert!(report.not_judged.iter().any(|what| what.contains("GSP firmware")));
}
