//! Fits the coefficients to the published runs and prints leave-group-out errors: each run is
//! estimated by a fit without its group of near-duplicate runs.
//!
//! ```sh
//! cargo run --release -p farrier-planner --example fit -- --write
//! cargo run --release -p farrier-planner --example fit -- --tables FOLDER
//! ```
//!
//! `--write` stores the coefficients in `data/planner/coefficients.toml`. `--tables` names a folder
//! with tables of measured GEMMs, `gemm_measured_<gpu>.csv.gz` (columns `gemm_dtype, m, n, k,
//! latency_ms` among others, as written by the collectors of aiconfigurator), and of collectives
//! within a node, `nccl_measured.csv.gz` (`device, op_name, nccl_dtype, num_gpus, message_size,
//! latency_ms`). With `--tables`, the program prints a fit for each GPU. The priors of rates,
//! knees, link and hop in `src/coefficients.rs` come from these fits.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::Command;

use farrier_facts::FactSet;
use farrier_planner::coefficients::Coefficients;
use farrier_planner::fit::collectives::{CollectiveSample, fit_link};
use farrier_planner::fit::gemm::{GemmSample, fit_gemm};
use farrier_planner::fit::{PredictionError, fit, leave_group_out};
use farrier_planner::published::{self, PublishedRun};
use farrier_planner::uncertainty::GpHyperparameters;

/// GPUs of the GEMM tables: name, 16-bit peak, memory bandwidth in bytes/s.
const MEASURED: [(&str, f64, f64); 4] = [
    ("a100", 312e12, 2.0e12),
    ("h100", 989e12, 3.35e12),
    ("h200", 989e12, 4.8e12),
    ("b200", 2250e12, 8.0e12),
];
/// Device name in the table of collectives, and `NVLink` bandwidth per direction in bytes/s.
const LINKED: [(&str, f64); 3] = [("A100", 300e9), ("H100", 450e9), ("B200", 900e9)];

type BoxError = Box<dyn std::error::Error>;

fn main() -> Result<(), BoxError> {
    let mut arguments = std::env::args().skip(1);
    let mut out = std::io::stdout().lock();
    let mut write = false;
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--write" => write = true,
            "--tables" => {
                let folder = arguments.next().ok_or("`--tables` needs a folder")?;
                gemms(&folder, &mut out)?;
                collectives(&folder, &mut out)?;
            }
            other => return Err(format!("unknown argument `{other}`").into()),
        }
    }
    let table = published::read(FactSet::embedded(), published::embedded())?;
    let rows: Vec<PublishedRun> =
        table.into_iter().flatten().filter(|row| row.caution.is_none()).collect();
    let coefficients = fit(&rows.iter().collect::<Vec<_>>());
    for (spec, value) in Coefficients::SPECS.iter().zip(coefficients.values()) {
        let z_score = (value / spec.prior).ln() / spec.spread;
        writeln!(out, "{:32} {value:>10.4e}  z-score {z_score:+.1}", spec.name)?;
    }
    if write {
        #[expect(clippy::disallowed_methods, reason = "an example, not part of the pure crate")]
        std::fs::write(
            concat!(env!("CARGO_MANIFEST_DIR"), "/../../data/planner/coefficients.toml"),
            coefficients_toml(&coefficients),
        )?;
    }
    cross_validate(&rows, &coefficients, &mut out)
}

/// Content of `coefficients.toml`.
fn coefficients_toml(coefficients: &Coefficients) -> String {
    let mut text = String::from(
        "# Fitted to published_training.csv by `cargo run --release -p farrier-planner --example fit -- --write`;\n\
         # do not edit. The meaning of each is in crates/planner/src/coefficients.rs.\n\n",
    );
    for (spec, value) in Coefficients::SPECS.iter().zip(coefficients.values()) {
        text.push_str(&format!("{} = {value:.5e}\n", spec.name));
    }
    text
}

