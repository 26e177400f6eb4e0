//! The host's files: process identities, CPU, memory and load.

use std::collections::BTreeMap;
use std::time::Instant;

use farrier_facts::node::{ReadError, Reading};
use farrier_hardware::Root;
use farrier_hardware::process_owner::{self, OwnerKind};

use crate::commands::top::sample::{HostSample, ProcessSample};

/// Attributes that do not change during the lifetime of a process. They are read only once, because
/// reading the files of a process may hang if the process is stuck in the driver.
#[derive(Debug, Clone, Default)]
struct ProcessIdentity {
    started_ticks: Option<u64>,
    user: Option<String>,
    job: Option<String>,
    command: Option<String>,
}

/// CPU time at a point in time.
#[derive(Debug, Clone, Copy)]
struct CpuTime {
    at: Instant,
    ticks: u64,
}

/// Fields of `/proc/<pid>/stat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ProcStat {
    started_ticks: u64,
    cpu_ticks: u64,
    resident_pages: u64,
}

/// Reads the host's files.
pub(in crate::commands::top) struct HostReader {
    root: Root,
    users: BTreeMap<u32, String>,
    identities: BTreeMap<u32, ProcessIdentity>,
    cpu_times: BTreeMap<u32, CpuTime>,
    /// Ticks of all cores: busy and total.
    cpu: Option<(u64, u64)>,
    ticks_per_s: u64,
    page_bytes: u64,
}

impl HostReader {
    pub(in crate::commands::top) fn new(root: Root) -> Self {
        let users = users(root.text("/etc/passwd").value().map_or("", String::as_str));
        Self {
            root,
            users,
            identities: BTreeMap::new(),
            cpu_times: BTreeMap::new(),
            cpu: None,
            ticks_per_s: rustix::param::clock_ticks_per_second(),
            page_bytes: rustix::param::page_size() as u64,
        }
    }

    /// User name, or the UID without an entry in `/etc/passwd`.
    pub(super) fn user(&self, uid: u32) -> String {
        self.users.get(&uid).cloned().unwrap_or_else(|| uid.to_string())
    }

    /// Fills in the host's data about processes.
    pub(super) fn describe(&mut self, processes: &mut [ProcessSample]) {
        let uptime_s = self.uptime_s();
        let pids: Vec<u32> = processes.iter().map(|process| process.pid).collect();
        self.identities.retain(|pid, _| pids.contains(pid));
        self.cpu_times.retain(|pid, _| pids.contains(pid));
        let mut read: BTreeMap<u32, (ProcessIdentity, Option<ProcStat>, Option<f64>)> =
            BTreeMap::new();
        for process in processes {
            let pid = process.pid;
            let (identity, stat, cpu_ratio) =
                read.entry(pid).or_insert_with(|| self.read_process(pid)).clone();
            process.user = identity.user.or_else(|| process.user.take());
            process.job = identity.job.or_else(|| process.job.take());
            process.command = identity.command.or_else(|| process.command.take());
            process.cpu_ratio = cpu_ratio;
            process.host_memory_bytes = stat.map(|stat| stat.resident_pages * self.page_bytes);
            process.elapsed_s = stat
                .zip(uptime_s)
                .map(|(stat, up)| up.saturating_sub(stat.started_ticks / self.ticks_per_s));
        }
    }

    fn read_process(&mut self, pid: u32) -> (ProcessIdentity, Option<ProcStat>, Option<f64>) {
        let text = self.root.bytes(&format!("/proc/{pid}/stat"));
        let line = text.value().map(|bytes| String::from_utf8_lossy(bytes).into_owned());
        let stat = line.as_deref().and_then(parse_stat);
        let started = stat.map(|stat| stat.started_ticks);
        let cached =
            self.identities.get(&pid).filter(|cached| cached.started_ticks == started).cloned();
        let is_cached = cached.is_some();
        let identity = cached.unwrap_or_else(|| self.identify(pid, started));
        self.identities.insert(pid, identity.clone());
        let now = Instant::now();
        let before = self.cpu_times.get(&pid).copied().filter(|_| is_cached);
        let cpu_ratio = stat.zip(before).and_then(|(stat, before)| {
            let seconds = now.duration_since(before.at).as_secs_f64();
            let ticks = stat.cpu_ticks.saturating_sub(before.ticks);
            (seconds > 0.0).then(|| to_f64(ticks) / to_f64(self.ticks_per_s) / seconds)
        });
        match stat {
            Some(stat) => self.cpu_times.insert(pid, CpuTime { at: now, ticks: stat.cpu_ticks }),
            None => self.cpu_times.remove(&pid),
        };
        (identity, stat, cpu_ratio)
    }

    fn identify(&self, pid: u32, started_ticks: Option<u64>) -> ProcessIdentity {
        let owner = process_owner::process_owner(&self.root, pid);
        ProcessIdentity {
            started_ticks,
            user: owner.login_uid.or(owner.uid).map(|uid| self.user(uid)),
            job: match owner.kind {
                OwnerKind::Unknown { .. } => None,
                kind => Some(kind.to_string()),
            },
            command: owner.command.or(owner.name),
        }
    }

    fn uptime_s(&self) -> Option<u64> {
        let text = self.root.trimmed("/proc/uptime");
        let seconds = text.value()?.split(['.', ' ']).next()?.to_owned();
        seconds.parse().ok()
    }

