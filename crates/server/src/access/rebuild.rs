//! Rebuilds a lost or outdated access store by repeating the changes in the log. The log has no
//! hashes of tokens. Tokens that only the lost store had therefore become invalid.

use farrier_fleet::fleet::identity::Actor;
use farrier_fleet::fleet::{AccessChange, Domain, Event, Location, NodeId, Role};
use jiff::Timestamp;
use rusqlite::{Transaction, TransactionBehavior, params};

use super::changes::{AccessRecord, record_change};
use super::last_start::clear_log;
use super::store::{AccessError, AccessStore, failed};
use crate::log::{Log, LogError};

/// The generation of a node after a revocation, if the log lacks the enrolment that was revoked.
/// This generation is higher than any that was issued.
const AFTER_UNKNOWN: u64 = 1 << 32;
/// Entries per read.
const PAGE: usize = 4096;

/// A valid token that cannot be restored, because only the store had its hash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LostToken {
    User {
        name: String,
        role: Role,
        scope: Domain,
    },
    Join {
        location: Location,
        /// The only node that may use the token. `None` if any node may.
        node: Option<NodeId>,
        /// How often the token may still be used.
        uses: u32,
        /// Who created the token. The log does not have the scope of the creator. That scope limits
        /// what a token for one node may do.
        by: Actor,
    },
}

#[derive(Debug, Default, PartialEq, Eq)]
pub struct RebuildSummary {
    /// The number of changes that the store lacked.
    pub changes: u64,
    /// Nodes without a valid certificate.
    pub revoked: Vec<NodeId>,
    /// Lost tokens with their numbers. They have to be created again.
    pub lost: Vec<(i64, LostToken)>,
}

/// The changes of the access store that these logs contain, in order.
pub fn changes_in(logs: &[&dyn Log]) -> Result<Vec<AccessRecord>, LogError> {
    let mut changes = Vec::new();
    for log in logs {
        let mut seq = log.anchor()?.seq;
        loop {
            let page = log.read(seq, PAGE)?;
            let Some(last) = page.last() else { break };
            seq = last.seq;
            for stored in &page {
                let entry = stored.entry()?;
                if let Event::AccessChanged { number, at, change } = entry.event {
                    changes.push(AccessRecord { number, by: entry.by, at, change });
                }
            }
        }
    }
    Ok(changes)
}

impl AccessStore {
    /// Applies all changes that the log has and this store lacks. Either all of them are applied,
    /// or none.
    pub fn rebuild(
        &self,
        logged: &[AccessRecord],
        now: Timestamp,
    ) -> Result<RebuildSummary, AccessError> {
        let last = self.last_change()?;
        let known = self.all_changes()?;
        for change in logged.iter().filter(|change| change.number <= last) {
            let is_same = |other: &AccessRecord| {
                other.number == change.number && other.change == change.change
            };
            let found_at = known.binary_search_by_key(&change.number, |change| change.number);
            if found_at.is_ok_and(|at| !is_same(&known[at])) {
                return Err(AccessError::Diverged(change.number));
            }
        }
        let what = failed("rebuild the access store");
        let mut connection = self.connection();
        let mut rebuilt = || -> rusqlite::Result<RebuildSummary> {
            let transaction =
                connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let mut rebuilt = RebuildSummary::default();
            for change in logged.iter().filter(|change| change.number > last) {
                apply(&transaction, change, now, &mut rebuilt)?;
                record_change(
                    &transaction,
                    Some(change.number),
                    &change.by,
                    change.at,
                    &change.change,
                )?;
                rebuilt.changes += 1;
            }
            rebuilt.revoked = revoked(&transaction)?;
            // The store now belongs to this log, even if the server used the store with another log
            // before.
            clear_log(&transaction)?;
            transaction.commit()?;
            Ok(rebuilt)
        };
        rebuilt().map_err(what)
    }

    fn all_changes(&self) -> Result<Vec<AccessRecord>, AccessError> {
        let mut all: Vec<AccessRecord> = Vec::new();
        loop {
            let page = self.changes(all.last().map_or(0, |entry| entry.number))?;
            if page.is_empty() {
                return Ok(all);
            }
            all.extend(page);
        }
    }
}

