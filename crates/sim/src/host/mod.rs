//! `host.json`: state and faults of everything in a node except its GPUs.
//!
//! The files in `root/` are generated from this file. The simulation never reads the generated
//! files.

mod nic;
mod software_fault;
mod task;

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::node::SharedNodeState;
use crate::rng::SeededRng;

pub use nic::{Nic, NicKind, PHYS_STATES, Port, STATES, phys_state_number, state_number};
pub use software_fault::SoftwareFault;
pub(crate) use task::{FABRIC_MANAGER_PID, PERSISTENCED_PID};
pub use task::{Task, TaskState};

/// The host of a simulated node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    pub format: u32,
    /// The kernel's boot ID, which changes with each boot.
    pub boot_id: String,
    /// Minimum sequence number of the next kernel log record.
    #[serde(default)]
    pub kernel_sequence: u64,
    /// RDMA adapters.
    pub nics: Vec<Nic>,
    /// Processes and kernel threads, except GPU processes.
    pub tasks: Vec<Task>,
    pub mounts: Vec<Mount>,
    #[serde(default)]
    pub oom_kills: u64,
    #[serde(default)]
    pub memory: HostMemory,
    /// Memory controller error counts.
    #[serde(default)]
    pub edac: Edac,
    pub file_handles: FileHandles,
    /// Kernel clock source.
    pub clock_source: String,
    /// CPU frequency governor.
    pub governor: String,
    /// Whether ACS is enabled, which routes peer-to-peer traffic through the root complex.
    #[serde(default)]
    pub acs: bool,
    /// Times that the processors were throttled because of heat.
    #[serde(default)]
    pub cpu_throttles: u64,
    /// Faults of installed software and settings.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub software: BTreeSet<SoftwareFault>,
}

/// Memory controller (EDAC) error counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Edac {
    pub corrected: u64,
    pub uncorrected: u64,
}

/// Free host memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostMemory {
    /// `MemAvailable` in `/proc/meminfo`.
    pub available_kib: u64,
    /// Free blocks of 2 MiB or more.
    pub large_blocks: u64,
}

impl HostMemory {
    /// `MemTotal` in `/proc/meminfo`.
    pub const TOTAL_KIB: u64 = 2_113_420_288;
}

impl Default for HostMemory {
    fn default() -> Self {
        Self { available_kib: 2_010_420_288, large_blocks: 210_646 }
    }
}

/// System-wide file handles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileHandles {
    pub used: u64,
    pub max: u64,
}

/// A mounted file system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mount {
    /// The device, or `server:path` for a network file system.
    pub source: String,
    /// Mount point.
    pub path: String,
    /// File system type, such as `ext4`.
    pub kind: String,
    #[serde(default)]
    pub read_only: bool,
    /// Whether the NFS server has stopped responding.
    #[serde(default)]
    pub stalled: bool,
}

const FILE_HANDLES: FileHandles = FileHandles { used: 12_480, max: 9_223_372 };
const CLOCK_SOURCE: &str = "tsc";
const GOVERNOR: &str = "performance";

/// The RDMA adapters of a host.
#[derive(Debug, Clone, Copy, Default)]
pub struct NicConfig {
    /// Number of `InfiniBand` or `RoCE` ports.
    pub ports: u32,
    /// Whether the ports are Ethernet (`RoCE`).
    pub ethernet: bool,
    /// Number of Elastic Fabric Adapters.
    pub efa: u32,
}

impl Host {
    /// A healthy host.
    pub fn new(node: &SharedNodeState, nic_config: NicConfig) -> Self {
        let mut nics: Vec<Nic> = (0..nic_config.ports.min(nic::PORTS_MAX))
            .map(|number| Nic::mellanox(number, nic_config.ethernet))
            .collect();
        nics.extend((0..nic_config.efa.min(nic::EFA_MAX)).map(Nic::efa));
        let mount = |source: &str, path: &str, kind: &str| Mount {
            source: source.to_owned(),
            path: path.to_owned(),
            kind: kind.to_owned(),
            read_only: false,
            stalled: false,
        };
        Self {
            format: crate::FORMAT,
            boot_id: SeededRng::new(node.seed, "boot").uuid(),
            kernel_sequence: 0,
            nics,
            tasks: task::default_tasks(node),
            mounts: vec![
                mount("/dev/nvme0n1p2", "/", "ext4"),
                mount("/dev/nvme0n1p1", "/boot/efi", "vfat"),
                mount("/dev/md0", "/scratch", "xfs"),
                mount("10.0.0.9:/data", "/mnt/data", "nfs4"),
            ],
            oom_kills: 0,
            memory: HostMemory::default(),
            edac: Edac::default(),
            file_handles: FILE_HANDLES,
            clock_source: CLOCK_SOURCE.to_owned(),
            governor: GOVERNOR.to_owned(),
            acs: false,
            cpu_throttles: 0,
            software: BTreeSet::new(),
        }
    }

