//! What a search found, and what ruled the others out.

use farrier_planner::plan::Plan;
use farrier_planner::search::{Other, Report, describe};

use super::super::figures::{grouped, number, percent};
use super::tables::{Table, words};
use crate::charts::escape;

/// The section about the search.
pub(super) fn section(plan: &Plan, found: &Report) -> String {
    let count = |number: usize| u32::try_from(number).map_or(f64::MAX, f64::from);
    let mut html = format!(
        "<h2>The best splits</h2>\n<p>{} splits were tried, {} fit.</p>\n",
        grouped(count(found.tried)),
        grouped(count(found.fit))
    );
    let first_s = found.best.first().map_or(1.0, |best| best.step_s);
    let mut table = Table::new(&["Place", "<Split", "Step, s", "Longer", "P95, GiB"]);
    for (place, candidate) in found.best.iter().enumerate() {
        table.row(
            candidate.layout == plan.layout,
            &[
                (place + 1).to_string(),
                words(&describe(&candidate.layout)),
                number(candidate.step_s),
                slower(candidate.step_s / first_s - 1.0),
                number(candidate.p95_gib),
            ],
        );
    }
    html.push_str(&table.end());
    if !found.others.is_empty() {
        html.push_str("<h3>What another choice would cost</h3>\n");
        html.push_str(&others(&found.others));
    }
    if !found.ruled_out.is_empty() {
        html.push_str("<h3>What ruled the others out</h3>\n");
        let mut table = Table::new(&["Splits", "<Why"]);
        for out in &found.ruled_out {
            table.row(false, &[grouped(count(out.count)), words(&out.why)]);
        }
        html.push_str(&table.end());
    }
    html
}

/// A row for each number of a split: what its other values cost at best.
fn others(others: &[Other]) -> String {
    let mut rows: Vec<(&str, Vec<(&str, String)>)> = Vec::new();
    for other in others {
        let (axis, value) = other.change.rsplit_once(' ').unwrap_or((&other.change, ""));
        let cost = match (other.slower, other.needs_gib) {
            (Some(longer), _) => format!("{:+.1} %", 100.0 * longer),
            (None, Some(gib)) => format!("does not fit, {} GiB", number(gib)),
            (None, None) => "cannot be".to_owned(),
        };
        match rows.last_mut() {
            Some((last, values)) if *last == axis => values.push((value, cost)),
            _ => rows.push((axis, vec![(value, cost)])),
        }
    }
    let mut table = Table::new(&["Instead", "<Time of a step, at best"]);
    for (axis, mut values) in rows {
        values.sort_by_key(|(value, _)| value.parse::<u32>().unwrap_or(u32::MAX));
        let mut cell = words("");
        for (place, (value, cost)) in values.iter().enumerate() {
            let comma = if place > 0 { ", " } else { "" };
            cell.push_str(&format!("{comma}<b>{}</b>: {}", escape(value), escape(cost)));
        }
        table.row(false, &[escape(axis), cell]);
    }
    table.end()
}

fn slower(share: f64) -> String {
    if share > 0.0 { format!("+{}", percent(share)) } else { "best".to_owned() }
}
