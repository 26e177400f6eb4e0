//! Domains, domain faults, freezes, the policy, and the caller.

use std::collections::BTreeMap;

use farrier_fleet::fleet::next_step::DomainImpact;
use farrier_fleet::fleet::state::{DomainCounts, DomainFault};
use farrier_fleet::fleet::{Domain, Event, FleetState, Node, NodeId};
use farrier_wire::rest::{
    DomainFaultList, DomainFaultRow, DomainList, DomainRow, Done, FreezeList, FreezeRow, Me,
    PolicyView,
};

use super::caller::Caller;
use super::extent::Extent;
use super::failure::Failure;
use super::reply::Reply;
use super::{Call, notify, redact};

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
                limit: state
                    .policy
                    .disruption_budgets
                    .get(&domain.kind())
                    .map(|budget| budget.limit(counts.members)),
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

pub(super) async fn set_policy(call: Call) -> Result<Reply, Failure> {
    let caller = call.caller()?;
    caller.check_fleet_wide()?;
    let policy: Box<farrier_fleet::fleet::Policy> = call.body()?;
    policy.check().map_err(|err| Failure::bad_request(err.to_string()))?;
    notify::check_receivers(&policy.notifications)?;
    let outcome = call.app.controller.submit(caller.actor(), Event::PolicySet { policy }).await?;
    Reply::json(&Done { changed: outcome.is_logged() })
}
