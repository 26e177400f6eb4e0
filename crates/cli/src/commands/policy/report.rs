//! `farrier policy report`.

use std::path::PathBuf;

use farrier_facts::driver::SupportStatus;
use farrier_fleet::fleet::NodeId;
use farrier_fleet::fleet::policy::{
    DeviationRow, EndingRow, ExposureRow, PolicyReport, SkewRow, SupportRow, policy_report,
};
use serde_json::json;

use super::nodes::{from_file, from_server};
use super::{EvaluationDay, document};
use crate::cli::Output;
use crate::commands::Outcome;
use crate::commands::fleet::node_names;
use crate::commands::fleet::session::FleetSession;
use crate::fact_sets;
use crate::printer::{Printer, Tone};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Policy file [default: the policy in force on the server]
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// Nodes in a file that `farrier fleet export` wrote [default: the nodes of the server]
    #[arg(long, value_name = "FILE")]
    nodes: Option<PathBuf>,
    #[command(flatten)]
    on: EvaluationDay,
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Output,
}

pub(super) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let facts = fact_sets::active();
    let policy = match &args.policy {
        Some(file) => document::read(file)?,
        None => document::from_server(&mut FleetSession::from_saved_login()?)?,
    };
    let nodes = match &args.nodes {
        Some(file) => from_file(file, &facts)?,
        None => from_server(&mut FleetSession::from_saved_login()?, &facts)?,
    };
    let report = policy_report(&policy, &facts, &nodes, args.on.date());
    let outcome = Outcome::finding_if(report.needs_action());
    if args.output == Output::Json {
        printer.json(&json!({
            "version": 1, "needs_action": report.needs_action(), "report": report,
        }))?;
        return Ok(outcome);
    }
    print(&report, printer)?;
    fact_sets::print(&facts.set, printer)?;
    Ok(outcome)
}

fn print(report: &PolicyReport, printer: &mut Printer) -> anyhow::Result<()> {
    printer.line(&format!("{} nodes, on {}", report.nodes, report.on))?;
    let rows: Vec<Vec<String>> =
        report.support.iter().map(|row| support_cells(row, printer)).collect();
    section("Support", &["Pool", "Driver", "Nodes", "Support"], &rows, printer)?;
    let rows: Vec<Vec<String>> =
        report.exposure.iter().map(|row| exposure_cells(row, printer)).collect();
    let headings =
        ["Pool", "Driver", "Nodes", "Advisories", "Worst", "Days", "Deadline", "Fixed in"];
    section("Exposure to advisories", &headings, &rows, printer)?;
    let rows: Vec<Vec<String>> = report.skew.iter().map(|row| skew_cells(row, printer)).collect();
    section("Skew", &["Pool", "Drivers", "Days", "Limit", ""], &rows, printer)?;
    let rows: Vec<Vec<String>> = report.ending.iter().map(ending_cells).collect();
    section(
        "GPUs whose branches end",
        &["Pool", "GPUs", "Nodes", "Last branch", "Until"],
        &rows,
        printer,
    )?;
    let rows: Vec<Vec<String>> = report.deviations.iter().map(deviation_cells).collect();
    section(
        "Drivers that the policy does not allow",
        &["Pool", "Driver", "Nodes", "Why"],
        &rows,
        printer,
    )?;
    print_pins(report, printer)?;
    let names = |nodes: &[NodeId]| node_names::folded(nodes.iter().map(NodeId::as_str));
    let budgets: Vec<String> = report
        .empty_budgets
        .iter()
        .map(|row| format!("{} ({} nodes)", row.domain, row.members))
        .collect();
    for (title, text) in [
        ("budgets that allow no node", budgets.join(", ")),
        ("unknown driver or GPUs", names(&report.unknown)),
        ("rules that contradict each other for", names(&report.ties)),
    ] {
        if !text.is_empty() {
            printer.line("")?;
            printer.paragraph(title, title.len() + 2, &text)?;
        }
    }
    Ok(())
}

