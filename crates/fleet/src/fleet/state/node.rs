//! One node. The types of its fields cannot represent impossible combinations. The code here passes
//! each event to the fields that it changes.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::coverage::NodeCoverage;
use super::inventory::Inventory;
use super::liveness::Liveness;
use super::orders::{Orders, PendingOrder};
use super::phase::{NodePhase, PhaseStatus};
use super::repairs::{RepairAttempt, Repairs};
use super::reports::Reports;
use super::requests::OperatorRequests;
use super::scheduling::Scheduling;
use super::sparse::Sparse;
use super::symptom::Symptom;
use super::timers::add_seconds;
use super::urgency::Urgency;
use super::verification::Verification;
use crate::fleet::access::AccessChange;
use crate::fleet::coverage::CoverageReport;
use crate::fleet::event::{Entry, Event, NodeInventory, OperatorRequest};
use crate::fleet::identity::{Actor, Domain, Location};
use crate::fleet::order::{Order, OrderKind, OrderStatus};
use crate::fleet::policy::Policy;
use crate::fleet::reason::{OrderFailure, Rationale, Reason, UnblockedBy, bounded};
use crate::health::FindingKind;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Node {
    #[serde(alias = "place")]
    pub location: Location,
    /// `seq` of the node's enrolment. Entries before it concern another node that had the same
    /// name.
    pub first_seq: u64,
    pub phase: PhaseStatus,
    /// `None` before the first report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inventory: Option<Inventory>,
    /// Heartbeats and certificates.
    pub liveness: Liveness,
    pub reports: Reports,
    pub scheduling: Scheduling,
    #[serde(default, skip_serializing_if = "Sparse::is_empty")]
    pub requests: Sparse<OperatorRequests>,
    pub orders: Orders,
    pub verification: Verification,
    /// Repairs since the node was last in service.
    #[serde(default, skip_serializing_if = "Sparse::is_empty")]
    pub repairs: Sparse<Repairs>,
    /// `None` if the node was never in service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_in_service_at: Option<Timestamp>,
    /// When the node was quarantined. Covers the last year.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub quarantines: Vec<Timestamp>,
    /// Whether the node was held since it was last in service.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub held_since_service: bool,
    /// `None` if nothing is wrong with the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub urgency: Option<Urgency>,
    /// Symptoms that other nodes in its failure domains may share. For each symptom, the time since
    /// when the node shows it, by the clock of the server.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub symptoms: BTreeMap<Symptom, Timestamp>,
    /// When to evaluate the node again.
    #[serde(default, alias = "wake", skip_serializing_if = "Option::is_none")]
    pub next_deadline: Option<Timestamp>,
}

/// A hold by an operator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    pub by: Actor,
    pub reason: String,
}

impl Hold {
    pub(in crate::fleet) fn as_reason(&self) -> Reason {
        Reason::OperatorHold { by: self.by.clone(), reason: bounded(&self.reason) }
    }
}

/// An operator-requested order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestedOrder {
    #[serde(alias = "what")]
    pub order: OrderKind,
    pub by: Actor,
}

/// The result of an operator-requested order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestedOrderResult {
    #[serde(alias = "what")]
    pub order: OrderKind,
    /// `None` in states that earlier servers wrote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
    pub at: Timestamp,
    /// The final status. If the controller cancelled the order, the status is `Refused` with an
    /// empty reason.
    #[serde(alias = "answer")]
    pub status: OrderStatus,
    /// Why the controller cancelled the order, if it did.
    #[serde(default, alias = "withdrawn", skip_serializing_if = "Option::is_none")]
    pub cancelled: Option<Reason>,
}

