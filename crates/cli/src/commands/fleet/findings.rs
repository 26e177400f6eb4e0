//! `farrier fleet findings`.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use farrier_facts::FactSet;
use farrier_fleet::fleet::NodeId;
use farrier_fleet::health::{Finding, FirstAction, Severity, rank};
use farrier_fleet::runbook::page_code;
use farrier_wire::rest::{ComponentView, FindingGroup, FindingPage, FindingRow, GroupedFinding};

use super::finding_groups::{self, NodeGroup};
use super::node_names::natural_order;
use super::nodes::counted;
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
        let groups = groups(&findings);
        printer.line(&summary(&findings))?;
        let shown: Vec<NodeGroup<'_>> =
            groups.iter().map(|(node, group)| NodeGroup { node: Some(node), group }).collect();
        finding_groups::print(&shown, printer)?;
    }
    Ok(Outcome::finding_if(!findings.is_empty()))
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
            let findings = rows.into_iter().map(grouped).collect();
            Some((
                Reverse((worst, action)),
                node,
                FindingGroup { component, action, text, findings },
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
