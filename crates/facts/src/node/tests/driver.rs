//! The driver, its modules, the kernels and Secure Boot.

use super::Verdict::{Blocked, Caveat, Ok as Fine, Unknown};
use super::*;

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
                version: Reading::Unreadable(ReadError::NotALink),
            }]);
        }),
        ("driver-library-equal", Fine, |s| {
            s.driver.libraries = Reading::Value(vec![Library {
                path: "/usr/lib/libcuda.so.1".to_owned(),
                version: Reading::Unreadable(ReadError::NotALink),
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
fn remedies_are_attached_to_their_item() {
    let remedy = |change: fn(&mut NodeObservation), code: &str| {
        let mut node = healthy();
        change(&mut node);
        let report = evaluated(&node);
        let on_ok_item =
            report.items.iter().find(|item| item.verdict == Fine && item.remedy.is_some());
        assert!(on_ok_item.is_none(), "{on_ok_item:?}");
        report.items.into_iter().find(|item| item.code == code).and_then(|item| item.remedy)
    };
    let load = "load the driver; if that fails, the kernel log says why: `modprobe nvidia`";
    assert_eq!(remedy(unloaded, "module-not-loaded").as_deref(), Some(load));
    let old = |node: &mut NodeObservation| node.driver.loaded = text("550.54.15");
    assert!(remedy(old, "module-on-disk-differs").is_some_and(|remedy| remedy.contains("reboot")));
    assert!(remedy(old, "end-of-support").is_some_and(|remedy| remedy.contains("move to")));
}