impl Node {
    pub(super) fn joining(location: Location, at: Timestamp, generation: u64) -> Self {
        let rationale = Rationale::new(Reason::Enrolled, UnblockedBy::Verification);
        Self {
            location,
            first_seq: 0,
            phase: PhaseStatus::new(NodePhase::Joining, rationale, at),
            inventory: None,
            liveness: Liveness::default(),
            reports: Reports::default(),
            scheduling: Scheduling::default(),
            requests: Sparse::default(),
            orders: Orders::from_generation(generation),
            verification: Verification::default(),
            repairs: Sparse::default(),
            first_in_service_at: None,
            quarantines: Vec::new(),
            held_since_service: false,
            urgency: None,
            symptoms: BTreeMap::new(),
            next_deadline: None,
        }
    }

    pub fn phase(&self) -> NodePhase {
        self.phase.phase()
    }

    /// Returns `None` before the first report.
    pub fn reported_inventory(&self) -> Option<&std::sync::Arc<NodeInventory>> {
        self.inventory.as_ref().map(|inventory| &inventory.reported)
    }

    /// Whether the node is quarantined, repairing, verifying or held.
    pub fn is_out(&self) -> bool {
        !matches!(self.phase(), NodePhase::InService | NodePhase::Suspect | NodePhase::Joining)
    }

    pub fn waits_for_approval(&self) -> bool {
        !self.repairs.is_approved()
            && self.phase.deferred().is_some_and(|rationale| rationale.unblocked_by.is_approvable())
    }
}

impl Node {
    pub(in crate::fleet) fn apply(&mut self, entry: &Entry) {
        match &entry.event {
            Event::LocationChanged { location, .. } => self.location = location.clone(),
            Event::InventoryReported { inventory, .. } => self.apply_inventory(inventory),
            Event::HeartbeatLost { since, .. } => self.liveness.lose_heartbeat(*since),
            Event::AccessChanged { change: AccessChange::CertificateRevoked { .. }, .. } => {
                self.liveness.revoke_certificate(entry.at);
            }
            Event::HeartbeatRestored { .. } => {
                self.liveness.restore();
                // Orders that failed because the node was not connected are not failures of the
                // node.
                self.orders.end_failures();
            }
            Event::FindingsReported { record, changes, .. } => {
                let was_unfit = self.has_service_affecting_findings();
                self.reports.add(record, changes);
                self.dismiss_device_failure_after_findings(was_unfit);
            }
            Event::FindingsSnapshot { record, open, .. } => {
                let was_unfit = self.has_service_affecting_findings();
                self.reports.replace(record, open);
                self.dismiss_device_failure_after_findings(was_unfit);
            }
            Event::CordonObserved { cordon, .. } => self.scheduling.observe(cordon),
            Event::OrderStatusReported { generation, status, .. } => {
                self.update_order(*generation, status, entry.at);
            }
            Event::OrderGenerationObserved { generation, .. } => self.orders.skip_to(*generation),
            Event::QuotaExceeded { .. } => self.reports.exceed_quota(entry.at),
            Event::QuotaRestored { .. } => self.reports.keep_quota(),
            Event::ReportsUnreadable { .. } => self.reports.become_unreadable(entry.at),
            Event::ReportsReadable { .. } => self.reports.become_readable(),
            Event::CoverageReported { coverage, .. } => self.apply_coverage(coverage),
            Event::PhaseChanged { to, rationale, .. } => self.enter_phase(*to, rationale, entry.at),
            Event::OrderCancelled { generation, reason, .. } => {
                self.cancel_order(*generation, reason, entry.at);
            }
            Event::Deferred { rationale, .. } => self.phase.defer(Some(rationale.clone())),
            _ => {}
        }
        self.note_symptoms(entry.at);
    }

    fn apply_coverage(&mut self, coverage: &CoverageReport) {
        self.reports.replace_coverage(coverage);
        // A verification without a result is repeated now, and not after its back-off.
        let is_full = *self.coverage() == NodeCoverage::Full;
        if is_full && self.verification.inconclusive().is_some() {
            self.orders.end_failed_verifications();
        }
    }

