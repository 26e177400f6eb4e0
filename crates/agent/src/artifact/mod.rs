//! Artifacts: files that an order asks for. They are collected on this node, limited in size, and
//! uploaded to the server.
//!
//! ```text
//! executor ─ LogBundle (redact, bound, hash) ─> state_dir/artifacts/<order>.tar.gz
//!     ─ Outbox ─> uplink ─ SendArtifact ─> server
//! ```
//!
//! Entry points: [`LogBundle::create`], [`Outbox::send`]. A bundle is deleted when its order has
//! ended.

mod bundle;
mod outbox;
mod redact;

use std::path::{Path, PathBuf};

pub use bundle::{FileEntry, Gap, LogBundleError, MANIFEST, Manifest, ManifestError, SourceError};
pub(crate) use bundle::{FinishedBundle, LogBundle, SourceOutput, make_private};
pub use outbox::{ArtifactUpload, Outbox, SendError};
pub(crate) use redact::redact;

/// Directory below the agent's state directory.
const FOLDER: &str = "artifacts";

/// Path of an order's artifact.
pub(crate) fn bundle_path(state_dir: &Path, generation: u64) -> PathBuf {
    state_dir.join(FOLDER).join(format!("{generation}.tar.gz"))
}

/// Deletes all artifacts except the bundle of the order `except`. Also deletes unfinished files
/// that programs left in that directory.
pub(crate) fn clear(state_dir: &Path, except: Option<u64>) {
    let keep = except.map(|generation| bundle_path(state_dir, generation));
    for entry in std::fs::read_dir(state_dir.join(FOLDER)).into_iter().flatten().flatten() {
        if Some(entry.path()) != keep {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}
