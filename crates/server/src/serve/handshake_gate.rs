//! From a socket to somebody with a name, or without one. Nothing is held for a unknown_node who says nothing but a place in a pool where the one
//! that waits longest goes when it is full; a turn, of which there are few, is for those for whom there is something to compute.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_rustls::server::TlsStream;

use super::slot_pool::SlotPool;
use super::tls::Tls;
use super::{HANDSHAKE_TIMEOUT, Peer};
use crate::counters::HandshakeFailure;

/// Those who have said nothing yet, or have not active: a fifth of all connections. An honest client is here for as long as a packet takes.
const WAITING_MAX: usize = 4096;
/// Handshakes at a time: each costs a millisecond of a core.
const COMPUTE_MAX: usize = 256;
/// How long a turn lasts, of which a client that answers across an ocean needs half.
const COMPUTE_TIMEOUT: Duration = Duration::from_millis(250);

/// Why somebody was not let in.
#[derive(Debug, thiserror::Error)]
pub(super) enum HandshakeError {
    #[error("the handshake took too long")]
    Slow,
    #[error("too many others wait")]
    Displaced,
    #[error(transparent)]
    Tls(#[from] io::Error),
}

impl HandshakeError {
    /// What it is counted as.
    pub(super) fn metric(&self) -> HandshakeFailure {
        use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
        match self {
            Self::Slow => HandshakeFailure::Slow,
            Self::Displaced => HandshakeFailure::Displaced,
            Self::Tls(err) => match err.kind() {
                BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof => {
                    HandshakeFailure::Closed
                }
                _ => HandshakeFailure::Tls,
            },
        }
    }
}

/// Where connections come in.
#[derive(Debug)]
pub(super) struct HandshakeGate {
    waiting: Arc<SlotPool<()>>,
    compute: Semaphore,
}

impl HandshakeGate {
    pub(super) fn new() -> Self {
        Self { waiting: SlotPool::new(WAITING_MAX), compute: Semaphore::new(COMPUTE_MAX) }
    }

    pub(super) async fn enter(
        &self,
        tls: &Tls,
        socket: TcpStream,
    ) -> Result<(TlsStream<TcpStream>, Peer), HandshakeError> {
        let hello = self.wait(timeout(HANDSHAKE_TIMEOUT, Tls::hello(socket))).await?;
        let hello = hello.map_err(|_| HandshakeError::Slow)??;
        let turn = self.compute.acquire().await;
        let handshake = timeout(HANDSHAKE_TIMEOUT, tls.handshake(hello));
        tokio::pin!(handshake);
        let soon = timeout(COMPUTE_TIMEOUT, handshake.as_mut()).await;
        drop(turn);
        let handshake = match soon {
            Ok(handshake) => handshake,
            // It is the client's turn now.
            Err(_) => self.wait(handshake).await?,
        };
        Ok(handshake.map_err(|_| HandshakeError::Slow)??)
    }

    /// Waits for a client, unless too many do.
    async fn wait<T>(&self, client: impl Future<Output = T>) -> Result<T, HandshakeError> {
        let mut slot = self.waiting.enter(());
        tokio::select! {
            done = client => Ok(done),
            () = slot.displaced() => Err(HandshakeError::Displaced),
        }
    }
}
