//! The next order of a node. A node has one order at a time. Repairs escalate from the least
//! disruptive to the most disruptive.

use jiff::SignedDuration;

use super::DecisionContext;
use crate::fleet::event::Event;
use crate::fleet::order::{NodeUse, Order, OrderKind};
use crate::fleet::policy::Autonomy;
use crate::fleet::reason::{
    OrderFailure, Rationale, Reason, RepairsAttempted, UnblockedBy, bounded,
};
use crate::fleet::state::{Hold, NodePhase, PendingOrder, RequestedOrder, Scheduling, add_seconds};
use crate::fleet::window;
use crate::health::Action;

/// Returns the next order, the cancellation of the pending order, or the deferral of an order that
/// is due.
pub(super) fn step(context: &DecisionContext<'_>) -> Option<Event> {
    if let Some(pending) = context.node.orders.pending() {
        return cancellation(context, pending);
    }
    if let Some(requested_order) = requested_order(context) {
        return Some(requested_order_step(context, requested_order));
    }
    let kind = match next_action(context)? {
        NextAction::Order(kind) => kind,
        NextAction::Person(rationale) => return Some(context.deferred(rationale)),
    };
    match blocker(context, &kind) {
        Some(Blocker::RetryLater) => None,
        Some(Blocker::Rationale(rationale)) => Some(context.deferred(*rationale)),
        None => Some(Event::OrderIssued { order: order(context, kind) }),
    }
}

/// Returns the next order of a node whose phase change is deferred. The node stays in service or
/// joining, so it is neither repaired nor verified for its return to service. Its orders still
/// expire, a pool with `cordon_joining` still cordons it, and operator requests still run.
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

/// Cancels the pending order if its lease has expired or if a more urgent order supersedes it. Also
/// cancels an order that may no longer run, unless the agent has accepted it.
fn cancellation(context: &DecisionContext<'_>, pending: &PendingOrder) -> Option<Event> {
    let order = &pending.order;
    let (node, generation) = (context.id.clone(), order.generation);
    let (kind, lease_until) = (order.kind.brief(), order.lease_until);
    let expired =
        (lease_until <= context.now).then_some(Reason::OrderExpired { order: kind, lease_until });
    let stopped = || stopped(context).filter(|_| order.kind.is_repair());
    let unfit_for_uncordon = || {
        let is_unfit = context.assessment.impact == super::health_assessment::Impact::Unfit;
        (is_unfit && order.kind == OrderKind::Uncordon).then(|| context.assessment.reason())
    };
    let stopped = || stopped().or_else(unfit_for_uncordon).filter(|_| !pending.accepted);
    let superseded =
        || superseded_by(context, &order.kind).map(|by| Reason::OrderSuperseded { by });
    let reason = expired.or_else(stopped).or_else(superseded);
    reason.map(|reason| Event::OrderCancelled { node, generation, reason })
}

/// Issues the order that an operator requested, or defers it.
fn requested_order_step(
    context: &DecisionContext<'_>,
    RequestedOrder { order: kind, by }: &RequestedOrder,
) -> Event {
    let needs_idle = kind.spec().node == NodeUse::Idle;
    let in_use = in_use(context).filter(|_| needs_idle);
    let deferred = in_use.or_else(|| frozen(context).filter(|_| kind.changes()));
    let reason = Reason::OperatorRequest { by: by.clone() };
    match deferred {
        Some(rationale) => context.deferred(rationale),
        None => Event::OrderIssued { order: Order { reason, ..order(context, kind.clone()) } },
    }
}

/// Returns the operator-requested order if it may run now. An order that needs an idle node waits
/// for the drain.
fn requested_order<'a>(context: &DecisionContext<'a>) -> Option<&'a RequestedOrder> {
    let cordoned = context.node.scheduling.is_cordoned();
    let ready = match context.node.phase() {
        NodePhase::Held => cordoned || context.pool.autonomy == Autonomy::Observe,
        NodePhase::Quarantined => context.node.scheduling.is_drained(),
        _ => true,
    };
    let requested = context.node.requests.requested_order.as_ref();
    let requested = requested.filter(|request| ready || request.order.spec().node == NodeUse::Any);
    requested.filter(|request| superseded_by(context, &request.order).is_none())
}

