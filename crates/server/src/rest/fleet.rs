//! Domains, domain faults, freezes, the policy, and the caller.

use farrier_fleet::fleet::state::DomainCounts;
use farrier_fleet::fleet::{Domain, Event};
use farrier_wire::rest::{
    DomainFaultList, DomainFaultRow, DomainList, DomainRow, Done, FreezeList, FreezeRow, Me,
    PolicyView,
};

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
        floor: None,
    };
    Reply::json(&DomainList { domains: extent.counts().map(row).collect() })
}

pub(super) async fn domain_faults(call: Call) -> Result<Reply, Failure> {
    let caller = call.caller()?.clone();
    let domain_faults = call.app.controller.read(move |state| {
        let is_visible =
            |id: &&_| state.nodes.get(*id).is_some_and(|node| caller.sees(&node.location));
        let rows = state.domain_faults.iter().map(|(domain, fault)| DomainFaultRow {
            domain: domain.clone(),
            symptom: fault.symptom,
            nodes: fault.nodes.iter().filter(is_visible).cloned().collect(),
            since: fault.since,
            rationale: (&fault.rationale.redacted(caller.scope())).into(),
        });
        rows.filter(|row| caller.is_fleet_wide() || !row.nodes.is_empty()).collect()
    });
    Reply::json(&DomainFaultList { domain_faults: domain_faults.await? })
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
    notify::check_receivers(policy.notifications.clone()).await?;
    let outcome = call.app.controller.submit(caller.actor(), Event::PolicySet { policy }).await?;
    Reply::json(&Done { changed: outcome.is_logged() })
}
