//! Drain: waits, requeues jobs that do not end, and names those that remain.

use farrier_fleet::fleet::order::{OrderKind, OrderStatus};

use super::world::{World, job};

const DRAIN: OrderKind = OrderKind::Drain { wait_s: 120 };

fn with_jobs(ids: &[&str]) -> World {
    let world = World::drained();
    world.state().jobs = ids.iter().map(|id| job(id)).collect();
    world
}

#[test]
fn a_node_that_takes_new_work_is_not_drained() {
    let world = World::new();
    let OrderStatus::Refused { reason } = world.carry(DRAIN) else { panic!() };
    assert!(reason.contains("cordoned first"), "{reason}");
}

#[test]
fn an_empty_node_is_drained_at_once() {
    let world = with_jobs(&[]);
    let before = world.now();
    let OrderStatus::Done { evidence } = world.carry(DRAIN) else { panic!() };
    assert_eq!(evidence, "nothing runs on the node by the test");
    assert!(world.now().duration_since(before).as_secs() < 60);
}

#[test]
fn what_has_not_ended_in_its_time_starts_anew_elsewhere() {
    let world = with_jobs(&["7", "8"]);
    let before = world.now();
    let OrderStatus::Done { evidence } = world.carry(DRAIN) else { panic!() };
    assert_eq!(evidence, "nothing runs on the node by the test; started anew elsewhere: 7, 8");
    assert_eq!(world.state().requeues, ["7", "8"]);
    assert!(world.now().duration_since(before).as_secs() >= 120);
}

#[test]
fn what_cannot_be_moved_is_asked_once_named_and_left() {
    let world = with_jobs(&["7", "8"]);
    world.state().cannot_move.insert("8".to_owned());
    let before = world.now();
    let OrderStatus::Failed { reason } = world.carry(DRAIN) else { panic!() };
    assert!(
        reason.ends_with("still runs on the node: job 8 (not moved: `program` failed (exit status: 1): it cannot be requeued)"),
        "{reason}"
    );
    assert_eq!(world.state().requeues, ["7", "8"], "each is asked for once");
    let waited_s = world.now().duration_since(before).as_secs();
    assert!(
        (500..=640).contains(&waited_s),
        "for the rest of the lease, and not longer: {waited_s}"
    );
}

#[test]
fn what_ends_by_itself_is_left_to_end() {
    let world = with_jobs(&["7"]);
    world.state().jobs[0].is_ending = true;
    let OrderStatus::Failed { .. } = world.carry(DRAIN) else { panic!() };
    assert!(world.state().requeues.is_empty());
}

#[test]
fn a_mark_that_is_taken_away_ends_it() {
    let world = with_jobs(&["7"]);
    let desk = world.desk();
    assert_eq!(desk.offer(&world.order(1, DRAIN), world.now()), OrderStatus::Accepted);
    world.state().mark = None;
    desk.step();
    let told = desk.outstanding();
    assert!(matches!(&told[..], [(1, OrderStatus::Refused { .. })]), "{told:?}");
}
