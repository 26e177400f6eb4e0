//! What would lead to another decision.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::fleet::identity::{Domain, NodeId, Pool};
use crate::fleet::state::Symptom;

/// What would lead to another decision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "code", content = "params", rename_all = "kebab-case", deny_unknown_fields)]
pub enum UnblockedBy {
    /// The required verifications pass.
    Verification,
    /// A new finding opens.
    Finding,
    /// The condition clears, lasts too long or gets worse.
    ConditionChange,
    /// What cannot be read is readable again.
    Coverage {
        /// When the verification is repeated even if the reading has not returned.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        retry_at: Option<Timestamp>,
    },
    /// The running verification ends.
    VerificationResult,
    /// The node is repaired, by an order or by hand.
    Repair,
    /// The node is repaired and verified.
    RepairAndVerification,
    /// The node is drained again, because its cordon was removed.
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
    /// The policy allows the action, or an operator holds the node.
    PolicyOrHold,
    /// The policy allows the action.
    Policy,
    /// The domain is repaired.
    DomainRepair { domain: Domain },
    /// A node of the domain returns to service, or the policy allows more nodes to be out of
    /// service.
    BudgetSlot { domain: Domain },
    /// The time that the findings get to clear is over.
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
    /// An approver approves the order.
    Approval,
    /// The repair window opens, or an approver approves the order.
    WindowOrApproval { at: Timestamp },
    /// The controller tries again.
    Retry { at: Timestamp },
    /// An unblocking condition from a log of format 1, as text.
    Legacy {
        text: String,
        /// When the mere passing of time leads to another decision.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        changes_at: Option<Timestamp>,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        approvable: bool,
    },
}

impl UnblockedBy {
    pub const CODES: [&str; 26] = [
        "verification",
        "finding",
        "condition-change",
        "coverage",
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
            Self::Coverage { .. } => "coverage",
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

    /// When the mere passing of time leads to another decision. `None` if it never does.
    pub fn changes_at(&self) -> Option<Timestamp> {
        match self {
            Self::Unfreeze { at }
            | Self::WindowOrApproval { at }
            | Self::Retry { at }
            | Self::Settled { at } => Some(*at),
            Self::Coverage { retry_at } => *retry_at,
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
