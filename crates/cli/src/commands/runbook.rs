//! `farrier runbook`: what a finding means and what to do about it, without a network.

use farrier_facts::names::nearest;
use farrier_fleet::health::Rules;
use farrier_fleet::runbook::{FirstCommands, Runbook, RunbookSources};

use crate::cli::Output;
use crate::commands::Outcome;
use crate::fact_sets;
use crate::failure::Hinted;
use crate::printer::{Printer, Tone};

/// Prints the runbook page of a finding.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Code of the finding, such as `gpu.lost`, an Xid (`xid.79` or `79`), an item of `farrier
    /// check`, or `heartbeat-lost` or `domain-fault`; nothing lists all
    code: Option<String>,
    /// Output format
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    output: Output,
}

/// Column of the text in a page.
const INDENT: usize = 4;

pub(crate) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let (rules, commands, set) =
        (Rules::embedded()?, FirstCommands::embedded()?, fact_sets::active());
    let sources = RunbookSources { rules: &rules, facts: &set, commands: &commands };
    let Some(code) = &args.code else {
        list(&sources, args.output, printer)?;
        return Ok(Outcome::Fine);
    };
    let page = find(&sources, code)?;
    match args.output {
        Output::Json => printer.json(&page)?,
        Output::Table => print(&page, printer)?,
    }
    Ok(Outcome::Fine)
}

/// The code that a person means: `xid.79`, `Xid 79` and `79` are the same Xid.
pub(crate) fn code_of(name: &str) -> String {
    let lower = name.trim().to_ascii_lowercase();
    let number = lower.strip_prefix("xid").unwrap_or(&lower).trim_start_matches(['.', ' ']);
    number.parse::<u32>().map_or_else(|_| lower.clone(), farrier_fleet::runbook::xid_code)
}

fn find(sources: &RunbookSources<'_>, name: &str) -> anyhow::Result<Runbook> {
    let code = code_of(name);
    sources.page_named(&code).ok_or_else(|| {
        let codes = sources.codes();
        let similar = nearest(&code, codes.iter().map(String::as_str));
        let hint = match similar.first() {
            Some(similar) => format!("did you mean `{similar}`? `farrier runbook` lists all"),
            None => "`farrier runbook` lists all codes".to_owned(),
        };
        Hinted::error(format!("no runbook for `{name}`"), hint)
    })
}

fn list(sources: &RunbookSources<'_>, output: Output, printer: &mut Printer) -> anyhow::Result<()> {
    let codes = sources.codes();
    let pages: Vec<Runbook> = codes.iter().filter_map(|code| sources.page(code)).collect();
    if output == Output::Json {
        return Ok(printer.json(&pages)?);
    }
    let rows: Vec<Vec<String>> = pages
        .iter()
        .map(|page| {
            let word = |value: Option<String>| value.unwrap_or_else(|| "as the event".to_owned());
            vec![
                page.code.clone(),
                word(page.severity.map(|severity| severity.to_string())),
                word(page.action.map(|action| action.to_string())),
                page.summary().to_owned(),
            ]
        })
        .collect();
    Ok(printer.table(&["Code", "Severity", "Action", "Meaning"], &rows)?)
}

fn print(page: &Runbook, printer: &mut Printer) -> anyhow::Result<()> {
    let word = |value: Option<String>| value.unwrap_or_else(|| "as the event or check".to_owned());
    printer.line(&printer.toned(Tone::Strong, &page.title))?;
    printer.line(&format!(
        "severity {}, action {}",
        word(page.severity.map(|severity| severity.to_string())),
        word(page.action.map(|action| action.to_string()))
    ))?;
    section("What it means", std::slice::from_ref(&page.meaning), printer)?;
    section("What opens it", &[format!("{}.", page.evidence), page.clears.clone()], printer)?;
    printer.line("")?;
    printer.line(&printer.toned(Tone::Strong, "First commands"))?;
    for command in &page.first_commands {
        printer.line(&format!("    {}", command.run))?;
        printer.paragraph("", INDENT + 4, &command.shows)?;
    }
    section("What Farrier does by itself", &page.automation, printer)?;
    section("When to replace the part", &page.replacement, printer)?;
    section("Source", std::slice::from_ref(&page.source), printer)
}

fn section(title: &str, paragraphs: &[String], printer: &mut Printer) -> anyhow::Result<()> {
    printer.line("")?;
    printer.line(&printer.toned(Tone::Strong, title))?;
    for paragraph in paragraphs.iter().filter(|paragraph| !paragraph.is_empty()) {
        printer.paragraph("", INDENT, paragraph)?;
    }
    Ok(())
}
