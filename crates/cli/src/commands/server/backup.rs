//! `farrier server backup` and `restore`. Both handle only the log. They mention the access store
//! and the CA key, but do not copy them, because a key must not be stored next to backups of the
//! log.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use farrier_server::access::AccessStore;
use farrier_server::log::{Log, sync, verify};
use farrier_server::run::{log_path, prepare_folder};

use super::verify_log::open;
use crate::commands::Outcome;
use crate::commands::agent::absolute;
use crate::failure::Hinted;
use crate::printer::Printer;

#[derive(Debug, clap::Args)]
pub(crate) struct BackupArgs {
    /// Data directory of the server
    #[arg(value_parser = absolute)]
    dir: PathBuf,
    /// Backup to create; the file must not exist yet
    #[arg(value_parser = absolute)]
    file: PathBuf,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RestoreArgs {
    /// Backup file
    #[arg(value_parser = absolute)]
    file: PathBuf,
    /// Data directory of the server, without a log
    #[arg(value_parser = absolute)]
    dir: PathBuf,
}

/// Other files of the data directory, which a backup does not contain.
const NOT_IN_BACKUP: [(&str, &str); 3] = [
    (
        "access",
        "tokens, users and certificates: without it `farrier server rebuild-access` restores the revocations, and users need new tokens",
    ),
    ("ca.key", "the CA's private key: without it every node has to enrol again"),
    ("ca.pem", "the CA's certificate"),
];

/// Creates a file with mode 0600. Fails if the file exists.
pub(super) fn create_new(path: &Path) -> anyhow::Result<File> {
    let created = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    created.map_err(|err| match err.kind() {
        io::ErrorKind::AlreadyExists => Hinted::error(
            format!("`{}` already exists", path.display()),
            "existing files are not overwritten; name another file",
        ),
        _ => anyhow::Error::new(err).context(format!("failed to create `{}`", path.display())),
    })
}

/// Verifies a copied log. Returns its number of entries and its head hash.
fn verified(path: &Path) -> anyhow::Result<(u64, String)> {
    let head = verify(&open(path)?)?.map_err(|flaw| {
        let message = format!("verification of `{}` failed: {flaw}", path.display());
        Hinted::error(message, "`farrier server verify-log` shows more")
    })?;
    Ok((head.seq, head.hash.to_string()))
}

pub(super) fn back_up(args: &BackupArgs, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let log = open(&args.dir)?;
    drop(create_new(&args.file)?);
    let copied = log.back_up(&args.file).map_err(anyhow::Error::new).and_then(|()| {
        sync(&args.file).context("failed to sync the backup to disk")?;
        verified(&args.file)
    });
    let (entries, hash) = match copied {
        Ok(copied) => copied,
        Err(err) => {
            // Remove the incomplete copy, because it could be mistaken for a backup.
            let _ = fs::remove_file(&args.file);
            return Err(err);
        }
    };
    printer.line(&format!(
        "{}: {entries} entries, hash chain intact, hash {hash}",
        args.file.display()
    ))?;
    printer.line("Not included; back these up separately:")?;
    for (name, description) in NOT_IN_BACKUP {
        printer.paragraph(&format!("  {name}"), 10, description)?;
    }
    Ok(Outcome::Fine)
}

pub(super) fn restore(args: &RestoreArgs, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let (entries, hash) = verified(&args.file)?;
    prepare_folder(&args.dir)?;
    let target = log_path(&args.dir);
    for suffix in ["", "-wal", "-shm", "-head", ".state", ".state.before"] {
        let path = args.dir.join(format!("log{suffix}"));
        if path.exists() {
            return Err(Hinted::error(
                format!("`{}` already exists", path.display()),
                "existing files are not overwritten; name another directory, or move the files away",
            ));
        }
    }
    // After a restore, entry numbers are used again. A node that enrols later could otherwise get
    // the artifacts of another node.
    let artifacts = args.dir.join("artifacts");
    let belongs_to_node =
        |entry: fs::DirEntry| entry.file_name().to_string_lossy().starts_with("node-");
    if fs::read_dir(&artifacts).into_iter().flatten().flatten().any(belongs_to_node) {
        return Err(Hinted::error(
            format!("`{}` contains artifacts of nodes", artifacts.display()),
            "they do not belong to the restored log: move them away",
        ));
    }
    // Copy to a temporary file and rename it, because a truncated copy could be mistaken for a log.
    let part = args.dir.join("log.part");
    let _ = fs::remove_file(&part);
    drop(create_new(&part)?);
    open(&args.file)?.back_up(&part)?;
    sync(&part).context("failed to sync the log to disk")?;
    fs::rename(&part, &target).context("failed to rename the restored log")?;
    sync(&target).context("failed to sync the log to disk")?;
    let head = open(&target)?.head()?;
    anyhow::ensure!(head.hash.to_string() == hash, "the restored log differs from the backup");
    // The server refuses a log that ends before the entry with which the server last started. An
    // operator chose this log, so reset that check.
    if args.dir.join("access").exists() {
        AccessStore::open(&args.dir)?.clear_log()?;
    }
    printer.line(&format!(
        "{}: {entries} entries, hash chain intact, hash {hash}",
        target.display()
    ))?;
    for (name, description) in NOT_IN_BACKUP {
        let state = if args.dir.join(name).exists() { "exists" } else { "is missing" };
        printer.paragraph(&format!("  {name}"), 10, &format!("{state}; {description}"))?;
    }
    Ok(Outcome::Fine)
}
