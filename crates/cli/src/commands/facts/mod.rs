//! `farrier facts`: what the answers rest on.

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

/// The kinds of facts.
#[derive(Debug, Subcommand)]
pub(crate) enum FactsCommand {
    /// GPUs: memory, rates, links, power, MIG, names
    Gpu(Lookup),
    /// Driver branches: CUDA, end of support, latest release
    Driver(Lookup),
    /// CUDA toolkits: the driver that ships with each
    Cuda(Lookup),
    /// Frameworks: the CUDA and the GPUs of each published build
    Framework(Lookup),
    /// Xid messages of the GPU and of NVSwitch: what happened and what to do
    Xid(Lookup),
    /// Security advisories and known driver regressions
    Advisory(Lookup),
    /// Driver branch × CUDA × architecture, end of support, today's status
    Matrix(matrix::Args),
    /// The sets of facts: the embedded one and those installed beside it
    Sets(set::SetsArgs),
    /// Print the whole set in force as one JSON document
    Export,
    /// Check a newer set and install it beside the embedded one
    Update(set::UpdateArgs),
}

/// One kind of fact, all of it or one record.
#[derive(Debug, clap::Args)]
pub(crate) struct Lookup {
    /// Which one; all without it
    name: Option<String>,
    /// How to print the answer
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

/// JSON of a lookup: the records under the name of their kind, and the set that they are from.
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

/// The error for a name that is not in the data, with the nearest that is.
fn unknown<'a>(kind: &str, name: &str, known: impl IntoIterator<Item = &'a str>) -> anyhow::Error {
    let near = names::nearest(name, known);
    let hint = match near.as_slice() {
        [] => format!("`farrier facts {kind}` lists what there is"),
        near => {
            let quoted: Vec<String> = near.iter().map(|name| format!("`{name}`")).collect();
            format!("did you mean {}?", quoted.join(", "))
        }
    };
    Hinted::error(format!("there is no {kind} `{name}` in the data"), hint)
}
