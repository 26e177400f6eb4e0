//! `farrier server revoke`.

use farrier_fleet::fleet::NodeId;
use jiff::Timestamp;

use super::DataDir;
use crate::commands::Outcome;
use crate::printer::Printer;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Name of the node
    node: NodeId,
    #[command(flatten)]
    data: DataDir,
}

pub(super) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    args.data.store()?.revoke(&args.node, Timestamp::now())?;
    printer.line(&format!(
        "all certificates of {0} are revoked: it is out of service until it enrols again (`farrier server token create --pool POOL --node {0}`)",
        args.node
    ))?;
    Ok(Outcome::Fine)
}
