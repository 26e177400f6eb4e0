//! The log as it grows, as server-sent events: from where the reader was, each entry once and in order. What a reader has not taken is on
//! disk and waits there; nobody else waits for them.

use std::sync::Arc;
use std::time::Duration;

use farrier_wire::rest::EventRow;
use hyper::body::Bytes;
use tokio::sync::mpsc;

use super::Call;
use super::events::Filter;
use super::failure::Failure;
use super::limits::{READ_TIMEOUT, TOKEN_CHECK_INTERVAL};
use super::reply::{self, Reply};

/// Entries of one piece, which is bounded in bytes too.
const STEP: usize = 256;
/// A reader hears that the server is there this often.
const KEEP_ALIVE: Duration = TOKEN_CHECK_INTERVAL;

/// How a stream ended.
#[derive(Debug)]
enum End {
    /// The reader is gone, or does not read.
    Reader,
    /// The token holds no more.
    Token,
    /// The server ends, or the log does not read.
    Server,
}

/// Where the reader was: the header that browsers send, or a parameter; otherwise only what comes from now on.
fn begin(call: &Call) -> Result<u64, Failure> {
    let end = call.app.tail.end();
    let last = match call.headers.get("last-event-id") {
        Some(value) => {
            let value = value.to_str().ok().map(str::trim).filter(|it| !it.is_empty());
            let read = value.map(str::parse::<u64>);
            let wrong = |_| Failure::bad_request("`Last-Event-ID` is none that was sent");
            read.transpose().map_err(wrong)?
        }
        None => None,
    };
    // Nobody was further than the log is: they read another one, and miss nothing of this.
    Ok(last.or_else(|| call.query.number("after")).unwrap_or(end).min(end))
}

pub(super) async fn follow(mut call: Call) -> Result<Reply, Failure> {
    let filter = Filter::from_query(&call.query)?;
    let begin = begin(&call)?;
    let slot = Arc::new(call.stream_slot()?);
    let (out, reply) = Reply::stream(reply::EVENTS, &slot);
    tokio::spawn(async move {
        let end = write(&call, &filter, begin, &out).await;
        tracing::debug!(?end, "a reader of the log has ended");
        drop(slot);
    });
    Ok(reply)
}

async fn write(call: &Call, filter: &Filter, begin: u64, out: &mpsc::Sender<Bytes>) -> End {
    let Ok(caller) = call.caller() else { return End::Token };
    let mut tail = call.app.tail.clone();
    let mut stopped = call.app.stopped.clone();
    let mut at = begin;
    let mut looked = tokio::time::Instant::now();
    if let Err(end) = send(out, "retry: 2000\n\n".to_owned()).await {
        return end;
    }
    loop {
        // One wait, however often it is looked at: it has its place among those who wait to read.
        let mut next = std::pin::pin!(tail.next(at, STEP));
        let entries = loop {
            let waited = tokio::select! {
                next = tokio::time::timeout(KEEP_ALIVE, &mut next) => next,
                () = out.closed() => return End::Reader,
                _ = stopped.wait_for(|stopped| *stopped) => return End::Server,
            };
            // Whoever lost their token meanwhile hears nothing more.
            if waited.is_err() || looked.elapsed() >= TOKEN_CHECK_INTERVAL {
                looked = tokio::time::Instant::now();
                match call.app.caller_for(caller.digest.clone()).await {
                    Ok(Some(_)) => {}
                    Ok(None) => return End::Token,
                    Err(_) => return End::Server,
                }
            }
            match waited {
                Ok(Some(Ok(entries))) => break entries,
                Ok(Some(Err(_)) | None) => return End::Server,
                Err(_) => {
                    if let Err(end) = send(out, ": here\n\n".to_owned()).await {
                        return end;
                    }
                }
            }
        };
        let Some(last) = entries.last().map(|it| it.seq) else { return End::Server };
        let Ok(rows) = filter.rows(&call.app, caller, entries).await else { return End::Server };
        at = last;
        if !rows.is_empty()
            && let Err(end) = send(out, rows.iter().map(event).collect()).await
        {
            return end;
        }
    }
}

/// One event. JSON has no line breaks of its own.
fn event(row: &EventRow) -> String {
    let data = serde_json::to_string(row).unwrap_or_default();
    format!("id: {}\nevent: {}\ndata: {data}\n\n", row.seq, row.kind)
}

async fn send(out: &mpsc::Sender<Bytes>, text: String) -> Result<(), End> {
    match tokio::time::timeout(READ_TIMEOUT, out.send(text.into())).await {
        Ok(Ok(())) => Ok(()),
        _ => Err(End::Reader),
    }
}
