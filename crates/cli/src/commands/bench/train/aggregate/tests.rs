use super::super::shard::{MemorySpec, ShardFailure, StepsSpec};
use super::*;

fn result(step_s: &[f64]) -> StepsResult {
    StepsResult {
        gpu: "GPU".to_owned(),
        torch: "2.11".to_owned(),
        farrier: None,
        comparisons: Some(0.0),
        comparisons_s: Some(0.0),
        comparisons_share: None,
        step_s: step_s.to_vec(),
        tokens: 512.0,
        flops_causal: 1e9,
        flops_full: 2e9,
        launches: Some(1000.0),
        launch_s: Some(0.004),
        busy_s: Some(0.005),
        allocated_bytes: GIB,
        reserved_bytes: 2.0 * GIB,
        ready_s: 3.0,
        loss: 10.0,
        report: None,
    }
}

fn shard(spec: Spec, result: Result<ShardResult, ShardFailure>) -> Shard {
    Shard {
        name: spec.name(),
        spec: Some(spec),
        result,
        ..Shard::unreadable(String::new(), String::new())
    }
}

fn steps(variant: &str, repeat: u32, measured: Option<StepsResult>) -> Shard {
    let spec = StepsSpec {
        model: "191m".to_owned(),
        variant: variant.to_owned(),
        rows: 1,
        length: 512,
        repeat,
        warmups: 1,
        groups: 3,
        steps: 1,
    };
    let result = measured.map(ShardResult::Steps).ok_or_else(|| ShardFailure::plain("it failed"));
    shard(Spec::Steps(spec), result)
}

fn close(left: f64, right: f64) {
    assert!((left - right).abs() < 1e-9 * right.abs().max(1.0), "{left} is not {right}");
}

#[test]
fn figures_are_medians_of_medians() {
    let shards = [
        // An outlier in a group of steps does not count; the repeats are 10, 20 and 40 ms.
        steps("eager", 0, Some(result(&[0.01, 0.01, 9.0]))),
        steps("eager", 1, Some(result(&[0.02]))),
        steps("eager", 2, Some(result(&[0.04]))),
    ];
    let rates = Rates { peak_flops: Some(1e15), price_per_hour: Some(3.6) };
    let [comparison] = &comparisons(&shards, rates)[..] else { panic!() };
    let [eager] = &comparison.variants[..] else { panic!() };
    let speed = eager.tokens_per_s.unwrap();
    close(speed.median, 25_600.0);
    close(speed.min, 12_800.0);
    close(speed.max, 51_200.0);
    // 25,600 tokens per second at 1e9 FLOPs each are 2.56e13 of 1e15.
    close(eager.mfu_causal.unwrap().median, 0.0256);
    close(eager.mfu_full.unwrap().median, 0.0512);
    // 0.1 cents per second at 25,600 tokens per second.
    close(eager.usd_per_million_tokens.unwrap().median, 0.001 / 25_600.0 * 1e6);
    close(eager.usd_per_million_tokens.unwrap().max, 0.001 / 12_800.0 * 1e6);
    close(eager.idle.unwrap().median, 0.75);
    close(eager.launch_ms.unwrap().median, 4.0);
    close(eager.reserved_gib.unwrap().median, 2.0);
    assert_eq!(comparison.best.as_deref(), Some("eager"));
}

#[test]
fn ratios_are_computed_per_round() {
    // The machine is slow in the second round; ours is twice as fast in both.
    let shards = [
        steps("eager", 0, Some(result(&[0.010]))),
        steps("ours", 0, Some(result(&[0.005]))),
        steps("eager", 1, Some(result(&[0.030]))),
        steps("ours", 1, Some(result(&[0.015]))),
        // This round has no eager result, so the shard counts for the median but not for the
        // ratio.
        steps("ours", 2, Some(result(&[0.001]))),
    ];
    let [comparison] = &comparisons(&shards, Rates::default())[..] else { panic!() };
    let ours = &comparison.variants[1];
    let ratio = ours.to_eager.unwrap();
    assert_eq!((ours.variant.as_str(), ours.done, ratio.count), ("ours", 3, 2));
    close(ratio.min, 2.0);
    close(ratio.max, 2.0);
    close(comparison.variants[0].to_best.unwrap().median, 0.5);
    assert_eq!(comparison.best.as_deref(), Some("ours"));
    assert!(ours.mfu_causal.is_none(), "the peak is unknown");
    assert!(ours.usd_per_million_tokens.is_none(), "no price was given");
}

