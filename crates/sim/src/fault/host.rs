//! Faults of the node outside of its GPUs.

use crate::gpu::EccCounts;
use crate::host::{FileHandles, Mount, Nic, PHYS_STATES, STATES, SoftwareFault, Task, TaskState};
use crate::rootfs::KernelRecord;
use crate::state::SimState;

use super::{CallFault, FaultError, validate_call};

/// An event or fault that affects the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostFault {
    /// The kernel logs a record `count` times.
    KernelMessage {
        record: KernelRecord,
        count: u32,
    },
    /// The sequence numbers in the kernel log skip this many records, as if a slow reader had lost
    /// them.
    KernelGap(u64),
    Nic(NicChange),
    DriverUnloaded,
    /// The kernel loads the driver version on disk.
    DriverLoaded,
    /// Packages, libraries and modules on disk change to this version, while the loaded driver
    /// stays.
    ModuleOnDisk(String),
    Reboot,
    /// Restarts a systemd unit.
    ServiceRestarted(String),
    Change(HostChange),
    /// Enables or disables ACS, which routes peer-to-peer traffic through the root complex.
    Acs(bool),
    /// Software or settings are faulty.
    Software(Vec<SoftwareFault>),
    /// An NVML call that concerns no particular GPU fails or hangs.
    Call(CallFault),
    /// Clears all faults above. The kernel log stays as it is.
    Clear,
}

/// Change of a network adapter. `None` leaves a value unchanged.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NicChange {
    pub name: String,
    pub port: u32,
    /// Kernel name of the logical state.
    pub state: Option<String>,
    /// Kernel name of the physical state. If `phys_state` is `None` and `state` is set, the
    /// physical state is derived from `state`.
    pub phys_state: Option<String>,
    pub rate_gbps: Option<u32>,
    /// Counter names, with the number to add to each counter.
    pub counters: Vec<(String, u64)>,
    /// Removes the adapter from the bus, or restores it.
    pub gone: Option<bool>,
}

/// Change of the host. `None` leaves a value unchanged.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HostChange {
    /// Additional OOM kills.
    pub oom_kills: u64,
    /// Additional times that processors were throttled.
    pub cpu_throttles: u64,
    /// Mount point to make read-only.
    pub read_only: Option<String>,
    /// Mount point to make writable again.
    pub read_write: Option<String>,
    pub blocked_thread: Option<BlockedThread>,
    /// Removes all injected blocked tasks.
    pub unblocked: bool,
    pub clock_source: Option<String>,
    /// CPU frequency governor.
    pub governor: Option<String>,
    pub memory_available_kib: Option<u64>,
    /// Free blocks of 2 MiB or more.
    pub large_blocks: Option<u64>,
    /// Additional corrected memory errors.
    pub edac_corrected: u64,
    /// Additional uncorrected memory errors.
    pub edac_uncorrected: u64,
    pub file_handles: Option<FileHandles>,
    /// Whether the NFS server has stopped responding.
    pub nfs_stalled: Option<bool>,
}

/// A task in uninterruptible sleep.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockedThread {
    /// Name of the task. The name of a kernel thread is in brackets.
    pub name: String,
    /// Kernel function in which the task waits.
    pub wait_channel: String,
}

/// Why a fault cannot apply to the node.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HostFaultError {
    #[error("unknown network adapter `{name}`")]
    Nic { name: String, available: Vec<String> },
    #[error("`{name}` has no port {port}")]
    Port { name: String, port: u32 },
    #[error("`{nic}` has no counter `{name}`")]
    Counter { nic: String, name: String, available: Vec<String> },
    #[error("`{word}` is not a port state")]
    PortState { word: String, available: Vec<String> },
    #[error("nothing is mounted on `{path}`")]
    Mount { path: String, available: Vec<String> },
    #[error("service `{unit}` is not running")]
    Service { unit: String },
    #[error("`{version}` is not a driver version")]
    Driver { version: String },
    #[error(transparent)]
    Call(#[from] FaultError),
}

/// Applies the fault at `now_unix_ms`. Kernel messages are added to `state.records`.
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
            // Clients recognise a restart by a new start time, so it must change.
            task.started_unix_ms = now_unix_ms.max(task.started_unix_ms + 1);
        }
        HostFault::ModuleOnDisk(version) => {
            // The version becomes part of file paths.
            if version.is_empty()
                || !version.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
            {
                return Err(HostFaultError::Driver { version: version.clone() });
            }
            state.node.replaced_by = Some(version.clone()).filter(|new| *new != state.node.driver);
        }
        HostFault::Change(change) => change_host(state, change, now_unix_ms)?,
        HostFault::Acs(on) => state.host.acs = *on,
        HostFault::Software(faults) => state.host.software.extend(faults),
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

/// Loads the driver on disk. This resets the volatile ECC counters and completes pending remaps.
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

/// Finds the kernel's spelling of a state name. Upper and lower case do not matter.
fn canonical_state(available: &[(u32, &str)], word: &str) -> Result<String, HostFaultError> {
    let found = available.iter().find(|(_, name)| name.eq_ignore_ascii_case(word));
    found.map(|(_, name)| (*name).to_owned()).ok_or_else(|| HostFaultError::PortState {
        word: word.to_owned(),
        available: available.iter().map(|(_, name)| (*name).to_owned()).collect(),
    })
}

