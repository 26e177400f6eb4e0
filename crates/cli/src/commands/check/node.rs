//! Checks this node, another root, or a capture.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Context;
use farrier_facts::check::Verdict;
use farrier_facts::node::{self, Item, NodeReport, NvmlReading};
use farrier_hardware::capture::{self, CapturedNode};
use farrier_hardware::python::PythonChoice;
use farrier_hardware::{Root, nvml, observe};

use super::Args;
use super::print::{self, Detail, INDENT};
use crate::cli::Output;
use crate::commands::Outcome;
use crate::fact_sets;
use crate::failure::Hinted;
use crate::printer::Printer;

pub(super) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let set = fact_sets::active();
    let today = fact_sets::today();
    let on = args.on.unwrap_or(today);
    let Target { root, nvml, python, name, captured } = open_target(args)?;
    let observation = observe::observe_now(&root, nvml, &python);
    if let Some(folder) = &args.capture {
        let day = captured.unwrap_or(today);
        capture::write(folder, &root, &observation.nvml, &python, day)
            .with_context(|| format!("failed to write the capture `{}`", folder.display()))?;
    }
    let report = node::evaluate(&set, &observation, on, args.strict);
    match args.output {
        Output::Json => printer.json(&report)?,
        Output::Table => {
            print(&report, args, &name, printer)?;
            fact_sets::print(&set.set, printer)?;
        }
    }
    Ok(Outcome::finding_if(matches!(report.verdict, Verdict::Blocked | Verdict::Unknown)))
}

/// The node to check: its files and NVML's answers.
struct Target {
    root: Root,
    nvml: NvmlReading,
    python: PythonChoice,
    /// Name in the headline.
    name: String,
    /// Date of a capture.
    captured: Option<jiff::civil::Date>,
}

fn open_target(args: &Args) -> anyhow::Result<Target> {
    let Some(folder) = args.root.as_deref().filter(|folder| *folder != Path::new("/")) else {
        return Ok(Target {
            root: Root::live("/"),
            nvml: read_nvml(args, Path::new(nvml::LIBRARY))?,
            python: PythonChoice::active(args.python.as_deref()),
            name: "this node".to_owned(),
            captured: None,
        });
    };
    if !folder.is_dir() {
        return Err(Hinted::error(
            format!("--root: `{}` is not a directory", folder.display()),
            "the root of a node's files, such as /host, or a directory written by --capture",
        ));
    }
    if capture::is_capture(folder) {
        if args.python.is_some() {
            return Err(Hinted::error(
                "--python: a capture contains the packages of one Python, the one that was active",
                "name the Python when capturing: farrier check --python PATH --capture DIR",
            ));
        }
        let CapturedNode { root, nvml, python, captured } = capture::open(folder)
            .with_context(|| format!("failed to open the capture `{}`", folder.display()))?;
        let nvml =
            if args.nvml.is_some() { read_nvml(args, Path::new(nvml::LIBRARY))? } else { nvml };
        let name = format!("the capture {} of {captured}", folder.display());
        return Ok(Target { root, nvml, python, name, captured: Some(captured) });
    }
    // The NVML library of this machine would report the wrong GPUs, so only the library of --nvml
    // is used.
    let nvml = match &args.nvml {
        Some(path) => read_nvml(args, path)?,
        None => NvmlReading::NotAsked { why: "--root was given without --nvml".to_owned() },
    };
    let named = args.python.as_deref().and_then(Path::to_str);
    Ok(Target {
        root: Root::live(folder),
        nvml,
        python: PythonChoice::for_root(named),
        name: format!("the root {}", folder.display()),
        captured: None,
    })
}

/// Queries NVML through a child process, or reads NVML's answers from a file.
fn read_nvml(args: &Args, default: &Path) -> anyhow::Result<NvmlReading> {
    let library = args.nvml.as_deref().unwrap_or(default);
    if library.extension().is_some_and(|extension| extension == "json") {
        return capture::read_nvml(library).context("failed to read saved NVML answers");
    }
    let program = std::env::current_exe().context("failed to find this program")?;
    let mut command = Command::new(program);
    command.args(["probe", "nvml", "--library"]).arg(library);
    Ok(nvml::probe(command, Duration::from_secs(args.nvml_deadline)))
}

fn print(
    report: &NodeReport,
    args: &Args,
    name: &str,
    printer: &mut Printer,
) -> anyhow::Result<()> {
    let verdict = print::headline(report.verdict, printer);
    printer.line(&format!("{verdict}: {name}"))?;
    // First the items that are not ok, then the remedies, then the items that are ok.
    let (fine, not_fine): (Vec<&Item>, Vec<&Item>) =
        report.items.iter().partition(|item| item.verdict == Verdict::Ok);
    if !not_fine.is_empty() {
        printer.line("")?;
    }
    for item in not_fine {
        printer.paragraph(item.verdict.name(), INDENT, &item.text)?;
        printer.paragraph("", INDENT, &format!("[{}] {}", item.code, item.source))?;
    }
    print::remedies(&report.remedies, printer)?;
    if !fine.is_empty() {
        printer.line("")?;
    }
    for item in fine {
        // An item that is ok needs no action, so only the JSON output shows its source.
        printer.paragraph("ok", INDENT, &format!("{} [{}]", item.text, item.code))?;
    }
    print::notices(&report.notices, Detail::new(args), printer)?;
    if report.not_judged.is_empty() {
        return Ok(());
    }
    printer.line("")?;
    printer.paragraph("Not judged:", 2, &format!("{}.", report.not_judged.join("; ")))?;
    Ok(())
}
