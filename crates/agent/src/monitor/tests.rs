//! From collector messages to the journal and the published state.

mod clock;
mod coverage;
mod full_disk;
mod kernel_log;
mod nvml_xids;
mod repair;
mod rules;
mod sink;

use std::sync::atomic::{AtomicI64, Ordering};

use farrier_facts::decode::PciAddress;
use farrier_facts::node::Reading;
use farrier_fleet::health::{
    CoverageGap, Evidence, GpuIdentity, GpuUuid, NvmlXid, RuleOverride, Severity, Signal, Subject,
};
use farrier_hardware::kmsg::KernelLog;
use tempfile::TempDir;

use super::*;
use crate::orders::repair_note::RepairNote;
use crate::state::State as Snapshot;

const XID_48: &str = "NVRM: Xid (PCI:0000:1b:00): 48, pid=7, name=python3, DBE (double bit error)";

#[derive(Clone)]
struct FakeClock {
    steady_ms: Arc<AtomicI64>,
    wall_ms: Arc<AtomicI64>,
}

impl FakeClock {
    fn pass(&self, ms: i64) {
        self.steady_ms.fetch_add(ms, Ordering::Relaxed);
        self.wall_ms.fetch_add(ms, Ordering::Relaxed);
    }
}

impl Clock for FakeClock {
    fn now(&self) -> Moment {
        let wall = Timestamp::from_millisecond(self.wall_ms.load(Ordering::Relaxed)).unwrap();
        Moment { steady_ms: self.steady_ms.load(Ordering::Relaxed), wall }
    }

    fn cost(&self) -> (u64, Option<u64>) {
        (1000, Some(1 << 20))
    }
}

/// A node whose agent can be killed and restarted.
struct TestNode {
    folder: TempDir,
    clock: FakeClock,
    published: Published,
    config: Config,
    monitor: Option<HealthMonitor>,
    sink: std::path::PathBuf,
    /// `true` if another process executes orders.
    orders_elsewhere: bool,
}

impl TestNode {
    fn new() -> Self {
        let clock = FakeClock {
            steady_ms: Arc::new(AtomicI64::new(1_000_000)),
            wall_ms: Arc::new(AtomicI64::new(1_800_000_000_000)),
        };
        let folder = tempfile::tempdir().unwrap();
        let published = Published::default();
        let sink = folder.path().join("sink.jsonl");
        let config = Config::default();
        let orders_elsewhere = false;
        let mut node =
            Self { folder, clock, published, config, monitor: None, sink, orders_elsewhere };
        node.start();
        node
    }

    /// Starts the agent. Returns the record after which the kernel log reader resumes.
    fn start(&mut self) -> Option<u64> {
        let after = self.start_without_nvml();
        let gpu = GpuIdentity {
            uuid: GpuUuid("GPU-0".to_owned()),
            index: 0,
            minor: Some(0),
            pci: Some("0000:1b:00.0".to_owned()),
            name: Some("NVIDIA H100 80GB HBM3".to_owned()),
        };
        let inventory = Some(vec![gpu]);
        let collector = Some(Collector::NvmlFast);
        self.turn(
            vec![CollectorMessage::Report(CollectorReport {
                collector,
                inventory,
                ..CollectorReport::default()
            })],
            false,
        );
        after
    }

    /// Starts the agent while NVML does not answer.
    fn start_without_nvml(&mut self) -> Option<u64> {
        let dir = self.folder.path().join("state");
        self.config.sink.file = Some(self.sink.clone());
        let journal = Journal::open(&dir, self.config.retention).unwrap();
        let after = journal.durable().kernel_cursor("boot");
        let monitor = HealthMonitor::new(MonitorParts {
            clock: Box::new(self.clock.clone()),
            rules: Rules::configured(&self.config.rules).unwrap(),
            journal,
            inventory: BootInventory::open(&dir, "boot"),
            published: self.published.clone(),
            registry: Arc::default(),
            failpoint: Failpoint::default(),
            node: NodeIdentity {
                hostname: "node".to_owned(),
                boot: "boot".to_owned(),
                node_boot_time: None,
            },
            repair_watch: self.orders_elsewhere.then(|| RepairWatch::new(&self.config.state_dir)),
            config: self.config.clone(),
            facts: FactSet::embedded(),
        });
        self.monitor = Some(monitor);
        after
    }

    /// Ends the agent without a clean shutdown.
    fn kill(&mut self) {
        self.monitor = None;
    }

    fn turn(&mut self, messages: Vec<CollectorMessage>, tick: bool) {
        let now = self.clock.now();
        self.monitor.as_mut().unwrap().turn(now, messages.into_iter(), tick);
    }

    fn line(&mut self, seq: u64, text: &str) {
        let since_boot_us = u64::try_from(self.clock.now().steady_ms).unwrap() * 1000;
        let text = text.as_bytes().to_vec();
        self.turn(
            vec![CollectorMessage::Kernel(KernelLog::Record {
                seq,
                since_boot_us,
                level: 3,
                text,
            })],
            false,
        );
    }

    fn tick(&mut self) -> Arc<Snapshot> {
        self.clock.pass(1000);
        self.turn(Vec::new(), true);
        self.published.get().unwrap()
    }

    fn count(&self, code: &str) -> Option<u64> {
        let state = self.published.get()?;
        let open = state.findings.iter().find(|shown| shown.finding.code == code);
        open.map(|shown| shown.finding.count)
    }

    fn sunk(&self) -> Vec<String> {
        let text = std::fs::read_to_string(&self.sink).unwrap();
        text.lines().skip(1).map(str::to_owned).collect()
    }
}

fn signal(state: &Snapshot, signal: Signal) -> Option<Reading<f64>> {
    state.values.reading(&Subject::Agent, signal).cloned()
}
