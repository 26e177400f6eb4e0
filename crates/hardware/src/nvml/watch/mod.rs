//! Continuous NVML monitoring for as long as the agent runs.
//!
//! ```text
//! run ─ supervisor ─ request line: `fast` ──> farrier probe watch ─ serve ─ session ─> NVML
//!          │     <── response line: JSON ──────      │
//!          │                                         └ writes its current call into a shared file
//!          └─> ProbeEvent: reports, hangs, exits
//! ```
//!
//! The parent sends a request and waits until a deadline. If a child does not answer, the parent
//! kills it and does not wait for its exit, because a child that is stuck in the kernel does not
//! exit. A replacement starts after a back-off, or at once when the driver module appears. At most
//! two children are alive. The replacement skips the GPU of the hung call for a few minutes. The
//! parent reads the name of the call only after a failure, so publishing the name costs no wake-up.

mod call_timer;
mod current_call;
mod detailed;
pub(super) mod fields;
mod freshness;
mod gpm;
pub(super) mod links;
mod memory;
mod pause;
mod probe_child;
mod process;
mod processes;
mod reader;
mod serve;
mod session;
mod supervisor;
mod tiers;
mod wire;

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use farrier_facts::node::{Nvml, NvmlStatus, Reading};
use farrier_fleet::health::observation::{GpuIdentity, GpuUuid, Sample};
use serde::{Deserialize, Serialize};

pub use crate::tier::Tier;
pub(super) use current_call::DriverCall;
pub use detailed::{DetailedSample, ProcessUtilization};
pub use freshness::{is_stale, reading_interval};
pub use pause::{PauseGuard, ProbePause};
pub use serve::serve;

/// Why a process holds a context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProcessKind {
    Compute,
    /// OpenGL or Vulkan.
    Graphics,
    /// CUDA through the Multi-Process Service.
    Mps,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NvmlProcess {
    pub gpu: GpuUuid,
    pub pid: u32,
    pub kind: ProcessKind,
    /// GPU memory in use. Absent if the driver does not report it.
    pub used_bytes: Reading<u64>,
    /// The MIG instance, if the GPU is partitioned.
    pub gpu_instance: Option<u32>,
}

/// The result of one request.
#[derive(Debug, Clone, PartialEq)]
pub struct ProbeReport {
    pub tier: Tier,
    /// The GPUs, if this request counted them.
    pub inventory: Option<Vec<GpuIdentity>>,
    pub samples: Vec<Sample>,
    /// Processes on all GPUs, if requested. `gpu.processes` tells for which GPU the read failed.
    pub processes: Option<Vec<NvmlProcess>>,
    /// Xids reported by NVML.
    pub xids: Vec<(GpuUuid, u64)>,
    /// CPU time of the child since its last response.
    pub cpu_us: u64,
    /// The driver version. Present if `inventory` is present.
    pub driver: Option<String>,
    /// The newest CUDA version that the driver supports, in NVML's encoding. In interactive mode
    /// only, and only together with `inventory`.
    pub cuda: Option<u32>,
    /// Additional values, in interactive mode only.
    pub detailed: Vec<DetailedSample>,
    /// What a node check reads from NVML. Present in reports of the slow tier, except in
    /// interactive mode.
    pub node_check: Option<Box<Nvml>>,
}

/// How often NVML is polled, and for which values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pace {
    /// The agent's own rate.
    #[default]
    Agent,
    /// For interactive displays: fast values at this interval, processes and activity every few
    /// intervals, plus the values in `detailed`. Calls that take tens of milliseconds are left out.
    Interactive(Duration),
}

/// A request that takes longer than this is shown to the user. Reads take milliseconds, and the
/// driver of an idle GPU initialises in about two seconds.
const PATIENCE: Duration = Duration::from_secs(3);

/// Minimum of the medium interval in interactive mode, because each medium request also reads
/// kernel files per process and link.
const INTERACTIVE_MEDIUM_MIN: Duration = Duration::from_secs(2);

impl Pace {
    /// Interval between two requests.
    pub fn period(self, tier: Tier) -> Duration {
        match (self, tier) {
            (Self::Interactive(interval), Tier::Fast) => interval,
            (Self::Interactive(interval), Tier::Medium) => {
                (interval * 2).max(INTERACTIVE_MEDIUM_MIN)
            }
            (_, tier) => tier.period(),
        }
    }

    pub(crate) fn is_interactive(self) -> bool {
        matches!(self, Self::Interactive(_))
    }

    /// How long a request may take until [`ProbeEvent::Waiting`] is sent. `None` if it never is.
    pub(crate) fn patience(self) -> Option<Duration> {
        self.is_interactive().then_some(PATIENCE)
    }
}

impl ProbeReport {
    /// A report that the parent makes itself, without a response from the child.
    fn from_parent(samples: Vec<Sample>) -> Self {
        Self {
            tier: Tier::Fast,
            inventory: None,
            samples,
            processes: None,
            xids: Vec::new(),
            cpu_us: 0,
            driver: None,
            cuda: None,
            detailed: Vec::new(),
            node_check: None,
        }
    }
}

