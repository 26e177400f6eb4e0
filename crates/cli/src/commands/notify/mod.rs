//! `farrier notify`: checks the notification policy, tests receivers, shows the queue, and mutes.

mod check;
mod mute;
mod queue;

use farrier_wire::rest::{NotificationTestResult, QueuedNotificationsChanged};
use serde_json::json;

use super::fleet::session::FleetSession;
use crate::cli::Output;
use crate::commands::Outcome;
use crate::printer::Printer;

/// Notifications of the fleet server. All commands but `check FILE` use the login of `farrier login`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum NotifyCommand {
    /// Check the notification policy: receivers, routes, templates, files of secrets
    Check(check::Args),
    /// Send a test message to a receiver, and print the result
    Test(TestArgs),
    /// Show notifications that wait for delivery or cannot be delivered
    Queue(queue::Args),
    /// Deliver waiting and undeliverable notifications now
    Retry(ChooseArgs),
    /// Remove waiting and undeliverable notifications
    ///
    /// They are then never delivered.
    Drop(ChooseArgs),
    /// Mute alerts for a time
    ///
    /// When the mute ends, alerts that still fire and were not told yet are sent.
    Mute(mute::MuteArgs),
    /// End a mute
    Unmute(mute::UnmuteArgs),
    /// List mutes
    Mutes(mute::ListArgs),
    /// Acknowledge a group of alerts: it is neither repeated nor escalated
    Ack(AckArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct TestArgs {
    /// A receiver of the policy
    receiver: String,
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Output,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ChooseArgs {
    /// Name of the receiver
    receiver: String,
    /// Only the notification with this key, as `farrier notify queue --output json` shows it
    key: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct AckArgs {
    /// The group, as in its notifications
    group: String,
}

pub(crate) fn run(command: &NotifyCommand, printer: &mut Printer) -> anyhow::Result<Outcome> {
    if let NotifyCommand::Check(args) = command {
        return check::run(args, printer);
    }
    let session = &mut FleetSession::from_saved_login()?;
    match command {
        NotifyCommand::Check(args) => check::run(args, printer),
        NotifyCommand::Test(args) => test(session, args, printer),
        NotifyCommand::Queue(args) => queue::run(session, args, printer),
        NotifyCommand::Retry(args) => {
            let QueuedNotificationsChanged { count, obsolete } =
                choose(session, "/api/v1/notification-retries", args)?;
            printer.line(&format!("{} due now", notifications(count, "is", "are")))?;
            if let Some(obsolete) = obsolete.filter(|count| *count > 0) {
                let dropped = notifications(obsolete, "was", "were");
                printer.line(&format!("{dropped} dropped: what they tell is over"))?;
            }
            Ok(Outcome::Fine)
        }
        NotifyCommand::Drop(args) => {
            let QueuedNotificationsChanged { count, .. } =
                choose(session, "/api/v1/notification-drops", args)?;
            printer.line(&format!("{} dropped", notifications(count, "was", "were")))?;
            Ok(Outcome::Fine)
        }
        NotifyCommand::Mute(args) => mute::mute(session, args, printer),
        NotifyCommand::Unmute(args) => mute::unmute(session, args, printer),
        NotifyCommand::Mutes(args) => mute::list(session, args, printer),
        NotifyCommand::Ack(args) => {
            let body = json!({ "group": args.group });
            let confirmation = format!("group {} is acknowledged", args.group);
            send(session, printer, "/api/v1/acknowledgements", &body, &confirmation)
        }
    }
}

fn choose(
    session: &mut FleetSession,
    path: &str,
    args: &ChooseArgs,
) -> anyhow::Result<QueuedNotificationsChanged> {
    session.post(path, &json!({ "receiver": args.receiver, "key": args.key }))
}

fn notifications(count: u64, singular: &str, plural: &str) -> String {
    match count {
        1 => format!("1 notification {singular}"),
        count => format!("{count} notifications {plural}"),
    }
}

fn send(
    session: &mut FleetSession,
    printer: &mut Printer,
    path: &str,
    body: &serde_json::Value,
    confirmation: &str,
) -> anyhow::Result<Outcome> {
    let farrier_wire::rest::Done { changed } = session.post(path, body)?;
    printer.line(if changed { confirmation } else { "no change: this is already in effect" })?;
    Ok(Outcome::Fine)
}

fn test(
    session: &mut FleetSession,
    args: &TestArgs,
    printer: &mut Printer,
) -> anyhow::Result<Outcome> {
    let body = json!({ "receiver": args.receiver });
    let result: NotificationTestResult = session.post("/api/v1/notification-tests", &body)?;
    if args.output == Output::Json {
        printer.json(&result)?;
    } else {
        printer.line(&match &result.error {
            None => format!("`{}` accepted the test message", args.receiver),
            Some(error) => {
                format!("`{}` did not get the test message: {}", args.receiver, error.text)
            }
        })?;
    }
    Ok(Outcome::finding_if(!result.delivered))
}
