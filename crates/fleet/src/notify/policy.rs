//! Notification policy: who is told about what, and how often. Like the rest of the policy it is
//! data in the log.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use super::notification::NotificationKind;
use super::receiver::Receiver;
use crate::fleet::identity::{Domain, Location, Pool, Tenant, Unit};
use crate::health::Severity;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NotificationPolicy {
    pub receivers: BTreeMap<String, Receiver>,
    /// Tried in this order. An alert takes the first route that matches it. A route with `continue`
    /// does not end the search.
    pub routes: Vec<NotificationRoute>,
    /// Base of the links to runbook pages. `{code}` is replaced by the code of the page. Without
    /// `{code}`, `/CODE.md` is appended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runbook_base_url: Option<String>,
}

impl NotificationPolicy {
    /// Whether there are no notifications at all.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub fn route(&self, name: &str) -> Option<&NotificationRoute> {
        self.routes.iter().find(|route| route.name == name)
    }

    /// Link to the runbook page with this code.
    pub fn runbook_url(&self, page: &str) -> Option<String> {
        let base = self.runbook_base_url.as_deref()?;
        Some(if base.contains("{code}") {
            base.replace("{code}", page)
        } else {
            format!("{}/{page}.md", base.trim_end_matches('/'))
        })
    }
}

/// Which alerts go to which receivers, and when.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NotificationRoute {
    /// Identifies the groups of the route, also after a change of the policy.
    pub name: String,
    /// An alert has to satisfy every condition. Without conditions, the route matches every alert.
    #[serde(rename = "match", default, skip_serializing_if = "AlertMatch::is_any")]
    pub matches: AlertMatch,
    pub receivers: Vec<String>,
    /// Alerts with equal values of these labels are one group, and share their notifications.
    #[serde(default = "default_group_by")]
    pub group_by: BTreeSet<GroupLabel>,
    /// Delay of the first notification of a group, in which it collects alerts.
    #[serde(default = "default_group_wait_s")]
    pub group_wait_s: u32,
    /// Minimum time between two notifications of a group.
    #[serde(default = "default_group_interval_s")]
    pub group_interval_s: u32,
    /// When a notification is repeated although nothing changed.
    #[serde(default = "default_repeat_interval_s")]
    pub repeat_interval_s: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub escalate: Option<Escalation>,
    /// Whether later routes are tried too.
    #[serde(rename = "continue", default, skip_serializing_if = "std::ops::Not::not")]
    pub continues: bool,
}

// The intervals are the defaults of Alertmanager (`group_wait`, `group_interval`,
// `repeat_interval`).
fn default_group_wait_s() -> u32 {
    30
}

fn default_group_interval_s() -> u32 {
    300
}

fn default_repeat_interval_s() -> u32 {
    4 * 3600
}

fn default_group_by() -> BTreeSet<GroupLabel> {
    BTreeSet::from([GroupLabel::Pool, GroupLabel::Code])
}

/// Conditions on an alert. An empty list accepts everything.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AlertMatch {
    /// At least this severity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_severity: Option<Severity>,
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub pools: BTreeSet<Pool>,
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub sites: BTreeSet<Unit>,
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub tenants: BTreeSet<Tenant>,
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub kinds: BTreeSet<NotificationKind>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub codes: Vec<AlertCodePattern>,
}

impl AlertMatch {
    pub fn is_any(&self) -> bool {
        *self == Self::default()
    }

    /// Whether a node is where this applies.
    pub(super) fn is_place(&self, location: &Location) -> bool {
        accepts(&self.pools, Some(&location.pool))
            && accepts(&self.sites, location.site.as_ref())
            && accepts(&self.tenants, location.tenant.as_ref())
    }

    /// The scope of people who get messages about this node. A route without places is for people
    /// who see the whole fleet.
    pub(super) fn scope(&self, location: &Location) -> Domain {
        if let Some(tenant) = location.tenant.as_ref().filter(|_| !self.tenants.is_empty()) {
            Domain::Tenant(tenant.clone())
        } else if !self.pools.is_empty() {
            Domain::Pool(location.pool.clone())
        } else if let Some(site) = location.site.as_ref().filter(|_| !self.sites.is_empty()) {
            Domain::Site(site.clone())
        } else {
            Domain::Fleet
        }
    }

    /// Whether every alert that `other` accepts is accepted here too. May return false although it
    /// is so.
    pub(super) fn covers(&self, other: &Self) -> bool {
        fn all_of<T: Ord>(wide: &BTreeSet<T>, narrow: &BTreeSet<T>) -> bool {
            wide.is_empty() || !narrow.is_empty() && narrow.is_subset(wide)
        }
        let covers_code = |code: &AlertCodePattern| self.codes.iter().any(|wide| wide.covers(code));
        self.min_severity <= other.min_severity
            && all_of(&self.pools, &other.pools)
            && all_of(&self.sites, &other.sites)
            && all_of(&self.tenants, &other.tenants)
            && all_of(&self.kinds, &other.kinds)
            && (self.codes.is_empty()
                || !other.codes.is_empty() && other.codes.iter().all(covers_code))
    }
}

pub(super) fn accepts<T: Ord>(wanted: &BTreeSet<T>, found: Option<&T>) -> bool {
    wanted.is_empty() || found.is_some_and(|found| wanted.contains(found))
}

/// A code, such as `gpu.xid`, or the beginning of codes with a final `*`, such as `nic.*`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AlertCodePattern(pub String);

impl AlertCodePattern {
    pub fn matches(&self, code: &str) -> bool {
        match self.0.strip_suffix('*') {
            Some(prefix) => code.starts_with(prefix),
            None => code == self.0,
        }
    }

    fn covers(&self, other: &Self) -> bool {
        match (self.0.strip_suffix('*'), other.0.strip_suffix('*')) {
            (Some(wide), Some(narrow)) => narrow.starts_with(wide),
            (Some(_), None) => self.matches(&other.0),
            (None, Some(_)) => false,
            (None, None) => self == other,
        }
    }
}

/// What a group has in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GroupLabel {
    Node,
    Pool,
    Site,
    Tenant,
    Rack,
    Kind,
    Code,
}

impl GroupLabel {
    pub const ALL: [Self; 7] =
        [Self::Node, Self::Pool, Self::Site, Self::Tenant, Self::Rack, Self::Kind, Self::Code];

    /// Whether its value follows from where the nodes are.
    pub(super) fn is_place(self) -> bool {
        !matches!(self, Self::Kind | Self::Code)
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Pool => "pool",
            Self::Site => "site",
            Self::Tenant => "tenant",
            Self::Rack => "rack",
            Self::Kind => "kind",
            Self::Code => "code",
        }
    }
}

impl fmt::Display for GroupLabel {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(self.as_str())
    }
}

/// Which further receivers are told of a group that no operator acknowledges and that does not end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Escalation {
    /// Seconds after the first notification.
    pub after_s: u32,
    pub receivers: Vec<String>,
}
