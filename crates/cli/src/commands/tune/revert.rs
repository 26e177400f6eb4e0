//! `farrier tune revert`.

use std::collections::BTreeMap;

use farrier_facts::tune::{REPORT_VERSION, RevertOutcome, Target};
use farrier_hardware::tune::{
    self, AppliedProfile, NodeSettingActuator, OpenChange, RevertedChange,
};
use jiff::Timestamp;
use serde::Serialize;

use super::apply::{confirm, counted};
use super::node::NodeArgs;
use super::print::{self, INDENT};
use crate::cli::Output;
use crate::commands::Outcome;
use crate::failure;
use crate::printer::{Printer, Tone};

/// Options of `revert`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Revert without asking; required without a terminal
    #[arg(long, short)]
    yes: bool,
    /// Also revert values that others have changed since then, and drop changes whose target is
    /// gone
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    node: NodeArgs,
    /// Output format
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    output: Output,
}

/// The JSON document.
#[derive(Serialize)]
struct RevertReport<'a> {
    v: u32,
    reverted: &'a [RevertedChange],
    /// The profile from which drift is no longer reported.
    forgotten: Option<&'a str>,
}

pub(super) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    args.node.require_root()?;
    let mut actuator = args.node.actuator()?;
    let journal = args.node.journal_to_read()?;
    let node_profile = node_profile(args);
    let count = journal.open_changes().len();
    if count == 0 && node_profile.is_none() {
        match args.output {
            Output::Json => {
                printer.json(&RevertReport {
                    v: REPORT_VERSION,
                    reverted: &[],
                    forgotten: None,
                })?;
            }
            Output::Table => printer.line("Nothing to revert.")?,
        }
        return Ok(Outcome::Fine);
    }
    let indexes = gpu_indexes(journal.open_changes(), &mut actuator);
    if args.output == Output::Table {
        print_plan(journal.open_changes(), &indexes, &args.node.name(), printer)?;
        printer.finish()?;
    }
    let question = match &node_profile {
        _ if count > 0 => format!("Revert {}?", counted(count)),
        Some(name) => format!("Stop reporting drift from {name}?"),
        None => String::new(),
    };
    if !confirm(args.yes, args.output, &question)? {
        printer.line("Nothing was changed.")?;
        return Ok(Outcome::Finding);
    }
    let mut journal = args.node.journal()?;
    let reverted = tune::revert(&mut actuator, &mut journal, args.force, Timestamp::now());
    let is_complete = reverted.iter().all(|entry| entry.outcome.is_back());
    // While a change remains, the profile is kept, so that drift is still reported.
    let forgotten = node_profile.filter(|_| is_complete);
    if forgotten.is_some() {
        AppliedProfile::remove(&args.node.state())?;
    }
    drop(journal);
    match args.output {
        Output::Json => {
            let forgotten = forgotten.as_deref();
            printer.json(&RevertReport { v: REPORT_VERSION, reverted: &reverted, forgotten })?;
        }
        Output::Table => {
            print_results(&reverted, &indexes, printer)?;
            if let Some(name) = forgotten {
                printer.line(&format!("Drift from {name} is no longer reported."))?;
            }
        }
    }
    Ok(Outcome::finding_if(!is_complete))
}

/// The applied profile of the node, as messages name it. An unreadable profile is included, because
/// it can still be removed.
fn node_profile(args: &Args) -> Option<String> {
    match AppliedProfile::read(&args.node.state()) {
        Ok(applied) => applied.map(|applied| format!("`{}`", applied.profile.name)),
        Err(err) => {
            failure::warn(&anyhow::Error::new(err));
            Some("an unreadable profile".to_owned())
        }
    }
}

/// The NVML index of each GPU, by UUID. Empty if no change concerns a GPU.
fn gpu_indexes(
    changes: &[OpenChange],
    actuator: &mut NodeSettingActuator,
) -> BTreeMap<String, u32> {
    let is_gpu = |change: &OpenChange| matches!(change.target, Target::Gpu { .. });
    if changes.iter().any(is_gpu) { actuator.gpu_indices() } else { BTreeMap::new() }
}

