//! `farrier diag`: tests GPUs under load.
//!
//! ```text
//! NVML (identity, in use?) ─> DiagTarget ─> TestChild (CUDA) ─ one test at a time ─> Outcome
//!   └─ NvmlMonitor: clocks, power, heat, Xids during the tests                        │
//!                text, JSON, HTML <─ DiagReport <─ evaluate(baseline, history) <──────┘
//! ```

mod child;
mod history;
mod html;
mod interference;
mod interrupt;
mod lock;
mod monitor;
mod print;
mod report;
mod runner;
mod target;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::Context;
use farrier_facts::diag::{Grade, Level, Test};
use farrier_hardware::cuda::SimulatedGpu;
use farrier_hardware::{kill_self_on_parent_exit, nvml};
use jiff::Timestamp;

use self::history::ResultHistory;
use self::interrupt::DiagProgress;
use self::lock::GpuLock;
use self::monitor::NvmlMonitor;
use self::report::DiagReport;
use self::runner::{TestPlan, TestRunner};
use self::target::{DiagTarget, DiagTargets};
use crate::cli::Output;
use crate::commands::Outcome;
use crate::fact_sets;
use crate::failure::Hinted;
use crate::printer::Printer;

/// Tests GPUs under load: are results correct, and as fast as this model and this card should be?
///
/// Level 1 takes half a minute: memory, a checked kernel, PCIe both ways, launches. Level 2 takes
/// three minutes: HBM, GEMM in each precision, patterns over all free memory, peer copies. Level 3
/// adds minutes of sustained load and a search for silent data corruption. No GPU setting is
/// changed.
///
/// Exit code 0: all GPUs pass every applicable test; 1: a GPU is degraded, failed or was not fully
/// tested; 2: no GPU could be tested.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Test level: 1, 2 or 3
    #[arg(long, value_name = "LEVEL", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=3))]
    level: u32,
    /// GPU to test, by index or UUID; repeatable
    #[arg(long, value_name = "GPU")]
    gpu: Vec<String>,
    /// Minutes of sustained load in level 3 [default: 10]
    #[arg(long, value_name = "MINUTES", value_parser = minutes)]
    minutes: Option<f64>,
    /// Run only this test; repeatable
    #[arg(long, value_name = "TEST")]
    only: Vec<Test>,
    /// Also test GPUs in use: this disturbs their jobs and the measurements
    #[arg(long)]
    force: bool,
    /// Directory of past results, one file per GPU
    #[arg(long, value_name = "DIR", default_value = history::DEFAULT_DIRECTORY)]
    history: PathBuf,
    /// First delete the past results of these GPUs, for example after a change of slot, host or
    /// cooling
    #[arg(long)]
    forget_history: bool,
    /// Exit when this process does, so that a restarted agent does not find the GPUs in use
    #[arg(long, value_name = "PID", hide = true)]
    ends_with: Option<u32>,
    /// Also write the report as an HTML page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// NVML library to load [default: the system's]
    #[arg(long, value_name = "PATH")]
    nvml: Option<PathBuf>,
    /// Run CUDA tests on the simulated GPUs in this file (a JSON list), to preview a report or for
    /// tests
    #[arg(long, value_name = "FILE")]
    simulated: Option<PathBuf>,
    /// Output format
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    output: Output,
}

fn minutes(text: &str) -> Result<f64, String> {
    let minutes: f64 =
        text.parse().map_err(|_| "expected minutes, such as 10 or 0.5".to_owned())?;
    let fits = minutes > 0.0 && minutes <= 24.0 * 60.0;
    if fits { Ok(minutes) } else { Err("expected more than 0 and at most a day".to_owned()) }
}

/// Reads the file named by `--simulated`.
pub(crate) fn simulated_gpus(file: &Path) -> anyhow::Result<Vec<SimulatedGpu>> {
    target::read(file)
}

/// Timeout for the list of processes on a GPU; NVML is polled for it at least every ten seconds.
const PROCESSES_TIMEOUT: Duration = Duration::from_secs(20);

/// Default of `--minutes`.
const DEFAULT_MINUTES: f64 = 10.0;

