//! The controller thread is the only writer of the log. It commits all queued inputs as one batch.
//! It replies to the inputs when they are on disk.

use std::collections::{HashMap, HashSet};
use std::mem::Discriminant;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use farrier_fleet::fleet::event::Event;
use farrier_fleet::fleet::identity::Actor;
use farrier_fleet::fleet::{FleetState, NodeId};
use jiff::{SignedDuration, Timestamp};
use tokio::sync::{mpsc, oneshot, watch};

use crate::clock::{ClockStep, ClockWatch, LogClock};
use crate::histogram::{Histogram, HistogramSnapshot};
use crate::ingest::admission::{self, ReportAdmission};
use crate::ingest::{DisconnectReason, SessionRegistry};
use crate::last_ran::LastRan;
use crate::log::LogError;
use crate::space::DiskSpace;
use crate::state_machine::{Committed, StateMachine};

/// Maximum number of inputs in the queue. When the queue is full, a session waits, and does not
/// read from its stream meanwhile.
const QUEUE_MAX: usize = 4096;
/// Maximum number of inputs per commit. Because of this limit, the first inputs of a long queue get
/// their replies sooner.
const BATCH_MAX: usize = 4096;
const TICK: Duration = Duration::from_secs(1);
/// If a tick comes this much later than expected, the process did not run: it was paused, the
/// machine was suspended, or the disk hung.
const TICK_GAP: Duration = Duration::from_secs(5);
/// Minimum time between two clock steps that disconnect all sessions.
const DISCONNECT_EVERY: Duration = Duration::from_secs(60);
/// How often the controller decides again on nodes whose deadline passed at an earlier check.
const RETRY_AFTER: SignedDuration = SignedDuration::from_secs(60);
/// Number of entries between two snapshots. If the fleet has more nodes than this, the number of
/// nodes is used instead, because a large state is expensive to write. A start applies this many
/// entries in less than a second.
const SNAPSHOT_EVERY: u64 = 50_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommitOutcome {
    /// The log has the input and the decisions about its node.
    Logged(DecisionCost),
    /// The log already had the input, or the input changes nothing.
    Duplicate,
}

impl CommitOutcome {
    pub fn is_logged(self) -> bool {
        matches!(self, Self::Logged(_))
    }
}

/// How much log space the decisions about one node took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DecisionCost {
    pub entries: u32,
    pub bytes: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    #[error("`{0}` is not a node of the fleet: it was retired or never enrolled")]
    UnknownNode(NodeId),
    /// The node has more open findings than one report can hold.
    #[error("`{0}` has too many open findings")]
    TooManyFindings(NodeId),
    #[error("disk space is low: only reports that affect service are logged")]
    LowSpace,
    /// The log accepts no more entries. It is unknown whether the log has this input.
    #[error("the server is stopping")]
    Stopped,
}

struct Input {
    by: Actor,
    event: Event,
    reply: oneshot::Sender<Result<CommitOutcome, SubmitError>>,
}

enum Job {
    Submit(Box<Input>),
    Read(Box<dyn FnOnce(&FleetState) + Send>),
    Tick,
    Stop,
}

/// Counters and flags that the controller thread and its handles share.
#[derive(Debug, Default)]
pub(crate) struct ControllerStats {
    /// Batches written since the server started.
    commits: AtomicU64,
    commit_durations: Histogram,
    clock_steps: AtomicU64,
    pauses: AtomicU64,
    /// Whether a tick is already queued.
    is_tick_queued: AtomicBool,
}

/// A handle to the controller thread.
#[derive(Clone)]
pub struct Controller {
    jobs: mpsc::Sender<Job>,
    stats: Arc<ControllerStats>,
    clock: Arc<LogClock>,
}

impl std::fmt::Debug for Controller {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Controller")
    }
}

pub(crate) type ControllerResult = oneshot::Receiver<Result<(), LogError>>;

