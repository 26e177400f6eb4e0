//! `farrier bundle inspect`: one bundle, or all of the store.

use std::fs;
use std::path::PathBuf;

use anyhow::Context;
use farrier_bundle::check::{BundleCheck, check};
use farrier_bundle::{Bundle, KernelSupport, PackageRole, WayBack};
use farrier_facts::FactSet;
use jiff::civil::Date;
use serde::Serialize;

use super::{StoreArgs, find, hint, size};
use crate::cli::Output;
use crate::commands::Outcome;
use crate::fact_sets;
use crate::failure::warn;
use crate::printer::{Printer, Tone};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Identity of a bundle, or its first digits; nothing lists the store
    bundle: Option<String>,
    /// Read this manifest instead of the store
    #[arg(long, value_name = "FILE", conflicts_with = "bundle")]
    manifest: Option<PathBuf>,
    /// Date for which the facts hold [default: today]
    #[arg(long, value_name = "YYYY-MM-DD", value_parser = crate::cli::parse_date)]
    on: Option<Date>,
    /// Output format
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    output: Output,
    #[command(flatten)]
    store: StoreArgs,
}

/// JSON of one bundle.
#[derive(Serialize)]
struct InspectedBundle<'b> {
    manifest: &'b farrier_bundle::BundleManifest,
    facts: BundleCheck,
}

/// JSON of the store.
#[derive(Serialize)]
struct ListedBundle {
    id: String,
    driver: String,
    flavour: farrier_bundle::ModuleFlavour,
    platform: farrier_bundle::Platform,
    packages: usize,
    bytes: u64,
    is_complete: bool,
}

pub(super) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let on = args.on.unwrap_or_else(fact_sets::today);
    let set = fact_sets::active();
    let bundle = match (&args.manifest, &args.bundle) {
        (Some(path), _) => {
            let read = || format!("failed to read `{}`", path.display());
            Bundle::parse(&fs::read(path).with_context(read)?).with_context(read)?
        }
        (None, Some(text)) => {
            let store = args.store.open_existing()?;
            store.bundle(find(&store, text)?).map_err(hint::store)?
        }
        (None, None) => return list(args, printer),
    };
    match args.output {
        Output::Json => {
            let manifest = bundle.manifest();
            printer.json(&InspectedBundle { manifest, facts: check(&bundle, &set, on) })?;
        }
        Output::Table => print(&bundle, &set, on, printer)?,
    }
    Ok(Outcome::Fine)
}

fn list(args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let found = args.store.open_existing()?.inventory().map_err(hint::store)?;
    for problem in found.problems {
        warn(&anyhow::Error::new(problem));
    }
    let bundles: Vec<ListedBundle> = found
        .bundles
        .iter()
        .map(|stored| ListedBundle {
            id: stored.bundle.id().to_string(),
            driver: stored.bundle.driver.to_string(),
            flavour: stored.bundle.flavour,
            platform: stored.bundle.platform.clone(),
            packages: stored.bundle.packages.len(),
            bytes: stored.bundle.package_bytes(),
            is_complete: stored.is_complete,
        })
        .collect();
    if args.output == Output::Json {
        printer.json(&bundles)?;
        return Ok(Outcome::Fine);
    }
    let row = |bundle: &ListedBundle| {
        vec![
            bundle.id[..12].to_owned(),
            bundle.driver.clone(),
            bundle.flavour.name().to_owned(),
            bundle.platform.to_string(),
            bundle.packages.to_string(),
            size(bundle.bytes),
            if bundle.is_complete { "complete" } else { "damaged" }.to_owned(),
        ]
    };
    let rows: Vec<Vec<String>> = bundles.iter().map(row).collect();
    let headings = ["Bundle", "Driver", "Modules", "Platform", "Packages", "Size", "Files"];
    printer.table(&headings, &rows)?;
    Ok(Outcome::Fine)
}

