//! `farrier server backup` and `restore`: the log only. They name the access store and the CA key
//! but do not copy them, because a key does not belong next to log backups.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use farrier_server::access::Store;
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
const BESIDE: [(&str, &str); 3] = [
    (
        "access",
        "who may speak: without it `farrier server rebuild-access` brings back what was revoked, and people need new tokens",
    ),
    ("ca.key", "the authority's key: without it every node enrols anew"),
    ("ca.pem", "the authority's certificate"),
];

/// Creates a file with mode 0600; fails if it exists.
pub(super) fn make(path: &Path) -> anyhow::Result<File> {
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    made.map_err(|err| match err.kind() {
        io::ErrorKind::AlreadyExists => Hinted::error(
            format!("`{}` is there already", path.display()),
            "nothing is written over; name another",
        ),
        _ => anyhow::Error::new(err).context(format!("failed to make `{}`", path.display())),
    })
}

/// Verifies a copied log. Returns its number of entries and its head hash.
fn checked(path: &Path) -> anyhow::Result<(u64, String)> {
    let head = verify(&open(path)?)?.map_err(|flaw| {
        let message = format!("`{}` is not whole: {flaw}", path.display());
        Hinted::error(message, "`farrier server verify-log` says more")
    })?;
    Ok((head.seq, head.hash.to_string()))
}

pub(super) fn back_up(args: &BackupArgs, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let log = open(&args.dir)?;
    drop(make(&args.file)?);
    let copied = log.back_up(&args.file).map_err(anyhow::Error::new).and_then(|()| {
        sync(&args.file).context("failed to bring the copy to disk")?;
        checked(&args.file)
    });
    let (entries, hash) = match copied {
        Ok(copied) => copied,
        Err(err) => {
            // Remove the incomplete copy, so that it is not mistaken for a backup.
            let _ = fs::remove_file(&args.file);
            return Err(err);
        }
    };
    printer.line(&format!("{}: {entries} entries, whole, hash {hash}", args.file.display()))?;
    printer.line("Not in it, and to be kept apart from it:")?;
    for (name, what) in BESIDE {
        printer.paragraph(&format!("  {name}"), 10, what)?;
    }
    Ok(Outcome::Fine)
}

pub(super) fn restore(args: &RestoreArgs, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let (entries, hash) = checked(&args.file)?;
    prepare_folder(&args.dir)?;
    let target = log_path(&args.dir);
    for suffix in ["", "-wal", "-shm", "-head", ".state", ".state.before"] {
        let path = args.dir.join(format!("log{suffix}"));
        if path.exists() {
            return Err(Hinted::error(
                format!("`{}` is there already", path.display()),
                "nothing is written over; name another folder, or move what is there away",
            ));
        }
    }
    // Entry numbers are reused after a restore, so a node that enrols later could get another
    // node's artifacts.
    let artifacts = args.dir.join("artifacts");
    let of_node = |it: fs::DirEntry| it.file_name().to_string_lossy().starts_with("node-");
    if fs::read_dir(&artifacts).into_iter().flatten().flatten().any(of_node) {
        return Err(Hinted::error(
            format!("`{}` has files of nodes", artifacts.display()),
            "they do not belong to the log that is restored: move them away",
        ));
    }
    // Copy to a temporary file and rename, so that a truncated copy is not mistaken for a log.
    let part = args.dir.join("log.part");
    let _ = fs::remove_file(&part);
    drop(make(&part)?);
    open(&args.file)?.back_up(&part)?;
    sync(&part).context("failed to bring the log to disk")?;
    fs::rename(&part, &target).context("failed to put the log in its place")?;
    sync(&target).context("failed to bring the log to disk")?;
    let head = open(&target)?.head()?;
    anyhow::ensure!(head.hash.to_string() == hash, "the copy is not what the backup is");
    // The server refuses a log that ends before the entry it last started with. An operator chose
    // this log, so reset that check.
    if args.dir.join("access").exists() {
        Store::open(&args.dir)?.clear_log()?;
    }
    printer.line(&format!("{}: {entries} entries, whole, hash {hash}", target.display()))?;
    for (name, what) in BESIDE {
        let state = if args.dir.join(name).exists() { "is there" } else { "is missing" };
        printer.paragraph(&format!("  {name}"), 10, &format!("{state}; {what}"))?;
    }
    Ok(Outcome::Fine)
}
