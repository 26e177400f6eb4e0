//! `farrier bench train`: benchmarks training steps, before and after.
//!
//! ```text
//! flags ─> plan (pure) ─> runner ─ unfinished shards ─> child: python -m farrier.bench.…
//!                                                                      │ JSON line
//!                                                                      v
//! stdout, --html <─ view, html (pure) <─ report <─ aggregate (pure) <─ DIR/shards/NAME.json
//! ```
//!
//! A shard is the measurement of one process, whose result is one file. An interrupted run
//! continues with the shards that are left.

mod aggregate;
mod child;
mod html;
mod plan;
mod report;
mod runner;
mod shard;
mod store;
mod summary;
mod table;
mod view;

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use anyhow::Context;

use self::plan::{Filter, MemoryPlan, Plan, Shape};
use self::report::{BenchReport, ReportOptions};
use self::runner::ShardRunner;
use self::shard::{Shard, Spec};
use self::store::ShardStore;
use crate::cli::Output;
use crate::commands::Outcome;
use crate::fact_sets;
use crate::failure::Hinted;
use crate::printer::Printer;

/// Benchmarks training steps on this GPU: eager, compiled, and with farrier.
///
/// Each measurement is a shard: a separate Python process, whose result is one file below DIR.
/// Finished shards are not run again, so the same command resumes an interrupted run. Figures cover
/// all shards in DIR, or those selected by flags. Exits with 1 if a shard failed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Directory of the shards
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Python interpreter with torch and the package `farrier`
    #[arg(long, value_name = "PATH", default_value = "python3")]
    python: PathBuf,
    /// What to measure: training steps, random shapes under a memory cap [default: both]
    #[arg(long, value_enum, value_name = "PARTS", value_delimiter = ',')]
    parts: Option<Vec<BenchPart>>,
    /// Models and batch shapes, as MODEL@ROWSxLENGTH
    /// [default: 191m@1x512,191m@16x1024,1.4b@4x2048,7b-lora@1x2048]
    #[arg(long, value_name = "SHAPES", value_delimiter = ',', value_parser = plan::parse_shape)]
    models: Option<Vec<Shape>>,
    /// Variants of the step [default: eager,compile,reduce-overhead,ours]
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = plan::parse_name)]
    variants: Option<Vec<String>>,
    /// Number of interleaved repeats [default: 3]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeats: Option<u32>,
    /// Warm-up steps
    #[arg(long, value_name = "COUNT", default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..))]
    warmups: u32,
    /// Groups of measured steps
    #[arg(long, value_name = "COUNT", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    groups: u32,
    /// Steps per group
    #[arg(long, value_name = "COUNT", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    steps: u32,
    /// Model under the memory cap [default: 1.4b]
    #[arg(long, value_name = "MODEL", value_parser = plan::parse_name)]
    memory_model: Option<String>,
    /// Memory caps, in GiB [default: 30,26]
    #[arg(long, value_name = "GIB", value_delimiter = ',', value_parser = cap)]
    caps: Option<Vec<f64>>,
    /// Allocators under the cap [default: default,expandable,cudaMallocAsync,ours]
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = plan::parse_name)]
    memory_variants: Option<Vec<String>>,
    /// Number of random streams of shapes under the cap [default: 3]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1000))]
    seeds: Option<u32>,
    /// Steps per stream
    #[arg(long, value_name = "COUNT", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..))]
    memory_steps: u32,
    /// Timeout of a shard
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..))]
    deadline: u64,
    /// Stop after this time; the running shard is discarded and run again by the next command
    #[arg(long, value_name = "SECONDS")]
    stop_after: Option<u64>,
    /// Run failed shards again
    #[arg(long)]
    retry_failed: bool,
    /// Run nothing; print the shards in DIR, filtered by parts, models, variants, repeats, caps and
    /// seeds
    #[arg(long, conflicts_with_all = ["python", "warmups", "groups", "steps", "memory_steps", "deadline", "stop_after", "retry_failed"])]
    merge_only: bool,
    /// Price of a GPU-hour, in US dollars; without it no cost is printed
    #[arg(long, value_name = "USD", value_parser = price)]
    price_per_hour: Option<f64>,
    /// Also write an HTML page with charts
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Output format
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    output: Output,
}

/// What to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum BenchPart {
    /// Training steps.
    Steps,
    /// Random shapes under a memory cap.
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

/// The default models.
const MODELS: [(&str, u32, u32); 4] =
    [("191m", 1, 512), ("191m", 16, 1024), ("1.4b", 4, 2048), ("7b-lora", 1, 2048)];

