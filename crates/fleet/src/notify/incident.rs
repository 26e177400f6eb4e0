//! Incidents: what is wrong with a node or a failure domain, and in which groups it is notified.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::condition::{Condition, FaultRelation, IncidentKey};
use super::group::{AlertGroup, GroupId};
use super::mute::Mute;
use super::notification::NotificationKind;
use super::policy::{AlertMatch, GroupLabel, NotificationPolicy, NotificationRoute, accepts};
use crate::fleet::access::is_within;
use crate::fleet::identity::{Domain, Location, NodeId};
use crate::fleet::order::OrderKind;
use crate::fleet::reason::GpuLocation;
use crate::fleet::state::{Node, NodePhase, RepairAttempt, Symptom};
use crate::health::Severity;

/// Something that is wrong now, and that a route matches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Incident {
    pub started: Timestamp,
    /// Position in the log of the entry that opened it.
    pub opened_seq: u64,
    /// The node, or the nodes of the failure domain.
    pub nodes: Vec<(NodeId, Location)>,
    /// Worst first. Never empty.
    pub conditions: Vec<Condition>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actions: Option<ActionsTaken>,
    /// Whether people are not told about it: it is muted, or a domain fault explains it.
    pub is_suppressed: bool,
    /// The groups that it is in, and whether a notification of the group has named it.
    pub groups: BTreeMap<GroupId, bool>,
}

/// What the controller did about a node, as values.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ActionsTaken {
    pub phase: NodePhase,
    pub is_cordoned: bool,
    pub is_drained: bool,
    /// Repairs that were attempted, oldest first.
    pub repairs: Vec<RepairAttempt>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending: Option<(OrderKind, Option<GpuLocation>)>,
}

/// Maximum number of repairs in a message.
const REPAIRS_MAX: usize = 4;

impl ActionsTaken {
    pub(super) fn new(node: &Node) -> Self {
        let attempts: Vec<&RepairAttempt> = node.repairs.attempts().collect();
        let skipped = attempts.len().saturating_sub(REPAIRS_MAX);
        let pending = node.orders.pending().map(|pending| {
            let kind = pending.order.kind.brief();
            let gpu = node.location_of_order(&kind);
            (kind, gpu)
        });
        Self {
            phase: node.phase(),
            is_cordoned: node.scheduling.is_cordoned_by_farrier(),
            is_drained: node.scheduling.is_drained(),
            repairs: attempts.into_iter().skip(skipped).cloned().collect(),
            pending,
        }
    }
}

impl Incident {
    pub fn worst(&self) -> Option<&Condition> {
        self.conditions.first()
    }

    pub fn severity(&self) -> Severity {
        self.worst().map_or(Severity::Info, Condition::severity)
    }

    /// Whether one of its conditions satisfies the route, wherever the nodes are.
    fn satisfies(&self, route: &AlertMatch) -> bool {
        self.conditions.iter().any(|condition| {
            route.min_severity.is_none_or(|minimum| condition.severity() >= minimum)
                && accepts(&route.kinds, Some(&condition.kind()))
                && (route.codes.is_empty()
                    || route.codes.iter().any(|pattern| pattern.matches(condition.code())))
        })
    }

    /// Whether one of its nodes is where the route applies.
    fn is_at(&self, route: &AlertMatch) -> bool {
        self.nodes.iter().any(|(_, location)| route.is_place(location))
    }

    /// Whether it belongs to another group of the route than this one, or to none: its node moved,
    /// or the route was limited to other places.
    pub(super) fn is_misplaced(
        &self,
        key: &IncidentKey,
        group: &AlertGroup,
        route: &NotificationRoute,
    ) -> bool {
        let labels = || self.labels(route);
        let has_moved = || {
            labels()
                .into_iter()
                .filter(|(label, _)| label.is_place())
                .any(|(label, value)| group.labels.get(&label).is_some_and(|old| *old != value))
        };
        !self.is_at(&route.matches) || key.node().is_some() && has_moved()
    }