fn apply(
    transaction: &Transaction<'_>,
    change: &AccessRecord,
    now: Timestamp,
    rebuilt: &mut RebuildSummary,
) -> rusqlite::Result<()> {
    let at_s = change.at.as_second();
    match &change.change {
        AccessChange::NodeEnrolled { node, token, generation } => {
            let identity = "INSERT OR REPLACE INTO identities (node, generation, revoked_s) VALUES (?1, ?2, NULL)";
            transaction.execute(identity, params![node.as_str(), generation])?;
            let used = "UPDATE tokens SET uses_left = max(uses_left - 1, 0) WHERE id = ?1";
            transaction.execute(used, [token])?;
            rebuilt.lost.retain_mut(|(id, lost)| match lost {
                LostToken::Join { uses, .. } if id == token => {
                    *uses = uses.saturating_sub(1);
                    *uses > 0
                }
                _ => true,
            });
        }
        AccessChange::CertificateRevoked { node } => {
            let revoke = "INSERT INTO identities (node, generation, revoked_s) VALUES (?1, ?2, ?3)
                ON CONFLICT (node) DO UPDATE SET generation = generation + 1, revoked_s = ?3";
            transaction.execute(revoke, params![node.as_str(), AFTER_UNKNOWN, at_s])?;
        }
        AccessChange::TokenRevoked { token, .. } => {
            let revoke = "UPDATE tokens SET revoked_s = coalesce(revoked_s, ?2) WHERE id = ?1";
            transaction.execute(revoke, params![token, at_s])?;
            rebuilt.lost.retain(|(lost, _)| lost != token);
        }
        AccessChange::JoinTokenCreated { token, pool, node, uses, expires, location } => {
            let location =
                location.as_deref().cloned().unwrap_or_else(|| Location::in_pool(pool.clone()));
            let (node, by) = (node.clone(), change.by.clone());
            let lost = LostToken::Join { location, node, uses: *uses, by };
            insert_lost(transaction, *token, &lost, (at_s, *expires, now))?;
            rebuilt.lost.extend((*expires > now).then_some((*token, lost)));
        }
        AccessChange::UserAdded { token, name, role, scope, expires } => {
            let lost = LostToken::User { name: name.clone(), role: *role, scope: scope.clone() };
            insert_lost(transaction, *token, &lost, (at_s, *expires, now))?;
            rebuilt.lost.extend((*expires > now).then_some((*token, lost)));
        }
    }
    Ok(())
}

/// Inserts a lost token, so that no other token gets its number. The token is invalid: it gets a
/// random hash and is revoked.
fn insert_lost(
    transaction: &Transaction<'_>,
    id: i64,
    lost: &LostToken,
    (made_s, expires, now): (i64, Timestamp, Timestamp),
) -> rusqlite::Result<()> {
    let insert = "INSERT INTO tokens (id, digest, kind, name, role, scope, pool, node, place, made_s, expires_s, uses_left, revoked_s)
        VALUES (?1, randomblob(32), ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, 0, ?11)";
    let times = (made_s, expires.as_second(), now.as_second());
    match lost {
        LostToken::User { name, role, scope } => {
            let (role, scope) = (role.as_str(), String::from(scope.clone()));
            let nothing = None::<String>;
            let row = params![
                id, "person", name, role, scope, nothing, nothing, nothing, times.0, times.1,
                times.2
            ];
            transaction.execute(insert, row).map(drop)
        }
        LostToken::Join { location, node, .. } => {
            let (pool, node) = (location.pool.as_str(), node.as_ref().map(NodeId::as_str));
            let location = Some(location).filter(|location| location.has_more_than_pool());
            let location = location.and_then(|location| serde_json::to_string(location).ok());
            let nothing = None::<String>;
            let row = params![
                id, "join", nothing, nothing, nothing, pool, node, location, times.0, times.1,
                times.2
            ];
            transaction.execute(insert, row).map(drop)
        }
    }
}

fn revoked(transaction: &Transaction<'_>) -> rusqlite::Result<Vec<NodeId>> {
    let query = "SELECT node FROM identities WHERE revoked_s IS NOT NULL ORDER BY node";
    let mut select = transaction.prepare(query)?;
    let names = select.query_map([], |row| row.get::<_, String>(0))?;
    let nodes = names.filter_map(|name| name.map(|name| name.parse().ok()).transpose());
    nodes.collect()
}

#[cfg(test)]
mod tests {
    use farrier_wire::identity::Identity;
    use jiff::SignedDuration;

    use super::super::{AccessTokenKind, NewJoinToken, NewUser};
    use super::*;

    fn now() -> Timestamp {
        "2026-11-15T00:00:00Z".parse().unwrap()
    }

