//! What the fleet's drivers need: support, exposure, skew, GPUs whose branches end, pins of tenants,
//! exceptions, and drivers that the policy does not allow.

use std::collections::{BTreeMap, BTreeSet};

use farrier_facts::FactSet;
use farrier_facts::driver::SupportStatus;
use farrier_facts::exposure::DriverExposure;
use farrier_facts::origin::PartialDate;
use farrier_facts::version::{Branch, DriverVersion};
use jiff::civil::Date;
use serde::Serialize;

use super::Policy;
use super::changes::{MaxSkew, Waiver};
use super::driver_choice::{VersionRefusal, last_branch, released};
use super::resolve::{EffectivePolicy, PolicySource, resolve};
use super::selector::{NodeAttributes, PolicyNode, SelectorMatch};
use crate::fleet::identity::{Domain, NodeId, Pool, Tenant};

/// Days before the end of support from which a driver is in the report.
pub const SUPPORT_SOON_DAYS: i32 = 180;

/// A driver whose support has ended, ends soon, or has no known end.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SupportRow {
    pub pool: Pool,
    pub driver: DriverVersion,
    pub nodes: u32,
    pub status: SupportStatus,
    /// The last day of support.
    pub end: Option<Date>,
    /// Days until the end; negative after it.
    pub days_left: Option<i32>,
    /// Whether an exception covers some of the nodes.
    pub waived: bool,
}

/// A driver that lacks fixes of advisories.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ExposureRow {
    pub pool: Pool,
    pub driver: DriverVersion,
    pub nodes: u32,
    /// Advisories whose fix the driver lacks.
    pub lacking: usize,
    /// Advisories that say nothing about the branch.
    pub unlisted: usize,
    /// The advisory with the highest score.
    pub worst: Option<(String, f64)>,
    /// Days since the oldest of these advisories was published.
    pub exposed_days: i32,
    /// The first driver of the branch with all fixes.
    pub fixed_in: Option<DriverVersion>,
    /// The deadline of the policy. `None` if it has none for some of the nodes.
    pub deadline_days: Option<u32>,
    pub overdue: bool,
}

/// How far the drivers of a pool differ.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SkewRow {
    pub pool: Pool,
    /// Drivers and the number of nodes that run them.
    pub drivers: Vec<(DriverVersion, u32)>,
    /// Days between the releases of the oldest and the newest driver. `None` if the facts do not
    /// know the day of a release.
    pub days: Option<i32>,
    pub limit: Option<MaxSkew>,
    pub exceeded: bool,
}

/// GPUs that no newer branch supports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EndingRow {
    pub pool: Pool,
    pub gpus: Vec<String>,
    pub nodes: u32,
    pub last_branch: Branch,
    pub end: Option<Date>,
}

/// Tenants that share a pool and pin different drivers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TenantPinRow {
    pub pool: Pool,
    pub pins: Vec<(Tenant, DriverVersion)>,
    /// How many drivers the pool may have.
    pub limit: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ExceptionRow {
    pub name: String,
    pub owner: String,
    pub reason: String,
    pub expires: Date,
    /// Negative after the end.
    pub days_left: i32,
    pub nodes: u32,
}

/// A driver that the policy does not allow on nodes that run it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DeviationRow {
    pub pool: Pool,
    pub driver: DriverVersion,
    pub nodes: u32,
    pub refusals: Vec<VersionRefusal>,
}

/// A budget that allows no node of a domain, because its share rounds to none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EmptyBudgetRow {
    pub domain: Domain,
    pub members: u32,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PolicyReport {
    pub on: Date,
    pub facts: String,
    pub nodes: usize,
    pub support: Vec<SupportRow>,
    pub exposure: Vec<ExposureRow>,
    pub skew: Vec<SkewRow>,
    pub ending: Vec<EndingRow>,
    pub tenant_pins: Vec<TenantPinRow>,
    pub exceptions: Vec<ExceptionRow>,
    pub deviations: Vec<DeviationRow>,
    pub empty_budgets: Vec<EmptyBudgetRow>,
    /// Nodes whose driver or GPUs are unknown. They are in no other part.
    pub unknown: Vec<NodeId>,
    /// Nodes for which equally specific rules disagree.
    pub ties: Vec<NodeId>,
}

