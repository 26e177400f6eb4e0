//! All that goodput depends on.

use serde::{Deserialize, Serialize};

use super::checkpoint::Checkpoint;
use super::error::{GoodputError, at_least_zero, at_most, positive, share};
use super::hazard::Hazard;
use super::timing::Timing;

/// A run as far as failures are concerned.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Conditions {
    /// GPUs that train.
    pub gpus: u32,
    /// GPUs that leave together when one of them fails.
    pub gpus_per_node: u32,
    /// How often something ends the run.
    pub hazard: Hazard,
    /// From a failure until someone or something knows and acts.
    pub detection_s: f64,
    /// What follows.
    pub recovery: Recovery,
    /// Where another node comes from.
    pub spares: Spares,
    /// How the run is saved.
    pub checkpoint: Checkpoint,
    /// A step: checkpoints fall between steps.
    pub step_s: f64,
    /// Stops for maintenance or a change, each after a checkpoint.
    pub planned_stops_per_day: f64,
}

/// From knowing of a failure to training again, the wait for a node aside.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Recovery {
    /// Schedule, start processes, join them.
    pub restart_s: f64,
    /// Load the checkpoint; from its bytes if not said.
    pub load_s: Option<f64>,
    /// Compile, fill caches, reach full speed.
    pub warm_up_s: f64,
}

impl Default for Recovery {
    fn default() -> Self {
        // Together 5 min, the low end of what Meta saw a start take (5 to 20 min,
        // arXiv:2410.21680); how it divides is our guess.
        Self { restart_s: 180.0, load_s: None, warm_up_s: 120.0 }
    }
}

/// Nodes that stand by.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Spares {
    /// How many, paid for as those that train. Not said: another node is always at hand, at
    /// the provider's cost.
    pub nodes: Option<u32>,
    /// Until a node that failed is back.
    pub repair_h: f64,
    /// Share of failures that take a node away, where the rest need only a restart.
    pub repair_share: f64,
}

impl Default for Spares {
    fn default() -> Self {
        // About 78 % of Llama 3's interruptions were of hardware, or thought to be
        // (arXiv:2407.21783, section 3.3.4). A day until a node is back is our guess: a reset takes
        // minutes, a new part days, and no mean has been published.
        Self { nodes: None, repair_h: 24.0, repair_share: 0.78 }
    }
}

/// Until a failure is known. `MegaScale` was below 10 min (arXiv:2402.15627), which is the
/// timeout of NCCL's watchdog in `PyTorch` too.
pub const DETECTION_S: f64 = 600.0;

/// Ten years until a node is back: longer than a GPU is kept.
pub const MOST_REPAIR_H: f64 = 10.0 * 365.0 * 24.0;

/// More nodes that stand by than any cluster has had in all.
pub const MOST_SPARES: u32 = 1 << 20;

impl Conditions {
    /// A run of its own cluster, with the usual times.
    pub fn new(gpus: u32, checkpoint: Checkpoint, step_s: f64) -> Self {
        Self {
            gpus,
            gpus_per_node: 8,
            hazard: Hazard::DEDICATED,
            detection_s: DETECTION_S,
            recovery: Recovery::default(),
            spares: Spares::default(),
            checkpoint,
            step_s,
            planned_stops_per_day: 0.0,
        }
    }

    /// GPUs that are paid for.
    pub fn paid_gpus(&self) -> f64 {
        f64::from(self.gpus)
            + f64::from(self.spares.nodes.unwrap_or(0)) * f64::from(self.gpus_per_node)
    }

    /// Whether an answer can be had.
    pub fn check(&self) -> Result<(), GoodputError> {
        for (what, count) in [("gpus", self.gpus), ("gpus_per_node", self.gpus_per_node)] {
            if count == 0 {
                return Err(GoodputError::None { what });
            }
        }
        self.hazard.check()?;
        self.checkpoint.check()?;
        positive("step_s", self.step_s)?;
        at_least_zero("detection_s", self.detection_s)?;
        at_least_zero("restart_s", self.recovery.restart_s)?;
        at_least_zero("warm_up_s", self.recovery.warm_up_s)?;
        self.recovery.load_s.map_or(Ok(()), |load_s| at_least_zero("load_s", load_s))?;
        at_most("repair_h", self.spares.repair_h, MOST_REPAIR_H)?;
        at_most("spares", f64::from(self.spares.nodes.unwrap_or(0)), f64::from(MOST_SPARES))?;
        share("repair_share", self.spares.repair_share)?;
        at_least_zero("planned_stops_per_day", self.planned_stops_per_day)?;
        if self.planned_stops_per_day > 0.0 && Timing::of(self).stopped_share() >= 1.0 {
            let (per_day, each_s) = (self.planned_stops_per_day, Timing::of(self).stop_s());
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
    fn stops_that_a_day_has_no_room_for_are_refused() {
        let checkpoint = Checkpoint::new(CheckpointKind::Asynchronous, 1e12, 2e11);
        let usual = Conditions::new(1_024, checkpoint, 5.0);
        let with = |planned_stops_per_day| Conditions { planned_stops_per_day, ..usual }.check();
        assert_eq!(with(200.0), Ok(()));
        let said = with(5_000.0).unwrap_err().to_string();
        assert!(
            said.starts_with("5000 planned stops a day are not possible: each takes 5."),
            "{said}"
        );
        assert!(said.contains("fewer than 2"), "{said}");
    }

    #[test]
    fn what_no_cluster_has_is_refused() {
        let checkpoint = Checkpoint::new(CheckpointKind::Asynchronous, 1e12, 2e11);
        let usual = Conditions::new(1_024, checkpoint, 5.0);
        let with = |nodes, repair_h| {
            let spares = Spares { nodes, repair_h, ..Spares::default() };
            Conditions { spares, ..usual }.check()
        };
        assert_eq!(with(Some(MOST_SPARES), MOST_REPAIR_H), Ok(()));
        let long = with(None, 1e15).unwrap_err();
        assert_eq!(
            long.to_string(),
            "`repair_h` is 1000000000000000; a number from 0 to 87600 is possible"
        );
        assert!(with(Some(MOST_SPARES + 1), 24.0).unwrap_err().to_string().contains("1048576"));
        for hours in [-1.0, f64::NAN, f64::INFINITY] {
            assert!(with(None, hours).is_err(), "{hours}");
        }
    }
}
