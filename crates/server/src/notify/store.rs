//! The notifier's database: the queue, the router's state and the cursor in the log. They change in
//! one transaction with full sync, so a crash neither loses nor invents a notification.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use farrier_fleet::fleet::FleetState;
use farrier_fleet::health::Severity;
use farrier_fleet::notify::{
    AlertGroup, GapId, Incident, IncidentKey, Notification, NotificationKind, NotificationPolicy,
    NotificationStatus, Outgoing, Router, RouterChanges, RouterHead,
};
use jiff::{SignedDuration, Timestamp};
use rusqlite::{
    Connection, ErrorCode, OptionalExtension, Row, Transaction, TransactionBehavior, params,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::delivery::DeliveryFailure;
use crate::log::sqlite::open_private;

/// Version of the tables. Version 1 has no `queue.reached_ms`. Version 2 has no `queue.wait_ms`, and
/// not the tables of [`ADDED_IN_3`].
const FORMAT: i64 = 3;
const UPGRADE_FROM_1: &str = "ALTER TABLE queue ADD COLUMN reached_ms INTEGER";
const UPGRADE_FROM_2: &str = "ALTER TABLE queue ADD COLUMN wait_ms INTEGER";
/// `fstn`: tells the database apart from other SQLite databases.
const APPLICATION_ID: i64 = 0x6673_746e;

const TABLES: &str = "
CREATE TABLE router (one INTEGER PRIMARY KEY CHECK (one = 1), seq INTEGER NOT NULL, head TEXT NOT NULL);
CREATE TABLE incidents (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE groups (id TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE queue (
    id INTEGER PRIMARY KEY AUTOINCREMENT, receiver TEXT NOT NULL, key TEXT NOT NULL UNIQUE,
    message TEXT NOT NULL, queued_ms INTEGER NOT NULL, state TEXT NOT NULL DEFAULT 'waiting',
    attempts INTEGER NOT NULL DEFAULT 0, next_ms INTEGER, ended_ms INTEGER,
    error_code TEXT, error_text TEXT, summarised INTEGER NOT NULL DEFAULT 0,
    reached_ms INTEGER, wait_ms INTEGER);
CREATE INDEX queue_order ON queue (receiver, state, id);
CREATE TABLE gaps (id INTEGER PRIMARY KEY AUTOINCREMENT, at_ms INTEGER NOT NULL, after_seq INTEGER, end_seq INTEGER NOT NULL, cause TEXT NOT NULL);
";

/// The identity tells this database apart from the one that replaces it after a loss.
const ADDED_IN_3: &str = "
CREATE TABLE identity (one INTEGER PRIMARY KEY CHECK (one = 1), id TEXT NOT NULL);
INSERT INTO identity VALUES (1, lower(hex(randomblob(16))));
CREATE TABLE dropped (receiver TEXT PRIMARY KEY, count INTEGER NOT NULL) WITHOUT ROWID;
";

/// Maximum number of waiting notifications per receiver. Further ones are counted in one summary.
pub(crate) const WAITING_MAX: u32 = 1000;
/// Delivered notifications that are kept for `farrier notify queue --all`.
const DELIVERED_MAX: u32 = 200;
/// Undeliverable notifications that are kept per receiver. The oldest make room for further ones,
/// and are counted.
pub(crate) const UNDELIVERABLE_MAX: u32 = 1000;
/// Recorded gaps that are kept.
const GAPS_MAX: u32 = 100;

#[derive(Debug, thiserror::Error)]
pub(crate) enum NotifyStoreError {
    #[error("failed to {what}")]
    Sqlite {
        what: &'static str,
        #[source]
        err: rusqlite::Error,
    },
    #[error("an access to the notification database did not finish")]
    Unfinished,
    #[error("failed to encode a notification")]
    Encode(#[source] serde_json::Error),
    /// The content is not what this program writes.
    #[error("the file `notify` is not a notification database of this version")]
    Malformed,
}

impl NotifyStoreError {
    /// Whether the database has to be replaced.
    pub(super) fn is_damage(&self) -> bool {
        match self {
            Self::Malformed => true,
            Self::Encode(_) | Self::Unfinished => false,
            Self::Sqlite { err, .. } => matches!(
                err.sqlite_error_code(),
                Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase)
            ),
        }
    }
}

fn failed(what: &'static str) -> impl Fn(rusqlite::Error) -> NotifyStoreError {
    move |err| NotifyStoreError::Sqlite { what, err }
}

/// Why notifications may be missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GapCause {
    /// The database was missing.
    Lost,
    /// The database was damaged. It is kept as `notify.damaged`.
    Damaged,
    /// Entries were archived before they were read.
    Archived,
    /// The log ends before the cursor: it is an older copy.
    LogReplaced,
}

impl GapCause {
    pub(crate) fn code(self) -> &'static str {
        match self {
            Self::Lost => "lost",
            Self::Damaged => "damaged",
            Self::Archived => "archived",
            Self::LogReplaced => "log-replaced",
        }
    }

    fn parse(code: &str) -> Option<Self> {
        [Self::Lost, Self::Damaged, Self::Archived, Self::LogReplaced]
            .into_iter()
            .find(|cause| cause.code() == code)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LogGap {
    pub(crate) at: Timestamp,
    /// The last entry that was read. `None` if unknown.
    pub(crate) after_seq: Option<u64>,
    /// The entry at which the notifier continues.
    pub(crate) end_seq: u64,
    pub(crate) cause: GapCause,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QueueState {
    Waiting,
    Delivered,
    /// No repetition can deliver it.
    Undeliverable,
}

impl QueueState {
    pub(crate) fn code(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Delivered => "delivered",
            Self::Undeliverable => "undeliverable",
        }
    }

    fn parse(code: &str) -> Option<Self> {
        [Self::Waiting, Self::Delivered, Self::Undeliverable]
            .into_iter()
            .find(|state| state.code() == code)
    }
}

/// A notification in the queue.
#[derive(Debug, Clone)]
pub(crate) struct QueuedMessage {
    pub(crate) id: i64,
    pub(crate) receiver: String,
    pub(crate) notification: Notification,
    pub(crate) queued: Timestamp,
    pub(crate) state: QueueState,
    pub(crate) attempts: u32,
    /// When the next attempt is due. `None` before the first failure.
    pub(crate) next: Option<Timestamp>,
    /// Code and text of the last failure.
    pub(crate) error: Option<(String, String)>,
    /// How long the next attempt waits after the last one. `None` before the first failure.
    pub(crate) wait: Option<Duration>,
    /// How many notifications it replaces.
    pub(crate) summarised: u64,
    /// When the receiver was first reached and failed.
    pub(crate) reached: Option<Timestamp>,
}

/// Waiting notifications of a receiver.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Depth {
    pub(crate) waiting: u64,
    pub(crate) oldest: Option<Timestamp>,
    pub(crate) undeliverable: u64,
    /// Undeliverable notifications that made room for further ones, ever.
    pub(crate) dropped: u64,
}

/// A notification's place in the order of [`NotifyStore::page`]: its receiver and number.
pub(crate) type QueuePlace = (String, i64);

/// A part of the queue.
#[derive(Debug, Clone, Default)]
pub(crate) struct QueuePage {
    pub(crate) messages: Vec<QueuedMessage>,
    /// The number of notifications after them.
    pub(crate) more: u64,
}

#[derive(Debug)]
pub(crate) struct NotifyStore {
    connection: Mutex<Connection>,
}

/// The store as it was found.
#[derive(Debug)]
pub(crate) struct OpenedStore {
    pub(crate) store: NotifyStore,
    /// Why there is no router state. `None` if there is.
    pub(crate) missing: Option<GapCause>,
}

pub(crate) fn store_path(dir: &Path) -> PathBuf {
    dir.join("notify")
}

/// Creates the database of a server without notifications. If a policy with notifications has no
/// database, it was therefore lost. A failure is reported later, by the notifier.
pub(crate) fn prepare_store(dir: &Path, state: &FleetState) {
    if !state.policy.notifications.is_empty() {
        return;
    }
    let prepared =
        NotifyStore::open(dir).and_then(|OpenedStore { store, missing }| match missing {
            Some(_) => {
                let head = Some(RouterHead { seq: state.seq, ..RouterHead::default() });
                let changes = RouterChanges { head, ..RouterChanges::default() };
                store.save(state.seq, &changes, &[], None, Timestamp::now())
            }
            None => Ok(()),
        });
    if let Err(err) = prepared {
        tracing::warn!(%err, "failed to create the notification database");
    }
}

impl NotifyStore {
    /// Opens the database, or creates it. A damaged one is renamed and replaced: notifications are
    /// not worth refusing to start the server.
    pub(crate) fn open(dir: &Path) -> Result<OpenedStore, NotifyStoreError> {
        let path = store_path(dir);
        match Self::open_file(&path) {
            Ok(opened) => Ok(opened),
            Err(err) if err.is_damage() => {
                tracing::error!(%err, "the notification database is damaged and is replaced");
                let set_aside = |suffix: &str| {
                    let from = dir.join(format!("notify{suffix}"));
                    let _ = std::fs::rename(from, dir.join(format!("notify.damaged{suffix}")));
                };
                ["", "-wal", "-shm"].into_iter().for_each(set_aside);
                let opened = Self::open_file(&path)?;
                Ok(OpenedStore { missing: Some(GapCause::Damaged), ..opened })
            }
            Err(err) => Err(err),
        }
    }

    fn open_file(path: &Path) -> Result<OpenedStore, NotifyStoreError> {
        let what = failed("open the notification database");
        let mut connection = open_private(path).map_err(&what)?;
        let format = prepare(&mut connection).map_err(&what)?;
        if format != (APPLICATION_ID, FORMAT) {
            return Err(NotifyStoreError::Malformed);
        }
        let rows: i64 = connection
            .query_row("SELECT count(*) FROM router", [], |row| row.get(0))
            .map_err(&what)?;
        let store = Self { connection: Mutex::new(connection) };
        if rows == 0 {
            return Ok(OpenedStore { store, missing: Some(GapCause::Lost) });
        }
        // Reads everything once, so that damage is found here.
        store.router()?;
        store.messages(true)?;
        Ok(OpenedStore { store, missing: None })
    }

    fn connection(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs any statements, so that a test can make the database fail.
    #[cfg(test)]
    pub(super) fn execute(&self, statements: &str) {
        self.connection().execute_batch(statements).expect("the statements of a test");
    }

    /// The router as it was saved last.
    pub(crate) fn router(&self) -> Result<Router, NotifyStoreError> {
        let what = failed("read the router's state");
        let connection = self.connection();
        let head = connection
            .query_row("SELECT seq, head FROM router", [], |row| {
                Ok((row.get::<_, u64>(0)?, row.get::<_, String>(1)?))
            })
            .optional()
            .map_err(&what)?;
        let Some((seq, head)) = head else { return Ok(Router::default()) };
        let head = RouterHead { seq, ..decode(&head)? };
        let read = |query: &str| -> rusqlite::Result<Vec<(String, String)>> {
            let mut select = connection.prepare(query)?;
            let rows = select.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
            rows.collect()
        };
        let mut incidents: BTreeMap<IncidentKey, Incident> = BTreeMap::new();
        for (key, value) in read("SELECT key, value FROM incidents").map_err(&what)? {
            incidents.insert(decode(&key)?, decode(&value)?);
        }
        let mut groups = BTreeMap::new();
        for (id, value) in read("SELECT id, value FROM groups").map_err(&what)? {
            groups.insert(farrier_fleet::notify::GroupId(id), decode::<AlertGroup>(&value)?);
        }
        Ok(Router::restore(head, incidents, groups))
    }

    /// Stores what changed in the router, the notifications that resulted, and the cursor.
    pub(crate) fn save(
        &self,
        seq: u64,
        changes: &RouterChanges,
        outgoing: &[Outgoing],
        gap: Option<&LogGap>,
        now: Timestamp,
    ) -> Result<(), NotifyStoreError> {
        let mut connection = self.connection();
        let what = failed("store notifications");
        let transaction =
            connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(&what)?;
        save_router(&transaction, seq, changes)?;
        for message in outgoing {
            if enqueue(&transaction, message, now)? == Queued::KeyInUse {
                tracing::error!(
                    receiver = message.receiver,
                    key = message.notification.key,
                    code = message.notification.code,
                    "a notification has the key of an earlier one; it is not delivered"
                );
            }
        }
        if let Some(gap) = gap {
            record_gap(&transaction, gap).map_err(&what)?;
        }
        let given_up = match &changes.head {
            Some(head) => give_up_removed(&transaction, &head.policy, now).map_err(&what)?,
            None => Vec::new(),
        };
        transaction.commit().map_err(&what)?;
        for (receiver, count) in given_up {
            tracing::error!(
                receiver,
                count,
                "the policy no longer has this receiver; its notifications cannot be delivered"
            );
        }
        Ok(())
    }

    /// Fails if the database cannot be written, for example because it is full. Nothing changes, but
    /// something is written: SQLite writes no page whose content an `UPDATE` leaves as it is. With a
    /// notification, its row is written too.
    pub(crate) fn probe(&self, id: Option<i64>) -> Result<(), NotifyStoreError> {
        let mut connection = self.connection();
        let run = |connection: &mut Connection| -> rusqlite::Result<()> {
            let transaction =
                connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            transaction.pragma_update(None, "user_version", FORMAT)?;
            for by in [1, -1] {
                let update = "UPDATE queue SET attempts = attempts + ?2 WHERE id = ?1";
                transaction.execute(update, params![id, by])?;
            }
            transaction.commit()
        };
        run(&mut connection).map_err(failed("update the queue"))
    }

    /// Tells this database apart from the one that replaces it after a loss.
    pub(crate) fn identity(&self) -> Result<String, NotifyStoreError> {
        let connection = self.connection();
        let found = connection.query_row("SELECT id FROM identity", [], |row| row.get(0));
        found.map_err(failed("read the identity of the database"))
    }

    /// Identifies the gap that is recorded next.
    pub(crate) fn next_gap(&self) -> Result<GapId, NotifyStoreError> {
        let query = "SELECT id, 1 + coalesce(
            (SELECT seq FROM sqlite_sequence WHERE name = 'gaps'), 0) FROM identity";
        let connection = self.connection();
        let gap = connection
            .query_row(query, [], |row| Ok(GapId { database: row.get(0)?, number: row.get(1)? }));
        gap.map_err(failed("read the gaps"))
    }

    /// The first waiting notification of a receiver.
    pub(crate) fn next(&self, receiver: &str) -> Result<Option<QueuedMessage>, NotifyStoreError> {
        let query =
            format!("{SELECT} WHERE receiver = ?1 AND state = 'waiting' ORDER BY id LIMIT 1");
        let connection = self.connection();
        let found = connection.query_row(&query, [receiver], message).optional();
        found.map_err(failed("read the queue"))?.transpose()
    }

    /// All notifications that wait or cannot be delivered. With `all`, also the last delivered ones.
    pub(crate) fn messages(&self, all: bool) -> Result<Vec<QueuedMessage>, NotifyStoreError> {
        let states = if all { "" } else { "WHERE state != 'delivered'" };
        let query = format!("{SELECT} {states} ORDER BY receiver, id");
        let connection = self.connection();
        let read = || -> rusqlite::Result<Vec<_>> {
            connection.prepare(&query)?.query_map([], message)?.collect()
        };
        read().map_err(failed("read the queue"))?.into_iter().collect()
    }

    /// The notifications after `after`, by receiver and in their order. Without `all`, only those
    /// that wait or cannot be delivered.
    pub(crate) fn page(
        &self,
        all: bool,
        after: Option<&QueuePlace>,
        limit: usize,
    ) -> Result<QueuePage, NotifyStoreError> {
        let selected = "(?1 OR state != 'delivered') AND (receiver, id) > (?2, ?3)";
        let query = format!("{SELECT} WHERE {selected} ORDER BY receiver, id LIMIT ?4");
        let count = format!("SELECT count(*) FROM queue WHERE {selected}");
        let (receiver, id) = after.map_or(("", 0), |(receiver, id)| (receiver.as_str(), *id));
        let connection = self.connection();
        let read = || -> rusqlite::Result<(Vec<_>, u64)> {
            let mut select = connection.prepare(&query)?;
            let rows = select.query_map(params![all, receiver, id, limit as u64], message)?;
            let rows: Vec<_> = rows.collect::<Result<_, _>>()?;
            let total = params![all, receiver, id];
            Ok((rows, connection.query_row(&count, total, |row| row.get(0))?))
        };
        let (rows, total) = read().map_err(failed("read the queue"))?;
        let messages: Vec<QueuedMessage> = rows.into_iter().collect::<Result<_, _>>()?;
        Ok(QueuePage { more: total.saturating_sub(messages.len() as u64), messages })
    }

    pub(crate) fn gaps(&self) -> Result<Vec<LogGap>, NotifyStoreError> {
        let query = "SELECT at_ms, after_seq, end_seq, cause FROM gaps ORDER BY id";
        let gap = |row: &Row<'_>| {
            let (at, cause) = (time(row.get(0)?), GapCause::parse(&row.get::<_, String>(3)?));
            Ok((at, row.get(1)?, row.get(2)?, cause))
        };
        let connection = self.connection();
        let read = || -> rusqlite::Result<Vec<_>> {
            connection.prepare(query)?.query_map([], gap)?.collect()
        };
        let rows = read().map_err(failed("read the gaps"))?.into_iter();
        rows.map(|(at, after_seq, end_seq, cause)| {
            Ok(LogGap { at, after_seq, end_seq, cause: cause.ok_or(NotifyStoreError::Malformed)? })
        })
        .collect()
    }

    pub(crate) fn depths(&self) -> Result<BTreeMap<String, Depth>, NotifyStoreError> {
        let query = "SELECT receiver, sum(state = 'waiting'),
            min(CASE WHEN state = 'waiting' THEN queued_ms END), sum(state = 'undeliverable')
            FROM queue WHERE state != 'delivered' GROUP BY receiver";
        let connection = self.connection();
        let read = || -> rusqlite::Result<BTreeMap<String, Depth>> {
            let mut select = connection.prepare(query)?;
            let rows = select.query_map([], |row| {
                let depth = Depth {
                    waiting: row.get(1)?,
                    oldest: row.get::<_, Option<i64>>(2)?.map(time),
                    undeliverable: row.get(3)?,
                    dropped: 0,
                };
                Ok((row.get(0)?, depth))
            })?;
            let mut depths: BTreeMap<String, Depth> = rows.collect::<Result<_, _>>()?;
            let mut select = connection.prepare("SELECT receiver, count FROM dropped")?;
            let rows = select.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
            for row in rows {
                let (receiver, count): (String, u64) = row?;
                depths.entry(receiver).or_default().dropped = count;
            }
            Ok(depths)
        };
        read().map_err(failed("read the queue"))
    }

    pub(crate) fn has_group(&self, id: &str) -> Result<bool, NotifyStoreError> {
        let query = "SELECT count(*) > 0 FROM groups WHERE id = ?1";
        let connection = self.connection();
        connection.query_row(query, [id], |row| row.get(0)).map_err(failed("read the groups"))
    }

    pub(crate) fn delivered(&self, id: i64, now: Timestamp) -> Result<(), NotifyStoreError> {
        self.end("delivered", DELIVERED_MAX, id, None, now)
    }

    pub(crate) fn undeliverable(
        &self,
        id: i64,
        failure: &DeliveryFailure,
        now: Timestamp,
    ) -> Result<(), NotifyStoreError> {
        self.end("undeliverable", UNDELIVERABLE_MAX, id, Some(failure), now)
    }

    fn end(
        &self,
        state: &str,
        most: u32,
        id: i64,
        failure: Option<&DeliveryFailure>,
        now: Timestamp,
    ) -> Result<(), NotifyStoreError> {
        let update = "UPDATE queue SET state = ?2, attempts = attempts + 1, ended_ms = ?3,
            next_ms = NULL, error_code = ?4, error_text = ?5 WHERE id = ?1";
        let (code, text) = error_columns(failure);
        let mut connection = self.connection();
        let run = |connection: &mut Connection| -> rusqlite::Result<()> {
            let transaction =
                connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            transaction.execute(update, params![id, state, now.as_millisecond(), code, text])?;
            let receiver = "SELECT receiver FROM queue WHERE id = ?1";
            let receiver: Option<String> =
                transaction.query_row(receiver, [id], |row| row.get(0)).optional()?;
            if let Some(receiver) = receiver {
                prune(&transaction, state, most, &receiver)?;
            }
            transaction.commit()
        };
        run(&mut connection).map_err(failed("update the queue"))
    }

    /// Records a failed attempt, and how long the next one waits.
    pub(crate) fn retry(
        &self,
        id: i64,
        failure: &DeliveryFailure,
        now: Timestamp,
        wait: Duration,
    ) -> Result<(), NotifyStoreError> {
        let update = "UPDATE queue SET attempts = attempts + 1, next_ms = ?2, error_code = ?3,
            error_text = ?4, reached_ms = coalesce(reached_ms, ?5), wait_ms = ?6
            WHERE id = ?1 AND state = 'waiting'";
        let wait = SignedDuration::try_from(wait).unwrap_or(SignedDuration::MAX);
        let next = now.checked_add(wait).unwrap_or(Timestamp::MAX);
        let wait_ms = i64::try_from(wait.as_millis()).unwrap_or(i64::MAX);
        let (code, text) = error_columns(Some(failure));
        let reached_ms = failure.reached_receiver.then(|| now.as_millisecond());
        let connection = self.connection();
        let row = params![id, next.as_millisecond(), code, text, reached_ms, wait_ms];
        connection.execute(update, row).map(drop).map_err(failed("update the queue"))
    }

    /// The number of notifications of a receiver that wait or are undeliverable. With a key, only
    /// that one.
    pub(crate) fn count_open(
        &self,
        receiver: &str,
        key: Option<&str>,
    ) -> Result<u64, NotifyStoreError> {
        let query = format!("SELECT count(*) FROM queue {OPEN}");
        let connection = self.connection();
        let count = connection.query_row(&query, params![receiver, key], |row| row.get(0));
        count.map_err(failed("read the queue"))
    }

    /// Makes notifications due now, also undeliverable ones. They keep their place in the queue.
    /// Without a key, drops those that would tell the receiver what is over: see [`Obsolete`].
    pub(crate) fn retry_now(
        &self,
        receiver: &str,
        key: Option<&str>,
    ) -> Result<Retried, NotifyStoreError> {
        let update = format!(
            "UPDATE queue SET state = 'waiting', next_ms = NULL, ended_ms = NULL,
                reached_ms = NULL, wait_ms = NULL {OPEN}"
        );
        let what = failed("update the queue");
        let mut connection = self.connection();
        let transaction =
            connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(&what)?;
        let obsolete = match key {
            Some(_) => Vec::new(),
            None => drop_obsolete(&transaction, receiver)?,
        };
        let due = transaction.execute(&update, params![receiver, key]).map_err(&what)?;
        transaction.commit().map_err(&what)?;
        for (message, reason) in &obsolete {
            tracing::warn!(
                receiver,
                key = message.notification.key,
                reason = reason.code(),
                "an undeliverable notification is dropped instead of retried"
            );
        }
        Ok(Retried { due: due as u64, obsolete: obsolete.len() as u64 })
    }

    /// Removes notifications that wait or are undeliverable.
    pub(crate) fn discard(
        &self,
        receiver: &str,
        key: Option<&str>,
    ) -> Result<u64, NotifyStoreError> {
        self.change_open(&format!("DELETE FROM queue {OPEN}"), receiver, key)
    }

    fn change_open(
        &self,
        statement: &str,
        receiver: &str,
        key: Option<&str>,
    ) -> Result<u64, NotifyStoreError> {
        let connection = self.connection();
        let changed = connection.execute(statement, params![receiver, key]);
        changed.map(|count| count as u64).map_err(failed("update the queue"))
    }
}

/// What became of the notifications that an operator retried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Retried {
    pub(crate) due: u64,
    /// How many were dropped.
    pub(crate) obsolete: u64,
}