pub(crate) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let (began, clock) = (Timestamp::now(), Instant::now());
    if let Some(parent) = args.ends_with {
        kill_self_on_parent_exit(parent)
            .context("failed to bind to the lifetime of the parent process")?;
    }
    let level = Level::from_number(args.level).context("a level is 1, 2 or 3")?;
    let minutes = args.minutes.unwrap_or(DEFAULT_MINUTES);
    let plan = TestPlan::new(level, &args.only, minutes, args.simulated.is_some());
    if args.minutes.is_some() && plan.level() != Level::Three {
        return Err(Hinted::error(
            format!("level {} has no sustained load", plan.level().number()),
            "--minutes needs --level 3, --only soak or --only corruption",
        ));
    }
    // Check the path before the tests. Otherwise an error would appear only after minutes of tests.
    args.html.as_deref().map(ensure_writable).transpose()?;
    let set = fact_sets::active();
    let library = args.nvml.as_deref().unwrap_or(Path::new(nvml::LIBRARY));
    let has_nvml = args.simulated.is_none() || args.nvml.is_some();
    let DiagTargets { targets, driver } = match &args.simulated {
        Some(file) if !has_nvml => target::simulated(&set, file)?,
        Some(file) => target::from_nvml(&set, library)?.simulated(file)?,
        None => target::from_nvml(&set, library)?,
    };
    let targets = target::select(targets, &args.gpu)?;
    let mut notes = Vec::new();
    let _locks = lock_gpus(&targets, args, &mut notes)?;
    let monitor = has_nvml.then(|| NvmlMonitor::start(library));
    if let Some(monitor) = &monitor {
        notes.extend(require_idle(monitor, &targets, args.force)?);
    }
    if args.forget_history {
        for target in targets.iter().filter(|target| target.untestable.is_none()) {
            ResultHistory::delete(&args.history, &target.uuid).map_err(anyhow::Error::msg)?;
        }
    }
    let progress = DiagProgress::default();
    progress.print_on_signal();
    let runner = TestRunner {
        plan: &plan,
        history: &args.history,
        set: &set,
        driver: driver.as_deref(),
        monitor: monitor.as_ref(),
        is_forced: args.force,
        host: Mutex::new(()),
        progress,
    };
    let run = runner::run_all(&runner, &targets, printer)?;
    notes.extend(run.notes);
    let report = DiagReport {
        farrier_diag: 1,
        simulated: args.simulated.is_some(),
        level: plan.level().number(),
        only: args.only.clone(),
        began: began.round(jiff::Unit::Second).unwrap_or(began).to_string(),
        took_s: clock.elapsed().as_secs_f64(),
        host: host(),
        driver,
        set: set.set.name.clone(),
        // A GPU that could not be tested has not passed.
        grade: run.gpus.iter().map(|gpu| gpu.grade).max().unwrap_or(Grade::NotRun),
        complete: run.gpus.iter().all(|gpu| gpu.complete),
        gpus: run.gpus,
        notes,
    };
    print_report(&report, args, printer)
}

/// Prints the report before it writes the page, so that the results are not lost if the disk is
/// full.
fn print_report(
    report: &DiagReport,
    args: &Args,
    printer: &mut Printer,
) -> anyhow::Result<Outcome> {
    if args.output == Output::Json {
        printer.json(report)?;
    } else {
        print::print(report, printer)?;
    }
    if let Some(path) = &args.html {
        printer.finish()?;
        std::fs::write(path, html::page(report))
            .with_context(|| format!("failed to write `{}`", path.display()))?;
    }
    match report.grade {
        // A component that was not tested may be broken, so the exit code must not suggest a pass.
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
                "the GPU was opened; `farrier diag` without --only has tests that apply to it"
            } else {
                "`farrier check` diagnoses the driver; in a container CUDA needs the `compute` capability"
            };
            Err(Hinted::error(format!("nothing was tested: {}", why.unwrap_or_default()), hint))
        }
    }
}

/// Checks that the page can be written. If the file exists, it keeps its content. If it does not,
/// no empty file is left.
fn ensure_writable(path: &Path) -> anyhow::Result<()> {
    let opened = match File::create_new(path) {
        Ok(_) => std::fs::remove_file(path),
        Err(err) if err.kind() == std::io::ErrorKind::AlreadyExists => {
            File::options().write(true).open(path).map(|_| ())
        }
        Err(err) => Err(err),
    };
    opened.with_context(|| format!("failed to open `{}`", path.display()))
}

/// Locks the GPUs for this process. With `--force`, a GPU that another diag has locked is tested
/// anyway, and the report notes it.
fn lock_gpus(
    targets: &[DiagTarget],
    args: &Args,
    notes: &mut Vec<String>,
) -> anyhow::Result<Vec<GpuLock>> {
    let mut locks = Vec::new();
    for target in targets.iter().filter(|target| target.untestable.is_none()) {
        match lock::acquire(target, &args.history) {
            Ok(lock) => locks.push(lock),
            Err(None) if args.force => {
                notes
                    .push(format!("GPU {} is also tested by another `farrier diag`", target.index));
            }
            Err(None) => {
                return Err(Hinted::error(
                    format!("GPU {} is being tested by another `farrier diag`", target.index),
                    "concurrent tests distort each other: wait for it, or choose other GPUs with --gpu",
                ));
            }
            Err(Some(err)) => notes.push(format!(
                "GPU {}: failed to check for another `farrier diag`: {err}",
                target.index
            )),
        }
    }
    Ok(locks)
}

/// Refuses GPUs that are in use, or whose processes are unknown. With `--force` they are tested
/// anyway, and the report notes it.
fn require_idle(
    monitor: &NvmlMonitor,
    targets: &[DiagTarget],
    force: bool,
) -> anyhow::Result<Vec<String>> {
    let busy: Vec<String> = match monitor.processes(PROCESSES_TIMEOUT) {
        Err(why) => vec![format!("processes on the GPUs are unknown: {why}")],
        Ok(processes) => targets
            .iter()
            .filter_map(|target| {
                let pids: Vec<String> = processes
                    .iter()
                    .filter(|process| process.gpu.0 == target.uuid)
                    .map(|process| process.pid.to_string())
                    .collect();
                (!pids.is_empty()).then(|| {
                    format!("GPU {} is in use by process {}", target.index, pids.join(", "))
                })
            })
            .collect(),
    };
    if busy.is_empty() || force {
        return Ok(busy);
    }
    Err(Hinted::error(
        busy.join("; "),
        "tests use all GPU memory and disturb running jobs: drain the node first, choose other GPUs with --gpu, or pass --force",
    ))
}

fn host() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}
