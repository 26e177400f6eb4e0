//! The next order of a node, one at a time. Repairs escalate: the least disruptive first, then the
//! next.

use jiff::SignedDuration;

use super::DecisionContext;
use crate::fleet::event::Event;
use crate::fleet::order::{NodeUse, Order, OrderKind};
use crate::fleet::policy::Autonomy;
use crate::fleet::reason::{
    OrderFailure, Rationale, Reason, RepairsAttempted, UnblockedBy, bounded,
};
use crate::fleet::state::{
    Hold, NodePhase, Pending, RequestedOrder, Scheduling, Symptom, add_seconds,
};
use crate::fleet::window;
use crate::health::Action;

/// The next order, the cancellation of the pending one, or why a due order is deferred.
pub(super) fn step(context: &DecisionContext<'_>) -> Option<Event> {
    if let Some(pending) = context.node.orders.pending() {
        return cancellation(context, pending);
    }
    if let Some(requested_order) = requested_order(context) {
        return Some(requested_order_step(context, requested_order));
    }
    let wanted = wanted(context)?;
    let what = match wanted {
        NextAction::Order(what) => what,
        NextAction::Person(why) => return Some(context.deferred(why)),
    };
    match blocker(context, &what) {
        Some(Blocker::RetryLater) => None,
        Some(Blocker::Rationale(why)) => Some(context.deferred(*why)),
        None => Some(Event::OrderIssued { order: order(context, what) }),
    }
}

/// The next order of a node whose phase change is deferred. It stays in service or joining, so it
/// is not repaired or verified for return to service. Its orders still expire, a pool with
/// `cordon_joining` still gets its cordon, and operator requests still run.
pub(super) fn step_while_deferred(context: &DecisionContext<'_>) -> Option<Event> {
    step(context).filter(|event| match event {
        Event::OrderCancelled { .. } => true,
        Event::OrderIssued { order } => match order.kind {
            OrderKind::Cordon => true,
            OrderKind::Verify { .. } => context.node.phase().in_service(),
            ref other => other.is_operator_requested(),
        },
        _ => false,
    })
}

/// Cancels the pending order if it expired, if a more urgent one supersedes it, or if it may no
/// longer run and the agent has not accepted it yet.
fn cancellation(context: &DecisionContext<'_>, pending: &Pending) -> Option<Event> {
    let order = &pending.order;
    let (node, generation) = (context.id.clone(), order.generation);
    let (what, lease_until) = (order.kind.brief(), order.lease_until);
    let over =
        (lease_until <= context.now).then_some(Reason::OrderExpired { order: what, lease_until });
    let stopped = || stopped(context).filter(|_| order.kind.is_repair());
    let fail_verification = || {
        let is_unfit = context.assessment.weight == super::health_assessment::Impact::Unfit;
        (is_unfit && order.kind == OrderKind::Uncordon).then(|| context.assessment.reason())
    };
    let stopped = || stopped().or_else(fail_verification).filter(|_| !pending.accepted);
    let superseded =
        || superseded_by(context, &order.kind).map(|by| Reason::OrderSuperseded { by });
    let why = over.or_else(stopped).or_else(superseded);
    why.map(|why| Event::OrderCancelled { node, generation, reason: why })
}

/// The order that an operator requested, or why it is deferred.
fn requested_order_step(
    context: &DecisionContext<'_>,
    RequestedOrder { order: kind, by }: &RequestedOrder,
) -> Event {
    let needs_idle = kind.spec().node == NodeUse::Idle;
    let in_use = in_use(context).filter(|_| needs_idle);
    let waits = in_use.or_else(|| frozen(context).filter(|_| kind.changes()));
    let reason = Reason::OperatorRequest { by: by.clone() };
    match waits {
        Some(why) => context.deferred(why),
        None => Event::OrderIssued { order: Order { reason, ..order(context, kind.clone()) } },
    }
}

/// The operator-requested order, if it may run now. If it needs an idle node, it waits for the
/// drain.
fn requested_order<'a>(context: &DecisionContext<'a>) -> Option<&'a RequestedOrder> {
    let cordoned = context.node.scheduling.is_cordoned();
    let ready = match context.node.phase() {
        NodePhase::Held => cordoned || context.pool.autonomy == Autonomy::Observe,
        NodePhase::Quarantined => context.node.scheduling.is_drained(),
        _ => true,
    };
    let wanted = context.node.requests.requested_order.as_ref();
    let wanted = wanted.filter(|it| ready || it.order.spec().node == NodeUse::Any);
    wanted.filter(|it| superseded_by(context, &it.order).is_none())
}