/// Why an undeliverable notification is of no use any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Obsolete {
    /// It fires, but its group is over. Nothing would tell the receiver that it is.
    GroupEnded,
    /// The receiver got a later notification of its group, which this one would contradict.
    LaterDelivered,
}

impl Obsolete {
    fn code(self) -> &'static str {
        match self {
            Self::GroupEnded => "group-ended",
            Self::LaterDelivered => "later-delivered",
        }
    }
}

/// Removes the undeliverable notifications of a receiver that are obsolete, and returns them.
fn drop_obsolete(
    transaction: &Transaction<'_>,
    receiver: &str,
) -> Result<Vec<(QueuedMessage, Obsolete)>, NotifyStoreError> {
    let what = failed("read the queue");
    let texts = |query: &str| -> rusqlite::Result<Vec<String>> {
        transaction.prepare(query)?.query_map([], |row| row.get(0))?.collect()
    };
    let groups = texts("SELECT id FROM groups").map_err(&what)?;
    let groups: BTreeSet<String> = groups.into_iter().collect();
    let mut firing = BTreeSet::new();
    for incident in texts("SELECT value FROM incidents").map_err(&what)? {
        let incident: Incident = decode(&incident)?;
        firing.extend(incident.groups.into_keys().map(|id| id.0));
    }
    let in_state = |state: QueueState| -> Result<Vec<QueuedMessage>, NotifyStoreError> {
        let query = format!("{SELECT} WHERE receiver = ?1 AND state = ?2 ORDER BY id");
        let read = || -> rusqlite::Result<Vec<_>> {
            let row = params![receiver, state.code()];
            transaction.prepare(&query)?.query_map(row, message)?.collect()
        };
        read().map_err(&what)?.into_iter().collect()
    };
    // The last one of each group, because they are in order.
    let delivered: BTreeMap<String, i64> = in_state(QueueState::Delivered)?
        .into_iter()
        .map(|one| (one.notification.group, one.id))
        .collect();
    let reason = |one: &QueuedMessage| {
        let Notification { kind, status, group, .. } = &one.notification;
        if matches!(kind, NotificationKind::Notifier | NotificationKind::Test) {
            return None;
        }
        let has_later = delivered.get(group).is_some_and(|id| *id > one.id);
        match status {
            NotificationStatus::Firing if firing.contains(group) => None,
            NotificationStatus::Firing if !groups.contains(group) => Some(Obsolete::GroupEnded),
            _ => has_later.then_some(Obsolete::LaterDelivered),
        }
    };
    let undeliverable = in_state(QueueState::Undeliverable)?.into_iter();
    let obsolete: Vec<_> =
        undeliverable.filter_map(|one| reason(&one).map(|reason| (one, reason))).collect();
    for (one, _) in &obsolete {
        transaction
            .execute("DELETE FROM queue WHERE id = ?1", [one.id])
            .map_err(failed("update the queue"))?;
    }
    Ok(obsolete)
}

