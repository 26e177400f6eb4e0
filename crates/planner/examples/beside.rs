//! Farrier's side of `cargo xtask bench planner`, which compares this crate with llm-analysis.
//!
//! ```sh
//! cargo run --release -p farrier-planner --example beside -- questions
//! cargo run --release -p farrier-planner --example beside -- time
//! ```
//!
//! `questions` prints the published runs that llm-analysis can estimate, as JSON. The output for a
//! run has the measured step time, and Farrier's estimate from a model fitted without this run and
//! its near-duplicates. `time` prints measurements, one name and number per line; times are in
//! microseconds.
#![expect(
    clippy::disallowed_methods,
    reason = "this benchmark reads the clock, which the crate may not"
)]

use std::collections::BTreeMap;
use std::hint::black_box;
use std::io::Write;
use std::time::Instant;

use farrier_facts::FactSet;
use farrier_planner::Planner;
use farrier_planner::gpu::Accelerator;
use farrier_planner::model::{Attention, AttentionWindow, builtin};
use farrier_planner::parallelism::{ParallelConfig, Recompute};
use farrier_planner::plan::plan;
use farrier_planner::precision::Precision;
use farrier_planner::published::{self, PublishedRun};
use farrier_planner::run::{Framework, TrainingRun, TrainingTask};
use farrier_planner::score::{ScoredRow, score};
use farrier_planner::search::{Constraints, search};
use serde::Serialize;

type BoxError = Box<dyn std::error::Error>;

/// How often `time` plans each run.
const PLANS_PER_RUN: usize = 20;
/// How often `time` searches.
const SEARCHES: usize = 7;

fn main() -> Result<(), BoxError> {
    let mut out = std::io::stdout().lock();
    match std::env::args().nth(1).as_deref() {
        Some("questions") => questions(&mut out),
        Some("time") => times(&mut out),
        _ => Err("expected `questions` or `time`".into()),
    }
}

/// A run, described as the inputs of llm-analysis.
#[derive(Serialize)]
struct Question {
    source: String,
    program: &'static str,
    model: String,
    layers: u32,
    hidden: u32,
    heads: u32,
    kv_heads: u32,
    ffn: u32,
    gated: bool,
    vocab: u32,
    gpu: &'static str,
    tp: u32,
    pp: u32,
    dp: u32,
    sequence_parallel: bool,
    seq_len: u32,
    global_batch: u32,
    micro_batch: u32,
    recompute: &'static str,
    zero: u8,
    flash_attention: bool,
    measured_s: f64,
    farrier_s: f64,
}

/// The GPU's name in llm-analysis.
fn gpu(row: &PublishedRun) -> Option<&'static str> {
    let is = |name: &str| row.run.gpu.id.starts_with(name) && row.run.gpu.power_share >= 1.0;
    let gigabytes = row.run.gpu.hbm_bytes / 1e9;
    if is("A100-SXM") && gigabytes < 60.0 {
        Some("a100-sxm-40gb")
    } else if is("A100-SXM") {
        Some("a100-sxm-80gb")
    } else if is("H100-SXM") && row.gpu.starts_with("H100") && gigabytes < 85.0 {
        Some("h100-sxm-80gb")
    } else {
        None
    }
}

/// Converts a row, or says why it is excluded.
fn question(scored: &ScoredRow) -> Result<Question, &'static str> {
    let (row, run) = (&scored.row, &scored.row.run);
    let (model, parallelism) = (&run.model, &run.parallelism);
    let gpu = gpu(row).ok_or("a GPU that llm-analysis does not support")?;
    if !matches!(run.precision, Precision::Bf16 | Precision::Fp16) {
        return Err("a precision of 8 bits or fewer, which its documentation lists as future work");
    }
    if model.experts.is_some() {
        return Err("a MoE model");
    }
    if !row.assumed.is_empty() {
        return Err("an incomplete row");
    }
    let Attention::Grouped { heads, kv_heads, head_dim } = model.attention else {
        return Err("latent attention (MLA)");
    };
    if heads * head_dim != model.hidden || model.window != AttentionWindow::NONE {
        return Err("attention narrower or wider than the model, or with a window");
    }
    if parallelism.cp > 1 {
        return Err("context parallelism");
    }
    if run.task != TrainingTask::Full {
        return Err("LoRA");
    }
    let recompute = match parallelism.recompute {
        Recompute::None => "NONE",
        Recompute::Attention => "SELECTIVE",
        Recompute::Full => "FULL",
        _ => return Err("recomputation of some layers or operators"),
    };
    if !run.global_batch.is_multiple_of(parallelism.dp * parallelism.micro_batch) {
        return Err("a batch that the replicas do not divide evenly");
    }
    Ok(Question {
        source: row.source.clone(),
        program: run.framework.name(),
        model: model.name.clone(),
        layers: model.layers,
        hidden: model.hidden,
        heads,
        kv_heads,
        ffn: model.ffn,
        gated: model.gated,
        vocab: model.vocab,
        gpu,
        tp: parallelism.tp,
        pp: parallelism.pp,
        dp: parallelism.dp,
        sequence_parallel: parallelism.sequence_parallel,
        seq_len: run.seq_len,
        global_batch: run.global_batch,
        micro_batch: parallelism.micro_batch,
        recompute,
        zero: parallelism.sharding.zero_stage(),
        flash_attention: run.framework != Framework::MegatronEarly,
        measured_s: row.step_s,
        farrier_s: row.step_s * (1.0 + scored.error),
    })
}

