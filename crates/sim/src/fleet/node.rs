//! One simulated node: its faults, its reports and its execution of orders.

use std::collections::BTreeMap;

use farrier_fleet::fleet::event::{Cordon, Event, GpuInventory, JournalPosition, NodeInventory};
use farrier_fleet::fleet::{Location, NodeId, Order, OrderKind, OrderStatus};
use farrier_fleet::health::finding::Cleared;
use farrier_fleet::health::{Change, Finding, GpuUuid, Severity};
use jiff::{SignedDuration, Timestamp};

use super::FleetSpec;
use super::fault::{NodeFault, Repair};
use crate::rng::SeededRng;

/// Minimum and maximum duration of a reboot.
const REBOOT_S: (u64, u64) = (120, 300);
/// Minimum and maximum duration of all orders except drains and reboots.
const ORDER_S: (u64, u64) = (1, 20);
/// Minimum and maximum time that jobs still run during a drain.
const DRAIN_S: (u64, u64) = (0, 1200);

/// The serial number of a GPU. Like the UUID of the GPU, it never changes.
fn serial(uuid: &GpuUuid) -> String {
    let digits =
        uuid.0.bytes().fold(0_u64, |sum, byte| (sum * 131 + u64::from(byte)) % 10_000_000_000);
    format!("165{digits:010}")
}

/// A simulated node.
#[derive(Debug)]
pub struct SimNode {
    pub(super) id: NodeId,
    pub(super) location: Location,
    gpus: Vec<GpuUuid>,
    rng: SeededRng,
    time_scale: u64,
    boot: u32,
    /// When the current reboot ends. `None` while the node is up.
    down_until: Option<Timestamp>,
    /// Active faults by finding ID.
    active_faults: BTreeMap<u64, (NodeFault, Finding)>,
    findings: u64,
    records: u64,
    cordon: Cordon,
    /// The order in progress and its completion time.
    active_order: Option<(Order, Timestamp)>,
    generation: u64,
    /// Generation and status of the last order. The node sends them again when it reconnects.
    last_status: Option<(u64, OrderStatus)>,
    /// Events not yet reported.
    pending_events: Vec<Event>,
}

impl SimNode {
    pub(super) fn new(id: NodeId, location: Location, spec: &FleetSpec) -> Self {
        let mut rng = SeededRng::new(spec.seed, id.as_str());
        let gpus = (0..spec.gpus).map(|_| GpuUuid(format!("GPU-{}", rng.uuid()))).collect();
        let mut node = Self {
            id,
            location,
            gpus,
            rng,
            time_scale: spec.time_scale.max(1),
            boot: 1,
            down_until: None,
            active_faults: BTreeMap::new(),
            findings: 0,
            records: 0,
            cordon: Cordon::None,
            active_order: None,
            generation: 0,
            last_status: None,
            pending_events: Vec::new(),
        };
        node.report_on_connect();
        node
    }

    /// Whether the node is up and its agent can report.
    pub fn is_up(&self) -> bool {
        self.down_until.is_none()
    }

    /// Whether a fault is active that should take the node out of service.
    pub fn is_faulty(&self) -> bool {
        self.active_faults.values().any(|(fault, _)| fault.severity >= Severity::Critical)
    }

    /// Takes the pending events. Returns none while the node is down.
    pub(super) fn take_events(&mut self) -> Vec<Event> {
        if self.is_up() { std::mem::take(&mut self.pending_events) } else { Vec::new() }
    }

    /// The inventory that the agent reports.
    pub fn inventory(&self) -> NodeInventory {
        let gpu = |(index, uuid): (u32, &GpuUuid)| GpuInventory {
            uuid: uuid.clone(),
            name: Some("NVIDIA H200".to_owned()),
            index: Some(index),
            pci: Some(format!("0000:{:02x}:00.0", 0x1b + index * 0x10)),
            serial: Some(serial(uuid)),
        };
        NodeInventory {
            boot: format!("{}-boot-{}", self.id, self.boot),
            agent: env!("CARGO_PKG_VERSION").to_owned(),
            kernel: Some("6.8.0-90-generic".to_owned()),
            driver: Some("580.95.05".to_owned()),
            cuda: Some("13.0".to_owned()),
            gpus: Some((0..).zip(&self.gpus).map(gpu).collect()),
            frameworks: Vec::new(),
            compliance: None,
        }
    }

