//! The state of the fleet: a fold over the log. The same entries give the same state, byte for
//! byte.

mod coverage;
mod disruption;
mod fault;
mod inventory;
mod legacy;
mod liveness;
mod node;
mod orders;
mod parts;
mod phase;
mod quota;
mod repairs;
mod reports;
mod requests;
mod scheduling;
mod sparse;
mod symptom;
mod timers;
mod urgency;
mod verification;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::access::AccessChange;
use super::event::{Entry, Event, OperatorRequest};
use super::identity::{Actor, Domain, Location, NodeId};
use super::policy::Policy;
use super::reason::Rationale;
use crate::notify::Mute;
pub use coverage::{NodeCoverage, OpenGaps};
pub use disruption::{DisruptionIndex, DisruptionSlot};
pub use fault::FaultKey;
pub use inventory::Inventory;
pub use liveness::{HeartbeatLoss, Liveness};
pub use node::{Hold, Node, RequestedOrder, RequestedOrderResult};
pub use orders::{FailureStreak, Orders, PendingOrder};
pub use phase::{NodePhase, PhaseStatus};
pub use repairs::{RepairAttempt, Repairs};
pub use reports::Reports;
pub use requests::OperatorRequests;
pub use scheduling::{CordonOwner, ExternalCordon, Scheduling};
pub use sparse::Sparse;
pub use symptom::Symptom;
pub(crate) use timers::add_seconds;
pub use urgency::{QuarantineClaim, Urgency};
pub use verification::{FailedVerification, Verification, VerificationResult};

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self")]
pub struct FleetState {
    /// `seq` of the last applied entry.
    pub seq: u64,
    /// Time of the last applied entry.
    pub at: Timestamp,
    pub policy: Policy,
    /// Nodes that are not retired. Each node is in an `Arc`, so that cloning the state for a
    /// snapshot is cheap and does not block the controller.
    pub nodes: BTreeMap<NodeId, Arc<Node>>,
    /// The last order generation of each retired node. If the node enrols again, its orders
    /// continue from there.
    pub retired: BTreeMap<NodeId, u64>,
    #[serde(alias = "tallies")]
    pub domain_counts: BTreeMap<Domain, DomainCounts>,
    #[serde(skip)]
    pub disruptions: DisruptionIndex,
    /// Domains in which no order may change a node.
    pub freezes: BTreeMap<Domain, Freeze>,
    /// Alerts without notifications, by the position of the request in the log.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub mutes: BTreeMap<u64, Mute>,
    /// For each domain, the nodes that show a symptom, and since when.
    pub symptoms: BTreeMap<Domain, BTreeMap<Symptom, BTreeMap<NodeId, Timestamp>>>,
    #[serde(alias = "blamed")]
    pub domain_faults: BTreeMap<Domain, DomainFault>,
    /// Ended domain faults, by domain. An entry stays until the findings have had time to clear.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub domain_recoveries: BTreeMap<Domain, DomainRecovery>,
    /// Number of the last applied access change.
    #[serde(default)]
    pub access: u64,
    /// When to evaluate a node again, even if no event concerns it.
    #[serde(alias = "wakes")]
    pub deadlines: BTreeSet<(Timestamp, NodeId)>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DomainCounts {
    pub members: u32,
    /// Members that are quarantined, repairing, verifying or held.
    pub out: u32,
    /// Members that use the disruption budget.
    #[serde(default)]
    pub disrupted: u32,
    /// Members that may get new work.
    #[serde(default)]
    pub schedulable: u32,
    /// Members that are out of service, but not known to be cordoned: they may get new work.
    #[serde(default)]
    pub out_not_cordoned: u32,
}

impl Serialize for FleetState {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Self::serialize(self, serializer)
    }
}

impl<'de> Deserialize<'de> for FleetState {
    /// Derives again what is not stored because it follows from the nodes.
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut state = Self::deserialize(deserializer)?;
        state.count_again();
        Ok(state)
    }
}

/// While a domain is frozen, no order may change its nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Freeze {
    pub until: Timestamp,
    /// When the freeze was requested. `None` in states that earlier versions wrote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    pub by: Actor,
    pub reason: String,
}

/// A cause that several nodes of a domain share.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DomainFault {
    pub symptom: Symptom,
    pub nodes: Vec<NodeId>,
    pub since: Timestamp,
    #[serde(alias = "why")]
    pub rationale: Rationale,
}

/// The end of a domain fault. Findings that opened before the end get time to clear.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DomainRecovery {
    pub symptom: Symptom,
    pub at: Timestamp,
    /// Whether an operator reported the domain as repaired. What the domain's nodes showed before
    /// the repair does not indicate another fault of the domain.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub repaired: bool,
}

