//! Asks a node for a file, waits for it, and keeps it.

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
    ArtifactList, ArtifactRow, ConnectionState, Done, ErrandView, NodeDetail,
};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use sha2::{Digest, Sha256};

use super::session::Session;
use crate::cli::Output;
use crate::commands::Outcome;
use crate::commands::server::span;
use crate::failure::{Hinted, is_unavailable, note, warn};
use crate::printer::Printer;

/// How often the server is asked whether the file is there.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// From one attempt to reach a server that does not answer to the next.
const RECONNECT_EVERY: Duration = Duration::from_secs(1);

/// A file of a node.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The node
    node: NodeId,
    /// Where to write the file; it must not exist [default: farrier-logs-NODE-TIME.tar.gz in this folder]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Fetch the newest one that the server has, and ask the node for nothing
    #[arg(long)]
    last: bool,
    /// How long to wait for the node, such as 90s, 10m or 1h
    #[arg(long, value_name = "TIME", value_parser = span, default_value = "10m")]
    wait: SignedDuration,
    /// How to print what was fetched
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

/// An order that makes a node send a file.
pub(super) struct ArtifactOrder {
    /// Its code.
    pub(super) code: &'static str,
    /// The last part of the path to ask for it.
    pub(super) path: &'static str,
    /// What the file's name begins with.
    pub(super) stem: &'static str,
}

/// Asks for the file, waits for it, writes it, and says what is in it.
pub(super) fn fetch(
    session: &mut Session,
    args: &Args,
    order: &ArtifactOrder,
    printer: &mut Printer,
) -> anyhow::Result<Outcome> {
    let node = &args.node;
    let path = |at| args.out.clone().unwrap_or_else(|| file_name(order.stem, node, at));
    let (row, path) = if args.last {
        let row = newest(session, node, order)?;
        let path = path(row.at);
        (row, path)
    } else {
        // A node should not gather for minutes what cannot be written then. The file goes again: an
        // interrupt leaves nothing in the way of `--last`.
        let path = path(Timestamp::now());
        drop(Target::create(path.clone())?);
        let generation = request(session, args, order, printer)?;
        (of_generation(session, node, generation)?, path)
    };
    let mut target = Target::create(path)?;
    download(session, node, &row, &mut target)
        .map_err(|err| err.context(Hinted::plain("the download failed", "`--last` tries again")))?;
    let path = target.keep();
    let manifest = Manifest::read(File::open(&path)?);
    if args.output == Output::Json {
        printer.json(&json!({
            "node": node, "path": path, "artifact": row, "manifest": manifest.as_ref().ok(),
        }))?;
    } else {
        let sent =
            format!("{node} sent {} bytes at {:.0}; kept as {}", row.bytes, row.at, path.display());
        printer.line(&sent)?;
        printer.line(&format!("  sha256 {}", row.sha256))?;
    }
    match manifest {
        Ok(_) if args.output == Output::Json => Ok(Outcome::Fine),
        Ok(manifest) => summary(&manifest, printer),
        // A node may send anything.
        Err(err) => {
            warn(&anyhow::Error::new(err).context("the file cannot be read as a bundle"));
            Ok(Outcome::Finding)
        }
    }
}

/// `farrier-logs-gpu-7-20261118T014500Z.tar.gz`
fn file_name(stem: &str, node: &NodeId, at: Timestamp) -> PathBuf {
    PathBuf::from(format!("{stem}-{node}-{}.tar.gz", at.strftime("%Y%m%dT%H%M%SZ")))
}

fn artifacts(session: &mut Session, node: &NodeId) -> anyhow::Result<Vec<ArtifactRow>> {
    let ArtifactList { artifacts } = session.get(&format!("/api/v1/nodes/{node}/artifacts"))?;
    Ok(artifacts)
}

fn newest(
    session: &mut Session,
    node: &NodeId,
    order: &ArtifactOrder,
) -> anyhow::Result<ArtifactRow> {
    let found = artifacts(session, node)?.into_iter().find(|it| it.order == order.code);
    found.ok_or_else(|| {
        let text = format!("the server has no logs of {node} that you may see");
        Hinted::error(text, "without --last, the node is asked for them")
    })
}

fn of_generation(
    session: &mut Session,
    node: &NodeId,
    generation: u64,
) -> anyhow::Result<ArtifactRow> {
    let found = artifacts(session, node)?.into_iter().find(|it| it.generation == generation);
    found.ok_or_else(|| {
        let text = format!("{node} reports order {generation} as done, and the server has no file");
        Hinted::error(text, "ask again; if that repeats, look at the agent's log on the node")
    })
}

