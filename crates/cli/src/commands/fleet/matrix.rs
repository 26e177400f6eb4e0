//! `farrier fleet matrix` and `farrier fleet domains`: fleet-wide summaries.

use farrier_wire::rest::{
    DomainFaultList, DomainList, FreezeList, Matrix, MatrixLeftOut, MatrixRow,
};
use serde_json::json;

use super::session::Session;
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
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

pub(super) fn run(
    session: &mut Session,
    args: &Args,
    printer: &mut Printer,
) -> anyhow::Result<Outcome> {
    let matrix: Matrix = session.get("/api/v1/matrix")?;
    let outcome = Outcome::finding_if(matrix.rows.iter().any(|it| it.verdict == "blocked"));
    if args.output == Output::Json {
        printer.json(&matrix)?;
        return Ok(outcome);
    }
    let rows: Vec<Vec<String>> = matrix.rows.iter().map(|it| row(it, printer)).collect();
    let headings = [
        "GPU",
        "Driver",
        "CUDA",
        "Frameworks",
        "Nodes",
        "GPUs",
        "End of support",
        "Exposed to",
        "Verdict",
    ];
    printer.table(&headings, &rows)?;
    if matrix.unknown_nodes > 0 {
        printer.line("")?;
        printer.line(&format!("{} nodes of which nobody knows the GPUs", matrix.unknown_nodes))?;
    }
    if let Some(left_out) = &matrix.left_out {
        printer.line("")?;
        printer.paragraph("left out", 10, &left_out_text(left_out))?;
    }
    for row in matrix.rows.iter().filter(|it| !it.reasons.is_empty()) {
        let what = row.driver.as_deref().unwrap_or("an unknown driver");
        printer.line("")?;
        printer.line(&format!("{} with {what}", row.gpu.as_deref().unwrap_or("an unknown GPU")))?;
        row.reasons.iter().try_for_each(|it| printer.paragraph("  -", 4, it))?;
    }
    printer.line("")?;
    printer.line(&format!("data: {}, for {}", matrix.facts, matrix.on))?;
    Ok(outcome)
}

fn left_out_text(left_out: &MatrixLeftOut) -> String {
    let MatrixLeftOut { rows, gpus, nodes } = left_out;
    format!(
        "{gpus} GPUs: {rows} rows beyond the limit, and on {nodes} nodes those beyond the 16 most frequent GPU names"
    )
}

fn row(row: &MatrixRow, printer: &Printer) -> Vec<String> {
    let known = |text: &Option<String>| text.clone().unwrap_or_else(|| "not known".to_owned());
    let support = row.support.as_ref().map_or_else(
        || "not known".to_owned(),
        |it| {
            let end = it.end.as_deref().unwrap_or("not printed");
            if it.status == "ended" { format!("ended {end}") } else { end.to_owned() }
        },
    );
    let exposure = row.exposure.as_ref().map_or_else(
        || "not known".to_owned(),
        |it| match (it.advisories, &it.worst, &it.fixed_in, &it.unknown) {
            (0, _, _, None) => "nothing known".to_owned(),
            (0, _, _, Some(unknown)) => unknown.clone(),
            (count, worst, fixed, unknown) => {
                let worst = worst.as_deref().unwrap_or("unknown");
                let fixed = fixed.as_deref().unwrap_or("no release");
                let all = if unknown.is_some() { "those that name a release are" } else { "all" };
                let unknown = unknown.as_ref().map(|it| format!("; {it}")).unwrap_or_default();
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
        row.sku.clone().unwrap_or_else(|| known(&row.gpu)),
        known(&row.driver),
        known(&row.cuda),
        if frameworks.is_empty() { "-".to_owned() } else { frameworks },
        row.nodes.to_string(),
        row.gpus.to_string(),
        support,
        exposure,
        printer.toned(tone, &row.verdict),
    ]
}

pub(super) fn domains(
    session: &mut Session,
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
    let rows: Vec<Vec<String>> = domains
        .iter()
        .map(|it| {
            let limit = it.limit.map_or_else(|| "-".to_owned(), |limit| limit.to_string());
            vec![it.domain.to_string(), it.members.to_string(), it.out.to_string(), limit]
        })
        .collect();
    printer.table(&["Domain", "Nodes", "Out of service", "May be"], &rows)?;
    for blame in &domain_faults {
        printer.line("")?;
        printer.paragraph(
            "to blame",
            10,
            &format!("{}: {}", blame.domain, blame.rationale.reason.text),
        )?;
    }
    for freeze in &freezes {
        let text = format!(
            "{} by {} until {:.0}: {}",
            freeze.domain, freeze.by, freeze.until, freeze.reason
        );
        printer.line("")?;
        printer.paragraph("frozen", 10, &text)?;
    }
    Ok(outcome)
}
