//! The consistency check of SQLite. It reads every page, so on large logs a timeout interrupts it.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rusqlite::{Connection, ErrorCode};

use super::LogError;

/// The check is interrupted after this time. By then, it has read at least the header and the
/// schema, and the entries beginning with the first one.
const CHECK_TIMEOUT: Duration = Duration::from_secs(10);

const INTERRUPT_RETRY: Duration = Duration::from_millis(10);

/// How much of a database was checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Integrity {
    Full,
    /// The check timed out. The pages that it read are consistent.
    Partial,
}

/// Fails if the database is corrupt.
pub(super) fn check(connection: &Connection) -> Result<Integrity, LogError> {
    let interrupt = connection.get_interrupt_handle();
    let (done, waited) = mpsc::channel::<()>();
    let watch = move || {
        // The loop ends when the sender is dropped. It repeats the interrupt, because SQLite
        // ignores an interrupt that arrives between two statements.
        let mut timeout = CHECK_TIMEOUT;
        while waited.recv_timeout(timeout) == Err(mpsc::RecvTimeoutError::Timeout) {
            interrupt.interrupt();
            timeout = INTERRUPT_RETRY;
        }
    };
    let checked = thread::scope(|scope| {
        scope.spawn(watch);
        let content =
            connection.query_row("PRAGMA quick_check(1)", [], |row| row.get::<_, String>(0));
        drop(done);
        content
    });
    match checked {
        Ok(content) if content == "ok" => Ok(Integrity::Full),
        Ok(content) => Err(LogError::Corrupt(content.replace('\n', "; "))),
        Err(err) if err.sqlite_error_code() == Some(ErrorCode::OperationInterrupted) => {
            Ok(Integrity::Partial)
        }
        Err(err) => {
            let err = LogError::Sqlite { what: "check the log", err };
            Err(if err.is_damage() { LogError::Corrupt(cause(&err)) } else { err })
        }
    }
}

fn cause(err: &LogError) -> String {
    std::error::Error::source(err).map(ToString::to_string).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn corruption_is_detected() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let connection = Connection::open(&path).unwrap();
        let fill = "CREATE TABLE t (a BLOB);
            WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 200)
            INSERT INTO t SELECT randomblob(200) FROM n";
        connection.execute_batch(fill).unwrap();
        assert_eq!(check(&connection).unwrap(), Integrity::Full);
        drop(connection);
        let mut bytes = std::fs::read(&path).unwrap();
        let last_page = bytes.len() - 4096;
        bytes[last_page..last_page + 8].fill(0xff);
        std::fs::write(&path, &bytes).unwrap();
        let found = check(&Connection::open(&path).unwrap());
        assert!(matches!(found, Err(LogError::Corrupt(_))), "{found:?}");
        assert!(found.is_err_and(|err| err.is_damage()));
    }
}
