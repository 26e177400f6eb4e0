//! The agent's own health: clocks, collectors, kernel log, disk. The agent reports it as ordinary
//! signals, so that rules can use it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use farrier_facts::node::{ReadError, Reading};
use farrier_fleet::fleet::coverage::GapSource;
use farrier_fleet::health::{Moment, Sample, Signal, Subject};
use serde::{Deserialize, Serialize};

use super::message::{Collector, ConfigRejected, NvmlUnavailable};
use crate::config::{Config, Tiers, duration};

/// If wall time and steady time have diverged by more than this since the last comparison, the wall
/// clock was stepped. NTP slews the clock by less.
const STEP_S: f64 = 2.0;

/// How long the wall clock counts as suspect after a step or after the start. In this time, nothing
/// expires by wall time.
const SUSPECT_MS: i64 = 60_000;

/// A collector counts as stalled if it has sent no message for this many periods. It gets at least
/// `OVERDUE_MS_MIN`, because a collector may be late on a busy node.
const PERIODS: i64 = 3;
const OVERDUE_MS_MIN: i64 = 3000;

/// State of a collector, for `farrier status`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CollectorState {
    pub name: String,
    pub period_s: f64,
    /// Seconds since the last message. `None` if there was none.
    pub age_s: Option<f64>,
    /// `true` if the next message is overdue, or the collector's thread has ended.
    pub stalled: bool,
}

/// A source that the agent cannot read, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoverageLoss {
    /// `nvml`, `gpus`, `gpu-signals`, `kernel-log`, `journal`, `collectors`, `monitor`, `agent`.
    pub source: String,
    pub reason: String,
}

#[derive(Debug)]
pub(super) enum KernelLogState {
    NotTried,
    Read,
    Unreadable {
        /// The reader's error text, for `farrier status`.
        why: String,
    },
}

/// Why findings cannot be written to disk.
#[derive(Debug, thiserror::Error)]
pub(super) enum WriteError {
    /// The journal could not be opened for writing.
    #[error("the disk is full or read-only")]
    NotOpen,
    #[error(transparent)]
    Write(#[from] io::Error),
}

#[derive(Debug)]
pub(super) struct SelfMonitor {
    tiers: Tiers,
    /// Deadline of NVML calls. A slower call is reported as a hung driver.
    nvml_deadline_ms: i64,
    started_ms: i64,
    last: Option<Moment>,
    stepped_s: f64,
    stepped_ms: Option<i64>,
    heartbeat_ms: BTreeMap<Collector, i64>,
    /// Collectors whose thread has ended.
    pub(super) ended: BTreeSet<Collector>,
    /// Why NVML does not answer. While this is set, the NVML collectors are not reported as
    /// stalled, because the cause is already reported.
    pub(super) nvml_unavailable: Option<NvmlUnavailable>,
    /// Whether `CollectorMessage::NvmlUnavailable` has arrived, and no `NvmlRecovered` after it.
    pub(super) nvml_failed: bool,
    pub(super) kernel_log: KernelLogState,
    pub(super) lines_lost: u64,
    pub(super) writable: Result<(), WriteError>,
    /// `Err` while the file on disk is invalid and the previous configuration stays in force.
    pub(super) config: Result<(), ConfigRejected>,
    pub(super) sink_ok: bool,
    pub(super) messages_dropped: u64,
    pub(super) findings_dropped: u64,
}

impl SelfMonitor {
    pub(super) fn new(config: &Config, now: Moment) -> Self {
        let deadline = duration(config.probe.deadline_s);
        Self {
            tiers: config.tiers,
            nvml_deadline_ms: i64::try_from(deadline.as_millis()).unwrap_or(i64::MAX / 2),
            started_ms: now.steady_ms,
            last: None,
            stepped_s: 0.0,
            stepped_ms: None,
            heartbeat_ms: BTreeMap::new(),
            ended: BTreeSet::new(),
            nvml_unavailable: Some(NvmlUnavailable::NotYet),
            nvml_failed: false,
            kernel_log: KernelLogState::NotTried,
            lines_lost: 0,
            writable: Ok(()),
            config: Ok(()),
            sink_ok: true,
            messages_dropped: 0,
            findings_dropped: 0,
        }
    }

    pub(super) fn record_heartbeat(&mut self, collector: Collector, now: Moment) {
        self.heartbeat_ms.insert(collector, now.steady_ms);
    }

    /// Compares wall and steady time. Returns the size of a step in seconds.
    pub(super) fn compare_clocks(&mut self, now: Moment) -> Option<f64> {
        let last = self.last.replace(now)?;
        #[expect(clippy::cast_precision_loss, reason = "milliseconds between two ticks")]
        let steady_s = (now.steady_ms - last.steady_ms) as f64 / 1000.0;
        let step_s = now.wall.duration_since(last.wall).as_secs_f64() - steady_s;
        if step_s.abs() <= STEP_S {
            return None;
        }
        self.stepped_s += step_s.abs();
        self.stepped_ms = Some(now.steady_ms);
        Some(step_s)
    }

