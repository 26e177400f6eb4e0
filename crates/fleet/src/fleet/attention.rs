//! Computes which nodes need a person, or may need one soon, and why. Like a decision, this is a
//! pure function of the state and the time. Unlike a decision, it changes nothing.

use jiff::{SignedDuration, Timestamp};

use super::reason::{Rationale, Reason, UnblockedBy};
use super::state::{Node, NodePhase};
use crate::health::{FindingKind, Severity};

/// A hold that is older than this was probably forgotten, because a repair takes a working day if
/// the part is in stock.
const HELD_LONG: SignedDuration = SignedDuration::from_hours(24);

/// Why a node needs a person. The most urgent cause is first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AttentionCause {
    /// The node should be out of service, but a budget, a floor or the policy keeps it at work.
    QuarantineBlocked,
    /// Heartbeats are overdue: nothing is known about the node.
    HeartbeatLost,
    /// A rack, a switch or another failure domain has to be repaired.
    DomainFault,
    /// An order failed too often.
    OrderFailed,
    /// A repair waits for an approval.
    NeedsApproval,
    /// Only a person can repair the node.
    NeedsRepair,
    /// The node was quarantined too often.
    Lemon,
    /// The server does not know the node's findings, inventory or GPUs.
    StateUnknown,
    /// The policy does not allow an order that is due.
    PolicyBlocks,
    /// The node has to enrol again.
    CertificateRevoked,
    /// Someone has held the node for more than a day.
    HeldLong,
}

impl AttentionCause {
    /// Every cause, most urgent first.
    pub const ALL: [Self; 11] = [
        Self::QuarantineBlocked,
        Self::HeartbeatLost,
        Self::DomainFault,
        Self::OrderFailed,
        Self::NeedsApproval,
        Self::NeedsRepair,
        Self::Lemon,
        Self::StateUnknown,
        Self::PolicyBlocks,
        Self::CertificateRevoked,
        Self::HeldLong,
    ];

    /// The stable code, as in JSON.
    pub fn code(self) -> &'static str {
        match self {
            Self::QuarantineBlocked => "quarantine-blocked",
            Self::HeartbeatLost => "heartbeat-lost",
            Self::DomainFault => "domain-fault",
            Self::OrderFailed => "order-failed",
            Self::NeedsApproval => "needs-approval",
            Self::NeedsRepair => "needs-repair",
            Self::Lemon => "lemon",
            Self::StateUnknown => "state-unknown",
            Self::PolicyBlocks => "policy-blocks",
            Self::CertificateRevoked => "certificate-revoked",
            Self::HeldLong => "held-long",
        }
    }

    /// The cause with this code. `None` for the code of a newer server.
    pub fn from_code(code: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|cause| cause.code() == code)
    }
}

/// Says that a node needs a person, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeAttention {
    pub cause: AttentionCause,
    /// Severity of the worst open fault. `None` if there is none.
    pub severity: Option<Severity>,
    /// When the cause began, as far as the state records it.
    pub since: Timestamp,
}

/// Returns why the node needs a person, or `None` if it needs none. `deferred` is the reason why an
/// action of the node has to wait at the moment.
pub fn attention(
    node: &Node,
    deferred: Option<&Rationale>,
    now: Timestamp,
) -> Option<NodeAttention> {
    let faults = node.findings().values().filter(|finding| finding.kind == FindingKind::Fault);
    let severity = faults.map(|finding| finding.severity).max();
    let found = |cause, since| NodeAttention { cause, severity, since };
    // A revoked certificate hides every other problem: the server no longer hears from the node.
    if let Some(at) = node.liveness.certificate_revoked_at() {
        return Some(found(AttentionCause::CertificateRevoked, at));
    }
    let waits = deferred.and_then(deferral_cause);
    // Heartbeats may be lost because a person holds the node and has turned it off.
    let is_explained =
        waits == Some(AttentionCause::DomainFault) || node.phase() == NodePhase::Held;
    let lost = node.liveness.heartbeat_lost_since().filter(|_| !is_explained);
    let lost = lost.map(|since| found(AttentionCause::HeartbeatLost, since));
    let waits = waits.map(|cause| found(cause, node.phase.since()));
    let unknown = phase_cause(node, now).map(|cause| found(cause, node.phase.since()));
    [waits, lost, unknown].into_iter().flatten().min_by_key(|attention| attention.cause)
}

/// Why a deferred action needs a person. `None` if the action only waits for time to pass, or for
/// another node.
fn deferral_cause(deferred: &Rationale) -> Option<AttentionCause> {
    let cause = match (&deferred.reason, &deferred.unblocked_by) {
        (
            Reason::DisruptionBudget { .. }
            | Reason::CapacityFloor { .. }
            | Reason::QuarantineNotAllowed { .. },
            _,
        ) => AttentionCause::QuarantineBlocked,
        (Reason::RepeatedQuarantines { .. }, _) => AttentionCause::Lemon,
        (Reason::OrderFailed { .. } | Reason::VerificationFailed { .. }, _) => {
            AttentionCause::OrderFailed
        }
        (_, UnblockedBy::DomainRepair { .. }) => AttentionCause::DomainFault,
        (_, UnblockedBy::Approval) => AttentionCause::NeedsApproval,
        (_, UnblockedBy::OperatorRepair | UnblockedBy::OperatorReview) => {
            AttentionCause::NeedsRepair
        }
        (_, UnblockedBy::Policy | UnblockedBy::PolicyOrHold) => AttentionCause::PolicyBlocks,
        _ => return None,
    };
    Some(cause)
}

