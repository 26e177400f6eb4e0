//! Installed software: packages, libraries, kernels and modules, services. The versions are those
//! of the driver on disk. An upgrade changes them while the old driver stays loaded.

use farrier_facts::FactSet;
use farrier_facts::gpu::Fabric;

use crate::gpu::SimGpu;
use crate::host::{Host, SoftwareFault};
use crate::node::SharedNodeState;

use super::driver::{open_modules, switches};
use super::{RootFs, elf};

const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

pub(super) fn add(rootfs: &mut RootFs, node: &SharedNodeState, host: &Host, gpus: &[&SimGpu]) {
    let has_switches = !switches(gpus).is_empty();
    packages(rootfs, node, host, has_switches);
    let driver = node.driver_on_disk();
    for name in ["libnvidia-ml.so", "libcuda.so"] {
        rootfs.add_file(format!("{LIBRARIES}/{name}.{driver}"), "");
        rootfs.add_symlink(format!("{LIBRARIES}/{name}.1"), format!("{name}.{driver}"));
    }
    // An upgrade removes the firmware folder of the running driver.
    rootfs.add_file("lib/firmware/regulatory.db", "");
    if !host.has(SoftwareFault::GspFirmwareMissing) {
        for firmware in ["gsp_ga10x.bin", "gsp_tu10x.bin"] {
            rootfs.add_file(format!("lib/firmware/nvidia/{driver}/{firmware}"), "");
        }
    }
    kernel(rootfs, node, host);
    owner(rootfs, host);
    services(rootfs, host, has_imex(node), has_switches);
    rootfs.add_file("usr/bin/containerd", "");
    rootfs.add_file("usr/bin/nvidia-ctk", "");
    if host.has(SoftwareFault::RuntimeUnconfigured) {
        return;
    }
    rootfs.add_file(
        "etc/cdi/nvidia.yaml",
        format!("cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ncontainerEdits:\n  mounts:\n  - hostPath: /{LIBRARIES}/libcuda.so.{driver}\n"),
    );
}

/// Whether the node is part of an NVLink domain of several nodes.
pub(super) fn has_imex(node: &SharedNodeState) -> bool {
    let gpus = &FactSet::embedded().gpus.gpu;
    gpus.iter().any(|gpu| gpu.id == node.sku && gpu.fabric == Fabric::Rack)
}

/// Who installed the driver, and whether the kernel may load it.
fn owner(rootfs: &mut RootFs, host: &Host) {
    if host.has(SoftwareFault::ModuleLoadDisabled) {
        rootfs.add_file("etc/modprobe.d/site-nvidia.conf", "install nvidia /bin/false\n");
    }
    if host.has(SoftwareFault::CudaRunFile) {
        rootfs.add_file("usr/bin/nvidia-uninstall", "");
        rootfs.add_file("var/log/cuda-installer.log", "[INFO]: Installed: driver\n");
    }
    if host.has(SoftwareFault::DriverContainer) {
        rootfs.add_file("run/nvidia/driver/usr/bin/nvidia-smi", "");
        rootfs.add_file("run/nvidia/validations/.driver-ctr-ready", "");
    }
}

fn packages(rootfs: &mut RootFs, node: &SharedNodeState, host: &Host, has_switches: bool) {
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
        let is_manager = name.starts_with("nvidia-fabricmanager");
        let differs = is_manager && host.has(SoftwareFault::FabricManagerDiffers);
        let version = if differs { "570.86.15" } else { driver };
        add("hold", name, &format!("{version}-0ubuntu1"));
    }
    if host.has(SoftwareFault::CudaMetapackage) {
        add("install", "cuda", "13.0.2-1");
    }
    add("install", "nvidia-container-toolkit", "1.19.1-1");
    add("hold", &format!("linux-image-{}", node.kernel), &node.kernel);
    rootfs.add_file("var/lib/dpkg/status", status);
}

fn kernel(rootfs: &mut RootFs, node: &SharedNodeState, host: &Host) {
    let driver = node.driver_on_disk();
    for file in ["vmlinuz", "initrd.img", "System.map"] {
        rootfs.add_file(format!("boot/{file}-{}", node.kernel), "");
    }
    let has_dma_buf = !host.has(SoftwareFault::GpudirectRdmaMissing);
    let config = if has_dma_buf {
        "CONFIG_DMA_SHARED_BUFFER=y\nCONFIG_PCI_P2PDMA=y\n"
    } else {
        "# CONFIG_DMA_SHARED_BUFFER is not set\n"
    };
    rootfs.add_file(format!("boot/config-{}", node.kernel), config);
    let modules = format!("lib/modules/{}", node.kernel);
    let licence = if open_modules(node) { "Dual MIT/GPL" } else { "NVIDIA" };
    for module in ["nvidia", "nvidia-uvm", "nvidia-modeset", "nvidia-drm"] {
        let is_uvm = module == "nvidia-uvm";
        if is_uvm && host.has(SoftwareFault::UvmMissing) {
            continue;
        }
        let differs = is_uvm && host.has(SoftwareFault::UvmOnDiskDiffers);
        let version = if differs { "570.86.15" } else { driver };
        let strings = [
            format!("version={version}"),
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
fn services(rootfs: &mut RootFs, host: &Host, has_imex: bool, has_switches: bool) {
    let manager = has_switches.then_some("nvidia-fabricmanager");
    let imex = has_imex.then_some("nvidia-imex");
    if has_imex && !host.has(SoftwareFault::ImexNodesMissing) {
        rootfs.add_file("etc/nvidia-imex/nodes_config.cfg", "10.0.0.1\n10.0.0.2\n");
    }
    for name in ["nvidia-persistenced"].into_iter().chain(manager).chain(imex) {
        let unit = format!("{name}.service");
        rootfs.add_file(format!("lib/systemd/system/{unit}"), "[Service]\n");
        rootfs.add_symlink(
            format!("etc/systemd/system/multi-user.target.wants/{unit}"),
            format!("/lib/systemd/system/{unit}"),
        );
    }
}