    /// `true` if the wall clock stepped recently, or the agent just started.
    pub(super) fn is_clock_suspect(&self, now: Moment) -> bool {
        now.steady_ms - self.stepped_ms.unwrap_or(self.started_ms) < SUSPECT_MS
    }

    /// The signals about the agent itself.
    pub(super) fn samples(&self, now: Moment) -> Vec<Sample> {
        let flag = |flag: bool| Reading::Value(f64::from(u8::from(flag)));
        #[expect(clippy::cast_precision_loss, reason = "counters far below 2^52")]
        let count = |count: u64| Reading::Value(count as f64);
        let stalled = self.stalled(now).count();
        let mut values = vec![
            (Signal::AgentKernelLinesLost, count(self.lines_lost)),
            (Signal::AgentLogWritable, flag(self.writable.is_ok())),
            (Signal::AgentClockSteps, Reading::Value(self.stepped_s)),
            (Signal::AgentJobMessagesDropped, count(self.messages_dropped)),
            (Signal::AgentFindingsDropped, count(self.findings_dropped)),
            (Signal::AgentCollectorsStalled, count(stalled as u64)),
            (Signal::AgentConfigGood, flag(self.config.is_ok())),
            (Signal::AgentSinkGood, flag(self.sink_ok)),
        ];
        match &self.kernel_log {
            KernelLogState::NotTried => {}
            KernelLogState::Read => values.push((Signal::AgentKernelLog, flag(true))),
            KernelLogState::Unreadable { .. } => {
                values.push((Signal::AgentKernelLog, flag(false)));
            }
        }
        let note = |signal| match &self.config {
            Err(err) if signal == Signal::AgentConfigGood => Some(err.to_string()),
            _ => None,
        };
        let sample = |(signal, reading)| Sample {
            subject: Subject::Agent,
            signal,
            reading,
            note: note(signal),
        };
        values.into_iter().map(sample).collect()
    }

    /// State of every collector.
    pub(super) fn collectors(&self, now: Moment) -> Vec<CollectorState> {
        Collector::ALL.iter().map(|collector| self.collector(*collector, now)).collect()
    }

    fn collector(&self, collector: Collector, now: Moment) -> CollectorState {
        let last_ms = self.heartbeat_ms.get(&collector);
        #[expect(clippy::cast_precision_loss, reason = "milliseconds since the start")]
        let age_s = last_ms.map(|last_ms| (now.steady_ms - last_ms) as f64 / 1000.0);
        CollectorState {
            name: collector.to_string(),
            period_s: collector.period(&self.tiers).as_secs_f64(),
            age_s,
            stalled: self.is_stalled(collector, now),
        }
    }

    /// Collectors whose next message is overdue, or whose thread has ended.
    fn stalled(&self, now: Moment) -> impl Iterator<Item = Collector> {
        Collector::ALL.into_iter().filter(move |collector| self.is_stalled(*collector, now))
    }

    fn is_stalled(&self, collector: Collector, now: Moment) -> bool {
        let period = collector.period(&self.tiers);
        let period_ms = i64::try_from(period.as_millis()).unwrap_or(i64::MAX / PERIODS);
        let last_ms = self.heartbeat_ms.get(&collector).copied();
        let silent_ms = now.steady_ms - last_ms.unwrap_or(self.started_ms);
        let deadline_ms = if collector.is_nvml() { self.nvml_deadline_ms } else { 0 };
        let overdue = silent_ms > (PERIODS * period_ms).max(OVERDUE_MS_MIN) + deadline_ms;
        let explained = collector.is_nvml() && self.nvml_unavailable.is_some();
        (overdue || self.ended.contains(&collector)) && !explained
    }

    /// Two flags: whether NVML can be read now, and whether the kernel log can be read now.
    pub(super) fn readable_sources(&self) -> (bool, bool) {
        (self.nvml_unavailable.is_none(), matches!(self.kernel_log, KernelLogState::Read))
    }

    /// The same sources as [`Self::coverage_losses`], but without collectors, in the form that the
    /// server needs.
    pub(super) fn unread_sources(&self) -> Vec<(GapSource, ReadError)> {
        let unavailable = |detail: String| ReadError::Unavailable { detail: detail.into() };
        let nvml = self.nvml_unavailable.as_ref().map(|why| (GapSource::Nvml, why.read_error()));
        let kernel_log = match &self.kernel_log {
            KernelLogState::NotTried => Some(ReadError::NotReadYet),
            KernelLogState::Unreadable { why } => Some(unavailable(why.clone())),
            KernelLogState::Read => None,
        };
        let journal = self.writable.as_ref().err().map(|err| match err {
            WriteError::NotOpen => unavailable(err.to_string()),
            WriteError::Write(err) => err
                .raw_os_error()
                .map_or_else(|| unavailable(err.to_string()), |errno| ReadError::Os { errno }),
        });
        nvml.into_iter()
            .chain(kernel_log.map(|cause| (GapSource::KernelLog, cause)))
            .chain(journal.map(|cause| (GapSource::Journal, cause)))
            .collect()
    }

