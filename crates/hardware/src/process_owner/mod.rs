//! The owner of a process: the pod, Slurm job, container or systemd unit that it belongs to.

mod cgroup;
mod command_line;

use std::fmt;

use farrier_facts::node::Reading;
use serde::{Deserialize, Serialize};

use crate::root::Root;

/// `loginuid` of a process without a login session, such as a service.
const NO_LOGIN: u32 = u32::MAX;

/// A process and its owner. Unreadable values are `None`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProcessOwner {
    pub pid: u32,
    /// `comm`, the kernel's short name.
    pub name: Option<String>,
    /// Start of the command line, with secrets removed and safe to print.
    pub command: Option<String>,
    /// Real user id.
    pub uid: Option<u32>,
    /// The user in whose login session the process was started.
    pub login_uid: Option<u32>,
    pub kind: OwnerKind,
    /// The cgroup from which the owner was derived.
    pub cgroup: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OwnerKind {
    SlurmJob {
        id: u64,
        /// `0`, `batch`, `extern`, `interactive`.
        step: Option<String>,
    },
    Pod {
        /// UID of the pod, with dashes.
        uid: String,
        /// Id of the container in the pod.
        container: Option<String>,
    },
    /// A container outside Kubernetes.
    Container {
        id: String,
    },
    /// A systemd unit: a service or a user session.
    Unit {
        /// Name of the unit, such as `ollama.service` or `session-3.scope`.
        name: String,
    },
    Unknown {
        why: String,
    },
}

impl fmt::Display for OwnerKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::SlurmJob { id, step: Some(step) } => format!("Slurm job {id}.{step}"),
            Self::SlurmJob { id, step: None } => format!("Slurm job {id}"),
            Self::Pod { uid, .. } => format!("pod {uid}"),
            Self::Container { id } => format!("container {}", id.get(..12).unwrap_or(id)),
            Self::Unit { name } => name.clone(),
            Self::Unknown { .. } => "unknown".to_owned(),
        };
        formatter.pad(&text)
    }
}

/// Determines the owner of a process. The command line is in the memory of the process, and reading
/// it needs a lock that a thread stuck in the driver may hold. So the command line is left out if
/// any thread is stuck. Call this function only once per process, when the process appears.
pub fn process_owner(root: &Root, pid: u32) -> ProcessOwner {
    let dir = format!("/proc/{pid}");
    let name = root.trimmed(&format!("{dir}/comm"));
    let (kind, cgroup) = match root.text(&format!("{dir}/cgroup")) {
        Reading::Value(text) => cgroup::owner_from_cgroup(&text),
        Reading::Absent => (unknown(absent(root, &dir, pid)), None),
        Reading::Unreadable(why) => (unknown(why.to_string()), None),
    };
    ProcessOwner {
        pid,
        name: name.value().map(|name| command_line::sanitize(name)),
        command: if may_hang(root, &dir) { None } else { command_line::read(root, &dir) },
        uid: uid(root, &dir),
        login_uid: root
            .trimmed(&format!("{dir}/loginuid"))
            .value()
            .and_then(|word| word.parse().ok())
            .filter(|uid| *uid != NO_LOGIN),
        kind,
        cgroup: cgroup.map(|path| command_line::sanitize(&path)),
    }
}

/// Start time of a process in clock ticks since boot. Together with the PID it identifies the
/// process within the boot. Reading it needs no lock of the process.
pub fn start_time(root: &Root, pid: u32) -> Option<u64> {
    let stat = root.bytes(&format!("/proc/{pid}/stat"));
    let line = String::from_utf8_lossy(stat.value()?).into_owned();
    // The name may contain spaces and parentheses. The state after it is field 3, and the start
    // time is field 22.
    let (_, rest) = line.rsplit_once(") ")?;
    rest.split_whitespace().nth(22 - 3)?.parse().ok()
}

/// Whether a thread of the process is in uninterruptible sleep (D).
fn may_hang(root: &Root, dir: &str) -> bool {
    let tasks = root.list(&format!("{dir}/task"));
    let of_tasks = tasks.value().into_iter().flatten().map(|task| format!("{dir}/task/{task}"));
    of_tasks.chain([dir.to_owned()]).any(|dir| {
        let stat = root.bytes(&format!("{dir}/stat"));
        stat.value().is_some_and(|line| {
            String::from_utf8_lossy(line)
                .rsplit_once(") ")
                .is_some_and(|(_, rest)| rest.starts_with('D'))
        })
    })
}

fn unknown(why: String) -> OwnerKind {
    OwnerKind::Unknown { why }
}

fn absent(root: &Root, dir: &str, pid: u32) -> String {
    match root.exists(dir) {
        Reading::Value(true) => "the kernel has no cgroups".to_owned(),
        Reading::Value(false) | Reading::Absent => {
            format!("no process {pid} here: it exited or is in another PID namespace")
        }
        Reading::Unreadable(why) => why.to_string(),
    }
}

/// `Uid: 1000 1000 1000 1000`: real, effective, saved, file system.
fn uid(root: &Root, dir: &str) -> Option<u32> {
    let status = root.text(&format!("{dir}/status"));
    let line = status.value()?.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn process_owner_is_described() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = dir.path().join("proc/42").join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("comm", "pt_main\u{1b}[31m\n");
        write("cmdline", "python3\0train.py\0--token=hf_abc\0\u{202e}x\0");
        write("cgroup", "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0\n");
        write("status", "Name:\tpython3\nUid:\t1000\t0\t0\t0\n");
        write("loginuid", "1001");
        let root = Root::unrecorded(dir.path());
        let found = process_owner(&root, 42);
        assert_eq!(found.name.as_deref(), Some("pt_main\u{fffd}[31m"));
        assert_eq!(found.command.as_deref(), Some("python3 train.py --token=*** \u{fffd}x"));
        assert_eq!((found.uid, found.login_uid), (Some(1000), Some(1001)));
        assert_eq!(found.kind.to_string(), "Slurm job 7.0");
        write("loginuid", "4294967295");
        assert_eq!(process_owner(&root, 42).login_uid, None);
        // If a thread is stuck in the driver, the memory of the process is not read.
        write("task/42/stat", "42 (python3) S 1 1\n");
        write("task/43/stat", "43 (a) S (b) D 1 1\n");
        let stuck = process_owner(&root, 42);
        assert_eq!((stuck.command, stuck.kind), (None, found.kind));
    }

    #[test]
    fn missing_process_is_unknown_with_a_reason() {
        let dir = tempfile::tempdir().unwrap();
        let found = process_owner(&Root::unrecorded(dir.path()), 42);
        let OwnerKind::Unknown { why } = &found.kind else { panic!("{found:?}") };
        assert_eq!(why, "no process 42 here: it exited or is in another PID namespace");
        assert_eq!((found.name, found.command, found.uid), (None, None, None));
    }

    #[test]
    fn own_process_is_found() {
        let found = process_owner(&Root::unrecorded("/"), std::process::id());
        // The command is not checked, because it is not read if the thread of another test is in
        // disk sleep.
        assert!(found.name.is_some() && found.uid.is_some());
    }
}
