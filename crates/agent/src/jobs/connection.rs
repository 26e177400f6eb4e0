//! One connection. Line length, message rate and queued responses are all bounded.

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

use super::protocol::{Answer, ErrorCode, Hello, ParseError, Request, VERSION, misreading};
use super::registry::JobRegistry;
use super::server::Answers;

/// Responses queued for a slow reader.
pub(super) const OUTBOX: usize = 16;
/// Sanity limit: a message has a few hundred bytes.
const LINE_BYTES_MAX: usize = 64 << 10;
/// Token bucket per client: messages a second, and burst. A step takes at least milliseconds.
const RATE_PER_S: f64 = 1000.0;
const BURST: f64 = 2000.0;
/// Unparseable lines before the connection is closed.
const ERRORS_MAX: u32 = 10;
/// Write timeout: a client that does not read is disconnected.
const WRITE_WAIT: Duration = Duration::from_secs(5);
const CHUNK_BYTES: usize = 8 << 10;

enum End {
    Gone,
    Told(ErrorCode, Cow<'static, str>),
}

impl End {
    fn told(code: ErrorCode, why: impl Into<Cow<'static, str>>) -> Self {
        Self::Told(code, why.into())
    }
}

/// Sends "full" and closes, without blocking. Nothing was written before, so the kernel's buffer
/// has room.
pub(super) fn refuse(stream: &UnixStream, why: &str) {
    let line = Answer::Error { code: ErrorCode::Full, message: why }.line();
    let _ = stream.try_write(line.as_bytes());
}

/// Serves a client until either side closes.
pub(super) async fn serve(
    mut stream: UnixStream,
    id: u64,
    mut outbox: Receiver<Arc<str>>,
    board: &JobRegistry,
    answers: &dyn Answers,
) {
    let mut lines = Lines { kept: Vec::new(), board };
    let mut client = Client {
        id,
        board,
        answers,
        errors: 0,
        allowed: BURST,
        last: Instant::now(),
        welcomed: false,
        deaf: false,
    };
    let end = loop {
        tokio::select! {
            line = outbox.recv() => match line {
                Some(line) => {
                    if let Err(end) = client.say(&mut stream, &line).await { break end; }
                    board.drained(id, moment());
                }
                // The registry evicted this client.
                None => break End::told(
                    ErrorCode::Full,
                    "the place was needed, and no hello had come",
                ),
            },
            readable = stream.readable() => {
                if readable.is_err() { break End::Gone; }
                let mut chunk = [0; CHUNK_BYTES];
                let length = match stream.try_read(&mut chunk) {
                    Ok(0) => break End::Gone,
                    Ok(length) => length,
                    Err(err) if err.kind() == ErrorKind::WouldBlock => continue,
                    Err(_) => break End::Gone,
                };
                let said = match lines.take(&chunk[..length]) {
                    Ok(said) => said,
                    Err(end) => break end,
                };
                if let Err(end) = client.answer(&mut stream, said).await { break end; }
            }
        }
    };
    if let End::Told(code, why) = end {
        board.drop_messages(1);
        let _ = client.say(&mut stream, &Answer::Error { code, message: &why }.line()).await;
    }
}

pub(super) fn moment() -> Moment {
    Moment { steady_ms: clock::since_boot_ms(), wall: Timestamp::now() }
}

/// Splits chunks into lines.
struct Lines<'b> {
    kept: Vec<u8>,
    board: &'b JobRegistry,
}

impl Lines<'_> {
    fn take(&mut self, chunk: &[u8]) -> Result<Vec<Vec<u8>>, End> {
        let mut whole = Vec::new();
        let mut rest = chunk;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let mut line = std::mem::take(&mut self.kept);
            self.board.release(line.len());
            line.extend_from_slice(&rest[..end]);
            rest = &rest[end + 1..];
            if line.len() > LINE_BYTES_MAX {
                return Err(End::told(ErrorCode::LongLine, "a line has at most 65536 bytes"));
            }
            whole.push(line);
        }
        if self.kept.len() + rest.len() > LINE_BYTES_MAX {
            return Err(End::told(ErrorCode::LongLine, "a line has at most 65536 bytes"));
        }
        if !self.board.reserve(rest.len()) {
            return Err(End::told(
                ErrorCode::Full,
                "too many unfinished lines of all clients together",
            ));
        }
        self.kept.extend_from_slice(rest);
        Ok(whole)
    }
}

