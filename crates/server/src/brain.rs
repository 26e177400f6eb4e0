//! The thread that owns the fleet: everything that waits becomes one commit, and is answered when it is on disk.

use std::collections::HashSet;
use std::mem::Discriminant;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use farrier_fleet::fleet::event::Event;
use farrier_fleet::fleet::identity::Actor;
use farrier_fleet::fleet::{FleetState, NodeId};
use jiff::{SignedDuration, Timestamp};
use tokio::sync::{mpsc, oneshot, watch};

use crate::clock::LogClock;
use crate::core::Core;
use crate::ingest::Roster;
use crate::ingest::news::{self, Verdict};
use crate::log::LogError;

/// Inputs that may wait. Whoever brings more waits, and with them the stream that they read from.
const WAITING_MAX: usize = 4096;
/// Inputs of one commit: what waits longer is answered sooner when it comes in pieces.
const BATCH_MAX: usize = 4096;
/// Time is looked at this often.
const TICK: Duration = Duration::from_secs(1);
/// Nodes whose time has come and for whom nothing could be done are looked at again this often.
const AGAIN: SignedDuration = SignedDuration::from_secs(60);
/// A state is kept after so many entries, or as many as there are nodes: to fold them takes less than a second, and to write the state of a
/// large fleet is not little.
const KEEP_EVERY: u64 = 50_000;

/// What became of an input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taking {
    /// It is in the log.
    Logged,
    /// It was there, or changes nothing.
    Known,
}

/// Why an input was not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TakeError {
    /// Nobody knows the node.
    #[error("`{0}` is not a node of the fleet: it was retired, or never enrolled")]
    Stranger(NodeId),
    /// The node has more open findings than anybody reads.
    #[error("`{0}` has too many open findings")]
    TooMany(NodeId),
    /// The log takes nothing any more. Nobody knows whether it has the input.
    #[error("the server is ending")]
    Ended,
}

struct Input {
    by: Actor,
    event: Event,
    reply: oneshot::Sender<Result<Taking, TakeError>>,
}

enum Job {
    Take(Box<Input>),
    Look(Box<dyn FnOnce(&FleetState) + Send>),
    Tick,
    Stop,
}

/// The way to the thread.
#[derive(Clone)]
pub struct Brain {
    jobs: mpsc::Sender<Job>,
    commits: Arc<AtomicU64>,
    clock: Arc<LogClock>,
}

impl std::fmt::Debug for Brain {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Brain")
    }
}

/// How the thread ended.
pub(crate) type Ended = oneshot::Receiver<Result<(), LogError>>;

impl Brain {
    /// Starts the thread. With `dies_after` it ends, for a test, after so many commits, before anybody hears of the last.
    pub(crate) fn spawn(
        core: Core,
        roster: Arc<Roster>,
        log_end: watch::Sender<u64>,
        dies_after: Option<u64>,
    ) -> std::io::Result<(Self, Ended)> {
        roster.expect(core.state());
        let (jobs, inbox) = mpsc::channel(WAITING_MAX);
        let (end, ended) = oneshot::channel();
        let looked = Timestamp::MIN;
        let kept = core.state().seq;
        let started = Instant::now();
        let commits = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&commits);
        let clock = Arc::new(LogClock::after(core.state().at));
        let mut thread = Thread {
            core,
            clock: Arc::clone(&clock),
            roster,
            inbox,
            log_end,
            looked,
            kept,
            keeping: None,
            started,
            dies_after,
            commits: counted,
        };
        std::thread::Builder::new().name("brain".to_owned()).spawn(move || {
            let ended = thread.run();
            // The log is closed before anybody hears that it is.
            drop(thread);
            // Nobody is left to tell when the receiver is gone.
            let _ = end.send(ended);
        })?;
        Ok((Self { jobs, commits, clock }, ended))
    }

    /// Gives it an input, and waits until that is on disk.
    pub async fn take(&self, by: Actor, event: Event) -> Result<Taking, TakeError> {
        let (reply, taken) = oneshot::channel();
        let input = Input { by, event, reply };
        self.jobs.send(Job::Take(Box::new(input))).await.map_err(|_| TakeError::Ended)?;
        taken.await.map_err(|_| TakeError::Ended)?
    }

    /// Looks at the state as it is on disk.
    pub async fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce(&FleetState) -> T + Send + 'static,
    ) -> Result<T, TakeError> {
        let (reply, seen) = oneshot::channel();
        let job = Job::Look(Box::new(move |state| {
            let _ = reply.send(look(state));
        }));
        self.jobs.send(job).await.map_err(|_| TakeError::Ended)?;
        seen.await.map_err(|_| TakeError::Ended)
    }

    /// The time by which leases and silence are counted.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Batches that were written since the server started.
    pub fn commits(&self) -> u64 {
        self.commits.load(Ordering::Relaxed)
    }

    /// Inputs that wait.
    pub fn waiting(&self) -> usize {
        self.jobs.max_capacity() - self.jobs.capacity()
    }

    /// Lets time pass, until the thread has ended.
    pub(crate) async fn tick(self) {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if self.jobs.send(Job::Tick).await.is_err() {
                return;
            }
        }
    }

    /// Ends it, after all that waits.
    pub(crate) async fn stop(&self) {
        let _ = self.jobs.send(Job::Stop).await;
    }
}

