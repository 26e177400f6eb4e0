//! Typed reasons for decisions, refusals and deferrals, and what unblocks them. Their codes are
//! stable. `describe.rs` describes them in English, and `redact.rs` limits what a caller with a
//! narrower scope sees. Nothing parses the sentences.

mod describe;
mod legacy;
mod redact;
pub mod samples;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

pub(crate) use describe::{order_text, subject_text};
pub(crate) use legacy::{upgrade_event, upgrade_state};

use super::event::GpuInventory;
use super::identity::{Actor, Domain, NodeId, Pool};
use super::order::{OrderKind, VerificationLevel};
use super::policy::Autonomy;
use super::state::Symptom;
use crate::health::{Action, Finding, Severity, Subject};

/// The reason of a decision, and what would lead to another decision.
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
    /// A failure domain is faulty, not the node itself.
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
    /// An order waits for a repair window.
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
    /// The caller may see only the code.
    Withheld {
        #[serde(rename = "code", alias = "of")]
        original_code: String,
    },
    /// The reason of an order, as the agent receives it: text that the server rendered.
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

/// The counts of a disruption budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BudgetCounts {
    /// Nodes that the controller keeps out of service.
    pub out: u32,
    /// All nodes of the domain.
    pub members: u32,
    /// Nodes that the controller may keep out of service at once.
    pub limit: u32,
}

/// The counts of a capacity floor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CapacityCounts {
    /// Nodes that take work.
    pub schedulable: u32,
    /// All nodes of the domain.
    pub members: u32,
    /// Nodes that must take work.
    pub minimum: u32,
}

/// Names of some nodes. Every deferral is a log entry, so the list is short.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeNames {
    pub first: Vec<NodeId>,
    /// Number of further nodes.
    #[serde(default)]
    pub more: u32,
}

impl NodeNames {
    /// Most names in a list.
    const FIRST_MAX: usize = 8;

    /// The first names of `nodes`, of which there are `total`.
    pub(super) fn new(nodes: impl Iterator<Item = NodeId>, total: u32) -> Self {
        let first: Vec<NodeId> = nodes.take(Self::FIRST_MAX).collect();
        let more = total.saturating_sub(u32::try_from(first.len()).unwrap_or(u32::MAX));
        Self { first, more }
    }

    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The counts of a common symptom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SymptomCounts {
    /// Nodes that show the symptom.
    pub nodes: u32,
    /// All nodes of the domain.
    pub members: u32,
}

/// Identifies a finding to a person.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FindingSummary {
    /// Code of the rule.
    pub code: String,
    /// Distinguishes findings of the same rule and subject. Cut to a limit.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
    pub severity: Severity,
    pub subject: Subject,
    /// Location of the subject, if it is a GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<GpuLocation>,
}

/// Location of a GPU, for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuLocation {
    /// NVML index.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<u32>,
    /// PCI address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pci: Option<String>,
}

