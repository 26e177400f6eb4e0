//! What a notification says of a failure domain, of a node's own trouble, and to whom.

use std::collections::BTreeSet;

use farrier_fleet::fleet::event::{JournalPosition, OperatorRequest};
use farrier_fleet::fleet::identity::Actor;
use farrier_fleet::fleet::{Domain, Event, Location, NodeId, NodePhase, OrderKind};
use farrier_fleet::health::{Action, Change, Finding, FindingKind, Severity};
use farrier_fleet::notify::{
    Condition, FleetView, IncidentKey, MuteMatch, Notification, NotificationKind,
    NotificationStatus, Outgoing, Router, concerned_node,
};
use serde_json::json;

use crate::notifications::{Follower, all_to_ops, clear, fleet_with, mute, only, policy, warning};
use crate::test_fleet::{Act, NODES, TestFleet, finding, location, node};

fn place(fleet: &mut TestFleet, index: usize, tenant: &str) {
    let location = Location { tenant: Some(tenant.parse().unwrap()), ..location(index) };
    let event = Event::LocationChanged { node: node(index), location };
    fleet.batch(vec![(Actor::Server, event)]);
}

fn to(sent: &[Outgoing], receiver: &str) -> Vec<Notification> {
    let theirs = sent.iter().filter(|outgoing| outgoing.receiver == receiver);
    theirs.map(|outgoing| outgoing.notification.clone()).collect()
}

fn names(notification: &Notification) -> BTreeSet<NodeId> {
    notification.nodes.iter().map(|affected| affected.node.clone()).collect()
}

#[test]
fn a_domain_fault_that_grows_is_news() {
    let (mut fleet, mut follower) = fleet_with(all_to_ops());
    fleet.ports_down(2..6);
    follower.follow(&fleet.log, false);
    follower.wait(&mut fleet, 60);
    let sent = follower.take();
    let first = only(&sent);
    assert_eq!((first.kind, first.nodes_total), (NotificationKind::DomainFault, 4));
    assert!(!first.cause.contains("by now"), "{}", first.cause);
    fleet.ports_down(0..1);
    follower.follow(&fleet.log, false);
    fleet.ports_down(1..2);
    follower.follow(&fleet.log, true);
    follower.wait(&mut fleet, 900);
    let sent = follower.take();
    let second = only(&sent);
    assert_eq!((second.kind, second.nodes_total), (NotificationKind::DomainFault, 6));
    assert_eq!(names(second), (0..6).map(node).collect());
    assert!(second.cause.ends_with("; 6 nodes by now"), "{}", second.cause);
    // A node that recovers or is retired is no news.
    clear(&mut fleet, 2, 1);
    fleet.act(&Act::Retire(3));
    follower.follow(&fleet.log, false);
    follower.wait(&mut fleet, 900);
    assert_eq!(follower.take(), []);
}

/// The server reads the nodes of a page of entries, and the state may be newer than the page.
#[test]
fn a_domain_fault_that_is_newer_than_the_page_has_all_of_its_nodes() {
    let (mut fleet, mut follower) = fleet_with(all_to_ops());
    let read = fleet.log.len();
    warning(&mut fleet, 11, 1, "gpu.ecc-off");
    fleet.ports_down(0..NODES / 2);
    let page = &fleet.log[read..=read];
    for entry in &fleet.log[read..] {
        follower.state.apply(entry);
    }
    let nodes = page.iter().filter_map(|entry| concerned_node(&entry.event));
    let view = FleetView::of_nodes(&follower.state, nodes);
    follower.router.apply_page(page, &view);
    let faults = || {
        let incidents = follower.router.incidents();
        incidents.filter(|(key, _)| matches!(key, IncidentKey::DomainFault(_)))
    };
    let counts: Vec<usize> = faults().map(|(_, incident)| incident.nodes.len()).collect();
    assert_eq!(counts, [NODES / 2]);
}

