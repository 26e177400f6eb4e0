//! The recent history of a node, from the end of the log.

use farrier_fleet::fleet::{Entry, NodeId, history};
use farrier_wire::rest::HistoryRow;
use jiff::{SignedDuration, Timestamp};

use super::failure::{Failure, internal_error};
use super::{Call, redact};

/// How far back the history goes.
const PERIOD: SignedDuration = SignedDuration::from_hours(24);
/// Maximum number of lines.
const LINES_MAX: usize = 8;
/// Entries per read.
const STEP_ENTRIES: usize = 1000;
/// Maximum number of reads, because the log of a large fleet has many entries a minute.
const READS_MAX: usize = 20;

/// Returns what happened to the node, newest first. Reads only the end of the log.
pub(super) async fn recent(
    call: &Call,
    node: &NodeId,
    now: Timestamp,
) -> Result<Vec<HistoryRow>, Failure> {
    let entries = entries(call, node, now - PERIOD).await?;
    let mut visible =
        redact::visible_entries(&call.app.controller, call.caller()?, entries).await?;
    visible.reverse();
    let id = node.clone();
    let lines = call.app.controller.read(move |state| {
        let node = state.nodes.get(&id)?;
        Some(history::recent(&visible, node, LINES_MAX))
    });
    let lines = lines.await?.unwrap_or_default();
    let row =
        |line: history::HistoryLine| HistoryRow { seq: line.seq, at: line.at, text: line.text };
    Ok(lines.into_iter().map(row).collect())
}

/// The entries of the node since then, newest first.
async fn entries(call: &Call, node: &NodeId, from: Timestamp) -> Result<Vec<Entry>, Failure> {
    let mut before = call.app.tail.end() + 1;
    let mut found = Vec::new();
    for _ in 0..READS_MAX {
        let read = call.app.tail.read_back(before, STEP_ENTRIES).await;
        let read = read.map_err(|err| internal_error(&err))?;
        let Some(oldest) = read.last() else { break };
        before = oldest.seq;
        let is_over = oldest.at < from;
        found.extend(
            read.into_iter()
                .filter(|entry| entry.at >= from && entry.event.subject() == Some(node)),
        );
        if is_over || before <= 1 {
            break;
        }
    }
    Ok(found)
}
