//! `farrier bench train`: the table of training steps, before and after.
//!
//! ```text
//! flags ─> plan (pure) ─> runner ─ what has not run ─> child: python -m farrier.bench.… ─ one line of JSON ─┐
//!                                                                                                            v
//! stdout, --html <─ view, page (pure) <─ report <─ numbers (pure) <─ shards <──────────────── DIR/shards/NAME.json
//! ```
//!
//! A shard is one process and one file. Whatever stops a run, the next one goes on where it was.

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

use self::plan::{MemoryPlan, Plan, Shape};
use self::report::Report;
use self::runner::Runner;
use self::store::Store;
use crate::cli::Output;
use crate::commands::Outcome;
use crate::printer::Printer;
use crate::sets;

/// Training steps on the present GPU: eager, compiled, and as farrier runs them.
///
/// Each measurement is a shard: a Python process of its own, whose result is one file below DIR. Shards that have run are
/// not run again, so the same command goes on where an earlier one stopped. Exits with 1 if a shard failed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where the shards are kept
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// The Python that has torch and the package `farrier`
    #[arg(long, value_name = "PATH", default_value = "python3")]
    python: PathBuf,
    /// What is measured: training steps, the stream of shapes under a cap of memory
    #[arg(long, value_enum, value_name = "PARTS", value_delimiter = ',', default_values_t = [Part::Steps, Part::Memory])]
    parts: Vec<Part>,
    /// Models and the shapes of their batches, as MODEL@ROWSxLENGTH
    #[arg(long, value_name = "SHAPES", value_delimiter = ',', value_parser = plan::shape,
        default_value = "191m@1x512,191m@16x1024,1.4b@4x2048,7b-lora@1x2048")]
    models: Vec<Shape>,
    /// Ways to run a step
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = plan::word,
        default_value = "eager,compile,reduce-overhead,ours")]
    variants: Vec<String>,
    /// How often each is measured, in turns
    #[arg(long, value_name = "COUNT", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeats: u32,
    /// Steps before the measured ones
    #[arg(long, value_name = "COUNT", default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..))]
    warmups: u32,
    /// Groups of measured steps
    #[arg(long, value_name = "COUNT", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    groups: u32,
    /// Steps of a group
    #[arg(long, value_name = "COUNT", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    steps: u32,
    /// The model under a cap of memory
    #[arg(long, value_name = "MODEL", value_parser = plan::word, default_value = "1.4b")]
    memory_model: String,
    /// The caps of memory, in GiB
    #[arg(long, value_name = "GIB", value_delimiter = ',', value_parser = cap, default_value = "30,26")]
    caps: Vec<f64>,
    /// Allocators under a cap
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = plan::word,
        default_value = "default,expandable,cudaMallocAsync,ours")]
    memory_variants: Vec<String>,
    /// Streams of shapes under a cap
    #[arg(long, value_name = "COUNT", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    seeds: u32,
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
    /// Run nothing; print what DIR holds
    #[arg(long)]
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

pub(crate) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let (store, left) = if args.merge_only {
        (Store::open(&args.dir)?, None)
    } else {
        let store = Store::create(&args.dir)?;
        let _lock = store.lock()?;
        let left = Runner::new(args, &store).run(&plan(args).shards())?;
        (store, Some(left))
    };
    let shards = store.all()?;
    let report = Report::of(&shards, &sets::active().gpus, args.price_per_hour, left);
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

fn plan(args: &Args) -> Plan {
    let has = |part| args.parts.contains(&part);
    Plan {
        shapes: if has(Part::Steps) { args.models.clone() } else { Vec::new() },
        variants: args.variants.clone(),
        repeats: args.repeats,
        warmups: args.warmups,
        groups: args.groups,
        steps: args.steps,
        memory: has(Part::Memory).then(|| MemoryPlan {
            model: args.memory_model.clone(),
            caps_gib: args.caps.clone(),
            variants: args.memory_variants.clone(),
            seeds: args.seeds,
            steps: args.memory_steps,
        }),
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
