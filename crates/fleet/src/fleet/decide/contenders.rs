//! Orders the nodes whose quarantine is due by who gets the next free slot. These are the nodes
//! that this decision is about, and the nodes that wait for a slot that is free now.

use std::collections::{BTreeMap, BTreeSet};

use crate::fleet::budget::BudgetAccountant;
use crate::fleet::identity::NodeId;
use crate::fleet::state::{DisruptionSlot, FleetState, Node, QuarantineClaim};

pub(super) struct Contenders<'a> {
    state: &'a FleetState,
    /// Nodes that this decision is about. No queue yields them again.
    dirty: BTreeSet<NodeId>,
    /// Claims that are not decided yet, each with the queue that it comes from.
    claims: BTreeMap<QuarantineClaim, Contender<'a>>,
    queues: Vec<(&'a DisruptionSlot, Box<dyn Iterator<Item = &'a QuarantineClaim> + 'a>)>,
}

enum Contender<'a> {
    Changed(Box<Node>),
    Waiting { queue: usize, slot: &'a DisruptionSlot },
}

impl<'a> Contenders<'a> {
    /// `dirty` are the nodes that this decision is about.
    pub(super) fn new(state: &'a FleetState, dirty: BTreeSet<NodeId>) -> Self {
        Self { state, dirty, claims: BTreeMap::new(), queues: Vec::new() }
    }

    /// Adds a node that this decision is about, after its steps that need no slot were taken.
    pub(super) fn add(&mut self, id: &NodeId, node: Node) {
        self.claims.insert(node.quarantine_claim(id), Contender::Changed(Box::new(node)));
    }

    /// Opens the queues of the slots that are free after the steps so far. A quarantine frees no
    /// slot, so no other queue opens later.
    pub(super) fn open_queues(&mut self, budget: &BudgetAccountant<'_>) {
        for (slot, claims) in self.state.disruptions.waiting() {
            if budget.is_free(slot) {
                self.queues.push((slot, Box::new(claims)));
                self.take_from(self.queues.len() - 1);
            }
        }
    }

    /// Returns the most urgent node whose slots may be free.
    pub(super) fn next(&mut self, budget: &BudgetAccountant<'_>) -> Option<(NodeId, Node)> {
        while let Some((claim, contender)) = self.claims.pop_first() {
            match contender {
                Contender::Changed(node) => return Some((claim.node, *node)),
                // The slot is taken, so the other nodes in this queue keep waiting.
                Contender::Waiting { slot, .. } if !budget.is_free(slot) => {}
                Contender::Waiting { queue, .. } => {
                    self.take_from(queue);
                    let Some(node) = self.state.nodes.get(&claim.node) else { continue };
                    return Some((claim.node, Node::clone(node)));
                }
            }
        }
        None
    }

    fn take_from(&mut self, queue: usize) {
        let Some((slot, claims)) = self.queues.get_mut(queue) else { return };
        if let Some(claim) = claims.find(|claim| !self.dirty.contains(&claim.node)) {
            self.claims.insert(claim.clone(), Contender::Waiting { queue, slot });
        }
    }
}
