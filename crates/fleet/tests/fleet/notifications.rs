//! The router of notifications, on the histories of simulated fleets.

use std::collections::{BTreeMap, BTreeSet};

use farrier_fleet::fleet::event::{JournalPosition, OperatorRequest};
use farrier_fleet::fleet::identity::Actor;
use farrier_fleet::fleet::policy::Autonomy;
use farrier_fleet::fleet::{
    Domain, Entry, Event, FleetState, LOGIC_VERSION, Location, NodeId, Policy,
};
use farrier_fleet::health::{Action, Change, Severity};
use farrier_fleet::notify::{
    AlertGroup, FleetView, GroupId, Incident, IncidentKey, MuteMatch, Notification,
    NotificationKind, NotificationPolicy, NotificationStatus, Outgoing, Router, RouterHead,
};
use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::histories::act;
use crate::test_fleet::{Act, NODES, TestFleet, finding, node, start};

/// A router that follows a log, and everything it has sent.
pub(crate) struct Follower {
    pub(crate) state: FleetState,
    pub(crate) router: Router,
    /// The router as it is restored from what was stored.
    pub(crate) stored: Stored,
    sent: Vec<Outgoing>,
    read: usize,
}

/// What the server's database holds.
#[derive(Default)]
pub(crate) struct Stored {
    head: RouterHead,
    incidents: BTreeMap<IncidentKey, Incident>,
    groups: BTreeMap<GroupId, AlertGroup>,
}

impl Stored {
    fn save(&mut self, router: &mut Router) {
        let changes = router.take_changes();
        if let Some(head) = changes.head {
            let text = serde_json::to_string(&head).unwrap();
            self.head = serde_json::from_str(&text).unwrap();
        }
        self.head.seq = router.seq();
        for (key, incident) in changes.incidents {
            let text = serde_json::to_string(&(&key, &incident)).unwrap();
            match serde_json::from_str(&text).unwrap() {
                (key, Some(incident)) => drop(self.incidents.insert(key, incident)),
                (key, None::<Incident>) => drop(self.incidents.remove::<IncidentKey>(&key)),
            }
        }
        for (id, group) in changes.groups {
            let text = serde_json::to_string(&(&id, &group)).unwrap();
            match serde_json::from_str(&text).unwrap() {
                (id, Some(group)) => drop(self.groups.insert(id, group)),
                (id, None::<AlertGroup>) => drop(self.groups.remove::<GroupId>(&id)),
            }
        }
    }

    pub(crate) fn restore(&self) -> Router {
        Router::restore(self.head.clone(), self.incidents.clone(), self.groups.clone())
    }
}

impl Follower {
    pub(crate) fn new() -> Self {
        Self {
            state: FleetState::default(),
            router: Router::default(),
            stored: Stored::default(),
            sent: Vec::new(),
            read: 0,
        }
    }

    /// Reads the log up to its end. With `restarts`, the router is restored after each entry.
    pub(crate) fn follow(&mut self, log: &[Entry], restarts: bool) {
        for entry in &log[self.read..] {
            self.wait_until(entry.at);
            self.state.apply(entry);
            let view = FleetView::of_fleet(&self.state);
            match &entry.event {
                Event::PolicySet { policy } if policy.notifications != *self.router.policy() => {
                    let policy = policy.notifications.clone();
                    self.router.reset_to(&view, policy, entry.seq, entry.at);
                }
                _ => self.router.apply(entry, &view),
            }
            self.sent.extend(self.router.advance(entry.at));
            self.stored.save(&mut self.router);
            if restarts {
                self.router = self.stored.restore();
            }
        }
        self.read = log.len();
    }

    /// Lets the time pass, with every timer on time.
    pub(crate) fn wait_until(&mut self, end: Timestamp) {
        while let Some(due) = self.router.next_due().filter(|due| *due <= end) {
            self.sent.extend(self.router.advance(due));
        }
    }

    pub(crate) fn wait(&mut self, fleet: &mut TestFleet, seconds: i64) {
        fleet.now += SignedDuration::from_secs(seconds);
        self.wait_until(fleet.now);
    }

    pub(crate) fn take(&mut self) -> Vec<Outgoing> {
        std::mem::take(&mut self.sent)
    }
}

