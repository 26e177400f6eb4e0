//! The state of a node as `farrier status` tells it: a versioned document, made from a snapshot or a journal.

mod group;
mod server;

use std::collections::{BTreeMap, BTreeSet};

use farrier_facts::node::{ReadError, Reading};
use farrier_fleet::health::{
    Finding, FindingKind, GpuIdentity, GpuUuid, Severity, Signal, Subject,
};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::jobs::JobState;
use crate::journal::{Fold, Recovery};
use crate::monitor::{CollectorState, CoverageLoss, Held, Inventory, SkippedCheck};
use crate::sight;
use crate::state::{State, Values};
use group::Known;

pub use group::{DoFirst, Group};
pub use server::{OrderInHand, OrdersStatus, ServerStatus};

/// The version of the document. What is added later does not change it: readers pass over what they do not know.
pub const VERSION: u32 = 1;

/// What a node comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Everything is seen, and no fault is open.
    Healthy,
    /// A fault is open; work goes on.
    Degraded,
    /// A fault is open that needs care before new work, or at once.
    Faulty,
    /// No fault is known, and not everything is seen.
    Unknown,
}

impl Verdict {
    /// In a word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Degraded => "degraded",
            Self::Faulty => "faulty",
            Self::Unknown => "unknown",
        }
    }

    pub const ALL: [Self; 4] = [Self::Healthy, Self::Degraded, Self::Faulty, Self::Unknown];

    /// What a running agent's node comes to, where this is not seen.
    pub(crate) fn now(state: &State, not_seen: &[CoverageLoss]) -> Self {
        let findings = state.findings.iter().map(|shown| &shown.finding);
        Self::of(findings, not_seen.is_empty() && sees_all(state))
    }

    fn of<'f>(findings: impl Iterator<Item = &'f Finding>, sees_all: bool) -> Self {
        let faults = findings.filter(|finding| finding.kind == FindingKind::Fault);
        match faults.map(|finding| finding.severity).max() {
            Some(Severity::Fatal | Severity::Critical) => Self::Faulty,
            Some(Severity::Warning) => Self::Degraded,
            Some(Severity::Info) | None if sees_all => Self::Healthy,
            Some(Severity::Info) | None => Self::Unknown,
        }
    }
}

/// The document.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// [`VERSION`].
    pub v: u32,
    /// The node's name; none where only a journal was read.
    pub node: Option<String>,
    /// When this was so.
    pub at: Option<Timestamp>,
    /// What it comes to.
    pub verdict: Verdict,
    /// The agent; none: it does not run, and this is what its journal says.
    pub agent: Option<AgentStatus>,
    /// The driver that is loaded, where it is known.
    pub driver: Option<String>,
    /// Whether one is loaded; none: not known.
    #[serde(default)]
    pub driver_loaded: Option<bool>,
    pub gpus: Vec<GpuStatus>,
    /// Open findings, worst first.
    pub findings: Vec<FindingStatus>,
    /// The faults among them by part, and what to do first about each; the worst first.
    #[serde(default)]
    pub groups: Vec<Group>,
    /// What is not seen, and why.
    pub not_seen: Vec<CoverageLoss>,
    /// Items of the node's check that could not be judged; none: it was not checked yet.
    pub not_checked: Option<Vec<SkippedCheck>>,
    /// Signals that no part of this node has though a rule asks for them: the signal and of how many parts.
    pub not_supported: BTreeMap<String, usize>,
    /// Rules of which nothing is known now: the rule, on how many parts, and why on one of them.
    pub rules_blind: BTreeMap<String, RuleBlind>,
    /// Rules that have not watched for a whole window yet: the rule, and on how many parts.
    pub rules_early: BTreeMap<String, usize>,
    /// Who looks.
    pub collectors: Vec<CollectorState>,
    /// Jobs.
    pub jobs: Vec<JobState>,
    /// The journal.
    pub journal: JournalStatus,
    /// The fleet's server; none: nobody knows, as no agent answers.
    #[serde(default)]
    pub server: Option<ServerStatus>,
    /// Its orders; none: nobody knows, as no agent answers.
    #[serde(default)]
    pub orders: Option<OrdersStatus>,
}

/// A rule that sees nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleBlind {
    /// On how many subjects.
    pub parts: usize,
    /// On which parts, as people call them, by cause.
    #[serde(default)]
    pub causes: BTreeMap<String, BTreeSet<String>>,
    /// Why, on one of them.
    pub why: String,
}

/// The agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AgentStatus {
    /// Its version.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// When it started.
    pub started: Timestamp,
    /// Processor time since then, with its children.
    pub cpu_s: f64,
    /// The same as a share of one core.
    pub cpu_ratio: f64,
    /// Memory of the agent and its children; none where it cannot be read.
    pub rss_bytes: Option<u64>,
}

