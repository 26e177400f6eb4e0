//! Monitors GPUs through NVML during the tests: processes, clocks, power, temperature, Xids and
//! counters.

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

use crate::local_engine::LocalEngine;

/// Signals recorded over time.
pub(super) const SERIES: [Signal; 4] =
    [Signal::GpuPower, Signal::GpuTemperature, Signal::GpuClockSm, Signal::GpuClockReasons];

/// Cumulative counters, read before and after the tests: uncorrectable ECC errors, and throttled
/// seconds for reasons that a healthy GPU in a healthy server does not show.
pub(super) const COUNTERS: [Signal; 4] = [
    Signal::GpuEccUncorrected,
    Signal::GpuThrottleSwThermal,
    Signal::GpuThrottleHwThermal,
    Signal::GpuThrottlePowerBrake,
];

#[derive(Debug, Clone, Default)]
pub(super) struct GpuTelemetry {
    /// Seconds since the start, and value.
    pub(super) series: BTreeMap<Signal, Vec<(f64, f64)>>,
    /// Growth of the counters. A counter without a second reading is left out.
    pub(super) grown: BTreeMap<Signal, f64>,
    first: BTreeMap<Signal, f64>,
    pub(super) xids: Vec<u64>,
    /// All processes that were on the GPU during the tests.
    users: BTreeSet<u32>,
    /// Processes on the GPU after the tests; `None` if unknown.
    users_after: Option<BTreeSet<u32>>,
}

impl GpuTelemetry {
    /// Processes other than `ours` that were on the GPU. `Err` if they are unknown.
    pub(super) fn disturbers(&self, ours: &BTreeSet<u32>) -> Result<BTreeSet<u32>, &'static str> {
        let after =
            self.users_after.as_ref().ok_or("NVML did not report the processes at the end")?;
        let mut others: BTreeSet<u32> = after.difference(ours).copied().collect();
        // In a container, NVML may report PIDs of another namespace, and the processes of this
        // program then look like other processes. Count processes during the tests only if NVML
        // listed one of this program's PIDs.
        if !self.users.is_disjoint(ours) {
            others.extend(self.users.difference(ours));
        }
        Ok(others)
    }
}

/// A finding on a GPU before it was tested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PriorFinding {
    pub(super) text: String,
    pub(super) action: Action,
}

impl PriorFinding {
    /// The recommended action, as the agent would report it.
    pub(super) fn remedy(&self) -> String {
        format!("{}, then test it again; see the row for the reason", self.action)
    }
}

#[derive(Default)]
struct MonitorState {
    /// Whether each tier has been read.
    tiers: [bool; 4],
    /// Findings before the tests by GPU; `None` until every tier was read once.
    before: Option<BTreeMap<String, Vec<PriorFinding>>>,
    processes: Option<Vec<NvmlProcess>>,
    gpus: BTreeMap<String, GpuTelemetry>,
    failure: Option<String>,
}

/// A background thread that polls NVML until it is dropped.
pub(super) struct NvmlMonitor {
    state: Arc<(Mutex<MonitorState>, Condvar)>,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
    library: PathBuf,
}

/// Timeout for the findings before the tests and for the last read of the counters.
const LAST_READ_TIMEOUT: Duration = Duration::from_secs(5);

