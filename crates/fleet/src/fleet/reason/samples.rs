//! One sample of each reason. Its names and counts are unusual, so that a test can search for them
//! in output. Tests of code that stores, shows or redacts reasons use the samples.

use farrier_facts::node::ReadError;
use jiff::Timestamp;

use super::{
    BudgetCounts, CapacityCounts, FindingSummary, GapSummary, GpuLocation, NodeNames, OrderFailure,
    Reason, RepairsAttempted, SymptomCounts, UnblockedBy,
};
use crate::fleet::coverage::{GapNames, GapSource};
use crate::fleet::identity::{Actor, Domain, NodeId, Pool};
use crate::fleet::order::{OrderKind, VerificationLevel};
use crate::fleet::policy::Autonomy;
use crate::fleet::state::Symptom;
use crate::health::{Action, GpuUuid, Severity, Subject};

fn pool() -> Option<Pool> {
    "train".parse().ok()
}

fn node() -> Option<NodeId> {
    "gpu-1".parse().ok()
}

fn location() -> GpuLocation {
    GpuLocation { index: Some(3), pci: Some("0000:3b:00.0".to_owned()) }
}

fn reset() -> OrderKind {
    OrderKind::ResetGpu { gpu: GpuUuid("GPU-1".to_owned()) }
}

fn open_findings() -> Reason {
    let worst = FindingSummary {
        code: "gpu.xid".to_owned(),
        detail: "Xid 79".to_owned(),
        severity: Severity::Fatal,
        subject: Subject::Gpu(GpuUuid("GPU-1".to_owned())),
        gpu: Some(location()),
    };
    Reason::OpenFindings { worst, more: 2, findings: vec![7, 8, 9] }
}

/// Counts of other nodes in the samples. Budget: 4,711 of 4,712 nodes are out of service and 4,713
/// are allowed. Symptom: 4,714 of 4,715 nodes show it.
pub const FOREIGN_COUNTS: [u32; 5] = [4711, 4712, 4713, 4714, 4715];

/// A node of another pool in the samples.
pub const FOREIGN_NODE: &str = "zz-other";

fn foreign_nodes(more: u32) -> NodeNames {
    NodeNames { first: FOREIGN_NODE.parse().ok().into_iter().collect(), more }
}

/// One sample of each reason. They name the whole fleet, which spans more than one pool.
pub fn reasons() -> Vec<Reason> {
    reasons_naming(&Domain::Fleet, pool())
}

