//! The router: which notifications are due. A deterministic state machine over the log and the
//! time.
//!
//! ```text
//! Entry ─> conditions of the node ─> Incident ─> routes ─> Group ── time ──> Outgoing
//!          (from the fleet's state)     │                    │
//!          mutes, domain faults ────────┘  wait, interval, repeat, escalation
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::condition::{self, Condition, IncidentKey};
use super::group::{Acknowledgement, Group, GroupId, Membership, Outcome, Sent};
use super::incident::{ActionsTaken, Incident};
use super::message;
use super::mute::Mute;
use super::notification::{Notification, NotificationStatus};
use super::policy::{NotificationPolicy, Route};
use crate::fleet::access::AccessChange;
use crate::fleet::event::{Entry, Event, OperatorRequest};
use crate::fleet::identity::{Domain, Location, NodeId};
use crate::fleet::state::{DomainFault, FleetState, Node, NodePhase};

/// A notification for one receiver.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Outgoing {
    pub receiver: String,
    pub notification: Notification,
}

/// The part of the fleet's state that the router reads. It may be newer than the entry that is
/// applied: the router then learns of later entries early, and applies them again without effect.
#[derive(Debug, Clone, Default)]
pub struct FleetView {
    /// `None` for a node that is not in the fleet. Nodes that are missing here are not evaluated.
    pub nodes: BTreeMap<NodeId, Option<Arc<Node>>>,
    pub domain_faults: BTreeMap<Domain, DomainFault>,
    pub mutes: BTreeMap<u64, Mute>,
}

impl FleetView {
    /// A view of these nodes.
    pub fn of_nodes<'n>(state: &FleetState, nodes: impl Iterator<Item = &'n NodeId>) -> Self {
        Self {
            nodes: nodes.map(|id| (id.clone(), state.nodes.get(id).cloned())).collect(),
            domain_faults: state.domain_faults.clone(),
            mutes: state.mutes.clone(),
        }
    }

    /// A view of the whole fleet.
    pub fn of_fleet(state: &FleetState) -> Self {
        Self::of_nodes(state, state.nodes.keys())
    }
}

/// The node whose alerts an entry may change.
pub fn concerned_node(event: &Event) -> Option<&NodeId> {
    match event {
        Event::InventoryReported { .. }
        | Event::CordonObserved { .. }
        | Event::OrderGenerationObserved { .. }
        | Event::OperatorRequested { .. } => None,
        Event::AccessChanged { change: AccessChange::CertificateRevoked { node }, .. } => Some(node),
        other => other.node(),
    }
}

/// What the router stores besides incidents and groups.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouterHead {
    /// The last applied entry.
    pub seq: u64,
    pub policy: NotificationPolicy,
    pub mutes: BTreeMap<u64, Mute>,
    pub domain_faults: BTreeMap<Domain, DomainFault>,
}

#[derive(Debug, Default)]
pub struct Router {
    head: RouterHead,
    incidents: BTreeMap<IncidentKey, Incident>,
    groups: BTreeMap<GroupId, Group>,
    index: Index,
    changed: ChangedKeys,
}

/// Derived from incidents and groups.
#[derive(Debug, Default)]
struct Index {
    members: BTreeMap<GroupId, BTreeSet<IncidentKey>>,
    /// Members that are not suppressed.
    visible: BTreeMap<GroupId, BTreeSet<IncidentKey>>,
    due: BTreeSet<(Timestamp, GroupId)>,
    due_of: BTreeMap<GroupId, Timestamp>,
}

impl Index {
    fn membership(&self, id: &GroupId) -> Membership {
        Membership {
            fires: self.members.contains_key(id),
            is_visible: self.visible.contains_key(id),
        }
    }

    fn set(map: &mut BTreeMap<GroupId, BTreeSet<IncidentKey>>, id: &GroupId, key: &IncidentKey, is_in: bool) {
        if is_in {
            map.entry(id.clone()).or_default().insert(key.clone());
        } else if let Some(keys) = map.get_mut(id) {
            keys.remove(key);
            if keys.is_empty() {
                map.remove(id);
            }
        }
    }

