//! The first step of nodes for the answer to one request. A fault of a site can affect thousands of
//! nodes, so its nodes are counted once per request and not once per node.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use farrier_fleet::fleet::next_step::DomainImpact;
use farrier_fleet::fleet::state::Symptom;
use farrier_fleet::fleet::{
    Domain, FleetState, NextStep, Node, NodeId, Rationale, explain, next_step,
};

use super::caller::Caller;

/// How many of the nodes that the caller may see are affected by each domain fault.
pub(super) struct DomainImpacts {
    caller: Caller,
    counted: Mutex<BTreeMap<(Domain, Symptom), DomainImpact>>,
}

impl DomainImpacts {
    pub(super) fn of(caller: &Caller) -> Self {
        Self { caller: caller.clone(), counted: Mutex::default() }
    }

    /// What a person does first about the node.
    pub(super) fn next_step(
        &self,
        state: &FleetState,
        id: &NodeId,
        node: &Node,
    ) -> Option<NextStep> {
        let deferred = explain::current_deferral(state, node);
        self.next_step_with(state, (id, node), deferred.as_ref())
    }

    /// Like [`Self::next_step`], with the reason why an action of the node waits now.
    pub(super) fn next_step_with(
        &self,
        state: &FleetState,
        node: (&NodeId, &Node),
        deferred: Option<&Rationale>,
    ) -> Option<NextStep> {
        let impact = |domain: &Domain, symptom: Symptom| {
            let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
            *counted.entry((domain.clone(), symptom)).or_insert_with(|| {
                DomainImpact::new(state, domain, symptom, |node| self.caller.sees(&node.location))
            })
        };
        // A reason that names what the caller may not see gives no step.
        let deferred = deferred.map(|deferred| deferred.redacted(self.caller.scope()));
        next_step(state, node, deferred.as_ref(), impact)
    }
}
