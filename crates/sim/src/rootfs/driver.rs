//! Files of the loaded NVIDIA driver.

use crate::gpu::{Remote, SimGpu};
use crate::host::{Host, SoftwareFault};
use crate::node::SharedNodeState;

use super::RootFs;

/// Whether the node has the open-source kernel modules, which are the default since branch 560.
pub(super) fn open_modules(node: &SharedNodeState) -> bool {
    node.driver_numbers()[0] >= 560
}

/// Module flavour as the driver prints it.
pub(super) fn module_flavour(open: bool) -> &'static str {
    if open { "Open Kernel Module for x86_64" } else { "x86_64 Kernel Module" }
}

/// PCI addresses of the `NVSwitches` that the GPUs are linked to, as the kernel prints them.
pub(super) fn switches(gpus: &[&SimGpu]) -> Vec<String> {
    let mut found: Vec<String> = gpus
        .iter()
        .flat_map(|gpu| &gpu.nvlink.links)
        .filter(|link| link.remote == Remote::Switch)
        .filter_map(|link| link.remote_address.get(4..).map(str::to_ascii_lowercase))
        .collect();
    found.sort();
    found.dedup();
    found
}

const OTHER_MODULES: &str = "mlx5_ib 462848 0 - Live 0xffffffffc1200000\n\
     mlx5_core 2191360 1 mlx5_ib, Live 0xffffffffc0f00000\n\
     ib_core 512000 1 mlx5_ib, Live 0xffffffffc0e00000\n";

const PARAMS: &str = "ResmanDebugLevel: 4294967295\nRmLogonRC: 1\nModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileGID: 0\nDeviceFileMode: 438\n\
     InitializeSystemMemoryAllocations: 1\nUsePageAttributeTable: 4294967295\nEnableMSI: 1\nEnablePCIeGen3: 0\nMemoryPoolSize: 0\n\
     KMallocHeapMaxSize: 0\nVMallocHeapMaxSize: 0\nIgnoreMMIOCheck: 0\nEnableStreamMemOPs: 0\nEnableUserNUMAManagement: 1\n\
     NvLinkDisable: 0\nRmProfilingAdminOnly: 1\nPreserveVideoMemoryAllocations: 0\nEnableS0ixPowerManagement: 0\n\
     DynamicPowerManagement: 3\nRegisterPCIDriver: 1\nEnablePCIERelaxedOrderingMode: 0\nEnableResizableBar: 0\n\
     EnableGpuFirmware: 18\nEnableGpuFirmwareLogs: 2\nOpenRmEnableUnsupportedGpus: 1\nImexChannelCount: 2048\n\
     CoherentGPUMemoryMode: \"\"\nRegistryDwords: \"\"\nRegistryDwordsPerDevice: \"\"\nRmMsg: \"\"\nGpuBlacklist: \"\"\n\
     TemporaryFilePath: \"\"\nExcludedGpus: \"\"\n";

pub(super) fn add(rootfs: &mut RootFs, node: &SharedNodeState, host: &Host, gpus: &[&SimGpu]) {
    if !node.driver_loaded {
        rootfs.add_file("proc/modules", OTHER_MODULES);
        return;
    }
    let kind = module_flavour(open_modules(node));
    rootfs.add_file(
        "proc/driver/nvidia/version",
        format!(
            "NVRM version: NVIDIA UNIX {kind}  {}  Release Build  (dvs-builder@U22-I3-B03-01-5)  Tue Sep 23 10:05:20 UTC 2025\n\
             GCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2~24.04)\n",
            node.driver
        ),
    );
    rootfs.add_file("proc/driver/nvidia/params", PARAMS);
    for gpu in gpus {
        device(rootfs, node, gpu);
    }
    let without_file = gpus.last().filter(|_| host.has(SoftwareFault::DeviceFileMissing));
    for gpu in gpus.iter().filter(|gpu| without_file.is_none_or(|last| last.minor != gpu.minor)) {
        // A plain file instead of a device node, because readers only check whether it exists.
        rootfs.add_file(format!("dev/nvidia{}", gpu.minor), "");
    }
    for address in switches(gpus) {
        rootfs.add_file(format!("proc/driver/nvidia-nvswitch/devices/{address}"), "");
    }
    let has_uvm = !host.has(SoftwareFault::UvmMissing) && !host.has(SoftwareFault::UvmNotLoaded);
    rootfs.add_file("dev/nvidiactl", "");
    if has_uvm && !host.has(SoftwareFault::UvmDeviceMissing) {
        rootfs.add_file("dev/nvidia-uvm", "");
        rootfs.add_file("dev/nvidia-uvm-tools", "");
    }
    let users = gpus.len() * 2;
    let uvm = has_uvm.then_some(("nvidia_uvm", 0));
    let peermem = !host.nics.is_empty() && !host.has(SoftwareFault::GpudirectRdmaMissing);
    let peermem = peermem.then_some(("nvidia_peermem", 0));
    for (module, users) in [("nvidia", users)].into_iter().chain(uvm).chain(peermem) {
        rootfs.add_value(format!("sys/module/{module}/version"), &node.driver);
        rootfs.add_value(format!("sys/module/{module}/refcnt"), users);
        rootfs.add_value(format!("sys/module/{module}/initstate"), "live");
    }
    rootfs.add_file(
        "proc/modules",
        format!(
            "nvidia_uvm 4935680 0 - Live 0xffffffffc2a00000 (O)\n\
             nvidia_drm 122880 0 - Live 0xffffffffc29c0000 (O)\n\
             nvidia_modeset 1814528 1 nvidia_drm, Live 0xffffffffc2800000 (O)\n\
             nvidia 104071168 {users} nvidia_uvm,nvidia_modeset, Live 0xffffffffbc400000 (O)\n{OTHER_MODULES}"
        ),
    );
}

fn device(rootfs: &mut RootFs, node: &SharedNodeState, gpu: &SimGpu) {
    let address = gpu.pci.address();
    rootfs.add_file(
        format!("proc/driver/nvidia/gpus/{address}/information"),
        format!(
            "Model: \t\t {}\nIRQ:   \t\t {}\nGPU UUID: \t {}\nVideo BIOS: \t {}\nBus Type: \t PCIe\nDMA Size: \t 52 bits\n\
             DMA Mask: \t 0xfffffffffffff\nBus Location: \t {address}\nDevice Minor: \t {}\nGPU Firmware: \t {}\nGPU Excluded:\t No\n",
            gpu.name, gpu.pci.irq, gpu.uuid, gpu.board.vbios_version(), gpu.minor, node.driver
        ),
    );
    rootfs.add_file(
        format!("proc/driver/nvidia/gpus/{address}/power"),
        "Runtime D3 status:          Disabled by default\nTegra iGPU Rail-Gating:     Disabled\nVideo Memory:               Active\n",
    );
}
