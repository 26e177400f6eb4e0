//! `farrier plan calibrate`

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::Context;
use farrier_facts::FactSet;
use farrier_planner::Planner;
use farrier_planner::calibration::{Calibration, Measurements};
use farrier_planner::gpu::Accelerator;

use super::format::{number, percent};
use crate::cli::Output;
use crate::commands::Outcome;
use crate::fact_sets;
use crate::failure::Hinted;
use crate::printer::Printer;

/// The `farrier diag` tests that a plan depends on.
const TESTS: [&str; 4] = ["gemm-bf16", "gemm-fp8", "hbm-copy", "launch-stream"];

/// A calibration to plan with.
#[derive(Debug, clap::Args)]
pub(super) struct CalibrationArgs {
    /// Calibration written by `farrier plan calibrate --keep FILE` on a GPU of this SKU
    #[arg(long, value_name = "FILE")]
    calibration: Option<PathBuf>,
}

/// The GPU to measure, or an existing report.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Index of the GPU to measure
    #[arg(long, value_name = "N", default_value = "0")]
    gpu: u32,
    /// Do not measure; read a report of `farrier diag --level 2 --output json`
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    /// File to write the calibration to, for `farrier plan train --calibration FILE`
    #[arg(long, value_name = "FILE")]
    keep: Option<PathBuf>,
    /// Measure even if other processes use the GPU
    #[arg(long)]
    force: bool,
    /// Simulate the GPUs that this file describes, as in `farrier diag`
    #[arg(long, value_name = "FILE", conflicts_with = "from")]
    simulated: Option<PathBuf>,
    /// Output format
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
    let calibration = Calibration::new(&gpu, &measured, when).map_err(|err| {
        Hinted::error(err.to_string(), "run `farrier diag --level 2` for the cause")
    })?;
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
    let row = |name: &str, value: Option<f64>, (scale, unit): (f64, &str), ratio: f64| {
        let (measured, relative) = match value {
            Some(value) => (format!("{} {unit}", number(value * scale)), percent(ratio)),
            None => ("not measured".to_owned(), format!("assumed {}", percent(ratio))),
        };
        vec![name.to_owned(), measured, relative]
    };
    let rows = [
        row("GEMM, bf16", measured.flops_16bit, (1e-12, "TFLOP/s"), calibration.gemm_16bit),
        row("GEMM, fp8", measured.fp8_flops, (1e-12, "TFLOP/s"), calibration.gemm_fp8),
        row("memory copy", measured.copy_bytes_per_s, (1e-9, "GB/s"), calibration.memory),
        row("kernel launch", measured.launch_s, (1e6, "µs"), calibration.launches),
    ];
    printer.table(&["Test", "Measured", "Speed relative to the reference"], &rows)?;
    printer.line(
        "Above 100 %, the GPU is faster than the reference of its SKU, and a launch takes less time.",
    )?;
    let saved = match &args.keep {
        Some(path) => format!(
            "Saved to `{0}`; use it with `farrier plan train --calibration {0} ...`, or with \
             `goodput`.",
            path.display()
        ),
        None => {
            "Save it with `--keep FILE`, for `farrier plan train --calibration FILE`.".to_owned()
        }
    };
    printer.line(&saved)?;
    Ok(Outcome::Fine)
}

/// Runs `farrier diag` in a child process and returns its JSON report.
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
    // Keep these measurements out of the GPU's diag history.
    let history = temporary_folder()?;
    command.arg("--history").arg(&history);
    let done = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("failed to start `farrier diag`")?;
    let _ = std::fs::remove_dir_all(&history);
    if done.status.code().is_none_or(|code| code > 1) {
        return Err(Hinted::error(
            "failed to measure the GPU",
            "run `farrier diag --level 2` for the cause; `--from FILE` reads a report of it",
        ));
    }
    String::from_utf8(done.stdout).context("`farrier diag` printed invalid UTF-8")
}