    fn set_due(&mut self, id: &GroupId, due: Option<Timestamp>) {
        if let Some(before) = self.due_of.remove(id) {
            self.due.remove(&(before, id.clone()));
        }
        if let Some(at) = due {
            self.due_of.insert(id.clone(), at);
            self.due.insert((at, id.clone()));
        }
    }
}

/// What changed since it was last stored.
#[derive(Debug, Default)]
struct ChangedKeys {
    head: bool,
    incidents: BTreeSet<IncidentKey>,
    groups: BTreeSet<GroupId>,
}

/// What has to be stored. `None` means deleted.
#[derive(Debug, Default)]
pub struct RouterChanges {
    pub head: Option<RouterHead>,
    pub incidents: Vec<(IncidentKey, Option<Incident>)>,
    pub groups: Vec<(GroupId, Option<Group>)>,
}

impl RouterChanges {
    pub fn is_empty(&self) -> bool {
        self.head.is_none() && self.incidents.is_empty() && self.groups.is_empty()
    }
}

impl Router {
    /// A router that was stored.
    pub fn restore(
        head: RouterHead,
        incidents: BTreeMap<IncidentKey, Incident>,
        groups: BTreeMap<GroupId, Group>,
    ) -> Self {
        let mut router = Self { head, incidents, groups, ..Self::default() };
        for (key, incident) in &router.incidents {
            for id in incident.groups.keys() {
                Index::set(&mut router.index.members, id, key, true);
                Index::set(&mut router.index.visible, id, key, !incident.is_suppressed);
            }
        }
        let ids: Vec<GroupId> = router.groups.keys().cloned().collect();
        for id in &ids {
            router.schedule(id);
        }
        router.changed = ChangedKeys::default();
        router
    }

    /// The last applied entry.
    pub fn seq(&self) -> u64 {
        self.head.seq
    }

    pub fn policy(&self) -> &NotificationPolicy {
        &self.head.policy
    }

    pub fn groups(&self) -> impl Iterator<Item = (&GroupId, &Group)> {
        self.groups.iter()
    }

    pub fn incidents(&self) -> impl Iterator<Item = (&IncidentKey, &Incident)> {
        self.incidents.iter()
    }

    /// Returns what changed since the last call, to be stored together with the notifications that
    /// resulted from it.
    pub fn take_changes(&mut self) -> RouterChanges {
        let changed = std::mem::take(&mut self.changed);
        let incident = |key: IncidentKey| {
            let incident = self.incidents.get(&key).cloned();
            (key, incident)
        };
        let group = |id: GroupId| {
            let group = self.groups.get(&id).cloned();
            (id, group)
        };
        RouterChanges {
            head: changed.head.then(|| self.head.clone()),
            incidents: changed.incidents.into_iter().map(incident).collect(),
            groups: changed.groups.into_iter().map(group).collect(),
        }
    }

    /// Starts from the state of the fleet at entry `seq`: after a change of the policy, or when the
    /// router's own state is lost. What fired before and still does is not notified again, unless
    /// the router does not know it.
    pub fn reset_to(
        &mut self,
        fleet: &FleetView,
        policy: NotificationPolicy,
        seq: u64,
        at: Timestamp,
    ) {
        self.head.policy = policy;
        self.head.seq = seq;
        self.head.mutes.clone_from(&fleet.mutes);
        self.head.domain_faults.clone_from(&fleet.domain_faults);
        self.changed.head = true;
        let known: BTreeSet<NodeId> =
            self.incidents.keys().filter_map(|key| key.node().cloned()).collect();
        for id in known.iter().filter(|id| !fleet.nodes.contains_key(*id)) {
            self.sync_node(id, None, seq, at);
        }
        for (id, node) in &fleet.nodes {
            self.sync_node(id, node.as_deref(), seq, at);
        }
        self.sync_domains(seq, at, fleet);
        self.reassess(seq, at);
        let ids: Vec<GroupId> = self.groups.keys().cloned().collect();
        for id in &ids {
            self.schedule(id);
        }
    }

