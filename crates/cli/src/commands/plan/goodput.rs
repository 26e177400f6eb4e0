//! `farrier plan goodput`

mod print;

use clap::ValueEnum;
use farrier_planner::Planner;
use farrier_planner::goodput::{
    CheckpointKind, Conditions, Hazard, Recovery, Report, Spares, Training,
};
use farrier_planner::layout::Layout;
use farrier_planner::plan::{self, Plan};
use farrier_planner::run::Run;
use serde::Serialize;

use super::request::{self, Asked, Cluster, Split, Work, positive};
use super::train::{Goal, TooLarge, best, check_run};
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
        let mut conditions = Conditions::of_run(run, kind, self.storage * 1e9, step_s);
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
    layout: Layout,
    assumed: Vec<String>,
    /// Whether memory suffices with little doubt; none where the run was measured, and so had room.
    fits: Option<bool>,
    memory: Option<Memory>,
    tokens: f64,
    tokens_per_s: f64,
    conditions: Conditions,
    #[serde(flatten)]
    report: Report,
}

/// What the fullest GPU needs.
#[derive(Debug, Clone, Copy, Serialize)]
struct Memory {
    p50_gib: f64,
    p95_gib: f64,
    capacity_gib: f64,
    tight: bool,
}

impl Memory {
    fn of(plan: &Plan) -> Self {
        Self {
            p50_gib: plan.memory.p50_gib,
            p95_gib: plan.memory.p95_gib,
            capacity_gib: plan.capacity_gib,
            tight: plan.tight,
        }
    }
}

impl Answer {
    /// Nothing ever stops the run.
    fn is_faultless(&self) -> bool {
        self.report.best.mtbf_s.is_infinite()
    }
}

/// The run that is meant, and what was assumed of it.
fn chosen(
    args: &Args,
    asked: &Asked,
    planner: &Planner,
) -> anyhow::Result<Result<(Run, Vec<String>), TooLarge>> {
    let mut assumed = asked.assumed.clone();
    let numbers = &args.cluster.gpus;
    let axes = args.split.axes(&args.work);
    if !args.search {
        check_run(&asked.run, &axes, args.cluster.one_number()?)?;
        return Ok(Ok((asked.run.clone(), assumed)));
    }
    let run = match best(planner, asked, &axes, numbers, Goal::Speed, args.work.tokens)? {
        Ok(best) => best.run,
        Err(large) => return Ok(Err(large)),
    };
    if numbers.len() > 1 {
        assumed.push(format!(
            "{} GPUs, the fastest of the numbers given; `plan train --search --for goodput` weighs \
             cost and faults too",
            run.layout.gpus()
        ));
    }
    Ok(Ok((run, assumed)))
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
    let (run, assumed) = match chosen(args, &asked, planner)? {
        Ok(chosen) => chosen,
        Err(large) => return large.print(args.output, printer),
    };
    let faultless = plan::plan(planner, &run, Some(tokens), asked.price.clone());
    let is_measured = args.tokens_per_s.is_some();
    let tokens_per_s = args.tokens_per_s.unwrap_or(faultless.tokens_per_s);
    let conditions = args.faults.conditions(&run, run.tokens_per_step() / tokens_per_s)?;
    let training = Training {
        tokens,
        tokens_per_s,
        usd_per_gpu_hour: asked.price.as_ref().map(|price| price.usd_per_gpu_hour),
    };
    let report =
        Report::of(&conditions, &training, args.faults.interval.map(|minutes| 60.0 * minutes))?;
    let answer = Answer {
        v: 1,
        model: run.model.name.clone(),
        gpu: run.gpu.id.clone(),
        gpus: run.layout.gpus(),
        layout: run.layout,
        assumed,
        fits: (!is_measured).then_some(faultless.fits),
        memory: (!is_measured).then(|| Memory::of(&faultless)),
        tokens,
        tokens_per_s,
        conditions,
        report,
    };
    match args.output {
        Output::Json => printer.json(&answer)?,
        Output::Table => print::answer(&answer, printer)?,
    }
    Ok(Outcome::finding_if(answer.report.no_headway.is_some() || answer.fits == Some(false)))
}
