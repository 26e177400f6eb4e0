//! Disruption budgets: how many nodes may be out of service at once. A budget never keeps a node
//! from returning to service.

use std::collections::BTreeMap;

use crate::fleet::identity::Domain;
use crate::fleet::reason::{BudgetCounts, Rationale, Reason, UnblockedBy};
use crate::fleet::state::{DomainCounts, FleetState, Node};

/// Usage of each budget, including the nodes that this decision has taken out of service so far.
pub(super) struct BudgetUsage<'a> {
    state: &'a FleetState,
    used: BTreeMap<Domain, u32>,
}

impl<'a> BudgetUsage<'a> {
    pub(super) fn new(state: &'a FleetState) -> Self {
        Self { state, used: BTreeMap::new() }
    }

    /// Returns the exhausted budget that keeps the node from quarantine, or `None` if the node may
    /// be quarantined.
    pub(super) fn quarantine_blocker(&self, node: &Node) -> Option<Rationale> {
        let exhausted = node.location.domains().into_iter().find_map(|domain| {
            let budget = self.state.policy.disruption_budgets.get(&domain.kind())?;
            let DomainCounts { members, out } =
                self.state.domain_counts.get(&domain).copied().unwrap_or_default();
            let out = out.saturating_add(self.used.get(&domain).copied().unwrap_or_default());
            let limit = budget.limit(members);
            (out >= limit).then_some((domain, out, members, limit))
        });
        let (domain, out, members, limit) = exhausted?;
        let counts = Some(BudgetCounts { out, members, limit });
        let reason = Reason::DisruptionBudget { domain: domain.clone(), counts };
        Some(Rationale::new(reason, UnblockedBy::BudgetSlot { domain }))
    }

    /// Counts the node if the last event took it out of service.
    pub(super) fn count(&mut self, was_out_of_service: bool, node: &Node) {
        if !was_out_of_service && node.is_out_of_service() {
            for domain in node.location.domains() {
                *self.used.entry(domain).or_default() += 1;
            }
        }
    }
}
