//! Artifacts: files that nodes upload to fulfil orders. The server checks the hash of each file and
//! keeps the file for a limited time.
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