    fn apply_inventory(&mut self, inventory: &NodeInventory) {
        if self.reported_inventory().is_some_and(|before| before.boot != inventory.boot) {
            // Results from an earlier boot are void, and a failed verification may pass now.
            self.verification.discard_results();
            self.verification.dismiss_failure();
        }
        let inventory = Inventory::after(self.inventory.as_ref(), inventory, |gpu| {
            self.findings().values().any(|finding| finding.subject.gpu() == Some(gpu))
        });
        self.inventory = Some(inventory);
    }

    fn enter_phase(&mut self, to: NodePhase, why: &Rationale, at: Timestamp) {
        match to {
            NodePhase::Quarantined | NodePhase::Repairing => {
                if to == NodePhase::Quarantined && !self.is_out() {
                    let year = SignedDuration::from_hours(365 * 24);
                    self.quarantines
                        .retain(|quarantined_at| at.duration_since(*quarantined_at) < year);
                    self.quarantines.push(at);
                }
                self.repairs.change_present(Repairs::did_not_help);
                self.verification.discard_results();
            }
            // Anything may have changed while the node was held.
            NodePhase::Verifying if self.phase() == NodePhase::Held => {
                self.verification.discard_results();
                self.verification.dismiss_failure();
            }
            NodePhase::Held => self.held_since_service = true,
            NodePhase::InService => {
                self.first_in_service_at.get_or_insert(at);
                self.held_since_service = false;
                self.repairs.clear();
                self.verification.dismiss_failure();
            }
            _ => {}
        }
        if to != NodePhase::Suspect {
            self.verification.dismiss_inconclusive();
        }
        self.phase.enter(to, why.clone(), at);
        self.orders.end_failures();
    }

    pub(in crate::fleet) fn ordered(&mut self, order: &Order) {
        self.phase.defer(None);
        // The faults are recorded now, because a fault may clear before the final status of the
        // repair arrives.
        let faults = order.kind.is_repair().then(|| self.faults());
        self.orders.issue(order.clone(), faults);
    }

    fn update_order(&mut self, generation: u64, status: &OrderStatus, at: Timestamp) {
        if *status == OrderStatus::Accepted {
            return self.orders.accept(generation);
        }
        let Some(PendingOrder { order, faults, .. }) = self.orders.take(generation) else { return };
        if order.kind.is_operator_requested() {
            return self.finish_requested_order(order, status, None, at);
        }
        let kind = order.kind;
        match (status, &kind) {
            (OrderStatus::Done { evidence }, _) => {
                self.orders.end_failures();
                if kind.is_repair() {
                    self.repaired();
                    let attempt = RepairAttempt::Ordered { order: kind, faults, at: Some(at) };
                    self.repairs.change(|repairs| repairs.attempt(attempt));
                } else {
                    self.done(&kind, evidence, at);
                }
            }
            (OrderStatus::Failed { reason }, OrderKind::Verify { level }) => {
                self.verification.fail(*level, at, reason);
                self.phase.verified(*level);
                self.orders.fail(kind, OrderFailure::Reported(reason.clone()), at);
            }
            // The level is verified again, after the back-off or when there are no gaps any more.
            (OrderStatus::Inconclusive { reason }, OrderKind::Verify { level }) => {
                self.verification.end_without_result(*level, reason);
                self.orders.fail(kind, OrderFailure::Reported(reason.clone()), at);
            }
            // An agent that does not support this order keeps its counters and findings. The repair
            // counts as acknowledged, and findings that stay open still affect the node.
            (
                OrderStatus::Failed { .. }
                | OrderStatus::Inconclusive { .. }
                | OrderStatus::Refused { .. },
                OrderKind::AcknowledgeRepair { .. },
            ) => {
                self.repairs.change_present(Repairs::acknowledge);
            }
            (
                OrderStatus::Failed { reason }
                | OrderStatus::Inconclusive { reason }
                | OrderStatus::Refused { reason },
                _,
            ) => {
                self.orders.fail(kind, OrderFailure::Reported(reason.clone()), at);
            }
            (OrderStatus::Accepted, _) => {}
        }
    }

