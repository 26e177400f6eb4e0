//! Node settings: read, changed under a journal, reverted.
//!
//! ```text
//! read_settings ─> Readings ─ farrier_facts::tune::plan ─> [Step]
//! apply: each change ─ read old value ─ Begun (fsync) ─ Actuator::write ─ read back ─ Ended (fsync)
//! revert: newest first ─ still ours? ─ Actuator::write(old) ─ Reverted (fsync)
//! ```
//!
//! A change that was begun and not ended may or may not have been made; revert checks the actual
//! value. [`Actuator`] is the test seam; [`NodeActuator`] works on a real node or below another
//! root.

mod apply;
mod files;
mod hands;
mod holds;
mod interrupt;
mod journal;
mod kept;
mod look;
mod machine;
mod revert;
mod service;
mod trust;

pub use apply::apply;
pub use hands::{CommandFailure, HandError, Hands, NodeHands};
pub use interrupt::{Interrupt, Point};
pub use journal::{FILE, Journal, JournalError, Open};
pub use kept::{Kept, KeptError, STATE};
pub use look::look;
pub use revert::{Reverted, revert};

#[cfg(test)]
mod live;
#[cfg(test)]
mod tests;
