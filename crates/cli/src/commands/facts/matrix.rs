//! `farrier facts matrix`: branch × CUDA × architecture.

use farrier_facts::FactSet;
use farrier_facts::check::DataId;
use farrier_facts::driver::{BranchFacts, Lifecycle, SupportStatus};
use farrier_facts::gpu::Architecture;
use farrier_facts::origin::PartialDate;
use farrier_facts::version::{Branch, CudaVersion, DriverVersion};
use jiff::civil::Date;
use serde::Serialize;

use crate::cli::Output;
use crate::fact_sets;
use crate::printer::Printer;

/// Lists every driver branch: its CUDA, the newest CUDA it runs by minor-version compatibility, the
/// GPU generations it supports, and its support status.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Date for which the status holds [default: today]
    #[arg(long, value_name = "YYYY-MM-DD", value_parser = crate::cli::parse_date)]
    on: Option<Date>,
    /// Output format
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    output: Output,
}

#[derive(Serialize)]
struct MatrixRow<'a> {
    branch: Branch,
    kind: Lifecycle,
    /// The branch's native CUDA.
    cuda: CudaVersion,
    /// The newest CUDA it runs by minor-version compatibility.
    cuda_by_minor_version: CudaVersion,
    architectures: Vec<&'a str>,
    latest: &'a DriverVersion,
    end_of_support: Option<PartialDate>,
    status: SupportStatus,
    /// Fields not confirmed by a source.
    unverified: &'a [String],
}

#[derive(Serialize)]
struct Matrix<'a> {
    on: Date,
    #[serde(rename = "matrix")]
    rows: Vec<MatrixRow<'a>>,
    data: DataId,
}

pub(super) fn run(set: &FactSet, args: &Args, printer: &mut Printer) -> anyhow::Result<()> {
    let on = args.on.unwrap_or_else(fact_sets::today);
    let rows: Vec<MatrixRow<'_>> =
        set.drivers.branch.iter().rev().map(|branch| row(set, branch, on)).collect();
    if args.output == Output::Json {
        printer.json(&Matrix { on, rows, data: (&set.set).into() })?;
        return Ok(());
    }
    let status = format!("On {on}");
    let headings =
        ["Branch", "Kind", "CUDA", "Runs to", "Drives", "Latest", "End of support", &status];
    let lines: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            let gpus = match row.architectures.as_slice() {
                [] => "-".to_owned(),
                [one] => (*one).to_owned(),
                [first, .., last] => format!("{first} to {last}"),
            };
            let mark = |field: &str| {
                if row.unverified.iter().any(|name| name == field) { " *" } else { "" }
            };
            let end =
                row.end_of_support.map_or_else(|| "not stated".to_owned(), |end| end.to_string());
            let end = format!("{end}{}", mark("end_of_support"));
            vec![
                row.branch.to_string(),
                format!("{}{}", kind(row.kind), mark("lifecycle")),
                format!("{}{}", row.cuda, mark("native_cuda")),
                row.cuda_by_minor_version.to_string(),
                gpus,
                row.latest.to_string(),
                end,
                row.status.name().to_owned(),
            ]
        })
        .collect();
    printer.table(&headings, &lines)?;
    printer.line("")?;
    let legend = "CUDA: the newest CUDA version whose machine code and PTX the branch runs. Runs to: the newest \
                  version whose machine code the branch runs (minor-version compatibility; newer PTX does not run); \
                  older versions run as well. Drives: the oldest and the newest supported GPU generation; all between \
                  are supported. * unverified.";
    printer.paragraph("", 0, legend)?;
    fact_sets::print(&set.set, printer)?;
    Ok(())
}

fn kind(lifecycle: Lifecycle) -> &'static str {
    match lifecycle {
        Lifecycle::LongTerm => "long-term",
        Lifecycle::Production => "production",
        Lifecycle::NewFeature => "new feature",
        Lifecycle::Developer => "developer",
    }
}

fn row<'a>(set: &'a FactSet, branch: &'a BranchFacts, on: Date) -> MatrixRow<'a> {
    let supported = |architecture: &&Architecture| architecture.is_driven_by(branch.branch);
    let same_major = |cuda: &CudaVersion| cuda.major == branch.native_cuda.major;
    let by_minor_version = set.cuda.minors().into_iter().filter(same_major).max();
    MatrixRow {
        branch: branch.branch,
        kind: branch.lifecycle,
        cuda: branch.native_cuda,
        cuda_by_minor_version: by_minor_version
            .unwrap_or(branch.native_cuda)
            .max(branch.native_cuda),
        architectures: set
            .gpus
            .architecture
            .iter()
            .filter(supported)
            .map(|architecture| architecture.name.as_str())
            .collect(),
        latest: &branch.latest,
        end_of_support: branch.end_of_support,
        status: branch.support(on),
        unverified: &branch.unverified,
    }
}