    /// Applies an entry. `fleet` has the node of the entry ([`concerned_node`]), as it is after
    /// the entry or later. A change of the notification policy needs [`Self::reset_to`] instead.
    pub fn apply(&mut self, entry: &Entry, fleet: &FleetView) {
        if entry.seq <= self.head.seq {
            return;
        }
        self.head.seq = entry.seq;
        let (seq, at) = (entry.seq, entry.at);
        match &entry.event {
            Event::OperatorRequested { request } => self.handle_request(request, entry, fleet),
            Event::DomainFaultDetected { .. } | Event::DomainFaultCleared { .. } => {
                self.head.domain_faults.clone_from(&fleet.domain_faults);
                self.changed.head = true;
                self.sync_domains(seq, at, fleet);
                self.reassess(seq, at);
            }
            Event::ClockStepped { from, to } => self.step(*from, *to, fleet),
            _ => {}
        }
        let Some(id) = concerned_node(&entry.event) else { return };
        match fleet.nodes.get(id) {
            Some(node) => self.sync_node(id, node.as_deref(), seq, at),
            // A view of the whole fleet has no retired nodes.
            None if matches!(entry.event, Event::Retired { .. }) => {
                self.sync_node(id, None, seq, at);
            }
            None => {}
        }
    }

    fn handle_request(&mut self, request: &OperatorRequest, entry: &Entry, fleet: &FleetView) {
        match request {
            OperatorRequest::Mute { .. } | OperatorRequest::Unmute { .. } => {
                self.head.mutes.clone_from(&fleet.mutes);
                self.changed.head = true;
                self.reassess(entry.seq, entry.at);
            }
            OperatorRequest::AcknowledgeAlerts { group } => {
                let id = GroupId(group.clone());
                if let Some(found) = self.groups.get_mut(&id) {
                    let acknowledged = Acknowledgement { by: entry.by.clone(), at: entry.at };
                    found.acknowledged = Some(acknowledged);
                    self.schedule(&id);
                }
            }
            OperatorRequest::DomainRepaired { .. } => {
                self.head.domain_faults.clone_from(&fleet.domain_faults);
                self.changed.head = true;
                self.sync_domains(entry.seq, entry.at, fleet);
                self.reassess(entry.seq, entry.at);
            }
            _ => {}
        }
    }

    /// Adjusts to a clock step: the groups' timers keep their remaining time.
    fn step(&mut self, from: Timestamp, to: Timestamp, fleet: &FleetView) {
        let by = to.duration_since(from);
        self.head.mutes.clone_from(&fleet.mutes);
        self.changed.head = true;
        let ids: Vec<GroupId> = self.groups.keys().cloned().collect();
        for id in &ids {
            if let Some(group) = self.groups.get_mut(id) {
                group.step(by, to);
            }
            self.schedule(id);
        }
        if by < SignedDuration::ZERO {
            for (key, incident) in self.incidents.iter_mut().filter(|(_, one)| one.started > to) {
                incident.started = to;
                self.changed.incidents.insert(key.clone());
            }
        }
    }

    /// Opens, updates and ends the incidents of a node. `None`: the node left the fleet.
    fn sync_node(&mut self, id: &NodeId, node: Option<&Node>, seq: u64, at: Timestamp) {
        let found = node.map(|node| condition::of_node(id, node)).unwrap_or_default();
        let first = IncidentKey::Service(id.clone());
        let findings = IncidentKey::Finding(id.clone(), String::new())..;
        let is_theirs = |key: &&IncidentKey| key.node() == Some(id);
        let known = self.incidents.range(findings).map(|(key, _)| key).take_while(is_theirs);
        let known = self.incidents.get_key_value(&first).map(|(key, _)| key).into_iter().chain(known);
        let ended: Vec<IncidentKey> =
            known.filter(|key| !found.contains_key(*key)).cloned().collect();
        let outcome = match node {
            None => Outcome::Retired,
            Some(node) if node.phase() == NodePhase::InService => Outcome::ReturnedToService,
            Some(_) => Outcome::Cleared,
        };
        for key in ended {
            // Only an incident that affected the service has a return.
            let outcome = match (&key, outcome) {
                (IncidentKey::Finding(..), Outcome::ReturnedToService) => Outcome::Cleared,
                _ => outcome,
            };
            self.end(&key, outcome, seq);
        }
        let Some(node) = node else { return };
        for (key, conditions) in found {
            let actions =
                matches!(key, IncidentKey::Service(_)).then(|| ActionsTaken::new(node));
            let nodes = vec![(id.clone(), node.location.clone())];
            self.update(&key, nodes, conditions, actions, seq, at);
        }
    }

