//! What can go wrong with a node besides its GPUs.

use crate::gpu::EccCounts;
use crate::host::{FileHandles, Mount, Nic, PHYS_STATES, STATES, Task, TaskState};
use crate::rootfs::KernelRecord;
use crate::state::SimState;

use super::{CallFault, FaultError, validate_call};

/// Something that happens to a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostFault {
    /// The kernel writes a record, so many times.
    KernelMessage {
        /// The record.
        record: KernelRecord,
        /// How often.
        count: u32,
    },
    /// So many records are lost to a reader that was too slow.
    KernelGap(u64),
    /// A network adapter changes.
    Nic(NicChange),
    /// The driver is unloaded.
    DriverUnloaded,
    /// The driver on disk is loaded.
    DriverLoaded,
    /// Packages, libraries and modules on disk become this version; the loaded driver stays.
    ModuleOnDisk(String),
    /// The node is started anew.
    Reboot,
    /// A service is started anew, by its unit.
    ServiceRestarted(String),
    /// Something about the host.
    Change(HostChange),
    /// Bridges send peer-to-peer traffic through the root complex, or no longer.
    Acs(bool),
    /// A call that is about no GPU in particular fails or hangs.
    Call(CallFault),
    /// All of the above is put right.
    Clear,
}

/// What changes about a network adapter.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NicChange {
    /// Which.
    pub name: String,
    /// Which port.
    pub port: u32,
    /// The kernel's word for its state.
    pub state: Option<String>,
    /// The kernel's word for its physical state; what goes with the state without.
    pub phys_state: Option<String>,
    /// In gigabits a second.
    pub rate_gbps: Option<u32>,
    /// Counters by name and what is added to them.
    pub counters: Vec<(String, u64)>,
    /// It goes from the bus, or comes back.
    pub gone: Option<bool>,
}

/// What changes about the host.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HostChange {
    /// More processes that the kernel killed for memory.
    pub oom_kills: u64,
    /// A mounted file system that refuses writes from now on.
    pub read_only: Option<String>,
    /// One that takes them again.
    pub read_write: Option<String>,
    /// A task that waits and cannot be interrupted.
    pub blocked_thread: Option<BlockedThread>,
    /// All that waited go on and end.
    pub unblocked: bool,
    /// What the kernel takes its time from.
    pub clock_source: Option<String>,
    /// How the processors choose their clocks.
    pub governor: Option<String>,
    /// Memory that is left without swapping.
    pub memory_available_kib: Option<u64>,
    /// Free blocks of 2 MiB and more.
    pub large_blocks: Option<u64>,
    /// More memory errors that were put right.
    pub edac_corrected: u64,
    /// More that were not.
    pub edac_uncorrected: u64,
    /// Open files.
    pub file_handles: Option<FileHandles>,
    /// Whether the server of the network file system is silent.
    pub nfs_stalled: Option<bool>,
}

/// A task that waits and cannot be interrupted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockedThread {
    /// Its name; in brackets for a kernel thread.
    pub name: String,
    /// The kernel's function in which it waits.
    pub wait_channel: String,
}

/// Why a fault does not fit the node.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HostFaultError {
    /// There is no such adapter.
    #[error("there is no adapter `{name}`")]
    Nic {
        /// Asked for.
        name: String,
        /// There are.
        available: Vec<String>,
    },
    /// There is no such port.
    #[error("`{name}` has no port {port}")]
    Port {
        /// The adapter.
        name: String,
        /// Asked for.
        port: u32,
    },
    /// There is no such counter.
    #[error("`{nic}` has no counter `{name}`")]
    Counter {
        /// The adapter.
        nic: String,
        /// Asked for.
        name: String,
        /// There are.
        available: Vec<String>,
    },
    /// Not a word of the kernel's.
    #[error("`{word}` is not a state of a port")]
    PortState {
        /// Asked for.
        word: String,
        /// There are.
        available: Vec<String>,
    },
    /// Nothing is mounted there.
    #[error("nothing is mounted on `{path}`")]
    Mount {
        /// Asked for.
        path: String,
        /// There are.
        available: Vec<String>,
    },
    /// No such service runs.
    #[error("no service `{unit}` runs")]
    Service {
        /// Asked for.
        unit: String,
    },
    /// Not a driver version.
    #[error("`{version}` is not a driver version")]
    Driver {
        /// Asked for.
        version: String,
    },
    /// A call cannot be named.
    #[error(transparent)]
    Call(#[from] FaultError),
}

