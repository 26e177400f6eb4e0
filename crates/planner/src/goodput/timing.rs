//! The seconds that the closed form needs, drawn from the conditions.

use super::checkpoint::CheckpointKind;
use super::conditions::Conditions;
use super::spares;

/// What happens how often and for how long.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Timing {
    /// Failures a second, while the run trains or recovers.
    pub(super) per_s: f64,
    /// Until a failure is known; nothing more can fail meanwhile.
    pub(super) detection_s: f64,
    /// Mean wait for a node, over all failures.
    pub(super) wait_s: f64,
    /// From there to training again, from the nearest copy.
    pub(super) recovery_s: f64,
    /// What training waits for at a checkpoint.
    pub(super) stall_s: f64,
    /// From the end of the stall until the checkpoint can be restored.
    pub(super) settle_s: f64,
    /// A step.
    pub(super) step_s: f64,
    /// Planned stops a second.
    pub(super) planned_per_s: f64,
    /// Storage behind copies in memory.
    pub(super) behind: Option<Behind>,
}

/// Storage behind copies in memory.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Behind {
    /// Share of failures that need it.
    pub(super) share: f64,
    /// Until it is written.
    pub(super) write_s: f64,
    /// From knowing of a failure to training again.
    pub(super) recovery_s: f64,
    /// As rarely as this.
    pub(super) interval_s: f64,
}

impl Timing {
    /// That of conditions which have been checked.
    pub(super) fn of(conditions: &Conditions) -> Self {
        let gpus = f64::from(conditions.gpus);
        let checkpoint = &conditions.checkpoint;
        let recovery = &conditions.recovery;
        let start_s = recovery.restart_s + recovery.warm_up_s;
        let from_storage_s = start_s + recovery.load_s.unwrap_or_else(|| checkpoint.read_s(gpus));
        let (settle_s, recovery_s, behind) = match checkpoint.kind {
            CheckpointKind::Synchronous => (0.0, from_storage_s, None),
            CheckpointKind::Asynchronous => (checkpoint.written_s(gpus), from_storage_s, None),
            CheckpointKind::InMemory => {
                let behind = Behind {
                    share: checkpoint.beyond_memory_share,
                    write_s: checkpoint.written_s(gpus),
                    recovery_s: from_storage_s,
                    interval_s: checkpoint.storage_interval_s.unwrap_or(0.0),
                };
                (checkpoint.copied_s(gpus), start_s + checkpoint.fetched_s(gpus), Some(behind))
            }
        };
        let per_s = conditions.hazard.per_hour(conditions.gpus) / 3_600.0;
        let wait_s = conditions
            .spares
            .nodes
            .map_or(0.0, |nodes| spares::Outage::of(conditions).mean_wait_s(nodes));
        Self {
            per_s,
            detection_s: conditions.detection_s,
            wait_s,
            recovery_s,
            stall_s: checkpoint.stalled_s(gpus),
            settle_s,
            step_s: conditions.step_s,
            planned_per_s: conditions.planned_stops_per_day / 86_400.0,
            behind,
        }
    }

    /// That of a run which ends before its first checkpoint: what fails begins it again.
    pub(super) fn without_checkpoints(&self) -> Self {
        Self { stall_s: 0.0, settle_s: 0.0, behind: None, ..*self }
    }

    /// A planned stop, after a checkpoint.
    pub(super) fn stop_s(&self) -> f64 {
        self.stall_s + self.recovery_s
    }

    /// Share of time that planned stops take.
    pub(super) fn stopped_share(&self) -> f64 {
        self.planned_per_s * self.stop_s()
    }

    /// From a failure to training again where nothing else fails, the wait for a node aside.
    pub(super) fn down_s(&self) -> f64 {
        self.detection_s + self.recovery_s
    }
}
