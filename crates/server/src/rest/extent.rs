//! The domains in which a caller has nodes, counted in one pass over batches of nodes. Scanning all
//! nodes for each domain would block the controller.

use std::collections::BTreeMap;
use std::sync::Arc;

use farrier_fleet::fleet::{Domain, NodePhase};

use super::caller::Caller;
use super::failure::Failure;
use super::pagination;
use crate::controller::Controller;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct NodeCount {
    pub(super) members: u32,
    pub(super) out: u32,
}

/// The domains of the caller's nodes. If the caller's scope is the whole fleet, nothing is counted.
#[derive(Debug)]
pub(super) struct Extent {
    scope: Domain,
    counts: BTreeMap<Domain, NodeCount>,
}

impl Extent {
    /// An extent for which no node was read.
    pub(super) fn uncounted(caller: &Caller) -> Self {
        Self { scope: caller.scope().clone(), counts: BTreeMap::new() }
    }

    pub(super) async fn count(controller: &Controller, caller: &Caller) -> Result<Self, Failure> {
        let mut extent = Self::uncounted(caller);
        if caller.is_fleet_wide() {
            return Ok(extent);
        }
        let visit: pagination::Visit<(Domain, bool)> = Arc::new(|_, _, node, found| {
            let phase = node.phase();
            let is_out = !phase.in_service() && phase != NodePhase::Joining;
            found.extend(node.location.domains().into_iter().map(|domain| (domain, is_out)));
        });
        let mut batches = pagination::Batches::new(controller, caller, visit);
        while let Some(found) = batches.next(usize::MAX).await? {
            for (domain, is_out) in found {
                let count = extent.counts.entry(domain).or_default();
                count.members += 1;
                count.out += u32::from(is_out);
            }
        }
        Ok(extent)
    }

    /// Whether the caller may see this domain: it contains one of the caller's nodes, or it is the
    /// caller's scope or the fleet.
    pub(super) fn touches(&self, domain: &Domain) -> bool {
        self.scope == Domain::Fleet
            || *domain == Domain::Fleet
            || *domain == self.scope
            || self.counts.contains_key(domain)
    }

    /// The domains that have nodes of the caller, and how many.
    pub(super) fn counts(&self) -> impl Iterator<Item = (&Domain, NodeCount)> {
        self.counts.iter().map(|(domain, count)| (domain, *count))
    }

    /// The number of the caller's nodes in a domain.
    pub(super) fn members(&self, domain: &Domain) -> u32 {
        self.counts.get(domain).map_or(0, |count| count.members)
    }
}
