//! The host around the GPUs: disks, clock, IOMMU, `GPUDirect` RDMA, IMEX.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs::File;
use std::io::Read;

use farrier_facts::node::{DiskUsage, HostObservation, IommuDomain, PciDevice, ReadError, Reading};

use crate::driver::where_mounted;
use crate::host::mounts::{self, DiskMount};
use crate::root::{Root, read_text};

/// File of a simulated node with the values that `statvfs` returns on a real node.
const SIMULATED_DISKS: &str = "/run/farrier-sim/disks";

/// Mount points that jobs and the node's services do not write to, or that belong to a single pod.
const OTHER_MOUNTS: [&str; 7] = [
    "/boot",
    "/run",
    "/snap",
    "/var/lib/kubelet",
    "/var/lib/containerd",
    "/var/lib/containers",
    "/var/lib/docker",
];

/// Vendors in the firmware tables of virtual machines. On x86, a flag of the processor also shows
/// that the machine is virtual.
const HYPERVISORS: [&str; 4] = ["QEMU", "VMware, Inc.", "Xen", "innotek GmbH"];

/// Why a system call says nothing about the node.
const NOT_RUNNING: &str = "this is not the running machine";

const TIMESYNC: &str = "/run/systemd/timesync";

pub(crate) fn read(root: &Root, pci: &Reading<Vec<PciDevice>>) -> HostObservation {
    let release = root.trimmed("/proc/sys/kernel/osrelease");
    HostObservation {
        virtual_machine: virtual_machine(root),
        disks: disks(root),
        clock_synchronised: clock_synchronised(root),
        rdma_devices: rdma_devices(root),
        peermem_loaded: peermem_loaded(root),
        kernel_dma_buf: release.and_then(|release| kernel_dma_buf(root, &release)),
        iommu: iommu(root, pci),
        imex_nodes: imex_nodes(root),
    }
}

fn virtual_machine(root: &Root) -> Reading<bool> {
    // The flags of the first processor are in the first kilobytes.
    const FIRST_BYTES: u64 = 16 << 10;
    let flag = root.extract("/proc/cpuinfo", |file: File| {
        let mut text = Vec::new();
        match file.take(FIRST_BYTES).read_to_end(&mut text) {
            Ok(_) => Reading::Value(has_hypervisor_flag(&String::from_utf8_lossy(&text))),
            Err(err) => Reading::Unreadable(ReadError::from(&err)),
        }
    });
    if flag == Reading::Value(true) {
        return flag;
    }
    match root.trimmed("/sys/class/dmi/id/sys_vendor") {
        Reading::Value(vendor) => Reading::Value(HYPERVISORS.contains(&vendor.as_str())),
        Reading::Absent => flag,
        Reading::Unreadable(why) => Reading::Unreadable(why),
    }
}

fn has_hypervisor_flag(cpuinfo: &str) -> bool {
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags"));
    flags.is_some_and(|line| line.split_whitespace().any(|flag| flag == "hypervisor"))
}

fn disks(root: &Root) -> Reading<Vec<DiskUsage>> {
    let simulated = match root.text(SIMULATED_DISKS) {
        Reading::Unreadable(why) => return Reading::Unreadable(why),
        simulated => simulated,
    };
    let is_measurable = simulated != Reading::Absent || root.is_this_machine();
    let mounts = mounts::disk_mounts(root).map(|mounts| {
        let is_relevant = |mount: &DiskMount| {
            !OTHER_MOUNTS.iter().any(|other| {
                let rest = mount.path.strip_prefix(other);
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            })
        };
        mounts.into_iter().filter(is_relevant).collect::<Vec<_>>()
    });
    root.measure("disks", || {
        if !is_measurable {
            return Reading::Unreadable(ReadError::unavailable(NOT_RUNNING));
        }
        mounts.map(|mounts| {
            let mut devices = BTreeSet::new();
            let mut disks = Vec::new();
            for mount in mounts {
                if !devices.insert(mount.device.clone()) {
                    continue;
                }
                let usage = match &simulated {
                    Reading::Value(text) => simulated_usage(text, &mount.path),
                    _ => usage(&mount.path),
                };
                // A mount that went away meanwhile has no usage.
                let Some([total_bytes, available_bytes, total_inodes, available_inodes]) = usage
                else {
                    continue;
                };
                disks.push(DiskUsage {
                    path: mount.path,
                    total_bytes,
                    available_bytes,
                    total_inodes,
                    available_inodes,
                    read_only: mount.failed,
                });
            }
            disks
        })
    })
}

/// Bytes and inodes of a file system, each in total and available.
fn usage(path: &str) -> Option<[u64; 4]> {
    let path = CString::new(path).ok()?;
    // SAFETY: all fields are integers, for which zero is a valid value.
    let mut usage: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path is a live C string and `usage` is a live structure of the declared type.
    if unsafe { libc::statvfs(path.as_ptr(), &raw mut usage) } != 0 {
        return None;
    }
    let block = usage.f_frsize;
    Some([
        usage.f_blocks.saturating_mul(block),
        usage.f_bavail.saturating_mul(block),
        usage.f_files,
        usage.f_favail,
    ])
}

