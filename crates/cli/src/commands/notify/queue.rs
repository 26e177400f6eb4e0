//! `farrier notify queue`.

use farrier_wire::rest::{NotificationGap, NotificationQueue, QueuedNotification};

use crate::cli::Output;
use crate::commands::Outcome;
use crate::commands::fleet::session::FleetSession;
use crate::printer::{Printer, Tone};

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
    let queue: NotificationQueue = session.get(&format!("/api/v1/notifications?state={state}"))?;
    let has_problem = queue.receivers.iter().any(|receiver| receiver.undeliverable > 0)
        || queue.messages.iter().any(|message| message.state == "waiting" && message.attempts > 0);
    let outcome = Outcome::finding_if(has_problem);
    if args.output == Output::Json {
        printer.json(&queue)?;
        return Ok(outcome);
    }
    if queue.receivers.is_empty() {
        printer.line("the policy has no receivers, and nothing is queued")?;
        return Ok(outcome);
    }
    receivers(&queue, printer)?;
    if !queue.messages.is_empty() {
        printer.line("")?;
        let rows: Vec<Vec<String>> =
            queue.messages.iter().map(|message| row(message, printer)).collect();
        printer.table(
            &["Receiver", "State", "Group", "Cause", "Attempts", "Next", "Last error"],
            &rows,
        )?;
    }
    if queue.more > 0 {
        printer.line(&format!("and {} more", queue.more))?;
    }
    for gap in &queue.gaps {
        printer.paragraph("gap", 5, &describe(gap))?;
    }
    Ok(outcome)
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
                receiver.delivered.to_string(),
            ]
        })
        .collect();
    let headings = ["Receiver", "Waiting", "Oldest", "Undeliverable", "Delivered"];
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
