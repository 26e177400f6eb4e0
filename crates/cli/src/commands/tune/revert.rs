//! `farrier tune revert`.

use farrier_facts::tune::Target;
use farrier_hardware::tune::{self, Given, Kept, Reverted};
use jiff::Timestamp;

use super::apply::may;
use super::node::NodeArgs;
use super::print::{self, INDENT};
use crate::cli::Output;
use crate::commands::Outcome;
use crate::printer::{Printer, Tone};

/// On which node.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Do not ask; without a terminal nothing is changed otherwise
    #[arg(long, short)]
    yes: bool,
    /// Give back also what somebody else has changed since, and forget what is no longer there
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    node: NodeArgs,
    /// How to print the answer
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    output: Output,
}

pub(super) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let mut reverted = Vec::new();
    let mut hands = args.node.hands()?;
    let seen = args.node.journal_to_read()?;
    let count = seen.open_changes().len();
    if count > 0 {
        if args.output == Output::Table {
            printer.line(&format!(
                "Revert: {} of {}, newest first:",
                changes(count),
                args.node.name()
            ))?;
            for change in seen.open_changes().iter().rev() {
                let it = &change.target;
                let (new, old) = (it.words(&change.new), it.words(&change.old));
                let text = format!("{}: {new} → {old}", target(it));
                printer.paragraph("  -", 4, &text)?;
            }
            printer.finish()?;
        }
        if !may(args.yes, &format!("Give back {}?", changes(count)))? {
            printer.line("Nothing was changed.")?;
            return Ok(Outcome::Finding);
        }
        let mut journal = args.node.journal()?;
        reverted = tune::revert(&mut hands, &mut journal, args.force, Timestamp::now());
    }
    // Half a revert too: nobody wants the node to be like the profile any longer.
    Kept::forget(&args.node.state())?;
    match args.output {
        Output::Json => printer.json(&reverted)?,
        Output::Table => print_all(&reverted, printer)?,
    }
    let is_back =
        |it: &Reverted| matches!(it.given, Given::Back | Given::Already | Given::Forgotten);
    Ok(Outcome::finding_if(!reverted.iter().all(is_back)))
}

fn changes(count: usize) -> String {
    format!("{count} change{}", if count == 1 { "" } else { "s" })
}

fn print_all(reverted: &[Reverted], printer: &mut Printer) -> anyhow::Result<()> {
    if reverted.is_empty() {
        printer.line("There is nothing to give back.")?;
        return Ok(());
    }
    printer.line("")?;
    let mut back = 0;
    let mut foreign = false;
    let mut denied = false;
    for it in reverted {
        let (word, words) = match &it.given {
            Given::Back | Given::Already => {
                back += 1;
                continue;
            }
            Given::Forgotten => ("forgotten", "it is no longer there".to_owned()),
            Given::Foreign(now) => {
                foreign = true;
                ("left", format!("somebody has changed it since, to {now}"))
            }
            Given::Failed { why, permission } => {
                denied |= permission;
                ("failed", why.clone())
            }
            Given::NotDone(why) => ("not done", why.clone()),
        };
        let first = print::word(Tone::Bad, word, printer);
        printer.paragraph(&first, INDENT, &format!("{}: {words}", target(&it.change.target)))?;
    }
    printer.line(&format!("{back} of {} are as they were.", changes(reverted.len())))?;
    if foreign {
        printer.line("--force gives back also what somebody else has changed.")?;
    }
    if denied {
        printer.line("Settings belong to root: run it with sudo.")?;
    }
    Ok(())
}

fn target(target: &Target) -> String {
    match target {
        Target::Gpu { uuid, control } => {
            let name = serde_json::to_value(control).unwrap_or_default();
            format!("{} of {uuid}", name.as_str().unwrap_or_default())
        }
        Target::File { path } | Target::Kernel { path } => path.clone(),
        Target::Hold { package } => format!("hold of {package}"),
        Target::Service { unit } => format!("{unit}.service"),
    }
}
