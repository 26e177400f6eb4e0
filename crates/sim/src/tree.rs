//! The files of a node besides NVML: `/proc`, `/sys`, `/dev/kmsg`, packages and kernels, coherent with it.

use crate::gpu::Gpu;
use crate::node::Node;

/// A file below `root/`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TreeFile {
    /// Relative to the root.
    pub path: String,
    /// All of it.
    pub text: String,
}

/// An `InfiniBand` adapter: bus, and its port's name.
const ADAPTER_BUSES: [u32; 8] = [0x18, 0x40, 0x4f, 0x5e, 0x9a, 0xc0, 0xce, 0xdc];

/// The files of the node. `adapters` is the number of `InfiniBand` ports.
pub fn files(node: &Node, gpus: &[Gpu], adapters: u32) -> Vec<TreeFile> {
    let mut tree = Tree::default();
    driver(&mut tree, node, gpus);
    for gpu in gpus {
        device(&mut tree, node, gpu);
    }
    host(&mut tree, node);
    packages(&mut tree, node, gpus);
    for number in 0..adapters.min(8) {
        adapter(&mut tree, number);
    }
    kernel_log(&mut tree, node, gpus);
    tree.0.sort_by(|left, right| left.path.cmp(&right.path));
    tree.0
}

/// The files below `/sys` of one GPU: what changes when something happens to it.
pub fn files_of_gpu(node: &Node, gpu: &Gpu) -> Vec<TreeFile> {
    let mut tree = Tree::default();
    device(&mut tree, node, gpu);
    tree.0
}

#[derive(Default)]
struct Tree(Vec<TreeFile>);

impl Tree {
    fn add(&mut self, path: impl Into<String>, text: impl Into<String>) {
        self.0.push(TreeFile { path: path.into(), text: text.into() });
    }

    /// A value of sysfs: one line.
    fn value(&mut self, path: impl Into<String>, value: impl std::fmt::Display) {
        self.add(path, format!("{value}\n"));
    }
}

/// Whether the modules are the open ones, which is what a plain install gives from branch 560 on.
fn open_modules(node: &Node) -> bool {
    node.driver_numbers()[0] >= 560
}

