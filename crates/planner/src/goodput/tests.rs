//! Validation against published numbers, and edge cases.

use proptest::prelude::*;

use super::*;

/// Llama 3 405B: 14 bytes per parameter to storage of 2 TB/s (arXiv:2407.21783, section 3.3.1).
fn llama_3() -> Conditions {
    let bytes = 405e9 * BYTES_PER_PARAMETER;
    let checkpoint = Checkpoint::new(CheckpointKind::Synchronous, bytes, 2e12);
    let mut conditions = Conditions::new(16_384, checkpoint, 5.0);
    conditions.planned_stops_per_day = 47.0 / 54.0;
    conditions
}

/// Ten trillion tokens at about the speed of 16,384 GPUs (400 TFLOP/s each, 6·405e9 FLOPs per
/// token).
fn training() -> Training {
    Training {
        tokens: Some(1e13),
        tokens_per_s: 2.5e6,
        tokens_per_s_p10_p90: Some([2e6, 3.125e6]),
        usd_per_gpu_hour: Some(2.0),
    }
}

/// The hazard for an MTBF that was observed on this many GPUs. The failure rate is proportional to
/// the number of GPUs.
fn observed(hours: f64, gpus: u32) -> Hazard {
    Hazard { per_gpu_hour: 1.0 / (hours * f64::from(gpus)), ..Hazard::NONE }
}

/// Meta's first-order ETTR estimate (arXiv:2410.21680): each failure costs `start_s` and half an
/// interval.
fn meta_share(failures_per_s: f64, start_s: f64, stall_s: f64, interval_s: f64) -> f64 {
    (1.0 - failures_per_s * (start_s + interval_s / 2.0)) / (1.0 + stall_s / interval_s)
}

#[test]
fn llama_3_ettr_is_above_90_per_cent() {
    // Detection and restart times were not published. Our defaults, with 10 min for detection, give
    // an ETTR of about 90 %. Half the detection time gives more than 90 %. That is plausible,
    // because detection was automated: people had to intervene in only three of 419 cases.
    let goodput = Goodput::best(&llama_3()).unwrap();
    assert!(goodput.share > 0.88 && goodput.share < 0.92, "{goodput:?}");
    let sooner = Conditions { detection_s: 300.0, ..llama_3() };
    let sooner = Goodput::best(&sooner).unwrap().share;
    assert!(sooner > 0.90 && sooner < 0.94, "{sooner}");
    // The published 419 failures in 54 days are per wall-clock time, not per training time.
    let failures = goodput.failures_per_day * 54.0;
    assert!(failures > 0.92 * 419.0 && failures < 419.0, "{failures}");
    assert!(goodput.breakdown.planned_share > 0.002 && goodput.breakdown.planned_share < 0.01);
}

#[test]
fn megascale_ettr_is_above_90_per_cent() {
    // arXiv:2402.15627: 12,288 GPUs, more than 100 failures in several weeks (here: 100 in four
    // weeks), detection in less than 10 min, recovery in 15 min.
    let checkpoint = Checkpoint::new(CheckpointKind::Asynchronous, 175e9 * 14.0, 1e11);
    let mut conditions = Conditions::new(12_288, checkpoint, 6.0);
    conditions.hazard = observed(28.0 * 24.0 / 100.0, 12_288);
    conditions.recovery = RecoveryTimes { restart_s: 900.0, load_s: Some(0.0), warm_up_s: 0.0 };
    let goodput = Goodput::best(&conditions).unwrap();
    assert!(goodput.share > 0.90 && goodput.share < 0.96, "{goodput:?}");
    // With the failure rate of Llama 3, ETTR would have been lower.
    conditions.hazard = Hazard::DEDICATED;
    assert!(Goodput::best(&conditions).unwrap().share < goodput.share);
}

