//! One client in the job registry: a rank of a job, and the GPU it depends on.

use std::collections::BTreeSet;
use std::sync::Arc;

use farrier_fleet::health::{GpuUuid, Subject};
use tokio::sync::mpsc::Sender;

use super::job::JobKey;
use super::message_error::MessageError;
use super::protocol::Answer;

/// Maximum GPUs of one client: the most that a node has.
const GPUS_MAX: usize = 16;
/// A UUID has 40 characters. The older form for a MIG instance has about twenty more.
const UUID_CHARS_MAX: usize = 128;
/// `5f2a1c7e-...` without the prefix.
const BARE_UUID_CHARS: usize = 36;
/// `CUDA_VISIBLE_DEVICES` accepts a UUID prefix. A shorter prefix than this is ambiguous.
const BEGINNING_CHARS_MIN: usize = "GPU-".len() + 4;

#[derive(Debug)]
pub(super) struct Client {
    pub(super) uid: u32,
    pub(super) pid: Option<u32>,
    pub(super) outbox: Sender<Arc<str>>,
    pub(super) job: Option<JobKey>,
    pub(super) rank: u32,
    /// The GPU that the client named.
    named: Option<GpuUuid>,
    whose: Whose,
    /// GPUs on which the driver lists its process.
    gpus: BTreeSet<GpuUuid>,
    /// The current step, and its start on the steady clock.
    pub(super) began: Option<(u64, i64)>,
    pub(super) told: BTreeSet<u64>,
    /// A pending notice that its GPU is not on this node.
    owed_notice: Option<String>,
}

/// The GPU that the given name resolves to.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Whose {
    /// No name was given.
    Unnamed,
    Gpu(GpuUuid),
    /// Unresolved: every GPU counts. An extra checkpoint costs less than a missing one.
    Every,
}

impl Client {
    pub(super) fn new(uid: u32, pid: Option<u32>, outbox: Sender<Arc<str>>) -> Self {
        Self {
            uid,
            pid,
            outbox,
            job: None,
            rank: 0,
            named: None,
            whose: Whose::Unnamed,
            gpus: BTreeSet::new(),
            began: None,
            told: BTreeSet::new(),
            owed_notice: None,
        }
    }

    /// The driver lists its process on this GPU.
    pub(super) fn holds(&mut self, gpu: GpuUuid) {
        if self.gpus.len() < GPUS_MAX {
            self.gpus.insert(gpu);
        }
    }

    /// The client names its GPU.
    pub(super) fn names(&mut self, gpu: Option<GpuUuid>, inventory: Option<&[GpuUuid]>) {
        self.named = gpu;
        self.look_for_gpu(inventory);
    }

    /// Resolves the name against the node's GPUs. Once resolved it stays resolved, even after the
    /// GPU falls off the bus.
    pub(super) fn look_for_gpu(&mut self, inventory: Option<&[GpuUuid]>) {
        let Some(named) = &self.named else { return };
        if named.0.starts_with("MIG-") {
            self.whose = Whose::Every;
            return;
        }
        let Some(inventory) = inventory else {
            self.whose = Whose::Gpu(named.clone());
            return;
        };
        let mut found = inventory.iter().filter(|gpu| gpu.0.starts_with(&named.0));
        self.whose = match (found.next(), found.next()) {
            (Some(gpu), None) if gpu == named || named.0.len() >= BEGINNING_CHARS_MIN => {
                let gpu = gpu.clone();
                self.named = None;
                Whose::Gpu(gpu)
            }
            (first, _) => {
                let what = if first.is_some() { "may be several GPUs of" } else { "is not on" };
                let notice =
                    format!("`{}` {what} this node: you hear of the faults of every GPU", named.0);
                if self.whose != Whose::Every {
                    self.owed_notice = Some(notice);
                }
                Whose::Every
            }
        };
    }

    /// Whether a finding on this subject ends the client's work.
    pub(super) fn is_concerned(&self, subject: &Subject) -> bool {
        let Some(gpu) = subject.gpu() else { return true };
        match &self.whose {
            Whose::Every => true,
            // Before the GPUs are enumerated, the name may be a prefix.
            Whose::Gpu(own) => gpu.0.starts_with(&own.0) || self.gpus.contains(gpu),
            Whose::Unnamed => self.gpus.is_empty() || self.gpus.contains(gpu),
        }
    }

    /// Its GPU, if it has exactly one.
    pub(super) fn gpu(&self) -> Option<&GpuUuid> {
        let only = || self.gpus.first().filter(|_| self.gpus.len() == 1);
        match &self.whose {
            Whose::Gpu(own) => Some(own),
            Whose::Unnamed | Whose::Every => only(),
        }
    }

    /// Sends the pending notice if the outbox has room.
    pub(super) fn give_notice(&mut self) {
        let Some(message) = &self.owed_notice else { return };
        if self.outbox.try_send(Answer::Notice { message }.line().into()).is_ok() {
            self.owed_notice = None;
        }
    }
}

/// Parses the UUID of a GPU or MIG instance, as the driver writes it or, as in `PyTorch`, without
/// the prefix.
pub(super) fn uuid(text: &str) -> Result<GpuUuid, MessageError> {
    let is_good = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '/');
    let bare = text.len() == BARE_UUID_CHARS && text.split('-').count() == 5;
    let whole = if bare { format!("GPU-{}", text.to_ascii_lowercase()) } else { text.to_owned() };
    let rest = whole.strip_prefix("GPU-").or_else(|| whole.strip_prefix("MIG-"));
    match rest {
        Some(rest)
            if !rest.is_empty() && whole.len() <= UUID_CHARS_MAX && rest.chars().all(is_good) =>
        {
            Ok(GpuUuid(whole))
        }
        _ => Err(MessageError::NoUuid),
    }
}
