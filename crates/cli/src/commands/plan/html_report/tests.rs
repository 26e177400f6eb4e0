use farrier_facts::FactSet;
use farrier_planner::Planner;
use farrier_planner::gpu::Accelerator;
use farrier_planner::model::builtin;
use farrier_planner::parallelism::{ParallelConfig, Sharding};
use farrier_planner::plan::{GpuPrice, plan};
use farrier_planner::precision::Precision;
use farrier_planner::run::{Framework, TrainingRun};
use farrier_planner::search::{Constraints, search};

use super::*;

fn run(
    model: &str,
    gpu: &str,
    parallelism: ParallelConfig,
    global_batch: u32,
    framework: Framework,
) -> TrainingRun {
    TrainingRun {
        model: builtin::by_name(model).unwrap().model(),
        gpu: Accelerator::by_name(FactSet::embedded(), gpu).unwrap(),
        seq_len: 8192,
        global_batch,
        precision: Precision::Bf16,
        parallelism,
        task: TrainingTask::Full,
        framework,
        fused_experts: false,
    }
}

fn planned(run: &TrainingRun, tokens: Option<f64>) -> TrainingPlan {
    let price = GpuPrice { usd_per_gpu_hour: 2.5, source: "a list <of prices> & more".to_owned() };
    plan(Planner::shipped(), run, tokens, tokens.map(|_| price))
}

/// Llama 3 405B as trained: arXiv:2407.21783, 3.3.2.
fn large() -> TrainingRun {
    let parallelism = ParallelConfig {
        tp: 8,
        pp: 16,
        vp: 8,
        sharding: Sharding::Gradients,
        reduce_bytes: Framework::Tuned.reduce_bytes(),
        ..ParallelConfig::data_parallel(128, 1)
    };
    run("llama3.1-405b", "H100-SXM-80GB", parallelism, 2048, Framework::Tuned)
}

fn small() -> TrainingRun {
    let parallelism =
        ParallelConfig { sharding: Sharding::Weights, ..ParallelConfig::data_parallel(8, 1) };
    run("llama3-8b", "H100-SXM-80GB", parallelism, 16, Framework::FsdpCompiled)
}

/// The same run with different numbers of data-parallel replicas.
fn around(run: &TrainingRun, tokens: f64) -> Vec<CostPoint> {
    (0..7_u32)
        .map(|power| {
            let mut other = run.clone();
            other.parallelism.dp = 8 << power;
            let plan = planned(&other, Some(tokens));
            let (days_p10, days_p90) = days_range(&plan).unwrap();
            CostPoint {
                gpus: plan.gpus,
                days: plan.time_days.unwrap(),
                days_p10,
                days_p90,
                usd: plan.cost_usd,
            }
        })
        .collect()
}

fn goodput_report(plan: &TrainingPlan, hazard: goodput::Hazard) -> goodput::GoodputReport {
    let bytes = plan.model.parameters * goodput::BYTES_PER_PARAMETER;
    let checkpoint = goodput::Checkpoint::new(goodput::CheckpointKind::Asynchronous, bytes, 2e12);
    let mut conditions = goodput::Conditions::new(plan.gpus, checkpoint, plan.estimate.step_time_s);
    conditions.hazard = hazard;
    conditions.spares.nodes = Some(4);
    let training = goodput::Training {
        tokens: plan.tokens,
        tokens_per_s: plan.tokens_per_s,
        tokens_per_s_p10_p90: Some(plan.tokens_per_s_p10_p90()),
        usd_per_gpu_hour: Some(2.5),
    };
    goodput::GoodputReport::new(&conditions, &training, None).unwrap()
}

/// Checks that tags are balanced, that nothing is loaded from outside, and that no number is NaN or
/// infinite.
fn check(html: &str) {
    let mut open = Vec::new();
    let (_, body) = html.split_once("<!DOCTYPE html>\n").unwrap();
    for part in body.split('<').skip(1) {
        let (tag, text) = part.split_once('>').unwrap_or_else(|| panic!("`{part}` is not closed"));
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "closing tag does not match");
        } else if !tag.ends_with('/') {
            open.push(tag.split(' ').next().unwrap());
        }
        assert!(!text.contains('>') || open.last() == Some(&"style"), "a stray `>`: {part}");
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
    }
    assert!(open.is_empty(), "not closed: {open:?}");
    for loaded in ["<script", "<link", "src=", "href=", "url(", "@import"] {
        assert!(!html.contains(loaded), "{loaded}");
    }
    let words = html.split(|letter: char| !letter.is_alphanumeric());
    for word in words {
        assert!(!matches!(word, "NaN" | "inf"), "{word} in the page");
    }
    assert!(!html.contains('\u{1}'), "an unconverted text cell");
}