/// Repairs that were ordered before an operator has to act.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RepairsAttempted {
    /// No order can repair the fault.
    None,
    /// Every order that can repair the fault was attempted.
    All,
    /// An order that could repair this fault has already reached the policy's limit of attempts,
    /// for other faults.
    Limit {
        order: OrderKind,
        /// Location of the GPU that the order resets.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        gpu: Option<GpuLocation>,
        times: u32,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OrderFailure {
    /// The text that the agent reported.
    Reported(String),
    /// The controller cancelled the order.
    #[serde(alias = "withdrawn")]
    Cancelled(Box<Reason>),
}

/// What would lead to another decision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "code", content = "params", rename_all = "kebab-case", deny_unknown_fields)]
pub enum UnblockedBy {
    /// The required verifications pass.
    Verification,
    /// A new finding.
    Finding,
    /// The condition clears, lasts too long or gets worse.
    ConditionChange,
    /// The running verification ends.
    VerificationResult,
    /// A repair, by order or by hand.
    Repair,
    /// A repair and a verification.
    RepairAndVerification,
    /// A new drain, because the cordon was removed.
    Drain,
    /// The operator releases the hold.
    Release,
    /// The owner of the cordon removes it.
    ExternalUncordon,
    /// The node enrols again, or is retired.
    Enrolment {
        /// The pool in which the node has to enrol.
        pool: Pool,
        node: NodeId,
    },
    /// The policy allows it, or an operator holds the node.
    PolicyOrHold,
    /// The policy allows it.
    Policy,
    /// The domain is repaired.
    DomainRepair { domain: Domain },
    /// A node of the domain returns to service, or the policy allows more nodes out of service.
    BudgetSlot { domain: Domain },
    /// The findings have had time to clear.
    Settled { at: Timestamp },
    /// Fewer nodes show the symptom.
    FewerSymptoms { symptom: Symptom },
    /// Several nodes show the same symptom again.
    SymptomReturn,
    /// An operator holds the node.
    OperatorHold,
    /// An operator repairs the node and reports it.
    OperatorRepair,
    /// An operator inspects the node, and repairs or holds it.
    OperatorReview,
    /// The freeze ends.
    Unfreeze {
        /// When the freeze expires.
        at: Timestamp,
    },
    /// An approval.
    Approval,
    /// The repair window opens, or an approver approves the order.
    WindowOrApproval { at: Timestamp },
    /// The next attempt.
    Retry { at: Timestamp },
    /// From a log of format 1.
    Legacy {
        text: String,
        /// When time alone leads to another decision.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        changes_at: Option<Timestamp>,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        approvable: bool,
    },
}

impl Reason {
    /// The codes of all reasons that decisions have.
    pub const CODES: [&str; 33] = [
        "enrolled",
        "open-findings",
        "verification-failed",
        "heartbeat-lost",
        "findings-unreadable",
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

impl UnblockedBy {
    pub const CODES: [&str; 25] = [
        "verification",
        "finding",
        "condition-change",
        "verification-result",
        "repair",
        "repair-and-verification",
        "drain",
        "release",
        "external-uncordon",
        "enrolment",
        "policy-or-hold",
        "policy",
        "domain-repair",
        "budget-slot",
        "settled",
        "fewer-symptoms",
        "symptom-return",
        "operator-hold",
        "operator-repair",
        "operator-review",
        "unfreeze",
        "approval",
        "window-or-approval",
        "retry",
        "legacy",
    ];

    /// The stable code, as in JSON.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Verification => "verification",
            Self::Finding => "finding",
            Self::ConditionChange => "condition-change",
            Self::VerificationResult => "verification-result",
            Self::Repair => "repair",
            Self::RepairAndVerification => "repair-and-verification",
            Self::Drain => "drain",
            Self::Release => "release",
            Self::ExternalUncordon => "external-uncordon",
            Self::Enrolment { .. } => "enrolment",
            Self::PolicyOrHold => "policy-or-hold",
            Self::Policy => "policy",
            Self::DomainRepair { .. } => "domain-repair",
            Self::BudgetSlot { .. } => "budget-slot",
            Self::Settled { .. } => "settled",
            Self::FewerSymptoms { .. } => "fewer-symptoms",
            Self::SymptomReturn => "symptom-return",
            Self::OperatorHold => "operator-hold",
            Self::OperatorRepair => "operator-repair",
            Self::OperatorReview => "operator-review",
            Self::Unfreeze { .. } => "unfreeze",
            Self::Approval => "approval",
            Self::WindowOrApproval { .. } => "window-or-approval",
            Self::Retry { .. } => "retry",
            Self::Legacy { .. } => "legacy",
        }
    }

    /// When time alone leads to another decision. `None` if it never does.
    pub fn changes_at(&self) -> Option<Timestamp> {
        match self {
            Self::Unfreeze { at }
            | Self::WindowOrApproval { at }
            | Self::Retry { at }
            | Self::Settled { at } => Some(*at),
            Self::Legacy { changes_at, .. } => *changes_at,
            _ => None,
        }
    }

    /// Whether an approval leads to another decision.
    pub fn is_approvable(&self) -> bool {
        matches!(
            self,
            Self::Approval | Self::WindowOrApproval { .. } | Self::Legacy { approvable: true, .. }
        )
    }

    /// Whether an operator or approver has to act, or can unblock the node by acting.
    pub fn needs_operator(&self) -> bool {
        matches!(
            self,
            Self::OperatorHold
                | Self::OperatorRepair
                | Self::OperatorReview
                | Self::Approval
                | Self::WindowOrApproval { .. }
                | Self::PolicyOrHold
        )
    }
}

impl FindingSummary {
    pub(super) fn new(finding: &Finding, gpu: Option<&GpuInventory>) -> Self {
        Self {
            code: finding.code.clone(),
            detail: bounded(&finding.detail),
            severity: finding.severity,
            subject: finding.subject.clone(),
            gpu: gpu.and_then(GpuLocation::new),
        }
    }
}

impl GpuLocation {
    pub(super) fn new(gpu: &GpuInventory) -> Option<Self> {
        let is_known = gpu.index.is_some() || gpu.pci.is_some();
        is_known.then(|| Self { index: gpu.index, pci: gpu.pci.clone() })
    }
}

/// Most bytes of a text in a reason. Such texts come from nodes, other tools and people, and each
/// decision repeats them.
const TEXT_BYTES_MAX: usize = 512;

/// Cuts a text to the limit.
pub(crate) fn bounded(text: &str) -> String {
    if text.len() <= TEXT_BYTES_MAX {
        return text.to_owned();
    }
    let end = (0..=TEXT_BYTES_MAX).rev().find(|at| text.is_char_boundary(*at)).unwrap_or_default();
    format!("{}…", &text[..end])
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;

    /// The code in the JSON of a value.
    fn code_in(value: &Value) -> &str {
        value["code"].as_str().unwrap()
    }

    #[test]
    fn every_reason_has_a_sample_and_its_code_matches_its_json() {
        let mut codes = BTreeSet::new();
        for reason in samples::reasons() {
            let json = serde_json::to_value(&reason).unwrap();
            assert_eq!(serde_json::from_value::<Reason>(json.clone()).unwrap(), reason);
            match &reason {
                Reason::Withheld { .. } | Reason::Rendered { .. } => continue,
                _ => assert_eq!(code_in(&json), reason.code()),
            }
            codes.insert(reason.code().to_owned());
        }
        assert_eq!(codes, Reason::CODES.map(str::to_owned).into());
        let mut codes = BTreeSet::new();
        for unblocked_by in samples::unblocked_by() {
            let json = serde_json::to_value(&unblocked_by).unwrap();
            assert_eq!(serde_json::from_value::<UnblockedBy>(json.clone()).unwrap(), unblocked_by);
            assert_eq!(code_in(&json), unblocked_by.code());
            codes.insert(unblocked_by.code());
        }
        assert_eq!(codes, UnblockedBy::CODES.into());
    }

    #[test]
    fn every_reason_reads_as_a_sentence_and_not_as_its_code() {
        for reason in samples::reasons() {
            let text = reason.to_string();
            assert!(text.contains(' ') && text != reason.code(), "{reason:?}: {text}");
        }
        for unblocked_by in samples::unblocked_by() {
            assert!(unblocked_by.to_string().contains(' '), "{unblocked_by:?}");
        }
    }

    /// Everything that a caller with this scope sees of the rationale, as text.
    fn redacted_text(rationale: &Rationale, scope: &Domain) -> String {
        let redacted = rationale.redacted(scope);
        let json = serde_json::to_string(&redacted).unwrap();
        format!("{json} {} {}", redacted.reason, redacted.unblocked_by)
    }

    #[test]
    fn a_caller_of_one_pool_sees_no_counts_and_no_nodes_of_others() {
        let pool: Domain = "pool:train".parse().unwrap();
        for reason in samples::reasons() {
            for unblocked_by in samples::unblocked_by() {
                let rationale = Rationale::new(reason.clone(), unblocked_by);
                let text = redacted_text(&rationale, &pool);
                for count in samples::FOREIGN_COUNTS {
                    assert!(!text.contains(&count.to_string()), "{reason:?} shows {count}: {text}");
                }
                assert!(!text.contains(samples::FOREIGN_NODE), "{reason:?} shows {text}");
                assert_eq!(rationale.redacted(&Domain::Fleet), rationale);
            }
            assert_eq!(reason.redacted(&pool).code(), reason.code(), "the code is always shown");
        }
    }

    #[test]
    fn a_caller_of_one_pool_sees_no_names_of_others() {
        let [scope, other]: [Domain; 2] =
            ["pool:train", "pool:zz-secret"].map(|domain| domain.parse().unwrap());
        let (pool, node) = ("zz-secret".parse().ok(), "zz-node".parse().ok());
        for reason in samples::reasons_naming(&other, pool.clone()) {
            for unblocked_by in samples::unblocked_by_naming(&other, pool.clone(), node.clone()) {
                let rationale = Rationale::new(reason.clone(), unblocked_by);
                let text = redacted_text(&rationale, &scope);
                assert!(!text.contains("zz-"), "{rationale:?} shows {text}");
                let redacted = rationale.redacted(&scope).unblocked_by;
                assert_eq!(redacted.changes_at(), rationale.unblocked_by.changes_at());
                assert_eq!(redacted.is_approvable(), rationale.unblocked_by.is_approvable());
            }
            assert_eq!(reason.redacted(&scope).code(), reason.code(), "the code is always shown");
        }
    }

    #[test]
    fn a_caller_of_one_pool_sees_its_own_counts() {
        let counts = Some(BudgetCounts { out: 1, members: 2, limit: 1 });
        let domain: Domain = "pool:train".parse().unwrap();
        let used_by = NodeNames::new(["gpu-1".parse().unwrap()].into_iter(), 1);
        let reason = Reason::DisruptionBudget { domain: domain.clone(), counts, used_by };
        assert_eq!(reason.redacted(&domain), reason);
        let for_tenant = reason.redacted(&"tenant:train".parse().unwrap());
        let used_by = NodeNames::default();
        assert_eq!(for_tenant, Reason::DisruptionBudget { domain, counts: None, used_by });
        let for_other = reason.redacted(&"pool:training".parse().unwrap());
        assert_eq!(for_other, Reason::Withheld { original_code: "disruption-budget".to_owned() });
    }

    /// A log stores no sentences, so the wording can change and every log can still be replayed.
    #[test]
    fn no_sentence_is_stored() {
        for reason in samples::reasons() {
            let stores_text = matches!(reason, Reason::Rendered { .. } | Reason::Legacy { .. });
            let json = serde_json::to_string(&reason).unwrap();
            assert!(stores_text || !json.contains(&reason.to_string()), "{json}");
        }
        for unblocked_by in samples::unblocked_by() {
            let stores_text = matches!(unblocked_by, UnblockedBy::Legacy { .. });
            let json = serde_json::to_string(&unblocked_by).unwrap();
            assert!(stores_text || !json.contains(&unblocked_by.to_string()), "{json}");
        }
    }

    #[test]
    fn long_texts_are_cut_at_a_character() {
        assert_eq!(bounded("short"), "short");
        let cut = bounded(&"ä".repeat(400));
        assert!(cut.len() < 520 && cut.ends_with("ä…"), "{cut}");
    }
}
