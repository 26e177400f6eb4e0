//! `farrier fleet events`: the log.

use std::time::Duration;

use farrier_wire::client::RestError;
use farrier_wire::rest::{EventPage, EventRow, NodeDetail};
use jiff::{SignedDuration, Timestamp};

use super::session::{FleetSession, Path};
use crate::cli::Output;
use crate::commands::Outcome;
use crate::commands::server::span;
use crate::failure::{is_unavailable, warn};
use crate::printer::Printer;

/// Delay before an attempt to reconnect a broken event stream.
const RECONNECT_DELAY: Duration = Duration::from_secs(1);
/// Number of failed attempts in a row after which to give up.
const RECONNECTS_MAX: u32 = 60;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only events of this node
    #[arg(long)]
    node: Option<String>,
    /// Only events of this kind, such as phase-changed, findings-reported, order-issued,
    /// operator-requested
    #[arg(long)]
    kind: Option<String>,
    /// Only events by this actor: a person, `farrier` (the server) or `node NAME`
    #[arg(long)]
    by: Option<String>,
    /// Only reports of findings of at least this severity: info, warning, critical, fatal
    #[arg(long)]
    severity: Option<String>,
    /// Only events of this last time, such as 15m, 2h or 7d
    #[arg(long, value_name = "TIME", value_parser = span, conflicts_with = "follow")]
    since: Option<SignedDuration>,
    /// Number of newest events, or of oldest events with --after; with --follow, exit after N
    /// [default: 50; with --since: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    /// Only events after this log entry
    #[arg(long, value_name = "SEQ")]
    after: Option<u64>,
    /// Keep printing new events until interrupted
    #[arg(long)]
    follow: bool,
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

const LIMIT_DEFAULT: u64 = 50;

pub(super) fn run(
    session: &mut FleetSession,
    args: &Args,
    printer: &mut Printer,
) -> anyhow::Result<Outcome> {
    if args.follow {
        follow(session, args, printer)?;
    } else {
        list(session, args, printer)?;
    }
    Ok(Outcome::Fine)
}

fn filtered(args: &Args, path: &str) -> Path {
    Path::new(path)
        .with("node", args.node.as_ref())
        .with("kind", args.kind.as_ref())
        .with("by", args.by.as_ref())
        .with("severity", args.severity.as_ref())
}

fn list(session: &mut FleetSession, args: &Args, printer: &mut Printer) -> anyhow::Result<()> {
    let from = args.since.map(|since| Timestamp::now() - since);
    let default = if from.is_some() { u64::MAX } else { LIMIT_DEFAULT };
    let limit = args.limit.unwrap_or(default);
    let is_forward = args.after.is_some();
    let mut cursor = args.after;
    let mut events: Vec<EventRow> = Vec::new();
    while (events.len() as u64) < limit {
        let remaining = limit - events.len() as u64;
        let name = if is_forward { "after" } else { "before" };
        let path = filtered(args, "/api/v1/events")
            .with(name, cursor)
            .with("limit", Some(remaining.min(500)));
        let page: EventPage = session.get(path.as_str())?;
        // Without --after, the newest event comes first.
        let is_new = |event: &EventRow| from.is_none_or(|from| event.at >= from);
        let is_over = !page.events.iter().all(is_new);
        events
            .extend(page.events.into_iter().filter(|event| is_new(event) && is_shown(event, args)));
        cursor = page.next;
        if cursor.is_none() || (is_over && !is_forward) {
            break;
        }
    }
    if events.is_empty() && args.output == Output::Table {
        check_node(session, args)?;
        printer.line("no such events")?;
    }
    if !is_forward {
        events.reverse();
    }
    events.iter().try_for_each(|event| print(event, args, printer))?;
    Ok(())
}

/// Whether an event is shown. Ticks say nothing to a person who does not ask for them.
fn is_shown(event: &EventRow, args: &Args) -> bool {
    args.output == Output::Json || args.kind.is_some() || event.kind != "tick"
}