impl Controller {
    /// Spawns the thread. A test can set `fail_after_commits`. The thread then ends after that many
    /// commits, before the inputs of the last commit get their replies.
    pub(crate) fn spawn(
        state_machine: StateMachine,
        sessions: Arc<SessionRegistry>,
        space: Arc<DiskSpace>,
        log_end: watch::Sender<u64>,
        clock_watch: ClockWatch,
        fail_after_commits: Option<u64>,
    ) -> std::io::Result<(Self, ControllerResult)> {
        sessions.track_nodes(state_machine.state());
        let (jobs, inbox) = mpsc::channel(QUEUE_MAX);
        let (end, ended) = oneshot::channel();
        let last_deadline_check = Timestamp::MIN;
        let last_snapshot_seq = state_machine.state().seq;
        let stats = Arc::new(ControllerStats::default());
        let thread_stats = Arc::clone(&stats);
        let clock = Arc::new(LogClock::after(state_machine.state().at, clock_watch.wall));
        let mut thread = Thread {
            state_machine,
            clock: Arc::clone(&clock),
            on_clock_step: clock_watch.on_step,
            sessions,
            space,
            inbox,
            log_end,
            last_deadline_check,
            last_snapshot_seq,
            snapshot_writer: None,
            is_time_stale: false,
            last_disconnect: None,
            last_tick: None,
            last_ran: clock_watch.last_ran,
            fail_after_commits,
            stats: thread_stats,
        };
        std::thread::Builder::new().name("controller".to_owned()).spawn(move || {
            let ended = thread.run();
            // Close the log before reporting that the thread has ended.
            drop(thread);
            // The receiver may no longer exist.
            let _ = end.send(ended);
        })?;
        Ok((Self { jobs, stats, clock }, ended))
    }

    /// Submits an input and waits until the input is durable.
    pub async fn submit(&self, by: Actor, event: Event) -> Result<CommitOutcome, SubmitError> {
        let (reply, outcome) = oneshot::channel();
        let input = Input { by, event, reply };
        self.jobs.send(Job::Submit(Box::new(input))).await.map_err(|_| SubmitError::Stopped)?;
        outcome.await.map_err(|_| SubmitError::Stopped)?
    }

    /// Calls `read` with a fleet state. All entries that the state contains are durable.
    pub async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&FleetState) -> T + Send + 'static,
    ) -> Result<T, SubmitError> {
        let (reply, result) = oneshot::channel();
        let job = Job::Read(Box::new(move |state| {
            let _ = reply.send(read(state));
        }));
        self.jobs.send(job).await.map_err(|_| SubmitError::Stopped)?;
        result.await.map_err(|_| SubmitError::Stopped)
    }

    /// Time of the log clock. Leases and heartbeat timeouts use this clock.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    pub fn commits(&self) -> u64 {
        self.stats.commits.load(Ordering::Relaxed)
    }

    /// How long it took to decide on a batch and to write it.
    pub(crate) fn commit_durations(&self) -> HistogramSnapshot {
        self.stats.commit_durations.snapshot()
    }

    pub(crate) fn clock_steps(&self) -> u64 {
        self.stats.clock_steps.load(Ordering::Relaxed)
    }

    pub(crate) fn pauses(&self) -> u64 {
        self.stats.pauses.load(Ordering::Relaxed)
    }

    /// The number of queued inputs.
    pub fn waiting(&self) -> usize {
        self.jobs.max_capacity() - self.jobs.capacity()
    }

    /// The maximum number of queued inputs.
    pub(crate) fn waiting_max(&self) -> usize {
        self.jobs.max_capacity()
    }

    /// Sends ticks until the thread ends.
    pub(crate) async fn tick(self) {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            // One tick in the queue is enough.
            let is_queued = self.stats.is_tick_queued.swap(true, Ordering::Relaxed);
            if !is_queued && self.jobs.send(Job::Tick).await.is_err() {
                return;
            }
            if self.jobs.is_closed() {
                return;
            }
        }
    }

    /// Stops the thread after it has processed everything in its queue.
    pub(crate) async fn stop(&self) {
        let _ = self.jobs.send(Job::Stop).await;
    }
}

