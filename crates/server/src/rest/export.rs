//! Exports the nodes or the log as JSON lines, as fast as the client reads. The export contains
//! only what the caller may see.

use std::ops::Bound;
use std::sync::Arc;

use farrier_wire::rest::NodeRow;
use hyper::body::Bytes;
use serde::Serialize;
use tokio::sync::mpsc;

use super::domain_impacts::DomainImpacts;
use super::events::EventFilter;
use super::failure::Failure;
use super::limits::READ_TIMEOUT;
use super::nodes::{fill_connections, row};
use super::reply::{self, Reply};
use super::{Call, pagination};
use crate::log_tail::READ_BYTES_MAX;

/// Nodes that are in memory at the same time.
const NODES_STEP: usize = 100;
/// Entries per read. A read is also limited in bytes.
const ENTRIES_STEP: usize = 500;

pub(super) async fn export(mut call: Call) -> Result<Reply, Failure> {
    let slot = Arc::new(call.stream_slot()?);
    let (out, reply) = Reply::stream(reply::LINES, &slot);
    let exports_log = call.query.text("data") == Some("log");
    let filter = EventFilter::from_query(&call.query)?;
    tokio::spawn(async move {
        let write = async {
            if exports_log { log(&call, &filter, &out).await } else { state(&call, &out).await }
        };
        // While the export waits for the client or the disk, the token is checked too.
        let written = tokio::select! {
            written = write => written,
            failure = call.token_invalidated() => Err(ExportStop::Failed(failure)),
        };
        // A problem in the last line tells the client that the export is incomplete.
        if let Err(ExportStop::Failed(failure)) = written {
            let _ = send(&out, &[failure.problem]).await;
        }
        drop(slot);
    });
    Ok(reply)
}

pub(super) enum ExportStop {
    /// The client has disconnected or does not read.
    Reader,
    Failed(Failure),
}

impl From<Failure> for ExportStop {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

async fn state(call: &Call, out: &mpsc::Sender<Bytes>) -> Result<(), ExportStop> {
    let mut from = Bound::Unbounded;
    loop {
        let (now, viewer) = (call.app.controller.now(), call.caller()?.clone());
        let impacts = DomainImpacts::of(&viewer);
        let visit: pagination::Visit<NodeRow> = Arc::new(move |state, id, node, found| {
            found.push(row(&viewer, &impacts, state, (id, node), now));
        });
        let range = (from, Bound::Unbounded);
        let mut nodes =
            pagination::nodes(&call.app.controller, call.caller()?, range, NODES_STEP, visit)
                .await?;
        let Some(last) = nodes.last().map(|node| node.node.clone()) else { return Ok(()) };
        let is_last = nodes.len() <= NODES_STEP;
        fill_connections(&call.app, &mut nodes);
        send(out, &nodes).await?;
        if is_last {
            return Ok(());
        }
        from = Bound::Excluded(last);
    }
}

/// Exports the log up to its current end.
async fn log(
    call: &Call,
    filter: &EventFilter,
    out: &mpsc::Sender<Bytes>,
) -> Result<(), ExportStop> {
    let end = call.app.tail.end();
    let mut at = call.query.number("after").unwrap_or_default();
    while at < end {
        let read = call.app.tail.read(at, ENTRIES_STEP).await;
        let mut entries = read.map_err(|err| super::failure::internal_error(&err))?;
        entries.retain(|entry| entry.seq <= end);
        let Some(last) = entries.last().map(|entry| entry.seq) else {
            return Err(Failure::internal_error().into());
        };
        let rows = filter.rows(&call.app, call.caller()?, entries).await?;
        send(out, &rows).await?;
        at = last;
    }
    Ok(())
}

pub(super) async fn send(
    out: &mpsc::Sender<Bytes>,
    lines: &[impl Serialize],
) -> Result<(), ExportStop> {
    let mut bytes = Vec::new();
    for line in lines {
        serde_json::to_writer(&mut bytes, line)
            .map_err(|_| ExportStop::Failed(Failure::internal_error()))?;
        bytes.push(b'\n');
        if bytes.len() >= READ_BYTES_MAX {
            send_piece(out, std::mem::take(&mut bytes)).await?;
        }
    }
    if bytes.is_empty() { Ok(()) } else { send_piece(out, bytes).await }
}

async fn send_piece(out: &mpsc::Sender<Bytes>, bytes: Vec<u8>) -> Result<(), ExportStop> {
    match tokio::time::timeout(READ_TIMEOUT, out.send(bytes.into())).await {
        Ok(Ok(())) => Ok(()),
        _ => Err(ExportStop::Reader),
    }
}
