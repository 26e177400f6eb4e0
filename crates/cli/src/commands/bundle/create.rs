//! `farrier bundle create`: prints the plan, then downloads the packages.

use std::fs;

use anyhow::Context;
use farrier_bundle::closure::{Closure, PackageCandidate};
use farrier_bundle::compose::BundleOptions;
use farrier_bundle::create::{CreateError, Offer, base_of_dpkg_status};
use farrier_bundle::{Activation, Bundle, PackageFormat};
use farrier_facts::FactSet;

use super::create_args::Args;
use super::{hint, inspect, size};
use crate::cli::Output;
use crate::commands::Outcome;
use crate::fact_sets;
use crate::failure::note;
use crate::printer::Printer;

pub(super) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let set = fact_sets::active();
    let offer = offer(args).map_err(hint::create)?;
    let base = base(args)?;
    let (bundle, closure) = plan(args, &offer, base.as_deref(), &set).map_err(hint::create)?;
    match args.output {
        Output::Json => printer.json(bundle.manifest())?,
        Output::Table => {
            let on = args.on.unwrap_or_else(fact_sets::today);
            inspect::print(&bundle, &set, on, printer)?;
        }
    }
    if args.dry_run {
        return Ok(Outcome::Fine);
    }
    // The plan is read while the packages are downloaded.
    printer.finish()?;
    let store = args.store.open()?;
    let stored = offer.store(&bundle, &closure, &store, |file| {
        note(&format!("{} ({})", file.name(), size(file.bytes)));
    });
    stored.map_err(hint::create)?;
    if args.output == Output::Table {
        printer.line("")?;
        printer.line(&format!("bundle {} is in {}", bundle.id(), store.folder().display()))?;
    }
    Ok(Outcome::Fine)
}

fn offer(args: &Args) -> Result<Offer, CreateError> {
    match &args.folder {
        Some(folder) => Offer::from_folder(folder, args.platform.format),
        None if args.platform.format == PackageFormat::Deb => {
            Offer::from_apt(&args.apt, &args.platform.architecture)
        }
        None => Offer::from_dnf(&args.dnf),
    }
}

fn base(args: &Args) -> anyhow::Result<Option<Vec<PackageCandidate>>> {
    let Some(path) = &args.base else { return Ok(None) };
    let text =
        fs::read_to_string(path).with_context(|| format!("failed to read `{}`", path.display()))?;
    Ok(Some(base_of_dpkg_status(&text).map_err(hint::create)?))
}

fn plan(
    args: &Args,
    offer: &Offer,
    base: Option<&[PackageCandidate]>,
    set: &FactSet,
) -> Result<(Bundle, Closure), CreateError> {
    let options = BundleOptions {
        platform: args.platform.clone(),
        kernels: args.kernel.clone(),
        absent: args.absent.clone(),
        module_options: args.module_option.clone(),
        secure_boot_signer: args.signer.clone(),
        activation: if args.reboot { Activation::Reboot } else { Activation::Reload },
        way_back: args.way_back.clone(),
        roles: args.role.iter().cloned().collect(),
    };
    let driver = match &args.driver {
        Some(driver) => driver.clone(),
        None => offer.driver(&options)?,
    };
    let wanted = if args.package.is_empty() { offer.all_names()? } else { args.package.clone() };
    offer.plan(&driver, &wanted, base, &options, set)
}
