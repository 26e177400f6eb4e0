//! `farrier server revoke`.

use farrier_fleet::fleet::NodeId;
use jiff::Timestamp;

use super::Folder;
use crate::commands::Outcome;
use crate::printer::Printer;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Name of the node
    node: NodeId,
    #[command(flatten)]
    folder: Folder,
}

pub(super) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    args.folder.store()?.revoke(&args.node, Timestamp::now())?;
    printer.line(&format!(
        "no certificate of {0} counts any more: it is out of service until it enrols anew (`farrier server token create --pool POOL --node {0}`)",
        args.node
    ))?;
    Ok(Outcome::Fine)
}
