//! The totals of the loss ledger, computed in another way: from the entries alone, without the
//! fleet state, by counting GPUs instead of looking at each one, and by cutting the time of a node
//! at every instant at which anything happened to it.
//!
//! The simulated month in `crates/sim/tests/ledger` uses it too.

use std::collections::{BTreeMap, BTreeSet};

use farrier_fleet::fleet::event::{Cordon, GpuInventory, JournalPosition};
use farrier_fleet::fleet::ledger::Cause;
use farrier_fleet::fleet::{
    AccessChange, Entry, Event, Impact, NodeId, NodePhase, OrderKind, OrderStatus, Reason, impact,
};
use farrier_fleet::health::{Finding, GpuUuid};

/// GPU-milliseconds: available, then one sum per cause, in the order of [`Cause::ALL`].
pub(crate) type Sums = [u64; 7];

/// The sums over all nodes, from `from_ms` to `to_ms`, or to the end of the entries.
pub(crate) fn sums(entries: &[Entry], from_ms: i64, to_ms: i64) -> Sums {
    let mut histories: BTreeMap<NodeId, History> = BTreeMap::new();
    let mut pauses: Vec<(i64, i64)> = Vec::new();
    let mut ended: Vec<History> = Vec::new();
    let mut clock_ms = i64::MIN;
    let mut steps: Vec<(i64, i64)> = Vec::new();
    for entry in entries {
        let before_ms = clock_ms;
        clock_ms = clock_ms.max(entry.at.as_millisecond());
        if let Event::ClockStepped { from, to } = &entry.event {
            let (from_ms, step_ms) = (from.as_millisecond(), to.as_millisecond());
            if step_ms > from_ms && from_ms.max(before_ms) < clock_ms {
                steps.push((from_ms.max(before_ms), clock_ms));
                pauses.push((from_ms.max(before_ms), clock_ms));
            } else if step_ms <= from_ms {
                let wrong = steps.iter().position(|(_, end)| *end > step_ms);
                if let Some((begin_ms, _)) = wrong.and_then(|first| steps.drain(first..).next()) {
                    clock_ms = begin_ms.max(step_ms);
                    for history in histories.values_mut().chain(&mut ended) {
                        history.cut(begin_ms);
                    }
                    for (from, to) in &mut pauses {
                        (*from, *to) = ((*from).min(begin_ms), (*to).min(begin_ms));
                    }
                    pauses.push((begin_ms, clock_ms));
                }
            }
        }
        if let Event::ControllerResumed { last_ran } = &entry.event {
            pauses.push((last_ran.as_millisecond().max(before_ms), clock_ms));
        }
        if let Event::Enrolled { node, .. } | Event::Retired { node, .. } = &entry.event {
            ended.extend(histories.remove(node).map(|history| history.ended(clock_ms)));
        }
        if let Event::Enrolled { node, .. } = &entry.event {
            histories.insert(node.clone(), History::new());
        }
        let Some(history) = entry.event.subject().and_then(|id| histories.get_mut(id)) else {
            continue;
        };
        history.facts.apply(&entry.event);
        if let Event::HeartbeatLost { since, .. } = &entry.event {
            history.silences.push((since.as_millisecond(), clock_ms));
        }
        history.points.push((clock_ms, history.facts.gpus()));
    }
    ended.extend(histories.into_values().map(|history| history.ended(clock_ms)));
    let mut sums = Sums::default();
    for history in &ended {
        history.add_to(&mut sums, &pauses, (from_ms, to_ms));
    }
    sums
}

struct History {
    facts: Facts,
    /// The GPUs of the node from an instant on, by what they count as.
    points: Vec<(i64, Sums)>,
    silences: Vec<(i64, i64)>,
    end_ms: i64,
}

impl History {
    fn new() -> Self {
        let (points, silences) = (Vec::new(), Vec::new());
        Self { facts: Facts::default(), points, silences, end_ms: i64::MAX }
    }

    fn ended(self, end_ms: i64) -> Self {
        Self { end_ms, ..self }
    }

    /// Moves what happened under a wrong clock to the time at which the clock became wrong.
    fn cut(&mut self, at_ms: i64) {
        for (at, _) in &mut self.points {
            *at = (*at).min(at_ms);
        }
        for (from, to) in &mut self.silences {
            (*from, *to) = ((*from).min(at_ms), (*to).min(at_ms));
        }
        if self.end_ms != i64::MAX {
            self.end_ms = self.end_ms.min(at_ms);
        }
    }