    fn sync_domains(&mut self, seq: u64, at: Timestamp, fleet: &FleetView) {
        let known: Vec<IncidentKey> = self
            .incidents
            .keys()
            .filter(|key| match key {
                IncidentKey::DomainFault(domain) => !fleet.domain_faults.contains_key(domain),
                _ => false,
            })
            .cloned()
            .collect();
        for key in known {
            self.end(&key, Outcome::Cleared, seq);
        }
        for (domain, fault) in &fleet.domain_faults {
            let key = IncidentKey::DomainFault(domain.clone());
            let nodes: Vec<(NodeId, Location)> = match self.incidents.get(&key) {
                Some(incident) => incident.nodes.clone(),
                None => fault
                    .nodes
                    .iter()
                    .filter_map(|id| {
                        let node = fleet.nodes.get(id)?.as_ref()?;
                        Some((id.clone(), node.location.clone()))
                    })
                    .collect(),
            };
            if !nodes.is_empty() {
                self.update(&key, nodes, vec![condition::of_domain(fault)], None, seq, at);
            }
        }
    }

    fn update(
        &mut self,
        key: &IncidentKey,
        nodes: Vec<(NodeId, Location)>,
        conditions: Vec<Condition>,
        actions: Option<ActionsTaken>,
        seq: u64,
        at: Timestamp,
    ) {
        let before = self.incidents.get(key);
        let mut incident = Incident {
            started: before.map_or(at, |incident| incident.started),
            opened_seq: before.map_or(seq, |incident| incident.opened_seq),
            nodes,
            conditions,
            actions,
            is_suppressed: false,
            groups: before.map(|incident| incident.groups.clone()).unwrap_or_default(),
        };
        // An incident that no route takes is not stored. If it gets worse, it is evaluated again.
        if before.is_none() && incident.routes(&self.head.policy).is_empty() {
            return;
        }
        incident.is_suppressed = self.is_suppressed(key, &incident, at);
        if before == Some(&incident) && !self.misses_a_group(&incident) {
            return;
        }
        self.incidents.insert(key.clone(), incident);
        self.join_groups(key, seq, at);
    }

    /// Whether a route takes the incident, but it is not in a group of the route.
    fn misses_a_group(&self, incident: &Incident) -> bool {
        let is_in = |route: &&Route| {
            incident
                .groups
                .keys()
                .any(|id| self.groups.get(id).is_some_and(|group| group.route == route.name))
        };
        !incident.routes(&self.head.policy).iter().all(is_in)
    }

    fn is_suppressed(&self, key: &IncidentKey, incident: &Incident, at: Timestamp) -> bool {
        let mutes = self.head.mutes.values().filter(|mute| mute.until > at);
        let is_explained = || {
            self.head
                .domain_faults
                .iter()
                .any(|(domain, fault)| incident.is_explained_by(domain, fault.symptom))
        };
        incident.is_muted(key, &mutes) || key.node().is_some() && is_explained()
    }

