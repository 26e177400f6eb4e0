//! A month of 2,000 simulated nodes: the parts of the loss ledger add up to all GPU-hours, and a
//! second computation gives the same sums.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../../fleet/tests/fleet/ledger/independent.rs"]
mod independent;
mod month;

use farrier_fleet::fleet::ledger::report::FleetReport;
use farrier_fleet::fleet::ledger::{Cause, Ledger, LedgerSpec};
use farrier_fleet::fleet::{Entry, Event, FleetState};
use jiff::{SignedDuration, Timestamp};

use month::Month;

const HOUR_MS: u64 = 3_600_000;

fn report(log: &[Entry], spec: LedgerSpec) -> FleetReport {
    let mut ledger = Ledger::new(FleetState::default(), spec);
    for entry in log {
        ledger.apply(entry);
    }
    ledger.finish(None)
}

fn sums(report: &FleetReport) -> independent::Sums {
    let mut sums = [report.time.available_ms; 7];
    for (sum, cause) in sums.iter_mut().skip(1).zip(Cause::ALL) {
        *sum = report.time.lost_ms.of(cause);
    }
    sums
}

fn check(month: &Month, from: Timestamp, to: Timestamp) -> FleetReport {
    let spec = LedgerSpec { from: Some(from), to: Some(to), ..LedgerSpec::whole() };
    let report = report(&month.log, spec);
    let expected = independent::sums(&month.log, from.as_millisecond(), to.as_millisecond());
    assert_eq!(sums(&report), expected);
    assert!(report.time.adds_up(), "{:?}", report.time);
    let by_line: u64 = report.losses.iter().map(|line| line.gpu_ms).sum();
    assert_eq!(by_line + report.losses_omitted.gpu_ms, report.time.lost_sum_ms());
    report
}

#[test]
fn a_month_of_2000_nodes_adds_up_to_the_whole() {
    let month = Month::simulate(2_000, 30, 11);
    let (start, end) = (month.start, month.end);
    let report = check(&month, start, end);
    // Every node enrols and reports its eight GPUs at the start.
    assert_eq!(report.time.total_ms, 2_000 * 8 * 30 * 24 * HOUR_MS);
    assert_eq!(report.uncounted_node_ms, 0);
    for cause in Cause::ALL {
        let lost_ms = report.time.lost_ms.of(cause);
        assert!(lost_ms > HOUR_MS, "the month has no {cause:?}: it tests nothing");
    }
    let share = report.time.availability().unwrap();
    assert!((0.9..0.9999).contains(&share), "{share}");
    // A week that begins and ends in the middle of faults.
    let week = start + SignedDuration::from_hours(24 * 9 + 7);
    check(&month, week, week + SignedDuration::from_hours(24 * 7));
    check_shadow(&month, &report);
}

/// The part of the fleet that only observes.
fn check_shadow(month: &Month, report: &FleetReport) {
    let shadow = report.shadow.as_ref().unwrap();
    let observed = month.log.iter().filter(|entry| {
        matches!(&entry.event, Event::Enrolled { location, .. } if location.pool.as_str() == "observe")
    });
    assert_eq!(shadow.node_ms, observed.count() as u64 * 30 * 24 * HOUR_MS);
    let counts = shadow.counts;
    let cases = counts.both_farrier_first
        + counts.both_operator_first
        + counts.false_quarantines
        + counts.unconfirmed
        + counts.pending
        + counts.operator_only;
    assert_eq!(cases, shadow.cases.len() as u64 + shadow.cases_omitted);
    assert!(counts.both_farrier_first > 0 && counts.false_quarantines > 0, "{counts:?}");
    assert!(counts.operator_only > 0, "{counts:?}");
    assert!(shadow.saved_low_ms > 0 && shadow.saved_low_ms <= shadow.saved_high_ms);
}

#[test]
fn the_same_log_gives_the_same_report_byte_for_byte() {
    let month = Month::simulate(100, 30, 5);
    let one = report(&month.log, LedgerSpec::whole());
    let other = report(&month.log, LedgerSpec::whole());
    assert_eq!(serde_json::to_vec(&one).unwrap(), serde_json::to_vec(&other).unwrap());
}
