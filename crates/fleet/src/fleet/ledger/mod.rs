//! The loss ledger: every GPU-millisecond of the fleet in a period is available, or lost with one
//! cause. A pure fold over the log.
//!
//! ```text
//! entry ─> FleetState::apply ─> classify ─> Timeline of each node ─> Totals ─> FleetReport
//! ```
//!
//! The ledger applies the entries to a [`FleetState`]. After each entry, it classifies the time of
//! the changed nodes. Time is wall-clock time by the clock of the log. If that clock was set back,
//! the ledger counts the repeated time only once, as it was before the step. Time in which the
//! server did not run, or over which the clock was set forward, is unknown, except on nodes that were
//! out of service at that time. If the clock is set back after it was set forward, it was wrong in
//! between: the ledger takes that time back.

mod account;
mod classify;
mod gpu_history;
mod poisson;
mod repairs;
pub mod report;
mod shadow;
mod timeline;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use jiff::Timestamp;

use super::access::is_within;
use super::decide::{affects_service, ends_service};
use super::event::{Cordon, Entry, Event, GpuInventory, OperatorRequest};
use super::identity::{Domain, NodeId, Pool};
use super::order::OrderStatus;
use super::policy::Autonomy;
use super::state::{FleetState, Node, NodePhase};
use crate::health::{Change, Finding, Subject};
use account::{DAY_MS, LossKey, Totals};
pub use classify::UNVERIFIED;
use classify::{GpuState, LossReason, NodeMemory, classify};
use gpu_history::GpuHistories;
use poisson::{as_f64, interval};
use repairs::RepairLedger;
pub use report::{Cause, FleetReport, GpuTime};
use report::{
    DayTime, DriverUse, ExposureLine, FailedTest, LossLine, Omitted, OperatorAction,
    OperatorActionKind, PoolTime, REPORT_VERSION, Reliability, ReportPeriod, SkuTime, ratio,
};
use shadow::{GpusAtFault, Shadow};
use timeline::{Timeline, TimelineSegment};

/// Maximum number of loss lines in a report.
const LOSSES_MAX: usize = 10_000;
/// Maximum number of GPUs in each list of a report. A tenth of the largest fleet: the limit is for
/// hostile nodes, which can invent GPUs.
const GPUS_MAX: usize = 10_000;
const HOUR_MS: u64 = 3_600_000;

/// Which part of the fleet a report covers, and how.
#[derive(Debug, Clone)]
pub struct LedgerSpec {
    /// `None`: from the first entry.
    pub from: Option<Timestamp>,
    /// `None`: to the end of the log.
    pub to: Option<Timestamp>,
    /// Time of a node counts only while the node was in this domain.
    pub scope: Domain,
    /// The nodes that the caller may see, with the `seq` of their enrolment. `None` means all
    /// nodes, including retired ones.
    pub visible: Option<BTreeMap<NodeId, u64>>,
    /// If a would-be decision and an operator's action are at most this far apart, they agree.
    pub shadow_window_h: u32,
}

impl LedgerSpec {
    /// Default window: a day, because operators look at a node in the shift in which it fails, or
    /// in the next shift.
    pub const SHADOW_WINDOW_H: u32 = 24;
    /// Longest window.
    pub const SHADOW_WINDOW_H_MAX: u32 = 24 * 30;

    /// The whole fleet and the whole log.
    pub fn whole() -> Self {
        Self {
            from: None,
            to: None,
            scope: Domain::Fleet,
            visible: None,
            shadow_window_h: Self::SHADOW_WINDOW_H,
        }
    }
}

/// A node that the ledger counts.
#[derive(Debug, Default)]
struct Account {
    timeline: Timeline,
    /// The GPUs of the node, and the GPUs that are missing from it. `None` before the first
    /// inventory of the node.
    installed: Option<Vec<GpuInventory>>,
    held_with_fault: bool,
    /// When the account ended. `None` while the node is in the fleet.
    end_ms: Option<i64>,
}