impl Drop for Lines<'_> {
    fn drop(&mut self) {
        self.board.release(self.kept.len());
    }
}

struct Client<'b> {
    id: u64,
    board: &'b JobRegistry,
    answers: &'b dyn Answers,
    errors: u32,
    allowed: f64,
    last: Instant,
    welcomed: bool,
    /// The client no longer reads. Its remaining input is still processed: an `oom` is often the
    /// last message.
    deaf: bool,
}

impl Client<'_> {
    async fn say(&mut self, stream: &mut UnixStream, text: &str) -> Result<(), End> {
        if self.deaf {
            return Ok(());
        }
        match timeout(WRITE_WAIT, stream.write_all(text.as_bytes())).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => {
                self.deaf = true;
                Ok(())
            }
            Err(_) => Err(End::Gone),
        }
    }

    async fn answer(&mut self, stream: &mut UnixStream, lines: Vec<Vec<u8>>) -> Result<(), End> {
        let now = Instant::now();
        let earned = (now - self.last).as_secs_f64() * RATE_PER_S;
        self.last = now;
        self.allowed = (self.allowed + earned).min(BURST);
        // Two chunks may hold a thousand requests, and the status does not change in between.
        let mut asked_status = false;
        for line in lines {
            if line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            if self.allowed < 1.0 {
                if !self.welcomed {
                    // The dropped messages may include a hello, so do not ignore them silently.
                    return Err(End::told(ErrorCode::TooFast, "too many messages before hello"));
                }
                self.board.drop_messages(1);
                continue;
            }
            self.allowed -= 1.0;
            match serde_json::from_slice::<Request>(&line) {
                Err(err) => self.misread(stream, &misreading(&line, &err)).await?,
                Ok(Request::Hello(hello)) => self.hello(stream, hello).await?,
                Ok(request) => {
                    asked_status |= request == Request::Status;
                    if let Err(why) = self.board.take(self.id, moment(), request) {
                        self.bad_line(stream, &why.to_string()).await?;
                    }
                }
            }
        }
        if asked_status {
            let status = self.answers.status();
            self.say(stream, &status).await?;
        }
        Ok(())
    }

    /// A hello gets exactly one response: a welcome, or an error and the end of the connection.
    async fn hello(&mut self, stream: &mut UnixStream, hello: Hello) -> Result<(), End> {
        let v = hello.v.min(VERSION);
        if let Err(refusal) = self.board.has_room_for_rank(self.id) {
            return Err(End::told(ErrorCode::Full, refusal.to_string()));
        }
        if let Err(why) = self.board.take(self.id, moment(), Request::Hello(hello)) {
            return Err(End::told(ErrorCode::BadHello, why.to_string()));
        }
        self.welcomed = true;
        self.say(stream, &Answer::Welcome { v }.line()).await
    }

    async fn misread(&mut self, stream: &mut UnixStream, read: &ParseError) -> Result<(), End> {
        if read.is_hello {
            return Err(End::told(ErrorCode::BadHello, read.why.clone()));
        }
        self.bad_line(stream, &read.why).await
    }

    async fn bad_line(&mut self, stream: &mut UnixStream, why: &str) -> Result<(), End> {
        self.errors += 1;
        if self.errors >= ERRORS_MAX {
            return Err(End::told(ErrorCode::BadLines, "too many lines that are no messages"));
        }
        self.board.drop_messages(1);
        // Explain the format once; repeating it does not help.
        if self.errors == 1 {
            self.say(stream, &Answer::Error { code: ErrorCode::BadLine, message: why }.line())
                .await?;
        }
        Ok(())
    }
}
