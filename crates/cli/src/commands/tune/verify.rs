//! `farrier tune plan` and `verify`: what a profile would change, or what has drifted.

use farrier_facts::tune::{REPORT_VERSION, Step};
use serde::Serialize;

use super::node::{NodeArgs, WhichArgs};
use super::print;
use super::profile::ProfileArgs;
use crate::cli::Output;
use crate::commands::Outcome;
use crate::printer::Printer;

/// Plans or verifies a profile; without one, the profile that was applied last.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    profile: ProfileArgs,
    #[command(flatten)]
    which: WhichArgs,
    #[command(flatten)]
    node: NodeArgs,
    /// Output format
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    output: Output,
}

/// A plan for JSON.
#[derive(Serialize)]
struct PlanDocument<'a> {
    v: u32,
    profile: &'a str,
    is_fine: bool,
    steps: &'a [Step],
}

pub(super) fn run(args: &Args, verb: &str, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let (profile, unverified) = args.node.profile(&args.profile, &args.which)?;
    let mut actuator = args.node.actuator()?;
    let steps = args.which.plan(&profile, unverified, &mut actuator)?;
    let is_fine = steps.iter().all(|step| step.standing.is_fine());
    match args.output {
        Output::Json => {
            printer.json(&PlanDocument {
                v: REPORT_VERSION,
                profile: &profile.name,
                is_fine,
                steps: &steps,
            })?;
        }
        Output::Table => {
            print::steps(verb, &profile.name, &args.node.name(), &steps, printer)?;
            args.node.print_open_changes(printer)?;
        }
    }
    Ok(Outcome::finding_if(!is_fine))
}
