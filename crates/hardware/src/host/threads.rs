//! Finds threads that are stuck in the kernel (state D), and what they wait for.
//!
//! A pass reads `/proc/*/stat`, and other files only for threads in state D. A thread counts as
//! stuck if it was in D in two consecutive passes. If the thread does not wait for the driver, it
//! must also have had no context switch between the two passes, because a heavy disk writer is in D
//! most of the time but makes progress. The driver polls with short sleeps, so its stuck threads do
//! have context switches.

use std::collections::HashMap;

use farrier_facts::node::{ReadError, Reading};
use farrier_fleet::health::{Sample, Signal};

use super::{push_node_named, required};
use crate::root::Root;

const PROCESSES: &str = "/proc";

/// Maximum stuck threads recorded. A node with more stuck threads cannot work, and the exact number
/// is irrelevant.
const STUCK_MAX: usize = 4096;

/// A thread id with its start time, which distinguishes it from a later thread with the same id.
type ThreadKey = (u32, u64);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WaitsFor {
    Driver,
    Nfs,
    Other,
    /// A thread of a GPU process whose wait channel is visible only to root.
    Unknown,
}

/// A thread that is in D.
#[derive(Debug, Clone)]
struct StuckThread {
    /// Name and thread id, for display.
    name: String,
    waits: WaitsFor,
    /// Number of voluntary context switches. `None` if unreadable.
    switches: Option<u64>,
}

/// State of the last pass.
#[derive(Debug, Default)]
pub(super) struct Threads {
    last: HashMap<ThreadKey, StuckThread>,
    gpu_processes: Vec<u32>,
}

impl Threads {
    pub(super) fn set_gpu_processes(&mut self, pids: &[u32]) {
        pids.clone_into(&mut self.gpu_processes);
    }

    pub(super) fn read(&mut self, root: &Root, samples: &mut Vec<Sample>) {
        let counts = self.pass(root);
        for (signal, waits) in [
            (Signal::NodeDriverThreadsBlocked, WaitsFor::Driver),
            (Signal::NodeNfsThreadsBlocked, WaitsFor::Nfs),
            (Signal::NodeThreadsBlocked, WaitsFor::Other),
        ] {
            let mut names: Vec<String> = counts
                .value()
                .into_iter()
                .flatten()
                .filter(|(what, _)| *what == waits)
                .map(|(_, name)| name.clone())
                .collect();
            names.sort_unstable();
            let mut count =
                counts.as_ref().map(|_| f64::from(u32::try_from(names.len()).unwrap_or(u32::MAX)));
            if waits == WaitsFor::Driver
                && count == Reading::Value(0.0)
                && counts
                    .value()
                    .is_some_and(|counts| counts.iter().any(|(what, _)| *what == WaitsFor::Unknown))
            {
                let why = "a thread of a GPU process is stuck; only root can see what it waits for";
                count = Reading::Unreadable(ReadError::unavailable(why));
            }
            push_node_named(samples, signal, count, &names);
        }
    }

    /// Threads stuck since the last pass: what they wait for, and their names.
    fn pass(&mut self, root: &Root) -> Reading<Vec<(WaitsFor, String)>> {
        let names = match required(root.list(PROCESSES), PROCESSES) {
            Reading::Value(names) => names,
            other => {
                self.last.clear();
                return other.map(|_| Vec::new());
            }
        };
        let mut now = HashMap::new();
        for pid in names.iter().filter_map(|name| name.parse::<u32>().ok()) {
            let on_gpu = self.gpu_processes.contains(&pid);
            record_if_stuck(root, &format!("{PROCESSES}/{pid}"), on_gpu, &mut now);
            if on_gpu {
                let dir = format!("{PROCESSES}/{pid}/task");
                let tasks = root.list(&dir);
                for task in
                    tasks.value().into_iter().flatten().filter(|task| **task != pid.to_string())
                {
                    record_if_stuck(root, &format!("{dir}/{task}"), on_gpu, &mut now);
                }
            }
        }
        let mut counts = Vec::new();
        for (key, stuck) in &now {
            let Some(before) = self.last.get(key) else { continue };
            let is_still = stuck.switches == before.switches;
            let mut add = |waits| counts.push((waits, stuck.name.clone()));
            match stuck.waits {
                WaitsFor::Driver => add(WaitsFor::Driver),
                waits @ (WaitsFor::Nfs | WaitsFor::Other) if is_still => add(waits),
                WaitsFor::Nfs | WaitsFor::Other => {}
                WaitsFor::Unknown => {
                    add(WaitsFor::Unknown);
                    // Without context switches the thread is stuck, whatever it waits for.
                    if is_still {
                        add(WaitsFor::Other);
                    }
                }
            }
        }
        self.last = now;
        Reading::Value(counts)
    }
}

