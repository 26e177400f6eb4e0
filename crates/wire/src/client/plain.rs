//! A connection without TLS that notices when the other side speaks TLS: what comes back is no HTTP, and says so by its first byte.

use std::io;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// TLS answers what it does not understand with an alert (RFC 8446, section 5.1). The first frame of HTTP/2 begins with its length, and no
/// settings are a megabyte long.
const TLS_ALERT: u8 = 0x15;

/// Whether the other side speaks TLS; it is known once it has answered.
#[derive(Debug, Clone, Default)]
pub(super) struct SpeaksTls(Arc<AtomicBool>);

impl SpeaksTls {
    pub(super) fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The stream, and what its first byte said.
#[derive(Debug)]
pub(super) struct Plain {
    tcp: TcpStream,
    has_answered: bool,
    speaks_tls: SpeaksTls,
}

impl Plain {
    pub(super) fn new(tcp: TcpStream, speaks_tls: SpeaksTls) -> Self {
        Self { tcp, has_answered: false, speaks_tls }
    }

    fn hear(&mut self, first: u8) {
        self.has_answered = true;
        self.speaks_tls.0.store(first == TLS_ALERT, Ordering::Relaxed);
    }

    /// The other side may have answered and gone before all was written: what it said still waits to be read.
    fn heard<T>(&mut self, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if let (false, Poll::Ready(Err(_))) = (self.has_answered, &written) {
            let mut first = [0];
            let own = self.tcp.as_fd().try_clone_to_owned().map(std::net::TcpStream::from);
            if own.and_then(|own| own.peek(&mut first)).is_ok_and(|bytes| bytes > 0) {
                self.hear(first[0]);
            }
        }
        written
    }
}

impl AsyncRead for Plain {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.tcp).poll_read(context, buffer);
        if let (false, Some(first)) = (self.has_answered, buffer.filled().get(before)) {
            let first = *first;
            self.hear(first);
        }
        polled
    }
}

impl AsyncWrite for Plain {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.tcp).poll_write(context, bytes);
        self.heard(written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let written = Pin::new(&mut self.tcp).poll_flush(context);
        self.heard(written)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_shutdown(context)
    }
}
