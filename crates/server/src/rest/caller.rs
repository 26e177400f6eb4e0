//! The caller of a request, and what they may see of the fleet.

use farrier_fleet::fleet::access::is_within;
use farrier_fleet::fleet::identity::Actor;
use farrier_fleet::fleet::{Domain, Location, Permission, Pool, Role};

use super::failure::Failure;
use crate::access::{TokenDigest, User};

#[derive(Debug, Clone)]
pub(crate) struct Caller {
    pub(super) user: User,
    /// Digest of the caller's token. Long answers use it to check again whether the token is still
    /// valid.
    pub(super) digest: TokenDigest,
}

impl Caller {
    pub(super) fn actor(&self) -> Actor {
        Actor::User(self.user.name.clone())
    }

    pub(super) fn scope(&self) -> &Domain {
        &self.user.scope
    }

    pub(super) fn is_fleet_wide(&self) -> bool {
        *self.scope() == Domain::Fleet
    }

    /// Whether the caller sees changes of tokens and certificates.
    pub(super) fn sees_access(&self) -> bool {
        self.is_fleet_wide() && self.user.role == Role::Admin
    }

    pub(super) fn sees(&self, location: &Location) -> bool {
        is_within(location, self.scope())
    }

    /// Whether the caller's scope includes the whole pool.
    pub(super) fn has_pool(&self, pool: &Pool) -> bool {
        self.is_fleet_wide() || matches!(self.scope(), Domain::Pool(own) if own == pool)
    }

    /// Checks that the caller's role has the permission.
    pub(super) fn check(&self, permission: Permission) -> Result<(), Failure> {
        if self.user.role.may(permission) {
            return Ok(());
        }
        let needed: Vec<&str> =
            Role::ALL.into_iter().filter(|role| role.may(permission)).map(Role::as_str).collect();
        let needed = needed.join(" or ");
        Err(Failure::forbidden(format!(
            "the role {needed} is required; yours is {}",
            self.user.role
        )))
    }

    /// Checks that the caller's scope is the whole fleet.
    pub(super) fn check_fleet_wide(&self) -> Result<(), Failure> {
        if self.is_fleet_wide() {
            return Ok(());
        }
        Err(Failure::forbidden(format!(
            "this requires the whole fleet as scope; yours is {}",
            self.scope()
        )))
    }
}