/// The order that supersedes this one. A quarantined node is cordoned at once, whatever an operator
/// requested. An operator-requested order that runs on any node does not wait hours for a drain.
fn superseded_by(context: &DecisionContext<'_>, what: &OrderKind) -> Option<OrderKind> {
    let runs_anywhere =
        |it: &OrderKind| it.is_operator_requested() && it.spec().node == NodeUse::Any;
    if runs_anywhere(what) {
        let Some(NextAction::Order(cordon @ OrderKind::Cordon)) = wanted(context) else {
            return None;
        };
        return blocker(context, &cordon).is_none().then_some(cordon);
    }
    let asked = context.node.requests.requested_order.as_ref().map(|it| &it.order);
    asked.filter(|it| what.spec().yields && runs_anywhere(it)).cloned()
}

/// A node in use is neither changed nor tested.
fn in_use(context: &DecisionContext<'_>) -> Option<Rationale> {
    let phase = context.node.phase();
    let is_out = !phase.in_service() && phase != NodePhase::Joining;
    (!is_out).then(|| Rationale::new(Reason::InUse, UnblockedBy::OperatorHold))
}

enum NextAction {
    Order(OrderKind),
    Person(Rationale),
}

fn wanted(context: &DecisionContext<'_>) -> Option<NextAction> {
    let cordoned = context.node.scheduling.is_cordoned();
    let drain = OrderKind::Drain { wait_s: context.pool.drain_timeout_s };
    match context.node.phase() {
        NodePhase::InService | NodePhase::Suspect => {
            let requested = context.node.phase.requested_verification();
            requested.map(|level| NextAction::Order(OrderKind::Verify { level }))
        }
        NodePhase::Joining => {
            let ours = context.node.scheduling.is_cordoned_by_farrier();
            let proven = cordon_before_verification(context).or_else(|| next_verification(context));
            proven.or_else(|| uncordon(context).filter(|_| ours)).map(NextAction::Order)
        }
        NodePhase::Quarantined if !cordoned => Some(NextAction::Order(OrderKind::Cordon)),
        NodePhase::Quarantined => {
            (!context.node.scheduling.is_drained()).then_some(NextAction::Order(drain))
        }
        NodePhase::Repairing => Some(repair(context)),
        NodePhase::Verifying => {
            let before =
                cordon_before_verification(context).or_else(|| acknowledge_repair(context));
            before
                .or_else(|| next_verification(context))
                .or_else(|| uncordon(context))
                .map(NextAction::Order)
        }
        NodePhase::Held => {
            let ours = context.node.requests.hold.is_some() && !cordoned;
            ours.then_some(NextAction::Order(OrderKind::Cordon))
        }
    }
}

/// An unverified node gets no new work, so it is cordoned first. A joining node keeps its
/// scheduling, unless its pool has `cordon_joining`.
fn cordon_before_verification(context: &DecisionContext<'_>) -> Option<OrderKind> {
    let applies = match context.node.phase() {
        NodePhase::Verifying => true,
        NodePhase::Joining => context.pool.cordon_joining,
        _ => false,
    };
    let cordoned = context.node.scheduling.is_cordoned();
    let may = context.pool.autonomy != Autonomy::Observe;
    (applies && may && !cordoned).then_some(OrderKind::Cordon)
}

/// Tells the agent about a manual repair before verifying; otherwise it still counts the old
/// faults.
fn acknowledge_repair(context: &DecisionContext<'_>) -> Option<OrderKind> {
    let what = context.node.repairs.pending_ack()?.to_owned();
    Some(OrderKind::AcknowledgeRepair { repair: what })
}

/// The first required level that has not passed.
fn next_verification(context: &DecisionContext<'_>) -> Option<OrderKind> {
    let open = context.required_levels().find(|level| !context.has_passed(*level));
    open.map(|level| OrderKind::Verify { level })
}

/// Removes only Farrier's own cordon, and only once the node is healthy. If the cordon state is
/// unknown, the agent checks it.
fn uncordon(context: &DecisionContext<'_>) -> Option<OrderKind> {
    let scheduling = &context.node.scheduling;
    let ours = scheduling.is_cordoned_by_farrier() || *scheduling == Scheduling::Unknown;
    let fit =
        context.proven() && context.assessment.weight == super::health_assessment::Impact::None;
    (ours && fit).then_some(OrderKind::Uncordon)
}

