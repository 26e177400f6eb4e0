//! Domains, domain faults, freezes, the policy, and the caller.

use std::collections::BTreeMap;
use std::sync::Arc;

use farrier_fleet::fleet::next_step::DomainImpact;
use farrier_fleet::fleet::policy::{PolicyContext, PolicyNode, name_skus};
use farrier_fleet::fleet::state::{DomainCounts, DomainFault};
use farrier_fleet::fleet::{Domain, Event, FleetState, Node, NodeId, Policy};
use farrier_wire::rest::{
    DomainFaultList, DomainFaultRow, DomainList, DomainRow, Done, FreezeList, FreezeRow, Me,
    PolicyView,
};
use jiff::tz::TimeZone;

use super::caller::Caller;
use super::extent::Extent;
use super::failure::Failure;
use super::reply::Reply;
use super::{Call, notify, pagination, redact};
use crate::policy_key::verify;

pub(super) async fn me(call: Call) -> Result<Reply, Failure> {
    let user = call.caller()?.user.clone();
    Reply::json(&Me { name: user.name, role: user.role, scope: user.scope, expires: user.expires })
}

pub(super) async fn domains(call: Call) -> Result<Reply, Failure> {
    let caller = call.caller()?;
    if caller.is_fleet_wide() {
        let all = call.app.controller.read(|state| {
            let row = |(domain, counts): (&Domain, &DomainCounts)| DomainRow {
                domain: domain.clone(),
                members: counts.members,
                out: counts.out,
                limit: state.policy.disruption_limit(domain.kind(), counts.members),
                disrupted: Some(counts.disrupted),
                schedulable: Some(counts.schedulable),
                out_not_cordoned: Some(counts.out_not_cordoned),
                floor: state.policy.capacity_floor(domain.kind(), counts.members),
            };
            state.domain_counts.iter().map(row).collect()
        });
        return Reply::json(&DomainList { domains: all.await? });
    }
    // Counts only the caller's nodes. The caller must not see how many other nodes share a rack.
    let extent = Extent::count(&call.app.controller, caller).await?;
    let row = |(domain, counts): (&Domain, DomainCounts)| DomainRow {
        domain: domain.clone(),
        members: counts.members,
        out: counts.out,
        limit: None,
        disrupted: Some(counts.disrupted),
        schedulable: Some(counts.schedulable),
        out_not_cordoned: Some(counts.out_not_cordoned),
        floor: None,
    };
    Reply::json(&DomainList { domains: extent.counts().map(row).collect() })
}

pub(super) async fn domain_faults(call: Call) -> Result<Reply, Failure> {
    let caller = call.caller()?.clone();
    let domain_faults = call.app.controller.read(move |state| {
        let faults = state.domain_faults.iter();
        let rows = faults.map(|(domain, fault)| domain_fault_row(state, &caller, domain, fault));
        rows.filter(|row| caller.is_fleet_wide() || !row.nodes.is_empty()).collect()
    });
    Reply::json(&DomainFaultList { domain_faults: domain_faults.await? })
}

/// A domain fault with the nodes that the caller may see.
pub(super) fn domain_fault_row(
    state: &FleetState,
    caller: &Caller,
    domain: &Domain,
    fault: &DomainFault,
) -> DomainFaultRow {
    let sees = |node: &Node| caller.sees(&node.location);
    let is_visible = |id: &&NodeId| state.nodes.get(*id).is_some_and(|node| sees(node));
    let shown = state.symptoms.get(domain).and_then(|symptoms| symptoms.get(&fault.symptom));
    let affected = shown.into_iter().flat_map(BTreeMap::keys).filter(is_visible);
    DomainFaultRow {
        domain: domain.clone(),
        symptom: fault.symptom,
        nodes: fault.nodes.iter().filter(is_visible).cloned().collect(),
        since: fault.since,
        rationale: (&fault.rationale.redacted(caller.scope())).into(),
        affected: Some(affected.cloned().collect()),
        taking_work: Some(DomainImpact::new(state, domain, fault.symptom, sees).taking_work),
    }
}

pub(super) async fn freezes(call: Call) -> Result<Reply, Failure> {
    let extent = Extent::count(&call.app.controller, call.caller()?).await?;
    let now = call.app.controller.now();
    let freezes = call.app.controller.read(move |state| {
        let active = state.freezes.iter().filter(|(_, freeze)| freeze.until > now);
        let visible = active.filter(|(domain, _)| extent.touches(domain));
        let row = |(domain, freeze): (&Domain, &farrier_fleet::fleet::state::Freeze)| FreezeRow {
            domain: domain.clone(),
            until: freeze.until,
            by: freeze.by.to_string(),
            reason: freeze.reason.clone(),
        };
        visible.map(row).collect()
    });
    Reply::json(&FreezeList { freezes: freezes.await? })
}

pub(super) async fn policy(call: Call) -> Result<Reply, Failure> {
    let extent = Extent::count(&call.app.controller, call.caller()?).await?;
    let policy =
        call.app.controller.read(move |state| redact::visible_policy(&extent, &state.policy));
    Reply::json(&PolicyView { policy: policy.await? })
}

/// Most conflicts that an answer lists.
const CONFLICTS_MAX: usize = 10;

/// Refuses a policy whose values contradict each other for the nodes of the fleet.
async fn check_conflicts(call: &Call, caller: &Caller, policy: &Policy) -> Result<(), Failure> {
    let visit: pagination::Visit<PolicyNode> =
        Arc::new(|_, id, node, found| found.push(PolicyNode::reported(id, node)));
    let mut nodes = Vec::new();
    let mut batches = pagination::Batches::new(&call.app.controller, caller, visit);
    while let Some(batch) = batches.next(usize::MAX).await? {
        nodes.extend(batch);
    }
    let (app, policy) = (Arc::clone(&call.app), policy.clone());
    let conflicts = tokio::task::spawn_blocking(move || {
        name_skus(&mut nodes, &app.facts);
        let on = app.controller.now().to_zoned(TimeZone::UTC).date();
        policy.conflicts(&PolicyContext { facts: &app.facts, on, nodes: &nodes })
    });
    let conflicts = conflicts.await.map_err(|_| Failure::internal_error())?;
    let texts: Vec<String> =
        conflicts.iter().take(CONFLICTS_MAX).map(ToString::to_string).collect();
    match conflicts.len().checked_sub(CONFLICTS_MAX) {
        _ if conflicts.is_empty() => Ok(()),
        Some(more) if more > 0 => {
            Err(Failure::bad_request(format!("{}; and {more} more conflicts", texts.join("; "))))
        }
        _ => Err(Failure::bad_request(texts.join("; "))),
    }
}

pub(super) async fn set_policy(call: Call) -> Result<Reply, Failure> {
    let caller = call.caller()?;
    caller.check_fleet_wide()?;
    let policy: Box<Policy> = call.body()?;
    policy.check().map_err(|err| Failure::bad_request(err.to_string()))?;
    let files = call.app.receiver_files.clone();
    notify::check_receivers(policy.notifications.clone(), files).await?;
    let keys = &call.app.policy_keys;
    if !keys.is_empty() {
        verify(&policy, keys).map_err(|err| Failure::bad_request(err.to_string()))?;
    }
    check_conflicts(&call, caller, &policy).await?;
    let outcome = call.app.controller.submit(caller.actor(), Event::PolicySet { policy }).await?;
    Reply::json(&Done { changed: outcome.is_logged() })
}
