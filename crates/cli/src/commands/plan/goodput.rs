//! `farrier plan goodput`

use clap::ValueEnum;
use farrier_planner::goodput::{
    BYTES_PER_PARAMETER, Checkpoint, CheckpointKind, Conditions, Goodput, Hazard, Recovery, Report,
    Spares, Training,
};
use farrier_planner::model::Parameters;
use farrier_planner::run::Run;
use farrier_planner::{Planner, plan};
use serde::Serialize;

use super::figures::{count, duration, number, percent, usd};
use super::request::{self, Cluster, Split, Work, positive};
use super::train::{Goal, best, check_run};
use crate::cli::Output;
use crate::commands::Outcome;
use crate::failure::Hinted;
use crate::printer::Printer;
use crate::sets;

/// Which run, under which faults.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    work: Work,
    #[command(flatten)]
    cluster: Cluster,
    #[command(flatten)]
    split: Split,
    /// Try every split and take the best; what is given stays as it is
    #[arg(long)]
    search: bool,
    /// Tokens a second of the whole run, where they are measured and not to be estimated
    #[arg(long, value_name = "TOKENS/S", value_parser = positive)]
    tokens_per_s: Option<f64>,
    #[command(flatten)]
    faults: Faults,
    /// How to print the answer
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    output: Output,
}

/// Faults, and what is done about them.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct Faults {
    /// A fault that stops the run comes every so many hours [default: by --hazard and the number of GPUs]
    #[arg(long, value_name = "HOURS", value_parser = positive, conflicts_with = "hazard")]
    mtbf: Option<f64>,
    /// How often faults come: dedicated (as Llama 3's cluster), research (RSC-1), research-calm (RSC-2), none
    #[arg(long, value_name = "KIND", value_parser = hazard, default_value = "dedicated")]
    hazard: Hazard,
    /// Minutes until a fault is seen
    #[arg(long, value_name = "MINUTES", value_parser = positive)]
    detection: Option<f64>,
    /// Minutes from there until the job trains again, without what it lost
    #[arg(long, value_name = "MINUTES", value_parser = positive)]
    recovery: Option<f64>,
    /// How checkpoints are kept
    #[arg(long, value_name = "KIND", default_value = "asynchronous")]
    checkpoint: Kind,
    /// Storage, GB/s of the whole cluster
    #[arg(long, value_name = "GB/S", value_parser = positive, default_value = "200")]
    storage: f64,
    /// Minutes between checkpoints [default: the best]
    #[arg(long, value_name = "MINUTES", value_parser = positive)]
    interval: Option<f64>,
    /// Spare nodes that wait; without it the provider replaces nodes at once
    #[arg(long, value_name = "NODES")]
    spares: Option<u32>,
    /// Hours until a broken node is back
    #[arg(long, value_name = "HOURS", value_parser = positive)]
    repair: Option<f64>,
}

/// How checkpoints are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// Training waits until it is written.
    Synchronous,
    /// Training waits for the copy to the host; it is written beside.
    Asynchronous,
    /// Kept in the memory of other nodes, and in storage now and then.
    InMemory,
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            mtbf: None,
            hazard: Hazard::DEDICATED,
            detection: None,
            recovery: None,
            checkpoint: Kind::Asynchronous,
            storage: 200.0,
            interval: None,
            spares: None,
            repair: None,
        }
    }
}

fn hazard(text: &str) -> Result<Hazard, String> {
    Hazard::named(text).ok_or_else(|| format!("possible: {}", Hazard::NAMES.join(", ")))
}

impl Faults {
    /// The conditions of a run whose step takes so long.
    pub(super) fn conditions(&self, run: &Run, step_s: f64) -> anyhow::Result<Conditions> {
        let kind = match self.checkpoint {
            Kind::Synchronous => CheckpointKind::Synchronous,
            Kind::Asynchronous => CheckpointKind::Asynchronous,
            Kind::InMemory => CheckpointKind::InMemory,
        };
        let parameters = Parameters::of(&run.model);
        let bytes = BYTES_PER_PARAMETER * (parameters.total + parameters.further);
        let checkpoint = Checkpoint::new(kind, bytes, self.storage * 1e9);
        let mut conditions = Conditions::new(run.layout.gpus(), checkpoint, step_s);
        conditions.hazard = match self.mtbf {
            Some(hours) => Hazard::every(hours)?,
            None => self.hazard,
        };
        if let Some(minutes) = self.detection {
            conditions.detection_s = 60.0 * minutes;
        }
        if let Some(minutes) = self.recovery {
            conditions.recovery =
                Recovery { restart_s: 60.0 * minutes, load_s: Some(0.0), warm_up_s: 0.0 };
        }
        if let Some(nodes) = self.spares {
            conditions.spares = Spares { nodes: Some(nodes), ..conditions.spares };
        }
        if let Some(hours) = self.repair {
            conditions.spares.repair_h = hours;
        }
        Ok(conditions)
    }
}

/// The whole answer.
#[derive(Debug, Serialize)]
struct Answer {
    v: u32,
    model: String,
    gpu: String,
    gpus: u32,
    tokens: f64,
    tokens_per_s: f64,
    conditions: Conditions,
    #[serde(flatten)]
    report: Report,
}

