//! `farrier check`: a combination that a person names.

use std::cmp::Ordering;

use clap::ValueEnum;
use farrier_facts::check::{
    Feature, InputError, Module, Notice, NoticeCode, Query, Reason, Report, Request, Usage,
    Verdict, check,
};
use jiff::civil::Date;

use crate::cli::Output;
use crate::commands::Outcome;
use crate::failure::Hinted;
use crate::printer::{Printer, Tone};
use crate::sets;

/// Judges a combination of GPU, driver, CUDA and framework.
///
/// Exit code 0: ok or caveat; 1: blocked or unknown; 2: bad input.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The GPU by any name: SKU, NVML product name, PCI id
    #[arg(long, value_name = "NAME")]
    gpu: String,
    /// The driver release (580.65.06), or its branch (580)
    #[arg(long, value_name = "VERSION")]
    driver: String,
    /// The CUDA to run or compile with
    #[arg(long, value_name = "X.Y[.Z]")]
    cuda: Option<String>,
    /// The framework build, such as torch==2.11.0+cu128, jax[cuda13]==0.8.0 or vllm==0.20.0
    #[arg(long, value_name = "NAME==VERSION")]
    framework: Option<String>,
    /// The kernel modules in use
    #[arg(long)]
    module: Option<ModuleArg>,
    /// What CUDA is for
    #[arg(long, value_name = "USE", default_value = "run")]
    r#use: UsageArg,
    /// The program carries PTX and no machine code for this GPU
    #[arg(long)]
    ptx_only: bool,
    /// A cuda-compat package is on the library path: its CUDA
    #[arg(long, value_name = "X.Y")]
    forward_compat: Option<String>,
    /// The version of fabric manager
    #[arg(long, value_name = "VERSION")]
    fabric_manager: Option<String>,
    /// A feature that must work
    #[arg(long)]
    feature: Option<FeatureArg>,
    /// The day for which the answer shall hold [default: today]
    #[arg(long, value_name = "YYYY-MM-DD", value_parser = crate::cli::day)]
    on: Option<Date>,
    /// Let security advisories and known regressions decide too
    #[arg(long)]
    strict: bool,
    /// How to print the answer
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    output: Output,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum ModuleArg {
    Open,
    Proprietary,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum UsageArg {
    Run,
    Compile,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum FeatureArg {
    Cdmm,
    Mig,
}

impl Args {
    fn request(&self) -> Request {
        Request {
            gpu: self.gpu.clone(),
            driver: self.driver.clone(),
            cuda: self.cuda.clone(),
            framework: self.framework.clone(),
            module: self.module.map(|module| match module {
                ModuleArg::Open => Module::Open,
                ModuleArg::Proprietary => Module::Proprietary,
            }),
            usage: match self.r#use {
                UsageArg::Run => Usage::Run,
                UsageArg::Compile => Usage::Compile,
            },
            ptx_only: self.ptx_only,
            forward_compat: self.forward_compat.clone(),
            fabric_manager: self.fabric_manager.clone(),
            feature: self.feature.map(|feature| match feature {
                FeatureArg::Cdmm => Feature::Cdmm,
                FeatureArg::Mig => Feature::Mig,
            }),
            strict: self.strict,
        }
    }
}

pub(crate) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let set = sets::active();
    let on = args.on.unwrap_or_else(sets::today);
    let query = Query::read(&set, &args.request(), on).map_err(refusal)?;
    let report = check(&set, &query);
    match args.output {
        Output::Json => printer.json(&report)?,
        Output::Table => {
            print(&report, args, printer)?;
            sets::print(&set.set, printer)?;
        }
    }
    Ok(Outcome::finding_if(matches!(report.verdict, Verdict::Blocked | Verdict::Unknown)))
}

fn refusal(err: InputError) -> anyhow::Error {
    Hinted::error(err.to_string(), err.expected)
}

/// Indent of everything under a verdict: the width of the longest verdict and two spaces.
const INDENT: usize = 9;

fn print(report: &Report, args: &Args, printer: &mut Printer) -> anyhow::Result<()> {
    let tone = match report.verdict {
        Verdict::Ok => Tone::Good,
        Verdict::Caveat => Tone::Caution,
        Verdict::Unknown | Verdict::Blocked => Tone::Bad,
    };
    let verdict = printer.toned(tone, &report.verdict.name().to_uppercase());
    let subject = &report.subject;
    printer.line(&format!("{verdict}: {} with driver {}", subject.gpu, subject.driver))?;
    // What stands in the way, what to do about it, and only then what is fine.
    let (fine, open): (Vec<&Reason>, Vec<&Reason>) =
        report.reasons.iter().partition(|reason| reason.verdict == Verdict::Ok);
    print_reasons(&open, printer)?;
    if !report.remedies.is_empty() {
        printer.line("")?;
        printer.line(&printer.toned(Tone::Strong, "What to do"))?;
        for remedy in &report.remedies {
            printer.paragraph("  -", 4, &remedy.text)?;
            if let Some(command) = &remedy.command {
                printer.line(&format!("      $ {command}"))?;
            }
        }
    }
    print_reasons(&fine, printer)?;
    print_notices(&report.notices, args.strict, printer)
}

fn print_reasons(reasons: &[&Reason], printer: &mut Printer) -> anyhow::Result<()> {
    if !reasons.is_empty() {
        printer.line("")?;
    }
    for reason in reasons {
        printer.paragraph(reason.verdict.name(), INDENT, &reason.text)?;
        printer.paragraph("", INDENT, &format!("[{}] {}", reason.code, reason.source))?;
    }
    Ok(())
}

/// Advisories can be many: the worst few, then how many more.
const ADVISORIES_SHOWN: usize = 3;

fn print_notices(notices: &[Notice], strict: bool, printer: &mut Printer) -> anyhow::Result<()> {
    if notices.is_empty() {
        return Ok(());
    }
    printer.line("")?;
    let heading = if strict { "Notices" } else { "Notices (with --strict they decide too)" };
    printer.line(&printer.toned(Tone::Strong, heading))?;
    let (mut exposed, rest): (Vec<&Notice>, Vec<&Notice>) =
        notices.iter().partition(|notice| notice.code == NoticeCode::Exposed);
    for notice in rest {
        let id = notice.id.as_deref().map(|id| format!("{id}: ")).unwrap_or_default();
        printer.paragraph("  -", 4, &format!("{id}{}", notice.text))?;
    }
    // Stable: of the same score the newest stays first.
    exposed.sort_by(|left, right| right.score.partial_cmp(&left.score).unwrap_or(Ordering::Equal));
    if let Some(fixed) = exposed.iter().filter_map(|notice| notice.fixed.as_ref()).max() {
        let count = exposed.len();
        let text = format!(
            "security advisories with a fix in the branch, all of them in {fixed}: {count}"
        );
        printer.paragraph("  -", 4, &text)?;
    }
    for notice in exposed.iter().take(ADVISORIES_SHOWN) {
        let id = notice.id.as_deref().unwrap_or_default();
        let level = notice.level.unwrap_or_default();
        let score = notice.score.unwrap_or_default();
        printer.paragraph("", 4, &format!("{id} ({score} {level}): {}", notice.text))?;
    }
    if exposed.len() > ADVISORIES_SHOWN {
        printer.line("    ... --output json lists them all")?;
    }
    Ok(())
}
