//! NVML while a GPU works: who uses it, its clocks, power and temperature, and what goes wrong meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use farrier_facts::node::Reading;
use farrier_fleet::health::{Action, Severity, Signal, Subject};
use farrier_hardware::nvml::watch::{self, NvmlProcess, ProbeEvent, ProbeReport, WatchSettings};
use jiff::Timestamp;

use crate::finder::Finder;

/// What is kept over time.
pub(super) const SERIES: [Signal; 4] =
    [Signal::GpuPower, Signal::GpuTemperature, Signal::GpuClockSm, Signal::GpuClockReasons];

/// What only grows: read before and after. Memory errors that could not be corrected, and the seconds for which clocks were
/// held down by what a healthy card in a healthy server does not meet.
pub(super) const COUNTERS: [Signal; 4] = [
    Signal::GpuEccUncorrected,
    Signal::GpuHeldSwThermal,
    Signal::GpuHeldHwThermal,
    Signal::GpuHeldPowerBrake,
];

/// What was seen of one GPU.
#[derive(Debug, Clone, Default)]
pub(super) struct Watched {
    /// Seconds since the beginning, and the value then.
    pub(super) series: BTreeMap<Signal, Vec<(f64, f64)>>,
    /// By how much counters have grown; one that was not read twice is not there, and nobody knows.
    pub(super) grown: BTreeMap<Signal, f64>,
    first: BTreeMap<Signal, f64>,
    pub(super) xids: Vec<u64>,
    /// Processes that were on it at any time.
    users: BTreeSet<u32>,
    /// Those that are on it after the tests. None: nobody can say.
    users_after: Option<BTreeSet<u32>>,
}

impl Watched {
    /// Processes other than `ours` that were on the GPU. `Err`: nobody can say.
    pub(super) fn disturbers(&self, ours: &BTreeSet<u32>) -> Result<BTreeSet<u32>, &'static str> {
        let after = self.users_after.as_ref().ok_or("NVML did not say who was on it at the end")?;
        let mut found: BTreeSet<u32> = after.difference(ours).copied().collect();
        // In a container NVML has other numbers for processes than we have: only if it knows ours by theirs do the
        // others mean something while ours were there.
        if !self.users.is_disjoint(ours) {
            found.extend(self.users.difference(ours));
        }
        Ok(found)
    }
}

/// What was found on a GPU before it was tested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pending {
    pub(super) what: String,
    pub(super) action: Action,
}

impl Pending {
    /// What to do about it, as the agent would have it done.
    pub(super) fn remedy(&self) -> String {
        format!("{}, then test it again; the row says why", self.action)
    }
}

#[derive(Default)]
struct Seen {
    /// Which tiers were read.
    tiers: [bool; 4],
    /// What was found before the tests, by GPU; none until all was read once.
    before: Option<BTreeMap<String, Vec<Pending>>>,
    processes: Option<Vec<NvmlProcess>>,
    gpus: BTreeMap<String, Watched>,
    silent: Option<String>,
}

/// A thread that watches until it is dropped.
pub(super) struct Watch {
    seen: Arc<(Mutex<Seen>, Condvar)>,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
    library: PathBuf,
}

/// How long the last count of memory errors may take.
const COUNT_PATIENCE: Duration = Duration::from_secs(5);

