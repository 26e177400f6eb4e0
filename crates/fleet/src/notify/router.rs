//! The router: which notifications are due. A deterministic state machine over the log and the
//! time.
//!
//! ```text
//! Entry ─> conditions of the node ─> Incident ─> routes ─> AlertGroup ── time ──> Outgoing
//!          (from the fleet's state)     │                    │
//!          mutes, domain faults ────────┘  wait, interval, repeat, escalation
//! ```

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::condition::{self, Condition, IncidentKey};
use super::flush::{fire, resolve};
use super::group::{Acknowledgement, AlertGroup, GroupId, IncidentEnd, RecordId};
use super::incident::{ActionsTaken, Incident};
use super::index::{ChangedKeys, GroupIndex, RouterChanges};
use super::mute::Mute;
use super::notification::Notification;
use super::policy::{NotificationPolicy, NotificationRoute};
use super::view::{FleetView, RecoveryPeriod, concerned_node};
use crate::fleet::access::is_within;
use crate::fleet::event::{Entry, Event, OperatorRequest};
use crate::fleet::identity::{Domain, Location, NodeId};
use crate::fleet::state::{DomainFault, Node, NodePhase};

/// A notification for one receiver.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Outgoing {
    pub receiver: String,
    pub notification: Notification,
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
    pub domain_recoveries: BTreeMap<Domain, RecoveryPeriod>,
    /// `None` until [`Router::set_database`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<RecordId>,
}

#[derive(Debug, Default)]
pub struct Router {
    head: RouterHead,
    incidents: BTreeMap<IncidentKey, Incident>,
    groups: BTreeMap<GroupId, AlertGroup>,
    index: GroupIndex,
    changed: ChangedKeys,
}

impl Router {
    /// A router that was stored.
    pub fn restore(
        head: RouterHead,
        incidents: BTreeMap<IncidentKey, Incident>,
        groups: BTreeMap<GroupId, AlertGroup>,
    ) -> Self {
        let mut router = Self { head, incidents, groups, ..Self::default() };
        for (key, incident) in &router.incidents {
            for id in incident.groups.keys() {
                GroupIndex::set(&mut router.index.members, id, key, true);
                GroupIndex::set(&mut router.index.visible, id, key, !incident.is_suppressed);
            }
        }
        let ids: Vec<GroupId> = router.groups.keys().cloned().collect();
        for id in &ids {
            router.schedule(id);
        }
        router.changed = ChangedKeys::default();
        router
    }

    /// Says in which database the router is stored. Groups that are opened from now on have its
    /// identity in their keys.
    pub fn set_database(&mut self, database: &str) {
        if self.head.record.as_ref().is_none_or(|record| record.database != database) {
            self.head.record = Some(RecordId { database: database.to_owned(), losses: 0 });
            self.changed.head = true;
        }
    }

    /// The record that groups have in their keys if they are opened now.
    pub fn record(&self) -> Option<&RecordId> {
        self.head.record.as_ref()
    }

    /// Says that the router lost track of the log. Later entries may have positions that earlier
    /// ones had, so groups that are opened from now on have other keys.
    pub fn lose_track(&mut self) {
        if let Some(record) = &mut self.head.record {
            record.losses += 1;
            self.changed.head = true;
        }
    }

    /// The last applied entry.
    pub fn seq(&self) -> u64 {
        self.head.seq
    }

    pub fn policy(&self) -> &NotificationPolicy {
        &self.head.policy
    }

    pub fn groups(&self) -> impl Iterator<Item = (&GroupId, &AlertGroup)> {
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
        let ids: Vec<GroupId> = self.groups.keys().cloned().collect();
        for id in &ids {
            if let Some(sent) = self.groups.get_mut(id).and_then(|group| group.sent.as_mut()) {
                sent.adopt(&self.head.policy);
            }
            self.schedule(id);
        }
    }

    /// Applies an entry. See [`Self::apply_page`].
    pub fn apply(&mut self, entry: &Entry, fleet: &FleetView) {
        self.apply_page(std::slice::from_ref(entry), fleet);
    }