    fn done(&mut self, kind: &OrderKind, evidence: &str, at: Timestamp) {
        match kind {
            OrderKind::Cordon => self.scheduling.cordoned(),
            OrderKind::Drain { .. } => self.scheduling.drained(),
            OrderKind::Uncordon => self.scheduling.uncordoned(),
            OrderKind::Verify { level } => {
                self.verification.pass(*level, at, evidence);
                self.phase.verified(*level);
            }
            OrderKind::AcknowledgeRepair { .. } => {
                self.repairs.change_present(Repairs::acknowledge);
            }
            // Repairs are recorded as attempts. Operator-requested orders end in
            // `finish_requested_order`.
            other => debug_assert!(other.is_repair() || other.is_operator_requested(), "{other}"),
        }
    }

    /// Stores the result. The order is never retried: the operator sees the result and can request
    /// it again.
    fn finish_requested_order(
        &mut self,
        order: Order,
        status: &OrderStatus,
        cancelled: Option<Reason>,
        at: Timestamp,
    ) {
        if order.kind.changes() {
            self.verification.discard_results();
        }
        // A test that ran counts as a verification. A refused test says nothing about the GPUs.
        match (order.kind.verifies(), status) {
            (Some(level), OrderStatus::Done { evidence }) => {
                self.verification.pass(level, at, evidence);
            }
            (Some(level), OrderStatus::Failed { reason }) => {
                self.verification.fail(level, at, reason);
            }
            _ => {}
        }
        self.requests.change(|requests| {
            requests.finish_requested_order(order, status.clone(), cancelled, at);
        });
    }

    /// After a repair, earlier verification results are void, and orders that failed may be tried
    /// again.
    fn repaired(&mut self) {
        self.verification.discard_results();
        self.verification.dismiss_failure();
        self.orders.end_failures();
    }

    /// An operator repaired the node, or the failure domain that it waits for.
    pub(super) fn repaired_by_hand(&mut self, repair: &str) {
        self.repaired();
        self.repairs.change(|repairs| repairs.attempt_by_hand(repair));
    }

    /// Whether the node is out of service until this domain is repaired.
    pub(super) fn waits_for_repair_of(&self, domain: &Domain) -> bool {
        let waits = self.phase.deferred().map(|deferred| &deferred.unblocked_by);
        let is_domain = |waits: &UnblockedBy| match waits {
            UnblockedBy::DomainRepair { domain: other } => other == domain,
            _ => false,
        };
        self.is_out() && waits.is_some_and(is_domain)
    }

    fn cancel_order(&mut self, generation: u64, reason: &Reason, at: Timestamp) {
        let Some(pending) = self.orders.take(generation) else { return };
        // The superseded order is issued again later, so this is not a failure.
        if matches!(reason, Reason::OrderSuperseded { .. }) {
            return;
        }
        let order = pending.order;
        if order.kind.is_operator_requested() {
            let refused = OrderStatus::Refused { reason: String::new() };
            return self.finish_requested_order(order, &refused, Some(reason.clone()), at);
        }
        self.orders.fail(order.kind, OrderFailure::Cancelled(Box::new(reason.clone())), at);
    }