fn error_columns(failure: Option<&DeliveryFailure>) -> (Option<&str>, Option<&str>) {
    (failure.map(|failure| failure.code.as_str()), failure.map(|failure| failure.text.as_str()))
}

/// Selects the notifications of receiver `?1` that wait or are undeliverable, and have key `?2`
/// unless it is null.
const OPEN: &str = "WHERE receiver = ?1 AND state != 'delivered' AND (?2 IS NULL OR key = ?2)";

const SELECT: &str = "SELECT id, receiver, message, queued_ms, state, attempts, next_ms, error_code, error_text, summarised, reached_ms, wait_ms FROM queue";

fn message(row: &Row<'_>) -> rusqlite::Result<Result<QueuedMessage, NotifyStoreError>> {
    let (text, state): (String, String) = (row.get(2)?, row.get(4)?);
    let (id, receiver, queued_ms) = (row.get(0)?, row.get(1)?, row.get(3)?);
    let (attempts, next_ms): (u32, Option<i64>) = (row.get(5)?, row.get(6)?);
    let (code, error): (Option<String>, Option<String>) = (row.get(7)?, row.get(8)?);
    let (summarised, reached_ms): (u64, Option<i64>) = (row.get(9)?, row.get(10)?);
    let wait_ms: Option<u64> = row.get(11)?;
    let decoded = || {
        Ok(QueuedMessage {
            id,
            receiver,
            notification: decode(&text)?,
            queued: time(queued_ms),
            state: QueueState::parse(&state).ok_or(NotifyStoreError::Malformed)?,
            attempts,
            next: next_ms.map(time),
            error: code.map(|code| (code, error.unwrap_or_default())),
            wait: wait_ms.map(Duration::from_millis),
            summarised,
            reached: reached_ms.map(time),
        })
    };
    Ok(decoded())
}

