//! Operator requests. Each request is logged with the caller's name before it is answered.
//! Repeating a request has no effect.

use farrier_fleet::fleet::event::{Event, OperatorRequest};
use farrier_fleet::fleet::order::{NodeUse, OrderKind};
use farrier_fleet::fleet::{
    Domain, FleetState, Location, Node, NodeId, NodePhase, VerificationLevel,
};
use farrier_wire::rest::{
    DiagRequest, DomainRepairedRequest, Done, FreezeRequest, HintCode, HoldRequest,
    LocationRequest, RangedU32, RepairedRequest, RetireRequest, TuneRequest, UnfreezeRequest,
    VerifyRequest,
};
use jiff::{SignedDuration, Timestamp};

use super::extent::Extent;
use super::failure::Failure;
use super::query::domain_text;
use super::reply::Reply;
use super::{Call, artifacts, run_to_completion, similar};

const FREEZE_MAX: SignedDuration = SignedDuration::from_hours(365 * 24);

/// Returns the node that the path names. Fails if the caller's scope does not include the node, or
/// if `refuse` returns a failure.
async fn node(
    call: &Call,
    refuse: impl FnOnce(&Node) -> Option<Failure> + Send + 'static,
) -> Result<NodeId, Failure> {
    let (id, caller) = (call.path.node()?, call.caller()?.clone());
    let name = id.clone();
    let refusal = call.app.controller.read(move |state: &FleetState| {
        let node = state.nodes.get(&id).filter(|node| caller.sees(&node.location))?;
        Some(refuse(node))
    });
    match refusal.await? {
        None => Err(Failure::node_not_found(name.as_str())),
        Some(Some(failure)) => Err(failure),
        Some(None) => Ok(name),
    }
}

/// Checks that the caller's scope includes this node.
pub(super) async fn visible_node(call: &Call, id: &NodeId) -> Result<(), Failure> {
    let (name, caller) = (id.clone(), call.caller()?.clone());
    let is_visible = call.app.controller.read(move |state: &FleetState| {
        state.nodes.get(&name).is_some_and(|node| caller.sees(&node.location))
    });
    if is_visible.await? { Ok(()) } else { Err(Failure::node_not_found(id.as_str())) }
}

fn always_allowed(_: &Node) -> Option<Failure> {
    None
}

/// Refuses a node that accepts jobs. A job that starts during the test would run out of memory, and
/// would make the GPU look slow.
fn accepts_jobs(node: &Node) -> Option<Failure> {
    let is_schedulable = node.phase().in_service() || node.phase() == NodePhase::Joining;
    is_schedulable.then(|| {
        let text = "it accepts jobs, so it can be neither tested nor changed";
        Failure::conflict(text, HintCode::HoldAndDrain)
    })
}

/// Refuses a node whose certificates were revoked. Such a node cannot connect, so an order would
/// only wait until its lease expires.
fn certificate_revoked(node: &Node) -> Option<Failure> {
    node.liveness.certificate_revoked_at().map(|at| {
        let text = format!("its certificates were revoked at {at:.0}, so no order can reach it");
        Failure::conflict(text, HintCode::EnrolAgain)
    })
}

async fn submit(call: &Call, event: Event) -> Result<Reply, Failure> {
    let caller = call.caller()?;
    let outcome = call.app.controller.submit(caller.actor(), event).await?;
    Reply::json(&Done { changed: outcome.is_logged() })
}

pub(super) async fn submit_request(
    call: &Call,
    request: OperatorRequest,
) -> Result<Reply, Failure> {
    submit(call, Event::OperatorRequested { request }).await
}

pub(super) async fn hold(call: Call) -> Result<Reply, Failure> {
    let HoldRequest { reason } = call.body()?;
    let node = node(&call, always_allowed).await?;
    submit_request(&call, OperatorRequest::Hold { node, reason: reason.into_text() }).await
}

pub(super) async fn release(call: Call) -> Result<Reply, Failure> {
    call.expect_empty_body()?;
    let node = node(&call, always_allowed).await?;
    submit_request(&call, OperatorRequest::Release { node }).await
}

pub(super) async fn repaired(call: Call) -> Result<Reply, Failure> {
    let RepairedRequest { repair } = call.body()?;
    let refuse = |node: &Node| {
        (node.phase() == NodePhase::InService).then(|| {
            let text = "it is in service, so there is nothing to repair";
            Failure::conflict(text, HintCode::HoldOrWait)
        })
    };
    let node = node(&call, refuse).await?;
    submit_request(&call, OperatorRequest::Repaired { node, repair: repair.into_text() }).await
}

