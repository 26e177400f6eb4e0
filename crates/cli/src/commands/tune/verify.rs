//! `farrier tune plan` and `verify`: what a profile would change, or what has drifted.

use farrier_facts::tune::{REPORT_VERSION, Step};
use serde::Serialize;

use super::node::{NodeArgs, WhichArgs};
use super::print;
use super::profile::ProfileArgs;
use crate::cli::Output;
use crate::commands::Outcome;
use crate::printer::Printer;

/// Which profile, on which node. Without a profile it is the one that was applied last.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    profile: ProfileArgs,
    #[command(flatten)]
    which: WhichArgs,
    #[command(flatten)]
    node: NodeArgs,
    /// How to print the answer
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    output: Output,
}

/// A plan for programs.
#[derive(Serialize)]
struct Planned<'a> {
    v: u32,
    profile: &'a str,
    is_fine: bool,
    steps: &'a [Step],
}

pub(super) fn run(args: &Args, verb: &str, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let (profile, unverified) = args.node.chosen(&args.profile, &args.which)?;
    let mut hands = args.node.hands()?;
    let steps = args.which.plan(&profile, unverified, &mut hands)?;
    let is_fine = steps.iter().all(|step| step.standing.is_fine());
    match args.output {
        Output::Json => {
            printer.json(&Planned {
                v: REPORT_VERSION,
                profile: &profile.name,
                is_fine,
                steps: &steps,
            })?;
        }
        Output::Table => {
            print::steps(verb, &profile.name, &args.node.name(), &steps, printer)?;
            args.node.say_what_can_be_given_back(printer)?;
        }
    }
    Ok(Outcome::finding_if(!is_fine))
}
