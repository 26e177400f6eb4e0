//! Asks a node for a file, waits for it, and keeps it.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use farrier_agent::artifact::Manifest;
use farrier_fleet::fleet::NodeId;
use farrier_wire::hex::hex;
use farrier_wire::rest::{ArtifactList, ArtifactRow, Done, ErrandView, NodeDetail};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use sha2::{Digest, Sha256};

use super::session::Session;
use crate::commands::Outcome;
use crate::commands::server::span;
use crate::failure::Hinted;
use crate::printer::Printer;

/// How often the server is asked whether the file is there.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// A file of a node.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The node
    node: NodeId,
    /// Where to keep the file; it must not exist
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Fetch the newest one that the server has, and ask the node for nothing
    #[arg(long)]
    last: bool,
    /// How long to wait for the node, such as 90s, 10m or 1h
    #[arg(long, value_name = "TIME", value_parser = span, default_value = "10m")]
    wait: SignedDuration,
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

/// Asks for the file, waits for it, keeps it, and says what is in it.
pub(super) fn fetch(
    session: &mut Session,
    args: &Args,
    order: &ArtifactOrder,
    printer: &mut Printer,
) -> anyhow::Result<Outcome> {
    if !args.last {
        request(session, args, order, printer)?;
    }
    let node = &args.node;
    let ArtifactList { artifacts } = session.get(&format!("/api/v1/nodes/{node}/artifacts"))?;
    let Some(row) = artifacts.into_iter().find(|it| it.order == order.code) else {
        let hint = format!("without --last, {node} is asked for it");
        return Err(Hinted::error(format!("the server has no such file of {node}"), hint));
    };
    let path = args.out.clone().unwrap_or_else(|| file_name(order.stem, node, row.at));
    download(session, node, &row, &path)?;
    let sent =
        format!("{node} sent {} bytes at {:.0}; kept as {}", row.bytes, row.at, path.display());
    printer.line(&sent)?;
    printer.line(&format!("  sha256 {}", row.sha256))?;
    summary(&path, printer)
}

/// `farrier-logs-gpu-7-20261118T014500Z.tar.gz`
fn file_name(stem: &str, node: &NodeId, at: Timestamp) -> PathBuf {
    PathBuf::from(format!("{stem}-{node}-{}.tar.gz", at.strftime("%Y%m%dT%H%M%SZ")))
}

/// Has the order given, and waits until the node has carried it out.
fn request(
    session: &mut Session,
    args: &Args,
    order: &ArtifactOrder,
    printer: &mut Printer,
) -> anyhow::Result<()> {
    let node = &args.node;
    let detail = format!("/api/v1/nodes/{node}");
    let before = ended(session.get(&detail)?, order.code).map(|it| it.at);
    let Done { .. } = session.post(&format!("{detail}/{}", order.path), &json!({}))?;
    let wait = Duration::try_from(args.wait).unwrap_or(Duration::MAX);
    let begin = Instant::now();
    loop {
        let found: NodeDetail = session.get(&detail)?;
        let running = found.order.as_ref().map(|it| it.what.clone());
        if let Some(ended) = ended(found, order.code).filter(|it| Some(it.at) > before) {
            take_back(printer)?;
            return done(node, &ended);
        }
        if begin.elapsed() >= wait {
            take_back(printer)?;
            let text = match &running {
                Some(running) => {
                    format!("{node} has not sent it yet; its present order is `{running}`")
                }
                None => format!("{node} has not sent it yet"),
            };
            let hint = format!(
                "`farrier fleet explain {node}` says what it waits for; `--last` fetches it later"
            );
            return Err(Hinted::error(text, hint));
        }
        if printer.is_terminal() {
            let what = running.map_or_else(|| "its turn".to_owned(), |it| format!("`{it}`"));
            printer.take_back()?;
            printer.transient(&format!("waiting for {node}: {what}"))?;
        }
        std::thread::sleep(LOOK_EVERY.min(wait.saturating_sub(begin.elapsed())));
    }
}

fn take_back(printer: &mut Printer) -> anyhow::Result<()> {
    if printer.is_terminal() {
        printer.take_back()?;
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
    Err(Hinted::error(format!("{node} could not send it: {}", ended.evidence), hint))
}

/// Keeps the file, which has to be the one that the server describes.
fn download(
    session: &mut Session,
    node: &NodeId,
    row: &ArtifactRow,
    path: &Path,
) -> anyhow::Result<()> {
    let failed = || format!("failed to write `{}`", path.display());
    let opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let mut file = opened.map_err(|err| match err.kind() {
        std::io::ErrorKind::AlreadyExists => {
            Hinted::error(format!("`{}` exists", path.display()), "name another with --out")
        }
        _ => anyhow::Error::new(err).context(failed()),
    })?;
    let kept = (|| {
        let (mut hash, mut bytes) = (Sha256::new(), 0_u64);
        session.download(
            &format!("/api/v1/nodes/{node}/artifacts/{}", row.generation),
            |piece| {
                hash.update(piece);
                bytes += piece.len() as u64;
                file.write_all(piece).with_context(failed)
            },
        )?;
        let sha256 = hex(&hash.finalize());
        if bytes != row.bytes || sha256 != row.sha256 {
            let text = "what was received is not what the server describes";
            return Err(Hinted::error(text, "try again with --last"));
        }
        file.sync_all().with_context(failed)
    })();
    if kept.is_err() {
        let _ = std::fs::remove_file(path);
    }
    kept
}

/// What is in the file, and what is not. A node may send anything: then that is said.
fn summary(path: &Path, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let manifest = match Manifest::read(File::open(path)?) {
        Ok(manifest) => manifest,
        Err(err) => {
            let text = format!("the file cannot be read as a bundle: {err}");
            printer.paragraph("  warning", 11, &text)?;
            return Ok(Outcome::Finding);
        }
    };
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