fn change_nic(state: &mut SimState, change: &NicChange) -> Result<(), HostFaultError> {
    let names = || state.host.nics.iter().map(|nic| nic.name.clone()).collect();
    let unknown = HostFaultError::Nic { name: change.name.clone(), available: names() };
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
    let kind = nic.kind;
    let port = nic.ports.iter_mut().find(|port| port.number == change.port).ok_or(unknown)?;
    let was_up = port.is_up();
    if let Some(word) = &change.state {
        port.state = canonical_state(&STATES, word)?;
        // If a port is down, its physical layer polls for the peer.
        let phys_state = if port.state == "DOWN" { "Polling" } else { "LinkUp" };
        phys_state.clone_into(&mut port.phys_state);
    }
    if let Some(word) = &change.phys_state {
        port.phys_state = canonical_state(&PHYS_STATES, word)?;
    }
    port.rate_gbps = change.rate_gbps.unwrap_or(port.rate_gbps);
    if was_up && !port.is_up() {
        port.count_loss(kind);
    }
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
        // A real kernel logs each kill. The simulation logs at most 16 at once.
        let records = change.oom_kills.min(16);
        let message = "Out of memory: Killed process 4242 (python) total-vm:81264000kB, anon-rss:64000000kB, file-rss:0kB, shmem-rss:0kB, UID:1000 pgtables:130000kB oom_score_adj:0";
        state.records.extend((0..records).map(|_| KernelRecord::error(message)));
    }
    let host = &mut state.host;
    host.oom_kills = host.oom_kills.saturating_add(change.oom_kills);
    host.cpu_throttles = host.cpu_throttles.saturating_add(change.cpu_throttles);
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
    if let Some(stalled) = change.nfs_stalled {
        set_nfs_stalled(state, stalled, now_unix_ms);
    }
    Ok(())
}

fn find_mount<'a>(state: &'a mut SimState, path: &str) -> Result<&'a mut Mount, HostFaultError> {
    let available = state.host.mounts.iter().map(|mount| mount.path.clone()).collect();
    let unknown = HostFaultError::Mount { path: path.to_owned(), available };
    state.host.mounts.iter_mut().find(|mount| mount.path == path).ok_or(unknown)
}

/// Kernel function in which NFS readers wait.
const NFS_WAIT: &str = "rpc_wait_bit_killable";

/// Adds a task in uninterruptible sleep.
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

/// Makes the NFS server stop or respond again. The kernel logs this, and a task that reads from the
/// server blocks or continues.
fn set_nfs_stalled(state: &mut SimState, stalled: bool, now_unix_ms: u64) {
    let mut servers = Vec::new();
    for mount in state.host.mounts.iter_mut().filter(|mount| mount.kind.starts_with("nfs")) {
        mount.stalled = stalled;
        servers.extend(mount.source.split(':').next().map(str::to_owned));
    }
    for server in servers {
        let status = if stalled { "not responding, still trying" } else { "OK" };
        state
            .records
            .push(KernelRecord { level: 5, text: format!("nfs: server {server} {status}") });
    }
    if stalled {
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
    fn clear_reverts_all_faults() {
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
            cpu_throttles: 1,
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
            HostFault::Software(SoftwareFault::ALL.map(|(fault, ..)| fault).to_vec()),
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
    fn reboot_ends_hangs_and_keeps_persistent_faults() {
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
        assert_eq!(now.host.describe_faults(), ["/mnt/data: NFS server not responding"]);
    }

    #[test]
    fn reload_loads_the_driver_on_disk() {
        let mut state = state();
        apply(&mut state, &HostFault::ModuleOnDisk("580.105.08".to_owned()), 0).unwrap();
        assert_eq!(state.node.driver, "580.95.05");
        assert_eq!(state.node.driver_on_disk(), "580.105.08");
        apply(&mut state, &HostFault::DriverLoaded, 0).unwrap();
        assert_eq!(state.node.driver, "580.105.08");
        assert_eq!(state.node.replaced_by, None);
    }

    #[test]
    fn service_restart_changes_the_start_time() {
        let mut state = state();
        let unit = "nvidia-fabricmanager.service";
        let before = state.host.service(unit).unwrap().started_unix_ms;
        apply(&mut state, &HostFault::ServiceRestarted(unit.to_owned()), before).unwrap();
        assert_eq!(state.host.service(unit).unwrap().started_unix_ms, before + 1);
        let none = HostFault::ServiceRestarted("x.service".to_owned());
        assert!(matches!(apply(&mut state, &none, 0), Err(HostFaultError::Service { .. })));
    }

    #[test]
    fn kernel_gaps_accumulate() {
        let mut state = state();
        apply(&mut state, &HostFault::KernelGap(5), 0).unwrap();
        apply(&mut state, &HostFault::KernelGap(3), 0).unwrap();
        assert_eq!(state.host.kernel_sequence, 20);
    }

    #[test]
    fn unknown_targets_are_rejected() {
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