pub(crate) fn policy(routes: &Value) -> Policy {
    let notifications: NotificationPolicy = serde_json::from_value(json!({
        "receivers": {
            "ops": { "webhook": { "url": "http://127.0.0.1:1/" } },
            "lead": { "webhook": { "url": "http://127.0.0.1:2/" } },
        },
        "routes": routes,
        "runbook_base_url": "https://runbooks.example/",
    }))
    .unwrap();
    let policy = Policy { notifications, ..Policy::default() };
    policy.check().unwrap();
    policy
}

pub(crate) fn all_to_ops() -> Policy {
    policy(
        &json!([{ "name": "all", "receivers": ["ops"], "match": { "min_severity": "warning" } }]),
    )
}

/// A fleet in service with this policy, and a router that has sent nothing.
pub(crate) fn fleet_with(policy: Policy) -> (TestFleet, Follower) {
    let mut fleet = TestFleet::new();
    fleet.set_policy(policy);
    fleet.complete_all_orders();
    let mut follower = Follower::new();
    follower.follow(&fleet.log, false);
    assert_eq!(follower.take(), [], "nothing is wrong");
    (fleet, follower)
}

pub(crate) fn only(sent: &[Outgoing]) -> &Notification {
    assert_eq!(sent.len(), 1, "{sent:#?}");
    &sent[0].notification
}

#[test]
fn the_symptoms_of_one_fault_are_one_message_and_one_resolution() {
    let (mut fleet, mut follower) = fleet_with(all_to_ops());
    let mut xid = finding(1, Severity::Fatal, Action::RebootNode, "gpu.xid", fleet.now);
    "Xid 79".clone_into(&mut xid.detail);
    "The GPU is not reachable over PCIe. It fell off the bus.".clone_into(&mut xid.text);
    fleet.report_finding(0, xid);
    let lost = finding(2, Severity::Fatal, Action::RebootNode, "gpu.lost", fleet.now);
    fleet.report_finding(0, lost);
    let aer = finding(3, Severity::Critical, Action::RebootNode, "gpu.pcie-fatal", fleet.now);
    fleet.report_finding(0, aer);
    fleet.act(&Act::OrderStatus(0, true));
    follower.follow(&fleet.log, false);
    assert_eq!(follower.take(), [], "the group collects its alerts");
    follower.wait(&mut fleet, 60);
    let sent = follower.take();
    let message = only(&sent);
    assert_eq!(message.cause, "Xid 79: The GPU is not reachable over PCIe");
    assert_eq!((message.severity, message.kind), (Severity::Fatal, NotificationKind::Finding));
    assert_eq!(message.code, "gpu.xid");
    assert_eq!(message.nodes_total, 1);
    assert_eq!(message.nodes[0].node, node(0));
    assert_eq!(
        message.action_taken.as_deref(),
        Some("quarantined; cordoned; `drain, waiting up to 4 h` ordered")
    );
    assert_eq!(message.action_needed, None, "the controller repairs it");
    assert_eq!(message.runbook_url.as_deref(), Some("https://runbooks.example/xid.79.md"));
    fleet.complete_all_orders();
    for number in 1..=3 {
        fleet.act(&Act::Clear(0, number - 1));
    }
    fleet.act(&Act::Boot(0));
    (1..=3).for_each(|number| clear(&mut fleet, 0, number));
    fleet.complete_all_orders();
    follower.follow(&fleet.log, false);
    follower.wait(&mut fleet, 600);
    let sent = follower.take();
    let end = only(&sent);
    assert_eq!((end.status, &end.group), (NotificationStatus::Resolved, &message.group));
    assert_eq!(end.action_taken.as_deref(), Some("returned to service"));
    assert_ne!(end.key, message.key);
}

/// Clears a finding that the test opened by its number.
pub(crate) fn clear(fleet: &mut TestFleet, index: usize, number: u64) {
    let id = node(index);
    let Some(open) = fleet.state.nodes[&id].findings().get(&number).cloned() else { return };
    let cleared = farrier_fleet::health::finding::Cleared {
        at: fleet.now,
        reason: "it is repaired".to_owned(),
    };
    let change = Change::Cleared(farrier_fleet::health::Finding { cleared: Some(cleared), ..open });
    let last = fleet.state.nodes[&id].reports.record().map_or(0, |record| record.number);
    let record = JournalPosition { journal: "first".to_owned(), number: last + 1 };
    let report = Event::FindingsReported { node: id.clone(), record, changes: vec![change] };
    fleet.batch(vec![(Actor::Node(id), report)]);
}

