//! What is shown, as it is now: the same whoever told it.

use std::collections::BTreeMap;

use farrier_agent::status::Verdict;
use farrier_facts::node::{ReadError, Reading};
use farrier_fleet::health::{Action, Finding, GpuIdentity, GpuUuid, Severity, Signal};
use jiff::Timestamp;
use serde::Serialize;

use super::limit::{self, Limit};

/// The version of the document that `--output json` prints. What is added later does not change it.
pub(super) const VERSION: u32 = 1;

/// Who tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Teller {
    /// NVML, asked by a child of this process.
    Nvml,
    /// The agent of this node.
    Agent,
}

/// Nobody tells anything any more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Silence {
    /// Since when.
    pub(super) since: Timestamp,
    /// Why.
    pub(super) why: String,
    /// What to do.
    pub(super) hint: Option<String>,
}

/// A node.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct NodeNow {
    pub(super) v: u32,
    pub(super) teller: Teller,
    pub(super) node: Option<String>,
    /// When values were last told.
    pub(super) at: Timestamp,
    /// What the agent makes of it.
    pub(super) verdict: Option<Verdict>,
    pub(super) driver: Option<String>,
    pub(super) cuda: Option<String>,
    pub(super) silence: Option<Silence>,
    pub(super) host: HostNow,
    pub(super) gpus: Vec<GpuNow>,
    /// None: not known.
    pub(super) processes: Option<Vec<ProcessNow>>,
    /// None: nobody looks for them.
    pub(super) findings: Option<Vec<FindingNow>>,
    pub(super) jobs: Vec<JobNow>,
    /// What the agent does not see.
    pub(super) not_seen: Vec<String>,
}

/// The host.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct HostNow {
    /// Share of all processors' time that was used.
    pub(super) cpu_ratio: Reading<f64>,
    /// Over one, five and fifteen minutes.
    pub(super) load: Reading<[f64; 3]>,
    pub(super) memory_total_bytes: Reading<f64>,
    pub(super) memory_used_bytes: Reading<f64>,
    pub(super) swap_used_bytes: Reading<f64>,
}

impl Default for HostNow {
    fn default() -> Self {
        let unread = || Reading::Unreadable(ReadError::NotReadYet);
        Self {
            cpu_ratio: unread(),
            load: Reading::Unreadable(ReadError::NotReadYet),
            memory_total_bytes: unread(),
            memory_used_bytes: unread(),
            swap_used_bytes: unread(),
        }
    }
}

/// A GPU.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct GpuNow {
    pub(super) identity: GpuIdentity,
    /// By signal; what was never told is not there.
    pub(super) readings: BTreeMap<Signal, Reading<f64>>,
    /// Links of NVLink that are up, and that are not.
    pub(super) links: Links,
    pub(super) performance_state: Reading<u32>,
    pub(super) fan_percent: Reading<u32>,
    /// NVML's number: 0 default, 2 prohibited, 3 one process alone.
    pub(super) compute_mode: Reading<u32>,
    /// 1 where a display is driven by it.
    pub(super) display: Reading<u32>,
    /// The worst of its faults, as the agent has them.
    pub(super) worst: Option<Severity>,
    /// What holds it back.
    pub(super) limit: Limit,
}

/// Links of NVLink of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub(super) struct Links {
    /// Whether anybody counted them.
    pub(super) is_known: bool,
    pub(super) up: u32,
    pub(super) down: u32,
    /// What all that are up carry in each direction; none where one of them does not tell.
    pub(super) bytes_per_s: Option<f64>,
}

/// What has not been told.
static NOT_TOLD: std::sync::LazyLock<Reading<f64>> = std::sync::LazyLock::new(|| {
    Reading::Unreadable(ReadError::unavailable("it has not been told"))
});

impl GpuNow {
    pub(super) fn new(identity: GpuIdentity) -> Self {
        let unread = || Reading::Unreadable(ReadError::unavailable("it has not been told"));
        Self {
            identity,
            readings: BTreeMap::new(),
            links: Links::default(),
            performance_state: unread(),
            fan_percent: unread(),
            compute_mode: unread(),
            display: unread(),
            worst: None,
            limit: Limit::unknown("nothing was read yet"),
        }
    }

    pub(super) fn reading(&self, signal: Signal) -> &Reading<f64> {
        self.readings.get(&signal).unwrap_or(&NOT_TOLD)
    }

    pub(super) fn value(&self, signal: Signal) -> Option<f64> {
        self.reading(signal).value().copied()
    }

    /// Share of multiprocessors at work where the part measures it and it was measured, else share of time in which a
    /// kernel ran.
    pub(super) fn busy(&self) -> &Reading<f64> {
        match self.reading(Signal::GpuSmActive) {
            measured @ Reading::Value(_) => measured,
            _ => self.reading(Signal::GpuUtilisation),
        }
    }