#[test]
fn metas_estimate_is_our_first_order() {
    for (gpus, stall_s, start_s) in
        [(512, 10.0, 300.0), (2_048, 60.0, 300.0), (8_192, 60.0, 300.0), (8_192, 300.0, 600.0)]
    {
        let mut checkpoint = Checkpoint::new(CheckpointKind::Synchronous, 1e12, 1e12);
        checkpoint.stall_s = Some(stall_s);
        let mut conditions = Conditions::new(gpus, checkpoint, 1.0);
        conditions.detection_s = 0.0;
        conditions.recovery =
            RecoveryTimes { restart_s: start_s, load_s: Some(0.0), warm_up_s: 0.0 };
        let ours = Goodput::best(&conditions).unwrap();
        let failures_per_s = 1.0 / ours.mtbf_s;
        let meta = meta_share(failures_per_s, start_s, stall_s, ours.interval_s);
        let second_order = (failures_per_s * (start_s + ours.interval_s + stall_s)).powi(2);
        assert!((ours.share - meta).abs() < second_order + 1e-4, "{gpus}: {} {meta}", ours.share);
        // Meta's estimate uses Young's interval.
        let young = young_s(stall_s, ours.mtbf_s);
        assert!((ours.interval_s / young - 1.0).abs() < 0.12, "{} {young}", ours.interval_s);
    }
}

#[test]
fn without_failures_only_stalls_are_lost() {
    let mut conditions = llama_3();
    conditions.hazard = Hazard::NONE;
    conditions.planned_stops_per_day = 0.0;
    conditions.checkpoint.stall_s = Some(30.0);
    let at = Goodput::at(&conditions, 570.0).unwrap();
    assert!((at.share - 0.95).abs() < 1e-12, "{at:?}");
    let best = Goodput::best(&conditions).unwrap();
    assert!((best.share - 1.0).abs() < 1e-12 && best.interval_s.is_infinite());
    let report = GoodputReport::new(&conditions, &training(), None).unwrap();
    let json = serde_json::to_value(&report).unwrap();
    assert!(json["best"]["interval_s"].is_null(), "{json}");
    let run = report.run.unwrap();
    assert!(run.failures.abs() < 1e-12 && run.lost.total_h().abs() < 1e-9);
}

#[test]
fn without_failures_ettr_is_one_for_every_checkpoint_kind() {
    let mut conditions = llama_3();
    conditions.hazard = Hazard::NONE;
    conditions.planned_stops_per_day = 0.0;
    for kind in CheckpointKind::ALL {
        conditions.checkpoint.kind = kind;
        let report = GoodputReport::new(&conditions, &training(), None).unwrap();
        assert!((report.best.share - 1.0).abs() < 1e-12, "{kind:?} {:?}", report.best);
        assert!(report.no_progress.is_none() && report.run.is_some(), "{kind:?}");
        // At a fixed interval only the stalls are lost.
        let requested = Goodput::at(&conditions, 600.0).unwrap();
        let trained = 600.0 / (600.0 + requested.stall_s);
        assert!((requested.share - trained).abs() < 1e-12, "{kind:?} {requested:?}");
    }
    // Almost no failures give almost the same result.
    conditions.hazard = Hazard::with_mtbf(1e300).unwrap();
    let nearly = Goodput::best(&conditions).unwrap();
    assert!((nearly.share - 1.0).abs() < 1e-9 && nearly.makes_progress, "{nearly:?}");
}

#[test]
fn extreme_conditions_give_a_result() {
    let mut conditions = llama_3();
    conditions.detection_s = 0.0;
    conditions.spares =
        Spares { nodes: Some(MAX_SPARES), repair_h: MAX_REPAIR_H, repair_share: 1.0 };
    for hours in [1.0, 1e-3, 1e-12, 1e-300] {
        conditions.hazard = Hazard::with_mtbf(hours).unwrap();
        let report = GoodputReport::new(&conditions, &training(), None).unwrap();
        assert!((0.0..=1.0).contains(&report.best.share), "{hours} {report:?}");
        assert!(report.spares.cheapest.nodes <= MAX_SPARES, "{hours}");
    }
}

#[test]
fn failing_faster_than_recovering_makes_no_progress() {
    let mut conditions = llama_3();
    conditions.hazard = observed(0.05, 16_384);
    let report = GoodputReport::new(&conditions, &training(), None).unwrap();
    assert!(!report.best.makes_progress && report.run.is_none());
    let why = report.no_progress.unwrap();
    assert!(
        why.to_string()
            .contains("less than 10 %; a failure occurs every 3.0 min, and recovery takes 15"),
        "{why}"
    );
    // The suggested number of GPUs works.
    let gpus = why.max_gpus.unwrap();
    let fewer = Goodput::best(&Conditions { gpus, ..conditions }).unwrap();
    assert!(fewer.share >= 0.5 && fewer.share < 0.51, "{fewer:?}");

    // Even extreme rates give finite numbers.
    for hours in [1e-3, 1e-6, 1e-300] {
        conditions.hazard = Hazard::with_mtbf(hours).unwrap();
        let goodput = Goodput::best(&conditions).unwrap();
        assert!(goodput.share >= 0.0 && goodput.share < 1e-6, "{hours} {goodput:?}");
        let report = GoodputReport::new(&conditions, &training(), None).unwrap();
        assert_eq!(report.no_progress.unwrap().max_gpus, None);
    }
}

