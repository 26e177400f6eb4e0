//! Where a node stands next. A way back to service leads through proof, whatever took the node out.

use super::Look;
use super::blame;
use super::breaker::Budget;
use super::complaint::Weight;
use crate::fleet::event::Event;
use crate::fleet::order::Rung;
use crate::fleet::policy::Autonomy;
use crate::fleet::reason::{Reason, UnblockedBy, Why, bounded};
use crate::fleet::state::{ExternalCordon, Scheduling, Standing};

/// The next change of the node's standing; or why it does not change though it should.
pub(super) fn step(look: &Look<'_>, budget: &Budget<'_>) -> Option<Event> {
    if let Some(step) = held(look) {
        return Some(step);
    }
    match look.node.standing() {
        Standing::Joining => joining(look, budget),
        Standing::InService => in_service(look, budget),
        Standing::Suspect => suspect(look, budget),
        Standing::Quarantined => quarantined(look),
        Standing::InRepair => in_repair(look),
        Standing::Verifying => verifying(look),
        Standing::Held => released(look),
    }
}

/// A person, or another tool, keeps the node out: whatever it is, we leave it alone.
fn held(look: &Look<'_>) -> Option<Event> {
    let standing = look.node.standing();
    if let Some(hold) = look.node.requests.hold.as_ref().filter(|_| standing != Standing::Held) {
        let why = Why::new(hold.as_reason(), UnblockedBy::Release);
        return Some(look.moved(Standing::Held, why));
    }
    if let Some(why) = shut_out(look).filter(|_| standing != Standing::Held) {
        return Some(look.moved(Standing::Held, why));
    }
    let takes_work = standing.in_service() || standing == Standing::Joining;
    let external = look.node.scheduling.external_cordon().filter(|_| takes_work)?;
    Some(look.moved(Standing::Held, cordoned(external, false)))
}

/// A node whose certificates were revoked may not speak: whatever it was, nobody knows what it is now, and no order reaches it.
fn shut_out(look: &Look<'_>) -> Option<Why> {
    let since = look.node.liveness.certificate_revoked_at()?;
    let (pool, node) = (look.node.place.pool.clone(), look.id.clone());
    let reason = Reason::CertificateRevoked { since };
    Some(Why::new(reason, UnblockedBy::Enrolment { pool, node }))
}

fn cordoned(external: &ExternalCordon, verified: bool) -> Why {
    let (owner, reason) = (bounded(&external.owner), bounded(&external.reason));
    let reason = Reason::ExternalCordon { owner, reason, verified };
    Why::new(reason, UnblockedBy::ExternalUncordon)
}

fn joining(look: &Look<'_>, budget: &Budget<'_>) -> Option<Event> {
    if look.complaint.weight == Weight::Serious {
        return Some(
            look.refusal(budget).map_or_else(|| look.quarantine(), |why| look.held_back(why)),
        );
    }
    // Our own cordon goes first; a pool that only observes leaves it where it is.
    let is_ours = look.node.scheduling.is_cordoned_by_farrier();
    let cordoned = is_ours && look.pool.autonomy != Autonomy::Observe;
    let proven = look.proven() && look.complaint.weight == Weight::None && !cordoned;
    proven.then(|| look.in_service(Reason::Verified { joining: true }))
}

fn in_service(look: &Look<'_>, budget: &Budget<'_>) -> Option<Event> {
    match look.complaint.weight {
        Weight::None => None,
        Weight::Serious if look.refusal(budget).is_none() => Some(look.quarantine()),
        Weight::Serious | Weight::Doubt => {
            let why = look.complained(UnblockedBy::ConditionChange);
            Some(look.moved(Standing::Suspect, why))
        }
    }
}

fn suspect(look: &Look<'_>, budget: &Budget<'_>) -> Option<Event> {
    if look.complaint.weight == Weight::None {
        return Some(look.in_service(Reason::FindingsCleared { verifying: false }));
    }
    let silent = look.node.heartbeat_deadline(look.pool).is_some_and(|at| at <= look.now);
    let lasts = look.node.phase.deadline(look.pool.suspect_s) <= look.now;
    if look.complaint.weight < Weight::Serious && !silent && !lasts {
        return None;
    }
    match look.refusal(budget) {
        Some(why) => Some(look.held_back(why)),
        None => Some(look.quarantine()),
    }
}

fn quarantined(look: &Look<'_>) -> Option<Event> {
    if look.node.repairs.unverified().is_some() {
        return Some(look.verify(Reason::Repaired));
    }
    if look.complaint.weight == Weight::None {
        return Some(look.verify(Reason::FindingsCleared { verifying: true }));
    }
    let why = || look.complained(UnblockedBy::Repair);
    look.emptied().then(|| look.moved(Standing::InRepair, why()))
}