/// Refuses an approval if no repair waits for one. Otherwise a later repair would run without
/// waiting for an approval.
pub(super) async fn approve(call: Call) -> Result<Reply, Failure> {
    call.expect_empty_body()?;
    let refuse = |node: &Node| {
        let waits = node.waits_for_approval() || node.repairs.is_approved();
        (!waits).then(|| Failure::conflict("nothing waits for approval", HintCode::SeeApproval))
    };
    let node = node(&call, refuse).await?;
    submit_request(&call, OperatorRequest::Approve { node }).await
}

pub(super) async fn verify(call: Call) -> Result<Reply, Failure> {
    let VerifyRequest { level } = call.body()?;
    // These levels use the memory of the GPUs.
    let takes_gpus = matches!(level, VerificationLevel::V2 | VerificationLevel::V3);
    let node = node(&call, if takes_gpus { accepts_jobs } else { always_allowed }).await?;
    submit_request(&call, OperatorRequest::Verify { node, level }).await
}

pub(super) async fn diag(call: Call) -> Result<Reply, Failure> {
    let DiagRequest { level, minutes } = call.body()?;
    let level = u8::try_from(u32::from(level)).unwrap_or(u8::MAX);
    // Only level 3 runs for a duration that the caller can choose.
    let minutes = if level == 3 { minutes.into() } else { 0 };
    requested_order(call, OrderKind::Diag { level, minutes }).await
}

pub(super) async fn tune(call: Call) -> Result<Reply, Failure> {
    let TuneRequest { profile } = call.body()?;
    requested_order(call, OrderKind::Tune { profile: profile.into_text() }).await
}

pub(super) async fn order(call: Call, kind: OrderKind) -> Result<Reply, Failure> {
    call.expect_empty_body()?;
    requested_order(call, kind).await
}

/// Requests an order. A node has at most one operator-requested order at a time, and there is no
/// queue.
async fn requested_order(call: Call, kind: OrderKind) -> Result<Reply, Failure> {
    let requested = kind.clone();
    let needs_idle = kind.spec().node == NodeUse::Idle;
    let refuse = move |node: &Node| {
        let other = node
            .requests
            .requested_order
            .as_ref()
            .filter(|requested_order| requested_order.order != requested);
        let waits = other.map(|requested_order| {
            let text = format!(
                "`{}`, requested by {}, is still pending",
                requested_order.order, requested_order.by
            );
            Failure::conflict(text, HintCode::WaitForOrder)
        });
        certificate_revoked(node).or_else(|| accepts_jobs(node).filter(|_| needs_idle)).or(waits)
    };
    let node = node(&call, refuse).await?;
    submit_request(&call, OperatorRequest::RunOrder { node, order: kind }).await
}

pub(super) async fn retire(call: Call) -> Result<Reply, Failure> {
    run_to_completion(async move {
        let RetireRequest { reason } = call.body()?;
        let (node, caller) = (call.path.node()?, call.caller()?.clone());
        // The lock is held until the name is free. No node can enrol under this name in the
        // meantime.
        let _name = call.app.store.names.lock(&node).await;
        let id = node.clone();
        let visible = call.app.controller.read(move |state| {
            let node = state.nodes.get(&id)?;
            Some((caller.sees(&node.location), node.first_seq))
        });
        match visible.await? {
            Some((true, first_seq)) => {
                let reason = reason.into_text();
                let reply = submit(&call, Event::Retired { node: node.clone(), reason }).await?;
                artifacts::delete(&call, node.clone(), first_seq).await;
                call.app.with_store(move |store| store.free_name(&node)).await?;
                Ok(reply)
            }
            Some((false, _)) => Err(Failure::node_not_found(node.as_str())),
            None => free_held_name(&call, node).await,
        }
    })
    .await
}

/// Frees the name of a node that is already retired. This completes a retirement that failed before
/// the name was freed. The location of such a node is unknown, so its pool has to be in the
/// caller's scope.
async fn free_held_name(call: &Call, node: NodeId) -> Result<Reply, Failure> {
    let caller = call.caller()?.clone();
    let name = node.clone();
    let freed = call.app.with_store(move |store| {
        let pool = store.name_held_by(&name)?;
        let is_theirs = pool.is_some_and(|pool| caller.has_pool(&pool));
        if is_theirs { store.free_name(&name).map(|()| true) } else { Ok(false) }
    });
    if freed.await? {
        Reply::json(&Done { changed: true })
    } else {
        Err(Failure::node_not_found(node.as_str()))
    }
}