    /// The main process of a systemd unit.
    pub fn service(&self, unit: &str) -> Option<&Task> {
        let cgroup = format!("/system.slice/{unit}");
        self.tasks.iter().find(|task| task.cgroup == cgroup)
    }

    pub(crate) fn service_mut(&mut self, unit: &str) -> Option<&mut Task> {
        let cgroup = format!("/system.slice/{unit}");
        self.tasks.iter_mut().find(|task| task.cgroup == cgroup)
    }

    /// Clears all faults, as a repair and a reboot would. Unlike after a reboot, the kernel log
    /// continues.
    pub fn clear(&mut self) {
        for nic in &mut self.nics {
            nic.clear();
        }
        self.tasks.retain(|task| !task.is_injected);
        for mount in &mut self.mounts {
            (mount.read_only, mount.stalled) = (false, false);
        }
        self.oom_kills = 0;
        self.memory = HostMemory::default();
        self.edac = Edac::default();
        self.file_handles = FILE_HANDLES;
        CLOCK_SOURCE.clone_into(&mut self.clock_source);
        GOVERNOR.clone_into(&mut self.governor);
        self.acs = false;
        self.cpu_throttles = 0;
        self.software.clear();
    }

    /// Whether the host has this fault.
    pub(crate) fn has(&self, fault: SoftwareFault) -> bool {
        self.software.contains(&fault)
    }

    /// Reboots the host. It gets a new boot ID and the default clock source, counters restart,
    /// injected tasks end, and file systems become writable again. Missing adapters, stalled NFS
    /// servers and settings stay as they are.
    pub(crate) fn restart(&mut self, now_unix_ms: u64) {
        self.boot_id = SeededRng::new(now_unix_ms, &self.boot_id).uuid();
        self.kernel_sequence = 0;
        for nic in &mut self.nics {
            nic.reset_counters();
        }
        self.tasks.retain(|task| !task.is_injected);
        for task in &mut self.tasks {
            task.started_unix_ms = now_unix_ms;
        }
        for mount in &mut self.mounts {
            mount.read_only = false;
        }
        CLOCK_SOURCE.clone_into(&mut self.clock_source);
        self.oom_kills = 0;
        self.cpu_throttles = 0;
        self.memory = HostMemory::default();
        self.edac = Edac::default();
        self.file_handles = FILE_HANDLES;
    }

    /// Describes every deviation from a healthy host.
    pub fn describe_faults(&self) -> Vec<String> {
        let mut faults: Vec<String> = self.nics.iter().flat_map(Nic::describe_faults).collect();
        for mount in &self.mounts {
            if mount.read_only {
                faults.push(format!("{} is read-only", mount.path));
            }
            if mount.stalled {
                faults.push(format!("{}: NFS server not responding", mount.path));
            }
        }
        let blocked = self.tasks.iter().filter(|task| task.state == TaskState::Blocked);
        faults.extend(blocked.map(|task| format!("{} ({}) is blocked", task.name, task.pid)));
        for (count, description) in [
            (self.oom_kills, "OOM kills"),
            (self.cpu_throttles, "throttled processors"),
            (self.edac.corrected, "corrected host memory errors"),
            (self.edac.uncorrected, "uncorrected host memory errors"),
        ] {
            if count > 0 {
                faults.push(format!("{count} {description}"));
            }
        }
        if self.memory != HostMemory::default() {
            let HostMemory { available_kib, large_blocks } = self.memory;
            faults.push(format!("{available_kib} KiB available, {large_blocks} large blocks free"));
        }
        if self.file_handles != FILE_HANDLES {
            faults.push(format!(
                "{} of {} file handles in use",
                self.file_handles.used, self.file_handles.max
            ));
        }
        if self.clock_source != CLOCK_SOURCE {
            faults.push(format!("clock source {}", self.clock_source));
        }
        if self.governor != GOVERNOR {
            faults.push(format!("governor {}", self.governor));
        }
        if self.acs {
            faults.push("ACS is enabled".to_owned());
        }
        faults.extend(self.software.iter().map(|fault| fault.description().to_owned()));
        faults
    }
}