fn driver(tree: &mut Tree, node: &Node, gpus: &[Gpu]) {
    let kind = if open_modules(node) { "Open Kernel Module" } else { "Kernel Module" };
    tree.add(
        "proc/driver/nvidia/version",
        format!(
            "NVRM version: NVIDIA UNIX {kind} for x86_64  {}  Release Build  (dvs-builder@U22-I3-B03-01-5)  Tue Sep 23 10:05:20 UTC 2025\n\
             GCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2~24.04)\n",
            node.driver
        ),
    );
    tree.add(
        "proc/driver/nvidia/params",
        "ResmanDebugLevel: 4294967295\nRmLogonRC: 1\nModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileGID: 0\nDeviceFileMode: 438\n\
             InitializeSystemMemoryAllocations: 1\nUsePageAttributeTable: 4294967295\nEnableMSI: 1\nEnablePCIeGen3: 0\nMemoryPoolSize: 0\n\
             KMallocHeapMaxSize: 0\nVMallocHeapMaxSize: 0\nIgnoreMMIOCheck: 0\nEnableStreamMemOPs: 0\nEnableUserNUMAManagement: 1\n\
             NvLinkDisable: 0\nRmProfilingAdminOnly: 1\nPreserveVideoMemoryAllocations: 0\nEnableS0ixPowerManagement: 0\n\
             DynamicPowerManagement: 3\nRegisterPCIDriver: 1\nEnablePCIERelaxedOrderingMode: 0\nEnableResizableBar: 0\n\
             EnableGpuFirmware: 18\nEnableGpuFirmwareLogs: 2\nOpenRmEnableUnsupportedGpus: 1\nImexChannelCount: 2048\n\
             CoherentGPUMemoryMode: \"\"\nRegistryDwords: \"\"\nRegistryDwordsPerDevice: \"\"\nRmMsg: \"\"\nGpuBlacklist: \"\"\n\
             TemporaryFilePath: \"\"\nExcludedGpus: \"\"\n",
    );
    for gpu in gpus {
        let address = gpu.pci.address();
        tree.add(
            format!("proc/driver/nvidia/gpus/{address}/information"),
            format!(
                "Model: \t\t {}\nIRQ:   \t\t {}\nGPU UUID: \t {}\nVideo BIOS: \t {}\nBus Type: \t PCIe\nDMA Size: \t 52 bits\n\
                 DMA Mask: \t 0xfffffffffffff\nBus Location: \t {address}\nDevice Minor: \t {}\nGPU Firmware: \t {}\nGPU Excluded:\t No\n",
                gpu.name, gpu.pci.irq, gpu.uuid, gpu.board.vbios, gpu.minor, node.driver
            ),
        );
        tree.add(
            format!("proc/driver/nvidia/gpus/{address}/power"),
            "Runtime D3 status:          Disabled by default\nTegra iGPU Rail-Gating:     Disabled\nVideo Memory:               Active\n",
        );
        // Where a real node has a device there is a plain file: enough for what only looks whether it is there.
        tree.add(format!("dev/nvidia{}", gpu.minor), "");
    }
    for name in ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"] {
        tree.add(format!("dev/{name}"), "");
    }
    let users = gpus.len() * 2;
    tree.value("sys/module/nvidia/version", &node.driver);
    tree.value("sys/module/nvidia/refcnt", users);
    tree.value("sys/module/nvidia/initstate", "live");
    tree.value("sys/module/nvidia_uvm/version", &node.driver);
    tree.value("sys/module/nvidia_uvm/refcnt", 0);
    tree.value("sys/module/nvidia_uvm/initstate", "live");
    tree.add(
        "proc/modules",
        format!(
            "nvidia_uvm 4935680 0 - Live 0xffffffffc2a00000 (O)\n\
             nvidia_drm 122880 0 - Live 0xffffffffc29c0000 (O)\n\
             nvidia_modeset 1814528 1 nvidia_drm, Live 0xffffffffc2800000 (O)\n\
             nvidia 104071168 {users} nvidia_uvm,nvidia_modeset, Live 0xffffffffbc400000 (O)\n\
             mlx5_ib 462848 0 - Live 0xffffffffc1200000\n\
             mlx5_core 2191360 1 mlx5_ib, Live 0xffffffffc0f00000\n\
             ib_core 512000 1 mlx5_ib, Live 0xffffffffc0e00000\n"
        ),
    );
}

fn device(tree: &mut Tree, node: &Node, gpu: &Gpu) {
    let speed = |generation: u32| match generation {
        1 => "2.5 GT/s PCIe",
        2 => "5.0 GT/s PCIe",
        3 => "8.0 GT/s PCIe",
        4 => "16.0 GT/s PCIe",
        5 => "32.0 GT/s PCIe",
        _ => "64.0 GT/s PCIe",
    };
    let folder = format!("sys/bus/pci/devices/{}", gpu.pci.address());
    tree.value(format!("{folder}/vendor"), "0x10de");
    tree.value(format!("{folder}/device"), format!("0x{}", gpu.pci.device_id));
    tree.value(format!("{folder}/subsystem_vendor"), "0x10de");
    tree.value(format!("{folder}/subsystem_device"), format!("0x{}", gpu.pci.subsystem_id));
    tree.value(format!("{folder}/class"), "0x030200");
    tree.value(format!("{folder}/current_link_speed"), speed(gpu.pcie.generation));
    tree.value(format!("{folder}/current_link_width"), gpu.pcie.width);
    tree.value(format!("{folder}/max_link_speed"), speed(gpu.pcie.max_generation));
    tree.value(format!("{folder}/max_link_width"), gpu.pcie.max_width);
    tree.value(
        format!("{folder}/numa_node"),
        if node.virtual_machine { -1 } else { i64::from(gpu.pci.numa_node) },
    );
    tree.value(format!("{folder}/local_cpulist"), &gpu.pci.cpus);
    tree.value(format!("{folder}/irq"), gpu.pci.irq);
    tree.value(format!("{folder}/enable"), 1);
    tree.add(
        format!("{folder}/uevent"),
        format!(
            "DRIVER=nvidia\nPCI_CLASS=30200\nPCI_ID=10DE:{}\nPCI_SUBSYS_ID=10DE:{}\nPCI_SLOT_NAME={}\n",
            gpu.pci.device_id.to_uppercase(),
            gpu.pci.subsystem_id.to_uppercase(),
            gpu.pci.address()
        ),
    );
    for (name, kinds) in AER {
        let mut text: String = kinds.iter().flat_map(|kind| [*kind, " 0\n"]).collect();
        text.push_str(&format!("TOTAL_ERR_{} 0\n", name.to_uppercase()));
        tree.add(format!("{folder}/aer_dev_{name}"), text);
    }
}

