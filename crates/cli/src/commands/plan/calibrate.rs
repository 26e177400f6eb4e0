//! `farrier plan calibrate`

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::Context;
use farrier_facts::FactSet;
use farrier_planner::Planner;
use farrier_planner::calibration::{Calibration, Measured};
use farrier_planner::gpu::Accelerator;

use super::figures::{number, percent};
use crate::cli::Output;
use crate::commands::Outcome;
use crate::fact_sets;
use crate::failure::Hinted;
use crate::printer::Printer;

/// The tests of `farrier diag` that a plan depends on.
const TESTS: [&str; 4] = ["gemm-bf16", "gemm-fp8", "hbm-copy", "launch-stream"];

/// A GPU as it was measured.
#[derive(Debug, clap::Args)]
pub(super) struct Calibrated {
    /// What `farrier plan calibrate --keep FILE` measured on such a GPU
    #[arg(long, value_name = "FILE")]
    calibration: Option<PathBuf>,
}

/// Which GPU, or what was measured.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The GPU to measure on
    #[arg(long, value_name = "N", default_value = "0")]
    gpu: u32,
    /// Measure nothing: a report of `farrier diag --level 2 --output json`
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    /// Where to keep the calibration, for `farrier plan train --calibration FILE`
    #[arg(long, value_name = "FILE")]
    keep: Option<PathBuf>,
    /// Measure though others use the GPU
    #[arg(long)]
    force: bool,
    /// CUDA's part is played by GPUs that this file describes, as in `farrier diag`
    #[arg(long, value_name = "FILE", conflicts_with = "from")]
    simulated: Option<PathBuf>,
    /// How to print the answer
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    output: Output,
}

pub(super) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let facts = fact_sets::active();
    let text = match &args.from {
        Some(path) => std::fs::read_to_string(path)
            .with_context(|| format!("failed to read `{}`", path.display()))?,
        None => measure(args)?,
    };
    let (gpu, measured, when) = measured(&facts, &text, args.gpu)?;
    let calibration = Calibration::of(&gpu, &measured, when)
        .map_err(|err| Hinted::error(err.to_string(), "`farrier diag --level 2` says why"))?;
    if let Some(path) = &args.keep {
        let text = serde_json::to_string_pretty(&calibration)?;
        std::fs::write(path, text + "\n")
            .with_context(|| format!("failed to write `{}`", path.display()))?;
    }
    if args.output == Output::Json {
        printer.json(&calibration)?;
        return Ok(Outcome::Fine);
    }
    printer.line(&format!("{}: {}", calibration.gpu, calibration.measured))?;
    let row = |name: &str, value: Option<f64>, (scale, unit): (f64, &str), beside: f64| {
        let (here, beside) = match value {
            Some(value) => (format!("{} {unit}", number(value * scale)), percent(beside)),
            None => ("not measured".to_owned(), format!("taken as {}", percent(beside))),
        };
        vec![name.to_owned(), here, beside]
    };
    let rows = [
        row("products, bf16", measured.half_flops, (1e-12, "TFLOP/s"), calibration.half_products),
        row("products, fp8", measured.fp8_flops, (1e-12, "TFLOP/s"), calibration.fp8_products),
        row("memory, copy", measured.copy_bytes_per_s, (1e-9, "GB/s"), calibration.memory),
        row("launch on a stream", measured.launch_s, (1e6, "µs"), calibration.launches),
    ];
    printer.table(&["Measured", "Here", "Speed beside what is usual"], &rows)?;
    printer
        .line("Above 100 % is faster than usual of its kind; a launch that takes less time is.")?;
    let kept = match &args.keep {
        Some(path) => format!(
            "Kept in `{0}`; `farrier plan train --calibration {0} ...` plans with it, and so does \
             `goodput`.",
            path.display()
        ),
        None => "`--keep FILE` keeps it, for `farrier plan train --calibration FILE`.".to_owned(),
    };
    printer.line(&kept)?;
    Ok(Outcome::Fine)
}

/// Runs diag's tests in a process of their own, as diag is made for.
fn measure(args: &Args) -> anyhow::Result<String> {
    let own = std::env::current_exe().context("failed to find this program")?;
    let mut command = Command::new(own);
    command.args(["diag", "--level", "2", "--output", "json", "--gpu", &args.gpu.to_string()]);
    for test in TESTS {
        command.args(["--only", test]);
    }
    if args.force {
        command.arg("--force");
    }
    if let Some(path) = &args.simulated {
        command.arg("--simulated").arg(path);
    }
    // What is measured here is not this card's history.
    let history = own_folder()?;
    command.arg("--history").arg(&history);
    let done = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("failed to start `farrier diag`")?;
    let _ = std::fs::remove_dir_all(&history);
    if done.status.code().is_none_or(|code| code > 1) {
        return Err(Hinted::error(
            "the GPU could not be measured",
            "`farrier diag --level 2` says why; `--from FILE` takes a report of it",
        ));
    }
    String::from_utf8(done.stdout).context("`farrier diag` printed something else than text")
}

