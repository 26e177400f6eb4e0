//! What to order next, one at a time. The repair is the least that may help, and one more each time that it did not.

use jiff::SignedDuration;

use super::Look;
use crate::fleet::event::Event;
use crate::fleet::order::{NodeUse, Order, OrderKind};
use crate::fleet::policy::Autonomy;
use crate::fleet::reason::{OrderFailure, Reason, RepairsTried, UnblockedBy, Why, bounded};
use crate::fleet::state::{Errand, Hold, Pending, Scheduling, Standing, Symptom, later};
use crate::fleet::window;
use crate::health::Action;

/// The next order; or that one is not waited for any longer; or why there is none though there should be.
pub(super) fn step(look: &Look<'_>) -> Option<Event> {
    if let Some(pending) = look.node.orders.pending() {
        return withdrawal(look, pending);
    }
    if let Some(errand) = errand(look) {
        return Some(errand_step(look, errand));
    }
    let wanted = wanted(look)?;
    let what = match wanted {
        Wanted::Order(what) => what,
        Wanted::Person(why) => return Some(look.held_back(why)),
    };
    match obstacle(look, &what) {
        Some(Obstacle::Later) => None,
        Some(Obstacle::Why(why)) => Some(look.held_back(*why)),
        None => Some(Event::Ordered { order: order(look, what) }),
    }
}

/// The next order of a node whose change of standing is deferred: it stays in service or joining, so
/// it is not repaired or verified for return to service. Its orders still expire, a pool with
/// `cordon_joining` still gets its cordon, and operator requests still run.
pub(super) fn step_while_deferred(look: &Look<'_>) -> Option<Event> {
    step(look).filter(|event| match event {
        Event::Withdrawn { .. } => true,
        Event::Ordered { order } => match order.what {
            OrderKind::Cordon => true,
            OrderKind::Verify { .. } => look.node.standing().in_service(),
            ref other => other.is_errand(),
        },
        _ => false,
    })
}

/// That the pending order is not waited for any longer.
fn withdrawal(look: &Look<'_>, pending: &Pending) -> Option<Event> {
    let order = &pending.order;
    let (node, generation) = (look.id.clone(), order.generation);
    let (what, lease_until) = (order.what.brief(), order.lease_until);
    let over =
        (lease_until <= look.now).then_some(Reason::OrderExpired { order: what, lease_until });
    let stopped = || stopped(look).filter(|_| order.what.is_repair());
    let unfit = || {
        let is_unfit = look.complaint.weight == super::complaint::Weight::Serious;
        (is_unfit && order.what == OrderKind::Uncordon).then(|| look.complaint.reason())
    };
    let stopped = || stopped().or_else(unfit).filter(|_| !pending.accepted);
    let superseded = || superseded_by(look, &order.what).map(|by| Reason::OrderSuperseded { by });
    let why = over.or_else(stopped).or_else(superseded);
    why.map(|why| Event::Withdrawn { node, generation, why })
}

/// The order that an operator asked for, or what it waits for.
fn errand_step(look: &Look<'_>, Errand { what, by }: &Errand) -> Event {
    let needs_idle = what.spec().node == NodeUse::Idle;
    let in_use = at_work(look).filter(|_| needs_idle);
    let waits = in_use.or_else(|| frozen(look).filter(|_| what.changes()));
    let reason = Reason::OperatorRequest { by: by.clone() };
    match waits {
        Some(why) => look.held_back(why),
        None => Event::Ordered { order: Order { reason, ..order(look, what.clone()) } },
    }
}

/// What a person wants done there. A node that is being emptied is emptied first.
fn errand<'a>(look: &Look<'a>) -> Option<&'a Errand> {
    let cordoned = look.node.scheduling.is_cordoned();
    let ready = match look.node.standing() {
        Standing::Held => cordoned || look.pool.autonomy == Autonomy::Observe,
        Standing::Quarantined => look.node.scheduling.is_drained(),
        _ => true,
    };
    let wanted = look.node.requests.errand.as_ref();
    let wanted = wanted.filter(|it| ready || it.what.spec().node == NodeUse::Any);
    wanted.filter(|it| superseded_by(look, &it.what).is_none())
}

