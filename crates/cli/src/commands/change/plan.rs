//! `farrier change plan`.

use farrier_bundle::Bundle;
use farrier_facts::node::Reading;
use farrier_fleet::change::{
    ActionFailure, AdmissionRefusal, LastChange, PreflightFailure, ReloadMethod,
};
use farrier_hardware::access;
use farrier_hardware::change::Transaction;
use serde::Serialize;

use super::node::{ChangeNodeArgs, name, reference};
use crate::cli::Output;
use crate::commands::Outcome;
use crate::printer::{Printer, Tone};

const PLAN_VERSION: u32 = 1;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The bundle to change to: its id, or the first digits of it
    pub(super) bundle: String,
    /// The installed bundle, if several bundles have the installed packages
    #[arg(long, value_name = "BUNDLE")]
    pub(super) from: Option<String>,
    #[command(flatten)]
    pub(super) node: ChangeNodeArgs,
    /// Output format
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    output: Output,
}

/// What a change would do.
#[derive(Debug, Serialize)]
pub(super) struct ChangePlan {
    v: u32,
    from: String,
    from_driver: String,
    to: String,
    to_driver: String,
    pub(super) reload: ReloadMethod,
    /// Why the change would be refused.
    preflight: Vec<PreflightFailure>,
    /// Checks that could not be made.
    unknown: Vec<String>,
    refused: Option<String>,
    rehearsal: Rehearsal,
}

/// The simulated transactions.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Rehearsal {
    Passed {
        forward: Transaction,
        back: Transaction,
    },
    Failed(ActionFailure),
    /// The simulation needs root.
    NotRun,
}

impl ChangePlan {
    pub(super) fn make(
        node: &ChangeNodeArgs,
        from: &Bundle,
        to: &Bundle,
        last: Option<&LastChange>,
    ) -> anyhow::Result<Self> {
        let mut actuator = node.actuator()?;
        let (preflight, unknown) = match actuator.preflight(to, from) {
            Reading::Value(failures) => (failures, Vec::new()),
            Reading::Absent => (Vec::new(), Vec::new()),
            Reading::Unreadable(why) => (Vec::new(), vec![why.to_string()]),
        };
        let refused = last
            .filter(|last| !last.is_closed)
            .map(|last| AdmissionRefusal::ChangeInProgress {
                id: last.id.clone(),
                state: last.state,
            })
            .map(|refusal| refusal.to_string())
            .or_else(|| {
                let is_same = from.id() == to.id();
                is_same.then(|| AdmissionRefusal::NothingToChange.to_string())
            });
        let rehearsal = if access::is_root() {
            match actuator.rehearse(to.id(), from.id()) {
                Ok((forward, back)) => Rehearsal::Passed { forward, back },
                Err(failure) => Rehearsal::Failed(failure),
            }
        } else {
            Rehearsal::NotRun
        };
        Ok(Self {
            v: PLAN_VERSION,
            from: from.id().to_string(),
            from_driver: from.driver.to_string(),
            to: to.id().to_string(),
            to_driver: to.driver.to_string(),
            reload: reference(to).reload,
            preflight,
            unknown,
            refused,
            rehearsal,
        })
    }

    /// Whether the change can be applied.
    pub(super) fn is_possible(&self) -> bool {
        self.preflight.is_empty()
            && self.unknown.is_empty()
            && self.refused.is_none()
            && !matches!(self.rehearsal, Rehearsal::Failed(_))
    }

    pub(super) fn print(
        &self,
        from: &Bundle,
        to: &Bundle,
        printer: &mut Printer,
    ) -> anyhow::Result<()> {
        printer.line(&format!(
            "Change the driver from {} to {}",
            name(&self.from_driver, from.id()),
            name(&self.to_driver, to.id())
        ))?;
        printer.line("")?;
        let bad = printer.toned(Tone::Bad, "refused");
        for text in
            self.refused.iter().cloned().chain(self.preflight.iter().map(ToString::to_string))
        {
            printer.paragraph(&format!("{bad}  "), 9, &text)?;
        }
        let unknown = printer.toned(Tone::Bad, "unknown");
        for text in &self.unknown {
            printer.paragraph(&format!("{unknown}  "), 9, text)?;
        }
        match &self.rehearsal {
            Rehearsal::Passed { forward, back } => print_packages(forward, back, printer)?,
            Rehearsal::Failed(failure) => {
                printer.paragraph(&format!("{bad}  "), 9, &failure.to_string())?;
            }
            Rehearsal::NotRun => {
                printer.line("The package transactions are not simulated: that needs root.")?;
            }
        }
        printer.line("")?;
        printer.paragraph("", 0, self.steps())?;
        Ok(())
    }

    fn steps(&self) -> &'static str {
        match self.reload {
            ReloadMethod::ReloadModules => {
                "Steps: verify both bundles, build the modules, cordon, drain, stop services, unload the modules, install (from here the change ends with the new driver or with the old one), load the modules, verify, return to service, watch."
            }
            ReloadMethod::Reboot => {
                "Steps: verify both bundles, build the modules, cordon, drain, stop services, install (from here the change ends with the new driver or with the old one), reboot, verify, return to service, watch."
            }
        }
    }
}

fn print_packages(
    forward: &Transaction,
    back: &Transaction,
    printer: &mut Printer,
) -> anyhow::Result<()> {
    let shown = |version: &str| if version.is_empty() { "-" } else { version }.to_owned();
    let rows: Vec<Vec<String>> = forward
        .packages
        .iter()
        .map(|package| vec![package.name.clone(), shown(&package.old), shown(&package.new)])
        .collect();
    printer.table(&["PACKAGE", "NOW", "AFTER"], &rows)?;
    printer.line("")?;
    let (count, back) = (forward.packages.len(), back.packages.len());
    printer.line(&format!(
        "{count} packages change. The way back was simulated too: {back} packages."
    ))?;
    Ok(())
}

pub(super) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let to = args.node.bundle(&args.bundle)?;
    args.node.require_signed(&to)?;
    let from = args.node.installed(args.from.as_deref())?;
    args.node.require_signed(&from)?;
    let journal = args.node.read_journal()?;
    let last = journal.history().last().map(LastChange::from);
    let plan = ChangePlan::make(&args.node, &from, &to, last.as_ref())?;
    match args.output {
        Output::Json => printer.json(&plan)?,
        Output::Table => plan.print(&from, &to, printer)?,
    }
    Ok(Outcome::finding_if(!plan.is_possible()))
}
