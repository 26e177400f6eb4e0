//! Collects an artifact for an order and uploads it. The node is not changed, so a restarted agent
//! may start again. If the previous agent process completed the bundle, that bundle is uploaded.

use farrier_fleet::fleet::order::OrderStatus;
use farrier_hardware::Root;

use super::super::task::{Abort, OrderTask};
use super::{Outcome, done, failed};
use crate::artifact::{self, FinishedBundle, LogBundle, LogBundleError, SendError};
use crate::run::boot_time;

/// Maximum bytes before compression. Even incompressible content stays below the server's limit.
const CONTENT_BYTES_MAX: u64 = 30 << 20;

/// The first and the longest wait between upload attempts, in polling intervals. The wait doubles
/// with each attempt.
const RETRY_POLLS: (u32, u32) = (1, 32);

/// Uploads the bundle that `collect` fills. Without a server, the bundle stays on the node.
pub(super) fn deliver(
    task: &OrderTask<'_>,
    collect: impl FnOnce(&OrderTask<'_>, &mut LogBundle) -> Result<(), LogBundleError>,
) -> Outcome {
    let (state_dir, generation) = (task.inner.state_dir(), task.order().generation);
    artifact::clear(state_dir, Some(generation));
    let outcome = match bundle(task, collect) {
        Ok(file) => send(task, &file),
        Err(NoBundle::Failed(err)) => failed(err.to_string()),
        Err(NoBundle::Cancelled) => Err(Abort::Cancelled),
    };
    // Keep the bundle if there is no server, because it is then the result of the order. Also keep
    // it if the agent is stopping, because the next agent process will upload it.
    let has_ended = !matches!(outcome, Err(Abort::Cancelled));
    let is_disposable =
        task.inner.outbox.is_some() || !matches!(outcome, Ok(OrderStatus::Done { .. }));
    if has_ended && is_disposable {
        artifact::clear(state_dir, None);
    }
    outcome
}

enum NoBundle {
    Failed(LogBundleError),
    /// The order was cancelled, or the agent is stopping.
    Cancelled,
}

impl From<LogBundleError> for NoBundle {
    fn from(err: LogBundleError) -> Self {
        Self::Failed(err)
    }
}

/// The bundle on disk. Either an earlier agent process collected it, or it is collected now.
fn bundle(
    task: &OrderTask<'_>,
    collect: impl FnOnce(&OrderTask<'_>, &mut LogBundle) -> Result<(), LogBundleError>,
) -> Result<FinishedBundle, NoBundle> {
    let order = task.order();
    let path = artifact::bundle_path(task.inner.state_dir(), order.generation);
    if let Ok(file) = FinishedBundle::read(&path) {
        return Ok(file);
    }
    let times = (task.now(), boot_time(&Root::unrecorded(&task.inner.paths.root)));
    let mut bundle = LogBundle::create(&path, order.node.as_str(), times, CONTENT_BYTES_MAX)?;
    let collected = collect(task, &mut bundle);
    // Sources end early if the order is no longer active. After a restart, a partial bundle must
    // not be taken for a complete one.
    if !task.is_active() {
        bundle.discard();
        return Err(NoBundle::Cancelled);
    }
    collected?;
    Ok(bundle.finish()?)
}

fn send(task: &OrderTask<'_>, file: &FinishedBundle) -> Outcome {
    let summary = format!("{} bytes, sha256 {}", file.bytes, file.hex());
    let Some(outbox) = &task.inner.outbox else {
        let path = file.path.display();
        return done(format!("{summary}; no server: the bundle stays in `{path}`"));
    };
    let mut polls = RETRY_POLLS.0;
    loop {
        let is_active = || task.is_active() && task.has_time();
        match outbox.send(task.order().generation, file, &is_active) {
            Ok(()) => return done(summary),
            Err(_) if !task.is_active() => return Err(Abort::Cancelled),
            Err(err) if err.is_temporary() && task.has_time() => {
                task.pause(polls)?;
                polls = (polls * 2).min(RETRY_POLLS.1);
            }
            Err(SendError::Cancelled) => {
                return failed(format!("{summary}: not uploaded before the lease ended"));
            }
            Err(err) => return failed(err.to_string()),
        }
    }
}