struct Thread {
    state_machine: StateMachine,
    clock: Arc<LogClock>,
    /// Called before a clock step disconnects the sessions. The call renews the server's
    /// certificate, which agents need when they reconnect.
    on_clock_step: Box<dyn Fn() + Send>,
    sessions: Arc<SessionRegistry>,
    space: Arc<DiskSpace>,
    inbox: mpsc::Receiver<Job>,
    /// Wakes readers of the log.
    log_end: watch::Sender<u64>,
    /// When deadlines were last checked.
    last_deadline_check: Timestamp,
    /// The entry at which the last snapshot was taken. The snapshot may still be in progress.
    last_snapshot_seq: u64,
    snapshot_writer: Option<JoinHandle<()>>,
    /// Whether sessions still use the server time from before a clock step.
    is_time_stale: bool,
    last_disconnect: Option<Instant>,
    /// `None` before the first tick.
    last_tick: Option<Instant>,
    /// The file in which the time of the last tick is kept for the next start.
    last_ran: Option<LastRan>,
    fail_after_commits: Option<u64>,
    stats: Arc<ControllerStats>,
}

impl Thread {
    fn run(&mut self) -> Result<(), LogError> {
        self.follow_clock()?;
        // The controller observed no node while the server was down, so the downtime must not count
        // towards a timeout.
        let logged = self.state_machine.state().at;
        let recorded = self.last_ran.as_ref().and_then(LastRan::read);
        // A record in the future was written while the clock was ahead, so ignore the record.
        let last_ran =
            recorded.filter(|at| *at <= self.clock.now()).map_or(logged, |at| at.max(logged));
        if self.clock.now().duration_since(last_ran) > TICK_GAP.try_into().unwrap_or_default() {
            self.write(Event::ControllerResumed { last_ran })?;
        }
        let mut deferred = None;
        while let Some(job) = deferred.take().or_else(|| self.inbox.blocking_recv()) {
            match job {
                Job::Submit(first) => deferred = self.commit_batch(first)?,
                Job::Read(read) => read(self.state_machine.state()),
                Job::Tick => self.tick()?,
                Job::Stop => break,
            }
        }
        if let Some(snapshot_writer) = self.snapshot_writer.take() {
            let _ = snapshot_writer.join();
        }
        if let Some(last_ran) = &mut self.last_ran {
            last_ran.write(self.clock.now());
        }
        self.state_machine.write_snapshot()
    }

    /// Commits an input together with all inputs that are queued after it. If another job ended the
    /// batch, returns that job, because it has to wait for this commit.
    fn commit_batch(&mut self, first: Box<Input>) -> Result<Option<Job>, LogError> {
        let mut batch: Vec<Box<Input>> = Vec::new();
        // Admission decides whether an input is new. It compares the input with the state, which
        // changes only at the commit. A batch therefore holds at most one event of each kind per
        // node.
        let mut kinds: HashSet<(Option<NodeId>, Discriminant<Event>)> = HashSet::new();
        let mut next = Some(Job::Submit(first));
        let mut deferred = None;
        while let Some(job) = next {
            match job {
                Job::Submit(input) => match self.classify(&input) {
                    ReportAdmission::Duplicate => {
                        drop(input.reply.send(Ok(CommitOutcome::Duplicate)));
                    }
                    ReportAdmission::UnknownNode(node) => {
                        drop(input.reply.send(Err(SubmitError::UnknownNode(node))));
                    }
                    ReportAdmission::TooManyFindings(node) => {
                        drop(input.reply.send(Err(SubmitError::TooManyFindings(node))));
                    }
                    ReportAdmission::LowValue => drop(input.reply.send(Err(SubmitError::LowSpace))),
                    ReportAdmission::New => {
                        let kind = std::mem::discriminant(&input.event);
                        if !kinds.insert((input.event.node().cloned(), kind)) {
                            deferred = Some(Job::Submit(input));
                            break;
                        }
                        batch.push(input);
                    }
                },
                // A read may run here, because the state has only durable entries until the commit
                // below.
                Job::Read(read) => read(self.state_machine.state()),
                other => {
                    deferred = Some(other);
                    break;
                }
            }
            next = (batch.len() < BATCH_MAX).then(|| self.inbox.try_recv().ok()).flatten();
        }
        let mut replies = Vec::with_capacity(batch.len());
        let mut inputs = Vec::with_capacity(batch.len());
        for input in batch {
            replies.push((input.event.node().cloned(), input.reply));
            inputs.push((input.by, input.event));
        }
        let done = self.commit(inputs)?;
        let mut decided = decision_costs(&done);
        for (node, reply) in replies {
            let decided = node.and_then(|node| decided.remove(&node)).unwrap_or_default();
            let _ = reply.send(Ok(CommitOutcome::Logged(decided)));
        }
        Ok(deferred)
    }

