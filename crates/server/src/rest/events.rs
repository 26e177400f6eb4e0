//! Returns the log, one page at a time.

use farrier_fleet::fleet::describe_event::KINDS;
use farrier_fleet::fleet::{Entry, NodeId};
use farrier_fleet::health::Severity;
use farrier_wire::rest::{EventPage, EventRow};

use super::caller::Caller;
use super::failure::{Failure, internal_error};
use super::query::Params;
use super::reply::{Reply, json_bytes};
use super::{AppState, Call, redact};

const PAGE: usize = 100;
/// Maximum bytes of a page. A single event may be larger.
const PAGE_BYTES_MAX: usize = 2 << 20;
/// Entries per read.
const STEP_ENTRIES: u64 = 1000;
/// Maximum number of reads per page. If entries are large, each read returns only about
/// [`crate::log_tail::READ_BYTES_MAX`] bytes.
const READS_MAX: usize = 64;
/// Maximum number of entries that are scanned for a page. A page may therefore have fewer events
/// than the request asked for. The page says where to continue.
const SCANNED_MAX: u64 = 20_000;

#[derive(Debug, Clone)]
pub(super) struct EventFilter {
    node: Option<NodeId>,
    kind: Option<String>,
    by: Option<String>,
    /// Minimum severity. Only findings have a severity.
    severity: Option<Severity>,
}

/// Values of the `kind` parameter.
pub(super) const EVENT_KINDS: &[&str] = &KINDS;

impl EventFilter {
    pub(super) fn from_query(query: &Params) -> Result<Self, Failure> {
        Ok(Self {
            node: query.parsed("node")?,
            kind: query.text("kind").map(str::to_owned),
            by: query.text("by").map(str::to_owned),
            severity: query
                .text("severity")
                .and_then(|word| serde_json::from_value(word.into()).ok()),
        })
    }

    /// Returns the entries that match and that the caller may see.
    pub(super) async fn rows(
        &self,
        app: &AppState,
        caller: &Caller,
        mut entries: Vec<Entry>,
    ) -> Result<Vec<EventRow>, Failure> {
        // Filter before the redaction. The redaction is more expensive, because it reads the fleet
        // state from the controller.
        entries.retain(|entry| self.matches(entry));
        let visible = redact::visible_entries(&app.controller, caller, entries).await?;
        let caller = caller.clone();
        let described = app.controller.read(move |state| {
            let describe = |entry: Entry| {
                let node = entry.event.subject().and_then(|id| state.nodes.get(id));
                let node = node.filter(|node| caller.sees(&node.location));
                let text = entry.event.describe_on(node.map(|node| &**node));
                (entry, text)
            };
            visible.into_iter().map(describe).collect::<Vec<_>>()
        });
        described.await?.into_iter().map(|(entry, text)| row(&entry, text)).collect()
    }

    fn matches(&self, entry: &Entry) -> bool {
        self.kind.as_ref().is_none_or(|kind| entry.event.kind() == kind)
            && self.node.as_ref().is_none_or(|node| entry.event.subject() == Some(node))
            && self.by.as_ref().is_none_or(|by| entry.by.to_string() == *by)
            && self.severity.is_none_or(|least| entry.event.severity() >= Some(least))
    }
}

fn row(entry: &Entry, text: String) -> Result<EventRow, Failure> {
    Ok(EventRow {
        seq: entry.seq,
        batch: entry.batch,
        at: entry.at,
        by: entry.by.to_string(),
        kind: entry.event.kind().to_owned(),
        node: entry.event.subject().cloned(),
        text,
        event: serde_json::to_value(&entry.event).map_err(|err| internal_error(&err))?,
    })
}

