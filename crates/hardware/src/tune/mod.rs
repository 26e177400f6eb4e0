//! Settings of this node: read, changed with a journal, given back.
//!
//! ```text
//! look ─> Readings ─ farrier_facts::tune::plan ─> [Step]
//! apply: each change ─ old value read ─ Begun (fsync) ─ Hands::write ─ read back ─ Ended (fsync)
//! revert: newest first ─ is it still ours? ─ Hands::write(old) ─ Reverted (fsync)
//! ```
//!
//! A change that was begun and not ended may have been made or not: revert looks at what is there. [`Hands`] is the seam:
//! [`NodeHands`] works on a node, real or below another root.

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
