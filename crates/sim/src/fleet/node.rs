//! One simulated node: what is wrong with it, what it says, and how it carries orders out.

use std::collections::BTreeMap;

use farrier_fleet::fleet::event::{Cordon, Event, GpuInventory, NodeInventory, Record};
use farrier_fleet::fleet::{Location, NodeId, Order, OrderKind, OrderStatus};
use farrier_fleet::health::finding::Cleared;
use farrier_fleet::health::{Change, Finding, GpuUuid, Severity};
use jiff::{SignedDuration, Timestamp};

use super::Plan;
use super::trouble::{Mend, Trouble};
use crate::random::Random;

/// How long a node is gone in a reboot.
const REBOOT_S: (u64, u64) = (120, 300);
/// How long an order takes that is neither a drain nor a reboot.
const ORDER_S: (u64, u64) = (1, 20);
/// How long a job still runs when it is asked to end.
const JOB_S: (u64, u64) = (0, 1200);

/// A node in memory.
#[derive(Debug)]
pub struct SimNode {
    pub(super) id: NodeId,
    pub(super) place: Location,
    gpus: Vec<GpuUuid>,
    random: Random,
    hurry: u64,
    boot: u32,
    /// Until when it is gone.
    down_until: Option<Timestamp>,
    /// What is wrong, by the number of its finding.
    wrong: BTreeMap<u64, (Trouble, Finding)>,
    findings: u64,
    records: u64,
    cordon: Cordon,
    /// The last order, and when it will be done.
    task: Option<(Order, Timestamp)>,
    generation: u64,
    /// What was answered last, for a server that did not hear it.
    answered: Option<(u64, OrderStatus)>,
    /// What it says when it is next heard.
    unsaid: Vec<Event>,
}

impl SimNode {
    pub(super) fn new(id: NodeId, place: Location, plan: &Plan) -> Self {
        let mut random = Random::of(plan.seed, id.as_str());
        let gpus = (0..plan.gpus).map(|_| GpuUuid(format!("GPU-{}", random.uuid()))).collect();
        let mut node = Self {
            id,
            place,
            gpus,
            random,
            hurry: plan.hurry.max(1),
            boot: 1,
            down_until: None,
            wrong: BTreeMap::new(),
            findings: 0,
            records: 0,
            cordon: Cordon::None,
            task: None,
            generation: 0,
            answered: None,
            unsaid: Vec::new(),
        };
        node.introduce();
        node
    }

    /// Whether it is there to speak.
    pub fn is_up(&self) -> bool {
        self.down_until.is_none()
    }

    /// Whether something is wrong with it that takes it out of service: what the server ought to find out.
    pub fn is_ill(&self) -> bool {
        self.wrong.values().any(|(trouble, _)| trouble.severity >= Severity::Critical)
    }

    /// Takes what it has to say, if it is there to say it.
    pub(super) fn say(&mut self) -> Vec<Event> {
        if self.is_up() { std::mem::take(&mut self.unsaid) } else { Vec::new() }
    }

    /// What it is made of.
    pub fn inventory(&self) -> NodeInventory {
        let gpu = |(index, uuid): (u32, &GpuUuid)| GpuInventory {
            uuid: uuid.clone(),
            name: Some("NVIDIA H200".to_owned()),
            index: Some(index),
            pci: Some(format!("0000:{:02x}:00.0", 0x1b + index * 0x10)),
        };
        NodeInventory {
            boot: format!("{}-boot-{}", self.id, self.boot),
            agent: env!("CARGO_PKG_VERSION").to_owned(),
            kernel: Some("6.8.0-90-generic".to_owned()),
            driver: Some("580.95.05".to_owned()),
            cuda: Some("13.0".to_owned()),
            gpus: Some((0..).zip(&self.gpus).map(gpu).collect()),
            frameworks: Vec::new(),
        }
    }

    /// Whether it is marked to get no work.
    pub fn cordon(&self) -> &Cordon {
        &self.cordon
    }

    /// The last record of its journal.
    pub fn record(&self) -> Record {
        Record { journal: format!("{}-journal", self.id), number: self.records }
    }

    /// Its open findings.
    pub fn open(&self) -> impl Iterator<Item = &Finding> {
        self.wrong.values().map(|(_, finding)| finding)
    }

    /// What it answered last.
    pub fn answered(&self) -> Option<&(u64, OrderStatus)> {
        self.answered.as_ref()
    }

    /// The number of the last order that it took.
    pub fn last_order(&self) -> u64 {
        self.generation
    }

    /// What an agent says when it connects: what it is, whether it is cordoned, and what it answered last.
    fn introduce(&mut self) {
        let inventory = self.inventory();
        self.unsaid.push(Event::InventoryReported { node: self.id.clone(), inventory });
        let cordon = self.cordon.clone();
        self.unsaid.push(Event::CordonObserved { node: self.id.clone(), cordon });
        if let Some((generation, answer)) = self.answered.clone() {
            self.unsaid.push(Event::OrderStatusReported {
                node: self.id.clone(),
                generation,
                status: answer,
            });
        }
    }

    /// Something goes wrong. When it will pass, if it does by itself.
    pub fn befall(&mut self, trouble: Trouble, now: Timestamp) -> Option<Timestamp> {
        let gpu = self.random.below(self.gpus.len().max(1) as u64);
        let gpu = usize::try_from(gpu).ok().and_then(|it| self.gpus.get(it).cloned())?;
        self.findings += 1;
        let finding = trouble.finding(self.findings, &gpu, now);
        self.wrong.insert(finding.id, (trouble, finding.clone()));
        self.found(vec![Change::Opened(finding)]);
        match trouble.mend {
            Mend::Itself { after_s } => Some(after(now, u64::from(after_s) / self.hurry)),
            _ => None,
        }
    }