/// Creates a new folder in the temporary directory.
fn temporary_folder() -> anyhow::Result<PathBuf> {
    let parent = std::env::temp_dir();
    for number in 0..64 {
        let folder = parent.join(format!("farrier-calibrate-{}-{number}", std::process::id()));
        // Not `create_dir_all`: an existing folder belongs to another process.
        match std::fs::create_dir(&folder) {
            Ok(()) => return Ok(folder),
            Err(err) if err.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(err) => {
                return Err(err)
                    .with_context(|| format!("failed to create `{}`", folder.display()));
            }
        }
    }
    anyhow::bail!("failed to create a temporary folder in `{}`", parent.display())
}

/// SKU, measurements and time of a GPU in a diag report.
fn measured(
    facts: &FactSet,
    text: &str,
    index: u32,
) -> anyhow::Result<(Accelerator, Measurements, String)> {
    let invalid = || {
        Hinted::error(
            "this is not a report of `farrier diag`",
            "create one with `farrier diag --level 2 --output json`",
        )
    };
    let report: serde_json::Value = serde_json::from_str(text).map_err(|_| invalid())?;
    if report.get("farrier_diag").is_none() {
        return Err(invalid());
    }
    let gpus = report["gpus"].as_array().ok_or_else(invalid)?;
    let has_index = |gpu: &&serde_json::Value| gpu["index"].as_u64() == Some(u64::from(index));
    let gpu = gpus.iter().find(has_index).ok_or_else(|| {
        let indices: Vec<String> = gpus.iter().map(|gpu| gpu["index"].to_string()).collect();
        Hinted::error(
            format!("the report has no GPU {index}"),
            format!("set `--gpu N` to one of: {}", indices.join(", ")),
        )
    })?;
    let sku = gpu["part"].as_str().or_else(|| gpu["name"].as_str()).ok_or_else(invalid)?;
    let accelerator = Accelerator::by_name(facts, sku).map_err(|err| {
        Hinted::error(err.to_string(), "`farrier facts gpu` lists the known GPUs")
    })?;
    let value = |test: &str| {
        gpu["tests"].as_array()?.iter().find(|row| row["test"].as_str() == Some(test))?["value"]
            .as_f64()
    };
    let when = format!(
        "{}, driver {}{}",
        report["began"].as_str().unwrap_or("unknown time"),
        report["driver"].as_str().unwrap_or("unknown"),
        if report["simulated"].as_bool() == Some(true) { ", simulated" } else { "" }
    );
    let measured = Measurements {
        flops_16bit: value("gemm-bf16").map(|tflops| tflops * 1e12),
        fp8_flops: value("gemm-fp8").map(|tflops| tflops * 1e12),
        copy_bytes_per_s: value("hbm-copy").map(|gb| gb * 1e9),
        launch_s: value("launch-stream").map(|us| us * 1e-6),
    };
    Ok((accelerator, measured, when))
}

impl CalibrationArgs {
    /// The planner for one GPU, rescaled by the calibration if there is one.
    pub(super) fn planner(&self, gpu: &Accelerator) -> anyhow::Result<&'static Planner> {
        self.planner_for_all(std::slice::from_ref(gpu))
    }

    /// The planner for several GPUs; a calibration applies to one SKU only.
    pub(super) fn planner_for_all(&self, gpus: &[Accelerator]) -> anyhow::Result<&'static Planner> {
        let shipped = Planner::shipped();
        let Some(path) = &self.calibration else { return Ok(shipped) };
        let [gpu] = gpus else {
            return Err(Hinted::error(
                format!("a calibration applies to one SKU, but {} GPUs are compared", gpus.len()),
                "leave out `--calibration`, or give one `--gpu`",
            ));
        };
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("failed to read the calibration `{}`", path.display()))?;
        let calibration: Calibration = serde_json::from_str(&text).with_context(|| {
            format!("`{}` is not a calibration written by `farrier plan calibrate`", path.display())
        })?;
        let coefficients = calibration.rescale(gpu, &shipped.coefficients).map_err(|err| {
            let hint = "create one on a GPU with `farrier plan calibrate --keep FILE`";
            Hinted::error(err.to_string(), hint)
        })?;
        Ok(Box::leak(Box::new(shipped.with_coefficients(coefficients))))
    }
}