fn time(ms: i64) -> Timestamp {
    Timestamp::from_millisecond(ms).unwrap_or(Timestamp::UNIX_EPOCH)
}

fn decode<T: DeserializeOwned>(text: &str) -> Result<T, NotifyStoreError> {
    serde_json::from_str(text).map_err(|_| NotifyStoreError::Malformed)
}

fn encode<T: Serialize>(value: &T) -> Result<String, NotifyStoreError> {
    serde_json::to_string(value).map_err(NotifyStoreError::Encode)
}

const INSERT_INCIDENT: &str = "INSERT OR REPLACE INTO incidents VALUES (?1, ?2)";

fn save_router(
    transaction: &Transaction<'_>,
    seq: u64,
    changes: &RouterChanges,
) -> Result<(), NotifyStoreError> {
    let what = failed("store the router's state");
    match &changes.head {
        Some(head) => transaction.execute(
            "INSERT OR REPLACE INTO router VALUES (1, ?1, ?2)",
            params![seq, encode(head)?],
        ),
        None => transaction.execute("UPDATE router SET seq = ?1", params![seq]),
    }
    .map_err(&what)?;
    for (key, incident) in &changes.incidents {
        let key = encode(key)?;
        match incident {
            Some(incident) => {
                let value = encode(incident)?;
                let insert = transaction.prepare_cached(INSERT_INCIDENT);
                insert.and_then(|mut insert| insert.execute(params![key, value]))
            }
            None => transaction.execute("DELETE FROM incidents WHERE key = ?1", params![key]),
        }
        .map_err(&what)?;
    }
    for (id, group) in &changes.groups {
        match group {
            Some(group) => transaction.execute(
                "INSERT OR REPLACE INTO groups VALUES (?1, ?2)",
                params![id.0, encode(group)?],
            ),
            None => transaction.execute("DELETE FROM groups WHERE id = ?1", params![id.0]),
        }
        .map_err(&what)?;
    }
    Ok(())
}

