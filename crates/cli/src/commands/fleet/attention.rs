//! `farrier fleet nodes --needs-attention`: one row per node, with the cause, what to do first, and
//! the command that comes next. The cause wraps, because what to do is at its end.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use farrier_fleet::fleet::AttentionCause;
use farrier_fleet::health::Severity;
use farrier_wire::rest::NodeRow;
use jiff::Timestamp;

use super::node_names::folded;
use super::nodes::{age_cell, intake, is_out};
use crate::printer::{Fit, LineColumn, Printer, Tone};

const COLUMNS: [LineColumn; 5] = [
    LineColumn { heading: "Node", fit: Fit::Whole },
    LineColumn { heading: "For", fit: Fit::Optional(1) },
    LineColumn { heading: "Why", fit: Fit::Whole },
    LineColumn { heading: "Cause: what to do first", fit: Fit::Wrap { min: 40 } },
    LineColumn { heading: "Next: farrier fleet ...", fit: Fit::Whole },
];

/// Maximum number of characters that names take in one line.
const NAMES_MAX: usize = 24;

/// Rank of a node among the nodes that need a person. The cause decides first, then the severity,
/// then the waiting time, longest first. Nodes that need no person come last.
pub(super) fn urgency(
    node: &NodeRow,
) -> (u8, Option<AttentionCause>, Reverse<Option<Severity>>, Timestamp) {
    let Some(attention) = &node.attention else {
        return (2, None, Reverse(node.worst), node.since);
    };
    let cause = AttentionCause::from_code(&attention.code);
    // The cause is from a newer server, so its urgency is unknown.
    (u8::from(cause.is_none()), cause, Reverse(attention.severity), attention.since)
}

pub(super) fn print(nodes: &[NodeRow], printer: &mut Printer) -> anyhow::Result<()> {
    let rows: Vec<Vec<String>> = lines(nodes).iter().map(|nodes| row(nodes, printer)).collect();
    Ok(printer.line_table(&COLUMNS, &rows)?)
}

/// The nodes of each line. Nodes that wait for the repair of the same domain share one line.
fn lines(nodes: &[NodeRow]) -> Vec<Vec<&NodeRow>> {
    let mut lines: Vec<Vec<&NodeRow>> = Vec::new();
    let mut line_of: BTreeMap<&str, usize> = BTreeMap::new();
    for node in nodes {
        let domain =
            param(node, "domain").filter(|_| cause(node) == Some(AttentionCause::DomainFault));
        let line = domain.map(|domain| *line_of.entry(domain).or_insert(lines.len()));
        match line.and_then(|line| lines.get_mut(line)) {
            Some(line) => line.push(node),
            None => lines.push(vec![node]),
        }
    }
    lines
}

fn cause(node: &NodeRow) -> Option<AttentionCause> {
    AttentionCause::from_code(&node.attention.as_ref()?.code)
}

/// A parameter of the reason of the deferral.
fn param<'n>(node: &'n NodeRow, name: &str) -> Option<&'n str> {
    node.deferred.as_ref()?.params.as_ref()?.get(name)?.as_str()
}

fn row(nodes: &[&NodeRow], printer: &Printer) -> Vec<String> {
    let Some(node) = nodes.first() else { return Vec::new() };
    let attention = node.attention.as_ref();
    let since = attention.map_or(node.since, |attention| attention.since);
    let code = attention.map_or("unknown", |attention| attention.code.as_str());
    let (tone, label) = match cause(node) {
        Some(cause) => label(cause),
        None => (Tone::Caution, code),
    };
    vec![
        names(nodes),
        age_cell(since),
        printer.toned(tone, label),
        cause_text(node),
        next_step(node, cause(node)),
    ]
}

/// The names of the nodes. If there are too many, the first name and the number of the other nodes.
fn names(nodes: &[&NodeRow]) -> String {
    let folded = folded(nodes.iter().map(|node| node.node.as_str()));
    match nodes {
        [first, _, ..] if folded.chars().count() > NAMES_MAX => {
            format!("{} and {} more", first.node, nodes.len() - 1)
        }
        _ => folded,
    }
}

fn label(cause: AttentionCause) -> (Tone, &'static str) {
    match cause {
        AttentionCause::QuarantineBlocked => (Tone::Bad, "unfit at work"),
        AttentionCause::HeartbeatLost => (Tone::Bad, "no heartbeat"),
        AttentionCause::DomainFault => (Tone::Bad, "domain fault"),
        AttentionCause::OrderFailed => (Tone::Bad, "order failed"),
        AttentionCause::NeedsApproval => (Tone::Caution, "approval"),
        AttentionCause::NeedsRepair => (Tone::Caution, "repair"),
        AttentionCause::Lemon => (Tone::Caution, "lemon"),
        AttentionCause::StateUnknown => (Tone::Caution, "state unknown"),
        AttentionCause::PolicyBlocks => (Tone::Caution, "policy"),
        AttentionCause::CertificateRevoked => (Tone::Caution, "revoked"),
        AttentionCause::HeldLong => (Tone::Caution, "held long"),
    }
}