/// Lets the fault happen at `now`. What the kernel writes is added to the state's records.
pub fn apply(
    state: &mut SimState,
    fault: &HostFault,
    now_unix_ms: u64,
) -> Result<(), HostFaultError> {
    match fault {
        HostFault::KernelMessage { record, count } => {
            state.records.extend(std::iter::repeat_n(record.clone(), *count as usize));
        }
        HostFault::KernelGap(lost) => {
            let next = state.host.kernel_sequence.max(state.next_sequence);
            state.host.kernel_sequence = next.saturating_add(*lost);
        }
        HostFault::Nic(change) => change_nic(state, change)?,
        HostFault::DriverUnloaded => state.node.driver_loaded = false,
        HostFault::DriverLoaded => load_driver(state),
        HostFault::Reboot => {
            load_driver(state);
            state.node.booted_unix_ms = now_unix_ms;
            state.node.restarted = true;
            state.node.faults.retain(|fault| !fault.hangs());
            state.host.restart(now_unix_ms);
            for gpu in state.gpus.values_mut() {
                super::apply_reboot(gpu, now_unix_ms);
            }
            state.resets_kernel_log = true;
        }
        HostFault::ServiceRestarted(unit) => {
            let task = state.host.service_mut(unit);
            let task = task.ok_or_else(|| HostFaultError::Service { unit: unit.clone() })?;
            // Two starts are never the same moment.
            task.started_unix_ms = now_unix_ms.max(task.started_unix_ms + 1);
        }
        HostFault::ModuleOnDisk(version) => {
            // It becomes part of paths.
            if version.is_empty()
                || !version.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
            {
                return Err(HostFaultError::Driver { version: version.clone() });
            }
            state.node.replaced_by = Some(version.clone()).filter(|new| *new != state.node.driver);
        }
        HostFault::Change(change) => change_host(state, change, now_unix_ms)?,
        HostFault::Acs(on) => state.host.acs = *on,
        HostFault::Call(call) => {
            validate_call(&call.call)?;
            state.node.faults.retain(|other| other.call != call.call);
            state.node.faults.push(call.clone());
        }
        HostFault::Clear => {
            state.host.clear();
            state.node.faults.clear();
            state.node.driver_loaded = true;
            state.node.replaced_by = None;
        }
    }
    Ok(())
}

/// Loads the driver on disk: what was counted since the last load is forgotten, and rows that waited are remapped.
fn load_driver(state: &mut SimState) {
    state.node.driver_loaded = true;
    if let Some(version) = state.node.replaced_by.take() {
        state.node.driver = version;
    }
    for gpu in state.gpus.values_mut() {
        gpu.ecc.volatile = EccCounts::default();
        gpu.remap.pending = false;
    }
}

/// The kernel's own spelling of a word, however it was written.
fn canonical_state(available: &[(u32, &str)], word: &str) -> Result<String, HostFaultError> {
    let found = available.iter().find(|(_, available)| available.eq_ignore_ascii_case(word));
    found.map(|(_, available)| (*available).to_owned()).ok_or_else(|| HostFaultError::PortState {
        word: word.to_owned(),
        available: available.iter().map(|(_, available)| (*available).to_owned()).collect(),
    })
}