impl NvmlMonitor {
    pub(super) fn start(library: &Path) -> Self {
        let state: Arc<(Mutex<MonitorState>, Condvar)> = Arc::default();
        let stop = Arc::new(AtomicBool::new(false));
        let library_path: OsString = library.into();
        let settings = WatchSettings::new(move || {
            let mut command = Command::new("/proc/self/exe");
            command.args(["probe", "watch", "--library"]).arg(&library_path);
            command
        });
        let (shared, should_stop) = (Arc::clone(&state), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            let started = Instant::now();
            let mut engine = LocalEngine::new();
            watch::run(settings, &should_stop, &mut |message| {
                let (state, changed) = &*shared;
                let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
                match message {
                    ProbeEvent::Report(report) => {
                        state.record_prior_findings(&report, engine.as_mut());
                        state.record(report, started.elapsed().as_secs_f64());
                    }
                    ProbeEvent::Hung { during, .. } => {
                        state.failure = Some(format!("NVML hangs in {during}"));
                    }
                    ProbeEvent::Died { why } | ProbeEvent::NoLibrary { why } => {
                        state.failure = Some(why);
                    }
                    ProbeEvent::Refused { error } => state.failure = Some(error.to_string()),
                    ProbeEvent::Recovered => state.failure = None,
                    // The call may still return.
                    ProbeEvent::Waiting { .. } => {}
                }
                changed.notify_all();
            });
        });
        Self { state, stop, thread: Some(thread), library: library.to_owned() }
    }

    /// Processes on the GPUs. Waits for up to `timeout`. If they are unknown, returns the reason as
    /// `Err`.
    pub(super) fn processes(&self, timeout: Duration) -> Result<Vec<NvmlProcess>, String> {
        let guard = self.wait_while(timeout, |state| state.processes.is_none());
        match (&guard.processes, &guard.failure) {
            (Some(processes), _) => Ok(processes.clone()),
            (None, Some(why)) => Err(why.clone()),
            (None, None) => Err(format!("NVML did not answer within {} s", timeout.as_secs())),
        }
    }

    /// Findings on a GPU before its tests; waits for up to [`LAST_READ_TIMEOUT`].
    pub(super) fn prior_findings(&self, uuid: &str) -> Vec<PriorFinding> {
        let guard = self.wait_while(LAST_READ_TIMEOUT, |state| state.before.is_none());
        guard.before.as_ref().and_then(|all| all.get(uuid)).cloned().unwrap_or_default()
    }

    /// Waits while the state `is_incomplete`, until NVML fails or the timeout expires.
    fn wait_while(
        &self,
        timeout: Duration,
        is_incomplete: impl Fn(&MonitorState) -> bool,
    ) -> MutexGuard<'_, MonitorState> {
        let (state, changed) = &*self.state;
        let guard = state.lock().unwrap_or_else(PoisonError::into_inner);
        let should_wait =
            |state: &mut MonitorState| is_incomplete(state) && state.failure.is_none();
        let waited = changed.wait_timeout_while(guard, timeout, should_wait);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Telemetry of a GPU so far.
    fn telemetry(&self, uuid: &str) -> GpuTelemetry {
        let state = self.state.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.gpus.get(uuid).cloned().unwrap_or_default()
    }

    /// Telemetry of a GPU after its tests. Counters and processes are polled rarely, so they are
    /// read once more by a new monitor, because its child process reports everything at once.
    pub(super) fn finish(&self, uuid: &str) -> GpuTelemetry {
        let mut telemetry = self.telemetry(uuid);
        let last = Self::start(&self.library);
        let guard = last.wait_while(LAST_READ_TIMEOUT, |state| {
            let gpu = state.gpus.get(uuid);
            let has = |signal: &Signal| gpu.is_some_and(|gpu| gpu.first.contains_key(signal));
            state.processes.is_none() || !telemetry.first.keys().all(has)
        });
        let now = guard.gpus.get(uuid).cloned().unwrap_or_default();
        telemetry.users_after = guard.processes.is_some().then_some(now.users);
        for (signal, first) in &telemetry.first {
            if let Some(last) = now.first.get(signal) {
                telemetry.grown.insert(*signal, last - first);
            }
        }
        telemetry
    }
}

impl MonitorState {
    /// Records findings until every tier was read once. A tier is a group of signals that are read
    /// equally often. Later findings are caused by the tests.
    fn record_prior_findings(&mut self, report: &ProbeReport, engine: Option<&mut LocalEngine>) {
        let Some(engine) = engine.filter(|_| self.before.is_none()) else { return };
        let inventory = report.inventory.as_ref();
        engine.observe(Timestamp::now(), inventory, &report.samples, &report.xids);
        // The inventory arrives before the first samples. A report without samples of GPUs
        // therefore does not mean that its tier was read.
        if report.samples.iter().any(|sample| sample.subject.gpu().is_some()) {
            self.tiers[report.tier as usize] = true;
        }
        if !self.tiers.iter().all(|is_read| *is_read) {
            return;
        }
        let mut before: BTreeMap<String, Vec<PriorFinding>> = BTreeMap::new();
        // The limit is the same as in the verification of a node: a finding is serious if it is
        // critical or needs a reset.
        let serious = engine.faults().filter(|finding| {
            finding.severity >= Severity::Critical || finding.action >= Action::ResetGpu
        });
        for (gpu, finding) in serious.filter_map(|finding| Some((finding.subject.gpu()?, finding)))
        {
            let prior = PriorFinding { text: finding.text.clone(), action: finding.action };
            before.entry(gpu.0.clone()).or_default().push(prior);
        }
        self.before = Some(before);
    }

    fn record(&mut self, report: ProbeReport, at_s: f64) {
        self.failure = None;
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
            let telemetry = self.gpus.entry(gpu.0).or_default();
            if SERIES.contains(&sample.signal) {
                telemetry.series.entry(sample.signal).or_default().push((at_s, value));
            }
            if COUNTERS.contains(&sample.signal) {
                telemetry.first.entry(sample.signal).or_insert(value);
            }
        }
    }
}

impl Drop for NvmlMonitor {
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
    fn other_processes_on_the_gpu_are_listed() {
        let set = |pids: &[u32]| pids.iter().copied().collect::<BTreeSet<u32>>();
        let telemetry = |users: &[u32], after: Option<&[u32]>| GpuTelemetry {
            users: set(users),
            users_after: after.map(set),
            ..GpuTelemetry::default()
        };
        let ours = set(&[10]);
        assert_eq!(telemetry(&[10], Some(&[])).disturbers(&ours), Ok(set(&[])));
        assert_eq!(
            telemetry(&[10, 7], Some(&[])).disturbers(&ours),
            Ok(set(&[7])),
            "the process came and went"
        );
        assert_eq!(telemetry(&[10], Some(&[8])).disturbers(&ours), Ok(set(&[8])));
        assert_eq!(
            telemetry(&[99], Some(&[])).disturbers(&ours),
            Ok(set(&[])),
            "our own process in another PID namespace"
        );
        assert!(telemetry(&[10], None).disturbers(&ours).is_err());
    }
}
