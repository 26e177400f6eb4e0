//! Small histories whose ledger can be computed by hand. A node has four GPUs.

use farrier_fleet::fleet::event::{Cordon, Event, NodeInventory, OperatorRequest};
use farrier_fleet::fleet::identity::Actor;
use farrier_fleet::fleet::ledger::report::{DriverUse, ShadowCounts, ShadowOutcome, ShadowReport};
use farrier_fleet::fleet::ledger::{Cause, FleetReport, LedgerSpec};
use farrier_fleet::fleet::policy::{Autonomy, PoolPolicy};
use farrier_fleet::fleet::{Domain, Policy};
use farrier_fleet::health::{Action, Change, Finding, GpuUuid, Severity, Subject};
use jiff::SignedDuration;

use super::{check_sums, gpu, report};
use crate::test_fleet::{Act, NODES, TestFleet, finding, location, node, start};

const HOUR_MS: u64 = 3_600_000;

/// A fleet of one node with four GPUs, in service since the start.
fn one_node(autonomy: Autonomy) -> TestFleet {
    let mut fleet = TestFleet::new();
    for index in 1..NODES {
        fleet.act(&Act::Retire(index));
    }
    fleet.set_policy(observing(autonomy));
    report_gpus(&mut fleet, "boot-with-gpus", 4);
    fleet.complete_all_orders();
    fleet
}

fn observing(autonomy: Autonomy) -> Policy {
    let pools_default = PoolPolicy { autonomy, ..PoolPolicy::default() };
    Policy { pools_default, ..Policy::default() }
}

fn report_gpus(fleet: &mut TestFleet, boot: &str, gpus: u32) {
    let gpus = Some((0..gpus).map(gpu).collect());
    let inventory = NodeInventory { boot: boot.to_owned(), gpus, ..NodeInventory::default() };
    let reported = Event::InventoryReported { node: node(0), inventory };
    fleet.batch(vec![(Actor::Node(node(0)), reported)]);
}

fn fault(fleet: &mut TestFleet, number: u64) {
    fleet.act(&Act::Fault(0, number, Severity::Fatal, Action::DrainAndReplace, 0));
}

fn wait_hours(fleet: &mut TestFleet, hours: u32) {
    fleet.act(&Act::Wait(hours * 3600));
}

/// GPU-hours: available, then lost by cause in the order of [`Cause::ALL`].
fn gpu_hours(report: &FleetReport) -> [u64; 7] {
    check_sums(report);
    super::sums(&report.time).map(|gpu_ms| {
        assert_eq!(gpu_ms % HOUR_MS, 0, "{:?}", report.time);
        gpu_ms / HOUR_MS
    })
}

fn whole(fleet: &TestFleet) -> FleetReport {
    report(&fleet.log, LedgerSpec::whole())
}

#[test]
fn a_bad_gpu_loses_its_own_time_and_that_of_its_healthy_neighbours() {
    let mut fleet = one_node(Autonomy::Repair);
    wait_hours(&mut fleet, 2);
    fault(&mut fleet, 1);
    wait_hours(&mut fleet, 3);
    let report = whole(&fleet);
    assert_eq!(gpu_hours(&report), [8, 3, 9, 0, 0, 0, 0]);
    let idle = report.losses.iter().find(|line| line.cause == Cause::IdleByCordon).unwrap();
    let blamed = idle.gpu.as_ref().map(|gpu| gpu.0.as_str());
    assert_eq!((idle.code.as_str(), blamed), ("gpu.xid", Some("GPU-1")));
    assert_eq!(idle.serial.as_deref(), Some("1650000001"));
    let record = &report.rma[0];
    assert_eq!((record.faults, record.lost_ms / HOUR_MS), (1, 12));
}

#[test]
fn an_open_fault_of_a_node_that_takes_work_is_exposure_and_not_lost() {
    let mut fleet = one_node(Autonomy::Observe);
    fault(&mut fleet, 1);
    wait_hours(&mut fleet, 3);
    let report = whole(&fleet);
    assert_eq!(gpu_hours(&report), [12, 0, 0, 0, 0, 0, 0]);
    assert_eq!(report.exposure[0].gpu_ms / HOUR_MS, 3, "{:?}", report.exposure);
}

