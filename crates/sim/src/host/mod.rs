//! `host.json`: what a node has besides its GPUs, and what is wrong with it.
//!
//! The files below `root/` are made from this; nothing is read back from them.

mod nic;
mod task;

use serde::{Deserialize, Serialize};

use crate::node::Node;
use crate::rng::SeededRng;

pub use nic::{Nic, NicKind, PHYS_STATES, Port, STATES, phys_state_number, state_number};
pub(crate) use task::{FABRIC_MANAGER_PID, PERSISTENCED_PID};
pub use task::{Task, TaskState};

/// The host of a simulated node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// The version of this form.
    pub format: u32,
    /// Decided anew at each start.
    pub boot_id: String,
    /// The least number that the next record of the kernel log gets.
    #[serde(default)]
    pub kernel_sequence: u64,
    /// Network adapters for jobs.
    pub nics: Vec<Nic>,
    /// Processes and kernel threads, besides those that hold a GPU.
    pub tasks: Vec<Task>,
    /// What is mounted.
    pub mounts: Vec<Mount>,
    /// Processes that the kernel killed for memory.
    #[serde(default)]
    pub oom_kills: u64,
    /// Memory that is left.
    #[serde(default)]
    pub memory: HostMemory,
    /// Memory errors that the host's controllers counted.
    #[serde(default)]
    pub edac: Edac,
    /// Open files.
    pub file_handles: FileHandles,
    /// What the kernel takes its time from.
    pub clock_source: String,
    /// How the processors choose their clocks.
    pub governor: String,
    /// Whether bridges send peer-to-peer traffic through the root complex.
    #[serde(default)]
    pub acs: bool,
}

/// Memory errors that the host's controllers counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Edac {
    /// Put right.
    pub corrected: u64,
    /// Not put right.
    pub uncorrected: u64,
}

/// Memory that is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostMemory {
    /// Without swapping.
    pub available_kib: u64,
    /// Blocks of 2 MiB and more that are free.
    pub large_blocks: u64,
}

impl HostMemory {
    /// All of it.
    pub const TOTAL_KIB: u64 = 2_113_420_288;
}

impl Default for HostMemory {
    fn default() -> Self {
        Self { available_kib: 2_010_420_288, large_blocks: 210_646 }
    }
}

/// Open files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileHandles {
    /// Now.
    pub used: u64,
    /// The most.
    pub max: u64,
}

/// A file system that is mounted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mount {
    /// The device, or server and path.
    pub source: String,
    /// Where.
    pub path: String,
    /// Such as `ext4`.
    pub kind: String,
    /// Whether writes are refused.
    #[serde(default)]
    pub read_only: bool,
    /// Whether its server no longer answers.
    #[serde(default)]
    pub stalled: bool,
}

const FILE_HANDLES: FileHandles = FileHandles { used: 12_480, max: 9_223_372 };
const CLOCK_SOURCE: &str = "tsc";
const GOVERNOR: &str = "performance";

/// What adapters a host has.
#[derive(Debug, Clone, Copy, Default)]
pub struct NicConfig {
    /// `InfiniBand` or `RoCE` ports.
    pub ports: u32,
    /// Whether those are Ethernet.
    pub ethernet: bool,
    /// Elastic Fabric Adapters.
    pub efa: u32,
}

impl Host {
    /// A host on which all is well.
    pub fn new(node: &Node, adapters: NicConfig) -> Self {
        let mut nics: Vec<Nic> = (0..adapters.ports.min(nic::PORTS_MAX))
            .map(|number| Nic::mellanox(number, adapters.ethernet))
            .collect();
        nics.extend((0..adapters.efa.min(nic::EFA_MAX)).map(Nic::efa));
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
        }
    }

    /// The process of a service, by its unit.
    pub fn service(&self, unit: &str) -> Option<&Task> {
        let cgroup = format!("/system.slice/{unit}");
        self.tasks.iter().find(|task| task.cgroup == cgroup)
    }

    pub(crate) fn service_mut(&mut self, unit: &str) -> Option<&mut Task> {
        let cgroup = format!("/system.slice/{unit}");
        self.tasks.iter_mut().find(|task| task.cgroup == cgroup)
    }

    /// Puts everything right, as a repair and a restart would. The kernel log goes on.
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
    }

    /// Starts anew at `now`: another boot, counters and tasks from nothing, file systems mounted anew and the clock source
    /// chosen anew. NicConfig that are gone, servers that do not answer and settings stay so.
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
        self.memory = HostMemory::default();
        self.edac = Edac::default();
        self.file_handles = FILE_HANDLES;
    }

    /// What is wrong, in words.
    pub fn describe_faults(&self) -> Vec<String> {
        let mut wrong: Vec<String> = self.nics.iter().flat_map(Nic::describe_faults).collect();
        for mount in &self.mounts {
            if mount.read_only {
                wrong.push(format!("{} is read-only", mount.path));
            }
            if mount.stalled {
                wrong.push(format!("{} does not answer", mount.path));
            }
        }
        let blocked = self.tasks.iter().filter(|task| task.state == TaskState::Blocked);
        wrong.extend(blocked.map(|task| format!("{} ({}) is blocked", task.name, task.pid)));
        for (count, words) in [
            (self.oom_kills, "processes killed for memory"),
            (self.edac.corrected, "corrected errors of the host's memory"),
            (self.edac.uncorrected, "uncorrected errors of the host's memory"),
        ] {
            if count > 0 {
                wrong.push(format!("{count} {words}"));
            }
        }
        if self.memory != HostMemory::default() {
            let HostMemory { available_kib, large_blocks } = self.memory;
            wrong.push(format!("{available_kib} KiB available, {large_blocks} large blocks free"));
        }
        if self.file_handles != FILE_HANDLES {
            wrong.push(format!(
                "{} of {} file handles in use",
                self.file_handles.used, self.file_handles.max
            ));
        }
        if self.clock_source != CLOCK_SOURCE {
            wrong.push(format!("clock source {}", self.clock_source));
        }
        if self.governor != GOVERNOR {
            wrong.push(format!("governor {}", self.governor));
        }
        if self.acs {
            wrong.push("ACS is on".to_owned());
        }
        wrong
    }
}
