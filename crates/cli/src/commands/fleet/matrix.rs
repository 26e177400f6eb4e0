//! `farrier fleet matrix` and `farrier fleet domains`: fleet-wide summaries.

use farrier_fleet::fleet::{Domain, NodeId};
use farrier_fleet::runbook::DOMAIN_FAULT;
use farrier_wire::rest::{
    DomainFaultList, DomainFaultRow, DomainList, DomainRow, FreezeList, Matrix, MatrixOmitted,
    MatrixRow,
};
use serde_json::json;

use super::node_names::folded;
use super::nodes::{counted, with_age};
use super::session::FleetSession;
use crate::cli::Output;
use crate::commands::Outcome;
use crate::printer::{Printer, Tone};

/// Arguments of `farrier fleet matrix`. The exit code is 1 if any row is blocked.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

/// Arguments of `farrier fleet domains`. The exit code is 1 if any domain has a fault.
#[derive(Debug, clap::Args)]
pub(crate) struct DomainsArgs {
    /// Also list the domains in which every node is in service
    #[arg(long)]
    all: bool,
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

pub(super) fn run(
    session: &mut FleetSession,
    args: &Args,
    printer: &mut Printer,
) -> anyhow::Result<Outcome> {
    let matrix: Matrix = session.get("/api/v1/matrix")?;
    let outcome = Outcome::finding_if(matrix.rows.iter().any(|row| row.verdict == "blocked"));
    if args.output == Output::Json {
        printer.json(&matrix)?;
        return Ok(outcome);
    }
    let rows: Vec<Vec<String>> = matrix.rows.iter().map(|row| cells(row, printer)).collect();
    let headings = [
        "GPU",
        "Driver",
        "CUDA",
        "Frameworks",
        "Nodes",
        "GPUs",
        "End of support",
        "Advisories",
        "Verdict",
    ];
    printer.table(&headings, &rows)?;
    if matrix.unknown_nodes > 0 {
        printer.line("")?;
        printer.line(&format!("{} nodes with unknown GPUs", matrix.unknown_nodes))?;
    }
    if let Some(omitted) = &matrix.omitted {
        printer.line("")?;
        printer.paragraph("omitted", 10, &omitted_text(omitted))?;
    }
    for row in matrix.rows.iter().filter(|row| !row.reasons.is_empty()) {
        let driver = row.driver.as_deref().unwrap_or("unknown");
        printer.line("")?;
        printer.line(&format!(
            "{} with driver {driver}",
            row.gpu.as_deref().unwrap_or("an unknown GPU")
        ))?;
        row.reasons.iter().try_for_each(|reason| printer.paragraph("  -", 4, reason))?;
    }
    printer.line("")?;
    printer.line(&format!("data: {}, as of {}", matrix.facts, matrix.date))?;
    Ok(outcome)
}

fn omitted_text(omitted: &MatrixOmitted) -> String {
    let MatrixOmitted { rows, gpus, nodes } = omitted;
    format!(
        "{gpus} GPUs: {rows} rows are beyond the limit, and {nodes} nodes have more than 16 different GPU names"
    )
}

fn cells(row: &MatrixRow, printer: &Printer) -> Vec<String> {
    let or_unknown = |text: &Option<String>| text.clone().unwrap_or_else(|| "unknown".to_owned());
    let support = row.support.as_ref().map_or_else(
        || "unknown".to_owned(),
        |support| match (support.status == "ended", support.end.as_deref()) {
            (true, Some(end)) => format!("ended {end}"),
            (true, None) => "ended".to_owned(),
            (false, end) => end.unwrap_or("no date published").to_owned(),
        },
    );
    let exposure = row.exposure.as_ref().map_or_else(
        || "unknown".to_owned(),
        |exposure| match (
            exposure.advisories,
            &exposure.worst,
            &exposure.fixed_in,
            &exposure.unknown,
        ) {
            (0, _, _, None) => "none known".to_owned(),
            (0, _, _, Some(unknown)) => unknown.clone(),
            (count, worst, fixed, unknown) => {
                let worst = worst.as_deref().unwrap_or("unknown");
                let fixed = fixed.as_deref().unwrap_or("no release");
                let all = if unknown.is_some() { "those that name a release are" } else { "all" };
                let unknown = unknown.as_ref().map(|text| format!("; {text}")).unwrap_or_default();
                format!("{count} advisories, worst {worst}; {all} fixed in {fixed}{unknown}")
            }
        },
    );
    let tone = match row.verdict.as_str() {
        "ok" => Tone::Good,
        "blocked" => Tone::Bad,
        _ => Tone::Caution,
    };
    let frameworks = row.frameworks.join(", ");
    vec![
        row.sku.clone().unwrap_or_else(|| or_unknown(&row.gpu)),
        or_unknown(&row.driver),
        or_unknown(&row.cuda),
        if frameworks.is_empty() { "-".to_owned() } else { frameworks },
        row.nodes.to_string(),
        row.gpus.to_string(),
        support,
        exposure,
        printer.toned(tone, &row.verdict),
    ]
}

pub(super) fn domains(
    session: &mut FleetSession,
    args: &DomainsArgs,
    printer: &mut Printer,
) -> anyhow::Result<Outcome> {
    let DomainList { domains } = session.get("/api/v1/domains")?;
    let DomainFaultList { domain_faults } = session.get("/api/v1/domain-faults")?;
    let FreezeList { freezes } = session.get("/api/v1/freezes")?;
    let outcome = Outcome::finding_if(!domain_faults.is_empty());
    if args.output == Output::Json {
        printer.json(
            &json!({ "domains": domains, "domain_faults": domain_faults, "freezes": freezes }),
        )?;
        return Ok(outcome);
    }
    for fault in &domain_faults {
        print_fault(fault, printer)?;
    }
    for freeze in &freezes {
        let text = format!(
            "{} by {} until {:.0}: {}",
            freeze.domain, freeze.by, freeze.until, freeze.reason
        );
        printer.paragraph("frozen", 16, &text)?;
        printer.line("")?;
    }
    let has_news = |row: &&DomainRow| {
        args.all
            || row.domain == Domain::Fleet
            || row.out > 0
            || row.disrupted.is_some_and(|used| used > 0)
            || domain_faults.iter().any(|fault| fault.domain == row.domain)
            || freezes.iter().any(|freeze| freeze.domain == row.domain)
    };
    let rows: Vec<Vec<String>> = domains.iter().filter(has_news).map(domain_cells).collect();
    printer.table(&["Domain", "Nodes", "Out of service", "Budget used", "Take work"], &rows)?;
    printer.line("")?;
    let others = domains.len() - rows.len();
    if others > 0 {
        printer.line(&format!(
            "{others} more domains: every node in service, no fault, no freeze, no budget in use (--all lists them)"
        ))?;
    }
    printer.paragraph("", 0, LEGEND)?;
    Ok(outcome)
}

/// What the columns count.
const LEGEND: &str = "Take work: nodes in service, suspect or joining that are not cordoned. Out of service: quarantined, repairing, verifying and held nodes; those that are not cordoned may still get work, and count only here.";

fn domain_cells(row: &DomainRow) -> Vec<String> {
    let number = |count: Option<u32>| count.map_or_else(|| "-".to_owned(), |n| n.to_string());
    let budget = match (row.disrupted, row.limit) {
        (Some(used), Some(limit)) => format!("{used} of {limit}"),
        (_, limit) => number(limit),
    };
    let capacity = match (row.schedulable, row.floor) {
        (Some(schedulable), Some(floor)) => format!("{schedulable}, at least {floor}"),
        (schedulable, _) => number(schedulable),
    };
    let out = match row.out_not_cordoned {
        Some(not_cordoned) if not_cordoned > 0 => {
            format!("{}, {not_cordoned} not cordoned", row.out)
        }
        _ => row.out.to_string(),
    };
    vec![row.domain.to_string(), row.members.to_string(), out, budget, capacity]
}

/// Prints a domain fault: how it was detected, which nodes it affects now, and what to do.
pub(super) fn print_fault(fault: &DomainFaultRow, printer: &mut Printer) -> anyhow::Result<()> {
    let DomainFaultRow { domain, since, rationale, .. } = fault;
    let detected = format!("{} (at detection, {})", rationale.reason.text, with_age(*since));
    printer.paragraph("domain fault", 16, &format!("{domain}: {detected}"))?;
    if let Some(affected) = &fault.affected {
        let names = folded(affected.iter().map(NodeId::as_str));
        let now = match fault.taking_work {
            Some(count) if count > 0 => {
                format!("{}, {count} still take work: {names}", counted(affected.len()))
            }
            _ => format!("{}: {names}", counted(affected.len())),
        };
        printer.paragraph("  affected now", 16, &now)?;
    }
    printer.paragraph("  runbook", 16, &format!("farrier runbook {DOMAIN_FAULT}"))?;
    Ok(printer.line("")?)
}