impl Watch {
    pub(super) fn start(library: &Path) -> Self {
        let seen: Arc<(Mutex<Seen>, Condvar)> = Arc::default();
        let stop = Arc::new(AtomicBool::new(false));
        let asked: OsString = library.into();
        let settings = WatchSettings::new(move || {
            let mut command = Command::new("/proc/self/exe");
            command.args(["probe", "watch", "--library"]).arg(&asked);
            command
        });
        let (told, ends) = (Arc::clone(&seen), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            let begun = Instant::now();
            let mut finder = Finder::new();
            watch::run(settings, &ends, &mut |said| {
                let (seen, news) = &*told;
                let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                match said {
                    ProbeEvent::Report(report) => {
                        seen.look(&report, finder.as_mut());
                        seen.take(report, begun.elapsed().as_secs_f64());
                    }
                    ProbeEvent::Hung { during, .. } => {
                        seen.silent = Some(format!("NVML hangs in {during}"));
                    }
                    ProbeEvent::Died { why } | ProbeEvent::NoLibrary { why } => {
                        seen.silent = Some(why);
                    }
                    ProbeEvent::Refused { error } => seen.silent = Some(error.to_string()),
                    ProbeEvent::Recovered => seen.silent = None,
                }
                news.notify_all();
            });
        });
        Self { seen, stop, thread: Some(thread), library: library.to_owned() }
    }

    /// Who uses GPUs; waited for, but not for ever. `Err`: nobody can say, and why.
    pub(super) fn processes(&self, patience: Duration) -> Result<Vec<NvmlProcess>, String> {
        let guard = self.waited(patience, |seen| seen.processes.is_none());
        match (&guard.processes, &guard.silent) {
            (Some(processes), _) => Ok(processes.clone()),
            (None, Some(why)) => Err(why.clone()),
            (None, None) => Err(format!("NVML did not say within {} s", patience.as_secs())),
        }
    }

    /// What was found on a GPU before its tests: waited for, but not for long.
    pub(super) fn before(&self, uuid: &str) -> Vec<Pending> {
        let guard = self.waited(COUNT_PATIENCE, |seen| seen.before.is_none());
        guard.before.as_ref().and_then(|all| all.get(uuid)).cloned().unwrap_or_default()
    }

    /// What was seen, when it is no longer too early, or nobody answers, or it took too long.
    fn waited(&self, patience: Duration, is_early: impl Fn(&Seen) -> bool) -> MutexGuard<'_, Seen> {
        let (seen, news) = &*self.seen;
        let guard = seen.lock().unwrap_or_else(PoisonError::into_inner);
        let waits = |seen: &mut Seen| is_early(seen) && seen.silent.is_none();
        let waited = news.wait_timeout_while(guard, patience, waits);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// What was seen of a GPU so far.
    fn of(&self, uuid: &str) -> Watched {
        let seen = self.seen.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.gpus.get(uuid).cloned().unwrap_or_default()
    }

    /// What was seen of a GPU until now, when its tests have ended. Counters and processes are read seldom, so that they are
    /// read once more; a child that has just started tells everything at once.
    pub(super) fn whole(&self, uuid: &str) -> Watched {
        let mut watched = self.of(uuid);
        let last = Self::start(&self.library);
        let guard = last.waited(COUNT_PATIENCE, |seen| {
            let known = seen.gpus.get(uuid);
            let has = |signal: &Signal| known.is_some_and(|it| it.first.contains_key(signal));
            seen.processes.is_none() || !watched.first.keys().all(has)
        });
        let now = guard.gpus.get(uuid).cloned().unwrap_or_default();
        watched.users_after = guard.processes.is_some().then_some(now.users);
        for (signal, first) in &watched.first {
            if let Some(last) = now.first.get(signal) {
                watched.grown.insert(*signal, last - first);
            }
        }
        watched
    }
}

impl Seen {
    /// Looks for what is wrong with GPUs until everything was read once; what comes later comes of the tests.
    fn look(&mut self, report: &ProbeReport, finder: Option<&mut Finder>) {
        let Some(finder) = finder.filter(|_| self.before.is_none()) else { return };
        let inventory = report.inventory.as_ref();
        finder.take(Timestamp::now(), inventory, &report.samples, &report.xids);
        // An inventory is told before anything is read.
        if report.samples.iter().any(|sample| sample.subject.gpu().is_some()) {
            self.tiers[report.tier as usize] = true;
        }
        if !self.tiers.iter().all(|is_read| *is_read) {
            return;
        }
        let mut before: BTreeMap<String, Vec<Pending>> = BTreeMap::new();
        // As a node is proven: nothing that is critical, nor what asks for a reset.
        let grave = finder
            .faults()
            .filter(|it| it.severity >= Severity::Critical || it.action >= Action::ResetGpu);
        for (gpu, finding) in grave.filter_map(|it| Some((it.subject.gpu()?, it))) {
            let pending = Pending { what: finding.text.clone(), action: finding.action };
            before.entry(gpu.0.clone()).or_default().push(pending);
        }
        self.before = Some(before);
    }

    fn take(&mut self, report: ProbeReport, at_s: f64) {
        self.silent = None;
        if let Some(processes) = report.processes {
            for process in &processes {
                self.gpus.entry(process.gpu.0.clone()).or_default().users.insert(process.pid);
            }
            self.processes = Some(processes);
        }
        for (gpu, xid) in report.xids {
            self.gpus.entry(gpu.0).or_default().xids.push(xid);
        }
        for sample in report.samples {
            let (Subject::Gpu(gpu), Reading::Value(value)) = (sample.subject, sample.reading)
            else {
                continue;
            };
            let watched = self.gpus.entry(gpu.0).or_default();
            if SERIES.contains(&sample.signal) {
                watched.series.entry(sample.signal).or_default().push((at_s, value));
            }
            if COUNTERS.contains(&sample.signal) {
                watched.first.entry(sample.signal).or_insert(value);
            }
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_else_was_on_the_gpu_is_named() {
        let set = |pids: &[u32]| pids.iter().copied().collect::<BTreeSet<u32>>();
        let of = |users: &[u32], after: Option<&[u32]>| Watched {
            users: set(users),
            users_after: after.map(set),
            ..Watched::default()
        };
        let ours = set(&[10]);
        assert_eq!(of(&[10], Some(&[])).disturbers(&ours), Ok(set(&[])));
        assert_eq!(of(&[10, 7], Some(&[])).disturbers(&ours), Ok(set(&[7])), "it came and went");
        assert_eq!(of(&[10], Some(&[8])).disturbers(&ours), Ok(set(&[8])));
        assert_eq!(
            of(&[99], Some(&[])).disturbers(&ours),
            Ok(set(&[])),
            "our own, by other numbers"
        );
        assert!(of(&[10], None).disturbers(&ours).is_err());
    }
}