impl Account {
    fn memory(&self) -> NodeMemory<'_> {
        let installed = self.installed.as_deref().unwrap_or_default();
        NodeMemory { installed, held_with_fault: self.held_with_fault }
    }

    /// The SKU of the GPU at fault, or of the first GPU if the fault does not belong to a GPU.
    fn sku_of(&self, finding: &Finding) -> Option<&str> {
        let installed = self.memory().installed;
        let faulty = installed
            .iter()
            .find(|gpu| finding.subject.gpu().is_some_and(|uuid| gpu.uuid == *uuid));
        faulty.or(installed.first())?.name.as_deref()
    }

    /// How many GPUs the node has, and how many are at fault.
    fn gpus_at_fault(&self) -> GpusAtFault {
        let groups = self.timeline.class().map_or(&[][..], |class| &class.groups);
        let at_fault = groups.iter().filter(|group| match &group.state {
            GpuState::Available { exposure } => {
                exposure.as_ref().is_some_and(|fault| fault.code != UNVERIFIED)
            }
            GpuState::Lost { cause, .. } => *cause == Cause::Finding,
        });
        GpusAtFault {
            all: groups.iter().map(|group| group.gpus).sum(),
            at_fault: at_fault.map(|group| group.gpus).sum(),
        }
    }
}

/// Folds the log into a report.
#[derive(Debug)]
pub struct Ledger {
    spec: LedgerSpec,
    state: FleetState,
    /// The latest time that the clock of the log has reached, in milliseconds since the epoch.
    clock_ms: i64,
    /// The times over which the clock was set forward and not back again.
    forward_steps: Vec<Range<i64>>,
    /// Accounts that ended after a forward step. A step back may still change their time.
    ended: Vec<(NodeId, Account)>,
    /// Whether the findings that were open at the begin of the period are in the histories.
    is_in_period: bool,
    first_entry: u64,
    /// When the log begins.
    begins: Option<Timestamp>,
    accounts: BTreeMap<NodeId, Account>,
    totals: Totals,
    drivers: DriverCounts,
    histories: GpuHistories,
    repairs: RepairLedger,
    shadow: Shadow,
    heartbeat_lost: Arc<LossReason>,
    server_stopped: Arc<LossReason>,
    clock_stepped: Arc<LossReason>,
}

impl Ledger {
    /// Starts from the state that the log begins with.
    pub fn new(base: FleetState, spec: LedgerSpec) -> Self {
        let begins = (base.seq > 0).then_some(base.at);
        let clock_ms = base.at.as_millisecond();
        let from = spec.from.map_or(i64::MIN, Timestamp::as_millisecond);
        let to = spec.to.map_or(i64::MAX, Timestamp::as_millisecond);
        let mut ledger = Self {
            clock_ms,
            forward_steps: Vec::new(),
            ended: Vec::new(),
            is_in_period: false,
            first_entry: base.seq + 1,
            begins,
            accounts: BTreeMap::new(),
            totals: Totals::new(from..to),
            drivers: DriverCounts::default(),
            histories: GpuHistories::default(),
            repairs: RepairLedger::default(),
            shadow: Shadow::new(spec.shadow_window_h.min(LedgerSpec::SHADOW_WINDOW_H_MAX)),
            heartbeat_lost: LossReason::from_code("heartbeat-lost"),
            server_stopped: LossReason::from_code("server-stopped"),
            clock_stepped: LossReason::from_code("clock-stepped"),
            state: FleetState::default(),
            spec,
        };
        let nodes: Vec<NodeId> = base.nodes.keys().cloned().collect();
        ledger.state = base;
        for id in nodes {
            ledger.update(&id);
        }
        ledger
    }

    /// Number of the last entry.
    pub fn seq(&self) -> u64 {
        self.state.seq
    }

    /// Applies the next entry.
    pub fn apply(&mut self, entry: &Entry) {
        self.begins.get_or_insert(entry.at);
        self.enter_period(entry.at.as_millisecond());
        let before_ms = self.clock_ms;
        self.clock_ms = self.clock_ms.max(entry.at.as_millisecond());
        match &entry.event {
            Event::ClockStepped { from, to } => self.note_clock_step(before_ms, *from, *to),
            Event::ControllerResumed { last_ran } => self.note_pause(before_ms, *last_ran),
            Event::HeartbeatLost { node, since } => self.note_silence(node, *since),
            _ => {}
        }
        let subject = entry.event.subject().cloned();
        let before = subject.as_ref().and_then(|id| self.state.nodes.get(id)).cloned();
        // A node that this entry retires has no account any more afterwards.
        let was_counted = subject.as_ref().is_some_and(|id| self.accounts.contains_key(id));
        let mut changed = self.state.apply(entry);
        changed.extend(subject.iter().cloned());
        if let (Event::Enrolled { .. } | Event::Retired { .. }, Some(id)) = (&entry.event, &subject)
        {
            self.close(id, self.clock_ms);
        }
        for id in &changed {
            self.update(id);
        }
        if let Some(id) = subject.filter(|id| was_counted || self.accounts.contains_key(id)) {
            self.note_entry(&id, before.as_deref(), entry);
        }
        self.follow_shadow(&changed, entry);
    }

