use farrier_facts::FactSet;

use super::*;
use crate::model::builtin;
use crate::parallelism::ParallelConfig;
use crate::run::TrainingTask;

fn run(model: &str, gpu: &str, global_batch: u32) -> TrainingRun {
    TrainingRun {
        model: builtin::by_name(model).unwrap().model(),
        gpu: Accelerator::by_name(FactSet::embedded(), gpu).unwrap(),
        seq_len: 8192,
        global_batch,
        precision: Precision::Bf16,
        parallelism: ParallelConfig { reduce_bytes: 2, ..ParallelConfig::data_parallel(1, 1) },
        task: TrainingTask::Full,
        framework: Framework::Bridge,
        fused_experts: false,
    }
}

fn criteria(basis: Basis) -> Criteria {
    Criteria { precision: None, framework: None, tokens: Some(1e12), basis }
}

fn one(model: &str, gpu: &str, global_batch: u32, usd: Option<f64>, basis: Basis) -> GpuComparison {
    let mut run = run(model, gpu, global_batch);
    run.gpu.usd_per_hour = usd;
    compare(Planner::shipped(), &run, std::slice::from_ref(&run.gpu), &criteria(basis))
}

#[test]
fn budget_is_spent_on_the_fastest_count() {
    let best = |basis| one("llama3-70b", "H200", 240, Some(7.91), basis).options.swap_remove(0);
    let option = best(Basis::UsdPerHour(1000.0));
    assert_eq!(option.gpus, 120, "126 GPUs are affordable, but 15 nodes divide the batch");
    for gpus in (8..=120).step_by(8) {
        let other = one("llama3-70b", "H200", 240, Some(7.91), Basis::Gpus(gpus)).options;
        let other = other.first().map_or(0.0, |other| other.tokens_per_s);
        assert!(other <= option.tokens_per_s * 1.03, "{gpus}: {other} {option:?}");
    }
    // 376 GPUs are affordable and have a config, but the best config of 320 GPUs is faster.
    let best =
        |basis| one("qwen3-235b-a22b", "GB200", 1024, Some(1.0), basis).options.swap_remove(0);
    let fastest = best(Basis::Gpus(320)).tokens_per_s;
    assert!(best(Basis::Gpus(376)).tokens_per_s < 0.9 * fastest);
    assert!(best(Basis::UsdPerHour(377.0)).tokens_per_s >= fastest);
    assert!((option.days.unwrap() * 86_400.0 * option.tokens_per_s / 1e12 - 1.0).abs() < 1e-9);
}

#[test]
fn deadline_is_met_with_the_fewest_nodes() {
    let days = Basis::Days { days: 30.0, tokens: 1e12 };
    let required_tokens_per_s = 1e12 / (30.0 * DAY_S);
    for (gpu, batch) in [("B200", 240), ("B200", 256), ("GB200", 256)] {
        let option = one("llama3-70b", gpu, batch, None, days).options.swap_remove(0);
        assert!(
            option.tokens_per_s >= required_tokens_per_s && option.days.unwrap() <= 30.0,
            "{option:?}"
        );
        let node = if gpu == "GB200" { 4 } else { 8 };
        assert!(option.gpus.is_multiple_of(node));
        for gpus in (node..option.gpus).step_by(usize::try_from(node).unwrap()) {
            let fewer = one("llama3-70b", gpu, batch, None, Basis::Gpus(gpus)).options;
            let fewer = fewer.first().map_or(0.0, |fewer| fewer.tokens_per_s);
            assert!(
                fewer < required_tokens_per_s,
                "{gpu}: {gpus} reach {fewer}, {} were chosen",
                option.gpus
            );
        }
    }
    // If memory is short, a few more GPUs are many times as fast.
    let some = one("deepseek-v3", "GB200", 4096, None, Basis::Gpus(128)).options.swap_remove(0);
    assert!(some.tokens_per_s > required_tokens_per_s, "{some:?}");
    assert!(one("deepseek-v3", "GB200", 4096, None, days).options[0].gpus <= 128);
    let never = one("llama3-8b", "H100", 8, None, Basis::Days { days: 0.1, tokens: 1e15 });
    let reason = &never.excluded[0].reason;
    assert!(reason.contains("tokens/s with a global batch of 8 sequences"), "{reason}");
    let slow = one("llama3-8b", "H100", 8, None, Basis::Days { days: 30.0, tokens: 4e12 });
    let reason = &slow.excluded[0].reason;
    assert!(
        reason.contains("no number of GPUs reaches") && reason.contains("the maximum is"),
        "{reason}"
    );
}

#[test]
fn node_size_depends_on_the_sku() {
    let refused = |gpu: &str, usd: f64| {
        let found = one("llama3-8b", gpu, 256, Some(10.0), Basis::UsdPerHour(usd));
        found.excluded.first().map(|excluded| excluded.reason.clone())
    };
    let reason = refused("GB200", 39.0).unwrap();
    assert_eq!(reason, "$39 per hour do not cover a node of 4 GPUs at $10 each");
    assert_eq!(refused("GB200", 41.0), None);
    assert!(refused("H100", 41.0).unwrap().contains("a node of 8 GPUs"));
}

#[test]
fn published_runs_keep_the_name_of_their_own_gpu() {
    let published = |model: &str| {
        let found = one(model, "H100", 4096, None, Basis::Gpus(2048));
        found.options[0].published.clone()
    };
    let variants = published("deepseek-v3");
    let paper = variants.iter().find(|run| run.source.contains("DeepSeek-V3")).unwrap();
    assert_eq!((paper.gpu.as_str(), paper.is_same_sku), ("H800-SXM-80GB", false));
    // The same SKU comes first.
    for model in ["deepseek-v3", "llama3-70b", "llama3-8b"] {
        let runs = published(model);
        assert!(runs.is_sorted_by_key(|run| !run.is_same_sku), "{runs:?}");
        let is_variant =
            |run: &PublishedResult| run.gpu.contains("H800") || run.gpu.contains("HBM2e");
        assert!(runs.iter().all(|run| run.is_same_sku != is_variant(run)), "{runs:?}");
    }
}

#[test]
fn gpu_counts_are_whole_nodes_that_divide_the_batch() {
    let gpu_counts = gpu_counts(&run("llama3-70b", "H100", 240), 8, 128);
    assert!(gpu_counts.contains(&120) && gpu_counts.contains(&96) && gpu_counts.contains(&128));
    assert!(gpu_counts.iter().all(|gpus| gpus.is_multiple_of(8) && *gpus <= 128), "{gpu_counts:?}");
    assert_eq!(
        (whole_nodes(126.4, 8), whole_nodes(7.9, 8), whole_nodes(1e30, 8)),
        (120, 0, MAX_GPUS)
    );
}
