//! `farrier fleet`: queries and operates the fleet through the server's REST API.

mod artifact;
mod asks;
mod connection;
mod events;
mod export;
mod findings;
mod matrix;
mod nodes;
pub(crate) mod place;
mod policy;
pub(crate) mod session;

use crate::commands::Outcome;
use crate::printer::Printer;
use artifact::ArtifactOrder;
use session::Session;

/// Commands for the fleet, sent to the server that `farrier login` saved.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum FleetCommand {
    /// List nodes with their phase and the reason for it
    Nodes(nodes::ListArgs),
    /// Show everything known about a node
    Node(nodes::OneArgs),
    /// List open findings
    Findings(findings::Args),
    /// Show the event log; with --follow, as events happen
    Events(events::Args),
    /// Explain a node's phase, and what would change it
    Explain(nodes::OneArgs),
    /// List pools, racks and switches: nodes out of service, disruption budgets, domain faults and
    /// freezes
    Domains(matrix::DomainsArgs),
    /// Hold a node out of service
    #[command(alias = "hold")]
    Cordon(asks::CordonArgs),
    /// Release a held node; it is verified before it returns to service
    #[command(alias = "release")]
    Uncordon(asks::NodeArgs),
    /// Record a manual repair; the node is verified before it returns to service
    Repaired(asks::RepairedArgs),
    /// Approve a repair that waits for approval
    Approve(asks::NodeArgs),
    /// Verify a node again
    Verify(asks::VerifyArgs),
    /// Test the GPUs of a node under load (`farrier diag` on the node); `farrier fleet node` shows
    /// the result
    ///
    /// GPUs in use are not tested: hold the node first (`farrier fleet cordon`).
    Diag(asks::DiagArgs),
    /// Apply a tuning profile to a node (`farrier tune apply` on the node); `farrier fleet node`
    /// shows the result
    ///
    /// The node must be cordoned and drained: hold it first (`farrier fleet cordon`).
    Tune(asks::TuneArgs),
    /// Fetch a node's logs: kernel log, `nvidia-smi -q`, the agent's journal and findings,
    /// nvidia-bug-report.sh
    ///
    /// The node removes secrets from them. It collects them even while jobs run. The logs are
    /// written to a new file.
    Logs(artifact::Args),
    /// Set the location of a node: pool, tenant, site, rack, leaf switch, NVLink domain. Omitted
    /// parts stay as they are
    Place(place::PlaceArgs),
    /// Remove a node from the fleet for good
    Retire(asks::RetireArgs),
    /// Freeze repairs in a domain for a time
    Freeze(asks::FreezeArgs),
    /// End a freeze
    Unfreeze(asks::UnfreezeArgs),
    /// Show GPU × driver × CUDA × framework, with end of support and exposure
    Matrix(matrix::Args),
    /// Show or replace the policy
    #[command(subcommand)]
    Policy(policy::PolicyCommand),
    /// Export everything as JSON lines: current node state, or the log
    Export(export::Args),
}

const LOGS: ArtifactOrder =
    ArtifactOrder { code: "collect-logs", path: "logs", stem: "farrier-logs" };

pub(crate) fn run(command: &FleetCommand, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let session = &mut Session::kept()?;
    match command {
        FleetCommand::Nodes(args) => nodes::list(session, args, printer),
        FleetCommand::Node(args) => nodes::one(session, args, printer),
        FleetCommand::Findings(args) => findings::run(session, args, printer),
        FleetCommand::Events(args) => events::run(session, args, printer),
        FleetCommand::Explain(args) => nodes::explain(session, args, printer),
        FleetCommand::Domains(args) => matrix::domains(session, args, printer),
        FleetCommand::Cordon(args) => asks::cordon(session, args, printer),
        FleetCommand::Uncordon(args) => asks::uncordon(session, args, printer),
        FleetCommand::Repaired(args) => asks::repaired(session, args, printer),
        FleetCommand::Approve(args) => asks::approve(session, args, printer),
        FleetCommand::Verify(args) => asks::verify(session, args, printer),
        FleetCommand::Diag(args) => asks::diag(session, args, printer),
        FleetCommand::Tune(args) => asks::tune(session, args, printer),
        FleetCommand::Logs(args) => artifact::fetch(session, args, &LOGS, printer),
        FleetCommand::Place(args) => place::run(session, args, printer),
        FleetCommand::Retire(args) => asks::retire(session, args, printer),
        FleetCommand::Freeze(args) => asks::freeze(session, args, printer),
        FleetCommand::Unfreeze(args) => asks::unfreeze(session, args, printer),
        FleetCommand::Matrix(args) => matrix::run(session, args, printer),
        FleetCommand::Policy(command) => policy::run(session, command, printer),
        FleetCommand::Export(args) => export::run(session, args, printer),
    }
}