/// Warns if there is no such node. A retired node is not in the fleet, but the log still has its
/// events.
fn check_node(session: &mut FleetSession, args: &Args) -> anyhow::Result<()> {
    let Some(node) = &args.node else { return Ok(()) };
    match session.get::<NodeDetail>(&format!("/api/v1/nodes/{node}")) {
        Ok(_) => Ok(()),
        Err(err) if is_unavailable(&err) => Err(err),
        Err(err) => {
            warn(&err);
            Ok(())
        }
    }
}

/// Prints one line per event, so that the output can be read while it is streamed.
fn print(event: &EventRow, args: &Args, printer: &mut Printer) -> std::io::Result<()> {
    if args.output == Output::Json {
        return printer.json_line(event);
    }
    let node = event.node.as_ref().map(|node| format!("{node} ")).unwrap_or_default();
    let at = format!("{:.0}", event.at);
    printer.line(&format!(
        "{:>8}  {at}  {:<21}  {node}{} [{}]",
        event.seq, event.kind, event.text, event.by
    ))
}

/// Follows the log, even if the server restarts. A new stream starts after the last printed entry,
/// so that no event is missed or printed twice.
fn follow(session: &mut FleetSession, args: &Args, printer: &mut Printer) -> anyhow::Result<()> {
    let mut last = args.after;
    let mut printed = 0;
    let mut failed_reconnects = 0;
    loop {
        let ended = follow_once(session, args, printer, &mut last, &mut printed);
        match ended {
            Ok(true) => return Ok(()),
            Ok(false) => failed_reconnects = 0,
            // Give up if the end of the log could not be read, if too many attempts failed, or if
            // the server refused the request. The server would refuse another attempt too.
            Err(err)
                if last.is_none()
                    || failed_reconnects >= RECONNECTS_MAX
                    || !is_unavailable(&err) =>
            {
                return Err(err);
            }
            Err(err) => {
                if failed_reconnects == 0 {
                    warn(&err);
                }
                failed_reconnects += 1;
            }
        }
        std::thread::sleep(RECONNECT_DELAY);
        session.reconnect();
    }
}

/// Returns true when `--limit` is reached, and false when the stream broke.
fn follow_once(
    session: &mut FleetSession,
    args: &Args,
    printer: &mut Printer,
    last: &mut Option<u64>,
    printed: &mut u64,
) -> anyhow::Result<bool> {
    if last.is_none() {
        // Remember the end of the log. If the stream breaks before the first event, the next stream
        // then misses no event.
        let page: EventPage = session.get("/api/v1/events?limit=1")?;
        *last = Some(page.end);
    }
    let path = filtered(args, "/api/v1/events/stream").with("after", *last);
    for line in session.lines(path.as_str())? {
        let line = match line {
            Ok(line) => line,
            Err(RestError::Broken(_)) => return Ok(false),
            Err(err) => return Err(super::session::explained(&err)),
        };
        let Some(data) = line.strip_prefix("data: ") else { continue };
        let event: EventRow = serde_json::from_str(data)?;
        *last = Some(event.seq);
        if !is_shown(&event, args) {
            continue;
        }
        print(&event, args, printer)?;
        printer.finish()?;
        *printed += 1;
        if args.limit.is_some_and(|limit| *printed >= limit) {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::json;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn a_table_leaves_out_ticks_unless_they_are_asked_for() {
        let event = |kind: &str| -> EventRow {
            serde_json::from_value(json!({
                "seq": 1, "batch": 1, "at": "2026-11-15T12:00:00Z", "by": "farrier",
                "kind": kind, "text": "", "event": {},
            }))
            .unwrap()
        };
        let shows_tick = |line: &[&str]| {
            let args = Command::try_parse_from(line).unwrap().args;
            assert!(is_shown(&event("phase-changed"), &args));
            is_shown(&event("tick"), &args)
        };
        assert!(!shows_tick(&["events", "--since", "15m"]));
        assert!(shows_tick(&["events", "--kind", "tick"]));
        assert!(shows_tick(&["events", "--output", "json"]));
    }
}