    /// Of a GPU that does not answer nothing is known, also not what is asked for seldom.
    fn forget_what_is_old(&mut self) {
        if let Reading::Unreadable(why) = self.reading(Signal::GpuTemperature) {
            let why = why.clone();
            for reading in [
                &mut self.performance_state,
                &mut self.fan_percent,
                &mut self.compute_mode,
                &mut self.display,
            ] {
                *reading = Reading::Unreadable(why.clone());
            }
            self.links = Links::default();
        }
    }

    /// Both directions together.
    pub(super) fn sum(&self, one: Signal, other: Signal) -> Reading<f64> {
        let (one, other) = (self.reading(one).clone(), self.reading(other).clone());
        one.and_then(|one| other.map(|other| one + other))
    }

    pub(super) fn nvlink(&self) -> Reading<f64> {
        self.sum(Signal::GpuNvlinkTransmit, Signal::GpuNvlinkReceive)
    }

    pub(super) fn pcie(&self) -> Reading<f64> {
        self.sum(Signal::GpuPcieTransmit, Signal::GpuPcieReceive)
    }
}

/// What a process holds a context for, in a letter: compute, graphics, through MPS.
pub(super) type ProcessLetter = char;

/// A process on a GPU.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct ProcessNow {
    pub(super) gpu: GpuUuid,
    pub(super) pid: u32,
    pub(super) kind: Option<ProcessLetter>,
    /// The instance of a partitioned GPU.
    pub(super) instance: Option<u32>,
    pub(super) user: Option<String>,
    /// The job, pod, container or unit that it belongs to.
    pub(super) job: Option<String>,
    pub(super) command: Option<String>,
    pub(super) memory_bytes: Option<u64>,
    /// Share of the GPU's time in which a kernel of it ran.
    pub(super) sm_ratio: Option<f64>,
    /// Share of the GPU's time in which it read or wrote memory.
    pub(super) memory_ratio: Option<f64>,
    /// Share of one processor.
    pub(super) cpu_ratio: Option<f64>,
    pub(super) host_memory_bytes: Option<u64>,
    pub(super) elapsed_s: Option<u64>,
}

/// An open finding.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct FindingNow {
    /// The GPU that it is about, where it is about one.
    pub(super) gpu: Option<GpuUuid>,
    /// What it is about, for people.
    pub(super) on: String,
    pub(super) code: String,
    pub(super) severity: Severity,
    pub(super) text: String,
    pub(super) action: Action,
    pub(super) since: Timestamp,
}

impl FindingNow {
    /// A finding, and what it is about in words.
    pub(super) fn of(finding: &Finding, on: String) -> Self {
        Self {
            gpu: finding.subject.gpu().cloned(),
            on,
            code: finding.code.clone(),
            severity: finding.severity,
            text: finding.text.clone(),
            action: finding.action,
            since: finding.first_seen,
        }
    }
}

/// A job that speaks to the agent.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct JobNow {
    pub(super) job: String,
    pub(super) user: Option<String>,
    pub(super) ranks: u32,
    pub(super) phase: Option<String>,
    pub(super) step: Option<u64>,
    pub(super) step_s: Option<f64>,
    pub(super) tokens_per_s: Option<f64>,
    pub(super) loss: Option<f64>,
}

impl NodeNow {
    pub(super) fn new(teller: Teller, at: Timestamp) -> Self {
        Self {
            v: VERSION,
            teller,
            node: None,
            at,
            verdict: None,
            driver: None,
            cuda: None,
            silence: None,
            host: HostNow::default(),
            gpus: Vec::new(),
            processes: None,
            findings: None,
            jobs: Vec::new(),
            not_seen: Vec::new(),
        }
    }

    /// With what holds each GPU back.
    pub(super) fn judged(mut self) -> Self {
        for gpu in &mut self.gpus {
            let held = self
                .processes
                .as_ref()
                .map(|all| all.iter().any(|process| process.gpu == gpu.identity.uuid));
            gpu.limit = limit::of(gpu, held);
            gpu.forget_what_is_old();
        }
        self
    }

    /// How many GPUs there are, in words.
    pub(super) fn count(&self) -> String {
        match self.gpus.len() {
            0 if self.silence.is_some() => "GPUs not known".to_owned(),
            1 => "1 GPU".to_owned(),
            count => format!("{count} GPUs"),
        }
    }

    /// As people call a GPU.
    pub(super) fn gpu_name(&self, uuid: &GpuUuid) -> String {
        let found = self.gpus.iter().find(|gpu| gpu.identity.uuid == *uuid);
        found.map_or_else(|| uuid.0.clone(), |gpu| gpu.identity.index.to_string())
    }
}