#[test]
fn a_page_leads_to_the_same_incidents_as_its_entries() {
    let (mut fleet, mut follower) = fleet_with(all_to_ops());
    let read = fleet.log.len();
    for number in 1..=200 {
        warning(&mut fleet, 0, number, &format!("test.code-{}", number % 7));
    }
    fleet.ports_down(6..12);
    for entry in &fleet.log[read..] {
        follower.state.apply(entry);
    }
    let view = FleetView::of_fleet(&follower.state);
    let (mut one, mut other) = (follower.stored.restore(), follower.stored.restore());
    one.apply_page(&fleet.log[read..], &view);
    fleet.log[read..].iter().for_each(|entry| other.apply(entry, &view));
    let conditions = |router: &Router| -> Vec<(IncidentKey, Vec<Condition>, bool)> {
        let incidents = router.incidents();
        let value = |(key, one): (&IncidentKey, &farrier_fleet::notify::Incident)| {
            (key.clone(), one.conditions.clone(), one.is_suppressed)
        };
        incidents.map(value).collect()
    };
    assert_eq!(conditions(&one), conditions(&other));
    assert!(conditions(&one).len() > 7);
}

/// Node 3 fails its verification, without an open finding, while its switch is faulty.
#[test]
fn a_domain_fault_does_not_hide_a_node_that_fails_its_verification() {
    let (mut fleet, mut follower) = fleet_with(all_to_ops());
    let xid = finding(9, Severity::Fatal, Action::RebootNode, "gpu.xid", fleet.now);
    fleet.report_finding(3, xid);
    let is_reboot = |kind: &OrderKind| *kind == OrderKind::Reboot;
    fleet.complete_orders_until(&node(3), is_reboot);
    clear(&mut fleet, 3, 9);
    fleet.act(&Act::Boot(3));
    assert_eq!(fleet.state.nodes[&node(3)].findings().len(), 0);
    follower.follow(&fleet.log, false);
    follower.wait(&mut fleet, 900);
    follower.take();
    fleet.ports_down([0, 1, 2, 4, 5].into_iter());
    for _ in 0..20 {
        fleet.act(&Act::OrderStatus(3, false));
    }
    assert!(
        fleet.state.domain_faults.len() == 1 && !fleet.state.nodes[&node(3)].phase().in_service()
    );
    follower.follow(&fleet.log, false);
    let service = IncidentKey::Service(node(3));
    let incident = follower.router.incidents().find(|(key, _)| **key == service).unwrap().1;
    assert!(!incident.is_suppressed, "{:#?}", incident.conditions);
    // The other nodes have only symptoms of the domain fault.
    let hidden = follower.router.incidents().filter(|(_, incident)| incident.is_suppressed);
    assert_eq!(hidden.count(), 5);
    follower.wait(&mut fleet, 900);
    let sent = follower.take();
    assert!(sent.iter().any(|one| names(&one.notification).contains(&node(3))), "{sent:#?}");
}

#[test]
fn a_node_with_many_findings_still_says_what_the_controller_did() {
    let (mut fleet, mut follower) = fleet_with(all_to_ops());
    let id = node(0);
    let mut changes = Vec::new();
    for number in 1..=50 {
        let fault = finding(number, Severity::Fatal, Action::DrainAndReplace, "gpu.xid", fleet.now);
        changes.push(Change::Opened(fault));
    }
    let record = JournalPosition { journal: "first".to_owned(), number: 1 };
    let report = Event::FindingsReported { node: id.clone(), record, changes };
    fleet.batch(vec![(Actor::Node(id.clone()), report)]);
    fleet.complete_all_orders();
    follower.follow(&fleet.log, false);
    let service = IncidentKey::Service(id);
    let incident = follower.router.incidents().find(|(key, _)| **key == service).unwrap().1;
    let kinds: BTreeSet<NotificationKind> =
        incident.conditions.iter().map(Condition::kind).collect();
    assert!(kinds.contains(&NotificationKind::NodePhase), "{kinds:?}");
    assert!(kinds.contains(&NotificationKind::Deferred), "{kinds:?}");
    follower.wait(&mut fleet, 60);
    let sent = follower.take();
    assert!(only(&sent).action_needed.is_some(), "a person has to replace the GPU");
}

