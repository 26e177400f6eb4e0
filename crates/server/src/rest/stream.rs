//! The growing log as server-sent events. Each entry is sent once and in order, beginning at the
//! client's position. Unread entries stay on disk, so a slow client blocks nothing.

use std::sync::Arc;
use std::time::Duration;

use farrier_wire::rest::EventRow;
use hyper::body::Bytes;
use tokio::sync::mpsc;

use super::Call;
use super::events::EventFilter;
use super::failure::Failure;
use super::limits::{READ_TIMEOUT, TOKEN_CHECK_INTERVAL};
use super::reply::{self, Reply};

/// Entries per read. A read is also limited in bytes.
const STEP_ENTRIES: usize = 256;
/// How often a comment is sent to keep an idle stream alive.
const KEEP_ALIVE: Duration = TOKEN_CHECK_INTERVAL;

#[derive(Debug)]
enum StreamEnd {
    /// The client has disconnected or does not read.
    Reader,
    Token,
    /// The server is stopping, or the log is unreadable.
    Server,
}

/// The position from which to stream. It is the `Last-Event-ID` header, which browsers send when
/// they reconnect. Without the header, it is `after`. Without both, it is the current end of the
/// log.
fn begin(call: &Call) -> Result<u64, Failure> {
    let end = call.app.tail.end();
    let last = match call.headers.get("last-event-id") {
        Some(value) => {
            let value = value.to_str().ok().map(str::trim).filter(|value| !value.is_empty());
            let read = value.map(str::parse::<u64>);
            let wrong = |_| Failure::bad_request("`Last-Event-ID` is not an event of this log");
            read.transpose().map_err(wrong)?
        }
        None => None,
    };
    // A position beyond the end belongs to another log, so the stream then starts at the end.
    Ok(last.or_else(|| call.query.number("after")).unwrap_or(end).min(end))
}

pub(super) async fn follow(mut call: Call) -> Result<Reply, Failure> {
    let filter = EventFilter::from_query(&call.query)?;
    let begin = begin(&call)?;
    let slot = Arc::new(call.stream_slot()?);
    let (out, reply) = Reply::stream(reply::EVENTS, &slot);
    tokio::spawn(async move {
        let end = write(&call, &filter, begin, &out).await;
        tracing::debug!(?end, "a log stream ended");
        drop(slot);
    });
    Ok(reply)
}

async fn write(
    call: &Call,
    filter: &EventFilter,
    begin: u64,
    out: &mpsc::Sender<Bytes>,
) -> StreamEnd {
    let Ok(caller) = call.caller() else { return StreamEnd::Token };
    let mut tail = call.app.tail.clone();
    let mut stopped = call.app.stopped.clone();
    let mut at = begin;
    let mut last_check = tokio::time::Instant::now();
    if let Err(end) = send(out, "retry: 2000\n\n".to_owned()).await {
        return end;
    }
    loop {
        // The future must survive the timeouts, because dropping it would lose its place in the
        // queue of readers.
        let mut next = std::pin::pin!(tail.next(at, STEP_ENTRIES));
        let entries = loop {
            let waited = tokio::select! {
                next = tokio::time::timeout(KEEP_ALIVE, &mut next) => next,
                () = out.closed() => return StreamEnd::Reader,
                _ = stopped.wait_for(|stopped| *stopped) => return StreamEnd::Server,
            };
            // A client gets nothing more when its token is invalid.
            if waited.is_err() || last_check.elapsed() >= TOKEN_CHECK_INTERVAL {
                last_check = tokio::time::Instant::now();
                match call.app.caller_for(caller.digest.clone()).await {
                    Ok(Some(_)) => {}
                    Ok(None) => return StreamEnd::Token,
                    Err(_) => return StreamEnd::Server,
                }
            }
            match waited {
                Ok(Some(Ok(entries))) => break entries,
                Ok(Some(Err(_)) | None) => return StreamEnd::Server,
                Err(_) => {
                    if let Err(end) = send(out, ": here\n\n".to_owned()).await {
                        return end;
                    }
                }
            }
        };
        let Some(last) = entries.last().map(|entry| entry.seq) else { return StreamEnd::Server };
        let Ok(rows) = filter.rows(&call.app, caller, entries).await else {
            return StreamEnd::Server;
        };
        at = last;
        if !rows.is_empty()
            && let Err(end) = send(out, rows.iter().map(event).collect()).await
        {
            return end;
        }
    }
}

/// Formats a row as one event. The JSON must have no raw line breaks, because a line break would
/// end the data of the event.
fn event(row: &EventRow) -> String {
    let data = serde_json::to_string(row).unwrap_or_default();
    format!("id: {}\nevent: {}\ndata: {data}\n\n", row.seq, row.kind)
}

async fn send(out: &mpsc::Sender<Bytes>, text: String) -> Result<(), StreamEnd> {
    match tokio::time::timeout(READ_TIMEOUT, out.send(text.into())).await {
        Ok(Ok(())) => Ok(()),
        _ => Err(StreamEnd::Reader),
    }
}
