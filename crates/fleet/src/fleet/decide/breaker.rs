//! How many nodes may be out of service at once. Nothing here keeps a node from coming back.

use std::collections::BTreeMap;

use crate::fleet::event::{Event, Why};
use crate::fleet::identity::Domain;
use crate::fleet::state::{FleetState, Node, Standing, Tally};

/// What is left to take, with what this decision took already.
pub(super) struct Budget<'a> {
    state: &'a FleetState,
    taken: BTreeMap<Domain, u32>,
}

impl<'a> Budget<'a> {
    pub(super) fn new(state: &'a FleetState) -> Self {
        Self { state, taken: BTreeMap::new() }
    }

    /// Why the node may not be taken out of service now; none where it may.
    pub(super) fn refusal(&self, node: &Node) -> Option<Why> {
        let tight = node.place.domains().into_iter().find_map(|domain| {
            let breaker = self.state.policy.breakers.get(&domain.kind())?;
            let Tally { members, out } =
                self.state.tallies.get(&domain).copied().unwrap_or_default();
            let out = out.saturating_add(self.taken.get(&domain).copied().unwrap_or_default());
            let limit = breaker.limit(members);
            (out >= limit).then_some((domain, out, members, limit))
        });
        let (domain, out, members, limit) = tight?;
        let text =
            format!("{out} of {members} nodes of {domain} are out of service, and {limit} may be");
        let until = format!("a node of {domain} is back in service, or the policy allows more");
        Some(Why::new(text, until))
    }

    /// Counts what was decided.
    pub(super) fn take(&mut self, before: &Node, event: &Event) {
        let Event::Moved { to, .. } = event else { return };
        let was_in = before.standing.in_service() || before.standing == Standing::Joining;
        // As [`Node::counts_as_out`].
        let is_in = to.in_service()
            || *to == Standing::Joining
            || (*to == Standing::Held && before.first_served.is_none());
        if was_in && !is_in {
            for domain in before.place.domains() {
                *self.taken.entry(domain).or_default() += 1;
            }
        }
    }
}
