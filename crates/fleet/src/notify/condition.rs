//! Conditions: what is wrong with a node or a failure domain, as far as people are told about it.
//! They are derived from the state of the fleet, so no missed event can leave one behind.

use std::collections::BTreeMap;

use farrier_facts::text::first_sentence;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::notification::NotificationKind;
use crate::fleet::decide::affects_service;
use crate::fleet::identity::{Domain, NodeId};
use crate::fleet::order::OrderKind;
use crate::fleet::reason::{
    FindingSummary, GpuLocation, OrderFailure, Rationale, Reason, UnblockedBy, bounded,
};
use crate::fleet::state::{DisruptionSlot, DomainFault, Node, NodePhase, Symptom};
use crate::health::{Action, Finding, Severity, Subject};

/// Maximum number of conditions of an incident. A node with hundreds of findings has one message,
/// not a list.
const CONDITIONS_MAX: usize = 32;

/// What is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Condition {
    Finding {
        summary: FindingSummary,
        /// The first sentence of its text, cut to a limit.
        text: String,
        action: Action,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        remedy: Option<String>,
        /// Whether the server takes the node out of service or suspects it, and repairs it.
        affects_service: bool,
    },
    HeartbeatLost {
        since: Timestamp,
    },
    /// The node is suspect or out of service.
    Phase {
        phase: NodePhase,
        rationale: Rationale,
    },
    Deferred {
        rationale: Rationale,
    },
    OrderFailed {
        order: OrderKind,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        gpu: Option<GpuLocation>,
        count: u32,
        last: OrderFailure,
    },
    DomainFault {
        symptom: Symptom,
        rationale: Rationale,
    },
}

impl Condition {
    fn from_finding(node: &Node, finding: &Finding) -> Self {
        Self::Finding {
            summary: node.summary(finding),
            text: bounded(first_sentence(&finding.text)),
            action: finding.action,
            remedy: finding.remedy.as_deref().map(bounded),
            affects_service: affects_service(finding),
        }
    }

    pub fn kind(&self) -> NotificationKind {
        match self {
            Self::Finding { .. } => NotificationKind::Finding,
            Self::HeartbeatLost { .. } => NotificationKind::HeartbeatLost,
            Self::Phase { .. } => NotificationKind::NodePhase,
            Self::Deferred { .. } => NotificationKind::Deferred,
            Self::OrderFailed { .. } => NotificationKind::OrderFailed,
            Self::DomainFault { .. } => NotificationKind::DomainFault,
        }
    }

    /// Code of the finding or of the reason.
    pub fn code(&self) -> &str {
        match self {
            Self::Finding { summary, .. } => &summary.code,
            Self::HeartbeatLost { .. } => "heartbeat-lost",
            Self::Phase { rationale, .. }
            | Self::Deferred { rationale }
            | Self::DomainFault { rationale, .. } => rationale.reason.code(),
            Self::OrderFailed { .. } => "order-failed",
        }
    }

    pub fn severity(&self) -> Severity {
        match self {
            Self::Finding { summary, .. } => summary.severity,
            Self::HeartbeatLost { .. }
            | Self::OrderFailed { .. }
            | Self::Phase { phase: NodePhase::Suspect, .. } => Severity::Warning,
            Self::Phase { rationale, .. } => phase_severity(&rationale.reason),
            Self::Deferred { rationale } => {
                let waits_for_slot = DisruptionSlot::from_reason(&rationale.reason).is_some();
                if rationale.unblocked_by.needs_operator() || waits_for_slot {
                    Severity::Warning
                } else {
                    Severity::Info
                }
            }
            Self::DomainFault { .. } => Severity::Critical,
        }
    }

    /// Worst first. Of equally severe conditions, the cause comes before its consequences.
    pub(super) fn rank(&self) -> impl Ord + use<> {
        let consequence = match self {
            Self::DomainFault { .. } | Self::Finding { .. } => 0,
            Self::HeartbeatLost { .. } => 1,
            Self::Phase { .. } => 2,
            Self::OrderFailed { .. } => 3,
            Self::Deferred { .. } => 4,
        };
        (std::cmp::Reverse(self.severity()), consequence)
    }

    /// Whether a fault of a failure domain explains it.
    pub(super) fn is_explained_by(&self, fault: Symptom) -> bool {
        match self {
            Self::Finding { summary, .. } => Symptom::from_code(&summary.code) == Some(fault),
            Self::HeartbeatLost { .. } => fault == Symptom::HeartbeatLost,
            // What the controller does about the node follows from its other conditions.
            Self::Phase { .. } | Self::Deferred { .. } | Self::OrderFailed { .. } => true,
            Self::DomainFault { .. } => false,
        }
    }

