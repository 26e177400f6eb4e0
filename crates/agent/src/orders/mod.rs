//! Executes the server's orders, each at most once, and reports their status.
//!
//! ```text
//! uplink ─ submit ─> admit ─ orders.jsonl (fsync) ─> Accepted
//!                               │
//! thread `orders` <─────────────┘ inspect ─ precondition ─ started (fsync) ─ act ─ ended (fsync)
//!                                      ─ inspect ─ answered (fsync)
//!   Actuator:  nvidia-smi, systemctl, or a simulated node
//!   Scheduler: a file, or Slurm
//!   Inspector: NVML, the agent's findings
//! uplink <─ outstanding, until acknowledged
//! ```
//!
//! Entry points: [`open`], [`OrderExecutor::spawn`], [`OrderExecutor::submit`]. The content of the
//! file is defined in `ledger.rs`, and each kind of order in `execute/`. See `docs/orders.md`.

mod actuator;
pub mod cordon_watch;
mod execute;
mod executor;
mod inspector;
pub(crate) mod journal;
mod last_bytes;
mod ledger;
mod node_actuator;
mod node_error;
mod process;
pub(crate) mod repair_note;
mod run_diag;
pub(crate) mod scheduler;
mod start;
mod submit;
pub(crate) mod task;
#[cfg(test)]
mod tests;
mod tuner;

pub use actuator::{Actuator, GpuHealth, GpuProcess, Inspector, ServiceStatus, VerificationReport};
pub use executor::{ExecutorParts, NodePaths, OrderExecutor};
pub use inspector::{NodeInspector, StatusSource};
pub use journal::OrdersError;
pub use node_actuator::NodeActuator;
pub use node_error::{ActuatorError, InspectorError};
pub use process::ProcessError;
pub use repair_note::{RepairNote, RepairWatch};
pub use scheduler::host::HostScheduler;
pub use scheduler::slurm::Slurm;
pub use scheduler::{CordonFileAction, ScheduledJob, Scheduler, SchedulerError};
pub use start::{ActuatorFactory, ExecutorOptions, open};
pub use submit::OrderLimits;
pub use tuner::{TuneError, Tuner};