    /// Adds the findings that are open when the period begins to the histories of their GPUs.
    fn enter_period(&mut self, at_ms: i64) {
        if self.is_in_period || !self.totals.includes(at_ms) {
            return;
        }
        self.is_in_period = true;
        for id in self.accounts.keys() {
            let findings = self.state.nodes.get(id).into_iter().flat_map(|node| node.findings());
            for finding in findings.map(|(_, finding)| finding) {
                self.histories.note_finding(finding, false, false);
            }
        }
    }

    /// Records a step of the clock. Over a step forward, the time of the nodes is unknown: the
    /// server may have been suspended. A step back behind the end of a step forward shows that the
    /// clock was wrong in between. The ledger then continues at the time of the step forward.
    fn note_clock_step(&mut self, before_ms: i64, from: Timestamp, to: Timestamp) {
        let from_ms = from.as_millisecond().max(before_ms);
        let to_ms = to.as_millisecond();
        if to > from {
            let step = from_ms..self.clock_ms;
            if !step.is_empty() {
                self.mark_unobserved(step.clone(), &Arc::clone(&self.clock_stepped));
                self.forward_steps.push(step);
            }
            return;
        }
        let kept = self.forward_steps.partition_point(|step| step.end <= to_ms);
        let Some(begin_ms) = self.forward_steps.drain(kept..).map(|step| step.start).next() else {
            return;
        };
        self.clock_ms = begin_ms.max(to_ms);
        let ended = self.ended.iter_mut().map(|(_, account)| account);
        for account in self.accounts.values_mut().chain(ended) {
            account.timeline.take_back(begin_ms);
            account.end_ms = account.end_ms.map(|end_ms| end_ms.min(begin_ms));
        }
        self.mark_unobserved(begin_ms..self.clock_ms, &Arc::clone(&self.clock_stepped));
    }

    /// Marks time of all nodes, which ends now, as time without observation.
    fn mark_unobserved(&mut self, time: Range<i64>, why: &Arc<LossReason>) {
        for account in self.accounts.values_mut() {
            account.timeline.mark_unobserved(time.clone(), why);
        }
    }

    /// Records that the server did not run. What happened to nodes in service in that time is
    /// unknown.
    fn note_pause(&mut self, before_ms: i64, last_ran: Timestamp) {
        let stopped_ms = last_ran.as_millisecond().clamp(before_ms, self.clock_ms);
        self.mark_unobserved(stopped_ms..self.clock_ms, &Arc::clone(&self.server_stopped));
    }

    /// Records that nothing is known about a node since its last heartbeat. That heartbeat came
    /// before the server noticed the loss.
    fn note_silence(&mut self, id: &NodeId, since: Timestamp) {
        if let Some(account) = self.accounts.get_mut(id) {
            let time = since.as_millisecond().min(self.clock_ms)..self.clock_ms;
            account.timeline.mark_unobserved(time, &self.heartbeat_lost);
        }
    }

    /// Returns the node if the report covers it.
    fn counted(&self, id: &NodeId) -> Option<&Arc<Node>> {
        let node = self.state.nodes.get(id)?;
        let visible = self.spec.visible.as_ref();
        let is_visible = visible.is_none_or(|nodes| nodes.get(id) == Some(&node.first_seq));
        (is_visible && is_within(&node.location, &self.spec.scope)).then_some(node)
    }

    /// Ends the account of a node that has left, or whose name belongs to another node from now on.
    fn close(&mut self, id: &NodeId, end_ms: i64) {
        let Some(mut account) = self.accounts.remove(id) else { return };
        account.end_ms = Some(end_ms);
        if self.forward_steps.is_empty() {
            self.count(id, &account, end_ms);
        } else {
            self.ended.push((id.clone(), account));
        }
    }

    fn count(&mut self, id: &NodeId, account: &Account, end_ms: i64) {
        for (segment, time) in account.timeline.segments(end_ms) {
            if self.spec.to.is_some_and(|to| time.contains(&to.as_millisecond())) {
                self.drivers.count(segment);
            }
            self.totals.count(id, segment, time);
        }
    }

