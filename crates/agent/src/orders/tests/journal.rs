//! The journal: what it refuses, how it compacts, and its behaviour on a full disk.

use std::fs;

use farrier_fleet::fleet::order::{OrderKind, OrderStatus, VerificationLevel};

use super::super::OrdersError;
use super::super::journal::FILE;
use super::world::{World, gpu};

const VERIFY: OrderKind = OrderKind::Verify { level: VerificationLevel::V0 };

#[test]
fn a_newer_order_takes_the_place_of_one_that_has_not_ended() {
    let world = World::drained();
    let desk = world.desk();
    let first = world.order(3, VERIFY);
    assert_eq!(desk.offer(&first, world.now()), OrderStatus::Accepted);
    let second = world.order(4, OrderKind::Uncordon);
    assert_eq!(desk.offer(&second, world.now()), OrderStatus::Accepted);
    let told = desk.outstanding();
    let [(3, OrderStatus::Failed { reason }), (4, OrderStatus::Accepted)] = &told[..] else {
        panic!("{told:?}")
    };
    assert_eq!(reason, "order 4 came before it had ended");
    // The first one is no longer executed.
    let refused = desk.offer(&first, world.now());
    assert_eq!(refused, OrderStatus::Failed { reason: reason.clone() });
    desk.step();
    assert!(matches!(desk.outstanding()[1], (4, OrderStatus::Done { .. })));
    assert_eq!(world.woken.load(std::sync::atomic::Ordering::Relaxed), 2, "for both");
}

#[test]
fn an_order_whose_lease_ended_while_the_agent_was_gone_is_not_begun() {
    let world = World::drained();
    let order = world.order(3, OrderKind::ResetGpu { gpu: gpu() });
    assert_eq!(world.desk().offer(&order, world.now()), OrderStatus::Accepted);
    world.pass(3600);
    let desk = world.desk();
    desk.step();
    let told = desk.outstanding();
    let [(3, OrderStatus::Refused { reason })] = &told[..] else { panic!("{told:?}") };
    assert!(reason.contains("lease"), "{reason}");
    assert_eq!(world.state().resets, 0);
}

#[test]
fn leases_go_by_the_servers_clock_also_after_a_restart() {
    let world = World::drained();
    // The server's clock is an hour ahead of this node's.
    let hour = jiff::SignedDuration::from_hours(1);
    let mut order = world.order(3, OrderKind::ResetGpu { gpu: gpu() });
    order.lease_until += hour;
    assert_eq!(world.desk().offer(&order, world.now() + hour), OrderStatus::Accepted);
    world.pass(1200);
    let desk = world.desk();
    desk.step();
    assert!(matches!(&desk.outstanding()[..], [(3, OrderStatus::Refused { .. })]));
}

#[test]
fn what_was_done_and_acknowledged_is_folded_away() {
    let world = World::drained();
    let desk = world.desk();
    let mut most = 0;
    for generation in 1..=600 {
        let order = world.order(generation, VERIFY);
        assert_eq!(desk.offer(&order, world.now()), OrderStatus::Accepted);
        desk.step();
        desk.acknowledged(generation);
        most = most.max(fs::metadata(world.folder.path().join(FILE)).unwrap().len());
    }
    assert!(most < 80 << 10, "{most}");
    drop(desk);
    // A compacted file has the same state, and accepts more.
    let desk = world.desk();
    assert_eq!((desk.ledger().generation, desk.outstanding()), (600, vec![]));
    let old = world.order(600, OrderKind::Cordon);
    assert!(matches!(desk.offer(&old, world.now()), OrderStatus::Refused { .. }));
    assert_eq!(desk.offer(&world.order(601, VERIFY), world.now()), OrderStatus::Accepted);
}

#[test]
fn a_server_that_takes_no_answers_is_not_obeyed_for_ever() {
    let world = World::drained();
    let desk = world.desk();
    for generation in 1..=64 {
        assert_eq!(
            desk.offer(&world.order(generation, VERIFY), world.now()),
            OrderStatus::Accepted
        );
        desk.step();
    }
    let OrderStatus::Refused { reason } = desk.offer(&world.order(65, VERIFY), world.now()) else {
        panic!()
    };
    assert!(reason.contains("were not acknowledged"), "{reason}");
    desk.acknowledged(1);
    assert_eq!(desk.offer(&world.order(65, VERIFY), world.now()), OrderStatus::Accepted);
}

