//! `farrier fleet findings`.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use farrier_facts::FactSet;
use farrier_fleet::fleet::{Domain, NodeId};
use farrier_fleet::health::{Finding, FirstAction, Severity, rank};
use farrier_fleet::runbook::{HEARTBEAT_LOST, page_code};
use farrier_wire::rest::{
    ComponentView, FindingGroup, FindingPage, FindingRow, GroupedFinding, NodeDetail,
    UnknownFindingsRow,
};
use serde_json::json;

use super::finding_groups::{self, NodeGroup};
use super::node_filter::{unknown_codes, unknown_domains};
use super::node_names::{folded, natural_order};
use super::nodes::{age_since, counted};
use super::session::{FleetSession, Path};
use crate::cli::Output;
use crate::commands::Outcome;
use crate::commands::runbook_pointer::INDENT;
use crate::failure;
use crate::printer::{Printer, Tone};

/// Arguments of `farrier fleet findings`. The exit code is 1 if any finding is open, or if the
/// findings of a node are unknown.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only findings of this pool
    #[arg(long)]
    pool: Option<String>,
    /// Only findings in this rack
    #[arg(long)]
    rack: Option<String>,
    /// Only findings behind this leaf switch
    #[arg(long)]
    leaf: Option<String>,
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
    let (findings, unknown) = read(session, args)?;
    if findings.is_empty() && unknown.is_empty() {
        check_names(session, args)?;
    }
    if args.output == Output::Json {
        findings.iter().try_for_each(|row| printer.json_line(row))?;
        for row in &unknown {
            printer.json_line(&json!({ "node": row.node, "finding": null, "unknown": row }))?;
        }
    } else {
        print(&findings, &unknown, printer)?;
    }
    Ok(Outcome::finding_if(!findings.is_empty() || !unknown.is_empty()))
}

/// Reads all pages.
fn read(
    session: &mut FleetSession,
    args: &Args,
) -> anyhow::Result<(Vec<FindingRow>, Vec<UnknownFindingsRow>)> {
    let mut cursor: Option<String> = None;
    let (mut findings, mut unknown) = (Vec::new(), Vec::new());
    loop {
        let path = Path::new("/api/v1/findings")
            .with("pool", args.pool.as_ref())
            .with("rack", args.rack.as_ref())
            .with("leaf", args.leaf.as_ref())
            .with("node", args.node.as_ref())
            .with("severity", args.severity.as_ref())
            .with("code", args.code.as_ref())
            .with("text", args.text.as_ref())
            .with("cursor", cursor.as_ref())
            .with("limit", Some(500));
        let page: FindingPage = session.get(path.as_str())?;
        findings.extend(page.findings);
        unknown.extend(page.unknown.into_iter().flatten());
        cursor = page.next;
        if cursor.is_none() {
            return Ok((findings, unknown));
        }
    }
}

/// Checks the names in filters that select nothing: an unknown node is an error, because `no open
/// findings` would be wrong for it, and another unknown name is a warning.
fn check_names(session: &mut FleetSession, args: &Args) -> anyhow::Result<()> {
    if let Some(node) = &args.node {
        let _: NodeDetail = session.get(&format!("/api/v1/nodes/{node}"))?;
    }
    let filters = [("pool", &args.pool), ("rack", &args.rack), ("leaf", &args.leaf)];
    let domains = filters.into_iter().flat_map(|(kind, names)| {
        let names = names.iter().flat_map(|names| names.split(','));
        names.map(move |name| format!("{kind}:{name}"))
    });
    let domains: Vec<Domain> = domains.filter_map(|domain| domain.parse().ok()).collect();
    let mut unknown = unknown_domains(session, &domains)?;
    unknown.extend(unknown_codes(args.code.iter().map(String::as_str))?);
    for text in unknown {
        failure::warn(&anyhow::Error::msg(text));
    }
    Ok(())
}

fn print(
    findings: &[FindingRow],
    unknown: &[UnknownFindingsRow],
    printer: &mut Printer,
) -> anyhow::Result<()> {
    if findings.is_empty() && unknown.is_empty() {
        return Ok(printer.line("no open findings")?);
    }
    if !findings.is_empty() {
        printer.line(&summary(findings))?;
    }
    print_unknown(unknown, printer)?;
    let groups = groups(findings);
    let shown: Vec<NodeGroup<'_>> =
        groups.iter().map(|(node, group)| NodeGroup { node: Some(node), group }).collect();
    finding_groups::print(&shown, printer)
}

/// Maximum number of nodes with unknown findings that are listed one by one.
const UNKNOWN_MAX: usize = 10;

