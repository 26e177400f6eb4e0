//! Counts nodes by pool and rack. Each batch of nodes is counted on the controller's thread, and
//! the counts of all batches are added.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use farrier_fleet::fleet::identity::Unit;
use farrier_fleet::fleet::{Node, NodePhase, Pool, Reason};
use farrier_fleet::health::Severity;
use farrier_wire::rest::ConnectionState;
use jiff::Timestamp;

use super::families;
use super::page::{Family, MetricsPage};

const SEVERITIES: [Severity; 4] =
    [Severity::Info, Severity::Warning, Severity::Critical, Severity::Fatal];
/// Maximum number of finding codes that have their own samples. There are about 150 rules, but an
/// agent may send any code.
const CODES_MAX: usize = 200;

#[derive(Debug, Default, PartialEq)]
pub(super) struct NodeTally {
    pools: BTreeMap<Pool, PoolTally>,
    racks: BTreeMap<Pool, BTreeMap<Unit, ByPhase>>,
    codes: BTreeMap<(Severity, String), u64>,
}

type ByPhase = [u32; NodePhase::ALL.len()];

/// Whether a node's agent can read everything.
const COVERAGE_STATES: [&str; 3] = ["full", "gaps", "unknown"];

#[derive(Debug, Default, PartialEq)]
struct PoolTally {
    phases: ByPhase,
    /// For each phase, when the node that has been in the phase for longest entered it.
    oldest: [Option<Timestamp>; NodePhase::ALL.len()],
    connections: [u32; ConnectionState::ALL.len()],
    heartbeat_lost: u32,
    /// Number of nodes, in the order of [`COVERAGE_STATES`].
    coverage: [u32; COVERAGE_STATES.len()],
    coverage_gaps: u64,
    waiting_for_approval: u32,
    over_quota: u32,
    /// Number of nodes with a deferred action, by the code of the reason.
    deferred: BTreeMap<&'static str, u32>,
    findings: [u64; SEVERITIES.len()],
    /// Number of pending orders, by kind of order.
    pending: BTreeMap<&'static str, u32>,
    failed: BTreeMap<&'static str, u32>,
}

fn index<T: PartialEq>(all: &[T], value: &T) -> usize {
    all.iter().position(|other| other == value).unwrap_or_default()
}

impl NodeTally {
    pub(super) fn add(&mut self, node: &Node, connection: ConnectionState) {
        let location = &node.location;
        let phase = index(&NodePhase::ALL, &node.phase());
        if let Some(rack) = &location.rack {
            let racks = self.racks.entry(location.pool.clone()).or_default();
            racks.entry(rack.clone()).or_default()[phase] += 1;
        }
        let pool = self.pools.entry(location.pool.clone()).or_default();
        pool.add(node, phase, connection);
        for finding in node.open_findings() {
            pool.findings[index(&SEVERITIES, &finding.severity)] += 1;
            *self.codes.entry((finding.severity, finding.code.clone())).or_default() += 1;
        }
    }

    pub(super) fn merge(&mut self, other: Self) {
        for (pool, tally) in other.pools {
            self.pools.entry(pool).or_default().merge(tally);
        }
        for (pool, racks) in other.racks {
            let own = self.racks.entry(pool).or_default();
            for (rack, phases) in racks {
                add_all(own.entry(rack).or_default(), phases);
            }
        }
        for (code, count) in other.codes {
            *self.codes.entry(code).or_default() += count;
        }
    }

