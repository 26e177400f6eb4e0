//! `farrier fleet`: asks the server, and prints.

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

/// The fleet, at the server of `farrier login`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum FleetCommand {
    /// Nodes: where each stands, and why
    Nodes(nodes::ListArgs),
    /// A node, with all that is known of it
    Node(nodes::OneArgs),
    /// Open findings
    Findings(findings::Args),
    /// What happened and was decided; with --follow as it happens
    Events(events::Args),
    /// Why a node stands where it stands, and what would change it
    Explain(nodes::OneArgs),
    /// Pools, racks and switches: how many nodes are out of service, and how many may be; what is to blame or frozen
    Domains(matrix::DomainsArgs),
    /// Hold a node out of service
    #[command(alias = "hold")]
    Cordon(asks::CordonArgs),
    /// Release a node that is held; it is proven before it comes back
    #[command(alias = "release")]
    Uncordon(asks::NodeArgs),
    /// Say that a node was repaired by hand; it is proven before it comes back
    Repaired(asks::RepairedArgs),
    /// Let a repair go on that waits for a person
    Approve(asks::NodeArgs),
    /// Prove a node again
    Verify(asks::VerifyArgs),
    /// Test the GPUs of a node with work (`farrier diag` there); `farrier fleet node` tells what came of it
    ///
    /// GPUs on which something runs are not tested: hold the node first (`farrier fleet cordon`).
    Diag(asks::DiagArgs),
    /// Make a node right for its work (`farrier tune apply` there); `farrier fleet node` tells what came of it
    ///
    /// Only on a node that takes no work and has none: hold it first (`farrier fleet cordon`).
    Tune(asks::TuneArgs),
    /// Fetch a node's logs: kernel log, `nvidia-smi -q`, the agent's journal and findings, nvidia-bug-report.sh
    ///
    /// The node gathers them without its secrets, also under work. They are kept in a new file.
    Logs(artifact::Args),
    /// Say where a node stands: pool, tenant, site, rack, leaf switch, NVLink domain. What is not told stays as it is
    Place(place::PlaceArgs),
    /// Take a node out of the fleet for good
    Retire(asks::RetireArgs),
    /// No repair that changes anything, for a while
    Freeze(asks::FreezeArgs),
    /// A freeze is over
    Unfreeze(asks::UnfreezeArgs),
    /// GPU × driver × CUDA × framework, with end of support and exposure
    Matrix(matrix::Args),
    /// The policy in force, or another
    #[command(subcommand)]
    Policy(policy::PolicyCommand),
    /// Everything as JSON lines: nodes as they are, or the log
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
