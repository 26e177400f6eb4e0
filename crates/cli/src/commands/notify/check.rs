//! `farrier notify check`.

use std::path::PathBuf;

use farrier_fleet::notify::NotificationPolicy;
use farrier_wire::rest::PolicyView;
use serde::Serialize;

use crate::cli::Output;
use crate::commands::Outcome;
use crate::commands::fleet::session::FleetSession;
use crate::commands::policy::document;
use crate::printer::{Printer, Tone};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Policy file in TOML or JSON, as for `farrier policy set`, or `-` for stdin
    #[arg(required_unless_present = "server")]
    file: Option<PathBuf>,
    /// Check the policy in force on the server instead
    #[arg(long, conflicts_with = "file")]
    server: bool,
    /// Do not check the files of secrets, certificates and commands on this machine
    #[arg(long)]
    no_files: bool,
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
    let policy = if let Some(file) = &args.file {
        document::read(file)?
    } else {
        let PolicyView { policy } = FleetSession::from_saved_login()?.get("/api/v1/policy")?;
        policy
    };
    let problems = problems(&policy.notifications, !args.no_files);
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

fn problems(policy: &NotificationPolicy, checks_files: bool) -> Vec<Problem> {
    let problems = policy.problems().into_iter().map(|problem| Problem {
        is_error: problem.is_error(),
        text: problem.kind.to_string(),
        at: problem.at,
    });
    let mut problems: Vec<Problem> = problems.collect();
    for (name, receiver) in &policy.receivers {
        for found in farrier_notify::check(receiver) {
            // Files may be on the server only.
            if found.err.is_retryable() && !checks_files {
                continue;
            }
            let at = format!("notifications.receivers.{name}.{}", found.key);
            if problems.iter().all(|known| known.at != at) {
                let is_error = !found.err.is_retryable();
                problems.push(Problem { at, is_error, text: causes(&found.err) });
            }
        }
    }
    problems
}

/// An error and its causes in one line.
fn causes(err: &dyn std::error::Error) -> String {
    let mut text = err.to_string();
    let mut cause = err.source();
    while let Some(err) = cause {
        text = format!("{text}: {err}");
        cause = err.source();
    }
    text
}