#[test]
fn tokens_and_mfu_have_the_same_ratio() {
    // Ratios of 10 and 4. The ratio of the medians would be
    // (512/5 + 512/25) / (512/50 + 512/100) = 8.
    let shards = [
        steps("eager", 0, Some(result(&[0.050]))),
        steps("ours", 0, Some(result(&[0.005]))),
        steps("eager", 1, Some(result(&[0.100]))),
        steps("ours", 1, Some(result(&[0.025]))),
    ];
    let rates = Rates { peak_flops: Some(1e15), price_per_hour: Some(3.6) };
    let [comparison] = &comparisons(&shards, rates)[..] else { panic!() };
    let ours = &comparison.variants[1];
    let rounds = ours.rounds.as_ref().unwrap();
    let tokens = ours.to_eager.unwrap();
    close(tokens.median, 7.0);
    let stats = Stats::from_samples(rounds.mfu_causal.iter().copied()).unwrap();
    close(stats.median, tokens.median);
    close(stats.min, 4.0);
    close(stats.max, 10.0);
    assert_eq!(rounds.usd_per_million_tokens.len(), 2);
    close(rounds.usd_per_million_tokens[0], 0.1);
    close(rounds.usd_per_million_tokens[1], 0.25);
}

#[test]
fn the_mean_includes_comparisons_and_the_median_does_not() {
    let compared = StepsResult {
        comparisons: Some(2.0),
        comparisons_s: Some(0.16),
        ..result(&[0.015, 0.005, 0.015, 0.005, 0.005, 0.005])
    };
    let [comparison] = &comparisons(&[steps("ours", 0, Some(compared))], Rates::default())[..]
    else {
        panic!()
    };
    let ours = &comparison.variants[0];
    close(ours.tokens_per_s.unwrap().median, 512.0 / 0.005);
    close(ours.tokens_per_s_mean.unwrap().median, 512.0 * 6.0 / 0.050);
    close(ours.comparisons.unwrap().median, 2.0);
    close(ours.comparison_ms.unwrap().median, 80.0);
    assert_eq!(comparison.timed_steps, Some(3));
}

#[test]
fn long_run_speed_includes_later_comparisons() {
    let ours = |share| StepsResult {
        comparisons: Some(2.0),
        comparisons_share: share,
        report: Some("30 steps, 20 of them as a graph".to_owned()),
        ..result(&[0.005])
    };
    let shards =
        |share| [steps("eager", 0, Some(result(&[0.010]))), steps("ours", 0, Some(ours(share)))];
    let rates = Rates { peak_flops: Some(1e15), price_per_hour: Some(3.6) };
    let [comparison] = &comparisons(&shards(Some(0.1)), rates)[..] else { panic!() };
    let [eager, ours] = &comparison.variants[..] else { panic!() };
    close(eager.tokens_per_s_long.unwrap().median, eager.tokens_per_s.unwrap().median);
    close(ours.tokens_per_s.unwrap().median, 102_400.0);
    close(ours.tokens_per_s_long.unwrap().median, 92_160.0);
    close(ours.to_eager.unwrap().median, 1.8);
    close(ours.to_best.unwrap().median, 1.0);
    close(eager.to_best.unwrap().median, 1.0 / 1.8);
    close(ours.mfu_causal.unwrap().median, 0.09216);
    close(ours.usd_per_million_tokens.unwrap().median, 0.001 / 92_160.0 * 1e6);

    let [comparison] = &comparisons(&shards(None), rates)[..] else { panic!() };
    let ours = &comparison.variants[1];
    assert!(
        ours.tokens_per_s.is_some() && ours.tokens_per_s_long.is_none(),
        "the share is unknown"
    );
    assert!(ours.to_eager.is_none() && ours.mfu_causal.is_none());
    assert_eq!(comparison.best.as_deref(), Some("eager"));
}

#[test]
fn eager_repeats_are_all_reported_and_one_other() {
    let with_report =
        |report: &str| Some(StepsResult { report: Some(report.to_owned()), ..result(&[0.01]) });
    let shards = [
        steps("ours", 0, with_report("9 steps\neager from here on: no gain")),
        steps("ours", 1, with_report("9 steps, 5 of them as a graph")),
        steps("ours", 2, with_report("9 steps, 6 of them as a graph")),
        steps("ours", 3, with_report("9 steps\neager from here on: it differs. What helps: this")),
    ];
    let [comparison] = &comparisons(&shards, Rates::default())[..] else { panic!() };
    let reports: Vec<(u32, Option<&str>)> = comparison.variants[0]
        .self_reports
        .iter()
        .map(|report| (report.repeat, report.eager_because.as_deref()))
        .collect();
    let differs = Some("it differs. What helps: this");
    assert_eq!(reports, [(2, None), (0, Some("no gain")), (3, differs)]);
}

