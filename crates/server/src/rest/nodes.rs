//! Nodes, their findings, and explanations of their phase.

use std::borrow::Cow;
use std::ops::Bound;
use std::sync::Arc;

use farrier_fleet::fleet::access::is_within;
use farrier_fleet::fleet::coverage::NodeCoverageGap;
use farrier_fleet::fleet::event::NodeInventory;
use farrier_fleet::fleet::explain;
use farrier_fleet::fleet::next_step::describe_deferral;
use farrier_fleet::fleet::state::{RepairAttempt, RequestedOrderResult, VerificationResult};
use farrier_fleet::fleet::{
    FleetState, NextStep, Node, NodeId, OrderStatus, Rationale, Reason, attention,
};
use farrier_fleet::health::{Finding, FindingKind, rank};
use farrier_wire::rest::{
    AttentionView, CoverageGapView, HoldView, NextStepView, NodeDetail, NodeExplanation, NodePage,
    NodeRow, OrderView, RationaleView, ReasonView, RequestedOrderView, VerificationView,
};
use jiff::Timestamp;

use super::caller::Caller;
use super::domain_impacts::DomainImpacts;
use super::failure::Failure;
use super::findings::groups;
use super::fleet::domain_fault_row;
use super::history;
use super::node_filter::NodeFilter;
use super::reply::Reply;
use super::{AppState, Call, pagination};

/// Items per page, unless the request says otherwise.
pub(super) const PAGE: usize = 100;

pub(super) async fn list(call: Call) -> Result<Reply, Failure> {
    let filter = NodeFilter::from_query(&call.query)?;
    let limit = call.query.limit(PAGE);
    let from = call.query.parsed("cursor")?.map_or(Bound::Unbounded, Bound::Excluded);
    let (now, viewer) = (call.app.controller.now(), call.caller()?.clone());
    let impacts = DomainImpacts::of(&viewer);
    let visit: pagination::Visit<NodeRow> = Arc::new(move |state, id, node, found| {
        let needs_attention = || {
            let deferred = explain::current_deferral(state, node);
            attention(node, deferred.as_ref(), now).is_some()
        };
        if filter.matches(&viewer, id, node) && (!filter.needs_attention || needs_attention()) {
            found.push(row(&viewer, &impacts, state, (id, node), now));
        }
    });
    let mut nodes = pagination::nodes(
        &call.app.controller,
        call.caller()?,
        (from, Bound::Unbounded),
        limit,
        visit,
    )
    .await?;
    let has_more = nodes.len() > limit;
    nodes.truncate(limit);
    fill_connections(&call.app, &mut nodes);
    let next = nodes.last().filter(|_| has_more).map(|node| node.node.to_string());
    Reply::json(&NodePage { nodes, next })
}

/// Adds the connection states. They are not part of the fleet state.
pub(super) fn fill_connections(app: &AppState, rows: &mut [NodeRow]) {
    for row in rows {
        row.connection = Some(app.connection(&row.node));
    }
}

pub(super) fn row(
    caller: &Caller,
    impacts: &DomainImpacts,
    state: &FleetState,
    (id, node): (&NodeId, &Node),
    now: Timestamp,
) -> NodeRow {
    let deferred = explain::current_deferral(state, node);
    let attention = attention(node, deferred.as_ref(), now).map(|attention| AttentionView {
        code: attention.cause.code().to_owned(),
        severity: attention.severity,
        since: attention.since,
        problem: Some(problem(caller, node, deferred.as_ref())),
    });
    let step = impacts.next_step_with(state, (id, node), deferred.as_ref());
    let inventory = node.reported_inventory();
    let gpus = inventory.and_then(|inventory| inventory.gpus.as_ref());
    let first = gpus.and_then(|gpus| gpus.first()).and_then(|gpu| gpu.name.clone());
    let is_same =
        |name: &String| gpus.into_iter().flatten().all(|gpu| gpu.name.as_ref() == Some(name));
    NodeRow {
        node: id.clone(),
        location: node.location.clone(),
        phase: node.phase(),
        since: node.phase.since(),
        reason: (&node.phase.rationale().reason.redacted(caller.scope())).into(),
        gpus: gpus.map(|gpus| count(gpus.len())),
        gpu: first.filter(is_same),
        driver: inventory.and_then(|inventory| inventory.driver.clone()),
        coverage_gaps: node.coverage().count(),
        findings: count(node.open_findings().count()),
        worst: node.open_findings().map(|finding| finding.severity).max(),
        order: node.orders.pending().map(|pending| node.describe_order(&pending.order.kind)),
        deferred: deferred.map(|deferred| {
            deferral_view(&deferred.redacted(caller.scope()), step.as_ref()).reason
        }),
        heartbeat_lost_since: node.liveness.heartbeat_lost_since(),
        attention,
        connection: None,
        compliance: inventory.and_then(|inventory| inventory.compliance.clone()),
        cordon: Some(node.scheduling.cordon()),
        next_step: step.map(|step| next_step_view(id, &step)),
    }
}

