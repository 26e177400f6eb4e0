//! What each kind of order does and does not do.

use farrier_fleet::fleet::event::Cordon;
use farrier_fleet::fleet::order::{OrderKind, OrderStatus, VerificationLevel};

use super::super::{Held, Proof, repair_note};
use super::world::{UNIT, World, gpu, job};
use crate::artifact::Manifest;

fn why(answer: OrderStatus) -> String {
    match answer {
        OrderStatus::Refused { reason } => format!("refused: {reason}"),
        OrderStatus::Failed { reason } => format!("failed: {reason}"),
        other => panic!("{other:?}"),
    }
}

fn evidence(answer: OrderStatus) -> String {
    match answer {
        OrderStatus::Done { evidence } => evidence,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_mark_is_set_once_and_only_our_own_is_taken_away() {
    let world = World::new();
    assert!(
        evidence(world.carry(OrderKind::Cordon)).contains("farrier: Xid 79 on GPU 3 (order 1)")
    );
    assert_eq!(world.desk().cordon(), Cordon::ByFarrier);
    // Already so: no change.
    evidence(world.carry(OrderKind::Cordon));
    assert_eq!(world.state().cordons, 1);
    evidence(world.carry(OrderKind::Uncordon));
    evidence(world.carry(OrderKind::Uncordon));
    assert_eq!(world.desk().cordon(), Cordon::None);
    assert_eq!(world.state().uncordons, 1);
}

#[test]
fn a_node_with_an_open_finding_stays_cordoned() {
    let world = World::new();
    evidence(world.carry(OrderKind::Cordon));
    world.state().finding_against = Some("fatal gpu.xid".to_owned());
    let reason = why(world.carry(OrderKind::Uncordon));
    assert!(reason.contains("stays cordoned: fatal gpu.xid"), "{reason}");
    assert_eq!((world.desk().cordon(), world.state().uncordons), (Cordon::ByFarrier, 0));
    world.state().finding_against = None;
    evidence(world.carry(OrderKind::Uncordon));
    assert_eq!(world.desk().cordon(), Cordon::None);
}

#[test]
fn anothers_mark_is_left_as_it_is() {
    let world = World::new();
    let theirs = ("alice".to_owned(), "disk".to_owned());
    world.state().mark = Some(theirs.clone());
    for what in [OrderKind::Cordon, OrderKind::Uncordon] {
        let reason = why(world.carry(what));
        assert_eq!(
            reason,
            "refused: the test has a mark of alice, which only they take away: disk"
        );
    }
    // Our cordon becomes external once a person edits its reason.
    world.state().mark = None;
    evidence(world.carry(OrderKind::Cordon));
    world.state().mark.as_mut().unwrap().1.push_str("; and the disk");
    assert!(why(world.carry(OrderKind::Uncordon)).contains("only they take away"));
    let state = world.state();
    assert!(state.mark.is_some() && state.uncordons == 0);
}

#[test]
fn a_scheduler_that_does_not_answer_is_asked_again_until_the_lease_is_over() {
    let world = World::new();
    world.state().mark_unreadable = true;
    assert_eq!(
        why(world.carry(OrderKind::Cordon)),
        "refused: `program` failed (exit status: 1): the controller does not answer"
    );
    assert_eq!(world.desk().cordon(), Cordon::Unknown);
    assert_eq!(world.state().cordons, 0);
}

#[test]
fn a_repair_needs_an_empty_node() {
    let unit = UNIT.to_owned();
    let profile = "training".to_owned();
    for what in [
        OrderKind::ResetGpu { gpu: gpu() },
        OrderKind::Reboot,
        OrderKind::RestartService { unit },
        OrderKind::Tune { profile },
    ] {
        let world = World::new();
        assert!(
            why(world.carry(what.clone())).contains("refused: the node takes new work"),
            "{what}"
        );
        let world = World::drained();
        world.state().jobs = vec![job("7")];
        assert_eq!(why(world.carry(what.clone())), "refused: the node is not empty: job 7");
        // An external cordon keeps work away just as well.
        world.state().jobs.clear();
        world.state().mark = Some(("alice".to_owned(), "disk".to_owned()));
        evidence(world.carry(what.clone()));
        let state = world.state();
        let made = state.resets + state.reboots + state.restarts + state.tunes;
        assert_eq!(made, 1, "{what}");
    }
}

#[test]
fn a_gpu_that_is_held_is_not_reset() {
    let world = World::drained();
    let held = |gpu: &str| Held {
        gpu: farrier_fleet::health::GpuUuid(gpu.to_owned()),
        pid: 4711,
        command: "python".to_owned(),
    };
    world.state().held = vec![held("GPU-1")];
    let what = OrderKind::ResetGpu { gpu: gpu() };
    assert_eq!(
        why(world.carry(what.clone())),
        "refused: it is in use: process 4711 (python) on GPU-1"
    );
    assert_eq!(world.state().resets, 0);
    world.state().held = vec![held("GPU-2")];
    assert!(evidence(world.carry(what)).starts_with("it was reset; it answers"));
}

#[test]
fn a_reset_that_fails_or_does_not_help_is_told() {
    let world = World::drained();
    world.state().reset_mends = false;
    let what = OrderKind::ResetGpu { gpu: gpu() };
    assert_eq!(
        why(world.carry(what.clone())),
        "failed: it was reset, and still: the driver asks for a reset"
    );
    world.state().reset_fails = Some("in use by another client".to_owned());
    assert_eq!(
        why(world.carry(what)),
        "failed: `program` failed (exit status: 1): in use by another client"
    );
    assert_eq!(world.state().resets, 2);
}

#[test]
fn a_reboot_is_proven_by_another_boot() {
    let world = World::drained();
    assert_eq!(evidence(world.carry(OrderKind::Reboot)), "boot boot-2, before it boot boot-1");
    // An order for the previous boot is not executed in this one.
    let desk = world.desk();
    let mut order = world.order(2, OrderKind::Reboot);
    order.boot = Some("boot-1".to_owned());
    assert!(why(desk.offer(&order, world.now())).contains("it is for boot boot-1"));
    assert_eq!(desk.outstanding().len(), 2, "that is an answer, too");
    drop(desk);
    world.state().boot_unreadable = true;
    assert!(why(world.carry(OrderKind::Reboot)).contains("which boot this is cannot be read"));
    assert_eq!(world.state().reboots, 1);
}

#[test]
fn what_a_person_wants_done_is_done_or_it_is_told_why_not() {
    let world = World::drained();
    let tune = OrderKind::Tune { profile: "training".to_owned() };
    assert_eq!(evidence(world.carry(tune.clone())), "it is as training wants it");
    world.state().tune_fails = Some("2 of 3 changes made; gpu.ecc (refused)".to_owned());
    assert_eq!(why(world.carry(tune)), "failed: 2 of 3 changes made; gpu.ecc (refused)");
    let diag = OrderKind::Diag { level: 2, minutes: 0 };
    assert_eq!(evidence(world.carry(diag.clone())), "level 2: all is well");
    world.state().proof = Proof { failed: vec!["GPU 1 is slow".to_owned()], ..Proof::default() };
    assert_eq!(why(world.carry(diag.clone())), "failed: level 2: GPU 1 is slow");
    world.state().proof = Proof { unknown: vec!["GPU 1 is busy".to_owned()], ..Proof::default() };
    assert_eq!(why(world.carry(diag)), "refused: level 2: not known: GPU 1 is busy");
}

#[test]
fn a_service_that_does_not_come_up_is_told() {
    let world = World::drained();
    world.state().service_starts = false;
    let what = OrderKind::RestartService { unit: UNIT.to_owned() };
    assert!(why(world.carry(what.clone())).contains("does not run: failed"));
    world.state().service_starts = true;
    assert!(evidence(world.carry(what)).contains("is active"));
}

#[test]
fn a_repair_is_noted_for_the_agent_that_watches() {
    let world = World::new();
    let what = OrderKind::AcknowledgeRepair { repair: "a new riser".to_owned() };
    assert!(evidence(world.carry(what)).contains("begins anew"));
    let note = repair_note::read(world.folder.path()).unwrap();
    assert_eq!(note.what, "a new riser");
    assert_eq!(*world.repairs.lock().unwrap(), [note], "the brain that runs is told");
    std::fs::write(world.folder.path().join("repaired.json"), "{").unwrap();
    assert_eq!(repair_note::read(world.folder.path()), None);
}

#[test]
fn unknown_is_not_passed_and_findings_are_given_time_to_clear() {
    let world = World::new();
    let what = OrderKind::Verify { level: VerificationLevel::V1 };
    assert_eq!(evidence(world.carry(what.clone())), "all is well");
    world.state().proof.unknown = vec!["the kernel log may not be read".to_owned()];
    let told = why(world.carry(what.clone()));
    assert_eq!(told, "failed: not known: the kernel log may not be read");
    world.state().proof = Proof { failed: vec!["gpu.lost".to_owned()], ..Proof::default() };
    assert_eq!(why(world.carry(what.clone())), "failed: gpu.lost");
    let many = ["fatal gpu.xid (Xid 79) on GPU 3", "NVML lists 7 GPUs"].map(str::to_owned).to_vec();
    let unknown = vec!["gpu.heat sees nothing: lost".to_owned(); 12];
    world.state().proof = Proof { failed: many, unknown, ..Proof::default() };
    let told = why(world.carry(what.clone()));
    assert_eq!(
        told,
        "failed: fatal gpu.xid (Xid 79) on GPU 3, and 1 more; 12 more could not be seen"
    );
    world.state().proof = Proof::default();
    assert_eq!(why(world.carry(what.clone())), "failed: nothing was seen");
    // The finding is open for a while, then clears.
    world.state().proof = Proof { failed: vec!["gpu.lost".to_owned()], ..Proof::default() };
    let desk = world.desk();
    let order = world.order(9, what);
    assert_eq!(desk.offer(&order, world.now()), OrderStatus::Accepted);
    world.stand_still();
    let carried = {
        let desk = desk.clone();
        std::thread::spawn(move || desk.step())
    };
    world.wait_for_looks();
    world.state().proof = Proof { passed: vec!["all is well".to_owned()], ..Proof::default() };
    carried.join().unwrap();
    evidence(desk.ledger().last.unwrap().1);
}

#[test]
fn logs_are_kept_on_a_node_without_a_server_and_lack_what_is_not_there() {
    let world = World::new();
    let told = evidence(world.carry(OrderKind::CollectLogs));
    assert!(told.contains("there is no server: it is kept as"), "{told}");
    let bundles = || {
        let entries = std::fs::read_dir(world.folder.path().join("artifacts")).unwrap();
        let mut names: Vec<_> = entries.map(|it| it.unwrap().file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(bundles(), ["1.tar.gz"]);
    let path = world.folder.path().join("artifacts/1.tar.gz");
    let manifest = Manifest::read(std::fs::File::open(&path).unwrap()).unwrap();
    let missing = |name: &str| {
        let gap = manifest.missing.iter().find(|it| it.name == name);
        gap.map(|it| it.code.clone())
    };
    assert_eq!(missing("kernel.log").as_deref(), Some("unreadable"));
    assert_eq!(missing("nvidia-smi-q.txt").as_deref(), Some("not-this-machine"));
    assert!(manifest.files.iter().any(|it| it.name == "agent/orders.jsonl"), "{manifest:?}");
    // The next one replaces it.
    evidence(world.carry(OrderKind::CollectLogs));
    assert_eq!(bundles(), ["2.tar.gz"]);
}

#[test]
fn a_disk_that_takes_no_bundle_is_told_and_nothing_is_left() {
    let world = World::new();
    // A file is in the way of the directory.
    std::fs::write(world.folder.path().join("artifacts"), "").unwrap();
    let reason = why(world.carry(OrderKind::CollectLogs));
    assert!(reason.starts_with("failed: failed to "), "{reason}");
}
