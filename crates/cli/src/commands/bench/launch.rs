//! `farrier bench launch`

use farrier_hardware::cuda::{self, CudaError, LaunchPlan, LaunchTimes, LaunchTiming};
use serde::Serialize;

use crate::cli::Output;
use crate::commands::Outcome;
use crate::failure::Hinted;
use crate::printer::Printer;
use crate::spread::{Spread, figures};

/// What one launch, wait or small copy costs on this GPU, from Rust and without a framework.
///
/// Needs NVIDIA's driver and a GPU of compute capability 7.0 or higher; no CUDA toolkit.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The GPU, as CUDA counts them
    #[arg(long, value_name = "INDEX", default_value_t = 0)]
    gpu: usize,
    /// Launches between two waits, and kernels in the graph
    #[arg(long, value_name = "COUNT", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    launches: u32,
    /// How often each is measured
    #[arg(long, value_name = "COUNT", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    repeats: u32,
    /// How to print
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    output: Output,
}

/// One kind of work, in microseconds for one piece.
#[derive(Debug, Serialize)]
struct Cost {
    name: &'static str,
    what: &'static str,
    pieces: u32,
    submit_us: Option<Spread>,
    total_us: Spread,
}

/// What is printed for programs.
#[derive(Debug, Serialize)]
struct Report<'a> {
    farrier_bench_launch: u32,
    gpu: &'a str,
    compute_capability: String,
    driver: Option<String>,
    date: String,
    repeats: u32,
    costs: Vec<Cost>,
}

pub(crate) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let plan = LaunchPlan { gpu: args.gpu, launches: args.launches, repeats: args.repeats };
    let times = cuda::measure(plan).map_err(hinted)?;
    let report = report(&times, args.repeats);
    if args.output == Output::Json {
        printer.json(&report)?;
    } else {
        print(&report, printer)?;
    }
    Ok(Outcome::Fine)
}

fn hinted(err: CudaError) -> anyhow::Error {
    let hint = match &err {
        CudaError::NoLibrary { .. } => {
            "this needs a machine with NVIDIA's driver; in a container, the NVIDIA container toolkit with the `compute` \
             capability; `farrier check` says what is there"
        }
        CudaError::OldLibrary { .. } => "`farrier check` says which driver fits this GPU",
        CudaError::NoGpu { .. } => {
            "`farrier check` says what is wrong; CUDA_VISIBLE_DEVICES hides GPUs too"
        }
        CudaError::NoSuchGpu { .. } => "--gpu counts from 0",
        CudaError::OutOfMemory
        | CudaError::Unavailable { .. }
        | CudaError::CallFailed { .. }
        | CudaError::LaunchCountMismatch { .. } => {
            "`farrier check` and `farrier decode` say whether the GPU is well; another process may hold its memory"
        }
    };
    let message = "no launch was measured";
    anyhow::Error::new(err).context(Hinted::plain(message, hint))
}

fn report(times: &LaunchTimes, repeats: u32) -> Report<'_> {
    let (major, minor) = times.compute_capability;
    Report {
        farrier_bench_launch: 1,
        gpu: &times.gpu,
        compute_capability: format!("{major}.{minor}"),
        driver: super::train::driver_version(),
        date: crate::sets::today().to_string(),
        repeats,
        costs: times.timed.iter().filter_map(cost).collect(),
    }
}

fn cost(timed: &LaunchTiming) -> Option<Cost> {
    let us = |seconds: &[f64]| Some(Spread::of(seconds.iter().copied())?.times(1e6));
    Some(Cost {
        name: timed.name,
        what: timed.what,
        pieces: timed.pieces,
        submit_us: timed.submit_s.as_deref().and_then(us),
        total_us: us(&timed.total_s)?,
    })
}

fn print(report: &Report<'_>, printer: &mut Printer) -> anyhow::Result<()> {
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
            let waits = || "waits".to_owned();
            vec![
                cost.name.to_owned(),
                cost.submit_us.map_or_else(waits, |spread| spread.text(figures)),
                cost.total_us.text(figures),
                format!("{}, {} between two waits", cost.what, cost.pieces),
            ]
        })
        .collect();
    printer.table(&["Work", "Submit, µs each", "Done, µs each", "What is counted"], &rows)?;
    printer.line("")?;
    printer.paragraph(
        "",
        0,
        &format!(
            "Medians of {} repeats that took turns, and their range. The kernel counts its own runs, and the count was \
             right.",
            report.repeats
        ),
    )?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_microseconds_for_one_piece() {
        let timed = LaunchTiming {
            name: "stream",
            what: "a kernel",
            pieces: 1000,
            submit_s: Some(vec![2e-6, 4e-6, 3e-6]),
            total_s: vec![5e-6, 5e-6, 5e-6],
        };
        let cost = cost(&timed).unwrap();
        assert!((cost.submit_us.unwrap().median - 3.0).abs() < 1e-9);
        assert_eq!(cost.total_us.text(figures), "5.00");
        let waits = LaunchTiming { submit_s: None, ..timed };
        assert!(super::cost(&waits).unwrap().submit_us.is_none());
    }
}
