//! Orders an artifact from a node, waits for it, and writes it to a file.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context;
use farrier_agent::artifact::Manifest;
use farrier_fleet::fleet::NodeId;
use farrier_wire::hex::hex;
use farrier_wire::hidden::escaped;
use farrier_wire::rest::{
    ArtifactList, ArtifactRow, ConnectionState, Done, NodeDetail, RequestedOrderView,
};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use sha2::{Digest, Sha256};

use super::session::FleetSession;
use crate::cli::Output;
use crate::commands::Outcome;
use crate::commands::server::span;
use crate::failure::{Hinted, is_unavailable, note, warn};
use crate::printer::Printer;

/// Poll interval while the node collects the artifact.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Delay between attempts to reconnect to an unreachable server.
const RECONNECT_DELAY: Duration = Duration::from_secs(1);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Name of the node
    node: NodeId,
    /// Output file, which must not exist yet [default: farrier-logs-NODE-TIME.tar.gz in the current
    /// directory]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Fetch the newest logs on the server, without an order to the node
    #[arg(long)]
    last: bool,
    /// Timeout for the node, such as 90s, 10m or 1h
    #[arg(long, value_name = "TIME", value_parser = span, default_value = "10m")]
    wait: SignedDuration,
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

/// An order whose result is an artifact.
pub(super) struct ArtifactOrder {
    pub(super) code: &'static str,
    /// Last segment of the REST path that requests it.
    pub(super) path: &'static str,
    /// Prefix of the default file name.
    pub(super) stem: &'static str,
}

/// Requests the artifact, waits for it, downloads it, and prints a summary of its contents.
pub(super) fn fetch(
    session: &mut FleetSession,
    args: &Args,
    order: &ArtifactOrder,
    printer: &mut Printer,
) -> anyhow::Result<Outcome> {
    let node = &args.node;
    let output_path = |at| args.out.clone().unwrap_or_else(|| file_name(order.stem, node, at));
    let (row, path) = if args.last {
        let row = newest(session, node, order)?;
        let path = output_path(row.at);
        (row, path)
    } else {
        // Check that the path is writable before the node collects logs for minutes. Remove the
        // file again, so that `--last` can create it after an interrupt.
        let path = output_path(Timestamp::now());
        drop(Target::create(path.clone())?);
        let generation = request(session, args, order, printer)?;
        (by_generation(session, node, generation)?, path)
    };
    let mut target = Target::create(path)?;
    download(session, node, &row, &mut target).map_err(|err| {
        err.context(Hinted::plain("the download failed", "`--last` downloads the logs again"))
    })?;
    let path = target.into_path();
    let manifest = Manifest::read(File::open(&path)?);
    if args.output == Output::Json {
        printer.json(&json!({
            "node": node, "path": path, "artifact": row, "manifest": manifest.as_ref().ok(),
        }))?;
    } else {
        let (bytes, path) = (row.bytes, path.display());
        printer.line(&format!("{node} sent {bytes} bytes at {:.0}; saved as {path}", row.at))?;
        printer.line(&format!("  sha256 {}", row.sha256))?;
    }
    match manifest {
        Ok(_) if args.output == Output::Json => Ok(Outcome::Fine),
        Ok(manifest) => summary(&manifest, printer),
        // Artifacts are untrusted: a node may send anything.
        Err(err) => {
            warn(&anyhow::Error::new(err).context("the file is not a readable log bundle"));
            Ok(Outcome::Finding)
        }
    }
}

/// `farrier-logs-gpu-7-20261118T014500Z.tar.gz`
fn file_name(stem: &str, node: &NodeId, at: Timestamp) -> PathBuf {
    PathBuf::from(format!("{stem}-{node}-{}.tar.gz", at.strftime("%Y%m%dT%H%M%SZ")))
}

fn artifacts(session: &mut FleetSession, node: &NodeId) -> anyhow::Result<Vec<ArtifactRow>> {
    let ArtifactList { artifacts } = session.get(&format!("/api/v1/nodes/{node}/artifacts"))?;
    Ok(artifacts)
}

fn newest(
    session: &mut FleetSession,
    node: &NodeId,
    order: &ArtifactOrder,
) -> anyhow::Result<ArtifactRow> {
    let newest = artifacts(session, node)?.into_iter().find(|row| row.order == order.code);
    newest.ok_or_else(|| {
        let text = format!("no logs of {node} were collected yet, or your role may not read them");
        Hinted::error(text, format!("`farrier fleet logs {node}` lets the node collect them"))
    })
}

fn by_generation(
    session: &mut FleetSession,
    node: &NodeId,
    generation: u64,
) -> anyhow::Result<ArtifactRow> {
    let row = artifacts(session, node)?.into_iter().find(|row| row.generation == generation);
    row.ok_or_else(|| {
        let text = format!("{node} reports order {generation} as done, but the server has no file");
        Hinted::error(text, "try again; if it happens again, see the agent's log on the node")
    })
}

