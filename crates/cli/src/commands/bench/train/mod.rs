//! `farrier bench train`: the table of training steps, before and after.
//!
//! ```text
//! flags ─> plan (pure) ─> runner ─ what has not run ─> child: python -m farrier.bench.… ─ one line of JSON ─┐
//!                                                                                                            v
//! stdout, --html <─ view, page (pure) <─ report <─ numbers (pure) <─ shards <──────────────── DIR/shards/NAME.json
//! ```
//!
//! A shard is one process and one file. Whatever stops a run, the next one goes on where it was.

mod about;
mod child;
mod numbers;
mod page;
mod plan;
mod report;
mod runner;
mod shard;
mod store;
mod table;
mod view;

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use anyhow::Context;

use self::plan::{Filter, MemoryPlan, Plan, Shape};
use self::report::{Asked, Report};
use self::runner::Runner;
use self::shard::{Shard, Spec};
use self::store::Store;
use crate::cli::Output;
use crate::commands::Outcome;
use crate::fact_sets;
use crate::failure::Hinted;
use crate::printer::Printer;

/// Training steps on the present GPU: eager, compiled, and as farrier runs them.
///
/// Each measurement is a shard: a Python process of its own, whose result is one file below DIR. Shards that have run are
/// not run again, so the same command goes on where an earlier one stopped. Figures are of all shards in DIR, or of those
/// that the flags name. Exits with 1 if a shard failed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where the shards are kept
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// The Python that has torch and the package `farrier`
    #[arg(long, value_name = "PATH", default_value = "python3")]
    python: PathBuf,
    /// What is measured: training steps, the stream of shapes under a cap of memory [default: both]
    #[arg(long, value_enum, value_name = "PARTS", value_delimiter = ',')]
    parts: Option<Vec<Part>>,
    /// Models and the shapes of their batches, as MODEL@ROWSxLENGTH
    /// [default: 191m@1x512,191m@16x1024,1.4b@4x2048,7b-lora@1x2048]
    #[arg(long, value_name = "SHAPES", value_delimiter = ',', value_parser = plan::shape)]
    models: Option<Vec<Shape>>,
    /// Ways to run a step [default: eager,compile,reduce-overhead,ours]
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = plan::word)]
    variants: Option<Vec<String>>,
    /// How often each is measured, in turns [default: 3]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeats: Option<u32>,
    /// Steps before the measured ones
    #[arg(long, value_name = "COUNT", default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..))]
    warmups: u32,
    /// Groups of measured steps
    #[arg(long, value_name = "COUNT", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    groups: u32,
    /// Steps of a group
    #[arg(long, value_name = "COUNT", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    steps: u32,
    /// The model under a cap of memory [default: 1.4b]
    #[arg(long, value_name = "MODEL", value_parser = plan::word)]
    memory_model: Option<String>,
    /// The caps of memory, in GiB [default: 30,26]
    #[arg(long, value_name = "GIB", value_delimiter = ',', value_parser = cap)]
    caps: Option<Vec<f64>>,
    /// Allocators under a cap [default: default,expandable,cudaMallocAsync,ours]
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = plan::word)]
    memory_variants: Option<Vec<String>>,
    /// Streams of shapes under a cap [default: 3]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1000))]
    seeds: Option<u32>,
    /// Steps of a stream
    #[arg(long, value_name = "COUNT", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..))]
    memory_steps: u32,
    /// How long a shard may take
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..))]
    deadline: u64,
    /// Stop after this time; the shard at work is dropped and is run again by the next command
    #[arg(long, value_name = "SECONDS")]
    stop_after: Option<u64>,
    /// Run shards again that failed
    #[arg(long)]
    retry_failed: bool,
    /// Run nothing; print what DIR holds, of the parts, models, variants, repeats, caps and seeds that are given
    #[arg(long, conflicts_with_all = ["python", "warmups", "groups", "steps", "memory_steps", "deadline", "stop_after", "retry_failed"])]
    merge_only: bool,
    /// What a GPU hour costs, in US dollars; without it no cost is given
    #[arg(long, value_name = "USD", value_parser = price)]
    price_per_hour: Option<f64>,
    /// Write a page with plots too
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// How to print
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    output: Output,
}

/// The parts of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// Training steps.
    Steps,
    /// The stream of shapes under a cap of memory.
    Memory,
}

fn positive(text: &str) -> Option<f64> {
    text.parse().ok().filter(|&number: &f64| number.is_finite() && number > 0.0)
}

fn cap(text: &str) -> Result<f64, String> {
    positive(text).ok_or_else(|| "expected a number of GiB such as 30".to_owned())
}

fn price(text: &str) -> Result<f64, String> {
    positive(text).ok_or_else(|| "expected a price such as 3.50".to_owned())
}