/// What is wrong with a node that needs a person, in few words. The text starts with what the
/// person has to know first.
fn problem(caller: &Caller, node: &Node, deferred: Option<&Rationale>) -> String {
    let brief = |reason: &Reason| reason.without_addresses().redacted(caller.scope());
    let phase = brief(&node.phase.rationale().reason);
    let Some(deferred) = deferred.map(|deferred| brief(&deferred.reason)) else {
        return phase.to_string();
    };
    match (&deferred, &phase) {
        // The next step says what to do.
        (Reason::NeedsRepair { cause, .. }, _) => cause.to_string(),
        (Reason::FailureDomainFault { domain, symptom, .. }, _) => {
            format!("{domain} has a fault ({symptom})")
        }
        (_, Reason::Enrolled | Reason::Verified { .. }) => deferred.to_string(),
        (Reason::OrderFailed { .. } | Reason::RepeatedQuarantines { .. }, _) => {
            format!("{deferred}; {phase}")
        }
        // Either the text names the fault, or there is no other reason.
        (Reason::VerificationFailed { .. } | Reason::QuarantineNotAllowed { .. }, _) => {
            deferred.to_string()
        }
        _ => format!("{phase}; {deferred}"),
    }
}

/// Why an action waits. Unlike the reason alone, the text has the remedy of the finding.
fn deferral_view(deferred: &Rationale, step: Option<&NextStep>) -> RationaleView {
    let mut view = RationaleView::from(deferred);
    view.reason.text = describe_deferral(deferred, step);
    view
}

fn next_step_view(node: &NodeId, step: &NextStep) -> NextStepView {
    NextStepView {
        code: step.code().to_owned(),
        text: step.text(),
        commands: step.commands(node),
        afterwards: step.afterwards(node),
        runbook: step.runbook().map(str::to_owned),
    }
}

pub(super) fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Reads a node, if the caller's scope includes it.
async fn with_node<T: Send + 'static>(
    call: &Call,
    read: impl FnOnce(&FleetState, &NodeId, &Node) -> T + Send + 'static,
) -> Result<T, Failure> {
    let (id, caller) = (call.path.node()?, call.caller()?.clone());
    let name = id.clone();
    let result = call.app.controller.read(move |state| {
        let node = state.nodes.get(&id).filter(|node| caller.sees(&node.location))?;
        Some(read(state, &id, node))
    });
    result.await?.ok_or_else(|| Failure::node_not_found(name.as_str()))
}

pub(super) async fn get(call: Call) -> Result<Reply, Failure> {
    let viewer = call.caller()?.clone();
    let read = move |state: &FleetState, id: &NodeId, node: &Node| detail(&viewer, state, id, node);
    let mut node = with_node(&call, read).await?;
    node.connection = Some(call.app.connection(&node.node));
    Reply::json(&node)
}

