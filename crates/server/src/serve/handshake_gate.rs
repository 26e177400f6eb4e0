//! TLS handshakes. Connections whose handshake waits for the client share a pool of 4,096 slots.
//! When the pool is full, the oldest connection is evicted. At most 256 handshakes compute at the
//! same time.

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

/// Maximum number of connections that may wait for the client. This is a fifth of all connections.
/// A well-behaved client needs a slot for one round trip.
const WAITING_MAX: usize = 4096;
/// Maximum number of handshakes that may compute at the same time. Each handshake costs a
/// millisecond of one core.
const COMPUTE_MAX: usize = 256;
/// A handshake releases its compute permit after this time at the latest. A client on another
/// continent needs half of this time.
const COMPUTE_TIMEOUT: Duration = Duration::from_millis(250);

#[derive(Debug, thiserror::Error)]
pub(super) enum HandshakeError {
    #[error("the handshake timed out")]
    Slow,
    #[error("too many connections wait for a handshake")]
    Displaced,
    #[error(transparent)]
    Tls(#[from] io::Error),
}

impl HandshakeError {
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
        let permit = self.compute.acquire().await;
        let handshake = timeout(HANDSHAKE_TIMEOUT, tls.handshake(hello));
        tokio::pin!(handshake);
        let result = timeout(COMPUTE_TIMEOUT, handshake.as_mut()).await;
        drop(permit);
        let handshake = match result {
            Ok(handshake) => handshake,
            // From here on, the handshake waits for the client.
            Err(_) => self.wait(handshake).await?,
        };
        Ok(handshake.map_err(|_| HandshakeError::Slow)??)
    }

    /// Waits for the client, unless the pool evicts the connection.
    async fn wait<T>(&self, client: impl Future<Output = T>) -> Result<T, HandshakeError> {
        let mut slot = self.waiting.acquire(());
        tokio::select! {
            done = client => Ok(done),
            () = slot.evicted() => Err(HandshakeError::Displaced),
        }
    }
}