impl PolicyReport {
    /// Whether something has to be done.
    pub fn needs_action(&self) -> bool {
        self.support.iter().any(|row| row.status == SupportStatus::Ended && !row.waived)
            || self.exposure.iter().any(|row| row.overdue)
            || self.skew.iter().any(|row| row.exceeded)
            || self.exceptions.iter().any(|row| row.days_left < 0)
            || !self.deviations.is_empty()
            || !self.ties.is_empty()
    }
}

/// Days from one date to another.
fn days(from: Date, to: Date) -> i32 {
    from.until(to).map_or(0, |span| span.get_days())
}

/// A node with a known driver and known GPUs.
struct KnownNode<'a> {
    node: &'a PolicyNode,
    driver: &'a DriverVersion,
    effective: EffectivePolicy,
}

/// Nodes of a pool with the same driver.
type ByDriver<'a> = BTreeMap<(&'a Pool, &'a DriverVersion), Vec<&'a KnownNode<'a>>>;

fn count(nodes: usize) -> u32 {
    u32::try_from(nodes).unwrap_or(u32::MAX)
}

/// Reports on nodes under a policy, on a day.
pub fn policy_report(
    policy: &Policy,
    facts: &FactSet,
    nodes: &[PolicyNode],
    on: Date,
) -> PolicyReport {
    let (mut known, mut unknown, mut ties) = (Vec::new(), Vec::new(), Vec::new());
    for node in nodes {
        let (Some(driver), Some(_)) = (&node.driver, &node.gpus) else {
            unknown.extend(node.node.clone());
            continue;
        };
        match resolve(policy, facts, node, on) {
            Ok(effective) => known.push(KnownNode { node, driver, effective }),
            Err(_) => ties.extend(node.node.clone()),
        }
    }
    let mut by_driver: ByDriver<'_> = BTreeMap::new();
    for one in &known {
        by_driver.entry((&one.node.location.pool, one.driver)).or_default().push(one);
    }
    PolicyReport {
        on,
        facts: facts.set.name.clone(),
        nodes: nodes.len(),
        support: support(&by_driver, facts, on),
        exposure: exposure(&by_driver, facts, on),
        skew: skew(&known, facts),
        ending: ending(&known, facts),
        tenant_pins: tenant_pins(&known),
        exceptions: exceptions(policy, nodes, on),
        deviations: deviations(&by_driver, facts, on),
        empty_budgets: empty_budgets(policy, nodes),
        unknown,
        ties,
    }
}

fn support(by_driver: &ByDriver<'_>, facts: &FactSet, on: Date) -> Vec<SupportRow> {
    let mut rows = Vec::new();
    for ((pool, driver), nodes) in by_driver {
        let branch = facts.drivers.branch(driver.branch());
        let status = branch.map_or(SupportStatus::Unknown, |branch| branch.support(on));
        let end = branch.and_then(|branch| branch.end_of_support).map(PartialDate::last_day);
        let days_left = end.map(|end| days(on, end));
        if status == SupportStatus::Supported
            && days_left.is_some_and(|left| left > SUPPORT_SOON_DAYS)
        {
            continue;
        }
        rows.push(SupportRow {
            pool: (*pool).clone(),
            driver: (*driver).clone(),
            nodes: count(nodes.len()),
            status,
            end,
            days_left,
            waived: nodes.iter().all(|one| one.effective.is_end_of_support_waived()),
        });
    }
    rows.sort_by_key(|row| row.days_left.unwrap_or(i32::MAX));
    rows
}

