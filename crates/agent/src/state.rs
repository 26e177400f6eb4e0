//! What the brain shows to everybody else: a snapshot that is replaced as a whole.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use farrier_facts::decode::Kind;
use farrier_facts::node::Reading;
use farrier_fleet::health::{
    Coverage, Finding, GpuIdentity, GpuUuid, KernelEvent, Latest, Moment, Signal, Subject,
};
use jiff::Timestamp;
use tokio::sync::watch;

use crate::monitor::{CollectorState, CoverageLoss, Held, SkippedCheck};
use crate::uplink::Urgent;

/// A finding, and whether it is on disk.
#[derive(Debug, Clone, PartialEq)]
pub struct Shown {
    /// The finding.
    pub finding: Finding,
    /// Whether it would be there after a crash.
    pub durable: bool,
}

/// What the agent costs.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Cost {
    /// Processor time of the agent since it started.
    pub cpu_us: u64,
    /// Processor time of its children.
    pub child_cpu_us: u64,
    /// Memory of the agent, where it can be read.
    pub rss_bytes: Option<u64>,
    /// Memory of its children.
    pub child_rss_bytes: Option<u64>,
}

/// The journal as status shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct JournalState {
    /// The last record on disk.
    pub seq: u64,
    /// Bytes on disk.
    pub bytes: u64,
    /// Records that wait for the disk.
    pub waiting: usize,
    /// Lines that were no records when the agent started.
    pub damaged_lines: u64,
    /// Bytes of a torn line that were cut then.
    pub torn_bytes: u64,
}

/// Values of signals: what is large is shared between snapshots.
#[derive(Debug, Clone, Default)]
pub struct Values {
    pub gpus: Vec<GpuIdentity>,
    /// Those that were listed once and are not now.
    pub gone: Vec<GpuIdentity>,
    /// The newest value of each signal, by subject.
    pub latest: Latest,
    /// Who holds the GPUs; none: not known.
    pub processes: Option<Vec<Held>>,
    pub driver: Option<String>,
    /// Xids so far, by GPU.
    pub xids: BTreeMap<(Option<GpuUuid>, u32), u64>,
    /// The last Xid of each GPU.
    pub last_xid: BTreeMap<GpuUuid, u32>,
}

/// Xids that are counted apart, per node: labels are bounded.
const XIDS_MAX: usize = 512;

impl Values {
    /// Counts an event that is an Xid; gives it where it is known on which GPU it is. `at` says which stands at an
    /// address.
    pub(crate) fn count_xid(
        &mut self,
        at: impl Fn(&str) -> Option<GpuUuid>,
        seen: &KernelEvent,
    ) -> Option<(GpuUuid, u32)> {
        let (Some(xid), Kind::Xid) = (seen.event.xid, seen.event.kind) else { return None };
        let gpu = seen.gpu().cloned().or_else(|| seen.event.pci.as_deref().and_then(at));
        if let Some(gpu) = &gpu {
            self.last_xid.insert(gpu.clone(), xid);
        }
        let key = (gpu.clone(), xid);
        if self.xids.len() < XIDS_MAX || self.xids.contains_key(&key) {
            *self.xids.entry(key).or_default() += 1;
        }
        gpu.map(|gpu| (gpu, xid))
    }

    /// The newest value of a signal.
    pub fn reading(&self, subject: &Subject, signal: Signal) -> Option<&Reading<f64>> {
        let values = self.latest.get(subject)?;
        values.iter().find(|(found, _)| *found == signal).map(|(_, reading)| reading)
    }
}

/// A snapshot.
#[derive(Debug, Clone)]
pub struct State {
    /// When it was made.
    pub at: Moment,
    /// The node's name.
    pub hostname: String,
    /// The boot.
    pub boot: String,
    /// When the agent started.
    pub started: Timestamp,
    /// For how long it has run.
    pub up_ms: i64,
    /// Open findings.
    pub findings: Vec<Shown>,
    /// Findings opened so far, by code.
    pub opened: BTreeMap<String, u64>,
    /// Values.
    pub values: Arc<Values>,
    /// What rules see and do not see.
    pub coverage: Arc<Coverage>,
    /// Who looks.
    pub collectors: Vec<CollectorState>,
    /// What is not seen.
    pub blind: Vec<CoverageLoss>,
    /// Items of the node's check that could not be judged; none: it was not checked yet.
    pub unseen: Option<Arc<Vec<SkippedCheck>>>,
    /// The journal.
    pub journal: JournalState,
    /// Records of the kernel log so far.
    pub kernel_records: u64,
    /// What the agent costs.
    pub cost: Cost,
}

/// A snapshot is made every second; one that is older than this was not.
const AGE_MAX_MS: i64 = 10_000;

impl State {
    /// That the brain makes no new snapshots, where it makes none: whatever this one says is not so any more.
    pub fn standstill(&self, now_ms: i64) -> Option<CoverageLoss> {
        let age_ms = now_ms - self.at.steady_ms;
        let why = || format!("the agent's brain has stood still for {} s", age_ms / 1000);
        (age_ms > AGE_MAX_MS).then(|| CoverageLoss { what: "brain".to_owned(), why: why() })
    }
}

/// Where the newest snapshot is. Readers never wait for the brain.
#[derive(Debug, Clone, Default)]
pub struct Published {
    current: Arc<RwLock<Option<Arc<State>>>>,
    /// The last record on disk, for whoever follows the journal.
    durable: Arc<watch::Sender<u64>>,
    urgent: Arc<watch::Sender<Urgent>>,
}

impl Published {
    /// The newest; none before the first.
    pub fn get(&self) -> Option<Arc<State>> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The last record on disk, and word whenever there is another.
    pub fn durable(&self) -> watch::Receiver<u64> {
        self.durable.subscribe()
    }

    /// The newest urgent finding on disk, and word whenever there is another.
    pub fn urgent(&self) -> watch::Receiver<Urgent> {
        self.urgent.subscribe()
    }

    pub(crate) fn set(&self, state: State) {
        let seq = state.journal.seq;
        self.durable.send_if_modified(|last| std::mem::replace(last, seq) != seq);
        self.urgent.send_if_modified(|urgent| urgent.update(&state.findings, seq));
        let state = Some(Arc::new(state));
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = state;
    }
}
