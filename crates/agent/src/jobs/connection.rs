//! One connection. Everything about it is bounded: the line, the rate, the answers that wait.

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

use super::board::Board;
use super::protocol::{Answer, Request, VERSION};
use super::server::Answers;

/// Answers that may wait for a client that is slow to read.
pub(super) const OUTBOX: usize = 16;
/// A message has some hundred bytes.
const LINE_BYTES_MAX: usize = 64 << 10;
/// Messages a second of one client, and how many it may have saved up. A step takes milliseconds at least.
const RATE_PER_S: f64 = 1000.0;
const BURST: f64 = 2000.0;
/// Lines that are not understood before the connection ends.
const ERRORS_MAX: u32 = 10;
/// A client that does not take an answer for so long is let go.
const WRITE_WAIT: Duration = Duration::from_secs(5);
const CHUNK_BYTES: usize = 8 << 10;

/// Why a connection ends.
enum End {
    Gone,
    Told(&'static str),
}

/// Says one line and closes, without waiting.
pub(super) fn refuse(stream: &UnixStream, why: &str) {
    let _ = stream.try_write(Answer::Error { message: why }.line().as_bytes());
}

/// Serves a client until one of both ends it.
pub(super) async fn serve(
    mut stream: UnixStream,
    id: u64,
    mut outbox: Receiver<Arc<str>>,
    board: &Board,
    answers: &dyn Answers,
) {
    let mut lines = Lines { kept: Vec::new(), board };
    let mut client = Client { id, board, answers, errors: 0, allowed: BURST, last: Instant::now() };
    let end = loop {
        tokio::select! {
            line = outbox.recv() => match line {
                Some(line) => {
                    if let Err(end) = write(&mut stream, &line).await { break end; }
                    board.drained(id);
                }
                None => break End::Gone,
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
    if let End::Told(why) = end {
        board.drop_messages(1);
        refuse(&stream, why);
    }
}

fn moment() -> Moment {
    Moment { steady_ms: clock::since_boot_ms(), wall: Timestamp::now() }
}

async fn write(stream: &mut UnixStream, text: &str) -> Result<(), End> {
    match timeout(WRITE_WAIT, stream.write_all(text.as_bytes())).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) | Err(_) => Err(End::Gone),
    }
}

/// Whole lines out of chunks.
struct Lines<'b> {
    kept: Vec<u8>,
    board: &'b Board,
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
                return Err(End::Told("a line has at most 65536 bytes"));
            }
            whole.push(line);
        }
        if self.kept.len() + rest.len() > LINE_BYTES_MAX {
            return Err(End::Told("a line has at most 65536 bytes"));
        }
        if !self.board.reserve(rest.len()) {
            return Err(End::Told("too many unfinished lines of all clients together"));
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
    board: &'b Board,
    answers: &'b dyn Answers,
    errors: u32,
    allowed: f64,
    last: Instant,
}

impl Client<'_> {
    async fn answer(&mut self, stream: &mut UnixStream, lines: Vec<Vec<u8>>) -> Result<(), End> {
        let now = Instant::now();
        let earned = (now - self.last).as_secs_f64() * RATE_PER_S;
        self.last = now;
        self.allowed = (self.allowed + earned).min(BURST);
        // Two chunks may bring a thousand requests; the state does not change in between.
        let mut asked_status = false;
        for line in lines {
            if line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            if self.allowed < 1.0 {
                self.board.drop_messages(1);
                continue;
            }
            self.allowed -= 1.0;
            let refused = match serde_json::from_slice::<Request>(&line) {
                Err(err) => Some(err.to_string()),
                Ok(request) => {
                    asked_status |= request == Request::Status;
                    let hello = matches!(request, Request::Hello { .. });
                    let taken = self.board.take(self.id, moment(), request);
                    if taken.is_ok() && hello {
                        write(stream, &Answer::Welcome { v: VERSION }.line()).await?;
                    }
                    taken.err()
                }
            };
            if let Some(why) = refused {
                self.refused(stream, &why).await?;
            }
        }
        if asked_status {
            let status = self.answers.status();
            write(stream, &status).await?;
        }
        Ok(())
    }

    async fn refused(&mut self, stream: &mut UnixStream, why: &str) -> Result<(), End> {
        self.errors += 1;
        self.board.drop_messages(1);
        if self.errors >= ERRORS_MAX {
            return Err(End::Told("too many lines that are no messages"));
        }
        // One line says how it is meant; nine more of them help nobody.
        if self.errors == 1 {
            write(stream, &Answer::Error { message: why }.line()).await?;
        }
        Ok(())
    }
}