/// Prints leave-group-out errors by kind of row.
fn cross_validate(
    rows: &[PublishedRun],
    coefficients: &Coefficients,
    out: &mut impl Write,
) -> Result<(), BoxError> {
    let test: Vec<&PublishedRun> = rows.iter().collect();
    let errors = leave_group_out(rows, &test, coefficients, &GpHyperparameters::default());
    let mut kinds: BTreeMap<String, Vec<PredictionError>> = BTreeMap::new();
    for (row, error) in rows.iter().zip(errors) {
        let stated = if row.assumed.is_empty() { "complete" } else { "incomplete" };
        let kind = if row.run.model.experts.is_some() { "MoE" } else { "dense" };
        let generation = row.run.gpu.generation.name();
        let key = format!("{stated} {kind} {generation} {}", row.run.precision.name());
        kinds.entry(key).or_default().push(error);
    }
    writeln!(out, "\n{:40} rows   mean  uncorrected", "held out")?;
    for (kind, errors) in kinds {
        #[expect(clippy::cast_precision_loss, reason = "some hundred rows")]
        let mean = |error: fn(&PredictionError) -> f64| {
            let sum: f64 = errors.iter().map(|prediction| error(prediction).exp_m1().abs()).sum();
            100.0 * sum / errors.len() as f64
        };
        writeln!(
            out,
            "{kind:40} {:4}  {:5.1} %  {:5.1} %",
            errors.len(),
            mean(|prediction| prediction.corrected),
            mean(|prediction| prediction.uncorrected)
        )?;
    }
    Ok(())
}

/// Rows of a gzipped CSV file.
fn read_gzipped_csv(path: &str) -> Result<Vec<BTreeMap<String, String>>, BoxError> {
    let unpacked = Command::new("gzip").args(["-dc", path]).output()?;
    if !unpacked.status.success() {
        return Err(format!("failed to unpack `{path}`").into());
    }
    let mut reader = csv::Reader::from_reader(unpacked.stdout.as_slice());
    Ok(reader.deserialize().collect::<Result<_, _>>()?)
}

/// Fits the link model to collectives within a node of eight GPUs.
fn collectives(folder: &str, out: &mut impl Write) -> Result<(), BoxError> {
    let rows = read_gzipped_csv(&format!("{folder}/nccl_measured.csv.gz"))?;
    for (gpu, bytes_per_s) in LINKED {
        for operation in ["all_gather", "reduce_scatter", "alltoall"] {
            let mut measured = Vec::new();
            for row in &rows {
                let matches = row["device"].contains(gpu)
                    && row["num_gpus"] == "8"
                    && row["op_name"] == operation
                    && row["nccl_dtype"] == "half";
                if matches {
                    let number = |name: &str| row[name].parse::<f64>();
                    measured.push(CollectiveSample {
                        gpus: number("num_gpus")?,
                        bytes: 2.0 * number("message_size")?,
                        seconds: number("latency_ms")? * 1e-3,
                    });
                }
            }
            writeln!(out, "{gpu} {operation:14} {:?}", fit_link(&measured, bytes_per_s))?;
        }
    }
    Ok(())
}

/// Fits the GEMM rate curve.
fn gemms(folder: &str, out: &mut impl Write) -> Result<(), BoxError> {
    for (gpu, half_peak, memory) in MEASURED {
        let mut kinds: BTreeMap<String, Vec<GemmSample>> = BTreeMap::new();
        for row in read_gzipped_csv(&format!("{folder}/gemm_measured_{gpu}.csv.gz"))? {
            let number = |name: &str| row[name].parse::<f64>();
            kinds.entry(row["gemm_dtype"].clone()).or_default().push(GemmSample {
                rows: number("m")?,
                columns: number("n")?,
                depth: number("k")?,
                seconds: number("latency_ms")? * 1e-3,
            });
        }
        for (kind, gemms) in kinds {
            // Quantizing an operand reads 16 bits and writes 8 or 4. With per-tensor scaling, the
            // operand is read twice.
            let (peak, bytes) = match kind.as_str() {
                "bfloat16" => (half_peak, 0.0),
                "fp8" => (2.0 * half_peak, 5.0),
                "fp8_block" => (2.0 * half_peak, 3.0),
                "nvfp4" => (4.0 * half_peak, 3.0),
                _ => continue,
            };
            let found = fit_gemm(&gemms, peak, bytes / (0.8 * memory));
            writeln!(out, "{gpu} {kind:10} {found:?}")?;
        }
    }
    Ok(())
}
