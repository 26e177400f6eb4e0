//! The end of the demo: stops everything and audits the log.

use std::collections::BTreeMap;

use anyhow::{Context, bail};
use farrier_fleet::fleet::replay::Replay;
use farrier_fleet::fleet::{FleetState, NodePhase};
use farrier_server::log::sqlite::SqliteLog;
use farrier_server::log::{Log, verify};
use farrier_server::run::log_path;

use super::stage::{Folder, Stage};
use super::story::Story;
use crate::printer::{Printer, Tone};

const PAGE: usize = 4096;

/// Summary to print at the end.
pub(super) struct Closed {
    folder: Folder,
    entries: u64,
    phases: BTreeMap<NodePhase, usize>,
}

/// Stops the demo, then audits the log from its first entry.
pub(super) async fn close(stage: Stage) -> anyhow::Result<Closed> {
    let folder = stage.strike().await?;
    let path = log_path(&folder.server());
    let (entries, fleet) = tokio::task::spawn_blocking(move || audited(&path)).await??;
    let mut phases = BTreeMap::new();
    for node in fleet.nodes.values() {
        *phases.entry(node.phase()).or_default() += 1;
    }
    Ok(Closed { folder, entries, phases })
}

/// Checks that the hash chain is intact, that replay gives the same decisions, and that it ends in
/// the same state as the server's snapshot.
fn audited(path: &std::path::Path) -> anyhow::Result<(u64, FleetState)> {
    let log = SqliteLog::open_to_read(path)?;
    let head = match verify(&log)? {
        Ok(head) => head,
        Err(flaw) => bail!("the log is not whole: {flaw}"),
    };
    let mut replay = Replay::default();
    let mut seq = 0;
    loop {
        let page = log.read(seq, PAGE)?;
        let Some(last) = page.last() else { break };
        seq = last.seq;
        for stored in &page {
            replay.take(stored.entry()?)?;
        }
    }
    let state = replay.finish()?;
    let kept = log.latest_snapshot()?.context("the server kept no state")?.state;
    if serde_json::to_vec(&kept)? != serde_json::to_vec(&state)? {
        bail!("replaying the log leads to another state than the server had");
    }
    Ok((head.seq, state))
}

impl Closed {
    pub(super) fn print(&self, story: &Story, printer: &mut Printer) -> anyhow::Result<()> {
        let phases: Vec<String> =
            self.phases.iter().map(|(phase, count)| format!("{count} {phase}")).collect();
        printer.line("")?;
        printer.line(&printer.toned(Tone::Strong, &phases.join(", ")))?;
        printer.line(&format!(
            "{} things happened; {} findings, {} nodes taken out of service, {} given back after repair and proof, {} times held back, {} orders",
            story.told, story.found, story.quarantined, story.returned, story.deferred, story.orders
        ))?;
        printer.line(&format!(
            "The log has {} entries. Its chain is whole; replayed from the first one it leads to the same decisions and, byte for byte, to the same state.",
            self.entries
        ))?;
        if self.folder.is_kept() {
            let folder = self.folder.server();
            let folder = folder.display();
            printer.line(&format!(
                "It is kept in {folder}; to look whether it is what was written:"
            ))?;
            printer.line(&format!("  farrier server verify-log {folder} --replay"))?;
        }
        Ok(())
    }
}
