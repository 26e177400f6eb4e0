//! What the router reads of the fleet's state.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::mute::Mute;
use crate::fleet::access::{AccessChange, is_within};
use crate::fleet::event::Event;
use crate::fleet::identity::{Domain, Location, NodeId};
use crate::fleet::state::{DomainFault, DomainRecovery, FleetState, Node, Symptom, add_seconds};

/// The part of the fleet's state that the router reads. It may be newer than the entry that is
/// applied: the router then learns of later entries early, and applies them again without effect.
#[derive(Debug, Clone, Default)]
pub struct FleetView {
    /// `None` for a node that is not in the fleet. Nodes that are missing here are not evaluated.
    pub nodes: BTreeMap<NodeId, Option<Arc<Node>>>,
    pub domain_faults: BTreeMap<Domain, DomainFault>,
    /// For each faulty domain, the nodes that its fault was detected on, and those that show its
    /// symptom now.
    pub faulty_nodes: BTreeMap<Domain, Vec<(NodeId, Location)>>,
    pub domain_recoveries: BTreeMap<Domain, RecoveryPeriod>,
    pub mutes: BTreeMap<u64, Mute>,
}

/// A domain fault that has ended. What its nodes still show gets time to clear.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecoveryPeriod {
    pub symptom: Symptom,
    pub until: Timestamp,
}

impl FleetView {
    /// A view of these nodes.
    pub fn of_nodes<'n>(state: &FleetState, nodes: impl Iterator<Item = &'n NodeId>) -> Self {
        Self {
            nodes: nodes.map(|id| (id.clone(), state.nodes.get(id).cloned())).collect(),
            domain_faults: state.domain_faults.clone(),
            faulty_nodes: faulty_nodes(state),
            domain_recoveries: recoveries(state),
            mutes: state.mutes.clone(),
        }
    }

    /// A view of the whole fleet.
    pub fn of_fleet(state: &FleetState) -> Self {
        Self::of_nodes(state, state.nodes.keys())
    }
}

fn faulty_nodes(state: &FleetState) -> BTreeMap<Domain, Vec<(NodeId, Location)>> {
    let nodes = |(domain, fault): (&Domain, &DomainFault)| {
        let shown = state.symptoms.get(domain).and_then(|symptoms| symptoms.get(&fault.symptom));
        let ids: BTreeSet<&NodeId> =
            fault.nodes.iter().chain(shown.into_iter().flat_map(BTreeMap::keys)).collect();
        let located = ids.into_iter().filter_map(|id| {
            let node = state.nodes.get(id)?;
            is_within(&node.location, domain).then(|| (id.clone(), node.location.clone()))
        });
        (domain.clone(), located.collect())
    };
    state.domain_faults.iter().map(nodes).collect()
}

fn recoveries(state: &FleetState) -> BTreeMap<Domain, RecoveryPeriod> {
    let recovery_s = state.policy.recovery_s();
    let recovery = |(domain, recovery): (&Domain, &DomainRecovery)| {
        let until = add_seconds(recovery.at, recovery_s);
        (domain.clone(), RecoveryPeriod { symptom: recovery.symptom, until })
    };
    state.domain_recoveries.iter().map(recovery).collect()
}

/// The node whose alerts an entry may change.
pub fn concerned_node(event: &Event) -> Option<&NodeId> {
    match event {
        Event::InventoryReported { .. }
        | Event::CordonObserved { .. }
        | Event::OrderGenerationObserved { .. }
        | Event::OperatorRequested { .. } => None,
        Event::AccessChanged { change: AccessChange::CertificateRevoked { node }, .. } => {
            Some(node)
        }
        other => other.node(),
    }
}
