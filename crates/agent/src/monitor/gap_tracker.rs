//! Tracks open coverage gaps for the server, and since when each gap is open.
//!
//! A gap is reported only after some seconds, because every change of the report becomes an entry
//! in the server's log. While the agent starts, its coverage counts as unknown.

use std::collections::BTreeMap;
use std::sync::Arc;

use farrier_facts::node::ReadError;
use farrier_fleet::fleet::coverage::{GapNames, GapSource};
use farrier_fleet::health::{CoverageGap, Signal, Subject};

use super::{CollectorState, SkippedCheck};
use crate::coverage;
use crate::state::Values;

/// A gap that closes within this time is not reported.
const SETTLE_MS: i64 = 10_000;

/// How long the coverage counts as unknown after a start of the agent. Most collectors run within
/// seconds.
const STARTUP_MS: i64 = 30_000;

/// A coverage gap, and since when it is open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedGap {
    pub subject: Subject,
    pub source: GapSource,
    pub cause: ReadError,
    /// Milliseconds since the node started.
    pub since_ms: i64,
}

/// The inputs from which the agent determines its coverage gaps.
pub(super) struct CoverageInputs<'a> {
    /// Sources from which nothing can be read, such as NVML or the kernel log.
    pub(super) sources: Vec<(GapSource, ReadError)>,
    pub(super) values: &'a Values,
    /// Rule code, subject and gap of the rules that cannot run.
    pub(super) rules: &'a [(String, Subject, CoverageGap)],
    pub(super) collectors: &'a [CollectorState],
    /// `None` before the first check.
    pub(super) skipped: Option<&'a [SkippedCheck]>,
}