    /// Adds a changed incident to the groups of its routes. It stays in a group that it joined, so
    /// that whoever was told of it is also told of its end.
    fn join_groups(&mut self, key: &IncidentKey, seq: u64, at: Timestamp) {
        self.changed.incidents.insert(key.clone());
        let Some(incident) = self.incidents.get_mut(key) else { return };
        for route in incident.routes(&self.head.policy) {
            let is_in = incident
                .groups
                .keys()
                .any(|id| self.groups.get(id).is_some_and(|group| group.route == route.name));
            if !is_in {
                let labels = incident.labels(route);
                let id = GroupId::new(&route.name, &labels);
                incident.groups.insert(id.clone(), false);
                self.groups.entry(id).or_insert_with(|| Group::new(route, labels, at, seq));
            }
        }
        let (is_visible, ids) =
            (!incident.is_suppressed, incident.groups.keys().cloned().collect::<Vec<_>>());
        for id in ids {
            Index::set(&mut self.index.members, &id, key, true);
            let was_visible = self.index.visible.contains_key(&id);
            Index::set(&mut self.index.visible, &id, key, is_visible);
            let Some(group) = self.groups.get_mut(&id) else { continue };
            if group.sent.is_none() && is_visible && !was_visible {
                (group.opened, group.opened_seq) = (at, seq);
            }
            if is_visible {
                (group.is_changed, group.cause_seq) = (true, seq);
            }
            self.schedule(&id);
        }
    }

    fn end(&mut self, key: &IncidentKey, outcome: Outcome, seq: u64) {
        let Some(incident) = self.incidents.remove(key) else { return };
        self.changed.incidents.insert(key.clone());
        for id in incident.groups.keys() {
            Index::set(&mut self.index.members, id, key, false);
            Index::set(&mut self.index.visible, id, key, false);
            if let Some(group) = self.groups.get_mut(id) {
                group.outcome = Some(outcome);
                group.cause_seq = seq;
            }
            self.schedule(id);
        }
    }

    /// Evaluates mutes, domain faults and routes for every incident again.
    fn reassess(&mut self, seq: u64, at: Timestamp) {
        let keys: Vec<IncidentKey> = self.incidents.keys().cloned().collect();
        for key in keys {
            let Some(incident) = self.incidents.get(&key) else { continue };
            let is_suppressed = self.is_suppressed(&key, incident, at);
            let has_changed = is_suppressed != incident.is_suppressed;
            if !has_changed && !self.misses_a_group(incident) {
                continue;
            }
            if let Some(incident) = self.incidents.get_mut(&key) {
                incident.is_suppressed = is_suppressed;
            }
            self.join_groups(&key, seq, at);
        }
    }

    /// Computes again when a group is due. Drops a group that ended before it was notified.
    fn schedule(&mut self, id: &GroupId) {
        self.changed.groups.insert(id.clone());
        let Some(group) = self.groups.get(id) else { return };
        let members = self.index.membership(id);
        if group.sent.is_none() && !members.fires {
            self.groups.remove(id);
            return self.index.set_due(id, None);
        }
        let due = group.due(self.head.policy.route(&group.route), members);
        self.index.set_due(id, due);
    }

    /// When [`Self::advance`] has something to do.
    pub fn next_due(&self) -> Option<Timestamp> {
        let mute = self.head.mutes.values().map(|mute| mute.until).min();
        let group = self.index.due.first().map(|(at, _)| *at);
        [mute, group].into_iter().flatten().min()
    }

    /// Returns the notifications that are due, in order.
    pub fn advance(&mut self, now: Timestamp) -> Vec<Outgoing> {
        let muted = self.head.mutes.len();
        self.head.mutes.retain(|_, mute| mute.until > now);
        if self.head.mutes.len() < muted {
            self.changed.head = true;
            self.reassess(self.head.seq, now);
        }
        let mut outgoing = Vec::new();
        while let Some((at, id)) = self.index.due.first().cloned() {
            if at > now {
                break;
            }
            outgoing.extend(self.flush(&id, now));
        }
        outgoing
    }