/// Has the order given, and waits until the node has carried it out. Returns the order's generation.
fn request(
    session: &mut Session,
    args: &Args,
    order: &ArtifactOrder,
    printer: &mut Printer,
) -> anyhow::Result<u64> {
    let node = &args.node;
    let detail = format!("/api/v1/nodes/{node}");
    let before: NodeDetail = session.get(&detail)?;
    let connection = not_connected(&before).map(|it| format!("; its agent is {it}"));
    let before = ended(before, order.code).and_then(|it| it.generation);
    let Done { .. } = session.post(&format!("{detail}/{}", order.path), &json!({}))?;
    note(&format!(
        "asked {node} for its logs{}; waiting up to {:#}. The order stays if this is interrupted: `--last` fetches them later",
        connection.unwrap_or_default(),
        args.wait,
    ));
    let wait = Duration::try_from(args.wait).unwrap_or(Duration::MAX);
    let begin = Instant::now();
    loop {
        let found: NodeDetail = match session.get(&detail) {
            // The server is being restarted: the order is in its log.
            Err(err) if is_unavailable(&err) && begin.elapsed() < wait => {
                warn(&err);
                std::thread::sleep(RECONNECT_EVERY);
                session.reconnect();
                continue;
            }
            found => found?,
        };
        let running = found.order.as_ref().map(|it| it.what.clone());
        let connection = not_connected(&found);
        let ended = ended(found, order.code).filter(|it| it.generation > before);
        if let Some((ended, generation)) = ended.and_then(|it| it.generation.map(|nr| (it, nr))) {
            take_back(printer)?;
            done(node, &ended)?;
            return Ok(generation);
        }
        let waits_for = match (connection, running) {
            (Some(connection), _) => format!("its agent is {connection}"),
            (None, Some(order)) => format!("its present order is `{order}`"),
            (None, None) => "the server has not ordered it yet".to_owned(),
        };
        if begin.elapsed() >= wait {
            take_back(printer)?;
            let text = format!("{node} has not sent its logs after {:#}: {waits_for}", args.wait);
            let hint = format!(
                "`farrier fleet explain {node}` says how it stands; the order stays, and `--last` fetches the logs later"
            );
            return Err(Hinted::error(text, hint));
        }
        if printer.is_terminal() {
            printer.clear_transient()?;
            printer.transient(&format!("waiting for {node}: {waits_for}"))?;
        }
        std::thread::sleep(LOOK_EVERY.min(wait.saturating_sub(begin.elapsed())));
    }
}

/// The state of a node's session, where it has none.
fn not_connected(node: &NodeDetail) -> Option<String> {
    let connection = node.connection.as_ref()?;
    let is_gone =
        matches!(connection.state, ConnectionState::Disconnected | ConnectionState::Never);
    is_gone.then(|| connection.to_string())
}

fn take_back(printer: &mut Printer) -> anyhow::Result<()> {
    if printer.is_terminal() {
        printer.clear_transient()?;
    }
    Ok(())
}

/// How the last order of this kind ended.
fn ended(detail: NodeDetail, code: &str) -> Option<ErrandView> {
    detail.errands_ended.into_iter().find(|it| it.code == code)
}

fn done(node: &NodeId, ended: &ErrandView) -> anyhow::Result<()> {
    if ended.how == "done" {
        return Ok(());
    }
    let hint = format!("`farrier fleet explain {node}` says how it stands");
    // A node's words: one line, whatever they are.
    let evidence = escaped(&ended.evidence);
    Err(Hinted::error(format!("{node} could not send its logs: {evidence}"), hint))
}

/// A new file, which is deleted where it is not kept.
struct Target {
    path: PathBuf,
    file: File,
    is_kept: bool,
}

impl Target {
    fn create(path: PathBuf) -> anyhow::Result<Self> {
        let name = path.display();
        let another = "name another file with --out";
        if path == std::path::Path::new("-") {
            return Err(Hinted::error("the logs are not written to stdout", another));
        }
        if path.is_dir() {
            return Err(Hinted::error(
                format!("`{name}` is a folder"),
                "name a file in it with --out",
            ));
        }
        let opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        let file = opened.map_err(|err| match err.kind() {
            ErrorKind::AlreadyExists => Hinted::error(format!("`{name}` exists"), another),
            _ => anyhow::Error::new(err)
                .context(Hinted::plain(format!("failed to create `{name}`"), another)),
        })?;
        Ok(Self { path, file, is_kept: false })
    }

    fn keep(mut self) -> PathBuf {
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

/// Writes the file, which has to be the one that the server describes.
fn download(
    session: &mut Session,
    node: &NodeId,
    row: &ArtifactRow,
    target: &mut Target,
) -> anyhow::Result<()> {
    let Target { path, file, .. } = target;
    let failed = || format!("failed to write `{}`", path.display());
    let (mut hash, mut bytes) = (Sha256::new(), 0_u64);
    session.download(&format!("/api/v1/nodes/{node}/artifacts/{}", row.generation), |piece| {
        hash.update(piece);
        bytes += piece.len() as u64;
        file.write_all(piece).with_context(failed)
    })?;
    let sha256 = hex(&hash.finalize());
    if bytes != row.bytes || sha256 != row.sha256 {
        let text = "what was received is not what the server describes";
        return Err(Hinted::error(text, "try again with --last"));
    }
    file.sync_all().with_context(failed)
}

/// What is in the file, and what is not.
fn summary(manifest: &Manifest, printer: &mut Printer) -> anyhow::Result<Outcome> {
    for file in &manifest.files {
        let mut text = format!("{}, {} bytes", file.name, file.bytes);
        if file.dropped_bytes > 0 {
            text.push_str(&format!(", {} bytes before them left out", file.dropped_bytes));
        }
        if file.redactions > 0 {
            text.push_str(&format!(", {} secrets removed", file.redactions));
        }
        printer.paragraph("  has", 11, &text)?;
    }
    for gap in &manifest.missing {
        printer.paragraph("  lacks", 11, &format!("{}: {}", gap.name, gap.text))?;
    }
    Ok(Outcome::Fine)
}
