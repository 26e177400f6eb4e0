//! `farrier tune revert`.

use std::collections::BTreeMap;

use farrier_facts::tune::{Given, REPORT_VERSION, Target};
use farrier_hardware::tune::{
    self, AppliedProfile, NodeSettingActuator, OpenChange, RevertedChange,
};
use jiff::Timestamp;
use serde::Serialize;

use super::apply::{counted, may};
use super::node::NodeArgs;
use super::print::{self, INDENT};
use crate::cli::Output;
use crate::commands::Outcome;
use crate::failure;
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

/// What came of it, for programs.
#[derive(Serialize)]
struct Report<'a> {
    v: u32,
    reverted: &'a [RevertedChange],
    /// The profile that drift is no longer told from.
    forgotten: Option<&'a str>,
}

pub(super) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let mut hands = args.node.hands()?;
    let seen = args.node.journal_to_read()?;
    let kept = kept(args);
    let count = seen.open_changes().len();
    if count == 0 && kept.is_none() {
        match args.output {
            Output::Json => {
                printer.json(&Report { v: REPORT_VERSION, reverted: &[], forgotten: None })?;
            }
            Output::Table => printer.line("There is nothing to give back.")?,
        }
        return Ok(Outcome::Fine);
    }
    let numbers = numbers(seen.open_changes(), &mut hands);
    if args.output == Output::Table {
        announce(seen.open_changes(), &numbers, &args.node.name(), printer)?;
        printer.finish()?;
    }
    let what = match &kept {
        _ if count > 0 => format!("Give back {}?", counted(count)),
        Some(name) => format!("No longer tell drift from {name}?"),
        None => String::new(),
    };
    if !may(args.yes, args.output, &what)? {
        printer.line("Nothing was changed.")?;
        return Ok(Outcome::Finding);
    }
    let mut journal = args.node.journal()?;
    let reverted = tune::revert(&mut hands, &mut journal, args.force, Timestamp::now());
    let is_back = reverted.iter().all(|it| it.given.is_back());
    // While something is not given back the node is neither, and what it is to be like is still known.
    let forgotten = kept.filter(|_| is_back);
    if forgotten.is_some() {
        AppliedProfile::remove(&args.node.state())?;
    }
    drop(journal);
    match args.output {
        Output::Json => {
            let forgotten = forgotten.as_deref();
            printer.json(&Report { v: REPORT_VERSION, reverted: &reverted, forgotten })?;
        }
        Output::Table => {
            print_all(&reverted, &numbers, printer)?;
            if let Some(name) = forgotten {
                printer.line(&format!("Drift from {name} is no longer told."))?;
            }
        }
    }
    Ok(Outcome::finding_if(!is_back))
}

/// The profile that drift is told from, in words; also where it does not read, which is no reason to keep it.
fn kept(args: &Args) -> Option<String> {
    match AppliedProfile::read(&args.node.state()) {
        Ok(kept) => kept.map(|kept| format!("`{}`", kept.profile.name)),
        Err(err) => {
            failure::warn(&anyhow::Error::new(err));
            Some("a profile that does not read".to_owned())
        }
    }
}

/// NVML's numbers for GPUs, where some are spoken of.
fn numbers(changes: &[OpenChange], hands: &mut NodeSettingActuator) -> BTreeMap<String, u32> {
    let is_gpu = |change: &OpenChange| matches!(change.target, Target::Gpu { .. });
    if changes.iter().any(is_gpu) { hands.gpu_indices() } else { BTreeMap::new() }
}

fn announce(
    changes: &[OpenChange],
    numbers: &BTreeMap<String, u32>,
    node: &str,
    printer: &mut Printer,
) -> anyhow::Result<()> {
    if changes.is_empty() {
        printer.line("There is nothing to give back.")?;
        return Ok(());
    }
    printer.line(&format!("Revert: {} of {node}, newest first:", counted(changes.len())))?;
    let newest_first: Vec<&OpenChange> = changes.iter().rev().collect();
    for alike in newest_first.chunk_by(|one, other| is_alike(one, other)) {
        let Some(change) = alike.first() else { continue };
        let name = names(alike, numbers);
        printer.paragraph("  -", 4, &format!("{name}: {}", back(change)))?;
    }
    Ok(())
}

/// What giving a change back does.
fn back(change: &OpenChange) -> String {
    let it = &change.target;
    let old = it.words(&change.old);
    if change.is_side_effect {
        return format!("{old}, where the service changed it");
    }
    let new = it.words(change.made.as_ref().unwrap_or(&change.new));
    format!("{new} → {old}")
}

/// Whether two changes do the same to two GPUs: they share a line.
fn is_alike(one: &OpenChange, other: &OpenChange) -> bool {
    match (&one.target, &other.target) {
        (Target::Gpu { control, .. }, Target::Gpu { control: same, .. }) => {
            control == same && back(one) == back(other)
        }
        _ => false,
    }
}

/// What changes that are alike are about: several GPUs by their numbers, where all have one.
fn names(changes: &[&OpenChange], numbers: &BTreeMap<String, u32>) -> String {
    let number = |change: &&OpenChange| match &change.target {
        Target::Gpu { uuid, .. } => numbers.get(uuid).copied(),
        _ => None,
    };
    let known: Option<Vec<u32>> = changes.iter().map(number).collect();
    if let ([OpenChange { target: Target::Gpu { control, .. }, .. }, _, ..], Some(mut known)) =
        (changes, known)
    {
        known.sort_unstable();
        known.dedup();
        return format!("{} of GPU {}", control.name(), print::ranges(&known));
    }
    let each: Vec<String> = changes.iter().map(|change| target(&change.target, numbers)).collect();
    each.join(", ")
}

fn print_all(
    reverted: &[RevertedChange],
    numbers: &BTreeMap<String, u32>,
    printer: &mut Printer,
) -> anyhow::Result<()> {
    if reverted.is_empty() {
        return Ok(());
    }
    printer.line("")?;
    let mut back = 0;
    let mut foreign = false;
    let mut denied = false;
    for it in reverted {
        let mut tone = Tone::Bad;
        let (word, words) = match &it.given {
            Given::Back | Given::Already => {
                back += 1;
                continue;
            }
            Given::Waits(needs) => {
                tone = Tone::Caution;
                let needs: Vec<&str> = needs.iter().map(|need| need.words()).collect();
                let old = it.change.target.words(&it.change.old);
                ("waits", format!("it is set to {old} again: {}", needs.join(", ")))
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
        let first = print::word(tone, word, printer);
        let name = target(&it.change.target, numbers);
        printer.paragraph(&first, INDENT, &format!("{name}: {words}"))?;
    }
    printer.line(&match (back, reverted.len()) {
        (1, 1) => "What was changed is as it was.".to_owned(),
        (back, all) => format!("{back} of {} undone.", counted(all)),
    })?;
    if foreign {
        printer.line("--force gives back also what somebody else has changed.")?;
    }
    if denied {
        printer.line("Settings belong to root: run it with sudo.")?;
    }
    Ok(())
}

fn target(target: &Target, numbers: &BTreeMap<String, u32>) -> String {
    match target {
        Target::Gpu { uuid, control } => match numbers.get(uuid) {
            Some(index) => format!("{} of GPU {index} ({uuid})", control.name()),
            None => format!("{} of {uuid}", control.name()),
        },
        Target::File { path } | Target::Kernel { path } => path.clone(),
        Target::Hold { package } => format!("hold of {package}"),
        Target::Service { unit } => format!("{unit}.service"),
    }
}
