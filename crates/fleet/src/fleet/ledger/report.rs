//! The report of the ledger. Times are integer GPU-milliseconds, so the parts add up to the whole
//! exactly. Keys are stable: new fields are added, and existing fields are never renamed or
//! removed.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::fleet::identity::{Domain, NodeId, Pool};
use crate::fleet::order::VerificationLevel;
use crate::health::{Action, Evidence, GpuUuid, Severity};

/// Version of the report's keys.
pub const REPORT_VERSION: u32 = 1;

/// Why GPU-time was lost. Each lost millisecond of a GPU has exactly one cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// The GPU, or its whole node, has a finding that affects service.
    Finding,
    /// The GPU has no fault, but its node takes no work.
    IdleByCordon,
    /// The node is verified before it returns to service, or failed a verification.
    Verification,
    /// An operator holds the node through Farrier.
    Hold,
    /// Another tool or person cordoned the node.
    Maintenance,
    /// It is unknown whether the GPU was usable.
    Unknown,
}

impl Cause {
    pub const ALL: [Self; 6] = [
        Self::Finding,
        Self::IdleByCordon,
        Self::Verification,
        Self::Hold,
        Self::Maintenance,
        Self::Unknown,
    ];

    /// The stable code, as in JSON.
    pub fn code(self) -> &'static str {
        match self {
            Self::Finding => "finding",
            Self::IdleByCordon => "idle-by-cordon",
            Self::Verification => "verification",
            Self::Hold => "hold",
            Self::Maintenance => "maintenance",
            Self::Unknown => "unknown",
        }
    }
}

/// GPU-time, in milliseconds. `total_ms` is counted separately, and equals the sum of the other
/// fields.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuTime {
    /// Number of GPUs of enrolled nodes, multiplied by the time.
    pub total_ms: u64,
    /// Time in which the node takes work, its heartbeats arrive, and its GPUs are known.
    pub available_ms: u64,
    pub lost_ms: LostGpuTime,
}

/// Lost GPU-time by cause, in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct LostGpuTime {
    pub finding: u64,
    pub idle_by_cordon: u64,
    pub verification: u64,
    pub hold: u64,
    pub maintenance: u64,
    pub unknown: u64,
}

impl LostGpuTime {
    pub fn of(&self, cause: Cause) -> u64 {
        match cause {
            Cause::Finding => self.finding,
            Cause::IdleByCordon => self.idle_by_cordon,
            Cause::Verification => self.verification,
            Cause::Hold => self.hold,
            Cause::Maintenance => self.maintenance,
            Cause::Unknown => self.unknown,
        }
    }

    pub(super) fn of_mut(&mut self, cause: Cause) -> &mut u64 {
        match cause {
            Cause::Finding => &mut self.finding,
            Cause::IdleByCordon => &mut self.idle_by_cordon,
            Cause::Verification => &mut self.verification,
            Cause::Hold => &mut self.hold,
            Cause::Maintenance => &mut self.maintenance,
            Cause::Unknown => &mut self.unknown,
        }
    }

    pub fn sum(&self) -> u64 {
        Cause::ALL.into_iter().map(|cause| self.of(cause)).sum()
    }
}

impl GpuTime {
    pub fn lost_sum_ms(&self) -> u64 {
        self.lost_ms.sum()
    }

    /// Whether the parts add up to the whole.
    pub fn adds_up(&self) -> bool {
        self.available_ms + self.lost_sum_ms() == self.total_ms
    }

