//! `farrier plan compare`

use farrier_planner::compare::{
    Basis, Criteria, GpuComparison, GpuOption, compare, default_precision,
};
use farrier_planner::gpu::Accelerator;
use farrier_planner::parallelism::ParallelConfig;
use farrier_planner::precision::Precision;
use farrier_planner::run::{Framework, TrainingRun};
use farrier_planner::search::describe;

use super::calibrate::CalibrationArgs;
use super::format::{count, number, percent};
use super::request::{self, LinkArgs, WorkloadArgs};
use super::value_parsers::{count as whole, days, price, up_to};
use crate::cli::Output;
use crate::commands::Outcome;
use crate::fact_sets;
use crate::failure::Hinted;
use crate::printer::Printer;

/// Model, GPUs and basis of a comparison.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    work: WorkloadArgs,
    /// GPUs to compare [default: the common data-center GPUs]
    #[arg(long, value_name = "SKU", value_delimiter = ',')]
    gpu: Vec<String>,
    /// Equal number of GPUs
    #[arg(long, value_name = "N", value_parser = whole, group = "equal", allow_negative_numbers = true)]
    gpus: Option<u32>,
    /// Equal cost: up to this many dollars per hour, the number of whole nodes with the highest
    /// throughput
    #[arg(long, value_name = "USD", value_parser = up_to(1e9), group = "equal", allow_negative_numbers = true)]
    usd_per_hour: Option<f64>,
    /// Equal time: the fewest whole nodes that train `--tokens` in this many days
    #[arg(long, value_name = "DAYS", value_parser = days, group = "equal", requires = "tokens", allow_negative_numbers = true)]
    days: Option<f64>,
    /// Prices per GPU-hour that override the list: `GB200=10.5,H100=2.5`
    #[arg(long = "prices", value_name = "SKU=USD", value_delimiter = ',')]
    prices: Vec<String>,
    #[command(flatten)]
    links: LinkArgs,
    #[command(flatten)]
    calibration: CalibrationArgs,
    /// Output format
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    output: Output,
}

pub(super) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let facts = fact_sets::active();
    let basis = match (args.gpus, args.usd_per_hour, args.days, args.work.tokens) {
        (_, Some(usd), ..) => Basis::UsdPerHour(usd),
        (_, _, Some(days), Some(tokens)) => Basis::Days { days, tokens },
        (Some(gpus), ..) => Basis::Gpus(gpus),
        _ => {
            return Err(Hinted::error(
                "specify what to hold equal",
                "set `--gpus N`, `--usd-per-hour USD`, or `--days D --tokens T`",
            ));
        }
    };
    let names: Vec<&str> = if args.gpu.is_empty() {
        facts.gpus.compared().into_iter().map(|gpu| gpu.id.as_str()).collect()
    } else {
        args.gpu.iter().map(String::as_str).collect()
    };
    let resolved: Vec<String> =
        names.iter().filter_map(|name| request::resolved_family(&facts, name)).collect();
    let links = LinkArgs { price: None, ..args.links.clone() };
    let mut gpus = names
        .into_iter()
        .map(|name| request::accelerator(&facts, name, &links))
        .collect::<anyhow::Result<Vec<Accelerator>>>()?;
    let repriced = args
        .prices
        .iter()
        .map(|text| set_price(&facts, text, &mut gpus))
        .collect::<anyhow::Result<Vec<String>>>()?;
    if args.links.price.is_some() {
        return Err(Hinted::error(
            "`--price` applies to a single GPU",
            "set prices with `--prices SKU=USD,SKU=USD`",
        ));
    }
    let (model, assumed) = request::model(&args.work.model)?;
    let run = TrainingRun {
        model,
        gpu: gpus[0].clone(),
        seq_len: args.work.seq_len,
        global_batch: args.work.global_batch,
        precision: args.work.precision.unwrap_or(Precision::Bf16),
        parallelism: ParallelConfig {
            adapter_rank: args.work.adapter_rank(),
            ..ParallelConfig::data_parallel(1, 1)
        },
        task: args.work.task(),
        framework: args.work.framework.unwrap_or(Framework::Bridge),
        fused_experts: false,
    };
    let criteria = Criteria {
        precision: args.work.precision,
        framework: args.work.framework,
        tokens: args.work.tokens,
        basis,
    };
    let mut comparison = compare(args.calibration.planner_for_all(&gpus)?, &run, &gpus, &criteria);
    for option in &mut comparison.options {
        let Some(gpu) = gpus.iter().find(|gpu| gpu.id == option.gpu) else { continue };
        let usd = gpu.usd_per_hour.filter(|_| repriced.contains(&gpu.id));
        option.price_source = request::price(&facts, gpu, usd).map(|price| price.source);
    }
    match args.output {
        Output::Json => printer.json(&comparison)?,
        Output::Table => {
            let rates = gpus.iter().filter_map(request::assumed_rates);
            for assumed in assumed.into_iter().chain(resolved).chain(rates) {
                printer.line(&format!("assumed: {assumed}"))?;
            }
            print(args, &run, &comparison, printer)?;
        }
    }
    Ok(Outcome::finding_if(comparison.options.is_empty()))
}

