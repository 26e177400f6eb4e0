//! What is so: a fold over the log. The same entries give the same state, byte for byte.

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
mod verification;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::access::AccessChange;
use super::event::{Ask, Entry, Event};
use super::identity::{Actor, Domain, NodeId, Place};
use super::policy::Policy;
use super::reason::Why;
pub use fault::FaultKey;
pub use inventory::Inventory;
pub use liveness::{HeartbeatLoss, Liveness};
pub use node::{Errand, ErrandEnded, Hold, Node};
pub use orders::{FailureStreak, Orders, Pending};
pub use phase::{NodePhase, Standing};
pub use repairs::{RepairAttempt, Repairs};
pub use reports::Reports;
pub use requests::OperatorRequests;
pub use scheduling::{CordonOwner, ExternalCordon, Scheduling};
pub use sparse::Sparse;
pub use symptom::Symptom;
pub(crate) use timers::later;
pub use verification::{FailedVerification, Verification, VerificationResult};

/// The fleet.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct FleetState {
    /// The last entry that is in it.
    pub seq: u64,
    /// When that was written.
    pub at: Timestamp,
    /// The policy in force.
    pub policy: Policy,
    /// Nodes that are not retired. Shared, so that a copy of the state costs little: whoever keeps it does not hold the one who decides up.
    pub nodes: BTreeMap<NodeId, Arc<Node>>,
    /// The last generation of retired nodes: one that comes back goes on counting.
    pub retired: BTreeMap<NodeId, u64>,
    /// Members of each domain, and how many of them are out of service.
    pub tallies: BTreeMap<Domain, Tally>,
    /// Where nothing may be changed.
    pub freezes: BTreeMap<Domain, Freeze>,
    /// Nodes that show the same in one domain, with the time of it.
    pub symptoms: BTreeMap<Domain, BTreeMap<Symptom, BTreeMap<NodeId, Timestamp>>>,
    /// What is to blame for several nodes.
    pub blamed: BTreeMap<Domain, Blame>,
    /// The last change of who may speak that is in it.
    #[serde(default)]
    pub access: u64,
    /// When a node must be looked at again, though nothing happens to it.
    pub wakes: BTreeSet<(Timestamp, NodeId)>,
}

/// How many.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Nodes in the domain.
    pub members: u32,
    /// Of these not in service: quarantined, in repair, verifying or held.
    pub out: u32,
}

/// Nothing may be changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Freeze {
    /// Until when.
    pub until: Timestamp,
    /// When it was asked for; none in a state that an older version wrote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// Who wants it.
    pub by: Actor,
    /// Why.
    pub reason: String,
}

/// Several nodes have one cause.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blame {
    /// What they have in common.
    pub symptom: Symptom,
    /// The nodes.
    pub nodes: Vec<NodeId>,
    /// Since when.
    pub since: Timestamp,
    /// Why.
    pub why: Why,
}

impl FleetState {
    /// Takes an entry in, and gives the nodes that a decision has to look at.
    ///
    /// An entry about a node that nobody knows changes nothing: it was retired while the entry was on its way.
    pub fn apply(&mut self, entry: &Entry) -> BTreeSet<NodeId> {
        self.seq = entry.seq;
        self.at = self.at.max(entry.at);
        match &entry.event {
            Event::Enrolled { node, place } => self.enrol(node, place, entry),
            Event::Retired { node, .. } => self.retire(node),
            Event::Asked { what } => return self.asked(what, entry),
            Event::PolicySet { policy } => {
                self.policy = (**policy).clone();
                return self.look_at_all();
            }
            Event::Access { number, what, .. } => {
                self.access = self.access.max(*number);
                let AccessChange::CertificateRevoked { node } = what else {
                    return BTreeSet::new();
                };
                self.change(node, |it| it.take_in(entry));
                return BTreeSet::from([node.clone()]);
            }
            Event::ClockStepped { from, to } => {
                // Follows the clock back, too: no other entry does.
                self.at = entry.at;
                self.step_timers(*from, *to);
                return self.look_at_all();
            }
            Event::ControllerResumed { last_ran } => {
                self.resume_timers(*last_ran);
                return BTreeSet::new();
            }
            Event::TimePassed => {
                self.freezes.retain(|_, freeze| freeze.until > self.at);
                return self.due();
            }
            Event::Blamed { domain, symptom, nodes, why } => {
                let blame = Blame {
                    symptom: *symptom,
                    nodes: nodes.clone(),
                    since: entry.at,
                    why: why.clone(),
                };
                self.blamed.insert(domain.clone(), blame);
            }
            Event::Absolved { domain, .. } => {
                self.blamed.remove(domain);
            }
            Event::Placed { node, .. }
            | Event::Seen { node, .. }
            | Event::Silent { node, .. }
            | Event::Heard { node }
            | Event::Found { node, .. }
            | Event::Resynced { node, .. }
            | Event::CordonSeen { node, .. }
            | Event::Answered { node, .. }
            | Event::OrdersSeen { node, .. }
            | Event::QuotaExceeded { node }
            | Event::QuotaKept { node }
            | Event::ReportsUnreadable { node }
            | Event::ReportsReadable { node }
            | Event::Moved { node, .. }
            | Event::Withdrawn { node, .. }
            | Event::HeldBack { node, .. } => self.change(node, |it| it.take_in(entry)),
            Event::Ordered { order } => self.change(&order.node, |it| it.ordered(order)),
        }
        entry.event.node().cloned().into_iter().collect()
    }

