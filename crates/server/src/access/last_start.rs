//! The log and the certificate authority with which the server last started. With them, the server
//! detects that a data directory has files of different servers, for example after a mistake in a
//! restore.

use rusqlite::{Connection, OptionalExtension, params};

use super::store::{AccessError, AccessStore, failed};
use crate::log::Hash;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastStart {
    /// The last entry of the log and its chain hash. `None` after another log was accepted.
    pub log: Option<(u64, Hash)>,
    /// Fingerprint of the certificate authority.
    pub authority: String,
}

impl AccessStore {
    /// Returns `None` if no server has started with this store, or only a server of an earlier
    /// version.
    pub fn last_start(&self) -> Result<Option<LastStart>, AccessError> {
        let query = "SELECT seq, hash, authority FROM last_start";
        let connection = self.connection();
        let read = connection.query_row(query, [], |row| {
            let (seq, hash) = (row.get::<_, Option<u64>>(0)?, row.get::<_, Option<[u8; 32]>>(1)?);
            Ok(LastStart { log: seq.zip(hash.map(Hash)), authority: row.get(2)? })
        });
        read.optional().map_err(failed("read the last start"))
    }

    pub fn record_start(&self, start: &LastStart) -> Result<(), AccessError> {
        let insert =
            "INSERT OR REPLACE INTO last_start (id, seq, hash, authority) VALUES (1, ?1, ?2, ?3)";
        let (seq, hash) = start.log.map(|(seq, hash)| (seq, hash.0)).unzip();
        let recorded = self.connection().execute(insert, params![seq, hash, start.authority]);
        recorded.map(drop).map_err(failed("record the start"))
    }

    /// Clears the recorded log, because the next start of the server is with another log.
    pub fn clear_log(&self) -> Result<(), AccessError> {
        clear_log(&self.connection()).map_err(failed("clear the recorded log"))
    }
}

pub(super) fn clear_log(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute("UPDATE last_start SET seq = NULL, hash = NULL", []).map(drop)
}