struct Thread {
    core: Core,
    clock: Arc<LogClock>,
    roster: Arc<Roster>,
    inbox: mpsc::Receiver<Job>,
    /// Who waits for entries hears here that there are some.
    log_end: watch::Sender<u64>,
    /// The last time at which nodes whose time has come were looked at.
    looked: Timestamp,
    /// The entry at which the state was kept, or is being.
    kept: u64,
    /// Who keeps it.
    keeping: Option<JoinHandle<()>>,
    started: Instant,
    dies_after: Option<u64>,
    commits: Arc<AtomicU64>,
}

impl Thread {
    fn run(&mut self) -> Result<(), LogError> {
        let mut held = None;
        while let Some(job) = held.take().or_else(|| self.inbox.blocking_recv()) {
            match job {
                Job::Take(first) => held = self.take(first)?,
                Job::Look(look) => look(self.core.state()),
                Job::Tick => self.tick()?,
                Job::Stop => break,
            }
        }
        if let Some(keeping) = self.keeping.take() {
            let _ = keeping.join();
        }
        self.core.keep()
    }

    /// Commits an input with all that waits behind it. Gives back what has to wait for the commit.
    fn take(&mut self, first: Box<Input>) -> Result<Option<Job>, LogError> {
        let mut batch: Vec<Box<Input>> = Vec::new();
        // Whether something is news is seen in the state: of one node and one kind there may be one in a commit.
        let mut kinds: HashSet<(Option<NodeId>, Discriminant<Event>)> = HashSet::new();
        let mut next = Some(Job::Take(first));
        let mut held = None;
        while let Some(job) = next {
            match job {
                Job::Take(input) => match news::judge(self.core.state(), &input.by, &input.event) {
                    Verdict::Known => drop(input.reply.send(Ok(Taking::Known))),
                    Verdict::Stranger(node) => {
                        drop(input.reply.send(Err(TakeError::Stranger(node))));
                    }
                    Verdict::TooMany(node) => {
                        drop(input.reply.send(Err(TakeError::TooMany(node))));
                    }
                    Verdict::News => {
                        let kind = std::mem::discriminant(&input.event);
                        if !kinds.insert((input.event.node().cloned(), kind)) {
                            held = Some(Job::Take(input));
                            break;
                        }
                        batch.push(input);
                    }
                },
                // What is on disk now is the truth, whatever comes next.
                Job::Look(look) => look(self.core.state()),
                other => {
                    held = Some(other);
                    break;
                }
            }
            next = (batch.len() < BATCH_MAX).then(|| self.inbox.try_recv().ok()).flatten();
        }
        let mut replies = Vec::with_capacity(batch.len());
        let mut inputs = Vec::with_capacity(batch.len());
        for input in batch {
            inputs.push((input.by, input.event));
            replies.push(input.reply);
        }
        self.commit(inputs)?;
        for reply in replies {
            let _ = reply.send(Ok(Taking::Logged));
        }
        Ok(held)
    }

    fn commit(&mut self, inputs: Vec<(Actor, Event)>) -> Result<(), LogError> {
        if inputs.is_empty() {
            return Ok(());
        }
        let done = self.core.commit(inputs, self.clock.now())?;
        self.commits.fetch_add(1, Ordering::Relaxed);
        if let Some(left) = &mut self.dies_after {
            *left = left.saturating_sub(1);
            if *left == 0 {
                return Err(LogError::Rehearsed);
            }
        }
        self.roster.dispatch(&done.entries);
        self.log_end.send_replace(self.core.state().seq);
        let every = KEEP_EVERY.max(self.core.state().nodes.len() as u64);
        if self.core.state().seq >= self.kept + every {
            self.keep();
        }
        Ok(())
    }

    /// Has the state kept beside all else. Where that fails the next start takes longer, and it is tried again later.
    fn keep(&mut self) {
        if self.keeping.as_ref().is_some_and(|keeping| !keeping.is_finished()) {
            return;
        }
        let (snapshot, mut keeper) = self.core.keeping();
        self.kept = snapshot.state.seq;
        let keep = move || {
            if let Err(err) = keeper.keep(&snapshot) {
                tracing::error!(%err, cause = ?std::error::Error::source(&err).map(ToString::to_string), "the state was not kept");
            }
        };
        match std::thread::Builder::new().name("keeper".to_owned()).spawn(keep) {
            Ok(keeping) => self.keeping = Some(keeping),
            Err(err) => tracing::error!(%err, "the state was not kept"),
        }
    }

    fn tick(&mut self) -> Result<(), LogError> {
        let now = self.clock.now();
        let state = self.core.state();
        let silent = self.roster.silent(state, self.started.elapsed(), now);
        let mut inputs: Vec<(Actor, Event)> =
            silent.into_iter().map(|event| (Actor::Server, event)).collect();
        let due = |after| {
            let mut times = state.wakes.iter().map(|(at, _)| *at).skip_while(|at| *at <= after);
            times.next().is_some_and(|at| at <= now)
        };
        let overdue = now.duration_since(self.looked) >= AGAIN;
        if due(self.looked) || overdue && due(Timestamp::MIN) {
            inputs.push((Actor::Server, Event::TimePassed));
            self.looked = now;
        }
        self.commit(inputs)
    }
}
