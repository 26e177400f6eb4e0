//! `farrier check`: this node, or a combination that a person names.

mod combination;
mod node;
mod print;

use std::path::PathBuf;

use clap::ValueEnum;
use jiff::civil::Date;

use crate::cli::Output;
use crate::commands::Outcome;
use crate::printer::Printer;

/// Judges this node; with --gpu and --driver, a combination that is named.
///
/// Exit code 0: ok or caveat; 1: blocked or unknown; 2: bad input.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The GPU by any name: SKU, NVML product name, PCI id
    #[arg(long, value_name = "NAME", requires = "driver")]
    gpu: Option<String>,
    /// The driver release (580.65.06), or its branch (580)
    #[arg(long, value_name = "VERSION", requires = "gpu")]
    driver: Option<String>,
    /// The CUDA to run or compile with
    #[arg(long, value_name = "X.Y[.Z]", requires = "gpu")]
    cuda: Option<String>,
    /// The framework build, such as torch==2.11.0+cu128, jax[cuda13]==0.8.0 or vllm==0.20.0
    #[arg(long, value_name = "NAME==VERSION", requires = "gpu")]
    framework: Option<String>,
    /// The kernel modules in use
    #[arg(long, requires = "gpu")]
    module: Option<ModuleArg>,
    /// What CUDA is for
    #[arg(long, value_name = "USE", default_value = "run", requires = "gpu")]
    r#use: UsageArg,
    /// The program carries PTX and no machine code for this GPU
    #[arg(long, requires = "gpu")]
    ptx_only: bool,
    /// A cuda-compat package is on the library path: its CUDA
    #[arg(long, value_name = "X.Y", requires = "gpu")]
    forward_compat: Option<String>,
    /// The version of fabric manager
    #[arg(long, value_name = "VERSION", requires = "gpu")]
    fabric_manager: Option<String>,
    /// A feature that must work
    #[arg(long, requires = "gpu")]
    feature: Option<FeatureArg>,
    /// Check the node whose files are below this folder, or a capture
    #[arg(long, value_name = "DIR", conflicts_with = "gpu", help_heading = NODE)]
    root: Option<PathBuf>,
    /// The NVML library to ask, or a file with its saved answers (.json)
    #[arg(long, value_name = "PATH", conflicts_with = "gpu", help_heading = NODE)]
    nvml: Option<PathBuf>,
    /// How long NVML is given to answer, in seconds
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 10,
        value_parser = clap::value_parser!(u64).range(1..=600),
        conflicts_with = "gpu",
        help_heading = NODE
    )]
    nvml_deadline: u64,
    /// The Python whose frameworks are judged: an interpreter or an environment [default: the active one]
    #[arg(long, value_name = "PATH", conflicts_with = "gpu", help_heading = NODE)]
    python: Option<PathBuf>,
    /// Write all that was read into this folder, to check it elsewhere with --root
    #[arg(long, value_name = "DIR", conflicts_with = "gpu", help_heading = NODE)]
    capture: Option<PathBuf>,
    /// The day for which the answer shall hold [default: today]
    #[arg(long, value_name = "YYYY-MM-DD", value_parser = crate::cli::parse_date)]
    on: Option<Date>,
    /// Let security advisories and known regressions decide too
    #[arg(long)]
    strict: bool,
    /// How to print the answer
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    output: Output,
}

/// The flags that only a check of a node takes.
const NODE: &str = "A node";

#[derive(Debug, Clone, Copy, ValueEnum)]
enum ModuleArg {
    Open,
    Proprietary,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum UsageArg {
    Run,
    Compile,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum FeatureArg {
    Cdmm,
    Mig,
}

pub(crate) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    match (&args.gpu, &args.driver) {
        (Some(gpu), Some(driver)) => combination::run(args, gpu, driver, printer),
        _ => node::run(args, printer),
    }
}