    /// The routes that take it, in their order. A route for some places ends the search only for
    /// the nodes there: a failure domain may have nodes of several owners.
    pub(super) fn routes<'p>(&self, policy: &'p NotificationPolicy) -> Vec<&'p NotificationRoute> {
        let mut routes = Vec::new();
        let mut places: Vec<&Location> = self.nodes.iter().map(|(_, location)| location).collect();
        for route in policy.routes.iter().filter(|route| self.satisfies(&route.matches)) {
            if !places.iter().any(|location| route.matches.is_place(location)) {
                continue;
            }
            routes.push(route);
            if !route.continues {
                places.retain(|location| !route.matches.is_place(location));
            }
        }
        routes
    }

    /// The values of the labels that group it.
    pub(super) fn labels(&self, route: &NotificationRoute) -> BTreeMap<GroupLabel, String> {
        let worst = self.worst();
        let common = |value: &dyn Fn(&NodeId, &Location) -> Option<String>| {
            let mut values: Vec<String> =
                self.nodes.iter().filter_map(|(node, location)| value(node, location)).collect();
            values.sort();
            values.dedup();
            match &values[..] {
                [one] => one.clone(),
                [] => String::new(),
                _ => "several".to_owned(),
            }
        };
        let value = |label: GroupLabel| match label {
            GroupLabel::Node => common(&|node, _| Some(node.to_string())),
            GroupLabel::Pool => common(&|_, location| Some(location.pool.to_string())),
            GroupLabel::Site => {
                common(&|_, location| location.site.as_ref().map(ToString::to_string))
            }
            GroupLabel::Tenant => {
                common(&|_, location| location.tenant.as_ref().map(ToString::to_string))
            }
            GroupLabel::Rack => {
                common(&|_, location| location.rack.as_ref().map(ToString::to_string))
            }
            GroupLabel::Kind => {
                worst.map_or_else(String::new, |worst| worst.kind().as_str().to_owned())
            }
            GroupLabel::Code => worst.map_or_else(String::new, |worst| worst.code().to_owned()),
        };
        route.group_by.iter().map(|label| (*label, value(*label))).collect()
    }

    /// Whether every condition is muted. A condition that is a consequence of others is muted with
    /// them.
    pub(super) fn is_muted<'m>(
        &self,
        key: &IncidentKey,
        mutes: &(impl Iterator<Item = &'m Mute> + Clone),
    ) -> bool {
        let is_cause = |condition: &&Condition| {
            matches!(
                condition.kind(),
                NotificationKind::Finding
                    | NotificationKind::HeartbeatLost
                    | NotificationKind::DomainFault
            )
        };
        let causes: Vec<&Condition> = self.conditions.iter().filter(is_cause).collect();
        let considered = if causes.is_empty() { self.conditions.iter().collect() } else { causes };
        considered.into_iter().all(|condition| {
            let code = condition.code();
            mutes.clone().any(|mute| match key {
                IncidentKey::DomainFault(domain) => {
                    let locations = self.nodes.iter().map(|(_, location)| location);
                    mute.mutes_domain(domain, locations, code)
                }
                IncidentKey::Service(_) | IncidentKey::Finding(..) => {
                    self.nodes.iter().all(|(node, location)| mute.mutes_node(node, location, code))
                }
            })
        })
    }

    /// Whether the fault of this domain explains the incident of a node: something that it shows is
    /// a symptom of the fault, and nothing is the node's own trouble.
    pub(super) fn is_explained_by(&self, domain: &Domain, symptom: Symptom) -> bool {
        let relations = || self.conditions.iter().map(|condition| condition.relation(symptom));
        self.nodes.iter().all(|(_, location)| is_within(location, domain))
            && relations().all(|relation| relation != FaultRelation::Independent)
            && (relations().any(|relation| relation == FaultRelation::Explained)
                || relations().all(|relation| relation == FaultRelation::Returning))
    }
}
