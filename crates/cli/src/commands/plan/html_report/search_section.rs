//! Section on the search result.

use farrier_planner::plan::TrainingPlan;
use farrier_planner::search::{Alternative, SearchReport, describe};

use super::super::format::{grouped, number, percent};
use super::tables::{HtmlTable, text_cell};
use crate::charts::escape;

pub(super) fn section(plan: &TrainingPlan, search_report: &SearchReport) -> String {
    let count = |number: usize| u32::try_from(number).map_or(f64::MAX, f64::from);
    let mut html = format!(
        "<h2>Best parallelism configs</h2>\n<p>{} configs were tried, {} fit.</p>\n",
        grouped(count(search_report.tried)),
        grouped(count(search_report.fit))
    );
    let first_s = search_report.best.first().map_or(1.0, |best| best.step_s);
    let mut table = HtmlTable::new(&["Rank", "<Parallelism", "Step, s", "Slower by", "P95, GiB"]);
    for (index, candidate) in search_report.best.iter().enumerate() {
        table.row(
            candidate.parallelism == plan.parallelism,
            &[
                (index + 1).to_string(),
                text_cell(&describe(&candidate.parallelism)),
                number(candidate.step_s),
                slower(candidate.step_s / first_s - 1.0),
                number(candidate.p95_gib),
            ],
        );
    }
    html.push_str(&table.end());
    if !search_report.alternatives.is_empty() {
        html.push_str("<h3>Cost of other choices</h3>\n");
        html.push_str(&alternatives(&search_report.alternatives));
    }
    if !search_report.ruled_out.is_empty() {
        html.push_str("<h3>Why other configs were ruled out</h3>\n");
        let mut table = HtmlTable::new(&["Configs", "<Reason"]);
        for out in &search_report.ruled_out {
            table.row(false, &[grouped(count(out.count)), text_cell(&out.reason)]);
        }
        html.push_str(&table.end());
    }
    html
}

/// One row per axis. For each value that the best config does not have, the row shows how much
/// slower the best config with that value is.
fn alternatives(alternatives: &[Alternative]) -> String {
    let mut rows: Vec<(&str, Vec<(&str, String)>)> = Vec::new();
    for alternative in alternatives {
        let (axis, value) =
            alternative.change.rsplit_once(' ').unwrap_or((&alternative.change, ""));
        let cost = match (alternative.slower, alternative.needs_gib) {
            (Some(slower), _) => format!("{:+.1} %", 100.0 * slower),
            (None, Some(gib)) => format!("does not fit, {} GiB", number(gib)),
            (None, None) => "impossible".to_owned(),
        };
        match rows.last_mut() {
            Some((last, values)) if *last == axis => values.push((value, cost)),
            _ => rows.push((axis, vec![(value, cost)])),
        }
    }
    let mut table = HtmlTable::new(&["Axis", "<Step time at best"]);
    for (axis, mut values) in rows {
        values.sort_by_key(|(value, _)| value.parse::<u32>().unwrap_or(u32::MAX));
        let mut cell = text_cell("");
        for (index, (value, cost)) in values.iter().enumerate() {
            let comma = if index > 0 { ", " } else { "" };
            cell.push_str(&format!("{comma}<b>{}</b>: {}", escape(value), escape(cost)));
        }
        table.row(false, &[escape(axis), cell]);
    }
    table.end()
}

fn slower(share: f64) -> String {
    if share > 0.0 { format!("+{}", percent(share)) } else { "best".to_owned() }
}