/// The numbers in a line `/scratch 1000 500 100 50`.
fn simulated_usage(text: &str, path: &str) -> Option<[u64; 4]> {
    let line = text.lines().find_map(|line| line.strip_prefix(path)?.strip_prefix(' '))?;
    let numbers: Vec<u64> = line.split(' ').map_while(|word| word.parse().ok()).collect();
    numbers.try_into().ok()
}

fn clock_synchronised(root: &Root) -> Reading<bool> {
    let measured = root.measure("adjtimex", || {
        if !root.is_this_machine() {
            return Reading::Unreadable(ReadError::unavailable(NOT_RUNNING));
        }
        // SAFETY: all fields are integers, for which zero is a valid value. `modes` is zero, so the
        // call changes nothing.
        let mut timex: libc::timex = unsafe { std::mem::zeroed() };
        // SAFETY: `timex` is a live structure of the declared type.
        match unsafe { libc::adjtimex(&raw mut timex) } {
            -1 => Reading::Unreadable(ReadError::from(&std::io::Error::last_os_error())),
            _ => Reading::Value(timex.status & libc::STA_UNSYNC == 0),
        }
    });
    let is_out_of_reach = measured.why_unreadable().is_some_and(ReadError::is_out_of_reach);
    if !is_out_of_reach {
        return measured;
    }
    match root.exists(TIMESYNC) {
        Reading::Value(true) => root.exists(&format!("{TIMESYNC}/synchronized")),
        Reading::Value(false) | Reading::Absent => measured,
        Reading::Unreadable(why) => Reading::Unreadable(why),
    }
}

fn rdma_devices(root: &Root) -> Reading<u32> {
    match root.list("/sys/class/infiniband") {
        Reading::Value(names) => Reading::Value(u32::try_from(names.len()).unwrap_or(u32::MAX)),
        Reading::Absent => Reading::Value(0),
        Reading::Unreadable(why) => Reading::Unreadable(why),
    }
}

fn peermem_loaded(root: &Root) -> Reading<bool> {
    for module in ["nvidia_peermem", "nv_peer_mem"] {
        let path = format!("/sys/module/{module}");
        match where_mounted(root, root.exists(&path)) {
            Reading::Value(false) | Reading::Absent => {}
            found => return found,
        }
    }
    Reading::Value(false)
}

/// Absent if the kernel's configuration does not state this.
fn kernel_dma_buf(root: &Root, release: &str) -> Reading<bool> {
    root.extract(&format!("/boot/config-{release}"), |file| {
        read_text(file).and_then(|text| {
            let has = |line: &str| text.lines().any(|found| found == line);
            if has("CONFIG_DMA_SHARED_BUFFER=y") {
                Reading::Value(true)
            } else if has("# CONFIG_DMA_SHARED_BUFFER is not set") {
                Reading::Value(false)
            } else {
                Reading::Absent
            }
        })
    })
}

fn iommu(root: &Root, pci: &Reading<Vec<PciDevice>>) -> Reading<Vec<IommuDomain>> {
    pci.as_ref().and_then(|devices| {
        let mut domains = Vec::new();
        for device in devices.iter().filter(|device| device.is_gpu()) {
            let address = &device.address;
            match root.trimmed(&format!("/sys/bus/pci/devices/{address}/iommu_group/type")) {
                Reading::Value(kind) => {
                    domains.push(IommuDomain { address: address.clone(), kind });
                }
                Reading::Absent => {}
                Reading::Unreadable(why) => return Reading::Unreadable(why),
            }
        }
        Reading::Value(domains)
    })
}

/// Whether the list of IMEX nodes has an entry.
fn imex_nodes(root: &Root) -> Reading<bool> {
    root.extract("/etc/nvidia-imex/nodes_config.cfg", |file| {
        read_text(file).map(|text| {
            text.lines().map(str::trim).any(|line| !line.is_empty() && !line.starts_with('#'))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hypervisor_flag_is_found() {
        assert!(has_hypervisor_flag("processor: 0\nflags\t\t: fpu hypervisor lahf_lm\n"));
        assert!(!has_hypervisor_flag("flags : fpu vmx\nbugs : hypervisor\n"));
    }

    #[test]
    fn usage_of_the_root_is_plausible() {
        let [total, available, ..] = usage("/").unwrap();
        assert!(total >= available && total > 0, "{total} {available}");
        assert_eq!(usage("/nonexistent"), None);
    }

    #[test]
    fn simulated_usage_is_parsed_by_mount_point() {
        let text = "/ 100 50 10 5\n/scratch 200 60 20 6\n";
        assert_eq!(simulated_usage(text, "/scratch"), Some([200, 60, 20, 6]));
        assert_eq!(simulated_usage(text, "/"), Some([100, 50, 10, 5]));
        assert_eq!(simulated_usage(text, "/mnt"), None);
    }
}