    fn add_to(&self, sums: &mut Sums, pauses: &[(i64, i64)], period: (i64, i64)) {
        let (begin, end) = (period.0, period.1.min(self.end_ms));
        let unobserved: Vec<(i64, i64)> = self.silences.iter().chain(pauses).copied().collect();
        let mut cuts: BTreeSet<i64> = self.points.iter().map(|(at, _)| *at).collect();
        cuts.extend(unobserved.iter().flat_map(|(from, to)| [*from, *to]));
        cuts.extend([begin, end]);
        let cuts: Vec<i64> = cuts.into_iter().filter(|at| (begin..=end).contains(at)).collect();
        for pair in cuts.windows(2) {
            let (from, to) = (pair[0], pair[1]);
            // The last point at or before the piece.
            let index = self.points.partition_point(|(at, _)| *at <= from);
            let Some((_, gpus)) = index.checked_sub(1).map(|index| &self.points[index]) else {
                continue;
            };
            let mut gpus = *gpus;
            if unobserved.iter().any(|(begin, end)| *begin <= from && to <= *end) {
                gpus[6] += std::mem::take(&mut gpus[0]);
            }
            for (sum, gpus) in sums.iter_mut().zip(gpus) {
                *sum += gpus * u64::try_from(to - from).unwrap();
            }
        }
    }
}

/// What the log says about a node.
#[expect(clippy::struct_excessive_bools, reason = "independent facts, each set by its own event")]
#[derive(Default)]
struct Facts {
    phase: Option<NodePhase>,
    reason: Option<Reason>,
    held_with_fault: bool,
    cordon: Cordon,
    silent: bool,
    revoked: bool,
    unreadable: bool,
    boot: Option<String>,
    listed: Option<Vec<GpuInventory>>,
    missing: Vec<GpuInventory>,
    installed: Vec<GpuUuid>,
    record: Option<JournalPosition>,
    open: BTreeMap<u64, Finding>,
    orders: BTreeMap<u64, OrderKind>,
}

fn affects_service(finding: &Finding) -> bool {
    impact(finding.kind, finding.severity, finding.action) > Impact::None
}

impl Facts {
    fn apply(&mut self, event: &Event) {
        match event {
            Event::PhaseChanged { to, rationale, .. } => {
                if *to == NodePhase::Held {
                    self.held_with_fault = self.open.values().any(affects_service);
                }
                (self.phase, self.reason) = (Some(*to), Some(rationale.reason.clone()));
            }
            Event::HeartbeatLost { .. } => self.silent = true,
            Event::HeartbeatRestored { .. } => (self.silent, self.revoked) = (false, false),
            Event::AccessChanged { change: AccessChange::CertificateRevoked { .. }, .. } => {
                self.revoked = true;
            }
            Event::ReportsUnreadable { .. } => self.unreadable = true,
            Event::ReportsReadable { .. } => self.unreadable = false,
            Event::CordonObserved { cordon, .. } => self.cordon = cordon.clone(),
            Event::OrderIssued { order } => {
                // A node has one order at a time.
                self.orders = BTreeMap::from([(order.generation, order.kind.clone())]);
            }
            Event::OrderCancelled { generation, .. } => drop(self.orders.remove(generation)),
            Event::OrderStatusReported { generation, status, .. } => {
                if *status == OrderStatus::Accepted {
                    return;
                }
                let is_done = matches!(status, OrderStatus::Done { .. });
                match self.orders.remove(generation) {
                    Some(OrderKind::Cordon) if is_done => self.cordon = Cordon::ByFarrier,
                    Some(OrderKind::Uncordon) if is_done => self.cordon = Cordon::None,
                    _ => {}
                }
            }
            Event::FindingsReported { record, changes, .. } => {
                let is_old = self.record.as_ref().is_some_and(|last| {
                    last.journal == record.journal && record.number <= last.number
                });
                if is_old {
                    return;
                }
                self.record = Some(record.clone());
                for finding in changes.iter().map(farrier_fleet::health::Change::finding) {
                    self.open.remove(&finding.id);
                    if finding.is_open() {
                        self.open.insert(finding.id, finding.clone());
                    }
                }
            }
            Event::FindingsSnapshot { record, open, .. } => {
                self.record = Some(record.clone());
                self.open = open.iter().map(|finding| (finding.id, finding.clone())).collect();
            }
            Event::InventoryReported { inventory, .. } => {
                self.report_gpus(&inventory.boot, inventory.gpus.as_ref());
            }
            _ => {}
        }
    }

