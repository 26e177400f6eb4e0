//! `farrier bundle verify`: hashes every file.

use farrier_bundle::BundleId;
use serde::Serialize;

use super::{StoreArgs, find, hint, size};
use crate::cli::Output;
use crate::commands::Outcome;
use crate::printer::{Printer, Tone};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Identities of bundles, or their first digits [default: all of the store]
    bundles: Vec<String>,
    /// Output format
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    output: Output,
    #[command(flatten)]
    store: StoreArgs,
}

#[derive(Serialize)]
struct VerifiedBundle {
    id: BundleId,
    driver: Option<String>,
    bytes: u64,
    problems: Vec<String>,
}

#[derive(Serialize)]
struct VerifiedStore {
    v: u32,
    bundles: Vec<VerifiedBundle>,
    /// Files that no bundle uses, and manifests that cannot be read.
    other_problems: Vec<String>,
}

pub(super) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let store = args.store.open_existing()?;
    let (ids, other_problems) = if args.bundles.is_empty() {
        let found = store.inventory().map_err(hint::store)?;
        let ids = found.bundles.iter().map(|stored| stored.bundle.id()).collect();
        (ids, found.problems.into_iter().map(chain).collect())
    } else {
        let ids = args.bundles.iter().map(|text| find(&store, text));
        (ids.collect::<anyhow::Result<Vec<_>>>()?, Vec::new())
    };
    let mut bundles = Vec::new();
    for id in ids {
        bundles.push(match store.verify(id) {
            Ok((bundle, problems)) => VerifiedBundle {
                id,
                driver: Some(bundle.driver.to_string()),
                bytes: bundle.package_bytes(),
                problems: problems.into_iter().map(chain).collect(),
            },
            Err(err) => VerifiedBundle { id, driver: None, bytes: 0, problems: vec![chain(err)] },
        });
    }
    let found = VerifiedStore { v: 1, bundles, other_problems };
    let is_damaged = !found.other_problems.is_empty()
        || found.bundles.iter().any(|bundle| !bundle.problems.is_empty());
    match args.output {
        Output::Json => printer.json(&found)?,
        Output::Table => print(&found, printer)?,
    }
    Ok(Outcome::finding_if(is_damaged))
}

fn chain(err: impl std::error::Error + Send + Sync + 'static) -> String {
    let err = anyhow::Error::new(err);
    err.chain().map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

fn print(found: &VerifiedStore, printer: &mut Printer) -> anyhow::Result<()> {
    for bundle in &found.bundles {
        let driver = bundle.driver.as_deref().unwrap_or("unknown driver");
        let (tone, word) = match bundle.problems.len() {
            0 => (Tone::Good, "undamaged"),
            _ => (Tone::Bad, "damaged"),
        };
        let word = printer.toned(tone, word);
        let size = size(bundle.bytes);
        printer.line(&format!("{} {driver}, {size}: {word}", bundle.id.short()))?;
        for problem in &bundle.problems {
            printer.paragraph("", 2, problem)?;
        }
    }
    for problem in &found.other_problems {
        printer.line(problem)?;
    }
    Ok(())
}