    /// The sources that the agent cannot read now.
    pub(super) fn coverage_losses(&self, now: Moment) -> Vec<CoverageLoss> {
        let mut losses = Vec::new();
        let mut add = |source: &str, reason: String| {
            losses.push(CoverageLoss { source: source.to_owned(), reason });
        };
        if let Some(why) = &self.nvml_unavailable {
            add("nvml", format!("NVML: {why}"));
        }
        match &self.kernel_log {
            KernelLogState::NotTried => {
                add("kernel-log", "the kernel log has not been read yet".to_owned());
            }
            KernelLogState::Unreadable { why } => add("kernel-log", why.clone()),
            KernelLogState::Read => {}
        }
        if let Err(err) = &self.writable {
            add("journal", format!("findings cannot be written to disk: {err}"));
        }
        let stalled: Vec<String> =
            self.stalled(now).map(|collector| collector.to_string()).collect();
        if !stalled.is_empty() {
            add("collectors", format!("no messages from {}", stalled.join(", ")));
        }
        losses
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    fn at(steady_ms: i64, wall_ms: i64) -> Moment {
        let wall = Timestamp::from_millisecond(1_800_000_000_000 + wall_ms).unwrap();
        Moment { steady_ms, wall }
    }

    fn self_monitor() -> SelfMonitor {
        SelfMonitor::new(&Config::default(), at(0, 0))
    }

    #[test]
    fn a_clock_step_is_detected_in_both_directions_and_drift_is_ignored() {
        let mut monitor = self_monitor();
        assert_eq!(monitor.compare_clocks(at(0, 0)), None);
        assert_eq!(monitor.compare_clocks(at(1000, 1500)), None);
        assert!(!monitor.is_clock_suspect(at(60_000, 60_000)), "the agent has run for a minute");
        assert_eq!(monitor.compare_clocks(at(2000, 3_602_500)), Some(3600.0));
        assert!(monitor.is_clock_suspect(at(61_999, 3_662_500)));
        assert!(!monitor.is_clock_suspect(at(62_000, 3_662_501)));
        assert_eq!(monitor.compare_clocks(at(3000, 3500)), Some(-3600.0));
        let steps = monitor.samples(at(3000, 3500)).into_iter();
        let mut steps = steps.filter(|sample| sample.signal == Signal::AgentClockSteps);
        assert_eq!(steps.next().unwrap().reading, Reading::Value(7200.0));
    }

    #[test]
    fn a_collector_stalls_after_three_periods_unless_nvml_is_unavailable() {
        let mut monitor = self_monitor();
        let stalled = |monitor: &SelfMonitor, now: Moment| -> Vec<String> {
            let states = monitor.collectors(now).into_iter();
            states.filter(|state| state.stalled).map(|state| state.name).collect()
        };
        monitor.record_heartbeat(Collector::HostFast, at(5000, 0));
        assert!(stalled(&monitor, at(3000, 0)).is_empty());
        assert!(stalled(&monitor, at(8000, 0)).is_empty());
        assert_eq!(stalled(&monitor, at(8001, 0)), ["host-fast"]);
        assert_eq!(monitor.coverage_losses(at(8001, 0)).len(), 3);
        monitor.nvml_unavailable = None;
        monitor.record_heartbeat(Collector::NvmlFast, at(1, 0));
        // NVML collectors have more time, because a hung call is reported at its deadline.
        assert_eq!(stalled(&monitor, at(8001, 0)), ["host-fast"]);
        assert_eq!(stalled(&monitor, at(8002, 0)), ["nvml-fast", "host-fast"]);
    }

    #[test]
    fn collectors_without_heartbeat_or_thread_are_stalled() {
        let mut monitor = self_monitor();
        monitor.nvml_unavailable = None;
        for collector in Collector::ALL {
            monitor.record_heartbeat(collector, at(1_000_000, 0));
        }
        let stalled = |monitor: &SelfMonitor, now: i64| -> Vec<String> {
            let states = monitor.collectors(at(now, 0)).into_iter();
            states.filter(|state| state.stalled).map(|state| state.name).collect()
        };
        assert!(stalled(&monitor, 1_001_000).is_empty());
        monitor.ended.insert(Collector::Check);
        assert_eq!(stalled(&monitor, 1_001_000), ["check"]);
        monitor.ended.clear();
        let late = stalled(&monitor, 1_031_000);
        assert!(late.contains(&"kernel".to_owned()) && !late.contains(&"check".to_owned()));
        assert!(stalled(&monitor, 1_181_000).contains(&"check".to_owned()));
        let hours = 3 * 3_600_000;
        assert!(!stalled(&monitor, 1_000_000 + hours).contains(&"host-rare".to_owned()));
        let late = stalled(&monitor, 1_000_000 + hours + 60_000);
        assert!(["host-rare", "nvml-rare"].iter().all(|name| late.contains(&(*name).to_owned())));
    }
}