#[test]
fn a_node_cannot_open_an_incident_for_each_code_that_it_invents() {
    let (mut fleet, mut follower) = fleet_with(all_to_ops());
    for number in 1..=100 {
        warning(&mut fleet, 0, number, &format!("made.up-{number:03}"));
    }
    follower.follow(&fleet.log, false);
    let count = |follower: &Follower| follower.router.incidents().count();
    assert_eq!(count(&follower), 33);
    follower.wait(&mut fleet, 60);
    assert!(follower.take().len() <= 33);
    // A worse finding gets an incident of its own, and those that have one mostly keep it.
    let worse = finding(101, Severity::Critical, Action::Investigate, "nic.congested", fleet.now);
    fleet.report_finding(0, worse);
    follower.follow(&fleet.log, false);
    follower.wait(&mut fleet, 600);
    assert!(count(&follower) <= 34);
    let sent = follower.take();
    assert!(sent.iter().any(|one| one.notification.code == "nic.congested"), "{sent:#?}");
    for number in 1..=101 {
        clear(&mut fleet, 0, number);
    }
    follower.follow(&fleet.log, false);
    follower.wait(&mut fleet, 600);
    let findings = follower.router.incidents();
    assert_eq!(findings.filter(|(key, _)| matches!(key, IncidentKey::Finding(..))).count(), 0);
}

fn by_tenant() -> farrier_fleet::fleet::Policy {
    policy(&json!([
        { "name": "a", "receivers": ["ops"], "match": { "tenants": ["a"] } },
        { "name": "b", "receivers": ["lead"], "match": { "tenants": ["b"] } },
    ]))
}

#[test]
fn a_tenant_is_told_only_of_its_own_nodes_of_a_domain_fault() {
    let (mut fleet, mut follower) = fleet_with(by_tenant());
    (0..NODES).for_each(|index| place(&mut fleet, index, if index < 2 { "a" } else { "b" }));
    fleet.ports_down(0..NODES / 2);
    follower.follow(&fleet.log, false);
    follower.wait(&mut fleet, 60);
    let sent = follower.take();
    let (a, b) = (to(&sent, "ops"), to(&sent, "lead"));
    assert_eq!((a.len(), b.len()), (1, 1), "{sent:#?}");
    assert_eq!((names(&a[0]), a[0].nodes_total), ((0..2).map(node).collect(), 2));
    assert_eq!((names(&b[0]), b[0].nodes_total), ((2..6).map(node).collect(), 4));
    let of_all = "6 of 6 nodes";
    assert!(!a[0].cause.contains(of_all) && !b[0].cause.contains(of_all), "{sent:#?}");
    let all = all_to_ops();
    fleet.set_policy(all);
    follower.follow(&fleet.log, false);
    follower.wait(&mut fleet, 900);
    let sent = follower.take();
    let everything = sent.iter().map(|one| &one.notification);
    let mut firing = everything.filter(|one| one.status == NotificationStatus::Firing);
    assert!(firing.any(|one| one.cause.contains(of_all)), "{sent:#?}");
}

