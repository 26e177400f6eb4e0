//! Gathers a file for an order and sends it. It reads only: an agent that was started again begins
//! again, or sends what the one before it had gathered.

use std::io;

use super::super::task::{Break, Task};
use super::{Ended, done, failed};
use crate::artifact::{self, Bundle, BundleError, Finished, SendError};

/// Bytes in a bundle before compression: below what the server takes, also where nothing shrinks.
const CONTENT_BYTES_MAX: u64 = 30 << 20;

/// Sends the bundle that `gather` fills. Without a server it stays on the node.
pub(super) fn deliver(
    task: &Task<'_>,
    gather: impl FnOnce(&Task<'_>, &mut Bundle) -> Result<(), BundleError>,
) -> Ended {
    let (state_dir, generation) = (task.inner.state_dir(), task.order().generation);
    let path = artifact::path_of(state_dir, generation);
    artifact::clear(state_dir, Some(generation));
    let file = match Finished::read(&path) {
        Ok(file) => file,
        Err(err) if err.kind() == io::ErrorKind::NotFound => {
            let gathered = gathered(task, gather);
            if !task.is_wanted() {
                return Err(Break::Unwanted);
            }
            match gathered {
                Ok(file) => file,
                Err(err) => {
                    artifact::clear(state_dir, None);
                    return failed(err.to_string());
                }
            }
        }
        Err(err) => return failed(format!("failed to read `{}`: {err}", path.display())),
    };
    let what = format!("{} bytes, sha256 {}", file.bytes, file.hex());
    let Some(outbox) = &task.inner.outbox else {
        return done(format!("{what}; there is no server: it is kept as `{}`", path.display()));
    };
    loop {
        let wanted = || task.is_wanted() && task.has_time();
        match outbox.send(generation, &file, &wanted) {
            Ok(()) => {
                artifact::clear(state_dir, None);
                return done(what);
            }
            Err(_) if !task.is_wanted() => return Err(Break::Unwanted),
            Err(err) if err.is_temporary() && task.has_time() => task.pause(1)?,
            Err(SendError::Unwanted) => {
                return failed(format!("{what}: it was not sent before the lease ended"));
            }
            Err(err) => return failed(err.to_string()),
        }
    }
}

fn gathered(
    task: &Task<'_>,
    gather: impl FnOnce(&Task<'_>, &mut Bundle) -> Result<(), BundleError>,
) -> Result<Finished, BundleError> {
    let order = task.order();
    let path = artifact::path_of(task.inner.state_dir(), order.generation);
    let mut bundle = Bundle::create(&path, order.node.as_str(), task.now(), CONTENT_BYTES_MAX)?;
    match gather(task, &mut bundle) {
        Ok(()) => bundle.finish(),
        Err(err) => {
            bundle.discard();
            Err(err)
        }
    }
}