fn change_nic(state: &mut SimState, change: &NicChange) -> Result<(), HostFaultError> {
    let available = || state.host.nics.iter().map(|nic| nic.name.clone()).collect();
    let unknown = HostFaultError::Nic { name: change.name.clone(), available: available() };
    let nics = &mut state.host.nics;
    let nic = nics.iter_mut().find(|nic| nic.name == change.name).ok_or(unknown)?;
    nic.gone = change.gone.unwrap_or(nic.gone);
    change_port(nic, change)?;
    for (name, more) in &change.counters {
        let unknown = HostFaultError::Counter {
            nic: change.name.clone(),
            name: name.clone(),
            available: nic.counter_names().into_iter().map(str::to_owned).collect(),
        };
        let counter = nic.counter_mut(change.port, name).ok_or(unknown)?;
        *counter = counter.saturating_add(*more);
    }
    Ok(())
}

fn change_port(nic: &mut Nic, change: &NicChange) -> Result<(), HostFaultError> {
    let unknown = HostFaultError::Port { name: change.name.clone(), port: change.port };
    let port = nic.ports.iter_mut().find(|port| port.number == change.port).ok_or(unknown)?;
    if let Some(word) = &change.state {
        port.state = canonical_state(&STATES, word)?;
        // A port that is down looks for its peer; one that is up has found it.
        let usual = if port.state == "DOWN" { "Polling" } else { "LinkUp" };
        usual.clone_into(&mut port.phys_state);
    }
    if let Some(word) = &change.phys_state {
        port.phys_state = canonical_state(&PHYS_STATES, word)?;
    }
    port.rate_gbps = change.rate_gbps.unwrap_or(port.rate_gbps);
    Ok(())
}

fn change_host(
    state: &mut SimState,
    change: &HostChange,
    now_unix_ms: u64,
) -> Result<(), HostFaultError> {
    for (path, read_only) in [(&change.read_only, true), (&change.read_write, false)] {
        if let Some(path) = path {
            find_mount(state, path)?.read_only = read_only;
        }
    }
    if change.oom_kills > 0 {
        // The kernel says so of each; a flood adds nothing.
        let records = change.oom_kills.min(16);
        let words = "Out of memory: Killed process 4242 (python) total-vm:81264000kB, anon-rss:64000000kB, file-rss:0kB, shmem-rss:0kB, UID:1000 pgtables:130000kB oom_score_adj:0";
        state.records.extend((0..records).map(|_| KernelRecord::error(words)));
    }
    let host = &mut state.host;
    host.oom_kills = host.oom_kills.saturating_add(change.oom_kills);
    let memory = &mut host.memory;
    memory.available_kib = change.memory_available_kib.unwrap_or(memory.available_kib);
    memory.large_blocks = change.large_blocks.unwrap_or(memory.large_blocks);
    host.edac.corrected = host.edac.corrected.saturating_add(change.edac_corrected);
    host.edac.uncorrected = host.edac.uncorrected.saturating_add(change.edac_uncorrected);
    host.file_handles = change.file_handles.unwrap_or(host.file_handles);
    if let Some(source) = &change.clock_source {
        host.clock_source.clone_from(source);
    }
    if let Some(governor) = &change.governor {
        host.governor.clone_from(governor);
    }
    if change.unblocked {
        host.tasks.retain(|task| !task.is_injected);
    }
    if let Some(thread) = &change.blocked_thread {
        add_blocked_task(state, &thread.name, &thread.wait_channel, now_unix_ms);
    }
    if let Some(silent) = change.nfs_stalled {
        set_nfs_stalled(state, silent, now_unix_ms);
    }
    Ok(())
}

fn find_mount<'a>(state: &'a mut SimState, path: &str) -> Result<&'a mut Mount, HostFaultError> {
    let available = state.host.mounts.iter().map(|mount| mount.path.clone()).collect();
    let unknown = HostFaultError::Mount { path: path.to_owned(), available };
    state.host.mounts.iter_mut().find(|mount| mount.path == path).ok_or(unknown)
}