#[test]
fn in_a_pool_that_only_observes_a_person_is_told_to_repair() {
    let mut policy = all_to_ops();
    policy.pools_default.autonomy = Autonomy::Observe;
    let (mut fleet, mut follower) = fleet_with(policy);
    let fault = finding(1, Severity::Fatal, Action::RebootNode, "gpu.xid", fleet.now);
    fleet.report_finding(0, fault);
    follower.follow(&fleet.log, false);
    follower.wait(&mut fleet, 60);
    let sent = follower.take();
    let expected = format!(
        "Farrier only observes this pool: cordon the node by hand; {}",
        Action::RebootNode.instruction()
    );
    assert_eq!(only(&sent).action_needed, Some(expected));
}

#[test]
fn a_node_that_waits_for_the_budget_is_said_to_take_work() {
    let (mut fleet, mut follower) = fleet_with(all_to_ops());
    for index in 0..NODES {
        let fault = finding(1, Severity::Fatal, Action::RebootNode, "gpu.xid", fleet.now);
        fleet.report_finding(index, fault);
    }
    follower.follow(&fleet.log, false);
    follower.wait(&mut fleet, 60);
    let sent = follower.take();
    let needed = sent.iter().filter_map(|sent| sent.notification.action_needed.as_deref());
    let texts: Vec<&str> = needed.collect();
    assert!(texts.iter().any(|text| text.contains("still takes work")), "{texts:?}");
}

#[test]
fn a_repaired_node_is_not_repeated_to_those_who_want_only_what_is_critical() {
    let mut fleet_and_follower = fleet_with(policy(&json!([{
        "name": "pager",
        "receivers": ["ops"],
        "match": { "min_severity": "critical" },
        "repeat_interval_s": 60,
    }])));
    let (fleet, follower) = (&mut fleet_and_follower.0, &mut fleet_and_follower.1);
    let fault = finding(1, Severity::Fatal, Action::RebootNode, "gpu.xid", fleet.now);
    fleet.report_finding(0, fault);
    follower.follow(&fleet.log, false);
    follower.wait(fleet, 60);
    let first = only(&follower.take()).clone();
    clear(fleet, 0, 1);
    follower.follow(&fleet.log, false);
    follower.wait(fleet, 300);
    assert_eq!(follower.take(), [], "the node is repaired and not verified yet");
    fleet.complete_all_orders();
    follower.follow(&fleet.log, false);
    follower.wait(fleet, 300);
    let last = only(&follower.take()).clone();
    assert_eq!((last.status, last.cause), (NotificationStatus::Resolved, first.cause));
}

#[test]
fn a_domain_fault_is_one_message_for_all_of_its_nodes() {
    let (mut fleet, mut follower) = fleet_with(all_to_ops());
    // All nodes of the first leaf switch.
    fleet.ports_down(0..NODES / 2);
    follower.follow(&fleet.log, false);
    follower.wait(&mut fleet, 60);
    let sent = follower.take();
    let message = only(&sent);
    assert_eq!(message.kind, NotificationKind::DomainFault);
    assert_eq!(message.nodes_total as usize, NODES / 2);
    assert!(message.cause.contains("leaf switch l0"), "{}", message.cause);
    assert!(message.action_needed.as_deref().unwrap().contains("domain repaired"));
    for index in 0..NODES / 2 {
        clear(&mut fleet, index, 1);
    }
    fleet.act(&Act::Wait(400));
    fleet.complete_all_orders();
    follower.follow(&fleet.log, false);
    follower.wait(&mut fleet, 1000);
    let sent = follower.take();
    assert_eq!(only(&sent).status, NotificationStatus::Resolved);
}

