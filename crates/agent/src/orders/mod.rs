//! Orders: what the server tells this node to do, done once and answered for.
//!
//! ```text
//! uplink ─ offer ─> judge ─ orders.jsonl (fsync) ─> Accepted
//!                                  │
//! thread orders <──────────────────┘ observe ─ may it? ─ begun (fsync) ─ act ─ ended (fsync) ─ observe ─ answered (fsync) ─> wake
//!                                                        │
//!                 Hands: nvidia-smi, systemctl, or a simulated node;  Scheduler: a file, or Slurm;  Eyes: NVML, the agent's findings
//! uplink <─ outstanding, until acknowledged ─────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Entry points: [`open`], [`Desk::spawn`], [`Desk::offer`]. What the file says is in `ledger.rs`, how each order is carried out in
//! `carry/`. See `docs/orders.md`.

mod carry;
mod desk;
mod examine;
mod eyes;
pub(crate) mod file;
mod hands;
pub(crate) mod host;
mod last_bytes;
mod ledger;
pub mod mark;
mod node;
mod node_error;
mod offer;
mod process;
pub(crate) mod repair_note;
mod scheduler;
mod slurm;
mod start;
pub(crate) mod task;
#[cfg(test)]
mod tests;
mod tuner;

pub use desk::{Desk, NodePaths, Parts};
pub use eyes::{Known, NodeEyes};
pub use file::OrdersError;
pub use hands::{Eyes, GpuSeen, Hands, Held, Proof, Service};
pub use host::HostScheduler;
pub use node::NodeHands;
pub use node_error::{ActuatorError, InspectorError};
pub use offer::Limits;
pub use process::ProcessError;
pub use repair_note::{RepairNote, RepairWatch};
pub use scheduler::{Job, MarkAction, Scheduler, SchedulerError};
pub use slurm::Slurm;
pub use start::{HandsElsewhere, Start, open};
pub use tuner::{TuneError, Tuner};