    pub(super) fn write(&self, page: &mut MetricsPage, now: Timestamp, racks_max: usize) {
        self.write_phases(page, now);
        self.write_racks(page, racks_max);
        let states = ConnectionState::ALL.map(ConnectionState::name);
        self.by_label(page, &families::CONNECTIONS, &states, |pool| &pool.connections);
        self.by_pool(page, &families::HEARTBEAT_LOST, |pool| pool.heartbeat_lost);
        let states = COVERAGE_STATES;
        self.by_label(page, &families::COVERAGE, &states, |pool| &pool.coverage);
        self.by_pool(page, &families::COVERAGE_GAPS, |pool| pool.coverage_gaps);
        self.by_code(page, &families::DEFERRED, |pool| &pool.deferred);
        self.by_pool(page, &families::APPROVALS, |pool| pool.waiting_for_approval);
        self.by_pool(page, &families::OVER_QUOTA, |pool| pool.over_quota);
        let severities = SEVERITIES.map(|severity| severity.to_string());
        let findings = self.pools.iter().flat_map(|(pool, tally)| {
            let counts = severities.iter().zip(tally.findings);
            counts.map(move |(severity, count)| (vec![pool.to_string(), severity.clone()], count))
        });
        page.family(&families::FINDINGS, findings);
        self.write_codes(page);
        self.by_code(page, &families::ORDERS_PENDING, |pool| &pool.pending);
        self.by_code(page, &families::ORDERS_FAILED, |pool| &pool.failed);
    }

    fn write_phases(&self, page: &mut MetricsPage, now: Timestamp) {
        let phases = NodePhase::ALL.map(NodePhase::code);
        self.by_label(page, &families::NODES, &phases, |pool| &pool.phases);
        let oldest = self.pools.iter().flat_map(|(pool, tally)| {
            let since = NodePhase::ALL.into_iter().zip(tally.oldest);
            since.filter(|(phase, _)| *phase != NodePhase::InService).filter_map(
                move |(phase, since)| {
                    let age_s = now.duration_since(since?).as_secs().max(0);
                    Some((vec![pool.to_string(), phase.code().to_owned()], age_s))
                },
            )
        });
        page.family(&families::OLDEST_PHASE, oldest);
    }

    /// Writes up to `racks_max` racks. Racks with the most nodes that are not in service come
    /// first, so that healthy racks are left out before others.
    fn write_racks(&self, page: &mut MetricsPage, racks_max: usize) {
        let rows = self.racks.iter();
        let rows = rows.flat_map(|(pool, racks)| racks.iter().map(move |row| (pool, row)));
        let mut rows: Vec<(&Pool, (&Unit, &ByPhase))> = rows.collect();
        let in_service = index(&NodePhase::ALL, &NodePhase::InService);
        // The sort is stable: racks with equal counts stay in the order of their names.
        rows.sort_by_key(|(_, (_, phases))| {
            Reverse(phases.iter().sum::<u32>() - phases[in_service])
        });
        let omitted = rows.len().saturating_sub(racks_max);
        rows.truncate(racks_max);
        let samples = rows.into_iter().flat_map(|(pool, (rack, phases))| {
            let counts = NodePhase::ALL.into_iter().zip(phases).filter(|(_, count)| **count > 0);
            counts.map(move |(phase, count)| {
                (vec![pool.to_string(), rack.to_string(), phase.code().to_owned()], count)
            })
        });
        page.family(&families::RACK_NODES, samples);
        page.value(&families::RACKS_OMITTED, omitted);
    }

    /// Writes the most frequent codes, and one sum for all other codes.
    fn write_codes(&self, page: &mut MetricsPage) {
        let mut codes: Vec<(&(Severity, String), u64)> =
            self.codes.iter().map(|(code, count)| (code, *count)).collect();
        codes.sort_by_key(|(_, count)| Reverse(*count));
        let mut others: BTreeMap<Severity, u64> = BTreeMap::new();
        for ((severity, _), count) in codes.drain(CODES_MAX.min(codes.len())..) {
            *others.entry(*severity).or_default() += count;
        }
        let codes =
            codes.into_iter().map(|((severity, code), count)| (*severity, code.as_str(), count));
        let others = others.into_iter().map(|(severity, count)| (severity, "other", count));
        let samples = codes.chain(others);
        let samples = samples
            .map(|(severity, code, count)| (vec![severity.to_string(), code.to_owned()], count));
        page.family(&families::FINDINGS_BY_CODE, samples);
    }

