//! `farrier bundle diff`: what a change board reads.

use farrier_bundle::check::{AdvisoryReference, BundleCheck, RegressionReference};
use farrier_bundle::diff::{BundleDiff, PackageChange, diff};
use farrier_bundle::{Activation, KernelSupport};
use jiff::civil::Date;

use super::{StoreArgs, find, hint, size};
use crate::cli::Output;
use crate::commands::Outcome;
use crate::fact_sets;
use crate::printer::{Printer, Tone};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Identity of the bundle that nodes have, or its first digits
    from: String,
    /// Identity of the bundle that nodes would get, or its first digits
    to: String,
    /// Date for which the facts hold [default: today]
    #[arg(long, value_name = "YYYY-MM-DD", value_parser = crate::cli::parse_date)]
    on: Option<Date>,
    /// Output format
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    output: Output,
    #[command(flatten)]
    store: StoreArgs,
}

pub(super) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let store = args.store.open_existing()?;
    let from = store.bundle(find(&store, &args.from)?).map_err(hint::store)?;
    let to = store.bundle(find(&store, &args.to)?).map_err(hint::store)?;
    let on = args.on.unwrap_or_else(fact_sets::today);
    let found = diff(&from, &to, &fact_sets::active(), on);
    match args.output {
        Output::Json => printer.json(&found)?,
        Output::Table => {
            let flavours = [from.flavour.name(), to.flavour.name()];
            let platforms = [from.platform.to_string(), to.platform.to_string()];
            print(&found, flavours, &platforms, printer)?;
        }
    }
    Ok(Outcome::Fine)
}

fn print(
    found: &BundleDiff,
    flavours: [&str; 2],
    platforms: &[String; 2],
    printer: &mut Printer,
) -> anyhow::Result<()> {
    let title = format!("Driver {} to {}", found.from.driver, found.to.driver);
    printer.line(&printer.toned(Tone::Strong, &title))?;
    printer.line("")?;
    let both = |of: fn(&BundleCheck) -> String| [of(&found.from), of(&found.to)];
    let own = |texts: [&str; 2]| texts.map(str::to_owned);
    let rows = [
        ("bundle", both(|side| side.id.short())),
        ("platform", platforms.clone()),
        ("modules", own(flavours)),
        ("branch", both(branch)),
        ("end of support", both(end_of_support)),
        ("CUDA", both(|side| side.native_cuda.map_or("unknown".to_owned(), |v| v.to_string()))),
        ("open advisories", both(open_advisories)),
        ("regressions", both(|side| side.regressions.len().to_string())),
    ];
    let rows = rows.map(|(label, [from, to])| vec![label.to_owned(), from, to]);
    printer.table(&["", "From", "To"], &rows)?;
    printer.line("")?;
    for (label, text) in effects(found) {
        printer.paragraph(&format!("  {label:<18}"), 20, &text)?;
    }
    print_lists(found, printer)?;
    printer.line("")?;
    let changes = found.added.iter().chain(&found.removed).chain(&found.changed);
    let rows: Vec<Vec<String>> = changes.map(package_row).collect();
    let title = format!("Packages ({} unchanged)", found.unchanged);
    printer.line(&printer.toned(Tone::Strong, &title))?;
    Ok(printer.table(&["Package", "Role", "From", "To"], &rows)?)
}

fn branch(side: &BundleCheck) -> String {
    let kind = side.lifecycle.map_or("unknown", |lifecycle| lifecycle.name());
    format!("{} ({kind})", side.branch)
}

fn end_of_support(side: &BundleCheck) -> String {
    let end = side.end_of_support.map_or("unknown".to_owned(), |end| end.to_string());
    format!("{end} ({})", side.support.name())
}

fn open_advisories(side: &BundleCheck) -> String {
    let unknown = match side.unlisted.len() {
        0 => String::new(),
        count => format!(", {count} without a fix for the branch"),
    };
    format!("{}{unknown}", side.exposed.len())
}

fn effects(found: &BundleDiff) -> Vec<(&'static str, String)> {
    let mut effects = Vec::new();
    if found.is_other_platform {
        let text = "the bundles are for different platforms: no node can change between them";
        effects.push(("not possible", text.to_owned()));
    }
    let activation = match found.activation {
        Activation::Reload => "the node is drained and its modules are reloaded",
        Activation::Reboot => "the node is drained and rebooted",
    };
    effects.push(("activation", activation.to_owned()));
    let way_back = if found.can_return { "yes" } else { "no: the new bundle excludes it" };
    effects.push(("way back", way_back.to_owned()));
    let kernels = match &found.kernels {
        KernelSupport::Dkms => "built on the node, which needs kernel headers".to_owned(),
        KernelSupport::Prebuilt(releases) => format!("only {}", releases.join(", ")),
    };
    effects.push(("kernels", kernels));
    effects.push(("download", size(found.download_bytes)));
    for (label, names) in [
        ("GPUs lost", &found.architectures_lost),
        ("GPUs gained", &found.architectures_gained),
        ("newly absent", &found.newly_absent),
    ] {
        if !names.is_empty() {
            effects.push((label, names.join(", ")));
        }
    }
    for (label, options) in
        [("options removed", &found.options_removed), ("options added", &found.options_added)]
    {
        if !options.is_empty() {
            let texts = options.iter().map(|o| format!("{}.{}={}", o.module, o.option, o.value));
            effects.push((label, texts.collect::<Vec<_>>().join(", ")));
        }
    }
    effects
}

fn print_lists(found: &BundleDiff, printer: &mut Printer) -> anyhow::Result<()> {
    let advisory =
        |advisory: &AdvisoryReference| format!("{} ({:.1})", advisory.id, advisory.score);
    let regression = |regression: &RegressionReference| regression.id.clone();
    for (title, texts) in [
        ("Advisories fixed", found.advisories_fixed.iter().map(advisory).collect::<Vec<_>>()),
        ("Advisories newly open", found.advisories_opened.iter().map(advisory).collect()),
        ("Regressions gone", found.regressions_gone.iter().map(regression).collect()),
        ("New known regressions", found.regressions_new.iter().map(regression).collect()),
    ] {
        printer.line("")?;
        printer.line(&printer.toned(Tone::Strong, &format!("{title}: {}", texts.len())))?;
        if !texts.is_empty() {
            printer.paragraph("", 2, &texts.join(", "))?;
        }
    }
    Ok(())
}

fn package_row(change: &PackageChange) -> Vec<String> {
    let version = |version: &Option<String>| version.clone().unwrap_or_else(|| "-".to_owned());
    let (name, role) = (change.name.clone(), change.role.to_string());
    vec![name, role, version(&change.from), version(&change.to)]
}
