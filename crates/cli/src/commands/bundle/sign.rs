//! `farrier bundle sign`: keys, and the signed repository.
//!
//! Keys are files on the machines of the people who sign. No server needs them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Subcommand;
use farrier_bundle::BundleId;
use farrier_bundle::tuf::metadata::PublicKey;
use farrier_bundle::tuf::publisher::{Expiry, Publisher, RolePlan};
use farrier_bundle::tuf::{MetadataRole, SigningKey};
use jiff::{SignedDuration, Timestamp};

use super::{StoreArgs, find, hint};
use crate::commands::Outcome;
use crate::confirmation::confirm;
use crate::printer::Printer;

const DAY: SignedDuration = SignedDuration::from_hours(24);

#[derive(Debug, Subcommand)]
pub(crate) enum SignCommand {
    /// Make a signing key; its file can be read only by its owner
    Key(KeyArgs),
    /// Create a repository without bundles, and print where its root is
    Init(InitArgs),
    /// Replace keys: sign a new root with the keys of the old and of the new one
    Rotate(InitArgs),
    /// Publish bundles of the store
    Add(AddArgs),
    /// Withdraw bundles, so that they can no longer be imported
    Remove(RemoveArgs),
    /// Sign the timestamp again before it expires
    Refresh(RefreshArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct KeyArgs {
    /// File to create
    file: PathBuf,
}

/// The repository, and the keys that sign.
#[derive(Debug, clap::Args)]
struct SignerArgs {
    /// Folder of the repository
    repository: PathBuf,
    /// File of a key that signs; may be repeated
    #[arg(long, value_name = "FILE", required = true)]
    key: Vec<PathBuf>,
    /// Days until the targets and snapshot expire
    #[arg(long, value_name = "DAYS", default_value_t = 90, value_parser = clap::value_parser!(u16).range(1..=3650))]
    expires_days: u16,
    /// Days until the timestamp expires
    #[arg(long, value_name = "DAYS", default_value_t = 14, value_parser = clap::value_parser!(u16).range(1..=3650))]
    timestamp_days: u16,
    /// Days until the root expires
    #[arg(long, value_name = "DAYS", default_value_t = 365, value_parser = clap::value_parser!(u16).range(1..=3650))]
    root_days: u16,
}

#[derive(Debug, clap::Args)]
pub(crate) struct InitArgs {
    #[command(flatten)]
    signers: SignerArgs,
    /// File of a key for the root; may be repeated
    #[arg(long, value_name = "FILE", required = true)]
    root_key: Vec<PathBuf>,
    /// How many keys have to sign the root
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    root_threshold: u32,
    /// File of a key for the targets; may be repeated
    #[arg(long, value_name = "FILE", required = true)]
    targets_key: Vec<PathBuf>,
    /// How many keys have to sign the targets
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    targets_threshold: u32,
    /// File of the key for snapshot and timestamp
    #[arg(long, value_name = "FILE", required = true)]
    timestamp_key: Vec<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct AddArgs {
    #[command(flatten)]
    signers: SignerArgs,
    /// Identity of a bundle in the store, or its first digits; may be repeated
    #[arg(long, value_name = "BUNDLE", required = true)]
    bundle: Vec<String>,
    #[command(flatten)]
    store: StoreArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RemoveArgs {
    #[command(flatten)]
    signers: SignerArgs,
    /// Identity of a bundle in the repository; may be repeated
    #[arg(long, value_name = "BUNDLE", required = true)]
    bundle: Vec<BundleId>,
    /// Withdraw without asking
    #[arg(long)]
    yes: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RefreshArgs {
    #[command(flatten)]
    signers: SignerArgs,
}

pub(super) fn run(command: &SignCommand, printer: &mut Printer) -> anyhow::Result<Outcome> {
    match command {
        SignCommand::Key(args) => {
            let key = SigningKey::generate(&args.file).map_err(hint::key)?;
            printer.line(&format!("key {} in {}", key.id(), args.file.display()))?;
        }
        SignCommand::Init(args) => {
            let (roles, keys) = args.roles()?;
            let (expiry, folder) = (args.signers.expiry()?, &args.signers.repository);
            let created = Publisher::create(folder, &roles, &keys, expiry);
            created.map_err(hint::publish)?;
            let root = folder.join("metadata/1.root.json");
            printer.line(&format!("repository in {}", folder.display()))?;
            printer.line(&format!("give {} to the nodes as their root", root.display()))?;
        }
        SignCommand::Rotate(args) => {
            let (roles, keys) = args.roles()?;
            let publisher = args.signers.open()?;
            publisher.rotate(&roles, &keys, args.signers.expiry()?).map_err(hint::publish)?;
            printer.line("nodes follow to the new root by themselves")?;
        }
        SignCommand::Add(args) => add(args, printer)?,
        SignCommand::Remove(args) => {
            let question = format!("withdraw {} bundle(s)?", args.bundle.len());
            if confirm(args.yes, &question)?.is_none() {
                return Ok(Outcome::Finding);
            }
            let (keys, expiry) = (args.signers.keys()?, args.signers.expiry()?);
            let publisher = args.signers.open()?;
            publisher.remove(&args.bundle, &keys, expiry).map_err(hint::publish)?;
            printer.line("withdrawn; nodes that have a copy keep it")?;
        }
        SignCommand::Refresh(args) => {
            let (keys, expiry) = (args.signers.keys()?, args.signers.expiry()?);
            args.signers.open()?.refresh(&keys, expiry).map_err(hint::publish)?;
            printer.line(&format!("the timestamp expires at {}", expiry.timestamp))?;
        }
    }
    Ok(Outcome::Fine)
}

fn add(args: &AddArgs, printer: &mut Printer) -> anyhow::Result<()> {
    let store = args.store.open_existing()?;
    let ids = args.bundle.iter().map(|text| find(&store, text));
    let ids = ids.collect::<anyhow::Result<Vec<_>>>()?;
    let (keys, expiry) = (args.signers.keys()?, args.signers.expiry()?);
    let publisher = args.signers.open()?;
    for bundle in publisher.add(&store, &ids, &keys, expiry).map_err(hint::publish)? {
        printer.line(&format!("signed {}: driver {}", bundle.id(), bundle.driver))?;
    }
    Ok(())
}

impl SignerArgs {
    fn open(&self) -> anyhow::Result<Publisher> {
        Publisher::open(&self.repository).map_err(hint::publish)
    }

    fn keys(&self) -> anyhow::Result<Vec<SigningKey>> {
        self.key.iter().map(|path| SigningKey::read(path).map_err(hint::key)).collect()
    }

    fn expiry(&self) -> anyhow::Result<Expiry> {
        let now = Timestamp::now();
        // Metadata has whole seconds.
        let now = Timestamp::from_second(now.as_second())?;
        let after = |days: u16| {
            now.checked_add(DAY * i32::from(days)).context("the expiry is out of range")
        };
        Ok(Expiry {
            root: after(self.root_days)?,
            targets: after(self.expires_days)?,
            snapshot: after(self.expires_days)?,
            timestamp: after(self.timestamp_days)?,
        })
    }
}

impl InitArgs {
    /// The keys of each role in the new root, and all keys that sign.
    fn roles(&self) -> anyhow::Result<(BTreeMap<MetadataRole, RolePlan>, Vec<SigningKey>)> {
        let plan = |paths: &[PathBuf], threshold| -> anyhow::Result<RolePlan> {
            let keys = paths.iter().map(|path| public_key(path));
            Ok(RolePlan { keys: keys.collect::<anyhow::Result<_>>()?, threshold })
        };
        let timestamp = plan(&self.timestamp_key, 1)?;
        let roles = BTreeMap::from([
            (MetadataRole::Root, plan(&self.root_key, self.root_threshold)?),
            (MetadataRole::Targets, plan(&self.targets_key, self.targets_threshold)?),
            (MetadataRole::Snapshot, timestamp.clone()),
            (MetadataRole::Timestamp, timestamp),
        ]);
        Ok((roles, self.signers.keys()?))
    }
}

/// The public part of a key file, or of the key of another person: a file with the JSON of a TUF
/// key.
fn public_key(path: &Path) -> anyhow::Result<PublicKey> {
    let text = fs::read(path).with_context(|| format!("failed to read `{}`", path.display()))?;
    if let Ok(key) = serde_json::from_slice::<PublicKey>(&text) {
        return Ok(key);
    }
    Ok(SigningKey::read(path).map_err(hint::key)?.public().clone())
}