/// A pool waits for a slot that the nodes of another tenant use.
#[test]
fn a_tenant_does_not_learn_names_and_counts_of_other_nodes_from_a_reason() {
    let routes = json!([
        { "name": "a", "receivers": ["ops"], "match": { "tenants": ["a"] }, "continue": true },
        { "name": "all", "receivers": ["lead"] },
    ]);
    let (mut fleet, mut follower) = fleet_with(policy(&routes));
    (0..NODES).for_each(|index| place(&mut fleet, index, if index == 0 { "a" } else { "b" }));
    for index in (0..NODES).rev() {
        let xid = finding(1, Severity::Fatal, Action::DrainAndReplace, "gpu.xid", fleet.now);
        fleet.report_finding(index, xid);
    }
    let waits = fleet.state.nodes[&node(0)].phase.deferred().unwrap().reason.to_string();
    assert!(waits.contains("n1"), "the reason names other nodes: {waits}");
    follower.follow(&fleet.log, false);
    let mut sent = follower.take();
    follower.wait(&mut fleet, 60);
    sent.extend(follower.take());
    let (own, all) = (to(&sent, "ops"), to(&sent, "lead"));
    assert!(!own.is_empty() && !all.is_empty());
    for notification in own {
        let text = serde_json::to_string(&notification).unwrap();
        assert!(!(1..NODES).any(|index| text.contains(node(index).as_str())), "{text}");
    }
}

#[test]
fn a_node_that_goes_to_another_tenant_leaves_the_groups_of_the_first() {
    let (mut fleet, mut follower) = fleet_with(by_tenant());
    place(&mut fleet, 0, "a");
    warning(&mut fleet, 0, 1, "gpu.ecc-off");
    follower.follow(&fleet.log, false);
    follower.wait(&mut fleet, 60);
    let sent = follower.take();
    assert_eq!((sent[0].receiver.as_str(), sent.len()), ("ops", 1));
    place(&mut fleet, 0, "b");
    follower.follow(&fleet.log, false);
    follower.wait(&mut fleet, 600);
    let sent = follower.take();
    let (a, b) = (to(&sent, "ops"), to(&sent, "lead"));
    assert_eq!((a.len(), b.len()), (1, 1), "{sent:#?}");
    assert_eq!(a[0].status, NotificationStatus::Resolved);
    assert_eq!(a[0].action_taken.as_deref(), Some("the node moved to another place or owner"));
    assert_eq!(b[0].status, NotificationStatus::Firing);
    warning(&mut fleet, 0, 2, "gpu.ecc-off");
    clear(&mut fleet, 0, 1);
    follower.follow(&fleet.log, false);
    follower.wait(&mut fleet, 20_000);
    assert_eq!(to(&follower.take(), "ops"), [], "the first owner hears no more of it");
}

#[test]
fn a_group_by_tenant_does_not_keep_a_node_of_another_tenant() {
    let routes = json!([{ "name": "all", "receivers": ["ops"], "group_by": ["tenant"] }]);
    let (mut fleet, mut follower) = fleet_with(policy(&routes));
    place(&mut fleet, 0, "a");
    warning(&mut fleet, 0, 1, "gpu.ecc-off");
    follower.follow(&fleet.log, false);
    place(&mut fleet, 0, "b");
    follower.follow(&fleet.log, false);
    let tenants: Vec<&str> = follower
        .router
        .groups()
        .flat_map(|(_, group)| group.labels.values().map(String::as_str))
        .collect();
    assert_eq!(tenants, ["b"], "the group of the first tenant was not notified, so it is dropped");
}

