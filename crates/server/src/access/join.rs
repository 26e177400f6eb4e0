//! Join tokens. They decide which node may enrol under a name, and at which location.

use farrier_fleet::fleet::identity::Actor;
use farrier_fleet::fleet::{AccessChange, Domain, Location, NodeId, Pool};
use farrier_wire::identity::Identity;
use jiff::Timestamp;
use rusqlite::{OptionalExtension, Transaction, TransactionBehavior, params};

use super::changes::record_change;
use super::store::{AccessError, AccessStore, failed, parse_location};
use super::token::TokenDigest;

/// Why a node may not join. All problems with a token give the same error, so that a caller cannot
/// find out which tokens exist.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    #[error("the token is invalid: it is wrong, used up, expired, revoked or for another node")]
    Token,
    #[error("`{0}` is already enrolled")]
    Taken(NodeId),
    #[error(transparent)]
    Access(#[from] AccessError),
}

/// An accepted enrolment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Joined {
    /// The identity that the certificates of the node will have.
    pub identity: Identity,
    /// The location that the token assigns.
    pub location: Location,
    /// How much of the token's location replaces the location of a node that is already enrolled.
    pub location_update: LocationUpdate,
}

/// What an enrolment changes in the location of a node that is already enrolled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LocationUpdate {
    /// Nothing changes: an earlier enrolment set the location, and an operator may have changed it
    /// since.
    Keep,
    /// Everything but the pool.
    WithinPool,
    /// Everything, including the pool.
    Full,
}

impl AccessStore {
    /// Redeems a token for a node and its key. If the node is already enrolled, `member_of` is its
    /// pool.
    ///
    /// A repeated request with the same key gets the same result, because the first reply may have
    /// been lost. A request with another key can get the name of an enrolled node in two cases: the
    /// token is for exactly this node, or the node's certificates were revoked. In both cases, the
    /// token must belong to the node's pool, except if it is for exactly this node and its creator
    /// has the whole fleet as scope.
    pub fn join(
        &self,
        token: &TokenDigest,
        node: &NodeId,
        key: &[u8],
        member_of: Option<&Pool>,
        now: Timestamp,
    ) -> Result<Joined, JoinError> {
        let mut connection = self.connection();
        let what = failed("redeem the token");
        let transaction =
            connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(&what)?;
        let joined = redeem(&transaction, token, (node, key), member_of, now)
            .map_err(|err| JoinError::Access(what(err)))??;
        transaction.commit().map_err(&what)?;
        Ok(joined)
    }
}

struct Token {
    id: i64,
    location: Location,
    is_for_node: bool,
    /// Whether the scope of the token's creator is the whole fleet.
    is_fleet_wide: bool,
    uses_left: u32,
}

/// Finds a token that the node may use. The token is neither expired nor revoked, but may have no
/// uses left.
fn find_token(
    transaction: &Transaction<'_>,
    digest: &TokenDigest,
    node: &NodeId,
    now: Timestamp,
) -> rusqlite::Result<Option<Token>> {
    let query = "SELECT id, pool, node, uses_left, scope, place FROM tokens
        WHERE digest = ?1 AND kind = 'join' AND expires_s > ?2 AND revoked_s IS NULL";
    let found = transaction.query_row(query, params![digest.0, now.as_second()], |row| {
        let for_node: Option<String> = row.get(2)?;
        let is_other = for_node.as_deref().is_some_and(|name| name != node.as_str());
        let pool: Option<Pool> = row.get::<_, String>(1)?.parse().ok().filter(|_| !is_other);
        // A token with a malformed location is invalid, because it would put nodes at the wrong
        // location.
        let location = match row.get::<_, Option<String>>(5)? {
            None => pool.map(Location::in_pool),
            text => parse_location(text).filter(|location| Some(&location.pool) == pool.as_ref()),
        };
        let scope: Option<Domain> =
            row.get::<_, Option<String>>(4)?.and_then(|text| text.parse().ok());
        let (id, uses_left) = (row.get(0)?, row.get::<_, Option<u32>>(3)?.unwrap_or_default());
        Ok(location.map(|location| Token {
            id,
            location,
            is_for_node: for_node.is_some(),
            is_fleet_wide: scope == Some(Domain::Fleet),
            uses_left,
        }))
    });
    found.optional().map(Option::flatten)
}

struct CurrentIdentity {
    generation: u64,
    is_revoked: bool,
    /// Pool of the last enrolment. `None` after retirement, and if an earlier version wrote the
    /// store.
    pool: Option<Pool>,
}

