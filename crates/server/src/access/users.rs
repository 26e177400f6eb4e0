//! Users: each has a token, a role and a scope. A token cannot be changed, only replaced.

use std::fmt;

use farrier_fleet::fleet::identity::Actor;
use farrier_fleet::fleet::{AccessChange, Domain, Role};
use jiff::Timestamp;
use rusqlite::{OptionalExtension, Row, params};

use super::store::{AccessError, AccessStore, failed};
use super::token::{AccessTokenKind, Secret, TokenDigest};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// Number of the user's token.
    pub token: i64,
    pub name: String,
    pub role: Role,
    /// The fleet, a pool or a tenant.
    pub scope: Domain,
    pub expires: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewUser {
    name: String,
    role: Role,
    scope: Domain,
    expires: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UserError {
    #[error("`{0}` is not a valid user name: 1 to 63 letters, digits, `.`, `_`, `-`, `+` and `@`")]
    Name(String),
    #[error("the scope of a role is the fleet, a pool or a tenant, not {0}")]
    Scope(Domain),
}

impl NewUser {
    /// Checks the scope and the name of the user. The name will appear in the log.
    pub fn new(
        name: &str,
        role: Role,
        scope: Domain,
        expires: Timestamp,
    ) -> Result<Self, UserError> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "._-+@".contains(c);
        let starts_well = name.chars().next().is_some_and(|first| first.is_ascii_alphanumeric());
        // This name stands for the server itself in the log.
        let is_reserved = name.eq_ignore_ascii_case("farrier");
        if !starts_well || is_reserved || name.len() > 63 || !name.chars().all(allowed) {
            return Err(UserError::Name(name.chars().take(63).collect()));
        }
        if !matches!(scope, Domain::Fleet | Domain::Pool(_) | Domain::Tenant(_)) {
            return Err(UserError::Scope(scope));
        }
        Ok(Self { name: name.to_owned(), role, scope, expires })
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserRow {
    pub user: User,
    pub created_at: Timestamp,
    pub is_revoked: bool,
}

impl UserRow {
    pub fn state(&self, now: Timestamp) -> TokenState {
        match (self.is_revoked, self.user.expires <= now) {
            (true, _) => TokenState::Revoked,
            (_, true) => TokenState::Expired,
            _ => TokenState::Open,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenState {
    Open,
    Expired,
    Revoked,
}

impl fmt::Display for TokenState {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::Open => "open",
            Self::Expired => "expired",
            Self::Revoked => "revoked",
        })
    }
}

const COLUMNS: &str = "id, name, role, scope, expires_s, digest, made_s, revoked_s IS NOT NULL";

/// Returns `None` if the row is malformed. The token in that row then counts as invalid.
fn user_row(row: &Row<'_>) -> rusqlite::Result<Option<(UserRow, TokenDigest)>> {
    let name: Option<String> = row.get(1)?;
    let role: Option<Role> = row.get::<_, Option<String>>(2)?.and_then(|text| text.parse().ok());
    let scope: Option<Domain> = row.get::<_, Option<String>>(3)?.and_then(|text| text.parse().ok());
    let second = |at: i64| Timestamp::from_second(at).unwrap_or(Timestamp::MIN);
    let (token, expires) = (row.get(0)?, second(row.get(4)?));
    let digest = row.get::<_, Vec<u8>>(5)?.try_into().ok().map(TokenDigest);
    let (Some(name), Some(role), Some(scope), Some(digest)) = (name, role, scope, digest) else {
        return Ok(None);
    };
    let user = User { token, name, role, scope, expires };
    Ok(Some((UserRow { user, created_at: second(row.get(6)?), is_revoked: row.get(7)? }, digest)))
}

impl AccessStore {
    /// Creates a user token. Returns its number and secret.
    pub fn add_user(
        &self,
        by: &Actor,
        new: &NewUser,
        now: Timestamp,
    ) -> Result<(i64, Secret), AccessError> {
        let secret = Secret::generate(AccessTokenKind::User).ok_or(AccessError::Random)?;
        let insert = "INSERT INTO tokens (digest, kind, name, role, scope, made_s, expires_s)
            VALUES (?1, 'person', ?2, ?3, ?4, ?5, ?6)";
        let NewUser { name, role, scope, expires } = new.clone();
        let id = self.change("store the token", by, now, |transaction| {
            let row = params![
                secret.digest().0,
                name,
                role.as_str(),
                String::from(scope.clone()),
                now.as_second(),
                expires.as_second()
            ];
            transaction.execute(insert, row)?;
            let token = transaction.last_insert_rowid();
            let what = AccessChange::UserAdded { token, name, role, scope, expires };
            Ok(Some((token, what)))
        })?;
        Ok((id.unwrap_or_default(), secret))
    }

    /// Returns the user of a valid token.
    pub fn user(&self, token: &TokenDigest, now: Timestamp) -> Result<Option<User>, AccessError> {
        let query = format!("SELECT {COLUMNS} FROM tokens WHERE digest = ?1 AND kind = 'person'");
        let connection = self.connection();
        let read = || connection.prepare_cached(&query)?.query_row([token.0], user_row).optional();
        let found = read().map_err(failed("look up the token"))?.flatten();
        // The index lookup is not in constant time, so the whole digest is compared again in
        // constant time.
        let valid =
            found.filter(|(row, digest)| *digest == *token && row.state(now) == TokenState::Open);
        Ok(valid.map(|(row, _)| row.user))
    }

    /// All users who have or had a token, oldest first.
    pub fn users(&self) -> Result<Vec<UserRow>, AccessError> {
        let query = format!("SELECT {COLUMNS} FROM tokens WHERE kind = 'person' ORDER BY id");
        let connection = self.connection();
        let read = || -> rusqlite::Result<Vec<UserRow>> {
            let mut select = connection.prepare(&query)?;
            let rows = select.query_map([], user_row)?;
            rows.filter_map(Result::transpose).map(|row| row.map(|(user, _)| user)).collect()
        };
        read().map_err(failed("read the user tokens"))
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;

    fn now() -> Timestamp {
        "2026-11-15T00:00:00Z".parse().unwrap()
    }

    #[test]
    fn a_user_token_is_valid_until_it_expires_or_is_revoked() {
        let folder = tempfile::tempdir().unwrap();
        let store = AccessStore::open(folder.path()).unwrap();
        let root = Actor::User("local:root".to_owned());
        let day = now() + SignedDuration::from_hours(24);
        let scope: Domain = "pool:train".parse().unwrap();
        let new = NewUser::new("ann@example", Role::Operator, scope.clone(), day).unwrap();
        let (id, secret) = store.add_user(&root, &new, now()).unwrap();
        let ann = store.user(&secret.digest(), now()).unwrap().unwrap();
        assert_eq!((ann.token, ann.name.as_str(), ann.role), (id, "ann@example", Role::Operator));
        assert_eq!(ann.scope, scope);
        assert_eq!(store.user(&secret.digest(), day).unwrap(), None, "it has expired");
        assert_eq!(store.user(&TokenDigest::from_secret("fperson_wrong"), now()).unwrap(), None);
        // User tokens cannot enrol nodes.
        let joined = store.join(&secret.digest(), &"a".parse().unwrap(), b"key", None, now());
        assert!(joined.is_err());
        assert!(store.list().unwrap().is_empty());
        store.revoke_token_by(&root, AccessTokenKind::User, id, now()).unwrap();
        assert_eq!(store.user(&secret.digest(), now()).unwrap(), None);
        let listed = store.users().unwrap();
        assert_eq!((listed.len(), listed[0].state(now())), (1, TokenState::Revoked));
        let bytes = std::fs::read(folder.path().join("access")).unwrap();
        let wal = std::fs::read(folder.path().join("access-wal")).unwrap();
        let text = secret.reveal().as_bytes();
        assert!(![bytes, wal].concat().windows(text.len()).any(|window| window == text));
    }

    #[test]
    fn user_names_and_scopes_are_checked() {
        let new = |name: &str, scope: &str| {
            NewUser::new(name, Role::Viewer, scope.parse().unwrap(), now())
        };
        for wrong in
            ["", "farrier", "local:root", "a b", "node gpu-1", "-x", "\u{e9}", &"a".repeat(64)]
        {
            assert!(matches!(new(wrong, "fleet"), Err(UserError::Name(_))), "{wrong}");
        }
        assert!(matches!(new("ann", "rack:r1"), Err(UserError::Scope(_))));
        assert!(new("ann", "tenant:lab").is_ok());
    }
}
