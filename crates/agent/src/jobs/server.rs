//! The socket server: accepts connections. No client can block another.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream};

use super::connection;
use super::registry::JobRegistry;
use crate::config::{Socket, group_id};

#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The path is unusable.
    #[error("failed to open the socket `{}`", path.display())]
    Open {
        path: PathBuf,
        #[source]
        err: io::Error,
    },
    /// Another process accepts connections on the path.
    #[error("another agent answers on the socket `{}`", path.display())]
    InUse { path: PathBuf },
    /// The configured group does not exist.
    #[error("the group `{group}` of the socket `{}` does not exist", path.display())]
    NoGroup { path: PathBuf, group: String },
}

/// Opens the socket. A stale socket, on which no process accepts connections, is replaced.
pub fn bind(socket: &Socket) -> Result<UnixListener, SocketError> {
    let path = &socket.path;
    let failed = |err| SocketError::Open { path: path.clone(), err };
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir).map_err(failed)?;
    }
    if fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket()) {
        if std::os::unix::net::UnixStream::connect(path).is_ok() {
            return Err(SocketError::InUse { path: path.clone() });
        }
        fs::remove_file(path).map_err(failed)?;
    }
    let listener = UnixListener::bind(path).map_err(failed)?;
    if let Some(group) = &socket.group {
        let id = group_id(group)
            .ok_or_else(|| SocketError::NoGroup { path: path.clone(), group: group.clone() })?;
        std::os::unix::fs::chown(path, None, Some(id)).map_err(failed)?;
    }
    fs::set_permissions(path, fs::Permissions::from_mode(socket.mode)).map_err(failed)?;
    Ok(listener)
}

/// Answers `status` requests, which do not concern a job.
pub trait StatusProvider: Send + Sync {
    /// The response to `status`. It is shared, so that a thousand clients need only one copy.
    fn status(&self) -> Arc<str>;
}

/// Serves until the future is dropped.
pub async fn run(
    listener: UnixListener,
    registry: Arc<JobRegistry>,
    status_provider: Arc<dyn StatusProvider>,
) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => accept(stream, &registry, &status_provider),
            Err(err) => {
                // The most common cause is that the process has no free file descriptor until
                // another connection closes.
                tracing::warn!(%err, "failed to accept a job's connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

fn accept(
    stream: UnixStream,
    registry: &Arc<JobRegistry>,
    status_provider: &Arc<dyn StatusProvider>,
) {
    let peer = stream.peer_cred();
    let uid = peer.as_ref().map_or(u32::MAX, tokio::net::unix::UCred::uid);
    let pid = peer.ok().and_then(|peer| peer.pid()).and_then(|pid| u32::try_from(pid).ok());
    // The kernel reports zero for a process outside this PID namespace.
    let pid = pid.filter(|pid| *pid > 0);
    let (outbox, lines) = tokio::sync::mpsc::channel(connection::OUTBOX);
    match registry.join(uid, pid, outbox) {
        Ok(id) => {
            let (registry, status_provider) = (Arc::clone(registry), Arc::clone(status_provider));
            tokio::spawn(async move {
                connection::serve(stream, id, lines, &registry, &*status_provider).await;
                registry.leave(id, connection::moment());
            });
        }
        Err(err) => {
            registry.drop_messages(1);
            connection::refuse(&stream, &err.to_string());
        }
    }
}

/// Removes the socket at shutdown.
pub fn remove(path: &Path) {
    let _ = fs::remove_file(path);
}