fn print_pins(report: &PolicyReport, printer: &mut Printer) -> anyhow::Result<()> {
    let rows = report.tenant_pins.iter().map(|row| {
        let pins: Vec<String> =
            row.pins.iter().map(|(tenant, driver)| format!("{tenant} {driver}")).collect();
        let limit = row.limit.map_or_else(|| "-".to_owned(), |limit| format!("{limit} drivers"));
        vec![row.pool.to_string(), pins.join(", "), limit]
    });
    let rows: Vec<Vec<String>> = rows.collect();
    section("Tenants with different pins in one pool", &["Pool", "Pins", "Limit"], &rows, printer)?;
    let rows = report.exceptions.iter().map(|row| {
        let days = format!("{} ({})", row.expires, left(row.days_left));
        let tone = if row.days_left < 0 { Tone::Bad } else { Tone::Good };
        let nodes = row.nodes.to_string();
        vec![
            row.name.clone(),
            nodes,
            row.owner.clone(),
            printer.toned(tone, &days),
            row.reason.clone(),
        ]
    });
    let rows: Vec<Vec<String>> = rows.collect();
    section("Exceptions", &["Name", "Nodes", "Owner", "Expires", "Reason"], &rows, printer)
}

fn section(
    title: &str,
    headings: &[&str],
    rows: &[Vec<String>],
    printer: &mut Printer,
) -> anyhow::Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    printer.line("")?;
    printer.line(title)?;
    printer.table(headings, rows)?;
    Ok(())
}

fn left(days: i32) -> String {
    if days < 0 { format!("{} days ago", -i64::from(days)) } else { format!("in {days} days") }
}

fn support_cells(row: &SupportRow, printer: &Printer) -> Vec<String> {
    let end = row.end.zip(row.days_left).map(|(end, days)| format!("{end} ({})", left(days)));
    let waived = if row.waived { ", waived by exceptions" } else { "" };
    let (tone, text) = match (row.status, end) {
        (SupportStatus::Ended, Some(end)) if row.waived => {
            (Tone::Caution, format!("ended {end}{waived}"))
        }
        (SupportStatus::Ended, Some(end)) => (Tone::Bad, format!("ended {end}")),
        (SupportStatus::Supported, Some(end)) => (Tone::Caution, format!("ends {end}")),
        (status, _) => (Tone::Caution, status.name().to_owned()),
    };
    vec![
        row.pool.to_string(),
        row.driver.to_string(),
        row.nodes.to_string(),
        printer.toned(tone, &text),
    ]
}

fn exposure_cells(row: &ExposureRow, printer: &Printer) -> Vec<String> {
    let count = match (row.lacking, row.unlisted) {
        (lacking, 0) => lacking.to_string(),
        (0, unlisted) => format!("{unlisted} without a fix for the branch"),
        (lacking, unlisted) => format!("{lacking}, and {unlisted} without a fix for the branch"),
    };
    let worst = row.worst.as_ref();
    let worst = worst.map_or_else(|| "-".to_owned(), |(id, score)| format!("{id} ({score})"));
    let deadline = match (row.deadline_days, row.overdue) {
        (_, true) => printer.toned(Tone::Bad, "overdue"),
        (Some(days), false) => format!("{days} days"),
        (None, false) => "none".to_owned(),
    };
    vec![
        row.pool.to_string(),
        row.driver.to_string(),
        row.nodes.to_string(),
        count,
        worst,
        row.exposed_days.to_string(),
        deadline,
        row.fixed_in.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string),
    ]
}

fn skew_cells(row: &SkewRow, printer: &Printer) -> Vec<String> {
    let drivers: Vec<String> =
        row.drivers.iter().map(|(driver, nodes)| format!("{driver}: {nodes}")).collect();
    let state = if row.exceeded {
        printer.toned(Tone::Bad, "exceeded")
    } else {
        printer.toned(Tone::Good, "ok")
    };
    vec![
        row.pool.to_string(),
        drivers.join(", "),
        row.days.map_or_else(|| "unknown".to_owned(), |days| days.to_string()),
        row.limit.map_or_else(|| "none".to_owned(), |limit| limit.to_string()),
        state,
    ]
}

fn ending_cells(row: &EndingRow) -> Vec<String> {
    vec![
        row.pool.to_string(),
        row.gpus.join(", "),
        row.nodes.to_string(),
        row.last_branch.to_string(),
        row.end.map_or_else(|| "unknown".to_owned(), |end| end.to_string()),
    ]
}

fn deviation_cells(row: &DeviationRow) -> Vec<String> {
    let reasons: Vec<String> = row.refusals.iter().map(ToString::to_string).collect();
    vec![row.pool.to_string(), row.driver.to_string(), row.nodes.to_string(), reasons.join("; ")]
}
