//! The state with which a log starts. It is encoded as a header line with the format version,
//! followed by a JSON object.

use farrier_fleet::fleet::FleetState;
use rusqlite::{Connection, params};

use super::{Hash, LogError, Snapshot};

const HEADER: &[u8] = b"farrier state 5\n";
/// The format before nodes recorded how urgent their condition is, and whether they were held.
const HEADER_V4: &[u8] = b"farrier state 4\n";
/// This format differs from version 4 only in field names. Deserialisation accepts the old names as
/// aliases.
const HEADER_V3: &[u8] = b"farrier state 3\n";
/// The format before the fields of a node were grouped.
const HEADER_V2: &[u8] = b"farrier state 2\n";
/// The format before nodes recorded when they first entered service. Reasons were still sentences
/// then.
const HEADER_V1: &[u8] = b"farrier state 1\n";
/// The part of the header that all versions share. States older than version 1 have no header.
const HEADER_PREFIX: &[u8] = b"farrier state ";

/// An encoded state. Encoding a large fleet takes seconds, so the state is encoded before the
/// transaction starts.
pub(super) struct BaseSnapshot<'b> {
    at: &'b Snapshot,
    bytes: Vec<u8>,
    digest: Hash,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SnapshotReadError {
    /// A later version wrote the snapshot.
    Newer,
    /// The digest does not match, or the state does not decode.
    Damaged,
}

impl<'b> BaseSnapshot<'b> {
    pub(super) fn encode(at: &'b Snapshot) -> Result<Self, LogError> {
        let mut bytes = HEADER.to_vec();
        serde_json::to_writer(&mut bytes, &at.state).map_err(LogError::EncodeSnapshot)?;
        let digest = Hash::digest(&bytes);
        Ok(Self { at, bytes, digest })
    }

    /// Stores the state as the log's base snapshot.
    pub(super) fn put(&self, connection: &Connection) -> rusqlite::Result<()> {
        let insert = "INSERT OR REPLACE INTO anchor VALUES (1, ?1, ?2, ?3, ?4)";
        let row = params![self.at.state.seq, self.at.hash.0, self.bytes, self.digest.0];
        connection.execute(insert, row).map(drop)
    }
}

/// Decodes a base snapshot that this or an earlier version wrote.
pub(super) fn decode_state(bytes: &[u8], digest: Hash) -> Result<FleetState, SnapshotReadError> {
    if Hash::digest(bytes) != digest {
        return Err(SnapshotReadError::Damaged);
    }
    if let Some(state) = bytes.strip_prefix(HEADER) {
        return serde_json::from_slice(state).map_err(|_| SnapshotReadError::Damaged);
    }
    if let Some(state) = bytes.strip_prefix(HEADER_V4).or_else(|| bytes.strip_prefix(HEADER_V3)) {
        return FleetState::from_v4(state).map_err(|_| SnapshotReadError::Damaged);
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
