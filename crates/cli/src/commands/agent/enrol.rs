//! `farrier agent enrol`: a node becomes one of a fleet.

use std::io::Read;
use std::path::PathBuf;

use farrier_agent::config;
use farrier_agent::monitor::Chain;
use farrier_agent::uplink::{self, EnrolError, Enrolment, Keep};
use farrier_fleet::fleet::NodeId;
use farrier_wire::client::{ConnectError, ServerUrl};

use super::absolute;
use crate::commands::Outcome;
use crate::failure::Hinted;
use crate::printer::Printer;

/// Makes a key on this node, and has the server sign a certificate for it.
///
/// `farrier server token create` prints the command with everything that it needs.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where the server is, such as `https://fleet.example:9443`
    #[arg(long, value_name = "URL")]
    server: ServerUrl,
    /// The token, or `-` to read it from stdin, where no list of processes shows it
    #[arg(long)]
    token: String,
    /// SHA-256 of the authority's certificate, as the server shows it
    #[arg(long, value_name = "SHA256")]
    ca_fingerprint: String,
    /// The node's name in the fleet [default: the host's]
    #[arg(long, value_name = "NAME")]
    node: Option<NodeId>,
    /// Where key and certificate are kept
    #[arg(long, value_name = "DIR", value_parser = absolute, default_value = config::DEFAULT_IDENTITY)]
    identity: PathBuf,
}

pub(super) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    if args.server.is_plain() {
        return Err(Hinted::error(
            format!("`{}` has no TLS, and so no certificates to enrol for", args.server),
            "`https://HOST:PORT`, as `farrier server token create` prints it; a server with `--plain` needs no enrolment",
        ));
    }
    let token = match args.token.as_str() {
        "-" => {
            let mut text = String::new();
            std::io::stdin().take(4096).read_to_string(&mut text)?;
            text
        }
        token => token.to_owned(),
    };
    let enrolment = Enrolment {
        url: args.server.clone(),
        node: args.node.clone().map_or_else(hostname, Ok)?,
        fingerprint: args.ca_fingerprint.clone(),
        keep: Keep::new(&args.identity, None),
    };
    let identity = uplink::enrol(&enrolment, &token).map_err(|err| explained(&err))?;
    let kept = enrolment.keep.node_path();
    printer.line(&format!(
        "{} has enrolled; its key and certificate are in {}",
        identity.node,
        kept.display()
    ))?;
    printer.line("")?;
    printer.line("In the agent's configuration:")?;
    printer.line("[server]")?;
    printer.line(&format!("url = \"{}\"", args.server))?;
    if args.identity != std::path::Path::new(config::DEFAULT_IDENTITY) {
        printer.line(&format!("identity = \"{}\"", args.identity.display()))?;
    }
    printer.line("")?;
    printer.line("[orders]        # the server may drain, mend and prove it: docs/orders.md says what that needs")?;
    printer.line("enabled = true  # without it the node stays `joining`")?;
    Ok(Outcome::Fine)
}

fn hostname() -> anyhow::Result<NodeId> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname")?;
    name.trim().parse().map_err(|err: farrier_fleet::fleet::identity::NameError| {
        Hinted::error(err.to_string(), "--node gives it another name")
    })
}

fn explained(err: &EnrolError) -> anyhow::Error {
    let hint = match err {
        EnrolError::Refused(status) => match status.code() as i32 {
            6 => {
                "`farrier server revoke NODE` first, or `farrier server token create --node NODE` for this very node"
            }
            7 => "`farrier server token create` makes another",
            _ => "the server's log says more",
        },
        EnrolError::Connect(ConnectError::Connect { .. } | ConnectError::Slow { .. }) => {
            "does the server run, and is the address right?"
        }
        EnrolError::Connect(ConnectError::Stranger { .. }) => {
            "is the address right, the fingerprint the one that `farrier server token create` prints there, and this node's clock not hours behind?"
        }
        EnrolError::Connect(ConnectError::NoTls { .. }) => {
            "is another program there? A farrier server without TLS (`--plain`) needs no enrolment"
        }
        EnrolError::Connect(_) => "is a farrier server there?",
        EnrolError::Identity(_) => "--identity names another folder",
        EnrolError::Fingerprint(_) => "`farrier server token create` prints it",
        _ => "nothing was changed; try again",
    };
    Hinted::error(Chain(err).to_string(), hint)
}
