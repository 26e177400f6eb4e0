//! Which nodes use the disruption budgets, and which nodes wait for a slot. The index is not
//! stored, because it is derived from the nodes.

use std::collections::{BTreeMap, BTreeSet};

use super::node::Node;
use super::phase::NodePhase;
use super::urgency::QuarantineClaim;
use super::{DomainCounts, FleetState};
use crate::fleet::decide::ends_service;
use crate::fleet::identity::{Domain, NodeId};
use crate::fleet::reason::Reason;

/// A slot that a quarantine takes in a domain of the node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum DisruptionSlot {
    /// One node in the domain's disruption budget.
    Budget(Domain),
    /// One node above the domain's capacity floor.
    Capacity(Domain),
}

impl DisruptionSlot {
    pub fn domain(&self) -> &Domain {
        match self {
            Self::Budget(domain) | Self::Capacity(domain) => domain,
        }
    }

    /// The slot that a deferral with this reason waits for.
    pub fn from_reason(reason: &Reason) -> Option<Self> {
        match reason {
            Reason::DisruptionBudget { domain, .. } => Some(Self::Budget(domain.clone())),
            Reason::CapacityFloor { domain, .. } => Some(Self::Capacity(domain.clone())),
            _ => None,
        }
    }
}

/// For each domain and slot, the nodes that the counts and queues consist of.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DisruptionIndex {
    /// Nodes that use the disruption budget of a domain.
    disrupted: BTreeMap<Domain, BTreeSet<NodeId>>,
    /// Nodes whose quarantine waits for a slot, the most urgent first.
    waiting: BTreeMap<DisruptionSlot, BTreeSet<QuarantineClaim>>,
}

fn remove<K: Ord, V: Ord>(map: &mut BTreeMap<K, BTreeSet<V>>, key: &K, value: &V) {
    if let Some(values) = map.get_mut(key) {
        values.remove(value);
        if values.is_empty() {
            map.remove(key);
        }
    }
}

impl DisruptionIndex {
    /// Nodes that use the disruption budget of this domain.
    pub fn disrupted(&self, domain: &Domain) -> impl Iterator<Item = &NodeId> {
        self.disrupted.get(domain).into_iter().flatten()
    }

    /// For each slot that nodes wait for, their claims, the most urgent first.
    pub fn waiting(
        &self,
    ) -> impl Iterator<Item = (&DisruptionSlot, impl Iterator<Item = &QuarantineClaim>)> {
        self.waiting.iter().map(|(slot, claims)| (slot, claims.iter()))
    }
}

impl Node {
    /// Whether the controller keeps the node out of service: the controller quarantined the node,
    /// and no hold came in between. Such nodes use the disruption budgets. A node that an operator
    /// or another tool took out of service uses no budget. A node whose verification fails after a
    /// hold uses none either. Otherwise a node could use up the budgets of others by claiming an
    /// external cordon.
    pub fn is_disrupted(&self) -> bool {
        let is_out = matches!(
            self.phase(),
            NodePhase::Quarantined | NodePhase::Repairing | NodePhase::Verifying
        );
        is_out && !self.held_since_service
    }

    /// The slot that the quarantine of the node waits for.
    pub fn waits_for_slot(&self) -> Option<DisruptionSlot> {
        DisruptionSlot::from_reason(&self.phase.deferred()?.reason)
    }

    /// Ends the wait for a slot if the node no longer has to leave service.
    pub(super) fn end_wait_without_cause(&mut self) {
        let is_due = match self.phase() {
            NodePhase::Joining => self.findings().values().any(ends_service),
            _ => self.urgency.is_some(),
        };
        if !is_due && self.waits_for_slot().is_some() {
            self.phase.defer(None);
        }
    }

    /// Ends the wait for a slot. After a change of the policy, every such wait is decided again.
    pub(super) fn end_wait_for_slot(&mut self) {
        if self.waits_for_slot().is_some() {
            self.phase.defer(None);
        }
    }

    /// Whether the node may get new work, as far as Farrier knows. Such nodes count for the
    /// capacity floors.
    pub fn is_schedulable(&self) -> bool {
        !self.is_out() && !self.scheduling.is_cordoned()
    }
}

impl FleetState {
    /// Adds the node to the counts of its domains and to the index.
    pub(super) fn count(&mut self, id: &NodeId, node: &Node) {
        let one = DomainCounts::one(node);
        for domain in node.location.domains() {
            let counts = self.domain_counts.entry(domain.clone()).or_default();
            *counts = counts.plus(one);
            if node.is_disrupted() {
                self.disruptions.disrupted.entry(domain).or_default().insert(id.clone());
            }
        }
        if let Some(slot) = node.waits_for_slot() {
            let claim = node.quarantine_claim(id);
            self.disruptions.waiting.entry(slot).or_default().insert(claim);
        }
    }

    /// Removes the node from the counts of its domains and from the index.
    pub(super) fn uncount(&mut self, id: &NodeId, node: &Node) {
        let one = DomainCounts::one(node);
        for domain in node.location.domains() {
            let counts = self.domain_counts.entry(domain.clone()).or_default();
            *counts = counts.minus(one);
            if counts.members == 0 {
                self.domain_counts.remove(&domain);
            }
            remove(&mut self.disruptions.disrupted, &domain, id);
        }
        if let Some(slot) = node.waits_for_slot() {
            remove(&mut self.disruptions.waiting, &slot, &node.quarantine_claim(id));
        }
    }

    /// Derives the counts and the index again after the state was read, because an earlier version
    /// may have counted in another way.
    pub(super) fn count_again(&mut self) {
        self.domain_counts.clear();
        self.disruptions = DisruptionIndex::default();
        let nodes = std::mem::take(&mut self.nodes);
        for (id, node) in &nodes {
            self.count(id, node);
        }
        self.nodes = nodes;
    }
}

impl DomainCounts {
    /// The counts of a domain with only this node.
    pub fn one(node: &Node) -> Self {
        Self {
            members: 1,
            out: node.is_out().into(),
            disrupted: node.is_disrupted().into(),
            schedulable: node.is_schedulable().into(),
            out_not_cordoned: (node.is_out() && !node.scheduling.is_cordoned()).into(),
        }
    }

    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        self.combined(other, u32::saturating_add)
    }

    #[must_use]
    fn minus(self, other: Self) -> Self {
        self.combined(other, u32::saturating_sub)
    }

    fn combined(self, other: Self, combine: fn(u32, u32) -> u32) -> Self {
        Self {
            members: combine(self.members, other.members),
            out: combine(self.out, other.out),
            disrupted: combine(self.disrupted, other.disrupted),
            schedulable: combine(self.schedulable, other.schedulable),
            out_not_cordoned: combine(self.out_not_cordoned, other.out_not_cordoned),
        }
    }
}
