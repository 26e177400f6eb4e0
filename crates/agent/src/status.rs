//! The status document of a node, as `farrier status` prints it. The document has a version. It is
//! built from the published state of a running agent, or from a journal.

mod group;
mod server;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use farrier_facts::node::{ReadError, Reading};
use farrier_fleet::health::{
    Finding, FindingKind, GpuIdentity, GpuUuid, LatestValue, Severity, Signal, Subject,
};
use farrier_hardware::nvml::watch::{Pace, is_stale, reading_interval};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::coverage;
use crate::hooks::HookStatus;
use crate::jobs::JobState;
use crate::journal::{DurableState, Recovery};
use crate::monitor::{BootInventory, CollectorState, CoverageLoss, OwnedGpuProcess, SkippedCheck};
use crate::state::{State, Values};
use group::GpuIdentities;

pub use farrier_fleet::health::FirstAction;
pub use group::Group;
pub use server::{ActiveOrderStatus, OrdersStatus, ServerStatus};

/// Version of the document. A new field does not change it, because readers ignore unknown fields.
pub const VERSION: u32 = 1;

/// Overall health of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NodeVerdict {
    /// Full coverage, and no open fault.
    Healthy,
    /// A fault is open, but work continues.
    Degraded,
    /// A fault is open that needs attention at once, or before new work starts.
    Faulty,
    /// No open fault, but incomplete coverage.
    Unknown,
}

