//! What of the log a caller sees: what is about nodes of theirs, and of what is about many the part that is theirs.
//!
//! It goes by where a node stands now: whoever has it sees what happened to it. Nodes that were retired stand nowhere, and are seen
//! by those who see the fleet.

use farrier_fleet::fleet::event::Ask;
use farrier_fleet::fleet::{Entry, Event, FleetState, NodeId, Policy};

use super::caller::Caller;
use super::failure::Failure;
use crate::brain::Brain;

/// The entries that the caller sees, as they see them.
pub(super) async fn cut(
    brain: &Brain,
    caller: &Caller,
    entries: Vec<Entry>,
) -> Result<Vec<Entry>, Failure> {
    if caller.is_fleet_wide() {
        let sees = |it: &Entry| caller.sees_access() || !matches!(it.event, Event::Access { .. });
        return Ok(entries.into_iter().filter(sees).collect());
    }
    let caller = caller.clone();
    let seen = brain.look(move |state| {
        entries.into_iter().filter_map(|entry| seen(state, &caller, entry)).collect()
    });
    Ok(seen.await?)
}

fn seen(state: &FleetState, caller: &Caller, mut entry: Entry) -> Option<Entry> {
    let is_ours = |id: &NodeId| state.nodes.get(id).is_some_and(|it| caller.sees(&it.place));
    let is_seen = match &mut entry.event {
        Event::Access { .. } => false,
        Event::TimePassed => true,
        Event::PolicySet { policy } => {
            **policy = policy_of(state, caller, policy);
            true
        }
        Event::Blamed { nodes, .. } => {
            nodes.retain(|id| is_ours(id));
            !nodes.is_empty()
        }
        Event::Absolved { domain, .. }
        | Event::Asked { what: Ask::Freeze { domain, .. } | Ask::Thaw { domain } } => {
            caller.touches(state, domain)
        }
        event => event.subject().is_some_and(is_ours),
    };
    is_seen.then_some(entry)
}

/// A policy without the pools of others.
pub(super) fn policy_of(state: &FleetState, caller: &Caller, policy: &Policy) -> Policy {
    let mut policy = policy.clone();
    if !caller.is_fleet_wide() {
        policy.pools.retain(|pool, _| {
            caller.touches(state, &farrier_fleet::fleet::Domain::Pool(pool.clone()))
        });
    }
    policy
}