/// What became of a notification that was to be queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Queued {
    /// It is in the queue, or counted in a summary.
    Added,
    /// It was in the queue already.
    Known,
    /// The queue has another notification with its key. A receiver would drop it as a duplicate.
    KeyInUse,
}

/// Adds a notification. One with a known key is already there. If the queue of the receiver is
/// full, the notification is counted in a summary at the end of the queue.
fn enqueue(
    transaction: &Transaction<'_>,
    message: &Outgoing,
    now: Timestamp,
) -> Result<Queued, NotifyStoreError> {
    let what = failed("queue a notification");
    let Outgoing { receiver, notification } = message;
    let query = "SELECT count(*), (SELECT message FROM queue WHERE key = ?2) FROM queue
        WHERE receiver = ?1 AND state = 'waiting'";
    let (waiting, known): (u32, Option<String>) = transaction
        .query_row(query, params![receiver, notification.key], |row| Ok((row.get(0)?, row.get(1)?)))
        .map_err(&what)?;
    if let Some(known) = known {
        let is_same = decode::<Notification>(&known)? == *notification;
        return Ok(if is_same { Queued::Known } else { Queued::KeyInUse });
    }
    if waiting >= WAITING_MAX {
        return summarise(transaction, message, now).map(|()| Queued::Added);
    }
    let insert = "INSERT INTO queue (receiver, key, message, queued_ms) VALUES (?1, ?2, ?3, ?4)";
    let row = params![receiver, notification.key, encode(notification)?, now.as_millisecond()];
    transaction.execute(insert, row).map(|_| Queued::Added).map_err(what)
}