#[test]
fn ettr_decides_whether_there_is_progress() {
    // The MTBF is shorter than a recovery, but more than a tenth of the time is kept, so the run
    // ends.
    let mut conditions = llama_3();
    conditions.detection_s = 0.0;
    conditions.hazard = Hazard::with_mtbf(0.08).unwrap();
    let report = GoodputReport::new(&conditions, &training(), None).unwrap();
    assert!(report.best.mtbf_s < report.best.down_s, "{report:?}");
    assert!(report.best.share > MIN_PROGRESS_SHARE && report.best.share < 0.5, "{report:?}");
    let run = report.run.unwrap();
    assert!(report.no_progress.is_none() && run.days.is_finite() && run.usd.is_some());
}

#[test]
fn unsuitable_interval_is_blamed() {
    let hours = 3_600.0;
    let report = GoodputReport::new(&llama_3(), &training(), Some(100.0 * hours)).unwrap();
    let why = report.no_progress.unwrap();
    assert_eq!(why.max_gpus, None);
    let message = why.to_string();
    let expected = "a checkpoint every 6000.0 min is too rare for a failure every 185.6 min; the best \
                    interval is ";
    assert!(message.contains(expected), "{message}");
    let mut slow = llama_3();
    slow.checkpoint.stall_s = Some(1_000.0);
    let report = GoodputReport::new(&slow, &training(), Some(50.0)).unwrap();
    let message = report.no_progress.unwrap().to_string();
    assert!(
        message.contains("every 0.8 min is too often: each takes 16.7 min; the best interval is"),
        "{message}"
    );
}

#[test]
fn short_run_needs_no_checkpoint() {
    let checkpoint = Checkpoint::new(CheckpointKind::Asynchronous, 1e11, 2e11);
    let conditions = Conditions::new(8, checkpoint, 2.0);
    // One hour, with an MTBF of years.
    let short = Training { tokens: Some(2.5e6 * 3_600.0), ..training() };
    let report = GoodputReport::new(&conditions, &short, None).unwrap();
    assert!(report.best.interval_s.is_infinite() && report.best.share > 0.999, "{report:?}");
    assert!(report.interval_beyond_run_s.unwrap() > 3_600.0);
    assert!((report.run.unwrap().lost.checkpoint_stalls_h).abs() < 1e-12);
    // An interval as long as the run or longer gives the same result.
    let requested = GoodputReport::new(&conditions, &short, Some(1e9)).unwrap();
    assert!(
        (requested.requested.unwrap().share - report.best.share).abs() < 1e-12,
        "{requested:?}"
    );
    // Without a known length, the interval is kept.
    let endless = Training { tokens: None, ..training() };
    let report = GoodputReport::new(&conditions, &endless, None).unwrap();
    assert!(report.best.interval_s.is_finite() && report.interval_beyond_run_s.is_none());
    assert!(report.run.is_none() && report.no_progress.is_none());
}

#[test]
fn days_and_dollars_inherit_the_uncertainty_of_the_speed() {
    let run = GoodputReport::new(&llama_3(), &training(), None).unwrap().run.unwrap();
    let (days, usd) = (run.days, run.usd.unwrap());
    assert!((run.days_p10.unwrap() / days - 0.8).abs() < 1e-9, "{run:?}");
    assert!((run.days_p90.unwrap() / days - 1.25).abs() < 1e-9, "{run:?}");
    assert!((run.usd_p10.unwrap() / usd - 0.8).abs() < 1e-9, "{run:?}");
    assert!((run.usd_p90.unwrap() / usd - 1.25).abs() < 1e-9, "{run:?}");
    let measured = Training { tokens_per_s_p10_p90: None, ..training() };
    let run = GoodputReport::new(&llama_3(), &measured, None).unwrap().run.unwrap();
    assert_eq!((run.days_p10, run.usd_p90), (None, None));
}

