//! Traits that change a node and inspect it. The real implementations are in `node_actuator.rs` and
//! `inspector.rs`; a simulated node has its own actuator.

use std::fs::File;

use farrier_fleet::fleet::order::VerificationLevel;
use farrier_fleet::health::GpuUuid;
use jiff::Timestamp;

use super::node_error::{ActuatorError, InspectorError};

/// Changes the node. Each call returns once the outcome is known.
pub trait Actuator: Send + Sync {
    /// The current boot id.
    fn boot(&self) -> Result<String, ActuatorError>;

    /// Resets an idle GPU. The process that makes the change must keep `alive` open while it runs:
    /// the lock on it tells a restarted agent that the change is still in progress.
    fn reset_gpu(&self, gpu: &GpuUuid, alive: File) -> Result<(), ActuatorError>;

    /// Requests a reboot. The node may go down before this returns.
    fn reboot(&self, alive: File) -> Result<(), ActuatorError>;

    /// State of a service.
    fn service(&self, unit: &str) -> Result<Service, ActuatorError>;

    fn restart_service(&self, unit: &str, alive: File) -> Result<(), ActuatorError>;

    /// Applies a profile. Idempotent. Returns a summary.
    fn tune(&self, profile: &str, alive: File) -> Result<String, ActuatorError>;
}

/// State of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    pub is_active: bool,
    /// systemd's name for the state.
    pub state: String,
    /// Identifies this run of the service. `None` if it is not running.
    pub run: Option<String>,
}

/// Inspects the node.
pub trait Inspector: Send + Sync {
    /// Reads the state of a GPU now.
    fn gpu(&self, gpu: &GpuUuid) -> Result<GpuSeen, InspectorError>;

    /// GPU processes as seen after `since`. An error means unknown, not idle.
    fn processes(&self, since: Timestamp) -> Result<Vec<Held>, InspectorError>;

    /// An open finding that keeps the node out of service. An error means unknown, not healthy.
    fn finding_against(&self) -> Result<Option<String>, InspectorError>;

    /// Runs the checks of a verification level. Stops early when `wanted` returns false.
    fn prove(&self, level: VerificationLevel, wanted: &dyn Fn() -> bool) -> Proof;

    /// Runs `farrier diag` on the GPUs.
    fn examine(&self, level: u8, minutes: u32, wanted: &dyn Fn() -> bool) -> Proof;
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    pub gpu: GpuUuid,
    pub pid: u32,
    /// Its command, as far as known.
    pub command: String,
}

impl std::fmt::Display for Held {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "process {} ({}) on {}", self.pid, self.command, self.gpu)
    }
}

/// State of a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuSeen {
    /// What still requires a reset or worse. Empty if nothing does.
    pub wrong: Vec<String>,
    /// A summary for the evidence.
    pub text: String,
}

/// Result of a verification.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Proof {
    pub passed: Vec<String>,
    pub failed: Vec<String>,
    /// Checks without a result. They do not count as passed.
    pub unknown: Vec<String>,
    /// Retrying does not help: something required is missing.
    pub is_final: bool,
}

impl Proof {
    /// Whether every check has a result and none failed.
    pub fn has_passed(&self) -> bool {
        self.failed.is_empty() && self.unknown.is_empty() && !self.passed.is_empty()
    }
}