/// Counts a notification in the summary at the end of the queue, or adds one there. An earlier
/// summary may be in delivery, and what came after it would be counted out of order.
fn summarise(
    transaction: &Transaction<'_>,
    message: &Outgoing,
    now: Timestamp,
) -> Result<(), NotifyStoreError> {
    let what = failed("summarise notifications");
    let Outgoing { receiver, notification } = message;
    let query = "SELECT id, key, summarised, message FROM
        (SELECT * FROM queue WHERE receiver = ?1 AND state = 'waiting' ORDER BY id DESC LIMIT 1)
        WHERE summarised > 0 AND attempts = 0";
    let open = transaction
        .query_row(query, [receiver], |row| {
            Ok((
                row.get::<_, i64>(0)?,
                row.get::<_, String>(1)?,
                row.get::<_, u64>(2)?,
                row.get::<_, String>(3)?,
            ))
        })
        .optional()
        .map_err(&what)?;
    let worst = |other: Severity| other.max(notification.severity);
    if let Some((id, key, count, text)) = open {
        let before: Notification = decode(&text)?;
        let (count, at) = (count + 1, before.at);
        let summary = Notification::summary(key, count, worst(before.severity), at);
        let update = "UPDATE queue SET message = ?2, summarised = ?3 WHERE id = ?1";
        transaction.execute(update, params![id, encode(&summary)?, count]).map_err(&what)?;
        return Ok(());
    }
    let key = format!("summary-{}", notification.key);
    let summary = Notification::summary(key.clone(), 1, notification.severity, now);
    let insert = "INSERT OR IGNORE INTO queue (receiver, key, message, queued_ms, summarised)
        VALUES (?1, ?2, ?3, ?4, 1)";
    let row = params![receiver, key, encode(&summary)?, now.as_millisecond()];
    transaction.execute(insert, row).map(drop).map_err(what)
}

