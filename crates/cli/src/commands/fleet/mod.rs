//! `farrier fleet`: queries and operates the fleet through the server's REST API.

mod artifact;
mod attention;
mod bulk;
mod connection;
mod domain;
mod events;
pub(crate) mod export;
mod finding_groups;
mod findings;
pub(crate) mod location;
mod matrix;
mod node;
mod node_filter;
pub(crate) mod node_names;
pub(crate) mod nodes;
mod preview;
mod report;
mod requests;
pub(crate) mod session;

use crate::commands::Outcome;
use crate::printer::Printer;
use artifact::ArtifactOrder;
use session::FleetSession;

/// Commands for the fleet, sent to the server that `farrier login` saved.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum FleetCommand {
    /// List nodes, one per line, with their phase and the reason for it
    Nodes(nodes::ListArgs),
    /// Show a node in detail: phase, agent, orders, verifications, inventory and findings
    Node(node::OneArgs),
    /// List open findings
    Findings(findings::Args),
    /// Show the event log; with --follow, as events happen
    Events(events::Args),
    /// Explain a node's phase, and what would change it
    Explain(node::OneArgs),
    /// List pools, racks and switches: nodes out of service, disruption budgets, domain faults and
    /// freezes
    Domains(matrix::DomainsArgs),
    /// Report what happened to a failure domain
    #[command(subcommand)]
    Domain(domain::DomainCommand),
    /// Hold nodes out of service
    #[command(alias = "hold")]
    Cordon(requests::CordonArgs),
    /// Release held nodes; each is verified before it returns to service
    #[command(alias = "release")]
    Uncordon(requests::NodeArgs),
    /// Record a manual repair; each node is verified before it returns to service
    Repaired(requests::RepairedArgs),
    /// Approve repairs that wait for approval
    Approve(requests::NodeArgs),
    /// Verify nodes again
    Verify(requests::VerifyArgs),
    /// Test the GPUs of nodes under load (`farrier diag` on each node); `farrier fleet node` shows
    /// the result
    ///
    /// GPUs in use are not tested: hold the node first (`farrier fleet cordon`).
    Diag(requests::DiagArgs),
    /// Apply a tuning profile to a node (`farrier tune apply` on the node); `farrier fleet node`
    /// shows the result
    ///
    /// The node must be cordoned and drained: hold it first (`farrier fleet cordon`).
    Tune(requests::TuneArgs),
    /// Fetch a node's logs: kernel log, `nvidia-smi -q`, the agent's journal and findings,
    /// nvidia-bug-report.sh
    ///
    /// The node removes secrets from them. It collects them even while jobs run. The logs are
    /// written to a new file.
    Logs(artifact::Args),
    /// Set the location of a node: pool, tenant, site, row, rack, PDU, switches, NVLink domain.
    /// Omitted parts do not change
    SetLocation(location::SetLocationArgs),
    /// Remove a node from the fleet permanently
    Retire(requests::RetireArgs),
    /// Freeze repairs in a domain for a time
    Freeze(requests::FreezeArgs),
    /// End a freeze
    Unfreeze(requests::UnfreezeArgs),
    /// Show the combinations of GPU, driver, CUDA and framework, with end of support and security
    /// advisories
    Matrix(matrix::Args),
    /// Report on a period: lost GPU-hours by cause, availability, reliability, repairs, drivers, and
    /// what Farrier would have done in pools that only observe
    Report(report::Args),
    /// Export the current node state or the log as JSON lines
    Export(export::Args),
}

const LOGS: ArtifactOrder =
    ArtifactOrder { code: "collect-logs", path: "logs", stem: "farrier-logs" };

pub(crate) fn run(command: &FleetCommand, printer: &mut Printer) -> anyhow::Result<Outcome> {
    if let FleetCommand::Report(args) = command
        && args.is_offline()
    {
        return report::run_offline(args, printer);
    }
    let session = &mut FleetSession::from_saved_login()?;
    match command {
        FleetCommand::Nodes(args) => nodes::list(session, args, printer),
        FleetCommand::Node(args) => node::detail(session, args, printer),
        FleetCommand::Findings(args) => findings::run(session, args, printer),
        FleetCommand::Events(args) => events::run(session, args, printer),
        FleetCommand::Explain(args) => node::explain(session, args, printer),
        FleetCommand::Domains(args) => matrix::domains(session, args, printer),
        FleetCommand::Domain(command) => domain::run(session, command, printer),
        FleetCommand::Cordon(args) => requests::cordon(session, args, printer),
        FleetCommand::Uncordon(args) => requests::uncordon(session, args, printer),
        FleetCommand::Repaired(args) => requests::repaired(session, args, printer),
        FleetCommand::Approve(args) => requests::approve(session, args, printer),
        FleetCommand::Verify(args) => requests::verify(session, args, printer),
        FleetCommand::Diag(args) => requests::diag(session, args, printer),
        FleetCommand::Tune(args) => requests::tune(session, args, printer),
        FleetCommand::Logs(args) => artifact::fetch(session, args, &LOGS, printer),
        FleetCommand::SetLocation(args) => location::run(session, args, printer),
        FleetCommand::Retire(args) => requests::retire(session, args, printer),
        FleetCommand::Freeze(args) => requests::freeze(session, args, printer),
        FleetCommand::Unfreeze(args) => requests::unfreeze(session, args, printer),
        FleetCommand::Matrix(args) => matrix::run(session, args, printer),
        FleetCommand::Report(args) => report::run(session, args, printer),
        FleetCommand::Export(args) => export::run(session, args, printer),
    }
}
