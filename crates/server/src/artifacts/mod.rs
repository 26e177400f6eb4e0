//! Artifacts: files that nodes send for orders. The server checks them against their hash and keeps
//! them for a while.
//!
//! ```text
//! SendArtifact ─ receive (order pending? size, hash, disk space) ─> store ─> receipt
//!                                      (temporary file, fsync, rename) └─> REST: list, download
//! ```
//!
//! The server never interprets the content, because a node may send anything.

mod receive;
mod store;

pub(crate) use receive::ArtifactReceiver;
pub(crate) use store::{ArtifactRecord, ArtifactStore};
