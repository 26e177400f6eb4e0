//! An in-memory fleet in simulated time: nodes with seeded faults report as their agents would and
//! execute orders. The same spec gives the same fleet. A test can use the fleet in one process, or
//! `wire` connects the nodes to a real server.

mod fault;
mod node;
#[cfg(feature = "wire")]
pub mod wire;

use std::collections::{BTreeMap, BTreeSet};

use farrier_fleet::fleet::{Event, Location, NodeId, Order};
use jiff::Timestamp;

use crate::rng::SeededRng;
pub use fault::{NodeFault, Repair};
pub use node::SimNode;
use node::after;

/// Specification of a simulated fleet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FleetSpec {
    /// Seed of all random choices.
    pub seed: u64,
    pub nodes: u32,
    /// GPUs per node.
    pub gpus: u32,
    pub nodes_per_rack: u32,
    pub nodes_per_leaf: u32,
    /// Mean time between faults of a node. 0 means that nodes get no random faults.
    pub mean_fault_interval_s: u64,
    /// Mean time between leaf switch failures. 0 means that switches do not fail.
    pub mean_switch_failure_interval_s: u64,
    /// Factor by which reboots, orders and self-clearing faults are faster than on real nodes. 1 is
    /// real time.
    pub time_scale: u64,
}

impl Default for FleetSpec {
    /// The defaults: 64 nodes with eight GPUs. Each node has a fault about every 50 days.
    fn default() -> Self {
        Self {
            seed: 1,
            nodes: 64,
            gpus: 8,
            nodes_per_rack: 4,
            nodes_per_leaf: 16,
            mean_fault_interval_s: 50 * 86_400,
            mean_switch_failure_interval_s: 0,
            time_scale: 1,
        }
    }
}

/// An entry of the event queue.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum ScheduledEvent {
    NodeFault(NodeId),
    /// An order of the node is due to finish, or a self-clearing fault to clear.
    NodeTimer(NodeId),
    SwitchFailure,
}

/// A simulated fleet.
#[derive(Debug)]
pub struct SimFleet {
    spec: FleetSpec,
    rng: SeededRng,
    nodes: BTreeMap<NodeId, SimNode>,
    schedule: BTreeSet<(Timestamp, ScheduledEvent)>,
    /// Nodes that may have events to report.
    nodes_with_events: BTreeSet<NodeId>,
}

impl SimFleet {
    /// A fleet of healthy nodes that starts at `start`.
    pub fn new(spec: FleetSpec, start: Timestamp) -> Self {
        let mut fleet = Self {
            rng: SeededRng::new(spec.seed, "fleet"),
            nodes: BTreeMap::new(),
            schedule: BTreeSet::new(),
            nodes_with_events: BTreeSet::new(),
            spec,
        };
        for index in 0..fleet.spec.nodes {
            let Some((id, location)) = fleet.spec.identity(index) else { continue };
            let node = SimNode::new(id.clone(), location, &fleet.spec);
            fleet.nodes.insert(id.clone(), node);
            fleet.nodes_with_events.insert(id.clone());
            fleet.schedule_next(ScheduledEvent::NodeFault(id), start);
        }
        fleet.schedule_next(ScheduledEvent::SwitchFailure, start);
        fleet
    }

    /// The nodes and their locations.
    pub fn locations(&self) -> impl Iterator<Item = (&NodeId, &Location)> {
        self.nodes.iter().map(|(id, node)| (id, &node.location))
    }

    pub fn node(&self, id: &NodeId) -> Option<&SimNode> {
        self.nodes.get(id)
    }

    /// Time of the next scheduled event.
    pub fn next_at(&self) -> Option<Timestamp> {
        self.schedule.first().map(|(at, _)| *at)
    }

    /// Advances to `now` and returns the events of the nodes. The events of one node are in the order
    /// in which they happened.
    pub fn advance(&mut self, now: Timestamp) -> Vec<Event> {
        while let Some((at, due)) = self.schedule.pop_first() {
            if at > now {
                self.schedule.insert((at, due));
                break;
            }
            match &due {
                ScheduledEvent::NodeFault(id) => {
                    let fault = NodeFault::random(&mut self.rng);
                    self.inject_fault(id, fault, at);
                    self.schedule_next(due, at);
                }
                ScheduledEvent::NodeTimer(id) => self.update_node(id, |node| {
                    node.clear_transient_faults(at);
                    node.finish_due_orders(at);
                }),
                ScheduledEvent::SwitchFailure => {
                    self.fail_leaf_switch(at);
                    self.schedule_next(due, at);
                }
            }
        }
        let mut events = Vec::new();
        self.nodes_with_events.retain(|id| {
            let Some(node) = self.nodes.get_mut(id) else { return false };
            events.extend(node.take_events());
            !node.is_up()
        });
        events
    }

    /// Delivers an order to its node. If the node is down, the order is lost.
    pub fn deliver_order(&mut self, order: &Order, now: Timestamp) {
        let done_at =
            self.nodes.get_mut(&order.node).and_then(|node| node.accept_order(order, now));
        self.nodes_with_events.insert(order.node.clone());
        if let Some(at) = done_at {
            self.schedule.insert((at, ScheduledEvent::NodeTimer(order.node.clone())));
        }
    }

    /// Injects a fault into a node that is up.
    pub fn inject_fault(&mut self, id: &NodeId, fault: NodeFault, now: Timestamp) {
        let Some(node) = self.nodes.get_mut(id).filter(|node| node.is_up()) else { return };
        let clears_at = node.inject_fault(fault, now);
        self.nodes_with_events.insert(id.clone());
        if let Some(at) = clears_at {
            self.schedule.insert((at, ScheduledEvent::NodeTimer(id.clone())));
        }
    }

    /// Changes a node directly, for example to repair it.
    pub fn update_node(&mut self, id: &NodeId, change: impl FnOnce(&mut SimNode)) {
        if let Some(node) = self.nodes.get_mut(id) {
            change(node);
            self.nodes_with_events.insert(id.clone());
        }
    }

    fn fail_leaf_switch(&mut self, at: Timestamp) {
        let leaves: BTreeSet<_> =
            self.nodes.values().filter_map(|node| node.location.leaf.clone()).collect();
        let index = self.rng.below(leaves.len().max(1) as u64);
        let failed = usize::try_from(index).ok().and_then(|index| leaves.into_iter().nth(index));
        let affected = self.nodes.values().filter(|node| node.location.leaf == failed);
        let affected: Vec<NodeId> = affected.map(|node| node.id.clone()).collect();
        for id in affected {
            self.inject_fault(&id, fault::LEAF_SWITCH_FAILURE, at);
        }
    }

    fn schedule_next(&mut self, due: ScheduledEvent, from: Timestamp) {
        let mean_interval_s = match due {
            ScheduledEvent::SwitchFailure => self.spec.mean_switch_failure_interval_s,
            _ => self.spec.mean_fault_interval_s,
        };
        if mean_interval_s > 0 {
            let wait_s = 1 + self.rng.below(2 * mean_interval_s);
            self.schedule.insert((after(from, wait_s), due));
        }
    }
}

impl FleetSpec {
    /// Name and location of a node.
    fn identity(&self, index: u32) -> Option<(NodeId, Location)> {
        let unit =
            |prefix: &str, size: u32| format!("{prefix}{:04}", index / size.max(1)).parse().ok();
        let mut location = Location::in_pool("train".parse().ok()?);
        (location.rack, location.leaf) =
            (unit("rack-", self.nodes_per_rack), unit("leaf-", self.nodes_per_leaf));
        Some((format!("node-{index:05}").parse().ok()?, location))
    }
}
