//! Artifacts: files that nodes send for orders. They are checked against their hash, and kept for a
//! while.
//!
//! ```text
//! SendArtifact ─ receive (order pending? size, hash, disk space) ─> store ─> receipt
//!                                      (temporary file, fsync, rename) └─> REST: list, download
//! ```
//!
//! The content is never interpreted here: a node may send anything.

mod receive;
mod store;

pub(crate) use receive::Receiver;
pub(crate) use store::{ArtifactRecord, ArtifactStore};
