//! Open findings: lists of findings, and groups of findings that have one cause.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use farrier_facts::FactSet;
use farrier_fleet::fleet::{NextStep, Node, NodeId, Reason};
use farrier_fleet::health::{Finding, FirstAction, Severity, Subject, rank};
use farrier_fleet::runbook::page_code;
use farrier_wire::rest::{
    ComponentView, FindingGroup, FindingPage, FindingRow, GroupedFinding, UnknownFindingsRow,
};

use super::domain_impacts::DomainImpacts;
use super::failure::Failure;
use super::node_filter::{NodeFilter, finding_matches};
use super::nodes::{PAGE, count};
use super::reply::Reply;
use super::{Call, pagination};

/// Parses `NODE/NUMBER`.
pub(super) fn cursor(text: &str) -> Result<(NodeId, u64), Failure> {
    let parts =
        text.split_once('/').and_then(|(node, id)| Some((node.parse().ok()?, id.parse().ok()?)));
    parts.ok_or_else(|| Failure::bad_request("`cursor` is not a `next` value of an earlier page"))
}

pub(super) async fn list(call: Call) -> Result<Reply, Failure> {
    let filter = NodeFilter::from_query(&call.query)?;
    let min_severity: Option<Severity> = match call.query.text("severity") {
        Some(word) => serde_json::from_value(serde_json::Value::String(word.to_owned())).ok(),
        None => None,
    };
    let code = call.query.text("code").map(str::to_owned);
    let only: Option<NodeId> = call.query.parsed("node")?;
    let after = call.query.text("cursor").map(cursor).transpose()?;
    let limit = call.query.limit(PAGE);
    let from = after.as_ref().map(|(node, _)| node).max(only.as_ref()).cloned();
    let range = [from, only].map(|bound| bound.map_or(Bound::Unbounded, Bound::Included)).into();
    let impacts = DomainImpacts::of(call.caller()?);
    let visit: pagination::Visit<Row> = Arc::new(move |state, id, node, found| {
        let text = filter.text.as_deref();
        if !filter.matches_location(node) {
            return;
        }
        let step = impacts.next_step(state, id, node);
        for finding in node.open_findings() {
            let is_later = after.as_ref().is_none_or(|(at, last)| id != at || finding.id > *last);
            let is_selected = min_severity.is_none_or(|severity| finding.severity >= severity)
                && code.as_ref().is_none_or(|code| finding.code.starts_with(code.as_str()))
                && text.is_none_or(|text| {
                    finding_matches(&finding, text) || id.as_str().contains(text)
                });
            if is_later && is_selected {
                let step = step.as_ref().filter(|step| step.replaces_action_of(&finding));
                found.push(Row::Finding(Box::new(FindingRow {
                    node: id.clone(),
                    subject: Some(node.describe_subject(&finding.subject)),
                    component: Some(component_view(node, &node.component(&finding.subject))),
                    runbook: None,
                    first_step: step.map(NextStep::text),
                    finding: finding.into_owned(),
                })));
            }
        }
        let is_later = after.as_ref().is_none_or(|(at, last)| id != at || *last < UNKNOWN_ROW);
        found.extend(unknown_findings(id, node).filter(|_| is_later).map(Row::Unknown));
    });
    let mut rows =
        pagination::nodes(&call.app.controller, call.caller()?, range, limit, visit).await?;
    let has_more = rows.len() > limit;
    rows.truncate(limit);
    let next = rows.last().filter(|_| has_more).map(|last| match last {
        Row::Finding(row) => format!("{}/{}", row.node, row.finding.id),
        Row::Unknown(row) => format!("{}/{UNKNOWN_ROW}", row.node),
    });
    let (mut findings, mut unknown) = (Vec::new(), Vec::new());
    for row in rows {
        match row {
            Row::Finding(mut row) => {
                // This is not done in the visit, because the visit runs on the controller's thread.
                row.runbook = Some(runbook(&row.finding));
                findings.push(*row);
            }
            Row::Unknown(row) => unknown.push(row),
        }
    }
    Reply::json(&FindingPage { findings, unknown: Some(unknown), next })
}

/// An item of a page: a finding, or a node whose findings are unknown.
enum Row {
    Finding(Box<FindingRow>),
    Unknown(UnknownFindingsRow),
}

/// Number of the row about unknown findings, for cursors. It comes after the node's findings.
const UNKNOWN_ROW: u64 = u64::MAX;

/// Why the findings of the node are unknown. `None` if they are known.
fn unknown_findings(id: &NodeId, node: &Node) -> Option<UnknownFindingsRow> {
    let (reason, since) = if let Some(since) = node.liveness.certificate_revoked_at() {
        (Reason::CertificateRevoked { since }, Some(since))
    } else if let Some(since) = node.liveness.heartbeat_lost_since() {
        (Reason::HeartbeatLost { since }, Some(since))
    } else if let Some(since) = node.reports.unreadable_since() {
        (Reason::FindingsUnreadable, Some(since))
    } else if node.reported_inventory().is_none() {
        (Reason::InventoryUnknown, None)
    } else {
        return None;
    };
    let open = since.map(|_| count(node.findings().len()));
    let (code, text) = (reason.code().to_owned(), reason.to_string());
    Some(UnknownFindingsRow { node: id.clone(), code, since, text, open })
}

/// Groups findings of a node by component, most severe first.
pub(super) fn groups(
    node: &Node,
    findings: &[Cow<'_, Finding>],
    step: Option<&NextStep>,
) -> Vec<FindingGroup> {
    let mut components: BTreeMap<Subject, Vec<&Finding>> = BTreeMap::new();
    for finding in findings {
        components.entry(node.component(&finding.subject)).or_default().push(finding);
    }
    let group = |(component, mut findings): (Subject, Vec<&Finding>)| {
        findings.sort_by_key(|finding| rank(finding));
        let FirstAction { action, text, .. } = FirstAction::new(&findings)?;
        let first_step = findings.first().and_then(|first| {
            step.filter(|step| step.replaces_action_of(first)).map(NextStep::text)
        });
        let worst = findings.iter().map(|finding| finding.severity).max()?;
        let component = component_view(node, &component);
        let findings = findings.into_iter().map(|finding| grouped(node, finding)).collect();
        Some((
            Reverse((worst, action)),
            FindingGroup { component, action, text, first_step, findings },
        ))
    };
    let mut groups: Vec<_> = components.into_iter().filter_map(group).collect();
    groups.sort_by_key(|(rank, _)| *rank);
    groups.into_iter().map(|(_, group)| group).collect()
}

fn grouped(node: &Node, finding: &Finding) -> GroupedFinding {
    GroupedFinding {
        id: finding.id,
        severity: finding.severity,
        code: finding.code.clone(),
        detail: finding.detail.clone(),
        subject: node.describe_subject(&finding.subject),
        text: finding.text.clone(),
        count: finding.count,
        since: finding.first_seen,
        clears: finding.clears_when.clone(),
        runbook: runbook(finding),
        evidence: finding.evidence.last().map(|evidence| evidence.describe(&finding.text)),
    }
}

fn component_view(node: &Node, component: &Subject) -> ComponentView {
    let gpu = node.gpu_location(component);
    ComponentView {
        name: node.describe_subject(component),
        gpu_index: gpu.as_ref().and_then(|gpu| gpu.index),
        pci: gpu.and_then(|gpu| gpu.pci),
    }
}

/// Code of the finding's runbook page.
fn runbook(finding: &Finding) -> String {
    page_code(FactSet::embedded(), &finding.code, &finding.detail)
}
