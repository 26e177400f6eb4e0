//! Disruption budgets, capacity floors and faults of domains.

use std::collections::BTreeMap;

use farrier_fleet::fleet::identity::DomainKind;
use farrier_fleet::fleet::{Domain, FleetState};
use jiff::Timestamp;

use super::families;
use super::page::MetricsPage;

/// Maximum number of racks, switches and other small domains that have samples. Domains with the
/// least headroom come first.
const DOMAINS_MAX: usize = 500;

#[derive(Debug, Default, PartialEq)]
pub(super) struct DomainTally {
    budgets: Vec<DomainLimit>,
    floors: Vec<DomainLimit>,
    faults: BTreeMap<DomainKind, u32>,
    freezes: usize,
}

/// A limit of a domain, and the number of nodes that counts against it.
#[derive(Debug, PartialEq)]
struct DomainLimit {
    domain: Domain,
    limit: u32,
    nodes: u32,
}

impl DomainLimit {
    fn labels(&self) -> Vec<String> {
        vec![self.domain.kind().code().to_owned(), self.domain.name().to_owned()]
    }
}

impl DomainTally {
    pub(super) fn new(state: &FleetState, now: Timestamp) -> Self {
        let mut tally = Self {
            freezes: state.freezes.values().filter(|freeze| freeze.until > now).count(),
            ..Self::default()
        };
        let mut small = Vec::new();
        for (domain, counts) in &state.domain_counts {
            let (kind, members) = (domain.kind(), counts.members);
            if let Some(limit) = state.policy.disruption_limit(kind, members) {
                let nodes = counts.disrupted;
                let budget = DomainLimit { domain: domain.clone(), limit, nodes };
                match kind {
                    DomainKind::Fleet | DomainKind::Pool => tally.budgets.push(budget),
                    _ if nodes > 0 => small.push(budget),
                    _ => {}
                }
            }
            if let Some(limit) = state.policy.capacity_floor(kind, members)
                && matches!(kind, DomainKind::Fleet | DomainKind::Pool)
            {
                let nodes = counts.schedulable;
                tally.floors.push(DomainLimit { domain: domain.clone(), limit, nodes });
            }
        }
        small.sort_by_key(|budget| i64::from(budget.limit) - i64::from(budget.nodes));
        small.truncate(DOMAINS_MAX);
        tally.budgets.extend(small);
        for domain in state.domain_faults.keys() {
            *tally.faults.entry(domain.kind()).or_default() += 1;
        }
        tally
    }

    pub(super) fn write(&self, page: &mut MetricsPage) {
        let (limit, nodes) = (|row: &DomainLimit| row.limit, |row: &DomainLimit| row.nodes);
        let rows = |rows: &[DomainLimit], value: fn(&DomainLimit) -> u32| -> Vec<_> {
            rows.iter().map(|row| (row.labels(), value(row))).collect()
        };
        page.family(&families::BUDGET_LIMIT, rows(&self.budgets, limit));
        page.family(&families::BUDGET_USED, rows(&self.budgets, nodes));
        let headroom = self.budgets.iter();
        let headroom =
            headroom.map(|row| (row.labels(), i64::from(row.limit) - i64::from(row.nodes)));
        page.family(&families::BUDGET_HEADROOM, headroom);
        page.family(&families::SCHEDULABLE, rows(&self.floors, nodes));
        page.family(&families::CAPACITY_FLOOR, rows(&self.floors, limit));
        let headroom = self.floors.iter();
        let headroom =
            headroom.map(|row| (row.labels(), i64::from(row.nodes) - i64::from(row.limit)));
        page.family(&families::CAPACITY_HEADROOM, headroom);
        let kinds = DomainKind::ALL.into_iter().filter(|kind| kind.fails_as_one());
        let faults = kinds.map(|kind| {
            (vec![kind.code().to_owned()], self.faults.get(&kind).copied().unwrap_or_default())
        });
        page.family(&families::DOMAIN_FAULTS, faults);
        page.value(&families::FREEZES, self.freezes);
    }
}