#[test]
fn after_a_domain_is_repaired_its_nodes_get_time_to_recover() {
    let (mut fleet, mut follower) = fleet_with(all_to_ops());
    fleet.ports_down(0..NODES / 2);
    follower.follow(&fleet.log, false);
    follower.wait(&mut fleet, 60);
    assert_eq!(only(&follower.take()).kind, NotificationKind::DomainFault);
    let domain: Domain = "leaf:l0".parse().unwrap();
    fleet.request(OperatorRequest::DomainRepaired { domain, repair: "new cable".to_owned() });
    for index in 1..NODES / 2 {
        clear(&mut fleet, index, 1);
    }
    follower.follow(&fleet.log, false);
    follower.wait(&mut fleet, 250);
    assert_eq!(follower.take(), [], "the findings may still clear");
    follower.wait(&mut fleet, 600);
    let sent = follower.take();
    let firing: Vec<&Notification> = sent
        .iter()
        .map(|outgoing| &outgoing.notification)
        .filter(|notification| notification.status == NotificationStatus::Firing)
        .collect();
    assert!(
        firing.iter().any(|one| one.nodes_total == 1 && one.nodes[0].node == node(0)),
        "the port of one node is still down: {sent:#?}"
    );
    assert!(firing.iter().all(|one| one.kind != NotificationKind::DomainFault), "{sent:#?}");
}

pub(crate) fn mute(fleet: &TestFleet, matches: MuteMatch, seconds: i64) -> OperatorRequest {
    let until = fleet.now + SignedDuration::from_secs(seconds);
    let (scope, reason) = (Domain::Fleet, "known".to_owned());
    OperatorRequest::Mute { matches, scope, until, reason }
}

pub(crate) fn warning(fleet: &mut TestFleet, index: usize, number: u64, code: &str) {
    let finding = finding(number, Severity::Warning, Action::Investigate, code, fleet.now);
    fleet.report_finding(index, finding);
}

#[test]
fn a_muted_alert_is_sent_when_the_mute_ends_if_it_still_fires() {
    let (mut fleet, mut follower) = fleet_with(all_to_ops());
    let matches = MuteMatch { domain: "pool:train".parse().ok(), ..MuteMatch::default() };
    fleet.request(mute(&fleet, matches, 7200));
    warning(&mut fleet, 0, 1, "gpu.ecc-off");
    warning(&mut fleet, 2, 1, "gpu.pages-many");
    warning(&mut fleet, 1, 1, "gpu.ecc-off");
    follower.follow(&fleet.log, false);
    follower.wait(&mut fleet, 3600);
    let sent = follower.take();
    assert_eq!(only(&sent).nodes[0].node, node(1), "the other pool is not muted");
    clear(&mut fleet, 2, 1);
    follower.follow(&fleet.log, false);
    follower.wait(&mut fleet, 3700);
    let sent = follower.take();
    let message = only(&sent);
    assert_eq!((&message.nodes[0].node, message.code.as_str()), (&node(0), "gpu.ecc-off"));
    assert!(follower.state.mutes.len() <= 1);
    fleet.act(&Act::Wait(10));
    follower.follow(&fleet.log, false);
    assert!(follower.state.mutes.is_empty(), "an expired mute is gone");
}

#[test]
fn unmuting_sends_what_fires() {
    let (mut fleet, mut follower) = fleet_with(all_to_ops());
    let matches = MuteMatch { node: Some(node(3)), ..MuteMatch::default() };
    fleet.request(mute(&fleet, matches, 86_400));
    let number = fleet.log.iter().rev().find(|entry| !entry.event.is_decision()).unwrap().seq;
    warning(&mut fleet, 3, 1, "gpu.ecc-off");
    follower.follow(&fleet.log, false);
    follower.wait(&mut fleet, 3600);
    assert_eq!(follower.take(), []);
    fleet.request(OperatorRequest::Unmute { mute: number });
    follower.follow(&fleet.log, false);
    follower.wait(&mut fleet, 60);
    assert_eq!(only(&follower.take()).nodes[0].node, node(3));
}

