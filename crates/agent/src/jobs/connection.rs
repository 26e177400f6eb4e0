//! One connection of a client. The length of lines, the rate of messages and the number of queued
//! responses are limited.

use std::borrow::Cow;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use farrier_fleet::health::Moment;
use farrier_hardware::clock;
use jiff::Timestamp;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tokio::sync::mpsc::Receiver;
use tokio::time::{Instant, timeout};

use super::protocol::{Answer, Hello, ParseError, ProtocolErrorCode, Request, VERSION, explain};
use super::registry::JobRegistry;
use super::server::StatusProvider;

/// Maximum number of lines in the queue for a client that reads slowly.
pub(super) const OUTBOX: usize = 16;
/// Maximum length of a line. A message has a few hundred bytes.
const LINE_BYTES_MAX: usize = 64 << 10;
/// Token bucket per client: messages per second, and size of a burst. A step takes at least some
/// milliseconds.
const RATE_PER_S: f64 = 1000.0;
const BURST: f64 = 2000.0;
/// Number of invalid lines at which the connection is closed.
const ERRORS_MAX: u32 = 10;
/// Write timeout. A client that does not read for this long is disconnected.
const WRITE_WAIT: Duration = Duration::from_secs(5);
const CHUNK_BYTES: usize = 8 << 10;

/// Why a connection ends.
enum End {
    Closed,
    /// The agent closes the connection, and the client gets this error before that.
    Error(ProtocolErrorCode, Cow<'static, str>),
}

impl End {
    fn error(code: ProtocolErrorCode, why: impl Into<Cow<'static, str>>) -> Self {
        Self::Error(code, why.into())
    }
}

/// Sends the error `full` without blocking. The write cannot block, because nothing was written
/// before and the kernel's buffer has room.
pub(super) fn refuse(stream: &UnixStream, why: &str) {
    let line = Answer::Error { code: ProtocolErrorCode::Full, message: why }.line();
    let _ = stream.try_write(line.as_bytes());
}

/// Serves a client until either side closes.
pub(super) async fn serve(
    mut stream: UnixStream,
    id: u64,
    mut outbox: Receiver<Arc<str>>,
    registry: &JobRegistry,
    status_provider: &dyn StatusProvider,
) {
    let mut lines = LineSplitter { partial: Vec::new(), registry };
    let mut client = ClientConnection {
        id,
        registry,
        status_provider,
        errors: 0,
        allowed: BURST,
        last: Instant::now(),
        welcomed: false,
        write_closed: false,
    };
    let end = loop {
        tokio::select! {
            line = outbox.recv() => match line {
                Some(line) => {
                    if let Err(end) = client.send(&mut stream, &line).await { break end; }
                    registry.outbox_drained(id, moment());
                }
                // The registry evicted this client.
                None => break End::error(
                    ProtocolErrorCode::Full,
                    "evicted to make room: no hello was received",
                ),
            },
            readable = stream.readable() => {
                if readable.is_err() { break End::Closed; }
                let mut chunk = [0; CHUNK_BYTES];
                let length = match stream.try_read(&mut chunk) {
                    Ok(0) => break End::Closed,
                    Ok(length) => length,
                    Err(err) if err.kind() == ErrorKind::WouldBlock => continue,
                    Err(_) => break End::Closed,
                };
                let complete = match lines.split(&chunk[..length]) {
                    Ok(complete) => complete,
                    Err(end) => break end,
                };
                if let Err(end) = client.handle(&mut stream, complete).await { break end; }
            }
        }
    };
    if let End::Error(code, why) = end {
        registry.drop_messages(1);
        let _ = client.send(&mut stream, &Answer::Error { code, message: &why }.line()).await;
    }
}

pub(super) fn moment() -> Moment {
    Moment { steady_ms: clock::since_boot_ms(), wall: Timestamp::now() }
}

/// Splits chunks into lines.
struct LineSplitter<'b> {
    partial: Vec<u8>,
    registry: &'b JobRegistry,
}