/// Records a thread if it is in D. A thread that exited meanwhile is skipped.
fn record_if_stuck(
    root: &Root,
    dir: &str,
    on_gpu: bool,
    now: &mut HashMap<ThreadKey, StuckThread>,
) {
    let Reading::Value(line) = root.bytes(&format!("{dir}/stat")) else { return };
    let line = String::from_utf8_lossy(&line);
    let Some(stat) = Stat::parse(&line).filter(|stat| stat.state == "D") else { return };
    if now.len() >= STUCK_MAX {
        return;
    }
    let text = |file: &str| root.trimmed(&format!("{dir}/{file}")).value().cloned();
    let wait_channel = text("wchan").unwrap_or_default();
    let mut waits = waits_for(stat.name, &wait_channel, "");
    if waits == WaitsFor::Other {
        // Read `stack` only if the name and the wait channel do not show what the thread waits for.
        // Only root can read `stack`, and the read waits for a lock that a process in `execve`
        // holds.
        let stack = text("stack").filter(|stack| !stack.is_empty());
        // The kernel shows 0 as the wait channel to unprivileged readers.
        let is_hidden = stack.is_none() && matches!(wait_channel.as_str(), "" | "0");
        waits = match waits_for(stat.name, &wait_channel, stack.as_deref().unwrap_or("")) {
            WaitsFor::Other if on_gpu && is_hidden => WaitsFor::Unknown,
            waits => waits,
        };
    }
    let name = format!("{} (pid {})", stat.name, stat.number);
    let stuck = StuckThread { name, waits, switches: switches(root, dir) };
    now.insert((stat.number, stat.started), stuck);
}

/// Fields of `/proc/PID/stat`: `1234 (name) D ...`, Linux `Documentation/filesystems/proc.rst`.
struct Stat<'a> {
    number: u32,
    name: &'a str,
    state: &'a str,
    started: u64,
}

impl<'a> Stat<'a> {
    /// The name may contain spaces and parentheses. It ends at the last closing parenthesis.
    fn parse(line: &'a str) -> Option<Self> {
        let (number, rest) = line.split_once(" (")?;
        let (name, rest) = rest.rsplit_once(") ")?;
        let mut fields = rest.split(' ');
        let state = fields.next()?;
        // The start time is field 22, and the state is field 3.
        let started = fields.nth(18)?.parse().ok()?;
        Some(Self { number: number.trim().parse().ok()?, name, state, started })
    }
}

fn switches(root: &Root, dir: &str) -> Option<u64> {
    let status = root.text(&format!("{dir}/status"));
    let lines = status.value()?.lines();
    lines
        .filter_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))
        .find_map(|number| number.trim().parse().ok())
}

/// Names from NVIDIA/open-gpu-kernel-modules (`kernel-open/nvidia`, `nvidia-uvm`) and Linux
/// `net/sunrpc`, `fs/nfs`.
fn waits_for(name: &str, wait_channel: &str, stack: &str) -> WaitsFor {
    let thread = ["nv_", "nv-", "nvidia", "UVM "].iter().any(|start| name.starts_with(start))
        || name.starts_with("irq/") && name.contains("nvidia");
    let function = |name: &str| {
        ["nv_", "nvidia", "_nv0", "uvm_", "os_acquire_", "nvkms_", "nvlink_"]
            .iter()
            .any(|start| name.starts_with(start))
    };
    // `[<0>] os_acquire_rwlock_write+0x35/0x50 [nvidia]`
    let functions = || stack.lines().filter_map(|line| line.split_whitespace().nth(1));
    if thread || function(wait_channel) || stack.contains(" [nvidia") || functions().any(function) {
        return WaitsFor::Driver;
    }
    let nfs = |name: &str| name.starts_with("rpc_") || name.starts_with("nfs");
    if nfs(wait_channel)
        || stack.contains(" [nfs")
        || stack.contains(" [sunrpc]")
        || functions().any(nfs)
    {
        return WaitsFor::Nfs;
    }
    WaitsFor::Other
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_is_parsed_whatever_the_name() {
        let rest = "S 1 7 7 0 -1 4194560 0 0 0 0 12 8 0 0 20 0 1 0 4321 0 0";
        for name in ["bash", "tmux: server", "a) D 1 (b", "(sd-pam)", ""] {
            let line = format!("77 ({name}) {rest}");
            let stat = Stat::parse(&line).unwrap();
            assert_eq!((stat.number, stat.name, stat.state, stat.started), (77, name, "S", 4321));
        }
        for line in ["", "77", "77 (bash)", "77 (bash) D 1", "x (bash) D"] {
            assert!(Stat::parse(line).is_none(), "{line}");
        }
    }

    #[test]
    fn threads_are_classified_by_what_they_wait_for() {
        for (name, wait_channel, stack, expected) in [
            ("nv_queue", "0", "", WaitsFor::Driver),
            ("irq/152-nvidia", "", "", WaitsFor::Driver),
            ("UVM global queu", "", "", WaitsFor::Driver),
            ("nvidia-smi", "", "", WaitsFor::Driver),
            ("python3", "os_acquire_mutex", "", WaitsFor::Driver),
            (
                "python3",
                "0",
                "[<0>] rwsem_down_write+0x1/0x2\n[<0>] foo+0x35/0x50 [nvidia_uvm]\n",
                WaitsFor::Driver,
            ),
            ("nvme-wq", "blk_mq_get_tag", "", WaitsFor::Other),
            ("irq/33-nvme0q1", "0", "", WaitsFor::Other),
            ("python3", "rpc_wait_bit_killable", "", WaitsFor::Nfs),
            (
                "df",
                "0",
                "[<0>] __wait_on_bit+0x1/0x2\n[<0>] nfs_wait_client_init_complete+0x3/0x4 [nfs]\n",
                WaitsFor::Nfs,
            ),
            ("jbd2/nvme0n1p1-", "jbd2_journal_commit_transaction", "", WaitsFor::Other),
        ] {
            assert_eq!(waits_for(name, wait_channel, stack), expected, "{name} {wait_channel}");
        }
    }
}
