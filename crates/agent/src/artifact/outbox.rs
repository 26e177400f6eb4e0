//! Passes files from the thread that executes orders to the uplink, which is the connection to the
//! server.

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use tokio::sync::mpsc;

use super::FinishedBundle;

/// How often to check whether the order is still active.
const POLL: Duration = Duration::from_millis(200);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// No session is open, or the session ended during the upload. The upload may succeed in the
    /// next session.
    #[error("the session with the server ended")]
    Disconnected,
    /// The server cannot accept the artifact at the moment.
    #[error("the server cannot accept the artifact now: {0}")]
    Busy(String),
    #[error("the server refused the artifact: {0}")]
    Refused(String),
    #[error("failed to read `{}`: {why}", path.display())]
    Read { path: PathBuf, why: String },
    #[error("the order is no longer active")]
    Cancelled,
}

impl SendError {
    /// `true` if a retry may succeed.
    pub(crate) fn is_temporary(&self) -> bool {
        matches!(self, Self::Disconnected | Self::Busy(_))
    }
}

/// A file to upload.
#[derive(Debug)]
pub struct ArtifactUpload {
    /// Generation of the order that requests the file.
    pub generation: u64,
    pub path: PathBuf,
    pub bytes: u64,
    pub sha256: [u8; 32],
    done: Sender<Result<(), SendError>>,
}

impl ArtifactUpload {
    /// Reports the result to the executor. If `self` is dropped instead, the executor gets
    /// `SendError::Disconnected`.
    pub fn end(self, result: Result<(), SendError>) {
        let _ = self.done.send(result);
    }
}

/// The end of the channel to the uplink that the executor holds.
#[derive(Debug)]
pub struct Outbox {
    sender: Mutex<mpsc::Sender<ArtifactUpload>>,
}

impl Outbox {
    /// Creates both ends. The channel holds one file, because one order runs at a time.
    pub fn new() -> (Self, mpsc::Receiver<ArtifactUpload>) {
        let (sender, uploads) = mpsc::channel(1);
        (Self { sender: Mutex::new(sender) }, uploads)
    }

    /// Sends a file and waits until the server has persisted it, or until `is_active` returns
    /// false.
    pub(crate) fn send(
        &self,
        generation: u64,
        file: &FinishedBundle,
        is_active: &dyn Fn() -> bool,
    ) -> Result<(), SendError> {
        let (done, result) = channel();
        let FinishedBundle { path, bytes, sha256 } = file.clone();
        let upload = ArtifactUpload { generation, path, bytes, sha256, done };
        let sender = self.sender.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        // If the channel is full, a file from an earlier attempt still waits for a session.
        sender.try_send(upload).map_err(|_| SendError::Disconnected)?;
        loop {
            match result.recv_timeout(POLL) {
                Ok(result) => return result,
                Err(RecvTimeoutError::Disconnected) => return Err(SendError::Disconnected),
                Err(RecvTimeoutError::Timeout) if !is_active() => return Err(SendError::Cancelled),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> FinishedBundle {
        FinishedBundle { path: "/nowhere".into(), bytes: 7, sha256: [1; 32] }
    }

    /// Sends on another thread while `uplink` plays the other side.
    fn send_via(
        is_active: &(dyn Fn() -> bool + Sync),
        uplink: impl FnOnce(mpsc::Receiver<ArtifactUpload>),
    ) -> Result<(), SendError> {
        let (outbox, uploads) = Outbox::new();
        std::thread::scope(|scope| {
            let sent = scope.spawn(|| outbox.send(3, &file(), is_active));
            uplink(uploads);
            sent.join().unwrap()
        })
    }

    #[test]
    fn send_returns_the_result_of_the_upload() {
        let reply = |result: Result<(), SendError>| {
            move |mut uploads: mpsc::Receiver<ArtifactUpload>| {
                let upload = uploads.blocking_recv().unwrap();
                assert_eq!((upload.generation, upload.bytes), (3, 7));
                upload.end(result);
            }
        };
        assert_eq!(send_via(&|| true, reply(Ok(()))), Ok(()));
        let refused = SendError::Refused("no such order".to_owned());
        assert_eq!(send_via(&|| true, reply(Err(refused.clone()))), Err(refused.clone()));
        assert!(!refused.is_temporary());
    }

    #[test]
    fn a_lost_session_is_temporary_and_an_inactive_order_cancels_the_upload() {
        let dropped = |mut uploads: mpsc::Receiver<ArtifactUpload>| drop(uploads.blocking_recv());
        let result = send_via(&|| true, dropped);
        assert_eq!(result, Err(SendError::Disconnected));
        assert!(result.unwrap_err().is_temporary());
        let pending = std::sync::Mutex::new(None);
        let keep_pending = |mut uploads: mpsc::Receiver<ArtifactUpload>| {
            *pending.lock().unwrap() = uploads.blocking_recv();
        };
        assert_eq!(send_via(&|| false, keep_pending), Err(SendError::Cancelled));
    }
}
