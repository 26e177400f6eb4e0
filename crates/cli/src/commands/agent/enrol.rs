//! `farrier agent enrol`: enrols this node in a fleet.

use std::io::Read;
use std::path::PathBuf;

use farrier_agent::config;
use farrier_agent::monitor::Chain;
use farrier_agent::uplink::{self, EnrolError, Enrolment, IdentityStore};
use farrier_fleet::fleet::NodeId;
use farrier_wire::client::{ConnectError, ServerUrl};

use super::absolute;
use crate::commands::Outcome;
use crate::failure::Hinted;
use crate::printer::Printer;

/// Generates a key on this node and gets a certificate for this key from the server.
///
/// `farrier server token create` prints the full command.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Server address, such as `https://fleet.example:9443`
    #[arg(long, value_name = "URL")]
    server: ServerUrl,
    /// Join token, or `-` to read it from stdin, which keeps it out of the process list
    #[arg(long)]
    token: String,
    /// SHA-256 fingerprint of the CA certificate, as printed by the server
    #[arg(long, value_name = "SHA256")]
    ca_fingerprint: String,
    /// Node name in the fleet [default: the host name]
    #[arg(long, value_name = "NAME")]
    node: Option<NodeId>,
    /// Directory for the key and certificate
    #[arg(long, value_name = "DIR", value_parser = absolute, default_value = config::DEFAULT_IDENTITY)]
    identity: PathBuf,
}

pub(super) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    if args.server.is_plain() {
        return Err(Hinted::error(
            format!("`{}` has no TLS: such a server issues no certificates", args.server),
            "use `https://HOST:PORT`, as printed by `farrier server token create`; nodes of a server with `--plain` need no enrolment",
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
        identity_store: IdentityStore::new(&args.identity, None),
    };
    let identity = uplink::enrol(&enrolment, &token).map_err(|err| with_hint(&err))?;
    let path = enrolment.identity_store.node_path();
    printer.line(&format!(
        "{} is enrolled; its key and certificate are in {}",
        identity.node,
        path.display()
    ))?;
    printer.line("")?;
    printer.line("Add to the agent's configuration:")?;
    printer.line("[server]")?;
    printer.line(&format!("url = \"{}\"", args.server))?;
    if args.identity != std::path::Path::new(config::DEFAULT_IDENTITY) {
        printer.line(&format!("identity = \"{}\"", args.identity.display()))?;
    }
    printer.line("")?;
    printer.line(
        "[orders]        # let the server drain, repair and verify this node; see docs/orders.md",
    )?;
    printer.line("enabled = true  # without it the node stays in phase `joining`")?;
    Ok(Outcome::Fine)
}

fn hostname() -> anyhow::Result<NodeId> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname")?;
    name.trim().parse().map_err(|err: farrier_fleet::fleet::identity::NameError| {
        Hinted::error(err.to_string(), "set another name with --node")
    })
}

fn with_hint(err: &EnrolError) -> anyhow::Error {
    let hint = match err {
        EnrolError::Refused(status) => match status.code() as i32 {
            6 => {
                "run `farrier server revoke NODE` first, or create a token for this node with `farrier server token create --node NODE`"
            }
            7 => "create another token with `farrier server token create`",
            _ => "see the server's log",
        },
        EnrolError::Connect(ConnectError::Connect { .. } | ConnectError::Slow { .. }) => {
            "check that the server runs and the address is right"
        }
        EnrolError::Connect(ConnectError::UntrustedServer { .. }) => {
            "check the address, the fingerprint (as printed by `farrier server token create`), and this node's clock"
        }
        EnrolError::Connect(ConnectError::NoTls { .. }) => {
            "check that a farrier server listens at this address; nodes of a server without TLS (`--plain`) need no enrolment"
        }
        EnrolError::Connect(_) => "check that a farrier server listens at this address",
        EnrolError::Identity(_) => "choose another directory with --identity",
        EnrolError::Fingerprint(_) => "`farrier server token create` prints the fingerprint",
        _ => "nothing was changed; retry",
    };
    Hinted::error(Chain(err).to_string(), hint)
}
