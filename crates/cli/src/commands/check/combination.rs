//! Checks a named combination of GPU, driver, CUDA and framework.

use farrier_facts::check::{
    CheckReason, CheckReport, CheckRequest, Feature, InputError, Module, Query, Usage, Verdict,
    check,
};

use super::print::{self, Detail, INDENT};
use super::{Args, FeatureArg, ModuleArg, UsageArg};
use crate::cli::Output;
use crate::commands::Outcome;
use crate::fact_sets;
use crate::failure::Hinted;
use crate::printer::Printer;

impl Args {
    fn request(&self, gpu: &str, driver: &str) -> CheckRequest {
        CheckRequest {
            gpu: gpu.to_owned(),
            driver: driver.to_owned(),
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

pub(super) fn run(
    args: &Args,
    gpu: &str,
    driver: &str,
    printer: &mut Printer,
) -> anyhow::Result<Outcome> {
    let set = fact_sets::active();
    let on = args.on.unwrap_or_else(fact_sets::today);
    let query = Query::parse(&set, &args.request(gpu, driver), on).map_err(refusal)?;
    let report = check(&set, &query);
    match args.output {
        Output::Json => printer.json(&report)?,
        Output::Table => {
            print(&report, args, printer)?;
            fact_sets::print(&set.set, printer)?;
        }
    }
    Ok(Outcome::finding_if(matches!(report.verdict, Verdict::Blocked | Verdict::Unknown)))
}

fn refusal(err: InputError) -> anyhow::Error {
    Hinted::error(err.to_string(), err.expected)
}

fn print(report: &CheckReport, args: &Args, printer: &mut Printer) -> anyhow::Result<()> {
    let verdict = print::headline(report.verdict, printer);
    let subject = &report.subject;
    printer.line(&format!("{verdict}: {} with driver {}", subject.gpu, subject.driver))?;
    // First the reasons that are not ok, then the remedies, then the reasons that are ok.
    let (fine, not_fine): (Vec<&CheckReason>, Vec<&CheckReason>) =
        report.reasons.iter().partition(|reason| reason.verdict == Verdict::Ok);
    print_reasons(&not_fine, printer)?;
    print::remedies(&report.remedies, printer)?;
    print_reasons(&fine, printer)?;
    print::notices(&report.notices, Detail::new(args), printer)
}

fn print_reasons(reasons: &[&CheckReason], printer: &mut Printer) -> anyhow::Result<()> {
    if !reasons.is_empty() {
        printer.line("")?;
    }
    for reason in reasons {
        printer.paragraph(reason.verdict.name(), INDENT, &reason.text)?;
        printer.paragraph("", INDENT, &format!("[{}] {}", reason.code, reason.source))?;
    }
    Ok(())
}