impl FleetState {
    /// Applies an entry, and returns the nodes to decide on.
    ///
    /// An entry about an unknown node changes nothing. Such an entry was still on its way when the
    /// node was retired.
    pub fn apply(&mut self, entry: &Entry) -> BTreeSet<NodeId> {
        self.seq = entry.seq;
        self.at = self.at.max(entry.at);
        match &entry.event {
            Event::Enrolled { node, location } => self.enrol(node, location, entry),
            Event::Retired { node, .. } => {
                self.end_mutes_of(node);
                self.retire(node);
            }
            Event::OperatorRequested { request } => return self.handle_request(request, entry),
            Event::PolicySet { policy } => {
                self.policy = (**policy).clone();
                self.change_all(|node| node.waits_for_slot().is_some(), Node::end_wait_for_slot);
                return self.reevaluate_all();
            }
            Event::AccessChanged { number, change, .. } => {
                self.access = self.access.max(*number);
                let AccessChange::CertificateRevoked { node } = change else {
                    return BTreeSet::new();
                };
                self.change(node, |node| node.apply(entry));
                return BTreeSet::from([node.clone()]);
            }
            Event::ClockStepped { from, to } => {
                // The time may go back only with this entry.
                self.at = entry.at;
                self.step_timers(*from, *to);
                return self.reevaluate_all();
            }
            Event::ControllerResumed { last_ran } => {
                self.resume_timers(*last_ran);
                return BTreeSet::new();
            }
            Event::Tick => {
                self.freezes.retain(|_, freeze| freeze.until > self.at);
                self.mutes.retain(|_, mute| mute.until > self.at);
                let recovery_s = self.policy.recovery_s();
                let is_over = |at| add_seconds(at, recovery_s) <= self.at;
                self.domain_recoveries.retain(|_, recovery| !is_over(recovery.at));
                return self.due();
            }
            Event::DomainFaultDetected { domain, symptom, nodes, rationale } => {
                let fault = DomainFault {
                    symptom: *symptom,
                    nodes: nodes.clone(),
                    since: entry.at,
                    rationale: rationale.clone(),
                };
                self.domain_faults.insert(domain.clone(), fault);
            }
            Event::DomainFaultCleared { domain, .. } => {
                self.end_domain_fault(domain, entry.at, false);
            }
            Event::LocationChanged { node, location } => {
                self.end_foreign_mutes(node, location);
                self.change(node, |node| node.apply(entry));
            }
            Event::InventoryReported { node, .. }
            | Event::HeartbeatLost { node, .. }
            | Event::HeartbeatRestored { node }
            | Event::FindingsReported { node, .. }
            | Event::FindingsSnapshot { node, .. }
            | Event::CordonObserved { node, .. }
            | Event::OrderStatusReported { node, .. }
            | Event::OrderGenerationObserved { node, .. }
            | Event::QuotaExceeded { node }
            | Event::QuotaRestored { node }
            | Event::ReportsUnreadable { node }
            | Event::ReportsReadable { node }
            | Event::CoverageReported { node, .. }
            | Event::PhaseChanged { node, .. }
            | Event::OrderCancelled { node, .. }
            | Event::Deferred { node, .. } => self.change(node, |node| node.apply(entry)),
            Event::OrderIssued { order } => self.change(&order.node, |node| node.ordered(order)),
        }
        entry.event.node().cloned().into_iter().collect()
    }

    /// Computes all deadlines again under the current policy, and returns every node.
    fn reevaluate_all(&mut self) -> BTreeSet<NodeId> {
        for (id, node) in &mut self.nodes {
            let deadline = node.next_deadline_at(&self.policy);
            if deadline == node.next_deadline {
                continue;
            }
            if let Some(at) = node.next_deadline {
                self.deadlines.remove(&(at, id.clone()));
            }
            self.deadlines.extend(deadline.map(|at| (at, id.clone())));
            Arc::make_mut(node).next_deadline = deadline;
        }
        self.nodes.keys().cloned().collect()
    }

    /// Applies `change` to the nodes for which `which` is true.
    fn change_all(&mut self, which: impl Fn(&Node) -> bool, change: impl Fn(&mut Node)) {
        let nodes = self.nodes.iter().filter(|(_, node)| which(node));
        let ids: Vec<NodeId> = nodes.map(|(id, _)| id.clone()).collect();
        for id in ids {
            self.change(&id, &change);
        }
    }

    fn members(&self, domain: &Domain) -> BTreeSet<NodeId> {
        let members =
            self.nodes.iter().filter(|(_, node)| node.location.domains().contains(domain));
        members.map(|(id, _)| id.clone()).collect()
    }

    /// Nodes whose deadline has passed.
    fn due(&self) -> BTreeSet<NodeId> {
        let due = self.deadlines.iter().take_while(|(at, _)| *at <= self.at);
        due.map(|(_, node)| node.clone()).collect()
    }

    fn end_mutes_of(&mut self, id: &NodeId) {
        self.mutes.retain(|_, mute| mute.matches.node.as_ref() != Some(id));
    }

    /// Ends the mutes of a node that goes to other owners: who muted it may not see it any more.
    fn end_foreign_mutes(&mut self, id: &NodeId, location: &Location) {
        let owners = |location: &Location| {
            (location.pool.clone(), location.tenant.clone(), location.site.clone())
        };
        let before = self.nodes.get(id).map(|node| owners(&node.location));
        if before.is_none_or(|before| before != owners(location)) {
            self.end_mutes_of(id);
        }
    }

