//! Who may ask for what: roles of people, and changes of who may speak. The secrets themselves are nowhere in the log.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::identity::{Domain, Location, NodeId, Pool};

/// What a person may do. Not a ladder: whoever operates does not approve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Reads.
    Viewer,
    /// Reads; holds, releases, verifies, freezes, and says what was repaired.
    Operator,
    /// Reads; lets go on what waits for a person.
    Approver,
    /// Everything, also tokens, policy, and who is of the fleet.
    Admin,
}

/// What a role is needed for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Permission {
    /// To look.
    Read,
    /// To hold, release, verify, freeze, or say that something was repaired.
    Operate,
    /// To let a repair go on that waits.
    Approve,
    /// To change who is of the fleet, who may speak, and the policy.
    Administer,
}

impl Role {
    pub const ALL: [Self; 4] = [Self::Viewer, Self::Operator, Self::Approver, Self::Admin];

    /// Whether it is enough.
    pub fn may(self, deed: Permission) -> bool {
        match deed {
            Permission::Read => true,
            Permission::Operate => matches!(self, Self::Operator | Self::Admin),
            Permission::Approve => matches!(self, Self::Approver | Self::Admin),
            Permission::Administer => self == Self::Admin,
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Approver => "approver",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.as_str())
    }
}

/// Why a text is no role.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no role: expected `viewer`, `operator`, `approver` or `admin`")]
pub struct RoleError(String);

impl FromStr for Role {
    type Err = RoleError;

    fn from_str(text: &str) -> Result<Self, RoleError> {
        let found = Self::ALL.into_iter().find(|role| role.as_str() == text);
        found.ok_or_else(|| RoleError(text.chars().take(32).collect()))
    }
}

/// Whether a place is in a domain.
pub fn is_within(place: &Location, domain: &Domain) -> bool {
    match domain {
        Domain::Fleet => true,
        Domain::Pool(name) => place.pool == *name,
        Domain::Tenant(name) => place.tenant.as_ref() == Some(name),
        Domain::Site(name) => place.site.as_ref() == Some(name),
        Domain::Leaf(name) => place.leaf.as_ref() == Some(name),
        Domain::Rack(name) => place.rack.as_ref() == Some(name),
        Domain::Nvlink(name) => place.nvlink.as_ref() == Some(name),
    }
}

/// A change of who may speak. Tokens are named by their number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AccessChange {
    /// A token that nodes join with was made.
    #[serde(alias = "join-token-made")]
    JoinTokenCreated {
        token: i64,
        /// The pool that they join.
        pool: Pool,
        /// The only node that may.
        node: Option<NodeId>,
        /// How many may.
        uses: u32,
        expires: Timestamp,
        /// Where they stand, where more is told than the pool.
        #[serde(default, alias = "place", skip_serializing_if = "Option::is_none")]
        location: Option<Box<Location>>,
    },
    /// A person got a token.
    #[serde(alias = "person-added")]
    UserAdded {
        token: i64,
        name: String,
        /// What they may do.
        role: Role,
        scope: Domain,
        expires: Timestamp,
    },
    /// A token was taken back.
    TokenRevoked {
        token: i64,
        /// Whose; none where it was one to join with.
        name: Option<String>,
    },
    /// A node enrolled: only certificates of this generation and later ones count.
    NodeEnrolled {
        node: NodeId,
        /// The token's number.
        token: i64,
        /// Of its certificates.
        generation: u64,
    },
    /// No certificate of a node counts any more.
    CertificateRevoked { node: NodeId },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_operates_does_not_approve() {
        let deeds =
            [Permission::Read, Permission::Operate, Permission::Approve, Permission::Administer];
        let may = |role: Role| deeds.map(|deed| role.may(deed));
        assert_eq!(may(Role::Viewer), [true, false, false, false]);
        assert_eq!(may(Role::Operator), [true, true, false, false]);
        assert_eq!(may(Role::Approver), [true, false, true, false]);
        assert_eq!(may(Role::Admin), [true; 4]);
        for role in Role::ALL {
            assert_eq!(role.as_str().parse(), Ok(role));
        }
        assert!("root".parse::<Role>().is_err());
    }

    #[test]
    fn a_place_is_in_each_of_its_domains_and_in_no_other() {
        let mut place = Location::in_pool("train".parse().unwrap());
        place.rack = "r1".parse().ok();
        for domain in place.domains() {
            assert!(is_within(&place, &domain), "{domain}");
        }
        for other in ["pool:serve", "tenant:lab", "rack:r2", "leaf:r1", "site:x", "nvlink:n"] {
            assert!(!is_within(&place, &other.parse().unwrap()), "{other}");
        }
    }
}
