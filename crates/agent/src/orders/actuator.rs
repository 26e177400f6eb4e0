//! What changes a node, and what looks at it before and after. The real ones are in `node.rs` and `eyes.rs`; a simulated
//! node has hands of its own behind the same trait.

use std::fs::File;

use farrier_fleet::fleet::order::VerificationLevel;
use farrier_fleet::health::GpuUuid;
use jiff::Timestamp;

use super::node_error::{ActuatorError, InspectorError};

/// Changes the node. Each call returns when it is known whether the change was made.
pub trait Actuator: Send + Sync {
    /// The boot that is now.
    fn boot(&self) -> Result<String, ActuatorError>;

    /// Resets a GPU on which nothing runs. `alive` is to stay open in whatever makes the change, for as long as it runs: a lock
    /// on it tells an agent that was started anew that the change still goes on.
    fn reset_gpu(&self, gpu: &GpuUuid, alive: File) -> Result<(), ActuatorError>;

    /// Asks for a reboot. The node may be gone before this returns.
    fn reboot(&self, alive: File) -> Result<(), ActuatorError>;

    /// How a service is.
    fn service(&self, unit: &str) -> Result<Service, ActuatorError>;

    /// Starts a service anew.
    fn restart_service(&self, unit: &str, alive: File) -> Result<(), ActuatorError>;

    /// Makes the node as a profile wants it, which may be done twice; what came of it, in words.
    fn tune(&self, profile: &str, alive: File) -> Result<String, ActuatorError>;
}

/// How a service is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// Whether it runs.
    pub is_active: bool,
    /// What systemd calls its state.
    pub state: String,
    /// What tells this run from every other; none: it does not run.
    pub run: Option<String>,
}

/// Looks at the node.
pub trait Inspector: Send + Sync {
    /// How a GPU is, asked now.
    fn gpu(&self, gpu: &GpuUuid) -> Result<GpuSeen, InspectorError>;

    /// The processes on GPUs, in words, as seen after `since`; an error: nobody knows.
    fn processes(&self, since: Timestamp) -> Result<Vec<Held>, InspectorError>;

    /// An open finding that keeps the node out of service; none: there is none. An error: nobody knows.
    fn finding_against(&self) -> Result<Option<String>, InspectorError>;

    /// How far the node is proven. What takes long ends when it is no longer wanted.
    fn prove(&self, level: VerificationLevel, wanted: &dyn Fn() -> bool) -> Proof;

    /// What `farrier diag` says of the GPUs.
    fn examine(&self, level: u8, minutes: u32, wanted: &dyn Fn() -> bool) -> Proof;
}

/// A process on a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// The GPU.
    pub gpu: GpuUuid,
    /// The process.
    pub pid: u32,
    /// Its command, as far as it is known.
    pub command: String,
}

impl std::fmt::Display for Held {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "process {} ({}) on {}", self.pid, self.command, self.gpu)
    }
}

/// How a GPU is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuSeen {
    /// What of it still calls for a reset or worse; empty: nothing.
    pub wrong: Vec<String>,
    /// What was seen, in words.
    pub text: String,
}

/// What a proof came to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Proof {
    /// What was seen to be right.
    pub passed: Vec<String>,
    /// What is wrong.
    pub failed: Vec<String>,
    /// What nobody knows: it is not passed.
    pub unknown: Vec<String>,
    /// Time does not help: what would be needed is not there.
    pub is_final: bool,
}

impl Proof {
    /// Whether all was seen and is right.
    pub fn has_passed(&self) -> bool {
        self.failed.is_empty() && self.unknown.is_empty() && !self.passed.is_empty()
    }
}