/// Identifies a gap by its subject and its source. For a check, the code of the check is added.
type GapKey = (Subject, &'static str, Option<String>);

#[derive(Debug, Default)]
pub(super) struct GapTracker {
    open: BTreeMap<GapKey, ObservedGap>,
}

impl GapTracker {
    /// Returns the gaps to report. `None` if the agent started less than half a minute ago.
    pub(super) fn update(
        &mut self,
        inputs: &CoverageInputs<'_>,
        now_ms: i64,
        up_ms: i64,
    ) -> Option<Arc<[ObservedGap]>> {
        let mut open = BTreeMap::new();
        for (subject, source, cause) in gaps(inputs) {
            let check = match &source {
                GapSource::Check { check } => Some(check.clone()),
                _ => None,
            };
            let key = (subject.clone(), source.code(), check);
            let since_ms = self.open.get(&key).map_or(now_ms, |gap| gap.since_ms);
            open.insert(key, ObservedGap { subject, source, cause, since_ms });
        }
        self.open = open;
        let lasting = self.open.values().filter(|gap| now_ms - gap.since_ms >= SETTLE_MS);
        (up_ms >= STARTUP_MS).then(|| lasting.cloned().collect())
    }
}

fn gaps(inputs: &CoverageInputs<'_>) -> Vec<(Subject, GapSource, ReadError)> {
    let sources = inputs.sources.iter().cloned();
    let mut gaps: Vec<_> = sources.map(|(source, cause)| (Subject::Node, source, cause)).collect();
    gaps.extend(collectors(inputs.collectors));
    match inputs.skipped {
        None => gaps.push((Subject::Node, GapSource::NodeCheck, ReadError::NotReadYet)),
        Some(skipped) => gaps.extend(skipped.iter().map(|skipped| {
            let source = GapSource::Check { check: skipped.code.clone() };
            let cause = ReadError::Unavailable { detail: skipped.reason.clone().into() };
            (Subject::Node, source, cause)
        })),
    }
    gaps.extend(unread_gpus(inputs.values));
    gaps.extend(unread_signals(inputs));
    gaps
}

/// Collectors that have not run, and collectors that no longer run.
fn collectors(states: &[CollectorState]) -> Option<(Subject, GapSource, ReadError)> {
    let missing = || states.iter().filter(|state| state.stalled || state.age_s.is_none());
    let cause = if missing().next()?.stalled {
        ReadError::Unavailable { detail: "no messages from them".into() }
    } else {
        ReadError::NotReadYet
    };
    let names = GapNames::new(missing().map(|state| state.name.clone()));
    Some((Subject::Agent, GapSource::Collectors(names), cause))
}

/// GPUs without any reading.
fn unread_gpus(values: &Values) -> Vec<(Subject, GapSource, ReadError)> {
    let mut gaps = Vec::new();
    if let Some((opened, on_bus)) = coverage::unopened_gpus(values) {
        let source = GapSource::Gpus { opened, on_bus };
        gaps.push((Subject::Node, source, ReadError::DeviceNotOpened));
    }
    let unread = coverage::silent_gpus(values)
        .map(|gpu| (Subject::Gpu(gpu.uuid.clone()), GapSource::Gpu, ReadError::DeviceNotOpened));
    gaps.extend(unread);
    gaps
}

/// Signals that cannot be read, one gap per component. The signals of a link count for its GPU.
fn unread_signals(inputs: &CoverageInputs<'_>) -> Vec<(Subject, GapSource, ReadError)> {
    let mut unread: BTreeMap<Subject, BTreeMap<Signal, ReadError>> = BTreeMap::new();
    let mut without_peers: BTreeMap<Subject, ReadError> = BTreeMap::new();
    for (gpu, signals) in coverage::unreadable_signals(inputs.values) {
        let signals = signals.into_iter().map(|(signal, why)| (signal, stable(why)));
        unread.entry(Subject::Gpu(gpu.clone())).or_default().extend(signals);
    }
    let is_known = |subject: &Subject| {
        subject.gpu().is_some_and(|gpu| coverage::has_finding_or_is_silent(inputs.values, gpu))
    };
    for (_, subject, gap) in inputs.rules.iter().filter(|(_, subject, _)| !is_known(subject)) {
        let component =
            subject.gpu().map_or_else(|| subject.clone(), |gpu| Subject::Gpu(gpu.clone()));
        let (signal, cause) = match gap {
            CoverageGap::NeverRead(signal) => (*signal, ReadError::NotReadYet),
            CoverageGap::Unreadable(signal, why) => (*signal, stable(why)),
            CoverageGap::PeersNotRead => {
                without_peers.insert(component, ReadError::NotReadSince);
                continue;
            }
        };
        unread.entry(component).or_default().entry(signal).or_insert(cause);
    }
    let gaps = unread.into_iter().filter_map(|(subject, signals)| {
        let cause = signals.values().next()?.clone();
        let names = GapNames::new(signals.keys().map(ToString::to_string));
        Some((subject, GapSource::Signals(names), cause))
    });
    let peers = without_peers.into_iter();
    gaps.chain(peers.map(|(subject, cause)| (subject, GapSource::Peers, cause))).collect()
}

/// The cause, without parameters that change while the gap lasts.
fn stable(cause: &ReadError) -> ReadError {
    match cause {
        ReadError::CallStuck { .. } => ReadError::CallStuck { avoid_s: None },
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use farrier_fleet::health::GpuUuid;

    use super::*;

    fn inputs(rules: &[(String, Subject, CoverageGap)]) -> CoverageInputs<'_> {
        static VALUES: std::sync::LazyLock<Values> = std::sync::LazyLock::new(Values::default);
        CoverageInputs {
            sources: Vec::new(),
            values: &VALUES,
            rules,
            collectors: &[],
            skipped: Some(&[]),
        }
    }

    fn power(subject: Subject, status: u32) -> (String, Subject, CoverageGap) {
        let gap = CoverageGap::Unreadable(Signal::GpuPower, ReadError::nvml(status));
        ("gpu.power".to_owned(), subject, gap)
    }

    fn gpu(name: &str) -> Subject {
        Subject::Gpu(GpuUuid(name.to_owned()))
    }

    #[test]
    fn a_gap_is_reported_after_ten_seconds_with_its_age() {
        let mut tracker = GapTracker::default();
        let mut at = |now_ms: i64, rules: &[_]| {
            let gaps = tracker.update(&inputs(rules), now_ms, now_ms).unwrap();
            gaps.iter().map(|gap| (gap.since_ms, gap.cause.clone())).collect::<Vec<_>>()
        };
        assert_eq!(at(100_000, &[power(gpu("a"), 999)]), []);
        assert_eq!(at(109_000, &[power(gpu("a"), 999)]), []);
        // The cause of the gap changes, but it is still the same gap.
        assert_eq!(at(110_000, &[power(gpu("a"), 15)]), [(100_000, ReadError::nvml(15))]);
        assert_eq!(at(111_000, &[]), []);
        assert_eq!(at(112_000, &[power(gpu("a"), 999)]), []);
    }

    #[test]
    fn the_coverage_is_unknown_while_the_agent_starts() {
        let mut tracker = GapTracker::default();
        let rules = [power(gpu("a"), 999)];
        assert_eq!(tracker.update(&inputs(&rules), 50_000, 0), None);
        assert_eq!(tracker.update(&inputs(&rules), 79_999, 29_999), None);
        let first = tracker.update(&inputs(&rules), 80_000, 30_000).unwrap();
        assert_eq!(first[0].since_ms, 50_000, "gaps from the start keep their age");
    }

    #[test]
    fn signals_of_one_component_are_one_gap_and_links_belong_to_their_gpu() {
        let mut tracker = GapTracker::default();
        let link = |link| Subject::Link { gpu: GpuUuid("a".to_owned()), link };
        let errors = |signal| CoverageGap::Unreadable(signal, ReadError::nvml(999));
        let nic = Subject::Nic { device: "mlx5_0".to_owned(), port: 1 };
        let rules = [
            power(gpu("a"), 999),
            ("link.down".to_owned(), link(0), errors(Signal::LinkActive)),
            ("link.down".to_owned(), link(1), errors(Signal::LinkActive)),
            ("nic.slow".to_owned(), nic.clone(), CoverageGap::PeersNotRead),
        ];
        let mut inputs = inputs(&rules);
        inputs.sources.push((GapSource::Nvml, ReadError::CallHung { call: "x".to_owned() }));
        inputs.skipped = None;
        tracker.update(&inputs, 0, 30_000);
        let gaps = tracker.update(&inputs, 10_000, 40_000).unwrap();
        let listed: Vec<_> =
            gaps.iter().map(|gap| (gap.subject.clone(), gap.source.to_string())).collect();
        assert_eq!(
            listed,
            [
                (Subject::Node, "the node check has not run".to_owned()),
                (Subject::Node, "NVML cannot be read".to_owned()),
                (gpu("a"), "gpu.power_w and link.active cannot be read".to_owned()),
                (nic, "its peers cannot be read".to_owned()),
            ]
        );
    }

    #[test]
    fn collectors_without_data_are_one_gap() {
        let state = |name: &str, age_s, stalled| CollectorState {
            name: name.to_owned(),
            period_s: 1.0,
            age_s,
            stalled,
        };
        let states = [
            state("nvml-fast", Some(1.0), false),
            state("host-fast", None, false),
            state("kernel", Some(90.0), true),
        ];
        let (subject, source, cause) = collectors(&states).unwrap();
        assert_eq!(subject, Subject::Agent);
        assert_eq!(source.to_string(), "no data from the collectors host-fast and kernel");
        assert_eq!(cause, ReadError::NotReadYet);
        assert_eq!(collectors(&states[..1]), None);
    }
}
