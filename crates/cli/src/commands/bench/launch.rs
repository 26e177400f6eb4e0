//! `farrier bench launch`

use farrier_hardware::cuda::{self, CudaError, LaunchPlan, LaunchTimes, LaunchTiming};
use serde::Serialize;

use crate::cli::Output;
use crate::commands::Outcome;
use crate::failure::Hinted;
use crate::printer::Printer;
use crate::stats::{Stats, significant};

/// Measures the cost of a launch, a synchronisation or a small copy on this GPU, without a
/// framework.
///
/// Needs the NVIDIA driver and a GPU of compute capability 7.0 or higher; no CUDA toolkit.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// GPU index, in CUDA's order
    #[arg(long, value_name = "INDEX", default_value_t = 0)]
    gpu: usize,
    /// Launches in one measurement of `stream`, and kernels in the graph of `graph`
    #[arg(long, value_name = "COUNT", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    launches: u32,
    /// Number of measurements of each kind
    #[arg(long, value_name = "COUNT", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    repeats: u32,
    /// Output format
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    output: Output,
}

/// One kind of work, in microseconds per operation.
#[derive(Debug, Serialize)]
struct LaunchCost {
    name: &'static str,
    what: &'static str,
    pieces: u32,
    submit_us: Option<Stats>,
    total_us: Stats,
}

/// The JSON document.
#[derive(Debug, Serialize)]
struct LaunchReport<'a> {
    farrier_bench_launch: u32,
    gpu: &'a str,
    compute_capability: String,
    driver: Option<String>,
    date: String,
    repeats: u32,
    costs: Vec<LaunchCost>,
}

pub(crate) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let plan = LaunchPlan { gpu: args.gpu, launches: args.launches, repeats: args.repeats };
    let times = cuda::measure(plan).map_err(with_hint)?;
    let report = report(&times, args.repeats);
    if args.output == Output::Json {
        printer.json(&report)?;
    } else {
        print(&report, printer)?;
    }
    Ok(Outcome::Fine)
}

fn with_hint(err: CudaError) -> anyhow::Error {
    let hint = match &err {
        CudaError::NoLibrary { .. } => {
            "this needs a machine with the NVIDIA driver; a container also needs the NVIDIA container toolkit with the \
             `compute` capability; `farrier check` diagnoses it"
        }
        CudaError::OldLibrary { .. } => "`farrier check` shows which driver fits this GPU",
        CudaError::NoGpu { .. } => {
            "`farrier check` diagnoses it; CUDA_VISIBLE_DEVICES may hide GPUs"
        }
        CudaError::NoSuchGpu { .. } => "--gpu counts from 0",
        CudaError::OutOfMemory
        | CudaError::Unavailable { .. }
        | CudaError::CallFailed { .. }
        | CudaError::LaunchCountMismatch { .. } => {
            "`farrier check` and `farrier decode` show GPU faults; another process may use its memory"
        }
    };
    let message = "failed to measure launches";
    anyhow::Error::new(err).context(Hinted::plain(message, hint))
}

fn report(times: &LaunchTimes, repeats: u32) -> LaunchReport<'_> {
    let (major, minor) = times.compute_capability;
    LaunchReport {
        farrier_bench_launch: 1,
        gpu: &times.gpu,
        compute_capability: format!("{major}.{minor}"),
        driver: super::train::driver_version(),
        date: crate::fact_sets::today().to_string(),
        repeats,
        costs: times.timed.iter().filter_map(cost).collect(),
    }
}

fn cost(timed: &LaunchTiming) -> Option<LaunchCost> {
    let us = |seconds: &[f64]| Some(Stats::from_samples(seconds.iter().copied())?.scaled(1e6));
    Some(LaunchCost {
        name: timed.name,
        what: timed.what,
        pieces: timed.pieces,
        submit_us: timed.submit_s.as_deref().and_then(us),
        total_us: us(&timed.total_s)?,
    })
}

fn print(report: &LaunchReport<'_>, printer: &mut Printer) -> anyhow::Result<()> {
    let driver = report.driver.as_deref().unwrap_or("unknown");
    printer.line(&format!(
        "{}, compute capability {}, driver {driver}, {}",
        report.gpu, report.compute_capability, report.date
    ))?;
    printer.line("")?;
    let rows: Vec<Vec<String>> = report
        .costs
        .iter()
        .map(|cost| {
            let synchronous = || "synchronous".to_owned();
            vec![
                cost.name.to_owned(),
                cost.submit_us.map_or_else(synchronous, |stats| stats.format_with(significant)),
                cost.total_us.format_with(significant),
                format!("{}, {} per measurement", cost.what, cost.pieces),
            ]
        })
        .collect();
    printer.table(&["Work", "Submit, µs each", "Done, µs each", "What is measured"], &rows)?;
    printer.line("")?;
    printer.paragraph(
        "",
        0,
        &format!(
            "Medians of {} interleaved repeats, with their range. The kernel counts its own runs, and the count was \
             correct.",
            report.repeats
        ),
    )?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_microseconds_per_operation() {
        let timed = LaunchTiming {
            name: "stream",
            what: "a kernel",
            pieces: 1000,
            submit_s: Some(vec![2e-6, 4e-6, 3e-6]),
            total_s: vec![5e-6, 5e-6, 5e-6],
        };
        let cost = cost(&timed).unwrap();
        assert!((cost.submit_us.unwrap().median - 3.0).abs() < 1e-9);
        assert_eq!(cost.total_us.format_with(significant), "5.00");
        let synchronous = LaunchTiming { submit_s: None, ..timed };
        assert!(super::cost(&synchronous).unwrap().submit_us.is_none());
    }
}
