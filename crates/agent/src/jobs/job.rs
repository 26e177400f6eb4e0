//! One job: what its ranks said of it last.

use std::collections::BTreeMap;

use farrier_fleet::health::Moment;

use super::protocol::{JobState, RankStep};

/// Ranks of one job whose steps are kept: more than a node has GPUs, and all that a client can make up.
const RANKS_MAX: usize = 1024;

/// A job is somebody's: another user's job of the same name is another job.
pub(super) type JobKey = (u32, String);

#[derive(Debug)]
pub(super) struct Job {
    pub(super) state: JobState,
    steps: BTreeMap<u32, RankStep>,
}

impl Job {
    pub(super) fn new((uid, name): &JobKey, now: Moment) -> Self {
        let state = JobState {
            job: name.clone(),
            ranks: 0,
            world_size: None,
            uid: Some(*uid),
            since: now.wall,
            last_heard: now.wall,
            step: None,
            loss: None,
            step_s: None,
            slowest: None,
            fastest: None,
            tokens_per_s: None,
            phase: None,
            ooms: 0,
            oom_rank: None,
            oom_bytes_wanted: None,
            checkpoint_step: None,
            checkpoints_wanted: 0,
        };
        Self { state, steps: BTreeMap::new() }
    }

    /// A rank ended a step. A loss stays only with the step that it is of.
    pub(super) fn step_ended(&mut self, ended: RankStep, loss: Option<f64>) {
        let RankStep { rank, step, step_s } = ended;
        if self.state.step.is_none_or(|last| step >= last) {
            let told_by_another = self.state.loss.filter(|_| self.state.step == Some(step));
            self.state.loss = loss.or(told_by_another);
            self.state.step = Some(step);
            self.state.step_s = step_s;
        }
        if self.steps.len() < RANKS_MAX || self.steps.contains_key(&rank) {
            self.steps.insert(rank, ended);
        }
    }

    /// The job for status, with the ranks that took longest and shortest for the step that they ended last.
    pub(super) fn shown(&self) -> JobState {
        let timed = || self.steps.values().filter(|step| step.step_s.is_some());
        let by_time = |left: &&RankStep, right: &&RankStep| {
            left.step_s.unwrap_or_default().total_cmp(&right.step_s.unwrap_or_default())
        };
        JobState {
            slowest: timed().max_by(by_time).copied(),
            fastest: timed().min_by(by_time).copied(),
            ..self.state.clone()
        }
    }

    #[cfg(test)]
    pub(super) fn ranks_kept(&self) -> usize {
        self.steps.len()
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    fn job() -> Job {
        let now = Moment { steady_ms: 0, wall: Timestamp::UNIX_EPOCH };
        Job::new(&(1000, "job".to_owned()), now)
    }

    #[test]
    fn a_step_without_a_loss_has_none() {
        let mut job = job();
        let ended = |rank, step| RankStep { rank, step, step_s: Some(1.0) };
        job.step_ended(ended(0, 12), Some(2.5));
        job.step_ended(ended(1, 12), None);
        assert_eq!(job.state.loss, Some(2.5), "of the same step");
        job.step_ended(ended(0, 13), None);
        assert_eq!((job.state.step, job.state.loss), (Some(13), None));
    }

    #[test]
    fn ranks_are_told_apart_and_bounded() {
        let mut job = job();
        for rank in 0..5000 {
            let step_s = Some(1.0 + f64::from(rank));
            job.step_ended(RankStep { rank, step: 1, step_s }, None);
        }
        assert_eq!(job.ranks_kept(), RANKS_MAX);
        let shown = job.shown();
        assert_eq!(shown.fastest.map(|it| it.rank), Some(0));
        assert_eq!(shown.slowest.map(|it| it.rank), Some(1023));
    }
}