    /// Logs a step of the wall clock and disconnects the sessions. Agents use the server's time for
    /// leases, and get the new time when they reconnect.
    fn follow_clock(&mut self) -> Result<(), LogError> {
        let Some(ClockStep { from, to }) = self.clock.take_step() else { return Ok(()) };
        self.stats.clock_steps.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(%from, %to, "the wall clock was stepped; timers keep their remaining time");
        (self.on_clock_step)();
        self.last_deadline_check = Timestamp::MIN;
        self.write(Event::ClockStepped { from, to })?;
        self.is_time_stale = true;
        self.disconnect_stale_sessions();
        Ok(())
    }

    /// Disconnects the sessions after a clock step, because a session keeps the server time with
    /// which it started. If the clock is unstable, this happens at most once a minute.
    fn disconnect_stale_sessions(&mut self) {
        let is_due = self.last_disconnect.is_none_or(|at| at.elapsed() >= DISCONNECT_EVERY);
        if self.is_time_stale && is_due {
            self.is_time_stale = false;
            self.last_disconnect = Some(Instant::now());
            self.sessions.disconnect(|_, _| Some(DisconnectReason::ClockStepped));
        }
    }

    /// Excludes time in which this thread did not run from heartbeat timeouts and leases.
    fn resume(&mut self) -> Result<(), LogError> {
        // Subtract the permitted lateness. Otherwise a thread whose ticks are always late would
        // count no time at all.
        let paused = self.last_tick.map(|at| at.elapsed().saturating_sub(TICK_GAP));
        let Some(paused) = paused.filter(|pause| !pause.is_zero()) else { return Ok(()) };
        self.last_tick = None;
        self.stats.pauses.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(
            paused_s = paused.as_secs(),
            "the controller did not run; that time counts towards no timeout"
        );
        self.sessions.extend_timeouts(paused);
        let now = self.clock.now();
        let last_ran = now.checked_sub(paused).unwrap_or(now);
        self.write(Event::ControllerResumed { last_ran })
    }

    fn classify(&self, input: &Input) -> ReportAdmission {
        let state = self.state_machine.state();
        match admission::classify(state, &input.by, &input.event) {
            ReportAdmission::New
                if self.space.is_low() && admission::is_low_value(state, &input.event) =>
            {
                ReportAdmission::LowValue
            }
            admission => admission,
        }
    }

    fn commit(&mut self, inputs: Vec<(Actor, Event)>) -> Result<Committed, LogError> {
        if inputs.is_empty() {
            return Ok(Committed::default());
        }
        self.follow_clock()?;
        self.resume()?;
        let done = self.commit_now(inputs)?;
        self.stats.commits.fetch_add(1, Ordering::Relaxed);
        if let Some(remaining) = &mut self.fail_after_commits {
            *remaining = remaining.saturating_sub(1);
            if *remaining == 0 {
                return Err(LogError::Failpoint);
            }
        }
        self.announce(&done);
        Ok(done)
    }

    /// Logs an event that the controller itself caused.
    fn write(&mut self, event: Event) -> Result<(), LogError> {
        let done = self.commit_now(vec![(Actor::Server, event)])?;
        self.announce(&done);
        Ok(())
    }