/// The runs that both programs estimate, and the number of excluded rows by reason.
#[derive(Serialize)]
struct Questions {
    questions: Vec<Question>,
    left_out: BTreeMap<&'static str, usize>,
}

fn collect_questions() -> Result<(Questions, Vec<TrainingRun>), BoxError> {
    let table = published::read(FactSet::embedded(), published::embedded())?;
    let (mut questions, mut runs, mut left_out) = (Vec::new(), Vec::new(), BTreeMap::new());
    for scored in score(Planner::shipped(), table).rows {
        match question(&scored) {
            Ok(question) => {
                questions.push(question);
                runs.push(scored.row.run);
            }
            Err(reason) => *left_out.entry(reason).or_insert(0) += 1,
        }
    }
    Ok((Questions { questions, left_out }, runs))
}

fn questions(out: &mut impl Write) -> Result<(), BoxError> {
    let (questions, _) = collect_questions()?;
    serde_json::to_writer_pretty(&mut *out, &questions)?;
    writeln!(out)?;
    Ok(())
}

/// Llama 3.1 405B on as many GPUs as it was trained on (arXiv:2407.21783, 3.3).
fn largest() -> Result<TrainingRun, BoxError> {
    let model = builtin::by_name("llama3.1-405b").ok_or("the model is not built in")?.model();
    Ok(TrainingRun {
        model,
        gpu: Accelerator::by_name(FactSet::embedded(), "H100-SXM-80GB")?,
        seq_len: 8192,
        global_batch: 2048,
        precision: Precision::Bf16,
        parallelism: ParallelConfig::data_parallel(16_384, 1),
        task: TrainingTask::Full,
        framework: Framework::Bridge,
        fused_experts: false,
    })
}

fn times(out: &mut impl Write) -> Result<(), BoxError> {
    let start = Instant::now();
    let planner = black_box(Planner::shipped());
    writeln!(out, "load\t{}", start.elapsed().as_secs_f64() * 1e6)?;
    let (_, runs) = collect_questions()?;
    writeln!(out, "answer\t{}", plan_us(planner, &runs, PLANS_PER_RUN))?;
    let run = largest()?;
    let mut searches = Vec::new();
    for _ in 0..SEARCHES {
        let start = Instant::now();
        let report = search(planner, black_box(&run), 16_384, &Constraints::default())?;
        searches.push(start.elapsed().as_secs_f64() * 1e6);
        black_box(report);
    }
    writeln!(out, "search\t{}", median(&mut searches))?;
    let report = search(planner, &run, 16_384, &Constraints::default())?;
    writeln!(out, "tried\t{}\nfit\t{}", report.tried, report.fit)?;
    let winner = TrainingRun { parallelism: report.best[0].parallelism, ..run };
    writeln!(out, "stages\t{}", winner.parallelism.pp)?;
    writeln!(out, "largest\t{}", plan_us(planner, &[winner], 1000))?;
    Ok(())
}

/// Median time of a plan.
fn plan_us(planner: &Planner, runs: &[TrainingRun], repeats: usize) -> f64 {
    let mut plans = Vec::new();
    for _ in 0..repeats {
        for run in runs {
            let start = Instant::now();
            black_box(plan(planner, black_box(run), None, None));
            plans.push(start.elapsed().as_secs_f64() * 1e6);
        }
    }
    median(&mut plans)
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