#[test]
fn a_mute_of_a_node_ends_with_the_node() {
    let (mut fleet, mut follower) = fleet_with(all_to_ops());
    place(&mut fleet, 0, "a");
    let of = |index| MuteMatch { node: Some(node(index)), ..MuteMatch::default() };
    for index in 0..3 {
        fleet.request(mute(&fleet, of(index), 86_400));
    }
    let moved = |index: usize| {
        let event = Event::Enrolled { node: node(index), location: location(index + 1) };
        vec![(Actor::Server, event)]
    };
    warning(&mut fleet, 0, 1, "gpu.ecc-off");
    follower.follow(&fleet.log, false);
    follower.wait(&mut fleet, 60);
    assert_eq!(follower.take(), [], "it is muted");
    // The same owner: nothing changes.
    place(&mut fleet, 0, "a");
    assert_eq!(fleet.state.mutes.len(), 3);
    place(&mut fleet, 0, "b");
    assert_eq!(fleet.state.mutes.len(), 2);
    follower.follow(&fleet.log, false);
    follower.wait(&mut fleet, 60);
    assert_eq!(names(only(&follower.take())), BTreeSet::from([node(0)]), "the mute is over");
    fleet.act(&Act::Retire(1));
    assert_eq!(fleet.state.mutes.len(), 1);
    fleet.batch(moved(2));
    assert!(fleet.state.mutes.is_empty());
    let matches = MuteMatch { domain: "pool:train".parse().ok(), ..MuteMatch::default() };
    fleet.request(mute(&fleet, matches, 86_400));
    fleet.act(&Act::Retire(4));
    assert_eq!(fleet.state.mutes.len(), 1, "a mute of a domain stays");
}

fn mute_by_a(fleet: &TestFleet, domain: &str) -> OperatorRequest {
    let matches = MuteMatch { domain: domain.parse().ok(), ..MuteMatch::default() };
    match mute(fleet, matches, 86_400) {
        OperatorRequest::Mute { matches, until, reason, .. } => {
            let scope = "tenant:a".parse().unwrap();
            OperatorRequest::Mute { matches, scope, until, reason }
        }
        other => other,
    }
}

/// An operator of a tenant mutes a rack while the tenant has all of its nodes.
#[test]
fn a_mute_does_not_hide_what_its_operator_may_not_see() {
    let (mut fleet, mut follower) = fleet_with(all_to_ops());
    (0..NODES).for_each(|index| place(&mut fleet, index, if index < 4 { "a" } else { "b" }));
    let by_a = mute_by_a(&fleet, "rack:r0");
    fleet.request(by_a);
    warning(&mut fleet, 0, 1, "gpu.ecc-off");
    warning(&mut fleet, 1, 1, "gpu.ecc-off");
    follower.follow(&fleet.log, true);
    follower.wait(&mut fleet, 60);
    assert_eq!(follower.take(), [], "both are muted");
    // One of the nodes, and one that fires already, go to another tenant.
    place(&mut fleet, 2, "b");
    warning(&mut fleet, 2, 1, "gpu.pages-many");
    place(&mut fleet, 0, "b");
    follower.follow(&fleet.log, true);
    follower.wait(&mut fleet, 60);
    let sent = follower.take();
    let told: BTreeSet<NodeId> = sent.iter().flat_map(|one| names(&one.notification)).collect();
    assert_eq!(told, BTreeSet::from([node(0), node(2)]), "{sent:#?}");
    // The node comes back.
    place(&mut fleet, 0, "a");
    warning(&mut fleet, 0, 2, "gpu.clock-low");
    follower.follow(&fleet.log, true);
    follower.wait(&mut fleet, 60);
    assert_eq!(follower.take(), []);
}

#[test]
fn a_mute_of_a_failure_domain_does_not_hide_faults_of_others_there() {
    for has_foreign_node in [false, true] {
        let (mut fleet, mut follower) = fleet_with(all_to_ops());
        (0..NODES).for_each(|index| place(&mut fleet, index, "a"));
        let by_a = mute_by_a(&fleet, "leaf:l0");
        fleet.request(by_a);
        if has_foreign_node {
            place(&mut fleet, 5, "b");
        }
        fleet.ports_down(0..NODES / 2);
        follower.follow(&fleet.log, true);
        follower.wait(&mut fleet, 60);
        let sent = follower.take();
        let is_fault = |one: &Outgoing| one.notification.kind == NotificationKind::DomainFault;
        assert_eq!(sent.iter().any(is_fault), has_foreign_node, "{sent:#?}");
    }
}