    fn commit_now(&mut self, inputs: Vec<(Actor, Event)>) -> Result<Committed, LogError> {
        let start = Instant::now();
        let done = self.state_machine.commit(inputs, self.clock.now());
        self.stats.commit_durations.observe(start.elapsed());
        done
    }

    /// Tells sessions and log readers about a commit. Starts a snapshot if one is due.
    fn announce(&mut self, done: &Committed) {
        self.sessions.dispatch(&done.entries);
        self.log_end.send_replace(self.state_machine.state().seq);
        let every = SNAPSHOT_EVERY.max(self.state_machine.state().nodes.len() as u64);
        if self.state_machine.state().seq >= self.last_snapshot_seq + every {
            self.write_snapshot();
        }
    }

    /// Writes a snapshot on another thread. If the write fails, the next start takes longer, and
    /// the controller tries again when the next snapshot is due.
    fn write_snapshot(&mut self) {
        if self
            .snapshot_writer
            .as_ref()
            .is_some_and(|snapshot_writer| !snapshot_writer.is_finished())
        {
            return;
        }
        let (snapshot, mut writer) = self.state_machine.prepare_snapshot();
        self.last_snapshot_seq = snapshot.state.seq;
        let write = move || {
            if let Err(err) = writer.write(&snapshot) {
                tracing::error!(%err, cause = ?std::error::Error::source(&err).map(ToString::to_string), "failed to write a snapshot");
            }
        };
        match std::thread::Builder::new().name("snapshot".to_owned()).spawn(write) {
            Ok(snapshot_writer) => self.snapshot_writer = Some(snapshot_writer),
            Err(err) => tracing::error!(%err, "failed to write a snapshot"),
        }
    }

    fn tick(&mut self) -> Result<(), LogError> {
        self.stats.is_tick_queued.store(false, Ordering::Relaxed);
        self.follow_clock()?;
        self.disconnect_stale_sessions();
        self.resume()?;
        let now = self.clock.now();
        self.last_tick = Some(Instant::now());
        if let Some(last_ran) = &mut self.last_ran {
            last_ran.update(now);
        }
        let state = self.state_machine.state();
        let losses = self.sessions.heartbeat_losses(state, now);
        let mut inputs: Vec<(Actor, Event)> =
            losses.into_iter().map(|event| (Actor::Server, event)).collect();
        let is_due = |after| {
            let mut times = state.deadlines.iter().map(|(at, _)| *at).skip_while(|at| *at <= after);
            times.next().is_some_and(|at| at <= now)
        };
        let is_retry_due = now.duration_since(self.last_deadline_check) >= RETRY_AFTER;
        if is_due(self.last_deadline_check) || is_retry_due && is_due(Timestamp::MIN) {
            inputs.push((Actor::Server, Event::Tick));
            self.last_deadline_check = now;
        }
        self.commit(inputs).map(drop)
    }
}

/// How much log space the decisions of a commit took, by node.
fn decision_costs(done: &Committed) -> HashMap<NodeId, DecisionCost> {
    let mut decided: HashMap<NodeId, DecisionCost> = HashMap::new();
    let entries = done.entries.iter().zip(&done.entry_bytes);
    for (entry, bytes) in entries.filter(|(entry, _)| entry.event.is_decision()) {
        let Some(node) = entry.event.node() else { continue };
        let cost = decided.entry(node.clone()).or_default();
        cost.entries = cost.entries.saturating_add(1);
        cost.bytes += bytes;
    }
    decided
}

#[cfg(test)]
mod tests {
    use farrier_fleet::fleet::{Location, NodePhase};

    use super::*;
    use crate::clock::WallClock;
    use crate::ingest::ReportQuota;
    use crate::log::sqlite::SqliteLog;