    /// What passes by itself and whose time has come is over.
    pub(super) fn pass(&mut self, now: Timestamp) {
        let hurry = self.hurry;
        self.mend(now, "it passed", |trouble, finding| match trouble.mend {
            Mend::Itself { after_s } => {
                after(finding.first_seen, u64::from(after_s) / hurry) <= now
            }
            _ => false,
        });
    }

    /// A person mends everything.
    pub fn repair(&mut self, now: Timestamp) {
        self.mend(now, "a part was replaced", |_, _| true);
    }

    fn mend(&mut self, now: Timestamp, why: &str, mends: impl Fn(&Trouble, &Finding) -> bool) {
        let mut changes = Vec::new();
        self.wrong.retain(|_, (trouble, finding)| {
            if !mends(trouble, finding) {
                return true;
            }
            let cleared = Cleared { at: now, why: why.to_owned() };
            changes.push(Change::Cleared(Finding { cleared: Some(cleared), ..finding.clone() }));
            false
        });
        if !changes.is_empty() {
            self.found(changes);
        }
    }

    fn found(&mut self, changes: Vec<Change>) {
        self.records += 1;
        let record = self.record();
        self.unsaid.push(Event::FindingsReported { node: self.id.clone(), record, changes });
    }

    /// Takes an order, as an agent does: what is not newer is answered as before. When it will be done.
    pub(super) fn take(&mut self, order: &Order, now: Timestamp) -> Option<Timestamp> {
        if !self.is_up() {
            return None;
        }
        if order.generation <= self.generation {
            let answered = self.answered.clone();
            if let Some((generation, answer)) = answered.filter(|it| it.0 == order.generation) {
                self.unsaid.push(Event::OrderStatusReported {
                    node: self.id.clone(),
                    generation,
                    status: answer,
                });
            }
            return None;
        }
        self.generation = order.generation;
        let (at_least, at_most) = match order.kind {
            OrderKind::Drain { wait_s } => (JOB_S.0, JOB_S.1.min(u64::from(wait_s))),
            OrderKind::Reboot => REBOOT_S,
            _ => ORDER_S,
        };
        let takes_s = (at_least + self.random.below(at_most - at_least + 1)) / self.hurry;
        let until = after(now, takes_s);
        if order.kind == OrderKind::Reboot {
            self.answer(order.generation, OrderStatus::Accepted);
            self.down_until = Some(until);
        }
        self.task = Some((order.clone(), until));
        Some(until)
    }

    /// What was begun and whose time has come is done.
    pub(super) fn work(&mut self, now: Timestamp) {
        if self.down_until.is_some_and(|until| until <= now) {
            self.down_until = None;
            self.boot += 1;
            self.mend(now, "a reboot", |trouble, _| {
                matches!(trouble.mend, Mend::Reset | Mend::Reboot)
            });
            self.introduce();
        }
        let Some((order, _)) = self.task.take_if(|(_, until)| *until <= now) else { return };
        let answer = self.carry_out(&order.kind, now);
        self.answer(order.generation, answer);
    }

    fn carry_out(&mut self, what: &OrderKind, now: Timestamp) -> OrderStatus {
        let done = |evidence: &str| OrderStatus::Done { evidence: evidence.to_owned() };
        match what {
            OrderKind::Cordon | OrderKind::Uncordon
                if matches!(self.cordon, Cordon::External { .. }) =>
            {
                OrderStatus::Refused { reason: "somebody else's mark is on it".to_owned() }
            }
            OrderKind::Cordon => {
                self.mark(Cordon::ByFarrier);
                done("no new work is given to it")
            }
            OrderKind::Uncordon => {
                self.mark(Cordon::None);
                done("new work may come")
            }
            OrderKind::Drain { .. } => done("no work runs on it"),
            OrderKind::ResetGpu { gpu } => {
                self.mend(now, "a reset", |trouble, finding| {
                    trouble.mend == Mend::Reset && finding.subject.gpu() == Some(gpu)
                });
                done("the GPU was reset")
            }
            OrderKind::Reboot => done("it runs in a new boot"),
            OrderKind::RestartService { .. } => done("the service runs"),
            OrderKind::AcknowledgeRepair { .. } => done("what is counted begins anew"),
            OrderKind::Verify { .. } if self.is_ill() => OrderStatus::Failed {
                reason: "findings that take it out of service are open".to_owned(),
            },
            OrderKind::Verify { .. } => done("everything that was looked at is as it should be"),
            OrderKind::Diag { level, .. } => done(&format!("level {level}: every GPU passed")),
            other => done(&format!("`{other}` was carried out")),
        }
    }

    /// Puts somebody else's mark on it, or takes any mark away.
    pub fn mark(&mut self, cordon: Cordon) {
        self.cordon = cordon.clone();
        self.unsaid.push(Event::CordonObserved { node: self.id.clone(), cordon });
    }

    fn answer(&mut self, generation: u64, answer: OrderStatus) {
        self.answered = Some((generation, answer.clone()));
        self.unsaid.push(Event::OrderStatusReported {
            node: self.id.clone(),
            generation,
            status: answer,
        });
    }
}

pub(super) fn after(from: Timestamp, seconds: u64) -> Timestamp {
    let seconds = SignedDuration::from_secs(i64::try_from(seconds).unwrap_or(i64::MAX));
    from.checked_add(seconds).unwrap_or(Timestamp::MAX)
}
