//! Hands a file from the thread that carries out orders to the stream that reaches the server.

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use tokio::sync::mpsc;

use super::Finished;

/// How often a wait asks whether the order is still wanted.
const LOOK: Duration = Duration::from_millis(200);

/// Why a file did not reach the server.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// There is no session, or it ended while the file was sent. Another may follow.
    #[error("the session with the server ended")]
    Disconnected,
    /// The server cannot take it now.
    #[error("the server cannot take it now: {0}")]
    Busy(String),
    /// The server refuses it.
    #[error("the server refused it: {0}")]
    Refused(String),
    /// The file cannot be read.
    #[error("failed to read `{}`: {why}", path.display())]
    Read { path: PathBuf, why: String },
    /// The order is not wanted any longer.
    #[error("the order is not wanted any longer")]
    Unwanted,
}

impl SendError {
    /// Whether another attempt may succeed.
    pub(crate) fn is_temporary(&self) -> bool {
        matches!(self, Self::Disconnected | Self::Busy(_))
    }
}

/// A file on its way to the server.
#[derive(Debug)]
pub struct Sending {
    /// Of the order that asks for it.
    pub generation: u64,
    /// Where it is.
    pub path: PathBuf,
    pub bytes: u64,
    /// SHA-256 of it.
    pub sha256: [u8; 32],
    done: Sender<Result<(), SendError>>,
}

impl Sending {
    /// Tells the executor how it ended. One that is dropped without this counts as disconnected.
    pub fn end(self, result: Result<(), SendError>) {
        let _ = self.done.send(result);
    }
}

/// The executor's end of the way to the server.
#[derive(Debug)]
pub struct Outbox {
    to: Mutex<mpsc::Sender<Sending>>,
}

impl Outbox {
    /// One, and the uplink's end of it. One file waits at a time: there is one order at a time.
    pub fn new() -> (Self, mpsc::Receiver<Sending>) {
        let (to, sendings) = mpsc::channel(1);
        (Self { to: Mutex::new(to) }, sendings)
    }

    /// Sends a file and waits until the server has it on disk, or for as long as it is wanted.
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
        // A file of an attempt before this one may still wait for a session.
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

    /// Sends on a thread while `uplink` does what the other side does.
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