    fn enrol(&mut self, id: &NodeId, location: &Location, entry: &Entry) {
        self.end_foreign_mutes(id, location);
        // A node that enrols again without being retired is the same node, so it keeps its
        // `first_seq`. After a retirement, the name may belong to another owner.
        let first_seq = self.nodes.get(id).map_or(entry.seq, |node| node.first_seq);
        self.retire(id);
        let generation = self.retired.remove(id).unwrap_or_default();
        let node = Node { first_seq, ..Node::joining(location.clone(), entry.at, generation) };
        self.count(id, &node);
        self.nodes.insert(id.clone(), Arc::new(node));
    }

    fn retire(&mut self, id: &NodeId) {
        if let Some(node) = self.nodes.remove(id) {
            self.uncount(id, &node);
            self.forget_symptoms(id, &node);
            if let Some(at) = node.next_deadline {
                self.deadlines.remove(&(at, id.clone()));
            }
            self.retired.insert(id.clone(), node.orders.generation());
        }
    }

    /// Changes a node, and updates the domain counts, symptoms and deadlines accordingly.
    fn change(&mut self, id: &NodeId, change: impl FnOnce(&mut Node)) {
        let Some(mut node) = self.nodes.remove(id) else { return };
        self.uncount(id, &node);
        self.forget_symptoms(id, &node);
        if let Some(at) = node.next_deadline {
            self.deadlines.remove(&(at, id.clone()));
        }
        let changed = Arc::make_mut(&mut node);
        change(changed);
        changed.note_urgency(self.at);
        changed.end_wait_without_cause();
        changed.next_deadline = changed.next_deadline_at(&self.policy);
        self.note_symptoms(id, &node);
        if let Some(at) = node.next_deadline {
            self.deadlines.insert((at, id.clone()));
        }
        self.count(id, &node);
        self.nodes.insert(id.clone(), node);
    }

    fn note_symptoms(&mut self, id: &NodeId, node: &Node) {
        for (&symptom, &at) in &node.symptoms {
            let domains = node.location.domains().into_iter();
            for domain in domains.filter(|domain| symptom.can_come_from(domain.kind())) {
                let shown = self.symptoms.entry(domain).or_default().entry(symptom).or_default();
                shown.insert(id.clone(), at);
            }
        }
    }

    fn forget_symptoms(&mut self, id: &NodeId, node: &Node) {
        for domain in node.location.domains() {
            let Some(shown) = self.symptoms.get_mut(&domain) else { continue };
            shown.retain(|_, nodes| {
                nodes.remove(id);
                !nodes.is_empty()
            });
            if shown.is_empty() {
                self.symptoms.remove(&domain);
            }
        }
    }

    /// Ends the fault of a domain. Returns false if it has none.
    fn end_domain_fault(&mut self, domain: &Domain, at: Timestamp, repaired: bool) -> bool {
        let Some(DomainFault { symptom, .. }) = self.domain_faults.remove(domain) else {
            return false;
        };
        let recovery = DomainRecovery { symptom, at, repaired };
        self.domain_recoveries.insert(domain.clone(), recovery);
        true
    }

    fn handle_request(&mut self, request: &OperatorRequest, entry: &Entry) -> BTreeSet<NodeId> {
        match request {
            OperatorRequest::Freeze { domain, until, reason } => {
                let freeze = Freeze {
                    until: *until,
                    since: Some(entry.at),
                    by: entry.by.clone(),
                    reason: reason.clone(),
                };
                self.freezes.insert(domain.clone(), freeze);
                self.members(domain)
            }
            OperatorRequest::Unfreeze { domain } => {
                self.freezes.remove(domain);
                self.members(domain)
            }
            OperatorRequest::DomainRepaired { domain, repair } => {
                if self.end_domain_fault(domain, entry.at, true) {
                    let waits = |node: &Node| node.waits_for_repair_of(domain);
                    self.change_all(waits, |node| node.repaired_by_hand(repair));
                }
                self.members(domain)
            }
            OperatorRequest::Mute { matches, scope, until, reason } => {
                let mute = Mute {
                    matches: matches.clone(),
                    scope: scope.clone(),
                    since: entry.at,
                    until: *until,
                    by: entry.by.clone(),
                    reason: reason.clone(),
                };
                self.mutes.insert(entry.seq, mute);
                BTreeSet::new()
            }
            OperatorRequest::Unmute { mute } => {
                self.mutes.remove(mute);
                BTreeSet::new()
            }
            // Only the notifier keeps groups of alerts and the queue.
            OperatorRequest::AcknowledgeAlerts { .. }
            | OperatorRequest::RetryNotifications { .. }
            | OperatorRequest::DropNotifications { .. } => BTreeSet::new(),
            OperatorRequest::Hold { node, .. }
            | OperatorRequest::Release { node }
            | OperatorRequest::Repaired { node, .. }
            | OperatorRequest::Approve { node }
            | OperatorRequest::Verify { node, .. }
            | OperatorRequest::RunOrder { node, .. } => {
                self.change(node, |node| node.handle_request(request, entry));
                BTreeSet::from([node.clone()])
            }
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
pub(in crate::fleet) fn is_zero(number: &u32) -> bool {
    *number == 0
}
