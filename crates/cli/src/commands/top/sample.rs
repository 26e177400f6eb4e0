//! The sample that is shown, in the same form for every source.

use std::collections::BTreeMap;
use std::time::Duration;

use farrier_agent::status::{NodeVerdict, StaleValue};
use farrier_facts::node::{ReadError, Reading};
use farrier_fleet::health::{Action, Finding, GpuIdentity, GpuUuid, Severity, Signal};
use jiff::Timestamp;
use serde::Serialize;

use super::freshness::{Freshness, Shown};
use super::limit::{self, LimitingFactor};

/// Version of the document printed by `--output json`. A new field does not change the version.
pub(super) const VERSION: u32 = 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum DataSource {
    /// NVML, queried by a child of this process.
    Nvml,
    /// The agent of this node.
    Agent,
}

/// The source does not answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct SourceOutage {
    pub(super) since: Timestamp,
    pub(super) reason: String,
    pub(super) hint: Option<String>,
}

/// NVML has not answered a request yet. The deadline of the request has not passed, so NVML may
/// still answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct PendingCall {
    pub(super) since: Timestamp,
    /// The call and its GPU. `None` before the first call is known.
    pub(super) call: Option<String>,
    /// NVML index of the GPU that the call is about.
    pub(super) gpu: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct NodeSample {
    pub(super) v: u32,
    pub(super) source: DataSource,
    pub(super) node: Option<String>,
    /// Time of the last values.
    pub(super) at: Timestamp,
    /// The agent's verdict.
    pub(super) verdict: Option<NodeVerdict>,
    pub(super) driver: Option<String>,
    pub(super) cuda: Option<String>,
    pub(super) outage: Option<SourceOutage>,
    pub(super) pending_call: Option<PendingCall>,
    pub(super) host: HostSample,
    pub(super) gpus: Vec<GpuSample>,
    /// `None` if unknown.
    pub(super) processes: Option<Vec<ProcessSample>>,
    /// `None` if they were never read.
    #[serde(skip)]
    pub(super) processes_freshness: Option<Freshness>,
    /// If the processes are stale, in printed documents.
    pub(super) processes_stale: Option<StaleValue>,
    /// `None` if the source evaluates no rules.
    pub(super) findings: Option<Vec<FindingSample>>,
    pub(super) jobs: Vec<JobSample>,
    pub(super) coverage_gaps: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct HostSample {
    /// Share of the CPU time of all cores.
    pub(super) cpu_ratio: Reading<f64>,
    /// Load average over 1, 5 and 15 minutes.
    pub(super) load: Reading<[f64; 3]>,
    pub(super) memory_total_bytes: Reading<f64>,
    pub(super) memory_used_bytes: Reading<f64>,
    pub(super) swap_used_bytes: Reading<f64>,
}

impl Default for HostSample {
    fn default() -> Self {
        let unread = || Reading::Unreadable(ReadError::NotReadYet);
        Self {
            cpu_ratio: unread(),
            load: Reading::Unreadable(ReadError::NotReadYet),
            memory_total_bytes: unread(),
            memory_used_bytes: unread(),
            swap_used_bytes: unread(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct GpuSample {
    pub(super) identity: GpuIdentity,
    /// By signal; a signal that was never reported is missing.
    pub(super) readings: BTreeMap<Signal, Reading<f64>>,
    /// Of the readings that are read at an interval.
    #[serde(skip)]
    pub(super) freshness: BTreeMap<Signal, Freshness>,
    /// Of the values that no signal has.
    #[serde(skip)]
    pub(super) details_freshness: Option<Freshness>,
    #[serde(skip)]
    pub(super) links_freshness: Option<Freshness>,
    /// The stale values, in printed documents: by signal, and `details` and `links`.
    pub(super) stale: BTreeMap<String, StaleValue>,
    pub(super) links: NvlinkStatus,
    pub(super) performance_state: Reading<u32>,
    pub(super) fan_percent: Reading<u32>,
    /// `nvmlComputeMode_t`: 0 default, 2 prohibited, 3 exclusive process.
    pub(super) compute_mode: Reading<u32>,
    /// 1 if a display is attached.
    pub(super) display: Reading<u32>,
    /// Worst severity of its faults, from the agent.
    pub(super) worst: Option<Severity>,
    /// What limits its speed.
    pub(super) limit: LimitingFactor,
}

/// NVLink links of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub(super) struct NvlinkStatus {
    /// Whether the links were read.
    pub(super) is_known: bool,
    pub(super) up: u32,
    pub(super) down: u32,
    /// Total bandwidth of the active links per direction; `None` if a link does not report its
    /// speed.
    pub(super) bytes_per_s: Option<f64>,
}

/// A reading that was never reported.
static NOT_REPORTED: std::sync::LazyLock<Reading<f64>> =
    std::sync::LazyLock::new(|| Reading::Unreadable(ReadError::unavailable("not reported")));

impl GpuSample {
    pub(super) fn new(identity: GpuIdentity) -> Self {
        let unread = || Reading::Unreadable(ReadError::unavailable("not reported"));
        Self {
            identity,
            readings: BTreeMap::new(),
            freshness: BTreeMap::new(),
            details_freshness: None,
            links_freshness: None,
            stale: BTreeMap::new(),
            links: NvlinkStatus::default(),
            performance_state: unread(),
            fan_percent: unread(),
            compute_mode: unread(),
            display: unread(),
            worst: None,
            limit: LimitingFactor::unknown("not read yet"),
        }
    }

    pub(super) fn reading(&self, signal: Signal) -> &Reading<f64> {
        self.readings.get(&signal).unwrap_or(&NOT_REPORTED)
    }

    pub(super) fn value(&self, signal: Signal) -> Option<f64> {
        self.reading(signal).value().copied()
    }

    /// SM activity if the GPU reports it, else utilisation (share of time with a kernel running).
    pub(super) fn busy(&self) -> &Reading<f64> {
        self.reading(if self.has_activity() { Signal::GpuSmActive } else { Signal::GpuUtilisation })
    }

    /// What [`Self::busy`] shows.
    pub(super) fn shown_as_busy(&self) -> Shown {
        Shown::Signals(if self.has_activity() {
            &[Signal::GpuSmActive]
        } else {
            &[Signal::GpuUtilisation]
        })
    }

    /// Whether the GPU reports SM activity that is not from before the load changed.
    fn has_activity(&self) -> bool {
        self.value(Signal::GpuSmActive).is_some_and(|activity| !self.is_outdated(activity))
    }

    /// What the limiting factor is derived from.
    pub(super) fn shown_as_limit(&self) -> Shown {
        Shown::Signals(if self.limit.kind.follows_load() {
            &[Signal::GpuUtilisation, Signal::GpuClockReasons]
        } else {
            &[]
        })
    }

    /// The age of the oldest stale value of a cell. `None` if none is stale.
    pub(super) fn stale_age(&self, shown: Shown, now: Timestamp) -> Option<Duration> {
        let age = |freshness: Freshness| freshness.stale_age(now);
        match shown {
            Shown::Signals(signals) => signals
                .iter()
                .filter_map(|signal| self.signal_freshness(*signal))
                .filter_map(age)
                .max(),
            Shown::Details => self.details_freshness().and_then(age),
            Shown::Links => self.links_freshness().and_then(age),
        }
    }

    /// Of a signal with a value. An unreadable signal is shown as unknown, however old it is.
    fn signal_freshness(&self, signal: Signal) -> Option<Freshness> {
        self.value(signal)?;
        self.freshness.get(&signal).copied()
    }

    fn details_freshness(&self) -> Option<Freshness> {
        self.details_freshness.filter(|_| self.performance_state.value().is_some())
    }

    fn links_freshness(&self) -> Option<Freshness> {
        self.links_freshness.filter(|_| self.links.is_known)
    }

    /// All stale values, by the name that they have in printed documents.
    pub(super) fn stale_values(&self, now: Timestamp) -> BTreeMap<String, StaleValue> {
        let signals =
            self.freshness.keys().map(|signal| (signal.name(), self.signal_freshness(*signal)));
        let others = [("details", self.details_freshness()), ("links", self.links_freshness())];
        let stale = signals
            .chain(others)
            .filter_map(|(name, freshness)| Some((name.to_owned(), freshness?.stale_value(now)?)));
        stale.collect()
    }

    /// Whether this SM activity was measured before the load changed. SM activity is up to 30 s
    /// old, while utilisation and power are at most 1 s old. Utilisation and power show that the
    /// activity is outdated, because idle SMs draw little power, and no SM is active without a
    /// kernel.
    fn is_outdated(&self, activity: f64) -> bool {
        let Some(utilisation) = self.value(Signal::GpuUtilisation) else { return false };
        let power = self.value(Signal::GpuPower).zip(self.value(Signal::GpuPowerLimit));
        let draws_much = power.is_some_and(|(drawn, limit)| drawn >= limit * 0.5);
        let is_idle = |share: f64| share < 0.02;
        is_idle(activity) && utilisation >= 0.5 && draws_much
            || is_idle(utilisation) && activity >= 0.5
    }

    /// Marks rarely sampled readings as unreadable if the GPU no longer answers.
    fn forget_details_if_unread(&mut self) {
        if let Reading::Unreadable(why) = self.reading(Signal::GpuTemperature) {
            let why = why.clone();
            for reading in [
                &mut self.performance_state,
                &mut self.fan_percent,
                &mut self.compute_mode,
                &mut self.display,
            ] {
                *reading = Reading::Unreadable(why.clone());
            }
            self.links = NvlinkStatus::default();
        }
    }

    /// Sum of two signals, such as both directions of a link.
    pub(super) fn sum(&self, one: Signal, other: Signal) -> Reading<f64> {
        let (one, other) = (self.reading(one).clone(), self.reading(other).clone());
        one.and_then(|one| other.map(|other| one + other))
    }

    pub(super) fn nvlink(&self) -> Reading<f64> {
        self.sum(Signal::GpuNvlinkTransmit, Signal::GpuNvlinkReceive)
    }

    pub(super) fn pcie(&self) -> Reading<f64> {
        self.sum(Signal::GpuPcieTransmit, Signal::GpuPcieReceive)
    }
}

/// Context type: `C` compute, `G` graphics, `M` MPS.
pub(super) type ContextLetter = char;

/// A process on a GPU.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct ProcessSample {
    pub(super) gpu: GpuUuid,
    pub(super) pid: u32,
    pub(super) kind: Option<ContextLetter>,
    /// MIG GPU instance.
    pub(super) instance: Option<u32>,
    pub(super) user: Option<String>,
    /// Owning job, pod, container or unit.
    pub(super) job: Option<String>,
    pub(super) command: Option<String>,
    pub(super) memory_bytes: Option<u64>,
    /// Share of GPU time with one of its kernels running.
    pub(super) sm_ratio: Option<f64>,
    /// Share of GPU time with memory reads or writes.
    pub(super) memory_ratio: Option<f64>,
    /// In units of one core.
    pub(super) cpu_ratio: Option<f64>,
    pub(super) host_memory_bytes: Option<u64>,
    pub(super) elapsed_s: Option<u64>,
}

/// An open finding.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct FindingSample {
    /// The affected GPU, if any.
    pub(super) gpu: Option<GpuUuid>,
    /// The subject, for people.
    pub(super) subject: String,
    pub(super) code: String,
    /// The event within the rule, such as `Xid 79`. Often empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) detail: String,
    pub(super) severity: Severity,
    pub(super) text: String,
    pub(super) action: Action,
    pub(super) since: Timestamp,
}

impl FindingSample {
    pub(super) fn new(finding: &Finding, subject: String) -> Self {
        Self {
            gpu: finding.subject.gpu().cloned(),
            subject,
            code: finding.code.clone(),
            detail: finding.detail.clone(),
            severity: finding.severity,
            text: finding.text.clone(),
            action: finding.action,
            since: finding.first_seen,
        }
    }
}

/// Findings about one subject that ask for the same action. They are shown on one line. A lost GPU,
/// for example, has several.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct FindingGroup<'f> {
    /// The finding whose text is shown: one that names an event, such as an Xid, or else the first.
    pub(super) lead: &'f FindingSample,
    pub(super) severity: Severity,
    pub(super) since: Timestamp,
    /// The codes of all findings, with their events.
    pub(super) codes: String,
}

impl<'f> FindingGroup<'f> {
    /// Groups findings, in the order of their first ones.
    pub(super) fn group(findings: &'f [FindingSample]) -> Vec<Self> {
        let mut groups: Vec<Vec<&FindingSample>> = Vec::new();
        for finding in findings {
            let is_same = |other: &FindingSample| {
                other.subject == finding.subject && other.action == finding.action
            };
            match groups.iter_mut().find(|group| is_same(group[0])) {
                Some(group) => group.push(finding),
                None => groups.push(vec![finding]),
            }
        }
        groups.into_iter().map(|group| Self::of(&group)).collect()
    }

    fn of(group: &[&'f FindingSample]) -> Self {
        let first = group[0];
        let named = group.iter().copied().find(|finding| !finding.detail.is_empty());
        let others = group.iter().skip(1);
        let code = |finding: &&FindingSample| match finding.detail.as_str() {
            "" => finding.code.clone(),
            detail => format!("{} {detail}", finding.code),
        };
        Self {
            lead: named.unwrap_or(first),
            severity: others.clone().map(|other| other.severity).fold(first.severity, Ord::max),
            since: others.map(|other| other.since).fold(first.since, Ord::min),
            codes: group.iter().map(code).collect::<Vec<_>>().join(", "),
        }
    }
}

/// A job that reports to the agent.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct JobSample {
    pub(super) job: String,
    pub(super) user: Option<String>,
    pub(super) ranks: u32,
    pub(super) phase: Option<String>,
    pub(super) step: Option<u64>,
    pub(super) step_s: Option<f64>,
    pub(super) tokens_per_s: Option<f64>,
    pub(super) loss: Option<f64>,
}

impl NodeSample {
    pub(super) fn new(source: DataSource, at: Timestamp) -> Self {
        Self {
            v: VERSION,
            source,
            node: None,
            at,
            verdict: None,
            driver: None,
            cuda: None,
            outage: None,
            pending_call: None,
            host: HostSample::default(),
            gpus: Vec::new(),
            processes: None,
            processes_freshness: None,
            processes_stale: None,
            findings: None,
            jobs: Vec::new(),
            coverage_gaps: Vec::new(),
        }
    }

    /// Classifies what limits each GPU.
    pub(super) fn with_limits(mut self) -> Self {
        for gpu in &mut self.gpus {
            let is_in_use = self
                .processes
                .as_ref()
                .map(|all| all.iter().any(|process| process.gpu == gpu.identity.uuid));
            let pending =
                self.pending_call.as_ref().filter(|call| call.gpu == Some(gpu.identity.index));
            gpu.limit = match pending {
                Some(pending) => limit::pending(pending.call.as_deref()),
                None => limit::classify(gpu, is_in_use),
            };
            gpu.forget_details_if_unread();
        }
        self
    }

    /// Lists the stale values in the document.
    pub(super) fn with_stale_values(mut self, now: Timestamp) -> Self {
        for gpu in &mut self.gpus {
            gpu.stale = gpu.stale_values(now);
        }
        self.processes_stale = self.stale_processes(now);
        self
    }

    /// Age of the oldest stale value that is shown. `None` if none is stale.
    pub(super) fn oldest_stale_s(&self, now: Timestamp) -> Option<u64> {
        let gpus = self.gpus.iter().flat_map(|gpu| gpu.stale_values(now).into_values());
        gpus.chain(self.stale_processes(now)).map(|stale| stale.age_s).max()
    }

    /// The age of the list of processes, if it is stale.
    pub(super) fn stale_processes(&self, now: Timestamp) -> Option<StaleValue> {
        self.processes.as_ref()?;
        self.processes_freshness?.stale_value(now)
    }

    /// Number of GPUs, for the header.
    pub(super) fn gpu_count(&self) -> String {
        match self.gpus.len() {
            0 if self.outage.is_some() => "GPUs unknown".to_owned(),
            1 => "1 GPU".to_owned(),
            count => format!("{count} GPUs"),
        }
    }

    /// Index of a GPU, or its UUID if it is not listed.
    pub(super) fn gpu_name(&self, uuid: &GpuUuid) -> String {
        let found = self.gpus.iter().find(|gpu| gpu.identity.uuid == *uuid);
        found.map_or_else(|| uuid.0.clone(), |gpu| gpu.identity.index.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn activity_from_before_the_load_changed_is_not_shown() {
        let busy = |activity: f64, utilisation: f64, power: f64| {
            let uuid = GpuUuid("GPU-1".to_owned());
            let identity = GpuIdentity { uuid, index: 0, minor: None, pci: None, name: None };
            let mut gpu = GpuSample::new(identity);
            for (signal, value) in [
                (Signal::GpuSmActive, activity),
                (Signal::GpuUtilisation, utilisation),
                (Signal::GpuPower, power),
                (Signal::GpuPowerLimit, 700.0),
            ] {
                gpu.readings.insert(signal, Reading::Value(value));
            }
            gpu.busy().value().copied()
        };
        assert_eq!(busy(0.0, 0.98, 640.0), Some(0.98), "the load has begun");
        assert_eq!(busy(0.9, 0.0, 120.0), Some(0.0), "the load has ended");
        assert_eq!(busy(0.01, 1.0, 120.0), Some(0.01), "one small kernel");
        assert_eq!(busy(0.85, 0.98, 640.0), Some(0.85));
    }

    fn finding(code: &str, detail: &str, action: Action) -> FindingSample {
        FindingSample {
            gpu: None,
            subject: "GPU 3".to_owned(),
            code: code.to_owned(),
            detail: detail.to_owned(),
            severity: Severity::Fatal,
            text: format!("text of {code}"),
            action,
            since: Timestamp::UNIX_EPOCH,
        }
    }

    #[test]
    fn findings_with_the_same_action_share_a_line_that_names_the_xid() {
        let findings = [
            finding("gpu.lost", "", Action::RebootNode),
            finding("gpu.xid", "Xid 79", Action::RebootNode),
            finding("gpu.rows-failed", "", Action::DrainAndReplace),
            finding("gpu.fell-off-bus", "", Action::RebootNode),
        ];
        let groups = FindingGroup::group(&findings);
        let shown: Vec<_> =
            groups.iter().map(|group| (group.lead.text.as_str(), group.codes.as_str())).collect();
        let lost = ("text of gpu.xid", "gpu.lost, gpu.xid Xid 79, gpu.fell-off-bus");
        assert_eq!(shown, [lost, ("text of gpu.rows-failed", "gpu.rows-failed")]);
    }
}