    /// A controller thread that is not started. Its log ends at `last_ran`, and its registry last
    /// saw the nodes `ago`.
    fn thread(folder: &tempfile::TempDir, last_ran: Timestamp, ago: Duration) -> Thread {
        let log = SqliteLog::open(&folder.path().join("log")).unwrap();
        let mut state_machine = StateMachine::open(Box::new(log)).unwrap();
        let location = Location::in_pool("train".parse().unwrap());
        let joined = |name: &str| Event::Enrolled {
            node: name.parse().unwrap(),
            location: location.clone(),
        };
        state_machine
            .commit(vec![(Actor::Server, joined("a")), (Actor::Server, joined("b"))], last_ran)
            .unwrap();
        let sessions = Arc::new(SessionRegistry::started_at(
            Instant::now().checked_sub(ago).unwrap(),
            ReportQuota::default(),
        ));
        sessions.track_nodes(state_machine.state());
        Thread {
            clock: Arc::new(LogClock::after(state_machine.state().at, WallClock::default())),
            on_clock_step: Box::new(|| ()),
            state_machine,
            sessions,
            space: Arc::default(),
            inbox: mpsc::channel(1).1,
            log_end: watch::channel(0).0,
            last_deadline_check: Timestamp::MIN,
            last_snapshot_seq: 0,
            snapshot_writer: None,
            is_time_stale: false,
            last_disconnect: None,
            last_tick: None,
            last_ran: None,
            fail_after_commits: None,
            stats: Arc::default(),
        }
    }

    fn heartbeats_lost(thread: &Thread) -> usize {
        thread
            .state_machine
            .state()
            .nodes
            .values()
            .filter(|node| node.liveness.heartbeat_loss().is_some())
            .count()
    }