    pub(in crate::commands::top) fn sample(&mut self) -> HostSample {
        let memory = self.root.text("/proc/meminfo");
        let bytes = |name: &'static str| {
            memory.as_ref().and_then(|text| match meminfo_bytes(text, name) {
                Some(bytes) => Reading::Value(bytes),
                None => Reading::Absent,
            })
        };
        let minus = |total: Reading<f64>, free: Reading<f64>| {
            total.and_then(|total| free.map(|free| total - free))
        };
        HostSample {
            cpu_ratio: self.cpu_ratio(),
            load: self.root.trimmed("/proc/loadavg").and_then(|text| {
                let numbers: Vec<f64> =
                    text.split(' ').take(3).map_while(|word| word.parse().ok()).collect();
                let load = <[f64; 3]>::try_from(numbers);
                load.map_or(
                    Reading::Unreadable(ReadError::malformed("not a number")),
                    Reading::Value,
                )
            }),
            memory_total_bytes: bytes("MemTotal"),
            memory_used_bytes: minus(bytes("MemTotal"), bytes("MemAvailable")),
            swap_used_bytes: minus(bytes("SwapTotal"), bytes("SwapFree")),
        }
    }

    fn cpu_ratio(&mut self) -> Reading<f64> {
        let text = match self.root.text("/proc/stat") {
            Reading::Value(text) => text,
            other => return other.map(|_| 0.0),
        };
        let Some((busy, all)) = text.lines().next().and_then(cpu_ticks) else {
            return Reading::Unreadable(ReadError::malformed("unexpected format"));
        };
        match self.cpu.replace((busy, all)) {
            Some((busy_before, all_before)) if all > all_before => {
                let share = to_f64(busy.saturating_sub(busy_before)) / to_f64(all - all_before);
                Reading::Value(share.min(1.0))
            }
            _ => Reading::Unreadable(ReadError::unavailable("needs two samples")),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "ticks of a few years")]
fn to_f64(number: u64) -> f64 {
    number as f64
}

/// Busy and total ticks of `cpu user nice system idle iowait irq softirq steal ...`.
fn cpu_ticks(line: &str) -> Option<(u64, u64)> {
    let numbers: Vec<u64> = line
        .strip_prefix("cpu ")?
        .split_whitespace()
        .map_while(|field| field.parse().ok())
        .collect();
    // Guest time is already included in `user`.
    let all: u64 = numbers.iter().take(8).sum();
    let idle = numbers.get(3)? + numbers.get(4).copied().unwrap_or(0);
    Some((all.checked_sub(idle)?, all))
}

fn meminfo_bytes(text: &str, name: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kib: f64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    Some(kib * 1024.0)
}

fn parse_stat(line: &str) -> Option<ProcStat> {
    // The command may contain spaces and parentheses; the state after it is the third field.
    let (_, rest) = line.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    Some(ProcStat {
        started_ticks: field(22)?,
        cpu_ticks: field(14)? + field(15)?,
        resident_pages: field(24)?,
    })
}

/// User names by UID, from `/etc/passwd`.
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
    fn proc_files_are_parsed() {
        let line = "7 (a) b) S 1 7 7 0 -1 0 0 0 0 0 120 30 0 0 20 0 1 0 5000 0 250 0";
        let expected = ProcStat { started_ticks: 5000, cpu_ticks: 150, resident_pages: 250 };
        assert_eq!(parse_stat(line), Some(expected));
        assert_eq!(parse_stat("7 (a"), None);
        assert_eq!(cpu_ticks("cpu  10 0 10 70 10 0 0 0 5 5"), Some((20, 100)));
        assert_eq!(cpu_ticks("intr 1"), None);
        assert_eq!(meminfo_bytes("MemTotal:  2 kB\nMemFree: 1 kB", "MemTotal"), Some(2048.0));
        assert_eq!(meminfo_bytes("MemTotal:  2 kB", "SwapTotal"), None);
        let users = users("root:x:0:0::/root:/bin/sh\nbroken\nann:x:1000:1000::/home/ann:/bin/sh");
        assert_eq!(users.get(&1000).map(String::as_str), Some("ann"));
        assert_eq!(users.len(), 2);
    }

    #[test]
    fn missing_files_are_absent_readings() {
        let folder = tempfile::tempdir().unwrap();
        let mut host = HostReader::new(Root::unrecorded(folder.path()));
        let now = host.sample();
        assert_eq!(now.cpu_ratio, Reading::Absent);
        assert_eq!(now.memory_total_bytes, Reading::Absent);
        assert_eq!(host.user(7), "7");
    }

    #[test]
    fn cpu_share_needs_two_samples() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("proc")).unwrap();
        let write = |text: &str| std::fs::write(folder.path().join("proc/stat"), text).unwrap();
        let mut host = HostReader::new(Root::unrecorded(folder.path()));
        write("cpu  10 0 10 80 0 0 0 0 0 0\n");
        assert!(host.sample().cpu_ratio.why_unreadable().is_some());
        write("cpu  40 0 10 150 0 0 0 0 0 0\n");
        assert_eq!(host.sample().cpu_ratio, Reading::Value(0.3));
    }
}