/// Lists the log. With `after`, the oldest event comes first. Otherwise the newest comes first, and
/// the list goes backwards from `before` or from the end.
pub(super) async fn list(call: Call) -> Result<Reply, Failure> {
    let (after, before) = (call.query.number("after"), call.query.number("before"));
    if after.is_some() && before.is_some() {
        return Err(Failure::bad_request("`after` and `before` exclude each other"));
    }
    let (begin, end) = (call.app.tail.begin().await, call.app.tail.end());
    let begin = begin.map_err(|err| internal_error(&err))?;
    let page = if let Some(after) = after {
        forward(&call, after.max(begin - 1), (begin, end)).await?
    } else {
        let before = before.unwrap_or(u64::MAX).clamp(begin, end + 1);
        backward(&call, before, (begin, end)).await?
    };
    Reply::json(&page)
}

struct PageBuilder {
    events: Vec<EventRow>,
    bytes: usize,
    limit: usize,
    reads: usize,
}

impl PageBuilder {
    fn new(call: &Call) -> Self {
        Self { events: Vec::new(), bytes: 0, limit: call.query.limit(PAGE), reads: 0 }
    }

    fn is_full(&self) -> bool {
        self.events.len() >= self.limit || self.bytes >= PAGE_BYTES_MAX
    }

    /// Adds rows until the page is full. If some rows do not fit, returns the number of the last
    /// row that did.
    fn extend(&mut self, rows: Vec<EventRow>) -> Option<u64> {
        self.reads += 1;
        for row in rows {
            let bytes = json_bytes(&row);
            let has_room = self.bytes + bytes <= PAGE_BYTES_MAX || self.events.is_empty();
            if self.is_full() || !has_room {
                self.bytes = PAGE_BYTES_MAX;
                return self.events.last().map(|event| event.seq);
            }
            self.bytes += bytes;
            self.events.push(row);
        }
        None
    }

    /// Whether to read more entries for this page.
    fn can_scan_more(&self) -> bool {
        !self.is_full() && self.reads < READS_MAX
    }
}

async fn forward(call: &Call, after: u64, (begin, end): (u64, u64)) -> Result<EventPage, Failure> {
    let filter = EventFilter::from_query(&call.query)?;
    let mut page = PageBuilder::new(call);
    let mut at = after;
    let stop = after.saturating_add(SCANNED_MAX).min(end);
    while at < stop && page.can_scan_more() {
        let to = (at + STEP_ENTRIES).min(stop);
        let read = call.app.tail.read(at, entry_count(to - at)).await;
        let mut entries = read.map_err(|err| internal_error(&err))?;
        // If entries were archived in the meantime, the log returns later entries instead. Remove
        // these later entries.
        entries.retain(|entry| entry.seq <= to);
        at = entries.last().map_or(to, |entry| entry.seq);
        let rows = filter.rows(&call.app, call.caller()?, entries).await?;
        at = page.extend(rows).unwrap_or(at);
    }
    Ok(EventPage { events: page.events, next: (at < end).then_some(at), begin, end })
}

async fn backward(
    call: &Call,
    before: u64,
    (begin, end): (u64, u64),
) -> Result<EventPage, Failure> {
    let filter = EventFilter::from_query(&call.query)?;
    let mut page = PageBuilder::new(call);
    let mut at = before;
    let stop = before.saturating_sub(SCANNED_MAX).max(begin);
    while at > stop && page.can_scan_more() {
        // The first read is small, because most callers want only the last few entries.
        let back = if at == before {
            (page.limit as u64).saturating_mul(2).min(STEP_ENTRIES)
        } else {
            STEP_ENTRIES
        };
        let from = at.saturating_sub(back).max(stop);
        let read = call.app.tail.read_back(at, entry_count(at - from)).await;
        let entries = read.map_err(|err| internal_error(&err))?;
        at = entries.last().map_or(from, |entry| entry.seq);
        let rows = filter.rows(&call.app, call.caller()?, entries).await?;
        at = page.extend(rows).unwrap_or(at);
    }
    Ok(EventPage { events: page.events, next: (at > begin).then_some(at), begin, end })
}

fn entry_count(entries: u64) -> usize {
    usize::try_from(entries).unwrap_or(usize::MAX)
}
