//! `farrier notify check`.

use std::path::PathBuf;

use farrier_fleet::notify::NotificationPolicy;
use farrier_notify::ReceiverFiles;
use farrier_wire::rest::{PolicyView, ReceiverProblemList, ReceiverProblemView};
use serde::Serialize;

use crate::cli::Output;
use crate::commands::Outcome;
use crate::commands::fleet::session::FleetSession;
use crate::commands::policy::document;
use crate::commands::receiver_folders::ReceiverFolderArgs;
use crate::failure::Hinted;
use crate::printer::{Printer, Tone};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Policy file in TOML or JSON, as for `farrier policy set`, or `-` for stdin
    #[arg(required_unless_present = "server")]
    file: Option<PathBuf>,
    /// Check the policy in force instead, with the server's files
    #[arg(long, conflicts_with = "file")]
    server: bool,
    /// Leave out problems of the files of secrets, certificates and commands
    #[arg(long)]
    no_files: bool,
    #[command(flatten)]
    receivers: ReceiverFolderArgs,
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Output,
}

#[derive(Debug, Serialize)]
struct Problem {
    /// The field of the policy.
    at: String,
    /// An error prevents the policy from being set.
    is_error: bool,
    text: String,
}

pub(super) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let (policy, receivers) = if let Some(file) = &args.file {
        let policy = document::read(file)?;
        let files = ReceiverFiles::within(args.receivers.folders());
        let receivers = local_problems(&policy.notifications, &files);
        (policy, receivers)
    } else {
        if args.receivers.are_given() {
            return Err(Hinted::error(
                "the server checks with its own folders".to_owned(),
                "use `--notify-commands` and `--notify-secrets` with a policy file only",
            ));
        }
        let session = &mut FleetSession::from_saved_login()?;
        let PolicyView { policy } = session.get("/api/v1/policy")?;
        let ReceiverProblemList { problems } = session.get("/api/v1/receiver-problems")?;
        (policy, problems)
    };
    let problems = problems(&policy.notifications, receivers, !args.no_files);
    let outcome = Outcome::finding_if(!problems.is_empty());
    if args.output == Output::Json {
        printer.json(&serde_json::json!({ "problems": problems }))?;
        return Ok(outcome);
    }
    if problems.is_empty() {
        let (receivers, routes) =
            (policy.notifications.receivers.len(), policy.notifications.routes.len());
        printer.line(&format!("no problems: {receivers} receivers, {routes} routes"))?;
    }
    for problem in &problems {
        let word = if problem.is_error {
            printer.toned(Tone::Bad, "error")
        } else {
            printer.toned(Tone::Caution, "warning")
        };
        printer.line(&format!("{word} {}: {}", problem.at, problem.text))?;
    }
    Ok(outcome)
}

/// What is wrong with the receivers, with the files of this machine.
fn local_problems(policy: &NotificationPolicy, files: &ReceiverFiles) -> Vec<ReceiverProblemView> {
    let problems = policy.receivers.iter().flat_map(|(name, receiver)| {
        farrier_notify::check(receiver, files).into_iter().map(|problem| ReceiverProblemView {
            receiver: name.clone(),
            key: problem.key.to_owned(),
            is_error: problem.is_error(),
            is_about_files: problem.is_about_files(),
            text: problem.text(),
        })
    });
    problems.collect()
}

fn problems(
    policy: &NotificationPolicy,
    receivers: Vec<ReceiverProblemView>,
    checks_files: bool,
) -> Vec<Problem> {
    let problems = policy.problems().into_iter().map(|problem| Problem {
        is_error: problem.is_error(),
        text: problem.kind.to_string(),
        at: problem.at,
    });
    let mut problems: Vec<Problem> = problems.collect();
    // Files may be on the server only.
    for found in receivers.into_iter().filter(|found| checks_files || !found.is_about_files) {
        let at = format!("notifications.receivers.{}.{}", found.receiver, found.key);
        if problems.iter().all(|known| known.at != at) {
            problems.push(Problem { at, is_error: found.is_error, text: found.text });
        }
    }
    problems
}