    /// Notifies a group that is due.
    fn flush(&mut self, id: &GroupId, now: Timestamp) -> Vec<Outgoing> {
        let Some(mut group) = self.groups.remove(id) else {
            self.index.set_due(id, None);
            return Vec::new();
        };
        let policy = &self.head.policy;
        if !self.index.membership(id).fires {
            self.index.set_due(id, None);
            self.changed.groups.insert(id.clone());
            return resolve(id, &mut group, policy, now);
        }
        let outgoing = match policy.route(&group.route) {
            Some(route) => {
                let keys = self.index.visible.get(id).into_iter().flatten();
                let visible: Vec<(&IncidentKey, &Incident)> =
                    keys.filter_map(|key| self.incidents.get_key_value(key)).collect();
                fire(id, &mut group, route, policy, &visible, now)
            }
            None => Vec::new(),
        };
        group.is_changed = false;
        self.groups.insert(id.clone(), group);
        if !outgoing.is_empty() {
            // Everything visible is in the message, or in its count of nodes.
            for key in self.index.visible.get(id).into_iter().flatten() {
                let incident = self.incidents.get_mut(key);
                let named = incident.and_then(|incident| incident.groups.get_mut(id));
                if let Some(is_named) = named.filter(|is_named| !**is_named) {
                    *is_named = true;
                    self.changed.incidents.insert(key.clone());
                }
            }
        }
        self.schedule(id);
        outgoing
    }
}

/// The notifications of a group that fires. Empty if nothing changed that people have to know, and
/// no repeat or escalation is due.
fn fire(
    id: &GroupId,
    group: &mut Group,
    route: &Route,
    policy: &NotificationPolicy,
    visible: &[(&IncidentKey, &Incident)],
    now: Timestamp,
) -> Vec<Outgoing> {
    let Some(notification) = message::firing(id, visible, policy, now) else { return Vec::new() };
    let is_waiting = group.acknowledged.is_none();
    let escalation = route.escalate.as_ref().filter(|_| is_waiting && !group.is_escalated);
    let escalation = escalation.filter(|escalation| {
        let first = group.sent.as_ref().map(|sent| sent.first_at);
        first.is_some_and(|at| crate::fleet::state::add_seconds(at, escalation.after_s) <= now)
    });
    let has_news = match &group.sent {
        None => true,
        Some(sent) => {
            let repeat = crate::fleet::state::add_seconds(sent.at, route.repeat_interval_s);
            let has_new = visible.iter().any(|(_, one)| one.groups.get(id) == Some(&false));
            let is_news = has_new || message::is_news(&sent.notification, &notification);
            group.is_changed && is_news || is_waiting && repeat <= now
        }
    };
    let mut receivers: BTreeSet<String> = BTreeSet::new();
    if has_news {
        receivers.extend(route.receivers.iter().cloned());
        let told = route.escalate.as_ref().filter(|_| group.is_escalated);
        receivers.extend(told.into_iter().flat_map(|escalation| &escalation.receivers).cloned());
    }
    if let Some(escalation) = escalation {
        group.is_escalated = true;
        receivers.extend(escalation.receivers.iter().cloned());
    }
    receivers.retain(|name| policy.receivers.contains_key(name));
    if !has_news && escalation.is_none() {
        return Vec::new();
    }
    send(id, group, receivers, &notification, now)
}

/// The last notifications of a group: it no longer fires.
fn resolve(
    id: &GroupId,
    group: &mut Group,
    policy: &NotificationPolicy,
    now: Timestamp,
) -> Vec<Outgoing> {
    let Some(sent) = &group.sent else { return Vec::new() };
    let notification = Notification {
        status: NotificationStatus::Resolved,
        action_taken: Some(message::outcome_text(group.outcome)),
        action_needed: None,
        at: now,
        ..sent.notification.clone()
    };
    let receivers =
        sent.receivers.iter().filter(|name| policy.receivers.contains_key(*name)).cloned();
    let receivers = receivers.collect();
    send(id, group, receivers, &notification, now)
}

fn send(
    id: &GroupId,
    group: &mut Group,
    receivers: BTreeSet<String>,
    notification: &Notification,
    now: Timestamp,
) -> Vec<Outgoing> {
    let to = |receiver: &String| Outgoing {
        receiver: receiver.clone(),
        notification: Notification { key: group.key(id, receiver), ..notification.clone() },
    };
    let outgoing = receivers.iter().map(to).collect();
    group.number += 1;
    let before = group.sent.take();
    let mut told = before.as_ref().map(|sent| sent.receivers.clone()).unwrap_or_default();
    told.extend(receivers);
    let first_at = before.map_or(now, |sent| sent.first_at);
    group.sent = Some(Sent { first_at, at: now, receivers: told, notification: notification.clone() });
    outgoing
}
