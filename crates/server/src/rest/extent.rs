//! Counts the domains in which a caller has nodes, in one pass over batches of nodes. A separate
//! scan for each domain would block the controller for too long.

use std::collections::BTreeMap;
use std::sync::Arc;

use farrier_fleet::fleet::Domain;
use farrier_fleet::fleet::state::DomainCounts;

use super::caller::Caller;
use super::failure::Failure;
use super::pagination;
use crate::controller::Controller;

/// The domains of the caller's nodes. If the caller's scope is the whole fleet, nothing is counted.
#[derive(Debug)]
pub(super) struct Extent {
    scope: Domain,
    counts: BTreeMap<Domain, DomainCounts>,
}

impl Extent {
    /// Creates an extent without reading any node.
    pub(super) fn uncounted(caller: &Caller) -> Self {
        Self { scope: caller.scope().clone(), counts: BTreeMap::new() }
    }

    pub(super) async fn count(controller: &Controller, caller: &Caller) -> Result<Self, Failure> {
        let mut extent = Self::uncounted(caller);
        if caller.is_fleet_wide() {
            return Ok(extent);
        }
        let visit: pagination::Visit<(Domain, DomainCounts)> = Arc::new(|_, _, node, found| {
            let one = DomainCounts::one(node);
            found.extend(node.location.domains().into_iter().map(|domain| (domain, one)));
        });
        let mut batches = pagination::Batches::new(controller, caller, visit);
        while let Some(found) = batches.next(usize::MAX).await? {
            for (domain, one) in found {
                let counts = extent.counts.entry(domain).or_default();
                *counts = counts.plus(one);
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

    pub(super) fn is_fleet_wide(&self) -> bool {
        self.scope == Domain::Fleet
    }

    /// The domains that have nodes of the caller, and how many.
    pub(super) fn counts(&self) -> impl Iterator<Item = (&Domain, DomainCounts)> {
        self.counts.iter().map(|(domain, count)| (domain, *count))
    }

    /// The number of the caller's nodes in a domain.
    pub(super) fn members(&self, domain: &Domain) -> u32 {
        self.counts.get(domain).map_or(0, |count| count.members)
    }
}
