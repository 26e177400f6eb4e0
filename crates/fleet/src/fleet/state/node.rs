//! One node: what is known of it, and what an event makes of that. Each part is a type of its own
//! that cannot hold what never happens; here an event is passed on to the parts that it changes.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::inventory::Inventory;
use super::liveness::Liveness;
use super::orders::{Orders, Pending};
use super::phase::{NodePhase, Standing};
use super::repairs::{RepairAttempt, Repairs};
use super::reports::Reports;
use super::requests::OperatorRequests;
use super::scheduling::Scheduling;
use super::sparse::Sparse;
use super::symptom::Symptom;
use super::timers::later;
use super::verification::Verification;
use crate::fleet::access::AccessChange;
use crate::fleet::event::{Ask, Entry, Event, Makeup};
use crate::fleet::identity::{Actor, Place};
use crate::fleet::order::{Answer, Order, OrderKind};
use crate::fleet::policy::Policy;
use crate::fleet::reason::{OrderFailure, Reason, UnblockedBy, Why, bounded};
use crate::health::FindingKind;

/// What is known of a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Node {
    /// Where it stands, and whose it is.
    pub place: Place,
    /// The entry with which it enrolled, the first time since its name was free: what the log has of that name before is of another node.
    pub first_seq: u64,
    /// Its phase.
    pub phase: NodePhase,
    /// What it is made of; none before its first report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inventory: Option<Inventory>,
    /// Whether its agent is there.
    pub liveness: Liveness,
    /// What its agent reports.
    pub reports: Reports,
    /// Whether it gets work.
    pub scheduling: Scheduling,
    /// What people want of it.
    #[serde(default, skip_serializing_if = "Sparse::is_empty")]
    pub requests: Sparse<OperatorRequests>,
    /// Its orders.
    pub orders: Orders,
    /// What its verifications showed.
    pub verification: Verification,
    /// Repairs since it was last in service.
    #[serde(default, skip_serializing_if = "Sparse::is_empty")]
    pub repairs: Sparse<Repairs>,
    /// When it was first in service; none: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_in_service_at: Option<Timestamp>,
    /// When it was quarantined, in the last year.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub quarantines: Vec<Timestamp>,
    /// What it shows that other nodes of its rack or switch may show too, and since when, by the server's clock.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub symptoms: BTreeMap<Symptom, Timestamp>,
    /// When it is looked at again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wake: Option<Timestamp>,
}

/// A person who holds a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    /// Who.
    pub by: Actor,
    /// Why.
    pub reason: String,
}

impl Hold {
    /// That it holds the node.
    pub(in crate::fleet) fn as_reason(&self) -> Reason {
        Reason::OperatorHold { by: self.by.clone(), reason: bounded(&self.reason) }
    }
}

/// What a person wants done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Errand {
    /// What.
    pub what: OrderKind,
    /// Who.
    pub by: Actor,
}

/// What came of something that a person wanted done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrandEnded {
    /// What.
    pub what: OrderKind,
    /// The generation of the order; none in a state that an older server wrote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
    /// When.
    pub at: Timestamp,
    /// What the node answered in the end; refused, without a text, where it was withdrawn.
    pub answer: Answer,
    /// Why the controller withdrew it, where it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub withdrawn: Option<Reason>,
}

impl Node {
    pub(super) fn joining(place: Place, at: Timestamp, generation: u64) -> Self {
        let why = Why::new(Reason::Enrolled, UnblockedBy::Verification);
        Self {
            place,
            first_seq: 0,
            phase: NodePhase::new(Standing::Joining, why, at),
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
            symptoms: BTreeMap::new(),
            wake: None,
        }
    }

    /// How it stands.
    pub fn standing(&self) -> Standing {
        self.phase.standing()
    }

    /// What it is made of; none before its first report.
    pub fn makeup(&self) -> Option<&std::sync::Arc<Makeup>> {
        self.inventory.as_ref().map(|it| &it.makeup)
    }

    fn is_out(&self) -> bool {
        !matches!(self.standing(), Standing::InService | Standing::Suspect | Standing::Joining)
    }

    /// Whether it counts towards disruption budgets: it was in service, or it was quarantined while it joined, which takes it away from
    /// whatever ran there before it was managed. A node that is out for another reason before its first service does not count: otherwise a
    /// joining node could use up the budget of others by claiming an external cordon and by failing its verification afterwards.
    pub(in crate::fleet) fn counts_as_out(&self) -> bool {
        self.is_out() && (self.first_in_service_at.is_some() || !self.quarantines.is_empty())
    }

    /// Whether a repair waits for a person to let it go on.
    pub fn waits_for_approval(&self) -> bool {
        !self.repairs.is_approved()
            && self.phase.deferred().is_some_and(|why| why.unblocked_by.is_approvable())
    }
}

