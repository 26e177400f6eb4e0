//! Errors of the actuator and the inspector. Code matches on the variant. `Display` gives the
//! sentence for the status of an order. That sentence includes the causes, so these errors have no
//! `source`.

use std::error::Error;
use std::path::PathBuf;

use farrier_facts::node::{NvmlReading, ReadError};
use farrier_fleet::health::GpuUuid;

use super::process::ProcessError;
use super::tuner::TuneError;
use crate::monitor::Chain;

/// Why a change failed, or the state of a boot or unit is unknown.
#[derive(Debug, thiserror::Error)]
pub enum ActuatorError {
    /// `nvidia-smi` or `systemctl` failed.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The root belongs to another machine or to a capture.
    #[error("the monitored root is not this machine: nothing was changed")]
    NotThisMachine,
    /// A child process of the agent still has NVML open, so the GPU is in use.
    #[error("the agent's NVML probe still has the GPU open: one of its calls hangs")]
    NvmlHeld,
    /// The file with the boot ID is absent or empty.
    #[error("`{path}` is absent or empty")]
    BootIdEmpty { path: &'static str },
    /// The file with the boot ID cannot be read.
    #[error("failed to read `{path}`: {err}")]
    BootIdUnreadable { path: &'static str, err: ReadError },
    /// systemd has not loaded the unit.
    #[error("systemd has not loaded the unit (`{load_state}`)")]
    UnitNotLoaded {
        /// `LoadState` in the output of `systemctl show`. Empty if the output has none.
        load_state: String,
    },
    /// `systemctl show` prints no `ActiveState`.
    #[error("systemctl shows no ActiveState")]
    NoActiveState,
    /// `farrier tune` did not set the profile.
    #[error(transparent)]
    Tune(#[from] TuneError),
    /// The simulated node could not be used.
    #[error("{}", Chain(&**.0))]
    Simulated(Box<dyn Error + Send + Sync>),
}

/// Why the state of the node is unknown.
#[derive(Debug, thiserror::Error)]
pub enum InspectorError {
    /// NVML did not answer.
    #[error("{}", .0.failure_reason().unwrap_or_default())]
    NvmlSilent(Box<NvmlReading>),
    /// NVML does not list this GPU.
    #[error("NVML does not list {gpu}")]
    GpuNotListed { gpu: GpuUuid },
    /// The agent in this process has not published a status yet.
    #[error("the agent has only just started")]
    AgentStarting,
    /// No agent listens at the socket.
    #[error("no agent answers at `{}`", socket.display())]
    NoAgent { socket: PathBuf },
    /// Requesting the status from the agent failed.
    #[error("{}", Chain(&**.0))]
    Status(Box<dyn Error + Send + Sync>),
    /// No agent is running, and the status comes from the journal.
    #[error("no agent monitors GPU processes")]
    GpusNotWatched,
    /// The agent's last reading of GPU processes is older than the order.
    #[error("no reading of GPU processes since the order started")]
    ProcessesOutdated,
    /// NVML does not list the processes of a GPU.
    #[error("the processes on GPU {index} are unknown")]
    ProcessesUnknown { index: u32 },
}