    fn identity(node: &str, generation: u64) -> Identity {
        Identity { node: node.parse().unwrap(), generation }
    }

    struct Stores {
        _folders: [tempfile::TempDir; 2],
        store: AccessStore,
        other: AccessStore,
    }

    fn stores() -> Stores {
        let folders = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let [store, other] =
            folders.each_ref().map(|folder| AccessStore::open(folder.path()).unwrap());
        Stores { _folders: folders, store, other }
    }

    #[test]
    fn a_rebuild_repeats_revocations_and_invalidates_lost_tokens() {
        let Stores { _folders, store, other } = stores();
        let ann = Actor::User("ann".to_owned());
        let day = now() + SignedDuration::from_hours(24);
        let pool = NewJoinToken { uses: 9, ..NewJoinToken::new("train".parse().unwrap(), day) };
        let (_, pool) = store.create_by(&ann, &pool, now()).unwrap();
        let join = |store: &AccessStore, node: &str, key: &[u8]| {
            store.join(&pool.digest(), &node.parse().unwrap(), key, None, now())
        };
        for node in ["kept", "gone", "again"] {
            join(&store, node, node.as_bytes()).unwrap();
        }
        for node in ["gone", "again"] {
            store.revoke_by(&ann, &node.parse().unwrap(), now()).unwrap();
        }
        let again = join(&store, "again", b"new").unwrap().identity;
        assert_eq!(again.generation, 3);
        let viewer = NewUser::new("vic", Role::Viewer, Domain::Fleet, day).unwrap();
        let (_, secret) = store.add_user(&ann, &viewer, now()).unwrap();
        let (old, _) = store.add_user(&ann, &viewer, now()).unwrap();
        store.revoke_token_by(&ann, AccessTokenKind::User, old, now()).unwrap();

        let logged = store.changes(0).unwrap();
        let rebuilt = other.rebuild(&logged, now()).unwrap();
        assert_eq!(rebuilt.changes, logged.len() as u64);
        assert_eq!(rebuilt.revoked, ["gone".parse::<NodeId>().unwrap()]);
        let lost: Vec<i64> = rebuilt.lost.iter().map(|(id, _)| *id).collect();
        assert_eq!(lost, [1, 2], "{:?}", rebuilt.lost);
        assert!(matches!(&rebuilt.lost[0].1, LostToken::Join { uses: 5, by, .. } if *by == ann));
        for (identity, admits) in [
            (identity("kept", 1), true),
            (identity("gone", 1), false),
            (identity("again", 1), false),
            (identity("again", 2), false),
            (again, true),
        ] {
            assert_eq!(store.admits(&identity).unwrap(), admits, "{identity}");
            assert_eq!(other.admits(&identity).unwrap(), admits, "{identity}");
        }
        assert_eq!(other.user(&secret.digest(), now()).unwrap(), None);
        assert!(join(&other, "new", b"x").is_err());
        assert_eq!(other.last_change().unwrap(), store.last_change().unwrap());
        // Token numbers continue, and a second rebuild changes nothing.
        let (next, _) = other.add_user(&ann, &viewer, now()).unwrap();
        assert_eq!(next, old + 1);
        let nothing = other.rebuild(&logged, now()).unwrap();
        assert_eq!((nothing.changes, nothing.lost), (0, Vec::new()));
    }

    #[test]
    fn a_revocation_without_a_known_generation_refuses_all_generations() {
        let Stores { _folders, other, .. } = stores();
        let what = AccessChange::CertificateRevoked { node: "a".parse().unwrap() };
        let change = AccessRecord { number: 4, by: Actor::Server, at: now(), change: what };
        other.rebuild(&[change], now()).unwrap();
        for generation in [1, 7, 1 << 20] {
            assert!(!other.admits(&identity("a", generation)).unwrap());
        }
    }

    #[test]
    fn the_store_of_another_log_is_refused() {
        let Stores { _folders, store, other } = stores();
        let ann = Actor::User("ann".to_owned());
        for (store, pool) in [(&store, "train"), (&other, "serve")] {
            let request =
                NewJoinToken::new(pool.parse().unwrap(), now() + SignedDuration::from_hours(1));
            store.create_by(&ann, &request, now()).unwrap();
        }
        let refused = other.rebuild(&store.changes(0).unwrap(), now());
        assert!(matches!(refused, Err(AccessError::Diverged(1))), "{refused:?}");
    }
}