#[test]
fn a_group_is_repeated_and_escalated_until_it_is_acknowledged() {
    let routes = json!([{
        "name": "all", "receivers": ["ops"], "match": { "min_severity": "warning" },
        "repeat_interval_s": 3600, "escalate": { "after_s": 1800, "receivers": ["lead"] },
    }]);
    let (mut fleet, mut follower) = fleet_with(policy(&routes));
    warning(&mut fleet, 0, 1, "gpu.ecc-off");
    follower.follow(&fleet.log, false);
    follower.wait(&mut fleet, 4000);
    let sent = follower.take();
    let receivers: Vec<&str> = sent.iter().map(|outgoing| outgoing.receiver.as_str()).collect();
    // First to the operators, then to the lead. Both get the repetition after the escalation.
    assert_eq!(receivers, ["ops", "lead"]);
    follower.wait(&mut fleet, 2000);
    let again: BTreeSet<String> =
        follower.take().into_iter().map(|outgoing| outgoing.receiver).collect();
    assert_eq!(again, BTreeSet::from(["lead".to_owned(), "ops".to_owned()]));
    let group = sent[0].notification.group.clone();
    fleet.request(OperatorRequest::AcknowledgeAlerts { group });
    follower.follow(&fleet.log, false);
    follower.wait(&mut fleet, 86_400);
    assert_eq!(follower.take(), [], "acknowledged");
    clear(&mut fleet, 0, 1);
    follower.follow(&fleet.log, false);
    follower.wait(&mut fleet, 600);
    let end = follower.take();
    assert_eq!(end.len(), 2, "both receivers are told of the end");
    assert!(end.iter().all(|one| one.notification.status == NotificationStatus::Resolved));
}

#[test]
fn an_acknowledged_group_is_not_escalated() {
    let routes = json!([{
        "name": "all", "receivers": ["ops"], "match": { "min_severity": "warning" },
        "escalate": { "after_s": 1800, "receivers": ["lead"] },
    }]);
    let (mut fleet, mut follower) = fleet_with(policy(&routes));
    warning(&mut fleet, 0, 1, "gpu.ecc-off");
    follower.follow(&fleet.log, false);
    follower.wait(&mut fleet, 60);
    let group = only(&follower.take()).group.clone();
    fleet.request(OperatorRequest::AcknowledgeAlerts { group });
    follower.follow(&fleet.log, false);
    follower.wait(&mut fleet, 7200);
    assert_eq!(follower.take(), []);
}

#[test]
fn after_its_route_is_removed_a_group_still_gets_its_resolution() {
    let (mut fleet, mut follower) = fleet_with(all_to_ops());
    warning(&mut fleet, 0, 1, "gpu.ecc-off");
    follower.follow(&fleet.log, false);
    follower.wait(&mut fleet, 60);
    assert_eq!(follower.take().len(), 1);
    let routes =
        json!([{ "name": "fatal", "receivers": ["lead"], "match": { "min_severity": "fatal" } }]);
    fleet.set_policy(policy(&routes));
    follower.follow(&fleet.log, false);
    follower.wait(&mut fleet, 86_400);
    assert_eq!(follower.take(), [], "no route repeats it");
    clear(&mut fleet, 0, 1);
    follower.follow(&fleet.log, false);
    follower.wait(&mut fleet, 600);
    let sent = follower.take();
    assert_eq!(
        (sent[0].receiver.as_str(), only(&sent).status),
        ("ops", NotificationStatus::Resolved)
    );
}

#[test]
fn a_policy_set_later_notifies_what_already_fires() {
    let (mut fleet, mut follower) = fleet_with(Policy::default());
    warning(&mut fleet, 0, 1, "gpu.ecc-off");
    follower.follow(&fleet.log, false);
    assert_eq!(follower.router.incidents().count(), 0, "the policy has no route");
    fleet.set_policy(all_to_ops());
    follower.follow(&fleet.log, false);
    follower.wait(&mut fleet, 60);
    assert_eq!(only(&follower.take()).code, "gpu.ecc-off");
}

#[test]
fn routes_take_alerts_in_order() {
    let routes = json!([
        { "name": "audit", "receivers": ["lead"], "match": { "codes": ["gpu.ecc*"] }, "continue": true },
        { "name": "train", "receivers": ["ops"], "match": { "pools": ["train"] } },
        { "name": "rest", "receivers": ["lead"], "match": { "min_severity": "warning" } },
    ]);
    let (mut fleet, mut follower) = fleet_with(policy(&routes));
    let mut told = |index: usize, code: &str| {
        warning(&mut fleet, index, 1, code);
        follower.follow(&fleet.log, false);
        follower.wait(&mut fleet, 60);
        let receivers: Vec<String> =
            follower.take().into_iter().map(|outgoing| outgoing.receiver).collect();
        receivers
    };
    let mut both = told(0, "gpu.ecc-off");
    both.sort();
    assert_eq!(both, ["lead", "ops"]);
    assert_eq!(told(2, "gpu.pages-many"), ["ops"]);
    assert_eq!(told(1, "gpu.pages-many"), ["lead"]);
}

