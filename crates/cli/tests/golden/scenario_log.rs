//! The log that [`crate::scenario`] writes: nodes join, report findings, get orders and report
//! order statuses. The server's own [`StateMachine`] decides.

use std::path::Path;

use farrier_facts::node::ReadError;
use farrier_fleet::fleet::coverage::{CoverageReport, GapNames, GapSource, NodeCoverageGap};
use farrier_fleet::fleet::event::{
    Cordon, Event, GpuInventory, JournalPosition, NodeCompliance, NodeInventory, OperatorRequest,
};
use farrier_fleet::fleet::identity::Actor;
use farrier_fleet::fleet::{Location, NodeId, NodePhase, OrderKind, OrderStatus};
use farrier_fleet::health::{Change, Finding, GpuUuid, Subject};
use farrier_server::log::sqlite::SqliteLog;
use farrier_server::state_machine::StateMachine;
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

/// A log with a clock of its own.
pub(crate) struct ScenarioLog {
    state_machine: StateMachine,
    pub(crate) now: Timestamp,
    /// Number of journal records so far, over all nodes.
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
        serial: None,
    };
    NodeInventory {
        boot: boot.to_owned(),
        agent: "0.1.0".to_owned(),
        kernel: Some("6.8.0-86-generic".to_owned()),
        driver: Some("580.95.05".to_owned()),
        cuda: Some("13.0".to_owned()),
        gpus: Some(vec![gpu]),
        frameworks: vec![("torch".to_owned(), "2.9.0".to_owned())],
        compliance: Some(NodeCompliance {
            tpm: Some(true),
            secure_boot: Some(false),
            volumes_encrypted: None,
            image_policy: Some("signed".to_owned()),
        }),
    }
}

/// A fault that an agent reports.
#[derive(Clone, Copy)]
pub(crate) enum Fault {
    /// The GPU fell off the bus; repaired by a reboot.
    Lost,
    /// The GPU firmware hangs; repaired by a reboot.
    Firmware,
    /// A memory error; repaired by a reset.
    Memory,
    /// A service is down; repaired by a restart.
    Service,
    /// A component needs replacement.
    Part,
    /// A network port is down.
    Network,
    /// An NVLink is down; an operator investigates.
    Link,
    /// A warning whose action is a reset.
    Warning,
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
                "Uncorrected memory errors.",
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
            Self::Warning => (
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
            "action_by": "rule", "evidence": [{ "check": { "text": "observed", "at": at } }],
            "first_seen": at, "last_seen": at, "count": 1, "clears": "after a repair",
        }))
        .unwrap()
    }
}

impl ScenarioLog {
    /// Creates the log in a data directory that has no log yet.
    pub(crate) fn create(dir: &Path, now: Timestamp) -> Self {
        farrier_server::run::prepare_folder(dir).unwrap();
        let log = SqliteLog::open(&farrier_server::run::log_path(dir)).unwrap();
        Self { state_machine: StateMachine::open(Box::new(log)).unwrap(), now, records: 0 }
    }

    /// Writes a snapshot; returns the number of the last entry.
    pub(crate) fn finish(&self) -> u64 {
        self.state_machine.write_snapshot().unwrap();
        self.state_machine.state().seq
    }

    pub(crate) fn commit(&mut self, actor: Actor, event: Event) {
        self.state_machine.commit(vec![(actor, event)], self.now).unwrap();
        self.advance(1);
    }

    /// Advances the clock without an event.
    pub(crate) fn advance(&mut self, seconds: i64) {
        self.now += SignedDuration::from_secs(seconds);
    }

    /// Commits an event of the server.
    pub(crate) fn append(&mut self, event: Event) {
        self.commit(Actor::Server, event);
    }

    /// Commits an event that its node reports.
    pub(crate) fn report(&mut self, event: Event) {
        let node = event.node().cloned().unwrap();
        self.commit(Actor::Node(node), event);
    }

    pub(crate) fn request(&mut self, request: OperatorRequest) {
        self.commit(Actor::User("ann".to_owned()), Event::OperatorRequested { request });
    }

    pub(crate) fn enrol(&mut self, name: &str, location: &str) {
        let mut parsed = Location::in_pool("train".parse().unwrap());
        for part in location.split_whitespace() {
            let (kind, value) = part.split_once(':').unwrap();
            match kind {
                "pool" => parsed.pool = value.parse().unwrap(),
                "tenant" => parsed.tenant = Some(value.parse().unwrap()),
                "site" => parsed.site = Some(value.parse().unwrap()),
                "rack" => parsed.rack = Some(value.parse().unwrap()),
                "leaf" => parsed.leaf = Some(value.parse().unwrap()),
                "nvlink" => parsed.nvlink = Some(value.parse().unwrap()),
                other => panic!("{other}"),
            }
        }
        self.append(Event::Enrolled { node: id(name), location: parsed });
    }

    pub(crate) fn report_inventory(&mut self, name: &str, boot: &str) {
        self.report(Event::InventoryReported { node: id(name), inventory: inventory(name, boot) });
    }