    /// Applies entries in their order. `fleet` has their nodes ([`concerned_node`]), as they are
    /// after the last entry or later, so each node is evaluated once. A change of the notification
    /// policy needs [`Self::reset_to`] instead.
    pub fn apply_page(&mut self, page: &[Entry], fleet: &FleetView) {
        let first = page.partition_point(|entry| entry.seq <= self.head.seq);
        let page = &page[first..];
        let Some(last) = page.last() else { return };
        self.head.seq = last.seq;
        if self.knows_other_domains(fleet, last.at) {
            self.sync_domains(last.seq, last.at, fleet);
        }
        let mut evaluated: BTreeSet<&NodeId> = BTreeSet::new();
        for entry in page {
            self.apply_to_fleet(entry, fleet);
            let Some(id) = concerned_node(&entry.event) else { continue };
            let node = match fleet.nodes.get(id) {
                Some(node) => node.as_deref(),
                // A view of the whole fleet has no retired nodes.
                None if matches!(entry.event, Event::Retired { .. }) => None,
                None => continue,
            };
            if evaluated.insert(id) {
                self.sync_node(id, node, entry.seq, entry.at);
            }
        }
        self.update_faulty_nodes(last.seq, last.at, fleet);
    }

    /// Applies what an entry changes besides the state of its node.
    fn apply_to_fleet(&mut self, entry: &Entry, fleet: &FleetView) {
        match &entry.event {
            Event::OperatorRequested { request } => self.handle_request(request, entry, fleet),
            Event::ClockStepped { from, to } => self.step(*from, *to, fleet),
            // These end mutes of the node.
            Event::Retired { .. } | Event::Enrolled { .. } | Event::LocationChanged { .. } => {
                let is_in_force = |number: &u64, _: &mut Mute| fleet.mutes.contains_key(number);
                let before = self.head.mutes.len();
                self.head.mutes.retain(is_in_force);
                if self.head.mutes.len() < before {
                    self.changed.head = true;
                    self.reassess(entry.seq, entry.at);
                }
            }
            _ => {}
        }
    }

