//! A fleet in memory: nodes that fall ill by a seed, say what their agents would say, and carry orders out, all in a time that
//! the caller moves. The same plan gives the same fleet, whoever asks it: a test in one process, or agents on the real wire.

mod node;
mod trouble;
#[cfg(feature = "wire")]
pub mod wire;

use std::collections::{BTreeMap, BTreeSet};

use farrier_fleet::fleet::{Event, Location, NodeId, Order};
use jiff::Timestamp;

use crate::random::Random;
pub use node::SimNode;
use node::after;
pub use trouble::{Mend, Trouble};

/// What to make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Decides everything that is left to chance.
    pub seed: u64,
    /// How many nodes.
    pub nodes: u32,
    /// GPUs of each.
    pub gpus: u32,
    /// Nodes in a rack.
    pub rack: u32,
    /// Nodes behind a leaf switch.
    pub leaf: u32,
    /// Seconds from one trouble of a node to its next, on average; 0 for none.
    pub trouble_every_s: u64,
    /// Seconds from one failing leaf switch to the next, on average; 0 for none.
    pub switch_every_s: u64,
    /// How many times faster than real ones its nodes boot, drain, reset and recover: at 1 as slowly as they do.
    pub hurry: u64,
}

impl Default for Plan {
    /// A node of eight GPUs falls ill about every fifty days.
    fn default() -> Self {
        Self {
            seed: 1,
            nodes: 64,
            gpus: 8,
            rack: 4,
            leaf: 16,
            trouble_every_s: 50 * 86_400,
            switch_every_s: 0,
            hurry: 1,
        }
    }
}

/// What is to come.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    /// Something befalls a node.
    Trouble(NodeId),
    /// A node looks at its task and at what passes.
    Look(NodeId),
    /// A leaf switch fails.
    Switch,
}

/// Nodes in memory.
#[derive(Debug)]
pub struct Fleet {
    plan: Plan,
    random: Random,
    nodes: BTreeMap<NodeId, SimNode>,
    agenda: BTreeSet<(Timestamp, Due)>,
    /// Nodes that have something to say.
    speakers: BTreeSet<NodeId>,
}

impl Fleet {
    /// A fleet that begins at `start`, all nodes well.
    pub fn new(plan: Plan, start: Timestamp) -> Self {
        let mut fleet = Self {
            random: Random::of(plan.seed, "fleet"),
            nodes: BTreeMap::new(),
            agenda: BTreeSet::new(),
            speakers: BTreeSet::new(),
            plan,
        };
        for index in 0..fleet.plan.nodes {
            let Some((id, place)) = fleet.plan.named(index) else { continue };
            let node = SimNode::new(id.clone(), place, &fleet.plan);
            fleet.nodes.insert(id.clone(), node);
            fleet.speakers.insert(id.clone());
            fleet.plan_next(Due::Trouble(id), start);
        }
        fleet.plan_next(Due::Switch, start);
        fleet
    }

    /// Its nodes with their places.
    pub fn places(&self) -> impl Iterator<Item = (&NodeId, &Location)> {
        self.nodes.iter().map(|(id, node)| (id, &node.place))
    }

    /// A node.
    pub fn node(&self, id: &NodeId) -> Option<&SimNode> {
        self.nodes.get(id)
    }

    /// When something happens next.
    pub fn next_at(&self) -> Option<Timestamp> {
        self.agenda.first().map(|(at, _)| *at)
    }

    /// Lets time pass, and gives what the nodes say, each in its own order.
    pub fn advance(&mut self, now: Timestamp) -> Vec<Event> {
        while let Some((at, due)) = self.agenda.pop_first() {
            if at > now {
                self.agenda.insert((at, due));
                break;
            }
            match &due {
                Due::Trouble(id) => {
                    let trouble = Trouble::any(&mut self.random);
                    self.befall(id, trouble, at);
                    self.plan_next(due, at);
                }
                Due::Look(id) => self.change(id, |node| {
                    node.pass(at);
                    node.work(at);
                }),
                Due::Switch => {
                    self.fail_a_switch(at);
                    self.plan_next(due, at);
                }
            }
        }
        let mut said = Vec::new();
        self.speakers.retain(|id| {
            let Some(node) = self.nodes.get_mut(id) else { return false };
            said.extend(node.say());
            !node.is_up()
        });
        said
    }

    /// Hands an order to its node. What a node that is gone was told is lost.
    pub fn order(&mut self, order: &Order, now: Timestamp) {
        let done_at = self.nodes.get_mut(&order.node).and_then(|node| node.take(order, now));
        self.speakers.insert(order.node.clone());
        if let Some(at) = done_at {
            self.agenda.insert((at, Due::Look(order.node.clone())));
        }
    }

    /// Something goes wrong with a node.
    pub fn befall(&mut self, id: &NodeId, trouble: Trouble, now: Timestamp) {
        let Some(node) = self.nodes.get_mut(id).filter(|node| node.is_up()) else { return };
        let passes_at = node.befall(trouble, now);
        self.speakers.insert(id.clone());
        if let Some(at) = passes_at {
            self.agenda.insert((at, Due::Look(id.clone())));
        }
    }

    /// Changes a node from outside, such as a person with a spare part does.
    pub fn change(&mut self, id: &NodeId, change: impl FnOnce(&mut SimNode)) {
        if let Some(node) = self.nodes.get_mut(id) {
            change(node);
            self.speakers.insert(id.clone());
        }
    }

    fn fail_a_switch(&mut self, at: Timestamp) {
        let leaves: BTreeSet<_> =
            self.nodes.values().filter_map(|it| it.place.leaf.clone()).collect();
        let chosen = self.random.below(leaves.len().max(1) as u64);
        let chosen = usize::try_from(chosen).ok().and_then(|it| leaves.into_iter().nth(it));
        let behind = self.nodes.values().filter(|it| it.place.leaf == chosen);
        let behind: Vec<NodeId> = behind.map(|it| it.id.clone()).collect();
        for id in behind {
            self.befall(&id, trouble::SWITCH, at);
        }
    }

    fn plan_next(&mut self, due: Due, from: Timestamp) {
        let every_s = match due {
            Due::Switch => self.plan.switch_every_s,
            _ => self.plan.trouble_every_s,
        };
        if every_s > 0 {
            let wait_s = 1 + self.random.below(2 * every_s);
            self.agenda.insert((after(from, wait_s), due));
        }
    }
}

impl Plan {
    /// The name and place of a node.
    fn named(&self, index: u32) -> Option<(NodeId, Location)> {
        let unit =
            |prefix: &str, size: u32| format!("{prefix}{:04}", index / size.max(1)).parse().ok();
        let mut place = Location::in_pool("train".parse().ok()?);
        (place.rack, place.leaf) = (unit("rack-", self.rack), unit("leaf-", self.leaf));
        Some((format!("node-{index:05}").parse().ok()?, place))
    }
}
