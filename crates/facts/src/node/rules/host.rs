//! The host around the GPUs: full disks, an unsynchronised clock, and settings that slow
//! `GPUDirect`.

use crate::check::{Module, Verdict};
use crate::gpu::Fabric;
use crate::node::context::{NodeContext, counted};
use crate::node::host::DiskUsage;
use crate::node::item_code;
use crate::node::limits::NodeLimits;
use crate::node::reading::Reading;
use crate::node::report::NodeFindings;

/// First kernel with the DMA-BUF functions that the open modules use (NVIDIA GPU Operator,
/// `GPUDirect` RDMA).
const DMA_BUF_KERNEL: (u32, u32) = (5, 12);

pub(crate) fn evaluate(node: &NodeContext<'_>, findings: &mut NodeFindings) {
    if node.inside_container() {
        findings.not_judged("disks, clock, IOMMU and GPUDirect RDMA (this is a container)");
        return;
    }
    disks(node, findings);
    clock(node, findings);
    iommu(node, findings);
    gpudirect(node, findings);
    imex(node, findings);
}

/// The smaller free share of space and inodes, in percent.
fn free_percent(disk: &DiskUsage) -> u64 {
    let share = |available: u64, total: u64| match total {
        0 => 100,
        total => u64::try_from(u128::from(available) * 100 / u128::from(total)).unwrap_or(100),
    };
    share(disk.available_bytes, disk.total_bytes)
        .min(share(disk.available_inodes, disk.total_inodes))
}

fn disks(node: &NodeContext<'_>, findings: &mut NodeFindings) {
    let source = "/proc/1/mountinfo; statvfs(3)";
    let disks = match &node.observation.host.disks {
        Reading::Value(disks) => disks.as_slice(),
        Reading::Absent => return,
        Reading::Unreadable(why) => {
            return findings.unreadable(item_code::DISKS_UNKNOWN, "disks", "disks", why, source);
        }
    };
    let mut is_fine = true;
    let limits = &NodeLimits::embedded().disk;
    for disk in disks {
        let percent = free_percent(disk);
        let (code, verdict, text) = if disk.read_only {
            let text = format!("{} became read-only after an error", disk.path);
            (item_code::FILE_SYSTEM_READ_ONLY, Verdict::Blocked, text)
        } else if percent < limits.full_percent {
            let text = format!("{} is full: {percent} % is free", disk.path);
            (item_code::DISK_FULL, Verdict::Blocked, text)
        } else if percent < limits.nearly_full_percent && disk.available_bytes < limits.enough_bytes
        {
            let text = format!("{} is nearly full: {percent} % is free", disk.path);
            (item_code::DISK_NEARLY_FULL, Verdict::Caveat, text)
        } else {
            continue;
        };
        is_fine = false;
        findings.item(verdict, code, disk.path.clone(), text, source);
        let (purpose, advice, command) = if disk.read_only {
            ("for a read-only file system", "read the kernel log, then repair it", "dmesg")
        } else {
            ("for disk space", "remove or move what fills the disk", "du -xhd1")
        };
        findings.remedy(purpose, advice, Some(&format!("{command} {}", disk.path)));
    }
    if is_fine && !disks.is_empty() {
        let text = format!("{} with free space", counted(disks.len(), "file system"));
        findings.item(Verdict::Ok, item_code::DISKS_FREE, "disks", text, source);
    }
}

fn clock(node: &NodeContext<'_>, findings: &mut NodeFindings) {
    let source = "adjtimex(2), STA_UNSYNC; /run/systemd/timesync/synchronized";
    match &node.observation.host.clock_synchronised {
        Reading::Value(true) => {
            let text = "the clock is synchronised";
            findings.item(Verdict::Ok, item_code::CLOCK_SYNCHRONISED, "clock", text, source);
        }
        Reading::Value(false) => {
            findings.item(
                Verdict::Caveat,
                item_code::CLOCK_UNSYNCHRONISED,
                "clock",
                "the clock is not synchronised: timestamps of logs differ between nodes, and \
                 certificates may be refused",
                source,
            );
            findings.remedy(
                "for the clock",
                "run chrony or systemd-timesyncd, and check that it reaches its servers",
                Some("chronyc tracking || timedatectl timesync-status"),
            );
        }
        Reading::Absent => {}
        Reading::Unreadable(why) => {
            findings.unreadable(
                item_code::CLOCK_UNKNOWN,
                "clock",
                "the clock's state",
                why,
                source,
            );
        }
    }
}

/// Whether the GPUs translate addresses through the IOMMU of the processor, as on Grace.
fn has_ats(node: &NodeContext<'_>) -> bool {
    let mode = |mode: Option<&String>| mode.is_some_and(|mode| mode == "ats");
    node.devices().iter().any(|device| mode(device.addressing_mode.value()))
}

fn has_rdma(node: &NodeContext<'_>) -> bool {
    node.observation.host.rdma_devices.value().is_some_and(|count| *count > 0)
}

