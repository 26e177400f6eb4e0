//! `farrier change apply`, `rollback`, `resume` and `release`.

use farrier_fleet::change::{
    ChangeClass, ChangeEntry, ChangeId, ChangeLimits, ChangeRecord, ChangeRequest, ChangeState,
    LastChange, StepDeadlines, admit,
};
use farrier_hardware::Root;
use farrier_hardware::change::{ChangeJournal, execute};
use jiff::Timestamp;

use super::node::{ChangeNodeArgs, name, reference, require_root};
use super::plan::ChangePlan;
use super::progress::{LocalClock, StepLines};
use crate::commands::Outcome;
use crate::confirmation;
use crate::failure::Hinted;
use crate::printer::{Printer, Tone};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The bundle to change to: its id, or the first digits of it
    bundle: String,
    /// The installed bundle, if several bundles have the installed packages
    #[arg(long, value_name = "BUNDLE")]
    from: Option<String>,
    #[command(flatten)]
    limits: LimitArgs,
    /// Change the driver without asking; required without a terminal
    #[arg(long, short)]
    yes: bool,
    #[command(flatten)]
    node: ChangeNodeArgs,
}

/// What the change may do.
#[derive(Debug, clap::Args)]
struct LimitArgs {
    /// How long to wait for running work, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 4 * 3600)]
    drain_timeout: u64,
    /// How long to watch the node before the change is committed, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    probation: u64,
    /// Never reboot the node
    #[arg(long)]
    no_reboot: bool,
    /// Kill processes that still use a GPU after the drain
    #[arg(long)]
    kill_holders: bool,
    /// Reboot if a process still uses a GPU after the drain
    #[arg(long, conflicts_with = "no_reboot")]
    reboot_on_holders: bool,
}