impl Node {
    pub(in crate::fleet) fn take_in(&mut self, entry: &Entry) {
        match &entry.event {
            Event::Placed { place, .. } => self.place = place.clone(),
            Event::Seen { makeup, .. } => self.seen(makeup),
            Event::Silent { since, .. } => self.liveness.lose_heartbeat(*since),
            Event::Access { what: AccessChange::CertificateRevoked { .. }, .. } => {
                self.liveness.revoke_certificate(entry.at);
            }
            Event::Heard { .. } => {
                self.liveness.restore();
                // What could not be done because nobody was there is no failure of the node.
                self.orders.end_failures();
            }
            Event::Found { record, changes, .. } => {
                let was_unfit = self.has_found_against();
                self.reports.add(record, changes);
                self.doubt_what_was_not_proven(was_unfit);
            }
            Event::Resynced { record, open, .. } => {
                let was_unfit = self.has_found_against();
                self.reports.replace(record, open);
                self.doubt_what_was_not_proven(was_unfit);
            }
            Event::CordonSeen { cordon, .. } => self.scheduling.observe(cordon),
            Event::Answered { generation, answer, .. } => {
                self.answered(*generation, answer, entry.at);
            }
            Event::OrdersSeen { generation, .. } => self.orders.skip_to(*generation),
            Event::QuotaExceeded { .. } => self.reports.exceed_quota(entry.at),
            Event::QuotaKept { .. } => self.reports.keep_quota(),
            Event::ReportsUnreadable { .. } => self.reports.become_unreadable(entry.at),
            Event::ReportsReadable { .. } => self.reports.become_readable(),
            Event::Moved { to, why, .. } => self.moved(*to, why, entry.at),
            Event::Withdrawn { generation, why, .. } => self.withdrawn(*generation, why, entry.at),
            Event::HeldBack { why, .. } => self.phase.defer(Some(why.clone())),
            _ => {}
        }
        self.note_symptoms(entry.at);
    }

    fn seen(&mut self, makeup: &Makeup) {
        if self.makeup().is_some_and(|before| before.boot != makeup.boot) {
            // What was verified in another boot is not in this one, and what failed may pass now.
            self.verification.discard_results();
            self.verification.dismiss_failure();
        }
        let inventory = Inventory::after(self.inventory.as_ref(), makeup, |gpu| {
            self.findings().values().any(|found| found.subject.gpu() == Some(gpu))
        });
        self.inventory = Some(inventory);
    }

    fn moved(&mut self, to: Standing, why: &Why, at: Timestamp) {
        match to {
            Standing::Quarantined | Standing::InRepair => {
                if to == Standing::Quarantined && !self.is_out() {
                    let year = SignedDuration::from_hours(365 * 24);
                    self.quarantines.retain(|it| at.duration_since(*it) < year);
                    self.quarantines.push(at);
                }
                self.repairs.change_present(Repairs::did_not_help);
                self.verification.discard_results();
            }
            // Whoever held it may have changed anything.
            Standing::Verifying if self.standing() == Standing::Held => {
                self.verification.discard_results();
                self.verification.dismiss_failure();
            }
            Standing::InService => {
                self.first_in_service_at.get_or_insert(at);
                self.repairs.clear();
                self.verification.dismiss_failure();
            }
            _ => {}
        }
        self.phase.enter(to, why.clone(), at);
        self.orders.end_failures();
    }

    pub(in crate::fleet) fn ordered(&mut self, order: &Order) {
        self.phase.defer(None);
        // Named now: a fault may be over before the repair is answered.
        let faults = order.what.is_repair().then(|| self.faults());
        self.orders.issue(order.clone(), faults);
    }

    fn answered(&mut self, generation: u64, answer: &Answer, at: Timestamp) {
        if *answer == Answer::Accepted {
            return self.orders.accept(generation);
        }
        let Some(Pending { order, faults, .. }) = self.orders.take(generation) else { return };
        if order.what.is_errand() {
            return self.end_errand(order, answer, None, at);
        }
        let what = order.what;
        match (answer, &what) {
            (Answer::Done { evidence }, _) => {
                self.orders.end_failures();
                if what.is_repair() {
                    self.repaired();
                    let attempt = RepairAttempt::Ordered { order: what, faults };
                    self.repairs.change(|it| it.attempt(attempt));
                } else {
                    self.done(&what, evidence, at);
                }
            }
            (Answer::Failed { why }, OrderKind::Verify { rung }) => {
                self.verification.fail(*rung, at, why);
                self.phase.verified(*rung);
                self.orders.fail(what, OrderFailure::Reported(why.clone()), at);
            }
            // An agent that does not know of repairs goes by what it counted: what it finds against the node is what is left.
            (Answer::Failed { .. } | Answer::Refused { .. }, OrderKind::NoteRepair { .. }) => {
                self.repairs.change_present(Repairs::acknowledge);
            }
            (Answer::Failed { why } | Answer::Refused { why }, _) => {
                self.orders.fail(what, OrderFailure::Reported(why.clone()), at);
            }
            (Answer::Accepted, _) => {}
        }
    }

    fn done(&mut self, what: &OrderKind, evidence: &str, at: Timestamp) {
        match what {
            OrderKind::Cordon => self.scheduling.cordoned(),
            OrderKind::Drain { .. } => self.scheduling.drained(),
            OrderKind::Uncordon => self.scheduling.uncordoned(),
            OrderKind::Verify { rung } => {
                self.verification.pass(*rung, at, evidence);
                self.phase.verified(*rung);
            }
            OrderKind::NoteRepair { .. } => self.repairs.change_present(Repairs::acknowledge),
            // Repairs are noted as attempts; what an operator asked for ends in `end_errand`.
            other => debug_assert!(other.is_repair() || other.is_errand(), "{other}"),
        }
    }