/// Gives up what waits for receivers that the policy does not have. Returns how many of each.
fn give_up_removed(
    transaction: &Transaction<'_>,
    policy: &NotificationPolicy,
    now: Timestamp,
) -> rusqlite::Result<Vec<(String, usize)>> {
    let query = "SELECT DISTINCT receiver FROM queue WHERE state = 'waiting'";
    let mut select = transaction.prepare(query)?;
    let waiting: Vec<String> = select.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
    let update = "UPDATE queue SET state = 'undeliverable', ended_ms = ?2, next_ms = NULL,
        error_code = ?3, error_text = ?4 WHERE receiver = ?1 AND state = 'waiting'";
    let removed = DeliveryFailure::receiver_removed();
    let mut given_up = Vec::new();
    for name in waiting.into_iter().filter(|name| !policy.receivers.contains_key(name)) {
        let row = params![name, now.as_millisecond(), removed.code, removed.text];
        let count = transaction.execute(update, row)?;
        prune(transaction, "undeliverable", UNDELIVERABLE_MAX, &name)?;
        given_up.push((name, count));
    }
    Ok(given_up)
}

/// Removes the oldest notifications that ended like this. By receiver, so that one receiver does not
/// push out the notifications of another.
fn prune(
    transaction: &Transaction<'_>,
    state: &str,
    most: u32,
    receiver: &str,
) -> rusqlite::Result<()> {
    let prune = "DELETE FROM queue WHERE state = ?1 AND receiver = ?3
        AND id NOT IN (SELECT id FROM queue WHERE state = ?1 AND receiver = ?3
            ORDER BY id DESC LIMIT ?2)";
    let count = transaction.execute(prune, params![state, most, receiver])?;
    if count > 0 && state == "undeliverable" {
        let add = "INSERT INTO dropped VALUES (?1, ?2)
            ON CONFLICT (receiver) DO UPDATE SET count = count + excluded.count";
        transaction.execute(add, params![receiver, count as u64])?;
    }
    Ok(())
}

