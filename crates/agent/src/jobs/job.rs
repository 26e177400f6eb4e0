//! One job: the latest reports of its ranks.

use std::collections::{BTreeMap, BTreeSet};

use farrier_fleet::health::{Moment, median};

use super::message_error::MessageError;
use super::protocol::{JobState, RankStep};

/// Maximum number of ranks per job whose steps are kept. No node has this many GPUs. The limit
/// bounds the memory if a client invents ranks.
const RANKS_MAX: usize = 1024;

/// How long a job stays visible after its last rank has disconnected. An engineer on call can thus
/// see at night which jobs ran in the evening.
const EXPIRY_MS: i64 = 24 * 3_600_000;

/// Maximum number of checkpoint reasons that are kept. The first reasons are kept, because they
/// show the cause.
const REASONS_MAX: usize = 8;

/// Identifies a job by user and name, because jobs of two users may have the same name.
pub(super) type JobKey = (u32, String);

#[derive(Debug)]
pub(super) struct Job {
    pub(super) state: JobState,
    steps: BTreeMap<u32, RankStep>,
    /// Tokens per second, by connection. The sum is computed when it is read, because steps end far
    /// more often than the sum is read.
    rates: BTreeMap<u64, f64>,
    /// Closed connections. Their rates still count until another step ends.
    closed: Vec<u64>,
    /// When the last rank disconnected.
    left_ms: Option<i64>,
    /// Open findings for which a checkpoint was requested.
    requested: BTreeSet<u64>,
}

impl Job {
    pub(super) fn new((uid, name): &JobKey, now: Moment) -> Self {
        let state = JobState {
            job: name.clone(),
            ranks: 0,
            world_size: None,
            local_world_size: None,
            uid: Some(*uid),
            since: now.wall,
            last_seen: now.wall,
            left: None,
            step: None,
            loss: None,
            step_s: None,
            step_s_median: None,
            slowest: None,
            slowest_over_median: None,
            fastest: None,
            tokens_per_s: None,
            phase: None,
            ooms: 0,
            oom_at: None,
            oom_rank: None,
            oom_bytes_wanted: None,
            checkpoint_at: None,
            checkpoint_step: None,
            checkpoint_failed: None,
            checkpoints_wanted: 0,
            checkpoint_wanted_at: None,
            checkpoint_wanted_for: Vec::new(),
            frameworks: BTreeMap::new(),
        };
        Self {
            state,
            steps: BTreeMap::new(),
            rates: BTreeMap::new(),
            closed: Vec::new(),
            left_ms: None,
            requested: BTreeSet::new(),
        }
    }

    /// Records the end of a step. If the last loss belongs to an earlier step, that loss is
    /// dropped.
    pub(super) fn step_ended(&mut self, ended: RankStep, loss: Option<f64>) {
        let RankStep { rank, step, step_s, .. } = ended;
        if self.state.step.is_none_or(|last| step >= last) {
            let from_other_rank = self.state.loss.filter(|_| self.state.step == Some(step));
            self.state.loss = loss.or(from_other_rank);
            self.state.step = Some(step);
            self.state.step_s = step_s;
        }
        if self.steps.len() < RANKS_MAX || self.steps.contains_key(&rank) {
            self.steps.insert(rank, ended);
        }
    }

    /// Records the rate of the last step on a connection. `None` if the rate is unknown.
    pub(super) fn set_rate(&mut self, connection: u64, tokens_per_s: Option<f64>) {
        for closed in self.closed.drain(..) {
            self.rates.remove(&closed);
        }
        match tokens_per_s {
            Some(rate) => drop(self.rates.insert(connection, rate)),
            None => drop(self.rates.remove(&connection)),
        }
    }

    /// Records that a connection closed.
    pub(super) fn connection_closed(&mut self, connection: u64) {
        if self.rates.contains_key(&connection) {
            self.closed.push(connection);
        }
    }