#[test]
fn interval_below_the_write_time_is_rejected() {
    let checkpoint = Checkpoint::new(CheckpointKind::Asynchronous, 1e13, 1e10);
    let conditions = Conditions::new(1_024, checkpoint, 30.0);
    let err = Goodput::at(&conditions, 500.0).unwrap_err();
    let expected = "a checkpoint interval of 500.0 s is shorter than the write time of 1000.0 s; \
                    possible: 1020.0 s or more, or 2.0 times the bandwidth";
    assert_eq!(err.to_string(), expected);
    assert!(Goodput::at(&conditions, 1_020.0).is_ok());
    assert!(Goodput::best(&conditions).unwrap().interval_s >= 1_020.0);
    let err = Goodput::at(&conditions, 10.0).unwrap_err();
    assert!(matches!(err, GoodputError::BelowStep { .. }), "{err}");
}

#[test]
fn invalid_inputs_are_named() {
    type Corrupt = fn(&mut Conditions, f64);
    let corruptions: [(&str, Corrupt); 8] = [
        ("detection_s", |conditions, value| conditions.detection_s = value),
        ("restart_s", |conditions, value| conditions.recovery.restart_s = value),
        ("load_s", |conditions, value| conditions.recovery.load_s = Some(value)),
        ("step_s", |conditions, value| conditions.step_s = value),
        ("repair_share", |conditions, value| conditions.spares.repair_share = value),
        ("bytes", |conditions, value| conditions.checkpoint.bytes = value),
        ("storage_bytes_per_s", |conditions, value| {
            conditions.checkpoint.storage_bytes_per_s = value;
        }),
        ("per_gpu_hour", |conditions, value| conditions.hazard.per_gpu_hour = value),
    ];
    for (name, corrupt) in corruptions {
        for value in [f64::NAN, -1.0, f64::INFINITY] {
            let mut conditions = llama_3();
            corrupt(&mut conditions, value);
            let err = Goodput::best(&conditions).unwrap_err().to_string();
            assert!(err.contains(&format!("`{name}`")), "{err}");
            assert!(err.contains("possible"), "{err}");
        }
    }
    let none = Goodput::best(&Conditions { gpus: 0, ..llama_3() }).unwrap_err();
    assert_eq!(none.to_string(), "`gpus` is 0; it must be at least 1");
    let slow = Training { tokens_per_s: 0.0, ..training() };
    assert!(GoodputReport::new(&llama_3(), &slow, None).is_err());
}

#[test]
fn value_of_a_minute_follows_from_the_failures() {
    let report = GoodputReport::new(&llama_3(), &training(), None).unwrap();
    let (run, marginal_value) = (report.run.unwrap(), report.value_of_a_minute.unwrap());
    // To first order, the run is one minute shorter per failure. A shorter run also has fewer
    // failures.
    let minutes = marginal_value.detection.hours * 60.0;
    assert!(minutes > run.failures * 0.95 && minutes < run.failures * 1.15, "{minutes} {run:?}");
    assert!(marginal_value.recovery.hours > marginal_value.detection.hours);
    assert!((marginal_value.checkpoint_stall.less_s - report.best.stall_s).abs() < 1e-9);
    let usd_per_hour = 16_384.0 * 2.0;
    assert!(
        (marginal_value.detection.usd.unwrap() / marginal_value.detection.hours - usd_per_hour)
            .abs()
            < 1e-3
    );
    assert!((run.usd.unwrap() - run.hours * usd_per_hour).abs() < 1.0);
}

