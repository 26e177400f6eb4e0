//! The end of the demo: stops everything and audits the log.

use std::collections::BTreeMap;

use anyhow::{Context, bail};
use farrier_fleet::fleet::replay::Replay;
use farrier_fleet::fleet::{FleetState, NodePhase};
use farrier_server::log::sqlite::SqliteLog;
use farrier_server::log::{Log, verify};
use farrier_server::run::log_path;

use super::environment::{DemoDir, Environment};
use super::narrator::Narrator;
use crate::printer::{Printer, Tone};

const PAGE: usize = 4096;

/// Summary to print at the end.
pub(super) struct DemoSummary {
    folder: DemoDir,
    entries: u64,
    phases: BTreeMap<NodePhase, usize>,
}

/// Stops the demo, then audits the log from its first entry.
pub(super) async fn close(environment: Environment) -> anyhow::Result<DemoSummary> {
    let folder = environment.shut_down().await?;
    let path = log_path(&folder.server());
    let (entries, fleet) = tokio::task::spawn_blocking(move || audit(&path)).await??;
    let mut phases = BTreeMap::new();
    for node in fleet.nodes.values() {
        *phases.entry(node.phase()).or_default() += 1;
    }
    Ok(DemoSummary { folder, entries, phases })
}

/// Checks that the hash chain is intact, that a replay makes the same decisions, and that the
/// replay ends in the state of the server's snapshot.
fn audit(path: &std::path::Path) -> anyhow::Result<(u64, FleetState)> {
    let log = SqliteLog::open_to_read(path)?;
    let head = match verify(&log)? {
        Ok(head) => head,
        Err(flaw) => bail!("verification of the log failed: {flaw}"),
    };
    let mut replay = Replay::default();
    let mut seq = 0;
    loop {
        let page = log.read(seq, PAGE)?;
        let Some(last) = page.last() else { break };
        seq = last.seq;
        for stored in &page {
            replay.apply(stored.entry()?)?;
        }
    }
    let state = replay.finish()?;
    let snapshot = log.latest_snapshot()?.context("the server wrote no snapshot")?.state;
    if serde_json::to_vec(&snapshot)? != serde_json::to_vec(&state)? {
        bail!("the state after a replay of the log differs from the server's snapshot");
    }
    Ok((head.seq, state))
}

impl DemoSummary {
    pub(super) fn print(&self, narrator: &Narrator, printer: &mut Printer) -> anyhow::Result<()> {
        let phases: Vec<String> =
            self.phases.iter().map(|(phase, count)| format!("{count} {phase}")).collect();
        printer.line("")?;
        printer.line(&printer.toned(Tone::Strong, &phases.join(", ")))?;
        printer.line(&format!(
            "{} faults and repairs, {} findings, {} quarantines, {} returns to service after repair and verification, {} deferred actions, {} orders",
            narrator.acts, narrator.findings, narrator.quarantined, narrator.returned, narrator.deferred, narrator.orders
        ))?;
        printer.line(&format!(
            "The log has {} entries. Its hash chain is intact. A replay from the first entry gives the same decisions and, byte for byte, the same state.",
            self.entries
        ))?;
        if self.folder.is_kept() {
            let folder = self.folder.server();
            let folder = folder.display();
            printer.line(&format!("The log is kept in {folder}. To verify it again:"))?;
            printer.line(&format!("  farrier server verify-log {folder} --replay"))?;
        }
        Ok(())
    }
}