/// Requests the order and waits until the node has executed it. Returns the order's generation.
fn request(
    session: &mut FleetSession,
    args: &Args,
    order: &ArtifactOrder,
    printer: &mut Printer,
) -> anyhow::Result<u64> {
    let node = &args.node;
    let node_path = format!("/api/v1/nodes/{node}");
    let before: NodeDetail = session.get(&node_path)?;
    let connection = not_connected(&before).map(|state| format!("; its agent is {state}"));
    let before = last_result(before, order.code).and_then(|result| result.generation);
    let Done { .. } = session.post(&format!("{node_path}/{}", order.path), &json!({}))?;
    note(&format!(
        "requested the logs of {node}{}; waiting up to {:#}. An interrupt does not cancel the order: `--last` fetches the logs later",
        connection.unwrap_or_default(),
        args.wait,
    ));
    let timeout = Duration::try_from(args.wait).unwrap_or(Duration::MAX);
    let begin = Instant::now();
    loop {
        let current: NodeDetail = match session.get(&node_path) {
            // The server is unavailable, for example because it restarts. The order is in the log,
            // so keep waiting.
            Err(err) if is_unavailable(&err) && begin.elapsed() < timeout => {
                warn(&err);
                std::thread::sleep(RECONNECT_DELAY);
                session.reconnect();
                continue;
            }
            current => current?,
        };
        let running = current.order.as_ref().map(|order| order.text.clone());
        let connection = not_connected(&current);
        let result = last_result(current, order.code).filter(|result| result.generation > before);
        let generation = result.as_ref().and_then(|result| result.generation);
        if let (Some(result), Some(generation)) = (result, generation) {
            clear_status(printer)?;
            check_done(node, &result)?;
            return Ok(generation);
        }
        let waits_for = match (connection, running) {
            (Some(connection), _) => format!("its agent is {connection}"),
            (None, Some(order)) => format!("its current order is `{order}`"),
            (None, None) => "the server has not sent the order yet".to_owned(),
        };
        if begin.elapsed() >= timeout {
            clear_status(printer)?;
            let text = format!("{node} has not sent its logs after {:#}: {waits_for}", args.wait);
            let hint = format!(
                "`farrier fleet explain {node}` shows its state; the order stays pending, and `--last` fetches the logs later"
            );
            return Err(Hinted::error(text, hint));
        }
        if printer.is_terminal() {
            printer.clear_transient()?;
            printer.transient(&format!("waiting for {node}: {waits_for}"))?;
        }
        std::thread::sleep(POLL_INTERVAL.min(timeout.saturating_sub(begin.elapsed())));
    }
}

/// Connection state of a node whose agent is not connected; `None` if it is connected.
fn not_connected(node: &NodeDetail) -> Option<String> {
    let connection = node.connection.as_ref()?;
    let is_offline =
        matches!(connection.state, ConnectionState::Disconnected | ConnectionState::Never);
    is_offline.then(|| connection.to_string())
}

fn clear_status(printer: &mut Printer) -> anyhow::Result<()> {
    if printer.is_terminal() {
        printer.clear_transient()?;
    }
    Ok(())
}

/// Result of the last order of this kind.
fn last_result(detail: NodeDetail, code: &str) -> Option<RequestedOrderView> {
    detail.requested_order_results.into_iter().find(|result| result.code == code)
}

fn check_done(node: &NodeId, result: &RequestedOrderView) -> anyhow::Result<()> {
    if result.status == "done" {
        return Ok(());
    }
    let hint = format!("`farrier fleet explain {node}` shows its state");
    // Text from the node is untrusted: escape it, so that it stays on one line.
    let evidence = escaped(&result.evidence);
    Err(Hinted::error(format!("{node} could not send its logs: {evidence}"), hint))
}

/// A new file, removed on drop unless kept.
struct Target {
    path: PathBuf,
    file: File,
    is_kept: bool,
}

impl Target {
    fn create(path: PathBuf) -> anyhow::Result<Self> {
        let name = path.display();
        let hint = "name another file with --out";
        if path == std::path::Path::new("-") {
            return Err(Hinted::error("stdout is not supported for logs", hint));
        }
        if path.is_dir() {
            return Err(Hinted::error(
                format!("`{name}` is a directory"),
                "name a file in it with --out",
            ));
        }
        let opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        let file = opened.map_err(|err| match err.kind() {
            ErrorKind::AlreadyExists => Hinted::error(format!("`{name}` exists"), hint),
            _ => anyhow::Error::new(err)
                .context(Hinted::plain(format!("failed to create `{name}`"), hint)),
        })?;
        Ok(Self { path, file, is_kept: false })
    }

    fn into_path(mut self) -> PathBuf {
        self.is_kept = true;
        self.path.clone()
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if !self.is_kept {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Downloads the artifact and checks its size and hash against the server's record.
fn download(
    session: &mut FleetSession,
    node: &NodeId,
    row: &ArtifactRow,
    target: &mut Target,
) -> anyhow::Result<()> {
    let Target { path, file, .. } = target;
    let write_failed = || format!("failed to write `{}`", path.display());
    let (mut hash, mut bytes) = (Sha256::new(), 0_u64);
    session.download(&format!("/api/v1/nodes/{node}/artifacts/{}", row.generation), |piece| {
        hash.update(piece);
        bytes += piece.len() as u64;
        file.write_all(piece).with_context(write_failed)
    })?;
    let sha256 = hex(&hash.finalize());
    if bytes != row.bytes || sha256 != row.sha256 {
        let text = "the download does not match the size and SHA-256 that the server recorded";
        return Err(Hinted::error(text, "try again with --last"));
    }
    file.sync_all().with_context(write_failed)
}

/// Prints the files that the bundle contains, and those that it lacks.
fn summary(manifest: &Manifest, printer: &mut Printer) -> anyhow::Result<Outcome> {
    for file in &manifest.files {
        let mut text = format!("{}, {} bytes", file.name, file.bytes);
        if file.dropped_bytes > 0 {
            text.push_str(&format!(", {} earlier bytes omitted", file.dropped_bytes));
        }
        if file.redactions > 0 {
            text.push_str(&format!(", {} secrets removed", file.redactions));
        }
        printer.paragraph("  file", 11, &text)?;
    }
    for gap in &manifest.missing {
        printer.paragraph("  missing", 11, &format!("{}: {}", gap.name, gap.text))?;
    }
    Ok(Outcome::Fine)
}
