//! What is installed: packages, libraries, kernels and their modules, services. All of it is of the driver on
//! disk, which an upgrade under a loaded driver changes.

use crate::gpu::Gpu;
use crate::node::Node;

use super::driver::{open_modules, switches};
use super::{Tree, elf};

const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

pub(super) fn add(tree: &mut Tree, node: &Node, gpus: &[&Gpu]) {
    let has_switches = !switches(gpus).is_empty();
    packages(tree, node, has_switches);
    let driver = node.driver_on_disk();
    for name in ["libnvidia-ml.so", "libcuda.so"] {
        tree.add(format!("{LIBRARIES}/{name}.{driver}"), "");
        tree.link(format!("{LIBRARIES}/{name}.1"), format!("{name}.{driver}"));
    }
    // The running driver loaded its firmware from its own folder, which an upgrade removes.
    for firmware in ["gsp_ga10x.bin", "gsp_tu10x.bin"] {
        tree.add(format!("lib/firmware/nvidia/{driver}/{firmware}"), "");
    }
    kernel(tree, node);
    services(tree, has_switches);
    tree.add("usr/bin/containerd", "");
    tree.add("usr/bin/nvidia-ctk", "");
    tree.add(
        "etc/cdi/nvidia.yaml",
        format!("cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ncontainerEdits:\n  mounts:\n  - hostPath: /{LIBRARIES}/libcuda.so.{driver}\n"),
    );
}

fn packages(tree: &mut Tree, node: &Node, has_switches: bool) {
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
        tree.add(
            "usr/share/nvidia/nvswitch/fabricmanager.cfg",
            "LOG_LEVEL=4\nLOG_FILE_NAME=/var/log/fabricmanager.log\nDAEMONIZE=1\nFABRIC_MODE=0\nFABRIC_MODE_RESTART=0\n",
        );
    }
    let mut status = String::new();
    let mut add = |wanted: &str, name: &str, version: &str| {
        status.push_str(&format!(
            "Package: {name}\nStatus: {wanted} ok installed\nPriority: optional\nSection: multiverse/libs\nMaintainer: Simulated\n\
             Architecture: amd64\nVersion: {version}\nDescription: {name}\n\n"
        ));
    };
    for name in &names {
        add("hold", name, &format!("{driver}-0ubuntu1"));
    }
    add("install", "nvidia-container-toolkit", "1.19.1-1");
    add("hold", &format!("linux-image-{}", node.kernel), &node.kernel);
    tree.add("var/lib/dpkg/status", status);
}

fn kernel(tree: &mut Tree, node: &Node) {
    let driver = node.driver_on_disk();
    for file in ["vmlinuz", "initrd.img", "config", "System.map"] {
        tree.add(format!("boot/{file}-{}", node.kernel), "");
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
        tree.add(format!("{modules}/updates/dkms/{module}.ko"), elf::module(&strings));
    }
    tree.add(
        format!("{modules}/modules.dep"),
        "updates/dkms/nvidia.ko:\nupdates/dkms/nvidia-uvm.ko: updates/dkms/nvidia.ko\nupdates/dkms/nvidia-modeset.ko: updates/dkms/nvidia.ko\nupdates/dkms/nvidia-drm.ko: updates/dkms/nvidia-modeset.ko updates/dkms/nvidia.ko\n",
    );
    tree.add(format!("{modules}/build/Makefile"), "");
    tree.add(format!("var/lib/dkms/nvidia/{driver}/{}/x86_64/module/nvidia.ko", node.kernel), "");
}

/// Units that are installed and start with the host; whether they run is in the control groups.
fn services(tree: &mut Tree, has_switches: bool) {
    let manager = has_switches.then_some("nvidia-fabricmanager");
    for name in ["nvidia-persistenced"].into_iter().chain(manager) {
        let unit = format!("{name}.service");
        tree.add(format!("lib/systemd/system/{unit}"), "[Service]\n");
        tree.link(
            format!("etc/systemd/system/multi-user.target.wants/{unit}"),
            format!("/lib/systemd/system/{unit}"),
        );
    }
}