    /// Every node is to be looked at, and again when the policy of now says so.
    fn look_at_all(&mut self) -> BTreeSet<NodeId> {
        for (id, node) in &mut self.nodes {
            let wake = node.next_look(&self.policy);
            if wake == node.wake {
                continue;
            }
            if let Some(at) = node.wake {
                self.wakes.remove(&(at, id.clone()));
            }
            self.wakes.extend(wake.map(|at| (at, id.clone())));
            Arc::make_mut(node).wake = wake;
        }
        self.nodes.keys().cloned().collect()
    }

    /// The nodes of a domain.
    fn members(&self, domain: &Domain) -> BTreeSet<NodeId> {
        let members = self.nodes.iter().filter(|(_, it)| it.place.domains().contains(domain));
        members.map(|(id, _)| id.clone()).collect()
    }

    /// Nodes whose time has come.
    fn due(&self) -> BTreeSet<NodeId> {
        let due = self.wakes.iter().take_while(|(at, _)| *at <= self.at);
        due.map(|(_, node)| node.clone()).collect()
    }

    fn enrol(&mut self, id: &NodeId, place: &Place, entry: &Entry) {
        // A node that enrols again while it is in the fleet is the same node. After it was retired its name may be another owner's.
        let first_seq = self.nodes.get(id).map_or(entry.seq, |it| it.first_seq);
        self.retire(id);
        let generation = self.retired.remove(id).unwrap_or_default();
        let node = Node { first_seq, ..Node::joining(place.clone(), entry.at, generation) };
        self.count(&node, 1);
        self.nodes.insert(id.clone(), Arc::new(node));
    }

    fn retire(&mut self, id: &NodeId) {
        if let Some(node) = self.nodes.remove(id) {
            self.count(&node, -1);
            self.forget_symptoms(id, &node);
            if let Some(at) = node.wake {
                self.wakes.remove(&(at, id.clone()));
            }
            self.retired.insert(id.clone(), node.orders.generation());
        }
    }

    /// Changes a node, and keeps what is counted over nodes in step with it.
    fn change(&mut self, id: &NodeId, change: impl FnOnce(&mut Node)) {
        let Some(mut node) = self.nodes.remove(id) else { return };
        self.count(&node, -1);
        self.forget_symptoms(id, &node);
        if let Some(at) = node.wake {
            self.wakes.remove(&(at, id.clone()));
        }
        let changed = Arc::make_mut(&mut node);
        change(changed);
        changed.wake = changed.next_look(&self.policy);
        self.note_symptoms(id, &node);
        if let Some(at) = node.wake {
            self.wakes.insert((at, id.clone()));
        }
        self.count(&node, 1);
        self.nodes.insert(id.clone(), node);
    }

    fn count(&mut self, node: &Node, by: i32) {
        for domain in node.place.domains() {
            let tally = self.tallies.entry(domain.clone()).or_default();
            tally.members = tally.members.saturating_add_signed(by);
            if node.counts_as_out() {
                tally.out = tally.out.saturating_add_signed(by);
            }
            if tally.members == 0 {
                self.tallies.remove(&domain);
            }
        }
    }

    fn note_symptoms(&mut self, id: &NodeId, node: &Node) {
        for (&symptom, &at) in &node.symptoms {
            for domain in node.place.domains().into_iter().filter(Domain::fails_as_one) {
                let shown = self.symptoms.entry(domain).or_default().entry(symptom).or_default();
                shown.insert(id.clone(), at);
            }
        }
    }

    fn forget_symptoms(&mut self, id: &NodeId, node: &Node) {
        for domain in node.place.domains() {
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

    fn asked(&mut self, what: &Ask, entry: &Entry) -> BTreeSet<NodeId> {
        match what {
            Ask::Freeze { domain, until, reason } => {
                let freeze = Freeze {
                    until: *until,
                    since: Some(entry.at),
                    by: entry.by.clone(),
                    reason: reason.clone(),
                };
                self.freezes.insert(domain.clone(), freeze);
                self.members(domain)
            }
            Ask::Thaw { domain } => {
                self.freezes.remove(domain);
                self.members(domain)
            }
            Ask::Hold { node, .. }
            | Ask::Release { node }
            | Ask::Repaired { node, .. }
            | Ask::Approve { node }
            | Ask::Verify { node, .. }
            | Ask::Errand { node, .. } => {
                self.change(node, |it| it.asked(what, entry));
                BTreeSet::from([node.clone()])
            }
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_zero(seconds: &u32) -> bool {
    *seconds == 0
}
