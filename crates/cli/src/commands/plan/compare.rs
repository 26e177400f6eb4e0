//! `farrier plan compare`

use farrier_planner::compare::{Comparison, Equal, Offer, Terms, compare, usual_precision};
use farrier_planner::gpu::Accelerator;
use farrier_planner::layout::Layout;
use farrier_planner::precision::Precision;
use farrier_planner::run::{Run, Stack};
use farrier_planner::search::describe;

use super::calibrate::Calibrated;
use super::figures::{count, number, percent};
use super::request::{self, Links, Work};
use super::values::{count as whole, days, price, up_to};
use crate::cli::Output;
use crate::commands::Outcome;
use crate::fact_sets;
use crate::failure::Hinted;
use crate::printer::Printer;

/// Parts that people choose between, oldest first.
const USUAL: [&str; 7] = [
    "A100-SXM4-80GB",
    "H100-SXM5-80GB",
    "H200-SXM5-141GB",
    "B200-SXM6-180GB",
    "GB200",
    "B300-SXM6",
    "GB300",
];

/// Which model, and what is held equal.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    work: Work,
    /// The GPUs to compare; without it those that people choose between
    #[arg(long, value_name = "SKU", value_delimiter = ',')]
    gpu: Vec<String>,
    /// Equal numbers: so many of each
    #[arg(long, value_name = "N", value_parser = whole, group = "equal", allow_negative_numbers = true)]
    gpus: Option<u32>,
    /// Equal money: the number of whole nodes within so many dollars an hour that does most
    #[arg(long, value_name = "USD", value_parser = up_to(1e9), group = "equal", allow_negative_numbers = true)]
    usd_per_hour: Option<f64>,
    /// Equal time: the fewest whole nodes that do `--tokens` in so many days
    #[arg(long, value_name = "DAYS", value_parser = days, group = "equal", requires = "tokens", allow_negative_numbers = true)]
    days: Option<f64>,
    /// Prices where the list has none or another: `GB200=10.5,H100=2.5`
    #[arg(long = "prices", value_name = "SKU=USD", value_delimiter = ',')]
    prices: Vec<String>,
    #[command(flatten)]
    links: Links,
    #[command(flatten)]
    calibrated: Calibrated,
    /// How to print the answer
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    output: Output,
}

pub(super) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let facts = fact_sets::active();
    let equal = match (args.gpus, args.usd_per_hour, args.days, args.work.tokens) {
        (_, Some(usd), ..) => Equal::UsdPerHour(usd),
        (_, _, Some(days), Some(tokens)) => Equal::Days { days, tokens },
        (Some(gpus), ..) => Equal::Gpus(gpus),
        _ => {
            return Err(Hinted::error(
                "what is to be equal?",
                "`--gpus N`, `--usd-per-hour USD`, or `--days D --tokens T`",
            ));
        }
    };
    let names: Vec<&str> = if args.gpu.is_empty() {
        USUAL.to_vec()
    } else {
        args.gpu.iter().map(String::as_str).collect()
    };
    let taken: Vec<String> =
        names.iter().filter_map(|name| request::taken_for(&facts, name)).collect();
    let links = Links { price: None, ..args.links.clone() };
    let mut parts = names
        .into_iter()
        .map(|name| request::accelerator(&facts, name, &links))
        .collect::<anyhow::Result<Vec<Accelerator>>>()?;
    let asked = args
        .prices
        .iter()
        .map(|text| set_price(&facts, text, &mut parts))
        .collect::<anyhow::Result<Vec<String>>>()?;
    if args.links.price.is_some() {
        return Err(Hinted::error(
            "one price is not for several GPUs",
            "`--prices SKU=USD,SKU=USD` gives each its own",
        ));
    }
    let (model, assumed) = request::model(&args.work.model)?;
    let run = Run {
        model,
        gpu: parts[0].clone(),
        seq_len: args.work.seq_len,
        global_batch: args.work.global_batch,
        precision: args.work.precision.unwrap_or(Precision::Bf16),
        layout: Layout { adapter_rank: args.work.adapter_rank(), ..Layout::copies(1, 1) },
        task: args.work.task(),
        stack: args.work.stack.unwrap_or(Stack::Bridge),
        fused_experts: false,
    };
    let terms = Terms {
        precision: args.work.precision,
        stack: args.work.stack,
        tokens: args.work.tokens,
        equal,
    };
    let mut found = compare(args.calibrated.planner_of(&parts)?, &run, &parts, &terms);
    for offer in &mut found.offers {
        let Some(part) = parts.iter().find(|part| part.id == offer.gpu) else { continue };
        let usd = part.usd_per_hour.filter(|_| asked.contains(&part.id));
        offer.price_source = request::price(&facts, part, usd).map(|price| price.source);
    }
    match args.output {
        Output::Json => printer.json(&found)?,
        Output::Table => {
            for assumed in assumed.into_iter().chain(taken) {
                printer.line(&format!("assumed: {assumed}"))?;
            }
            print(args, &run, &found, printer)?;
        }
    }
    Ok(Outcome::finding_if(found.offers.is_empty()))
}