fn print_plan(
    changes: &[OpenChange],
    indexes: &BTreeMap<String, u32>,
    node: &str,
    printer: &mut Printer,
) -> anyhow::Result<()> {
    if changes.is_empty() {
        printer.line("Nothing to revert.")?;
        return Ok(());
    }
    printer.line(&format!("Revert: {} on {node}, newest first:", counted(changes.len())))?;
    let newest_first: Vec<&OpenChange> = changes.iter().rev().collect();
    for group in newest_first.chunk_by(|one, other| is_same_change(one, other)) {
        let Some(change) = group.first() else { continue };
        let name = describe_targets(group, indexes);
        printer.paragraph("  -", 4, &format!("{name}: {}", describe_revert(change)))?;
    }
    Ok(())
}

/// Describes the value before and after the revert. For a side effect, which is a value that a
/// service may have changed, only the latter is known.
fn describe_revert(change: &OpenChange) -> String {
    let target = &change.target;
    let old = target.words(&change.old);
    if change.is_side_effect {
        return format!("{old}, if the service changed it");
    }
    let new = target.words(change.made.as_ref().unwrap_or(&change.new));
    format!("{new} → {old}")
}

/// Whether both changes revert the same setting of a GPU from and to the same value. Such changes
/// share a line.
fn is_same_change(one: &OpenChange, other: &OpenChange) -> bool {
    match (&one.target, &other.target) {
        (Target::Gpu { control, .. }, Target::Gpu { control: same, .. }) => {
            control == same && describe_revert(one) == describe_revert(other)
        }
        _ => false,
    }
}

/// The targets of changes that share a line. Several GPUs are listed by index if all indexes are
/// known; otherwise each target is described separately.
fn describe_targets(changes: &[&OpenChange], indexes: &BTreeMap<String, u32>) -> String {
    let index = |change: &&OpenChange| match &change.target {
        Target::Gpu { uuid, .. } => indexes.get(uuid).copied(),
        _ => None,
    };
    let known: Option<Vec<u32>> = changes.iter().map(index).collect();
    if let ([OpenChange { target: Target::Gpu { control, .. }, .. }, _, ..], Some(mut known)) =
        (changes, known)
    {
        known.sort_unstable();
        known.dedup();
        return format!("{} of GPU {}", control.name(), print::ranges(&known));
    }
    let each: Vec<String> =
        changes.iter().map(|change| describe_target(&change.target, indexes)).collect();
    each.join(", ")
}

fn print_results(
    reverted: &[RevertedChange],
    indexes: &BTreeMap<String, u32>,
    printer: &mut Printer,
) -> anyhow::Result<()> {
    if reverted.is_empty() {
        return Ok(());
    }
    printer.line("")?;
    let mut restored = 0;
    let mut foreign = false;
    let mut denied = false;
    for entry in reverted {
        let mut tone = Tone::Bad;
        let (label, text) = match &entry.outcome {
            RevertOutcome::Back | RevertOutcome::Already => {
                restored += 1;
                continue;
            }
            RevertOutcome::Waits(needs) => {
                tone = Tone::Caution;
                let needs: Vec<&str> = needs.iter().map(|need| need.words()).collect();
                let old = entry.change.target.words(&entry.change.old);
                ("pending", format!("set back to {old}: {}", needs.join(", ")))
            }
            RevertOutcome::Forgotten => ("dropped", "it no longer exists".to_owned()),
            RevertOutcome::Foreign(now) => {
                foreign = true;
                ("skipped", format!("changed by others since, to {now}"))
            }
            RevertOutcome::Failed { why, permission } => {
                denied |= permission;
                ("failed", why.clone())
            }
            RevertOutcome::NotDone(why) => ("not done", why.clone()),
        };
        let first = print::label(tone, label, printer);
        let name = describe_target(&entry.change.target, indexes);
        printer.paragraph(&first, INDENT, &format!("{name}: {text}"))?;
    }
    printer.line(&match (restored, reverted.len()) {
        (1, 1) => "The previous value is restored.".to_owned(),
        (restored, all) => format!("{restored} of {} reverted.", counted(all)),
    })?;
    if foreign {
        printer.line("--force also reverts values changed by others.")?;
    }
    if denied {
        printer.line("Changing settings needs root: run this command with sudo.")?;
    }
    Ok(())
}

fn describe_target(target: &Target, indexes: &BTreeMap<String, u32>) -> String {
    match target {
        Target::Gpu { uuid, control } => match indexes.get(uuid) {
            Some(index) => format!("{} of GPU {index} ({uuid})", control.name()),
            None => format!("{} of {uuid}", control.name()),
        },
        Target::File { path } | Target::Kernel { path } => path.clone(),
        Target::Hold { package } => format!("hold of {package}"),
        Target::Service { unit } => format!("{unit}.service"),
    }
}