/// Prints a bundle and what the facts know of it.
pub(super) fn print(
    bundle: &Bundle,
    set: &FactSet,
    on: Date,
    printer: &mut Printer,
) -> anyhow::Result<()> {
    let facts = check(bundle, set, on);
    let flavour = bundle.flavour.name();
    let title = format!("Driver {} for {}, {flavour} modules", bundle.driver, bundle.platform);
    printer.line(&printer.toned(Tone::Strong, &title))?;
    printer.line(&format!("bundle {}", bundle.id()))?;
    printer.line("")?;
    for (label, text) in properties(bundle, &facts) {
        printer.paragraph(&format!("  {label:<15}"), 17, &text)?;
    }
    print_problems(&facts, on, printer)?;
    printer.line("")?;
    let rows: Vec<Vec<String>> = bundle
        .packages
        .iter()
        .map(|package| {
            let sha256 = package.sha256.to_string()[..12].to_owned();
            let (name, version) = (package.name.clone(), package.version.clone());
            vec![name, version, package.role.to_string(), size(package.bytes), sha256]
        })
        .collect();
    Ok(printer.table(&["Package", "Version", "Role", "Size", "SHA-256"], &rows)?)
}

fn properties(bundle: &Bundle, facts: &BundleCheck) -> Vec<(&'static str, String)> {
    let kernels = match &bundle.kernels {
        KernelSupport::Dkms => "built on the node by DKMS, which needs kernel headers".to_owned(),
        KernelSupport::Prebuilt(releases) => releases.join(", "),
    };
    let way_back = match &bundle.way_back {
        WayBack::Any => "to any bundle".to_owned(),
        WayBack::Never => "none".to_owned(),
        WayBack::Only(bundles) => {
            bundles.iter().map(|id| id.short()).collect::<Vec<_>>().join(", ")
        }
    };
    let kind = facts.lifecycle.map_or("unknown branch", |lifecycle| lifecycle.name());
    let end = facts.end_of_support.map_or("unknown".to_owned(), |end| end.to_string());
    let cuda = facts.native_cuda.map_or("unknown".to_owned(), |cuda| cuda.to_string());
    let mut found = vec![
        ("branch", format!("{} ({kind})", facts.branch)),
        ("end of support", format!("{end} ({})", facts.support.name())),
        ("CUDA", cuda),
        ("GPUs", bundle.gpu_architectures.join(", ")),
        ("kernels", kernels),
        ("activation", bundle.activation.name().to_owned()),
        ("way back", way_back),
        ("size", format!("{} in {} packages", size(bundle.package_bytes()), bundle.packages.len())),
    ];
    if let Some(signer) = &bundle.secure_boot_signer {
        found.push(("signer", signer.clone()));
    }
    if !bundle.module_options.is_empty() {
        let options = bundle.module_options.iter();
        let options = options.map(|o| format!("{}.{}={}", o.module, o.option, o.value));
        found.push(("module options", options.collect::<Vec<_>>().join(", ")));
    }
    if !bundle.absent.is_empty() {
        found.push(("absent", bundle.absent.join(", ")));
    }
    if !bundle.requires.is_empty() {
        found.push(("requires", bundle.requires.join(", ")));
    }
    let missing = [PackageRole::FabricManager, PackageRole::Firmware];
    let missing = missing.into_iter().filter(|role| bundle.with_role(*role).next().is_none());
    let missing: Vec<&str> = missing.map(PackageRole::name).collect();
    if !missing.is_empty() {
        found.push(("without", missing.join(", ")));
    }
    found
}

fn print_problems(facts: &BundleCheck, on: Date, printer: &mut Printer) -> anyhow::Result<()> {
    if !facts.problems.is_empty() {
        printer.line("")?;
        printer.line(&printer.toned(Tone::Strong, &format!("Known problems on {on}")))?;
    }
    for problem in &facts.problems {
        printer.paragraph("", 2, &problem.to_string())?;
    }
    Ok(())
}
