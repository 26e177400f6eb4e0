//! CPU time and memory of processes, from `/proc`.

use std::collections::BTreeMap;
use std::fs;
use std::process::Child;
use std::time::{Duration, Instant};

use anyhow::Context;

/// A child process that is killed on drop.
pub(crate) struct ChildProcess(pub(super) Child);

impl ChildProcess {
    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Fails if the process has exited.
    pub(crate) fn ensure_running(&mut self, name: &str) -> anyhow::Result<()> {
        match self.0.try_wait()? {
            None => Ok(()),
            Some(status) => anyhow::bail!("{name} exited early ({status})"),
        }
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// CPU time of a process and its descendants so far. The kernel counts nanoseconds for running
/// threads, and ticks for children that have exited.
pub(crate) struct CpuTime {
    when: Instant,
    threads: BTreeMap<u32, ThreadTime>,
    exited_children: Duration,
}

struct ThreadTime {
    group: String,
    time: Duration,
}

/// The unit of times in `/proc`: `USER_HZ` is 100, whatever the kernel's own tick rate.
const TICK: Duration = Duration::from_millis(10);

impl CpuTime {
    /// Measures a process and its descendants. Groups the threads of the process by name, and all
    /// threads of descendants under `child`.
    pub(crate) fn measure(pid: u32, child: &str) -> anyhow::Result<Self> {
        let mut cpu_time = Self {
            when: Instant::now(),
            threads: BTreeMap::new(),
            exited_children: Duration::ZERO,
        };
        for member in process_tree(pid) {
            cpu_time.exited_children += reaped_children_time(member).unwrap_or_default();
            for task in tasks(member) {
                let read =
                    |file: &str| fs::read_to_string(format!("/proc/{member}/task/{task}/{file}"));
                // The thread may have exited since it was listed.
                let (Ok(name), Ok(stat)) = (read("comm"), read("schedstat")) else { continue };
                let ns = stat.split(' ').next().and_then(|ns| ns.parse().ok());
                let time = Duration::from_nanos(ns.context("no time in schedstat")?);
                let group = if member == pid { name.trim() } else { child };
                cpu_time.threads.insert(task, ThreadTime { group: group.to_owned(), time });
            }
        }
        Ok(cpu_time)
    }

    /// CPU milliseconds per second since `before`, by group.
    pub(crate) fn rates_since(&self, before: &Self) -> BTreeMap<String, f64> {
        let elapsed_s = (self.when - before.when).as_secs_f64();
        let mut rates = BTreeMap::new();
        let mut add = |group: &str, time: Duration| {
            *rates.entry(group.to_owned()).or_insert(0.0) += time.as_secs_f64() * 1e3 / elapsed_s;
        };
        for (id, thread) in &self.threads {
            let then = before.threads.get(id).map_or(Duration::ZERO, |thread| thread.time);
            add(&thread.group, thread.time.saturating_sub(then));
        }
        let exited_children = self.exited_children.saturating_sub(before.exited_children);
        if !exited_children.is_zero() {
            add("exited children", exited_children);
        }
        rates
    }
}

/// Memory usage in KiB.
#[derive(Clone, Copy, Default)]
pub(crate) struct MemoryUsage {
    pub(crate) rss_kib: u32,
    pub(crate) pss_kib: u32,
}

impl MemoryUsage {
    /// Sums a process and its descendants.
    pub(crate) fn of_process(pid: u32) -> anyhow::Result<Self> {
        let mut sum = Self::default();
        for member in process_tree(pid) {
            let path = format!("/proc/{member}/smaps_rollup");
            let text =
                fs::read_to_string(&path).with_context(|| format!("failed to read `{path}`"))?;
            let field = |name: &str| {
                let line = text.lines().find_map(|line| line.strip_prefix(name));
                let kib =
                    line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u32>().ok());
                kib.with_context(|| format!("no `{name}` in `{path}`"))
            };
            sum.rss_kib += field("Rss:")?;
            sum.pss_kib += field("Pss:")?;
        }
        Ok(sum)
    }

    /// Resident set size in MB; shared pages count for each process.
    pub(crate) fn rss_mb(self) -> f64 {
        f64::from(self.rss_kib) * 1024.0 / 1e6
    }

    /// Proportional set size in MB; shared pages are divided among their users.
    pub(crate) fn pss_mb(self) -> f64 {
        f64::from(self.pss_kib) * 1024.0 / 1e6
    }
}

/// A process and all its descendants.
fn process_tree(pid: u32) -> Vec<u32> {
    let mut members = vec![pid];
    let mut next = 0;
    while let Some(&member) = members.get(next) {
        next += 1;
        for task in tasks(member) {
            let children = fs::read_to_string(format!("/proc/{member}/task/{task}/children"));
            let children = children.unwrap_or_default();
            members.extend(children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
        }
    }
    members
}

fn tasks(pid: u32) -> Vec<u32> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// CPU time of a process: `utime` and `stime` in `proc_pid_stat(5)`.
pub(crate) fn process_cpu_time(pid: u32) -> Option<Duration> {
    ticks_to_duration(pid, 11)
}

/// CPU time of reaped children: `cutime` and `cstime`.
fn reaped_children_time(pid: u32) -> Option<Duration> {
    ticks_to_duration(pid, 13)
}

fn ticks_to_duration(pid: u32, first: usize) -> Option<Duration> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = text.rsplit_once(") ")?.1.split(' ').collect();
    let ticks = |at: usize| fields.get(at)?.parse::<u32>().ok();
    Some(TICK * (ticks(first)? + ticks(first + 1)?))
}