impl NodeVerdict {
    pub fn name(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Degraded => "degraded",
            Self::Faulty => "faulty",
            Self::Unknown => "unknown",
        }
    }

    pub const ALL: [Self; 4] = [Self::Healthy, Self::Degraded, Self::Faulty, Self::Unknown];

    /// The verdict for a running agent with these coverage losses.
    pub(crate) fn now(state: &State, losses: &[CoverageLoss]) -> Self {
        let findings = state.findings.iter().map(|shown| &shown.finding);
        Self::from_findings(findings, losses.is_empty() && has_full_coverage(state))
    }

    fn from_findings<'f>(
        findings: impl Iterator<Item = &'f Finding>,
        has_full_coverage: bool,
    ) -> Self {
        let faults = findings.filter(|finding| finding.kind == FindingKind::Fault);
        match faults.map(|finding| finding.severity).max() {
            Some(Severity::Fatal | Severity::Critical) => Self::Faulty,
            Some(Severity::Warning) => Self::Degraded,
            Some(Severity::Info) | None if has_full_coverage => Self::Healthy,
            Some(Severity::Info) | None => Self::Unknown,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Version of the format.
    pub v: u32,
    /// `None` if only a journal was read.
    pub node: Option<String>,
    /// The time that the document describes.
    pub at: Option<Timestamp>,
    pub verdict: NodeVerdict,
    /// `None` if no agent is running. The document then comes from the journal.
    pub agent: Option<AgentStatus>,
    /// Version of the loaded driver. `None` if unknown.
    pub driver: Option<String>,
    /// `true` if a driver is loaded. `None` if unknown.
    #[serde(default)]
    pub driver_loaded: Option<bool>,
    pub gpus: Vec<GpuStatus>,
    /// Open findings, worst first.
    pub findings: Vec<FindingStatus>,
    /// Faults by component, worst first. Each group has the first action to take.
    #[serde(default)]
    pub groups: Vec<Group>,
    /// Coverage losses, with reasons.
    pub coverage_gaps: Vec<CoverageLoss>,
    /// Checks that could not be evaluated. `None` before the first check.
    pub skipped_checks: Option<Vec<SkippedCheck>>,
    /// Signals that a rule needs, but that no component of this node supports. The value is the
    /// number of components for which a rule needs the signal.
    pub unsupported_signals: BTreeMap<String, usize>,
    /// Rules that cannot run now, with the number of components and the reason.
    pub rules_inactive: BTreeMap<String, InactiveRule>,
    /// Rules that do not have a full window of data yet, with the number of components.
    pub rules_warming_up: BTreeMap<String, usize>,
    pub collectors: Vec<CollectorState>,
    pub jobs: Vec<JobState>,
    pub journal: JournalStatus,
    /// `None` if no agent answers.
    #[serde(default)]
    pub server: Option<ServerStatus>,
    /// `None` if no agent answers.
    #[serde(default)]
    pub orders: Option<OrdersStatus>,
    /// The hooks. Empty if none is configured, or no agent answers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hooks: Vec<HookStatus>,
}

/// A rule that cannot run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InactiveRule {
    /// Number of components on which the rule cannot run.
    pub components: usize,
    /// Components by cause, with the names that operators use.
    #[serde(default)]
    pub causes: BTreeMap<String, BTreeSet<String>>,
    /// The reason for one of the components.
    pub reason: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AgentStatus {
    pub version: String,
    pub pid: u32,
    pub started: Timestamp,
    /// CPU time of the agent and its child processes since the start.
    pub cpu_s: f64,
    /// CPU time as a share of one core.
    pub cpu_ratio: f64,
    /// Resident memory of the agent and its child processes. `None` if unreadable.
    pub rss_bytes: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GpuStatus {
    pub identity: GpuIdentity,
    pub temperature_c: Reading<f64>,
    pub power_w: Reading<f64>,
    pub power_limit_w: Reading<f64>,
    pub utilisation_ratio: Reading<f64>,
    pub memory_used_bytes: Reading<f64>,
    pub memory_total_bytes: Reading<f64>,
    /// GPU processes. `None` if unknown.
    pub processes: Option<Vec<OwnedGpuProcess>>,
    /// Highest severity of the GPU's faults.
    pub worst: Option<Severity>,
    /// All monitored signals, by name.
    #[serde(default)]
    pub readings: BTreeMap<String, Reading<f64>>,
    /// Signals whose last value is older than the agent's read interval for the signal, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub stale: BTreeMap<String, StaleValue>,
    /// NVLink links that are up.
    #[serde(default)]
    pub links_up: u32,
    /// NVLink links that are down although a device is connected.
    #[serde(default)]
    pub links_down: u32,
    /// Total bandwidth per direction of the links that are up. `None` if any of these links does
    /// not report its bandwidth.
    #[serde(default)]
    pub links_bytes_per_s: Option<f64>,
}

/// The age of a stale value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StaleValue {
    pub age_s: u64,
    /// How often the value is read.
    pub interval_s: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FindingStatus {
    /// `true` if the finding is on disk, so that it survives a crash.
    pub durable: bool,
    pub finding: Finding,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalStatus {
    /// Sequence number of the last record on disk.
    pub seq: u64,
    /// Size of the journal. `None` if no agent is running.
    pub bytes: Option<u64>,
    /// Records not yet on disk.
    pub waiting: usize,
    /// Lines that did not parse.
    pub damaged_lines: u64,
    /// Bytes of a torn last line.
    pub torn_bytes: u64,
}

impl Status {
    /// The status of a running agent at `now_ms`. If `state` is stale, the status has a coverage
    /// loss that says so.
    pub fn from_state(state: &State, jobs: Vec<JobState>, now_ms: i64) -> Self {
        let losses = coverage_losses(state, now_ms);
        let mut findings: Vec<FindingStatus> = state
            .findings
            .iter()
            .map(|shown| FindingStatus { durable: shown.durable, finding: shown.finding.clone() })
            .collect();
        worst_first(&mut findings);
        let values = &state.values;
        let identities = GpuIdentities { listed: &values.gpus, delisted: &values.delisted };
        let faults = || findings.iter().map(|status| &status.finding);
        let loaded = values.reading(&Subject::Node, Signal::NodeDriverLoaded);
        let loaded = loaded.and_then(Reading::value).map(|value| *value > 0.0);
        Self {
            v: VERSION,
            node: Some(state.hostname.clone()),
            at: Some(state.at.wall),
            verdict: NodeVerdict::now(state, &losses),
            agent: Some(agent(state)),
            driver: values.driver.clone().filter(|_| loaded != Some(false)),
            driver_loaded: loaded,
            gpus: gpus(values, &findings, &ReadError::NotReadYet, Some(now_ms)),
            groups: group::groups(faults(), identities),
            findings,
            coverage_gaps: losses,
            skipped_checks: state.skipped_checks.as_deref().cloned(),
            unsupported_signals: unsupported_signals(state),
            rules_inactive: rules_inactive(state, identities),
            rules_warming_up: state.coverage.warming_up.clone(),
            collectors: state.collectors.clone(),
            jobs,
            journal: JournalStatus {
                seq: state.journal.seq,
                bytes: Some(state.journal.bytes),
                waiting: state.journal.waiting,
                damaged_lines: state.journal.damaged_lines,
                torn_bytes: state.journal.torn_bytes,
            },
            server: None,
            orders: None,
            hooks: Vec::new(),
        }
    }

    /// The status from a journal while no agent is running. The GPUs are those of the last
    /// enumeration.
    pub fn from_journal(
        durable: &DurableState,
        recovery: &Recovery,
        inventory: &BootInventory,
    ) -> Self {
        let values = Values { gpus: inventory.gpus().to_vec(), ..Values::default() };
        let identities = GpuIdentities { listed: inventory.gpus(), delisted: inventory.delisted() };
        let open = durable.open.values().cloned();
        let mut findings: Vec<FindingStatus> =
            open.map(|finding| FindingStatus { durable: true, finding }).collect();
        worst_first(&mut findings);
        Self {
            v: VERSION,
            node: None,
            at: durable.at,
            verdict: NodeVerdict::from_findings(
                findings.iter().map(|status| &status.finding),
                false,
            ),
            agent: None,
            driver: None,
            driver_loaded: None,
            gpus: gpus(&values, &findings, &ReadError::AgentNotRunning, None),
            groups: group::groups(findings.iter().map(|status| &status.finding), identities),
            findings,
            coverage_gaps: vec![CoverageLoss {
                source: "agent".to_owned(),
                reason: "the agent is not running: nothing is monitored".to_owned(),
            }],
            skipped_checks: None,
            unsupported_signals: BTreeMap::new(),
            rules_inactive: BTreeMap::new(),
            rules_warming_up: BTreeMap::new(),
            collectors: Vec::new(),
            jobs: Vec::new(),
            journal: JournalStatus {
                seq: durable.seq,
                bytes: None,
                waiting: 0,
                damaged_lines: recovery.damaged_lines,
                torn_bytes: recovery.torn_bytes,
            },
            server: None,
            orders: None,
            hooks: Vec::new(),
        }
    }
}

/// `true` if coverage is complete. Any gap may hide a fault, so no gap is tolerated. If a rule can
/// never run on this node, an operator has to disable the rule by name. The status names such
/// rules.
fn has_full_coverage(state: &State) -> bool {
    // A collector that has not reported yet is a coverage gap too.
    let reported = state.collectors.iter().all(|collector| collector.age_s.is_some());
    let checked = state.skipped_checks.as_ref().is_some_and(|skipped| skipped.is_empty());
    reported && checked && state.coverage.gaps.is_empty()
}

/// The current coverage losses.
pub(crate) fn coverage_losses(state: &State, now_ms: i64) -> Vec<CoverageLoss> {
    let unread = coverage::unread_signals(&state.values);
    state.coverage_gaps.iter().cloned().chain(state.staleness(now_ms)).chain(unread).collect()
}

fn worst_first(findings: &mut [FindingStatus]) {
    findings.sort_by_key(|status| {
        (std::cmp::Reverse((status.finding.severity, status.finding.action)), status.finding.id)
    });
}

#[expect(clippy::cast_precision_loss, reason = "microseconds of processor time")]
fn agent(state: &State) -> AgentStatus {
    let cpu_s = (state.cost.cpu_us + state.cost.child_cpu_us) as f64 / 1e6;
    let up_s = (state.up_ms as f64 / 1000.0).max(1.0);
    let child = state.cost.child_rss_bytes.unwrap_or(0);
    AgentStatus {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        started: state.started,
        cpu_s,
        cpu_ratio: cpu_s / up_s,
        rss_bytes: state.cost.rss_bytes.map(|own| own + child),
    }
}

fn gpus(
    values: &Values,
    findings: &[FindingStatus],
    unread: &ReadError,
    now_ms: Option<i64>,
) -> Vec<GpuStatus> {
    let mut gpus: Vec<&GpuIdentity> = values.gpus.iter().collect();
    gpus.sort_by_key(|identity| identity.index);
    gpus.into_iter().map(|identity| gpu(identity, values, findings, unread, now_ms)).collect()
}

fn gpu(
    identity: &GpuIdentity,
    values: &Values,
    findings: &[FindingStatus],
    unread: &ReadError,
    now_ms: Option<i64>,
) -> GpuStatus {
    let subject = Subject::Gpu(identity.uuid.clone());
    let reading = |signal| {
        let unread = || Reading::Unreadable(unread.clone());
        values.reading(&subject, signal).cloned().unwrap_or_else(unread)
    };
    let links = links(values, &identity.uuid);
    let is_listed = !matches!(reading(Signal::GpuProcesses), Reading::Unreadable(_));
    let faults = findings.iter().map(|status| &status.finding).filter(|finding| {
        finding.kind == FindingKind::Fault && finding.subject.gpu() == Some(&identity.uuid)
    });
    // For a GPU that does not answer, the processes are unknown.
    let processes = values.processes.as_ref().filter(|_| is_listed).map(|all| {
        let processes = all.iter().filter(|process| process.gpu == identity.uuid);
        processes.cloned().collect()
    });
    GpuStatus {
        temperature_c: reading(Signal::GpuTemperature),
        power_w: reading(Signal::GpuPower),
        power_limit_w: reading(Signal::GpuPowerLimit),
        utilisation_ratio: reading(Signal::GpuUtilisation),
        memory_used_bytes: reading(Signal::GpuMemoryUsed),
        memory_total_bytes: reading(Signal::GpuMemoryTotal),
        processes,
        worst: faults.map(|finding| finding.severity).max(),
        readings: gpu_readings(values, &subject),
        stale: now_ms.map(|now_ms| stale(values, &subject, now_ms)).unwrap_or_default(),
        links_up: links.0,
        links_down: links.1,
        links_bytes_per_s: links.2,
        identity: identity.clone(),
    }
}

fn gpu_readings(values: &Values, subject: &Subject) -> BTreeMap<String, Reading<f64>> {
    let readings = values.latest.get(subject).into_iter().flat_map(|values| values.iter());
    readings.map(|value| (value.signal.to_string(), value.reading.clone())).collect()
}

/// The values that are older than the agent's read interval for their signal.
fn stale(values: &Values, subject: &Subject, now_ms: i64) -> BTreeMap<String, StaleValue> {
    let values = values.latest.get(subject).into_iter().flat_map(|values| values.iter());
    let age = |value: &LatestValue| {
        Duration::from_millis(u64::try_from(now_ms - value.read_ms).unwrap_or_default())
    };
    values
        .filter(|value| value.reading.value().is_some())
        .filter_map(|value| Some((value, reading_interval(value.signal, Pace::Agent)?)))
        .filter(|(value, interval)| is_stale(age(value), *interval))
        .map(|(value, interval)| {
            let (age_s, interval_s) = (age(value).as_secs(), interval.as_secs());
            (value.signal.to_string(), StaleValue { age_s, interval_s })
        })
        .collect()
}

/// Number of links that are up, number of links that are down, and the bandwidth per direction of
/// the links that are up.
fn links(values: &Values, gpu: &GpuUuid) -> (u32, u32, Option<f64>) {
    let (mut up, mut down, mut bytes_per_s) = (0, 0, Some(0.0));
    for subject in values.latest.iter().map(|(subject, _)| subject) {
        let Subject::Link { gpu: owner, .. } = subject else { continue };
        let value = |signal| values.reading(subject, signal).and_then(Reading::value).copied();
        match value(Signal::LinkActive).filter(|_| owner == gpu) {
            Some(active) if active > 0.0 => {
                up += 1;
                let speed = value(Signal::LinkSpeed).map(|mb_per_s| mb_per_s * 1e6);
                bytes_per_s = bytes_per_s.zip(speed).map(|(sum, speed)| sum + speed);
            }
            Some(_) => down += 1,
            None => {}
        }
    }
    (up, down, bytes_per_s)
}

fn unsupported_signals(state: &State) -> BTreeMap<String, usize> {
    let mut subjects: BTreeMap<Signal, BTreeSet<&Subject>> = BTreeMap::new();
    for (_, subject, signal) in &state.coverage.unsupported {
        subjects.entry(*signal).or_default().insert(subject);
    }
    // A network adapter may lack a counter that an adapter of another vendor on the node has. The
    // node then does support the signal.
    let latest = state.values.latest.iter();
    let supported: BTreeSet<Signal> = latest
        .flat_map(|(_, values)| values.iter())
        .filter(|value| value.reading.value().is_some())
        .map(|value| value.signal)
        .collect();
    subjects.retain(|signal, _| !supported.contains(signal));
    subjects.into_iter().map(|(signal, subjects)| (signal.to_string(), subjects.len())).collect()
}

fn rules_inactive(state: &State, identities: GpuIdentities<'_>) -> BTreeMap<String, InactiveRule> {
    let mut inactive: BTreeMap<String, InactiveRule> = BTreeMap::new();
    for (code, subject, gap) in &state.coverage.gaps {
        let rule = inactive.entry(code.clone()).or_insert_with(|| InactiveRule {
            components: 0,
            causes: BTreeMap::new(),
            reason: gap.to_string(),
        });
        rule.components += 1;
        let components = rule.causes.entry(gap.cause()).or_default();
        components.insert(identities.name(&identities.component(subject)));
    }
    inactive
}