    fn report_gpus(&mut self, boot: &str, gpus: Option<&Vec<GpuInventory>>) {
        let is_same_boot = self.boot.as_deref() == Some(boot);
        let before = std::mem::replace(&mut self.listed, gpus.cloned());
        self.boot = Some(boot.to_owned());
        let Some(listed) = gpus else { return };
        let named: BTreeSet<&GpuUuid> =
            self.open.values().filter_map(|finding| finding.subject.gpu()).collect();
        self.missing.extend(before.into_iter().flatten());
        self.missing.retain(|gpu| {
            listed.iter().all(|other| other.uuid != gpu.uuid)
                && (is_same_boot || named.contains(&gpu.uuid))
        });
        self.installed = listed.iter().chain(&self.missing).map(|gpu| gpu.uuid.clone()).collect();
    }

    /// The GPUs by what they count as.
    fn gpus(&self) -> Sums {
        let all = self.installed.len() as u64;
        let mut gpus = Sums::default();
        let place =
            |cause: Cause| 1 + Cause::ALL.into_iter().position(|other| other == cause).unwrap();
        let faults: Vec<&Finding> =
            self.open.values().filter(|finding| affects_service(finding)).collect();
        let is_own = |gpu: &GpuUuid| self.installed.contains(gpu);
        let is_node_wide = faults.iter().any(|finding| !finding.subject.gpu().is_some_and(is_own));
        let is_faulty = |gpu: &&GpuUuid| {
            is_node_wide || faults.iter().any(|finding| finding.subject.gpu() == Some(*gpu))
        };
        let faulty = self.installed.iter().filter(is_faulty).count() as u64;
        let (finding, idle) = (place(Cause::Finding), place(Cause::IdleByCordon));
        let is_out = match self.phase.unwrap_or(NodePhase::Joining) {
            NodePhase::Verifying => Some((Cause::Verification, false)),
            NodePhase::Held => match &self.reason {
                Some(Reason::CertificateRevoked { .. }) => Some((Cause::Unknown, false)),
                Some(Reason::ExternalCordon { .. }) => {
                    Some((Cause::Maintenance, self.held_with_fault))
                }
                _ => Some((Cause::Hold, self.held_with_fault)),
            },
            NodePhase::Quarantined | NodePhase::Repairing => match &self.reason {
                Some(Reason::VerificationFailed { .. }) => Some((Cause::Verification, true)),
                Some(Reason::OpenFindings { worst, .. }) if faults.is_empty() => {
                    // Cleared, but it was a fault of this GPU.
                    let gpu = worst.subject.gpu();
                    let own = match gpu {
                        Some(gpu) => self.installed.iter().filter(|other| *other == gpu).count(),
                        None => self.installed.len(),
                    };
                    gpus[finding] = own as u64;
                    gpus[idle] = all - own as u64;
                    return gpus;
                }
                _ => Some((Cause::Unknown, true)),
            },
            phase => match (&self.cordon, phase) {
                (Cordon::ByFarrier, NodePhase::Joining) => Some((Cause::Verification, false)),
                (Cordon::ByFarrier, _) => Some((Cause::IdleByCordon, true)),
                (Cordon::External { .. }, _) => Some((Cause::Maintenance, false)),
                _ if self.revoked || self.silent || self.unreadable || self.listed.is_none() => {
                    Some((Cause::Unknown, false))
                }
                _ => None,
            },
        };
        match is_out {
            Some((_, true)) if !faults.is_empty() => {
                gpus[finding] = faulty;
                gpus[idle] = all - faulty;
            }
            Some((cause, _)) => gpus[place(cause)] = all,
            None => {
                let missing: Vec<&GpuUuid> = self.missing.iter().map(|gpu| &gpu.uuid).collect();
                let faulty = missing.iter().filter(|gpu| is_faulty(gpu)).count() as u64;
                gpus[finding] = faulty;
                gpus[place(Cause::Unknown)] = missing.len() as u64 - faulty;
                gpus[0] = all - missing.len() as u64;
            }
        }
        gpus
    }
}
