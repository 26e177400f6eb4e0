//! The fitting program: finds the coefficients from the published runs, and says how far off they are
//! on runs that had no part in it.
//!
//! ```sh
//! cargo run --release -p farrier-planner --example fit -- --write
//! cargo run --release -p farrier-planner --example fit -- --tables FOLDER
//! ```
//!
//! `--write` puts them into `data/planner/coefficients.toml`. `--tables` names a folder with tables of
//! measured products, `gemm_measured_<gpu>.csv.gz` (columns `gemm_dtype, m, n, k, latency_ms` among
//! others, such as the collectors of aiconfigurator write): what they say of each GPU is printed; the
//! priors of the rates and knees in `src/coefficients.rs` are from there.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::Command;

use farrier_facts::FactSet;
use farrier_planner::coefficients::Coefficients;
use farrier_planner::fit::products::{Product, shape};
use farrier_planner::fit::{Trial, fit, held_out};
use farrier_planner::local::Likeness;
use farrier_planner::published::{self, Published};

/// GPUs of the tables: name, 16-bit peak, bytes/s of memory.
const MEASURED: [(&str, f64, f64); 4] = [
    ("a100", 312e12, 2.0e12),
    ("h100", 989e12, 3.35e12),
    ("h200", 989e12, 4.8e12),
    ("b200", 2250e12, 8.0e12),
];

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let mut out = std::io::stdout().lock();
    let mut write = false;
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--write" => write = true,
            "--tables" => tables(&arguments.next().ok_or("which folder?")?, &mut out)?,
            other => return Err(format!("unknown argument `{other}`").into()),
        }
    }
    let table = published::read(FactSet::embedded(), published::embedded())?;
    let rows: Vec<Published> =
        table.into_iter().flatten().filter(|row| row.caution.is_none()).collect();
    let fitted = fit(&rows.iter().collect::<Vec<_>>());
    for (entry, value) in Coefficients::ENTRIES.iter().zip(fitted.values()) {
        let moved = (value / entry.prior).ln() / entry.spread;
        writeln!(out, "{:32} {value:>10.4e}  {moved:+.1} deviations", entry.name)?;
    }
    if write {
        #[expect(clippy::disallowed_methods, reason = "a program beside the pure crate")]
        std::fs::write(
            concat!(env!("CARGO_MANIFEST_DIR"), "/../../data/planner/coefficients.toml"),
            coefficients(&fitted),
        )?;
    }
    trials(&rows, &fitted, &mut out)
}

/// The file of coefficients.
fn coefficients(fitted: &Coefficients) -> String {
    let mut text = String::from(
        "# Fitted to published_training.csv by `cargo run --release -p farrier-planner --example fit -- --write`;\n\
         # not to be edited. What each means is in crates/planner/src/coefficients.rs.\n\n",
    );
    for (entry, value) in Coefficients::ENTRIES.iter().zip(fitted.values()) {
        text.push_str(&format!("{} = {value:.5e}\n", entry.name));
    }
    text
}

/// Errors of rows by fits that their groups had no part in.
fn trials(rows: &[Published], fitted: &Coefficients, out: &mut impl Write) -> Result<(), Failure> {
    let tried: Vec<&Published> = rows.iter().collect();
    let trials = held_out(rows, &tried, fitted, &Likeness::default());
    let mut kinds: BTreeMap<String, Vec<Trial>> = BTreeMap::new();
    for (row, trial) in rows.iter().zip(trials) {
        let stated = if row.assumed.is_empty() { "complete" } else { "open" };
        let kind = if row.run.model.experts.is_some() { "mixture" } else { "dense" };
        let generation = row.run.gpu.generation.name();
        let key = format!("{stated} {kind} {generation} {}", row.run.precision.name());
        kinds.entry(key).or_default().push(trial);
    }
    writeln!(out, "\n{:40} rows   mean  without neighbours", "held out")?;
    for (kind, trials) in kinds {
        #[expect(clippy::cast_precision_loss, reason = "some hundred rows")]
        let mean = |of: fn(&Trial) -> f64| {
            let sum: f64 = trials.iter().map(|trial| of(trial).exp_m1().abs()).sum();
            100.0 * sum / trials.len() as f64
        };
        writeln!(
            out,
            "{kind:40} {:4}  {:5.1} %  {:5.1} %",
            trials.len(),
            mean(|trial| trial.corrected),
            mean(|trial| trial.plain)
        )?;
    }
    Ok(())
}

/// What tables of measured products say.
fn tables(folder: &str, out: &mut impl Write) -> Result<(), Failure> {
    for (gpu, half_peak, memory) in MEASURED {
        let path = format!("{folder}/gemm_measured_{gpu}.csv.gz");
        let unpacked = Command::new("gzip").args(["-dc", &path]).output()?;
        if !unpacked.status.success() {
            return Err(format!("failed to unpack `{path}`").into());
        }
        let mut kinds: BTreeMap<String, Vec<Product>> = BTreeMap::new();
        let mut reader = csv::Reader::from_reader(unpacked.stdout.as_slice());
        for row in reader.deserialize::<BTreeMap<String, String>>() {
            let row = row?;
            let number = |name: &str| row[name].parse::<f64>();
            kinds.entry(row["gemm_dtype"].clone()).or_default().push(Product {
                rows: number("m")?,
                columns: number("n")?,
                depth: number("k")?,
                seconds: number("latency_ms")? * 1e-3,
            });
        }
        for (kind, products) in kinds {
            // Scaling an operand reads 16 bits and writes 8 or 4; one scale for a tensor reads twice.
            let (peak, bytes) = match kind.as_str() {
                "bfloat16" => (half_peak, 0.0),
                "fp8" => (2.0 * half_peak, 5.0),
                "fp8_block" => (2.0 * half_peak, 3.0),
                "nvfp4" => (4.0 * half_peak, 3.0),
                _ => continue,
            };
            let found = shape(&products, peak, bytes / (0.8 * memory));
            writeln!(out, "{gpu} {kind:10} {found:?}")?;
        }
    }
    Ok(())
}