    /// Share of the time in which the GPUs were available. `None` without any time.
    pub fn availability(&self) -> Option<f64> {
        (self.total_ms > 0).then(|| ratio(self.available_ms, self.total_ms))
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.total_ms += other.total_ms;
        self.available_ms += other.available_ms;
        for cause in Cause::ALL {
            *self.lost_ms.of_mut(cause) += other.lost_ms.of(cause);
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a share does not need the last millisecond")]
pub fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole as f64
}

/// What happened to the fleet, or to the part of it that the caller may see, in a period.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FleetReport {
    pub version: u32,
    /// The nodes that are counted: the whole fleet, or the caller's scope.
    pub scope: Domain,
    pub period: ReportPeriod,
    pub time: GpuTime,
    /// Time of nodes whose GPUs were never reported, in node-milliseconds. No other figure includes
    /// this time.
    pub uncounted_node_ms: u64,
    /// By pool, in order of their names.
    pub pools: Vec<PoolTime>,
    /// Days in UTC, oldest first.
    pub days: Vec<DayTime>,
    /// The largest first.
    pub losses: Vec<LossLine>,
    /// How much loss `losses` does not list.
    pub losses_omitted: Omitted,
    /// Open faults of GPUs whose node took work. This time is not lost. The largest exposure comes
    /// first.
    pub exposure: Vec<ExposureLine>,
    pub reliability: Vec<Reliability>,
    /// GPUs with more than one fault in the period, the most faults first.
    pub offenders: Vec<GpuRecord>,
    pub repairs: Vec<RepairTally>,
    /// GPUs with a finding whose action is to replace them.
    pub rma: Vec<GpuRecord>,
    /// Drivers at the end of the period, by pool.
    pub drivers: Vec<DriverUse>,
    /// `None` if no pool was in observe mode.
    pub shadow: Option<ShadowReport>,
}

/// The time that the report covers, and what it cannot cover.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportPeriod {
    pub from: Timestamp,
    pub to: Timestamp,
    /// Number of the first log entry that was read. Entries before it are archived.
    pub first_entry: u64,
    pub last_entry: u64,
    /// Set to the requested start if the log does not have the time before `from`.
    pub missing_before: Option<Timestamp>,
    /// Set to the requested end if the log already ends at `to`.
    pub missing_after: Option<Timestamp>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PoolTime {
    pub pool: Pool,
    pub time: GpuTime,
    /// By SKU, as nodes report its name. `None` if NVML reports no name.
    pub skus: Vec<SkuTime>,
    pub days: Vec<DayTime>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SkuTime {
    pub sku: Option<String>,
    pub time: GpuTime,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DayTime {
    /// Midnight in UTC, at which the day begins.
    pub day: Timestamp,
    pub time: GpuTime,
}

/// Lost GPU-time with one cause, node and fault.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LossLine {
    pub cause: Cause,
    pub node: NodeId,
    pub pool: Pool,
    pub sku: Option<String>,
    pub driver: Option<String>,
    /// Code of the finding, or of the reason for the phase, such as `operator-hold`.
    pub code: String,
    /// Distinguishes findings with the same code, such as `Xid 79`. Often empty.
    pub detail: String,
    /// The GPU at fault. `None` if the fault does not belong to a GPU.
    pub gpu: Option<GpuUuid>,
    /// The serial number of that GPU, if the agent reports it.
    pub serial: Option<String>,
    pub gpu_ms: u64,
}

/// Lines that were left out, so that the report stays small.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Omitted {
    pub lines: u64,
    pub gpu_ms: u64,
}

/// GPU-time with an open fault while the node took work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExposureLine {
    pub pool: Pool,
    /// Code of the finding; `unverified` for a joining node without a finding.
    pub code: String,
    pub detail: String,
    pub gpu_ms: u64,
    pub nodes: u64,
}

/// How often GPUs of a pool and SKU fail.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reliability {
    pub pool: Pool,
    pub sku: Option<String>,
    /// GPU-time in which a fault could show, which is the time in which the node took work.
    pub operating_ms: u64,
    /// Findings that opened and made a node unfit.
    pub faults: u64,
    /// `None` if no fault was seen.
    pub mtbf_h: Option<f64>,
    /// The 95 % confidence interval of the MTBF, under the assumption that faults are independent.
    /// Without a fault, there is only a lower bound.
    pub mtbf_low_h: Option<f64>,
    pub mtbf_high_h: Option<f64>,
}

