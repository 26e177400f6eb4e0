//! Typed reasons for decisions, refusals and deferrals, and what unblocks the deferred actions. The
//! codes are stable. `params.rs` has the types of the fields, `describe.rs` renders reasons in
//! English, and `redact.rs` limits what a caller with a narrower scope sees. Nothing parses the
//! rendered sentences.

mod describe;
mod legacy;
mod params;
mod redact;
pub mod samples;
mod unblocked_by;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

pub(crate) use describe::{order_text, subject_text, times_text};
pub(crate) use legacy::{upgrade_event, upgrade_state};
pub(crate) use params::bounded;
pub use params::{
    BudgetCounts, CapacityCounts, FindingSummary, GapSummary, GpuLocation, NodeNames, OrderFailure,
    RepairsAttempted, SymptomCounts,
};
pub use unblocked_by::UnblockedBy;

use super::identity::{Actor, Domain, Pool};
use super::order::{OrderKind, VerificationLevel};
use super::policy::Autonomy;
use super::state::Symptom;
use crate::health::Action;

/// The reason for a decision, and what would lead to another decision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rationale {
    pub reason: Reason,
    pub unblocked_by: UnblockedBy,
}

impl Rationale {
    pub fn new(reason: Reason, unblocked_by: UnblockedBy) -> Self {
        Self { reason, unblocked_by }
    }
}