/// Returns the order that supersedes this one. A cordon supersedes an operator-requested order that
/// can run on any node. Such an order in turn supersedes a long order such as a drain, which can
/// take hours.
fn superseded_by(context: &DecisionContext<'_>, kind: &OrderKind) -> Option<OrderKind> {
    let runs_anywhere =
        |kind: &OrderKind| kind.is_operator_requested() && kind.spec().node == NodeUse::Any;
    if runs_anywhere(kind) {
        let Some(NextAction::Order(cordon @ OrderKind::Cordon)) = next_action(context) else {
            return None;
        };
        return blocker(context, &cordon).is_none().then_some(cordon);
    }
    let requested = context.node.requests.requested_order.as_ref().map(|request| &request.order);
    requested.filter(|order| kind.spec().yields && runs_anywhere(order)).cloned()
}

/// Defers an order that changes or tests the node while the node is in use.
fn in_use(context: &DecisionContext<'_>) -> Option<Rationale> {
    let phase = context.node.phase();
    let is_out = !phase.in_service() && phase != NodePhase::Joining;
    (!is_out).then(|| Rationale::new(Reason::InUse, UnblockedBy::OperatorHold))
}

enum NextAction {
    Order(OrderKind),
    Person(Rationale),
}

fn next_action(context: &DecisionContext<'_>) -> Option<NextAction> {
    let cordoned = context.node.scheduling.is_cordoned();
    let drain = OrderKind::Drain { wait_s: context.pool.drain_timeout_s };
    match context.node.phase() {
        NodePhase::InService | NodePhase::Suspect => {
            let requested = context.node.phase.requested_verification();
            requested.map(|level| NextAction::Order(OrderKind::Verify { level }))
        }
        NodePhase::Joining => {
            let is_farriers = context.node.scheduling.is_cordoned_by_farrier();
            let before = cordon_before_verification(context).or_else(|| next_verification(context));
            before.or_else(|| uncordon(context).filter(|_| is_farriers)).map(NextAction::Order)
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
            let needs_cordon = context.node.requests.hold.is_some() && !cordoned;
            needs_cordon.then_some(NextAction::Order(OrderKind::Cordon))
        }
    }
}

/// Cordons the node before its verification, because an unverified node must get no new work. A
/// joining node keeps its scheduling state, unless its pool has `cordon_joining`.
fn cordon_before_verification(context: &DecisionContext<'_>) -> Option<OrderKind> {
    let applies = match context.node.phase() {
        NodePhase::Verifying => true,
        NodePhase::Joining => context.pool.cordon_joining,
        _ => false,
    };
    let cordoned = context.node.scheduling.is_cordoned();
    let may_order = context.pool.autonomy != Autonomy::Observe;
    (applies && may_order && !cordoned).then_some(OrderKind::Cordon)
}

/// Tells the agent about a manual repair before the node is verified. Otherwise the agent would
/// still count the old faults.
fn acknowledge_repair(context: &DecisionContext<'_>) -> Option<OrderKind> {
    let repair = context.node.repairs.pending_ack()?.to_owned();
    Some(OrderKind::AcknowledgeRepair { repair })
}

/// Verifies the first required level that has not passed.
fn next_verification(context: &DecisionContext<'_>) -> Option<OrderKind> {
    let next_level = context.required_levels().find(|level| !context.has_passed(*level));
    next_level.map(|level| OrderKind::Verify { level })
}

/// Removes a cordon only if Farrier set it and the node is healthy. If the owner of the cordon is
/// unknown, the agent checks it.
fn uncordon(context: &DecisionContext<'_>) -> Option<OrderKind> {
    let scheduling = &context.node.scheduling;
    let may_be_farriers = scheduling.is_cordoned_by_farrier() || *scheduling == Scheduling::Unknown;
    let is_healthy = context.is_verified()
        && context.assessment.impact == super::health_assessment::Impact::None;
    (may_be_farriers && is_healthy).then_some(OrderKind::Uncordon)
}