fn exposure(by_driver: &ByDriver<'_>, facts: &FactSet, on: Date) -> Vec<ExposureRow> {
    let mut rows = Vec::new();
    for ((pool, driver), nodes) in by_driver {
        let Some(found) = DriverExposure::new(facts, driver, on) else { continue };
        let lacking = || found.lacking.iter().map(|(advisory, _)| *advisory);
        let all = || lacking().chain(found.unlisted.iter().copied());
        let Some(oldest) = all().map(|advisory| advisory.published).min() else { continue };
        let worst = all().max_by(|one, other| one.score.total_cmp(&other.score));
        let exposed_days = days(oldest, on);
        let deadlines = nodes.iter().map(|one| one.effective.security_deadline_days());
        let deadlines: Option<Vec<u32>> =
            deadlines.map(|deadline| deadline.map(|deadline| deadline.value)).collect();
        let deadline_days = deadlines.and_then(|deadlines| deadlines.into_iter().min());
        let is_overdue = |deadline: u32| i64::from(exposed_days) > i64::from(deadline);
        rows.push(ExposureRow {
            pool: (*pool).clone(),
            driver: (*driver).clone(),
            nodes: count(nodes.len()),
            lacking: found.lacking.len(),
            unlisted: found.unlisted.len(),
            worst: worst.map(|advisory| (advisory.id.clone(), advisory.score)),
            exposed_days,
            fixed_in: found.lacking.iter().map(|(_, fixed)| fixed.version.clone()).max(),
            deadline_days,
            overdue: nodes.iter().any(|one| {
                let deadline = one.effective.security_deadline_days();
                deadline.is_some_and(|deadline| is_overdue(deadline.value))
            }),
        });
    }
    rows.sort_by_key(|row| std::cmp::Reverse(row.exposed_days));
    rows
}

