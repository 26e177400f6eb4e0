//! Names of nodes, pools and tenants, node locations, and failure domains.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is not a valid {what} name: 1 to 63 letters, digits, `.`, `_` and `-`, beginning with a letter or digit"
)]
pub struct NameError {
    what: &'static str,
    text: String,
}

/// Length of the longest host name label.
const NAME_MAX: usize = 63;

fn checked(what: &'static str, text: &str) -> Result<String, NameError> {
    let allowed =
        |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '.' | '_' | '-');
    let starts_well = text.chars().next().is_some_and(|first| first.is_ascii_alphanumeric());
    if starts_well && text.len() <= NAME_MAX && text.chars().all(allowed) {
        Ok(text.to_ascii_lowercase())
    } else {
        let text = text.chars().take(NAME_MAX).collect();
        Err(NameError { what, text })
    }
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Box<str>);

        impl $name {
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = NameError;

            fn from_str(text: &str) -> Result<Self, NameError> {
                checked($what, text).map(|name| Self(name.into_boxed_str()))
            }
        }

        impl TryFrom<String> for $name {
            type Error = NameError;

            fn try_from(text: String) -> Result<Self, NameError> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.0.into()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.pad(&self.0)
            }
        }
    };
}

name!(
    /// A node, by the name it enrolled with.
    NodeId,
    "node"
);
name!(
    /// Nodes with the same use and the same policy.
    Pool,
    "pool"
);
name!(
    /// The owner of the work on a node.
    Tenant,
    "tenant"
);
name!(
    /// Name of a site, row, rack, PDU, switch or NVLink domain.
    Unit,
    "site, row, rack, PDU, switch or NVLink domain"
);

/// Location and owner of a node. If a field is not set, its value is unknown, and the node is in no
/// domain of that kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Location {
    pub pool: Pool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Tenant>,
    /// The building.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub site: Option<Unit>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rack: Option<Unit>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaf: Option<Unit>,
    /// An NVLink domain that spans several nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvlink: Option<Unit>,
    /// The spine switch, or the group of spine switches, that the leaf switch is cabled to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spine: Option<Unit>,
    /// The row of racks, which shares its cooling.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub row: Option<Unit>,
    /// The power distribution unit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pdu: Option<Unit>,
}

impl Location {
    /// A location of which only the pool is known.
    pub fn in_pool(pool: Pool) -> Self {
        Self {
            pool,
            tenant: None,
            site: None,
            rack: None,
            leaf: None,
            nvlink: None,
            spine: None,
            row: None,
            pdu: None,
        }
    }

    /// Takes the pool and every set field from `update`, and keeps the other fields.
    #[must_use]
    pub fn updated_with(self, update: &Self) -> Self {
        let update = update.clone();
        Self {
            pool: update.pool,
            tenant: update.tenant.or(self.tenant),
            site: update.site.or(self.site),
            rack: update.rack.or(self.rack),
            leaf: update.leaf.or(self.leaf),
            nvlink: update.nvlink.or(self.nvlink),
            spine: update.spine.or(self.spine),
            row: update.row.or(self.row),
            pdu: update.pdu.or(self.pdu),
        }
    }

    /// Whether any field besides the pool is set.
    pub fn has_more_than_pool(&self) -> bool {
        *self != Self::in_pool(self.pool.clone())
    }

    /// Every domain that the node is in. The whole fleet comes first.
    pub fn domains(&self) -> Vec<Domain> {
        let mut domains = vec![Domain::Fleet, Domain::Pool(self.pool.clone())];
        domains.extend(self.tenant.clone().map(Domain::Tenant));
        domains.extend(self.site.clone().map(Domain::Site));
        domains.extend(self.leaf.clone().map(Domain::Leaf));
        domains.extend(self.rack.clone().map(Domain::Rack));
        domains.extend(self.nvlink.clone().map(Domain::Nvlink));
        domains.extend(self.spine.clone().map(Domain::Spine));
        domains.extend(self.row.clone().map(Domain::Row));
        domains.extend(self.pdu.clone().map(Domain::Pdu));
        domains
    }
}

/// A set of nodes that a limit applies to, or that can fail together. Its text form is `fleet` or,
/// for example, `rack:r1`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Domain {
    Fleet,
    Pool(Pool),
    /// Nodes of a tenant.
    Tenant(Tenant),
    /// Nodes in one building.
    Site(Unit),
    /// Nodes behind one leaf switch.
    Leaf(Unit),
    /// Nodes in one rack.
    Rack(Unit),
    /// Nodes in one NVLink domain.
    Nvlink(Unit),
    /// Nodes behind one spine switch.
    Spine(Unit),
    /// Nodes in one row of racks.
    Row(Unit),
    /// Nodes on one power distribution unit.
    Pdu(Unit),
}

