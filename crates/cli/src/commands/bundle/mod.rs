//! `farrier bundle`: creates, inspects, compares, signs and imports driver bundles.
//!
//! ```text
//! create ── apt, dnf or folder ─ farrier_bundle::create ─> store
//! inspect, verify, diff ── store, facts ─> print
//! sign ── keys, store ─ farrier_bundle::tuf::publisher ─> repository in a folder
//! import ── repository, root.json ─ farrier_bundle::tuf::client ─> store
//! ```

mod create;
mod create_args;
mod diff;
mod hint;
mod import;
mod inspect;
mod sign;
mod verify;

use std::path::{Path, PathBuf};

use clap::Subcommand;
use farrier_bundle::BundleId;
use farrier_bundle::store::Store;

use crate::commands::Outcome;
use crate::printer::Printer;

/// The root that a node trusts, which its operator puts there.
pub(crate) const DEFAULT_ROOT: &str = "/etc/farrier/bundle-root.json";
/// The store of a node.
const DEFAULT_STORE: &str = "/var/lib/farrier/bundles";

#[derive(Debug, Subcommand)]
pub(crate) enum BundleCommand {
    /// Create a bundle from apt or dnf repositories, or from a folder of packages
    ///
    /// Prints the plan, then downloads the packages into the store. Exit code 0: the bundle is in
    /// the store; 2: an error.
    Create(Box<create_args::Args>),
    /// Show a bundle with its end of support, advisories and known regressions; or list the store
    Inspect(inspect::Args),
    /// Check each byte of bundles in the store, and who signed them
    ///
    /// Exit code 0: all are good; 1: a file is damaged, missing or foreign, or with `--root` a
    /// bundle is not signed.
    Verify(verify::Args),
    /// Compare two bundles: what a change from one to the other means
    Diff(diff::Args),
    /// Import signed bundles from a repository into the store
    Import(import::Args),
    /// Sign bundles: make keys, and create and update a repository
    #[command(subcommand)]
    Sign(sign::SignCommand),
}

/// Options of commands that read the store.
#[derive(Debug, clap::Args)]
pub(crate) struct StoreArgs {
    /// Folder of the bundle store
    #[arg(long, value_name = "DIR", default_value = DEFAULT_STORE)]
    store: PathBuf,
}

impl StoreArgs {
    fn open_existing(&self) -> anyhow::Result<Store> {
        Store::open_existing(&self.store).map_err(hint::store)
    }

    fn open(&self) -> anyhow::Result<Store> {
        Store::open(&self.store).map_err(hint::store)
    }
}

pub(crate) fn run(command: &BundleCommand, printer: &mut Printer) -> anyhow::Result<Outcome> {
    match command {
        BundleCommand::Create(args) => create::run(args, printer),
        BundleCommand::Inspect(args) => inspect::run(args, printer),
        BundleCommand::Verify(args) => verify::run(args, printer),
        BundleCommand::Diff(args) => diff::run(args, printer),
        BundleCommand::Import(args) => import::run(args, printer),
        BundleCommand::Sign(command) => sign::run(command, printer),
    }
}

/// The bundle that a person means: an identity, or the start of one that is in the store.
fn find(store: &Store, text: &str) -> anyhow::Result<BundleId> {
    store.find(text).map_err(hint::store)
}

/// A size for people.
fn size(bytes: u64) -> String {
    match bytes {
        0..1_000_000 => format!("{} KB", bytes.div_ceil(1000)),
        1_000_000..1_000_000_000 => format!("{}.{} MB", bytes / 1_000_000, bytes / 100_000 % 10),
        _ => format!("{}.{} GB", bytes / 1_000_000_000, bytes / 100_000_000 % 10),
    }
}

fn path_text(path: &Path) -> String {
    path.display().to_string()
}
