//! The access store: tokens and identities in one SQLite file. Each change is one transaction with
//! full sync, so a crash cannot make a token reusable.

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use farrier_fleet::fleet::identity::Actor;
use farrier_fleet::fleet::{AccessChange, Domain, Location, NodeId, Pool};
use farrier_wire::identity::Identity;
use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, TransactionBehavior, params};

use super::changes::local;
use super::name_lock::NameLocks;
use super::token::{AccessTokenKind, Secret};
use crate::log::sqlite::open_private;

/// Version of the tables.
const FORMAT: i64 = 4;
/// `fsta`: distinguishes an access store from other SQLite databases.
const APPLICATION_ID: i64 = 0x6673_7461;

/// `kind` tells join tokens from user tokens. A user token has the role and the scope of its user.
/// A join token has the scope of its creator.
const TABLES: &str = "
CREATE TABLE tokens (
    id INTEGER PRIMARY KEY, digest BLOB NOT NULL UNIQUE, kind TEXT NOT NULL, name TEXT,
    pool TEXT, node TEXT, role TEXT, scope TEXT,
    made_s INTEGER NOT NULL, expires_s INTEGER NOT NULL, uses_left INTEGER, revoked_s INTEGER);
CREATE TABLE joins (token INTEGER NOT NULL, node TEXT NOT NULL, key BLOB NOT NULL, at_s INTEGER NOT NULL,
    generation INTEGER NOT NULL, PRIMARY KEY (token, node, key));
CREATE TABLE identities (node TEXT PRIMARY KEY, generation INTEGER NOT NULL, revoked_s INTEGER);
";

/// Since format 2: the changes that are copied into the log.
const TABLES_2: &str = "
CREATE TABLE changes (number INTEGER PRIMARY KEY AUTOINCREMENT, by TEXT NOT NULL, at_s INTEGER NOT NULL, what TEXT NOT NULL);
";

/// Since format 3: the location of a join token as JSON. NULL if the token gives only a pool.
const TABLES_3: &str = "ALTER TABLE tokens ADD COLUMN place TEXT;";

/// Since format 4: the pool of a node's last enrolment, until the node is retired, and the table of
/// the server's last start.
const TABLES_4: &str = "
ALTER TABLE identities ADD COLUMN pool TEXT;
CREATE TABLE last_start (id INTEGER PRIMARY KEY CHECK (id = 1), seq INTEGER, hash BLOB, authority TEXT NOT NULL);
";

#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    #[error("failed to {what}")]
    Sqlite {
        /// The operation.
        what: &'static str,
        #[source]
        err: rusqlite::Error,
    },
    /// With this store, revoked certificates and tokens would become valid again.
    #[error(
        "the access store ends at change {found}, but the log has change {logged}: the store was lost or is an older copy, and revoked certificates and tokens would become valid again"
    )]
    Behind { found: u64, logged: u64 },
    #[error("change {0} of the access store differs from the log: it is the store of another log")]
    Diverged(u64),
    #[error(
        "the server last used this access store with another log: entry {0} of the log differs"
    )]
    OtherLog(u64),
    #[error("the file `access` is not an access store, or was written by a later version")]
    UnknownFormat,
    #[error("the system provides no random numbers")]
    Random,
    #[error("`{0}` was never enrolled")]
    NoSuchNode(NodeId),
    #[error("there is no token {0}")]
    NoSuchToken(i64),
}

/// A join token to create.
#[derive(Debug, Clone)]
pub struct NewJoinToken {
    /// Location of the nodes that join with the token.
    pub location: Location,
    /// The only node that may use the token. That node may use it even if it is already enrolled.
    pub node: Option<NodeId>,
    /// Scope of the creator. Only a token whose creator has the whole fleet as scope can move a
    /// node to another pool.
    pub scope: Domain,
    pub expires: Timestamp,
    pub uses: u32,
}