impl LimitArgs {
    fn policy(&self) -> ChangeLimits {
        ChangeLimits {
            drain_timeout_s: self.drain_timeout,
            allow_reboot: !self.no_reboot,
            kill_holders: self.kill_holders,
            reboot_on_holders: self.reboot_on_holders,
            probation_s: self.probation,
            ..ChangeLimits::default()
        }
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct RollbackArgs {
    #[command(flatten)]
    limits: LimitArgs,
    /// Roll back without asking; required without a terminal
    #[arg(long, short)]
    yes: bool,
    #[command(flatten)]
    node: ChangeNodeArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ResumeArgs {
    #[command(flatten)]
    node: ChangeNodeArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ReleaseArgs {
    /// What was repaired
    #[arg(long, value_name = "TEXT")]
    reason: String,
    #[command(flatten)]
    node: ChangeNodeArgs,
}

/// The boot id, for the journal.
fn boot() -> Option<String> {
    Root::unrecorded("/").trimmed("/proc/sys/kernel/random/boot_id").value().cloned()
}

/// Who runs this command.
fn user() -> String {
    std::env::var("SUDO_USER").or_else(|_| std::env::var("USER")).unwrap_or_else(|_| "root".into())
}

pub(super) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    require_root()?;
    let to = args.node.bundle(&args.bundle)?;
    let from = args.node.installed(args.from.as_deref())?;
    begin(&args.node, &from, &to, args.limits.policy(), args.yes, printer)
}

fn begin(
    node: &ChangeNodeArgs,
    from: &farrier_bundle::Bundle,
    to: &farrier_bundle::Bundle,
    policy: ChangeLimits,
    yes: bool,
    printer: &mut Printer,
) -> anyhow::Result<Outcome> {
    node.require_signed(to)?;
    node.require_signed(from)?;
    // The journal is locked before the plan is made, so that the plan cannot go stale.
    let mut journal = node.open_journal()?;
    let last = journal.history().last().map(LastChange::from);
    let generation = last.as_ref().map_or(1, |last| last.generation + 1);
    let request = ChangeRequest {
        id: ChangeId(format!("local-{generation}")),
        generation,
        class: ChangeClass::Driver,
        from: reference(from),
        to: reference(to),
        rollback: reference(from),
        deadlines: StepDeadlines::default(),
        policy,
    };
    admit(&request, last.as_ref()).map_err(|refusal| {
        Hinted::error(refusal.to_string(), "`farrier change status` shows the last change")
    })?;
    let plan = ChangePlan::make(node, from, to, last.as_ref())?;
    plan.print(from, to, printer)?;
    printer.finish()?;
    if !plan.is_possible() {
        printer.line("")?;
        printer.line("Nothing was changed.")?;
        return Ok(Outcome::Finding);
    }
    if confirmation::confirm(yes, "Change the driver?")?.is_none() {
        printer.line("Nothing was changed.")?;
        return Ok(Outcome::Finding);
    }
    let request = Box::new(request);
    journal.write(Timestamp::now(), &ChangeEntry::Accepted { request, boot: boot() })?;
    finish(node, &mut journal, printer)
}

/// Executes the change of the journal, and prints its end.
fn finish(
    node: &ChangeNodeArgs,
    journal: &mut ChangeJournal,
    printer: &mut Printer,
) -> anyhow::Result<Outcome> {
    let state =
        execute(journal, &mut node.actuator()?, &mut LocalClock, &mut StepLines::default())?;
    if let Some(record) = journal.history().last() {
        print_end(record, printer)?;
    }
    Ok(Outcome::finding_if(state != ChangeState::Committed))
}

pub(super) fn print_end(record: &ChangeRecord, printer: &mut Printer) -> anyhow::Result<()> {
    let tone = match record.state {
        ChangeState::Committed => Tone::Good,
        ChangeState::Quarantined => Tone::Bad,
        _ => Tone::Caution,
    };
    let state = printer.toned(tone, record.state.code());
    let request = &record.request;
    let (from, to) =
        (name(&request.from.driver, request.from.id), name(&request.to.driver, request.to.id));
    let why = record.cause.as_ref().map(|cause| format!(": {cause}")).unwrap_or_default();
    printer.paragraph(
        "",
        0,
        &format!("Change {} from {from} to {to}: {state}{why}", request.id),
    )?;
    let advice = match record.state {
        ChangeState::Quarantined if record.released_by.is_none() => {
            "The node stays cordoned. Repair it, then run `farrier change release --reason TEXT`."
        }
        ChangeState::Deferred => "The node has its old driver and takes work. Try again later.",
        _ => return Ok(()),
    };
    printer.line(advice)?;
    Ok(())
}

pub(super) fn resume(args: &ResumeArgs, printer: &mut Printer) -> anyhow::Result<Outcome> {
    require_root()?;
    let mut journal = args.node.open_journal()?;
    if journal.current().is_none() {
        printer.line("There is no change to continue.")?;
        return Ok(Outcome::Fine);
    }
    journal.write(Timestamp::now(), &ChangeEntry::Resumed { boot: boot() })?;
    finish(&args.node, &mut journal, printer)
}

pub(super) fn rollback(args: &RollbackArgs, printer: &mut Printer) -> anyhow::Result<Outcome> {
    require_root()?;
    let mut journal = args.node.open_journal()?;
    let Some(last) = journal.history().last() else {
        return Err(Hinted::error(
            "this node had no change",
            "`farrier change history` lists them",
        ));
    };
    if last.is_closed() {
        if last.state != ChangeState::Committed {
            let message = format!("the last change is {}: the node has its old driver", last.state);
            return Err(Hinted::error(message, "`farrier change status` shows the reason"));
        }
        let (from, to) = (last.request.to.id, last.request.rollback.id);
        drop(journal);
        let from = args.node.bundle(&from.to_string())?;
        let to = args.node.bundle(&to.to_string())?;
        return begin(&args.node, &from, &to, args.limits.policy(), args.yes, printer);
    }
    if last.state == ChangeState::Quarantined {
        return Err(Hinted::error(
            "the last change left the node quarantined",
            "repair the node, then run `farrier change release --reason TEXT`",
        ));
    }
    if confirmation::confirm(args.yes, "Roll back the current change?")?.is_none() {
        printer.line("Nothing was changed.")?;
        return Ok(Outcome::Finding);
    }
    let by = user();
    let entry = if last.passed_point_of_no_return {
        ChangeEntry::RollbackRequested { by }
    } else {
        ChangeEntry::CancelRequested { by }
    };
    journal.write(Timestamp::now(), &entry)?;
    journal.write(Timestamp::now(), &ChangeEntry::Resumed { boot: boot() })?;
    let state = execute(
        &mut journal,
        &mut args.node.actuator()?,
        &mut LocalClock,
        &mut StepLines::default(),
    )?;
    if let Some(record) = journal.history().last() {
        print_end(record, printer)?;
    }
    let is_back = matches!(state, ChangeState::RolledBack | ChangeState::Cancelled);
    Ok(Outcome::finding_if(!is_back))
}

pub(super) fn release(args: &ReleaseArgs, printer: &mut Printer) -> anyhow::Result<Outcome> {
    require_root()?;
    let mut journal = args.node.open_journal()?;
    let is_quarantined = journal
        .history()
        .last()
        .is_some_and(|last| last.state == ChangeState::Quarantined && !last.is_closed());
    if !is_quarantined {
        return Err(Hinted::error(
            "the last change did not leave the node quarantined",
            "`farrier change status` shows its state",
        ));
    }
    let (by, reason) = (user(), args.reason.clone());
    journal.write(Timestamp::now(), &ChangeEntry::Released { by, reason })?;
    printer.line("The quarantine of the change is ended. The cordon stays: remove it when the node is checked.")?;
    Ok(Outcome::Fine)
}