    pub fn cordon(&self) -> &Cordon {
        &self.cordon
    }

    /// Last journal record.
    pub fn record(&self) -> JournalPosition {
        JournalPosition { journal: format!("{}-journal", self.id), number: self.records }
    }

    /// Open findings.
    pub fn open(&self) -> impl Iterator<Item = &Finding> {
        self.active_faults.values().map(|(_, finding)| finding)
    }

    /// Generation and status of the last order.
    pub fn last_status(&self) -> Option<&(u64, OrderStatus)> {
        self.last_status.as_ref()
    }

    /// Generation of the last accepted order.
    pub fn last_order(&self) -> u64 {
        self.generation
    }

    /// Reports what an agent sends on connect: inventory, cordon and the last order status.
    fn report_on_connect(&mut self) {
        let inventory = self.inventory();
        self.pending_events.push(Event::InventoryReported { node: self.id.clone(), inventory });
        let cordon = self.cordon.clone();
        self.pending_events.push(Event::CordonObserved { node: self.id.clone(), cordon });
        if let Some((generation, status)) = self.last_status.clone() {
            self.pending_events.push(Event::OrderStatusReported {
                node: self.id.clone(),
                generation,
                status,
            });
        }
    }

    /// Injects a fault. If it is self-clearing, returns the time at which it clears.
    pub fn inject_fault(&mut self, fault: NodeFault, now: Timestamp) -> Option<Timestamp> {
        let gpu = self.rng.below(self.gpus.len().max(1) as u64);
        let gpu = usize::try_from(gpu).ok().and_then(|index| self.gpus.get(index).cloned())?;
        self.findings += 1;
        let finding = fault.finding(self.findings, &gpu, now);
        self.active_faults.insert(finding.id, (fault, finding.clone()));
        self.report_changes(vec![Change::Opened(finding)]);
        match fault.repair {
            Repair::SelfClearing { after_s } => {
                Some(after(now, u64::from(after_s) / self.time_scale))
            }
            _ => None,
        }
    }

    /// Clears self-clearing faults that are due.
    pub(super) fn clear_transient_faults(&mut self, now: Timestamp) {
        let time_scale = self.time_scale;
        self.clear_faults(now, "the condition has cleared", |fault, finding| match fault.repair {
            Repair::SelfClearing { after_s } => {
                after(finding.first_seen, u64::from(after_s) / time_scale) <= now
            }
            _ => false,
        });
    }

    /// Clears all faults, as a manual repair does.
    pub fn repair(&mut self, now: Timestamp) {
        self.clear_faults(now, "a part was replaced", |_, _| true);
    }

    fn clear_faults(
        &mut self,
        now: Timestamp,
        reason: &str,
        matches: impl Fn(&NodeFault, &Finding) -> bool,
    ) {
        let mut changes = Vec::new();
        self.active_faults.retain(|_, (fault, finding)| {
            if !matches(fault, finding) {
                return true;
            }
            let cleared = Cleared { at: now, reason: reason.to_owned() };
            changes.push(Change::Cleared(Finding { cleared: Some(cleared), ..finding.clone() }));
            false
        });
        if !changes.is_empty() {
            self.report_changes(changes);
        }
    }

    fn report_changes(&mut self, changes: Vec<Change>) {
        self.records += 1;
        let record = self.record();
        self.pending_events.push(Event::FindingsReported {
            node: self.id.clone(),
            record,
            changes,
        });
    }