/// The order that must not wait for this one. A node that is taken out of service is cordoned at
/// once, whatever an operator asked for; and what an operator asked for on any node does not wait
/// for hours until a drain has ended.
fn superseded_by(look: &Look<'_>, what: &OrderKind) -> Option<OrderKind> {
    let runs_anywhere = |it: &OrderKind| it.is_errand() && it.spec().node == NodeUse::Any;
    if runs_anywhere(what) {
        let Some(Wanted::Order(cordon @ OrderKind::Cordon)) = wanted(look) else { return None };
        return obstacle(look, &cordon).is_none().then_some(cordon);
    }
    let asked = look.node.requests.errand.as_ref().map(|it| &it.what);
    asked.filter(|it| what.spec().yields && runs_anywhere(it)).cloned()
}

/// Nothing is changed or measured under work.
fn at_work(look: &Look<'_>) -> Option<Why> {
    let standing = look.node.standing();
    let is_out = !standing.in_service() && standing != Standing::Joining;
    (!is_out).then(|| Why::new(Reason::TakesWork, UnblockedBy::OperatorHold))
}

enum Wanted {
    Order(OrderKind),
    Person(Why),
}

fn wanted(look: &Look<'_>) -> Option<Wanted> {
    let cordoned = look.node.scheduling.is_cordoned();
    let drain = OrderKind::Drain { wait_s: look.pool.drain_wait_s };
    match look.node.standing() {
        Standing::InService | Standing::Suspect => {
            let requested = look.node.phase.requested_verification();
            requested.map(|rung| Wanted::Order(OrderKind::Verify { rung }))
        }
        Standing::Joining => {
            let ours = look.node.scheduling.is_cordoned_by_farrier();
            let proven = cordon_first(look).or_else(|| proof(look));
            proven.or_else(|| uncordon(look).filter(|_| ours)).map(Wanted::Order)
        }
        Standing::Quarantined if !cordoned => Some(Wanted::Order(OrderKind::Cordon)),
        Standing::Quarantined => {
            (!look.node.scheduling.is_drained()).then_some(Wanted::Order(drain))
        }
        Standing::InRepair => Some(repair(look)),
        Standing::Verifying => {
            let before = cordon_first(look).or_else(|| note_repair(look));
            before.or_else(|| proof(look)).or_else(|| uncordon(look)).map(Wanted::Order)
        }
        Standing::Held => {
            let ours = look.node.requests.hold.is_some() && !cordoned;
            ours.then_some(Wanted::Order(OrderKind::Cordon))
        }
    }
}

/// A node that is not verified gets no new work: it is cordoned before anything else. One that joins is as it was before we managed it,
/// unless its pool wants it cordoned.
fn cordon_first(look: &Look<'_>) -> Option<OrderKind> {
    let applies = match look.node.standing() {
        Standing::Verifying => true,
        Standing::Joining => look.pool.cordon_joining,
        _ => false,
    };
    let cordoned = look.node.scheduling.is_cordoned();
    let may = look.pool.autonomy != Autonomy::Observe;
    (applies && may && !cordoned).then_some(OrderKind::Cordon)
}

/// Before anything is proven the agent hears of a repair by hand: it would hold against the node what was mended.
fn note_repair(look: &Look<'_>) -> Option<OrderKind> {
    let what = look.node.repairs.pending_ack()?.to_owned();
    Some(OrderKind::NoteRepair { what })
}

/// The first rung that is not proven.
fn proof(look: &Look<'_>) -> Option<OrderKind> {
    let open = look.asked_for().find(|rung| !look.has_passed(*rung));
    open.map(|rung| OrderKind::Verify { rung })
}

/// Only our own mark goes, and only when all is well. Where nobody knows of a mark the agent looks.
fn uncordon(look: &Look<'_>) -> Option<OrderKind> {
    let scheduling = &look.node.scheduling;
    let ours = scheduling.is_cordoned_by_farrier() || *scheduling == Scheduling::Unknown;
    let fit = look.proven() && look.complaint.weight == super::complaint::Weight::None;
    (ours && fit).then_some(OrderKind::Uncordon)
}

