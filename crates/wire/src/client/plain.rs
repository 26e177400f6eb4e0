//! A connection without TLS. If the server expects TLS, the first byte of its answer is not HTTP,
//! and the connection records that.

use std::io;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// Record type of a TLS alert. A TLS server sends an alert for input that it cannot parse (RFC
/// 8446, section 5.1). HTTP/2 cannot start with this byte: its first byte is the high byte of the
/// length of a SETTINGS frame, and no such frame is a megabyte long.
const TLS_ALERT: u8 = 0x15;

/// Whether the peer uses TLS. The value is set when the peer has answered.
#[derive(Debug, Clone, Default)]
pub(super) struct SpeaksTls(Arc<AtomicBool>);

impl SpeaksTls {
    pub(super) fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A stream that checks the first byte that it reads.
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

    fn record_answer(&mut self, first: u8) {
        self.has_answered = true;
        self.speaks_tls.0.store(first == TLS_ALERT, Ordering::Relaxed);
    }

    /// If a write fails, the peer may have sent an answer and then closed the connection. That
    /// answer can still be read.
    fn check_failed_write<T>(&mut self, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if let (false, Poll::Ready(Err(_))) = (self.has_answered, &written) {
            let mut first = [0];
            let socket = self.tcp.as_fd().try_clone_to_owned().map(std::net::TcpStream::from);
            if socket.and_then(|socket| socket.peek(&mut first)).is_ok_and(|bytes| bytes > 0) {
                self.record_answer(first[0]);
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
            self.record_answer(first);
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
        self.check_failed_write(written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let written = Pin::new(&mut self.tcp).poll_flush(context);
        self.check_failed_write(written)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_shutdown(context)
    }
}