    /// Accepts an order and returns its completion time. If the generation is that of the last
    /// order, reports the status of that order again. An order with an older generation is ignored.
    pub(super) fn accept_order(&mut self, order: &Order, now: Timestamp) -> Option<Timestamp> {
        if !self.is_up() {
            return None;
        }
        if order.generation <= self.generation {
            let last_status = self.last_status.clone();
            if let Some((generation, status)) =
                last_status.filter(|(generation, _)| *generation == order.generation)
            {
                self.pending_events.push(Event::OrderStatusReported {
                    node: self.id.clone(),
                    generation,
                    status,
                });
            }
            return None;
        }
        self.generation = order.generation;
        let (at_least, at_most) = match order.kind {
            OrderKind::Drain { wait_s } => (DRAIN_S.0, DRAIN_S.1.min(u64::from(wait_s))),
            OrderKind::Reboot => REBOOT_S,
            _ => ORDER_S,
        };
        let duration_s = (at_least + self.rng.below(at_most - at_least + 1)) / self.time_scale;
        let until = after(now, duration_s);
        if order.kind == OrderKind::Reboot {
            self.report_status(order.generation, OrderStatus::Accepted);
            self.down_until = Some(until);
        }
        self.active_order = Some((order.clone(), until));
        Some(until)
    }

    /// Completes the reboot and the order if they are due.
    pub(super) fn finish_due_orders(&mut self, now: Timestamp) {
        if self.down_until.is_some_and(|until| until <= now) {
            self.down_until = None;
            self.boot += 1;
            self.clear_faults(now, "a reboot", |fault, _| {
                matches!(fault.repair, Repair::Reset | Repair::Reboot)
            });
            self.report_on_connect();
        }
        let Some((order, _)) = self.active_order.take_if(|(_, until)| *until <= now) else {
            return;
        };
        let status = self.execute(&order.kind, now);
        self.report_status(order.generation, status);
    }

    fn execute(&mut self, kind: &OrderKind, now: Timestamp) -> OrderStatus {
        let done = |evidence: &str| OrderStatus::Done { evidence: evidence.to_owned() };
        match kind {
            OrderKind::Cordon | OrderKind::Uncordon
                if matches!(self.cordon, Cordon::External { .. }) =>
            {
                OrderStatus::Refused { reason: "the node is cordoned by another owner".to_owned() }
            }
            OrderKind::Cordon => {
                self.set_cordon(Cordon::ByFarrier);
                done("node cordoned")
            }
            OrderKind::Uncordon => {
                self.set_cordon(Cordon::None);
                done("node uncordoned")
            }
            OrderKind::Drain { .. } => done("no jobs are running"),
            OrderKind::ResetGpu { gpu } => {
                self.clear_faults(now, "a reset", |fault, finding| {
                    fault.repair == Repair::Reset && finding.subject.gpu() == Some(gpu)
                });
                done("GPU reset")
            }
            OrderKind::Reboot => done("node rebooted"),
            OrderKind::RestartService { .. } => done("service running"),
            OrderKind::AcknowledgeRepair { .. } => done("fault counters restarted"),
            OrderKind::Verify { .. } if self.is_faulty() => {
                OrderStatus::Failed { reason: "critical findings are open".to_owned() }
            }
            OrderKind::Verify { .. } => done("all checks passed"),
            OrderKind::Diag { level, .. } => done(&format!("level {level}: every GPU passed")),
            other => done(&format!("`{other}` completed")),
        }
    }

    /// Sets or removes a cordon.
    pub fn set_cordon(&mut self, cordon: Cordon) {
        self.cordon = cordon.clone();
        self.pending_events.push(Event::CordonObserved { node: self.id.clone(), cordon });
    }

    fn report_status(&mut self, generation: u64, status: OrderStatus) {
        self.last_status = Some((generation, status.clone()));
        self.pending_events.push(Event::OrderStatusReported {
            node: self.id.clone(),
            generation,
            status,
        });
    }
}

pub(super) fn after(from: Timestamp, seconds: u64) -> Timestamp {
    let seconds = SignedDuration::from_secs(i64::try_from(seconds).unwrap_or(i64::MAX));
    from.checked_add(seconds).unwrap_or(Timestamp::MAX)
}
