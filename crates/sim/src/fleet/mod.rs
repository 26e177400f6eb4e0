//! A fleet in memory: nodes that fall ill by a seed, say what their agents would say, and carry orders out, all in a time that
//! the caller moves. The same plan gives the same fleet, whoever asks it: a test in one process, or agents on the real wire.

mod fault;
mod node;
#[cfg(feature = "wire")]
pub mod wire;

use std::collections::{BTreeMap, BTreeSet};

use farrier_fleet::fleet::{Event, NodeId, Order, Place};
use jiff::Timestamp;

use crate::rng::SeededRng;
pub use fault::{NodeFault, Repair};
pub use node::SimNode;
use node::after;

/// What to make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FleetSpec {
    /// Decides everything that is left to chance.
    pub seed: u64,
    /// How many nodes.
    pub nodes: u32,
    /// GPUs of each.
    pub gpus: u32,
    /// Nodes in a rack.
    pub nodes_per_rack: u32,
    /// Nodes behind a leaf switch.
    pub nodes_per_leaf: u32,
    /// Seconds from one fault of a node to its next, on average; 0 for none.
    pub mean_fault_interval_s: u64,
    /// Seconds from one failing leaf switch to the next, on average; 0 for none.
    pub mean_switch_failure_interval_s: u64,
    /// How many times faster than real ones its nodes boot, drain, reset and recover: at 1 as slowly as they do.
    pub time_scale: u64,
}

impl Default for FleetSpec {
    /// A node of eight GPUs falls ill about every fifty days.
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

/// What is to come.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum ScheduledEvent {
    /// Something befalls a node.
    NodeFault(NodeId),
    /// A node looks at its task and at what passes.
    NodeTimer(NodeId),
    /// A leaf switch fails.
    SwitchFailure,
}

/// Nodes in memory.
#[derive(Debug)]
pub struct SimFleet {
    spec: FleetSpec,
    rng: SeededRng,
    nodes: BTreeMap<NodeId, SimNode>,
    schedule: BTreeSet<(Timestamp, ScheduledEvent)>,
    /// Nodes that have something to say.
    nodes_with_events: BTreeSet<NodeId>,
}

impl SimFleet {
    /// A fleet that begins at `start`, all nodes well.
    pub fn new(spec: FleetSpec, start: Timestamp) -> Self {
        let mut fleet = Self {
            rng: SeededRng::new(spec.seed, "fleet"),
            nodes: BTreeMap::new(),
            schedule: BTreeSet::new(),
            nodes_with_events: BTreeSet::new(),
            spec,
        };
        for index in 0..fleet.spec.nodes {
            let Some((id, place)) = fleet.spec.identity(index) else { continue };
            let node = SimNode::new(id.clone(), place, &fleet.spec);
            fleet.nodes.insert(id.clone(), node);
            fleet.nodes_with_events.insert(id.clone());
            fleet.schedule_next(ScheduledEvent::NodeFault(id), start);
        }
        fleet.schedule_next(ScheduledEvent::SwitchFailure, start);
        fleet
    }

    /// Its nodes with their places.
    pub fn locations(&self) -> impl Iterator<Item = (&NodeId, &Place)> {
        self.nodes.iter().map(|(id, node)| (id, &node.place))
    }

    /// A node.
    pub fn node(&self, id: &NodeId) -> Option<&SimNode> {
        self.nodes.get(id)
    }

    /// When something happens next.
    pub fn next_at(&self) -> Option<Timestamp> {
        self.schedule.first().map(|(at, _)| *at)
    }

    /// Lets time pass, and gives what the nodes say, each in its own order.
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

    /// Hands an order to its node. What a node that is gone was told is lost.
    pub fn deliver_order(&mut self, order: &Order, now: Timestamp) {
        let done_at =
            self.nodes.get_mut(&order.node).and_then(|node| node.accept_order(order, now));
        self.nodes_with_events.insert(order.node.clone());
        if let Some(at) = done_at {
            self.schedule.insert((at, ScheduledEvent::NodeTimer(order.node.clone())));
        }
    }

    /// Something goes wrong with a node.
    pub fn inject_fault(&mut self, id: &NodeId, fault: NodeFault, now: Timestamp) {
        let Some(node) = self.nodes.get_mut(id).filter(|node| node.is_up()) else { return };
        let clears_at = node.inject_fault(fault, now);
        self.nodes_with_events.insert(id.clone());
        if let Some(at) = clears_at {
            self.schedule.insert((at, ScheduledEvent::NodeTimer(id.clone())));
        }
    }

    /// Changes a node from outside, such as a person with a spare part does.
    pub fn update_node(&mut self, id: &NodeId, change: impl FnOnce(&mut SimNode)) {
        if let Some(node) = self.nodes.get_mut(id) {
            change(node);
            self.nodes_with_events.insert(id.clone());
        }
    }

    fn fail_leaf_switch(&mut self, at: Timestamp) {
        let leaves: BTreeSet<_> =
            self.nodes.values().filter_map(|node| node.place.leaf.clone()).collect();
        let chosen = self.rng.below(leaves.len().max(1) as u64);
        let chosen = usize::try_from(chosen).ok().and_then(|index| leaves.into_iter().nth(index));
        let behind = self.nodes.values().filter(|node| node.place.leaf == chosen);
        let behind: Vec<NodeId> = behind.map(|node| node.id.clone()).collect();
        for id in behind {
            self.inject_fault(&id, fault::LEAF_SWITCH_FAILURE, at);
        }
    }

    fn schedule_next(&mut self, due: ScheduledEvent, from: Timestamp) {
        let every_s = match due {
            ScheduledEvent::SwitchFailure => self.spec.mean_switch_failure_interval_s,
            _ => self.spec.mean_fault_interval_s,
        };
        if every_s > 0 {
            let wait_s = 1 + self.rng.below(2 * every_s);
            self.schedule.insert((after(from, wait_s), due));
        }
    }
}

impl FleetSpec {
    /// The name and place of a node.
    fn identity(&self, index: u32) -> Option<(NodeId, Place)> {
        let unit =
            |prefix: &str, size: u32| format!("{prefix}{:04}", index / size.max(1)).parse().ok();
        let mut place = Place::in_pool("train".parse().ok()?);
        (place.rack, place.leaf) =
            (unit("rack-", self.nodes_per_rack), unit("leaf-", self.nodes_per_leaf));
        Some((format!("node-{index:05}").parse().ok()?, place))
    }
}
