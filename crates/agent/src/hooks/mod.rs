//! Hooks: deliver findings of this node to receivers, without a server.
//!
//! ```text
//! Published ── durable record ──> JournalReader ─> HookState (hooks.json) ─> Sender ─> receiver
//!                                 ^ resumes after the stored record   ^─ result, back-off ─┘
//! ```
//!
//! Hooks run on their own thread and runtime, read files, and never call the health monitor. A
//! receiver that does not answer only delays its own hook. The state is on disk before a delivery
//! is attempted, so that a restart repeats at most the deliveries that were in progress, with the
//! same keys.

mod message;
mod queue;
mod store;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use farrier_facts::FactSet;
use farrier_fleet::fleet::NodeId;
use farrier_fleet::health::{Change, Finding, GpuIdentity};
use farrier_fleet::notify::Notification;
use farrier_notify::{DeliveryError, Sender};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, watch};
use tokio::task::{JoinError, JoinSet};

use crate::config::HookConfig;
use crate::monitor::Chain;
use crate::state::Published;
use crate::uplink::{JournalRead, JournalReader};
use message::MessageContext;
use queue::Attempt;
pub use queue::HookCounts;
pub(crate) use store::FILE;
use store::{HookStore, StoredHooks};

/// Bytes of journal lines that are read at once.
const READ_BYTES: u64 = 1 << 20;

/// Records that may be read again after a restart.
const RECORDS_REPEATED_MAX: u64 = 64;

/// Maximum sleep. It is short because due times are wall-clock times, and the wall clock may be set
/// during a sleep.
const SLEEP_MAX: SignedDuration = SignedDuration::from_mins(1);

/// How often to look for the first published state.
const START_POLL: Duration = Duration::from_millis(50);

/// State of a hook, for status and metrics.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HookStatus {
    pub name: String,
    /// Notifications that wait for their delivery.
    pub queued: usize,
    /// Open findings that wait for room in the queue or for the rate limit.
    pub waiting: usize,
    pub counts: HookCounts,
    /// Why the last attempt failed. `None` if it succeeded, or there was none.
    pub last_error: Option<String>,
}

pub(crate) struct HookParts {
    pub(crate) hooks: Vec<HookConfig>,
    pub(crate) state_dir: std::path::PathBuf,
    pub(crate) node: NodeId,
    pub(crate) published: Published,
    /// GPUs of the last enumeration in this boot, read from disk at start. They name GPUs that the
    /// published state does not contain yet.
    pub(crate) gpus: Vec<GpuIdentity>,
    pub(crate) facts: &'static FactSet,
}

#[derive(Debug)]
pub(crate) struct Hooks {
    stop: Arc<Notify>,
    status: watch::Receiver<Vec<HookStatus>>,
    thread: std::thread::JoinHandle<()>,
}

impl Hooks {
    /// Starts the hooks on their own thread. `None` if no hook is configured.
    pub(crate) fn spawn(parts: HookParts) -> io::Result<Option<Self>> {
        if parts.hooks.is_empty() {
            return Ok(None);
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(4)
            .thread_keep_alive(Duration::from_secs(1))
            .build()?;
        let stop = Arc::new(Notify::new());
        let (sender, status) = watch::channel(Vec::new());
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("hooks".to_owned()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = HookRunner::new(parts, sender).run() => (),
                    () = stopped.notified() => (),
                }
            });
            // Do not wait for a pending DNS lookup.
            runtime.shutdown_background();
        })?;
        Ok(Some(Self { stop, status, thread }))
    }

    pub(crate) fn status(&self) -> watch::Receiver<Vec<HookStatus>> {
        self.status.clone()
    }

    /// Stops the hooks. After the next start, deliveries in progress are repeated.
    pub(crate) fn stop(self) {
        self.stop.notify_one();
        let _ = self.thread.join();
    }
}

/// The node's name in notifications: the host name if it is a valid name, else its first label,
/// else `n-` and the valid characters of that label.
pub(crate) fn node_name(hostname: &str) -> NodeId {
    let label = hostname.split('.').next().unwrap_or_default();
    let is_valid = |letter: &char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-');
    let valid: String = label.chars().filter(is_valid).take(60).collect();
    let names = [hostname.to_owned(), label.to_owned(), format!("n-{valid}")];
    names.iter().find_map(|name| name.parse().ok()).expect("the last one is valid")
}

struct HookRunner {
    parts: HookParts,
    status: watch::Sender<Vec<HookStatus>>,
    store: HookStore,
    stored: StoredHooks,
    reader: JournalReader,
    /// The reader's position is known.
    is_reading: bool,
    /// Hooks that were not configured before. They get the findings that are open.
    new_hooks: BTreeSet<String>,
    /// The hooks with a delivery in progress.
    delivering: BTreeMap<tokio::task::Id, String>,
    deliveries: JoinSet<Result<(), DeliveryError>>,
    /// The state on disk.
    saved: Option<StoredHooks>,
    /// The state could not be stored. Nothing is delivered until it is.
    save_error: Option<String>,
}