#[test]
fn spares_pay_off_until_the_next_costs_more() {
    let mut conditions = llama_3();
    let report = GoodputReport::new(&conditions, &training(), None).unwrap();
    let spares = report.spares;
    assert!(spares.mean_nodes_out > 5.0 && spares.mean_nodes_out < 6.5, "{spares:?}");
    assert!(spares.cheapest.nodes > 6 && spares.cheapest.nodes < 20, "{spares:?}");
    assert!(spares.none.share < 0.2, "without spares, every repair is waited for: {spares:?}");
    let cost = |nodes: u32| {
        let mut with = conditions;
        with.spares.nodes = Some(nodes);
        let run = GoodputReport::new(&with, &training(), None).unwrap().run.unwrap();
        run.usd.unwrap()
    };
    let best = spares.cheapest.nodes;
    assert!(cost(best) < cost(best - 1) && cost(best) < cost(best + 1));
    conditions.spares.nodes = Some(best);
    let requested = GoodputReport::new(&conditions, &training(), None).unwrap();
    assert!((requested.best.share - requested.spares.requested.unwrap().share).abs() < 1e-12);
    assert!((requested.best.share - spares.cheapest.share).abs() < 1e-12);
}

#[test]
fn each_checkpoint_kind_beats_the_previous_one() {
    let mut before = 0.0;
    for kind in CheckpointKind::ALL {
        let mut conditions = llama_3();
        conditions.checkpoint = Checkpoint::new(kind, 405e9 * 14.0, 5e10);
        let goodput = Goodput::best(&conditions).unwrap();
        assert!(goodput.share > before, "{kind:?} {goodput:?}");
        before = goodput.share;
    }
}

#[test]
fn json_keys_carry_their_units() {
    let report = GoodputReport::new(&llama_3(), &training(), Some(600.0)).unwrap();
    let json = serde_json::to_value(&report).unwrap();
    for key in ["interval_s", "mtbf_s", "stall_s", "failures_per_day"] {
        assert!(json["given"][key].is_number(), "{key}: {json}");
    }
    for key in ["hours", "days", "usd", "lost_usd", "usd_per_million_tokens"] {
        assert!(json["run"][key].is_number(), "{key}: {json}");
    }
    assert!(json["run"]["lost"]["detection_h"].is_number());
}

fn any_conditions() -> impl Strategy<Value = Conditions> {
    let kind = prop::sample::select(CheckpointKind::ALL.to_vec());
    let spares = prop::option::of(0_u32..200);
    (kind, 1_u32..200_000, 0.5_f64..500.0, 9.0_f64..14.0, 8.0_f64..13.0, 0.0_f64..3_600.0, spares)
        .prop_map(|(kind, gpus, step_s, log_bytes, log_storage, detection_s, spares)| {
            let checkpoint =
                Checkpoint::new(kind, 10_f64.powf(log_bytes), 10_f64.powf(log_storage));
            let mut conditions = Conditions::new(gpus, checkpoint, step_s);
            conditions.detection_s = detection_s;
            conditions.spares.nodes = spares;
            conditions
        })
}

proptest! {
    #[test]
    fn shares_sum_to_one_and_the_best_interval_is_best(
        conditions in any_conditions(), factor in 1.0_f64..20.0,
    ) {
        let best = Goodput::best(&conditions).unwrap();
        let breakdown = best.breakdown;
        let total = breakdown.useful_share + breakdown.checkpoint_stalls_share + breakdown.lost_work_share
            + breakdown.detection_share + breakdown.recovery_share + breakdown.waiting_share
            + breakdown.planned_share;
        prop_assert!((total - 1.0).abs() < 1e-9, "{best:?}");
        prop_assert!((0.0..=1.0).contains(&best.share));
        let other_s = (best.interval_s * factor / conditions.step_s).round() * conditions.step_s;
        let other = Goodput::at(&conditions, other_s).unwrap();
        prop_assert!(other.share <= best.share + 0.002, "{best:?} {other:?}");
        let shorter_s = (best.interval_s / factor / conditions.step_s).round() * conditions.step_s;
        if let Ok(other) = Goodput::at(&conditions, shorter_s) {
            prop_assert!(other.share <= best.share + 0.002, "{best:?} {other:?}");
        }
    }

    #[test]
    fn worse_conditions_reduce_ettr(conditions in any_conditions()) {
        let share = |conditions: &Conditions| Goodput::best(conditions).unwrap().share;
        let now = share(&conditions);
        let mut slower = conditions;
        slower.detection_s += 60.0;
        prop_assert!(share(&slower) <= now);
        let mut slower = conditions;
        slower.recovery.restart_s += 60.0;
        prop_assert!(share(&slower) <= now);
        let mut more = conditions;
        more.hazard.base_per_hour += 0.01;
        prop_assert!(share(&more) <= now);
    }
}
