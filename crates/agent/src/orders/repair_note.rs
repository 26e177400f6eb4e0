//! What a person did to the node, as the server told: one small file, which whoever carries out orders writes and the watching agent reads. They
//! may be two processes.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Its name in the agent's state folder.
const FILE: &str = "repaired.json";
/// More than any that was written.
const BYTES_MAX: u64 = 64 << 10;

/// The last repair by hand.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RepairNote {
    /// When the node was told.
    pub(crate) at: Timestamp,
    /// What was done, in that person's words.
    pub(crate) what: String,
}

/// Keeps it, whole or not at all.
pub(crate) fn write(state_dir: &Path, note: &RepairNote) -> io::Result<()> {
    let part = state_dir.join("repaired.part");
    let mut open = OpenOptions::new();
    let mut file = open.write(true).create(true).truncate(true).mode(0o644).open(&part)?;
    file.write_all(&serde_json::to_vec(note)?)?;
    file.sync_all()?;
    fs::rename(&part, state_dir.join(FILE))?;
    fs::File::open(state_dir)?.sync_all()
}

/// The last one; none where there was none, or where it does not read: then what it says was not heard, and its findings stay.
pub(crate) fn read(state_dir: &Path) -> Option<RepairNote> {
    let mut bytes = Vec::new();
    fs::File::open(state_dir.join(FILE)).ok()?.take(BYTES_MAX).read_to_end(&mut bytes).ok()?;
    serde_json::from_slice(&bytes).ok()
}
