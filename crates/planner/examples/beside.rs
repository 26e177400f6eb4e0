//! What `cargo xtask bench planner` asks this crate and a peer alike.
//!
//! ```sh
//! cargo run --release -p farrier-planner --example beside -- questions
//! cargo run --release -p farrier-planner --example beside -- time
//! ```
//!
//! `questions` prints, as JSON, the published runs that llm-analysis can be told of, with what was
//! measured and what is estimated of each by a fit that its group had no part in. `time` prints
//! microseconds of an answer, name and time on a line.
#![expect(clippy::disallowed_methods, reason = "it reads the clock; the crate may not")]

use std::collections::BTreeMap;
use std::hint::black_box;
use std::io::Write;
use std::time::Instant;

use farrier_facts::FactSet;
use farrier_planner::Planner;
use farrier_planner::gpu::Accelerator;
use farrier_planner::layout::{Layout, Recompute};
use farrier_planner::model::{Attention, Window, builtin};
use farrier_planner::plan::plan;
use farrier_planner::precision::Precision;
use farrier_planner::published::{self, Published};
use farrier_planner::run::{Run, Stack, Task};
use farrier_planner::score::{Scored, score};
use farrier_planner::search::{Axes, search};
use serde::Serialize;

type Failure = Box<dyn std::error::Error>;

/// Answers of each question, and searches, of one `time`.
const ANSWERS: usize = 20;
const SEARCHES: usize = 7;

fn main() -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    match std::env::args().nth(1).as_deref() {
        Some("questions") => questions(&mut out),
        Some("time") => times(&mut out),
        _ => Err("`questions` or `time`?".into()),
    }
}

/// A run in the words of llm-analysis.
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

/// The part as llm-analysis calls it.
fn gpu(row: &Published) -> Option<&'static str> {
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

/// What it can be told of a row, or why not.
fn question(scored: &Scored) -> Result<Question, &'static str> {
    let (row, run) = (&scored.row, &scored.row.run);
    let (model, layout) = (&run.model, &run.layout);
    let gpu = gpu(row).ok_or("a GPU that it does not have")?;
    if !matches!(run.precision, Precision::Bf16 | Precision::Fp16) {
        return Err("8 or fewer bits, which its documentation lists as still to come");
    }
    if model.experts.is_some() {
        return Err("a mixture of experts");
    }
    if !row.assumed.is_empty() {
        return Err("a row that does not state all");
    }
    let Attention::Grouped { heads, kv_heads, head_dim } = model.attention else {
        return Err("latent attention");
    };
    if heads * head_dim != model.hidden || model.window != Window::NONE {
        return Err("attention of another width than the model's, or with a window");
    }
    if layout.cp > 1 {
        return Err("context parallelism");
    }
    if run.task != Task::Full {
        return Err("adapters");
    }
    let recompute = match layout.recompute {
        Recompute::None => "NONE",
        Recompute::Attention => "SELECTIVE",
        Recompute::Full => "FULL",
        _ => return Err("recomputation of some blocks or operators"),
    };
    if !run.global_batch.is_multiple_of(layout.dp * layout.micro_batch) {
        return Err("a batch that its copies do not divide");
    }
    Ok(Question {
        source: row.source.clone(),
        program: run.stack.name(),
        model: model.name.clone(),
        layers: model.layers,
        hidden: model.hidden,
        heads,
        kv_heads,
        ffn: model.ffn,
        gated: model.gated,
        vocab: model.vocab,
        gpu,
        tp: layout.tp,
        pp: layout.pp,
        dp: layout.dp,
        sequence_parallel: layout.sequence_parallel,
        seq_len: run.seq_len,
        global_batch: run.global_batch,
        micro_batch: layout.micro_batch,
        recompute,
        zero: layout.sharding.stage(),
        flash_attention: run.stack != Stack::MegatronEarly,
        measured_s: row.step_s,
        farrier_s: row.step_s * (1.0 + scored.error),
    })
}

/// What can be asked of both, and how many rows cannot for which reason.
#[derive(Serialize)]
struct Questions {
    questions: Vec<Question>,
    left_out: BTreeMap<&'static str, usize>,
}

fn asked() -> Result<(Questions, Vec<Run>), Failure> {
    let table = published::read(FactSet::embedded(), published::embedded())?;
    let (mut questions, mut runs, mut left_out) = (Vec::new(), Vec::new(), BTreeMap::new());
    for scored in score(Planner::shipped(), table).rows {
        match question(&scored) {
            Ok(question) => {
                questions.push(question);
                runs.push(scored.row.run);
            }
            Err(why) => *left_out.entry(why).or_insert(0) += 1,
        }
    }
    Ok((Questions { questions, left_out }, runs))
}

fn questions(out: &mut impl Write) -> Result<(), Failure> {
    let (questions, _) = asked()?;
    serde_json::to_writer_pretty(&mut *out, &questions)?;
    writeln!(out)?;
    Ok(())
}

/// 405 billion weights on as many GPUs as they were trained on (arXiv:2407.21783, 3.3).
fn largest() -> Result<Run, Failure> {
    let model = builtin::named("llama3.1-405b").ok_or("the model is not known")?.model();
    Ok(Run {
        model,
        gpu: Accelerator::named(FactSet::embedded(), "H100-SXM-80GB")?,
        seq_len: 8192,
        global_batch: 2048,
        precision: Precision::Bf16,
        layout: Layout::copies(16_384, 1),
        task: Task::Full,
        stack: Stack::Bridge,
        fused_experts: false,
    })
}

fn times(out: &mut impl Write) -> Result<(), Failure> {
    let start = Instant::now();
    let planner = black_box(Planner::shipped());
    writeln!(out, "load\t{}", start.elapsed().as_secs_f64() * 1e6)?;
    let (_, runs) = asked()?;
    writeln!(out, "answer\t{}", answer_us(planner, &runs, ANSWERS))?;
    let run = largest()?;
    let mut searches = Vec::new();
    for _ in 0..SEARCHES {
        let start = Instant::now();
        let report = search(planner, black_box(&run), 16_384, &Axes::default())?;
        searches.push(start.elapsed().as_secs_f64() * 1e6);
        black_box(report);
    }
    writeln!(out, "search\t{}", median(&mut searches))?;
    let report = search(planner, &run, 16_384, &Axes::default())?;
    writeln!(out, "tried\t{}\nfit\t{}", report.tried, report.fit)?;
    let winner = Run { layout: report.best[0].layout, ..run };
    writeln!(out, "stages\t{}", winner.layout.pp)?;
    writeln!(out, "largest\t{}", answer_us(planner, &[winner], 1000))?;
    Ok(())
}

/// The median time of a whole plan.
fn answer_us(planner: &Planner, runs: &[Run], times: usize) -> f64 {
    let mut answers = Vec::new();
    for _ in 0..times {
        for run in runs {
            let start = Instant::now();
            black_box(plan(planner, black_box(run), None, None));
            answers.push(start.elapsed().as_secs_f64() * 1e6);
        }
    }
    median(&mut answers)
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
