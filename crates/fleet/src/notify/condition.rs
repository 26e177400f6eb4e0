//! Conditions: what is wrong with a node or a failure domain, as far as people are told about it.
//! They are derived from the state of the fleet, so no missed event can leave one behind.

use std::borrow::{Borrow, Cow};
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
use crate::health::{Action, Finding, FindingKind, Severity, Subject};

/// Maximum number of findings of an incident. A node with hundreds of findings has one message, not
/// a list.
const FINDINGS_MAX: usize = 32;
/// Maximum number of codes of a node that have their own incident. There are about 150 rules, but
/// an agent may send any code, and each may be a group with its own messages.
const CODES_MAX: usize = 32;
/// In the key of the incident of all other codes.
const OTHER_CODES: &str = "other";

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
        /// Whether it is no fault, so that it is no symptom of a domain fault.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        is_advice: bool,
    },
    HeartbeatLost {
        since: Timestamp,
        /// Whether the certificates of the node are revoked. This is the cause then, and no domain
        /// fault is.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        is_revoked: bool,
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
            is_advice: finding.kind == FindingKind::Advice,
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

    /// How it relates to a fault of a failure domain that its node is in. Only what the node's
    /// state counts as a symptom ([`Node::symptoms`]) makes the node part of the fault.
    pub(super) fn relation(&self, fault: Symptom) -> FaultRelation {
        let of_symptom = |is_of_symptom: bool| {
            if is_of_symptom { FaultRelation::Explained } else { FaultRelation::Independent }
        };
        match self {
            Self::Finding { summary, is_advice, .. } => {
                of_symptom(!is_advice && Symptom::from_code(&summary.code) == Some(fault))
            }
            Self::HeartbeatLost { is_revoked, .. } => {
                of_symptom(!is_revoked && fault == Symptom::HeartbeatLost)
            }
            Self::Phase { rationale, .. } | Self::Deferred { rationale } => {
                relation_of_reason(&rationale.reason, fault)
            }
            // An agent that is not reached does not finish orders in time. Any other failure is
            // the node's own.
            Self::OrderFailed { last: OrderFailure::Cancelled(reason), .. }
                if matches!(**reason, Reason::OrderExpired { .. })
                    && matches!(fault, Symptom::HeartbeatLost | Symptom::Network) =>
            {
                FaultRelation::Consequence
            }
            Self::OrderFailed { .. } | Self::DomainFault { .. } => FaultRelation::Independent,
        }
    }

    /// How many nodes showed the symptom of a domain fault when it was detected.
    pub(super) fn nodes_at_detection(&self) -> Option<usize> {
        match self {
            Self::DomainFault { rationale, .. } => match &rationale.reason {
                Reason::CommonSymptom { counts: Some(counts), .. } => {
                    usize::try_from(counts.nodes).ok()
                }
                _ => None,
            },
            _ => None,
        }
    }

    /// The condition as callers with this scope may see it.
    pub(super) fn redacted(&self, scope: &Domain) -> Self {
        match self.clone() {
            Self::Phase { phase, rationale } => {
                Self::Phase { phase, rationale: rationale.redacted(scope) }
            }
            Self::Deferred { rationale } => Self::Deferred { rationale: rationale.redacted(scope) },
            Self::OrderFailed { order, gpu, count, last } => {
                Self::OrderFailed { order, gpu, count, last: last.redacted(scope) }
            }
            Self::DomainFault { symptom, rationale } => {
                Self::DomainFault { symptom, rationale: rationale.redacted(scope) }
            }
            other @ (Self::Finding { .. } | Self::HeartbeatLost { .. }) => other,
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

/// How a condition of a node relates to a fault of a failure domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FaultRelation {
    /// The fault is its cause.
    Explained,
    /// The node is on its way back into service.
    Returning,
    /// It follows from other conditions of the node, whatever explains these.
    Consequence,
    /// The node's own trouble.
    Independent,
}

fn relation_of_reason(reason: &Reason, fault: Symptom) -> FaultRelation {
    let follows = |is_of_symptom: bool| {
        if is_of_symptom { FaultRelation::Consequence } else { FaultRelation::Independent }
    };
    match reason {
        Reason::FailureDomainFault { symptom, .. } | Reason::DomainRecovering { symptom, .. }
            if *symptom == fault =>
        {
            FaultRelation::Explained
        }
        Reason::OpenFindings { worst, .. } => {
            follows(Symptom::from_code(&worst.code) == Some(fault))
        }
        Reason::HeartbeatLost { .. } => follows(fault == Symptom::HeartbeatLost),
        Reason::NeedsRepair { cause, .. } | Reason::QuarantineNotAllowed { cause } => {
            relation_of_reason(cause, fault)
        }
        Reason::Enrolled
        | Reason::Repaired
        | Reason::HoldEnded
        | Reason::FindingsCleared { .. }
        | Reason::Verified { .. } => FaultRelation::Returning,
        // These say what the next step for the node waits for.
        Reason::OperatorHold { .. }
        | Reason::ExternalCordon { .. }
        | Reason::DisruptionBudget { .. }
        | Reason::CapacityFloor { .. }
        | Reason::OrderNotAllowed { .. }
        | Reason::InUse
        | Reason::Frozen { .. }
        | Reason::NeedsApproval { .. }
        | Reason::OutsideWindow { .. }
        | Reason::OperatorRequest { .. } => FaultRelation::Consequence,
        _ => FaultRelation::Independent,
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

/// The conditions of a node, by incident. Findings that do not affect service have one incident per
/// code, up to a limit; codes with a `known` incident keep it before others get one.
pub(super) fn of_node(
    id: &NodeId,
    node: &Node,
    is_known: impl Fn(&IncidentKey) -> bool,
) -> BTreeMap<IncidentKey, Vec<Condition>> {
    let mut findings: BTreeMap<IncidentKey, Vec<Cow<'_, Finding>>> = BTreeMap::new();
    for finding in node.open_findings() {
        let key = if affects_service(&finding) {
            IncidentKey::Service(id.clone())
        } else {
            IncidentKey::Finding(id.clone(), finding.code.clone())
        };
        findings.entry(key).or_default().push(finding);
    }
    let mut conditions: BTreeMap<IncidentKey, Vec<Condition>> = BTreeMap::new();
    for (key, mut findings) in with_few_codes(id, findings, is_known) {
        findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        findings.truncate(FINDINGS_MAX);
        let found = findings.iter().map(|finding| Condition::from_finding(node, finding));
        conditions.insert(key, found.collect());
    }
    let service = of_service(node);
    if !service.is_empty() {
        conditions.entry(IncidentKey::Service(id.clone())).or_default().extend(service);
    }
    for conditions in conditions.values_mut() {
        conditions.sort_by_key(Condition::rank);
    }
    conditions
}

/// Combines the findings of all but [`CODES_MAX`] codes in one incident. The most severe codes keep
/// their own.
fn with_few_codes<F: Borrow<Finding>>(
    id: &NodeId,
    findings: BTreeMap<IncidentKey, Vec<F>>,
    is_known: impl Fn(&IncidentKey) -> bool,
) -> BTreeMap<IncidentKey, Vec<F>> {
    if findings.len() <= CODES_MAX {
        return findings;
    }
    let mut ranked: Vec<(IncidentKey, Vec<F>)> = findings.into_iter().collect();
    ranked.sort_by_cached_key(|(key, findings)| {
        let worst = findings.iter().map(|finding| finding.borrow().severity).max();
        // The incident of the service is no finding's code, and always stays.
        let is_finding = matches!(key, IncidentKey::Finding(..));
        (is_finding, std::cmp::Reverse(worst), !is_known(key), key.clone())
    });
    let others = ranked.split_off(CODES_MAX);
    let mut kept: BTreeMap<IncidentKey, Vec<F>> = ranked.into_iter().collect();
    let other = kept.entry(IncidentKey::Finding(id.clone(), OTHER_CODES.to_owned())).or_default();
    other.extend(others.into_iter().flat_map(|(_, findings)| findings));
    kept
}

/// What is wrong with the service of a node, besides findings.
fn of_service(node: &Node) -> Vec<Condition> {
    let mut conditions = Vec::new();
    let is_revoked = node.liveness.certificate_revoked_at().is_some();
    let lost_since = node.liveness.heartbeat_lost_since();
    conditions.extend(lost_since.map(|since| Condition::HeartbeatLost { since, is_revoked }));
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