fn current(
    transaction: &Transaction<'_>,
    node: &NodeId,
) -> rusqlite::Result<Option<CurrentIdentity>> {
    let query = "SELECT generation, revoked_s IS NOT NULL, pool FROM identities WHERE node = ?1";
    let found = transaction.query_row(query, [node.as_str()], |row| {
        let pool = row.get::<_, Option<String>>(2)?.and_then(|text| text.parse().ok());
        Ok(CurrentIdentity { generation: row.get(0)?, is_revoked: row.get(1)?, pool })
    });
    found.optional()
}

/// Reserves the name for a node in this pool. The reservation ends when the node is retired.
fn reserve_name(
    transaction: &Transaction<'_>,
    node: &NodeId,
    generation: u64,
    pool: &Pool,
) -> rusqlite::Result<()> {
    let insert = "INSERT OR REPLACE INTO identities (node, generation, revoked_s, pool) VALUES (?1, ?2, NULL, ?3)";
    transaction.execute(insert, params![node.as_str(), generation, pool.as_str()]).map(drop)
}

fn redeem(
    transaction: &Transaction<'_>,
    digest: &TokenDigest,
    (node, key): (&NodeId, &[u8]),
    member_of: Option<&Pool>,
    now: Timestamp,
) -> rusqlite::Result<Result<Joined, JoinError>> {
    let Some(token) = find_token(transaction, digest, node, now)? else {
        return Ok(Err(JoinError::Token));
    };
    let identity = |generation| Identity { node: node.clone(), generation };
    let current = current(transaction, node)?;
    let before: Option<u64> = transaction
        .query_row(
            "SELECT generation FROM joins WHERE token = ?1 AND node = ?2 AND key = ?3",
            params![token.id, node.as_str(), key],
            |row| row.get(0),
        )
        .optional()?;
    let is_current =
        |generation: &u64| current.as_ref().is_some_and(|now| now.generation == *generation);
    if let Some(generation) = before.filter(is_current) {
        if member_of.is_none() {
            reserve_name(transaction, node, generation, &token.location.pool)?;
        }
        let (identity, location_update) = (identity(generation), LocationUpdate::Keep);
        return Ok(Ok(Joined { identity, location: token.location, location_update }));
    }
    if token.uses_left == 0 {
        return Ok(Err(JoinError::Token));
    }
    let may_move = token.is_for_node && token.is_fleet_wide;
    // An enrolment reserves the name even before the fleet has the node.
    let enrolled_in = current
        .as_ref()
        .filter(|identity| !identity.is_revoked)
        .and_then(|identity| identity.pool.as_ref());
    let reserved_in = member_of.or(enrolled_in);
    let is_other_pool = reserved_in.is_some_and(|pool| *pool != token.location.pool);
    let is_taken =
        reserved_in.is_some() && current.as_ref().is_some_and(|identity| !identity.is_revoked);
    if is_taken && !token.is_for_node || is_other_pool && !may_move {
        return Ok(Err(JoinError::Taken(node.clone())));
    }
    let generation = current.map_or(1, |identity| identity.generation + 1);
    transaction.execute("UPDATE tokens SET uses_left = uses_left - 1 WHERE id = ?1", [token.id])?;
    transaction.execute(
        "INSERT OR REPLACE INTO joins (token, node, key, at_s, generation) VALUES (?1, ?2, ?3, ?4, ?5)",
        params![token.id, node.as_str(), key, now.as_second(), generation],
    )?;
    reserve_name(transaction, node, generation, &token.location.pool)?;
    let what = AccessChange::NodeEnrolled { node: node.clone(), token: token.id, generation };
    record_change(transaction, None, &Actor::Node(node.clone()), now, &what)?;
    let location_update = if may_move { LocationUpdate::Full } else { LocationUpdate::WithinPool };
    Ok(Ok(Joined { identity: identity(generation), location: token.location, location_update }))
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::super::store::NewJoinToken;
    use super::*;

    fn now() -> Timestamp {
        "2026-11-15T00:00:00Z".parse().unwrap()
    }

    fn node(name: &str) -> NodeId {
        name.parse().unwrap()
    }

    fn train() -> Pool {
        "train".parse().unwrap()
    }

    fn request(uses: u32) -> NewJoinToken {
        NewJoinToken { uses, ..NewJoinToken::new(train(), now() + SignedDuration::from_hours(1)) }
    }

    fn store() -> (tempfile::TempDir, AccessStore) {
        let folder = tempfile::tempdir().unwrap();
        let store = AccessStore::open(folder.path()).unwrap();
        (folder, store)
    }

    #[test]
    fn a_token_is_redeemed_up_to_its_uses_and_a_lost_answer_is_repeated() {
        let (folder, store) = store();
        let token = store.create(&request(2), now()).unwrap().digest();
        let first = store.join(&token, &node("a"), b"key a", None, now()).unwrap();
        assert_eq!((first.location.pool.as_str(), first.identity.generation), ("train", 1));
        // A repeated request does not use up the token, even after a restart.
        drop(store);
        let store = AccessStore::open(folder.path()).unwrap();
        let again = store.join(&token, &node("a"), b"key a", Some(&train()), now()).unwrap();
        assert_eq!(again.identity, first.identity);
        store.join(&token, &node("b"), b"key b", None, now()).unwrap();
        let used = store.join(&token, &node("c"), b"key c", None, now());
        assert!(matches!(used, Err(JoinError::Token)), "{used:?}");
        assert_eq!(store.list().unwrap()[0].uses_left, 0);
    }

    #[test]
    fn invalid_tokens_are_refused_alike() {
        let (_folder, store) = store();
        let join = |token: &TokenDigest, at| store.join(token, &node("a"), b"key", None, at);
        let wrong = join(&TokenDigest::from_secret("fjoin_wrong"), now());
        let good = store.create(&request(1), now()).unwrap().digest();
        let expired = join(&good, now() + SignedDuration::from_hours(1));
        let bound = NewJoinToken { node: Some(node("b")), ..request(1) };
        let for_other = join(&store.create(&bound, now()).unwrap().digest(), now());
        store.revoke_token(1, now()).unwrap();
        let revoked = join(&good, now());
        for refused in [wrong, expired, for_other, revoked] {
            assert!(matches!(refused, Err(JoinError::Token)), "{refused:?}");
        }
        assert!(matches!(store.revoke_token(7, now()), Err(AccessError::NoSuchToken(7))));
    }

    #[test]
    fn the_name_of_an_enrolled_node_is_reassigned_only_by_a_token_for_it() {
        let (_folder, store) = store();
        let pool = store.create(&request(9), now()).unwrap().digest();
        let old = store.join(&pool, &node("a"), b"one", None, now()).unwrap().identity;
        let stolen = store.join(&pool, &node("a"), b"two", Some(&train()), now());
        assert!(matches!(stolen, Err(JoinError::Taken(_))), "{stolen:?}");
        assert!(store.admits(&old).unwrap());
        // The node was reinstalled, and enrols with a token for this node.
        let own = NewJoinToken { node: Some(node("a")), ..request(1) };
        let own = store.create(&own, now()).unwrap().digest();
        let new = store.join(&own, &node("a"), b"two", Some(&train()), now()).unwrap().identity;
        assert!(!store.admits(&old).unwrap() && store.admits(&new).unwrap());
        // After a revocation, any token of the pool works, but a repeated request with the revoked
        // key does not.
        store.revoke(&node("a"), now()).unwrap();
        assert!(!store.admits(&new).unwrap());
        let again = store.join(&own, &node("a"), b"two", Some(&train()), now());
        assert!(matches!(again, Err(JoinError::Token)), "{again:?}");
        let third =
            store.join(&pool, &node("a"), b"three", Some(&train()), now()).unwrap().identity;
        assert!(store.admits(&third).unwrap() && third.generation > new.generation);
        // The name is also taken if the fleet does not have the node yet.
        let raced = store.join(&pool, &node("a"), b"four", None, now());
        assert!(matches!(raced, Err(JoinError::Taken(_))), "{raced:?}");
        // Retirement frees the name.
        store.free_name(&node("a")).unwrap();
        store.join(&pool, &node("a"), b"four", None, now()).unwrap();
        assert!(matches!(store.revoke(&node("z"), now()), Err(AccessError::NoSuchNode(_))));
    }

    #[test]
    fn a_node_moves_between_pools_only_with_a_fleet_wide_token_for_it() {
        let (_folder, store) = store();
        let serve: Pool = "serve".parse().unwrap();
        let for_serve = NewJoinToken { location: Location::in_pool(serve.clone()), ..request(1) };
        let for_serve = store.create(&for_serve, now()).unwrap().digest();
        store.join(&for_serve, &node("gpu-7"), b"one", None, now()).unwrap();
        let scope = Domain::Pool(train());
        let by_pool =
            |for_node| NewJoinToken { node: for_node, scope: scope.clone(), ..request(9) };
        let refused = |request: &NewJoinToken| {
            let token = store.create(request, now()).unwrap().digest();
            let joined = store.join(&token, &node("gpu-7"), b"two", Some(&serve), now());
            assert!(matches!(joined, Err(JoinError::Taken(_))), "{request:?}: {joined:?}");
        };
        // Every token of the other pool is refused, even one for this node, both while the node is
        // enrolled and after a revocation.
        for _ in 0..2 {
            refused(&by_pool(None));
            refused(&by_pool(Some(node("gpu-7"))));
            refused(&request(9));
            store.revoke(&node("gpu-7"), now()).unwrap();
        }
        let moving = NewJoinToken { node: Some(node("gpu-7")), ..request(1) };
        let moving = store.create(&moving, now()).unwrap().digest();
        let joined = store.join(&moving, &node("gpu-7"), b"two", Some(&serve), now()).unwrap();
        assert_eq!((joined.location.pool, joined.location_update), (train(), LocationUpdate::Full));
    }

    #[test]
    fn a_name_is_reserved_from_enrolment_until_retirement() {
        let (folder, store) = store();
        let serve =
            NewJoinToken { location: Location::in_pool("serve".parse().unwrap()), ..request(9) };
        let tokens =
            [&request(9), &serve].map(|other| store.create(other, now()).unwrap().digest());
        // Two nodes with different keys request the name `a`. The fleet has neither of them yet.
        let join = |store: &AccessStore, token: usize, key: &[u8]| {
            store.join(&tokens[token], &node("a"), key, None, now())
        };
        join(&store, 0, b"one").unwrap();
        for token in [0, 1] {
            let raced = join(&store, token, b"two");
            assert!(matches!(raced, Err(JoinError::Taken(_))), "{raced:?}");
        }
        // The node that has the name may ask again, even after a restart. When it is retired, the
        // name goes to the next node that asks.
        drop(store);
        let store = AccessStore::open(folder.path()).unwrap();
        store.free_names(|other| *other == node("a")).unwrap();
        assert!(matches!(join(&store, 1, b"two"), Err(JoinError::Taken(_))));
        assert_eq!(join(&store, 0, b"one").unwrap().identity.generation, 1);
        store.free_names(|_| false).unwrap();
        assert_eq!(join(&store, 1, b"two").unwrap().identity.generation, 2);
        assert!(matches!(join(&store, 0, b"one"), Err(JoinError::Taken(_))));
        // A retired node that asks again reserves its name again.
        store.free_name(&node("a")).unwrap();
        assert_eq!(join(&store, 1, b"two").unwrap().identity.generation, 2);
        assert!(matches!(join(&store, 0, b"three"), Err(JoinError::Taken(_))));
    }

    #[test]
    fn a_tokens_location_applies_once() {
        let (_folder, store) = store();
        let location = Location { rack: "r1".parse().ok(), ..Location::in_pool(train()) };
        let racked =
            NewJoinToken { location: location.clone(), scope: Domain::Pool(train()), ..request(2) };
        let racked = store.create(&racked, now()).unwrap().digest();
        let joined = store.join(&racked, &node("a"), b"one", None, now()).unwrap();
        assert_eq!(
            (joined.location, joined.location_update),
            (location.clone(), LocationUpdate::WithinPool)
        );
        let again = store.join(&racked, &node("a"), b"one", Some(&train()), now()).unwrap();
        assert_eq!(again.location_update, LocationUpdate::Keep, "it is the same enrolment");
        assert_eq!(store.list().unwrap()[0].location, Some(location));
    }

    #[test]
    fn tokens_of_an_older_format_are_valid_but_move_no_node() {
        let (folder, store) = store();
        let old =
            store.create(&NewJoinToken { node: Some(node("a")), ..request(3) }, now()).unwrap();
        drop(store);
        let file = rusqlite::Connection::open(folder.path().join("access")).unwrap();
        file.execute_batch(
            "UPDATE tokens SET scope = NULL; ALTER TABLE tokens DROP COLUMN place;
            ALTER TABLE identities DROP COLUMN pool; DROP TABLE last_start; PRAGMA user_version = 2;",
        )
        .unwrap();
        drop(file);
        let store = AccessStore::open(folder.path()).unwrap();
        let join = |key: &[u8], pool: &str| {
            store.join(&old.digest(), &node("a"), key, Some(&pool.parse().unwrap()), now())
        };
        assert_eq!(join(b"one", "train").unwrap().location, Location::in_pool(train()));
        assert!(matches!(join(b"two", "serve"), Err(JoinError::Taken(_))));
    }
}