/// An event for the consumer of [`run`].
#[derive(Debug, Clone, PartialEq)]
pub enum ProbeEvent {
    /// A response, or the parent's own report on the node, which may mark GPU values as
    /// unreadable.
    Report(ProbeReport),
    /// A call has not returned yet, and its deadline has not passed. In interactive mode only. The
    /// next event of another kind ends the wait.
    Waiting {
        /// The call and its GPU.
        during: String,
        /// NVML index of the GPU that the call is about.
        gpu: Option<u32>,
        after: Duration,
    },
    /// A call has not returned.
    Hung {
        /// The call and its GPU.
        during: String,
        after: Duration,
        /// Abandoned children that are still alive, including the child of this call.
        stuck: u32,
    },
    /// The child exited or wrote malformed output.
    Died {
        /// Exit status and current call.
        why: String,
    },
    NoLibrary {
        /// The loader's message.
        why: String,
    },
    /// The library does not work with the loaded driver, or no driver is loaded.
    Refused { error: NvmlStatus },
    /// All tiers and all GPUs that are not skipped answer again. No child is stuck, except in a
    /// call about a skipped GPU.
    Recovered,
}

/// Default of [`WatchSettings::start_deadline`].
pub const START_DEADLINE: Duration = Duration::from_secs(30);

pub struct WatchSettings {
    /// Builds the child's command. The command must run the parent's own executable, because both
    /// ends of the protocol have to be from one build.
    pub command: Box<dyn FnMut() -> Command + Send>,
    /// GPUs already known. They are needed because a GPU that cannot be opened does not report its
    /// identity.
    pub known: Vec<GpuIdentity>,
    /// Timeout of a response.
    pub deadline: Duration,
    /// Timeout of loading, initialisation and the first inventory.
    pub start_deadline: Duration,
    /// How long to skip a GPU after a call about it hung, so that the others can be monitored.
    pub avoid: Duration,
    /// A path that exists while the driver module is loaded. When the path appears, NVML is retried
    /// at once, without waiting for the end of the back-off.
    pub module: Option<PathBuf>,
    /// Lets other tasks pause the probe.
    pub pause: Option<Arc<ProbePause>>,
    pub pace: Pace,
}

impl WatchSettings {
    /// Default deadlines.
    pub fn new(command: impl FnMut() -> Command + Send + 'static) -> Self {
        Self {
            command: Box::new(command),
            known: Vec::new(),
            deadline: Duration::from_secs(5),
            start_deadline: START_DEADLINE,
            avoid: Duration::from_secs(300),
            module: None,
            pause: None,
            pace: Pace::Agent,
        }
    }
}

/// Maximum delay until a stop request is noticed.
const STOP_POLL: Duration = Duration::from_millis(500);

/// Runs the watch on a clock supplied by the caller, so that a test simulates hours in seconds.
pub struct Watcher {
    supervisor: supervisor::Supervisor<process::ProcessSpawner>,
    stop: AtomicBool,
}

impl Watcher {
    /// Starts no child yet.
    pub fn new(settings: WatchSettings) -> Self {
        Self { supervisor: supervisor(settings), stop: AtomicBool::new(false) }
    }

    /// Takes all steps that are due up to `elapsed` after the start.
    pub fn run_until(&mut self, elapsed: Duration) -> Vec<ProbeEvent> {
        let mut events = Vec::new();
        loop {
            let step = self.supervisor.step(elapsed, &self.stop);
            events.extend(step.events);
            if step.next_at > elapsed {
                return events;
            }
        }
    }

    /// Stops the child.
    pub fn shutdown(self) {
        self.supervisor.shutdown();
    }
}

/// Runs until `stop` is set. It blocks, so it needs its own thread.
pub fn run(settings: WatchSettings, stop: &AtomicBool, sink: &mut dyn FnMut(ProbeEvent)) {
    let started = Instant::now();
    let mut module = Module::new(settings.module.clone());
    let pause = settings.pause.clone();
    let is_paused = || pause.as_ref().is_some_and(|pause| pause.is_requested());
    let mut supervisor = supervisor(settings);
    while !stop.load(Ordering::Relaxed) {
        if let Some(pause) = pause.as_ref().filter(|pause| pause.is_requested()) {
            pause.hold(supervisor.stop_child(started.elapsed()), STOP_POLL);
            supervisor.retry_now(started.elapsed());
            continue;
        }
        let step = supervisor.step(started.elapsed(), stop);
        step.events.into_iter().for_each(&mut *sink);
        // A step sends one request. The next may be due immediately.
        while !stop.load(Ordering::Relaxed) && !is_paused() {
            let left = step.next_at.saturating_sub(started.elapsed());
            if left.is_zero() || supervisor.wait_for_exit(left.min(STOP_POLL)) {
                break;
            }
            // While a child runs there is no back-off to cut short.
            if supervisor.is_backing_off() && module.has_appeared() {
                supervisor.retry_now(started.elapsed());
                break;
            }
        }
    }
    supervisor.shutdown();
}

/// The last observed state of the driver module.
struct Module {
    path: Option<PathBuf>,
    exists: bool,
}

impl Module {
    fn new(path: Option<PathBuf>) -> Self {
        let exists = path.as_ref().is_some_and(|path| path.exists());
        Self { path, exists }
    }

    /// Whether the module is loaded now and was not at the last check.
    fn has_appeared(&mut self) -> bool {
        let existed = self.exists;
        self.exists = self.path.as_ref().is_some_and(|path| path.exists());
        self.exists && !existed
    }
}

fn supervisor(settings: WatchSettings) -> supervisor::Supervisor<process::ProcessSpawner> {
    let deadlines = supervisor::Deadlines {
        answer: settings.deadline,
        start: settings.start_deadline,
        avoid: settings.avoid,
        pace: settings.pace,
    };
    let children = process::ProcessSpawner { command: settings.command };
    supervisor::Supervisor::new(children, deadlines, settings.known)
}