/// What is sent within a quarter of an hour about ten thousand findings on 2,500 nodes in one
/// minute. There are four rounds of findings, and each round has the next codes.
fn burst(policy: Policy, pools: &[&str], codes: &[&str]) -> Vec<Outgoing> {
    let mut follower = Follower::new();
    let mut log: Vec<Entry> = Vec::new();
    let mut append = |at: Timestamp, event: Event| {
        let seq = log.len() as u64 + 1;
        log.push(Entry { seq, batch: seq, at, by: Actor::Server, logic: LOGIC_VERSION, event });
    };
    append(start(), Event::PolicySet { policy: Box::new(policy) });
    let id = |index: usize| -> NodeId { format!("gpu-{index:05}").parse().unwrap() };
    for index in 0..2500 {
        let location = Location::in_pool(pools[index % pools.len()].parse().unwrap());
        append(start(), Event::Enrolled { node: id(index), location });
    }
    for number in 0..10_000_u64 {
        let at = start() + SignedDuration::from_millis(i64::try_from(number).unwrap() * 6);
        let index = usize::try_from(number % 2500).unwrap();
        let round = usize::try_from(number / 2500).unwrap();
        let code = codes[(round + 4 * (index / pools.len())) % codes.len()];
        let opened = finding(number, Severity::Warning, Action::Investigate, code, at);
        let record = JournalPosition { journal: "first".to_owned(), number: number / 2500 + 1 };
        let changes = vec![Change::Opened(opened)];
        append(at, Event::FindingsReported { node: id(index), record, changes });
    }
    // The view of the server has only the node of the entry.
    for entry in &log {
        follower.wait_until(entry.at);
        follower.state.apply(entry);
        if let Event::PolicySet { policy } = &entry.event {
            let view = FleetView::of_fleet(&follower.state);
            follower.router.reset_to(&view, policy.notifications.clone(), entry.seq, entry.at);
            continue;
        }
        let nodes = entry.event.node().into_iter();
        follower.router.apply(entry, &FleetView::of_nodes(&follower.state, nodes));
    }
    follower.wait_until(start() + SignedDuration::from_secs(900));
    follower.take()
}

#[test]
fn a_burst_of_findings_is_a_handful_of_messages() {
    let codes = ["gpu.ecc-off", "gpu.pages-many", "gpu.clock-low", "gpu.pcie-slow"];
    let sent = burst(all_to_ops(), &["train", "serve"], &codes);
    assert!(sent.len() <= 2 * codes.len() * 2, "{} messages", sent.len());
    let mut named: BTreeMap<&str, u32> = BTreeMap::new();
    for outgoing in &sent {
        named.insert(&outgoing.notification.group, outgoing.notification.nodes_total);
    }
    assert_eq!(named.values().sum::<u32>(), 10_000, "every finding is counted in its group");
}

/// The bound that the documentation names, with a route that sets nothing.
#[test]
fn ten_thousand_findings_in_a_minute_are_fewer_than_a_hundred_messages_by_default() {
    let policy = policy(&json!([{ "name": "all", "receivers": ["ops"] }]));
    let codes = [
        "gpu.clock-low",
        "gpu.ecc-off",
        "gpu.pages-many",
        "gpu.pcie-slow",
        "gpu.power-capped",
        "host.clock-skew",
        "nic.errors",
        "nic.slow",
    ];
    let sent = burst(policy, &["batch", "infer", "serve", "test", "train"], &codes);
    assert!((40..100).contains(&sent.len()), "{} messages", sent.len());
    let mut named: BTreeMap<&str, u32> = BTreeMap::new();
    for outgoing in &sent {
        named.insert(&outgoing.notification.group, outgoing.notification.nodes_total);
    }
    assert_eq!(named.len(), 40, "one group per pool and code");
    assert_eq!(named.values().sum::<u32>(), 10_000, "every finding is counted in its group");
}

