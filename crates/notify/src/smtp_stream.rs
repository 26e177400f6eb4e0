//! The connection to an SMTP server, with two limits that an SMTP client lacks: of the bytes that
//! it reads, and of what may follow the reply to `STARTTLS`.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use lettre::transport::smtp::client::AsyncTokioStream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

/// All replies of a conversation are smaller, with the certificates of a TLS handshake.
const READ_BYTES_MAX: usize = 256 << 10;

/// The reply to `STARTTLS` ends the plain part of a conversation. A man in the middle could append
/// further replies to it, which the client would take for encrypted ones (response injection, as in
/// CVE-2021-33515).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Plain,
    /// The client has sent `STARTTLS`.
    Upgrade,
    Encrypted,
    /// The server has sent too much. Nothing more is read or written, so that the client gives up.
    Refused,
}

pub(crate) struct SmtpStream<S> {
    stream: S,
    read_bytes: usize,
    phase: Phase,
}

impl<S> SmtpStream<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self { stream, read_bytes: 0, phase: Phase::Plain }
    }

    fn check_open(&self) -> io::Result<()> {
        match self.phase {
            Phase::Refused => Err(io::ErrorKind::ConnectionAborted.into()),
            Phase::Plain | Phase::Upgrade | Phase::Encrypted => Ok(()),
        }
    }

    fn refuse(&mut self, why: &'static str) -> io::Result<()> {
        self.phase = Phase::Refused;
        Err(io::Error::other(why))
    }

    fn check_read(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.read_bytes += bytes.len();
        if self.read_bytes > READ_BYTES_MAX {
            return self.refuse("the server sent more than an SMTP server sends");
        }
        let line_end = bytes.iter().position(|byte| *byte == b'\n');
        if let (Phase::Upgrade, Some(line_end)) = (self.phase, line_end) {
            if line_end + 1 < bytes.len() {
                return self.refuse("the server sent more than the reply to STARTTLS");
            }
            self.phase = Phase::Encrypted;
        }
        Ok(())
    }
}

impl<S> fmt::Debug for SmtpStream<S> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("SmtpStream").field("phase", &self.phase).finish_non_exhaustive()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for SmtpStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check_open()?;
        let before = buffer.filled().len();
        std::task::ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        Poll::Ready(self.check_read(&buffer.filled()[before..]))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for SmtpStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check_open()?;
        if self.phase == Phase::Plain && bytes.starts_with(b"STARTTLS") {
            self.phase = Phase::Upgrade;
        }
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

impl AsyncTokioStream for SmtpStream<TcpStream> {
    fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.stream.peer_addr()
    }
}

impl AsyncTokioStream for SmtpStream<TlsStream<TcpStream>> {
    fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.stream.get_ref().0.peer_addr()
    }
}
