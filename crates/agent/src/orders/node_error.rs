//! Why a node was not changed, or not inspected. Code goes by the variant; `Display` is the sentence
//! that goes into an order's answer. It holds the causes, so that no error here has a `source`.

use std::error::Error;
use std::path::PathBuf;

use farrier_facts::node::{NvmlReading, ReadError};
use farrier_fleet::health::GpuUuid;

use super::process::ProcessError;
use super::tuner::TuneError;
use crate::brain::Chain;

/// Why the node was not changed, or its boot or a unit of it is not known.
#[derive(Debug, thiserror::Error)]
pub enum ActuatorError {
    /// `nvidia-smi` or `systemctl` failed.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The root is another machine's, or a capture.
    #[error("the node that is watched is not this machine: nothing is changed")]
    NotThisMachine,
    /// While the agent's child has NVML open the GPU is in use.
    #[error("the agent's own child does not let go of NVML: a call of it is stuck")]
    NvmlHeld,
    /// The file with the boot ID is absent or empty.
    #[error("`{path}` says nothing")]
    BootIdEmpty {
        /// The file.
        path: &'static str,
    },
    /// The file with the boot ID cannot be read.
    #[error("`{path}` cannot be read: {err}")]
    BootIdUnreadable {
        /// The file.
        path: &'static str,
        /// Why.
        err: ReadError,
    },
    /// systemd has not loaded the unit.
    #[error("systemd does not know it (`{load_state}`)")]
    UnitNotLoaded {
        /// `LoadState` of `systemctl show`; empty where it has none.
        load_state: String,
    },
    /// `systemctl show` prints no `ActiveState`.
    #[error("systemd does not say how it is")]
    NoActiveState,
    /// `farrier tune` did not set the profile.
    #[error(transparent)]
    Tune(#[from] TuneError),
    /// The simulated node could not be used.
    #[error("{}", Chain(&**.0))]
    Simulated(Box<dyn Error + Send + Sync>),
}

/// Why something of the node is not known.
#[derive(Debug, thiserror::Error)]
pub enum InspectorError {
    /// NVML did not answer.
    #[error("{}", .0.failure_reason().unwrap_or_default())]
    NvmlSilent(Box<NvmlReading>),
    /// NVML lists other GPUs.
    #[error("NVML does not list {gpu}")]
    GpuNotListed {
        /// The GPU.
        gpu: GpuUuid,
    },
    /// The agent in this process has not published a status yet.
    #[error("the agent has only just started")]
    AgentStarting,
    /// No agent listens at the socket.
    #[error("no agent answers at `{}`", socket.display())]
    NoAgent {
        /// The socket.
        socket: PathBuf,
    },
    /// The agent could not be asked for its status.
    #[error("{}", Chain(&**.0))]
    Status(Box<dyn Error + Send + Sync>),
    /// The status is the journal's: no agent runs.
    #[error("no agent watches who holds the GPUs")]
    GpusNotWatched,
    /// The agent's last look at the processes on GPUs is older than the order.
    #[error("who holds the GPUs has not been looked at since")]
    ProcessesOutdated,
    /// NVML does not list the processes of a GPU.
    #[error("who holds GPU {index} is not known")]
    ProcessesUnknown {
        /// The GPU.
        index: u32,
    },
}