const UNCORRECTABLE: &[&str] = &[
    "Undefined",
    "DLP",
    "SDES",
    "TLP",
    "FCP",
    "CmpltTO",
    "CmpltAbrt",
    "UnxCmplt",
    "RxOF",
    "MalfTLP",
    "ECRC",
    "UnsupReq",
    "ACSViol",
    "UncorrIntErr",
    "BlockedTLP",
    "AtomicOpBlocked",
    "TLPBlockedErr",
    "PoisonTLPBlocked",
];
const CORRECTABLE: &[&str] =
    &["RxErr", "BadTLP", "BadDLLP", "Rollover", "Timeout", "NonFatalErr", "CorrIntErr", "HeaderOF"];
/// The kernel's counters of bus errors by severity.
const AER: [(&str, &[&str]); 3] =
    [("correctable", CORRECTABLE), ("fatal", UNCORRECTABLE), ("nonfatal", UNCORRECTABLE)];

fn host(tree: &mut Tree, node: &Node) {
    tree.value("etc/hostname", &node.hostname);
    tree.value("proc/sys/kernel/hostname", &node.hostname);
    tree.value("proc/sys/kernel/osrelease", &node.kernel);
    tree.add(
        "proc/version",
        format!("Linux version {} (buildd@lcy02-amd64-026) (x86_64-linux-gnu-gcc-13 (Ubuntu 13.3.0-6ubuntu2~24.04) 13.3.0)\n", node.kernel),
    );
    tree.add(
        "proc/cmdline",
        format!("BOOT_IMAGE=/boot/vmlinuz-{} root=/dev/nvme0n1p2 ro iommu=pt\n", node.kernel),
    );
    tree.add("proc/uptime", "86400.00 8000000.00\n");
    tree.add("proc/stat", format!("btime {}\n", node.booted_unix_ms / 1000));
    tree.add("proc/swaps", "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n");
    tree.value("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never");
    tree.value("sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc");
    for cpu in [0, 95] {
        tree.value(
            format!("sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor"),
            "performance",
        );
    }
    if node.virtual_machine {
        tree.value("sys/class/dmi/id/sys_vendor", "QEMU");
        tree.value("sys/class/dmi/id/product_name", "Standard PC (Q35 + ICH9, 2009)");
    } else {
        tree.value("sys/class/dmi/id/sys_vendor", "Farrier");
        tree.value("sys/class/dmi/id/product_name", "Simulated GPU server");
    }
    tree.add(
        "etc/os-release",
        "PRETTY_NAME=\"Ubuntu 24.04.3 LTS\"\nNAME=\"Ubuntu\"\nVERSION_ID=\"24.04\"\nVERSION=\"24.04.3 LTS (Noble Numbat)\"\nVERSION_CODENAME=noble\nID=ubuntu\nID_LIKE=debian\n",
    );
    for file in ["vmlinuz", "initrd.img", "config", "System.map"] {
        tree.add(format!("boot/{file}-{}", node.kernel), "");
    }
    let modules = format!("lib/modules/{}", node.kernel);
    let licence = if open_modules(node) { "Dual MIT/GPL" } else { "NVIDIA" };
    for module in ["nvidia", "nvidia-uvm", "nvidia-modeset", "nvidia-drm"] {
        // The strings of a module's `.modinfo`, which is what `modinfo` looks for.
        tree.add(
            format!("{modules}/updates/dkms/{module}.ko"),
            format!(
                "version={}\0license={licence}\0supported=external\0name={}\0vermagic={} SMP preempt mod_unload modversions \0",
                node.driver,
                module.replace('-', "_"),
                node.kernel
            ),
        );
    }
    tree.add(
        format!("{modules}/modules.dep"),
        "updates/dkms/nvidia.ko:\nupdates/dkms/nvidia-uvm.ko: updates/dkms/nvidia.ko\nupdates/dkms/nvidia-modeset.ko: updates/dkms/nvidia.ko\nupdates/dkms/nvidia-drm.ko: updates/dkms/nvidia-modeset.ko updates/dkms/nvidia.ko\n",
    );
}