/// Why something was decided, refused or deferred. Codes are stable, and fields are only added.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "code", content = "params", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Reason {
    /// The node enrolled and is not verified yet.
    Enrolled,
    /// Open findings make the node suspect or unfit.
    OpenFindings {
        worst: FindingSummary,
        /// Number of further findings that affect service.
        more: u32,
        /// Numbers of the worst findings, up to a limit.
        findings: Vec<u64>,
    },
    /// A verification failed.
    VerificationFailed {
        level: VerificationLevel,
        /// The text from the agent, cut to a limit.
        evidence: String,
        /// Numbers of related open findings.
        findings: Vec<u64>,
    },
    /// Heartbeats are overdue.
    HeartbeatLost {
        /// When the last heartbeat arrived.
        since: Timestamp,
    },
    /// The server cannot decode the node's findings.
    FindingsUnreadable,
    /// The agent has been unable to read something for longer than the policy allows.
    CoverageGap {
        gap: Box<GapSummary>,
        since: Timestamp,
        /// Number of further gaps.
        #[serde(default, skip_serializing_if = "super::state::is_zero")]
        more: u32,
    },
    /// A verification has no result, because something could not be read.
    VerificationInconclusive {
        level: VerificationLevel,
        /// The text from the agent, cut to a limit.
        evidence: String,
    },
    /// The node has not reported its inventory yet.
    InventoryUnknown,
    /// The node could not read its GPUs.
    GpusUnreadable,
    /// All findings that affected service are cleared.
    FindingsCleared {
        /// Whether a verification follows.
        verifying: bool,
    },
    /// A repair was made.
    Repaired,
    /// A hold or an external cordon ended.
    HoldEnded,
    /// The required verifications passed.
    Verified {
        /// Whether the node was joining.
        joining: bool,
    },
    /// An operator holds the node.
    OperatorHold {
        by: Actor,
        /// The operator's reason, cut to a limit.
        reason: String,
    },
    /// Another tool or person cordoned the node.
    ExternalCordon {
        /// The owner, as far as the scheduler reports it.
        owner: String,
        /// The owner's reason, cut to a limit.
        reason: String,
        /// Whether the node has passed its verification.
        verified: bool,
    },
    /// The certificates of the node were revoked. Its state is unknown, and no order reaches it.
    CertificateRevoked { since: Timestamp },
    /// The domain's disruption budget is used up.
    DisruptionBudget {
        domain: Domain,
        /// `None` for a caller who does not see the whole domain.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        counts: Option<BudgetCounts>,
        /// Nodes that use the budget. Empty for a caller who does not see the whole domain.
        #[serde(default, skip_serializing_if = "NodeNames::is_empty")]
        used_by: NodeNames,
    },
    /// Too few nodes of the domain take work, whatever took the others out of service.
    CapacityFloor {
        domain: Domain,
        /// `None` for a caller who does not see the whole domain.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        counts: Option<CapacityCounts>,
        /// Nodes that take no work. Empty for a caller who does not see the whole domain.
        #[serde(default, skip_serializing_if = "NodeNames::is_empty")]
        out: NodeNames,
    },
    /// As many nodes of the domain take no work as may while nodes are changed.
    MaintenanceBudget {
        domain: Domain,
        /// Counts nodes that take no work, whatever took them out of service. `None` for a caller
        /// who does not see the whole domain.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        counts: Option<BudgetCounts>,
        /// Nodes that take no work. Empty for a caller who does not see the whole domain.
        #[serde(default, skip_serializing_if = "NodeNames::is_empty")]
        out: NodeNames,
    },
    /// Nodes of the domain have to be quarantined, which takes precedence over maintenance.
    FaultsWaiting {
        domain: Domain,
        /// Nodes that wait. Empty for a caller who does not see the whole domain.
        #[serde(default, skip_serializing_if = "NodeNames::is_empty")]
        nodes: NodeNames,
    },
    /// The failure domain is faulty, and the node itself is not.
    FailureDomainFault {
        domain: Domain,
        /// What the nodes of the domain show.
        symptom: Symptom,
        /// What is still wrong with the node after its repairs.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cause: Option<Box<Reason>>,
    },
    /// The fault of a failure domain has ended, and the findings get time to clear.
    DomainRecovering {
        domain: Domain,
        /// What the nodes of the domain showed.
        symptom: Symptom,
    },
    /// Several nodes of a domain began to show the same symptom.
    CommonSymptom {
        domain: Domain,
        symptom: Symptom,
        /// The nodes began to show the symptom within this time.
        window_s: u32,
        /// `None` for a caller who does not see the whole domain.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        counts: Option<SymptomCounts>,
    },
    /// Too few nodes of a domain show the symptom to indicate a common cause.
    NoCommonSymptom { domain: Domain, symptom: Symptom },
    /// The pool's policy does not allow a quarantine.
    QuarantineNotAllowed {
        /// Why the node would be quarantined.
        cause: Box<Reason>,
    },
    /// The pool's policy does not allow an order.
    OrderNotAllowed { order: OrderKind, autonomy: Autonomy },
    /// The node takes work, so it is neither tested nor changed.
    #[serde(alias = "takes-work")]
    InUse,
    /// Only a person can repair the node.
    NeedsRepair {
        cause: Box<Reason>,
        /// The action that the fault requires.
        action: Action,
        /// Which repairs were ordered before.
        #[serde(alias = "tried")]
        attempted: RepairsAttempted,
    },
    /// The node was quarantined too often.
    RepeatedQuarantines {
        times: u32,
        /// Period over which the quarantines were counted.
        days: u32,
    },
    /// No order may change nodes of a domain.
    Frozen {
        domain: Domain,
        by: Actor,
        /// The reason of the freeze, cut to a limit.
        reason: String,
        until: Timestamp,
    },
    /// An order needs an approval.
    NeedsApproval { order: OrderKind },
    /// An order has to wait until a repair window of the pool opens.
    OutsideWindow { order: OrderKind, pool: Pool, opens: Timestamp },
    /// An order failed too often.
    OrderFailed {
        order: OrderKind,
        failures: u32,
        /// The last failure.
        last: OrderFailure,
    },
    /// An order was not finished within its lease.
    OrderExpired { order: OrderKind, lease_until: Timestamp },
    /// A more urgent order replaces an order that waits. The replaced order is issued again later.
    OrderSuperseded { by: OrderKind },
    /// An operator requested the order.
    OperatorRequest { by: Actor },
    /// A reason of which the caller may see only the code.
    Withheld {
        #[serde(rename = "code", alias = "of")]
        original_code: String,
    },
    /// The reason of an order as the agent receives it: the code, and text that the server
    /// rendered.
    Rendered {
        #[serde(rename = "code", alias = "of")]
        original_code: String,
        text: String,
    },
    /// A reason from a log of format 1, in which reasons were sentences.
    Legacy {
        text: String,
        /// Numbers of the findings that caused it.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        findings: Vec<u64>,
    },
}

impl Reason {
    /// The codes of all reasons that decisions have.
    pub const CODES: [&str; 37] = [
        "enrolled",
        "open-findings",
        "verification-failed",
        "heartbeat-lost",
        "findings-unreadable",
        "coverage-gap",
        "verification-inconclusive",
        "inventory-unknown",
        "gpus-unreadable",
        "findings-cleared",
        "repaired",
        "hold-ended",
        "verified",
        "operator-hold",
        "external-cordon",
        "certificate-revoked",
        "disruption-budget",
        "capacity-floor",
        "maintenance-budget",
        "faults-waiting",
        "failure-domain-fault",
        "domain-recovering",
        "common-symptom",
        "no-common-symptom",
        "quarantine-not-allowed",
        "order-not-allowed",
        "in-use",
        "needs-repair",
        "repeated-quarantines",
        "frozen",
        "needs-approval",
        "outside-window",
        "order-failed",
        "order-expired",
        "order-superseded",
        "operator-request",
        "legacy",
    ];

