//! `farrier tune apply`.

use std::io::{BufRead, IsTerminal, Write};

use farrier_facts::tune::{Applied, ApplyReport, Need, Outcome as Came, REPORT_VERSION, Standing};
use farrier_hardware::tune::{self, AppliedProfile};
use jiff::Timestamp;

use super::node::{NodeArgs, WhichArgs};
use super::print::{self, INDENT};
use super::profile::ProfileArgs;
use crate::cli::Output;
use crate::commands::Outcome;
use crate::failure::Hinted;
use crate::printer::{Printer, Tone};

/// Which profile, on which node. Without a profile it is the one that was applied last.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    profile: ProfileArgs,
    #[command(flatten)]
    which: WhichArgs,
    /// Do not ask; without a terminal nothing is changed otherwise
    #[arg(long, short)]
    yes: bool,
    #[command(flatten)]
    node: NodeArgs,
    /// How to print the answer
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    output: Output,
}

pub(super) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let (profile, unverified) = args.node.chosen(&args.profile, &args.which)?;
    let mut hands = args.node.hands()?;
    let steps = args.which.plan(&profile, unverified, &mut hands)?;
    let changes = steps.iter().filter(|step| step.change.is_some()).count();
    let refused = steps.iter().filter(|step| matches!(step.standing, Standing::Refused(_))).count();
    // A part of a profile does not make it the node's, nor does one of which nothing can be had: drift is told from the one
    // that was applied whole.
    let is_adopted = args.which.only.is_empty() && (changes > 0 || refused == 0);
    let other = if is_adopted { None } else { args.node.kept_beside(&profile) };
    if args.output == Output::Table {
        print::steps("Plan", &profile.name, &args.node.name(), &steps, printer)?;
        if let Some(other) = &other {
            let name = &profile.name;
            printer.line("")?;
            let without = if args.which.only.is_empty() {
                String::new()
            } else {
                format!(" `farrier tune apply {name}` without --only makes `{name}` the node's.")
            };
            printer.paragraph("", 0, &format!(
                "`{other}` stays the profile of this node: where this differs from it is drift.{without}"
            ))?;
        }
    }
    let mut applied = Vec::new();
    if changes > 0 {
        printer.finish()?;
        if !may(args.yes, args.output, &format!("Make {}?", counted(changes)))? {
            printer.line("Nothing was changed.")?;
            return Ok(Outcome::Finding);
        }
    }
    let mut journal = args.node.journal()?;
    if changes > 0 {
        let now = Timestamp::now();
        applied = tune::apply(&profile.name, &steps, &mut hands, &mut journal, now);
    }
    // After the changes, so that nobody sees a drift that is about to be no more; and also where nothing was to be
    // changed: from here on the node is to be like that.
    let kept = AppliedProfile { profile: profile.into_owned(), unverified };
    let written = if is_adopted { kept.write(&args.node.state()) } else { Ok(()) };
    drop(journal);
    let profile = kept.profile.name;
    let report = ApplyReport { v: REPORT_VERSION, profile, kept: other, steps, applied };
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

/// Whether a person says yes.
pub(super) fn may(yes: bool, output: Output, what: &str) -> anyhow::Result<bool> {
    if yes {
        return Ok(true);
    }
    if output == Output::Json {
        // A program does not answer, and a person has not seen what it is about.
        return Err(Hinted::error(
            "nothing was changed: nobody is asked with --output json",
            "--yes makes the changes without asking; `farrier tune plan` shows them",
        ));
    }
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        return Err(Hinted::error(
            "nothing was changed: there is no terminal to ask on",
            "--yes makes the changes without asking",
        ));
    }
    let mut stderr = std::io::stderr();
    write!(stderr, "\n{what} [y/N] ")?;
    stderr.flush()?;
    let mut answer = String::new();
    stdin.lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// That nothing was changed: there was nothing to do, or it cannot be done.
fn unchanged(report: &ApplyReport, refused: usize, printer: &mut Printer) -> anyhow::Result<()> {
    printer.line("")?;
    if refused == 0 {
        printer.line("There is nothing to change.")?;
        return Ok(());
    }
    let text = format!(
        "Nothing can be changed: {refused} refused. `{}` does not become the profile of this node.",
        report.profile
    );
    printer.paragraph("", 0, &text)?;
    Ok(())
}

/// What of that which was made does not count yet, in words.
fn waiting(applied: &[Applied]) -> Vec<String> {
    let waits = |it: &&Applied, need: Need| {
        let needs = match &it.step.standing {
            Standing::Change(needs) => needs.as_slice(),
            _ => &[],
        };
        it.outcome.is_made() && needs.contains(&need)
    };
    let count = |need| applied.iter().filter(|it| waits(it, need)).count();
    [(Need::Reset, "a GPU reset"), (Need::ModuleReload, "a module reload or a reboot")]
        .into_iter()
        .map(|(need, words)| (count(need), words))
        .filter(|(count, _)| *count > 0)
        .map(|(count, words)| {
            let verb = if count == 1 { "counts" } else { "count" };
            format!("{count} {verb} after {words}")
        })
        .collect()
}

fn print(applied: &[Applied], printer: &mut Printer) -> anyhow::Result<()> {
    printer.line("")?;
    let mut done = 0;
    for it in applied {
        if it.outcome.is_made() {
            done += 1;
            continue;
        }
        let (word, words) = it.outcome.words();
        let words = match &it.outcome {
            Came::Otherwise(now) => format!("it was taken, and now it is {now}"),
            _ => words.to_owned(),
        };
        let first = print::word(Tone::Bad, word, printer);
        let subject = print::named(&[&it.step.subject]);
        let text = format!("{}, {subject} → {}: {words}", it.step.setting, it.step.wanted);
        printer.paragraph(&first, INDENT, &text)?;
    }
    let waiting = waiting(applied);
    let waiting =
        if waiting.is_empty() { String::new() } else { format!(" {}.", waiting.join(", ")) };
    printer.line(&format!("{done} of {} made.{waiting}", counted(applied.len())))?;
    let denied = |it: &Applied| matches!(it.outcome, Came::Failed { permission: true, .. });
    if applied.iter().any(denied) {
        printer.line("Settings belong to root: run it with sudo.")?;
    }
    let open =
        |it: &Applied| matches!(it.outcome, Came::Done | Came::Otherwise(_) | Came::Unknown(_));
    if applied.iter().any(open) {
        printer.line("`farrier tune revert` gives back what was there.")?;
    }
    Ok(())
}
