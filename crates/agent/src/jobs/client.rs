//! One client in the job registry: a rank of a job, and the GPU that the rank depends on.

use std::collections::BTreeSet;
use std::sync::Arc;

use farrier_fleet::health::{GpuUuid, Subject};
use tokio::sync::mpsc::Sender;

use super::job::JobKey;
use super::message_error::MessageError;
use super::protocol::Answer;

/// Maximum number of GPUs of one client, which is the most that a node has.
const GPUS_MAX: usize = 16;
/// A UUID has 40 characters. The older form for a MIG instance has about twenty more.
const UUID_CHARS_MAX: usize = 128;
/// Length of a UUID without its prefix, such as `5f2a1c7e-...`.
const BARE_UUID_CHARS: usize = 36;
/// `CUDA_VISIBLE_DEVICES` accepts a UUID prefix. A shorter prefix than this is ambiguous.
const PREFIX_CHARS_MIN: usize = "GPU-".len() + 4;

#[derive(Debug)]
pub(super) struct Client {
    pub(super) uid: u32,
    pub(super) pid: Option<u32>,
    pub(super) outbox: Sender<Arc<str>>,
    pub(super) job: Option<JobKey>,
    pub(super) rank: u32,
    /// The GPU that the client named.
    named: Option<GpuUuid>,
    target: TargetGpu,
    /// GPUs on which the driver lists the client's process.
    gpus: BTreeSet<GpuUuid>,
    /// The current step, and its start on the steady clock.
    pub(super) step_started: Option<(u64, i64)>,
    /// Findings for which the client got a checkpoint request.
    pub(super) notified: BTreeSet<u64>,
    /// A notice that was not sent yet. It says that the named GPU is ambiguous or not on this node.
    pending_notice: Option<String>,
}

/// The result of resolving the GPU name that the client gave.
#[derive(Debug, Clone, PartialEq, Eq)]
enum TargetGpu {
    /// The client gave no name.
    Unnamed,
    Gpu(GpuUuid),
    /// The name does not identify exactly one GPU, so the client is affected by faults of every
    /// GPU. An unnecessary checkpoint costs less than a missing one.
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
            target: TargetGpu::Unnamed,
            gpus: BTreeSet::new(),
            step_started: None,
            notified: BTreeSet::new(),
            pending_notice: None,
        }
    }

    /// Adds a GPU on which the driver lists the client's process.
    pub(super) fn add_gpu(&mut self, gpu: GpuUuid) {
        if self.gpus.len() < GPUS_MAX {
            self.gpus.insert(gpu);
        }
    }

    /// Sets the GPU that the client named.
    pub(super) fn set_named_gpu(&mut self, gpu: Option<GpuUuid>, inventory: Option<&[GpuUuid]>) {
        self.named = gpu;
        self.resolve_gpu(inventory);
    }

    /// Resolves the name to one of the node's GPUs. Once resolved, the name keeps its GPU, even
    /// after the GPU has fallen off the bus.
    pub(super) fn resolve_gpu(&mut self, inventory: Option<&[GpuUuid]>) {
        let Some(named) = &self.named else { return };
        if named.0.starts_with("MIG-") {
            self.target = TargetGpu::Every;
            return;
        }
        let Some(inventory) = inventory else {
            self.target = TargetGpu::Gpu(named.clone());
            return;
        };
        let mut matching = inventory.iter().filter(|gpu| gpu.0.starts_with(&named.0));
        self.target = match (matching.next(), matching.next()) {
            (Some(gpu), None) if gpu == named || named.0.len() >= PREFIX_CHARS_MIN => {
                let gpu = gpu.clone();
                self.named = None;
                TargetGpu::Gpu(gpu)
            }
            (first, _) => {
                let problem = if first.is_some() { "is ambiguous on" } else { "is not on" };
                let notice =
                    format!("`{}` {problem} this node: faults of every GPU are reported", named.0);
                if self.target != TargetGpu::Every {
                    self.pending_notice = Some(notice);
                }
                TargetGpu::Every
            }
        };
    }

    /// `true` if a finding on this subject ends the client's work.
    pub(super) fn is_affected_by(&self, subject: &Subject) -> bool {
        let Some(gpu) = subject.gpu() else { return true };
        match &self.target {
            TargetGpu::Every => true,
            // Before the GPUs are enumerated, `target` is the name that the client gave, which may
            // be a prefix.
            TargetGpu::Gpu(target) => gpu.0.starts_with(&target.0) || self.gpus.contains(gpu),
            TargetGpu::Unnamed => self.gpus.is_empty() || self.gpus.contains(gpu),
        }
    }

    /// The client's GPU, if it has exactly one.
    pub(super) fn gpu(&self) -> Option<&GpuUuid> {
        let only = || self.gpus.first().filter(|_| self.gpus.len() == 1);
        match &self.target {
            TargetGpu::Gpu(target) => Some(target),
            TargetGpu::Unnamed | TargetGpu::Every => only(),
        }
    }

    /// Sends the pending notice if the outbox has room.
    pub(super) fn send_notice(&mut self) {
        let Some(message) = &self.pending_notice else { return };
        if self.outbox.try_send(Answer::Notice { message }.line().into()).is_ok() {
            self.pending_notice = None;
        }
    }
}

/// Parses the UUID of a GPU or MIG instance. The text has the driver's form, or lacks the prefix,
/// as in `PyTorch`.
pub(super) fn uuid(text: &str) -> Result<GpuUuid, MessageError> {
    let is_valid = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '/');
    let bare = text.len() == BARE_UUID_CHARS && text.split('-').count() == 5;
    let whole = if bare { format!("GPU-{}", text.to_ascii_lowercase()) } else { text.to_owned() };
    let rest = whole.strip_prefix("GPU-").or_else(|| whole.strip_prefix("MIG-"));
    match rest {
        Some(rest)
            if !rest.is_empty() && whole.len() <= UUID_CHARS_MAX && rest.chars().all(is_valid) =>
        {
            Ok(GpuUuid(whole))
        }
        _ => Err(MessageError::InvalidUuid),
    }
}