    /// The stable code, as in JSON.
    pub fn code(&self) -> &str {
        match self {
            Self::Enrolled => "enrolled",
            Self::OpenFindings { .. } => "open-findings",
            Self::VerificationFailed { .. } => "verification-failed",
            Self::HeartbeatLost { .. } => "heartbeat-lost",
            Self::FindingsUnreadable => "findings-unreadable",
            Self::CoverageGap { .. } => "coverage-gap",
            Self::VerificationInconclusive { .. } => "verification-inconclusive",
            Self::InventoryUnknown => "inventory-unknown",
            Self::GpusUnreadable => "gpus-unreadable",
            Self::FindingsCleared { .. } => "findings-cleared",
            Self::Repaired => "repaired",
            Self::HoldEnded => "hold-ended",
            Self::Verified { .. } => "verified",
            Self::OperatorHold { .. } => "operator-hold",
            Self::ExternalCordon { .. } => "external-cordon",
            Self::CertificateRevoked { .. } => "certificate-revoked",
            Self::DisruptionBudget { .. } => "disruption-budget",
            Self::CapacityFloor { .. } => "capacity-floor",
            Self::MaintenanceBudget { .. } => "maintenance-budget",
            Self::FaultsWaiting { .. } => "faults-waiting",
            Self::FailureDomainFault { .. } => "failure-domain-fault",
            Self::DomainRecovering { .. } => "domain-recovering",
            Self::CommonSymptom { .. } => "common-symptom",
            Self::NoCommonSymptom { .. } => "no-common-symptom",
            Self::QuarantineNotAllowed { .. } => "quarantine-not-allowed",
            Self::OrderNotAllowed { .. } => "order-not-allowed",
            Self::InUse => "in-use",
            Self::NeedsRepair { .. } => "needs-repair",
            Self::RepeatedQuarantines { .. } => "repeated-quarantines",
            Self::Frozen { .. } => "frozen",
            Self::NeedsApproval { .. } => "needs-approval",
            Self::OutsideWindow { .. } => "outside-window",
            Self::OrderFailed { .. } => "order-failed",
            Self::OrderExpired { .. } => "order-expired",
            Self::OrderSuperseded { .. } => "order-superseded",
            Self::OperatorRequest { .. } => "operator-request",
            Self::Withheld { original_code } | Self::Rendered { original_code, .. } => {
                original_code
            }
            Self::Legacy { .. } => "legacy",
        }
    }

    /// The reason without PCI addresses of GPUs whose index is known, for lists with little room.
    #[must_use]
    pub fn without_addresses(&self) -> Self {
        let mut brief = self.clone();
        match &mut brief {
            Self::OpenFindings { worst, .. } => {
                worst.gpu = worst.gpu.take().map(GpuLocation::without_address);
            }
            Self::CoverageGap { gap, .. } => {
                gap.gpu = gap.gpu.take().map(GpuLocation::without_address);
            }
            Self::QuarantineNotAllowed { cause }
            | Self::FailureDomainFault { cause: Some(cause), .. } => {
                **cause = cause.without_addresses();
            }
            Self::NeedsRepair { cause, attempted, .. } => {
                **cause = cause.without_addresses();
                if let RepairsAttempted::Limit { gpu, .. } = attempted {
                    *gpu = gpu.take().map(GpuLocation::without_address);
                }
            }
            _ => {}
        }
        brief
    }

    /// Numbers of the node's findings that caused the decision.
    pub fn findings(&self) -> &[u64] {
        match self {
            Self::OpenFindings { findings, .. }
            | Self::VerificationFailed { findings, .. }
            | Self::Legacy { findings, .. } => findings,
            Self::NeedsRepair { cause, .. }
            | Self::FailureDomainFault { cause: Some(cause), .. } => cause.findings(),
            _ => &[],
        }
    }

    /// Whether a missing reading is the only reason to doubt the node.
    pub fn is_missing_coverage(&self) -> bool {
        matches!(self, Self::CoverageGap { .. } | Self::VerificationInconclusive { .. })
    }

    pub fn is_heartbeat_lost(&self) -> bool {
        match self {
            Self::HeartbeatLost { .. } => true,
            Self::QuarantineNotAllowed { cause } | Self::NeedsRepair { cause, .. } => {
                cause.is_heartbeat_lost()
            }
            _ => false,
        }
    }
}

impl GpuLocation {
    /// The location without the PCI address, if the index is known.
    #[must_use]
    pub fn without_address(self) -> Self {
        Self { pci: self.pci.filter(|_| self.index.is_none()), ..self }
    }
}

#[cfg(test)]
mod tests;