/// Why the phase itself needs a person.
fn phase_cause(node: &Node, now: Timestamp) -> Option<AttentionCause> {
    match &node.phase.rationale().reason {
        Reason::FindingsUnreadable
        | Reason::GpusUnreadable
        | Reason::InventoryUnknown
        | Reason::CoverageGap { .. } => Some(AttentionCause::StateUnknown),
        Reason::OperatorHold { .. } | Reason::ExternalCordon { .. }
            if node.phase() == NodePhase::Held
                && now.duration_since(node.phase.since()) >= HELD_LONG =>
        {
            Some(AttentionCause::HeldLong)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::LOGIC_VERSION;
    use crate::fleet::event::{Entry, Event};
    use crate::fleet::identity::{Actor, Domain, Location, NodeId};
    use crate::fleet::reason::{NodeNames, samples};
    use crate::fleet::state::{FleetState, Symptom};

    const HOUR_S: i64 = 3600;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn name() -> NodeId {
        "gpu-1".parse().unwrap()
    }

    /// A node that joined at 0, after these events.
    fn node_after(events: &[(i64, Event)]) -> Node {
        let location = Location::in_pool("train".parse().unwrap());
        let enrolled = (0, Event::Enrolled { node: name(), location });
        let mut state = FleetState::default();
        for (seq, (second, event)) in (1..).zip([enrolled].iter().chain(events)) {
            let entry = Entry {
                seq,
                batch: seq,
                at: at(*second),
                by: Actor::Server,
                logic: LOGIC_VERSION,
                event: event.clone(),
            };
            state.apply(&entry);
        }
        Node::clone(&state.nodes[&name()])
    }

    fn held(at: i64, by: Actor) -> (i64, Event) {
        let reason = Reason::OperatorHold { by, reason: "cable".to_owned() };
        let rationale = Rationale::new(reason, UnblockedBy::Release);
        (at, Event::PhaseChanged { node: name(), to: NodePhase::Held, rationale })
    }

    #[test]
    fn the_codes_are_distinct_and_most_urgent_first() {
        for cause in AttentionCause::ALL {
            assert_eq!(AttentionCause::from_code(cause.code()), Some(cause));
        }
        assert!(AttentionCause::ALL.is_sorted());
        assert_eq!(AttentionCause::from_code("from-a-newer-server"), None);
    }

    #[test]
    fn a_joining_node_and_a_wait_for_time_need_no_person() {
        let node = node_after(&[]);
        assert_eq!(attention(&node, None, at(0)), None);
        let recovering =
            samples::reasons().into_iter().find(|reason| reason.code() == "domain-recovering");
        let waits = Rationale::new(recovering.unwrap(), UnblockedBy::Settled { at: at(9) });
        assert_eq!(attention(&node, Some(&waits), at(0)), None);
    }

    #[test]
    fn whatever_needs_an_operator_needs_attention() {
        let node = node_after(&[]);
        for reason in samples::reasons() {
            for unblocked_by in [
                UnblockedBy::OperatorRepair,
                UnblockedBy::OperatorReview,
                UnblockedBy::Approval,
                UnblockedBy::PolicyOrHold,
            ] {
                let waits = Rationale::new(reason.clone(), unblocked_by);
                assert!(attention(&node, Some(&waits), at(0)).is_some(), "{waits:?}");
            }
        }
    }

    #[test]
    fn a_domain_fault_explains_lost_heartbeats_and_a_blocked_quarantine_does_not() {
        let node = node_after(&[(9, Event::HeartbeatLost { node: name(), since: at(5) })]);
        let lost = attention(&node, None, at(9)).unwrap();
        assert_eq!((lost.cause, lost.since), (AttentionCause::HeartbeatLost, at(5)));
        let cause = |reason: Reason, unblocked_by: UnblockedBy| {
            let waits = Rationale::new(reason, unblocked_by);
            attention(&node, Some(&waits), at(9)).unwrap().cause
        };
        let domain: Domain = "rack:r1".parse().unwrap();
        let budget = Reason::DisruptionBudget {
            domain: domain.clone(),
            counts: None,
            used_by: NodeNames::default(),
        };
        let slot = UnblockedBy::BudgetSlot { domain: domain.clone() };
        assert_eq!(cause(budget, slot), AttentionCause::QuarantineBlocked);
        let fault = Reason::FailureDomainFault {
            domain: domain.clone(),
            symptom: Symptom::HeartbeatLost,
            cause: None,
        };
        assert_eq!(cause(fault, UnblockedBy::DomainRepair { domain }), AttentionCause::DomainFault);
    }

    #[test]
    fn a_hold_needs_attention_only_after_a_day() {
        // Its heartbeats stop, because it is turned off.
        let lost = (90, Event::HeartbeatLost { node: name(), since: at(80) });
        let node = node_after(&[held(60, Actor::User("ann".to_owned())), lost]);
        assert_eq!(attention(&node, None, at(23 * HOUR_S)), None);
        let late = attention(&node, None, at(60 + 24 * HOUR_S)).unwrap();
        assert_eq!((late.cause, late.severity), (AttentionCause::HeldLong, None));
        assert_eq!(late.since, at(60));
    }
}