pub(super) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let facts = sets::active();
    let planner = Planner::shipped();
    let Some(tokens) = args.work.tokens else {
        return Err(Hinted::error(
            "how many tokens are to be trained on?",
            "`--tokens 15.6T`, for instance",
        ));
    };
    let asked = request::asked(&facts, &args.work, &args.cluster, &args.split)?;
    let run = if args.search {
        let axes = args.split.axes(args.work.stack);
        match best(planner, &asked, &axes, &args.cluster.gpus, Goal::Speed, Some(tokens))? {
            Ok(best) => best.run,
            Err(large) => return large.print(args.output, printer),
        }
    } else {
        check_run(&asked.run, args.cluster.gpus[0])?;
        asked.run.clone()
    };
    let planned = plan::plan(planner, &run, Some(tokens), asked.price.clone());
    let tokens_per_s = args.tokens_per_s.unwrap_or(planned.tokens_per_s);
    let conditions = args.faults.conditions(&run, run.tokens_per_step() / tokens_per_s)?;
    let training = Training {
        tokens,
        tokens_per_s,
        usd_per_gpu_hour: asked.price.as_ref().map(|price| price.usd_per_gpu_hour),
    };
    let report =
        Report::of(&conditions, &training, args.faults.interval.map(|minutes| 60.0 * minutes))?;
    let headway = report.no_headway.is_none();
    let answer = Answer {
        v: 1,
        model: run.model.name.clone(),
        gpu: run.gpu.id.clone(),
        gpus: run.layout.gpus(),
        tokens,
        tokens_per_s,
        conditions,
        report,
    };
    match args.output {
        Output::Json => printer.json(&answer)?,
        Output::Table => print(&answer, printer)?,
    }
    Ok(Outcome::finding_if(!headway))
}

fn print(answer: &Answer, printer: &mut Printer) -> anyhow::Result<()> {
    let report = &answer.report;
    let best = &report.best;
    printer.line(&format!(
        "{} on {} × {}: {} tokens at {} tokens/s",
        answer.model,
        answer.gpus,
        answer.gpu,
        count(answer.tokens),
        count(answer.tokens_per_s)
    ))?;
    printer.line(&format!(
        "faults      one in {}, {} a day; seen after {}, training again {} later",
        duration(best.mtbf_s),
        number(best.failures_per_day),
        duration(answer.conditions.detection_s),
        duration(best.down_s - answer.conditions.detection_s),
    ))?;
    printer.line(&format!(
        "checkpoint  {}: {} GB, training waits {} for each",
        answer.conditions.checkpoint.kind.name(),
        number(answer.conditions.checkpoint.bytes / 1e9),
        duration(best.stall_s),
    ))?;
    if let Some(stuck) = &report.no_headway {
        printer.line("")?;
        printer.paragraph("", 0, &stuck.to_string())?;
        return Ok(());
    }
    printer.line("")?;
    let line = |name: &str, goodput: &Goodput| {
        vec![
            name.to_owned(),
            duration(goodput.interval_s),
            number(goodput.interval_steps),
            percent(goodput.share),
        ]
    };
    let mut rows = vec![line("the best", best)];
    if let Some(given) = &report.given {
        rows.push(line("as asked for", given));
    }
    printer.table(&["Checkpoint interval", "Time", "Steps", "Effective time (ETTR)"], &rows)?;
    printer.line(&format!(
        "Young's formula gives {}, Daly's {}.",
        duration(report.young_interval_s),
        duration(report.daly_interval_s)
    ))?;
    printer.line("")?;
    cost(report, printer)
}

fn cost(report: &Report, printer: &mut Printer) -> anyhow::Result<()> {
    if let Some(run) = &report.run {
        let dollars = run.usd.map_or_else(String::new, |dollars| format!(", {}", usd(dollars)));
        printer.line(&format!(
            "The run takes {} ({} of training), with {} faults{dollars}.",
            duration(3600.0 * run.hours),
            duration(3600.0 * run.productive_h),
            number(run.failures)
        ))?;
        let lost = &run.lost;
        let rows: Vec<Vec<String>> = [
            ("checkpoints that training waits for", lost.checkpoint_stalls_h),
            ("work done again", lost.lost_work_h),
            ("faults not yet seen", lost.detection_h),
            ("recovery", lost.recovery_h),
            ("waiting for a node", lost.waiting_for_spares_h),
            ("planned stops", lost.planned_h),
        ]
        .into_iter()
        .filter(|(_, hours)| *hours > 0.0)
        .map(|(name, hours)| {
            vec![name.to_owned(), duration(3600.0 * hours), percent(hours / run.hours)]
        })
        .collect();
        printer.table(&["Lost to", "Time", "Share"], &rows)?;
    }
    if let Some(worth) = &report.worth_of_a_minute {
        let said = |worth: &farrier_planner::goodput::Worth| match worth.usd {
            Some(dollars) => format!("{} and {}", duration(3600.0 * worth.hours), usd(dollars)),
            None => duration(3600.0 * worth.hours),
        };
        printer.paragraph(
            "",
            0,
            &format!(
                "Over the run, a minute less until a fault is seen is worth {}; a minute less of recovery {}.",
                said(&worth.detection),
                said(&worth.recovery)
            ),
        )?;
    }
    let cheapest = &report.spares.cheapest;
    printer.line(&format!(
        "Spares that pay: {} nodes (on average {} are out).",
        cheapest.nodes,
        number(report.spares.mean_nodes_out)
    ))?;
    Ok(())
}