pub(crate) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let (store, plan, left) = if args.merge_only {
        (ShardStore::open(&args.dir)?, None, None)
    } else {
        let plan = plan(args);
        let specs = plan.shards();
        if !ShardStore::exists(&args.dir) {
            // Check this before anything is created, so that a failed start leaves no directory.
            runner::check_python(&args.python, &specs.iter().collect::<Vec<_>>())?;
        }
        let store = ShardStore::create(&args.dir)?;
        let _lock = store.lock()?;
        let left = ShardRunner::new(args, &store, &plan).run(&specs)?;
        (store, Some(plan), Some(left))
    };
    let filter = filter(args);
    let mut shards = store.read_all()?;
    if args.merge_only {
        require_matches(args, &filter, &shards)?;
    }
    // If the file of a shard is unreadable, the shard has no spec, and passes every filter.
    shards.retain(|shard| shard.spec.as_ref().is_none_or(|spec| filter.matches(spec)));
    let options = ReportOptions { plan, filter, price_per_hour_usd: args.price_per_hour };
    let report = BenchReport::from_shards(&shards, &fact_sets::active().gpus, &options);
    if let Some(path) = &args.html {
        fs::write(path, html::page(&report))
            .with_context(|| format!("failed to write `{}`", path.display()))?;
    }
    if args.output == Output::Json {
        printer.json(&report)?;
    } else {
        table::print(&report, printer)?;
    }
    if let Some(left) = left.filter(|&left| left > 0) {
        progress(&format!("stopped with {left} shards to go; run the same command to resume"));
    }
    Ok(Outcome::finding_if(!report.failed.is_empty()))
}

/// Fails if a filter has a name that no shard has. The name is probably a typo, and an empty table
/// would hide that.
fn require_matches(args: &Args, filter: &Filter, shards: &[Shard]) -> anyhow::Result<()> {
    let planned = shards.iter().filter_map(|shard| shard.plan.as_ref()).flat_map(Plan::shards);
    let existing: Vec<Spec> =
        planned.chain(shards.iter().filter_map(|shard| shard.spec.clone())).collect();
    match filter.missing(&existing) {
        None => Ok(()),
        Some(what) => Err(Hinted::error(
            format!("`{}` has no shard with {what}", args.dir.display()),
            "--merge-only without it prints all shards",
        )),
    }
}

fn plan(args: &Args) -> Plan {
    let includes = |part| args.parts.as_ref().is_none_or(|parts| parts.contains(&part));
    let names = |given: &Option<Vec<String>>, default: &[&str]| {
        given.clone().unwrap_or_else(|| default.iter().map(|&name| name.to_owned()).collect())
    };
    let shape =
        |(model, rows, length): (&str, u32, u32)| Shape { model: model.to_owned(), rows, length };
    let shapes = || args.models.clone().unwrap_or_else(|| MODELS.map(shape).into());
    Plan {
        shapes: if includes(BenchPart::Steps) { shapes() } else { Vec::new() },
        variants: names(&args.variants, &["eager", "compile", "reduce-overhead", "ours"]),
        repeats: args.repeats.unwrap_or(3),
        warmups: args.warmups,
        groups: args.groups,
        steps: args.steps,
        memory: includes(BenchPart::Memory).then(|| MemoryPlan {
            model: args.memory_model.clone().unwrap_or_else(|| "1.4b".to_owned()),
            caps_gib: args.caps.clone().unwrap_or_else(|| vec![30.0, 26.0]),
            variants: names(
                &args.memory_variants,
                &["default", "expandable", "cudaMallocAsync", "ours"],
            ),
            seeds: args.seeds.unwrap_or(3),
            steps: args.memory_steps,
        }),
    }
}

fn filter(args: &Args) -> Filter {
    let excludes = |part| args.parts.as_ref().is_some_and(|parts| !parts.contains(&part));
    Filter {
        no_steps: excludes(BenchPart::Steps),
        no_memory: excludes(BenchPart::Memory),
        shapes: args.models.clone(),
        variants: args.variants.clone(),
        repeats: args.repeats,
        memory_model: args.memory_model.clone(),
        caps_gib: args.caps.clone(),
        memory_variants: args.memory_variants.clone(),
        seeds: args.seeds,
    }
}

/// Version of the loaded driver, from sysfs.
pub(super) fn driver_version() -> Option<String> {
    let text = fs::read_to_string("/sys/module/nvidia/version").ok()?;
    Some(text.trim().to_owned()).filter(|version| !version.is_empty())
}

/// Prints a line on stderr. A failed write does not stop the benchmark.
fn progress(text: &str) {
    let _ = std::io::stderr().write_all(format!("{text}\n").as_bytes());
}
