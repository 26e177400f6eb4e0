//! One account of how many nodes may be out of service at once, for faults and for maintenance.
//!
//! - A fault is checked against the disruption budgets, which count the nodes that the controller
//!   quarantined, and against the capacity floors, which count the nodes that take work.
//! - Maintenance is checked against the budgets of changes, which count every node that takes no
//!   work, whatever took it out of service, and against the capacity floors. A fault takes
//!   precedence: while a quarantine waits for a slot of a domain, no maintenance starts in it.
//!
//! A node may always return to service, whatever the budgets and floors say.

use std::collections::{BTreeMap, BTreeSet};

use crate::fleet::access::is_within;
use crate::fleet::identity::{Domain, NodeId};
use crate::fleet::reason::{
    BudgetCounts, CapacityCounts, NodeNames, Rationale, Reason, UnblockedBy,
};
use crate::fleet::state::{DisruptionSlot, DomainCounts, FleetState, Node};

/// How much of each budget is used, including what this decision has changed so far.
#[derive(Debug)]
pub struct BudgetAccountant<'a> {
    state: &'a FleetState,
    changes: BTreeMap<Domain, DomainChange>,
}

/// What this decision changes in a domain.
#[derive(Debug, Default)]
struct DomainChange {
    /// Nodes that now use the budget.
    disrupted: BTreeSet<NodeId>,
    /// Nodes that no longer use the budget.
    restored: BTreeSet<NodeId>,
    schedulable: i32,
}

/// Whether a node uses a budget and takes work, before a step.
#[derive(Debug, Clone, Copy)]
pub(super) struct NodeAvailability {
    disrupted: bool,
    schedulable: bool,
}

impl NodeAvailability {
    pub(super) fn new(node: &Node) -> Self {
        Self { disrupted: node.is_disrupted(), schedulable: node.is_schedulable() }
    }
}

impl<'a> BudgetAccountant<'a> {
    pub fn new(state: &'a FleetState) -> Self {
        Self { state, changes: BTreeMap::new() }
    }

    /// Returns a limit that keeps the node from quarantine, or `None` if the node may be
    /// quarantined. If the node already waits for a limit, that limit is checked first. A capacity
    /// floor does not stop the quarantine of a node that takes no work.
    pub(super) fn quarantine_blocker(&self, node: &Node) -> Option<Rationale> {
        let waits_for = node.waits_for_slot();
        let slots = node.location.domains().into_iter().flat_map(|domain| {
            [DisruptionSlot::Budget(domain.clone()), DisruptionSlot::Capacity(domain)]
        });
        let takes_work = node.is_schedulable();
        let applies = |slot: &DisruptionSlot| {
            (takes_work || matches!(slot, DisruptionSlot::Budget(_)))
                && is_within(&node.location, slot.domain())
        };
        waits_for.into_iter().chain(slots).filter(applies).find_map(|slot| self.blocker(&slot))
    }

    /// Returns why maintenance of the node may not start, or `None` if it may. The node itself does
    /// not count as out of service, so that a node that takes no work needs the same room as one
    /// that does. A capacity floor does not stop maintenance of a node that takes no work.
    pub fn maintenance_blocker(&self, id: &NodeId, node: &Node) -> Option<Rationale> {
        let domains = node.location.domains().into_iter();
        let mut reasons = domains.filter_map(|domain| {
            let reason = self
                .waiting_faults(id, &domain)
                .or_else(|| self.maintenance_limit(id, node, &domain))
                .or_else(|| {
                    let slot = DisruptionSlot::Capacity(domain.clone());
                    let exhausted = node.is_schedulable().then(|| self.exhausted(&slot)).flatten();
                    exhausted.map(|exhausted| exhausted.reason(self, &domain))
                })?;
            Some(Rationale::new(reason, UnblockedBy::BudgetSlot { domain }))
        });
        reasons.next()
    }

    /// Quarantines of other nodes that wait for a slot of the domain.
    fn waiting_faults(&self, id: &NodeId, domain: &Domain) -> Option<Reason> {
        let mut nodes = BTreeSet::new();
        for (slot, claims) in self.state.disruptions.waiting() {
            if slot.domain() == domain {
                nodes.extend(claims.map(|claim| &claim.node).filter(|other| *other != id).cloned());
            }
        }
        let total = u32::try_from(nodes.len()).unwrap_or(u32::MAX);
        let names = NodeNames::new(nodes.into_iter(), total);
        (total > 0).then(|| Reason::FaultsWaiting { domain: domain.clone(), nodes: names })
    }