/// A new folder that nobody else has made.
fn own_folder() -> anyhow::Result<PathBuf> {
    let parent = std::env::temp_dir();
    for number in 0..64 {
        let folder = parent.join(format!("farrier-calibrate-{}-{number}", std::process::id()));
        // Not `create_dir_all`: what is there already is somebody else's.
        match std::fs::create_dir(&folder) {
            Ok(()) => return Ok(folder),
            Err(err) if err.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(err) => {
                return Err(err).with_context(|| format!("failed to make `{}`", folder.display()));
            }
        }
    }
    anyhow::bail!("failed to make a folder of its own in `{}`", parent.display())
}

/// What a report of diag says of a GPU: the part, the figures, and when.
fn measured(
    facts: &FactSet,
    text: &str,
    index: u32,
) -> anyhow::Result<(Accelerator, Measured, String)> {
    let wrong = || {
        Hinted::error(
            "this is not a report of `farrier diag`",
            "make one with `farrier diag --level 2 --output json`",
        )
    };
    let report: serde_json::Value = serde_json::from_str(text).map_err(|_| wrong())?;
    if report.get("farrier_diag").is_none() {
        return Err(wrong());
    }
    let gpus = report["gpus"].as_array().ok_or_else(wrong)?;
    let is_it = |gpu: &&serde_json::Value| gpu["index"].as_u64() == Some(u64::from(index));
    let gpu = gpus.iter().find(is_it).ok_or_else(|| {
        let known: Vec<String> = gpus.iter().map(|gpu| gpu["index"].to_string()).collect();
        Hinted::error(
            format!("the report has no GPU {index}"),
            format!("`--gpu N`, of those that it has: {}", known.join(", ")),
        )
    })?;
    let part = gpu["part"].as_str().or_else(|| gpu["name"].as_str()).ok_or_else(wrong)?;
    let accelerator = Accelerator::named(facts, part).map_err(|err| {
        Hinted::error(err.to_string(), "only parts of the facts can be planned with")
    })?;
    let value = |test: &str| {
        gpu["tests"].as_array()?.iter().find(|row| row["test"].as_str() == Some(test))?["value"]
            .as_f64()
    };
    let when = format!(
        "{}, driver {}{}",
        report["began"].as_str().unwrap_or("when is not known"),
        report["driver"].as_str().unwrap_or("not known"),
        if report["simulated"].as_bool() == Some(true) { ", simulated" } else { "" }
    );
    let measured = Measured {
        half_flops: value("gemm-bf16").map(|tflops| tflops * 1e12),
        fp8_flops: value("gemm-fp8").map(|tflops| tflops * 1e12),
        copy_bytes_per_s: value("hbm-copy").map(|gb| gb * 1e9),
        launch_s: value("launch-stream").map(|us| us * 1e-6),
    };
    Ok((accelerator, measured, when))
}

impl Calibrated {
    /// The planner for one GPU, as a kept calibration rescales it.
    pub(super) fn planner(&self, gpu: &Accelerator) -> anyhow::Result<&'static Planner> {
        self.planner_of(std::slice::from_ref(gpu))
    }

    /// The planner for GPUs; what was measured is of one kind.
    pub(super) fn planner_of(&self, gpus: &[Accelerator]) -> anyhow::Result<&'static Planner> {
        let shipped = Planner::shipped();
        let Some(path) = &self.calibration else { return Ok(shipped) };
        let [gpu] = gpus else {
            return Err(Hinted::error(
                format!("a calibration is of one kind of GPU, and {} are compared", gpus.len()),
                "leave out `--calibration`, or give one `--gpu`",
            ));
        };
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("failed to read the calibration `{}`", path.display()))?;
        let calibration: Calibration = serde_json::from_str(&text).with_context(|| {
            format!("`{}` is not a calibration of `farrier plan calibrate`", path.display())
        })?;
        let fitted = calibration.rescale(gpu, &shipped.fitted).map_err(|err| {
            let hint = "`farrier plan calibrate --keep FILE` makes one on a GPU";
            Hinted::error(err.to_string(), hint)
        })?;
        Ok(Box::leak(Box::new(shipped.with(fitted))))
    }
}
