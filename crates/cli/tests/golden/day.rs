//! What can happen in [`crate::scenario`]: nodes join, are found faulty, get orders and answer. The server's own `Core` decides.

use std::path::Path;

use farrier_fleet::fleet::event::{
    Cordon, Event, GpuInventory, NodeInventory, OperatorRequest, Record,
};
use farrier_fleet::fleet::identity::Actor;
use farrier_fleet::fleet::{Location, NodeId, NodePhase, OrderKind, OrderStatus};
use farrier_fleet::health::{Change, Finding, GpuUuid};
use farrier_server::log::sqlite::SqliteLog;
use farrier_server::state_machine::StateMachine;
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

/// The log and its clock.
pub(crate) struct Day {
    core: StateMachine,
    pub(crate) now: Timestamp,
    /// Records of the nodes' journals.
    records: u64,
}

pub(crate) fn id(name: &str) -> NodeId {
    name.parse().unwrap()
}

fn gpu(name: &str) -> GpuUuid {
    GpuUuid(format!("GPU-{name}"))
}

pub(crate) fn inventory(name: &str, boot: &str) -> NodeInventory {
    let gpu = GpuInventory {
        uuid: gpu(name),
        name: Some("NVIDIA H200".to_owned()),
        index: Some(3),
        pci: Some("0000:3b:00.0".to_owned()),
    };
    NodeInventory {
        boot: boot.to_owned(),
        agent: "0.1.0".to_owned(),
        kernel: Some("6.8.0-86-generic".to_owned()),
        driver: Some("580.95.05".to_owned()),
        cuda: Some("13.0".to_owned()),
        gpus: Some(vec![gpu]),
        frameworks: vec![("torch".to_owned(), "2.9.0".to_owned())],
    }
}

/// What an agent may find.
#[derive(Clone, Copy)]
pub(crate) enum Fault {
    /// The GPU fell off the bus: a reboot.
    Lost,
    /// The GPU's firmware hangs: a reboot, too.
    Firmware,
    /// An error of memory that a reset mends.
    Memory,
    /// A service that is down.
    Service,
    /// A part that must be replaced.
    Part,
    /// A port of a network adapter.
    Network,
    /// A link, which a person looks at.
    Link,
    /// A reset would be good.
    Doubt,
    /// Advice.
    Advice,
}

impl Fault {
    pub(crate) fn finding(self, name: &str, number: u64, at: Timestamp) -> Finding {
        let on_gpu = json!({ "gpu": gpu(name) });
        let node = json!("node");
        let nic = json!({ "nic": { "device": "mlx5_0", "port": 1 } });
        let link = json!({ "link": { "gpu": gpu(name), "link": 4 } });
        let (code, detail, subject, severity, action, text) = match self {
            Self::Lost => (
                "gpu.xid",
                "Xid 79",
                on_gpu,
                "fatal",
                "reboot-node",
                "The GPU has fallen off the bus.",
            ),
            Self::Firmware => (
                "gpu.xid",
                "Xid 119",
                on_gpu,
                "critical",
                "reboot-node",
                "The GPU's firmware does not answer.",
            ),
            Self::Memory => (
                "gpu.ecc-uncorrected",
                "",
                on_gpu,
                "critical",
                "reset-gpu",
                "Memory errors that were not corrected.",
            ),
            Self::Service => (
                "host.fabric-manager",
                "",
                node,
                "critical",
                "investigate",
                "The fabric manager does not run.",
            ),
            Self::Part => (
                "gpu.remap-failed",
                "",
                on_gpu,
                "critical",
                "drain-and-replace",
                "Rows could not be remapped.",
            ),
            Self::Network => ("nic.down", "", nic, "critical", "investigate", "The port is down."),
            Self::Link => ("link.down", "", link, "critical", "investigate", "The NVLink is down."),
            Self::Doubt => (
                "gpu.ecc-corrected-rate",
                "",
                on_gpu,
                "warning",
                "reset-gpu",
                "Many corrected memory errors.",
            ),
            Self::Advice => {
                ("gpu.clocks", "", on_gpu, "info", "ignore", "Clocks are lower than they could be.")
            }
        };
        let kind = if matches!(self, Self::Advice) { "advice" } else { "fault" };
        serde_json::from_value(json!({
            "id": number, "code": code, "detail": detail, "subject": subject, "kind": kind,
            "severity": severity, "text": text, "action": action, "rule_action": action,
            "action_by": "rule", "evidence": [{ "check": { "text": "seen", "at": at } }],
            "first_seen": at, "last_seen": at, "count": 1, "clears": "when it was mended",
        }))
        .unwrap()
    }
}

impl Day {
    /// The day begins, in a server's folder that has no log yet.
    pub(crate) fn begin(dir: &Path, now: Timestamp) -> Self {
        farrier_server::run::prepare_folder(dir).unwrap();
        let log = SqliteLog::open(&farrier_server::run::log_path(dir)).unwrap();
        Self { core: StateMachine::open(Box::new(log)).unwrap(), now, records: 0 }
    }

    /// It is over; gives the number of the last entry.
    pub(crate) fn end(&self) -> u64 {
        self.core.write_snapshot().unwrap();
        self.core.state().seq
    }

    pub(crate) fn commit(&mut self, by: Actor, event: Event) {
        self.core.commit(vec![(by, event)], self.now).unwrap();
        self.wait(1);
    }

