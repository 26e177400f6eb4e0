//! `farrier diag`: proves a GPU with work.
//!
//! ```text
//! NVML (who, busy?) ─> Card ─> Examiner (a child with CUDA) ─ one test at a time, with a deadline ─> Outcome
//!       └─ Watch: clocks, power, heat, Xids meanwhile          judge(envelope, history) ─> Report ─> text, JSON, HTML
//! ```

mod card;
mod child;
mod conduct;
mod history;
mod interrupt;
mod lock;
mod meanwhile;
mod page;
mod print;
mod report;
mod watch;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::Context;
use farrier_facts::diag::{Grade, Level, Test};
use farrier_hardware::cuda::SimulatedGpu;
use farrier_hardware::{kill_self_on_parent_exit, nvml};
use jiff::Timestamp;

use self::card::{Card, Cards};
use self::conduct::{Plan, Scene};
use self::history::Ledger;
use self::interrupt::Progress;
use self::lock::Held;
use self::report::Report;
use self::watch::Watch;
use crate::cli::Output;
use crate::commands::Outcome;
use crate::failure::Hinted;
use crate::printer::Printer;
use crate::sets;

/// Proves GPUs with work: is the result right, and is it as fast as this part and this very card should be?
///
/// Level 1 takes half a minute: memory, a checked kernel, PCIe both ways, launches. Level 2 takes three: HBM, matrix products in
/// each precision, patterns over all free memory, other GPUs. Level 3 adds minutes of load and a hunt for silent
/// corruption. No setting of the card is changed. Exit code 0: all pass in all that they can do; 1: one is degraded, failed or
/// could not be tested in something; 2: none could be.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How thorough: 1, 2 or 3
    #[arg(long, value_name = "LEVEL", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=3))]
    level: u32,
    /// Only this GPU, by number or UUID; may be given several times
    #[arg(long, value_name = "GPU")]
    gpu: Vec<String>,
    /// Minutes of load in level 3 [default: 10]
    #[arg(long, value_name = "MINUTES", value_parser = minutes)]
    minutes: Option<f64>,
    /// Only this test; may be given several times
    #[arg(long, value_name = "TEST")]
    only: Vec<Test>,
    /// Test GPUs that others use too: they are disturbed, and so are the figures
    #[arg(long)]
    force: bool,
    /// Where what each card reached is kept, a file a card
    #[arg(long, value_name = "FOLDER", default_value = history::FOLDER)]
    history: PathBuf,
    /// First forget what these cards reached: the slot, the host or the cooling is another now
    #[arg(long)]
    forget_history: bool,
    /// End when this process does: for an agent, whose successor would find the GPUs in use
    #[arg(long, value_name = "PID", hide = true)]
    ends_with: Option<u32>,
    /// Write the report as one HTML page too
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// NVML's library, if not the machine's own
    #[arg(long, value_name = "PATH")]
    nvml: Option<PathBuf>,
    /// CUDA's part is played by GPUs that this file describes (a JSON list): to see a report, and for tests
    #[arg(long, value_name = "FILE")]
    simulated: Option<PathBuf>,
    /// How to print
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    output: Output,
}

fn minutes(text: &str) -> Result<f64, String> {
    let minutes: f64 =
        text.parse().map_err(|_| "expected minutes, such as 10 or 0.5".to_owned())?;
    let fits = minutes > 0.0 && minutes <= 24.0 * 60.0;
    if fits { Ok(minutes) } else { Err("expected more than nothing and at most a day".to_owned()) }
}

/// What `--simulated` names.
pub(crate) fn simulated_gpus(file: &Path) -> anyhow::Result<Vec<SimulatedGpu>> {
    card::read(file)
}

/// NVML reads who uses GPUs every ten seconds at least.
const PATIENCE: Duration = Duration::from_secs(20);

/// Minutes of load where nobody says.
const MINUTES: f64 = 10.0;