impl Domain {
    /// Whether its nodes share equipment that can fail.
    pub fn fails_as_one(&self) -> bool {
        self.kind().fails_as_one()
    }

    /// The name within its kind. Empty for the whole fleet.
    pub fn name(&self) -> &str {
        match self {
            Self::Fleet => "",
            Self::Pool(name) => name.as_str(),
            Self::Tenant(name) => name.as_str(),
            Self::Site(name)
            | Self::Leaf(name)
            | Self::Rack(name)
            | Self::Nvlink(name)
            | Self::Spine(name)
            | Self::Row(name)
            | Self::Pdu(name) => name.as_str(),
        }
    }

    /// The kind of the domain, as policies use it.
    pub fn kind(&self) -> DomainKind {
        match self {
            Self::Fleet => DomainKind::Fleet,
            Self::Pool(_) => DomainKind::Pool,
            Self::Tenant(_) => DomainKind::Tenant,
            Self::Site(_) => DomainKind::Site,
            Self::Leaf(_) => DomainKind::Leaf,
            Self::Rack(_) => DomainKind::Rack,
            Self::Nvlink(_) => DomainKind::Nvlink,
            Self::Spine(_) => DomainKind::Spine,
            Self::Row(_) => DomainKind::Row,
            Self::Pdu(_) => DomainKind::Pdu,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DomainError {
    #[error(
        "`{0}` is not a domain: expected `fleet`, or `pool:`, `tenant:`, `site:`, `row:`, `rack:`, `pdu:`, `spine:`, `leaf:` or `nvlink:` and a name"
    )]
    Kind(String),
    #[error(transparent)]
    Name(#[from] NameError),
}

impl Domain {
    /// For fields that are [`Domain::Fleet`] by default.
    pub(crate) fn whole_fleet() -> Self {
        Self::Fleet
    }

    pub(crate) fn is_fleet(&self) -> bool {
        *self == Self::Fleet
    }
}

impl FromStr for Domain {
    type Err = DomainError;

    fn from_str(text: &str) -> Result<Self, DomainError> {
        if text == "fleet" {
            return Ok(Self::Fleet);
        }
        Ok(match text.split_once(':') {
            Some(("pool", name)) => Self::Pool(name.parse()?),
            Some(("tenant", name)) => Self::Tenant(name.parse()?),
            Some(("site", name)) => Self::Site(name.parse()?),
            Some(("leaf", name)) => Self::Leaf(name.parse()?),
            Some(("rack", name)) => Self::Rack(name.parse()?),
            Some(("nvlink", name)) => Self::Nvlink(name.parse()?),
            Some(("spine", name)) => Self::Spine(name.parse()?),
            Some(("row", name)) => Self::Row(name.parse()?),
            Some(("pdu", name)) => Self::Pdu(name.parse()?),
            _ => return Err(DomainError::Kind(text.chars().take(NAME_MAX).collect())),
        })
    }
}

impl TryFrom<String> for Domain {
    type Error = DomainError;

    fn try_from(text: String) -> Result<Self, DomainError> {
        text.parse()
    }
}

impl From<Domain> for String {
    fn from(domain: Domain) -> Self {
        match domain {
            Domain::Fleet => "fleet".to_owned(),
            Domain::Pool(name) => format!("pool:{name}"),
            Domain::Tenant(name) => format!("tenant:{name}"),
            Domain::Site(name) => format!("site:{name}"),
            Domain::Leaf(name) => format!("leaf:{name}"),
            Domain::Rack(name) => format!("rack:{name}"),
            Domain::Nvlink(name) => format!("nvlink:{name}"),
            Domain::Spine(name) => format!("spine:{name}"),
            Domain::Row(name) => format!("row:{name}"),
            Domain::Pdu(name) => format!("pdu:{name}"),
        }
    }
}

impl fmt::Display for Domain {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fleet => formatter.pad("the fleet"),
            Self::Pool(name) => write!(formatter, "pool {name}"),
            Self::Tenant(name) => write!(formatter, "tenant {name}"),
            Self::Site(name) => write!(formatter, "site {name}"),
            Self::Leaf(name) => write!(formatter, "leaf switch {name}"),
            Self::Rack(name) => write!(formatter, "rack {name}"),
            Self::Nvlink(name) => write!(formatter, "NVLink domain {name}"),
            Self::Spine(name) => write!(formatter, "spine switch {name}"),
            Self::Row(name) => write!(formatter, "row {name}"),
            Self::Pdu(name) => write!(formatter, "PDU {name}"),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DomainKind {
    Fleet,
    Pool,
    Tenant,
    Site,
    Leaf,
    Rack,
    Nvlink,
    Spine,
    Row,
    Pdu,
}

impl DomainKind {
    pub const ALL: [Self; 10] = [
        Self::Fleet,
        Self::Pool,
        Self::Tenant,
        Self::Site,
        Self::Leaf,
        Self::Rack,
        Self::Nvlink,
        Self::Spine,
        Self::Row,
        Self::Pdu,
    ];

    /// Whether the nodes of such a domain share equipment that can fail.
    pub fn fails_as_one(self) -> bool {
        !matches!(self, Self::Fleet | Self::Pool | Self::Tenant)
    }

    /// The stable code, as in JSON and metrics.
    pub fn code(self) -> &'static str {
        match self {
            Self::Fleet => "fleet",
            Self::Pool => "pool",
            Self::Tenant => "tenant",
            Self::Site => "site",
            Self::Leaf => "leaf",
            Self::Rack => "rack",
            Self::Nvlink => "nvlink",
            Self::Spine => "spine",
            Self::Row => "row",
            Self::Pdu => "pdu",
        }
    }
}

/// The actor that caused an entry.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Actor {
    /// A user, by the name of their token.
    #[serde(alias = "person")]
    User(String),
    Node(NodeId),
    Server,
}

impl fmt::Display for Actor {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(name) => formatter.pad(name),
            Self::Node(node) => write!(formatter, "node {node}"),
            Self::Server => formatter.pad("farrier"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_lowercase_and_short() {
        assert_eq!("GPU-Node.01".parse::<NodeId>().unwrap().as_str(), "gpu-node.01");
        for wrong in ["", "-a", "a b", "ä", "a/../b", &"a".repeat(64)] {
            let error = wrong.parse::<NodeId>().unwrap_err().to_string();
            assert!(error.contains("not a valid node name"), "{error}");
        }
    }

    #[test]
    fn names_are_validated_on_deserialization() {
        assert!(serde_json::from_str::<NodeId>("\"a b\"").is_err());
    }

    #[test]
    fn unset_location_fields_keep_their_value() {
        let location = |text: &str| serde_json::from_str::<Location>(text).unwrap();
        let current = location(r#"{"pool":"train","tenant":"lab","rack":"r1","leaf":"l1"}"#);
        let reported = location(r#"{"pool":"serve","rack":"r2","site":"north","nvlink":"n1"}"#);
        let expected = r#"{"pool":"serve","tenant":"lab","site":"north","rack":"r2","leaf":"l1","nvlink":"n1"}"#;
        assert_eq!(current.clone().updated_with(&reported), location(expected));
        assert_eq!(
            current.clone().updated_with(&Location::in_pool("train".parse().unwrap())),
            current
        );
        assert!(
            reported.has_more_than_pool()
                && !Location::in_pool("train".parse().unwrap()).has_more_than_pool()
        );
    }

    #[test]
    fn every_location_field_is_a_domain_and_domains_are_parsed_as_they_are_written() {
        let mut location = Location::in_pool("train".parse().unwrap());
        location.tenant = "lab".parse().ok();
        let unit = || "x1".parse().ok();
        (location.site, location.rack, location.leaf) = (unit(), unit(), unit());
        (location.nvlink, location.spine, location.row) = (unit(), unit(), unit());
        location.pdu = unit();
        let domains = location.domains();
        assert_eq!(domains.len(), 10);
        for domain in domains {
            let text = String::from(domain.clone());
            assert_eq!(text.parse(), Ok(domain.clone()));
            assert!(crate::fleet::access::is_within(&location, &domain), "{domain}");
        }
    }

    #[test]
    fn unknown_location_fields_are_no_domains() {
        let mut location = Location::in_pool("train".parse().unwrap());
        assert_eq!(location.domains().len(), 2);
        location.rack = Some("r1".parse().unwrap());
        assert_eq!(location.domains().last().unwrap().to_string(), "rack r1");
    }
}
