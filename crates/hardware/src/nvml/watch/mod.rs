//! NVML, watched for as long as the agent runs.
//!
//! ```text
//! run ─ supervisor ─ one line: `fast` ─────> farrier probe watch ─ serve ─ session ─> libnvidia-ml.so.1
//!          │     <── one line: JSON ────────        │
//!          │                                        └ names the call that comes next in a file of 64 bytes
//!          └─> ProbeSaid: reports, hangs, deaths
//! ```
//!
//! The parent asks and waits for no longer than a deadline. A child that does not answer is killed and left
//! behind: one that is stuck in the kernel does not go. A new one is started after a pause, or at once when the driver's
//! module appears, and no more than two
//! are ever alive. It leaves the GPU alone that the call was about, for some minutes. The name of the call is read only when something went wrong, so that it costs no wake-up.

mod child;
mod close;
pub(super) mod fields;
mod gpm;
mod hold;
pub(super) mod links;
mod memory;
mod note;
mod prober;
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

use farrier_facts::node::{NvmlStatus, Reading};
use farrier_fleet::health::observation::{GpuIdentity, GpuUuid, Sample};
use serde::{Deserialize, Serialize};

pub use crate::tier::Tier;
pub use close::{CloseLook, ProcessShare};
pub use hold::{Held, Hold};
pub(super) use note::DriverCall;
pub use serve::serve;

/// What a process holds a context for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProcessKind {
    /// CUDA.
    Compute,
    /// OpenGL, Vulkan.
    Graphics,
    /// CUDA through the multi-process service.
    Mps,
}

/// A process with a context on a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuProcess {
    /// The GPU.
    pub gpu: GpuUuid,
    /// Its number.
    pub pid: u32,
    /// What it holds the context for.
    pub kind: ProcessKind,
    /// Memory that it uses there; absent where the driver does not say.
    pub used_bytes: Reading<u64>,
    /// The instance of a partitioned GPU.
    pub gpu_instance: Option<u32>,
}

/// What an answered request came to.
#[derive(Debug, Clone, PartialEq)]
pub struct ProbeReport {
    /// Which request.
    pub tier: Tier,
    /// The GPUs, where they were counted anew.
    pub inventory: Option<Vec<GpuIdentity>>,
    /// Values.
    pub samples: Vec<Sample>,
    /// What runs on all GPUs, where that was asked. `gpu.processes` says of which GPU it could not be read.
    pub processes: Option<Vec<GpuProcess>>,
    /// Xids that NVML told of.
    pub xids: Vec<(GpuUuid, u64)>,
    /// Processor time of the child since its last answer.
    pub cpu_us: u64,
    /// The driver's version, with an inventory.
    pub driver: Option<String>,
    /// The newest CUDA of the driver as NVML numbers it, with an inventory, where somebody looks on.
    pub cuda: Option<u32>,
    /// A closer look, where somebody looks on.
    pub close: Vec<CloseLook>,
}

/// How often NVML is asked, and for what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pace {
    /// As an agent asks, for months.
    #[default]
    Agent,
    /// As somebody looks on: what moves with this period, processes and activity every few, and what only people want to
    /// see. What costs tens of milliseconds is left out.
    Watched(Duration),
}

/// Processes and links are looked at no more often than this, however fast somebody wants to see: the kernel's own
/// files are read for each.
const WATCHED_MEDIUM_MIN: Duration = Duration::from_secs(2);

impl Pace {
    /// The time between two requests.
    pub(crate) fn period(self, tier: Tier) -> Duration {
        match (self, tier) {
            (Self::Watched(interval), Tier::Fast) => interval,
            (Self::Watched(interval), Tier::Medium) => (interval * 2).max(WATCHED_MEDIUM_MIN),
            (_, tier) => tier.period(),
        }
    }

    pub(crate) fn is_close(self) -> bool {
        matches!(self, Self::Watched(_))
    }
}

impl ProbeReport {
    /// A report of the parent's own.
    fn of_node(samples: Vec<Sample>) -> Self {
        Self {
            tier: Tier::Fast,
            inventory: None,
            samples,
            processes: None,
            xids: Vec::new(),
            cpu_us: 0,
            driver: None,
            cuda: None,
            close: Vec::new(),
        }
    }
}

/// What the watching side is told.
#[derive(Debug, Clone, PartialEq)]
pub enum ProbeSaid {
    /// An answer; or, of the parent's own, what is known of the node and no longer known of its GPUs.
    Report(ProbeReport),
    /// A call has not returned.
    Hung {
        /// In which call, and of which GPU.
        during: String,
        /// How long was waited.
        after: Duration,
        /// Children that were left behind and still live, with this one.
        stuck: u32,
    },
    /// The child ended, or what it wrote does not read.
    Died {
        /// How, and in which call.
        why: String,
    },
    /// There is no library.
    NoLibrary {
        /// What the loader says.
        why: String,
    },
    /// The library does not work with this driver, or there is none.
    Refused {
        /// What it returned.
        error: NvmlStatus,
    },
    /// Answers come again, in every tier and of all GPUs that are not left alone, and no child is stuck in a call about
    /// anything else.
    Back,
}

