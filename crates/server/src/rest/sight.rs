//! What of the log a caller sees: what is about nodes of theirs, and of what is about many the part that is theirs.
//!
//! It goes by where a node stands now: whoever has it sees what happened to it since it enrolled. Nodes that were retired stand nowhere, and
//! are seen by those who see the fleet, also after another node got their name.

use farrier_fleet::fleet::event::Ask;
use farrier_fleet::fleet::{Domain, Entry, Event, FleetState, NodeId, Policy};

use super::caller::Caller;
use super::extent::Extent;
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
    let extent = if entries.iter().any(|it| is_of_domains(&it.event)) {
        Extent::count(brain, caller).await?
    } else {
        Extent::uncounted(caller)
    };
    let caller = caller.clone();
    let seen = brain.look(move |state| {
        let eyes = Eyes { state, caller: &caller, extent: &extent };
        entries.into_iter().filter_map(|entry| eyes.seen(entry)).collect()
    });
    Ok(seen.await?)
}

/// Whether it depends on where the caller has nodes who sees what of it.
fn is_of_domains(event: &Event) -> bool {
    matches!(
        event,
        Event::PolicySet { .. }
            | Event::Absolved { .. }
            | Event::Asked { what: Ask::Freeze { .. } | Ask::Thaw { .. } }
    )
}

/// The caller's, for one look.
struct Eyes<'s> {
    state: &'s FleetState,
    caller: &'s Caller,
    /// Counted where one of the entries is of domains.
    extent: &'s Extent,
}

impl Eyes<'_> {
    fn seen(&self, mut entry: Entry) -> Option<Entry> {
        let seq = entry.seq;
        let is_seen = match &mut entry.event {
            Event::Access { .. } => false,
            Event::TimePassed | Event::ClockStepped { .. } | Event::ControllerResumed { .. } => {
                true
            }
            Event::PolicySet { policy } => {
                **policy = policy_of(self.extent, policy);
                true
            }
            Event::Blamed { nodes, why, .. } => {
                nodes.retain(|id| self.is_ours(id, seq));
                *why = why.redacted(self.caller.scope());
                !nodes.is_empty()
            }
            Event::HeldBack { node, why } | Event::Moved { node, why, .. } => {
                *why = why.redacted(self.caller.scope());
                self.is_ours(node, seq)
            }
            Event::Withdrawn { node, why, .. } => {
                *why = why.redacted(self.caller.scope());
                self.is_ours(node, seq)
            }
            Event::Ordered { order } => {
                order.reason = order.reason.redacted(self.caller.scope());
                self.is_ours(&order.node, seq)
            }
            Event::Absolved { domain, why } => {
                *why = why.redacted(self.caller.scope());
                self.extent.touches(domain)
            }
            Event::Asked { what: Ask::Freeze { domain, .. } | Ask::Thaw { domain } } => {
                self.extent.touches(domain)
            }
            event => event.subject().is_some_and(|id| self.is_ours(id, seq)),
        };
        is_seen.then_some(entry)
    }

    /// An entry from before the node enrolled is about another node of that name, whose owner may have been another.
    fn is_ours(&self, id: &NodeId, seq: u64) -> bool {
        let node = self.state.nodes.get(id);
        node.is_some_and(|it| self.caller.sees(&it.place) && seq >= it.first_seq)
    }
}

/// A policy without the pools of others.
pub(super) fn policy_of(extent: &Extent, policy: &Policy) -> Policy {
    let mut policy = policy.clone();
    policy.pools.retain(|pool, _| extent.touches(&Domain::Pool(pool.clone())));
    policy
}