/// Writes the page to the folder in `FARRIER_PAGE`, for inspection.
fn save(name: &str, html: &str) {
    if let Some(folder) = std::env::var_os("FARRIER_PAGE") {
        std::fs::write(std::path::Path::new(&folder).join(name), html).unwrap();
    }
}

#[test]
fn large_plan_has_all_sections() {
    let run = large();
    let plan = planned(&run, Some(15.6e12));
    let search_report = search(
        Planner::shipped(),
        &run,
        16_384,
        &Constraints { cp: Some(1), ..Constraints::default() },
    )
    .unwrap();
    let goodput = goodput_report(&plan, goodput::Hazard::DEDICATED);
    let html = render(&plan, Some(&search_report), Some(&goodput), &around(&run, 15.6e12));
    save("page.html", &html);
    check(&html);
    assert_eq!(html.matches("class=\"column\"").count(), 16, "all stages");
    assert!(html.contains("stage 16, ") && !html.contains("stage 0, "), "stages count from 1");
    assert_eq!(html.matches("class=\"fall ").count(), plan.estimate.phases.len());
    assert_eq!(html.matches("class=\"point ").count(), plan.roofline.work.len());
    assert_eq!(html.matches("class=\"place\"").count(), 7);
    assert!(html.contains("16,384 GPUs (planned)"));
    assert!(html.contains("a list &lt;of prices&gt; &amp; more"));
    assert!(html.contains("<strong>Fits") || html.contains("<strong>Tight"), "as trained");
    let nearest = plan.estimate.nearest_measured.as_ref().unwrap();
    assert!(html.contains(&escape(&nearest.source)));
    let out = &search_report.ruled_out[0];
    assert!(html.contains(&escape(&out.reason)));
}

#[test]
fn small_plan_has_no_optional_sections() {
    let plan = planned(&small(), None);
    let html = render(&plan, None, None, &[]);
    save("page_small.html", &html);
    check(&html);
    assert_eq!(html.matches("class=\"column\"").count(), 1);
    assert!(!html.contains("Cost against time") && !html.contains("checkpoint interval"));
    assert!(!html.contains("Best parallelism configs"));
}

#[test]
fn long_moe_pipeline_in_fp8_is_drawn() {
    let parallelism = ParallelConfig { pp: 61, ep: 8, ..ParallelConfig::data_parallel(16, 1) };
    let mut run = run("deepseek-v3", "H100-SXM-80GB", parallelism, 2048, Framework::Tuned);
    run.precision = Precision::Fp8;
    let plan = planned(&run, Some(1e12));
    let mut points = around(&run, 1e12);
    for point in &mut points {
        point.usd = None;
    }
    let stuck = goodput_report(&plan, goodput::Hazard::with_mtbf(0.02).unwrap());
    let html = render(&plan, None, Some(&stuck), &points);
    save("page_long.html", &html);
    check(&html);
    assert_eq!(html.matches("class=\"column\"").count(), 61);
    assert_eq!(html.matches("class=\"lower\"").count(), 1, "the 16-bit peak too");
    assert!(html.contains("makes no progress"));
    assert!(html.contains("GPUs against time"));
}

#[test]
fn no_failures_give_no_infinite_numbers() {
    let plan = planned(&small(), Some(1e11));
    let calm = goodput_report(&plan, goodput::Hazard::NONE);
    let html = render(&plan, None, Some(&calm), &around(&small(), 1e11)[..1]);
    check(&html);
    assert!(html.contains("none: nothing fails"));
}

#[test]
fn gpus_without_nvlink_are_bound_by_pcie() {
    let parallelism =
        ParallelConfig { sharding: Sharding::Weights, ..ParallelConfig::data_parallel(8, 1) };
    for (gpu, link, other) in [("A10", "PCIe", "NVLink"), ("H100", "NVLink", "PCIe")] {
        let run = run("llama3.2-1b", gpu, parallelism, 16, Framework::FsdpCompiled);
        let html = render(&planned(&run, None), None, None, &[]);
        assert!(html.contains(link) && !html.contains(other), "{gpu}");
    }
}

#[test]
fn oversized_run_is_reported_first() {
    let mut run = small();
    run.parallelism.sharding = Sharding::None;
    let html = render(&planned(&run, None), None, None, &[]);
    assert!(html.contains("class=\"answer no\"") && html.contains("Does not fit"));
}