    /// Classifies a node again, and begins a new segment if its class changed.
    fn update(&mut self, id: &NodeId) {
        let Some(node) = self.counted(id).cloned() else { return self.close(id, self.clock_ms) };
        let account = self.accounts.entry(id.clone()).or_insert_with(|| Account {
            held_with_fault: node.findings().values().any(affects_service),
            ..Account::default()
        });
        let listed = node.inventory.as_ref().and_then(|inventory| {
            let listed = inventory.reported.gpus.as_ref()?;
            Some(listed.iter().chain(&inventory.missing_gpus))
        });
        let before = account.installed.as_ref();
        if let Some(listed) = listed
            && before.is_none_or(|before| !before.iter().eq(listed.clone()))
        {
            account.installed = Some(listed.cloned().collect());
            for gpu in account.installed.iter().flatten() {
                self.histories.note_node(id, gpu);
            }
        }
        let class = classify(&node, &self.state.policy, account.memory());
        let gpus = account.installed.as_ref().map(|installed| installed.len() as u64);
        account.timeline.change(self.clock_ms, class, gpus);
    }

    /// Records what happened to a node: findings, repairs, tests and operator actions.
    fn note_entry(&mut self, id: &NodeId, before: Option<&Node>, entry: &Entry) {
        let after = self.state.nodes.get(id).cloned();
        if let (Some(after), Event::PhaseChanged { to: NodePhase::Held, .. }) =
            (&after, &entry.event)
        {
            if let Some(account) = self.accounts.get_mut(id) {
                account.held_with_fault = after.findings().values().any(affects_service);
            }
            self.update(id);
        }
        if let Some(before) = before {
            self.note_operator(id, before, entry);
        }
        if !self.totals.includes(entry.at.as_millisecond()) {
            return;
        }
        if let (Some(after), Event::FindingsReported { .. } | Event::FindingsSnapshot { .. }) =
            (&after, &entry.event)
        {
            self.note_findings(id, before, after, &entry.event);
        }
        let pending = before.and_then(|node| node.orders.pending()).map(|pending| &pending.order);
        self.repairs.note(id, &entry.event, pending.map(|order| &order.kind));
        if let (Some(level), Event::OrderStatusReported { status, .. }) =
            (pending.and_then(|order| order.kind.verifies()), &entry.event)
            && let OrderStatus::Failed { reason } = status
            && let Some(account) = self.accounts.get(id)
        {
            let test =
                FailedTest { node: id.clone(), at: entry.at, level, evidence: reason.clone() };
            self.histories.note_failed_test(account.memory().installed, &test);
        }
    }

    fn note_findings(&mut self, id: &NodeId, before: Option<&Node>, after: &Node, event: &Event) {
        let earlier = |id: &u64| before.and_then(|before| before.findings().get(id));
        // One cause can open several findings of a component, such as an Xid and a lost GPU.
        let unfit = before.into_iter().flat_map(|node| node.findings().values());
        let mut unfit: BTreeSet<Subject> =
            unfit.filter(|finding| ends_service(finding)).map(component).collect();
        for (number, finding) in after.findings() {
            let was = earlier(number);
            if was == Some(finding) {
                continue;
            }
            let is_fault = ends_service(finding) && unfit.insert(component(finding));
            if is_fault {
                let sku = self.accounts.get(id).and_then(|account| account.sku_of(finding));
                self.totals.note_fault(&after.location.pool, sku);
            }
            self.histories.note_finding(finding, was.is_none(), is_fault);
        }
        let closed = before.into_iter().flat_map(Node::findings);
        for (_, finding) in closed.filter(|(number, _)| !after.findings().contains_key(number)) {
            self.histories.note_closed(finding);
        }
        // The last content of a finding that has cleared.
        if let Event::FindingsReported { changes, .. } = event {
            for finding in changes.iter().map(Change::finding) {
                if !finding.is_open() && earlier(&finding.id).is_some() {
                    self.histories.note_finding(finding, false, false);
                }
            }
        }
    }

