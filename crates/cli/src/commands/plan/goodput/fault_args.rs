//! Failure flags of `farrier plan goodput` and `farrier plan train --for goodput`.

use clap::ValueEnum;
use farrier_planner::goodput::{
    CheckpointKind, Conditions, Goodput, GoodputReport, Hazard, MAX_REPAIR_H, MAX_SPARES,
    RecoveryTimes, Training,
};
use farrier_planner::run::TrainingRun;

use super::super::value_parsers::{time, up_to};
use crate::failure::Hinted;

/// Default storage bandwidth of a cluster.
const STORAGE_GB_PER_S: f64 = 200.0;

/// Failure model and recovery.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Failures")]
pub(in super::super) struct FaultArgs {
    /// Mean time between failures of the run in hours [default: from --hazard and the number of
    /// GPUs]
    #[arg(long, value_name = "HOURS", value_parser = time, conflicts_with = "hazard", allow_negative_numbers = true)]
    mtbf: Option<f64>,
    /// Failure rate: dedicated (Llama 3's cluster), research (RSC-1), research-calm (RSC-2), none
    /// [default: dedicated]
    #[arg(long, value_name = "KIND", value_parser = hazard)]
    hazard: Option<Hazard>,
    /// Minutes until a failure is detected [default: 10]
    #[arg(long, value_name = "MINUTES", value_parser = time, allow_negative_numbers = true)]
    detection: Option<f64>,
    /// Minutes from detection until the job trains again, not counting lost work [default: 5, plus
    /// loading the checkpoint]
    #[arg(long, value_name = "MINUTES", value_parser = time, allow_negative_numbers = true)]
    recovery: Option<f64>,
    /// Checkpoint kind [default: asynchronous]
    #[arg(long, value_name = "KIND")]
    checkpoint: Option<CheckpointArg>,
    /// Storage bandwidth of the whole cluster in GB/s [default: 200]
    #[arg(long, value_name = "GB/S", value_parser = up_to(1e6), allow_negative_numbers = true)]
    storage: Option<f64>,
    /// Minutes between checkpoints [default: the best interval]
    #[arg(long, value_name = "MINUTES", value_parser = time, allow_negative_numbers = true)]
    interval: Option<f64>,
    /// Minutes between writes of in-memory checkpoints to storage [default: continuous]
    #[arg(long, value_name = "MINUTES", value_parser = time, allow_negative_numbers = true)]
    storage_interval: Option<f64>,
    /// Number of spare nodes [default: the provider replaces nodes immediately]
    #[arg(long, value_name = "NODES", value_parser = spares, allow_negative_numbers = true)]
    spares: Option<u32>,
    /// Hours until a failed node is back [default: 24]
    #[arg(long, value_name = "HOURS", value_parser = up_to(MAX_REPAIR_H), allow_negative_numbers = true)]
    repair: Option<f64>,
    /// Planned stops per day, each after a checkpoint [default: none]
    #[arg(long, value_name = "STOPS", value_parser = up_to(1440.0), allow_negative_numbers = true)]
    planned_stops: Option<f64>,
}

/// Checkpoint kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum CheckpointArg {
    /// Training stalls until the checkpoint is in storage
    Synchronous,
    /// Training stalls for the copy to host memory; storage is written in the background
    Asynchronous,
    /// Replicated in the memory of other nodes, and written to storage in the background
    InMemory,
}

fn hazard(text: &str) -> Result<Hazard, String> {
    Hazard::by_name(text).ok_or_else(|| format!("possible: {}", Hazard::NAMES.join(", ")))
}

fn spares(text: &str) -> Result<u32, String> {
    let nodes = text.parse().ok().filter(|nodes| *nodes <= MAX_SPARES);
    nodes.ok_or_else(|| format!("expected a whole number from 0 to {MAX_SPARES}"))
}

impl FaultArgs {
    /// The first of these flags that is set.
    pub(in super::super) fn first_set_flag(&self) -> Option<&'static str> {
        [
            ("--mtbf", self.mtbf.is_some()),
            ("--hazard", self.hazard.is_some()),
            ("--detection", self.detection.is_some()),
            ("--recovery", self.recovery.is_some()),
            ("--checkpoint", self.checkpoint.is_some()),
            ("--storage", self.storage.is_some()),
            ("--interval", self.interval.is_some()),
            ("--storage-interval", self.storage_interval.is_some()),
            ("--spares", self.spares.is_some()),
            ("--repair", self.repair.is_some()),
            ("--planned-stops", self.planned_stops.is_some()),
        ]
        .into_iter()
        .find_map(|(flag, is_set)| is_set.then_some(flag))
    }

    /// The conditions of a run with the given step time.
    pub(in super::super) fn conditions(
        &self,
        run: &TrainingRun,
        step_s: f64,
    ) -> anyhow::Result<Conditions> {
        let kind = match self.checkpoint {
            Some(CheckpointArg::Synchronous) => CheckpointKind::Synchronous,
            None | Some(CheckpointArg::Asynchronous) => CheckpointKind::Asynchronous,
            Some(CheckpointArg::InMemory) => CheckpointKind::InMemory,
        };
        if self.storage_interval.is_some() && kind != CheckpointKind::InMemory {
            return Err(Hinted::error(
                format!("`--storage-interval` does not apply to `{}` checkpoints", kind.name()),
                "it needs `--checkpoint in-memory`; use `--interval` for the others",
            ));
        }
        let storage = self.storage.unwrap_or(STORAGE_GB_PER_S);
        let mut conditions = Conditions::for_run(run, kind, storage * 1e9, step_s);
        conditions.checkpoint.storage_interval_s = seconds(self.storage_interval);
        conditions.planned_stops_per_day = self.planned_stops.unwrap_or(0.0);
        conditions.hazard = match self.mtbf {
            Some(hours) => Hazard::with_mtbf(hours)?,
            None => self.hazard.unwrap_or(Hazard::DEDICATED),
        };
        if let Some(detection_s) = seconds(self.detection) {
            conditions.detection_s = detection_s;
        }
        if let Some(restart_s) = seconds(self.recovery) {
            conditions.recovery = RecoveryTimes { restart_s, load_s: Some(0.0), warm_up_s: 0.0 };
        }
        conditions.spares.nodes = self.spares;
        if let Some(hours) = self.repair {
            conditions.spares.repair_h = hours;
        }
        Ok(conditions)
    }

    /// Goodput of a run at the requested or the best interval.
    pub(in super::super) fn goodput(&self, conditions: &Conditions) -> anyhow::Result<Goodput> {
        Ok(match seconds(self.interval) {
            Some(interval_s) => Goodput::at(conditions, interval_s)?,
            None => Goodput::best(conditions)?,
        })
    }

    /// Full goodput report of a run.
    pub(in super::super) fn report(
        &self,
        conditions: &Conditions,
        training: &Training,
    ) -> anyhow::Result<GoodputReport> {
        Ok(GoodputReport::new(conditions, training, seconds(self.interval))?)
    }
}

fn seconds(minutes: Option<f64>) -> Option<f64> {
    minutes.map(|minutes| 60.0 * minutes)
}