    /// What the condition is about, if it is not the whole node.
    pub(super) fn subject(&self) -> Option<(&Subject, Option<&GpuLocation>)> {
        match self {
            Self::Finding { summary, .. }
                if !matches!(summary.subject, Subject::Node | Subject::Agent) =>
            {
                Some((&summary.subject, summary.gpu.as_ref()))
            }
            _ => None,
        }
    }
}

/// Severity of a node that is out of service for this reason.
fn phase_severity(reason: &Reason) -> Severity {
    match reason {
        Reason::OpenFindings { worst, .. } => worst.severity,
        Reason::NeedsRepair { cause, .. } | Reason::QuarantineNotAllowed { cause } => {
            phase_severity(cause)
        }
        // People took the node out, or it is on its way back.
        Reason::OperatorHold { .. }
        | Reason::ExternalCordon { .. }
        | Reason::Enrolled
        | Reason::Repaired
        | Reason::HoldEnded
        | Reason::FindingsCleared { .. }
        | Reason::Verified { .. }
        | Reason::DomainRecovering { .. }
        | Reason::FailureDomainFault { .. } => Severity::Info,
        _ => Severity::Critical,
    }
}

/// What an incident is about. A node has one incident for everything that affects its service,
/// however many causes and symptoms there are.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IncidentKey {
    /// The service of a node: findings that affect it, lost heartbeats, and what the controller
    /// does about them.
    Service(NodeId),
    /// Findings with this code on a node. They do not affect its service.
    Finding(NodeId, String),
    DomainFault(Domain),
}

impl IncidentKey {
    pub fn node(&self) -> Option<&NodeId> {
        match self {
            Self::Service(node) | Self::Finding(node, _) => Some(node),
            Self::DomainFault(_) => None,
        }
    }
}

/// The conditions of a node, by incident.
pub(super) fn of_node(id: &NodeId, node: &Node) -> BTreeMap<IncidentKey, Vec<Condition>> {
    let mut conditions: BTreeMap<IncidentKey, Vec<Condition>> = BTreeMap::new();
    for finding in node.open_findings() {
        let key = if affects_service(&finding) {
            IncidentKey::Service(id.clone())
        } else {
            IncidentKey::Finding(id.clone(), finding.code.clone())
        };
        conditions.entry(key).or_default().push(Condition::from_finding(node, &finding));
    }
    let service = of_service(node);
    if !service.is_empty() {
        conditions.entry(IncidentKey::Service(id.clone())).or_default().extend(service);
    }
    for conditions in conditions.values_mut() {
        conditions.sort_by_key(Condition::rank);
        conditions.truncate(CONDITIONS_MAX);
    }
    conditions
}

/// What is wrong with the service of a node, besides findings.
fn of_service(node: &Node) -> Vec<Condition> {
    let mut conditions = Vec::new();
    conditions.extend(
        node.liveness.heartbeat_lost_since().map(|since| Condition::HeartbeatLost { since }),
    );
    let phase = node.phase();
    if !matches!(phase, NodePhase::Joining | NodePhase::InService) {
        let rationale = node.phase.rationale().clone();
        conditions.push(Condition::Phase { phase, rationale });
    }
    conditions.extend(
        node.phase.deferred().map(|rationale| Condition::Deferred { rationale: rationale.clone() }),
    );
    conditions.extend(node.orders.failures().map(|failures| Condition::OrderFailed {
        order: failures.order.clone(),
        gpu: node.location_of_order(&failures.order),
        count: failures.count.get(),
        last: failures.reason.clone(),
    }));
    conditions
}

pub(super) fn of_domain(fault: &DomainFault) -> Condition {
    Condition::DomainFault { symptom: fault.symptom, rationale: fault.rationale.clone() }
}

/// What a person has to do about a rationale. `None` if nothing.
pub(super) fn operator_task(rationale: &Rationale) -> Option<UnblockedBy> {
    let Rationale { reason, unblocked_by } = rationale;
    // The controller can only wait for the end of a domain fault. People can repair the domain.
    if let Reason::CommonSymptom { domain, .. } = reason {
        return Some(UnblockedBy::DomainRepair { domain: domain.clone() });
    }
    let needs_person = unblocked_by.needs_operator()
        || matches!(unblocked_by, UnblockedBy::Enrolment { .. } | UnblockedBy::DomainRepair { .. })
        || DisruptionSlot::from_reason(reason).is_some();
    needs_person.then(|| unblocked_by.clone())
}