#[test]
fn a_missing_gpu_is_lost_although_its_node_takes_work() {
    let mut fleet = one_node(Autonomy::Repair);
    report_gpus(&mut fleet, "boot-with-gpus", 3);
    wait_hours(&mut fleet, 2);
    let report = whole(&fleet);
    assert_eq!(gpu_hours(&report), [6, 0, 0, 0, 0, 0, 2]);
    assert_eq!(report.losses[0].code, "gpu-missing");
}

#[test]
fn holds_and_external_cordons_have_their_own_causes_unless_there_was_a_fault() {
    let mut fleet = one_node(Autonomy::Observe);
    fleet.act(&Act::Hold(0));
    wait_hours(&mut fleet, 1);
    fleet.act(&Act::ExternalCordon(0));
    fleet.act(&Act::Release(0));
    fleet.complete_all_orders();
    assert_eq!(gpu_hours(&whole(&fleet)), [0, 0, 0, 0, 4, 0, 0]);
    let mut faulty = one_node(Autonomy::Observe);
    fault(&mut faulty, 1);
    faulty.act(&Act::ExternalCordon(0));
    wait_hours(&mut faulty, 1);
    faulty.act(&Act::Clear(0, 1));
    wait_hours(&mut faulty, 2);
    assert_eq!(gpu_hours(&whole(&faulty)), [0, 1, 3, 0, 0, 8, 0]);
}

#[test]
fn time_without_heartbeats_is_unknown_from_the_last_one_on() {
    let mut fleet = one_node(Autonomy::Repair);
    wait_hours(&mut fleet, 2);
    let since = start() + SignedDuration::from_hours(1);
    let lost = Event::HeartbeatLost { node: node(0), since };
    fleet.batch(vec![(Actor::Server, lost)]);
    wait_hours(&mut fleet, 1);
    assert_eq!(gpu_hours(&whole(&fleet)), [4, 0, 0, 0, 0, 0, 8]);
}

#[test]
fn time_in_which_the_server_did_not_run_is_unknown() {
    let mut fleet = one_node(Autonomy::Repair);
    wait_hours(&mut fleet, 1);
    fleet.act(&Act::Pause(2 * 3600));
    wait_hours(&mut fleet, 1);
    let report = whole(&fleet);
    assert_eq!(gpu_hours(&report), [8, 0, 0, 0, 0, 0, 8]);
    assert_eq!(report.losses[0].code, "server-stopped");
}

#[test]
fn a_clock_that_is_set_back_counts_no_time_twice() {
    let mut fleet = one_node(Autonomy::Repair);
    wait_hours(&mut fleet, 2);
    fleet.act(&Act::ClockStep(-3600));
    fault(&mut fleet, 1);
    wait_hours(&mut fleet, 2);
    assert_eq!(gpu_hours(&whole(&fleet)), [8, 1, 3, 0, 0, 0, 0]);
}

#[test]
fn time_over_which_the_clock_is_set_forward_is_unknown() {
    let mut fleet = one_node(Autonomy::Repair);
    wait_hours(&mut fleet, 2);
    fleet.act(&Act::ClockStep(6 * 3600));
    wait_hours(&mut fleet, 1);
    let report = whole(&fleet);
    assert_eq!(gpu_hours(&report), [12, 0, 0, 0, 0, 0, 24]);
    assert_eq!(report.losses[0].code, "clock-stepped");
}

#[test]
fn a_clock_that_was_ten_years_ahead_costs_only_the_time_until_it_is_set_right() {
    let mut fleet = one_node(Autonomy::Repair);
    wait_hours(&mut fleet, 2);
    fleet.act(&Act::ClockStep(87_600 * 3600));
    wait_hours(&mut fleet, 1);
    fleet.act(&Act::ClockStep(-87_600 * 3600));
    wait_hours(&mut fleet, 3);
    let report = whole(&fleet);
    assert_eq!(gpu_hours(&report), [20, 0, 0, 0, 0, 0, 4]);
    let hours = report.period.to.duration_since(report.period.from);
    assert_eq!(hours, SignedDuration::from_hours(6));
}