/// A GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GpuStatus {
    /// Who it is.
    pub identity: GpuIdentity,
    /// Degrees.
    pub temperature_c: Reading<f64>,
    /// Watts.
    pub power_w: Reading<f64>,
    /// Watts.
    pub power_limit_w: Reading<f64>,
    /// Share of time.
    pub utilisation_ratio: Reading<f64>,
    /// Bytes.
    pub memory_used_bytes: Reading<f64>,
    /// Bytes.
    pub memory_total_bytes: Reading<f64>,
    /// Who holds it; none: not known.
    pub processes: Option<Vec<Held>>,
    /// The worst of its faults.
    pub worst: Option<Severity>,
    /// Everything that is watched of it, by the signal's name.
    #[serde(default)]
    pub readings: BTreeMap<String, Reading<f64>>,
    /// Links of NVLink that are up.
    #[serde(default)]
    pub links_up: u32,
    /// Links of NVLink that are not, though something is at their other end.
    #[serde(default)]
    pub links_down: u32,
    /// What those that are up carry in each direction; none where one of them does not tell.
    #[serde(default)]
    pub links_bytes_per_s: Option<f64>,
}

/// A finding.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FindingStatus {
    /// Whether it would be there after a crash.
    pub durable: bool,
    /// The finding.
    pub finding: Finding,
}

/// The journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalStatus {
    /// The last record on disk.
    pub seq: u64,
    /// Bytes on disk; none where it was only read.
    pub bytes: Option<u64>,
    /// Records that wait for the disk.
    pub waiting: usize,
    /// Lines that were no records.
    pub damaged_lines: u64,
    /// Bytes of a torn last line.
    pub torn_bytes: u64,
}

impl Status {
    /// The state of a running agent, as it is now: a snapshot that nobody renews hides whatever came after it.
    pub fn of(state: &State, jobs: Vec<JobState>, now_ms: i64) -> Self {
        let unseen = not_seen(state, now_ms);
        let mut findings: Vec<FindingStatus> = state
            .findings
            .iter()
            .map(|shown| FindingStatus { durable: shown.durable, finding: shown.finding.clone() })
            .collect();
        worst_first(&mut findings);
        let values = &state.values;
        let known = Known { listed: &values.gpus, gone: &values.gone };
        let faults = || findings.iter().map(|it| &it.finding);
        let loaded = values.reading(&Subject::Node, Signal::NodeDriverLoaded);
        let loaded = loaded.and_then(Reading::value).map(|value| *value > 0.0);
        Self {
            v: VERSION,
            node: Some(state.hostname.clone()),
            at: Some(state.at.wall),
            verdict: Verdict::now(state, &unseen),
            agent: Some(agent(state)),
            driver: values.driver.clone().filter(|_| loaded != Some(false)),
            driver_loaded: loaded,
            gpus: gpus(values, &findings, &ReadError::NotReadYet),
            groups: group::groups(faults(), known),
            findings,
            not_seen: unseen,
            not_checked: state.unseen.as_deref().cloned(),
            not_supported: not_supported(state),
            rules_blind: rules_blind(state, known),
            rules_early: state.coverage.early.clone(),
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
        }
    }

    /// What a journal says while no agent runs, of the GPUs that were last counted.
    pub fn of_journal(fold: &Fold, recovery: &Recovery, inventory: &Inventory) -> Self {
        let values = Values { gpus: inventory.gpus().to_vec(), ..Values::default() };
        let known = Known { listed: inventory.gpus(), gone: inventory.gone() };
        let open = fold.open.values().cloned();
        let mut findings: Vec<FindingStatus> =
            open.map(|finding| FindingStatus { durable: true, finding }).collect();
        worst_first(&mut findings);
        Self {
            v: VERSION,
            node: None,
            at: fold.at,
            verdict: Verdict::of(findings.iter().map(|it| &it.finding), false),
            agent: None,
            driver: None,
            driver_loaded: None,
            gpus: gpus(&values, &findings, &ReadError::AgentNotRunning),
            groups: group::groups(findings.iter().map(|it| &it.finding), known),
            findings,
            not_seen: vec![CoverageLoss {
                what: "agent".to_owned(),
                why: "the agent is not running: nothing is watched".to_owned(),
            }],
            not_checked: None,
            not_supported: BTreeMap::new(),
            rules_blind: BTreeMap::new(),
            rules_early: BTreeMap::new(),
            collectors: Vec::new(),
            jobs: Vec::new(),
            journal: JournalStatus {
                seq: fold.seq,
                bytes: None,
                waiting: 0,
                damaged_lines: recovery.damaged_lines,
                torn_bytes: recovery.torn_bytes,
            },
            server: None,
            orders: None,
        }
    }
}

/// Whether nothing that could be wrong is hidden. No blindness is tolerated: which of them hides a fault cannot be known,
/// and the status names each, so that a rule nobody can feed on this node is turned off by name and not passed over.
fn sees_all(state: &State) -> bool {
    // What has not been looked at yet is not seen either.
    let looked = state.collectors.iter().all(|collector| collector.age_s.is_some());
    let checked = state.unseen.as_ref().is_some_and(|unseen| unseen.is_empty());
    looked && checked && state.coverage.blind.is_empty()
}