    /// Only the clock moves.
    pub(crate) fn wait(&mut self, seconds: i64) {
        self.now += SignedDuration::from_secs(seconds);
    }

    pub(crate) fn server(&mut self, event: Event) {
        self.commit(Actor::Server, event);
    }

    pub(crate) fn said(&mut self, event: Event) {
        let node = event.node().cloned().unwrap();
        self.commit(Actor::Node(node), event);
    }

    pub(crate) fn ask(&mut self, what: OperatorRequest) {
        self.commit(Actor::User("ann".to_owned()), Event::OperatorRequested { request: what });
    }

    pub(crate) fn enrol(&mut self, name: &str, place: &str) {
        let mut all: Location = Location::in_pool("train".parse().unwrap());
        for part in place.split_whitespace() {
            let (kind, value) = part.split_once(':').unwrap();
            match kind {
                "pool" => all.pool = value.parse().unwrap(),
                "tenant" => all.tenant = Some(value.parse().unwrap()),
                "site" => all.site = Some(value.parse().unwrap()),
                "rack" => all.rack = Some(value.parse().unwrap()),
                "leaf" => all.leaf = Some(value.parse().unwrap()),
                "nvlink" => all.nvlink = Some(value.parse().unwrap()),
                other => panic!("{other}"),
            }
        }
        self.server(Event::Enrolled { node: id(name), location: all });
    }

    pub(crate) fn seen(&mut self, name: &str, boot: &str) {
        self.said(Event::InventoryReported { node: id(name), inventory: inventory(name, boot) });
    }

    /// A node that joined, and passed all that it was asked for.
    pub(crate) fn serving(&mut self, name: &str, place: &str) {
        self.enrol(name, place);
        self.seen(name, "boot-1");
        self.obey(name);
        self.said(Event::CordonObserved { node: id(name), cordon: Cordon::None });
        assert_eq!(self.phase(name), NodePhase::InService, "{name}");
    }

    pub(crate) fn phase(&self, name: &str) -> NodePhase {
        self.core.state().nodes[&id(name)].phase()
    }

    pub(crate) fn order(&self, name: &str) -> Option<OrderKind> {
        self.core.state().nodes[&id(name)].orders.pending().map(|it| it.order.kind.clone())
    }

    pub(crate) fn answer(&mut self, name: &str, answer: OrderStatus) {
        let generation = self.core.state().nodes[&id(name)].orders.generation();
        self.said(Event::OrderStatusReported { node: id(name), generation, status: answer });
    }

    pub(crate) fn done(&mut self, name: &str) {
        let what = self.order(name).unwrap_or_else(|| panic!("{name} has no order"));
        let evidence = format!("`{what}` was carried out");
        self.answer(name, OrderStatus::Done { evidence });
        if what == OrderKind::Reboot {
            let boot = self.core.state().nodes[&id(name)].orders.generation();
            self.seen(name, &format!("boot-{boot}"));
        }
    }

    pub(crate) fn failed(&mut self, name: &str, why: &str) {
        self.answer(name, OrderStatus::Failed { reason: why.to_owned() });
    }

    /// Carries out every order.
    pub(crate) fn obey(&mut self, name: &str) {
        self.obey_until(name, |_| false);
    }

    /// Carries out orders until one is like that, which is not answered.
    pub(crate) fn obey_until(&mut self, name: &str, is_it: impl Fn(&OrderKind) -> bool) {
        for _ in 0..20 {
            match self.order(name) {
                Some(what) if !is_it(&what) => self.done(name),
                _ => return,
            }
        }
        panic!("{name} is ordered about for ever");
    }

    /// Findings of one report.
    pub(crate) fn find(&mut self, name: &str, faults: &[Fault]) {
        let mut changes = Vec::new();
        for fault in faults {
            self.records += 1;
            changes.push(Change::Opened(fault.finding(name, self.records, self.now)));
        }
        let record = Record { journal: "j".to_owned(), number: self.records };
        self.said(Event::FindingsReported { node: id(name), record, changes });
    }

    /// All findings of a node are over.
    pub(crate) fn clear(&mut self, name: &str) {
        let open: Vec<Finding> =
            self.core.state().nodes[&id(name)].findings().values().cloned().collect();
        for finding in open {
            self.records += 1;
            let record = Record { journal: "j".to_owned(), number: self.records };
            let mut cleared = serde_json::to_value(finding).unwrap();
            cleared["cleared"] = json!({ "at": self.now, "why": "it is not seen any more" });
            let changes = vec![Change::Cleared(serde_json::from_value(cleared).unwrap())];
            self.said(Event::FindingsReported { node: id(name), record, changes });
        }
    }

    pub(crate) fn hold(&mut self, name: &str, reason: &str) {
        self.ask(OperatorRequest::Hold { node: id(name), reason: reason.to_owned() });
    }

    pub(crate) fn cordoned_by_others(&mut self, name: &str) {
        let cordon =
            Cordon::External { owner: "root".to_owned(), reason: "a new switch".to_owned() };
        self.said(Event::CordonObserved { node: id(name), cordon });
    }

    /// In service, then with these findings, and emptied.
    pub(crate) fn drained(&mut self, name: &str, place: &str, faults: &[Fault]) {
        self.serving(name, place);
        self.find(name, faults);
        self.obey_until(name, |what| !matches!(what, OrderKind::Cordon | OrderKind::Drain { .. }));
        assert_eq!(self.phase(name), NodePhase::Repairing, "{name}");
    }
}
