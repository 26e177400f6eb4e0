//! `farrier notify queue`.

use farrier_wire::rest::{
    NotificationDatabaseFailure, NotificationGap, NotificationQueue, QueuedNotification,
};

use crate::cli::Output;
use crate::commands::Outcome;
use crate::commands::fleet::session::{FleetSession, Path};
use crate::printer::{Printer, Tone};

/// A notifier that is behind for longer is stuck: it reads thousands of entries a second.
const BEHIND_S_MAX: u64 = 60;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Also show notifications that were delivered lately
    #[arg(long)]
    all: bool,
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Output,
}

pub(super) fn run(
    session: &mut FleetSession,
    args: &Args,
    printer: &mut Printer,
) -> anyhow::Result<Outcome> {
    let state = if args.all { "all" } else { "open" };
    let queue = read(|cursor| {
        let path = Path::new("/api/v1/notifications").with("state", Some(state));
        session.get(path.with("cursor", cursor).as_str())
    })?;
    if args.output == Output::Json {
        printer.json(&queue)?;
        return Ok(outcome(&queue));
    }
    print(&queue, printer)?;
    Ok(outcome(&queue))
}

/// Reads all pages. What is not about single messages is from the last page.
fn read(
    mut get: impl FnMut(Option<&String>) -> anyhow::Result<NotificationQueue>,
) -> anyhow::Result<NotificationQueue> {
    let mut queue = get(None)?;
    while let Some(cursor) = queue.next.take() {
        let page = get(Some(&cursor))?;
        let mut messages = queue.messages;
        messages.extend(page.messages);
        queue = NotificationQueue { messages, ..page };
    }
    Ok(queue)
}

fn outcome(queue: &NotificationQueue) -> Outcome {
    let has_problem = queue.receivers.iter().any(|receiver| receiver.undeliverable > 0)
        || queue.messages.iter().any(|message| message.state == "waiting" && message.attempts > 0)
        || queue.behind_s > BEHIND_S_MAX
        || queue.database.is_some();
    Outcome::finding_if(has_problem)
}

fn print(queue: &NotificationQueue, printer: &mut Printer) -> anyhow::Result<()> {
    if let Some(NotificationDatabaseFailure { error, since }) = &queue.database {
        let text = format!(
            "the notification database has failed since {since:.0}, so nothing is delivered: {error}"
        );
        printer.line(&printer.toned(Tone::Bad, &text))?;
    }
    if queue.behind_s > BEHIND_S_MAX {
        let entries = queue.end.saturating_sub(queue.cursor);
        let text = format!(
            "read up to entry {} of {}: {entries} entries behind, for {} s; see the server's log",
            queue.cursor, queue.end, queue.behind_s
        );
        printer.line(&printer.toned(Tone::Bad, &text))?;
    }
    if queue.receivers.is_empty() && queue.database.is_some() {
        return Ok(());
    }
    if queue.receivers.is_empty() {
        printer.line("the policy has no receivers, and nothing is queued")?;
        return Ok(());
    }
    receivers(queue, printer)?;
    if !queue.messages.is_empty() {
        printer.line("")?;
        let rows: Vec<Vec<String>> =
            queue.messages.iter().map(|message| row(message, printer)).collect();
        printer.table(
            &["Receiver", "State", "Group", "Cause", "Attempts", "Next", "Last error"],
            &rows,
        )?;
    }
    for gap in &queue.gaps {
        printer.paragraph("gap", 5, &describe(gap))?;
    }
    Ok(())
}

fn receivers(queue: &NotificationQueue, printer: &mut Printer) -> anyhow::Result<()> {
    let rows: Vec<Vec<String>> = queue
        .receivers
        .iter()
        .map(|receiver| {
            let oldest =
                receiver.oldest.map_or_else(|| "-".to_owned(), |oldest| format!("{oldest:.0}"));
            vec![
                receiver.receiver.clone(),
                receiver.waiting.to_string(),
                oldest,
                receiver.undeliverable.to_string(),
                receiver.dropped.to_string(),
                receiver.delivered.to_string(),
            ]
        })
        .collect();
    let headings = ["Receiver", "Waiting", "Oldest", "Undeliverable", "Dropped", "Delivered"];
    printer.table(&headings, &rows)?;
    Ok(())
}

fn row(message: &QueuedNotification, printer: &Printer) -> Vec<String> {
    let tone = match message.state.as_str() {
        "delivered" => Tone::Good,
        "undeliverable" => Tone::Bad,
        _ => Tone::Caution,
    };
    let cause = match message.status.as_str() {
        "resolved" => format!("resolved: {}", message.cause),
        _ => format!("{} {}", message.severity, message.cause),
    };
    vec![
        message.receiver.clone(),
        printer.toned(tone, &message.state),
        message.group.clone(),
        cause,
        message.attempts.to_string(),
        message.next.map_or_else(|| "-".to_owned(), |next| format!("{next:.0}")),
        message.error.as_ref().map_or_else(|| "-".to_owned(), |error| error.text.clone()),
    ]
}

