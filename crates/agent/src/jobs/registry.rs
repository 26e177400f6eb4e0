//! The job registry: connected clients, their jobs, and checkpoint requests to them.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farrier_fleet::health::finding::ends_work;
use farrier_fleet::health::{Action, Finding, GpuIdentity, GpuUuid, Moment, Subject};
use tokio::sync::mpsc::Sender;

use super::client::{Client, uuid};
use super::job::{Job, JobKey, step_problem};
use super::message_error::MessageError;
use super::protocol::{Answer, FRAMEWORKS, Hello, JobState, RankStep, Request};
use crate::monitor::OwnedGpuProcess;

/// Maximum connections.
pub const CLIENTS_MAX: usize = 1024;
/// Maximum number of connections of one non-root user. The other connections stay free for other
/// users and for `farrier status`.
pub(super) const CLIENTS_PER_USER_MAX: usize = CLIENTS_MAX / 2;
/// Number of connections within each of the two limits that are reserved for clients without a
/// hello, such as `farrier status`.
const RESERVED_CLIENTS: usize = 16;
/// Maximum number of jobs in status and metrics. It limits the number of label values.
pub const JOBS_MAX: usize = 64;
/// Maximum length of the name or phase of a job. Longer texts are truncated.
const NAME_CHARS_MAX: usize = 128;
/// Maximum number of findings and of reasons in one `checkpoint_wanted`. Further ones follow in the
/// next message.
const FINDINGS_PER_REQUEST_MAX: usize = 256;
const REASONS_PER_REQUEST_MAX: usize = 3;
/// Rules whose findings have an Xid as their detail.
const XID_CODES: [&str; 4] =
    ["gpu.xid", "gpu.xid-app-repeated", "gpu.xid-after-reboots", "switch.sxid"];
/// Maximum total bytes of incomplete lines of all clients.
const LINE_BYTES_TOTAL_MAX: usize = 4 << 20;

/// The job registry. The socket server, the health monitor, status and metrics share it.
#[derive(Debug, Default)]
pub struct JobRegistry {
    inner: Mutex<Inner>,
    dropped: AtomicU64,
    line_bytes: AtomicUsize,
}

#[derive(Debug, Default)]
struct Inner {
    next_id: u64,
    clients: BTreeMap<u64, Client>,
    jobs: BTreeMap<JobKey, Job>,
    /// Open findings that end work.
    requests: BTreeMap<u64, CheckpointRequest>,
    /// The node's GPUs, sorted. `None` before the first enumeration.
    gpus: Option<Vec<GpuUuid>>,
}

#[derive(Debug, Clone)]
struct CheckpointRequest {
    subject: Subject,
    /// ID and start time of the finding. The ID alone is not unique, because IDs start over if the
    /// journal is deleted.
    key: String,
    /// `true` if the finding's detail is an Xid. The reason lists Xids first, because they say more
    /// than the findings that result from them.
    is_xid: bool,
    /// The finding in short form, such as `gpu.xid Xid 79 on GPU-...`.
    summary: String,
    /// `summary` with the severity and the action.
    reason: String,
}

/// Why a client is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum LimitError {
    /// The total limit is reached.
    #[error("the limit of {CLIENTS_MAX} connections is reached")]
    Full,
    /// The limit of this user is reached.
    #[error("the limit of {CLIENTS_PER_USER_MAX} connections per user is reached")]
    UserFull,
}

impl JobRegistry {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of messages that were refused or dropped so far.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    pub(super) fn drop_messages(&self, count: u64) {
        self.dropped.fetch_add(count, Ordering::Relaxed);
    }

    /// Reserves space for an incomplete line. Returns false if the limit is reached.
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

    /// Registers a client.
    pub(super) fn join(
        &self,
        uid: u32,
        pid: Option<u32>,
        outbox: Sender<Arc<str>>,
    ) -> Result<u64, LimitError> {
        let mut inner = self.lock();
        let same_user = inner.clients.values().filter(|client| client.uid == uid).count();
        if uid != 0
            && same_user >= CLIENTS_PER_USER_MAX
            && !inner.evict_client(|client| client.uid == uid)
        {
            return Err(LimitError::UserFull);
        }
        if inner.clients.len() >= CLIENTS_MAX && !inner.evict_client(|_| true) {
            return Err(LimitError::Full);
        }
        inner.next_id += 1;
        let id = inner.next_id;
        let client = Client::new(uid, pid, outbox);
        inner.clients.insert(id, client);
        Ok(id)
    }

