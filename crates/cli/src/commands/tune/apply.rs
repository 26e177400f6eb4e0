//! `farrier tune apply`.

use std::io::{BufRead, IsTerminal, Write};

use farrier_facts::tune::{Standing, Step};
use farrier_hardware::tune::{self, Applied, Kept, Outcome as Came};
use jiff::Timestamp;
use serde::Serialize;

use super::node::{NodeArgs, WhichArgs};
use super::print::{self, INDENT};
use super::profile::ProfileArgs;
use crate::cli::Output;
use crate::commands::Outcome;
use crate::failure::Hinted;
use crate::printer::{Printer, Tone};

/// Which profile, on which node.
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

/// What came of it, for programs.
#[derive(Serialize)]
struct Report<'a> {
    profile: &'a str,
    steps: &'a [Step],
    applied: &'a [Applied],
}

pub(super) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let profile = args.profile.read()?;
    let mut hands = args.node.hands()?;
    let steps = args.which.plan(&profile, args.which.unverified, &mut hands)?;
    if args.output == Output::Table {
        print::steps("Plan", &profile.name, &args.node.name(), &steps, printer)?;
    }
    let changes = steps.iter().filter(|step| step.change.is_some()).count();
    let mut applied = Vec::new();
    if changes > 0 {
        let what = format!("Make {changes} change{}?", if changes == 1 { "" } else { "s" });
        printer.finish()?;
        if !may(args.yes, &what)? {
            printer.line("Nothing was changed.")?;
            return Ok(Outcome::Finding);
        }
    }
    // Also where nothing is to be changed: from here on the node is to be like that.
    let mut journal = args.node.journal()?;
    if args.which.only.is_empty() {
        let kept =
            Kept { profile: profile.clone().into_owned(), unverified: args.which.unverified };
        kept.write(&args.node.state())?;
    }
    if changes > 0 {
        let now = Timestamp::now();
        applied = tune::apply(&profile.name, &steps, &mut hands, &mut journal, now);
    }
    match args.output {
        Output::Json => {
            printer.json(&Report { profile: &profile.name, steps: &steps, applied: &applied })?;
        }
        Output::Table => print(&applied, printer)?,
    }
    let done = applied.iter().all(|it| matches!(it.outcome, Came::Done | Came::Already));
    // What needs a reset or a reboot is done as far as this goes; what is unknown or refused is not.
    let open = steps.iter().any(|step| {
        matches!(step.standing, Standing::Unknown(_) | Standing::Refused(_) | Standing::ByHand(_))
    });
    Ok(Outcome::finding_if(!done || open))
}

/// Whether a person says yes.
pub(super) fn may(yes: bool, what: &str) -> anyhow::Result<bool> {
    if yes {
        return Ok(true);
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

fn print(applied: &[Applied], printer: &mut Printer) -> anyhow::Result<()> {
    printer.line("")?;
    if applied.is_empty() {
        printer.line("There is nothing to change.")?;
        return Ok(());
    }
    let mut done = 0;
    for it in applied {
        let (word, tone, words) = match &it.outcome {
            Came::Done | Came::Already => {
                done += 1;
                continue;
            }
            Came::Failed { why, .. } => ("failed", Tone::Bad, why),
            Came::NotDone(why) => ("not done", Tone::Bad, why),
            Came::Unknown(why) => ("unknown", Tone::Bad, why),
        };
        let first = print::word(tone, word, printer);
        let subject = print::named(&[&it.step.subject]);
        let text = format!("{}, {subject} → {}: {words}", it.step.setting, it.step.wanted);
        printer.paragraph(&first, INDENT, &text)?;
    }
    printer.line(&format!("{done} of {} changes made.", applied.len()))?;
    let denied = |it: &Applied| matches!(it.outcome, Came::Failed { permission: true, .. });
    if applied.iter().any(denied) {
        printer.line("Settings belong to root: run it with sudo.")?;
    }
    if done > 0 {
        printer.line("`farrier tune revert` gives back what was there.")?;
    }
    Ok(())
}