/// Sets the location of a node. The caller needs the whole fleet as scope: racks and switches are
/// shared, so the location of a node affects nodes of other tenants.
pub(super) async fn set_location(call: Call) -> Result<Reply, Failure> {
    call.caller()?.check_fleet_wide()?;
    let LocationRequest { pool, tenant, site, rack, leaf, nvlink, spine, row, pdu } =
        call.body()?;
    let node = node(&call, always_allowed).await?;
    let location = Location { pool, tenant, site, rack, leaf, nvlink, spine, row, pdu };
    submit(&call, Event::LocationChanged { node, location }).await
}

/// Checks that the caller's scope includes all nodes of the domain, because a freeze affects all of
/// them.
pub(super) async fn check_owned(call: &Call, domain: &Domain) -> Result<(), Failure> {
    let caller = call.caller()?;
    let scope = caller.scope();
    if caller.is_fleet_wide() || domain == scope {
        return Ok(());
    }
    let ours = Extent::count(&call.app.controller, caller).await?.members(domain);
    let requested = domain.clone();
    let members = call
        .app
        .controller
        .read(move |state| state.domain_counts.get(&requested).map(|counts| counts.members));
    if ours > 0 && members.await? == Some(ours) {
        return Ok(());
    }
    let (domain, scope) = (domain_text(domain), domain_text(scope));
    Err(Failure::forbidden(format!("`{domain}` is not entirely in your scope `{scope}`")))
}

/// Checks that the domain exists, because freezing a misspelt rack would have no effect. If it does
/// not, the error suggests similar domains of the caller.
pub(super) async fn check_exists(call: &Call, domain: &Domain) -> Result<(), Failure> {
    let (controller, caller, requested) = (&call.app.controller, call.caller()?, domain.clone());
    let exists = controller.read(move |state| {
        requested == Domain::Fleet
            || state.domain_counts.get(&requested).is_some_and(|counts| counts.members > 0)
            || state.freezes.contains_key(&requested)
    });
    if exists.await? {
        return Ok(());
    }
    let ours: Vec<Domain> = if caller.is_fleet_wide() {
        controller.read(|state| state.domain_counts.keys().cloned().collect()).await?
    } else {
        Extent::count(controller, caller)
            .await?
            .counts()
            .map(|(domain, _)| domain.clone())
            .collect()
    };
    let near = similar::names(&domain_text(domain), ours.iter().map(domain_text));
    let detail = match &near[..] {
        [] => format!("no node is in `{}`", domain_text(domain)),
        near => {
            format!(
                "no node is in `{}`; did you mean `{}`?",
                domain_text(domain),
                near.join("`, `")
            )
        }
    };
    Err(Failure::not_found(detail, HintCode::ListDomains))
}

/// The end of a freeze or a mute, which has either a duration or an end.
pub(super) fn end_time(
    call: &Call,
    duration_s: Option<RangedU32<1, 31_536_000>>,
    until: Option<Timestamp>,
) -> Result<Timestamp, Failure> {
    let now = call.app.controller.now();
    let until = match (duration_s, until) {
        (Some(seconds), None) => {
            let time = SignedDuration::from_secs(u32::from(seconds).into());
            now.checked_add(time).unwrap_or(now)
        }
        (None, Some(until)) => until,
        _ => return Err(Failure::bad_request("expected either `duration_s` or `until`")),
    };
    let is_within_a_year = now.checked_add(FREEZE_MAX).is_ok_and(|latest| until <= latest);
    if until <= now || !is_within_a_year {
        return Err(Failure::bad_request("`until`: expected a time in the future, within a year"));
    }
    Ok(until)
}

pub(super) async fn freeze(call: Call) -> Result<Reply, Failure> {
    let FreezeRequest { domain, duration_s, until, reason } = call.body()?;
    let until = end_time(&call, duration_s, until)?;
    check_owned(&call, &domain).await?;
    check_exists(&call, &domain).await?;
    submit_request(&call, OperatorRequest::Freeze { domain, until, reason: reason.into_text() })
        .await
}

pub(super) async fn unfreeze(call: Call) -> Result<Reply, Failure> {
    let UnfreezeRequest { domain } = call.body()?;
    check_owned(&call, &domain).await?;
    check_exists(&call, &domain).await?;
    submit_request(&call, OperatorRequest::Unfreeze { domain }).await
}

/// Reports that a domain was repaired. As with a freeze, all nodes of the domain are affected, so
/// the caller's scope has to include all of them.
pub(super) async fn domain_repaired(call: Call) -> Result<Reply, Failure> {
    let DomainRepairedRequest { domain, repair } = call.body()?;
    check_owned(&call, &domain).await?;
    check_exists(&call, &domain).await?;
    submit_request(&call, OperatorRequest::DomainRepaired { domain, repair: repair.into_text() })
        .await
}