/// Returns the least disruptive repair that was not attempted yet for this fault.
fn repair(context: &DecisionContext<'_>) -> NextAction {
    if let Some(rationale) = lemon(context) {
        return NextAction::Person(rationale);
    }
    let assessment = context.assessment;
    let service = assessment.codes.iter().find_map(|code| context.state.policy.services.get(code));
    let mut repairs = Vec::new();
    if let Some(unit) = service {
        repairs.push(OrderKind::RestartService { unit: unit.clone() });
    }
    if let (Action::ResetGpu, Some(gpu)) = (assessment.action, assessment.gpu.clone()) {
        repairs.push(OrderKind::ResetGpu { gpu });
    }
    if matches!(assessment.action, Action::ResetGpu | Action::RebootNode) {
        repairs.push(OrderKind::Reboot);
    }
    let not_attempted =
        |kind: &&OrderKind| !context.node.repairs.was_attempted(kind, assessment.fault.as_ref());
    // Each repair is attempted once for each fault. The limit stops a series of faults from
    // rebooting a node forever.
    let attempts_max = usize::try_from(context.pool.max_attempts.max(1)).unwrap_or(usize::MAX);
    let is_exhausted = |kind: &&OrderKind| context.node.repairs.times_done(kind) >= attempts_max;
    if let Some(kind) = repairs.iter().filter(not_attempted).find(|kind| !is_exhausted(kind)) {
        return NextAction::Order(kind.clone());
    }
    if let Some(rationale) = domain_fault(context) {
        return NextAction::Person(rationale);
    }
    let attempted = match repairs.iter().filter(not_attempted).find(is_exhausted) {
        Some(order) => RepairsAttempted::Limit {
            gpu: context.node.location_of_order(order),
            order: order.clone(),
            times: context.pool.max_attempts.max(1),
        },
        None if repairs.is_empty() => RepairsAttempted::None,
        None => RepairsAttempted::All,
    };
    let (cause, action) = (Box::new(assessment.reason()), assessment.action);
    let reason = Reason::NeedsRepair { cause, action, attempted };
    let unblocked_by = if assessment.is_missing_coverage() {
        UnblockedBy::Coverage { retry_at: None }
    } else {
        UnblockedBy::OperatorRepair
    };
    NextAction::Person(Rationale::new(reason, unblocked_by))
}

/// Defers the repair if the remaining fault belongs to a site, rack, switch or NVLink domain. No
/// operator has to inspect the node itself then.
fn domain_fault(context: &DecisionContext<'_>) -> Option<Rationale> {
    let assessment = context.assessment;
    let codes = Some(&assessment.codes).filter(|codes| !codes.is_empty())?;
    let (domain, symptom) = context.active_faults.explanation(context.node, codes)?;
    let domain = domain.clone();
    let unblocked_by = UnblockedBy::DomainRepair { domain: domain.clone() };
    let cause = Some(Box::new(assessment.reason()));
    Some(Rationale::new(Reason::FailureDomainFault { domain, symptom, cause }, unblocked_by))
}

/// Defers the repairs of a lemon until an operator has repaired the node by hand.
fn lemon(context: &DecisionContext<'_>) -> Option<Rationale> {
    let policy = &context.state.policy.lemon;
    let from = context.now - SignedDuration::from_hours(24 * i64::from(policy.days));
    let times = context.node.quarantines.iter().filter(|at| **at >= from).count();
    let times = u32::try_from(times).unwrap_or(u32::MAX);
    let is_lemon = times >= policy.quarantines;
    (is_lemon && !context.node.repairs.has_by_hand()).then(|| {
        let reason = Reason::RepeatedQuarantines { times, days: policy.days };
        Rationale::new(reason, UnblockedBy::OperatorRepair)
    })
}

enum Blocker {
    /// The order may be tried again after the back-off.
    RetryLater,
    Rationale(Box<Rationale>),
}

impl Blocker {
    fn waits(rationale: Rationale) -> Self {
        Self::Rationale(Box::new(rationale))
    }
}

