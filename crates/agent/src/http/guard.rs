//! Limits the number of connections, their duration, and the size of requests.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep};

/// Maximum number of open connections. A node has one or two scrapers. Connections beyond the limit
/// wait in the kernel's backlog.
const CONNECTIONS_MAX: usize = 64;
/// Maximum size of a request. A scrape request has a few hundred bytes.
const REQUEST_BYTES_MAX: usize = 16 << 10;
/// Timeout of a request, counted from its first byte.
const REQUEST_WAIT: Duration = Duration::from_secs(10);
/// Idle timeout. Scrapers keep their connection open between scrapes. Most scrapers wait about a
/// minute.
const IDLE_WAIT: Duration = Duration::from_secs(150);

/// A listener that limits its connections.
pub(super) struct Guard {
    listener: TcpListener,
    free: Arc<Semaphore>,
}

impl Guard {
    pub(super) fn new(listener: TcpListener) -> Self {
        Self { listener, free: Arc::new(Semaphore::new(CONNECTIONS_MAX)) }
    }
}

impl Listener for Guard {
    type Io = Guarded;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Guarded, SocketAddr) {
        loop {
            let Ok(permit) = Arc::clone(&self.free).acquire_owned().await else {
                std::future::pending::<()>().await;
                continue;
            };
            match self.listener.accept().await {
                Ok((stream, address)) => return (Guarded::new(stream, permit), address),
                Err(err) => {
                    tracing::warn!(%err, "failed to accept a connection");
                    sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection with a deadline and a byte limit per request.
pub(super) struct Guarded {
    stream: TcpStream,
    _permit: OwnedSemaphorePermit,
    deadline: Pin<Box<Sleep>>,
    /// Number of bytes that were read since the last response.
    request_bytes: usize,
}

impl Guarded {
    fn new(stream: TcpStream, permit: OwnedSemaphorePermit) -> Self {
        let deadline = Box::pin(sleep(REQUEST_WAIT));
        Self { stream, _permit: permit, deadline, request_bytes: 0 }
    }
}

impl AsyncRead for Guarded {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.deadline.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        if polled.is_ready() {
            if self.request_bytes == 0 {
                self.deadline.as_mut().reset(Instant::now() + REQUEST_WAIT);
            }
            self.request_bytes += buffer.filled().len() - before;
            if self.request_bytes > REQUEST_BYTES_MAX {
                return Poll::Ready(Err(io::Error::other("the request is too large")));
            }
        }
        polled
    }
}

impl AsyncWrite for Guarded {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        if polled.is_ready() {
            self.request_bytes = 0;
            self.deadline.as_mut().reset(Instant::now() + IDLE_WAIT);
        } else if self.deadline.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        polled
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