/// On bare metal, an IOMMU that translates slows `GPUDirect` down, or breaks it.
fn iommu(node: &NodeContext<'_>, findings: &mut NodeFindings) {
    let source =
        "/sys/bus/pci/devices/*/iommu_group/type; NVIDIA GPUDirect RDMA, Supported Systems";
    let host = &node.observation.host;
    if host.virtual_machine == Reading::Value(true) || has_ats(node) || !has_rdma(node) {
        return;
    }
    match &host.iommu {
        Reading::Value(domains) => {
            let translated: Vec<&str> = domains
                .iter()
                .filter(|domain| domain.kind.starts_with("DMA"))
                .map(|domain| domain.address.as_str())
                .collect();
            if let Some(first) = translated.first() {
                findings.item(
                    Verdict::Caveat,
                    item_code::IOMMU_TRANSLATES,
                    "IOMMU",
                    format!(
                        "the IOMMU translates the addresses of {}, such as {first}: GPUDirect RDMA \
                         is slow or fails",
                        counted(translated.len(), "GPU")
                    ),
                    source,
                );
                findings.remedy(
                    "for GPUDirect RDMA",
                    "boot with `iommu=pt`, or switch the IOMMU off, and reboot",
                    Some("cat /proc/cmdline"),
                );
            } else {
                let text = "the IOMMU does not translate the addresses of the GPUs";
                findings.item(Verdict::Ok, item_code::IOMMU_PASSES, "IOMMU", text, source);
            }
        }
        Reading::Absent => {}
        Reading::Unreadable(why) => {
            findings.unreadable(item_code::IOMMU_UNKNOWN, "IOMMU", "the IOMMU's mode", why, source);
        }
    }
}

/// Whether this kernel release is at least `least`.
fn is_at_least(release: &str, least: (u32, u32)) -> Option<bool> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    let (major, minor) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    Some((major, minor) >= least)
}

/// `GPUDirect` RDMA needs nvidia-peermem, or DMA-BUF: the open modules and a recent kernel.
fn gpudirect(node: &NodeContext<'_>, findings: &mut NodeFindings) {
    let subject = "GPUDirect RDMA";
    let source = "/sys/module/nvidia_peermem; /boot/config-*; NVIDIA GPU Operator, GPUDirect RDMA";
    if !has_rdma(node) || node.loaded().is_none() {
        return;
    }
    let host = &node.observation.host;
    let release = node.observation.kernels.running.value();
    let is_recent = release.and_then(|release| is_at_least(release, DMA_BUF_KERNEL));
    let has_dma_buf = match (node.flavour(), is_recent, &host.kernel_dma_buf) {
        (Some(Module::Proprietary), _, _) | (_, Some(false), _) | (_, _, Reading::Value(false)) => {
            Some(false)
        }
        (Some(Module::Open), Some(true), _) => Some(true),
        _ => None,
    };
    match (&host.peermem_loaded, has_dma_buf) {
        (Reading::Value(true), _) => {
            let text = "nvidia-peermem is loaded";
            findings.item(Verdict::Ok, item_code::GPUDIRECT_RDMA, subject, text, source);
        }
        (_, Some(true)) => {
            let text = "the kernel and the open modules support DMA-BUF";
            findings.item(Verdict::Ok, item_code::GPUDIRECT_RDMA, subject, text, source);
        }
        (Reading::Value(false) | Reading::Absent, Some(false)) => {
            findings.item(
                Verdict::Caveat,
                item_code::GPUDIRECT_RDMA_MISSING,
                subject,
                "neither nvidia-peermem nor DMA-BUF is available: traffic between nodes goes \
                 through host memory",
                source,
            );
            findings.remedy(
                "for GPUDirect RDMA",
                "load nvidia-peermem, or use the open modules with a kernel that has DMA-BUF",
                Some("modprobe nvidia-peermem"),
            );
        }
        (Reading::Unreadable(why), _) => {
            let what = "whether nvidia-peermem is loaded";
            findings.unreadable(item_code::GPUDIRECT_RDMA_UNKNOWN, subject, what, why, source);
        }
        (_, None) => {
            findings.not_judged("GPUDirect RDMA (the kernel's DMA-BUF support is unknown)");
        }
    }
}

/// IMEX lets the nodes of an `NVLink` domain share GPU memory.
fn imex(node: &NodeContext<'_>, findings: &mut NodeFindings) {
    let source = "nvidia-imex.service; /etc/nvidia-imex/nodes_config.cfg; NVIDIA IMEX guide";
    let Some(service) = node.observation.services.get("nvidia-imex") else { return };
    // The `NVLink` domain of a rack spans several nodes.
    let models = node.models();
    let is_multi_node =
        models.iter().filter_map(|model| model.gpu).any(|gpu| gpu.fabric == Fabric::Rack);
    // Kubernetes runs IMEX in a pod for each job. Then the service is not enabled.
    if !is_multi_node || service.enabled != Reading::Value(true) {
        return;
    }
    if matches!(service.running, Reading::Value(false) | Reading::Absent) {
        findings.item(
            Verdict::Blocked,
            item_code::IMEX_NOT_RUNNING,
            "IMEX",
            "nvidia-imex is enabled but does not run: jobs cannot share memory between the nodes \
             of the NVLink domain",
            source,
        );
        findings.remedy(
            "for IMEX",
            "start nvidia-imex; its log says why it ended",
            Some("systemctl restart nvidia-imex; journalctl -u nvidia-imex -b"),
        );
    }
    match &node.observation.host.imex_nodes {
        Reading::Value(true) => {}
        Reading::Value(false) | Reading::Absent => {
            findings.item(
                Verdict::Blocked,
                item_code::IMEX_NODES_MISSING,
                "IMEX",
                "the list of the nodes of the IMEX domain is missing or empty",
                source,
            );
            findings.remedy(
                "for IMEX",
                "write the addresses of all nodes of the NVLink domain into the list",
                Some("cat /etc/nvidia-imex/nodes_config.cfg"),
            );
        }
        Reading::Unreadable(why) => {
            findings.unreadable(
                item_code::IMEX_NODES_UNKNOWN,
                "IMEX",
                "the IMEX domain",
                why,
                source,
            );
        }
    }
}
