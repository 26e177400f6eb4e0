//! The state that the health monitor publishes. It is immutable. Each publication replaces the
//! whole state.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use farrier_facts::decode::Kind;
use farrier_facts::node::Reading;
use farrier_fleet::health::{
    Coverage, Finding, GpuIdentity, GpuUuid, KernelEvent, Latest, Moment, Signal, Subject,
};
use jiff::Timestamp;
use tokio::sync::watch;

use crate::monitor::{CollectorState, CoverageLoss, ObservedGap, OwnedGpuProcess, SkippedCheck};
use crate::uplink::Urgent;

/// An open finding, as published.
#[derive(Debug, Clone, PartialEq)]
pub struct PublishedFinding {
    pub finding: Finding,
    /// `true` if the finding is on disk, so that it survives a crash.
    pub durable: bool,
}

/// Resource usage of the agent.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Cost {
    /// CPU time of the agent since it started.
    pub cpu_us: u64,
    /// CPU time of the child processes that call NVML.
    pub child_cpu_us: u64,
    /// Resident memory of the agent. `None` if unreadable.
    pub rss_bytes: Option<u64>,
    /// Resident memory of the child processes that call NVML.
    pub child_rss_bytes: Option<u64>,
}

/// State of the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct JournalState {
    /// Sequence number of the last record on disk.
    pub seq: u64,
    pub bytes: u64,
    /// Number of records that are not on disk yet.
    pub waiting: usize,
    /// Lines skipped at startup because they did not parse.
    pub damaged_lines: u64,
    /// Bytes of a torn line truncated at startup.
    pub torn_bytes: u64,
}

/// Signal values. Published states share them, because they are large.
#[derive(Debug, Clone, Default)]
pub struct Values {
    pub gpus: Vec<GpuIdentity>,
    /// GPUs that were listed before, but are not now.
    pub delisted: Vec<GpuIdentity>,
    /// The newest value of each signal, by subject.
    pub latest: Latest,
    /// GPU processes. `None` if unknown.
    pub processes: Option<Vec<OwnedGpuProcess>>,
    pub driver: Option<String>,
    /// Number of events by GPU and Xid. The key has no GPU if the GPU is unknown.
    pub xids: BTreeMap<(Option<GpuUuid>, u32), u64>,
    /// The last Xid of each GPU.
    pub last_xid: BTreeMap<GpuUuid, u32>,
}

/// Maximum number of distinct Xid counters per node. It limits the number of label values.
const XIDS_MAX: usize = 512;

impl Values {
    /// Counts an event if it is an Xid. If the GPU of the event is known, returns the GPU and the
    /// Xid. `gpu_at` finds the GPU at a PCI address.
    pub(crate) fn count_xid(
        &mut self,
        gpu_at: impl Fn(&str) -> Option<GpuUuid>,
        event: &KernelEvent,
    ) -> Option<(GpuUuid, u32)> {
        let (Some(xid), Kind::Xid) = (event.event.xid, event.event.kind) else { return None };
        let gpu = event.gpu().cloned().or_else(|| event.event.pci.as_deref().and_then(gpu_at));
        if let Some(gpu) = &gpu {
            self.last_xid.insert(gpu.clone(), xid);
        }
        let key = (gpu.clone(), xid);
        if self.xids.len() < XIDS_MAX || self.xids.contains_key(&key) {
            *self.xids.entry(key).or_default() += 1;
        }
        gpu.map(|gpu| (gpu, xid))
    }

    pub fn reading(&self, subject: &Subject, signal: Signal) -> Option<&Reading<f64>> {
        let values = self.latest.get(subject)?;
        values.iter().find(|value| value.signal == signal).map(|value| &value.reading)
    }
}

#[derive(Debug, Clone)]
pub struct State {
    pub at: Moment,
    pub hostname: String,
    /// The kernel's boot id.
    pub boot: String,
    /// When the agent started.
    pub started: Timestamp,
    pub up_ms: i64,
    pub findings: Vec<PublishedFinding>,
    /// Findings opened so far, by code.
    pub opened: BTreeMap<String, u64>,
    pub values: Arc<Values>,
    /// Rule coverage.
    pub coverage: Arc<Coverage>,
    pub collectors: Vec<CollectorState>,
    /// Sources that the agent cannot read.
    pub coverage_gaps: Vec<CoverageLoss>,
    /// Coverage gaps for the server, with their age. `None` while the agent starts.
    pub gaps: Option<Arc<[ObservedGap]>>,
    /// Checks that could not be evaluated. `None` before the first check.
    pub skipped_checks: Option<Arc<Vec<SkippedCheck>>>,
    pub journal: JournalState,
    /// Kernel log records read so far.
    pub kernel_records: u64,
    pub cost: Cost,
}

/// The health monitor publishes its state every second. If the state is older than this, the health
/// monitor is stuck.
const AGE_MAX_MS: i64 = 10_000;

impl State {
    /// Returns a coverage loss if this state is outdated. The health monitor then publishes no new
    /// state.
    pub fn staleness(&self, now_ms: i64) -> Option<CoverageLoss> {
        let age_ms = now_ms - self.at.steady_ms;
        let reason = || format!("the health monitor has not published for {} s", age_ms / 1000);
        (age_ms > AGE_MAX_MS)
            .then(|| CoverageLoss { source: "monitor".to_owned(), reason: reason() })
    }
}

/// The last published state. Readers never wait for the health monitor.
#[derive(Debug, Clone, Default)]
pub struct Published {
    current: Arc<RwLock<Option<Arc<State>>>>,
    /// Sequence number of the last record on disk, for readers of the journal.
    durable: Arc<watch::Sender<u64>>,
    urgent: Arc<watch::Sender<Urgent>>,
}

impl Published {
    /// The last published state. `None` if there is none yet.
    pub fn get(&self) -> Option<Arc<State>> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Subscribes to the sequence number of the last record on disk.
    pub fn durable(&self) -> watch::Receiver<u64> {
        self.durable.subscribe()
    }

    /// Subscribes to the newest urgent finding on disk.
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
