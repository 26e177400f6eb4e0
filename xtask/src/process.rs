//! What processes cost, as `/proc` has it.

use std::collections::BTreeMap;
use std::fs;
use std::process::Child;
use std::time::{Duration, Instant};

use anyhow::Context;

/// A process that does not outlive the measurement, however that ends.
pub(crate) struct ChildProcess(pub(super) Child);

impl ChildProcess {
    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Fails when it has ended by itself.
    pub(crate) fn ensure_running(&mut self, name: &str) -> anyhow::Result<()> {
        match self.0.try_wait()? {
            None => Ok(()),
            Some(status) => anyhow::bail!("{name} ended early ({status})"),
        }
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Processor time up to a moment. Threads count in nanoseconds, children that have ended in ticks.
pub(crate) struct CpuTime {
    when: Instant,
    threads: BTreeMap<u32, ThreadTime>,
    ended: Duration,
}

struct ThreadTime {
    part: String,
    time: Duration,
}

/// The kernel counts time in hundredths of a second for programs, whatever it does itself.
const TICK: Duration = Duration::from_millis(10);

impl CpuTime {
    /// Of a process and its children. A thread's part is its name, a child's is `child`.
    pub(crate) fn measure(pid: u32, child: &str) -> anyhow::Result<Self> {
        let mut cpu_time =
            Self { when: Instant::now(), threads: BTreeMap::new(), ended: Duration::ZERO };
        for member in process_tree(pid) {
            cpu_time.ended += reaped_children_time(member).unwrap_or_default();
            for task in tasks(member) {
                let read =
                    |file: &str| fs::read_to_string(format!("/proc/{member}/task/{task}/{file}"));
                // A thread may end while it is looked at.
                let (Ok(name), Ok(stat)) = (read("comm"), read("schedstat")) else { continue };
                let ns = stat.split(' ').next().and_then(|ns| ns.parse().ok());
                let time = Duration::from_nanos(ns.context("no time in schedstat")?);
                let part = if member == pid { name.trim() } else { child };
                cpu_time.threads.insert(task, ThreadTime { part: part.to_owned(), time });
            }
        }
        Ok(cpu_time)
    }

    /// Milliseconds of processor time a second since `before`, by part.
    pub(crate) fn rates_since(&self, before: &Self) -> BTreeMap<String, f64> {
        let elapsed_s = (self.when - before.when).as_secs_f64();
        let mut rates = BTreeMap::new();
        let mut add = |part: &str, time: Duration| {
            *rates.entry(part.to_owned()).or_insert(0.0) += time.as_secs_f64() * 1e3 / elapsed_s;
        };
        for (id, thread) in &self.threads {
            let then = before.threads.get(id).map_or(Duration::ZERO, |thread| thread.time);
            add(&thread.part, thread.time.saturating_sub(then));
        }
        let ended = self.ended.saturating_sub(before.ended);
        if !ended.is_zero() {
            add("children that ended", ended);
        }
        rates
    }
}

/// MemoryUsage in kibibytes.
#[derive(Clone, Copy, Default)]
pub(crate) struct MemoryUsage {
    pub(crate) rss_kib: u32,
    pub(crate) pss_kib: u32,
}

impl MemoryUsage {
    /// Of a process and its children.
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

    /// Resident megabytes, each process counted for itself.
    pub(crate) fn rss_mb(self) -> f64 {
        f64::from(self.rss_kib) * 1024.0 / 1e6
    }

    /// The same with pages that are shared divided among those who share them.
    pub(crate) fn pss_mb(self) -> f64 {
        f64::from(self.pss_kib) * 1024.0 / 1e6
    }
}

/// A process and all below it.
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

/// Time of a process itself, up to now: `utime` and `stime` of `proc_pid_stat(5)`.
pub(crate) fn process_cpu_time(pid: u32) -> Option<Duration> {
    ticks_to_duration(pid, 11)
}

/// Time of the children that a process has waited for: `cutime` and `cstime`.
fn reaped_children_time(pid: u32) -> Option<Duration> {
    ticks_to_duration(pid, 13)
}

fn ticks_to_duration(pid: u32, first: usize) -> Option<Duration> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = text.rsplit_once(") ")?.1.split(' ').collect();
    let ticks = |at: usize| fields.get(at)?.parse::<u32>().ok();
    Some(TICK * (ticks(first)? + ticks(first + 1)?))
}