impl HookRunner {
    fn new(parts: HookParts, status: watch::Sender<Vec<HookStatus>>) -> Self {
        let store = HookStore::new(&parts.state_dir);
        let stored = store.load().unwrap_or_else(|err| {
            tracing::error!(%err, "failed to read the state of the hooks; open findings are delivered again");
            None
        });
        let mut stored = stored.unwrap_or_default();
        let is_configured = |name: &String| parts.hooks.iter().any(|hook| hook.name == *name);
        stored.hooks.retain(|name, _| is_configured(name));
        let names = parts.hooks.iter().map(|hook| hook.name.clone());
        let new_hooks = names.filter(|name| !stored.hooks.contains_key(name)).collect();
        Self {
            reader: JournalReader::new(&parts.state_dir),
            parts,
            status,
            store,
            stored,
            is_reading: false,
            new_hooks,
            delivering: BTreeMap::new(),
            deliveries: JoinSet::new(),
            saved: None,
            save_error: None,
        }
    }

    async fn run(mut self) {
        while self.parts.published.get().is_none() {
            tokio::time::sleep(START_POLL).await;
        }
        let mut durable = self.parts.published.durable();
        loop {
            let seq = *durable.borrow_and_update();
            if let Err(err) = self.read_journal(seq) {
                tracing::error!(%err, "failed to read the journal for the hooks");
            }
            self.reader.close();
            self.fill();
            self.publish();
            self.deliver();
            let sleep = self.sleep();
            tokio::select! {
                changed = durable.changed() => {
                    if changed.is_err() {
                        return;
                    }
                }
                Some(ended) = self.deliveries.join_next_with_id() => self.ended(ended),
                () = tokio::time::sleep(sleep) => (),
            }
        }
    }

    /// Applies the changes of all records up to `durable`.
    fn read_journal(&mut self, durable: u64) -> io::Result<()> {
        // A journal that ends before the stored record is a new one.
        let is_known = self.is_reading
            || self.new_hooks.len() < self.parts.hooks.len()
                && self.stored.seq <= durable
                && self.reader.resume(self.stored.seq)?;
        self.is_reading = true;
        if !is_known {
            return self.resync(durable);
        }
        while self.stored.seq < durable {
            let records = match self.reader.read(durable, READ_BYTES)? {
                JournalRead::Records(records) => records,
                JournalRead::Gap => return self.resync(durable),
            };
            let Some(last) = records.last().map(|record| record.seq) else {
                self.stored.seq = durable;
                break;
            };
            for record in &records {
                for change in &record.changes {
                    self.apply(change, record.at);
                }
            }
            self.stored.seq = last;
        }
        if self.new_hooks.is_empty() { Ok(()) } else { self.resync(durable) }
    }

    fn apply(&mut self, change: &Change, at: Timestamp) {
        let now = Timestamp::now();
        let finding = change.finding();
        let hooks = self.parts.hooks.clone();
        for hook in hooks.iter().filter(|hook| !self.new_hooks.contains(&hook.name)) {
            let (notification, is_selected) = self.notification(hook, finding, at);
            let state = self.stored.hooks.entry(hook.name.clone()).or_default();
            match change {
                Change::Opened(_) | Change::Updated(_) => {
                    state.finding_open(notification, is_selected);
                }
                Change::Cleared(_) => state.finding_cleared(hook, notification, now),
            }
        }
    }

    /// Compares with the findings that are open, after records were missed or a hook was added.
    fn resync(&mut self, durable: u64) -> io::Result<()> {
        let (seq, open) = self.reader.resync(durable)?;
        let now = Timestamp::now();
        for hook in self.parts.hooks.clone() {
            let open = open.iter().map(|finding| self.notification(&hook, finding, now)).collect();
            let state = self.stored.hooks.entry(hook.name.clone()).or_default();
            state.resync(&hook, open, now);
        }
        self.stored.seq = seq;
        self.new_hooks.clear();
        Ok(())
    }

    fn notification(
        &self,
        hook: &HookConfig,
        finding: &Finding,
        at: Timestamp,
    ) -> (Notification, bool) {
        let state = self.parts.published.get();
        let values = state.as_ref().map(|state| &state.values);
        let listed =
            values.into_iter().flat_map(|values| values.gpus.iter().chain(&values.delisted));
        let gpus: Vec<GpuIdentity> = listed.chain(&self.parts.gpus).cloned().collect();
        let facts = self.parts.facts;
        let context = MessageContext { node: &self.parts.node, gpus: &gpus, facts };
        let notification = message::notification(hook, finding, at, &context);
        (notification, message::is_selected(hook, finding, facts))
    }