/// The least disruptive repair that was not attempted yet.
fn repair(context: &DecisionContext<'_>) -> NextAction {
    if let Some(why) = lemon(context) {
        return NextAction::Person(why);
    }
    let assessment = context.assessment;
    let service = assessment.codes.iter().find_map(|code| context.state.policy.services.get(code));
    let mut ladder = Vec::new();
    if let Some(unit) = service {
        ladder.push(OrderKind::RestartService { unit: unit.clone() });
    }
    if let (Action::ResetGpu, Some(gpu)) = (assessment.action, assessment.gpu.clone()) {
        ladder.push(OrderKind::ResetGpu { gpu });
    }
    if matches!(assessment.action, Action::ResetGpu | Action::RebootNode) {
        ladder.push(OrderKind::Reboot);
    }
    let untried =
        |what: &&OrderKind| !context.node.repairs.was_attempted(what, assessment.fault.as_ref());
    // Each fault gets its own attempt of each repair. The limit stops a series of faults from
    // rebooting a node forever.
    let most = usize::try_from(context.pool.max_attempts.max(1)).unwrap_or(usize::MAX);
    let is_spent = |what: &&OrderKind| context.node.repairs.times_done(what) >= most;
    if let Some(what) = ladder.iter().filter(untried).find(|what| !is_spent(what)) {
        return NextAction::Order(what.clone());
    }
    if let Some(why) = blamed(context) {
        return NextAction::Person(why);
    }
    let tried = match ladder.iter().filter(untried).find(is_spent) {
        Some(order) => RepairsAttempted::Limit {
            gpu: context.node.location_of_order(order),
            order: order.clone(),
            times: context.pool.max_attempts.max(1),
        },
        None if ladder.is_empty() => RepairsAttempted::None,
        None => RepairsAttempted::All,
    };
    let (cause, action) = (Box::new(assessment.reason()), assessment.action);
    let reason = Reason::NeedsRepair { cause, action, attempted: tried };
    NextAction::Person(Rationale::new(reason, UnblockedBy::OperatorRepair))
}

/// The remaining fault belongs to a switch, rack or NVLink domain, so the node itself needs no
/// inspection.
fn blamed(context: &DecisionContext<'_>) -> Option<Rationale> {
    let (assessment, domains) = (context.assessment, context.node.location.domains());
    let explains = |symptom: Symptom| {
        let is_it = |code: &String| Symptom::from_code(code) == Some(symptom);
        !assessment.codes.is_empty() && assessment.codes.iter().all(is_it)
    };
    let mut blamed = context.blamed.iter();
    let (domain, symptom) =
        blamed.find(|(domain, symptom)| domains.contains(domain) && explains(**symptom))?;
    let (domain, symptom) = (domain.clone(), *symptom);
    let unblocked_by = UnblockedBy::DomainRepair { domain: domain.clone() };
    let cause = Some(Box::new(assessment.reason()));
    Some(Rationale::new(Reason::FailureDomainFault { domain, symptom, cause }, unblocked_by))
}

/// A lemon is not repaired by order again.
fn lemon(context: &DecisionContext<'_>) -> Option<Rationale> {
    let policy = &context.state.policy.lemon;
    let from = context.now - SignedDuration::from_hours(24 * i64::from(policy.days));
    let times = context.node.quarantines.iter().filter(|at| **at >= from).count();
    let times = u32::try_from(times).unwrap_or(u32::MAX);
    let many = times >= policy.quarantines;
    (many && !context.node.repairs.has_by_hand()).then(|| {
        let reason = Reason::RepeatedQuarantines { times, days: policy.days };
        Rationale::new(reason, UnblockedBy::OperatorRepair)
    })
}

enum Blocker {
    /// The order is due again after the back-off.
    RetryLater,
    Rationale(Box<Rationale>),
}

impl Blocker {
    fn waits(why: Rationale) -> Self {
        Self::Rationale(Box::new(why))
    }
}

