//! `farrier simulate`: simulated GPU nodes for unmodified clients.

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

/// Commands for simulated nodes.
#[derive(Debug, Subcommand)]
pub(crate) enum SimulateCommand {
    /// Create a node: GPUs, a `libnvidia-ml.so.1` for them, and the host's files
    Node(node::Args),
    /// Inject a fault or an event into a simulated node while clients run
    Inject(inject::Args),
    /// Set the clock of a simulated node, to skip time
    ///
    /// The node's own counters follow this clock: energy, throttled time, uptime and the kernel
    /// log. An agent that watches the node uses the real clock, so its windows and timeouts do not
    /// run faster.
    Clock(clock::Args),
    /// Show the state of a simulated node
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

/// Opens the node in `path`. Fails if there is none.
fn open_node(path: &Path) -> anyhow::Result<NodeDir> {
    let directory = NodeDir::new(path);
    if !directory.node_path().exists() {
        return Err(Hinted::error(
            format!("there is no simulated node in `{}`", path.display()),
            format!(
                "create one with `farrier simulate node {} --sku H100-SXM5-80GB`",
                path.display()
            ),
        ));
    }
    directory.node().with_context(|| {
        Hinted::plain(
            "failed to read the simulated node",
            "correct the file, or recreate the node with `--force`",
        )
    })?;
    Ok(directory)
}

/// Current time, Unix milliseconds.
pub(crate) fn now_unix_ms() -> u64 {
    u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or(0)
}
