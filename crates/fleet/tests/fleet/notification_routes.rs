//! Which alerts a route selects by the place of a node and by the kind, and which it does not.

use std::collections::BTreeSet;

use farrier_fleet::fleet::identity::Actor;
use farrier_fleet::fleet::{Event, Location, Policy};
use farrier_fleet::health::{Action, Severity};
use farrier_fleet::notify::{NotificationKind, NotificationStatus, Outgoing};
use serde_json::{Value, json};

use crate::notifications::{fleet_with, policy, warning};
use crate::test_fleet::{Act, NODES, TestFleet, finding, location, node};

fn move_to_site(fleet: &mut TestFleet, index: usize, site: Option<&str>) {
    let location = Location { site: site.map(|site| site.parse().unwrap()), ..location(index) };
    let event = Event::LocationChanged { node: node(index), location };
    fleet.batch(vec![(Actor::Server, event)]);
}

/// The names of the nodes in the firing notifications of a receiver.
fn told(sent: &[Outgoing], receiver: &str) -> BTreeSet<String> {
    sent.iter()
        .filter(|outgoing| outgoing.receiver == receiver)
        .map(|outgoing| &outgoing.notification)
        .filter(|notification| notification.status == NotificationStatus::Firing)
        .flat_map(|notification| &notification.nodes)
        .map(|affected| affected.node.to_string())
        .collect()
}

fn nodes(indexes: impl IntoIterator<Item = usize>) -> BTreeSet<String> {
    indexes.into_iter().map(|index| node(index).to_string()).collect()
}

fn by_site() -> Policy {
    policy(&json!([
        { "name": "a", "receivers": ["ops"], "match": { "sites": ["oslo", "bergen"] } },
        { "name": "b", "receivers": ["lead"], "match": { "sites": ["turku"] } },
    ]))
}

#[test]
fn a_route_by_site_takes_the_nodes_there_and_no_others() {
    let (mut fleet, mut follower) = fleet_with(by_site());
    let sites = [Some("oslo"), Some("bergen"), Some("turku"), Some("os"), None];
    for (index, site) in sites.into_iter().enumerate() {
        move_to_site(&mut fleet, index, site);
        warning(&mut fleet, index, 1, "gpu.ecc-off");
    }
    follower.follow(&fleet.log, false);
    follower.wait(&mut fleet, 60);
    let sent = follower.take();
    assert_eq!(told(&sent, "ops"), nodes([0, 1]));
    assert_eq!(told(&sent, "lead"), nodes([2]));
    // The alert follows the node.
    move_to_site(&mut fleet, 0, Some("turku"));
    follower.follow(&fleet.log, false);
    follower.wait(&mut fleet, 600);
    let sent = follower.take();
    assert_eq!(told(&sent, "lead"), nodes([0, 2]));
    assert!(!told(&sent, "ops").contains(node(0).as_str()), "{sent:#?}");
}

#[test]
fn a_route_by_site_takes_a_domain_fault_for_the_nodes_there() {
    let (mut fleet, mut follower) = fleet_with(by_site());
    let site = |index| match index {
        0..2 => Some("oslo"),
        2..5 => Some("turku"),
        _ => None,
    };
    (0..NODES).for_each(|index| move_to_site(&mut fleet, index, site(index)));
    fleet.ports_down(0..NODES / 2);
    follower.follow(&fleet.log, false);
    follower.wait(&mut fleet, 60);
    let sent = follower.take();
    let is_fault = |outgoing: &Outgoing| {
        outgoing.notification.kind == NotificationKind::DomainFault
            && !outgoing.notification.cause.contains("6 of 6")
    };
    assert!(sent.len() == 2 && sent.iter().all(is_fault), "{sent:#?}");
    assert_eq!(told(&sent, "ops"), nodes(0..2));
    assert_eq!(told(&sent, "lead"), nodes(2..5));
}

const KINDS: [NotificationKind; 6] = [
    NotificationKind::Finding,
    NotificationKind::HeartbeatLost,
    NotificationKind::NodePhase,
    NotificationKind::Deferred,
    NotificationKind::DomainFault,
    NotificationKind::OrderFailed,
];

/// A route and a receiver for each kind. Each route is tried for each alert.
fn by_kind() -> Policy {
    let mut policy = policy(&json!([{ "name": "all", "receivers": ["ops"] }]));
    let names = KINDS.map(NotificationKind::as_str);
    let receivers: serde_json::Map<String, Value> = names
        .iter()
        .map(|name| (name.to_string(), json!({ "webhook": { "url": "http://127.0.0.1:1/" } })))
        .collect();
    let routes: Vec<Value> = names
        .iter()
        .map(|name| {
            json!({ "name": name, "receivers": [name], "match": { "kinds": [name] }, "continue": true })
        })
        .collect();
    policy.notifications =
        serde_json::from_value(json!({ "receivers": receivers, "routes": routes })).unwrap();
    policy.check().unwrap();
    policy
}

/// The receivers that are told of what happens, in order of [`KINDS`].
fn told_of(happens: impl FnOnce(&mut TestFleet)) -> Vec<NotificationKind> {
    let (mut fleet, mut follower) = fleet_with(by_kind());
    happens(&mut fleet);
    follower.follow(&fleet.log, false);
    follower.wait(&mut fleet, 60);
    let sent = follower.take();
    let is_told = |kind: &NotificationKind| !told(&sent, kind.as_str()).is_empty();
    KINDS.into_iter().filter(is_told).collect()
}

#[test]
fn a_route_by_kind_takes_alerts_of_this_kind_and_no_others() {
    use NotificationKind::{Deferred, DomainFault, Finding, HeartbeatLost, NodePhase, OrderFailed};
    let warns = told_of(|fleet| warning(fleet, 0, 1, "gpu.ecc-off"));
    assert_eq!(warns, [Finding], "it does not affect service");
    let silent = told_of(|fleet| fleet.act(&Act::HeartbeatLost(0)));
    assert_eq!(silent, [HeartbeatLost, NodePhase]);
    let held = told_of(|fleet| fleet.act(&Act::Hold(0)));
    assert_eq!(held, [NodePhase]);
    let fault = told_of(|fleet| fleet.ports_down(0..NODES / 2));
    assert_eq!(fault, [DomainFault], "it explains everything else");
    let unfit = told_of(|fleet| {
        fleet.act(&Act::Verify(0));
        fleet.act(&Act::OrderStatus(0, false));
    });
    assert_eq!(unfit, [NodePhase, OrderFailed], "no finding, and nothing waits");
    let waits = told_of(|fleet| {
        for index in 0..NODES {
            let xid = finding(1, Severity::Fatal, Action::DrainAndReplace, "gpu.xid", fleet.now);
            fleet.report_finding(index, xid);
        }
    });
    assert_eq!(waits, [Finding, NodePhase, Deferred]);
}
