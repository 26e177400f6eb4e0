//! `farrier fleet findings`.

use farrier_fleet::health::Finding;
use farrier_wire::rest::{FindingPage, FindingRow};

use super::session::{FleetSession, Path};
use crate::cli::Output;
use crate::commands::Outcome;
use crate::printer::Printer;

/// Arguments of `farrier fleet findings`. The exit code is 1 if any finding is open.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only findings of this pool
    #[arg(long)]
    pool: Option<String>,
    /// Only findings in this rack
    #[arg(long)]
    rack: Option<String>,
    /// Only findings of this node
    #[arg(long)]
    node: Option<String>,
    /// Minimum severity: info, warning, critical, fatal
    #[arg(long)]
    severity: Option<String>,
    /// Only findings whose code has this prefix, such as gpu.xid
    #[arg(long)]
    code: Option<String>,
    /// Only findings that contain this text
    text: Option<String>,
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

pub(super) fn run(
    session: &mut FleetSession,
    args: &Args,
    printer: &mut Printer,
) -> anyhow::Result<Outcome> {
    let mut cursor: Option<String> = None;
    let mut findings: Vec<FindingRow> = Vec::new();
    loop {
        let path = Path::new("/api/v1/findings")
            .with("pool", args.pool.as_ref())
            .with("rack", args.rack.as_ref())
            .with("node", args.node.as_ref())
            .with("severity", args.severity.as_ref())
            .with("code", args.code.as_ref())
            .with("text", args.text.as_ref())
            .with("cursor", cursor.as_ref())
            .with("limit", Some(500));
        let page: FindingPage = session.get(path.as_str())?;
        findings.extend(page.findings);
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    if args.output == Output::Json {
        findings.iter().try_for_each(|row| printer.json_line(row))?;
    } else if findings.is_empty() {
        printer.line("no open findings")?;
    } else {
        let cells = |row: &FindingRow| {
            vec![
                row.node.to_string(),
                printer.severity(row.finding.severity),
                code_with_detail(&row.finding),
                row.subject.clone().unwrap_or_else(|| row.finding.subject.to_string()),
                row.finding.text.clone(),
                format!("{:.0}", row.finding.first_seen),
                row.finding.count.to_string(),
            ]
        };
        let rows: Vec<Vec<String>> = findings.iter().map(cells).collect();
        printer
            .table(&["Node", "Severity", "Code", "Subject", "Finding", "Since", "Count"], &rows)?;
    }
    Ok(Outcome::finding_if(!findings.is_empty()))
}

/// Code of the finding with its detail, such as the Xid, which distinguishes findings of the same
/// rule.
pub(super) fn code_with_detail(finding: &Finding) -> String {
    if finding.detail.is_empty() {
        return finding.code.clone();
    }
    format!("{} ({})", finding.code, finding.detail)
}
