//! `farrier check`: this node, or a named combination of GPU and software.

mod combination;
mod node;
mod print;

use std::path::PathBuf;

use clap::ValueEnum;
use jiff::civil::Date;

use crate::cli::Output;
use crate::commands::Outcome;
use crate::printer::Printer;

/// Checks this node or, with --gpu and --driver, a named combination.
///
/// Exit code 0: ok or caveat; 1: blocked or unknown; 2: bad input.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// GPU by any name: SKU, NVML product name, PCI id
    #[arg(long, value_name = "NAME", requires = "driver")]
    gpu: Option<String>,
    /// Driver release (580.65.06) or branch (580)
    #[arg(long, value_name = "VERSION", requires = "gpu")]
    driver: Option<String>,
    /// CUDA version to run or compile with
    #[arg(long, value_name = "X.Y[.Z]", requires = "gpu")]
    cuda: Option<String>,
    /// Framework build, such as torch==2.11.0+cu128, jax[cuda13]==0.8.0 or vllm==0.20.0
    #[arg(long, value_name = "NAME==VERSION", requires = "gpu")]
    framework: Option<String>,
    /// Kernel module flavour
    #[arg(long, requires = "gpu")]
    module: Option<ModuleArg>,
    /// Whether CUDA programs are run or compiled
    #[arg(long, value_name = "USE", default_value = "run", requires = "gpu")]
    r#use: UsageArg,
    /// The program contains PTX and no machine code for this GPU
    #[arg(long, requires = "gpu")]
    ptx_only: bool,
    /// CUDA version of a cuda-compat package on the library path
    #[arg(long, value_name = "X.Y", requires = "gpu")]
    forward_compat: Option<String>,
    /// Fabric Manager version
    #[arg(long, value_name = "VERSION", requires = "gpu")]
    fabric_manager: Option<String>,
    /// Feature that must work
    #[arg(long, requires = "gpu")]
    feature: Option<FeatureArg>,
    /// Check the node whose files are below this directory, or a capture
    #[arg(long, value_name = "DIR", conflicts_with = "gpu", help_heading = NODE)]
    root: Option<PathBuf>,
    /// NVML library to query, or a file with saved NVML answers (.json)
    #[arg(long, value_name = "PATH", conflicts_with = "gpu", help_heading = NODE)]
    nvml: Option<PathBuf>,
    /// Timeout for NVML, in seconds
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 10,
        value_parser = clap::value_parser!(u64).range(1..=600),
        conflicts_with = "gpu",
        help_heading = NODE
    )]
    nvml_deadline: u64,
    /// Python whose frameworks are checked: an interpreter or an environment [default: the active
    /// one]
    #[arg(long, value_name = "PATH", conflicts_with = "gpu", help_heading = NODE)]
    python: Option<PathBuf>,
    /// Write everything that was read into this directory, to check it elsewhere with --root
    #[arg(long, value_name = "DIR", conflicts_with = "gpu", help_heading = NODE)]
    capture: Option<PathBuf>,
    /// Date for which the answer holds [default: today]
    #[arg(long, value_name = "YYYY-MM-DD", value_parser = crate::cli::parse_date)]
    on: Option<Date>,
    /// Let security advisories and known regressions affect the verdict
    #[arg(long)]
    strict: bool,
    /// List the notices: security advisories and known regressions of the driver
    #[arg(long)]
    notices: bool,
    /// Output format
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    output: Output,
}

/// Help heading of the flags that only apply to a node.
const NODE: &str = "Node";

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