/// How long loading, initialisation and the first inventory usually may take.
pub const START_DEADLINE: Duration = Duration::from_secs(30);

/// How the probe is watched.
pub struct WatchSettings {
    /// Makes the command of a child. It should run the very file that the parent runs: both sides of the wire are
    /// of one build.
    pub command: Box<dyn FnMut() -> Command + Send>,
    /// GPUs that are known already: one that cannot be opened does not say who it is.
    pub known: Vec<GpuIdentity>,
    /// How long an answer may take.
    pub deadline: Duration,
    /// How long loading, initialisation and the first inventory may take.
    pub start_deadline: Duration,
    /// How long a GPU is left alone after a call about it has not returned: the others can be watched meanwhile.
    pub avoid: Duration,
    /// A path that is there while the driver's module is loaded: when it appears NVML is tried at once, however long the
    /// pause was going to be.
    pub module: Option<PathBuf>,
    /// For those who want NVML left alone for a while.
    pub hold: Option<Arc<Hold>>,
    /// How often, and for what.
    pub pace: Pace,
}

impl WatchSettings {
    /// The usual deadlines.
    pub fn new(command: impl FnMut() -> Command + Send + 'static) -> Self {
        Self {
            command: Box::new(command),
            known: Vec::new(),
            deadline: Duration::from_secs(5),
            start_deadline: START_DEADLINE,
            avoid: Duration::from_secs(300),
            module: None,
            hold: None,
            pace: Pace::Agent,
        }
    }
}

/// How long a stop may go unnoticed.
const NOTICE: Duration = Duration::from_millis(500);

/// Watches in the time that it is told, for those who make the time: a rehearsal of hours takes seconds.
pub struct Watcher {
    supervisor: supervisor::Supervisor<child::Processes>,
    stop: AtomicBool,
}

impl Watcher {
    /// Nothing is started yet.
    pub fn new(settings: WatchSettings) -> Self {
        Self { supervisor: supervisor(settings), stop: AtomicBool::new(false) }
    }

    /// Does all that is due `elapsed` after the beginning.
    pub fn until(&mut self, elapsed: Duration) -> Vec<ProbeSaid> {
        let mut said = Vec::new();
        loop {
            let turn = self.supervisor.turn(elapsed, &self.stop);
            said.extend(turn.said);
            if turn.again_at > elapsed {
                return said;
            }
        }
    }

    /// Ends the child.
    pub fn end(self) {
        self.supervisor.end();
    }
}

/// Watches until `stop`. Blocks: it wants a thread of its own.
pub fn run(settings: WatchSettings, stop: &AtomicBool, sink: &mut dyn FnMut(ProbeSaid)) {
    let begun = Instant::now();
    let mut module = Module::new(settings.module.clone());
    let hold = settings.hold.clone();
    let is_held = || hold.as_ref().is_some_and(|hold| hold.is_wanted());
    let mut supervisor = supervisor(settings);
    while !stop.load(Ordering::Relaxed) {
        if let Some(hold) = hold.as_ref().filter(|hold| hold.is_wanted()) {
            hold.keep(supervisor.rest(begun.elapsed()), NOTICE);
            supervisor.hurry(begun.elapsed());
            continue;
        }
        let turn = supervisor.turn(begun.elapsed(), stop);
        turn.said.into_iter().for_each(&mut *sink);
        // A turn asks one thing; the next may be due at once.
        while !stop.load(Ordering::Relaxed) && !is_held() {
            let left = turn.again_at.saturating_sub(begun.elapsed());
            if left.is_zero() || supervisor.idle(left.min(NOTICE)) {
                break;
            }
            // While a child runs there is nothing to hurry.
            if supervisor.waits() && module.has_appeared() {
                supervisor.hurry(begun.elapsed());
                break;
            }
        }
    }
    supervisor.end();
}

/// Whether the driver's module is loaded, as it was last seen.
struct Module {
    path: Option<PathBuf>,
    is_there: bool,
}

impl Module {
    fn new(path: Option<PathBuf>) -> Self {
        let is_there = path.as_ref().is_some_and(|path| path.exists());
        Self { path, is_there }
    }

    /// Whether it is there and was not when it was last looked at.
    fn has_appeared(&mut self) -> bool {
        let was_there = self.is_there;
        self.is_there = self.path.as_ref().is_some_and(|path| path.exists());
        self.is_there && !was_there
    }
}

fn supervisor(settings: WatchSettings) -> supervisor::Supervisor<child::Processes> {
    let deadlines = supervisor::Deadlines {
        answer: settings.deadline,
        start: settings.start_deadline,
        avoid: settings.avoid,
        pace: settings.pace,
    };
    let children = child::Processes { command: settings.command };
    supervisor::Supervisor::new(children, deadlines, settings.known)
}
