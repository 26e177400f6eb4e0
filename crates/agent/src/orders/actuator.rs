//! Traits with which an order inspects and changes a node. The implementations for a real node are
//! in `node_actuator.rs` and `inspector.rs`. A simulated node has its own actuator.

use std::fs::File;

use farrier_fleet::fleet::order::VerificationLevel;
use farrier_fleet::health::GpuUuid;
use jiff::Timestamp;

use super::node_error::{ActuatorError, InspectorError};

/// Changes the node. Each call returns when the outcome is known.
pub trait Actuator: Send + Sync {
    /// The current boot id.
    fn boot(&self) -> Result<String, ActuatorError>;

    /// Resets an idle GPU. The process that makes the change must keep `lock` open while it runs.
    /// As long as the file is locked, a restarted agent knows that the change is still in progress.
    fn reset_gpu(&self, gpu: &GpuUuid, lock: File) -> Result<(), ActuatorError>;

    /// Requests a reboot. The node may go down before this returns.
    fn reboot(&self, lock: File) -> Result<(), ActuatorError>;

    /// State of a service.
    fn service(&self, unit: &str) -> Result<ServiceStatus, ActuatorError>;

    fn restart_service(&self, unit: &str, lock: File) -> Result<(), ActuatorError>;

    /// Applies a profile, and returns a summary. Idempotent.
    fn tune(&self, profile: &str, lock: File) -> Result<String, ActuatorError>;
}

/// State of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceStatus {
    pub is_active: bool,
    /// systemd's name for the state.
    pub state: String,
    /// Identifies the current run of the service. `None` if the service is not running.
    pub run: Option<String>,
}

/// Inspects the node.
pub trait Inspector: Send + Sync {
    /// Reads the state of a GPU now.
    fn gpu(&self, gpu: &GpuUuid) -> Result<GpuHealth, InspectorError>;

    /// GPU processes, from a reading that is newer than `since`. An error means that they are
    /// unknown, and not that the GPUs are idle.
    fn processes(&self, since: Timestamp) -> Result<Vec<GpuProcess>, InspectorError>;

    /// An open finding that keeps the node out of service. An error means that the findings are
    /// unknown, and not that the node is healthy.
    fn blocking_finding(&self) -> Result<Option<String>, InspectorError>;

    /// Runs the checks of a verification level. Stops early when `is_active` returns false.
    fn verify(&self, level: VerificationLevel, is_active: &dyn Fn() -> bool) -> VerificationReport;

    /// Runs `farrier diag` on the GPUs.
    fn run_diag(&self, level: u8, minutes: u32, is_active: &dyn Fn() -> bool)
    -> VerificationReport;
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuProcess {
    pub gpu: GpuUuid,
    pub pid: u32,
    /// Command line of the process. `unknown` if it could not be read.
    pub command: String,
}

impl std::fmt::Display for GpuProcess {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "process {} ({}) on {}", self.pid, self.command, self.gpu)
    }
}

/// Health of a GPU, as far as it decides on a reset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuHealth {
    /// Faults that require a reset or worse.
    pub reset_reasons: Vec<String>,
    /// A summary for the evidence.
    pub summary: String,
}

/// Result of a verification.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VerificationReport {
    pub passed: Vec<String>,
    pub failed: Vec<String>,
    /// Checks without a result. Such a check does not count as passed.
    pub unknown: Vec<String>,
    /// Whether a retry would have the same result.
    pub is_final: bool,
}

impl VerificationReport {
    /// `true` if every check has a result and none failed.
    pub fn has_passed(&self) -> bool {
        self.failed.is_empty() && self.unknown.is_empty() && !self.passed.is_empty()
    }
}
