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
//! others, such as the collectors of aiconfigurator write), and of collectives within a node,
//! `nccl_measured.csv.gz` (`device, op_name, nccl_dtype, num_gpus, message_size, latency_ms`): what
//! they say of each GPU is printed; the priors of rates, knees, link and hop in
//! `src/coefficients.rs` are from there.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::Command;

use farrier_facts::FactSet;
use farrier_planner::coefficients::Coefficients;
use farrier_planner::fit::collectives::{Collective, link};
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
/// What a device of the collectives' table is called, and bytes/s of its `NVLink` in one direction.
const LINKED: [(&str, f64); 3] = [("A100", 300e9), ("H100", 450e9), ("B200", 900e9)];

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let mut out = std::io::stdout().lock();
    let mut write = false;
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--write" => write = true,
            "--tables" => {
                let folder = arguments.next().ok_or("which folder?")?;
                products(&folder, &mut out)?;
                collectives(&folder, &mut out)?;
            }
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

/// The rows of a packed table.
fn unpacked(path: &str) -> Result<Vec<BTreeMap<String, String>>, Failure> {
    let unpacked = Command::new("gzip").args(["-dc", path]).output()?;
    if !unpacked.status.success() {
        return Err(format!("failed to unpack `{path}`").into());
    }
    let mut reader = csv::Reader::from_reader(unpacked.stdout.as_slice());
    Ok(reader.deserialize().collect::<Result<_, _>>()?)
}

/// What tables of measured collectives say of a node of eight GPUs.
fn collectives(folder: &str, out: &mut impl Write) -> Result<(), Failure> {
    let rows = unpacked(&format!("{folder}/nccl_measured.csv.gz"))?;
    for (gpu, bytes_per_s) in LINKED {
        for operation in ["all_gather", "reduce_scatter", "alltoall"] {
            let mut measured = Vec::new();
            for row in &rows {
                let wanted = row["device"].contains(gpu)
                    && row["num_gpus"] == "8"
                    && row["op_name"] == operation
                    && row["nccl_dtype"] == "half";
                if wanted {
                    let number = |name: &str| row[name].parse::<f64>();
                    measured.push(Collective {
                        gpus: number("num_gpus")?,
                        bytes: 2.0 * number("message_size")?,
                        seconds: number("latency_ms")? * 1e-3,
                    });
                }
            }
            writeln!(out, "{gpu} {operation:14} {:?}", link(&measured, bytes_per_s))?;
        }
    }
    Ok(())
}

/// What tables of measured products say.
fn products(folder: &str, out: &mut impl Write) -> Result<(), Failure> {
    for (gpu, half_peak, memory) in MEASURED {
        let mut kinds: BTreeMap<String, Vec<Product>> = BTreeMap::new();
        for row in unpacked(&format!("{folder}/gemm_measured_{gpu}.csv.gz"))? {
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