#[test]
fn on_a_full_disk_nothing_is_begun_and_nothing_is_claimed() {
    let world = World::drained();
    let desk = world.desk();
    desk.fill_disk(true);
    let order = world.order(1, OrderKind::Uncordon);
    let OrderStatus::Refused { reason } = desk.offer(&order, world.now()) else { panic!() };
    assert!(reason.contains("cannot be written"), "{reason}");
    assert_eq!(desk.outstanding(), []);
    desk.fill_disk(false);
    assert_eq!(desk.offer(&order, world.now()), OrderStatus::Accepted);
    // The disk fills up before the order starts: the status waits for space.
    desk.fill_disk(true);
    world.stand_still();
    let carried = {
        let desk = desk.clone();
        std::thread::spawn(move || desk.step())
    };
    world.wait_for_looks();
    assert_eq!(desk.outstanding(), [(1, OrderStatus::Accepted)]);
    assert_eq!(world.state().uncordons, 0);
    desk.fill_disk(false);
    carried.join().unwrap();
    let told = desk.outstanding();
    assert!(
        matches!(&told[..], [(1, OrderStatus::Refused { reason })] if reason.contains("cannot be written")),
        "{told:?}"
    );
}

#[test]
fn a_file_that_is_damaged_or_newer_is_not_gone_on_with() {
    let world = World::drained();
    world.carry(VERIFY);
    let path = world.folder.path().join(FILE);
    let good = fs::read_to_string(&path).unwrap();
    // A line that was being written during a power failure was never reported.
    fs::write(&path, format!("{good}{{\"v\":1,\"at\":\"2026")).unwrap();
    assert_eq!(world.desk().ledger().generation, 1);
    assert_eq!(fs::read_to_string(&path).unwrap(), good, "it is cut");
    fs::write(&path, format!("nonsense\n{good}")).unwrap();
    let err = world.open("").err().unwrap();
    assert!(matches!(err, OrdersError::Damaged { line: 1, .. }), "{err}");
    fs::write(&path, format!("{good}{{\"v\":3,\"at\":7}}\n")).unwrap();
    let err = world.open("").err().unwrap();
    assert!(matches!(err, OrdersError::Newer { version: 3, .. }), "{err}");
    fs::write(&path, &good).unwrap();
    let desk = world.desk();
    assert!(matches!(world.open("").err().unwrap(), OrdersError::InUse { .. }));
    drop(desk);
}

/// As version 1 wrote them.
const RECORDED: &str = r#"{"v":1,"at":"2026-11-15T12:00:00Z","note":{"whole":{"generation":4,"answers":{"4":{"refused":{"why":"its lease ended"}}},"mark":"farrier: Xid 79 (order 2)"}}}
{"v":1,"at":"2026-11-15T12:00:01Z","note":{"accepted":{"order":{"node":"node-1","generation":5,"what":{"reset-gpu":{"gpu":"GPU-1"}},"boot":"boot-1","lease-until":"x"},"boot":"boot-1","accepted":"2026-11-15T12:00:01Z","skew_ms":-250}}}
{"v":1,"at":"2026-11-15T12:00:02Z","note":{"begun":{"generation":5,"effect":{"reset-gpu":{"gpu":"GPU-1","wrong":["the driver asks for a reset"]}},"boot":"boot-1"}}}
{"v":1,"at":"2026-11-15T12:00:09Z","note":{"ended":{"generation":5}}}
{"v":1,"at":"2026-11-15T12:00:10Z","note":{"acknowledged":{"generation":4}}}
"#;

#[test]
fn what_the_first_version_wrote_reads() {
    let world = World::drained();
    let order = r#""lease_until":"2027-11-15T12:10:01Z","reason":"Xid 95"}"#;
    let recorded = RECORDED.replace(r#""lease-until":"x"}"#, order);
    fs::write(world.folder.path().join(FILE), recorded).unwrap();
    world.state().gpu_wrong.clear();
    let desk = world.desk();
    let ledger = desk.ledger();
    assert_eq!(ledger.mark.as_deref(), Some("farrier: Xid 79 (order 2)"));
    assert_eq!(desk.outstanding(), [(5, OrderStatus::Accepted)]);
    desk.step();
    assert!(matches!(&desk.outstanding()[..], [(5, OrderStatus::Done { .. })]));
    assert_eq!(world.state().resets, 0, "it had been made");
}