    /// The job in the form of status output. It includes the rank with the slowest and the rank
    /// with the fastest last step.
    pub(super) fn summary(&self) -> JobState {
        let timed = || self.steps.values().filter(|step| step.step_s.is_some());
        let by_time = |left: &&RankStep, right: &&RankStep| {
            left.step_s.unwrap_or_default().total_cmp(&right.step_s.unwrap_or_default())
        };
        let mut steps_s: Vec<f64> = timed().filter_map(|step| step.step_s).collect();
        let median = median(&mut steps_s);
        let slowest = timed().max_by(by_time).cloned();
        let comparable = slowest.as_ref().filter(|_| timed().nth(1).is_some());
        let slowest_s = comparable.and_then(|step| step.step_s);
        let over_median = slowest_s.zip(median).map(|(slowest, median)| slowest / median);
        JobState {
            step_s_median: median,
            slowest,
            slowest_over_median: over_median,
            fastest: timed().min_by(by_time).cloned(),
            tokens_per_s: (!self.rates.is_empty()).then(|| self.rates.values().sum()),
            ..self.state.clone()
        }
    }

    /// Updates the number of connected ranks.
    pub(super) fn set_ranks(&mut self, ranks: u32, now: Moment) {
        self.state.ranks = ranks;
        let left = (ranks == 0).then_some(now);
        self.left_ms = left.map(|left| left.steady_ms);
        self.state.left = left.map(|left| left.wall);
    }

    /// `true` if the last rank disconnected so long ago that the job is no longer shown.
    pub(super) fn is_expired(&self, now_ms: i64) -> bool {
        self.left_ms.is_some_and(|left| now_ms - left >= EXPIRY_MS)
    }

    /// Records a checkpoint request. Every rank gets a request, but the job counts one request per
    /// finding.
    pub(super) fn checkpoint_requested(&mut self, finding: u64, reason: &str, now: Moment) {
        if !self.requested.insert(finding) {
            return;
        }
        let state = &mut self.state;
        if state.checkpoint_at.is_some_and(|saved| Some(saved) >= state.checkpoint_wanted_at) {
            state.checkpoint_wanted_for.clear();
        }
        state.checkpoints_wanted += 1;
        state.checkpoint_wanted_at = Some(now.wall);
        if state.checkpoint_wanted_for.len() < REASONS_MAX {
            state.checkpoint_wanted_for.push(reason.to_owned());
        }
    }

    /// Records that a finding cleared.
    pub(super) fn cleared(&mut self, finding: u64) {
        self.requested.remove(&finding);
    }

    pub(super) fn checkpoint_done(&mut self, step: Option<u64>, now: Moment) {
        self.state.checkpoint_at = Some(now.wall);
        self.state.checkpoint_step = step;
        self.state.checkpoint_failed = None;
    }

    #[cfg(test)]
    pub(super) fn ranks_kept(&self) -> usize {
        self.steps.len()
    }
}

/// Maximum duration of a step: one week. A longer step means that a clock is wrong.
pub(super) const STEP_S_MAX: f64 = 604_800.0;
/// Maximum tokens of one rank in one step: about a million times more than any model uses.
pub(super) const TOKENS_MAX: u64 = 1_000_000_000_000_000;

