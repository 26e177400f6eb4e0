//! Shadow mode: compares what Farrier would have done with what operators did.

use farrier_fleet::fleet::ledger::report::{
    OperatorActionKind, ShadowCase, ShadowOutcome, ShadowReport,
};

use super::{ReportDetail, ReportSection, ReportView, grouped, hours, minute, omitted};

impl ReportView {
    pub(super) fn shadow(&self, detail: ReportDetail) -> Vec<ReportSection> {
        let Some(shadow) = &self.report.shadow else { return Vec::new() };
        vec![summary(shadow), cases(shadow, detail)]
    }
}

fn summary(shadow: &ShadowReport) -> ReportSection {
    let (counts, window) = (&shadow.counts, shadow.window_h);
    let row =
        |what: &str, count: u64, meaning: String| vec![what.to_owned(), grouped(count), meaning];
    let rows = vec![
        row(
            "both, Farrier first",
            counts.both_farrier_first,
            format!(
                "Farrier decided; an operator acted while the cause was open or within {window} h"
            ),
        ),
        row(
            "both, operator first",
            counts.both_operator_first,
            format!("the operator acted; Farrier had a finding then or within {window} h"),
        ),
        row(
            "only Farrier: false",
            counts.false_quarantines,
            format!(
                "the cause cleared on its own within {window} h; no operator acted, and the node did not reboot"
            ),
        ),
        row(
            "only Farrier: open question",
            counts.unconfirmed,
            format!("the cause lasted longer than {window} h, or cleared after a reboot"),
        ),
        row(
            "only Farrier: too early",
            counts.pending,
            format!("decided less than {window} h before the end of the log"),
        ),
        row(
            "only the operator",
            counts.operator_only,
            "planned work, or a fault that Farrier does not see".to_owned(),
        ),
        row(
            "no decision: domain fault",
            counts.domain_faults,
            "the failure domain was at fault, so Farrier would have kept the node in service"
                .to_owned(),
        ),
    ];
    let mut notes = vec![format!(
        "What Farrier would have done in pools that only observe, over {} node-days. Disruption budgets are not applied.",
        grouped(shadow.node_ms / 86_400_000)
    )];
    if let (Some(rate), Some(high)) =
        (shadow.false_per_1000_node_days, shadow.false_per_1000_node_days_high)
    {
        notes.push(format!(
            "False quarantines per 1,000 node-days: {rate:.2} (95 %: at most {high:.2}). They would have cost at least {} GPU-hours: all GPUs of the node until the cause cleared, without the verification after it.",
            hours(shadow.false_cost_ms)
        ));
    }
    notes.push(format!(
        "GPU-hours saved: at least {} (only the GPUs at fault), up to {} (all GPUs of the node, if its jobs span it). This is the time from Farrier's decision to the operator's action, in which the node took work with an open fault. Cases in which only Farrier decided save nothing here.",
        hours(shadow.saved_low_ms),
        hours(shadow.saved_high_ms)
    ));
    let headings = vec!["Who decided", "Cases", "Meaning"];
    ReportSection { title: "Shadow mode".to_owned(), notes, headings, rows }
}

fn cases(shadow: &ShadowReport, detail: ReportDetail) -> ReportSection {
    let rows: Vec<Vec<String>> = shadow.cases.iter().take(detail.rows()).map(case_row).collect();
    let total = shadow.cases.len() + usize::try_from(shadow.cases_omitted).unwrap_or_default();
    let mut notes: Vec<String> = omitted(total, rows.len()).into_iter().collect();
    if rows.is_empty() {
        notes.push("Neither Farrier nor an operator took a node out of service.".to_owned());
    }
    let headings = vec!["Node", "Outcome", "Farrier would have quarantined", "Operator"];
    ReportSection { title: "Cases of shadow mode".to_owned(), notes, headings, rows }
}

fn case_row(case: &ShadowCase) -> Vec<String> {
    let outcome = match case.outcome {
        ShadowOutcome::BothFarrierFirst => "both, Farrier first",
        ShadowOutcome::BothOperatorFirst => "both, operator first",
        ShadowOutcome::FalseQuarantine => "false",
        ShadowOutcome::Unconfirmed => "open question",
        ShadowOutcome::Pending => "too early",
        ShadowOutcome::OperatorOnly => "only the operator",
    };
    let why = case.finding.as_ref().or(case.reason.as_ref()).cloned().unwrap_or_default();
    let cleared = case.cleared.map(|at| format!(", cleared {}", minute(at))).unwrap_or_default();
    let decided =
        case.decided.map(|at| format!("{}: {why}{cleared}", minute(at))).unwrap_or_default();
    let acted = case.acted.as_ref().map(|action| {
        let kind = match action.kind {
            OperatorActionKind::Hold => "hold",
            OperatorActionKind::ExternalCordon => "cordon by",
            OperatorActionKind::Repaired => "repaired",
            OperatorActionKind::Retired => "retired",
        };
        format!("{}: {kind} {}", minute(action.at), action.text)
    });
    vec![case.node.to_string(), outcome.to_owned(), decided, acted.unwrap_or_default()]
}
