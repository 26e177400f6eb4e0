//! Who is connected, what jobs do, and whom to tell that the GPU will not last.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farrier_fleet::health::{Action, Finding, FindingKind, GpuUuid, Severity, Subject};
use jiff::Timestamp;
use tokio::sync::mpsc::Sender;

use super::protocol::{Answer, JobState, Request};
use crate::brain::Held;

/// Connections in all.
pub const CLIENTS_MAX: usize = 1024;
/// Connections of one user who is not root: the rest stays free for others and for `farrier status`.
pub(super) const CLIENTS_PER_USER_MAX: usize = CLIENTS_MAX / 2;
/// Jobs that are shown and have metrics: labels are bounded.
pub const JOBS_MAX: usize = 64;
/// A job's name and phase are cut to this.
const NAME_CHARS_MAX: usize = 128;
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
    jobs: BTreeMap<String, Job>,
    /// Findings that end work, while they are open.
    standing: BTreeMap<u64, Standing>,
}

#[derive(Debug)]
struct Client {
    uid: u32,
    pid: Option<u32>,
    outbox: Sender<Arc<str>>,
    job: Option<String>,
    gpus: BTreeSet<GpuUuid>,
    began: Option<(u64, Timestamp)>,
    tokens_per_s: Option<f64>,
    told: BTreeSet<u64>,
}

#[derive(Debug)]
struct Job {
    state: JobState,
}

#[derive(Debug, Clone)]
struct Standing {
    subject: Subject,
    line: Arc<str>,
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
        if inner.clients.len() >= CLIENTS_MAX {
            return Err(Refusal::Full);
        }
        let same = inner.clients.values().filter(|client| client.uid == uid).count();
        if uid != 0 && same >= CLIENTS_PER_USER_MAX {
            return Err(Refusal::UserFull);
        }
        inner.next_id += 1;
        let id = inner.next_id;
        let client = Client {
            uid,
            pid,
            outbox,
            job: None,
            gpus: BTreeSet::new(),
            began: None,
            tokens_per_s: None,
            told: BTreeSet::new(),
        };
        inner.clients.insert(id, client);
        Ok(id)
    }

    /// Lets a client go.
    pub(super) fn leave(&self, id: u64) {
        let mut inner = self.lock();
        let job = inner.clients.remove(&id).and_then(|client| client.job);
        if let Some(job) = job {
            inner.count_ranks(&job);
        }
    }

    /// How many are connected.
    pub fn clients(&self) -> usize {
        self.lock().clients.len()
    }

    /// Takes a message of a client. `Err` is what to tell it.
    pub(super) fn take(&self, id: u64, now: Timestamp, request: Request) -> Result<(), String> {
        let mut inner = self.lock();
        match request {
            Request::Hello { v, job, rank: _, world_size, pid, gpu } => {
                if v != super::protocol::VERSION {
                    return Err(format!("version {v} of the protocol is not spoken here, 1 is"));
                }
                inner.hello(id, now, &job, world_size, pid, gpu)
            }
            Request::Status => Ok(()),
            other => inner.progress(id, now, other),
        }
    }

    /// Jobs, by name.
    pub fn jobs(&self) -> Vec<JobState> {
        let inner = self.lock();
        inner.jobs.values().map(|job| job.state.clone()).collect()
    }

    /// A finding opened or changed: whoever works on it hears that a checkpoint is wanted.
    pub(crate) fn finding(&self, finding: &Finding, processes: Option<&[Held]>) {
        let ends_work = finding.kind == FindingKind::Fault
            && finding.severity >= Severity::Critical
            && finding.action >= Action::ResetGpu
            && finding.subject != Subject::Agent;
        if !ends_work {
            return;
        }
        let reason = format!(
            "{} ({}, {}): {}",
            finding.code,
            finding.subject,
            finding.severity,
            finding.action.asks()
        );
        let line = Answer::CheckpointWanted { finding: finding.id, reason: &reason }.line();
        let standing = Standing { subject: finding.subject.clone(), line: line.into() };
        let mut inner = self.lock();
        for held in processes.unwrap_or_default() {
            let clients = inner.clients.values_mut();
            for client in clients.filter(|client| client.pid == Some(held.pid)) {
                client.gpus.insert(held.gpu.clone());
            }
        }
        inner.standing.insert(finding.id, standing);
        inner.tell_all();
    }

    /// A finding is over.
    pub(crate) fn cleared(&self, finding: &Finding) {
        let mut inner = self.lock();
        inner.standing.remove(&finding.id);
        for client in inner.clients.values_mut() {
            client.told.remove(&finding.id);
        }
    }
}

