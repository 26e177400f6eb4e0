//! `farrier bench train`: the table of training steps, before and after.
//!
//! ```text
//! flags ─> plan (pure) ─ what has not run ─> child: python -m farrier.bench.… ─ one line of JSON ─┐
//!                                                                                                  v
//! stdout, --html <─ view, page (pure) <─ report <─ numbers (pure) <─ shards <────── DIR/shards/NAME.json
//! ```
//!
//! A shard is one process and one file. Whatever stops a run, the next one goes on where it was.

mod child;
mod numbers;
mod page;
mod plan;
mod report;
mod shard;
mod store;
mod table;
mod view;

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Context;

use self::plan::{MemoryPlan, Plan, Shape};
use self::report::Report;
use self::shard::{Ending, Machine, Measured, ShardFile, Spec, VERSION, measured};
use self::store::Store;
use crate::cli::Output;
use crate::commands::Outcome;
use crate::failure::Hinted;
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

/// Runs the shards that have not run.
struct Runner<'a> {
    args: &'a Args,
    store: &'a Store,
    machine: Machine,
    command: String,
    stop: Option<Instant>,
}

impl<'a> Runner<'a> {
    fn new(args: &'a Args, store: &'a Store) -> Self {
        let words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
        let mut words: Vec<String> = words.collect();
        if let Some(first) = words.first_mut() {
            "farrier".clone_into(first);
        }
        Self {
            args,
            store,
            machine: machine(),
            command: words.join(" "),
            stop: args.stop_after.map(|after_s| Instant::now() + Duration::from_secs(after_s)),
        }
    }

    /// How many are left.
    fn run(&self, shards: &[Spec]) -> anyhow::Result<usize> {
        let mut left = Vec::new();
        let mut times: Vec<(Spec, f64)> = Vec::new();
        for spec in shards {
            match self.finished(spec)? {
                Some(file) => times.push((file.spec, file.wall_s)),
                None => left.push(spec),
            }
        }
        if left.is_empty() {
            return Ok(0);
        }
        importable(&self.args.python, &left)?;
        progress(&format!("{} of {} shards to run", left.len(), shards.len()));
        for (place, spec) in left.iter().enumerate() {
            let longest = times
                .iter()
                .filter(|(other, _)| other.takes_as_long_as(spec))
                .map(|(_, wall_s)| *wall_s)
                .fold(0.0, f64::max);
            if self.left_s().is_some_and(|left_s| left_s <= longest) {
                return Ok(left.len() - place);
            }
            let Some(wall_s) = self.one(spec, place + 1, left.len())? else {
                return Ok(left.len() - place);
            };
            times.push(((*spec).clone(), wall_s));
        }
        Ok(0)
    }

    fn left_s(&self) -> Option<f64> {
        Some(self.stop?.saturating_duration_since(Instant::now()).as_secs_f64())
    }

    /// What a shard gave before, if it is not to be run again.
    fn finished(&self, spec: &Spec) -> anyhow::Result<Option<ShardFile>> {
        let name = spec.name();
        let Some(read) = self.store.read(&name)? else { return Ok(None) };
        let file = read.map_err(|why| {
            let message = format!("the shard `{name}` in `{}`: {why}", self.args.dir.display());
            Hinted::error(message, "remove its file, or measure into another --dir")
        })?;
        if file.spec != *spec {
            let message = format!(
                "`{}` holds the shard `{name}` of another measurement",
                self.args.dir.display()
            );
            let hint = "give the same --warmups, --groups, --steps and --memory-steps as before, or another --dir";
            return Err(Hinted::error(message, hint));
        }
        let again = self.args.retry_failed && matches!(file.outcome, Ending::Failed(_));
        Ok((!again).then_some(file))
    }

