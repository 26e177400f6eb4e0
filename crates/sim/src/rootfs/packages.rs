//! Installed software: packages, libraries, kernels and modules, services. The versions are those
//! of the driver on disk. An upgrade changes them while the old driver stays loaded.

use crate::gpu::SimGpu;
use crate::node::SharedNodeState;

use super::driver::{open_modules, switches};
use super::{RootFs, elf};

const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

pub(super) fn add(rootfs: &mut RootFs, node: &SharedNodeState, gpus: &[&SimGpu]) {
    let has_switches = !switches(gpus).is_empty();
    packages(rootfs, node, has_switches);
    let driver = node.driver_on_disk();
    for name in ["libnvidia-ml.so", "libcuda.so"] {
        rootfs.add_file(format!("{LIBRARIES}/{name}.{driver}"), "");
        rootfs.add_symlink(format!("{LIBRARIES}/{name}.1"), format!("{name}.{driver}"));
    }
    // Only the version on disk: an upgrade removes the firmware folder of the loaded driver.
    for firmware in ["gsp_ga10x.bin", "gsp_tu10x.bin"] {
        rootfs.add_file(format!("lib/firmware/nvidia/{driver}/{firmware}"), "");
    }
    kernel(rootfs, node);
    services(rootfs, has_switches);
    rootfs.add_file("usr/bin/containerd", "");
    rootfs.add_file("usr/bin/nvidia-ctk", "");
    rootfs.add_file(
        "etc/cdi/nvidia.yaml",
        format!("cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ncontainerEdits:\n  mounts:\n  - hostPath: /{LIBRARIES}/libcuda.so.{driver}\n"),
    );
}

fn packages(rootfs: &mut RootFs, node: &SharedNodeState, has_switches: bool) {
    let driver = node.driver_on_disk();
    let branch = driver.split('.').next().unwrap_or_default();
    let open = if open_modules(node) { "-open" } else { "" };
    let mut names = vec![
        format!("nvidia-driver-{branch}-server{open}"),
        format!("nvidia-dkms-{branch}-server{open}"),
        format!("nvidia-kernel-source-{branch}-server{open}"),
        format!("nvidia-utils-{branch}-server"),
        format!("nvidia-compute-utils-{branch}-server"),
        format!("libnvidia-compute-{branch}-server"),
        format!("nvidia-firmware-{branch}-server-{driver}"),
    ];
    if has_switches {
        names.push(format!("nvidia-fabricmanager-{branch}"));
        rootfs.add_file(
            "usr/share/nvidia/nvswitch/fabricmanager.cfg",
            "LOG_LEVEL=4\nLOG_FILE_NAME=/var/log/fabricmanager.log\nDAEMONIZE=1\nFABRIC_MODE=0\nFABRIC_MODE_RESTART=0\n",
        );
    }
    let mut status = String::new();
    let mut add = |selection: &str, name: &str, version: &str| {
        status.push_str(&format!(
            "Package: {name}\nStatus: {selection} ok installed\nPriority: optional\nSection: multiverse/libs\nMaintainer: Simulated\n\
             Architecture: amd64\nVersion: {version}\nDescription: {name}\n\n"
        ));
    };
    for name in &names {
        add("hold", name, &format!("{driver}-0ubuntu1"));
    }
    add("install", "nvidia-container-toolkit", "1.19.1-1");
    add("hold", &format!("linux-image-{}", node.kernel), &node.kernel);
    rootfs.add_file("var/lib/dpkg/status", status);
}

fn kernel(rootfs: &mut RootFs, node: &SharedNodeState) {
    let driver = node.driver_on_disk();
    for file in ["vmlinuz", "initrd.img", "config", "System.map"] {
        rootfs.add_file(format!("boot/{file}-{}", node.kernel), "");
    }
    let modules = format!("lib/modules/{}", node.kernel);
    let licence = if open_modules(node) { "Dual MIT/GPL" } else { "NVIDIA" };
    for module in ["nvidia", "nvidia-uvm", "nvidia-modeset", "nvidia-drm"] {
        let strings = [
            format!("version={driver}"),
            format!("license={licence}"),
            "supported=external".to_owned(),
            format!("name={}", module.replace('-', "_")),
            format!("vermagic={} SMP preempt mod_unload modversions ", node.kernel),
        ];
        rootfs.add_file(format!("{modules}/updates/dkms/{module}.ko"), elf::module(&strings));
    }
    rootfs.add_file(
        format!("{modules}/modules.dep"),
        "updates/dkms/nvidia.ko:\nupdates/dkms/nvidia-uvm.ko: updates/dkms/nvidia.ko\nupdates/dkms/nvidia-modeset.ko: updates/dkms/nvidia.ko\nupdates/dkms/nvidia-drm.ko: updates/dkms/nvidia-modeset.ko updates/dkms/nvidia.ko\n",
    );
    rootfs.add_file(format!("{modules}/build/Makefile"), "");
    rootfs.add_file(
        format!("var/lib/dkms/nvidia/{driver}/{}/x86_64/module/nvidia.ko", node.kernel),
        "",
    );
}

/// Adds the enabled systemd units. The cgroup files show whether they run.
fn services(rootfs: &mut RootFs, has_switches: bool) {
    let manager = has_switches.then_some("nvidia-fabricmanager");
    for name in ["nvidia-persistenced"].into_iter().chain(manager) {
        let unit = format!("{name}.service");
        rootfs.add_file(format!("lib/systemd/system/{unit}"), "[Service]\n");
        rootfs.add_symlink(
            format!("etc/systemd/system/multi-user.target.wants/{unit}"),
            format!("/lib/systemd/system/{unit}"),
        );
    }
}
