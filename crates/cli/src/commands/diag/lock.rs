//! Ensures that only one diag tests a GPU, because concurrent runs would distort each other's
//! measurements.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;

use super::target::DiagTarget;

/// A lock that is held while a GPU is tested. It is an abstract Unix socket. The kernel releases
/// the name no matter how the process ends. Unlike a lock file, the socket needs no world-writable
/// directory.
#[derive(Debug)]
pub(super) struct GpuLock(#[expect(dead_code, reason = "keeps the socket open")] UnixListener);

/// Locks the GPU for this process. Returns `Err(None)` if another process has the lock.
pub(super) fn acquire(target: &DiagTarget, history: &Path) -> Result<GpuLock, Option<io::Error>> {
    let name = SocketAddr::from_abstract_name(name(target, history)).map_err(Some)?;
    match UnixListener::bind_addr(&name) {
        Ok(listener) => Ok(GpuLock(listener)),
        Err(err) if err.kind() == io::ErrorKind::AddrInUse => Err(None),
        Err(err) => Err(Some(err)),
    }
}

/// Name of the lock. Simulated GPUs have the same UUIDs in every file, so the name also depends on
/// the file and on the history directory of the node.
fn name(target: &DiagTarget, history: &Path) -> String {
    let scope = target.simulated.as_ref().map_or(String::new(), |(file, _)| {
        let mut hasher = DefaultHasher::new();
        (file, history).hash(&mut hasher);
        format!("-{:x}", hasher.finish())
    });
    // An abstract name has at most 107 bytes, so cut a UUID that is too long. Valid ones have 40.
    let uuid: String = target.uuid.chars().take(64).collect();
    format!("farrier-diag-{uuid}{scope}")
}