#[test]
fn a_node_that_never_reported_its_gpus_is_in_no_gpu_hours() {
    let mut fleet = one_node(Autonomy::Repair);
    fleet.act(&Act::Enrol(5));
    wait_hours(&mut fleet, 1);
    let report = whole(&fleet);
    assert_eq!((report.time.total_ms, report.uncounted_node_ms), (4 * HOUR_MS, HOUR_MS));
}

#[test]
fn a_caller_of_one_pool_sees_only_the_time_in_that_pool() {
    let mut fleet = one_node(Autonomy::Repair);
    wait_hours(&mut fleet, 1);
    let mut moved = location(0);
    moved.pool = "serve".parse().unwrap();
    let moved = Event::LocationChanged { node: node(0), location: moved };
    fleet.batch(vec![(Actor::Server, moved)]);
    wait_hours(&mut fleet, 2);
    let visible = |scope: &str, nodes: &[usize]| {
        let first_seq = |index: &usize| (node(*index), fleet.state.nodes[&node(*index)].first_seq);
        let visible = Some(nodes.iter().map(first_seq).collect());
        let scope: Domain = scope.parse().unwrap();
        report(&fleet.log, LedgerSpec { scope, visible, ..LedgerSpec::whole() })
    };
    assert_eq!(gpu_hours(&visible("pool:serve", &[0])), [8, 0, 0, 0, 0, 0, 0]);
    let former = visible("pool:train", &[]);
    assert_eq!(gpu_hours(&former), [0; 7]);
    assert!(former.pools.is_empty() && former.drivers.is_empty() && former.losses.is_empty());
}

#[test]
fn a_gpu_that_moves_keeps_its_history() {
    let mut fleet = TestFleet::new();
    let reported = |boot: &str, gpus: Vec<u32>| {
        let gpus = Some(gpus.into_iter().map(gpu).collect());
        NodeInventory { boot: boot.to_owned(), gpus, ..NodeInventory::default() }
    };
    let report_of = |fleet: &mut TestFleet, index: usize, gpus: Vec<u32>| {
        let inventory = reported(&format!("b{index}-{}", gpus.len()), gpus);
        let event = Event::InventoryReported { node: node(index), inventory };
        fleet.batch(vec![(Actor::Node(node(index)), event)]);
    };
    report_of(&mut fleet, 0, vec![1, 2]);
    fault(&mut fleet, 1);
    fleet.act(&Act::Clear(0, 1));
    report_of(&mut fleet, 0, vec![2]);
    report_of(&mut fleet, 4, vec![1]);
    fleet.act(&Act::Fault(4, 1, Severity::Fatal, Action::ResetGpu, 0));
    let report = whole(&fleet);
    let offender = &report.offenders[0];
    assert_eq!((offender.uuid.0.as_str(), offender.faults), ("GPU-1", 2));
    assert_eq!(offender.nodes, [node(0), node(4)]);
    let is_for_replacement = report.rma.iter().map(|gpu| gpu.uuid.0.as_str());
    assert_eq!(is_for_replacement.collect::<Vec<_>>(), ["GPU-1"]);
}

#[test]
fn findings_of_a_gpu_that_is_unfit_already_are_the_same_fault() {
    let mut fleet = one_node(Autonomy::Observe);
    fault(&mut fleet, 1);
    let lost = finding(9, Severity::Fatal, Action::RebootNode, "gpu.lost", fleet.now);
    let lost = Finding { subject: Subject::Gpu(GpuUuid("GPU-1".to_owned())), ..lost };
    let lost = fleet.finding_report(&node(0), Change::Opened(lost));
    fleet.batch(vec![(Actor::Node(node(0)), lost)]);
    wait_hours(&mut fleet, 1);
    let report = whole(&fleet);
    assert!(report.offenders.is_empty(), "{:?}", report.offenders);
    let faults: u64 = report.reliability.iter().map(|line| line.faults).sum();
    assert_eq!((report.rma[0].faults, faults), (1, 1));
    assert_eq!(report.rma[0].findings.len(), 2);
}

