//! Inputs of a goodput estimate.

use serde::{Deserialize, Serialize};

use super::checkpoint::Checkpoint;
use super::error::{GoodputError, at_least_zero, at_most, positive, share};
use super::hazard::Hazard;
use super::timing::RunTiming;

/// A run and its failure model.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Conditions {
    /// GPUs that train, without spares.
    pub gpus: u32,
    /// GPUs lost together when one of them fails.
    pub gpus_per_node: u32,
    pub hazard: Hazard,
    /// Time from a failure to its detection.
    pub detection_s: f64,
    pub recovery: RecoveryTimes,
    pub spares: Spares,
    pub checkpoint: Checkpoint,
    /// Step time; checkpoints fall between steps.
    pub step_s: f64,
    /// Stops for maintenance or changes, each after a checkpoint.
    pub planned_stops_per_day: f64,
}

/// Recovery after detection, without the wait for a node.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RecoveryTimes {
    /// Scheduling, process start, rendezvous.
    pub restart_s: f64,
    /// Loading the checkpoint; derived from its size if `None`.
    pub load_s: Option<f64>,
    /// Compilation, cache warm-up.
    pub warm_up_s: f64,
}

impl Default for RecoveryTimes {
    fn default() -> Self {
        // Restart and warm-up take 5 min together, the low end of Meta's start times (5 to 20 min,
        // arXiv:2410.21680). How the 5 min are divided between the two is a guess.
        Self { restart_s: 180.0, load_s: None, warm_up_s: 120.0 }
    }
}

/// Spare nodes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Spares {
    /// Number of spares, paid like training nodes. `None`: the provider replaces nodes immediately
    /// at its own cost.
    pub nodes: Option<u32>,
    /// Mean time until a failed node is back.
    pub repair_h: f64,
    /// Share of failures that take a node out of service. Other failures need only a restart.
    pub repair_share: f64,
}

impl Default for Spares {
    fn default() -> Self {
        // About 78 % of Llama 3's interruptions were confirmed or suspected hardware failures
        // (arXiv:2407.21783, section 3.3.4). One day of repair is a guess: a reset takes minutes, a
        // replacement takes days, and no mean has been published.
        Self { nodes: None, repair_h: 24.0, repair_share: 0.78 }
    }
}

/// Default detection time. `MegaScale` stayed below 10 min (arXiv:2402.15627), which is also the
/// timeout of NCCL's watchdog in `PyTorch`.
pub const DETECTION_S: f64 = 600.0;

/// Ten years: longer than a GPU is in service.
pub const MAX_REPAIR_H: f64 = 10.0 * 365.0 * 24.0;

/// More spares than any cluster has nodes.
pub const MAX_SPARES: u32 = 1 << 20;

impl Conditions {
    /// A run on a dedicated cluster with default times.
    pub fn new(gpus: u32, checkpoint: Checkpoint, step_s: f64) -> Self {
        Self {
            gpus,
            gpus_per_node: 8,
            hazard: Hazard::DEDICATED,
            detection_s: DETECTION_S,
            recovery: RecoveryTimes::default(),
            spares: Spares::default(),
            checkpoint,
            step_s,
            planned_stops_per_day: 0.0,
        }
    }

    /// GPUs paid for, including spares.
    pub fn paid_gpus(&self) -> f64 {
        f64::from(self.gpus)
            + f64::from(self.spares.nodes.unwrap_or(0)) * f64::from(self.gpus_per_node)
    }

    /// Checks all inputs.
    pub fn check(&self) -> Result<(), GoodputError> {
        for (what, count) in [("gpus", self.gpus), ("gpus_per_node", self.gpus_per_node)] {
            if count == 0 {
                return Err(GoodputError::Zero { what });
            }
        }
        self.hazard.check()?;
        self.checkpoint.check()?;
        positive("step_s", self.step_s)?;
        at_least_zero("detection_s", self.detection_s)?;
        at_least_zero("restart_s", self.recovery.restart_s)?;
        at_least_zero("warm_up_s", self.recovery.warm_up_s)?;
        self.recovery.load_s.map_or(Ok(()), |load_s| at_least_zero("load_s", load_s))?;
        at_most("repair_h", self.spares.repair_h, MAX_REPAIR_H)?;
        at_most("spares", f64::from(self.spares.nodes.unwrap_or(0)), f64::from(MAX_SPARES))?;
        share("repair_share", self.spares.repair_share)?;
        at_least_zero("planned_stops_per_day", self.planned_stops_per_day)?;
        if self.planned_stops_per_day > 0.0 && RunTiming::new(self).stopped_share() >= 1.0 {
            let (per_day, each_s) = (self.planned_stops_per_day, RunTiming::new(self).stop_s());
            return Err(GoodputError::StopsBeyondDay { per_day, each_s });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::checkpoint::CheckpointKind;
    use super::*;

    #[test]
    fn stops_that_exceed_a_day_are_rejected() {
        let checkpoint = Checkpoint::new(CheckpointKind::Asynchronous, 1e12, 2e11);
        let default = Conditions::new(1_024, checkpoint, 5.0);
        let with = |planned_stops_per_day| Conditions { planned_stops_per_day, ..default }.check();
        assert_eq!(with(200.0), Ok(()));
        let message = with(5_000.0).unwrap_err().to_string();
        assert!(
            message.starts_with("5000 planned stops per day do not fit into a day: each takes 5."),
            "{message}"
        );
        assert!(message.contains("fewer than 2"), "{message}");
    }

    #[test]
    fn out_of_range_inputs_are_rejected() {
        let checkpoint = Checkpoint::new(CheckpointKind::Asynchronous, 1e12, 2e11);
        let default = Conditions::new(1_024, checkpoint, 5.0);
        let with = |nodes, repair_h| {
            let spares = Spares { nodes, repair_h, ..Spares::default() };
            Conditions { spares, ..default }.check()
        };
        assert_eq!(with(Some(MAX_SPARES), MAX_REPAIR_H), Ok(()));
        let long = with(None, 1e15).unwrap_err();
        assert_eq!(long.to_string(), "`repair_h` is 1000000000000000; possible: 0 to 87600");
        assert!(with(Some(MAX_SPARES + 1), 24.0).unwrap_err().to_string().contains("1048576"));
        for hours in [-1.0, f64::NAN, f64::INFINITY] {
            assert!(with(None, hours).is_err(), "{hours}");
        }
    }
}
