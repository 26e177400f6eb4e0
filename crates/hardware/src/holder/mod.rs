//! Who holds a GPU: from a process to the pod, the Slurm job, the container or the unit that it belongs to.

mod cgroup;
mod command;

use std::fmt;

use farrier_facts::node::Reading;
use serde::{Deserialize, Serialize};

use crate::root::Root;

/// A login that nobody made, such as a service's, has this number.
const NO_LOGIN: u32 = u32::MAX;

/// A process and to whom it belongs. What could not be read is none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Holder {
    /// The process.
    pub pid: u32,
    /// The kernel's short name of it.
    pub name: Option<String>,
    /// The command line: its beginning, without secrets, safe to print.
    pub command: Option<String>,
    /// The user as whom it runs.
    pub uid: Option<u32>,
    /// The user who logged in to start it.
    pub login_uid: Option<u32>,
    /// To what it belongs.
    pub kind: HolderKind,
    /// The control group that says so.
    pub cgroup: Option<String>,
}

/// What a process belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HolderKind {
    /// A job of Slurm.
    SlurmJob {
        /// Its number.
        id: u64,
        /// `0`, `batch`, `extern`, `interactive`.
        step: Option<String>,
    },
    /// A pod of Kubernetes.
    Pod {
        /// Its UID, with dashes.
        uid: String,
        /// The container in it.
        container: Option<String>,
    },
    /// A container outside Kubernetes.
    Container {
        /// Its number.
        id: String,
    },
    /// A unit of systemd: a service, or a session of a user.
    Unit {
        /// Such as `ollama.service` or `session-3.scope`.
        name: String,
    },
    /// Nobody knows.
    Unknown {
        /// Why.
        why: String,
    },
}

impl fmt::Display for HolderKind {
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

/// Reads to whom a process belongs. The command line is read from the process's own memory, behind a lock that a
/// thread which is stuck in the driver may hold: it is left out where a thread is stuck, and whoever asks does well to
/// ask once, when the process appears.
pub fn holder(root: &Root, pid: u32) -> Holder {
    let folder = format!("/proc/{pid}");
    let name = root.word(&format!("{folder}/comm"));
    let (kind, cgroup) = match root.text(&format!("{folder}/cgroup")) {
        Reading::Value(text) => cgroup::judge(&text),
        Reading::Absent => (unknown(absent(root, &folder, pid)), None),
        Reading::Unreadable(why) => (unknown(why.to_string()), None),
    };
    Holder {
        pid,
        name: name.value().map(|name| command::harmless(name)),
        command: if may_hang(root, &folder) { None } else { command::read(root, &folder) },
        uid: uid(root, &folder),
        login_uid: root
            .word(&format!("{folder}/loginuid"))
            .value()
            .and_then(|word| word.parse().ok())
            .filter(|uid| *uid != NO_LOGIN),
        kind,
        cgroup: cgroup.map(|path| command::harmless(&path)),
    }
}

/// When a process was started, in the kernel's ticks since the boot: with its number this tells it from all others of the
/// boot. It is read without a lock of the process.
pub fn started(root: &Root, pid: u32) -> Option<u64> {
    let stat = root.bytes(&format!("/proc/{pid}/stat"));
    let line = String::from_utf8_lossy(stat.value()?).into_owned();
    // The name may have spaces and parentheses; the state behind it is the third field, the start the 22nd.
    let (_, rest) = line.rsplit_once(") ")?;
    rest.split_whitespace().nth(22 - 3)?.parse().ok()
}

/// Whether a thread of the process is in uninterruptible sleep (D).
fn may_hang(root: &Root, folder: &str) -> bool {
    let tasks = root.list(&format!("{folder}/task"));
    let of_tasks = tasks.value().into_iter().flatten().map(|task| format!("{folder}/task/{task}"));
    of_tasks.chain([folder.to_owned()]).any(|folder| {
        let stat = root.bytes(&format!("{folder}/stat"));
        stat.value().is_some_and(|line| {
            String::from_utf8_lossy(line)
                .rsplit_once(") ")
                .is_some_and(|(_, rest)| rest.starts_with('D'))
        })
    })
}

fn unknown(why: String) -> HolderKind {
    HolderKind::Unknown { why }
}

fn absent(root: &Root, folder: &str, pid: u32) -> String {
    match root.exists(folder) {
        Reading::Value(true) => "the kernel has no control groups".to_owned(),
        Reading::Value(false) | Reading::Absent => {
            format!("there is no process {pid} here: it ended, or it is in another PID namespace")
        }
        Reading::Unreadable(why) => why.to_string(),
    }
}

/// `Uid: 1000 1000 1000 1000`: real, effective, saved and of files.
fn uid(root: &Root, folder: &str) -> Option<u32> {
    let status = root.text(&format!("{folder}/status"));
    let line = status.value()?.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_process_is_described() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join("proc/42").join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("comm", "pt_main\u{1b}[31m\n");
        write("cmdline", "python3\0train.py\0--token=hf_abc\0\u{202e}x\0");
        write("cgroup", "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0\n");
        write("status", "Name:\tpython3\nUid:\t1000\t0\t0\t0\n");
        write("loginuid", "1001");
        let root = Root::unrecorded(folder.path());
        let found = holder(&root, 42);
        assert_eq!(found.name.as_deref(), Some("pt_main\u{fffd}[31m"));
        assert_eq!(found.command.as_deref(), Some("python3 train.py --token=*** \u{fffd}x"));
        assert_eq!((found.uid, found.login_uid), (Some(1000), Some(1001)));
        assert_eq!(found.kind.to_string(), "Slurm job 7.0");
        write("loginuid", "4294967295");
        assert_eq!(holder(&root, 42).login_uid, None);
        // A thread is stuck in the driver: the memory of the process is not touched.
        write("task/42/stat", "42 (python3) S 1 1\n");
        write("task/43/stat", "43 (a) S (b) D 1 1\n");
        let stuck = holder(&root, 42);
        assert_eq!((stuck.command, stuck.kind), (None, found.kind));
    }

    #[test]
    fn a_process_that_is_not_there_is_unknown_and_says_why() {
        let folder = tempfile::tempdir().unwrap();
        let found = holder(&Root::unrecorded(folder.path()), 42);
        let HolderKind::Unknown { why } = &found.kind else { panic!("{found:?}") };
        assert_eq!(why, "there is no process 42 here: it ended, or it is in another PID namespace");
        assert_eq!((found.name, found.command, found.uid), (None, None, None));
    }

    #[test]
    fn this_process_is_found() {
        let found = holder(&Root::unrecorded("/"), std::process::id());
        // Not its command: another test's thread may wait for the disk, and then that is not read.
        assert!(found.name.is_some() && found.uid.is_some());
    }
}