/// What is not seen now.
pub(crate) fn not_seen(state: &State, now_ms: i64) -> Vec<CoverageLoss> {
    let unread = sight::unread(&state.values);
    state.blind.iter().cloned().chain(state.standstill(now_ms)).chain(unread).collect()
}

fn worst_first(findings: &mut [FindingStatus]) {
    findings.sort_by_key(|it| {
        (std::cmp::Reverse((it.finding.severity, it.finding.action)), it.finding.id)
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

fn gpus(values: &Values, findings: &[FindingStatus], unread: &ReadError) -> Vec<GpuStatus> {
    let mut gpus: Vec<&GpuIdentity> = values.gpus.iter().collect();
    gpus.sort_by_key(|identity| identity.index);
    gpus.into_iter().map(|identity| gpu(identity, values, findings, unread)).collect()
}

fn gpu(
    identity: &GpuIdentity,
    values: &Values,
    findings: &[FindingStatus],
    unread: &ReadError,
) -> GpuStatus {
    let subject = Subject::Gpu(identity.uuid.clone());
    let reading = |signal| {
        let unread = || Reading::Unreadable(unread.clone());
        values.reading(&subject, signal).cloned().unwrap_or_else(unread)
    };
    let links = links(values, &identity.uuid);
    let is_listed = !matches!(reading(Signal::GpuProcesses), Reading::Unreadable(_));
    let own = findings.iter().map(|it| &it.finding).filter(|finding| {
        finding.kind == FindingKind::Fault && finding.subject.gpu() == Some(&identity.uuid)
    });
    // Of a GPU that does not answer nobody lists them.
    let processes = values.processes.as_ref().filter(|_| is_listed).map(|all| {
        let held = all.iter().filter(|held| held.gpu == identity.uuid);
        held.cloned().collect()
    });
    GpuStatus {
        temperature_c: reading(Signal::GpuTemperature),
        power_w: reading(Signal::GpuPower),
        power_limit_w: reading(Signal::GpuPowerLimit),
        utilisation_ratio: reading(Signal::GpuUtilisation),
        memory_used_bytes: reading(Signal::GpuMemoryUsed),
        memory_total_bytes: reading(Signal::GpuMemoryTotal),
        processes,
        worst: own.map(|finding| finding.severity).max(),
        readings: own_readings(values, &subject),
        links_up: links.0,
        links_down: links.1,
        links_bytes_per_s: links.2,
        identity: identity.clone(),
    }
}

fn own_readings(values: &Values, subject: &Subject) -> BTreeMap<String, Reading<f64>> {
    let own = values.latest.get(subject).into_iter().flat_map(|values| values.iter());
    own.map(|(signal, reading)| (signal.to_string(), reading.clone())).collect()
}

/// How many are up, how many are not, and what those that are up carry in each direction.
fn links(values: &Values, gpu: &GpuUuid) -> (u32, u32, Option<f64>) {
    let (mut up, mut down, mut bytes_per_s) = (0, 0, Some(0.0));
    for subject in values.latest.iter().map(|(subject, _)| subject) {
        let Subject::Link { gpu: of, .. } = subject else { continue };
        let value = |signal| values.reading(subject, signal).and_then(Reading::value).copied();
        match value(Signal::LinkActive).filter(|_| of == gpu) {
            Some(active) if active > 0.0 => {
                up += 1;
                let own = value(Signal::LinkSpeed).map(|mb_per_s| mb_per_s * 1e6);
                bytes_per_s = bytes_per_s.zip(own).map(|(sum, own)| sum + own);
            }
            Some(_) => down += 1,
            None => {}
        }
    }
    (up, down, bytes_per_s)
}

fn not_supported(state: &State) -> BTreeMap<String, usize> {
    let mut parts: BTreeMap<Signal, BTreeSet<&Subject>> = BTreeMap::new();
    for (_, subject, signal) in &state.coverage.unsupported {
        parts.entry(*signal).or_default().insert(subject);
    }
    // An adapter of another maker lacks what its neighbour counts: that is no lack of the node.
    let latest = state.values.latest.iter();
    let known: BTreeSet<Signal> = latest
        .flat_map(|(_, values)| values.iter())
        .filter(|(_, reading)| reading.value().is_some())
        .map(|(signal, _)| *signal)
        .collect();
    parts.retain(|signal, _| !known.contains(signal));
    parts.into_iter().map(|(signal, subjects)| (signal.to_string(), subjects.len())).collect()
}

fn rules_blind(state: &State, known: Known<'_>) -> BTreeMap<String, RuleBlind> {
    let mut blind: BTreeMap<String, RuleBlind> = BTreeMap::new();
    for (code, subject, gap) in &state.coverage.blind {
        let rule = blind.entry(code.clone()).or_insert_with(|| RuleBlind {
            parts: 0,
            causes: BTreeMap::new(),
            why: gap.to_string(),
        });
        rule.parts += 1;
        let parts = rule.causes.entry(gap.cause()).or_default();
        parts.insert(known.name(&known.part(subject)));
    }
    blind
}