fn blocker(context: &DecisionContext<'_>, kind: &OrderKind) -> Option<Blocker> {
    let changes = kind.is_repair();
    match context.pool.autonomy {
        Autonomy::Observe
            if !matches!(kind, OrderKind::Verify { .. } | OrderKind::AcknowledgeRepair { .. }) =>
        {
            let reason =
                Reason::OrderNotAllowed { order: kind.clone(), autonomy: Autonomy::Observe };
            return Some(Blocker::waits(Rationale::new(reason, UnblockedBy::Policy)));
        }
        Autonomy::Quarantine if changes => {
            let autonomy = Autonomy::Quarantine;
            let reason = Reason::OrderNotAllowed { order: kind.clone(), autonomy };
            return Some(Blocker::waits(Rationale::new(reason, UnblockedBy::OperatorRepair)));
        }
        _ => {}
    }
    let waits = frozen(context)
        .or_else(|| needs_approval(context, kind))
        .or_else(|| outside_window(context, kind));
    if let Some(rationale) = waits.filter(|_| changes) {
        return Some(Blocker::waits(rationale));
    }
    // A cordon does not wait for the back-off of another order, because the node takes work until
    // it is cordoned.
    let failures = context.node.orders.failures();
    let failures = failures.filter(|last| *kind != OrderKind::Cordon || last.order == *kind)?;
    let count = failures.count.get();
    // These orders are retried without limit: without a cordon, a faulty node keeps taking work,
    // and without a verification and an uncordon, no node returns to service.
    let is_retried =
        matches!(kind, OrderKind::Verify { .. } | OrderKind::Cordon | OrderKind::Uncordon);
    let failed_often = (count >= context.pool.max_attempts).then(|| Reason::OrderFailed {
        order: kind.brief(),
        failures: count,
        last: bounded_failure(&failures.reason),
    });
    if let Some(reason) = failed_often.clone().filter(|_| !is_retried) {
        return Some(Blocker::waits(Rationale::new(reason, UnblockedBy::OperatorReview)));
    }
    let retry_at = add_seconds(failures.at, context.pool.retry_backoff_after(count));
    if context.now >= retry_at {
        return None;
    }
    let is_verification = matches!(kind, OrderKind::Verify { .. });
    let is_joining = context.node.phase() == NodePhase::Joining;
    let inconclusive = context.node.verification.inconclusive();
    let inconclusive = inconclusive.filter(|last| *kind == OrderKind::Verify { level: last.level });
    if let Some(inconclusive) = inconclusive {
        let unblocked_by = UnblockedBy::Coverage { retry_at: Some(retry_at) };
        return Some(Blocker::waits(Rationale::new(
            inconclusive.inconclusive_reason(),
            unblocked_by,
        )));
    }
    let unverified = context.node.verification.failure().filter(|_| is_joining);
    let reason = unverified.map(|failure| failure.reason(Vec::new()));
    let reason = reason.or_else(|| failed_often.filter(|_| !is_verification));
    Some(reason.map_or(Blocker::RetryLater, |reason| {
        Blocker::waits(Rationale::new(reason, UnblockedBy::Retry { at: retry_at }))
    }))
}

/// Cuts the text from the agent to a limit, because every decision repeats the text.
fn bounded_failure(failure: &OrderFailure) -> OrderFailure {
    match failure {
        OrderFailure::Reported(text) => OrderFailure::Reported(bounded(text)),
        OrderFailure::Cancelled(_) => failure.clone(),
    }
}

/// Why no more repairs may run on the node. The cause is a hold, a revoked certificate or a freeze
/// that came after the order.
fn stopped(context: &DecisionContext<'_>) -> Option<Reason> {
    let hold = context.node.requests.hold.as_ref().map(Hold::as_reason);
    let revoked_at = context.node.liveness.certificate_revoked_at();
    let revoked = || revoked_at.map(|since| Reason::CertificateRevoked { since });
    hold.or_else(revoked).or_else(|| frozen(context).map(|rationale| rationale.reason))
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

fn needs_approval(context: &DecisionContext<'_>, kind: &OrderKind) -> Option<Rationale> {
    let is_required = *kind == OrderKind::Reboot
        && context.pool.reboot_needs_approval
        && !context.node.repairs.is_approved();
    is_required.then(|| {
        Rationale::new(Reason::NeedsApproval { order: kind.clone() }, UnblockedBy::Approval)
    })
}

/// Repairs wait for a repair window of the pool, unless an approver approved them.
fn outside_window(context: &DecisionContext<'_>, kind: &OrderKind) -> Option<Rationale> {
    if context.node.repairs.is_approved() {
        return None;
    }
    let opens = window::opens(&context.pool.repair_windows, context.now)?;
    let (order, pool) = (kind.clone(), context.node.location.pool.clone());
    let reason = Reason::OutsideWindow { order, pool, opens };
    Some(Rationale::new(reason, UnblockedBy::WindowOrApproval { at: opens }))
}

fn order(context: &DecisionContext<'_>, kind: OrderKind) -> Order {
    // An order that changes the node and an uncordon must not run after a reboot, because they were
    // decided for the current boot.
    let is_bound_to_boot = kind.changes() || kind == OrderKind::Uncordon;
    let boot = context.node.reported_inventory().filter(|_| is_bound_to_boot);
    let boot = boot.map(|inventory| inventory.boot.clone());
    Order {
        node: context.id.clone(),
        generation: context.node.orders.generation().saturating_add(1),
        boot,
        lease_until: add_seconds(context.now, context.pool.lease_for(&kind)),
        reason: context.node.phase.rationale().reason.clone(),
        kind,
    }
}