    #[test]
    fn decisions_are_charged_by_their_logged_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let mut thread = thread(&folder, Timestamp::now(), Duration::ZERO);
        let node: NodeId = "c".parse().unwrap();
        let location = Location::in_pool("train".parse().unwrap());
        let enrolled = Event::Enrolled { node: node.clone(), location };
        let done = thread.commit(vec![(Actor::Node(node.clone()), enrolled)]).unwrap();
        let decisions = || done.entries.iter().filter(|entry| entry.event.is_decision());
        let bytes = decisions().map(|entry| entry.encode().unwrap().len()).sum();
        let entries = u32::try_from(decisions().count()).unwrap();
        assert!(entries > 0, "verification is ordered");
        assert_eq!(decision_costs(&done), HashMap::from([(node, DecisionCost { entries, bytes })]));
    }

    #[test]
    fn a_pause_of_the_controller_is_no_missed_heartbeat() {
        let (folder, pause) = (tempfile::tempdir().unwrap(), Duration::from_secs(320));
        let ago = SignedDuration::try_from(pause).unwrap();
        let mut thread = thread(&folder, Timestamp::now() - ago, pause);
        thread.last_tick = Instant::now().checked_sub(pause);
        thread.tick().unwrap();
        assert_eq!((heartbeats_lost(&thread), thread.stats.pauses.load(Ordering::Relaxed)), (0, 1));
        thread.tick().unwrap();
        assert_eq!((heartbeats_lost(&thread), thread.stats.pauses.load(Ordering::Relaxed)), (0, 1));
        assert!(
            thread
                .state_machine
                .state()
                .nodes
                .values()
                .all(|node| node.phase() == NodePhase::Joining)
        );
    }

    /// The controller starts with one dead node, with a log without recent entries, and with a
    /// record of when it last ran.
    #[test]
    fn a_start_excludes_only_time_in_which_the_controller_did_not_run() {
        let folder = tempfile::tempdir().unwrap();
        let ago = |seconds| Timestamp::now() - SignedDuration::from_secs(seconds);
        let mut thread = thread(&folder, ago(1000), Duration::ZERO);
        let silent = Event::HeartbeatLost { node: "a".parse().unwrap(), since: ago(1000) };
        thread.state_machine.commit(vec![(Actor::Server, silent)], ago(900)).unwrap();
        let mut last_ran = LastRan::at(folder.path());
        last_ran.write(ago(60));
        thread.last_ran = Some(last_ran);
        thread.inbox.close();
        thread.run().unwrap();
        let node = &thread.state_machine.state().nodes[&"a".parse().unwrap()];
        let uncounted_s = node.liveness.heartbeat_loss().unwrap().uncounted_s;
        assert!((60..600).contains(&uncounted_s), "{uncounted_s} s and not 900");
        let recorded = LastRan::at(folder.path()).read().unwrap();
        assert!(recorded > ago(60), "the stop is recorded");
    }

    #[test]
    fn a_node_that_reconnects_while_its_lost_heartbeat_is_logged_is_restored() {
        let (folder, quiet) = (tempfile::tempdir().unwrap(), Duration::from_secs(320));
        let mut thread = thread(&folder, Timestamp::now(), quiet);
        let node: NodeId = "a".parse().unwrap();
        let registered = thread.sessions.register(&node, None);
        // The session registered before the controller logs the lost heartbeat.
        thread.tick().unwrap();
        assert!(
            thread.sessions.mark_accepted(&node, &registered.last_seen),
            "the log has a lost heartbeat"
        );
        assert!(!thread.sessions.mark_accepted(&node, &registered.last_seen), "returned once");
    }

    #[test]
    fn lost_heartbeats_are_detected_while_the_controller_runs() {
        let (folder, quiet) = (tempfile::tempdir().unwrap(), Duration::from_secs(320));
        let mut thread = thread(&folder, Timestamp::now(), quiet);
        thread.last_tick = Some(Instant::now());
        thread.tick().unwrap();
        assert_eq!(heartbeats_lost(&thread), 2);
    }

    #[test]
    fn late_ticks_still_count_most_of_the_time() {
        let (folder, quiet) = (tempfile::tempdir().unwrap(), Duration::from_secs(104));
        let mut thread = thread(&folder, Timestamp::now(), quiet);
        thread.last_tick = Instant::now().checked_sub(Duration::from_secs(6));
        thread.tick().unwrap();
        assert_eq!((heartbeats_lost(&thread), thread.stats.pauses.load(Ordering::Relaxed)), (2, 1));
    }

    #[test]
    fn the_clock_step_callback_runs_before_sessions_are_disconnected() {
        let folder = tempfile::tempdir().unwrap();
        let ahead = Timestamp::now() + SignedDuration::from_hours(24);
        let mut thread = thread(&folder, ahead, Duration::ZERO);
        let registered = thread.sessions.register(&"a".parse().unwrap(), None);
        let disconnected = Arc::new(std::sync::Mutex::new(registered.disconnect));
        let (disconnect, calls) = (Arc::clone(&disconnected), Arc::new(AtomicU64::new(0)));
        let thread_calls = Arc::clone(&calls);
        thread.on_clock_step = Box::new(move || {
            assert!(
                disconnect.lock().unwrap().try_recv().is_err(),
                "the session was disconnected before"
            );
            thread_calls.fetch_add(1, Ordering::Relaxed);
        });
        thread.tick().unwrap();
        assert_eq!(calls.load(Ordering::Relaxed), 1);
        assert!(matches!(
            disconnected.lock().unwrap().try_recv(),
            Ok(DisconnectReason::ClockStepped)
        ));
    }

    #[test]
    fn a_log_ahead_of_the_wall_clock_is_corrected_by_an_entry() {
        let folder = tempfile::tempdir().unwrap();
        let ten_days = SignedDuration::from_hours(240);
        let mut thread = thread(&folder, Timestamp::now() + ten_days, Duration::ZERO);
        thread.tick().unwrap();
        assert_eq!(thread.stats.clock_steps.load(Ordering::Relaxed), 1);
        let at = thread.state_machine.state().at;
        assert!(at.duration_since(Timestamp::now()) < SignedDuration::from_hours(1), "{at}");
        let is_past =
            thread.state_machine.state().nodes.values().all(|node| node.phase.since() <= at);
        assert!(is_past, "nothing logged lies in the future");
        thread.tick().unwrap();
        assert_eq!(thread.stats.clock_steps.load(Ordering::Relaxed), 1);
    }
}
