//! `farrier fleet domain`: operator requests for a failure domain.

use farrier_fleet::fleet::Domain;
use farrier_wire::rest::Done;
use serde_json::json;

use super::session::FleetSession;
use crate::commands::Outcome;
use crate::printer::Printer;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum DomainCommand {
    /// Record that the fault of a rack, switch or other failure domain is repaired
    ///
    /// Its nodes are then judged on their own again. Findings get the settle time of the policy to
    /// clear. Nodes that are out of service because of the domain are verified before they return.
    Repaired(DomainRepairedArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct DomainRepairedArgs {
    /// The failure domain, such as `rack:r1` or `leaf:l3`
    domain: Domain,
    /// What was repaired, shown to other operators
    #[arg(long, value_name = "TEXT", default_value = "no description")]
    reason: String,
}

pub(super) fn run(
    session: &mut FleetSession,
    command: &DomainCommand,
    printer: &mut Printer,
) -> anyhow::Result<Outcome> {
    let DomainCommand::Repaired(DomainRepairedArgs { domain, reason }) = command;
    let body = json!({ "domain": domain, "repair": reason });
    let Done { changed } = session.post("/api/v1/domain-repairs", &body)?;
    printer.line(&if changed {
        format!("{domain} is recorded as repaired: its nodes are judged on their own again")
    } else {
        format!("no fault of {domain} is known; `farrier fleet domains` lists the domain faults")
    })?;
    Ok(Outcome::Fine)
}