/// Where a reader of a network file system waits.
const NFS_WAIT: &str = "rpc_wait_bit_killable";

/// Adds a task that waits and cannot be interrupted.
fn add_blocked_task(state: &mut SimState, name: &str, wait_channel: &str, now_unix_ms: u64) {
    let tasks = &mut state.host.tasks;
    let thread = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    let pid = tasks.iter().map(|task| task.pid).max().unwrap_or(0).max(9000) + 1;
    tasks.push(Task {
        pid,
        parent: if thread.is_some() { 2 } else { 1 },
        name: thread.unwrap_or(name).chars().take(15).collect(),
        command: if thread.is_some() { Vec::new() } else { vec![name.to_owned()] },
        cgroup: if thread.is_some() { "/" } else { "/user.slice/user-1000.slice/session-3.scope" }
            .to_owned(),
        state: TaskState::Blocked,
        wait_channel: wait_channel.to_owned(),
        started_unix_ms: now_unix_ms,
        is_injected: true,
    });
}

/// The server of the network file system falls silent or answers again: the kernel says so, and who reads from it
/// waits or goes on.
fn set_nfs_stalled(state: &mut SimState, silent: bool, now_unix_ms: u64) {
    let mut servers = Vec::new();
    for mount in state.host.mounts.iter_mut().filter(|mount| mount.kind.starts_with("nfs")) {
        mount.stalled = silent;
        servers.extend(mount.source.split(':').next().map(str::to_owned));
    }
    for server in servers {
        let said = if silent { "not responding, still trying" } else { "OK" };
        state.records.push(KernelRecord { level: 5, text: format!("nfs: server {server} {said}") });
    }
    if silent {
        add_blocked_task(state, "python", NFS_WAIT, now_unix_ms);
    } else {
        state.host.tasks.retain(|task| task.wait_channel != NFS_WAIT);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::builder::{NodeSpec, build_node};
    use crate::host::{Host, NicConfig};

    fn state() -> SimState {
        let facts = farrier_facts::FactSet::embedded();
        let (node, gpus) = build_node(facts, &NodeSpec::new("H100-SXM5-80GB", 8)).unwrap();
        let host = Host::new(&node, NicConfig { ports: 8, ethernet: false, efa: 2 });
        let gpus: BTreeMap<u32, _> = (0..).zip(gpus).collect();
        SimState {
            node,
            host,
            gpus,
            next_sequence: 12,
            records: Vec::new(),
            resets_kernel_log: false,
        }
    }

    #[test]
    fn clear_puts_right_what_faults_did() {
        let before = state();
        let mut now = before.clone();
        let nic = |name: &str, counter: &str| NicChange {
            name: name.to_owned(),
            port: 1,
            state: Some("down".to_owned()),
            counters: vec![(counter.to_owned(), 3)],
            ..NicChange::default()
        };
        let change = HostChange {
            oom_kills: 1,
            read_only: Some("/".to_owned()),
            blocked_thread: Some(BlockedThread {
                name: "[nv_queue]".to_owned(),
                wait_channel: "nv_wait".to_owned(),
            }),
            clock_source: Some("hpet".to_owned()),
            governor: Some("powersave".to_owned()),
            memory_available_kib: Some(1),
            large_blocks: Some(0),
            edac_corrected: 1,
            edac_uncorrected: 1,
            file_handles: Some(FileHandles { used: 99, max: 100 }),
            nfs_stalled: Some(true),
            ..HostChange::default()
        };
        for fault in [
            HostFault::Nic(nic("mlx5_0", "link_downed")),
            HostFault::Nic(nic("rdmap0", "no_completion_cmds")),
            HostFault::DriverUnloaded,
            HostFault::ModuleOnDisk("580.105.08".to_owned()),
            HostFault::Change(change),
            HostFault::Acs(true),
        ] {
            apply(&mut now, &fault, 5_000).unwrap();
        }
        assert_eq!(now.host.nics[0].ports[0].phys_state, "Polling");
        assert!(now.host.describe_faults().len() >= 12, "{:?}", now.host.describe_faults());
        apply(&mut now, &HostFault::Clear, 6_000).unwrap();
        assert_eq!((&now.node, &now.host), (&before.node, &before.host));
        assert!(now.host.describe_faults().is_empty(), "{:?}", now.host.describe_faults());
    }

    #[test]
    fn a_restart_mends_what_a_restart_mends_and_no_more() {
        use super::super::CallEffect;

        let mut now = state();
        let call = |call: &str, effect| CallFault { call: call.to_owned(), effect };
        let change = HostChange {
            read_only: Some("/".to_owned()),
            clock_source: Some("hpet".to_owned()),
            nfs_stalled: Some(true),
            ..HostChange::default()
        };
        apply(&mut now, &HostFault::Change(change), 5_000).unwrap();
        apply(&mut now, &HostFault::Call(call("nvmlInit_v2", CallEffect::HangForever)), 5_000)
            .unwrap();
        let power = call("nvmlDeviceGetPowerUsage", CallEffect::Error(8));
        let gpu = now.gpus.get_mut(&3).unwrap();
        gpu.faults = vec![call("*", CallEffect::HangForever), power.clone()];
        apply(&mut now, &HostFault::Reboot, 6_000).unwrap();
        assert_eq!((&now.node.faults, &now.gpus[&3].faults), (&Vec::new(), &vec![power]));
        assert_eq!(now.host.describe_faults(), ["/mnt/data does not answer"]);
    }

    #[test]
    fn a_reload_takes_the_driver_on_disk() {
        let mut state = state();
        apply(&mut state, &HostFault::ModuleOnDisk("580.105.08".to_owned()), 0).unwrap();
        assert_eq!(state.node.driver, "580.95.05");
        assert_eq!(state.node.driver_on_disk(), "580.105.08");
        apply(&mut state, &HostFault::DriverLoaded, 0).unwrap();
        assert_eq!(state.node.driver, "580.105.08");
        assert_eq!(state.node.replaced_by, None);
    }

    #[test]
    fn a_service_that_is_started_anew_is_another_run() {
        let mut state = state();
        let unit = "nvidia-fabricmanager.service";
        let before = state.host.service(unit).unwrap().started_unix_ms;
        apply(&mut state, &HostFault::ServiceRestarted(unit.to_owned()), before).unwrap();
        assert_eq!(state.host.service(unit).unwrap().started_unix_ms, before + 1);
        let none = HostFault::ServiceRestarted("x.service".to_owned());
        assert!(matches!(apply(&mut state, &none, 0), Err(HostFaultError::Service { .. })));
    }

    #[test]
    fn gaps_add_up() {
        let mut state = state();
        apply(&mut state, &HostFault::KernelGap(5), 0).unwrap();
        apply(&mut state, &HostFault::KernelGap(3), 0).unwrap();
        assert_eq!(state.host.kernel_sequence, 20);
    }

    #[test]
    fn what_the_node_has_not_is_refused() {
        let mut state = state();
        let nic = |name: &str| NicChange { name: name.to_owned(), port: 1, ..NicChange::default() };
        let unknown = HostFault::Nic(nic("mlx5_9"));
        assert!(matches!(apply(&mut state, &unknown, 0), Err(HostFaultError::Nic { .. })));
        let port = HostFault::Nic(NicChange { port: 2, ..nic("mlx5_0") });
        assert!(matches!(apply(&mut state, &port, 0), Err(HostFaultError::Port { .. })));
        let counters = vec![("link_uped".to_owned(), 1)];
        let counter = HostFault::Nic(NicChange { counters, ..nic("mlx5_0") });
        assert!(matches!(apply(&mut state, &counter, 0), Err(HostFaultError::Counter { .. })));
    }
}