fn in_repair(look: &Look<'_>) -> Option<Event> {
    match (look.node.repairs.unverified().is_some(), look.complaint.weight) {
        (true, _) => Some(look.verify(Reason::Repaired)),
        (false, Weight::None) => Some(look.verify(Reason::FindingsCleared { verifying: true })),
        (false, _) if look.emptied() => None,
        (false, _) => Some(look.moved(Standing::Quarantined, look.complained(UnblockedBy::Drain))),
    }
}

fn verifying(look: &Look<'_>) -> Option<Event> {
    if let Some(failed) = look.node.verification.results().find(|it| !it.passed) {
        let (level, evidence) = (failed.level, bounded(failed.evidence));
        let reason = Reason::VerificationFailed { level, evidence, findings: Vec::new() };
        return Some(look.unfit(Why::new(reason, UnblockedBy::Repair)));
    }
    let settled = look.node.phase.deadline(look.pool.settle_s) <= look.now;
    if look.complaint.weight == Weight::Serious && settled {
        return Some(look.unfit(look.complained(UnblockedBy::Repair)));
    }
    if look.complaint.weight != Weight::None || !look.proven() {
        return None;
    }
    if look.node.scheduling == Scheduling::Schedulable {
        return Some(look.in_service(Reason::Verified { joining: false }));
    }
    let external = look.node.scheduling.external_cordon()?;
    Some(look.moved(Standing::Held, cordoned(external, true)))
}

fn released(look: &Look<'_>) -> Option<Event> {
    if look.node.requests.hold.is_some() {
        return None;
    }
    // Who held it may have let go meanwhile, and then it is held for this.
    if let Some(why) = shut_out(look) {
        return (*look.node.phase.why() != why).then(|| look.moved(Standing::Held, why));
    }
    if look.node.scheduling.external_cordon().is_some() {
        return None;
    }
    Some(look.verify(Reason::HoldEnded))
}

impl Look<'_> {
    fn moved(&self, to: Standing, why: Why) -> Event {
        Event::Moved { node: self.id.clone(), to, why }
    }

    fn in_service(&self, reason: Reason) -> Event {
        self.moved(Standing::InService, Why::new(reason, UnblockedBy::Finding))
    }

    fn verify(&self, reason: Reason) -> Event {
        self.moved(Standing::Verifying, Why::new(reason, UnblockedBy::VerificationResult))
    }

    fn complained(&self, unblocked_by: UnblockedBy) -> Why {
        Why::new(self.complaint.reason(), unblocked_by)
    }

    fn quarantine(&self) -> Event {
        self.moved(Standing::Quarantined, self.complained(UnblockedBy::RepairAndVerification))
    }

    /// Back to repair; by way of the quarantine where work may still run.
    fn unfit(&self, why: Why) -> Event {
        let to = if self.emptied() { Standing::InRepair } else { Standing::Quarantined };
        self.moved(to, why)
    }

    /// Whether no work runs there, and none comes.
    fn emptied(&self) -> bool {
        self.node.scheduling.is_drained()
    }

    /// Why a node that should be taken out of service is not.
    fn refusal(&self, budget: &Budget<'_>) -> Option<Why> {
        if self.pool.autonomy == Autonomy::Observe {
            let cause = Box::new(self.complaint.reason());
            let reason = Reason::QuarantineNotAllowed { cause };
            return Some(Why::new(reason, UnblockedBy::PolicyOrHold));
        }
        if let Some((domain, symptom)) =
            blame::culprit(self.node, &self.complaint.codes, self.blamed)
        {
            let domain = domain.clone();
            let unblocked_by = UnblockedBy::DomainRepair { domain: domain.clone() };
            let reason = Reason::FailureDomainFault { domain, symptom, cause: None };
            return Some(Why::new(reason, unblocked_by));
        }
        budget.refusal(self.node)
    }

    /// What its pool asks for, and what it failed before.
    pub(super) fn asked_for(&self) -> impl Iterator<Item = Rung> {
        let required = self.node.verification.required().filter(|it| !self.pool.prove.contains(it));
        self.pool.prove.iter().copied().chain(required)
    }

    pub(super) fn has_passed(&self, rung: Rung) -> bool {
        self.node.verification.has_passed(rung)
    }

    /// Whether it passed all that it has to.
    pub(super) fn proven(&self) -> bool {
        self.asked_for().all(|rung| self.has_passed(rung))
    }
}