    pub(super) fn handle_request(&mut self, request: &OperatorRequest, entry: &Entry) {
        match request {
            OperatorRequest::Hold { reason, .. } => {
                let hold = Hold { by: entry.by.clone(), reason: reason.clone() };
                self.requests.change(|requests| requests.hold = Some(hold));
            }
            OperatorRequest::Release { .. } => {
                self.requests.change_present(|requests| requests.hold = None);
            }
            OperatorRequest::Approve { .. } => self.repairs.change(Repairs::approve),
            OperatorRequest::Repaired { repair, .. } => self.repaired_by_hand(repair),
            OperatorRequest::Verify { level, .. } => {
                self.verification.discard_result(*level);
                self.verification.dismiss_failure_of(*level);
                self.phase.request_verification(*level);
            }
            OperatorRequest::RunOrder { order, .. } => {
                let requested_order = RequestedOrder { order: order.clone(), by: entry.by.clone() };
                self.requests.change(|requests| requests.requested_order = Some(requested_order));
            }
            OperatorRequest::Freeze { .. }
            | OperatorRequest::Unfreeze { .. }
            | OperatorRequest::Mute { .. }
            | OperatorRequest::Unmute { .. }
            | OperatorRequest::AcknowledgeAlerts { .. }
            | OperatorRequest::RetryNotifications { .. }
            | OperatorRequest::DropNotifications { .. }
            | OperatorRequest::DomainRepaired { .. } => {}
        }
    }

    /// When to evaluate the node again if no event concerns it: the earliest of its timers.
    pub(super) fn next_deadline_at(&self, policy: &Policy) -> Option<Timestamp> {
        let (pool, phase) = (policy.for_pool(&self.location.pool), self.phase());
        let lease = self.orders.pending().map(|pending| pending.order.lease_until);
        let is_suspect = phase == NodePhase::Suspect;
        let deferred = self.phase.deferred();
        // The quarantine is due already. A slot that becomes free triggers the next evaluation.
        let waits_for_slot = self.waits_for_slot().is_some();
        let is_timed = is_suspect && !waits_for_slot;
        let heartbeat = self.heartbeat_deadline(pool).filter(|_| is_timed);
        let lacks_coverage = self.phase.rationale().reason.is_missing_coverage();
        let escalates = is_timed && (pool.coverage_gap_quarantines || !lacks_coverage);
        let suspect = escalates.then(|| self.phase.deadline(pool.suspect_timeout_s));
        let in_service = phase == NodePhase::InService;
        let coverage = self.coverage_deadline(pool).filter(|_| in_service);
        let settled = (phase == NodePhase::Verifying).then(|| self.phase.deadline(pool.settle_s));
        let failures = self.orders.failures();
        let retry =
            failures.map(|last| add_seconds(last.at, pool.retry_backoff_after(last.count.get())));
        // Any other deferred quarantine is evaluated at every tick.
        let is_repeated = (is_suspect || phase == NodePhase::Joining) && !waits_for_slot;
        let deferred = deferred.and_then(|rationale| {
            rationale.unblocked_by.changes_at().or(is_repeated.then_some(self.phase.since()))
        });
        [lease, heartbeat, suspect, coverage, settled, retry, deferred].into_iter().flatten().min()
    }
}

impl Node {
    /// Updates the symptoms. Uses the time of the server, because the clocks of nodes may be hours
    /// apart.
    fn note_symptoms(&mut self, at: Timestamp) {
        let faults = self.findings().values().filter(|finding| finding.kind == FindingKind::Fault);
        let mut shown: BTreeSet<Symptom> =
            faults.filter_map(|finding| Symptom::from_code(&finding.code)).collect();
        let lost_since = self.liveness.heartbeat_lost_since();
        // A node with revoked certificates sends no heartbeats because of the revocation. Its lost
        // heartbeat does not indicate a domain fault.
        if lost_since.is_some() && self.liveness.certificate_revoked_at().is_none() {
            shown.insert(Symptom::HeartbeatLost);
        }
        self.symptoms.retain(|symptom, _| shown.contains(symptom));
        for symptom in shown {
            let since = lost_since.filter(|_| symptom == Symptom::HeartbeatLost).unwrap_or(at);
            self.symptoms.entry(symptom).or_insert(since);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fleet can have 100,000 nodes, and the state holds all of them in memory.
    #[test]
    fn a_node_stays_small() {
        let bytes = size_of::<Node>();
        assert!(bytes <= 816, "{bytes}");
    }
}
