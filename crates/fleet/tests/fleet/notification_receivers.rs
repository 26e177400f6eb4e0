//! Receivers that a policy removes, adds again or renames while alerts fire.

use std::collections::BTreeSet;

use farrier_fleet::fleet::Policy;
use farrier_fleet::notify::{NotificationStatus, Outgoing};
use serde_json::{Value, json};

use crate::notifications::{clear, fleet_with, warning};

/// One route to these receivers.
fn to(receivers: &[&str]) -> Policy {
    let webhook = |name: &&str| ((*name).to_owned(), json!({ "webhook": { "url": "http://h/" } }));
    let all: serde_json::Map<String, Value> = receivers.iter().map(webhook).collect();
    let notifications = json!({
        "receivers": all,
        "routes": [{ "name": "all", "receivers": receivers, "match": { "min_severity": "warning" } }],
    });
    let notifications = serde_json::from_value(notifications).unwrap();
    let policy = Policy { notifications, ..Policy::default() };
    policy.check().unwrap();
    policy
}

fn told(sent: &[Outgoing]) -> Vec<(&str, NotificationStatus)> {
    sent.iter().map(|one| (one.receiver.as_str(), one.notification.status)).collect()
}

const FIRING: NotificationStatus = NotificationStatus::Firing;
const RESOLVED: NotificationStatus = NotificationStatus::Resolved;

#[test]
fn a_receiver_that_is_removed_and_added_again_is_told_once_of_what_still_fires() {
    let (mut fleet, mut follower) = fleet_with(to(&["ops", "lead"]));
    warning(&mut fleet, 0, 1, "gpu.ecc-off");
    follower.follow(&fleet.log, false);
    follower.wait(&mut fleet, 60);
    let first = follower.take();
    assert_eq!(told(&first), [("lead", FIRING), ("ops", FIRING)]);
    fleet.set_policy(to(&["lead"]));
    follower.follow(&fleet.log, true);
    follower.wait(&mut fleet, 600);
    assert_eq!(follower.take(), []);
    fleet.set_policy(to(&["ops", "lead"]));
    follower.follow(&fleet.log, true);
    let again = follower.take();
    assert_eq!(told(&again), [("ops", FIRING)]);
    let keys: BTreeSet<&str> =
        first.iter().chain(&again).map(|one| one.notification.key.as_str()).collect();
    assert_eq!(keys.len(), 3, "it is another notification");
    fleet.set_policy(to(&["ops", "lead", "third"]));
    follower.follow(&fleet.log, true);
    assert_eq!(told(&follower.take()), [("third", FIRING)], "the others know it");
    follower.wait(&mut fleet, 600);
    assert_eq!(follower.take(), []);
    clear(&mut fleet, 0, 1);
    follower.follow(&fleet.log, false);
    follower.wait(&mut fleet, 600);
    let end = [("lead", RESOLVED), ("ops", RESOLVED), ("third", RESOLVED)];
    assert_eq!(told(&follower.take()), end);
}

#[test]
fn a_renamed_receiver_is_told_once_of_what_still_fires() {
    let (mut fleet, mut follower) = fleet_with(to(&["ops"]));
    warning(&mut fleet, 0, 1, "gpu.ecc-off");
    warning(&mut fleet, 0, 2, "gpu.pages-many");
    follower.follow(&fleet.log, false);
    follower.wait(&mut fleet, 60);
    assert_eq!(follower.take().len(), 2);
    clear(&mut fleet, 0, 1);
    follower.follow(&fleet.log, false);
    follower.wait(&mut fleet, 600);
    assert_eq!(told(&follower.take()), [("ops", RESOLVED)]);
    fleet.set_policy(to(&["operations"]));
    follower.follow(&fleet.log, true);
    let sent = follower.take();
    assert_eq!(told(&sent), [("operations", FIRING)], "the other alert is over");
    assert_eq!(sent[0].notification.code, "gpu.pages-many");
    follower.wait(&mut fleet, 3600);
    assert_eq!(follower.take(), []);
}

/// A receiver that is added within the group interval gets the news, and the others get it when the
/// interval is over.
#[test]
fn the_news_of_a_group_is_not_lost_when_a_receiver_is_added() {
    let (mut fleet, mut follower) = fleet_with(to(&["ops"]));
    warning(&mut fleet, 0, 1, "gpu.ecc-off");
    follower.follow(&fleet.log, false);
    follower.wait(&mut fleet, 60);
    assert_eq!(told(&follower.take()), [("ops", FIRING)]);
    warning(&mut fleet, 2, 1, "gpu.ecc-off");
    fleet.set_policy(to(&["ops", "lead"]));
    follower.follow(&fleet.log, true);
    let late = follower.take();
    assert_eq!(told(&late), [("lead", FIRING)]);
    assert_eq!(late[0].notification.nodes_total, 2);
    follower.wait(&mut fleet, 600);
    let sent = follower.take();
    assert_eq!(told(&sent), [("lead", FIRING), ("ops", FIRING)]);
    assert_eq!(sent[0].notification.nodes_total, 2);
}