/// Validates the figures that a rank reports for a step.
pub(super) fn step_problem(seconds: Option<f64>, tokens: Option<u64>) -> Option<MessageError> {
    if seconds.is_some_and(|seconds| !(0.0..=STEP_S_MAX).contains(&seconds)) {
        return Some(MessageError::StepSeconds);
    }
    let too_many = tokens.is_some_and(|tokens| tokens > TOKENS_MAX);
    too_many.then_some(MessageError::StepTokens)
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    fn job() -> Job {
        let now = Moment { steady_ms: 0, wall: Timestamp::UNIX_EPOCH };
        Job::new(&(1000, "job".to_owned()), now)
    }

    fn ended(rank: u32, step: u64, step_s: f64) -> RankStep {
        RankStep { rank, step, step_s: Some(step_s), pid: None, gpu: None }
    }

    fn at(second: i64) -> Moment {
        Moment { steady_ms: second * 1000, wall: Timestamp::from_second(second).unwrap() }
    }

    #[test]
    fn the_slowest_rank_is_compared_with_the_median() {
        let mut job = job();
        job.step_ended(ended(0, 9, 2.0), None);
        assert_eq!(
            (job.summary().step_s_median, job.summary().slowest_over_median),
            (Some(2.0), None)
        );
        for (rank, step_s) in [(1, 2.0), (2, 2.2), (3, 3.0)] {
            job.step_ended(ended(rank, 9, step_s), None);
        }
        let summary = job.summary();
        assert_eq!(summary.step_s_median, Some(2.1));
        assert_eq!(summary.slowest.map(|step| step.rank), Some(3));
        assert!(summary.slowest_over_median.is_some_and(|over| (over - 3.0 / 2.1).abs() < 1e-9));
    }

    #[test]
    fn checkpoint_requests_are_counted_once_per_finding() {
        let mut job = job();
        for _rank in 0..8 {
            job.checkpoint_requested(5, "Xid 79", at(10));
        }
        job.checkpoint_requested(6, "gpu.lost", at(11));
        assert_eq!(
            (job.state.checkpoints_wanted, job.state.checkpoint_wanted_at),
            (2, Some(at(11).wall))
        );
        assert_eq!(job.state.checkpoint_wanted_for, ["Xid 79", "gpu.lost"]);
        job.checkpoint_done(Some(100), at(20));
        job.checkpoint_requested(7, "Xid 48", at(30));
        assert_eq!(
            job.state.checkpoint_wanted_for,
            ["Xid 48"],
            "the checkpoint covers the earlier requests"
        );
        job.cleared(7);
        job.checkpoint_requested(7, "Xid 48", at(40));
        assert_eq!(job.state.checkpoints_wanted, 4);
    }

    #[test]
    fn rates_are_summed_and_closed_connections_count_until_the_next_step() {
        let mut job = job();
        assert_eq!(job.summary().tokens_per_s, None);
        job.set_rate(1, Some(100.0));
        job.set_rate(2, Some(50.0));
        job.set_rate(1, Some(70.0));
        job.connection_closed(1);
        assert_eq!(job.summary().tokens_per_s, Some(120.0), "the closed connection still counts");
        job.set_rate(2, Some(60.0));
        assert_eq!(job.summary().tokens_per_s, Some(60.0));
        job.set_rate(2, None);
        assert_eq!(job.summary().tokens_per_s, None);
    }

    #[test]
    fn a_job_without_ranks_expires_after_a_day() {
        let mut job = job();
        job.set_ranks(0, at(0));
        assert!(!job.is_expired(at(86_399).steady_ms) && job.is_expired(at(86_400).steady_ms));
        job.set_ranks(1, at(86_400));
        assert!(!job.is_expired(at(1_000_000).steady_ms));
    }

    #[test]
    fn a_step_without_a_loss_has_none() {
        let mut job = job();
        let ended = |rank, step| ended(rank, step, 1.0);
        job.step_ended(ended(0, 12), Some(2.5));
        job.step_ended(ended(1, 12), None);
        assert_eq!(job.state.loss, Some(2.5), "reported for the same step");
        job.step_ended(ended(0, 13), None);
        assert_eq!((job.state.step, job.state.loss), (Some(13), None));
    }

    #[test]
    fn the_number_of_ranks_is_bounded() {
        let mut job = job();
        for rank in 0..5000 {
            job.step_ended(ended(rank, 1, 1.0 + f64::from(rank)), None);
        }
        assert_eq!(job.ranks_kept(), RANKS_MAX);
        let summary = job.summary();
        assert_eq!(summary.fastest.map(|step| step.rank), Some(0));
        assert_eq!(summary.slowest.map(|step| step.rank), Some(1023));
    }
}
