//! Tests of a drain. It waits, requeues jobs that do not end, and names the jobs that remain.

use farrier_fleet::fleet::order::{OrderKind, OrderStatus};

use super::test_node::{TestNode, job};

const DRAIN: OrderKind = OrderKind::Drain { wait_s: 120 };

fn with_jobs(ids: &[&str]) -> TestNode {
    let node = TestNode::drained();
    node.state().jobs = ids.iter().map(|id| job(id)).collect();
    node
}

#[test]
fn a_node_without_a_cordon_is_not_drained() {
    let node = TestNode::new();
    let OrderStatus::Refused { reason } = node.run_order(DRAIN) else { panic!() };
    assert!(reason.contains("cordon it first"), "{reason}");
}

#[test]
fn an_idle_node_is_drained_at_once() {
    let node = with_jobs(&[]);
    let before = node.now();
    let OrderStatus::Done { evidence } = node.run_order(DRAIN) else { panic!() };
    assert_eq!(evidence, "no job runs on the node (test)");
    assert!(node.now().duration_since(before).as_secs() < 60);
}

#[test]
fn jobs_that_outlast_the_wait_are_requeued() {
    let node = with_jobs(&["7", "8"]);
    let before = node.now();
    let OrderStatus::Done { evidence } = node.run_order(DRAIN) else { panic!() };
    assert_eq!(evidence, "no job runs on the node (test); requeued: 7, 8");
    assert_eq!(node.state().requeues, ["7", "8"]);
    assert!(node.now().duration_since(before).as_secs() >= 120);
}

#[test]
fn a_job_that_cannot_be_requeued_is_tried_once_and_named() {
    let node = with_jobs(&["7", "8"]);
    node.state().cannot_requeue.insert("8".to_owned());
    let before = node.now();
    let OrderStatus::Failed { reason } = node.run_order(DRAIN) else { panic!() };
    assert!(
        reason.ends_with("still on the node when the lease ended: job 8 (requeue failed: `program` failed (exit status: 1): job cannot be requeued)"),
        "{reason}"
    );
    assert_eq!(node.state().requeues, ["7", "8"], "one attempt each");
    let waited_s = node.now().duration_since(before).as_secs();
    assert!((500..=640).contains(&waited_s), "waits until the lease ends, not longer: {waited_s}");
}

#[test]
fn a_job_that_is_already_ending_is_not_requeued() {
    let node = with_jobs(&["7"]);
    node.state().jobs[0].is_ending = true;
    let OrderStatus::Failed { .. } = node.run_order(DRAIN) else { panic!() };
    assert!(node.state().requeues.is_empty());
}

#[test]
fn removing_the_cordon_ends_the_drain() {
    let node = with_jobs(&["7"]);
    let executor = node.executor();
    assert_eq!(executor.submit(&node.order(1, DRAIN), node.now()), OrderStatus::Accepted);
    node.state().cordon = None;
    executor.step();
    let statuses = executor.outstanding();
    assert!(matches!(&statuses[..], [(1, OrderStatus::Refused { .. })]), "{statuses:?}");
}
