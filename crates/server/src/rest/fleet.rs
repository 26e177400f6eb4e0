//! Domains, what is to blame, freezes, the policy, and who asks.

use farrier_fleet::fleet::{Domain, Event};
use farrier_wire::rest::{
    DomainFaultList, DomainFaultRow, DomainList, DomainRow, Done, FreezeList, FreezeRow, Me,
    PolicyView,
};

use super::extent::{Extent, NodeCount};
use super::failure::Failure;
use super::reply::Reply;
use super::{Call, redact};

pub(super) async fn me(call: Call) -> Result<Reply, Failure> {
    let person = call.caller()?.person.clone();
    Reply::json(&Me {
        name: person.name,
        role: person.role,
        scope: person.scope,
        expires: person.expires,
    })
}

pub(super) async fn domains(call: Call) -> Result<Reply, Failure> {
    let caller = call.caller()?;
    if caller.is_fleet_wide() {
        let all = call.site.brain.look(|state| {
            let row = |(domain, tally): (&Domain, &farrier_fleet::fleet::state::DomainCounts)| {
                DomainRow {
                    domain: domain.clone(),
                    members: tally.members,
                    out: tally.out,
                    limit: state
                        .policy
                        .disruption_budgets
                        .get(&domain.kind())
                        .map(|it| it.limit(tally.members)),
                }
            };
            state.domain_counts.iter().map(row).collect()
        });
        return Reply::json(&DomainList { domains: all.await? });
    }
    // Counted are nodes of the caller's only: how many others share a rack is not theirs to know.
    let extent = Extent::count(&call.site.brain, caller).await?;
    let row = |(domain, count): (&Domain, NodeCount)| DomainRow {
        domain: domain.clone(),
        members: count.members,
        out: count.out,
        limit: None,
    };
    Reply::json(&DomainList { domains: extent.counts().map(row).collect() })
}

pub(super) async fn domain_faults(call: Call) -> Result<Reply, Failure> {
    let caller = call.caller()?.clone();
    let domain_faults = call.site.brain.look(move |state| {
        let is_ours = |id: &&_| state.nodes.get(*id).is_some_and(|it| caller.sees(&it.location));
        let rows = state.domain_faults.iter().map(|(domain, blame)| DomainFaultRow {
            domain: domain.clone(),
            symptom: blame.symptom,
            nodes: blame.nodes.iter().filter(is_ours).cloned().collect(),
            since: blame.since,
            rationale: (&blame.rationale.redacted(caller.scope())).into(),
        });
        rows.filter(|it| caller.is_fleet_wide() || !it.nodes.is_empty()).collect()
    });
    Reply::json(&DomainFaultList { domain_faults: domain_faults.await? })
}

pub(super) async fn freezes(call: Call) -> Result<Reply, Failure> {
    let extent = Extent::count(&call.site.brain, call.caller()?).await?;
    let now = call.site.brain.now();
    let freezes = call.site.brain.look(move |state| {
        let holds = state.freezes.iter().filter(|(_, freeze)| freeze.until > now);
        let seen = holds.filter(|(domain, _)| extent.touches(domain));
        let row = |(domain, it): (&Domain, &farrier_fleet::fleet::state::Freeze)| FreezeRow {
            domain: domain.clone(),
            until: it.until,
            by: it.by.to_string(),
            reason: it.reason.clone(),
        };
        seen.map(row).collect()
    });
    Reply::json(&FreezeList { freezes: freezes.await? })
}

pub(super) async fn policy(call: Call) -> Result<Reply, Failure> {
    let extent = Extent::count(&call.site.brain, call.caller()?).await?;
    let policy = call.site.brain.look(move |state| redact::policy_of(&extent, &state.policy));
    Reply::json(&PolicyView { policy: policy.await? })
}

pub(super) async fn set_policy(call: Call) -> Result<Reply, Failure> {
    let caller = call.caller()?;
    caller.check_fleet_wide()?;
    let policy: Box<farrier_fleet::fleet::Policy> = call.body()?;
    policy.check().map_err(|err| Failure::wrong(err.to_string()))?;
    let taken = call.site.brain.take(caller.actor(), Event::PolicySet { policy }).await?;
    Reply::json(&Done { changed: taken.is_logged() })
}
