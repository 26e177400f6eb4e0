//! The host's own files: who a process is, and how busy the host is.

use std::collections::BTreeMap;
use std::time::Instant;

use farrier_facts::node::{ReadError, Reading};
use farrier_hardware::Root;
use farrier_hardware::process_owner::{self, OwnerKind};

use crate::commands::top::now::{HostNow, ProcessNow};

/// What does not change while a process lives: read once, as a look at one whose threads are stuck in the driver may hang.
#[derive(Debug, Clone, Default)]
struct Who {
    started_ticks: Option<u64>,
    user: Option<String>,
    job: Option<String>,
    command: Option<String>,
}

/// What moves.
#[derive(Debug, Clone, Copy)]
struct Spent {
    at: Instant,
    ticks: u64,
}

/// A process's line in `/proc`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stat {
    started_ticks: u64,
    cpu_ticks: u64,
    resident_pages: u64,
}

/// The host's files.
pub(in crate::commands::top) struct Host {
    root: Root,
    users: BTreeMap<u32, String>,
    known: BTreeMap<u32, Who>,
    spent: BTreeMap<u32, Spent>,
    /// Ticks of all processors: busy, and in all.
    cpu: Option<(u64, u64)>,
    ticks_per_s: u64,
    page_bytes: u64,
}

impl Host {
    pub(in crate::commands::top) fn new(root: Root) -> Self {
        let users = users(root.text("/etc/passwd").value().map_or("", String::as_str));
        Self {
            root,
            users,
            known: BTreeMap::new(),
            spent: BTreeMap::new(),
            cpu: None,
            ticks_per_s: rustix::param::clock_ticks_per_second(),
            page_bytes: rustix::param::page_size() as u64,
        }
    }

    /// Who a user is.
    pub(super) fn user(&self, uid: u32) -> String {
        self.users.get(&uid).cloned().unwrap_or_else(|| uid.to_string())
    }

    /// Fills in what the host knows of processes.
    pub(super) fn describe(&mut self, processes: &mut [ProcessNow]) {
        let uptime_s = self.uptime_s();
        let pids: Vec<u32> = processes.iter().map(|process| process.pid).collect();
        self.known.retain(|pid, _| pids.contains(pid));
        self.spent.retain(|pid, _| pids.contains(pid));
        let mut told: BTreeMap<u32, (Who, Option<Stat>, Option<f64>)> = BTreeMap::new();
        for process in processes {
            let pid = process.pid;
            let (who, stat, cpu_ratio) = told.entry(pid).or_insert_with(|| self.look(pid)).clone();
            process.user = who.user.or_else(|| process.user.take());
            process.job = who.job.or_else(|| process.job.take());
            process.command = who.command.or_else(|| process.command.take());
            process.cpu_ratio = cpu_ratio;
            process.host_memory_bytes = stat.map(|stat| stat.resident_pages * self.page_bytes);
            process.elapsed_s = stat
                .zip(uptime_s)
                .map(|(stat, up)| up.saturating_sub(stat.started_ticks / self.ticks_per_s));
        }
    }

    fn look(&mut self, pid: u32) -> (Who, Option<Stat>, Option<f64>) {
        let text = self.root.bytes(&format!("/proc/{pid}/stat"));
        let line = text.value().map(|bytes| String::from_utf8_lossy(bytes).into_owned());
        let stat = line.as_deref().and_then(stat);
        let started = stat.map(|stat| stat.started_ticks);
        let known = self.known.get(&pid).filter(|who| who.started_ticks == started).cloned();
        let is_known = known.is_some();
        let who = known.unwrap_or_else(|| self.who(pid, started));
        self.known.insert(pid, who.clone());
        let now = Instant::now();
        let before = self.spent.get(&pid).copied().filter(|_| is_known);
        let cpu_ratio = stat.zip(before).and_then(|(stat, before)| {
            let seconds = now.duration_since(before.at).as_secs_f64();
            let ticks = stat.cpu_ticks.saturating_sub(before.ticks);
            (seconds > 0.0).then(|| whole(ticks) / whole(self.ticks_per_s) / seconds)
        });
        match stat {
            Some(stat) => self.spent.insert(pid, Spent { at: now, ticks: stat.cpu_ticks }),
            None => self.spent.remove(&pid),
        };
        (who, stat, cpu_ratio)
    }

    fn who(&self, pid: u32, started_ticks: Option<u64>) -> Who {
        let holder = process_owner::process_owner(&self.root, pid);
        Who {
            started_ticks,
            user: holder.login_uid.or(holder.uid).map(|uid| self.user(uid)),
            job: match holder.kind {
                OwnerKind::Unknown { .. } => None,
                kind => Some(kind.to_string()),
            },
            command: holder.command.or(holder.name),
        }
    }

    fn uptime_s(&self) -> Option<u64> {
        let text = self.root.trimmed("/proc/uptime");
        let whole = text.value()?.split(['.', ' ']).next()?.to_owned();
        whole.parse().ok()
    }

