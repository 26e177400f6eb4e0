//! `farrier bundle import`: from a signed repository into the store.

use std::path::PathBuf;

use farrier_bundle::BundleId;
use farrier_bundle::fetch::Mirror;
use farrier_bundle::tuf::client;
use farrier_bundle::tuf::client::VerifiedRepository;
use jiff::Timestamp;
use serde::Serialize;

use super::{DEFAULT_ROOT, StoreArgs, hint, path_text, size};
use crate::cli::Output;
use crate::commands::Outcome;
use crate::failure::{Hinted, note};
use crate::printer::Printer;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Folder or `http://` URL of the repository
    repository: String,
    /// Identities of bundles, or their first digits [default: all of the repository]
    bundles: Vec<String>,
    /// File with the root metadata that is trusted
    #[arg(long, value_name = "FILE", default_value = DEFAULT_ROOT)]
    root: PathBuf,
    /// List the signed bundles and import nothing
    #[arg(long)]
    list: bool,
    /// Output format
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    output: Output,
    #[command(flatten)]
    store: StoreArgs,
}

#[derive(Serialize)]
struct OfferedBundle {
    id: BundleId,
    name: String,
    is_stored: bool,
}

pub(super) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let store = args.store.open()?;
    let mirror = Mirror::open(&args.repository).map_err(|err| hint::import(err.into()))?;
    let repository =
        client::open(mirror, &args.root, &store, Timestamp::now()).map_err(hint::import)?;
    let ids = choose(&repository, &args.bundles)?;
    if !args.list {
        for id in &ids {
            let imported = repository.import(*id, note).map_err(hint::import)?;
            note(&format!(
                "bundle {}: driver {}, {}",
                id.short(),
                imported.driver,
                size(imported.package_bytes())
            ));
        }
    }
    let offered = repository.bundles().map_err(hint::import)?;
    let offered: Vec<OfferedBundle> = offered
        .into_iter()
        .filter(|(_, id)| ids.contains(id))
        .map(|(name, id)| OfferedBundle { id, name: name.to_owned(), is_stored: store.lists(id) })
        .collect();
    if args.output == Output::Json {
        printer.json(&offered)?;
        return Ok(Outcome::Fine);
    }
    let row = |bundle: &OfferedBundle| {
        let stored = if bundle.is_stored { path_text(store.folder()) } else { "-".to_owned() };
        vec![bundle.id.short(), bundle.name.clone(), stored]
    };
    let rows: Vec<Vec<String>> = offered.iter().map(row).collect();
    printer.table(&["Bundle", "Signed as", "In store"], &rows)?;
    Ok(Outcome::Fine)
}

/// The bundles that a person means.
fn choose(repository: &VerifiedRepository<'_>, texts: &[String]) -> anyhow::Result<Vec<BundleId>> {
    let offered = repository.bundles().map_err(hint::import)?;
    let all = offered.iter().map(|(_, id)| *id);
    if texts.is_empty() {
        return Ok(all.collect());
    }
    let find = |text: &String| {
        let found: Vec<BundleId> = all.clone().filter(|id| id.begins_with(text)).collect();
        match found[..] {
            [id] => Ok(id),
            _ => Err(Hinted::error(
                format!("no signed bundle, or more than one, starts with `{text}`"),
                "`--list` shows the signed bundles",
            )),
        }
    };
    texts.iter().map(find).collect()
}