/// Sets the price of a part as asked for, and says which part that is.
fn set_price(
    facts: &farrier_facts::FactSet,
    text: &str,
    parts: &mut [Accelerator],
) -> anyhow::Result<String> {
    let wrong =
        || Hinted::error(format!("`{text}` is not a price"), "such as `GB200=10.5`, up to 100000");
    let (name, usd) = text.split_once('=').ok_or_else(wrong)?;
    let usd = price(usd).map_err(|_| wrong())?;
    let id = facts.gpus.by_name(name).map(|named| named.gpu.id.clone());
    match parts.iter_mut().find(|part| Some(&part.id) == id.as_ref()) {
        Some(part) => {
            part.usd_per_hour = Some(usd);
            Ok(part.id.clone())
        }
        None => Err(Hinted::error(
            format!("`{name}` is not among the GPUs that are compared"),
            "name it in `--gpu` too",
        )),
    }
}

fn print(args: &Args, run: &Run, found: &Comparison, printer: &mut Printer) -> anyhow::Result<()> {
    let equal = match (args.gpus, args.usd_per_hour, args.days) {
        (_, Some(usd), _) => format!("${} an hour", number(usd)),
        (_, _, Some(days)) => format!("{} days", number(days)),
        (gpus, ..) => format!("{} GPUs", gpus.unwrap_or(0)),
    };
    printer.line(&format!(
        "{}, {} tokens a sequence, {} sequences a step, at equal {equal}; each GPU in its best split",
        run.model.name, run.seq_len, run.global_batch
    ))?;
    printer.line("")?;
    table(args, found, printer)?;
    prices(found, printer)?;
    for offer in &found.offers {
        printer.paragraph("", 0, &format!("{}: {}", offer.gpu, describe(&offer.layout)))?;
        published(offer, printer)?;
    }
    for not in &found.not_offered {
        printer.paragraph("", 0, &format!("{} is not offered: {}", not.gpu, not.why))?;
    }
    if args.work.precision.is_none() {
        let usual: Vec<String> = farrier_planner::gpu::Generation::ALL
            .iter()
            .map(|generation| {
                format!("{} {}", generation.name(), usual_precision(*generation).name())
            })
            .collect();
        printer.line(&format!(
            "Precision: what each generation is usually trained in ({}); `--precision` takes one for all.",
            usual.join(", ")
        ))?;
    }
    Ok(())
}

/// A row for each GPU that is offered.
fn table(args: &Args, found: &Comparison, printer: &mut Printer) -> anyhow::Result<()> {
    let dollars = |value: Option<f64>| {
        value.map_or_else(|| "no list price".to_owned(), |value| format!("${}", number(value)))
    };
    let mut head = vec!["GPUs", "Precision", "Tokens/s each (P10-P90)", "Tokens/s", "MFU", "Bound"];
    if args.work.tokens.is_some() {
        head.push("Days");
    }
    head.push(if args.usd_per_hour.is_some() { "All, an hour" } else { "GPU and hour" });
    head.push("Million tokens");
    let row = |offer: &Offer| {
        let mut row = vec![
            format!("{} × {}", offer.gpus, offer.gpu),
            offer.precision.to_owned(),
            format!(
                "{} ({}-{})",
                number(offer.tokens_per_s_per_gpu),
                number(offer.tokens_per_s_per_gpu_p10),
                number(offer.tokens_per_s_per_gpu_p90)
            ),
            count(offer.tokens_per_s),
            percent(offer.mfu_causal),
            offer.bound.name_on(offer.has_nvlink).to_owned(),
        ];
        row.extend(offer.days.map(number));
        row.push(dollars(if args.usd_per_hour.is_some() {
            offer.usd_per_hour
        } else {
            offer.usd_per_gpu_hour
        }));
        row.push(dollars(offer.cost_per_million_tokens_usd));
        row
    };
    let rows: Vec<Vec<String>> = found.offers.iter().map(row).collect();
    printer.table(&head, &rows)?;
    Ok(())
}

/// Whose prices these are.
fn prices(found: &Comparison, printer: &mut Printer) -> anyhow::Result<()> {
    let of = |offer: &Offer| Some(format!("{}: {}", offer.gpu, offer.price_source.as_ref()?));
    let sources: Vec<String> = found.offers.iter().filter_map(of).collect();
    if !sources.is_empty() {
        printer.paragraph("Prices", 8, &sources.join("; "))?;
    }
    Ok(())
}

/// Published runs beside an offer, each on the GPU that its source names.
fn published(offer: &Offer, printer: &mut Printer) -> anyhow::Result<()> {
    for seen in &offer.published {
        let kin = if seen.is_same_part { "" } else { ", not the same part" };
        let text = format!(
            "{}: {} tokens/s each on {} × {}{kin}, in {}, {} tokens a sequence ({}, {})",
            seen.model,
            number(seen.tokens_per_s_per_gpu),
            seen.gpus,
            seen.gpu,
            seen.precision,
            seen.seq_len,
            seen.source,
            seen.date
        );
        printer.paragraph("    published", 14, &text)?;
    }
    Ok(())
}