    /// Checks whether this client may become a rank of a job. Some connections are reserved for
    /// clients without a hello.
    pub(super) fn has_room_for_rank(&self, id: u64) -> Result<(), LimitError> {
        let inner = self.lock();
        let Some(client) = inner.clients.get(&id) else { return Ok(()) };
        let ranks = || inner.clients.values().filter(|client| client.job.is_some());
        if ranks().count() >= CLIENTS_MAX - RESERVED_CLIENTS {
            return Err(LimitError::Full);
        }
        let same_user = ranks().filter(|rank| rank.uid == client.uid).count();
        if client.uid != 0 && same_user >= CLIENTS_PER_USER_MAX - RESERVED_CLIENTS {
            return Err(LimitError::UserFull);
        }
        Ok(())
    }

    /// Removes a client.
    pub(super) fn leave(&self, id: u64, now: Moment) {
        let mut inner = self.lock();
        let job = inner.clients.remove(&id).and_then(|client| client.job);
        if let Some(key) = job {
            inner.count_ranks(&key, now);
            if let Some(job) = inner.jobs.get_mut(&key) {
                job.connection_closed(id);
            }
        }
    }

    /// Stores the enumerated GPUs. A client gets a notice if it named a GPU that is not among them.
    pub(crate) fn set_gpus(&self, now: Moment, gpus: &[GpuIdentity]) {
        let mut gpus: Vec<GpuUuid> = gpus.iter().map(|gpu| gpu.uuid.clone()).collect();
        gpus.sort();
        let mut inner = self.lock();
        if gpus.is_empty() || inner.gpus.as_ref() == Some(&gpus) {
            return;
        }
        let Inner { clients, gpus: inventory, .. } = &mut *inner;
        *inventory = Some(gpus);
        for client in clients.values_mut() {
            client.resolve_gpu(inventory.as_deref());
        }
        inner.notify_all(now);
    }

    /// Removes jobs that have been gone for a long time.
    pub(crate) fn remove_expired(&self, now: Moment) {
        self.lock().jobs.retain(|_, job| !job.is_expired(now.steady_ms));
    }

    #[cfg(test)]
    pub(super) fn clients(&self) -> usize {
        self.lock().clients.len()
    }

    /// Applies a message from a client. If this fails, the client gets the error.
    pub(super) fn handle(
        &self,
        id: u64,
        now: Moment,
        request: Request,
    ) -> Result<(), MessageError> {
        let mut inner = self.lock();
        match request {
            Request::Hello(hello) => inner.hello(id, now, hello),
            Request::Status => Ok(()),
            other => inner.progress(id, now, other),
        }
    }

    /// Sends pending notices and requests to a client. The client's outbox has room again.
    pub(super) fn outbox_drained(&self, id: u64, now: Moment) {
        self.lock().notify(id, now);
    }

    /// Jobs, by user and name.
    pub fn jobs(&self) -> Vec<JobState> {
        self.lock().jobs.values().map(Job::summary).collect()
    }

    /// A finding opened or changed: sends checkpoint requests to the affected clients.
    pub(crate) fn finding(
        &self,
        now: Moment,
        finding: &Finding,
        processes: Option<&[OwnedGpuProcess]>,
    ) {
        // An override that lowers the severity is only meant to avoid an alert. The job still needs
        // its checkpoint.
        let severity = finding.default_severity.unwrap_or(finding.severity).max(finding.severity);
        let ends_work =
            ends_work(finding.kind, severity, finding.action) && finding.subject != Subject::Agent;
        if !ends_work {
            // The finding does not end work now, but may have done so before. A client that already
            // got a request for this finding does not get another if the finding worsens again.
            self.lock().requests.remove(&finding.id);
            return;
        }
        let Finding { code, detail, subject, severity, action, .. } = finding;
        let detail = if detail.is_empty() { String::new() } else { format!(" {detail}") };
        let key = format!("{}-{}", finding.id, finding.first_seen.as_second());
        let summary = format!("{code}{detail} on {subject}");
        let reason = format!("{summary}, {severity}: {}", action.instruction());
        // A reboot or replacement of the node ends every rank, no matter which GPU is at fault.
        let whole_node = finding.action >= Action::RebootNode;
        let subject = if whole_node { Subject::Node } else { finding.subject.clone() };
        let is_xid = XID_CODES.contains(&code.as_str());
        let request = CheckpointRequest { subject, key, is_xid, summary, reason };
        let mut inner = self.lock();
        for process in processes.unwrap_or_default() {
            let clients = inner.clients.values_mut();
            for client in clients.filter(|client| client.pid == Some(process.pid)) {
                client.add_gpu(process.gpu.clone());
            }
        }
        inner.requests.insert(finding.id, request);
        inner.notify_all(now);
    }