/// The history of one GPU, across all its nodes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GpuRecord {
    pub uuid: GpuUuid,
    pub serial: Option<String>,
    pub sku: Option<String>,
    /// Nodes that the GPU was in, oldest first.
    pub nodes: Vec<NodeId>,
    pub faults: u64,
    /// GPU-time that was lost because of this GPU, on all GPUs of its nodes.
    pub lost_ms: u64,
    pub findings: Vec<FindingRecord>,
    /// Verifications and diags that a node failed while the GPU was in it, newest last.
    pub failed_tests: Vec<FailedTest>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FindingRecord {
    pub code: String,
    pub detail: String,
    /// What the finding means.
    pub text: String,
    pub severity: Severity,
    pub action: Action,
    /// How often the finding opened in the period.
    pub opened: u64,
    /// How often the finding happened, as the agent counts it.
    pub count: u64,
    pub first_seen: Timestamp,
    pub last_seen: Timestamp,
    pub open: bool,
    /// The last observations, newest last.
    pub evidence: Vec<Evidence>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedTest {
    pub node: NodeId,
    pub at: Timestamp,
    pub level: VerificationLevel,
    /// The text from the agent.
    pub evidence: String,
}

/// Repairs of one kind in the period.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RepairTally {
    /// Code of the order, or `manual`.
    pub repair: String,
    pub started: u64,
    /// The order failed, was refused, cancelled, or expired.
    pub failed: u64,
    /// The node then returned to service.
    pub returned: u64,
    /// Before the node returned to service, it was taken out of service again or repaired again.
    pub did_not_help: u64,
    /// The outcome is not known yet, or the node was held or retired in between.
    pub open: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverUse {
    pub pool: Pool,
    /// `None` if the driver version is unknown.
    pub driver: Option<String>,
    pub nodes: u64,
    pub gpus: u64,
}

/// What Farrier would have done in pools that only observe, next to what operators did.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ShadowReport {
    /// An operator's action in this time after a decision belongs to the same case. So does a
    /// finding in this time after an action. While the cause of a decision is open, every action
    /// belongs to the case.
    pub window_h: u32,
    /// Node-time in pools that only observe, in milliseconds.
    pub node_ms: u64,
    pub counts: ShadowCounts,
    /// `None` without any node-time.
    pub false_per_1000_node_days: Option<f64>,
    /// The upper end of the 95 % confidence interval.
    pub false_per_1000_node_days_high: Option<f64>,
    /// GPU-time between Farrier's decision and the operator's action, in the cases in which both
    /// agree. This figure counts only the GPUs at fault.
    pub saved_low_ms: u64,
    /// The same time, but counting all GPUs of the node, as if its jobs used all of them.
    pub saved_high_ms: u64,
    /// GPU-time that false quarantines would have cost at least. This counts all GPUs of the node
    /// until the finding cleared.
    pub false_cost_ms: u64,
    /// Oldest first, up to a limit.
    pub cases: Vec<ShadowCase>,
    pub cases_omitted: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShadowCounts {
    /// Farrier decided first, then the operator acted.
    pub both_farrier_first: u64,
    /// The operator acted first, and Farrier already had a finding about the same problem.
    pub both_operator_first: u64,
    /// Only Farrier decided, and the cause cleared on its own.
    pub false_quarantines: u64,
    /// Only Farrier decided, and nothing shows who was right: the cause lasted longer than the
    /// window, or it cleared after a reboot.
    pub unconfirmed: u64,
    /// Only Farrier decided, and the window is not over.
    pub pending: u64,
    /// Only the operator acted: this was planned work, or a fault that Farrier does not see.
    pub operator_only: u64,
    /// Nodes that Farrier would have kept in service because their failure domain was at fault.
    pub domain_faults: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ShadowCase {
    pub node: NodeId,
    pub pool: Pool,
    pub outcome: ShadowOutcome,
    /// When Farrier would have quarantined the node.
    pub decided: Option<Timestamp>,
    /// Code of the reason. The next field is the code of the worst finding of that reason.
    pub reason: Option<String>,
    pub finding: Option<String>,
    pub acted: Option<OperatorAction>,
    pub cleared: Option<Timestamp>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ShadowOutcome {
    BothFarrierFirst,
    BothOperatorFirst,
    FalseQuarantine,
    Unconfirmed,
    Pending,
    OperatorOnly,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperatorAction {
    pub at: Timestamp,
    pub kind: OperatorActionKind,
    /// The operator's reason, or the owner of the cordon.
    pub text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OperatorActionKind {
    Hold,
    ExternalCordon,
    Repaired,
    Retired,
}

/// Time by pool and day, from which the totals are summed.
pub(super) type PoolDays = BTreeMap<(Pool, i64), GpuTime>;