    /// Records what an operator did with a node that took work in a pool that only observes.
    fn note_operator(&mut self, id: &NodeId, before: &Node, entry: &Entry) {
        let pool = self.state.policy.for_pool(&before.location.pool);
        let took_work = before.phase().in_service() || before.phase() == NodePhase::Joining;
        if pool.autonomy != Autonomy::Observe || !took_work {
            return;
        }
        let (kind, text) = match &entry.event {
            Event::OperatorRequested { request: OperatorRequest::Hold { reason, .. } }
                if before.requests.hold.is_none() =>
            {
                (OperatorActionKind::Hold, reason)
            }
            Event::OperatorRequested { request: OperatorRequest::Repaired { repair, .. } } => {
                (OperatorActionKind::Repaired, repair)
            }
            Event::Retired { reason, .. } => (OperatorActionKind::Retired, reason),
            Event::CordonObserved { cordon: Cordon::External { owner, .. }, .. }
                if before.scheduling.external_cordon().is_none() =>
            {
                (OperatorActionKind::ExternalCordon, owner)
            }
            _ => return,
        };
        let action = OperatorAction { at: entry.at, kind, text: text.clone() };
        self.shadow.note_action(id, before, action);
    }

    fn follow_shadow(&mut self, changed: &BTreeSet<NodeId>, entry: &Entry) {
        let explained = self.shadow.explained();
        let deferred = match &entry.event {
            Event::Deferred { node, .. } => Some(node),
            _ => None,
        };
        for id in explained.iter().chain(deferred) {
            if let Some(account) = self.accounts.get(id) {
                self.shadow.note_deferred(&self.state, id, entry.at, account.gpus_at_fault());
            }
        }
        for id in explained.iter().chain(changed) {
            if let Some(node) = self.counted(id).cloned() {
                self.shadow.note_change(id, &node, entry.at);
            }
        }
    }

    /// Returns the report. `now` is the time up to which the state is known: the present for a
    /// running server, and the last entry for a log without a server.
    pub fn finish(mut self, now: Option<Timestamp>) -> FleetReport {
        let now_ms = now.map_or(self.clock_ms, Timestamp::as_millisecond).max(self.clock_ms);
        let end = Timestamp::from_millisecond(now_ms).unwrap_or(self.state.at);
        let period = self.period(end);
        self.enter_period(now_ms);
        let accounts = std::mem::take(&mut self.accounts).into_iter();
        for (id, account) in accounts.chain(std::mem::take(&mut self.ended)) {
            let is_at_end = account.end_ms.is_none() && self.spec.to.is_none_or(|to| to >= end);
            if let Some(segment) = account.timeline.last().filter(|_| is_at_end) {
                self.drivers.count(segment);
            }
            self.count(&id, &account, account.end_ms.unwrap_or(now_ms));
        }
        let (losses, losses_omitted) = loss_lines(&self.totals, &self.histories);
        let (offenders, rma) = self.histories.finish(&self.totals.lost_by_gpu, GPUS_MAX);
        let pools = pools(&self.totals);
        let mut time = GpuTime::default();
        for pool in &pools {
            time.add(&pool.time);
        }
        FleetReport {
            version: REPORT_VERSION,
            scope: self.spec.scope,
            time,
            uncounted_node_ms: self.totals.uncounted_node_ms,
            days: days(&pools),
            pools,
            losses,
            losses_omitted,
            exposure: exposure(&self.totals),
            reliability: reliability(&self.totals),
            offenders,
            repairs: self.repairs.finish(),
            rma,
            drivers: self.drivers.finish(),
            shadow: self.shadow.finish(self.totals.observed_node_ms, period.from..period.to, end),
            period,
        }
    }

    fn period(&self, end: Timestamp) -> ReportPeriod {
        let begin = self.begins.unwrap_or(end);
        let is_archived = self.first_entry > 1;
        let from = self.spec.from.map_or(begin, |from| from.max(begin)).min(end);
        let to = self.spec.to.map_or(end, |to| to.min(end)).max(from);
        ReportPeriod {
            from,
            to,
            first_entry: self.first_entry,
            last_entry: self.state.seq,
            missing_before: self
                .begins
                .filter(|begins| is_archived && self.spec.from.is_none_or(|from| from < *begins)),
            missing_after: self.spec.to.filter(|to| *to > end),
        }
    }
}

/// The nodes and GPUs by pool and driver, at the end of the period.
#[derive(Debug, Default)]
struct DriverCounts(BTreeMap<(Pool, Option<String>), (u64, u64)>);

impl DriverCounts {
    fn count(&mut self, segment: &TimelineSegment) {
        let key = (segment.class.pool.clone(), segment.class.driver.clone());
        let (nodes, gpus) = self.0.entry(key).or_default();
        *nodes += 1;
        *gpus += segment.gpus.unwrap_or_default();
    }

