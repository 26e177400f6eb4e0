//! Effects and preconditions of each order kind.

use farrier_fleet::fleet::event::Cordon;
use farrier_fleet::fleet::order::{OrderKind, OrderStatus, VerificationLevel};

use super::super::{GpuProcess, VerificationReport, repair_note};
use super::test_node::{TestNode, UNIT, gpu, job};
use crate::artifact::Manifest;

fn reason(status: OrderStatus) -> String {
    match status {
        OrderStatus::Refused { reason } => format!("refused: {reason}"),
        OrderStatus::Failed { reason } => format!("failed: {reason}"),
        OrderStatus::Inconclusive { reason } => format!("inconclusive: {reason}"),
        other => panic!("{other:?}"),
    }
}

fn evidence(status: OrderStatus) -> String {
    match status {
        OrderStatus::Done { evidence } => evidence,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_cordon_is_set_once_and_only_our_own_is_removed() {
    let node = TestNode::new();
    assert!(
        evidence(node.run_order(OrderKind::Cordon)).contains("farrier: Xid 79 on GPU 3 (order 1)")
    );
    assert_eq!(node.executor().cordon(), Cordon::ByFarrier);
    // The node is already cordoned, so nothing changes.
    evidence(node.run_order(OrderKind::Cordon));
    assert_eq!(node.state().cordons, 1);
    evidence(node.run_order(OrderKind::Uncordon));
    evidence(node.run_order(OrderKind::Uncordon));
    assert_eq!(node.executor().cordon(), Cordon::None);
    assert_eq!(node.state().uncordons, 1);
}

#[test]
fn a_node_with_an_open_finding_stays_cordoned() {
    let node = TestNode::new();
    evidence(node.run_order(OrderKind::Cordon));
    node.state().blocking_finding = Some("fatal gpu.xid".to_owned());
    let text = reason(node.run_order(OrderKind::Uncordon));
    assert!(text.contains("stays cordoned: fatal gpu.xid"), "{text}");
    assert_eq!((node.executor().cordon(), node.state().uncordons), (Cordon::ByFarrier, 0));
    node.state().blocking_finding = None;
    evidence(node.run_order(OrderKind::Uncordon));
    assert_eq!(node.executor().cordon(), Cordon::None);
}

#[test]
fn an_external_cordon_is_left_alone() {
    let node = TestNode::new();
    let external = ("alice".to_owned(), "disk".to_owned());
    node.state().cordon = Some(external.clone());
    for kind in [OrderKind::Cordon, OrderKind::Uncordon] {
        let text = reason(node.run_order(kind));
        assert_eq!(
            text,
            "refused: cordoned by alice (test): disk; farrier does not change an external cordon"
        );
    }
    // Our cordon becomes external once a person edits its reason.
    node.state().cordon = None;
    evidence(node.run_order(OrderKind::Cordon));
    node.state().cordon.as_mut().unwrap().1.push_str("; and the disk");
    assert!(
        reason(node.run_order(OrderKind::Uncordon)).contains("does not change an external cordon")
    );
    let state = node.state();
    assert!(state.cordon.is_some() && state.uncordons == 0);
}

#[test]
fn an_unresponsive_scheduler_is_retried_until_the_lease_ends() {
    let node = TestNode::new();
    node.state().cordon_unreadable = true;
    assert_eq!(
        reason(node.run_order(OrderKind::Cordon)),
        "refused: `program` failed (exit status: 1): the controller does not answer"
    );
    assert_eq!(node.executor().cordon(), Cordon::Unknown);
    assert_eq!(node.state().cordons, 0);
}

#[test]
fn a_repair_requires_a_drained_node() {
    let unit = UNIT.to_owned();
    let profile = "training".to_owned();
    for kind in [
        OrderKind::ResetGpu { gpu: gpu() },
        OrderKind::Reboot,
        OrderKind::RestartService { unit },
        OrderKind::Tune { profile },
    ] {
        let node = TestNode::new();
        assert!(
            reason(node.run_order(kind.clone())).contains("refused: the node accepts new work"),
            "{kind}"
        );
        let node = TestNode::drained();
        node.state().jobs = vec![job("7")];
        assert_eq!(reason(node.run_order(kind.clone())), "refused: the node is not drained: job 7");
        // An external cordon keeps work away just as well.
        node.state().jobs.clear();
        node.state().cordon = Some(("alice".to_owned(), "disk".to_owned()));
        evidence(node.run_order(kind.clone()));
        let state = node.state();
        let made = state.resets + state.reboots + state.restarts + state.tunes;
        assert_eq!(made, 1, "{kind}");
    }
}

#[test]
fn a_gpu_in_use_is_not_reset() {
    let node = TestNode::drained();
    let process = |gpu: &str| GpuProcess {
        gpu: farrier_fleet::health::GpuUuid(gpu.to_owned()),
        pid: 4711,
        command: "python".to_owned(),
    };
    node.state().processes = vec![process("GPU-1")];
    let kind = OrderKind::ResetGpu { gpu: gpu() };
    assert_eq!(
        reason(node.run_order(kind.clone())),
        "refused: the GPU is in use: process 4711 (python) on GPU-1"
    );
    assert_eq!(node.state().resets, 0);
    node.state().processes = vec![process("GPU-2")];
    assert!(evidence(node.run_order(kind)).starts_with("the GPU was reset; the GPU responds"));
}

#[test]
fn a_reset_that_fails_or_does_not_help_fails_the_order() {
    let node = TestNode::drained();
    node.state().reset_succeeds = false;
    let kind = OrderKind::ResetGpu { gpu: gpu() };
    assert_eq!(
        reason(node.run_order(kind.clone())),
        "failed: the GPU was reset, but the fault remains: the driver requests a reset"
    );
    node.state().reset_fails = Some("in use by another client".to_owned());
    assert_eq!(
        reason(node.run_order(kind)),
        "failed: `program` failed (exit status: 1): in use by another client"
    );
    assert_eq!(node.state().resets, 2);
}

#[test]
fn a_new_boot_id_is_the_evidence_of_a_reboot() {
    let node = TestNode::drained();
    assert_eq!(evidence(node.run_order(OrderKind::Reboot)), "boot boot-2, previous boot boot-1");
    // An order for the previous boot is not executed in this one.
    let executor = node.executor();
    let mut order = node.order(2, OrderKind::Reboot);
    order.boot = Some("boot-1".to_owned());
    assert!(reason(executor.submit(&order, node.now())).contains("the order is for boot boot-1"));
    assert_eq!(executor.outstanding().len(), 2, "a refusal is a status too");
    drop(executor);
    node.state().boot_unreadable = true;
    assert!(reason(node.run_order(OrderKind::Reboot)).contains("failed to read the boot ID"));
    assert_eq!(node.state().reboots, 1);
}

#[test]
fn operator_requested_orders_return_evidence_or_a_reason() {
    let node = TestNode::drained();
    let tune = OrderKind::Tune { profile: "training".to_owned() };
    assert_eq!(evidence(node.run_order(tune.clone())), "profile training is applied");
    node.state().tune_fails = Some("2 of 3 changes made; gpu.ecc (refused)".to_owned());
    assert_eq!(reason(node.run_order(tune)), "failed: 2 of 3 changes made; gpu.ecc (refused)");
    let diag = OrderKind::Diag { level: 2, minutes: 0 };
    assert_eq!(evidence(node.run_order(diag.clone())), "level 2: all is well");
    node.state().verification = VerificationReport {
        failed: vec!["GPU 1 is slow".to_owned()],
        ..VerificationReport::default()
    };
    assert_eq!(reason(node.run_order(diag.clone())), "failed: level 2: GPU 1 is slow");
    node.state().verification = VerificationReport {
        unknown: vec!["GPU 1 is busy".to_owned()],
        ..VerificationReport::default()
    };
    assert_eq!(reason(node.run_order(diag)), "refused: level 2: no result: GPU 1 is busy");
}

#[test]
fn a_service_that_does_not_start_fails_the_order() {
    let node = TestNode::drained();
    node.state().service_starts = false;
    let kind = OrderKind::RestartService { unit: UNIT.to_owned() };
    assert!(reason(node.run_order(kind.clone())).contains("is not active: failed"));
    node.state().service_starts = true;
    assert!(evidence(node.run_order(kind)).contains("is active"));
}

#[test]
fn a_manual_repair_is_written_for_the_health_monitor() {
    let node = TestNode::new();
    let kind = OrderKind::AcknowledgeRepair { repair: "a new riser".to_owned() };
    assert!(evidence(node.run_order(kind)).contains("counters restart"));
    let note = repair_note::read(node.folder.path()).unwrap();
    assert_eq!(note.repair, "a new riser");
    assert_eq!(*node.repairs.lock().unwrap(), [note], "the running health monitor is notified");
    std::fs::write(node.folder.path().join("repaired.json"), "{").unwrap();
    assert_eq!(repair_note::read(node.folder.path()), None);
}

#[test]
fn a_check_without_a_result_is_no_failure_and_findings_get_time_to_clear() {
    let node = TestNode::new();
    let kind = OrderKind::Verify { level: VerificationLevel::V1 };
    assert_eq!(evidence(node.run_order(kind.clone())), "all is well");
    node.state().verification.unknown = vec!["the kernel log may not be read".to_owned()];
    let text = reason(node.run_order(kind.clone()));
    assert_eq!(text, "inconclusive: the kernel log may not be read");
    // A failed check counts, whatever else has no result.
    node.state().verification.failed = vec!["gpu.lost".to_owned()];
    let text = reason(node.run_order(kind.clone()));
    assert_eq!(text, "failed: gpu.lost; 1 more without a result");
    node.state().verification =
        VerificationReport { failed: vec!["gpu.lost".to_owned()], ..VerificationReport::default() };
    assert_eq!(reason(node.run_order(kind.clone())), "failed: gpu.lost");
    let many = ["fatal gpu.xid (Xid 79) on GPU 3", "NVML lists 7 GPUs"].map(str::to_owned).to_vec();
    let unknown = vec!["rule gpu.heat cannot run: lost".to_owned(); 12];
    node.state().verification =
        VerificationReport { failed: many, unknown, ..VerificationReport::default() };
    let text = reason(node.run_order(kind.clone()));
    assert_eq!(
        text,
        "failed: fatal gpu.xid (Xid 79) on GPU 3, and 1 more; 12 more without a result"
    );
    node.state().verification = VerificationReport::default();
    assert_eq!(reason(node.run_order(kind.clone())), "failed: no check has a result");
    // The finding is open for a while, then clears.
    node.state().verification =
        VerificationReport { failed: vec!["gpu.lost".to_owned()], ..VerificationReport::default() };
    let executor = node.executor();
    let order = node.order(9, kind);
    assert_eq!(executor.submit(&order, node.now()), OrderStatus::Accepted);
    node.stop_clock();
    let execution = {
        let executor = executor.clone();
        std::thread::spawn(move || executor.step())
    };
    node.wait_for_clock_reads();
    node.state().verification = VerificationReport {
        passed: vec!["all is well".to_owned()],
        ..VerificationReport::default()
    };
    execution.join().unwrap();
    evidence(executor.ledger().last.unwrap().1);
}

#[test]
fn without_a_server_the_bundle_stays_on_the_node_and_lists_its_gaps() {
    let node = TestNode::new();
    let text = evidence(node.run_order(OrderKind::CollectLogs));
    assert!(text.contains("no server: the bundle stays in"), "{text}");
    let bundles = || {
        let entries = std::fs::read_dir(node.folder.path().join("artifacts")).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(bundles(), ["1.tar.gz"]);
    let path = node.folder.path().join("artifacts/1.tar.gz");
    let manifest = Manifest::read(std::fs::File::open(&path).unwrap()).unwrap();
    let missing = |name: &str| {
        let gap = manifest.missing.iter().find(|gap| gap.name == name);
        gap.map(|gap| gap.code.clone())
    };
    assert_eq!(missing("kernel.log").as_deref(), Some("unreadable"));
    assert_eq!(missing("nvidia-smi-q.txt").as_deref(), Some("not-this-machine"));
    assert!(manifest.files.iter().any(|file| file.name == "agent/orders.jsonl"), "{manifest:?}");
    // The next bundle replaces it.
    evidence(node.run_order(OrderKind::CollectLogs));
    assert_eq!(bundles(), ["2.tar.gz"]);
}

#[test]
fn a_bundle_that_cannot_be_written_fails_the_order() {
    let node = TestNode::new();
    // A file is in the way of the directory.
    std::fs::write(node.folder.path().join("artifacts"), "").unwrap();
    let text = reason(node.run_order(OrderKind::CollectLogs));
    assert!(text.starts_with("failed: failed to "), "{text}");
}