/// Sets the price of a GPU from `SKU=USD` and returns its id.
fn set_price(
    facts: &farrier_facts::FactSet,
    text: &str,
    gpus: &mut [Accelerator],
) -> anyhow::Result<String> {
    let invalid = || {
        Hinted::error(format!("`{text}` is not a price"), "for example `GB200=10.5`, up to 100000")
    };
    let (name, usd) = text.split_once('=').ok_or_else(invalid)?;
    let usd = price(usd).map_err(|_| invalid())?;
    let id = facts.gpus.by_name(name).map(|found| found.gpu.id.clone());
    match gpus.iter_mut().find(|gpu| Some(&gpu.id) == id.as_ref()) {
        Some(gpu) => {
            gpu.usd_per_hour = Some(usd);
            Ok(gpu.id.clone())
        }
        None => Err(Hinted::error(
            format!("`{name}` is not among the compared GPUs"),
            "add it to `--gpu`",
        )),
    }
}

fn print(
    args: &Args,
    run: &TrainingRun,
    comparison: &GpuComparison,
    printer: &mut Printer,
) -> anyhow::Result<()> {
    let basis = match (args.gpus, args.usd_per_hour, args.days) {
        (_, Some(usd), _) => format!("${} per hour", number(usd)),
        (_, _, Some(days)) => format!("{} days", number(days)),
        (gpus, ..) => format!("{} GPUs", gpus.unwrap_or(0)),
    };
    printer.line(&format!(
        "{}, sequence length {}, global batch {}, at equal {basis}; each GPU in its best parallelism config",
        run.model.name, run.seq_len, run.global_batch
    ))?;
    printer.line("")?;
    table(args, comparison, printer)?;
    prices(comparison, printer)?;
    for option in &comparison.options {
        printer.paragraph("", 0, &format!("{}: {}", option.gpu, describe(&option.parallelism)))?;
        published(option, printer)?;
    }
    for excluded in &comparison.excluded {
        printer.paragraph("", 0, &format!("{} is excluded: {}", excluded.gpu, excluded.reason))?;
    }
    if args.work.precision.is_none() {
        let defaults: Vec<String> = farrier_planner::gpu::Generation::ALL
            .iter()
            .map(|generation| {
                format!("{} {}", generation.name(), default_precision(*generation).name())
            })
            .collect();
        printer.line(&format!(
            "Precision: the default of each generation ({}); `--precision` sets one for all.",
            defaults.join(", ")
        ))?;
    }
    Ok(())
}

/// One row per compared GPU.
fn table(args: &Args, comparison: &GpuComparison, printer: &mut Printer) -> anyhow::Result<()> {
    let dollars = |value: Option<f64>| {
        value.map_or_else(|| "no list price".to_owned(), |value| format!("${}", number(value)))
    };
    let mut head =
        vec!["GPUs", "Precision", "Tokens/s per GPU (P10-P90)", "Tokens/s", "MFU", "Bound"];
    if args.work.tokens.is_some() {
        head.push("Days");
    }
    head.push(if args.usd_per_hour.is_some() { "Total per hour" } else { "Per GPU-hour" });
    head.push("Per million tokens");
    let row = |option: &GpuOption| {
        let mut row = vec![
            format!("{} × {}", option.gpus, option.gpu),
            option.precision.to_owned(),
            format!(
                "{} ({}-{})",
                number(option.tokens_per_s_per_gpu),
                number(option.tokens_per_s_per_gpu_p10),
                number(option.tokens_per_s_per_gpu_p90)
            ),
            count(option.tokens_per_s),
            percent(option.mfu_causal),
            option.bound.name_on(option.has_nvlink).to_owned(),
        ];
        row.extend(option.days.map(number));
        row.push(dollars(if args.usd_per_hour.is_some() {
            option.usd_per_hour
        } else {
            option.usd_per_gpu_hour
        }));
        row.push(dollars(option.cost_per_million_tokens_usd));
        row
    };
    let rows: Vec<Vec<String>> = comparison.options.iter().map(row).collect();
    printer.table(&head, &rows)?;
    Ok(())
}

/// Sources of the prices.
fn prices(comparison: &GpuComparison, printer: &mut Printer) -> anyhow::Result<()> {
    let source =
        |option: &GpuOption| Some(format!("{}: {}", option.gpu, option.price_source.as_ref()?));
    let sources: Vec<String> = comparison.options.iter().filter_map(source).collect();
    if !sources.is_empty() {
        printer.paragraph("Prices", 8, &sources.join("; "))?;
    }
    Ok(())
}

/// Published runs of the model, each on the GPU that its source names.
fn published(option: &GpuOption, printer: &mut Printer) -> anyhow::Result<()> {
    for run in &option.published {
        let variant = if run.is_same_sku { "" } else { ", a different SKU" };
        let text = format!(
            "{}: {} tokens/s per GPU on {} × {}{variant}, in {}, sequence length {} ({}, {})",
            run.model,
            number(run.tokens_per_s_per_gpu),
            run.gpus,
            run.gpu,
            run.precision,
            run.seq_len,
            run.source,
            run.date
        );
        printer.paragraph("    published", 14, &text)?;
    }
    Ok(())
}
