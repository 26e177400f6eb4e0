//! `farrier simulate`: nodes that are not there, for clients that do not know.

mod clock;
mod inject;
mod node;
mod show;

use std::path::Path;

use anyhow::Context;
use clap::Subcommand;
use farrier_sim::NodeDir;

use crate::commands::Outcome;
use crate::failure::Hinted;
use crate::printer::Printer;

/// What to do with a simulated node.
#[derive(Debug, Subcommand)]
pub(crate) enum SimulateCommand {
    /// Make a node: GPUs, a `libnvidia-ml.so.1` that answers for them, and the files of such a host
    Node(node::Args),
    /// Let something happen to a simulated node, while clients run
    Inject(inject::Args),
    /// Set the clock of a simulated node, so that an hour takes no time
    ///
    /// What the node itself counts follows it: energy, time that clocks were held, uptime, its kernel log. An agent that watches the
    /// node goes by this machine's clock: its windows and waits do not pass any faster.
    Clock(clock::Args),
    /// What a simulated node is like now
    Show(show::Args),
}

pub(crate) fn run(command: &SimulateCommand, printer: &mut Printer) -> anyhow::Result<Outcome> {
    match command {
        SimulateCommand::Node(args) => node::run(args, printer)?,
        SimulateCommand::Inject(args) => inject::run(args, printer)?,
        SimulateCommand::Clock(args) => clock::run(args, printer)?,
        SimulateCommand::Show(args) => show::run(args, printer)?,
    }
    Ok(Outcome::Fine)
}

/// The node in `path`, which must be there.
fn open_node(path: &Path) -> anyhow::Result<NodeDir> {
    let directory = NodeDir::new(path);
    if !directory.node_path().exists() {
        return Err(Hinted::error(
            format!("there is no simulated node in `{}`", path.display()),
            format!("`farrier simulate node {} --sku H100-SXM5-80GB` makes one", path.display()),
        ));
    }
    directory.node().with_context(|| {
        Hinted::plain(
            "the simulated node is broken",
            "put its file right, or make the node anew with `--force`",
        )
    })?;
    Ok(directory)
}

/// Milliseconds of the Unix clock.
pub(crate) fn now_unix_ms() -> u64 {
    u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or(0)
}