#[test]
fn a_gpu_that_broke_before_the_period_is_on_the_list_of_gpus_to_replace() {
    let mut fleet = one_node(Autonomy::Repair);
    fault(&mut fleet, 1);
    wait_hours(&mut fleet, 24);
    let from = Some(fleet.now - SignedDuration::from_hours(1));
    let report = report(&fleet.log, LedgerSpec { from, ..LedgerSpec::whole() });
    let replaced: Vec<(u64, u64)> =
        report.rma.iter().map(|gpu| (gpu.faults, gpu.findings[0].opened)).collect();
    assert_eq!(replaced, [(0, 0)], "the fault itself opened before the period");
}

#[test]
fn drivers_are_those_at_the_end_of_the_period() {
    let mut fleet = one_node(Autonomy::Repair);
    let driver = |version: &str| NodeInventory {
        boot: "boot-with-gpus".to_owned(),
        driver: Some(version.to_owned()),
        gpus: Some((0..4).map(gpu).collect()),
        ..NodeInventory::default()
    };
    let report_driver = |fleet: &mut TestFleet, version: &str| {
        let event = Event::InventoryReported { node: node(0), inventory: driver(version) };
        fleet.batch(vec![(Actor::Node(node(0)), event)]);
    };
    report_driver(&mut fleet, "580.95.05");
    wait_hours(&mut fleet, 2);
    let to = Some(fleet.now - SignedDuration::from_hours(1));
    report_driver(&mut fleet, "580.126.20");
    wait_hours(&mut fleet, 1);
    let versions = |to| {
        let report = report(&fleet.log, LedgerSpec { to, ..LedgerSpec::whole() });
        let row = |row: &DriverUse| (row.driver.clone().unwrap(), row.nodes, row.gpus);
        report.drivers.iter().map(row).collect::<Vec<_>>()
    };
    assert_eq!(versions(to), [("580.95.05".to_owned(), 1, 4)]);
    assert_eq!(versions(None), [("580.126.20".to_owned(), 1, 4)]);
}

#[test]
fn mtbf_has_a_confidence_interval_and_no_fault_has_only_a_lower_bound() {
    let mut fleet = one_node(Autonomy::Observe);
    wait_hours(&mut fleet, 100);
    let none = whole(&fleet).reliability;
    assert_eq!((none[0].faults, none[0].mtbf_h, none[0].mtbf_high_h), (0, None, None));
    // Three GPUs for 100 h, and 3.689 faults at most.
    assert!((none[0].mtbf_low_h.unwrap() - 100.0 / 3.689).abs() < 0.01, "{none:?}");
    fault(&mut fleet, 0);
    let h200 = &whole(&fleet).reliability[1];
    assert_eq!((h200.faults, h200.mtbf_h), (1, Some(300.0)));
}

#[test]
fn repairs_are_tallied_by_their_outcome() {
    let mut fleet = one_node(Autonomy::Repair);
    fleet.act(&Act::Fault(0, 1, Severity::Fatal, Action::RebootNode, 0));
    fleet.complete_orders_until(&node(0), |order| order.spec().code == "reboot");
    fleet.act(&Act::Clear(0, 1));
    fleet.complete_all_orders();
    let repairs = whole(&fleet).repairs;
    let reboot = repairs.iter().find(|tally| tally.repair == "reboot").unwrap();
    assert_eq!((reboot.started, reboot.returned, reboot.open), (1, 1, 0), "{repairs:?}");
}

fn shadow(fleet: &TestFleet) -> ShadowReport {
    whole(fleet).shadow.unwrap()
}

