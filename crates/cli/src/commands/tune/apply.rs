//! `farrier tune apply`.

use farrier_facts::tune::{Applied, ApplyReport, Need, REPORT_VERSION, StepOutcome, StepStatus};
use farrier_hardware::tune::{self, AppliedProfile};
use jiff::Timestamp;

use super::node::{NodeArgs, SelectionArgs};
use super::print::{self, INDENT};
use super::profile::ProfileArgs;
use crate::cli::Output;
use crate::commands::Outcome;
use crate::confirmation;
use crate::failure::Hinted;
use crate::printer::{Printer, Tone};

/// Applies a profile. Without a name, applies the profile that was applied last.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    profile: ProfileArgs,
    #[command(flatten)]
    selection: SelectionArgs,
    /// Apply without asking; required without a terminal
    #[arg(long, short)]
    yes: bool,
    #[command(flatten)]
    node: NodeArgs,
    /// Output format
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    output: Output,
}

pub(super) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let (profile, unverified) = args.node.profile(&args.profile, &args.selection)?;
    args.node.require_root()?;
    let mut actuator = args.node.actuator()?;
    let steps = args.selection.plan(&profile, unverified, &mut actuator)?;
    let changes = steps.iter().filter(|step| step.change.is_some()).count();
    let refused =
        steps.iter().filter(|step| matches!(step.standing, StepStatus::Refused(_))).count();
    // The agent reports drift from the profile of the node. An apply without --only makes this
    // profile the profile of the node, except if nothing would change because the node refuses
    // settings.
    let becomes_node_profile = args.selection.only.is_empty() && (changes > 0 || refused == 0);
    let kept_profile =
        if becomes_node_profile { None } else { args.node.other_node_profile(&profile) };
    if args.output == Output::Table {
        print::steps("Plan", &profile.name, &args.node.name(), &steps, printer)?;
        if let Some(kept) = &kept_profile {
            let name = &profile.name;
            printer.line("")?;
            let advice = if args.selection.only.is_empty() {
                String::new()
            } else {
                format!(
                    " Run `farrier tune apply {name}` without --only to make `{name}` the node's profile."
                )
            };
            printer.paragraph("", 0, &format!(
                "`{kept}` remains the profile of this node; differences from it are drift.{advice}"
            ))?;
        }
    }
    let mut applied = Vec::new();
    if changes > 0 {
        printer.finish()?;
        if !confirm(args.yes, args.output, &format!("Apply {}?", counted(changes)))? {
            printer.line("Nothing was changed.")?;
            return Ok(Outcome::Finding);
        }
    }
    let mut journal = args.node.journal()?;
    if changes > 0 {
        let now = Timestamp::now();
        applied = tune::apply(&profile.name, &steps, &mut actuator, &mut journal, now);
    }
    // Write the profile after the changes, so that the agent reports no drift while they are made.
    // Write it even if there was nothing to change, because the agent reports drift from this
    // profile from now on.
    let applied_profile = AppliedProfile { profile: profile.into_owned(), unverified };
    let written =
        if becomes_node_profile { applied_profile.write(&args.node.state()) } else { Ok(()) };
    drop(journal);
    let profile = applied_profile.profile.name;
    let report = ApplyReport { v: REPORT_VERSION, profile, kept: kept_profile, steps, applied };
    match args.output {
        Output::Json => printer.json(&report)?,
        Output::Table if report.applied.is_empty() => unchanged(&report, refused, printer)?,
        Output::Table => print(&report.applied, printer)?,
    }
    printer.finish()?;
    written?;
    Ok(Outcome::finding_if(!report.is_done()))
}

/// `1 change`, `2 changes`
pub(super) fn counted(count: usize) -> String {
    format!("{count} change{}", if count == 1 { "" } else { "s" })
}

/// Asks the user for confirmation. `--yes` confirms without asking.
pub(super) fn confirm(yes: bool, output: Output, question: &str) -> anyhow::Result<bool> {
    if yes {
        return Ok(true);
    }
    if output == Output::Json {
        // The output goes to a program. No person can confirm, and the plan was not printed.
        return Err(Hinted::error(
            "nothing was changed: --output json does not ask for confirmation",
            "pass --yes to apply without asking; `farrier tune plan` shows the changes",
        ));
    }
    Ok(confirmation::confirm(false, question)?.is_some())
}

/// Prints that nothing was changed: no setting differs, or the node refuses the changes.
fn unchanged(report: &ApplyReport, refused: usize, printer: &mut Printer) -> anyhow::Result<()> {
    printer.line("")?;
    if refused == 0 {
        printer.line("Nothing to change.")?;
        return Ok(());
    }
    let text = format!(
        "Nothing can be changed: {refused} refused. `{}` did not become the profile of this node.",
        report.profile
    );
    printer.paragraph("", 0, &text)?;
    Ok(())
}

/// How many of the applied changes take effect only after a GPU reset, or after a module reload.
fn pending_actions(applied: &[Applied]) -> Vec<String> {
    let needs_action = |entry: &&Applied, need: Need| {
        let needs = match &entry.step.standing {
            StepStatus::Change(needs) => needs.as_slice(),
            _ => &[],
        };
        entry.outcome.is_made() && needs.contains(&need)
    };
    let count = |need| applied.iter().filter(|entry| needs_action(entry, need)).count();
    [(Need::Reset, "a GPU reset"), (Need::ModuleReload, "a module reload or a reboot")]
        .into_iter()
        .map(|(need, action)| (count(need), action))
        .filter(|(count, _)| *count > 0)
        .map(|(count, action)| {
            let verb = if count == 1 { "takes" } else { "take" };
            format!("{count} {verb} effect after {action}")
        })
        .collect()
}

fn print(applied: &[Applied], printer: &mut Printer) -> anyhow::Result<()> {
    printer.line("")?;
    let mut done = 0;
    for entry in applied {
        if entry.outcome.is_made() {
            done += 1;
            continue;
        }
        let (label, text) = entry.outcome.words();
        let text = match &entry.outcome {
            StepOutcome::Otherwise(now) => {
                format!("the change was accepted, but the value is now {now}")
            }
            _ => text.to_owned(),
        };
        let first = print::label(Tone::Bad, label, printer);
        let subject = print::describe_subjects(&[&entry.step.subject]);
        let text = format!("{}, {subject} → {}: {text}", entry.step.setting, entry.step.wanted);
        printer.paragraph(&first, INDENT, &text)?;
    }
    let pending = pending_actions(applied);
    let pending =
        if pending.is_empty() { String::new() } else { format!(" {}.", pending.join(", ")) };
    printer.line(&format!("{done} of {} applied.{pending}", counted(applied.len())))?;
    let denied =
        |entry: &Applied| matches!(entry.outcome, StepOutcome::Failed { permission: true, .. });
    if applied.iter().any(denied) {
        printer.line("Changing settings needs root: run this command with sudo.")?;
    }
    let can_be_reverted = |entry: &Applied| {
        matches!(
            entry.outcome,
            StepOutcome::Done | StepOutcome::Otherwise(_) | StepOutcome::Unknown(_)
        )
    };
    if applied.iter().any(can_be_reverted) {
        printer.line("`farrier tune revert` restores the previous values.")?;
    }
    Ok(())
}