fn detail(caller: &Caller, state: &FleetState, id: &NodeId, node: &Node) -> NodeDetail {
    let verification = |result: VerificationResult<'_>| VerificationView {
        level: result.level,
        passed: result.passed,
        at: result.at,
        evidence: result.evidence.to_owned(),
    };
    let order = node.orders.pending().map(|pending| OrderView {
        generation: pending.order.generation,
        text: node.describe_order(&pending.order.kind),
        reason: (&pending.order.reason.redacted(caller.scope())).into(),
        lease_until: pending.order.lease_until,
        accepted: pending.accepted,
    });
    let repair = |attempt: &RepairAttempt| match attempt {
        RepairAttempt::Ordered { order, .. } => node.describe_order(order),
        RepairAttempt::Manual { what } => format!("by hand: {what}"),
    };
    let hold = node.requests.hold.as_ref();
    let step = DomainImpacts::of(caller).next_step(state, id, node);
    NodeDetail {
        node: id.clone(),
        location: node.location.clone(),
        phase: node.phase(),
        since: node.phase.since(),
        rationale: (&node.phase.rationale().redacted(caller.scope())).into(),
        deferred: explain::current_deferral(state, node)
            .map(|deferred| deferral_view(&deferred.redacted(caller.scope()), step.as_ref())),
        waits_for_approval: node.waits_for_approval(),
        inventory: node.reported_inventory().map(|inventory| NodeInventory::clone(inventory)),
        findings: node.open_findings().map(Cow::into_owned).collect(),
        coverage_gaps: coverage_gaps(node),
        finding_subjects: Some(
            node.open_findings().map(|finding| node.describe_subject(&finding.subject)).collect(),
        ),
        cordon: node.scheduling.cordon(),
        drained: node.scheduling.is_drained(),
        hold: hold.map(|hold| HoldView { by: hold.by.to_string(), reason: hold.reason.clone() }),
        order,
        verifications: node.verification.results().map(verification).collect(),
        requested_order: node
            .requests
            .requested_order
            .as_ref()
            .map(|requested_order| requested_order.order.to_string()),
        requested_order_results: node
            .requests
            .results
            .iter()
            .map(|result| requested_order_view(caller, result))
            .collect(),
        repairs: node.repairs.attempts().map(repair).collect(),
        quarantines: node.quarantines.clone(),
        domain_faults: domain_faults(caller, state, node),
        heartbeat_lost_since: node.liveness.heartbeat_lost_since(),
        connection: None,
        history: format!("/api/v1/events?node={id}"),
    }
}

/// What the agent of a node cannot read. `None` if the coverage is unknown.
fn coverage_gaps(node: &Node) -> Option<Vec<CoverageGapView>> {
    node.coverage().count()?;
    let view = |gap: &NodeCoverageGap| CoverageGapView {
        source: gap.source.code().to_owned(),
        subject: node.describe_subject(&gap.subject),
        since: gap.since,
        text: node.describe_gap(gap),
        remedy: gap.source.remedy().to_owned(),
        cause: serde_json::to_value(&gap.cause).unwrap_or_default(),
    };
    Some(node.coverage().gaps().iter().map(view).collect())
}

/// The domain faults in the failure domains of a node.
fn domain_faults(caller: &Caller, state: &FleetState, node: &Node) -> Vec<ReasonView> {
    let domains = node.location.domains();
    let found = state.domain_faults.iter().filter(|(domain, _)| domains.contains(domain));
    found.map(|(_, fault)| (&fault.rationale.reason.redacted(caller.scope())).into()).collect()
}

fn requested_order_view(caller: &Caller, result: &RequestedOrderResult) -> RequestedOrderView {
    let (status, evidence) = match &result.status {
        OrderStatus::Done { evidence } => ("done", evidence.as_str()),
        OrderStatus::Failed { reason } | OrderStatus::Inconclusive { reason } => {
            ("failed", reason.as_str())
        }
        OrderStatus::Refused { reason } => ("refused", reason.as_str()),
        OrderStatus::Accepted => ("failed", ""),
    };
    let cancelled =
        result.cancelled.as_ref().map(|cancelled| cancelled.redacted(caller.scope()).to_string());
    let (status, evidence) = (status.to_owned(), cancelled.unwrap_or_else(|| evidence.to_owned()));
    RequestedOrderView {
        code: result.order.spec().code.to_owned(),
        generation: result.generation,
        text: result.order.to_string(),
        status,
        at: result.at,
        evidence,
    }
}

