//! Processes and kernel threads as shown in `/proc`.

use serde::{Deserialize, Serialize};

use crate::node::SharedNodeState;

/// A process or a kernel thread.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Task {
    pub pid: u32,
    /// Parent PID. It is 2 for kernel threads.
    pub parent: u32,
    /// Name as in `/proc/PID/comm`, without the brackets of a kernel thread.
    pub name: String,
    /// Command line arguments. Empty for a kernel thread.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    pub cgroup: String,
    pub state: TaskState,
    /// Kernel function in which the task waits.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub wait_channel: String,
    /// Start time, Unix milliseconds.
    pub started_unix_ms: u64,
    /// Whether a fault added the task.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_injected: bool,
}

/// Kernel task state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TaskState {
    Running,
    /// Interruptible sleep.
    Sleeping,
    /// Uninterruptible sleep.
    Blocked,
    /// Idle kernel thread.
    Idle,
    Zombie,
}

impl TaskState {
    /// State letter and name as in `/proc/PID/status`.
    pub fn proc_state(self) -> (char, &'static str) {
        match self {
            Self::Running => ('R', "running"),
            Self::Sleeping => ('S', "sleeping"),
            Self::Blocked => ('D', "disk sleep"),
            Self::Idle => ('I', "idle"),
            Self::Zombie => ('Z', "zombie"),
        }
    }
}

/// Kernel threads and services that run on every host.
pub(super) fn default_tasks(node: &SharedNodeState) -> Vec<Task> {
    let thread = |pid: u32, name: &str, state: TaskState| Task {
        pid,
        parent: if pid == 2 { 0 } else { 2 },
        name: name.to_owned(),
        command: Vec::new(),
        cgroup: "/".to_owned(),
        state,
        wait_channel: match state {
            TaskState::Idle => "rescuer_thread".to_owned(),
            _ => "kthreadd".to_owned(),
        },
        started_unix_ms: node.booted_unix_ms,
        is_injected: false,
    };
    let service = |pid: u32, name: &str, command: &str, cgroup: &str| Task {
        pid,
        parent: u32::from(pid != 1),
        // The kernel truncates names to 15 characters.
        name: name.chars().take(15).collect(),
        command: command.split(' ').map(str::to_owned).collect(),
        cgroup: cgroup.to_owned(),
        state: TaskState::Sleeping,
        wait_channel: "do_epoll_wait".to_owned(),
        started_unix_ms: node.booted_unix_ms.saturating_add(20_000),
        is_injected: false,
    };
    vec![
        service(1, "systemd", "/sbin/init", "/init.scope"),
        thread(2, "kthreadd", TaskState::Sleeping),
        thread(3, "pool_workqueue_release", TaskState::Sleeping),
        thread(1201, "nv_queue", TaskState::Sleeping),
        thread(1202, "nv_open_q", TaskState::Sleeping),
        thread(1203, "nvidia-modeset/kthread_q", TaskState::Sleeping),
        thread(640, "nfsiod", TaskState::Idle),
        service(980, "sshd", "sshd: /usr/sbin/sshd -D [listener]", "/system.slice/ssh.service"),
        service(
            PERSISTENCED_PID,
            "nvidia-persistenced",
            "/usr/bin/nvidia-persistenced --verbose",
            "/system.slice/nvidia-persistenced.service",
        ),
        service(
            FABRIC_MANAGER_PID,
            "nv-fabricmanager",
            "/usr/bin/nv-fabricmanager -c /usr/share/nvidia/nvswitch/fabricmanager.cfg",
            "/system.slice/nvidia-fabricmanager.service",
        ),
        service(1410, "containerd", "/usr/bin/containerd", "/system.slice/containerd.service"),
    ]
}

/// PID of `nvidia-persistenced`.
pub(crate) const PERSISTENCED_PID: u32 = 1320;
/// PID of the Fabric Manager, which runs only on nodes with `NVSwitches`.
pub(crate) const FABRIC_MANAGER_PID: u32 = 1340;
