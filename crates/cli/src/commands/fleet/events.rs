//! `farrier fleet events`: the log.

use std::time::Duration;

use farrier_wire::client::RestError;
use farrier_wire::rest::{EventPage, EventRow};

use super::session::{Path, Session};
use crate::cli::Output;
use crate::commands::Outcome;
use crate::failure::{is_unavailable, warn};
use crate::printer::Printer;

/// How long until a stream that broke off is taken up again.
const AGAIN: Duration = Duration::from_secs(1);
/// How often that is tried without hearing anything.
const TRIES: u32 = 60;

/// Shows the log.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only of this node
    #[arg(long)]
    node: Option<String>,
    /// Only of this kind, such as moved, ordered, asked
    #[arg(long)]
    kind: Option<String>,
    /// Only by this person; `farrier` is the server, `node NAME` a node
    #[arg(long)]
    by: Option<String>,
    /// How many of the last; with --follow it ends after so many
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    /// Those after this entry
    #[arg(long, value_name = "SEQ")]
    after: Option<u64>,
    /// Go on with what happens, until interrupted
    #[arg(long)]
    follow: bool,
    /// How to print them
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

const USUAL: u64 = 50;

pub(super) fn run(
    session: &mut Session,
    args: &Args,
    printer: &mut Printer,
) -> anyhow::Result<Outcome> {
    let told =
        if args.follow { follow(session, args, printer) } else { list(session, args, printer) };
    told.map(|()| Outcome::Fine)
}

fn asked(args: &Args, path: &str) -> Path {
    Path::new(path)
        .with("node", args.node.as_ref())
        .with("kind", args.kind.as_ref())
        .with("by", args.by.as_ref())
}

fn list(session: &mut Session, args: &Args, printer: &mut Printer) -> anyhow::Result<()> {
    let most = args.limit.unwrap_or(USUAL);
    let is_forward = args.after.is_some();
    let mut cursor = args.after;
    let mut events: Vec<EventRow> = Vec::new();
    while (events.len() as u64) < most {
        let left = most - events.len() as u64;
        let name = if is_forward { "after" } else { "before" };
        let path =
            asked(args, "/api/v1/events").with(name, cursor).with("limit", Some(left.min(500)));
        let page: EventPage = session.get(path.as_str())?;
        events.extend(page.events);
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    if !is_forward {
        events.reverse();
    }
    events.iter().try_for_each(|it| print(it, args, printer))?;
    Ok(())
}

/// A line each: it is read while more comes.
fn print(event: &EventRow, args: &Args, printer: &mut Printer) -> std::io::Result<()> {
    if args.output == Output::Json {
        return printer.json_line(event);
    }
    let node = event.node.as_ref().map(|it| format!("{it} ")).unwrap_or_default();
    let at = format!("{:.0}", event.at);
    printer.line(&format!(
        "{:>8}  {at}  {:<12}  {node}{} [{}]",
        event.seq, event.kind, event.text, event.by
    ))
}

/// Follows, also over a server that is started anew: nothing is missed and nothing told twice.
fn follow(session: &mut Session, args: &Args, printer: &mut Printer) -> anyhow::Result<()> {
    let mut last = args.after;
    let mut told = 0;
    let mut tries = 0;
    loop {
        let ended = follow_once(session, args, printer, &mut last, &mut told);
        match ended {
            Ok(true) => return Ok(()),
            Ok(false) => tries = 0,
            // A server that refused the request refuses the next one too.
            Err(err) if last.is_none() || tries >= TRIES || !is_unavailable(&err) => {
                return Err(err);
            }
            Err(err) => {
                if tries == 0 {
                    warn(&err);
                }
                tries += 1;
            }
        }
        std::thread::sleep(AGAIN);
        session.reconnect();
    }
}

/// True: as many as were asked for.
fn follow_once(
    session: &mut Session,
    args: &Args,
    printer: &mut Printer,
    last: &mut Option<u64>,
    told: &mut u64,
) -> anyhow::Result<bool> {
    if last.is_none() {
        // So that one knows where to go on though nothing was heard yet.
        let page: EventPage = session.get("/api/v1/events?limit=1")?;
        *last = Some(page.end);
    }
    let path = asked(args, "/api/v1/events/stream").with("after", *last);
    for line in session.lines(path.as_str())? {
        let line = match line {
            Ok(line) => line,
            Err(RestError::Broken(_)) => return Ok(false),
            Err(err) => return Err(super::session::explained(&err)),
        };
        let Some(data) = line.strip_prefix("data: ") else { continue };
        let event: EventRow = serde_json::from_str(data)?;
        *last = Some(event.seq);
        print(&event, args, printer)?;
        printer.finish()?;
        *told += 1;
        if args.limit.is_some_and(|most| *told >= most) {
            return Ok(true);
        }
    }
    Ok(false)
}