/// Lists the nodes whose findings are unknown. An empty list of findings does not mean that they
/// are well.
fn print_unknown(unknown: &[UnknownFindingsRow], printer: &mut Printer) -> anyhow::Result<()> {
    let mut rows: Vec<&UnknownFindingsRow> = unknown.iter().collect();
    rows.sort_by(|one, other| natural_order(one.node.as_str(), other.node.as_str()));
    if rows.len() > 1 {
        printer.line(&format!("findings of {} are unknown:", counted(rows.len())))?;
    }
    for row in rows.iter().take(UNKNOWN_MAX) {
        let indent = if rows.len() > 1 { "  " } else { "" };
        let first = format!("{indent}{}: {}", row.node, printer.toned(Tone::Bad, "unknown"));
        printer.paragraph(&format!("{first}:"), indent.len() + 2, &unknown_text(row))?;
    }
    if rows.len() > UNKNOWN_MAX {
        let more = rows[UNKNOWN_MAX..].iter().map(|row| row.node.as_str());
        printer.paragraph("  unknown", 10, &format!("and {}", folded(more)))?;
    }
    if rows.iter().any(|row| row.code == HEARTBEAT_LOST) {
        printer.paragraph("  runbook", INDENT, &format!("farrier runbook {HEARTBEAT_LOST}"))?;
    }
    Ok(())
}

/// Why the findings are unknown, and what the last report said.
fn unknown_text(row: &UnknownFindingsRow) -> String {
    let age = row.since.map(|since| format!(" ({} ago)", age_since(since))).unwrap_or_default();
    let last = match row.open {
        None => "there was no report yet".to_owned(),
        Some(0) => "the last report had no open findings".to_owned(),
        Some(1) => "the last report had 1 open finding".to_owned(),
        Some(open) => format!("the last report had {open} open findings"),
    };
    format!("{}{age}; {last}", row.text)
}

/// A summary such as `8 open findings on 3 nodes: 3 fatal, 5 info`.
fn summary(findings: &[FindingRow]) -> String {
    let nodes: BTreeSet<&NodeId> = findings.iter().map(|row| &row.node).collect();
    let mut severities: BTreeMap<Severity, usize> = BTreeMap::new();
    for row in findings {
        *severities.entry(row.finding.severity).or_default() += 1;
    }
    let severities: Vec<String> =
        severities.iter().rev().map(|(severity, count)| format!("{count} {severity}")).collect();
    let open = if findings.len() == 1 { "finding".to_owned() } else { "findings".to_owned() };
    format!("{} open {open} on {}: {}", findings.len(), counted(nodes.len()), severities.join(", "))
}

/// Groups findings by node and component. The most severe group comes first. Groups of equal
/// severity are in the natural order of their nodes.
fn groups(rows: &[FindingRow]) -> Vec<(&NodeId, FindingGroup)> {
    let mut components: BTreeMap<(&NodeId, String), Vec<&FindingRow>> = BTreeMap::new();
    for row in rows {
        components.entry((&row.node, component(row).name)).or_default().push(row);
    }
    let mut groups: Vec<_> = components
        .into_iter()
        .filter_map(|((node, _), mut rows)| {
            rows.sort_by_key(|row| rank(&row.finding));
            let findings: Vec<&Finding> = rows.iter().map(|row| &row.finding).collect();
            let FirstAction { action, text, .. } = FirstAction::new(&findings)?;
            let worst = findings.iter().map(|finding| finding.severity).max()?;
            let component = component(rows.first()?);
            let first_step = rows.first()?.first_step.clone();
            let findings = rows.into_iter().map(grouped).collect();
            Some((
                Reverse((worst, action)),
                node,
                FindingGroup { component, action, text, first_step, findings },
            ))
        })
        .collect();
    groups.sort_by(|(rank, node, _), (other_rank, other, _)| {
        rank.cmp(other_rank).then_with(|| natural_order(node.as_str(), other.as_str()))
    });
    groups.into_iter().map(|(_, node, group)| (node, group)).collect()
}

/// The component of a finding. If the server is older, this is the subject of the finding.
fn component(row: &FindingRow) -> ComponentView {
    let unknown = || ComponentView { name: subject(row), gpu_index: None, pci: None };
    row.component.clone().unwrap_or_else(unknown)
}

fn subject(row: &FindingRow) -> String {
    row.subject.clone().unwrap_or_else(|| row.finding.subject.to_string())
}

fn grouped(row: &FindingRow) -> GroupedFinding {
    let finding = &row.finding;
    let runbook = || page_code(FactSet::embedded(), &finding.code, &finding.detail);
    GroupedFinding {
        id: finding.id,
        severity: finding.severity,
        code: finding.code.clone(),
        detail: finding.detail.clone(),
        subject: subject(row),
        text: finding.text.clone(),
        count: finding.count,
        since: finding.first_seen,
        clears: finding.clears_when.clone(),
        runbook: row.runbook.clone().unwrap_or_else(runbook),
        evidence: finding.evidence.last().map(|evidence| evidence.describe(&finding.text)),
    }
}

/// Code of the finding with its detail, such as the Xid. The detail distinguishes findings of the
/// same rule.
pub(super) fn code_with_detail(finding: &Finding) -> String {
    if finding.detail.is_empty() {
        return finding.code.clone();
    }
    format!("{} ({})", finding.code, finding.detail)
}
