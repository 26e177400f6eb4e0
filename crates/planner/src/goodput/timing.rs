//! Rates and durations for the closed form, derived from the conditions.

use super::checkpoint::CheckpointKind;
use super::conditions::Conditions;
use super::spares;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct RunTiming {
    /// Failure rate while the run trains or recovers.
    pub(super) failures_per_s: f64,
    /// Time from a failure to its detection. Nothing else can fail in this time.
    pub(super) detection_s: f64,
    /// Mean wait for a node, over all failures.
    pub(super) wait_s: f64,
    /// Time from when a node is available until the run trains again from the latest checkpoint.
    pub(super) recovery_s: f64,
    /// Stall of training per checkpoint.
    pub(super) stall_s: f64,
    /// Time from the end of the stall until the checkpoint can be restored.
    pub(super) settle_s: f64,
    pub(super) step_s: f64,
    pub(super) planned_per_s: f64,
    /// Storage behind in-memory checkpoints.
    pub(super) storage_tier: Option<StorageTier>,
}

/// Storage behind in-memory checkpoints.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct StorageTier {
    /// Share of failures after which the run has to restore from storage.
    pub(super) share: f64,
    pub(super) write_s: f64,
    /// Like [`RunTiming::recovery_s`], for a restore from storage.
    pub(super) recovery_s: f64,
    /// Minimum interval between writes.
    pub(super) interval_s: f64,
}

impl RunTiming {
    /// The conditions must have been checked.
    pub(super) fn new(conditions: &Conditions) -> Self {
        let gpus = f64::from(conditions.gpus);
        let checkpoint = &conditions.checkpoint;
        let recovery = &conditions.recovery;
        let start_s = recovery.restart_s + recovery.warm_up_s;
        let from_storage_s = start_s + recovery.load_s.unwrap_or_else(|| checkpoint.read_s(gpus));
        let (settle_s, recovery_s, storage_tier) = match checkpoint.kind {
            CheckpointKind::Synchronous => (0.0, from_storage_s, None),
            CheckpointKind::Asynchronous => (checkpoint.write_time_s(gpus), from_storage_s, None),
            CheckpointKind::InMemory => {
                let storage_tier = StorageTier {
                    share: checkpoint.beyond_memory_share,
                    write_s: checkpoint.write_time_s(gpus),
                    recovery_s: from_storage_s,
                    interval_s: checkpoint.storage_interval_s.unwrap_or(0.0),
                };
                (
                    checkpoint.replication_s(gpus),
                    start_s + checkpoint.fetch_s(gpus),
                    Some(storage_tier),
                )
            }
        };
        let failures_per_s = conditions.hazard.per_hour(conditions.gpus) / 3_600.0;
        let wait_s = conditions
            .spares
            .nodes
            .map_or(0.0, |nodes| spares::Outage::new(conditions).mean_wait_s(nodes));
        Self {
            failures_per_s,
            detection_s: conditions.detection_s,
            wait_s,
            recovery_s,
            stall_s: checkpoint.stall_time_s(gpus),
            settle_s,
            step_s: conditions.step_s,
            planned_per_s: conditions.planned_stops_per_day / 86_400.0,
            storage_tier,
        }
    }

    /// A run that ends before its first checkpoint and starts over after a failure.
    pub(super) fn without_checkpoints(&self) -> Self {
        Self { stall_s: 0.0, settle_s: 0.0, storage_tier: None, ..*self }
    }

    /// Duration of a planned stop, after a checkpoint.
    pub(super) fn stop_s(&self) -> f64 {
        self.stall_s + self.recovery_s
    }

    pub(super) fn stopped_share(&self) -> f64 {
        self.planned_per_s * self.stop_s()
    }

    /// Time from a failure until the run trains again, if nothing else fails, without the wait for
    /// a node.
    pub(super) fn down_s(&self) -> f64 {
        self.detection_s + self.recovery_s
    }
}
