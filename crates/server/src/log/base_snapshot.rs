//! The state that a log begins with, as bytes: a line with what they are and the version of their form, and the state as JSON.

use farrier_fleet::fleet::FleetState;
use rusqlite::{Connection, params};

use super::{Hash, LogError, Snapshot};

/// What it begins with.
const HEADER: &[u8] = b"farrier state 3\n";
/// What one began with when a node was one list of fields.
const HEADER_V2: &[u8] = b"farrier state 2\n";
/// What one began with before nodes noted their first service, and when reasons were sentences.
const HEADER_V1: &[u8] = b"farrier state 1\n";
/// What every version of it begins with. Before there were versions it was the state and nothing else.
const HEADER_PREFIX: &[u8] = b"farrier state ";

/// A state as the log begins with it. Made before a transaction is begun: it takes seconds where the fleet is large.
pub(super) struct BaseSnapshot<'b> {
    at: &'b Snapshot,
    bytes: Vec<u8>,
    digest: Hash,
}

/// Why there is no state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SnapshotReadError {
    /// A later version wrote it.
    Newer,
    /// It is not what was written, or no state.
    Damaged,
}

impl<'b> BaseSnapshot<'b> {
    pub(super) fn encode(at: &'b Snapshot) -> Result<Self, LogError> {
        let mut bytes = HEADER.to_vec();
        serde_json::to_writer(&mut bytes, &at.state).map_err(LogError::EncodeSnapshot)?;
        let digest = Hash::digest(&bytes);
        Ok(Self { at, bytes, digest })
    }

    /// Lets the log begin with it.
    pub(super) fn put(&self, connection: &Connection) -> rusqlite::Result<()> {
        let insert = "INSERT OR REPLACE INTO anchor VALUES (1, ?1, ?2, ?3, ?4)";
        let row = params![self.at.state.seq, self.at.hash.0, self.bytes, self.digest.0];
        connection.execute(insert, row).map(drop)
    }
}

/// The state that was put there.
pub(super) fn decode_state(bytes: &[u8], digest: Hash) -> Result<FleetState, SnapshotReadError> {
    if Hash::digest(bytes) != digest {
        return Err(SnapshotReadError::Damaged);
    }
    if let Some(state) = bytes.strip_prefix(HEADER) {
        return serde_json::from_slice(state).map_err(|_| SnapshotReadError::Damaged);
    }
    if let Some(state) = bytes.strip_prefix(HEADER_V2) {
        return FleetState::from_v2(state).map_err(|_| SnapshotReadError::Damaged);
    }
    let state = match bytes.strip_prefix(HEADER_V1) {
        Some(state) => state,
        None if bytes.starts_with(HEADER_PREFIX) => return Err(SnapshotReadError::Newer),
        None => bytes,
    };
    FleetState::from_v1(state).map_err(|_| SnapshotReadError::Damaged)
}