/// One sample of each reason, with this domain and pool.
pub fn reasons_naming(domain: &Domain, pool: Option<Pool>) -> Vec<Reason> {
    let domain = || domain.clone();
    let at = Timestamp::UNIX_EPOCH;
    let [out, members, limit, affected, total] = FOREIGN_COUNTS;
    let budget = Reason::DisruptionBudget {
        domain: domain(),
        counts: Some(BudgetCounts { out, members, limit }),
        used_by: foreign_nodes(out),
    };
    let floor = Reason::CapacityFloor {
        domain: domain(),
        counts: Some(CapacityCounts { schedulable: out, members, minimum: limit }),
        out: foreign_nodes(out),
    };
    let maintenance = Reason::MaintenanceBudget {
        domain: domain(),
        counts: Some(BudgetCounts { out, members, limit }),
        out: foreign_nodes(out),
    };
    let waiting = Reason::FaultsWaiting { domain: domain(), nodes: foreign_nodes(out) };
    let user = || Actor::User("ann".to_owned());
    let text = || "a look at the cable".to_owned();
    let mut reasons = vec![
        Reason::Enrolled,
        open_findings(),
        Reason::VerificationFailed {
            level: VerificationLevel::V1,
            evidence: text(),
            findings: vec![7],
        },
        Reason::HeartbeatLost { since: at },
        Reason::FindingsUnreadable,
        Reason::InventoryUnknown,
        Reason::GpusUnreadable,
        Reason::FindingsCleared { verifying: true },
        Reason::Repaired,
        Reason::HoldEnded,
        Reason::Verified { joining: true },
        Reason::OperatorHold { by: user(), reason: text() },
        Reason::ExternalCordon { owner: "slurm".to_owned(), reason: text(), verified: true },
        Reason::CertificateRevoked { since: at },
        budget.clone(),
        Reason::FailureDomainFault {
            domain: domain(),
            symptom: Symptom::Network,
            cause: Some(Box::new(budget.clone())),
        },
        Reason::CommonSymptom {
            domain: domain(),
            symptom: Symptom::Network,
            window_s: 300,
            counts: Some(SymptomCounts { nodes: affected, members: total }),
        },
        Reason::NoCommonSymptom { domain: domain(), symptom: Symptom::Network },
        Reason::QuarantineNotAllowed { cause: Box::new(budget.clone()) },
        Reason::OrderNotAllowed { order: OrderKind::Reboot, autonomy: Autonomy::Observe },
        Reason::InUse,
        Reason::NeedsRepair {
            cause: Box::new(budget.clone()),
            action: Action::ResetGpu,
            attempted: RepairsAttempted::Limit { order: reset(), gpu: Some(location()), times: 3 },
        },
        Reason::RepeatedQuarantines { times: 5, days: 28 },
        Reason::Frozen { domain: domain(), by: user(), reason: text(), until: at },
        Reason::NeedsApproval { order: OrderKind::Reboot },
        Reason::OrderFailed {
            order: OrderKind::Cordon,
            failures: 3,
            last: OrderFailure::Cancelled(Box::new(budget)),
        },
        Reason::OrderExpired { order: OrderKind::Cordon, lease_until: at },
        Reason::OrderSuperseded { by: OrderKind::Cordon },
        Reason::OperatorRequest { by: user() },
        Reason::Withheld { original_code: "legacy".to_owned() },
        Reason::Rendered { original_code: "enrolled".to_owned(), text: text() },
        Reason::Legacy {
            text: format!("{out} of {members} nodes of the fleet are out of service"),
            findings: vec![7],
        },
    ];
    let window =
        pool.map(|pool| Reason::OutsideWindow { order: OrderKind::Reboot, pool, opens: at });
    reasons.extend(window);
    reasons.extend([floor, maintenance, waiting]);
    reasons.push(Reason::DomainRecovering { domain: domain(), symptom: Symptom::Network });
    let gap = Box::new(GapSummary {
        subject: Subject::Gpu(GpuUuid("GPU-1".to_owned())),
        gpu: Some(location()),
        source: GapSource::Signals(GapNames::new(["gpu.power_w".to_owned()])),
        cause: ReadError::nvml(999),
    });
    reasons.push(Reason::CoverageGap { gap, since: at, more: 2 });
    let (level, evidence) = (VerificationLevel::V1, text());
    reasons.push(Reason::VerificationInconclusive { level, evidence });
    reasons
}

/// One sample of each [`UnblockedBy`]. They name the whole fleet.
pub fn unblocked_by() -> Vec<UnblockedBy> {
    unblocked_by_naming(&Domain::Fleet, pool(), node())
}

/// One sample of each [`UnblockedBy`], with this domain, pool and node.
pub fn unblocked_by_naming(
    domain: &Domain,
    pool: Option<Pool>,
    node: Option<NodeId>,
) -> Vec<UnblockedBy> {
    let domain = || domain.clone();
    let at = Timestamp::UNIX_EPOCH;
    let mut all = vec![
        UnblockedBy::Verification,
        UnblockedBy::Finding,
        UnblockedBy::ConditionChange,
        UnblockedBy::VerificationResult,
        UnblockedBy::Repair,
        UnblockedBy::RepairAndVerification,
        UnblockedBy::Drain,
        UnblockedBy::Release,
        UnblockedBy::ExternalUncordon,
        UnblockedBy::PolicyOrHold,
        UnblockedBy::Policy,
        UnblockedBy::DomainRepair { domain: domain() },
        UnblockedBy::BudgetSlot { domain: domain() },
        UnblockedBy::FewerSymptoms { symptom: Symptom::Network },
        UnblockedBy::SymptomReturn,
        UnblockedBy::OperatorHold,
        UnblockedBy::OperatorRepair,
        UnblockedBy::OperatorReview,
        UnblockedBy::Unfreeze { at },
        UnblockedBy::Approval,
        UnblockedBy::WindowOrApproval { at },
        UnblockedBy::Retry { at },
        UnblockedBy::Legacy {
            text: "4711 of 4712 are back".to_owned(),
            changes_at: Some(at),
            approvable: true,
        },
    ];
    let enrolment = pool.zip(node).map(|(pool, node)| UnblockedBy::Enrolment { pool, node });
    all.extend(enrolment);
    all.push(UnblockedBy::Settled { at });
    all.push(UnblockedBy::Coverage { retry_at: Some(at) });
    all
}
