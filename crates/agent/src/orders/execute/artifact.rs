//! Collects an artifact for an order and uploads it. Read-only: a restarted agent starts over, or
//! uploads what the previous one collected.

use farrier_fleet::fleet::order::OrderStatus;
use farrier_hardware::Root;

use super::super::task::{Abort, Task};
use super::{Ended, done, failed};
use crate::artifact::{self, Bundle, BundleError, Finished, SendError};
use crate::run::boot_time;

/// Maximum bytes before compression: below the server's limit, even for incompressible data.
const CONTENT_BYTES_MAX: u64 = 30 << 20;

/// Polling intervals between upload attempts. Doubles from the first up to the second.
const RETRY_LOOKS: (u32, u32) = (1, 32);

/// Uploads the bundle that `gather` fills. Without a server it stays on the node.
pub(super) fn deliver(
    task: &Task<'_>,
    gather: impl FnOnce(&Task<'_>, &mut Bundle) -> Result<(), BundleError>,
) -> Ended {
    let (state_dir, generation) = (task.inner.state_dir(), task.order().generation);
    artifact::clear(state_dir, Some(generation));
    let ended = match bundle(task, gather) {
        Ok(file) => send(task, &file),
        Err(NoBundle::Failed(err)) => failed(err.to_string()),
        Err(NoBundle::Unwanted) => Err(Abort::Unwanted),
    };
    // Keep the bundle if there is no server, because it is the result, or if the agent is stopping,
    // because the next one resumes with it.
    let is_over = !matches!(ended, Err(Abort::Unwanted));
    let is_sent = task.inner.outbox.is_some() || !matches!(ended, Ok(OrderStatus::Done { .. }));
    if is_over && is_sent {
        artifact::clear(state_dir, None);
    }
    ended
}

enum NoBundle {
    Failed(BundleError),
    /// The order was cancelled, or the agent is stopping.
    Unwanted,
}

impl From<BundleError> for NoBundle {
    fn from(err: BundleError) -> Self {
        Self::Failed(err)
    }
}

/// The bundle on disk: one from an earlier agent process, or a new one.
fn bundle(
    task: &Task<'_>,
    gather: impl FnOnce(&Task<'_>, &mut Bundle) -> Result<(), BundleError>,
) -> Result<Finished, NoBundle> {
    let order = task.order();
    let path = artifact::path_of(task.inner.state_dir(), order.generation);
    if let Ok(file) = Finished::read(&path) {
        return Ok(file);
    }
    let times = (task.now(), boot_time(&Root::unrecorded(&task.inner.paths.root)));
    let mut bundle = Bundle::create(&path, order.node.as_str(), times, CONTENT_BYTES_MAX)?;
    let gathered = gather(task, &mut bundle);
    // Sources end early in this case. A partial bundle must not look complete after a restart.
    if !task.is_wanted() {
        bundle.discard();
        return Err(NoBundle::Unwanted);
    }
    gathered?;
    Ok(bundle.finish()?)
}

fn send(task: &Task<'_>, file: &Finished) -> Ended {
    let what = format!("{} bytes, sha256 {}", file.bytes, file.hex());
    let Some(outbox) = &task.inner.outbox else {
        let path = file.path.display();
        return done(format!("{what}; there is no server: it is kept as `{path}`"));
    };
    let mut looks = RETRY_LOOKS.0;
    loop {
        let wanted = || task.is_wanted() && task.has_time();
        match outbox.send(task.order().generation, file, &wanted) {
            Ok(()) => return done(what),
            Err(_) if !task.is_wanted() => return Err(Abort::Unwanted),
            Err(err) if err.is_temporary() && task.has_time() => {
                task.pause(looks)?;
                looks = (looks * 2).min(RETRY_LOOKS.1);
            }
            Err(SendError::Unwanted) => {
                return failed(format!("{what}: it was not sent before the lease ended"));
            }
            Err(err) => return failed(err.to_string()),
        }
    }
}