    /// Whatever came of it, it is not tried again: a person sees it, and asks anew.
    fn end_errand(
        &mut self,
        order: Order,
        answer: &Answer,
        withdrawn: Option<Reason>,
        at: Timestamp,
    ) {
        if order.what.changes() {
            self.verification.discard_results();
        }
        // A test that ran counts as the proof that it is; one that was refused says nothing of the GPUs.
        match (order.what.proves(), answer) {
            (Some(rung), Answer::Done { evidence }) => self.verification.pass(rung, at, evidence),
            (Some(rung), Answer::Failed { why }) => self.verification.fail(rung, at, why),
            _ => {}
        }
        self.requests.change(|it| it.end_errand(order, answer.clone(), withdrawn, at));
    }

    /// What was verified before a repair says nothing of the node any longer, and what failed may
    /// be done now.
    fn repaired(&mut self) {
        self.verification.discard_results();
        self.verification.dismiss_failure();
        self.orders.end_failures();
    }

    fn withdrawn(&mut self, generation: u64, why: &Reason, at: Timestamp) {
        let Some(pending) = self.orders.take(generation) else { return };
        // What the operator asked for is ordered again.
        if matches!(why, Reason::OrderSuperseded { .. }) {
            return;
        }
        let order = pending.order;
        if order.what.is_errand() {
            let refused = Answer::Refused { why: String::new() };
            return self.end_errand(order, &refused, Some(why.clone()), at);
        }
        self.orders.fail(order.what, OrderFailure::Withdrawn(Box::new(why.clone())), at);
    }

    pub(super) fn asked(&mut self, what: &Ask, entry: &Entry) {
        match what {
            Ask::Hold { reason, .. } => {
                let hold = Hold { by: entry.by.clone(), reason: reason.clone() };
                self.requests.change(|it| it.hold = Some(hold));
            }
            Ask::Release { .. } => self.requests.change_present(|it| it.hold = None),
            Ask::Approve { .. } => self.repairs.change(Repairs::approve),
            Ask::Repaired { what, .. } => {
                self.repaired();
                self.repairs.change(|it| it.attempt_by_hand(what));
            }
            Ask::Verify { rung, .. } => {
                self.verification.discard_result(*rung);
                self.verification.dismiss_failure_of(*rung);
                self.phase.request_verification(*rung);
            }
            Ask::Errand { what, .. } => {
                let errand = Errand { what: what.clone(), by: entry.by.clone() };
                self.requests.change(|it| it.errand = Some(errand));
            }
            Ask::Freeze { .. } | Ask::Thaw { .. } => {}
        }
    }

    /// When it must be looked at though nothing happens: the earliest of all that waits for time.
    pub(super) fn next_look(&self, policy: &Policy) -> Option<Timestamp> {
        let (pool, standing) = (policy.of(&self.place.pool), self.standing());
        let lease = self.orders.pending().map(|it| it.order.lease_until);
        let doubted = standing == Standing::Suspect;
        let silent = self.heartbeat_deadline(pool).filter(|_| doubted);
        let suspect = doubted.then(|| self.phase.deadline(pool.suspect_s));
        let settled = (standing == Standing::Verifying).then(|| self.phase.deadline(pool.settle_s));
        let failures = self.orders.failures();
        let retry = failures.map(|it| later(it.at, pool.retry_s_after(it.count.get())));
        // Who should be out and may not is looked at again and again: a breaker does not say when there is room.
        let refused = doubted || standing == Standing::Joining;
        let held_back = self.phase.deferred().and_then(|why| {
            why.unblocked_by.changes_at().or(refused.then_some(self.phase.since()))
        });
        [lease, silent, suspect, settled, retry, held_back].into_iter().flatten().min()
    }
}

impl Node {
    /// Dated by when the server heard of it: nodes' own clocks may be hours apart.
    fn note_symptoms(&mut self, at: Timestamp) {
        let faults = self.findings().values().filter(|it| it.kind == FindingKind::Fault);
        let mut shown: BTreeSet<Symptom> = faults.filter_map(|it| Symptom::of(&it.code)).collect();
        let lost_since = self.liveness.heartbeat_lost_since();
        // Whoever may not speak is silent for that, and no switch is to blame.
        if lost_since.is_some() && self.liveness.certificate_revoked_at().is_none() {
            shown.insert(Symptom::Silence);
        }
        self.symptoms.retain(|symptom, _| shown.contains(symptom));
        for symptom in shown {
            let since = lost_since.filter(|_| symptom == Symptom::Silence).unwrap_or(at);
            self.symptoms.entry(symptom).or_insert(since);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fleet has 100,000 of these.
    #[test]
    fn a_node_stays_small() {
        let bytes = size_of::<Node>();
        assert!(bytes <= 800, "{bytes}");
    }
}
