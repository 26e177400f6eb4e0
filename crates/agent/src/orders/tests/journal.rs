//! The journal: refused files, compaction, and a full disk.

use std::fs;

use farrier_fleet::fleet::order::{OrderKind, OrderStatus, VerificationLevel};

use super::super::OrdersError;
use super::super::journal::FILE;
use super::test_node::{TestNode, gpu};

const VERIFY: OrderKind = OrderKind::Verify { level: VerificationLevel::V0 };

#[test]
fn a_newer_order_supersedes_the_active_one() {
    let node = TestNode::drained();
    let executor = node.executor();
    let first = node.order(3, VERIFY);
    assert_eq!(executor.submit(&first, node.now()), OrderStatus::Accepted);
    let second = node.order(4, OrderKind::Uncordon);
    assert_eq!(executor.submit(&second, node.now()), OrderStatus::Accepted);
    let statuses = executor.outstanding();
    let [(3, OrderStatus::Failed { reason }), (4, OrderStatus::Accepted)] = &statuses[..] else {
        panic!("{statuses:?}")
    };
    assert_eq!(reason, "superseded by order 4");
    // The first one is no longer executed.
    let resubmitted = executor.submit(&first, node.now());
    assert_eq!(resubmitted, OrderStatus::Failed { reason: reason.clone() });
    executor.step();
    assert!(matches!(executor.outstanding()[1], (4, OrderStatus::Done { .. })));
    assert_eq!(node.wakes.load(std::sync::atomic::Ordering::Relaxed), 2, "one for each order");
}

#[test]
fn an_order_whose_lease_ended_while_the_agent_was_down_is_not_started() {
    let node = TestNode::drained();
    let order = node.order(3, OrderKind::ResetGpu { gpu: gpu() });
    assert_eq!(node.executor().submit(&order, node.now()), OrderStatus::Accepted);
    node.advance(3600);
    let executor = node.executor();
    executor.step();
    let statuses = executor.outstanding();
    let [(3, OrderStatus::Refused { reason })] = &statuses[..] else { panic!("{statuses:?}") };
    assert!(reason.contains("lease"), "{reason}");
    assert_eq!(node.state().resets, 0);
}

#[test]
fn leases_use_the_servers_clock_after_a_restart_too() {
    let node = TestNode::drained();
    // The server's clock is an hour ahead of this node's.
    let hour = jiff::SignedDuration::from_hours(1);
    let mut order = node.order(3, OrderKind::ResetGpu { gpu: gpu() });
    order.lease_until += hour;
    assert_eq!(node.executor().submit(&order, node.now() + hour), OrderStatus::Accepted);
    node.advance(1200);
    let executor = node.executor();
    executor.step();
    assert!(matches!(&executor.outstanding()[..], [(3, OrderStatus::Refused { .. })]));
}

#[test]
fn acknowledged_orders_are_compacted() {
    let node = TestNode::drained();
    let executor = node.executor();
    let mut max_bytes = 0;
    for generation in 1..=600 {
        let order = node.order(generation, VERIFY);
        assert_eq!(executor.submit(&order, node.now()), OrderStatus::Accepted);
        executor.step();
        executor.acknowledge(generation);
        max_bytes = max_bytes.max(fs::metadata(node.folder.path().join(FILE)).unwrap().len());
    }
    assert!(max_bytes < 80 << 10, "{max_bytes}");
    drop(executor);
    // A compacted file has the same state, and the executor accepts further orders.
    let executor = node.executor();
    assert_eq!((executor.ledger().generation, executor.outstanding()), (600, vec![]));
    let old = node.order(600, OrderKind::Cordon);
    assert!(matches!(executor.submit(&old, node.now()), OrderStatus::Refused { .. }));
    assert_eq!(executor.submit(&node.order(601, VERIFY), node.now()), OrderStatus::Accepted);
}

#[test]
fn orders_are_rejected_while_too_many_statuses_are_unacknowledged() {
    let node = TestNode::drained();
    let executor = node.executor();
    for generation in 1..=64 {
        assert_eq!(
            executor.submit(&node.order(generation, VERIFY), node.now()),
            OrderStatus::Accepted
        );
        executor.step();
    }
    let OrderStatus::Refused { reason } = executor.submit(&node.order(65, VERIFY), node.now())
    else {
        panic!()
    };
    assert!(reason.contains("until the server acknowledges"), "{reason}");
    executor.acknowledge(1);
    assert_eq!(executor.submit(&node.order(65, VERIFY), node.now()), OrderStatus::Accepted);
}

