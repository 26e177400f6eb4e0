//! Who is connected, what jobs do, and whom to tell that the GPU will not last.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farrier_fleet::health::{
    Action, Finding, FindingKind, GpuIdentity, GpuUuid, Moment, Severity, Subject,
};
use tokio::sync::mpsc::Sender;

use super::client::{Client, uuid};
use super::job::{Job, JobKey, step_problem};
use super::message_error::MessageError;
use super::protocol::{Answer, FRAMEWORKS, Hello, JobState, RankStep, Request};
use crate::brain::Held;

/// Connections in all.
pub const CLIENTS_MAX: usize = 1024;
/// Connections of one user who is not root: the rest stays free for others and for `farrier status`.
pub(super) const CLIENTS_PER_USER_MAX: usize = CLIENTS_MAX / 2;
/// Of either so many are kept for those who say no hello, such as `farrier status`.
const WITHOUT_HELLO: usize = 16;
/// Jobs that are shown and have metrics: labels are bounded.
pub const JOBS_MAX: usize = 64;
/// A job's name and phase are cut to this.
const NAME_CHARS_MAX: usize = 128;
/// Findings and reasons that one `checkpoint_wanted` names; the rest comes in the next.
const FINDINGS_IN_A_LINE: usize = 256;
const REASONS_IN_A_LINE: usize = 3;
/// Rules whose findings have the Xid as their detail.
const XID_CODES: [&str; 4] =
    ["gpu.xid", "gpu.xid-app-repeated", "gpu.xid-after-reboots", "switch.sxid"];
/// Bytes of lines that have not ended yet, of all clients together.
const LINE_BYTES_TOTAL_MAX: usize = 4 << 20;

/// Shared by the server, the brain, status and metrics.
#[derive(Debug, Default)]
pub struct Board {
    inner: Mutex<Inner>,
    dropped: AtomicU64,
    line_bytes: AtomicUsize,
}

#[derive(Debug, Default)]
struct Inner {
    next_id: u64,
    clients: BTreeMap<u64, Client>,
    jobs: BTreeMap<JobKey, Job>,
    /// Findings that end work, while they are open.
    standing: BTreeMap<u64, Standing>,
    /// The GPUs of the node, sorted; none: they were never counted.
    gpus: Option<Vec<GpuUuid>>,
}

#[derive(Debug, Clone)]
struct Standing {
    subject: Subject,
    /// Its number and when it began: numbers begin anew where somebody has removed the journal.
    key: String,
    /// Whether its detail is an Xid, which says more than what follows from it.
    is_xid: bool,
    /// `gpu.xid Xid 79 on GPU-...`.
    what: String,
    /// That, how bad it is and what is to be done.
    reason: String,
}

/// Why a client is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    /// Everybody together.
    #[error("the agent serves {CLIENTS_MAX} connections and no more")]
    Full,
    /// This user.
    #[error("the agent serves {CLIENTS_PER_USER_MAX} connections of one user and no more")]
    UserFull,
}

impl Board {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Messages that were refused or dropped so far.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    pub(super) fn drop_messages(&self, count: u64) {
        self.dropped.fetch_add(count, Ordering::Relaxed);
    }

    /// Asks for room to keep bytes of a line that has not ended.
    pub(super) fn reserve(&self, bytes: usize) -> bool {
        let before = self.line_bytes.fetch_add(bytes, Ordering::Relaxed);
        if before + bytes > LINE_BYTES_TOTAL_MAX {
            self.line_bytes.fetch_sub(bytes, Ordering::Relaxed);
            return false;
        }
        true
    }

