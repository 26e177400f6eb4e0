//! Roles, permissions and access changes. The log never contains secrets.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::identity::{Domain, Location, NodeId, Pool};

/// Role of a user. The roles are not ordered: an operator may not approve, and an approver may not
/// operate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// May only read.
    Viewer,
    /// May read, hold, release, verify, freeze, run orders and report manual repairs.
    Operator,
    /// May read and approve repairs that wait for approval.
    Approver,
    /// May do everything, including changes of tokens, the policy and enrolment.
    Admin,
}

/// A permission that an endpoint requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Permission {
    Read,
    /// Hold, release, verify, freeze, run an order, or report a manual repair.
    Operate,
    /// Approve a repair that waits for approval.
    Approve,
    /// Change tokens, users, the policy, and which nodes are in the fleet.
    Administer,
}

impl Role {
    pub const ALL: [Self; 4] = [Self::Viewer, Self::Operator, Self::Approver, Self::Admin];

    /// Whether the role grants the permission.
    pub fn may(self, permission: Permission) -> bool {
        match permission {
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

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a role: expected `viewer`, `operator`, `approver` or `admin`")]
pub struct RoleError(String);

impl FromStr for Role {
    type Err = RoleError;

    fn from_str(text: &str) -> Result<Self, RoleError> {
        let role = Self::ALL.into_iter().find(|role| role.as_str() == text);
        role.ok_or_else(|| RoleError(text.chars().take(32).collect()))
    }
}

/// Whether a location is in a domain.
pub fn is_within(location: &Location, domain: &Domain) -> bool {
    match domain {
        Domain::Fleet => true,
        Domain::Pool(name) => location.pool == *name,
        Domain::Tenant(name) => location.tenant.as_ref() == Some(name),
        Domain::Site(name) => location.site.as_ref() == Some(name),
        Domain::Leaf(name) => location.leaf.as_ref() == Some(name),
        Domain::Rack(name) => location.rack.as_ref() == Some(name),
        Domain::Nvlink(name) => location.nvlink.as_ref() == Some(name),
        Domain::Spine(name) => location.spine.as_ref() == Some(name),
        Domain::Row(name) => location.row.as_ref() == Some(name),
        Domain::Pdu(name) => location.pdu.as_ref() == Some(name),
    }
}

/// A change of tokens, users or certificates. Tokens are identified by their numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AccessChange {
    /// A join token was created.
    #[serde(alias = "join-token-made")]
    JoinTokenCreated {
        token: i64,
        /// The pool that nodes join with the token.
        pool: Pool,
        /// The only node that may use the token. `None` if any node may.
        node: Option<NodeId>,
        /// How many nodes may use the token.
        uses: u32,
        expires: Timestamp,
        /// Location of these nodes. `None` if the token sets only the pool.
        #[serde(default, alias = "place", skip_serializing_if = "Option::is_none")]
        location: Option<Box<Location>>,
    },
    /// A user got a token.
    #[serde(alias = "person-added")]
    UserAdded { token: i64, name: String, role: Role, scope: Domain, expires: Timestamp },
    TokenRevoked {
        token: i64,
        /// The user whose token it was. `None` for a join token.
        name: Option<String>,
    },
    /// A node enrolled. Only certificates of this generation or later are valid.
    NodeEnrolled {
        node: NodeId,
        /// Number of the join token that the node used.
        token: i64,
        /// Generation of the node's certificates.
        generation: u64,
    },
    /// All certificates of a node were revoked.
    CertificateRevoked { node: NodeId },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operator_cannot_approve() {
        let permissions =
            [Permission::Read, Permission::Operate, Permission::Approve, Permission::Administer];
        let may = |role: Role| permissions.map(|permission| role.may(permission));
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
    fn a_location_is_in_each_of_its_domains_and_in_no_other() {
        let mut location = Location::in_pool("train".parse().unwrap());
        location.rack = "r1".parse().ok();
        for domain in location.domains() {
            assert!(is_within(&location, &domain), "{domain}");
        }
        for other in ["pool:serve", "tenant:lab", "rack:r2", "leaf:r1", "site:x", "nvlink:n"] {
            assert!(!is_within(&location, &other.parse().unwrap()), "{other}");
        }
    }
}