    /// How busy it is.
    pub(in crate::commands::top) fn now(&mut self) -> HostNow {
        let memory = self.root.text("/proc/meminfo");
        let of = |name: &'static str| {
            memory.as_ref().and_then(|text| match meminfo_bytes(text, name) {
                Some(bytes) => Reading::Value(bytes),
                None => Reading::Absent,
            })
        };
        let less = |total: Reading<f64>, free: Reading<f64>| {
            total.and_then(|total| free.map(|free| total - free))
        };
        HostNow {
            cpu_ratio: self.cpu_ratio(),
            load: self.root.trimmed("/proc/loadavg").and_then(|text| {
                let numbers: Vec<f64> =
                    text.split(' ').take(3).map_while(|word| word.parse().ok()).collect();
                let load = <[f64; 3]>::try_from(numbers);
                load.map_or(
                    Reading::Unreadable(ReadError::malformed("it is no number")),
                    Reading::Value,
                )
            }),
            memory_total_bytes: of("MemTotal"),
            memory_used_bytes: less(of("MemTotal"), of("MemAvailable")),
            swap_used_bytes: less(of("SwapTotal"), of("SwapFree")),
        }
    }

    fn cpu_ratio(&mut self) -> Reading<f64> {
        let text = match self.root.text("/proc/stat") {
            Reading::Value(text) => text,
            other => return other.map(|_| 0.0),
        };
        let Some((busy, all)) = text.lines().next().and_then(cpu_ticks) else {
            return Reading::Unreadable(ReadError::malformed("it is not as expected"));
        };
        match self.cpu.replace((busy, all)) {
            Some((busy_before, all_before)) if all > all_before => {
                let share = whole(busy.saturating_sub(busy_before)) / whole(all - all_before);
                Reading::Value(share.min(1.0))
            }
            _ => Reading::Unreadable(ReadError::unavailable("it takes two looks")),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "ticks of some years")]
fn whole(number: u64) -> f64 {
    number as f64
}

/// `cpu user nice system idle iowait irq softirq steal ...`: busy, and in all.
fn cpu_ticks(line: &str) -> Option<(u64, u64)> {
    let numbers: Vec<u64> =
        line.strip_prefix("cpu ")?.split_whitespace().map_while(|it| it.parse().ok()).collect();
    // What guests used stands in `user` already.
    let all: u64 = numbers.iter().take(8).sum();
    let idle = numbers.get(3)? + numbers.get(4).copied().unwrap_or(0);
    Some((all.checked_sub(idle)?, all))
}

fn meminfo_bytes(text: &str, name: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kib: f64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    Some(kib * 1024.0)
}

fn stat(line: &str) -> Option<Stat> {
    // The name may have spaces and parentheses; the state behind it is the third field.
    let (_, rest) = line.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    Some(Stat {
        started_ticks: field(22)?,
        cpu_ticks: field(14)? + field(15)?,
        resident_pages: field(24)?,
    })
}

/// Names by number, of `/etc/passwd`.
fn users(text: &str) -> BTreeMap<u32, String> {
    let user = |line: &str| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        Some((fields.nth(1)?.parse().ok()?, name.to_owned()))
    };
    text.lines().filter_map(user).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernel_are_read() {
        let line = "7 (a) b) S 1 7 7 0 -1 0 0 0 0 0 120 30 0 0 20 0 1 0 5000 0 250 0";
        let expected = Stat { started_ticks: 5000, cpu_ticks: 150, resident_pages: 250 };
        assert_eq!(stat(line), Some(expected));
        assert_eq!(stat("7 (a"), None);
        assert_eq!(cpu_ticks("cpu  10 0 10 70 10 0 0 0 5 5"), Some((20, 100)));
        assert_eq!(cpu_ticks("intr 1"), None);
        assert_eq!(meminfo_bytes("MemTotal:  2 kB\nMemFree: 1 kB", "MemTotal"), Some(2048.0));
        assert_eq!(meminfo_bytes("MemTotal:  2 kB", "SwapTotal"), None);
        let users = users("root:x:0:0::/root:/bin/sh\nbroken\nann:x:1000:1000::/home/ann:/bin/sh");
        assert_eq!(users.get(&1000).map(String::as_str), Some("ann"));
        assert_eq!(users.len(), 2);
    }

    #[test]
    fn a_host_whose_files_are_not_there_is_not_known() {
        let folder = tempfile::tempdir().unwrap();
        let mut host = Host::new(Root::unrecorded(folder.path()));
        let now = host.now();
        assert_eq!(now.cpu_ratio, Reading::Absent);
        assert_eq!(now.memory_total_bytes, Reading::Absent);
        assert_eq!(host.user(7), "7");
    }

    #[test]
    fn a_processors_share_takes_two_looks() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("proc")).unwrap();
        let write = |text: &str| std::fs::write(folder.path().join("proc/stat"), text).unwrap();
        let mut host = Host::new(Root::unrecorded(folder.path()));
        write("cpu  10 0 10 80 0 0 0 0 0 0\n");
        assert!(host.now().cpu_ratio.why_unreadable().is_some());
        write("cpu  40 0 10 150 0 0 0 0 0 0\n");
        assert_eq!(host.now().cpu_ratio, Reading::Value(0.3));
    }
}