    /// The limit of the domain if the nodes that take no work, without this one, reach it.
    fn maintenance_limit(&self, id: &NodeId, node: &Node, domain: &Domain) -> Option<Reason> {
        let DomainCounts { members, schedulable, .. } = self.counts(domain);
        let limit = self.state.policy.change_limit(domain.kind(), members)?;
        let own = u32::from(!node.is_schedulable());
        let out = members.saturating_sub(schedulable).saturating_sub(own);
        if out < limit {
            return None;
        }
        let names = self.out_of_work(domain).filter(|other| other != id);
        Some(Reason::MaintenanceBudget {
            domain: domain.clone(),
            counts: Some(BudgetCounts { out, members, limit }),
            out: NodeNames::new(names, out),
        })
    }

    /// The nodes of a domain that take no work.
    fn out_of_work(&self, domain: &Domain) -> impl Iterator<Item = NodeId> {
        let change = self.changes.get(domain);
        let is_restored =
            move |id: &&NodeId| change.is_some_and(|change| change.restored.contains(*id));
        let new = change.into_iter().flat_map(|change| &change.disrupted);
        let domain = domain.clone();
        let nodes = self.state.nodes.iter();
        nodes
            .filter(move |(_, node)| !node.is_schedulable() && is_within(&node.location, &domain))
            .map(|(id, _)| id)
            .filter(move |id| !is_restored(id))
            .chain(new)
            .cloned()
    }

    pub(super) fn is_free(&self, slot: &DisruptionSlot) -> bool {
        self.exhausted(slot).is_none()
    }

    /// Why no node can take this slot now. `None` if it is free.
    pub(in crate::fleet) fn blocker(&self, slot: &DisruptionSlot) -> Option<Rationale> {
        let reason = self.exhausted(slot)?.reason(self, slot.domain());
        let domain = slot.domain().clone();
        Some(Rationale::new(reason, UnblockedBy::BudgetSlot { domain }))
    }

    /// The counts of the slot if it is not free.
    fn exhausted(&self, slot: &DisruptionSlot) -> Option<Exhausted> {
        let (policy, domain) = (&self.state.policy, slot.domain());
        let DomainCounts { members, disrupted, schedulable, .. } = self.counts(domain);
        match slot {
            DisruptionSlot::Budget(_) => {
                let limit = policy.disruption_limit(domain.kind(), members)?;
                let counts = BudgetCounts { out: disrupted, members, limit };
                (disrupted >= limit).then_some(Exhausted::Budget(counts))
            }
            DisruptionSlot::Capacity(_) => {
                let minimum = policy.capacity_floor(domain.kind(), members)?;
                let counts = CapacityCounts { schedulable, members, minimum };
                (schedulable <= minimum).then_some(Exhausted::Capacity(counts))
            }
        }
    }

    fn counts(&self, domain: &Domain) -> DomainCounts {
        let counts = self.state.domain_counts.get(domain).copied().unwrap_or_default();
        let Some(change) = self.changes.get(domain) else { return counts };
        let number = |nodes: &BTreeSet<NodeId>| u32::try_from(nodes.len()).unwrap_or(u32::MAX);
        let disrupted = counts.disrupted.saturating_add(number(&change.disrupted));
        DomainCounts {
            disrupted: disrupted.saturating_sub(number(&change.restored)),
            schedulable: counts.schedulable.saturating_add_signed(change.schedulable),
            ..counts
        }
    }

    /// Counts the changes that the last step made.
    pub(super) fn count(&mut self, id: &NodeId, before: NodeAvailability, node: &Node) {
        let after = NodeAvailability::new(node);
        let schedulable = i32::from(after.schedulable) - i32::from(before.schedulable);
        if before.disrupted == after.disrupted && schedulable == 0 {
            return;
        }
        for domain in node.location.domains() {
            let change = self.changes.entry(domain).or_default();
            change.schedulable += schedulable;
            let (to, from) = match (before.disrupted, after.disrupted) {
                (false, true) => (&mut change.disrupted, &mut change.restored),
                (true, false) => (&mut change.restored, &mut change.disrupted),
                _ => continue,
            };
            if !from.remove(id) {
                to.insert(id.clone());
            }
        }
    }
}

enum Exhausted {
    Budget(BudgetCounts),
    Capacity(CapacityCounts),
}

impl Exhausted {
    fn reason(&self, usage: &BudgetAccountant<'_>, domain: &Domain) -> Reason {
        let change = usage.changes.get(domain);
        let is_restored = |id: &&NodeId| change.is_some_and(|change| change.restored.contains(*id));
        let new = change.into_iter().flat_map(|change| &change.disrupted);
        match *self {
            Self::Budget(counts) => {
                let users = usage.state.disruptions.disrupted(domain);
                let users = users.filter(|id| !is_restored(id)).chain(new).cloned();
                let used_by = NodeNames::new(users, counts.out);
                Reason::DisruptionBudget { domain: domain.clone(), counts: Some(counts), used_by }
            }
            Self::Capacity(counts) => {
                let total = counts.members.saturating_sub(counts.schedulable);
                let out = NodeNames::new(usage.out_of_work(domain), total);
                Reason::CapacityFloor { domain: domain.clone(), counts: Some(counts), out }
            }
        }
    }
}