fn packages(tree: &mut Tree, node: &Node, gpus: &[Gpu]) {
    let branch = node.driver_numbers()[0];
    let version = format!("{}-0ubuntu1", node.driver);
    let mut names = vec![
        format!("nvidia-driver-{branch}-server{}", if open_modules(node) { "-open" } else { "" }),
        format!("nvidia-dkms-{branch}-server{}", if open_modules(node) { "-open" } else { "" }),
        format!(
            "nvidia-kernel-source-{branch}-server{}",
            if open_modules(node) { "-open" } else { "" }
        ),
        format!("nvidia-utils-{branch}-server"),
        format!("nvidia-compute-utils-{branch}-server"),
        format!("libnvidia-compute-{branch}-server"),
        format!("nvidia-firmware-{branch}-server-{}", node.driver),
    ];
    if gpus.iter().any(|gpu| gpu.fabric.is_some())
        || gpus.iter().any(|gpu| gpu.nvlink.links.iter().any(|link| link.active))
    {
        names.push(format!("nvidia-fabricmanager-{branch}"));
        tree.add(
            "usr/share/nvidia/nvswitch/fabricmanager.cfg",
            "LOG_LEVEL=4\nLOG_FILE_NAME=/var/log/fabricmanager.log\nDAEMONIZE=1\nFABRIC_MODE=0\nFABRIC_MODE_RESTART=0\n",
        );
    }
    let mut status = String::new();
    for name in &names {
        status.push_str(&format!(
            "Package: {name}\nStatus: install ok installed\nPriority: optional\nSection: multiverse/libs\nMaintainer: Simulated\n\
             Architecture: amd64\nVersion: {version}\nDescription: NVIDIA driver component\n\n"
        ));
    }
    status.push_str(&format!(
        "Package: linux-image-{0}\nStatus: install ok installed\nPriority: optional\nSection: kernel\nMaintainer: Simulated\n\
         Architecture: amd64\nVersion: {0}\nDescription: Signed kernel image\n\n",
        node.kernel
    ));
    tree.add("var/lib/dpkg/status", status);
    let library = "usr/lib/x86_64-linux-gnu";
    for name in ["libnvidia-ml.so", "libcuda.so"] {
        tree.add(format!("{library}/{name}.{}", node.driver), "");
    }
    tree.add(format!("lib/firmware/nvidia/{}/gsp_ga10x.bin", node.driver), "");
    tree.add(format!("lib/firmware/nvidia/{}/gsp_tu10x.bin", node.driver), "");
}

