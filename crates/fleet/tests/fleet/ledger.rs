//! The loss ledger: over any history, its parts add up to the whole.

mod cases;
mod independent;

use farrier_fleet::fleet::event::GpuInventory;
use farrier_fleet::fleet::ledger::{Cause, FleetReport, GpuTime, Ledger, LedgerSpec};
use farrier_fleet::fleet::{Entry, Event, FleetState};
use farrier_fleet::health::GpuUuid;
use jiff::SignedDuration;
use proptest::prelude::*;

use crate::histories::act;
use crate::test_fleet::{TestFleet, start};

/// The log of a fleet whose nodes have GPUs: four, or three after some boots, or unreadable ones.
/// The decisions stay those of the log.
fn with_gpus(log: &[Entry]) -> Vec<Entry> {
    let mut log = log.to_vec();
    for (index, entry) in log.iter_mut().enumerate() {
        if let Event::InventoryReported { inventory, .. } = &mut entry.event {
            let gpus = match index % 7 {
                0 => None,
                1 => Some(3),
                _ => Some(4),
            };
            inventory.gpus = gpus.map(|gpus| (0..gpus).map(gpu).collect());
        }
    }
    log
}

fn gpu(index: u32) -> GpuInventory {
    GpuInventory {
        uuid: GpuUuid(format!("GPU-{index}")),
        name: Some(if index == 3 { "NVIDIA H100" } else { "NVIDIA H200" }.to_owned()),
        index: Some(index),
        pci: None,
        serial: Some(format!("165{index:07}")),
    }
}

fn report(log: &[Entry], spec: LedgerSpec) -> FleetReport {
    let mut ledger = Ledger::new(FleetState::default(), spec);
    for entry in log {
        ledger.apply(entry);
    }
    ledger.finish(None)
}

fn sums(time: &GpuTime) -> independent::Sums {
    let mut sums = [time.available_ms; 7];
    for (sum, cause) in sums.iter_mut().skip(1).zip(Cause::ALL) {
        *sum = time.lost_ms.of(cause);
    }
    sums
}

/// Every view of the report adds up to the same whole.
fn check_sums(report: &FleetReport) {
    assert!(report.time.adds_up(), "{:?}", report.time);
    for pool in &report.pools {
        assert!(pool.time.adds_up(), "{pool:?}");
        let by_sku: u64 = pool.skus.iter().map(|sku| sku.time.total_ms).sum();
        assert_eq!(by_sku, pool.time.total_ms, "{}", pool.pool);
        assert!(pool.skus.iter().all(|sku| sku.time.adds_up()), "{pool:?}");
        assert!(pool.days.iter().all(|day| day.time.adds_up()), "{pool:?}");
    }
    let by_day: u64 = report.days.iter().map(|day| day.time.total_ms).sum();
    assert_eq!(by_day, report.time.total_ms);
    let lines = |cause: Cause| -> u64 {
        report.losses.iter().filter(|line| line.cause == cause).map(|line| line.gpu_ms).sum()
    };
    for cause in Cause::ALL {
        assert_eq!(lines(cause), report.time.lost_ms.of(cause), "{cause:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, max_shrink_iters: 2000, ..ProptestConfig::default() })]

    #[test]
    fn causes_and_available_time_add_up_to_the_time_of_the_fleet(
        acts in prop::collection::vec(act(), 1..250),
        (from_s, length_s) in (0..40_000_i64, 1..80_000_i64),
    ) {
        let mut fleet = TestFleet::new();
        for act in &acts {
            fleet.act(act);
        }
        let log = with_gpus(&fleet.log);
        let whole = report(&log, LedgerSpec::whole());
        check_sums(&whole);
        prop_assert_eq!(sums(&whole.time), independent::sums(&log, i64::MIN, i64::MAX));
        let from = start() + SignedDuration::from_secs(from_s);
        let to = from + SignedDuration::from_secs(length_s);
        let spec = LedgerSpec { from: Some(from), to: Some(to), ..LedgerSpec::whole() };
        let part = report(&log, spec);
        check_sums(&part);
        let (from_ms, to_ms) = (from.as_millisecond(), to.as_millisecond());
        prop_assert_eq!(sums(&part.time), independent::sums(&log, from_ms, to_ms));
    }

    #[test]
    fn periods_that_follow_each_other_add_up(
        acts in prop::collection::vec(act(), 1..120),
        cut_s in 0..40_000_i64,
    ) {
        let mut fleet = TestFleet::new();
        for act in &acts {
            fleet.act(act);
        }
        let log = with_gpus(&fleet.log);
        let cut = start() + SignedDuration::from_secs(cut_s);
        let whole = report(&log, LedgerSpec::whole());
        let before = report(&log, LedgerSpec { to: Some(cut), ..LedgerSpec::whole() });
        let after = report(&log, LedgerSpec { from: Some(cut), ..LedgerSpec::whole() });
        let added = sums(&before.time).into_iter().zip(sums(&after.time)).map(|(a, b)| a + b);
        prop_assert_eq!(sums(&whole.time).to_vec(), added.collect::<Vec<u64>>());
    }
}