    pub(super) fn release(&self, bytes: usize) {
        self.line_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Takes a client in.
    pub(super) fn join(
        &self,
        uid: u32,
        pid: Option<u32>,
        outbox: Sender<Arc<str>>,
    ) -> Result<u64, Refusal> {
        let mut inner = self.lock();
        let same = inner.clients.values().filter(|client| client.uid == uid).count();
        if uid != 0 && same >= CLIENTS_PER_USER_MAX && !inner.let_go(|client| client.uid == uid) {
            return Err(Refusal::UserFull);
        }
        if inner.clients.len() >= CLIENTS_MAX && !inner.let_go(|_| true) {
            return Err(Refusal::Full);
        }
        inner.next_id += 1;
        let id = inner.next_id;
        let client = Client::new(uid, pid, outbox);
        inner.clients.insert(id, client);
        Ok(id)
    }

    /// Whether this client may be a rank of a job: not every place is for them.
    pub(super) fn has_room_for_rank(&self, id: u64) -> Result<(), Refusal> {
        let inner = self.lock();
        let Some(client) = inner.clients.get(&id) else { return Ok(()) };
        let ranks = || inner.clients.values().filter(|it| it.job.is_some());
        if ranks().count() >= CLIENTS_MAX - WITHOUT_HELLO {
            return Err(Refusal::Full);
        }
        let same = ranks().filter(|it| it.uid == client.uid).count();
        if client.uid != 0 && same >= CLIENTS_PER_USER_MAX - WITHOUT_HELLO {
            return Err(Refusal::UserFull);
        }
        Ok(())
    }

    /// Lets a client go.
    pub(super) fn leave(&self, id: u64, now: Moment) {
        let mut inner = self.lock();
        let job = inner.clients.remove(&id).and_then(|client| client.job);
        if let Some(key) = job {
            inner.count_ranks(&key, now);
            if let Some(job) = inner.jobs.get_mut(&key) {
                job.left(id);
            }
        }
    }

    /// The GPUs of the node were counted. Whoever named one that is not among them is told so.
    pub(crate) fn counted(&self, now: Moment, gpus: &[GpuIdentity]) {
        let mut gpus: Vec<GpuUuid> = gpus.iter().map(|gpu| gpu.uuid.clone()).collect();
        gpus.sort();
        let mut inner = self.lock();
        if gpus.is_empty() || inner.gpus.as_ref() == Some(&gpus) {
            return;
        }
        let Inner { clients, gpus: known, .. } = &mut *inner;
        *known = Some(gpus);
        for client in clients.values_mut() {
            client.look_for_gpu(known.as_deref());
        }
        inner.tell_all(now);
    }

    /// Forgets jobs that nobody was connected for in a long time.
    pub(crate) fn forget_old(&self, now: Moment) {
        self.lock().jobs.retain(|_, job| !job.is_old(now.steady_ms));
    }

    /// How many are connected.
    #[cfg(test)]
    pub(super) fn clients(&self) -> usize {
        self.lock().clients.len()
    }

    /// Takes a message of a client. `Err` is what to tell it.
    pub(super) fn take(&self, id: u64, now: Moment, request: Request) -> Result<(), MessageError> {
        let mut inner = self.lock();
        match request {
            Request::Hello(hello) => inner.hello(id, now, hello),
            Request::Status => Ok(()),
            other => inner.progress(id, now, other),
        }
    }

    /// A client took an answer: there is room for what it was not told yet.
    pub(super) fn drained(&self, id: u64, now: Moment) {
        self.lock().tell(id, now);
    }

    /// Jobs, by user and name.
    pub fn jobs(&self) -> Vec<JobState> {
        self.lock().jobs.values().map(Job::shown).collect()
    }

    /// A finding opened or changed: whoever works on it hears that a checkpoint is wanted.
    pub(crate) fn finding(&self, now: Moment, finding: &Finding, processes: Option<&[Held]>) {
        // Whoever calls a finding less than it is asks not to be woken, and not that work be lost.
        let severity = finding.own_severity.unwrap_or(finding.severity).max(finding.severity);
        let ends_work = finding.kind == FindingKind::Fault
            && severity >= Severity::Critical
            && finding.action >= Action::ResetGpu
            && finding.subject != Subject::Agent;
        if !ends_work {
            // It may have been worse before. Who was told then is not told again when it is worse once more.
            self.lock().standing.remove(&finding.id);
            return;
        }
        let Finding { code, detail, subject, severity, action, .. } = finding;
        let detail = if detail.is_empty() { String::new() } else { format!(" {detail}") };
        let key = format!("{}-{}", finding.id, finding.first_seen.as_second());
        let what = format!("{code}{detail} on {subject}");
        let reason = format!("{what}, {severity}: {}", action.instruction());
        // A node that goes down takes every rank with it, whichever GPU is to blame.
        let whole_node = finding.action >= Action::RebootNode;
        let subject = if whole_node { Subject::Node } else { finding.subject.clone() };
        let is_xid = XID_CODES.contains(&code.as_str());
        let standing = Standing { subject, key, is_xid, what, reason };
        let mut inner = self.lock();
        for held in processes.unwrap_or_default() {
            let clients = inner.clients.values_mut();
            for client in clients.filter(|client| client.pid == Some(held.pid)) {
                client.holds(held.gpu.clone());
            }
        }
        inner.standing.insert(finding.id, standing);
        inner.tell_all(now);
    }

    /// A job that is connected; says how often it was asked for a checkpoint.
    #[cfg(test)]
    pub(crate) fn listener(self: &Arc<Self>) -> impl Fn() -> u64 + use<> {
        let (outbox, inbox) = tokio::sync::mpsc::channel(64);
        let now = Moment { steady_ms: 0, wall: jiff::Timestamp::UNIX_EPOCH };
        let id = self.join(0, None, outbox).expect("there is room");
        let hello = serde_json::from_str(r#"{"v":1,"job":"job"}"#).expect("it is a good hello");
        self.lock().hello(id, now, hello).expect("it is a good hello");
        let board = Arc::clone(self);
        move || {
            let _connected = &inbox;
            board.jobs().iter().map(|job| job.checkpoints_wanted).sum()
        }
    }

    /// A finding is over.
    pub(crate) fn cleared(&self, finding: &Finding) {
        let mut inner = self.lock();
        inner.standing.remove(&finding.id);
        for client in inner.clients.values_mut() {
            client.told.remove(&finding.id);
        }
        for job in inner.jobs.values_mut() {
            job.cleared(finding.id);
        }
    }
}

/// A framework that is known, and a version that is one: it goes on to the server.
fn is_framework((name, version): &(String, String)) -> bool {
    let allowed = |letter: char| letter.is_ascii_alphanumeric() || ".+-_".contains(letter);
    FRAMEWORKS.contains(&name.as_str())
        && (1..=40).contains(&version.len())
        && version.chars().all(allowed)
}

impl Inner {
    /// Lets the oldest of these go that has said no hello, of the user who has most of them. Whether there was one.
    fn let_go(&mut self, of: impl Fn(&Client) -> bool) -> bool {
        let mut of_user: BTreeMap<u32, usize> = BTreeMap::new();
        let is_idle = |client: &&Client| client.job.is_none() && of(client);
        for client in self.clients.values().filter(is_idle) {
            *of_user.entry(client.uid).or_default() += 1;
        }
        let idle = self.clients.iter().filter(|(_, client)| is_idle(client));
        let oldest = idle.min_by_key(|(id, client)| (Reverse(of_user.get(&client.uid)), **id));
        let oldest = oldest.map(|(id, _)| *id);
        // Its outbox closes, and with it the connection.
        oldest.is_some_and(|id| self.clients.remove(&id).is_some())
    }

    fn hello(&mut self, id: u64, now: Moment, hello: Hello) -> Result<(), MessageError> {
        let Hello { v, job, rank, world_size, local_world_size, gpu, frameworks } = hello;
        if v == 0 {
            return Err(MessageError::NoVersion);
        }
        let Some(client) = self.clients.get_mut(&id) else { return Ok(()) };
        if client.job.is_some() {
            return Err(MessageError::SecondHello);
        }
        let job = bounded(&job);
        if job.is_empty() {
            return Err(MessageError::NoName);
        }
        // An empty variable of the environment is none.
        let gpu = gpu.filter(|gpu| !gpu.trim().is_empty());
        client.names(gpu.map(|gpu| uuid(&gpu)).transpose()?, self.gpus.as_deref());
        let key = (client.uid, job);
        client.rank = rank;
        client.job = Some(key.clone());
        self.make_room(&key);
        let entry = self.jobs.entry(key.clone()).or_insert_with(|| Job::new(&key, now));
        entry.state.world_size = world_size.or(entry.state.world_size);
        entry.state.local_world_size = local_world_size.or(entry.state.local_world_size);
        entry.state.frameworks.extend(frameworks.into_iter().filter(is_framework));
        entry.state.last_heard = now.wall;
        self.count_ranks(&key, now);
        self.tell(id, now);
        Ok(())
    }

    /// A job that nobody is connected for makes room, whosever it is, then one of the user who has most of them; of either
    /// the one that was silent for longest. Nobody can push out what runs of somebody who has fewer jobs.
    fn make_room(&mut self, job: &JobKey) {
        if self.jobs.len() < JOBS_MAX || self.jobs.contains_key(job) {
            return;
        }
        let mut of_user: BTreeMap<u32, usize> = BTreeMap::new();
        for (uid, _) in self.jobs.keys() {
            *of_user.entry(*uid).or_default() += 1;
        }
        let gone = self.jobs.iter().min_by_key(|((uid, _), job)| {
            let share = of_user.get(uid).copied().unwrap_or_default();
            (job.state.ranks > 0, Reverse(share), job.state.last_heard)
        });
        if let Some(key) = gone.map(|(key, _)| key.clone()) {
            self.jobs.remove(&key);
        }
    }

    fn progress(&mut self, id: u64, now: Moment, request: Request) -> Result<(), MessageError> {
        let Some(client) = self.clients.get_mut(&id) else { return Ok(()) };
        let Some(key) = client.job.clone() else {
            return Err(MessageError::NoHello);
        };
        let Some(job) = self.jobs.get_mut(&key) else { return Ok(()) };
        job.state.last_heard = now.wall;
        match request {
            Request::StepBegin { step } => client.began = Some((step, now.steady_ms)),
            Request::StepEnd { step, seconds, tokens, loss } => {
                step_problem(seconds, tokens).map_or(Ok(()), Err)?;
                let since = client.began.take().filter(|(began, _)| *began == step);
                #[expect(clippy::cast_precision_loss, reason = "milliseconds of one step")]
                let counted = since.map(|(_, began)| (now.steady_ms - began) as f64 / 1000.0);
                let step_s = seconds.or(counted).filter(|step_s| *step_s > 0.0);
                #[expect(clippy::cast_precision_loss, reason = "tokens of one step")]
                let rate = tokens.zip(step_s).map(|(tokens, step_s)| tokens as f64 / step_s);
                let (rank, pid, gpu) = (client.rank, client.pid, client.gpu().cloned());
                job.step_ended(RankStep { rank, step, step_s, pid, gpu }, loss);
                job.reached(id, rate);
            }
            Request::Phase { name } => job.state.phase = Some(bounded(&name)),
            Request::Oom { bytes_wanted } => {
                job.state.ooms += 1;
                job.state.oom_at = Some(now.wall);
                job.state.oom_rank = Some(client.rank);
                job.state.oom_bytes_wanted = bytes_wanted;
            }
            Request::CheckpointDone { step } => job.saved(step, now),
            Request::CheckpointFailed { message } => {
                job.state.checkpoint_failed = Some(bounded(&message));
            }
            Request::Hello(_) | Request::Status => (),
        }
        Ok(())
    }

    fn count_ranks(&mut self, key: &JobKey, now: Moment) {
        let ranks = self.clients.values().filter(|client| client.job.as_ref() == Some(key));
        let ranks = u32::try_from(ranks.count()).unwrap_or(u32::MAX);
        if let Some(job) = self.jobs.get_mut(key) {
            job.connected(ranks, now);
        }
    }

    fn tell_all(&mut self, now: Moment) {
        let ids: Vec<u64> = self.clients.keys().copied().collect();
        for id in ids {
            self.tell(id, now);
        }
    }

    /// Tells a client once of each finding that ends its work, of several in one line. What its outbox has no room for
    /// is told when it took an answer.
    fn tell(&mut self, id: u64, now: Moment) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        let Some(job) = client.job.clone() else { return };
        client.give_notice();
        let mut news: Vec<(u64, &Standing)> = self
            .standing
            .iter()
            .filter(|(id, it)| !client.told.contains(id) && client.is_concerned(&it.subject))
            .map(|(id, it)| (*id, it))
            .take(FINDINGS_IN_A_LINE)
            .collect();
        if news.is_empty() {
            return;
        }
        news.sort_by_key(|(id, it)| (!it.is_xid, *id));
        let findings: Vec<&str> = news.iter().map(|(_, it)| it.key.as_str()).collect();
        let reasons: Vec<&str> = news.iter().map(|(_, it)| it.reason.as_str()).collect();
        let mut reason = reasons[..reasons.len().min(REASONS_IN_A_LINE)].join("; ");
        if let Some(more @ 1..) = reasons.len().checked_sub(REASONS_IN_A_LINE) {
            reason.push_str(&format!("; and {more} more"));
        }
        let line = Answer::CheckpointWanted { findings: &findings, reason: &reason }.line();
        if client.outbox.try_send(line.into()).is_err() {
            return;
        }
        client.told.extend(news.iter().map(|(id, _)| *id));
        if let Some(job) = self.jobs.get_mut(&job) {
            for (id, standing) in news {
                job.was_asked(id, &standing.what, now);
            }
        }
    }
}

fn bounded(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_control()).take(NAME_CHARS_MAX).collect()
}
