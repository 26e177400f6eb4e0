//! Mutes: alerts without notifications, for a time.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::policy::AlertCodePattern;
use crate::fleet::access::is_within;
use crate::fleet::identity::{Actor, Domain, Location, NodeId};

/// Which alerts are muted. An alert has to satisfy every condition that is set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MuteMatch {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeId>,
    /// Nodes of this domain. An alert about another domain is not muted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<Domain>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<AlertCodePattern>,
}

impl MuteMatch {
    /// Whether it matches every alert.
    pub fn is_everything(&self) -> bool {
        self.node.is_none()
            && self.code.is_none()
            && self.domain.as_ref().is_none_or(|domain| *domain == Domain::Fleet)
    }

    /// Whether it matches alerts with this code of a node.
    fn matches_node(&self, node: &NodeId, location: &Location, code: &str) -> bool {
        self.node.as_ref().is_none_or(|name| name == node)
            && self.domain.as_ref().is_none_or(|domain| is_within(location, domain))
            && self.matches_code(code)
    }

    /// Whether it matches alerts with this code of a failure domain.
    fn matches_domain(&self, fault: &Domain, code: &str) -> bool {
        self.node.is_none()
            && self.domain.as_ref().is_none_or(|domain| domain == fault || *domain == Domain::Fleet)
            && self.matches_code(code)
    }

    fn matches_code(&self, code: &str) -> bool {
        self.code.as_ref().is_none_or(|pattern| pattern.matches(code))
    }
}

impl fmt::Display for MuteMatch {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.code {
            Some(code) => write!(out, "alerts `{}`", code.0)?,
            None => out.write_str("alerts")?,
        }
        if let Some(node) = &self.node {
            write!(out, " of node {node}")?;
        }
        self.domain.iter().try_for_each(|domain| write!(out, " of {domain}"))
    }
}

/// A mute in force. Its number is the position of its request in the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mute {
    #[serde(rename = "match")]
    pub matches: MuteMatch,
    /// What the operator may see. Nodes may come to a domain that is muted, and their owners did
    /// not mute them.
    #[serde(default = "Domain::whole_fleet", skip_serializing_if = "Domain::is_fleet")]
    pub scope: Domain,
    pub since: Timestamp,
    pub until: Timestamp,
    pub by: Actor,
    pub reason: String,
}

impl Mute {
    /// Whether it mutes alerts with this code of a node at this place.
    pub(super) fn mutes_node(&self, node: &NodeId, location: &Location, code: &str) -> bool {
        is_within(location, &self.scope) && self.matches.matches_node(node, location, code)
    }

    /// Whether it mutes alerts with this code of a failure domain that has faults on nodes at these
    /// places.
    pub(super) fn mutes_domain<'l>(
        &self,
        fault: &Domain,
        mut nodes: impl Iterator<Item = &'l Location>,
        code: &str,
    ) -> bool {
        nodes.all(|location| is_within(location, &self.scope))
            && self.matches.matches_domain(fault, code)
    }

    /// Keeps the length of the mute after a clock step.
    pub(crate) fn step(&mut self, from: Timestamp, to: Timestamp) {
        let moved = if to > from { to.duration_since(from) } else { to.duration_since(self.since) };
        if to > from || self.since > to {
            self.until = self.until.checked_add(moved).unwrap_or(Timestamp::MAX);
            self.since = self.since.checked_add(moved).unwrap_or(to);
        }
    }
}
