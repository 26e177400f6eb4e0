//! Idempotency keys of notifications when positions of the log are used a second time.

use std::collections::BTreeSet;

use farrier_fleet::notify::{FleetView, Outgoing, Router};
use jiff::SignedDuration;

use crate::notifications::{Follower, all_to_ops, clear, fleet_with, only, warning};
use crate::test_fleet::TestFleet;

fn keys(sent: &[Outgoing]) -> Vec<String> {
    sent.iter().map(|one| one.notification.key.clone()).collect()
}

/// What a router sends that has lost its own state, at the same position each time.
fn sent_without_state(
    fleet: &TestFleet,
    follower: &Follower,
    database: &str,
    losses: u32,
) -> Vec<Outgoing> {
    let mut router = Router::default();
    router.set_database(database);
    (0..losses).for_each(|_| router.lose_track());
    let view = FleetView::of_fleet(&follower.state);
    let policy = follower.state.policy.notifications.clone();
    router.reset_to(&view, policy, follower.state.seq, fleet.now);
    router.advance(fleet.now + SignedDuration::from_secs(60))
}

#[test]
fn what_fires_at_a_position_that_was_used_before_has_another_key() {
    let (mut fleet, mut follower) = fleet_with(all_to_ops());
    warning(&mut fleet, 0, 1, "gpu.ecc-off");
    follower.follow(&fleet.log, false);
    let mut known = BTreeSet::new();
    for (database, losses) in [("one", 0), ("one", 1), ("one", 2), ("other", 0), ("other", 1)] {
        let sent = sent_without_state(&fleet, &follower, database, losses);
        assert!(known.insert(only(&sent).key.clone()), "{database} {losses}");
        let again = sent_without_state(&fleet, &follower, database, losses);
        assert_eq!(sent, again, "a restart changes nothing");
    }
}

/// A group of an earlier version does not know its database.
#[test]
fn a_group_that_fires_keeps_its_keys() {
    let (mut fleet, mut follower) = fleet_with(all_to_ops());
    warning(&mut fleet, 0, 1, "gpu.ecc-off");
    follower.follow(&fleet.log, false);
    follower.wait(&mut fleet, 60);
    assert_eq!(follower.take().len(), 1);
    clear(&mut fleet, 0, 1);
    follower.follow(&fleet.log, false);
    let later = fleet.now + SignedDuration::from_hours(1);
    let before = keys(&follower.stored.restore().advance(later));
    assert_eq!(before.len(), 1);
    let mut router = follower.stored.restore();
    router.set_database("one");
    router.lose_track();
    assert_eq!(keys(&router.advance(later)), before);
}
