//! NVML while a GPU works: who uses it, its clocks, power and temperature, and what goes wrong meanwhile.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use farrier_facts::node::Reading;
use farrier_fleet::health::{Signal, Subject};
use farrier_hardware::nvml::watch::{self, GpuProcess, ProbeReport, ProbeSaid, WatchSettings};

/// What is kept over time.
pub(super) const SERIES: [Signal; 4] =
    [Signal::GpuPower, Signal::GpuTemperature, Signal::GpuClockSm, Signal::GpuClockReasons];

/// What was seen of one GPU.
#[derive(Debug, Clone, Default)]
pub(super) struct Watched {
    /// Seconds since the beginning, and the value then.
    pub(super) series: BTreeMap<Signal, Vec<(f64, f64)>>,
    /// Memory errors that could not be corrected: before and after. None: they were not read twice, so nobody knows
    /// whether there were any meanwhile.
    pub(super) uncorrected: Option<(f64, f64)>,
    first_uncorrected: Option<f64>,
    pub(super) xids: Vec<u64>,
}

#[derive(Default)]
struct Seen {
    processes: Option<Vec<GpuProcess>>,
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
            watch::run(settings, &ends, &mut |said| {
                let (seen, news) = &*told;
                let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                match said {
                    ProbeSaid::Report(report) => seen.take(report, begun.elapsed().as_secs_f64()),
                    ProbeSaid::Hung { during, .. } => {
                        seen.silent = Some(format!("NVML hangs in {during}"));
                    }
                    ProbeSaid::Died { why } | ProbeSaid::NoLibrary { why } => {
                        seen.silent = Some(why);
                    }
                    ProbeSaid::Refused { error } => seen.silent = Some(error),
                    ProbeSaid::Back => seen.silent = None,
                }
                news.notify_all();
            });
        });
        Self { seen, stop, thread: Some(thread), library: library.to_owned() }
    }

    /// Who uses GPUs; waited for, but not for ever. `Err`: nobody can say, and why.
    pub(super) fn processes(&self, patience: Duration) -> Result<Vec<GpuProcess>, String> {
        let (seen, news) = &*self.seen;
        let guard = seen.lock().unwrap_or_else(PoisonError::into_inner);
        let is_early = |seen: &mut Seen| seen.processes.is_none() && seen.silent.is_none();
        let (guard, _) = news
            .wait_timeout_while(guard, patience, is_early)
            .unwrap_or_else(PoisonError::into_inner);
        match (&guard.processes, &guard.silent) {
            (Some(processes), _) => Ok(processes.clone()),
            (None, Some(why)) => Err(why.clone()),
            (None, None) => Err(format!("NVML did not say within {} s", patience.as_secs())),
        }
    }

    /// What was seen of a GPU so far.
    fn of(&self, uuid: &str) -> Watched {
        let seen = self.seen.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.gpus.get(uuid).cloned().unwrap_or_default()
    }

    /// What was seen of a GPU until now, when its tests have ended. Memory errors are counted seldom, so that they are
    /// counted once more; a child that has just started tells everything at once.
    pub(super) fn whole(&self, uuid: &str) -> Watched {
        let mut watched = self.of(uuid);
        if watched.first_uncorrected.is_some() {
            let last = Self::start(&self.library);
            let (seen, news) = &*last.seen;
            let guard = seen.lock().unwrap_or_else(PoisonError::into_inner);
            let count = |seen: &Seen| seen.gpus.get(uuid).and_then(|it| it.first_uncorrected);
            let is_early = |seen: &mut Seen| count(seen).is_none() && seen.silent.is_none();
            let (guard, _) = news
                .wait_timeout_while(guard, COUNT_PATIENCE, is_early)
                .unwrap_or_else(PoisonError::into_inner);
            watched.uncorrected = watched.first_uncorrected.zip(count(&guard));
        }
        watched
    }
}

impl Seen {
    fn take(&mut self, report: ProbeReport, at_s: f64) {
        self.silent = None;
        if let Some(processes) = report.processes {
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
            if sample.signal == Signal::GpuEccUncorrected {
                watched.first_uncorrected.get_or_insert(value);
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