#[test]
fn the_policy_in_the_documentation_has_no_problem() {
    let page = include_str!("../../../../docs/notifications.md");
    let (_, rest) = page.split_once("<!-- a complete policy -->").unwrap();
    let (_, rest) = rest.split_once("```json\n").unwrap();
    let (policy, _) = rest.split_once("```").unwrap();
    let policy: Policy = serde_json::from_str(policy).unwrap();
    policy.check().unwrap();
    assert_eq!(policy.notifications.problems(), []);
    assert_eq!(policy.notifications.receivers.len(), 5);
}

/// What holds for every history.
fn check(sent: &[Outgoing]) {
    let mut by_key: BTreeMap<&str, &Outgoing> = BTreeMap::new();
    let mut firing: BTreeSet<(&str, &str)> = BTreeSet::new();
    for outgoing in sent {
        let notification = &outgoing.notification;
        let other = by_key.insert(&notification.key, outgoing);
        assert!(other.is_none(), "one key for two notifications: {other:#?} {outgoing:#?}");
        let group = (outgoing.receiver.as_str(), notification.group.as_str());
        match notification.status {
            NotificationStatus::Firing => {
                firing.insert(group);
                assert!(!notification.cause.is_empty() && notification.nodes_total > 0);
            }
            NotificationStatus::Resolved => {
                assert!(firing.remove(&group), "resolved before it fired: {outgoing:#?}");
            }
        }
    }
}

/// Every alert of the fleet is in a group that was notified, or is suppressed.
fn check_nothing_is_missed(follower: &Follower) {
    let with_incident: BTreeSet<&NodeId> =
        follower.router.incidents().filter_map(|(key, _)| key.node()).collect();
    for (id, node) in &follower.state.nodes {
        let is_wrong = !node.findings().is_empty() || node.liveness.heartbeat_loss().is_some();
        assert!(!is_wrong || with_incident.contains(id), "{id} has no incident");
    }
    for (key, incident) in follower.router.incidents() {
        assert!(!incident.groups.is_empty(), "{key:?} is in no group");
        let is_named = incident.groups.values().all(|is_named| *is_named);
        assert!(is_named || incident.is_suppressed, "no notification named {key:?}: {incident:#?}");
    }
    let is_wrong = |key: &IncidentKey| match key {
        IncidentKey::DomainFault(domain) => follower.state.domain_faults.contains_key(domain),
        IncidentKey::Service(id) | IncidentKey::Finding(id, _) => {
            follower.state.nodes.contains_key(id)
        }
    };
    assert!(follower.router.incidents().all(|(key, _)| is_wrong(key)));
}

fn histories() -> impl Strategy<Value = Vec<(Act, Option<(usize, u32)>)>> {
    let mute = prop::option::weighted(0.03, (0..NODES, 10..5000_u32));
    prop::collection::vec((act(), mute), 1..120)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, max_shrink_iters: 1000, ..ProptestConfig::default() })]

    #[test]
    fn every_alert_is_notified_or_muted_and_a_restart_changes_nothing(acts in histories()) {
        let routes = json!([
            { "name": "fatal", "receivers": ["lead", "ops"], "match": { "min_severity": "fatal" },
              "group_by": ["node"], "group_wait_s": 0, "group_interval_s": 10, "continue": true },
            { "name": "all", "receivers": ["ops"], "repeat_interval_s": 600,
              "escalate": { "after_s": 1000, "receivers": ["lead"] } },
        ]);
        let mut fleet = TestFleet::new();
        fleet.set_policy(policy(&routes));
        let (mut one, mut other) = (Follower::new(), Follower::new());
        for (act, muted) in &acts {
            fleet.act(act);
            if let Some((index, seconds)) = muted {
                let domain: Option<Domain> = format!("rack:r{}", index / 4).parse().ok();
                let matches = MuteMatch { domain, ..MuteMatch::default() };
                let request = mute(&fleet, matches, i64::from(*seconds));
                fleet.request(request);
            }
            one.follow(&fleet.log, false);
            other.follow(&fleet.log, true);
        }
        prop_assert_eq!(&one.sent, &other.sent, "a restart changes nothing");
        check(&one.sent);
        // Every mute ends, and every group has had its interval.
        let end = fleet.now + SignedDuration::from_hours(24);
        one.wait_until(end);
        check(&one.sent);
        check_nothing_is_missed(&one);
    }
}