    fn fill(&mut self) {
        let now = Timestamp::now();
        for hook in &self.parts.hooks {
            self.stored.hooks.entry(hook.name.clone()).or_default().fill(hook, now);
        }
        self.save();
    }

    /// Stores the state if it has changed. If only the number of the last record has changed, the
    /// state is stored once per `RECORDS_REPEATED_MAX` records. After a restart, up to that many
    /// records without changes for the hooks are read again.
    fn save(&mut self) {
        let is_current = |saved: &StoredHooks| {
            saved.hooks == self.stored.hooks && self.stored.seq < saved.seq + RECORDS_REPEATED_MAX
        };
        if self.saved.as_ref().is_some_and(is_current) {
            return;
        }
        let saved = self.store.save(&self.stored).err().map(|err| Chain(&err).to_string());
        self.saved = saved.is_none().then(|| self.stored.clone());
        if let Some(err) = saved.as_ref().filter(|err| self.save_error.as_ref() != Some(err)) {
            tracing::error!(%err, "failed to store the state of the hooks; they wait");
        }
        self.save_error = saved;
    }

    /// Starts the next delivery of each hook that has none in progress.
    fn deliver(&mut self) {
        if self.save_error.is_some() {
            return;
        }
        let now = Timestamp::now();
        for hook in &self.parts.hooks {
            let state = self.stored.hooks.get(&hook.name);
            let Some(next) = state.and_then(|state| state.next(now)) else { continue };
            if self.is_delivering(hook) {
                continue;
            }
            let (receiver, notification) = (hook.receiver.clone(), next.notification.clone());
            // Root writes the configuration of the hooks, which thus may name any program and file.
            let delivery =
                async move { Sender::unrestricted().deliver(&receiver, &notification).await };
            let task = self.deliveries.spawn(delivery);
            self.delivering.insert(task.id(), hook.name.clone());
        }
    }

    fn is_delivering(&self, hook: &HookConfig) -> bool {
        self.delivering.values().any(|name| *name == hook.name)
    }

    /// A delivery ended. One that panicked is tried again like any that failed.
    fn ended(&mut self, ended: Result<(tokio::task::Id, Result<(), DeliveryError>), JoinError>) {
        let (id, result) = match ended {
            Ok((id, result)) => (id, Some(result)),
            Err(err) => (err.id(), None),
        };
        let Some(name) = self.delivering.remove(&id) else { return };
        if let Some(result) = result {
            return self.attempted(&name, result);
        }
        tracing::error!(hook = %name, "a delivery panicked; it is tried again");
        if let Some(state) = self.stored.hooks.get_mut(&name) {
            let error = "the delivery panicked".to_owned();
            let failed = Attempt::Failed { error, is_retryable: true, retry_after: None };
            state.attempted(failed, Timestamp::now());
        }
    }

    fn attempted(&mut self, name: &str, result: Result<(), DeliveryError>) {
        let Some(state) = self.stored.hooks.get_mut(name) else { return };
        let attempt = match result {
            Ok(()) => Attempt::Delivered,
            Err(err) => {
                let error = Chain(&err).to_string();
                if state.last_error.as_ref() != Some(&error) {
                    tracing::warn!(hook = %name, err = %error, "failed to deliver a notification");
                }
                let retry_after = err.retry_after().and_then(|wait| wait.try_into().ok());
                Attempt::Failed { error, is_retryable: err.is_retryable(), retry_after }
            }
        };
        state.attempted(attempt, Timestamp::now());
    }

    fn publish(&self) {
        let statuses = self.parts.hooks.iter().filter_map(|hook| {
            let state = self.stored.hooks.get(&hook.name)?;
            let last_error = self.save_error.clone().or_else(|| state.last_error.clone());
            Some(HookStatus {
                name: hook.name.clone(),
                queued: state.queued(),
                waiting: state.waiting(),
                counts: state.counts,
                last_error,
            })
        });
        let statuses: Vec<HookStatus> = statuses.collect();
        self.status.send_if_modified(|last| {
            let is_changed = *last != statuses;
            *last = statuses;
            is_changed
        });
    }

    /// How long until something is due without a change of a finding.
    fn sleep(&self) -> Duration {
        let now = Timestamp::now();
        let idle = self.parts.hooks.iter().filter(|hook| !self.is_delivering(hook));
        let waits = idle.filter_map(|hook| self.stored.hooks.get(&hook.name)?.wait(hook, now));
        // A state that could not be stored is stored again after a while.
        let shortest =
            if self.save_error.is_some() { SLEEP_MAX / 12 } else { SignedDuration::ZERO };
        let sleep = waits.min().unwrap_or(SLEEP_MAX).clamp(shortest, SLEEP_MAX);
        Duration::try_from(sleep).unwrap_or_default()
    }
}