fn blocker(context: &DecisionContext<'_>, what: &OrderKind) -> Option<Blocker> {
    let changes = what.is_repair();
    match context.pool.autonomy {
        Autonomy::Observe
            if !matches!(what, OrderKind::Verify { .. } | OrderKind::AcknowledgeRepair { .. }) =>
        {
            let reason =
                Reason::OrderNotAllowed { order: what.clone(), autonomy: Autonomy::Observe };
            return Some(Blocker::waits(Rationale::new(reason, UnblockedBy::Policy)));
        }
        Autonomy::Quarantine if changes => {
            let autonomy = Autonomy::Quarantine;
            let reason = Reason::OrderNotAllowed { order: what.clone(), autonomy };
            return Some(Blocker::waits(Rationale::new(reason, UnblockedBy::OperatorRepair)));
        }
        _ => {}
    }
    let waits = frozen(context)
        .or_else(|| needs_approval(context, what))
        .or_else(|| outside_window(context, what));
    if let Some(why) = waits.filter(|_| changes) {
        return Some(Blocker::waits(why));
    }
    // A cordon does not wait for another order's back-off: until then the node takes work.
    let failures = context.node.orders.failures();
    let failures = failures.filter(|it| *what != OrderKind::Cordon || it.order == *what)?;
    let count = failures.count.get();
    // These are retried without limit: a node without a cordon takes work, and nothing else returns
    // a node to service.
    let is_retried =
        matches!(what, OrderKind::Verify { .. } | OrderKind::Cordon | OrderKind::Uncordon);
    let failed_often = (count >= context.pool.max_attempts).then(|| Reason::OrderFailed {
        order: what.brief(),
        failures: count,
        last: bounded_failure(&failures.reason),
    });
    if let Some(reason) = failed_often.clone().filter(|_| !is_retried) {
        return Some(Blocker::waits(Rationale::new(reason, UnblockedBy::OperatorReview)));
    }
    let again = add_seconds(failures.at, context.pool.retry_backoff_after(count));
    if context.now >= again {
        return None;
    }
    let is_proof = matches!(what, OrderKind::Verify { .. });
    let is_joining = context.node.phase() == NodePhase::Joining;
    let unverified = context.node.verification.failure().filter(|_| is_joining);
    let reason = unverified.map(|it| it.reason(Vec::new()));
    let reason = reason.or_else(|| failed_often.filter(|_| !is_proof));
    Some(reason.map_or(Blocker::RetryLater, |reason| {
        Blocker::waits(Rationale::new(reason, UnblockedBy::Retry { at: again }))
    }))
}

/// Cuts the agent's text, which every decision repeats.
fn bounded_failure(failure: &OrderFailure) -> OrderFailure {
    match failure {
        OrderFailure::Reported(text) => OrderFailure::Reported(bounded(text)),
        OrderFailure::Cancelled(_) => failure.clone(),
    }
}

/// Why nothing may run on the node any more: a hold, a revoked certificate or a freeze that came
/// after the order.
fn stopped(context: &DecisionContext<'_>) -> Option<Reason> {
    let held = context.node.requests.hold.as_ref().map(Hold::as_reason);
    let revoked_at = context.node.liveness.certificate_revoked_at();
    let revoked = || revoked_at.map(|since| Reason::CertificateRevoked { since });
    held.or_else(revoked).or_else(|| frozen(context).map(|why| why.reason))
}

fn frozen(context: &DecisionContext<'_>) -> Option<Rationale> {
    let domains = context.node.location.domains();
    let (domain, freeze) = context
        .state
        .freezes
        .iter()
        .find(|(domain, freeze)| domains.contains(domain) && freeze.until > context.now)?;
    let reason = Reason::Frozen {
        domain: domain.clone(),
        by: freeze.by.clone(),
        reason: bounded(&freeze.reason),
        until: freeze.until,
    };
    Some(Rationale::new(reason, UnblockedBy::Unfreeze { at: freeze.until }))
}

fn needs_approval(context: &DecisionContext<'_>, what: &OrderKind) -> Option<Rationale> {
    let asks = *what == OrderKind::Reboot
        && context.pool.reboot_needs_approval
        && !context.node.repairs.is_approved();
    asks.then(|| {
        Rationale::new(Reason::NeedsApproval { order: what.clone() }, UnblockedBy::Approval)
    })
}

/// Repairs wait for a window of the pool, unless an operator approved them.
fn outside_window(context: &DecisionContext<'_>, what: &OrderKind) -> Option<Rationale> {
    if context.node.repairs.is_approved() {
        return None;
    }
    let opens = window::opens(&context.pool.repair_windows, context.now)?;
    let (order, pool) = (what.clone(), context.node.location.pool.clone());
    let reason = Reason::OutsideWindow { order, pool, opens };
    Some(Rationale::new(reason, UnblockedBy::WindowOrApproval { at: opens }))
}

fn order(context: &DecisionContext<'_>, what: OrderKind) -> Order {
    // An uncordon or a change must not run in a later boot than the one it was meant for.
    let bound = what.changes() || what == OrderKind::Uncordon;
    let boot = context.node.reported_inventory().filter(|_| bound).map(|it| it.boot.clone());
    Order {
        node: context.id.clone(),
        generation: context.node.orders.generation().saturating_add(1),
        boot,
        lease_until: add_seconds(context.now, context.pool.lease_for(&what)),
        reason: context.node.phase.rationale().reason.clone(),
        kind: what,
    }
}