#[test]
fn different_launch_counts_are_not_averaged() {
    let with_launches = |launches, launch_s| StepsResult {
        launches: Some(launches),
        launch_s: Some(launch_s),
        ..result(&[0.01])
    };
    let shards = [
        steps("eager", 0, Some(with_launches(2000.0, 0.008))),
        steps("ours", 0, Some(with_launches(1134.0, 0.004))),
        steps("eager", 1, Some(with_launches(2000.0, 0.008))),
        steps("ours", 1, Some(with_launches(1.0, 0.001))),
    ];
    let [comparison] = &comparisons(&shards, Rates::default())[..] else { panic!() };
    let [eager, ours] = &comparison.variants[..] else { panic!() };
    assert_eq!(eager.modes.iter().map(|mode| mode.repeats).collect::<Vec<_>>(), [2]);
    let [graph, plain] = &ours.modes[..] else { panic!() };
    assert_eq!((graph.launches, graph.repeats, plain.launches), (1.0, 1, 1134.0));
    close(graph.launch_ms.unwrap().median, 1.0);
    close(plain.launch_ms.unwrap().median, 4.0);
    let rounds = ours.rounds.as_ref().unwrap();
    close(rounds.launches[0], 0.567);
    close(rounds.launches[1], 0.0005);
}

#[test]
fn a_failure_is_not_zero() {
    let shards = [steps("eager", 0, Some(result(&[0.01]))), steps("ours", 0, None)];
    let [comparison] = &comparisons(&shards, Rates::default())[..] else { panic!() };
    let ours = &comparison.variants[1];
    assert_eq!((ours.done, ours.failed), (0, 1));
    assert!(ours.tokens_per_s.is_none() && ours.to_eager.is_none() && ours.modes.is_empty());
    assert_eq!(comparison.best.as_deref(), Some("eager"));
}

#[test]
fn a_figure_missing_in_one_repeat_is_unknown() {
    let incomplete = StepsResult { launches: None, ..result(&[0.01]) };
    let shards = [steps("eager", 0, Some(incomplete)), steps("eager", 1, Some(result(&[0.01])))];
    let [comparison] = &comparisons(&shards, Rates::default())[..] else { panic!() };
    assert!(comparison.variants[0].modes.is_empty());
    assert!(comparison.variants[0].launch_ms.is_some());
}

#[test]
fn a_different_loss_is_reported() {
    let other = StepsResult { loss: 10.1, ..result(&[0.01]) };
    let shards = [steps("eager", 0, Some(result(&[0.01]))), steps("ours", 0, Some(other))];
    let [comparison] = &comparisons(&shards, Rates::default())[..] else { panic!() };
    close(comparison.variants[1].loss_off_eager.unwrap(), 0.01);
}

#[test]
fn models_are_sorted_by_size_and_variants_by_rank() {
    let with_model = |model: &str, variant: &str| {
        let Shard { spec: Some(Spec::Steps(spec)), result, .. } =
            steps(variant, 0, Some(result(&[0.01])))
        else {
            panic!()
        };
        shard(Spec::Steps(StepsSpec { model: model.to_owned(), ..spec }), result)
    };
    let shards = [
        with_model("7b-lora", "ours"),
        with_model("1.4b", "ours"),
        with_model("1.4b", "eager"),
        with_model("other", "eager"),
    ];
    let comparisons = comparisons(&shards, Rates::default());
    let models: Vec<&str> =
        comparisons.iter().map(|comparison| comparison.model.as_str()).collect();
    assert_eq!(models, ["1.4b", "7b-lora", "other"]);
    assert_eq!(comparisons[0].variants[0].variant, "eager");
}

fn memory(variant: &str, cap_gib: f64, seed: u32, lost: Option<usize>) -> Shard {
    let spec = MemorySpec {
        model: "1.4b".to_owned(),
        variant: variant.to_owned(),
        cap_gib,
        seed,
        steps: 60,
    };
    let result = lost.map(|lost| {
        ShardResult::Memory(MemoryResult {
            gpu: "NVIDIA H200".to_owned(),
            torch: "2.11.0".to_owned(),
            farrier: None,
            model: "1.4b".to_owned(),
            variant: variant.to_owned(),
            cap_gib,
            lost: vec![(16, 1024); lost],
            steps_asked: 60,
            tokens_per_s: 1000.0,
            finite: true,
            peak_gib: 25.0,
            reserved_gib: 29.0,
            report: None,
        })
    });
    shard(Spec::Memory(spec), result.ok_or_else(|| ShardFailure::plain("it failed")))
}

#[test]
fn the_oom_rate_is_over_all_seeds() {
    let shards = [
        memory("default", 26.0, 0, Some(19)),
        memory("default", 30.0, 0, Some(17)),
        memory("default", 30.0, 1, Some(13)),
        memory("ours", 30.0, 0, Some(0)),
        memory("expandable", 30.0, 0, None),
    ];
    let caps = caps(&shards);
    assert_eq!(caps.iter().map(|comparison| comparison.cap_gib).collect::<Vec<_>>(), [30.0, 26.0]);
    let [default, expandable, ours] = &caps[0].variants[..] else { panic!() };
    assert_eq!((default.steps_lost, default.steps), (30, 120));
    close(default.oom_rate.unwrap(), 0.25);
    assert_eq!(default.oom_rate_by_seed.len(), 2);
    assert_eq!(expandable.oom_rate, None, "no steps are not a rate of 0");
    close(ours.oom_rate.unwrap(), 0.0);
}