fn adapter(tree: &mut Tree, number: u32) {
    let bus = ADAPTER_BUSES[(number % 8) as usize];
    let pci = format!("sys/bus/pci/devices/0000:{bus:02x}:00.0");
    tree.value(format!("{pci}/vendor"), "0x15b3");
    tree.value(format!("{pci}/device"), "0x1021");
    tree.value(format!("{pci}/class"), "0x020700");
    tree.value(format!("{pci}/current_link_speed"), "32.0 GT/s PCIe");
    tree.value(format!("{pci}/current_link_width"), 16);
    tree.value(format!("{pci}/max_link_speed"), "32.0 GT/s PCIe");
    tree.value(format!("{pci}/max_link_width"), 16);
    let folder = format!("sys/class/infiniband/mlx5_{number}");
    tree.value(format!("{folder}/fw_ver"), "28.43.2026");
    tree.value(format!("{folder}/hca_type"), "MT4129");
    tree.value(format!("{folder}/board_id"), "MT_0000000838");
    tree.value(format!("{folder}/node_guid"), format!("9c63:c003:00e1:{number:04x}"));
    tree.value(format!("{folder}/node_type"), "1: CA");
    let port = format!("{folder}/ports/1");
    tree.value(format!("{port}/state"), "4: ACTIVE");
    tree.value(format!("{port}/phys_state"), "5: LinkUp");
    tree.value(format!("{port}/rate"), "400 Gb/sec (4X NDR)");
    tree.value(format!("{port}/link_layer"), "InfiniBand");
    tree.value(format!("{port}/lid"), format!("0x{:x}", 0x100 + number));
    for counter in [
        "link_downed",
        "link_error_recovery",
        "symbol_error",
        "port_rcv_errors",
        "port_xmit_discards",
        "port_rcv_data",
        "port_xmit_data",
        "local_link_integrity_errors",
        "excessive_buffer_overrun_errors",
        "port_xmit_wait",
    ] {
        tree.value(format!("{port}/counters/{counter}"), 0);
    }
    for counter in [
        "rnr_nak_retry_err",
        "roce_slow_restart",
        "out_of_sequence",
        "local_ack_timeout_err",
        "packet_seq_err",
    ] {
        tree.value(format!("{port}/hw_counters/{counter}"), 0);
    }
}

/// What the driver writes when it is loaded.
fn kernel_log(tree: &mut Tree, node: &Node, gpus: &[Gpu]) {
    let mut lines = vec![
        (5, format!("Linux version {} (buildd@lcy02-amd64-026)", node.kernel)),
        (4, "nvidia: loading out-of-tree module taints kernel.".to_owned()),
        (6, "nvidia-nvlink: Nvlink Core is being initialized, major device number 508".to_owned()),
    ];
    for gpu in gpus {
        lines.push((6, format!("nvidia {}: enabling device (0140 -> 0142)", gpu.pci.address())));
    }
    let kind = if open_modules(node) { "Open Kernel Module" } else { "Kernel Module" };
    lines.push((
        6,
        format!("NVRM: loading NVIDIA UNIX {kind} for x86_64  {}  Release Build", node.driver),
    ));
    let mut text = String::new();
    for (sequence, (level, line)) in lines.iter().enumerate() {
        let uptime_us = 1_000_000 + sequence * 50_000;
        text.push_str(&format!("{level},{sequence},{uptime_us},-;{line}\n"));
    }
    tree.add("dev/kmsg", text);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::make::{Spec, node};

    #[test]
    fn the_tree_fits_the_node() {
        let (made, gpus) =
            node(farrier_facts::FactSet::embedded(), &Spec::of("H100-SXM5-80GB", 8)).unwrap();
        let files = files(&made, &gpus, 8);
        let text = |path: &str| {
            &files.iter().find(|file| file.path == path).unwrap_or_else(|| panic!("{path}")).text
        };
        assert!(text("proc/driver/nvidia/version").contains("580.95.05"));
        assert_eq!(text("sys/module/nvidia/version"), "580.95.05\n");
        assert!(text("proc/driver/nvidia/gpus/0000:1b:00.0/information").contains(&gpus[0].uuid));
        assert_eq!(text("sys/bus/pci/devices/0000:1b:00.0/device"), "0x2330\n");
        assert!(text("var/lib/dpkg/status").contains("Version: 580.95.05-0ubuntu1"));
        assert!(text("sys/class/infiniband/mlx5_7/ports/1/state").contains("ACTIVE"));
        assert!(text("dev/kmsg").lines().all(|line| line.contains(",-;")));
        let mut paths: Vec<&str> = files.iter().map(|file| file.path.as_str()).collect();
        paths.dedup();
        assert_eq!(paths.len(), files.len(), "each path once");
    }
}