fn skew(known: &[KnownNode<'_>], facts: &FactSet) -> Vec<SkewRow> {
    let mut pools: BTreeMap<&Pool, Vec<&KnownNode<'_>>> = BTreeMap::new();
    for one in known.iter().filter(|one| !one.effective.is_waived(Waiver::MaxSkew)) {
        pools.entry(&one.node.location.pool).or_default().push(one);
    }
    let row = |(pool, nodes): (&&Pool, &Vec<&KnownNode<'_>>)| {
        let mut drivers: BTreeMap<&DriverVersion, u32> = BTreeMap::new();
        for one in nodes {
            *drivers.entry(one.driver).or_default() += 1;
        }
        let dates: Option<Vec<Date>> =
            drivers.keys().map(|driver| released(driver, facts)).collect();
        let span = dates.and_then(|dates| Some(days(*dates.iter().min()?, *dates.iter().max()?)));
        let limits: Vec<MaxSkew> = nodes
            .iter()
            .filter_map(|one| one.effective.max_skew())
            .map(|limit| limit.value)
            .collect();
        let limit = (!limits.is_empty()).then(|| MaxSkew {
            days: limits.iter().filter_map(|limit| limit.days).min(),
            versions: limits.iter().filter_map(|limit| limit.versions).min(),
        });
        let exceeded = limit.is_some_and(|limit| {
            let too_many = limit.versions.is_some_and(|most| count(drivers.len()) > most);
            let too_far =
                limit.days.zip(span).is_some_and(|(most, span)| i64::from(span) > i64::from(most));
            too_many || too_far
        });
        SkewRow {
            pool: (*pool).clone(),
            drivers: drivers.iter().map(|(driver, nodes)| ((*driver).clone(), *nodes)).collect(),
            days: span,
            limit,
            exceeded,
        }
    };
    pools.iter().map(row).filter(|row| row.drivers.len() > 1).collect()
}

fn ending(known: &[KnownNode<'_>], facts: &FactSet) -> Vec<EndingRow> {
    let mut rows: BTreeMap<(&Pool, Branch), (BTreeSet<String>, u32)> = BTreeMap::new();
    for one in known {
        let Some(last) = last_branch(one.node, facts) else { continue };
        let (gpus, nodes) = rows.entry((&one.node.location.pool, last)).or_default();
        gpus.extend(one.node.gpus.iter().flatten().cloned());
        *nodes += 1;
    }
    let row = |((pool, last_branch), (gpus, nodes)): ((&Pool, Branch), (BTreeSet<String>, u32))| {
        let end = facts.drivers.branch(last_branch).and_then(|branch| branch.end_of_support);
        EndingRow {
            pool: pool.clone(),
            gpus: gpus.into_iter().collect(),
            nodes,
            last_branch,
            end: end.map(PartialDate::last_day),
        }
    };
    rows.into_iter().map(row).collect()
}

fn tenant_pins(known: &[KnownNode<'_>]) -> Vec<TenantPinRow> {
    type Pins = (BTreeSet<(Tenant, String)>, Vec<(Tenant, DriverVersion)>, Option<u32>);
    let mut pools: BTreeMap<&Pool, Pins> = BTreeMap::new();
    for one in known {
        let Some(pinned) = one.effective.pinned() else { continue };
        let PolicySource::Tenant(tenant, _) = pinned.source else { continue };
        let (listed, pins, limit) = pools.entry(&one.node.location.pool).or_default();
        let own = one.effective.max_skew().and_then(|skew| skew.value.versions);
        *limit = own.into_iter().chain(*limit).min();
        if listed.insert((tenant.clone(), pinned.value.to_string())) {
            pins.push((tenant, pinned.value));
        }
    }
    let row =
        |(pool, (_, pins, limit)): (&Pool, Pins)| TenantPinRow { pool: pool.clone(), pins, limit };
    let differ = |row: &TenantPinRow| row.pins.iter().any(|(_, driver)| *driver != row.pins[0].1);
    pools.into_iter().map(row).filter(differ).collect()
}

fn exceptions(policy: &Policy, nodes: &[PolicyNode], on: Date) -> Vec<ExceptionRow> {
    let attributes: Vec<NodeAttributes> = nodes.iter().map(NodeAttributes::new).collect();
    let rows = policy.changes.exceptions.iter().map(|(name, one)| ExceptionRow {
        name: name.clone(),
        owner: one.owner.clone(),
        reason: one.reason.clone(),
        expires: one.expires,
        days_left: days(on, one.expires),
        nodes: count(
            attributes.iter().filter(|node| one.select.matches(node) == SelectorMatch::Yes).count(),
        ),
    });
    let mut rows: Vec<ExceptionRow> = rows.collect();
    rows.sort_by_key(|row| row.days_left);
    rows
}

/// Drivers that are older than the minimum, forbidden, not the pinned one, or of another branch. Age
/// and support do not count: the driver is installed already, and support has its own part.
fn deviations(by_driver: &ByDriver<'_>, facts: &FactSet, on: Date) -> Vec<DeviationRow> {
    let mut rows: Vec<DeviationRow> = Vec::new();
    for ((pool, driver), nodes) in by_driver {
        for one in nodes {
            let mut refusals = one.effective.refusals(driver, one.node, facts, on);
            refusals.retain(|refusal| {
                matches!(
                    refusal,
                    VersionRefusal::NotPinned { .. }
                        | VersionRefusal::Forbidden
                        | VersionRefusal::BelowMinimum { .. }
                        | VersionRefusal::OtherBranch { .. }
                        | VersionRefusal::GpusEnd { .. }
                )
            });
            if refusals.is_empty() {
                continue;
            }
            let is_row = |row: &&mut DeviationRow| {
                row.pool == **pool && row.driver == **driver && row.refusals == refusals
            };
            match rows.iter_mut().rev().find(is_row) {
                Some(row) => row.nodes += 1,
                None => rows.push(DeviationRow {
                    pool: (*pool).clone(),
                    driver: (*driver).clone(),
                    nodes: 1,
                    refusals,
                }),
            }
        }
    }
    rows
}

fn empty_budgets(policy: &Policy, nodes: &[PolicyNode]) -> Vec<EmptyBudgetRow> {
    let mut members: BTreeMap<Domain, u32> = BTreeMap::new();
    for node in nodes {
        for domain in node.location.domains() {
            *members.entry(domain).or_default() += 1;
        }
    }
    let is_empty = |(domain, members): &(Domain, u32)| {
        let budget = policy.disruption_budgets.get(&domain.kind());
        budget.is_some_and(|budget| budget.rounds_to_none(*members, policy.version))
    };
    let row = |(domain, members)| EmptyBudgetRow { domain, members };
    members.into_iter().filter(is_empty).map(row).collect()
}
