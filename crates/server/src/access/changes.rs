//! Records of the changes in the access store. One transaction contains both a change and its
//! record. The command line also records its changes here, because it must not write to the log of
//! a running server. The server copies each record into the log once.

use std::fs;

use farrier_fleet::fleet::AccessChange;
use farrier_fleet::fleet::identity::Actor;
use jiff::Timestamp;
use rusqlite::types::Type;
use rusqlite::{Transaction, TransactionBehavior, params};

use super::store::{AccessError, AccessStore, failed};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessRecord {
    pub number: u64,
    pub by: Actor,
    pub at: Timestamp,
    pub change: AccessChange,
}

/// Prefix in the names of local users. User names of tokens have no colon.
const LOCAL: &str = "local:";

/// The local user who runs this program. A local user needs no token, because they have access to
/// the files.
pub fn local() -> Actor {
    let uid = current_uid();
    let name = uid.as_deref().and_then(user_name).or(uid).unwrap_or_else(|| "unknown".to_owned());
    Actor::User(format!("{LOCAL}{name}"))
}

/// Whether the actor is a local user, and not the holder of a token.
pub fn is_local(by: &Actor) -> bool {
    matches!(by, Actor::User(name) if name.starts_with(LOCAL))
}

/// The effective user ID, from the kernel.
fn current_uid() -> Option<String> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    line.split_whitespace().nth(1).map(str::to_owned)
}

fn user_name(uid: &str) -> Option<String> {
    let users = fs::read_to_string("/etc/passwd").ok()?;
    let mut names = users.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)? == uid).then(|| name.to_owned())
    });
    names.next()
}

/// Records a change with the given number, or with the next number if none is given.
pub(super) fn record_change(
    transaction: &Transaction<'_>,
    number: Option<u64>,
    by: &Actor,
    at: Timestamp,
    what: &AccessChange,
) -> rusqlite::Result<()> {
    let unwritable = |err| rusqlite::Error::ToSqlConversionFailure(Box::new(err));
    let by = serde_json::to_string(by).map_err(unwritable)?;
    let what = serde_json::to_string(what).map_err(unwritable)?;
    let insert = "INSERT INTO changes (number, by, at_s, what) VALUES (?1, ?2, ?3, ?4)";
    transaction.execute(insert, params![number, by, at.as_second(), what]).map(drop)
}

impl AccessStore {
    /// Makes a change and records it in one transaction. Returns `None` if there was nothing to
    /// change.
    pub(super) fn change<T>(
        &self,
        what: &'static str,
        by: &Actor,
        now: Timestamp,
        change: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<Option<(T, AccessChange)>>,
    ) -> Result<Option<T>, AccessError> {
        let mut connection = self.connection();
        let changed = || -> rusqlite::Result<Option<T>> {
            let transaction =
                connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let Some((result, what)) = change(&transaction)? else { return Ok(None) };
            record_change(&transaction, None, by, now, &what)?;
            transaction.commit()?;
            Ok(Some(result))
        };
        changed().map_err(failed(what))
    }

    /// Returns up to 1000 changes after `after`, in order.
    pub fn changes(&self, after: u64) -> Result<Vec<AccessRecord>, AccessError> {
        let query = "SELECT number, by, at_s, what FROM changes WHERE number > ?1 ORDER BY number LIMIT 1000";
        let connection = self.connection();
        let read = || -> rusqlite::Result<Vec<AccessRecord>> {
            let mut select = connection.prepare_cached(query)?;
            let rows = select.query_map([after], |row| {
                let unreadable = |column, err| {
                    rusqlite::Error::FromSqlConversionFailure(column, Type::Text, Box::new(err))
                };
                let (by, what): (String, String) = (row.get(1)?, row.get(3)?);
                Ok(AccessRecord {
                    number: row.get(0)?,
                    by: serde_json::from_str(&by).map_err(|err| unreadable(1, err))?,
                    at: Timestamp::from_second(row.get(2)?).unwrap_or(Timestamp::MIN),
                    change: serde_json::from_str(&what).map_err(|err| unreadable(3, err))?,
                })
            })?;
            rows.collect()
        };
        read().map_err(failed("read the changes of the access store"))
    }

    pub fn last_change(&self) -> Result<u64, AccessError> {
        let query = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'changes'";
        let connection = self.connection();
        connection.query_row(query, [], |row| row.get(0)).map_err(failed("read the last change"))
    }

    /// Fails if the log has changes that the store lacks. A store may have more changes than the
    /// log, because the server logs them later.
    pub fn check_not_behind(&self, logged: u64) -> Result<(), AccessError> {
        let found = self.last_change()?;
        if found < logged { Err(AccessError::Behind { found, logged }) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::super::{AccessTokenKind, NewJoinToken};
    use super::*;

    fn now() -> Timestamp {
        "2026-11-15T00:00:00Z".parse().unwrap()
    }

    #[test]
    fn each_change_is_recorded_once_with_increasing_numbers() {
        let folder = tempfile::tempdir().unwrap();
        let store = AccessStore::open(folder.path()).unwrap();
        let expires = now() + SignedDuration::from_hours(1);
        let request = NewJoinToken::new("train".parse().unwrap(), expires);
        let ann = Actor::User("ann".to_owned());
        let (id, secret) = store.create_by(&ann, &request, now()).unwrap();
        for _ in 0..2 {
            store.revoke_token_by(&ann, AccessTokenKind::Join, id, now()).unwrap();
        }
        assert!(store.revoke(&"unknown".parse().unwrap(), now()).is_err());
        let changes = store.changes(0).unwrap();
        let numbers: Vec<u64> = changes.iter().map(|change| change.number).collect();
        assert_eq!(numbers, [1, 2], "{changes:?}");
        assert!(changes.iter().all(|change| change.by == ann && change.at == now()));
        assert!(matches!(changes[1].change, AccessChange::TokenRevoked { token: 1, name: None }));
        assert_eq!(store.changes(1).unwrap().len(), 1);
        assert!(!format!("{changes:?}").contains(secret.reveal()));
        // The number belongs to a token of the other kind.
        assert!(store.revoke_token_by(&ann, AccessTokenKind::User, id, now()).is_err());
        store.create(&request, now()).unwrap();
        let last = store.changes(2).unwrap().pop().unwrap();
        assert_eq!((last.number, store.last_change().unwrap()), (3, 3));
        store.check_not_behind(3).unwrap();
        let behind = store.check_not_behind(4);
        assert!(matches!(behind, Err(AccessError::Behind { found: 3, logged: 4 })), "{behind:?}");
        assert!(is_local(&last.by) && !is_local(&ann) && !is_local(&Actor::Server));
    }
}