impl Inner {
    fn hello(
        &mut self,
        id: u64,
        now: Timestamp,
        job: &str,
        world_size: Option<u32>,
        pid: Option<u32>,
        gpu: Option<String>,
    ) -> Result<(), String> {
        let job = bounded(job);
        if job.is_empty() {
            return Err("a job has a name".to_owned());
        }
        let Some(client) = self.clients.get_mut(&id) else { return Ok(()) };
        let uid = client.uid;
        client.pid = client.pid.or(pid);
        client.gpus.extend(gpu.map(|gpu| GpuUuid(bounded(&gpu))));
        let before = client.job.replace(job.clone());
        self.make_room(&job);
        let entry = self.jobs.entry(job.clone()).or_insert_with(|| Job {
            state: JobState {
                job: job.clone(),
                ranks: 0,
                world_size: None,
                uid: Some(uid),
                since: now,
                last_heard: now,
                step: None,
                loss: None,
                step_s: None,
                tokens_per_s: None,
                phase: None,
                ooms: 0,
                checkpoint_step: None,
                checkpoints_wanted: 0,
            },
        });
        entry.state.world_size = world_size.or(entry.state.world_size);
        entry.state.last_heard = now;
        self.count_ranks(&job);
        if let Some(before) = before.filter(|before| *before != job) {
            self.count_ranks(&before);
        }
        self.tell_all();
        Ok(())
    }

    /// A job that nobody is connected for, and was silent for longest, makes room.
    fn make_room(&mut self, job: &str) {
        if self.jobs.len() < JOBS_MAX || self.jobs.contains_key(job) {
            return;
        }
        let gone =
            self.jobs.iter().min_by_key(|(_, job)| (job.state.ranks > 0, job.state.last_heard));
        if let Some(name) = gone.map(|(name, _)| name.clone()) {
            self.jobs.remove(&name);
        }
    }

    fn progress(&mut self, id: u64, now: Timestamp, request: Request) -> Result<(), String> {
        let Some(client) = self.clients.get_mut(&id) else { return Ok(()) };
        let Some(name) = client.job.clone() else {
            return Err("say hello first".to_owned());
        };
        let Some(job) = self.jobs.get_mut(&name) else { return Ok(()) };
        job.state.last_heard = now;
        match request {
            Request::StepBegin { step } => client.began = Some((step, now)),
            Request::StepEnd { step, seconds, tokens, loss } => {
                let since = client.began.take().filter(|(began, _)| *began == step);
                let counted = since.map(|(_, began)| now.duration_since(began).as_secs_f64());
                let step_s = seconds.or(counted).filter(|step_s| *step_s > 0.0);
                #[expect(clippy::cast_precision_loss, reason = "tokens of one step")]
                let rate = tokens.zip(step_s).map(|(tokens, step_s)| tokens as f64 / step_s);
                client.tokens_per_s = rate;
                if job.state.step.is_none_or(|last| step >= last) {
                    job.state.step = Some(step);
                    job.state.loss =
                        loss.or(job.state.loss.filter(|_| job.state.step == Some(step)));
                    job.state.step_s = step_s;
                }
                let rates =
                    self.clients.values().filter(|client| client.job.as_ref() == Some(&name));
                let rates: Vec<f64> = rates.filter_map(|client| client.tokens_per_s).collect();
                let total = (!rates.is_empty()).then(|| rates.iter().sum());
                if let Some(job) = self.jobs.get_mut(&name) {
                    job.state.tokens_per_s = total;
                }
            }
            Request::Phase { name } => job.state.phase = Some(bounded(&name)),
            Request::Oom { .. } => job.state.ooms += 1,
            Request::CheckpointDone { step } => job.state.checkpoint_step = step,
            Request::Hello { .. } | Request::Status => (),
        }
        Ok(())
    }

    fn count_ranks(&mut self, name: &str) {
        let ranks = self.clients.values().filter(|client| client.job.as_deref() == Some(name));
        let ranks = u32::try_from(ranks.count()).unwrap_or(u32::MAX);
        if let Some(job) = self.jobs.get_mut(name) {
            job.state.ranks = ranks;
        }
    }

    /// Tells each client once of each finding that ends its work. One whose GPU is not known is told of
    /// all: a checkpoint too many costs less than one too few.
    fn tell_all(&mut self) {
        for client in self.clients.values_mut() {
            let Some(job) = &client.job else { continue };
            for (id, standing) in &self.standing {
                let concerned = match standing.subject.gpu() {
                    None => true,
                    Some(gpu) => client.gpus.is_empty() || client.gpus.contains(gpu),
                };
                if !concerned || client.told.contains(id) {
                    continue;
                }
                // A full outbox is a client that does not read: the server ends it.
                if client.outbox.try_send(Arc::clone(&standing.line)).is_ok() {
                    client.told.insert(*id);
                    if let Some(job) = self.jobs.get_mut(job) {
                        job.state.checkpoints_wanted += 1;
                    }
                }
            }
        }
    }
}

fn bounded(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_control()).take(NAME_CHARS_MAX).collect()
}
