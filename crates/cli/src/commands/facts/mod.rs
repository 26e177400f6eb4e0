//! `farrier facts`: looks up the fact set.

mod advisory;
mod cuda;
mod driver;
mod framework;
mod gpu;
mod matrix;
mod record;
mod set;
mod xid;

use clap::Subcommand;
use farrier_facts::check::DataId;
use farrier_facts::{FactSet, names};
use serde::Serialize;

use crate::cli::Output;
use crate::commands::Outcome;
use crate::fact_sets;
use crate::failure::Hinted;
use crate::printer::Printer;

#[derive(Debug, Subcommand)]
pub(crate) enum FactsCommand {
    /// GPUs: memory, compute, links, power, MIG, names
    Gpu(Lookup),
    /// Driver branches: CUDA, end of support, latest release
    Driver(Lookup),
    /// CUDA toolkits: the driver that ships with each
    Cuda(Lookup),
    /// Frameworks: the CUDA and the GPUs of each published build
    Framework(Lookup),
    /// GPU Xids and NVSwitch SXids: what happened and what to do
    Xid(Lookup),
    /// Security advisories and known driver regressions
    Advisory(Lookup),
    /// Driver branch × CUDA × architecture, with end of support and today's status
    Matrix(matrix::Args),
    /// Fact sets: the embedded one and installed ones
    Sets(set::SetsArgs),
    /// Print the active fact set as one JSON document
    Export,
    /// Validate a newer fact set and install it
    Update(set::UpdateArgs),
}

/// Looks up all records of one kind, or one record.
#[derive(Debug, clap::Args)]
pub(crate) struct Lookup {
    /// Record to print [default: all]
    name: Option<String>,
    /// Output format
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    output: Output,
}

pub(crate) fn run(command: &FactsCommand, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let set = fact_sets::active();
    match command {
        FactsCommand::Gpu(lookup) => gpu::run(&set, lookup, printer)?,
        FactsCommand::Driver(lookup) => driver::run(&set, lookup, printer)?,
        FactsCommand::Cuda(lookup) => cuda::run(&set, lookup, printer)?,
        FactsCommand::Framework(lookup) => framework::run(&set, lookup, printer)?,
        FactsCommand::Xid(lookup) => xid::run(&set, lookup, printer)?,
        FactsCommand::Advisory(lookup) => advisory::run(&set, lookup, printer)?,
        FactsCommand::Matrix(args) => matrix::run(&set, args, printer)?,
        FactsCommand::Sets(args) => set::list(args, printer)?,
        FactsCommand::Export => printer.json(&*set)?,
        FactsCommand::Update(args) => set::update(args, printer)?,
    }
    Ok(Outcome::Fine)
}

/// Prints a lookup as JSON: the records under their kind, and the fact set.
fn print_json<T: Serialize>(
    set: &FactSet,
    kind: &str,
    records: &[T],
    printer: &mut Printer,
) -> anyhow::Result<()> {
    let mut document = serde_json::Map::new();
    document.insert(kind.to_owned(), serde_json::to_value(records)?);
    document.insert("data".to_owned(), serde_json::to_value(DataId::from(&set.set))?);
    printer.json(&document)?;
    Ok(())
}

/// The error for an unknown name, with the nearest known names.
fn unknown<'a>(kind: &str, name: &str, known: impl IntoIterator<Item = &'a str>) -> anyhow::Error {
    let near = names::nearest(name, known);
    let hint = match near.as_slice() {
        [] => format!("`farrier facts {kind}` lists them all"),
        near => {
            let quoted: Vec<String> = near.iter().map(|name| format!("`{name}`")).collect();
            format!("did you mean {}?", quoted.join(", "))
        }
    };
    Hinted::error(format!("no {kind} `{name}` in the data"), hint)
}