/// What is wrong, and what to do first.
fn cause_text(node: &NodeRow) -> String {
    let intake = intake(node.phase, node.cordon.as_ref()).filter(|_| is_out(node.phase));
    let intake = intake.map(|intake| format!("{intake}; ")).unwrap_or_default();
    let problem = node.attention.as_ref().and_then(|attention| attention.problem.clone());
    let problem = problem.unwrap_or_else(|| describe(node));
    let step = node.next_step.as_ref().map(|step| format!(": {}", step.text)).unwrap_or_default();
    format!("{intake}{problem}{step}")
}

/// What is wrong, from the answer of an older server. The text starts with what the person has to
/// know first.
fn describe(node: &NodeRow) -> String {
    let reason = node.reason.text.clone();
    let Some(deferred) = node.deferred.as_ref().map(|deferred| deferred.text.clone()) else {
        return reason;
    };
    match cause(node) {
        // Either the text names the fault, or there is no other reason.
        Some(AttentionCause::NeedsRepair) => deferred,
        _ if matches!(node.reason.code.as_str(), "enrolled" | "verified") => deferred,
        Some(AttentionCause::DomainFault | AttentionCause::Lemon | AttentionCause::OrderFailed) => {
            format!("{deferred}; {reason}")
        }
        _ => format!("{reason}; {deferred}"),
    }
}

/// The command that comes first, without `farrier fleet`. A command that only reports a repair is
/// never first.
fn next_step(row: &NodeRow, cause: Option<AttentionCause>) -> String {
    let node = &row.node;
    match cause {
        Some(AttentionCause::QuarantineBlocked) => format!("cordon {node} --reason TEXT"),
        Some(AttentionCause::NeedsApproval) => format!("approve {node}"),
        Some(AttentionCause::DomainFault) => "domains".to_owned(),
        // Farrier never removes a cordon that another tool set.
        Some(AttentionCause::HeldLong) if row.reason.code == "operator-hold" => {
            format!("uncordon {node}")
        }
        Some(AttentionCause::PolicyBlocks) => "policy show".to_owned(),
        _ => format!("explain {node}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(code: &str, deferred: &serde_json::Value) -> NodeRow {
        serde_json::from_value(json!({
            "node": "gpu-7", "location": { "pool": "train" }, "phase": "held",
            "since": "2026-11-15T12:00:00Z", "findings": 0,
            "reason": { "code": "operator-hold", "params": {}, "text": "held by ann: cable" },
            "deferred": deferred,
            "attention": { "code": code, "severity": null, "since": "2026-11-15T12:00:00Z" },
        }))
        .unwrap()
    }

    #[test]
    fn every_cause_has_a_next_step() {
        let deferred = json!({ "code": "failure-domain-fault", "params": { "domain": "rack:r1" }, "text": "a fault" });
        let steps = AttentionCause::ALL.map(|cause| {
            let row = node(cause.code(), &deferred);
            format!("{}: {}", label(cause).1, next_step(&row, Some(cause)))
        });
        insta::assert_snapshot!(steps.join("\n"));
        // A server of a later version may know other causes.
        assert_eq!(next_step(&node("new", &json!(null)), None), "explain gpu-7");
    }

    #[test]
    fn the_nodes_of_one_domain_fault_are_one_line() {
        let fault = |domain: &str| json!({ "code": "failure-domain-fault", "params": { "domain": domain }, "text": "a fault" });
        let mut rows = [
            node("domain-fault", &fault("rack:r1")),
            node("domain-fault", &fault("rack:r2")),
            node("domain-fault", &fault("rack:r1")),
            node("needs-repair", &fault("rack:r1")),
        ];
        for (number, row) in rows.iter_mut().enumerate() {
            row.node = format!("gpu-{number}").parse().unwrap();
        }
        let names: Vec<String> = lines(&rows).iter().map(|nodes| names(nodes)).collect();
        assert_eq!(names, ["gpu-[0,2]", "gpu-1", "gpu-3"]);
    }

    #[test]
    fn urgency_is_by_cause_then_severity_then_age() {
        let mut rows = [
            node("from-a-newer-server", &json!(null)),
            node("held-long", &json!(null)),
            node("needs-repair", &json!(null)),
            node("quarantine-blocked", &json!(null)),
            node("needs-repair", &json!(null)),
        ];
        rows[4].attention.as_mut().unwrap().severity = Some(Severity::Fatal);
        rows.sort_by_key(urgency);
        let codes: Vec<(&str, bool)> = rows
            .iter()
            .filter_map(|row| row.attention.as_ref())
            .map(|attention| (attention.code.as_str(), attention.severity.is_some()))
            .collect();
        assert_eq!(
            codes,
            [
                ("quarantine-blocked", false),
                ("needs-repair", true),
                ("needs-repair", false),
                ("held-long", false),
                ("from-a-newer-server", false),
            ]
        );
    }
}