/// Problems of a node other than the reason for its phase.
fn other_problems(caller: &Caller, node: &Node) -> Vec<String> {
    let lost_since = node.liveness.heartbeat_lost_since();
    let lost_heartbeat = lost_since.map(|since| format!("no heartbeat since {since:.0}"));
    let lost_heartbeat =
        lost_heartbeat.filter(|_| !node.phase.rationale().reason.is_heartbeat_lost());
    let failed = node
        .requests
        .results
        .iter()
        .map(|result| requested_order_view(caller, result))
        .filter(|result| result.status != "done");
    let failed = failed.map(|result| {
        format!(
            "operator-requested order {} {} at {:.0}: {}",
            result.text, result.status, result.at, result.evidence
        )
    });
    let required = node
        .verification
        .required()
        .map(|level| format!("it failed {level}, which has to pass before it returns to service"));
    lost_heartbeat.into_iter().chain(failed).chain(required).collect()
}

pub(super) async fn explain(call: Call) -> Result<Reply, Failure> {
    let (now, viewer) = (call.app.controller.now(), call.caller()?.clone());
    let explained = with_node(&call, move |state, id, node| {
        let explanation = explain::explain(state, id, viewer.scope())?;
        // The findings that caused the phase come first, then other open faults.
        let is_cause =
            |finding: &Finding| explanation.rationale.reason.findings().contains(&finding.id);
        let mut findings: Vec<Cow<'_, Finding>> = node
            .open_findings()
            .filter(|finding| finding.kind == FindingKind::Fault || is_cause(finding))
            .collect();
        findings.sort_by_key(|finding| (!is_cause(finding), rank(finding)));
        let describe = |finding: &Cow<'_, Finding>| {
            let clears = if finding.clears_when.is_empty() {
                String::new()
            } else {
                format!(" It clears {}.", finding.clears_when)
            };
            format!(
                "{} {}: {}{clears}",
                finding.severity,
                node.describe_finding(finding),
                finding.text
            )
        };
        let problems = other_problems(&viewer, node);
        let step = DomainImpacts::of(&viewer).next_step(state, id, node);
        let domains = node.location.domains();
        let faults = state.domain_faults.iter().filter(|(domain, _)| domains.contains(domain));
        let frozen = state
            .freezes
            .iter()
            .filter(|(domain, freeze)| is_within(&node.location, domain) && freeze.until > now);
        Some(NodeExplanation {
            node: id.clone(),
            phase: explanation.phase,
            since: node.phase.since(),
            findings: findings.iter().map(describe).chain(problems.iter().cloned()).collect(),
            finding_groups: Some(groups(node, &findings, step.as_ref())),
            problems: Some(problems),
            rationale: (&explanation.rationale).into(),
            coverage_gaps: coverage_gaps(node),
            order: explanation.order,
            deferred: explanation
                .deferred
                .as_ref()
                .map(|deferred| deferral_view(deferred, step.as_ref())),
            domain_faults: explanation.domain_faults.iter().map(Into::into).collect(),
            frozen: frozen
                .map(|(domain, freeze)| {
                    format!(
                        "{domain} by {} until {:.0}: {}",
                        freeze.by, freeze.until, freeze.reason
                    )
                })
                .collect(),
            connection: None,
            cordon: Some(node.scheduling.cordon()),
            drained: Some(node.scheduling.is_drained()),
            heartbeat_lost_since: node.liveness.heartbeat_lost_since(),
            next_step: step.map(|step| next_step_view(id, &step)),
            domain_fault_rows: Some(
                faults
                    .map(|(domain, fault)| domain_fault_row(state, &viewer, domain, fault))
                    .collect(),
            ),
            history: None,
        })
    });
    let mut explanation = explained.await?.ok_or_else(|| Failure::node_not_found("it"))?;
    explanation.connection = Some(call.app.connection(&explanation.node));
    explanation.history = Some(history::recent(&call, &explanation.node, now).await?);
    Reply::json(&explanation)
}