    fn by_pool<N: Into<u64>>(
        &self,
        page: &mut MetricsPage,
        family: &Family,
        count: fn(&PoolTally) -> N,
    ) {
        let samples =
            self.pools.iter().map(|(pool, tally)| (vec![pool.to_string()], count(tally).into()));
        page.family(family, samples);
    }

    /// Writes a sample for every value of the label, even if the count is zero.
    fn by_label<const N: usize>(
        &self,
        page: &mut MetricsPage,
        family: &Family,
        values: &[&str; N],
        counts: fn(&PoolTally) -> &[u32; N],
    ) {
        let samples = self.pools.iter().flat_map(|(pool, tally)| {
            let counts = values.iter().zip(counts(tally));
            counts.map(move |(value, count)| (vec![pool.to_string(), (*value).to_owned()], count))
        });
        page.family(family, samples);
    }

    fn by_code(
        &self,
        page: &mut MetricsPage,
        family: &Family,
        counts: fn(&PoolTally) -> &BTreeMap<&'static str, u32>,
    ) {
        let samples = self.pools.iter().flat_map(|(pool, tally)| {
            counts(tally)
                .iter()
                .map(move |(code, count)| (vec![pool.to_string(), (*code).to_owned()], count))
        });
        page.family(family, samples);
    }
}

impl PoolTally {
    fn add(&mut self, node: &Node, phase: usize, connection: ConnectionState) {
        self.phases[phase] += 1;
        let since = node.phase.since();
        let oldest = &mut self.oldest[phase];
        *oldest = Some(oldest.map_or(since, |oldest| oldest.min(since)));
        self.connections[index(&ConnectionState::ALL, &connection)] += 1;
        self.heartbeat_lost += u32::from(node.liveness.heartbeat_loss().is_some());
        // What a node reported before its heartbeats were lost may be over.
        let is_silent = node.liveness.heartbeat_loss().is_some();
        let gaps = node.coverage().count().filter(|_| !is_silent);
        self.coverage[match gaps {
            Some(0) => 0,
            Some(_) => 1,
            None => 2,
        }] += 1;
        self.coverage_gaps += u64::from(gaps.unwrap_or(0));
        self.waiting_for_approval += u32::from(node.waits_for_approval());
        self.over_quota += u32::from(node.reports.over_quota_since().is_some());
        if let Some(deferred) = node.phase.deferred() {
            *self.deferred.entry(known_code(&deferred.reason)).or_default() += 1;
        }
        if let Some(pending) = node.orders.pending() {
            *self.pending.entry(pending.order.kind.spec().code).or_default() += 1;
        }
        if let Some(failures) = node.orders.failures() {
            *self.failed.entry(failures.order.spec().code).or_default() += 1;
        }
    }

    fn merge(&mut self, other: Self) {
        add_all(&mut self.phases, other.phases);
        for (own, since) in self.oldest.iter_mut().zip(other.oldest) {
            *own = [*own, since].into_iter().flatten().min();
        }
        add_all(&mut self.connections, other.connections);
        self.heartbeat_lost += other.heartbeat_lost;
        add_all(&mut self.coverage, other.coverage);
        self.coverage_gaps += other.coverage_gaps;
        self.waiting_for_approval += other.waiting_for_approval;
        self.over_quota += other.over_quota;
        for (own, count) in self.findings.iter_mut().zip(other.findings) {
            *own += count;
        }
        for (own, others) in [
            (&mut self.deferred, other.deferred),
            (&mut self.pending, other.pending),
            (&mut self.failed, other.failed),
        ] {
            for (code, count) in others {
                *own.entry(code).or_default() += count;
            }
        }
    }
}

fn add_all<const N: usize>(own: &mut [u32; N], others: [u32; N]) {
    for (own, count) in own.iter_mut().zip(others) {
        *own += count;
    }
}

/// The code of a reason as a constant, which bounds the values of the label.
fn known_code(reason: &Reason) -> &'static str {
    Reason::CODES.into_iter().find(|code| *code == reason.code()).unwrap_or("other")
}