#[test]
fn a_would_be_quarantine_agrees_with_the_hold_that_follows() {
    let mut fleet = one_node(Autonomy::Observe);
    fault(&mut fleet, 1);
    wait_hours(&mut fleet, 5);
    fleet.act(&Act::Hold(0));
    wait_hours(&mut fleet, 30);
    let shadow = shadow(&fleet);
    let expected = ShadowCounts { both_farrier_first: 1, ..ShadowCounts::default() };
    assert_eq!(shadow.counts, expected);
    let saved = (shadow.saved_low_ms / HOUR_MS, shadow.saved_high_ms / HOUR_MS);
    assert_eq!(saved, (5, 20), "one GPU at fault, four in the node");
    assert_eq!(shadow.cases[0].finding.as_deref(), Some("gpu.xid"));
}

#[test]
fn a_cause_that_clears_on_its_own_is_a_false_quarantine_once_the_window_is_over() {
    let mut fleet = one_node(Autonomy::Observe);
    fault(&mut fleet, 1);
    wait_hours(&mut fleet, 2);
    fleet.act(&Act::Clear(0, 1));
    wait_hours(&mut fleet, 1);
    assert_eq!(shadow(&fleet).cases[0].outcome, ShadowOutcome::Pending);
    wait_hours(&mut fleet, 30);
    let shadow = shadow(&fleet);
    assert_eq!(shadow.counts.false_quarantines, 1);
    assert_eq!(shadow.false_cost_ms, 8 * HOUR_MS);
    let per_1000 = shadow.false_per_1000_node_days.unwrap();
    assert!((per_1000 - 1000.0 * 24.0 / 33.0).abs() < 1e-6, "{per_1000}");
}

#[test]
fn a_cause_that_a_reboot_cleared_is_not_called_false() {
    let mut fleet = one_node(Autonomy::Observe);
    fault(&mut fleet, 1);
    wait_hours(&mut fleet, 2);
    report_gpus(&mut fleet, "rebooted", 4);
    fleet.act(&Act::Clear(0, 1));
    wait_hours(&mut fleet, 30);
    assert_eq!(shadow(&fleet).cases[0].outcome, ShadowOutcome::Unconfirmed);
}

#[test]
fn an_operator_who_acts_first_agrees_only_if_farrier_has_a_finding() {
    let mut fleet = one_node(Autonomy::Observe);
    fleet.act(&Act::ExternalCordon(0));
    wait_hours(&mut fleet, 1);
    assert_eq!(shadow(&fleet).counts.operator_only, 1);
    fault(&mut fleet, 1);
    let counts = shadow(&fleet).counts;
    assert_eq!((counts.operator_only, counts.both_operator_first), (0, 1));
}

#[test]
fn a_fault_of_a_switch_is_no_would_be_quarantine_of_its_nodes() {
    let mut fleet = TestFleet::new();
    fleet.set_policy(observing(Autonomy::Observe));
    fleet.complete_all_orders();
    fleet.ports_down(0..6);
    wait_hours(&mut fleet, 1);
    let shadow = shadow(&fleet);
    assert_eq!((shadow.counts.domain_faults, shadow.cases.len()), (6, 0), "{shadow:?}");
}

#[test]
fn a_cordon_from_before_the_report_is_no_action_in_it() {
    let mut fleet = one_node(Autonomy::Observe);
    fleet.act(&Act::ExternalCordon(0));
    let again = Event::CordonObserved {
        node: node(0),
        cordon: Cordon::External { owner: "slurm".to_owned(), reason: "other".to_owned() },
    };
    wait_hours(&mut fleet, 1);
    fleet.batch(vec![(Actor::Node(node(0)), again)]);
    assert_eq!(shadow(&fleet).cases.len(), 1);
}

#[test]
fn a_manual_repair_of_a_node_in_service_is_an_action() {
    let mut fleet = one_node(Autonomy::Observe);
    fleet
        .report_finding(0, finding(2, Severity::Critical, Action::Investigate, "gpu.xid", start()));
    wait_hours(&mut fleet, 1);
    let repair = "reseated".to_owned();
    fleet.request(OperatorRequest::Repaired { node: node(0), repair });
    assert_eq!(shadow(&fleet).counts.both_farrier_first, 1);
}
