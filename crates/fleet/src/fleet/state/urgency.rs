//! How urgently a node should leave service. Nodes that wait for the same disruption budget leave
//! in this order.

use std::cmp::Reverse;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::node::Node;
use super::phase::NodePhase;
use crate::fleet::decide::affects_service;
use crate::fleet::identity::NodeId;
use crate::health::Severity;

/// The severity of the worst condition of a node, and since when the condition is at least this
/// severe. The time is by the clock of the server, because the clocks of nodes may be hours apart
/// or wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Urgency {
    pub severity: Severity,
    pub since: Timestamp,
}

/// A quarantine that is due. Claims are ordered by severity, then by age. The first claim gets the
/// next free slot.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct QuarantineClaim {
    severity: Reverse<Severity>,
    since: Timestamp,
    pub node: NodeId,
}

impl Node {
    /// The claim of this node. It is meaningful only if a quarantine of the node is due.
    pub fn quarantine_claim(&self, id: &NodeId) -> QuarantineClaim {
        let unknown = Urgency { severity: Severity::Warning, since: self.phase.since() };
        let Urgency { severity, since } = self.urgency.unwrap_or(unknown);
        QuarantineClaim { severity: Reverse(severity), since, node: id.clone() }
    }

    /// Updates the urgency. If the severity falls, `since` stays the same, because the node has
    /// been at least this urgent since then.
    pub(super) fn note_urgency(&mut self, at: Timestamp) {
        self.urgency = self.worst_severity().map(|severity| {
            let before = self.urgency.filter(|before| before.severity >= severity);
            Urgency { severity, since: before.map_or(at, |before| before.since) }
        });
    }

    /// Returns `None` if nothing is wrong. A failed verification counts as a critical finding. The
    /// same applies to a node that may be dead.
    fn worst_severity(&self) -> Option<Severity> {
        let findings = self.findings().values().filter(|finding| affects_service(finding));
        let worst = findings.map(|finding| finding.severity).max();
        let has_failed =
            self.verification.failure().is_some() && self.phase() != NodePhase::Joining;
        let critical = has_failed || self.liveness.heartbeat_loss().is_some();
        let gpus = self.reported_inventory().and_then(|inventory| inventory.gpus.as_ref());
        let unknown = self.reports.unreadable_since().is_some()
            || gpus.is_none()
            || self.phase.rationale().reason.is_missing_coverage();
        worst.max(critical.then_some(Severity::Critical)).max(unknown.then_some(Severity::Warning))
    }
}