/// The least that may help and was not tried yet.
fn repair(look: &Look<'_>) -> Wanted {
    if let Some(why) = lemon(look) {
        return Wanted::Person(why);
    }
    let complaint = look.complaint;
    let service = complaint.codes.iter().find_map(|code| look.state.policy.services.get(code));
    let mut ladder = Vec::new();
    if let Some(unit) = service {
        ladder.push(OrderKind::RestartService { unit: unit.clone() });
    }
    if let (Action::ResetGpu, Some(gpu)) = (complaint.action, complaint.gpu.clone()) {
        ladder.push(OrderKind::ResetGpu { gpu });
    }
    if matches!(complaint.action, Action::ResetGpu | Action::RebootNode) {
        ladder.push(OrderKind::Reboot);
    }
    let untried =
        |what: &&OrderKind| !look.node.repairs.was_attempted(what, complaint.fault.as_ref());
    // Each fault has its own try of each; and faults that follow one another do not have a node rebooted for ever.
    let most = usize::try_from(look.pool.tries.max(1)).unwrap_or(usize::MAX);
    let is_spent = |what: &&OrderKind| look.node.repairs.times_done(what) >= most;
    if let Some(what) = ladder.iter().filter(untried).find(|what| !is_spent(what)) {
        return Wanted::Order(what.clone());
    }
    if let Some(why) = blamed(look) {
        return Wanted::Person(why);
    }
    let tried = match ladder.iter().filter(untried).find(is_spent) {
        Some(order) => RepairsTried::Limit {
            gpu: look.node.location_of_order(order),
            order: order.clone(),
            times: look.pool.tries.max(1),
        },
        None if ladder.is_empty() => RepairsTried::None,
        None => RepairsTried::All,
    };
    let (cause, action) = (Box::new(complaint.reason()), complaint.action);
    let reason = Reason::NeedsRepair { cause, action, tried };
    Wanted::Person(Why::new(reason, UnblockedBy::OperatorRepair))
}

/// What is left is of a switch, a rack or an `NVLink` domain: nobody has to look at the node for it.
fn blamed(look: &Look<'_>) -> Option<Why> {
    let (complaint, domains) = (look.complaint, look.node.place.domains());
    let explains = |symptom: Symptom| {
        let is_it = |code: &String| Symptom::of(code) == Some(symptom);
        !complaint.codes.is_empty() && complaint.codes.iter().all(is_it)
    };
    let mut blamed = look.blamed.iter();
    let (domain, symptom) =
        blamed.find(|(domain, symptom)| domains.contains(domain) && explains(**symptom))?;
    let (domain, symptom) = (domain.clone(), *symptom);
    let unblocked_by = UnblockedBy::DomainRepair { domain: domain.clone() };
    let cause = Some(Box::new(complaint.reason()));
    Some(Why::new(Reason::FailureDomainFault { domain, symptom, cause }, unblocked_by))
}

/// A node that was out of service too often is not given back by another repair.
fn lemon(look: &Look<'_>) -> Option<Why> {
    let policy = &look.state.policy.lemon;
    let from = look.now - SignedDuration::from_hours(24 * i64::from(policy.days));
    let times = look.node.quarantines.iter().filter(|at| **at >= from).count();
    let times = u32::try_from(times).unwrap_or(u32::MAX);
    let many = times >= policy.quarantines;
    (many && !look.node.repairs.has_by_hand()).then(|| {
        let reason = Reason::RepeatedQuarantines { times, days: policy.days };
        Why::new(reason, UnblockedBy::OperatorRepair)
    })
}

enum Obstacle {
    /// Time passes, and it will be ordered.
    Later,
    Why(Box<Why>),
}

impl Obstacle {
    fn waits(why: Why) -> Self {
        Self::Why(Box::new(why))
    }
}