impl NewJoinToken {
    /// Creates a request for a token that can be used once, in a pool. Its scope is the whole
    /// fleet.
    pub fn new(pool: Pool, expires: Timestamp) -> Self {
        Self {
            location: Location::in_pool(pool),
            node: None,
            scope: Domain::Fleet,
            expires,
            uses: 1,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinTokenRow {
    pub id: i64,
    pub pool: Option<String>,
    /// `None` if the token gives only a pool.
    pub location: Option<Location>,
    /// The only node that may use the token.
    pub node: Option<String>,
    pub expires: Timestamp,
    pub uses_left: u32,
    pub is_revoked: bool,
}

impl JoinTokenRow {
    /// `open`, `used`, `expired` or `revoked`.
    pub fn state(&self, now: Timestamp) -> &'static str {
        match (self.is_revoked, self.expires <= now, self.uses_left) {
            (true, _, _) => "revoked",
            (_, true, _) => "expired",
            (_, _, 0) => "used",
            _ => "open",
        }
    }
}

#[derive(Debug)]
pub struct AccessStore {
    connection: Mutex<Connection>,
    /// Held while a node enrols or is retired.
    pub(crate) names: NameLocks,
}

pub(super) fn failed(what: &'static str) -> impl Fn(rusqlite::Error) -> AccessError {
    move |err| AccessError::Sqlite { what, err }
}

impl AccessStore {
    /// Opens the store in the data directory, or creates it.
    pub fn open(dir: &Path) -> Result<Self, AccessError> {
        let path = dir.join("access");
        let what = failed("open the access store");
        let mut connection = open_private(&path).map_err(&what)?;
        let found = prepare(&mut connection).map_err(&what)?;
        if found != (APPLICATION_ID, FORMAT) {
            return Err(AccessError::UnknownFormat);
        }
        Ok(Self { connection: Mutex::new(connection), names: NameLocks::default() })
    }

    pub(super) fn connection(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Creates a join token as the local user.
    pub fn create(&self, request: &NewJoinToken, now: Timestamp) -> Result<Secret, AccessError> {
        self.create_by(&local(), request, now).map(|(_, secret)| secret)
    }

    /// Creates a join token. Returns its number and secret.
    pub fn create_by(
        &self,
        by: &Actor,
        request: &NewJoinToken,
        now: Timestamp,
    ) -> Result<(i64, Secret), AccessError> {
        let secret = Secret::generate(AccessTokenKind::Join).ok_or(AccessError::Random)?;
        let insert =
            "INSERT INTO tokens (digest, kind, pool, node, made_s, expires_s, uses_left, scope, place)
            VALUES (?1, 'join', ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
        let node = request.node.as_ref().map(NodeId::as_str);
        let location = Some(&request.location).filter(|location| location.has_more_than_pool());
        let row = params![
            secret.digest().0,
            request.location.pool.as_str(),
            node,
            now.as_second(),
            request.expires.as_second(),
            request.uses,
            String::from(request.scope.clone()),
            location.and_then(|location| serde_json::to_string(location).ok())
        ];
        let id = self.change("store the token", by, now, |transaction| {
            transaction.execute(insert, row)?;
            let token = transaction.last_insert_rowid();
            let what = AccessChange::JoinTokenCreated {
                token,
                pool: request.location.pool.clone(),
                node: request.node.clone(),
                uses: request.uses,
                expires: request.expires,
                location: location.cloned().map(Box::new),
            };
            Ok(Some((token, what)))
        })?;
        Ok((id.unwrap_or_default(), secret))
    }

    /// All join tokens, oldest first.
    pub fn list(&self) -> Result<Vec<JoinTokenRow>, AccessError> {
        let query = "SELECT id, pool, node, expires_s, uses_left, revoked_s, place FROM tokens
            WHERE kind = 'join' ORDER BY id";
        let read = |connection: &Connection| {
            let mut select = connection.prepare(query)?;
            let rows = select.query_map([], |row| {
                Ok(JoinTokenRow {
                    id: row.get(0)?,
                    pool: row.get(1)?,
                    node: row.get(2)?,
                    expires: Timestamp::from_second(row.get(3)?).unwrap_or(Timestamp::MIN),
                    uses_left: row.get::<_, Option<u32>>(4)?.unwrap_or_default(),
                    is_revoked: row.get::<_, Option<i64>>(5)?.is_some(),
                    location: parse_location(row.get(6)?),
                })
            })?;
            rows.collect::<rusqlite::Result<Vec<_>>>()
        };
        read(&self.connection()).map_err(failed("read the tokens"))
    }

    /// Revokes a join token as the local user.
    pub fn revoke_token(&self, id: i64, now: Timestamp) -> Result<(), AccessError> {
        self.revoke_token_by(&local(), AccessTokenKind::Join, id, now)
    }

    /// Revokes a token. Has no effect if the token is already revoked.
    pub fn revoke_token_by(
        &self,
        by: &Actor,
        kind: AccessTokenKind,
        id: i64,
        now: Timestamp,
    ) -> Result<(), AccessError> {
        let kind = if kind == AccessTokenKind::Join { "join" } else { "person" };
        let found = "SELECT name, revoked_s IS NOT NULL FROM tokens WHERE id = ?1 AND kind = ?2";
        let mut exists = false;
        self.change("revoke the token", by, now, |transaction| {
            let row = transaction.query_row(found, params![id, kind], |row| {
                Ok((row.get::<_, Option<String>>(0)?, row.get::<_, bool>(1)?))
            });
            let Some((name, was_revoked)) = row.optional()? else { return Ok(None) };
            exists = true;
            if was_revoked {
                return Ok(None);
            }
            let update = "UPDATE tokens SET revoked_s = ?2 WHERE id = ?1";
            transaction.execute(update, params![id, now.as_second()])?;
            Ok(Some(((), AccessChange::TokenRevoked { token: id, name })))
        })?;
        if exists { Ok(()) } else { Err(AccessError::NoSuchToken(id)) }
    }

    /// Whether a certificate is valid: it belongs to the node's last enrolment and was not revoked.
    pub fn admits(&self, identity: &Identity) -> Result<bool, AccessError> {
        let oldest = self.oldest_admitted(&identity.node)?;
        // If `oldest` is `None`, the authority has signed this certificate, but the store does not
        // have the node. The store then comes from an older backup, and the certificate is
        // accepted.
        Ok(oldest.is_none_or(|generation| identity.generation >= generation))
    }

    /// The oldest certificate generation of a node that is still valid. `None` if the node never
    /// enrolled.
    pub(crate) fn oldest_admitted(&self, node: &NodeId) -> Result<Option<u64>, AccessError> {
        let query = "SELECT generation FROM identities WHERE node = ?1";
        let connection = self.connection();
        let read = || {
            connection
                .prepare_cached(query)?
                .query_row([node.as_str()], |row| row.get(0))
                .optional()
        };
        read().map_err(failed("look up the node"))
    }

    /// Revokes a node's certificates as the local user.
    pub fn revoke(&self, node: &NodeId, now: Timestamp) -> Result<(), AccessError> {
        self.revoke_by(&local(), node, now)
    }

    /// Revokes a node's certificates.
    pub fn revoke_by(&self, by: &Actor, node: &NodeId, now: Timestamp) -> Result<(), AccessError> {
        let update =
            "UPDATE identities SET generation = generation + 1, revoked_s = ?2 WHERE node = ?1";
        let done = self.change("revoke the node's certificate", by, now, |transaction| {
            let changed = transaction.execute(update, params![node.as_str(), now.as_second()])?;
            let what = AccessChange::CertificateRevoked { node: node.clone() };
            Ok((changed == 1).then_some(((), what)))
        })?;
        done.ok_or_else(|| AccessError::NoSuchNode(node.clone()))
    }

    /// The pool for which a name is reserved.
    pub(crate) fn name_held_by(&self, node: &NodeId) -> Result<Option<Pool>, AccessError> {
        let query = "SELECT pool FROM identities WHERE node = ?1";
        let row = |row: &rusqlite::Row<'_>| row.get::<_, Option<String>>(0);
        let pool = self.connection().query_row(query, [node.as_str()], row).optional();
        let pool = pool.map_err(failed("look up the node's name"))?;
        Ok(pool.flatten().and_then(|pool| pool.parse().ok()))
    }

    /// Frees the name of a retired node.
    pub fn free_name(&self, node: &NodeId) -> Result<(), AccessError> {
        let update = "UPDATE identities SET pool = NULL WHERE node = ?1";
        let freed = self.connection().execute(update, [node.as_str()]);
        freed.map(drop).map_err(failed("free the node's name"))
    }

    /// Frees the names of nodes that the fleet does not have. A crash during enrolment or
    /// retirement can leave such names reserved.
    pub fn free_names(&self, is_member: impl Fn(&NodeId) -> bool) -> Result<(), AccessError> {
        let query = "SELECT node FROM identities WHERE pool IS NOT NULL";
        let names = || -> rusqlite::Result<Vec<String>> {
            self.connection().prepare(query)?.query_map([], |row| row.get(0))?.collect()
        };
        let names = names().map_err(failed("read the names of nodes"))?;
        let nodes = names.iter().filter_map(|name| name.parse().ok());
        nodes.filter(|node| !is_member(node)).try_for_each(|node| self.free_name(&node))
    }
}

pub(super) fn parse_location(text: Option<String>) -> Option<Location> {
    text.and_then(|json| serde_json::from_str(&json).ok())
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
        transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
        transaction.pragma_update(None, "user_version", 1)?;
    }
    let found: (i64, i64) = (
        transaction.pragma_query_value(None, "application_id", |row| row.get(0))?,
        transaction.pragma_query_value(None, "user_version", |row| row.get(0))?,
    );
    for (format, tables) in [(1, TABLES_2), (2, TABLES_3), (3, TABLES_4)] {
        if found.0 == APPLICATION_ID && (1..=format).contains(&found.1) {
            transaction.execute_batch(tables)?;
            transaction.pragma_update(None, "user_version", format + 1)?;
        }
    }
    transaction.commit()?;
    let pragma = |name| connection.pragma_query_value(None, name, |row| row.get(0));
    Ok((pragma("application_id")?, pragma("user_version")?))
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;

    fn now() -> Timestamp {
        "2026-11-15T00:00:00Z".parse().unwrap()
    }

    fn node(name: &str) -> NodeId {
        name.parse().unwrap()
    }

    fn request(uses: u32) -> NewJoinToken {
        let expires = now() + SignedDuration::from_hours(1);
        NewJoinToken { uses, ..NewJoinToken::new("train".parse().unwrap(), expires) }
    }

    fn store() -> (tempfile::TempDir, AccessStore) {
        let folder = tempfile::tempdir().unwrap();
        let store = AccessStore::open(folder.path()).unwrap();
        (folder, store)
    }

    #[test]
    fn changes_of_other_processes_apply_and_other_files_are_refused() {
        let (folder, store) = store();
        let token = store.create(&request(1), now()).unwrap().digest();
        let identity = store.join(&token, &node("a"), b"key", None, now()).unwrap().identity;
        AccessStore::open(folder.path()).unwrap().revoke(&node("a"), now()).unwrap();
        assert!(!store.admits(&identity).unwrap());
        let other = tempfile::tempdir().unwrap();
        let file = Connection::open(other.path().join("access")).unwrap();
        file.execute_batch("CREATE TABLE mine (a)").unwrap();
        assert!(matches!(AccessStore::open(other.path()), Err(AccessError::UnknownFormat)));
    }

    #[test]
    fn a_store_is_not_created_through_a_dangling_symlink() {
        let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let target = elsewhere.path().join("target");
        std::os::unix::fs::symlink(&target, folder.path().join("access")).unwrap();
        assert!(AccessStore::open(folder.path()).is_err());
        assert!(!target.exists());
    }
}