#[test]
fn on_a_full_disk_nothing_is_started_or_reported() {
    let node = TestNode::drained();
    let executor = node.executor();
    executor.fill_disk(true);
    let order = node.order(1, OrderKind::Uncordon);
    let OrderStatus::Refused { reason } = executor.submit(&order, node.now()) else { panic!() };
    assert!(reason.contains("failed to write the order journal"), "{reason}");
    assert_eq!(executor.outstanding(), []);
    executor.fill_disk(false);
    assert_eq!(executor.submit(&order, node.now()), OrderStatus::Accepted);
    // The disk fills up before the order starts: the status waits for space.
    executor.fill_disk(true);
    node.stop_clock();
    let execution = {
        let executor = executor.clone();
        std::thread::spawn(move || executor.step())
    };
    node.wait_for_clock_reads();
    assert_eq!(executor.outstanding(), [(1, OrderStatus::Accepted)]);
    assert_eq!(node.state().uncordons, 0);
    executor.fill_disk(false);
    execution.join().unwrap();
    let statuses = executor.outstanding();
    assert!(
        matches!(&statuses[..], [(1, OrderStatus::Refused { reason })] if reason.contains("failed to write the order journal")),
        "{statuses:?}"
    );
}

#[test]
fn a_damaged_or_newer_file_is_refused() {
    let node = TestNode::drained();
    node.run_order(VERIFY);
    let path = node.folder.path().join(FILE);
    let good = fs::read_to_string(&path).unwrap();
    // A line that a power failure cut off was never reported.
    fs::write(&path, format!("{good}{{\"v\":1,\"at\":\"2026")).unwrap();
    assert_eq!(node.executor().ledger().generation, 1);
    assert_eq!(fs::read_to_string(&path).unwrap(), good, "the partial line is truncated");
    fs::write(&path, format!("nonsense\n{good}")).unwrap();
    let err = node.open("").err().unwrap();
    assert!(matches!(err, OrdersError::Damaged { line: 1, .. }), "{err}");
    fs::write(&path, format!("{good}{{\"v\":3,\"at\":7}}\n")).unwrap();
    let err = node.open("").err().unwrap();
    assert!(matches!(err, OrdersError::Newer { version: 3, .. }), "{err}");
    fs::write(&path, &good).unwrap();
    let executor = node.executor();
    assert!(matches!(node.open("").err().unwrap(), OrdersError::InUse { .. }));
    drop(executor);
}

/// Lines as version 1 wrote them.
const RECORDED: &str = r#"{"v":1,"at":"2026-11-15T12:00:00Z","note":{"whole":{"generation":4,"answers":{"4":{"refused":{"why":"its lease ended"}}},"mark":"farrier: Xid 79 (order 2)"}}}
{"v":1,"at":"2026-11-15T12:00:01Z","note":{"accepted":{"order":{"node":"node-1","generation":5,"what":{"reset-gpu":{"gpu":"GPU-1"}},"boot":"boot-1","lease-until":"x"},"boot":"boot-1","accepted":"2026-11-15T12:00:01Z","skew_ms":-250}}}
{"v":1,"at":"2026-11-15T12:00:02Z","note":{"begun":{"generation":5,"effect":{"reset-gpu":{"gpu":"GPU-1","wrong":["the driver asks for a reset"]}},"boot":"boot-1"}}}
{"v":1,"at":"2026-11-15T12:00:09Z","note":{"ended":{"generation":5}}}
{"v":1,"at":"2026-11-15T12:00:10Z","note":{"acknowledged":{"generation":4}}}
"#;

#[test]
fn a_version_1_journal_is_readable() {
    let node = TestNode::drained();
    let order = r#""lease_until":"2027-11-15T12:10:01Z","reason":"Xid 95"}"#;
    let recorded = RECORDED.replace(r#""lease-until":"x"}"#, order);
    fs::write(node.folder.path().join(FILE), recorded).unwrap();
    node.state().reset_reasons.clear();
    let executor = node.executor();
    let ledger = executor.ledger();
    assert_eq!(ledger.mark.as_deref(), Some("farrier: Xid 79 (order 2)"));
    assert_eq!(executor.outstanding(), [(5, OrderStatus::Accepted)]);
    executor.step();
    assert!(matches!(&executor.outstanding()[..], [(5, OrderStatus::Done { .. })]));
    assert_eq!(node.state().resets, 0, "the reset was already made");
}
