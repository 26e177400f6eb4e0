//! Section on failures and checkpoints.

use farrier_planner::goodput::{Goodput, GoodputReport, LostTime, MarginalValue, SpareChoice};

use super::super::format::{duration, number, percent, usd};
use super::tables::HtmlTable;
use crate::charts::{Bar, bar_chart, escape};
use crate::stats::Stats;

pub(super) fn section(report: &GoodputReport) -> String {
    let chosen = report.requested.as_ref().unwrap_or(&report.best);
    let mut html = "<h2>Failures and checkpoints</h2>\n".to_owned();
    if let Some(no_progress) = &report.no_progress {
        html.push_str(&format!(
            "<p class=\"warning\">{}</p>\n",
            escape(&format!("The run {no_progress}."))
        ));
    }
    html.push_str("<dl>\n");
    for (term, text) in facts(report, chosen) {
        html.push_str(&format!("<dt>{term}</dt><dd>{}</dd>\n", escape(&text)));
    }
    html.push_str("</dl>\n");
    if let Some(run) = &report.run {
        html.push_str("<div class=\"plots\">\n");
        html.push_str(&lost(&run.lost, run.hours));
        html.push_str("<div>\n");
        html.push_str(&marginal_values(report));
        html.push_str("</div>\n</div>\n");
    }
    html.push_str(&spares(report));
    html
}

fn facts(report: &GoodputReport, chosen: &Goodput) -> Vec<(&'static str, String)> {
    let every = |goodput: &Goodput| match goodput.interval_s {
        interval_s if interval_s.is_finite() => {
            format!("{} ({} steps)", duration(interval_s), number(goodput.interval_steps))
        }
        _ if goodput.mtbf_s.is_finite() => "none: the run ends before one pays off".to_owned(),
        _ => "none: nothing fails".to_owned(),
    };
    let mut facts = vec![("Best checkpoint interval", every(&report.best))];
    if let Some(requested) = &report.requested {
        facts.push((
            "Requested interval",
            format!(
                "{}, with an ETTR of {} (best {})",
                every(requested),
                percent(requested.share),
                percent(report.best.share)
            ),
        ));
    }
    facts.push(("ETTR", format!("{} of the time is effective training", percent(chosen.share))));
    facts.push((
        "Failures",
        if chosen.mtbf_s.is_finite() {
            format!(
                "one in {}, {} per day; {} from a failure to training again",
                duration(chosen.mtbf_s),
                number(chosen.failures_per_day),
                duration(chosen.down_s + chosen.wait_s)
            )
        } else {
            "none".to_owned()
        },
    ));
    facts.push((
        "Checkpoint",
        format!(
            "stalls training for {}, and can be restored {} later",
            duration(chosen.stall_s),
            duration(chosen.settle_s)
        ),
    ));
    if let Some(run) = &report.run {
        let mut all = format!("{} days with {} failures", number(run.days), number(run.failures));
        if let Some((cost, lost)) = run.usd.zip(run.lost_usd) {
            all.push_str(&format!(", {}; {} of it for lost time", usd(cost), usd(lost)));
        }
        facts.push(("Run", all));
    }
    facts
}

/// Chart of the lost hours.
fn lost(lost: &LostTime, hours: f64) -> String {
    let title = "Lost time, hours of the run";
    let parts = [
        ("repeated work", lost.lost_work_h),
        ("detection", lost.detection_h),
        ("recovery", lost.recovery_h),
        ("waiting for a node", lost.waiting_for_spares_h),
        ("checkpoint stalls", lost.checkpoint_stalls_h),
        ("planned stops", lost.planned_h),
    ];
    let rows: Vec<Bar> = parts
        .into_iter()
        .filter(|(_, spent_h)| *spent_h > 0.0)
        .map(|(label, spent_h)| Bar {
            label: label.to_owned(),
            value: Stats::from_samples([spent_h]),
            repeats: Vec::new(),
            text: format!("{} h · {}", number(spent_h), percent(spent_h / hours)),
            ours: true,
        })
        .collect();
    format!(
        "<figure><figcaption>{title}: {} in total</figcaption>\n{}</figure>\n",
        number(lost.total_h()),
        bar_chart(title, &rows)
    )
}

/// Value of one minute less of detection, recovery or checkpoint stall.
fn marginal_values(report: &GoodputReport) -> String {
    let Some(values) = &report.value_of_a_minute else { return String::new() };
    let mut table = HtmlTable::new(&["A minute less of", "Hours saved", "Value"]);
    let mut row = |name: &str, value: &MarginalValue| {
        let name = if value.less_s < 60.0 {
            format!("{name} <small>(only {})</small>", duration(value.less_s))
        } else {
            name.to_owned()
        };
        let cost = value.usd.map_or_else(|| "unknown price".to_owned(), usd);
        table.row(false, &[name, number(value.hours), cost]);
    };
    row("detection", &values.detection);
    row("recovery", &values.recovery);
    row("checkpoint stall", &values.checkpoint_stall);
    table.end()
}

/// Table of spare nodes.
fn spares(report: &GoodputReport) -> String {
    let spares = &report.spares;
    let mut table = HtmlTable::new(&[
        "Spare nodes",
        "No spare at a failure",
        "Mean wait",
        "ETTR",
        "GPUs paid per effective GPU",
    ]);
    let mut row = |name: &str, choice: &SpareChoice| {
        table.row(
            false,
            &[
                format!("{} <small>{name}</small>", choice.nodes),
                percent(choice.none_left_share),
                duration(choice.mean_wait_s),
                percent(choice.share),
                number(choice.cost_factor),
            ],
        );
    };
    row("(none)", &spares.none);
    row("(cheapest)", &spares.cheapest);
    if let Some(requested) = &spares.requested {
        row("(requested)", requested);
    }
    format!(
        "<h3>Spare nodes</h3>\n<p>{} nodes are out for repair on average.</p>\n{}",
        number(spares.mean_nodes_out),
        table.end()
    )
}
