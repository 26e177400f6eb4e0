//! Files that nodes send for orders: received, checked against their hash, kept for a while.
//!
//! ```text
//! SendArtifact ─ receive (order pending? size, hash, disk space) ─> store (temporary file, fsync, rename) ─> receipt
//!                                                                     └─> REST: list, download
//! ```
//!
//! The content is never interpreted here: a node may send anything.

mod receive;
mod store;

pub(crate) use receive::Receiver;
pub(crate) use store::{ArtifactRecord, ArtifactStore};