    fn finish(self) -> Vec<DriverUse> {
        let row = |((pool, driver), (nodes, gpus))| DriverUse { pool, driver, nodes, gpus };
        self.0.into_iter().map(row).collect()
    }
}

fn loss_lines(totals: &Totals, histories: &GpuHistories) -> (Vec<LossLine>, Omitted) {
    let line = |(key, gpu_ms): (&LossKey, &u64)| LossLine {
        cause: key.cause,
        node: key.node.clone(),
        pool: key.pool.clone(),
        sku: key.sku.as_deref().map(str::to_owned),
        driver: key.driver.clone(),
        code: key.fault.code.clone(),
        detail: key.fault.detail.clone(),
        gpu: key.fault.gpu.clone(),
        serial: key.fault.gpu.as_ref().and_then(|gpu| histories.serial(gpu)).cloned(),
        gpu_ms: *gpu_ms,
    };
    let mut lines: Vec<LossLine> = totals.losses.iter().map(line).collect();
    lines.sort_by_key(|line| std::cmp::Reverse(line.gpu_ms));
    let rest = lines.split_off(lines.len().min(LOSSES_MAX));
    let gpu_ms = rest.iter().map(|line| line.gpu_ms).sum();
    (lines, Omitted { lines: rest.len() as u64, gpu_ms })
}

fn pools(totals: &Totals) -> Vec<PoolTime> {
    let mut pools: Vec<PoolTime> = Vec::new();
    for ((pool, day), time) in &totals.pool_days {
        if pools.last().is_none_or(|last| last.pool != *pool) {
            let skus = totals.pool_skus.iter().filter(|((of, _), _)| of == pool);
            let skus = skus.map(|((_, sku), time)| SkuTime {
                sku: sku.as_deref().map(str::to_owned),
                time: *time,
            });
            let (pool, skus) = (pool.clone(), skus.collect());
            pools.push(PoolTime { pool, time: GpuTime::default(), skus, days: Vec::new() });
        }
        if let Some(last) = pools.last_mut() {
            last.time.add(time);
            let day = Timestamp::from_millisecond(day * DAY_MS).unwrap_or_default();
            last.days.push(DayTime { day, time: *time });
        }
    }
    pools
}

fn days(pools: &[PoolTime]) -> Vec<DayTime> {
    let mut days: BTreeMap<Timestamp, GpuTime> = BTreeMap::new();
    for day in pools.iter().flat_map(|pool| &pool.days) {
        days.entry(day.day).or_default().add(&day.time);
    }
    days.into_iter().map(|(day, time)| DayTime { day, time }).collect()
}

fn exposure(totals: &Totals) -> Vec<ExposureLine> {
    let line = |((pool, code, detail), exposure): (&(_, String, String), &account::Exposure)| {
        let (pool, code, detail) = (Clone::clone(pool), code.clone(), detail.clone());
        let nodes = exposure.nodes.len() as u64;
        ExposureLine { pool, code, detail, gpu_ms: exposure.gpu_ms, nodes }
    };
    let mut lines: Vec<ExposureLine> = totals.exposure.iter().map(line).collect();
    lines.sort_by_key(|line| std::cmp::Reverse(line.gpu_ms));
    lines.truncate(GPUS_MAX);
    lines
}

fn reliability(totals: &Totals) -> Vec<Reliability> {
    let row = |((pool, sku), time): (&(_, Option<Arc<str>>), &GpuTime)| {
        let faults = totals.faults.get(&(Clone::clone(pool), sku.clone())).copied();
        let faults = faults.unwrap_or_default();
        let hours = ratio(time.available_ms, HOUR_MS);
        let (low, high) = interval(faults);
        let is_seen = faults > 0 && hours > 0.0;
        Reliability {
            pool: Clone::clone(pool),
            sku: sku.as_deref().map(str::to_owned),
            operating_ms: time.available_ms,
            faults,
            mtbf_h: is_seen.then(|| hours / as_f64(faults)),
            mtbf_low_h: (hours > 0.0).then(|| hours / high),
            mtbf_high_h: is_seen.then(|| hours / low),
        }
    };
    totals.pool_skus.iter().map(row).collect()
}

/// The component that a finding is about. The links of a GPU belong to it.
fn component(finding: &Finding) -> Subject {
    finding.subject.gpu().map_or_else(|| finding.subject.clone(), |gpu| Subject::Gpu(gpu.clone()))
}