/// Nodes 0 to 4 of a leaf switch are of tenant `a`, which mutes the switch. Node 5 is of tenant `b`.
fn fleet_with_muted_leaf() -> (TestFleet, Follower) {
    let (mut fleet, follower) = fleet_with(all_to_ops());
    (0..NODES).for_each(|index| place(&mut fleet, index, if index < 5 { "a" } else { "b" }));
    let by_a = mute_by_a(&fleet, "leaf:l0");
    fleet.request(by_a);
    (fleet, follower)
}

fn nodes_of_fault(follower: &Follower) -> BTreeSet<NodeId> {
    let key = IncidentKey::DomainFault("leaf:l0".parse().unwrap());
    let (_, fault) = follower.router.incidents().find(|(found, _)| **found == key).unwrap();
    assert!(fault.is_suppressed, "it is muted");
    fault.nodes.iter().map(|(id, _)| id.clone()).collect()
}

#[test]
fn a_domain_fault_hides_no_advice_of_a_node_that_it_does_not_name() {
    let (mut fleet, mut follower) = fleet_with_muted_leaf();
    fleet.ports_down(0..5);
    let warning = finding(1, Severity::Warning, Action::Investigate, "nic.mtu-small", fleet.now);
    fleet.report_finding(5, Finding { kind: FindingKind::Advice, ..warning });
    follower.follow(&fleet.log, true);
    assert_eq!(nodes_of_fault(&follower), (0..5).map(node).collect());
    follower.wait(&mut fleet, 60);
    let sent = follower.take();
    assert_eq!(names(only(&sent)), BTreeSet::from([node(5)]));
    assert_eq!(sent[0].notification.code, "nic.mtu-small");
}

/// The node sends no heartbeats because of the revocation.
#[test]
fn a_domain_fault_hides_no_lost_heartbeat_of_a_revoked_node() {
    let (mut fleet, mut follower) = fleet_with_muted_leaf();
    fleet.act(&Act::Hold(5));
    fleet.act(&Act::Revoke(5));
    fleet.complete_all_orders();
    follower.follow(&fleet.log, false);
    follower.wait(&mut fleet, 900);
    follower.take();
    (0..6).for_each(|index| fleet.act(&Act::HeartbeatLost(index)));
    follower.follow(&fleet.log, true);
    assert_eq!(nodes_of_fault(&follower), (0..5).map(node).collect());
    follower.wait(&mut fleet, 900);
    let sent = follower.take();
    let of_5 = |one: &&Outgoing| names(&one.notification).contains(&node(5));
    let told: Vec<&Outgoing> = sent.iter().filter(of_5).collect();
    assert!(
        told.iter().any(|one| one.notification.kind == NotificationKind::HeartbeatLost),
        "{sent:#?}"
    );
}

#[test]
fn a_mute_that_was_logged_without_a_scope_is_read_and_written_as_it_was() {
    let logged = r#"{"mute":{"match":{"domain":"rack:r0"},"until":"2026-11-20T00:00:00Z","reason":"known"}}"#;
    let request: OperatorRequest = serde_json::from_str(logged).unwrap();
    let OperatorRequest::Mute { scope, .. } = &request else { panic!("{request:?}") };
    assert_eq!(*scope, Domain::Fleet);
    assert_eq!(serde_json::to_string(&request).unwrap(), logged);
}

#[test]
fn only_a_node_that_left_service_returns_to_it() {
    let (mut fleet, mut follower) = fleet_with(all_to_ops());
    fleet.act(&Act::HeartbeatLost(0));
    follower.follow(&fleet.log, false);
    follower.wait(&mut fleet, 60);
    assert_eq!(follower.take().len(), 1);
    assert!(fleet.state.nodes[&node(0)].phase() != NodePhase::Quarantined);
    fleet.act(&Act::HeartbeatRestored(0));
    fleet.complete_all_orders();
    follower.follow(&fleet.log, false);
    follower.wait(&mut fleet, 600);
    let sent = follower.take();
    assert_eq!(only(&sent).action_taken.as_deref(), Some("cleared"));
}