    /// Connects a job. Returns a function that counts its checkpoint requests.
    #[cfg(test)]
    pub(crate) fn listener(self: &Arc<Self>) -> impl Fn() -> u64 + use<> {
        let (outbox, inbox) = tokio::sync::mpsc::channel(64);
        let now = Moment { steady_ms: 0, wall: jiff::Timestamp::UNIX_EPOCH };
        let id = self.join(0, None, outbox).expect("a slot is free");
        let hello = serde_json::from_str(r#"{"v":1,"job":"job"}"#).expect("the hello is valid");
        self.lock().hello(id, now, hello).expect("the hello is valid");
        let registry = Arc::clone(self);
        move || {
            let _connected = &inbox;
            registry.jobs().iter().map(|job| job.checkpoints_wanted).sum()
        }
    }

    /// Records that a finding cleared.
    pub(crate) fn cleared(&self, finding: &Finding) {
        let mut inner = self.lock();
        inner.requests.remove(&finding.id);
        for client in inner.clients.values_mut() {
            client.notified.remove(&finding.id);
        }
        for job in inner.jobs.values_mut() {
            job.cleared(finding.id);
        }
    }
}

/// Accepts only known frameworks and valid versions, because the server gets these texts.
fn is_framework((name, version): &(String, String)) -> bool {
    let allowed = |letter: char| letter.is_ascii_alphanumeric() || ".+-_".contains(letter);
    FRAMEWORKS.contains(&name.as_str())
        && (1..=40).contains(&version.len())
        && version.chars().all(allowed)
}

impl Inner {
    /// Evicts a matching client that sent no hello. Of the user with the most such clients, the
    /// oldest is evicted. Returns `false` if there is no such client.
    fn evict_client(&mut self, matches: impl Fn(&Client) -> bool) -> bool {
        let mut per_user: BTreeMap<u32, usize> = BTreeMap::new();
        let is_idle = |client: &&Client| client.job.is_none() && matches(client);
        for client in self.clients.values().filter(is_idle) {
            *per_user.entry(client.uid).or_default() += 1;
        }
        let idle = self.clients.iter().filter(|(_, client)| is_idle(client));
        let oldest = idle.min_by_key(|(id, client)| (Reverse(per_user.get(&client.uid)), **id));
        let oldest = oldest.map(|(id, _)| *id);
        // Removing the client closes its outbox, which ends its connection.
        oldest.is_some_and(|id| self.clients.remove(&id).is_some())
    }

    fn hello(&mut self, id: u64, now: Moment, hello: Hello) -> Result<(), MessageError> {
        let Hello { v, job, rank, world_size, local_world_size, gpu, frameworks } = hello;
        if v == 0 {
            return Err(MessageError::InvalidVersion);
        }
        let Some(client) = self.clients.get_mut(&id) else { return Ok(()) };
        if client.job.is_some() {
            return Err(MessageError::SecondHello);
        }
        let job = truncated(&job);
        if job.is_empty() {
            return Err(MessageError::EmptyJobName);
        }
        // An empty environment variable counts as unset.
        let gpu = gpu.filter(|gpu| !gpu.trim().is_empty());
        client.set_named_gpu(gpu.map(|gpu| uuid(&gpu)).transpose()?, self.gpus.as_deref());
        let key = (client.uid, job);
        client.rank = rank;
        client.job = Some(key.clone());
        self.make_room(&key);
        let entry = self.jobs.entry(key.clone()).or_insert_with(|| Job::new(&key, now));
        entry.state.world_size = world_size.or(entry.state.world_size);
        entry.state.local_world_size = local_world_size.or(entry.state.local_world_size);
        entry.state.frameworks.extend(frameworks.into_iter().filter(is_framework));
        entry.state.last_seen = now.wall;
        self.count_ranks(&key, now);
        self.notify(id, now);
        Ok(())
    }

    /// Evicts a job if the limit is reached. A job without connections goes first, then a job of
    /// the user with the most jobs, and among these the job that has been idle for longest. A user
    /// therefore cannot evict the running jobs of another user who has fewer jobs.
    fn make_room(&mut self, job: &JobKey) {
        if self.jobs.len() < JOBS_MAX || self.jobs.contains_key(job) {
            return;
        }
        let mut per_user: BTreeMap<u32, usize> = BTreeMap::new();
        for (uid, _) in self.jobs.keys() {
            *per_user.entry(*uid).or_default() += 1;
        }
        let evicted = self.jobs.iter().min_by_key(|((uid, _), job)| {
            let share = per_user.get(uid).copied().unwrap_or_default();
            (job.state.ranks > 0, Reverse(share), job.state.last_seen)
        });
        if let Some(key) = evicted.map(|(key, _)| key.clone()) {
            self.jobs.remove(&key);
        }
    }