/// The models that are measured where none are named.
const MODELS: [(&str, u32, u32); 4] =
    [("191m", 1, 512), ("191m", 16, 1024), ("1.4b", 4, 2048), ("7b-lora", 1, 2048)];

pub(crate) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let (store, plan, left) = if args.merge_only {
        (Store::open(&args.dir)?, None, None)
    } else {
        let plan = plan(args);
        let specs = plan.shards();
        if !Store::is_there(&args.dir) {
            // Before anything is made: who cannot measure is left nothing to tidy up.
            runner::importable(&args.python, &specs.iter().collect::<Vec<_>>())?;
        }
        let store = Store::create(&args.dir)?;
        let _lock = store.lock()?;
        let left = Runner::new(args, &store, &plan).run(&specs)?;
        (store, Some(plan), Some(left))
    };
    let filter = filter(args);
    let mut shards = store.all()?;
    if args.merge_only {
        refuse_what_is_not_there(args, &filter, &shards)?;
    }
    // A file that does not say what it is of is shown whatever is asked for.
    shards.retain(|it| it.spec.as_ref().is_none_or(|spec| filter.keeps(spec)));
    let asked = Asked { plan, filter, price_per_hour_usd: args.price_per_hour };
    let report = Report::of(&shards, &fact_sets::active().gpus, &asked);
    if let Some(path) = &args.html {
        fs::write(path, page::page(&report))
            .with_context(|| format!("failed to write `{}`", path.display()))?;
    }
    if args.output == Output::Json {
        printer.json(&report)?;
    } else {
        table::print(&report, printer)?;
    }
    if let Some(left) = left.filter(|&left| left > 0) {
        progress(&format!("stopped with {left} shards to go; the same command goes on"));
    }
    Ok(Outcome::finding_if(!report.failed.is_empty()))
}

/// A name that matches nothing is a slip of the pen, and an empty table would not say so.
fn refuse_what_is_not_there(args: &Args, filter: &Filter, shards: &[Shard]) -> anyhow::Result<()> {
    let planned = shards.iter().filter_map(|it| it.plan.as_ref()).flat_map(Plan::shards);
    let held: Vec<Spec> = planned.chain(shards.iter().filter_map(|it| it.spec.clone())).collect();
    match filter.missing(&held) {
        None => Ok(()),
        Some(what) => Err(Hinted::error(
            format!("`{}` holds no shard of {what}", args.dir.display()),
            "--merge-only without it prints all that is there",
        )),
    }
}

fn plan(args: &Args) -> Plan {
    let has = |part| args.parts.as_ref().is_none_or(|parts| parts.contains(&part));
    let words = |given: &Option<Vec<String>>, usual: &[&str]| {
        given.clone().unwrap_or_else(|| usual.iter().map(|&it| it.to_owned()).collect())
    };
    let shape =
        |(model, rows, length): (&str, u32, u32)| Shape { model: model.to_owned(), rows, length };
    let shapes = || args.models.clone().unwrap_or_else(|| MODELS.map(shape).into());
    Plan {
        shapes: if has(Part::Steps) { shapes() } else { Vec::new() },
        variants: words(&args.variants, &["eager", "compile", "reduce-overhead", "ours"]),
        repeats: args.repeats.unwrap_or(3),
        warmups: args.warmups,
        groups: args.groups,
        steps: args.steps,
        memory: has(Part::Memory).then(|| MemoryPlan {
            model: args.memory_model.clone().unwrap_or_else(|| "1.4b".to_owned()),
            caps_gib: args.caps.clone().unwrap_or_else(|| vec![30.0, 26.0]),
            variants: words(
                &args.memory_variants,
                &["default", "expandable", "cudaMallocAsync", "ours"],
            ),
            seeds: args.seeds.unwrap_or(3),
            steps: args.memory_steps,
        }),
    }
}

fn filter(args: &Args) -> Filter {
    let without = |part| args.parts.as_ref().is_some_and(|parts| !parts.contains(&part));
    Filter {
        no_steps: without(Part::Steps),
        no_memory: without(Part::Memory),
        shapes: args.models.clone(),
        variants: args.variants.clone(),
        repeats: args.repeats,
        memory_model: args.memory_model.clone(),
        caps_gib: args.caps.clone(),
        memory_variants: args.memory_variants.clone(),
        seeds: args.seeds,
    }
}

/// The driver that is loaded, as the kernel says.
pub(super) fn driver_version() -> Option<String> {
    let text = fs::read_to_string("/sys/module/nvidia/version").ok()?;
    Some(text.trim().to_owned()).filter(|version| !version.is_empty())
}

/// A line on stderr. Where nobody listens any more the measurement goes on.
fn progress(text: &str) {
    let _ = std::io::stderr().write_all(format!("{text}\n").as_bytes());
}