fn record_gap(transaction: &Transaction<'_>, gap: &LogGap) -> rusqlite::Result<()> {
    let insert = "INSERT INTO gaps (at_ms, after_seq, end_seq, cause) VALUES (?1, ?2, ?3, ?4)";
    let row = params![gap.at.as_millisecond(), gap.after_seq, gap.end_seq, gap.cause.code()];
    transaction.execute(insert, row)?;
    let prune = "DELETE FROM gaps WHERE id NOT IN (SELECT id FROM gaps ORDER BY id DESC LIMIT ?1)";
    transaction.execute(prune, [GAPS_MAX]).map(drop)
}

fn prepare(connection: &mut Connection) -> rusqlite::Result<(i64, i64)> {
    connection.busy_timeout(Duration::from_secs(10))?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let tables: i64 =
        transaction.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    if tables == 0 {
        transaction.execute_batch(TABLES)?;
        transaction.execute_batch(ADDED_IN_3)?;
        transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
        transaction.pragma_update(None, "user_version", FORMAT)?;
    } else if let (APPLICATION_ID, format @ (1 | 2)) = pragmas(&transaction)? {
        if format == 1 {
            transaction.execute_batch(UPGRADE_FROM_1)?;
        }
        transaction.execute_batch(UPGRADE_FROM_2)?;
        transaction.execute_batch(ADDED_IN_3)?;
        transaction.pragma_update(None, "user_version", FORMAT)?;
    }
    transaction.commit()?;
    pragmas(connection)
}

/// Application and version of the tables.
fn pragmas(connection: &Connection) -> rusqlite::Result<(i64, i64)> {
    let pragma = |name| connection.pragma_query_value(None, name, |row| row.get(0));
    Ok((pragma("application_id")?, pragma("user_version")?))
}

#[cfg(test)]
mod tests;