fn describe(gap: &NotificationGap) -> String {
    let cause = match gap.cause.as_str() {
        "lost" => "the notification database was missing",
        "damaged" => "the notification database was damaged (kept as `notify.damaged`)",
        "archived" => "entries of the log were archived before they were read",
        "log-replaced" => "the log is an older copy",
        other => other,
    };
    format!(
        "at {:.0}, entry {}: {cause}; notifications from before may be missing",
        gap.at, gap.end
    )
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn message(state: &str, attempts: u32, error: &Value, summarised: u64) -> Value {
        json!({
            "receiver": "ops", "state": state, "key": "k", "group": "3f9c0a17be42",
            "status": "firing", "severity": "critical", "code": "gpu.xid", "cause": "Xid 79",
            "nodes": 1, "queued": "2026-11-19T10:00:00Z", "attempts": attempts, "next": null,
            "error": error, "summarised": summarised,
        })
    }

    fn queue(messages: &[Value], gaps: &Value, behind_s: u64) -> NotificationQueue {
        serde_json::from_value(json!({
            "receivers": [{
                "receiver": "ops", "waiting": 2, "undeliverable": 1, "dropped": 41,
                "oldest": "2026-11-19T10:00:00Z", "delivered": 7, "retries": 3,
            }],
            "messages": messages, "more": 0, "next": null, "database": null, "gaps": gaps,
            "cursor": 10, "end": 25, "behind_s": behind_s,
        }))
        .unwrap()
    }

    fn printed(queue: &NotificationQueue) -> String {
        Printer::capture(160, false, |printer| print(queue, printer).unwrap())
    }

    #[test]
    fn everything_that_needs_a_person_is_shown_and_is_a_finding() {
        let error = json!({ "code": "status", "text": "`ops.example` answered 503" });
        let gaps =
            json!([{ "at": "2026-11-19T09:00:00Z", "after": 5, "end": 9, "cause": "damaged" }]);
        let waiting = message("waiting", 3, &error, 0);
        let undeliverable = message("undeliverable", 1, &error, 0);
        let summary = message("waiting", 0, &Value::Null, 12);
        let text = printed(&queue(&[waiting, undeliverable, summary], &gaps, 61));
        for part in [
            "read up to entry 10 of 25: 15 entries behind, for 61 s",
            "waiting",
            "undeliverable",
            "critical Xid 79",
            "`ops.example` answered 503",
            "Dropped",
            "41",
            "the notification database was damaged",
        ] {
            assert!(text.contains(part), "{part:?} is not in\n{text}");
        }
        let is_finding = |queue: &NotificationQueue| outcome(queue) == Outcome::finding_if(true);
        let mut healthy = queue(&[], &json!([]), 60);
        healthy.receivers[0].undeliverable = 0;
        assert!(!is_finding(&healthy));
        assert!(!printed(&healthy).contains("behind"));
        healthy.behind_s = 61;
        assert!(is_finding(&healthy), "the notifier is stuck");
        healthy.behind_s = 0;
        healthy.messages.push(serde_json::from_value(message("waiting", 1, &error, 0)).unwrap());
        assert!(is_finding(&healthy), "a delivery failed");
    }

    #[test]
    fn a_database_that_fails_is_shown_and_is_a_finding() {
        let mut failing = queue(&[], &json!([]), 0);
        failing.receivers.clear();
        failing.database = Some(NotificationDatabaseFailure {
            error: "failed to update the queue: database or disk is full".to_owned(),
            since: "2026-11-19T10:00:00Z".parse().unwrap(),
        });
        assert_eq!(
            printed(&failing).trim_end(),
            "the notification database has failed since 2026-11-19T10:00:00Z, so nothing is delivered: failed to update the queue: database or disk is full"
        );
        assert_eq!(outcome(&failing), Outcome::finding_if(true));
    }

    #[test]
    fn all_pages_are_read() {
        let mut asked = Vec::new();
        let all = read(|cursor| {
            let number = asked.len();
            asked.push(cursor.cloned());
            let mut page = queue(&[message("waiting", 0, &Value::Null, 0)], &json!([]), 0);
            page.messages[0].key = format!("key-{number}");
            page.next = (number < 2).then(|| format!("ops/{number}"));
            Ok(page)
        });
        let all = all.unwrap();
        let keys: Vec<&str> = all.messages.iter().map(|message| message.key.as_str()).collect();
        assert_eq!(keys, ["key-0", "key-1", "key-2"]);
        assert_eq!(asked, [None, Some("ops/0".to_owned()), Some("ops/1".to_owned())]);
        assert_eq!(all.next, None);
    }
}