fn obstacle(look: &Look<'_>, what: &OrderKind) -> Option<Obstacle> {
    let changes = what.is_repair();
    match look.pool.autonomy {
        Autonomy::Observe
            if !matches!(what, OrderKind::Verify { .. } | OrderKind::NoteRepair { .. }) =>
        {
            let reason =
                Reason::OrderNotAllowed { order: what.clone(), autonomy: Autonomy::Observe };
            return Some(Obstacle::waits(Why::new(reason, UnblockedBy::Policy)));
        }
        Autonomy::Quarantine if changes => {
            let autonomy = Autonomy::Quarantine;
            let reason = Reason::OrderNotAllowed { order: what.clone(), autonomy };
            return Some(Obstacle::waits(Why::new(reason, UnblockedBy::OperatorRepair)));
        }
        _ => {}
    }
    let waits = frozen(look).or_else(|| unapproved(look, what)).or_else(|| shut(look, what));
    if let Some(why) = waits.filter(|_| changes) {
        return Some(Obstacle::waits(why));
    }
    // A cordon waits for no other order: until then the node takes work.
    let failures = look.node.orders.failures();
    let failures = failures.filter(|it| *what != OrderKind::Cordon || it.order == *what)?;
    let count = failures.count.get();
    // These are tried for as long as it takes: a node without a cordon takes work, and nothing else brings it into service.
    let is_retried =
        matches!(what, OrderKind::Verify { .. } | OrderKind::Cordon | OrderKind::Uncordon);
    let failed_often = (count >= look.pool.tries).then(|| Reason::OrderFailed {
        order: what.brief(),
        failures: count,
        last: bounded_failure(&failures.why),
    });
    if let Some(reason) = failed_often.clone().filter(|_| !is_retried) {
        return Some(Obstacle::waits(Why::new(reason, UnblockedBy::OperatorReview)));
    }
    let again = later(failures.at, look.pool.retry_s_after(count));
    if look.now >= again {
        return None;
    }
    let is_proof = matches!(what, OrderKind::Verify { .. });
    let is_joining = look.node.standing() == Standing::Joining;
    let unverified = look.node.verification.failure().filter(|_| is_joining);
    let reason = unverified.map(|it| it.reason(Vec::new()));
    let reason = reason.or_else(|| failed_often.filter(|_| !is_proof));
    Some(reason.map_or(Obstacle::Later, |reason| {
        Obstacle::waits(Why::new(reason, UnblockedBy::Retry { at: again }))
    }))
}

/// What a node says of it is bounded: each decision repeats it.
fn bounded_failure(failure: &OrderFailure) -> OrderFailure {
    match failure {
        OrderFailure::Reported(text) => OrderFailure::Reported(bounded(text)),
        OrderFailure::Withdrawn(_) => failure.clone(),
    }
}

/// Who says that nothing is to be done there, since it was ordered.
fn stopped(look: &Look<'_>) -> Option<Reason> {
    let held = look.node.requests.hold.as_ref().map(Hold::as_reason);
    let revoked_at = look.node.liveness.certificate_revoked_at();
    let revoked = || revoked_at.map(|since| Reason::CertificateRevoked { since });
    held.or_else(revoked).or_else(|| frozen(look).map(|why| why.reason))
}

fn frozen(look: &Look<'_>) -> Option<Why> {
    let domains = look.node.place.domains();
    let (domain, freeze) = look
        .state
        .freezes
        .iter()
        .find(|(domain, freeze)| domains.contains(domain) && freeze.until > look.now)?;
    let reason = Reason::Frozen {
        domain: domain.clone(),
        by: freeze.by.clone(),
        reason: bounded(&freeze.reason),
        until: freeze.until,
    };
    Some(Why::new(reason, UnblockedBy::Unfreeze { at: freeze.until }))
}

fn unapproved(look: &Look<'_>, what: &OrderKind) -> Option<Why> {
    let asks =
        *what == OrderKind::Reboot && look.pool.approve_reboot && !look.node.repairs.is_approved();
    asks.then(|| Why::new(Reason::NeedsApproval { order: what.clone() }, UnblockedBy::Approval))
}

/// Outside of its windows a pool is left as it is, unless a person wants it done now.
fn shut(look: &Look<'_>, what: &OrderKind) -> Option<Why> {
    if look.node.repairs.is_approved() {
        return None;
    }
    let opens = window::opens(&look.pool.repair_windows, look.now)?;
    let (order, pool) = (what.clone(), look.node.place.pool.clone());
    let reason = Reason::OutsideWindow { order, pool, opens };
    Some(Why::new(reason, UnblockedBy::WindowOrApproval { at: opens }))
}

fn order(look: &Look<'_>, what: OrderKind) -> Order {
    // An uncordon or a change that was meant for another boot must not be carried out in this one.
    let bound = what.changes() || what == OrderKind::Uncordon;
    let boot = look.node.makeup().filter(|_| bound).map(|it| it.boot.clone());
    Order {
        node: look.id.clone(),
        generation: look.node.orders.generation().saturating_add(1),
        boot,
        lease_until: later(look.now, look.pool.lease_of(&what)),
        reason: look.node.phase.why().reason.clone(),
        what,
    }
}