    fn progress(&mut self, id: u64, now: Moment, request: Request) -> Result<(), MessageError> {
        let Some(client) = self.clients.get_mut(&id) else { return Ok(()) };
        let Some(key) = client.job.clone() else {
            return Err(MessageError::MissingHello);
        };
        let Some(job) = self.jobs.get_mut(&key) else { return Ok(()) };
        job.state.last_seen = now.wall;
        match request {
            Request::StepBegin { step } => client.step_started = Some((step, now.steady_ms)),
            Request::StepEnd { step, seconds, tokens, loss } => {
                step_problem(seconds, tokens).map_or(Ok(()), Err)?;
                let started = client.step_started.take().filter(|(started, _)| *started == step);
                #[expect(clippy::cast_precision_loss, reason = "milliseconds of one step")]
                let measured = started.map(|(_, at)| (now.steady_ms - at) as f64 / 1000.0);
                let step_s = seconds.or(measured).filter(|step_s| *step_s > 0.0);
                #[expect(clippy::cast_precision_loss, reason = "tokens of one step")]
                let rate = tokens.zip(step_s).map(|(tokens, step_s)| tokens as f64 / step_s);
                let (rank, pid, gpu) = (client.rank, client.pid, client.gpu().cloned());
                job.step_ended(RankStep { rank, step, step_s, pid, gpu }, loss);
                job.set_rate(id, rate);
            }
            Request::Phase { name } => job.state.phase = Some(truncated(&name)),
            Request::Oom { bytes_wanted } => {
                job.state.ooms += 1;
                job.state.oom_at = Some(now.wall);
                job.state.oom_rank = Some(client.rank);
                job.state.oom_bytes_wanted = bytes_wanted;
            }
            Request::CheckpointDone { step } => job.checkpoint_done(step, now),
            Request::CheckpointFailed { message } => {
                job.state.checkpoint_failed = Some(truncated(&message));
            }
            Request::Hello(_) | Request::Status => (),
        }
        Ok(())
    }

    fn count_ranks(&mut self, key: &JobKey, now: Moment) {
        let ranks = self.clients.values().filter(|client| client.job.as_ref() == Some(key));
        let ranks = u32::try_from(ranks.count()).unwrap_or(u32::MAX);
        if let Some(job) = self.jobs.get_mut(key) {
            job.set_ranks(ranks, now);
        }
    }

    fn notify_all(&mut self, now: Moment) {
        let ids: Vec<u64> = self.clients.keys().copied().collect();
        for id in ids {
            self.notify(id, now);
        }
    }

    /// Sends a client one checkpoint request for all findings that end its work. If the client's
    /// outbox is full, the request is sent after the client has read a line.
    fn notify(&mut self, id: u64, now: Moment) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        let Some(job) = client.job.clone() else { return };
        client.send_notice();
        let mut unsent: Vec<(u64, &CheckpointRequest)> = self
            .requests
            .iter()
            .filter(|(id, request)| {
                !client.notified.contains(id) && client.is_affected_by(&request.subject)
            })
            .map(|(id, request)| (*id, request))
            .take(FINDINGS_PER_REQUEST_MAX)
            .collect();
        if unsent.is_empty() {
            return;
        }
        unsent.sort_by_key(|(id, request)| (!request.is_xid, *id));
        let findings: Vec<&str> = unsent.iter().map(|(_, request)| request.key.as_str()).collect();
        let reasons: Vec<&str> =
            unsent.iter().map(|(_, request)| request.reason.as_str()).collect();
        let mut reason = reasons[..reasons.len().min(REASONS_PER_REQUEST_MAX)].join("; ");
        if let Some(more @ 1..) = reasons.len().checked_sub(REASONS_PER_REQUEST_MAX) {
            reason.push_str(&format!("; and {more} more"));
        }
        let line = Answer::CheckpointWanted { findings: &findings, reason: &reason }.line();
        if client.outbox.try_send(line.into()).is_err() {
            return;
        }
        client.notified.extend(unsent.iter().map(|(id, _)| *id));
        if let Some(job) = self.jobs.get_mut(&job) {
            for (id, request) in unsent {
                job.checkpoint_requested(id, &request.summary, now);
            }
        }
    }
}

fn truncated(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_control()).take(NAME_CHARS_MAX).collect()
}