    /// Whether domain faults, or the recoveries that are not over, differ from the fleet's.
    fn knows_other_domains(&self, fleet: &FleetView, at: Timestamp) -> bool {
        let current = |recoveries: &BTreeMap<Domain, RecoveryPeriod>| {
            let mut recoveries = recoveries.clone();
            recoveries.retain(|_, recovery| recovery.until > at);
            recoveries
        };
        self.head.domain_faults != fleet.domain_faults
            || current(&self.head.domain_recoveries) != current(&fleet.domain_recoveries)
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
            _ => {}
        }
    }

    /// Adjusts to a clock step: the groups' timers keep their remaining time.
    fn step(&mut self, from: Timestamp, to: Timestamp, fleet: &FleetView) {
        let by = to.duration_since(from);
        self.head.mutes.clone_from(&fleet.mutes);
        self.head.domain_recoveries.clone_from(&fleet.domain_recoveries);
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
        let is_known = |key: &IncidentKey| self.incidents.contains_key(key);
        let found = node.map(|node| condition::of_node(id, node, is_known)).unwrap_or_default();
        let first = IncidentKey::Service(id.clone());
        let findings = IncidentKey::Finding(id.clone(), String::new())..;
        let is_theirs = |key: &&IncidentKey| key.node() == Some(id);
        let known = self.incidents.range(findings).map(|(key, _)| key).take_while(is_theirs);
        let known =
            self.incidents.get_key_value(&first).map(|(key, _)| key).into_iter().chain(known);
        let ended: Vec<IncidentKey> =
            known.filter(|key| !found.contains_key(*key)).cloned().collect();
        let outcome = match node {
            None => IncidentEnd::Retired,
            Some(node) if node.phase() == NodePhase::InService => IncidentEnd::ReturnedToService,
            Some(_) => IncidentEnd::Cleared,
        };
        for key in ended {
            // Only a node that left service returns to it.
            let phase = self.incidents.get(&key).and_then(|incident| incident.actions.as_ref());
            let was_out = phase.is_some_and(|actions| !actions.phase.in_service());
            let outcome = match outcome {
                IncidentEnd::ReturnedToService if !was_out => IncidentEnd::Cleared,
                _ => outcome,
            };
            self.end(&key, outcome, seq);
        }
        let Some(node) = node else { return };
        for (key, conditions) in found {
            let actions = matches!(key, IncidentKey::Service(_)).then(|| ActionsTaken::new(node));
            let nodes = vec![(id.clone(), node.location.clone())];
            self.update(&key, nodes, conditions, actions, seq, at);
        }
    }

    /// Opens and ends the incidents of failure domains, and evaluates those of nodes again: a
    /// domain fault may explain them.
    fn sync_domains(&mut self, seq: u64, at: Timestamp, fleet: &FleetView) {
        self.head.domain_faults.clone_from(&fleet.domain_faults);
        self.head.domain_recoveries.clone_from(&fleet.domain_recoveries);
        self.changed.head = true;
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
            self.end(&key, IncidentEnd::Cleared, seq);
        }
        self.update_faulty_nodes(seq, at, fleet);
        self.reassess(seq, at);
    }

    /// Adds nodes that began to show the symptom of a domain fault, and removes those that left the
    /// domain. A node that recovered stays, because people were told of it.
    fn update_faulty_nodes(&mut self, seq: u64, at: Timestamp, fleet: &FleetView) {
        for (domain, fault) in &fleet.domain_faults {
            let key = IncidentKey::DomainFault(domain.clone());
            let known = self.incidents.get(&key);
            let known = known.map(|incident| incident.nodes.clone()).unwrap_or_default();
            let mut nodes: BTreeMap<NodeId, Location> = known
                .iter()
                .filter_map(|(id, location)| match fleet.nodes.get(id) {
                    Some(node) => {
                        let location = &node.as_ref()?.location;
                        is_within(location, domain).then(|| (id.clone(), location.clone()))
                    }
                    None => Some((id.clone(), location.clone())),
                })
                .collect();
            nodes.extend(fleet.faulty_nodes.get(domain).into_iter().flatten().cloned());
            if !nodes.is_empty() {
                let conditions = vec![condition::of_domain(fault)];
                self.update(&key, nodes.into_iter().collect(), conditions, None, seq, at);
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
        incident.is_suppressed = self.is_suppressed(key, &incident, at);
        let strays = self.strays(key, &incident);
        // An incident that no route takes is not stored. If it gets worse, it is evaluated again.
        if strays.len() == incident.groups.len() && incident.routes(&self.head.policy).is_empty() {
            return self.end(key, IncidentEnd::Moved, seq);
        }
        if before == Some(&incident) && strays.is_empty() && !self.misses_a_group(&incident) {
            return;
        }
        self.incidents.insert(key.clone(), incident);
        for id in strays {
            self.leave_group(key, &id, IncidentEnd::Moved, seq);
        }
        self.join_groups(key, seq, at);
    }

    /// The groups that the incident has to leave, so that only people who see its nodes are told of
    /// it.
    fn strays(&self, key: &IncidentKey, incident: &Incident) -> Vec<GroupId> {
        let is_stray = |id: &&GroupId| {
            let group = self.groups.get(*id);
            let route = group.and_then(|group| self.head.policy.route(&group.route));
            group.zip(route).is_some_and(|(group, route)| incident.is_misplaced(key, group, route))
        };
        incident.groups.keys().filter(is_stray).cloned().collect()
    }

    fn leave_group(&mut self, key: &IncidentKey, id: &GroupId, outcome: IncidentEnd, seq: u64) {
        if let Some(incident) = self.incidents.get_mut(key) {
            incident.groups.remove(id);
            self.changed.incidents.insert(key.clone());
        }
        GroupIndex::set(&mut self.index.members, id, key, false);
        GroupIndex::set(&mut self.index.visible, id, key, false);
        if let Some(group) = self.groups.get_mut(id) {
            group.outcome = Some(outcome);
            group.cause_seq = seq;
        }
        self.schedule(id);
    }

    /// Whether a route takes the incident, but it is not in a group of the route.
    fn misses_a_group(&self, incident: &Incident) -> bool {
        let is_in = |route: &&NotificationRoute| {
            incident
                .groups
                .keys()
                .any(|id| self.groups.get(id).is_some_and(|group| group.route == route.name))
        };
        !incident.routes(&self.head.policy).iter().all(is_in)
    }

    fn is_suppressed(&self, key: &IncidentKey, incident: &Incident, at: Timestamp) -> bool {
        let mutes = self.head.mutes.values().filter(|mute| mute.until > at);
        let RouterHead { domain_faults, domain_recoveries, .. } = &self.head;
        let faults = domain_faults.iter().map(|(domain, fault)| (domain, fault.symptom));
        let recoveries = domain_recoveries.iter().filter(|(_, recovery)| recovery.until > at);
        let recoveries = recoveries.map(|(domain, recovery)| (domain, recovery.symptom));
        let is_explained = || {
            let mut domains = faults.chain(recoveries);
            domains.any(|(domain, symptom)| incident.is_explained_by(domain, symptom))
        };
        incident.is_muted(key, &mutes) || key.node().is_some() && is_explained()
    }

    /// Adds a changed incident to the groups of its routes. It stays in a group that it joined, so
    /// that the receivers that were told of it are also told of its end.
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
                let record = self.head.record.as_ref();
                let group = || AlertGroup::new(route, labels, at, seq, record);
                self.groups.entry(id).or_insert_with(group);
            }
        }
        let (is_visible, ids) =
            (!incident.is_suppressed, incident.groups.keys().cloned().collect::<Vec<_>>());
        for id in ids {
            GroupIndex::set(&mut self.index.members, &id, key, true);
            let was_visible = self.index.visible.contains_key(&id);
            GroupIndex::set(&mut self.index.visible, &id, key, is_visible);
            let Some(group) = self.groups.get_mut(&id) else { continue };
            if group.sent.is_none() && is_visible && !was_visible {
                (group.opened, group.opened_seq) = (at, seq);
                group.record.clone_from(&self.head.record);
            }
            if is_visible {
                (group.is_changed, group.cause_seq) = (true, seq);
            }
            self.schedule(&id);
        }
    }

    fn end(&mut self, key: &IncidentKey, outcome: IncidentEnd, seq: u64) {
        let Some(incident) = self.incidents.remove(key) else { return };
        self.changed.incidents.insert(key.clone());
        for id in incident.groups.keys() {
            self.leave_group(key, id, outcome, seq);
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
        let due = group.due(&self.head.policy, members);
        self.index.set_due(id, due);
    }

    /// When [`Self::advance`] has something to do.
    pub fn next_due(&self) -> Option<Timestamp> {
        let mute = self.head.mutes.values().map(|mute| mute.until).min();
        let recovery = self.head.domain_recoveries.values().map(|recovery| recovery.until).min();
        let group = self.index.due.first().map(|(at, _)| *at);
        [mute, recovery, group].into_iter().flatten().min()
    }

    /// Returns the notifications that are due, in order.
    pub fn advance(&mut self, now: Timestamp) -> Vec<Outgoing> {
        let RouterHead { mutes, domain_recoveries, .. } = &mut self.head;
        let before = mutes.len() + domain_recoveries.len();
        mutes.retain(|_, mute| mute.until > now);
        domain_recoveries.retain(|_, recovery| recovery.until > now);
        if mutes.len() + domain_recoveries.len() < before {
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
        let outgoing = if let Some(route) = policy.route(&group.route) {
            let keys = self.index.visible.get(id).into_iter().flatten();
            let visible: Vec<(&IncidentKey, &Incident)> =
                keys.filter_map(|key| self.incidents.get_key_value(key)).collect();
            fire(id, &mut group, route, policy, &visible, now)
        } else {
            group.is_changed = false;
            Vec::new()
        };
        // A group that still has to tell its news only told it to receivers that were added.
        let has_told_all = !outgoing.is_empty() && !group.is_changed;
        self.groups.insert(id.clone(), group);
        if has_told_all {
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