pub(crate) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let (began, clock) = (Timestamp::now(), Instant::now());
    if let Some(parent) = args.ends_with {
        kill_self_on_parent_exit(parent)
            .context("failed to end with the process that asked for it")?;
    }
    let level = Level::from_number(args.level).context("a level is 1, 2 or 3")?;
    let minutes = args.minutes.unwrap_or(MINUTES);
    let plan = Plan::new(level, &args.only, minutes, args.simulated.is_some());
    if args.minutes.is_some() && plan.level() != Level::Three {
        return Err(Hinted::error(
            format!("level {} has no minutes of load", plan.level().number()),
            "--minutes is for --level 3, or for --only soak and --only corruption",
        ));
    }
    // Before minutes of tests: what cannot be written then cannot be written later either.
    args.html.as_deref().map(writable).transpose()?;
    let set = sets::active();
    let library = args.nvml.as_deref().unwrap_or(Path::new(nvml::LIBRARY));
    let has_nvml = args.simulated.is_none() || args.nvml.is_some();
    let Cards { cards, driver } = match &args.simulated {
        Some(file) if !has_nvml => card::simulated(&set, file)?,
        Some(file) => card::by_nvml(&set, library)?.simulated(file)?,
        None => card::by_nvml(&set, library)?,
    };
    let cards = card::chosen(cards, &args.gpu)?;
    let mut notes = Vec::new();
    let _held = locked(&cards, args, &mut notes)?;
    let watch = has_nvml.then(|| Watch::start(library));
    if let Some(watch) = &watch {
        notes.extend(unused(watch, &cards, args.force)?);
    }
    if args.forget_history {
        for card in cards.iter().filter(|card| card.barred.is_none()) {
            Ledger::forget(&args.history, &card.uuid).map_err(anyhow::Error::msg)?;
        }
    }
    let progress = Progress::default();
    progress.told_when_interrupted();
    let scene = Scene {
        plan: &plan,
        history: &args.history,
        set: &set,
        driver: driver.as_deref(),
        watch: watch.as_ref(),
        is_forced: args.force,
        host: Mutex::new(()),
        progress,
    };
    let conducted = conduct::all(&scene, &cards, printer)?;
    notes.extend(conducted.notes);
    let report = Report {
        farrier_diag: 1,
        simulated: args.simulated.is_some(),
        level: plan.level().number(),
        only: args.only.clone(),
        began: began.round(jiff::Unit::Second).unwrap_or(began).to_string(),
        took_s: clock.elapsed().as_secs_f64(),
        host: host(),
        driver,
        set: set.set.name.clone(),
        // A GPU that could not be tested is no pass.
        grade: conducted.gpus.iter().map(|gpu| gpu.grade).max().unwrap_or(Grade::NotRun),
        complete: conducted.gpus.iter().all(|gpu| gpu.complete),
        gpus: conducted.gpus,
        notes,
    };
    told(&report, args, printer)
}

/// Prints the report, then writes the page: what was measured is not lost with a disk that is full.
fn told(report: &Report, args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    if args.output == Output::Json {
        printer.json(report)?;
    } else {
        print::print(report, printer)?;
    }
    if let Some(path) = &args.html {
        printer.finish()?;
        std::fs::write(path, page::page(report))
            .with_context(|| format!("failed to write `{}`", path.display()))?;
    }
    match report.grade {
        // What was not tested may be what is broken: who goes by the exit code must not take it for a pass.
        Grade::Pass => Ok(Outcome::finding_if(!report.complete)),
        Grade::Degraded | Grade::Fail => Ok(Outcome::Finding),
        Grade::NotRun if report.gpus.iter().any(|gpu| gpu.grade == Grade::Pass) => {
            Ok(Outcome::Finding)
        }
        Grade::NotRun => {
            printer.finish()?;
            let why =
                report.gpus.iter().flat_map(|gpu| &gpu.tests).map(|row| row.why.clone()).next();
            let hint = if report.gpus.iter().any(|gpu| gpu.about.is_some()) {
                "the GPU itself was opened; `farrier diag` without --only has tests that it can do"
            } else {
                "`farrier check` says what is wrong with the driver; in a container CUDA needs the `compute` capability"
            };
            Err(Hinted::error(format!("nothing was tested: {}", why.unwrap_or_default()), hint))
        }
    }
}

/// Whether the page can be written. What is there stays until there is something else to write, and where nothing is,
/// nothing is left.
fn writable(path: &Path) -> anyhow::Result<()> {
    let opened = match File::create_new(path) {
        Ok(_) => std::fs::remove_file(path),
        Err(err) if err.kind() == std::io::ErrorKind::AlreadyExists => {
            File::options().write(true).open(path).map(|_| ())
        }
        Err(err) => Err(err),
    };
    opened.with_context(|| format!("failed to open `{}`", path.display()))
}

/// Takes the GPUs for this process; with `--force` one that another diag has is only noted.
fn locked(cards: &[Card], args: &Args, notes: &mut Vec<String>) -> anyhow::Result<Vec<Held>> {
    let mut held = Vec::new();
    for card in cards.iter().filter(|card| card.barred.is_none()) {
        match lock::take(card, &args.history) {
            Ok(lock) => held.push(lock),
            Err(None) if args.force => {
                notes.push(format!("GPU {} is tested by another `farrier diag` too", card.index));
            }
            Err(None) => {
                return Err(Hinted::error(
                    format!("GPU {} is being tested by another `farrier diag`", card.index),
                    "two at once measure each other: wait for its end, or choose others with --gpu",
                ));
            }
            Err(Some(err)) => notes.push(format!(
                "GPU {}: whether another `farrier diag` tests it is not known: {err}",
                card.index
            )),
        }
    }
    Ok(held)
}

/// Refuses GPUs that somebody uses, and those of which nobody can say; with `--force` they are only noted.
fn unused(watch: &Watch, cards: &[Card], force: bool) -> anyhow::Result<Vec<String>> {
    let busy: Vec<String> = match watch.processes(PATIENCE) {
        Err(why) => vec![format!("who uses the GPUs is not known: {why}")],
        Ok(processes) => cards
            .iter()
            .filter_map(|card| {
                let pids: Vec<String> = processes
                    .iter()
                    .filter(|process| process.gpu.0 == card.uuid)
                    .map(|process| process.pid.to_string())
                    .collect();
                (!pids.is_empty())
                    .then(|| format!("GPU {} is in use by process {}", card.index, pids.join(", ")))
            })
            .collect(),
    };
    if busy.is_empty() || force {
        return Ok(busy);
    }
    Err(Hinted::error(
        busy.join("; "),
        "tests take all memory and disturb whoever works there: drain it first, choose others with --gpu, or say --force",
    ))
}

fn host() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}