    /// Runs one and keeps it. None if the run has to stop before it is done.
    fn one(&self, spec: &Spec, place: usize, of: usize) -> anyhow::Result<Option<f64>> {
        let mut command = Command::new(&self.args.python);
        command.args(["-m", spec.module(), &spec.argument()?]);
        let deadline = Duration::from_secs(self.args.deadline);
        let began = jiff::Timestamp::now().round(jiff::Unit::Second)?.to_string();
        let ran = child::run(command, |stream| self.store.scratch(stream), deadline, self.stop)
            .with_context(|| format!("failed to run `{}`", self.args.python.display()))?;
        let Some(outcome) = child::ending(spec, &ran, deadline) else { return Ok(None) };
        let said = said(spec, &outcome);
        progress(&format!("{place}/{of} {}: {said} ({:.0} s)", spec.title(), ran.wall_s));
        self.store.write(&ShardFile {
            farrier_shard: VERSION,
            spec: spec.clone(),
            machine: self.machine.clone(),
            began,
            wall_s: ran.wall_s,
            command: self.command.clone(),
            outcome,
        })?;
        Ok(Some(ran.wall_s))
    }
}

/// A word on what became of a shard.
fn said(spec: &Spec, outcome: &Ending) -> String {
    let value = match outcome {
        Ending::Failed(failure) => return format!("FAILED, {}", failure.why),
        Ending::Done(value) => value,
    };
    match measured(spec, value) {
        Ok(Measured::Steps(it)) => {
            let least_s = it.step_s.iter().copied().fold(f64::INFINITY, f64::min);
            format!("up to {} tokens/s", super::spread::thousands(it.tokens / least_s))
        }
        Ok(Measured::Memory(it)) => format!("{} of {} steps lost", it.lost.len(), it.steps_asked),
        Err(why) => why,
    }
}

/// Says what the shards would miss. torch is not imported, which takes seconds: each shard does that itself.
const QUESTION: &str = "\
import ctypes, importlib.util, sys
for name in sys.argv[1:]:
    try:
        found = importlib.util.find_spec(name) is not None
    except ImportError:
        found = False
    if not found:
        sys.exit(f'missing {name}')
try:
    code = ctypes.CDLL('libcuda.so.1').cuInit(0)
except OSError as error:
    sys.exit(f'blind {error}')
if code:
    sys.exit(f'blind cuInit gives {code}')
";

/// Asks Python whether it has what the shards need: better one answer now than every shard's failure.
fn importable(python: &std::path::Path, shards: &[&Spec]) -> anyhow::Result<()> {
    let mut modules: Vec<&str> = shards.iter().map(|spec| spec.module()).collect();
    modules.sort_unstable();
    modules.dedup();
    modules.push("torch");
    let shown = python.display();
    let asked = Command::new(python).args(["-c", QUESTION]).args(&modules).output();
    let install = "install the package with its torch extra into that Python (`pip install './python[torch]'` in a checkout of \
                   farrier), set PYTHONPATH to `python/src` of one, or name another Python with --python";
    let asked = asked.map_err(|err| {
        let hint = Hinted::plain(format!("failed to run `{shown}`"), install);
        anyhow::Error::new(err).context(hint)
    })?;
    if asked.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&asked.stderr);
    let last = words.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    if let Some(why) = last.strip_prefix("blind ") {
        let message = format!("there is no GPU to measure: {why}");
        return Err(Hinted::error(message, "`farrier check` says what is wrong with this node"));
    }
    let message = match last.strip_prefix("missing ") {
        Some(name) => format!("`{shown}` has no module `{name}`"),
        None => format!("`{shown}` does not say what it has ({}): {last}", asked.status),
    };
    Err(Hinted::error(message, install))
}

/// The driver that is loaded, as the kernel says.
pub(super) fn driver_version() -> Option<String> {
    let text = fs::read_to_string("/sys/module/nvidia/version").ok()?;
    Some(text.trim().to_owned()).filter(|version| !version.is_empty())
}

fn machine() -> Machine {
    let processor = fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("model name"))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    });
    Machine {
        driver: driver_version(),
        processor,
        cores: std::thread::available_parallelism().ok().map(std::num::NonZero::get),
    }
}

/// A line on stderr. Where nobody listens any more the measurement goes on.
fn progress(text: &str) {
    let _ = std::io::stderr().write_all(format!("{text}\n").as_bytes());
}
