//! Passes a file from the order executor's thread to the uplink.

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use tokio::sync::mpsc;

use super::Finished;

/// Polling interval for whether the order is still wanted.
const LOOK: Duration = Duration::from_millis(200);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// There is no session, or it ended during the upload. Another may follow.
    #[error("the session with the server ended")]
    Disconnected,
    /// The server is temporarily unable to accept it.
    #[error("the server cannot take it now: {0}")]
    Busy(String),
    #[error("the server refused it: {0}")]
    Refused(String),
    #[error("failed to read `{}`: {why}", path.display())]
    Read { path: PathBuf, why: String },
    #[error("the order is not wanted any longer")]
    Unwanted,
}

impl SendError {
    /// Whether a retry may succeed.
    pub(crate) fn is_temporary(&self) -> bool {
        matches!(self, Self::Disconnected | Self::Busy(_))
    }
}

/// A file to upload.
#[derive(Debug)]
pub struct Sending {
    /// Generation of its order.
    pub generation: u64,
    pub path: PathBuf,
    pub bytes: u64,
    pub sha256: [u8; 32],
    done: Sender<Result<(), SendError>>,
}

impl Sending {
    /// Reports the result to the executor. Dropping it without a result counts as disconnected.
    pub fn end(self, result: Result<(), SendError>) {
        let _ = self.done.send(result);
    }
}

/// The executor's end of the channel to the uplink.
#[derive(Debug)]
pub struct Outbox {
    to: Mutex<mpsc::Sender<Sending>>,
}

impl Outbox {
    /// Creates both ends. The channel holds one file, because one order runs at a time.
    pub fn new() -> (Self, mpsc::Receiver<Sending>) {
        let (to, sendings) = mpsc::channel(1);
        (Self { to: Mutex::new(to) }, sendings)
    }

    /// Sends a file and waits until the server has persisted it, or until it is no longer wanted.
    pub(crate) fn send(
        &self,
        generation: u64,
        file: &Finished,
        wanted: &dyn Fn() -> bool,
    ) -> Result<(), SendError> {
        let (done, ended) = channel();
        let Finished { path, bytes, sha256 } = file.clone();
        let sending = Sending { generation, path, bytes, sha256, done };
        let to = self.to.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        // A file of an earlier attempt may still be waiting for a session.
        to.try_send(sending).map_err(|_| SendError::Disconnected)?;
        loop {
            match ended.recv_timeout(LOOK) {
                Ok(result) => return result,
                Err(RecvTimeoutError::Disconnected) => return Err(SendError::Disconnected),
                Err(RecvTimeoutError::Timeout) if !wanted() => return Err(SendError::Unwanted),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> Finished {
        Finished { path: "/nowhere".into(), bytes: 7, sha256: [1; 32] }
    }

    /// Sends on another thread while `uplink` plays the other side.
    fn sent(
        wanted: &(dyn Fn() -> bool + Sync),
        uplink: impl FnOnce(mpsc::Receiver<Sending>),
    ) -> Result<(), SendError> {
        let (outbox, sendings) = Outbox::new();
        std::thread::scope(|scope| {
            let sent = scope.spawn(|| outbox.send(3, &file(), wanted));
            uplink(sendings);
            sent.join().unwrap()
        })
    }

    #[test]
    fn a_file_is_sent_when_the_server_has_it_and_not_before() {
        let taken = |result: Result<(), SendError>| {
            move |mut sendings: mpsc::Receiver<Sending>| {
                let sending = sendings.blocking_recv().unwrap();
                assert_eq!((sending.generation, sending.bytes), (3, 7));
                sending.end(result);
            }
        };
        assert_eq!(sent(&|| true, taken(Ok(()))), Ok(()));
        let refused = SendError::Refused("no order asks for it".to_owned());
        assert_eq!(sent(&|| true, taken(Err(refused.clone()))), Err(refused.clone()));
        assert!(!refused.is_temporary());
    }

    #[test]
    fn a_session_that_ends_is_waited_for_and_an_order_that_is_not_wanted_is_not() {
        let dropped = |mut sendings: mpsc::Receiver<Sending>| drop(sendings.blocking_recv());
        let ended = sent(&|| true, dropped);
        assert_eq!(ended, Err(SendError::Disconnected));
        assert!(ended.unwrap_err().is_temporary());
        let kept = std::sync::Mutex::new(None);
        let keeps = |mut sendings: mpsc::Receiver<Sending>| {
            *kept.lock().unwrap() = sendings.blocking_recv();
        };
        assert_eq!(sent(&|| false, keeps), Err(SendError::Unwanted));
    }
}