    /// Enrols a node and brings it into service.
    pub(crate) fn add_in_service(&mut self, name: &str, location: &str) {
        self.enrol(name, location);
        self.report_inventory(name, "boot-1");
        self.execute_orders(name);
        self.report(Event::CordonObserved { node: id(name), cordon: Cordon::None });
        assert_eq!(self.phase(name), NodePhase::InService, "{name}");
    }

    pub(crate) fn phase(&self, name: &str) -> NodePhase {
        self.state_machine.state().nodes[&id(name)].phase()
    }

    pub(crate) fn order(&self, name: &str) -> Option<OrderKind> {
        self.state_machine.state().nodes[&id(name)]
            .orders
            .pending()
            .map(|pending| pending.order.kind.clone())
    }

    pub(crate) fn report_status(&mut self, name: &str, status: OrderStatus) {
        let generation = self.state_machine.state().nodes[&id(name)].orders.generation();
        self.report(Event::OrderStatusReported { node: id(name), generation, status });
    }

    pub(crate) fn complete_order(&mut self, name: &str) {
        let order = self.order(name).unwrap_or_else(|| panic!("{name} has no order"));
        let evidence = format!("`{order}` completed");
        self.report_status(name, OrderStatus::Done { evidence });
        if order == OrderKind::Reboot {
            let boot = self.state_machine.state().nodes[&id(name)].orders.generation();
            self.report_inventory(name, &format!("boot-{boot}"));
        }
    }

    pub(crate) fn fail_order(&mut self, name: &str, reason: &str) {
        self.report_status(name, OrderStatus::Failed { reason: reason.to_owned() });
    }

    /// Completes orders until the node has none.
    pub(crate) fn execute_orders(&mut self, name: &str) {
        self.execute_orders_until(name, |_| false);
    }

    /// Completes orders until one matches. The matching order stays pending.
    pub(crate) fn execute_orders_until(
        &mut self,
        name: &str,
        stop_at: impl Fn(&OrderKind) -> bool,
    ) {
        for _ in 0..20 {
            match self.order(name) {
                Some(order) if !stop_at(&order) => self.complete_order(name),
                _ => return,
            }
        }
        panic!("{name} still has an order after 20 orders");
    }

    /// Reports findings, all in one journal record.
    pub(crate) fn report_findings(&mut self, name: &str, faults: &[Fault]) {
        let mut changes = Vec::new();
        for fault in faults {
            self.records += 1;
            changes.push(Change::Opened(fault.finding(name, self.records, self.now)));
        }
        let record = JournalPosition { journal: "j".to_owned(), number: self.records };
        self.report(Event::FindingsReported { node: id(name), record, changes });
    }

    pub(crate) fn clear_findings(&mut self, name: &str) {
        let open: Vec<Finding> =
            self.state_machine.state().nodes[&id(name)].findings().values().cloned().collect();
        for finding in open {
            self.records += 1;
            let record = JournalPosition { journal: "j".to_owned(), number: self.records };
            let mut cleared = serde_json::to_value(finding).unwrap();
            cleared["cleared"] = json!({ "at": self.now, "why": "not observed any more" });
            let changes = vec![Change::Cleared(serde_json::from_value(cleared).unwrap())];
            self.report(Event::FindingsReported { node: id(name), record, changes });
        }
    }

    /// Reports this many coverage gaps of the node's GPU, at most two.
    pub(crate) fn report_coverage(&mut self, name: &str, count: usize) {
        let gap = NodeCoverageGap {
            subject: Subject::Gpu(gpu(name)),
            source: GapSource::Signals(GapNames::new(["gpu.power_w".to_owned()])),
            cause: ReadError::nvml(999),
            since: self.now,
        };
        let gaps: Vec<_> = [gap.clone(), NodeCoverageGap { source: GapSource::Peers, ..gap }]
            .into_iter()
            .take(count)
            .collect();
        let coverage = CoverageReport { gaps, more: 0 };
        self.report(Event::CoverageReported { node: id(name), coverage });
    }

    pub(crate) fn hold(&mut self, name: &str, reason: &str) {
        self.request(OperatorRequest::Hold { node: id(name), reason: reason.to_owned() });
    }

    pub(crate) fn cordon_externally(&mut self, name: &str) {
        let cordon =
            Cordon::External { owner: "root".to_owned(), reason: "a new switch".to_owned() };
        self.report(Event::CordonObserved { node: id(name), cordon });
    }

    /// Brings a node into service, reports these findings, and drains it.
    pub(crate) fn add_drained(&mut self, name: &str, location: &str, faults: &[Fault]) {
        self.add_in_service(name, location);
        self.report_findings(name, faults);
        self.execute_orders_until(name, |order| {
            !matches!(order, OrderKind::Cordon | OrderKind::Drain { .. })
        });
        assert_eq!(self.phase(name), NodePhase::Repairing, "{name}");
    }
}