impl LineSplitter<'_> {
    fn split(&mut self, chunk: &[u8]) -> Result<Vec<Vec<u8>>, End> {
        let mut complete = Vec::new();
        let mut rest = chunk;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let mut line = std::mem::take(&mut self.partial);
            self.registry.release(line.len());
            line.extend_from_slice(&rest[..end]);
            rest = &rest[end + 1..];
            if line.len() > LINE_BYTES_MAX {
                return Err(End::error(
                    ProtocolErrorCode::LongLine,
                    "a line may have at most 65536 bytes",
                ));
            }
            complete.push(line);
        }
        if self.partial.len() + rest.len() > LINE_BYTES_MAX {
            return Err(End::error(
                ProtocolErrorCode::LongLine,
                "a line may have at most 65536 bytes",
            ));
        }
        if !self.registry.reserve(rest.len()) {
            return Err(End::error(
                ProtocolErrorCode::Full,
                "too many incomplete lines over all clients",
            ));
        }
        self.partial.extend_from_slice(rest);
        Ok(complete)
    }
}

impl Drop for LineSplitter<'_> {
    fn drop(&mut self) {
        self.registry.release(self.partial.len());
    }
}

struct ClientConnection<'b> {
    id: u64,
    registry: &'b JobRegistry,
    status_provider: &'b dyn StatusProvider,
    errors: u32,
    allowed: f64,
    last: Instant,
    welcomed: bool,
    /// Whether the client no longer reads. Its remaining input is still processed, because an `oom`
    /// is often the last message of a client.
    write_closed: bool,
}

impl ClientConnection<'_> {
    async fn send(&mut self, stream: &mut UnixStream, text: &str) -> Result<(), End> {
        if self.write_closed {
            return Ok(());
        }
        match timeout(WRITE_WAIT, stream.write_all(text.as_bytes())).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => {
                self.write_closed = true;
                Ok(())
            }
            Err(_) => Err(End::Closed),
        }
    }

    async fn handle(&mut self, stream: &mut UnixStream, lines: Vec<Vec<u8>>) -> Result<(), End> {
        let now = Instant::now();
        let earned = (now - self.last).as_secs_f64() * RATE_PER_S;
        self.last = now;
        self.allowed = (self.allowed + earned).min(BURST);
        // A chunk may contain hundreds of `status` requests. One response answers all of them,
        // because the status does not change in between.
        let mut wants_status = false;
        for line in lines {
            if line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            if self.allowed < 1.0 {
                if !self.welcomed {
                    // The dropped messages may include a hello, so do not drop them silently.
                    return Err(End::error(
                        ProtocolErrorCode::TooFast,
                        "too many messages before hello",
                    ));
                }
                self.registry.drop_messages(1);
                continue;
            }
            self.allowed -= 1.0;
            match serde_json::from_slice::<Request>(&line) {
                Err(err) => self.reject(stream, &explain(&line, &err)).await?,
                Ok(Request::Hello(hello)) => self.hello(stream, hello).await?,
                Ok(request) => {
                    wants_status |= request == Request::Status;
                    if let Err(why) = self.registry.handle(self.id, moment(), request) {
                        self.bad_line(stream, &why.to_string()).await?;
                    }
                }
            }
        }
        if wants_status {
            let status = self.status_provider.status();
            self.send(stream, &status).await?;
        }
        Ok(())
    }

    /// Handles a hello. A hello gets exactly one response: a welcome, or an error, after which the
    /// connection ends.
    async fn hello(&mut self, stream: &mut UnixStream, hello: Hello) -> Result<(), End> {
        let v = hello.v.min(VERSION);
        if let Err(err) = self.registry.has_room_for_rank(self.id) {
            return Err(End::error(ProtocolErrorCode::Full, err.to_string()));
        }
        if let Err(why) = self.registry.handle(self.id, moment(), Request::Hello(hello)) {
            return Err(End::error(ProtocolErrorCode::BadHello, why.to_string()));
        }
        self.welcomed = true;
        self.send(stream, &Answer::Welcome { v }.line()).await
    }

    async fn reject(&mut self, stream: &mut UnixStream, err: &ParseError) -> Result<(), End> {
        if err.is_hello {
            return Err(End::error(ProtocolErrorCode::BadHello, err.why.clone()));
        }
        self.bad_line(stream, &err.why).await
    }

    async fn bad_line(&mut self, stream: &mut UnixStream, why: &str) -> Result<(), End> {
        self.errors += 1;
        if self.errors >= ERRORS_MAX {
            return Err(End::error(ProtocolErrorCode::BadLines, "too many invalid lines"));
        }
        self.registry.drop_messages(1);
        // The format is explained only once, because a repetition does not help.
        if self.errors == 1 {
            self.send(
                stream,
                &Answer::Error { code: ProtocolErrorCode::BadLine, message: why }.line(),
            )
            .await?;
        }
        Ok(())
    }
}
