//! What faults and checkpoints leave of a run.

use farrier_planner::goodput::{Goodput, LostTime, Report, SpareChoice, Worth};

use super::super::figures::{duration, number, percent, usd};
use super::tables::Table;
use crate::charts::{Bar, bar_chart, escape};
use crate::stats::Stats;

/// The section about goodput.
pub(super) fn section(report: &Report) -> String {
    let chosen = report.given.as_ref().unwrap_or(&report.best);
    let mut html = "<h2>With faults and checkpoints</h2>\n".to_owned();
    if let Some(stuck) = &report.no_headway {
        html.push_str(&format!(
            "<p class=\"warning\">{}</p>\n",
            escape(&format!("The run {stuck}."))
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
        html.push_str(&worths(report));
        html.push_str("</div>\n</div>\n");
    }
    html.push_str(&spares(report));
    html
}

fn facts(report: &Report, chosen: &Goodput) -> Vec<(&'static str, String)> {
    let every = |goodput: &Goodput| match goodput.interval_s {
        interval_s if interval_s.is_finite() => {
            format!("{} ({} steps)", duration(interval_s), number(goodput.interval_steps))
        }
        _ if goodput.mtbf_s.is_finite() => "none: the run ends before one pays".to_owned(),
        _ => "never: nothing fails".to_owned(),
    };
    let mut facts = vec![("Best checkpoint interval", every(&report.best))];
    if let Some(given) = &report.given {
        facts.push((
            "Interval as given",
            format!(
                "{}, which keeps {} (the best {})",
                every(given),
                percent(given.share),
                percent(report.best.share)
            ),
        ));
    }
    facts.push(("ETTR", format!("{} of the time is training that is kept", percent(chosen.share))));
    facts.push((
        "Faults",
        if chosen.mtbf_s.is_finite() {
            format!(
                "one in {}, {} a day; {} from a fault to training again",
                duration(chosen.mtbf_s),
                number(chosen.failures_per_day),
                duration(chosen.down_s + chosen.wait_s)
            )
        } else {
            "none".to_owned()
        },
    ));
    facts.push((
        "A checkpoint",
        format!(
            "training waits {}, and {} later it can be restored",
            duration(chosen.stall_s),
            duration(chosen.settle_s)
        ),
    ));
    if let Some(run) = &report.run {
        let mut all = format!("{} days with {} faults", number(run.days), number(run.failures));
        if let Some((cost, lost)) = run.usd.zip(run.lost_usd) {
            all.push_str(&format!(", {}; {} of it for lost hours", usd(cost), usd(lost)));
        }
        facts.push(("The run", all));
    }
    facts
}

/// Where the lost hours go.
fn lost(lost: &LostTime, hours: f64) -> String {
    let title = "Lost time, hours of the run";
    let parts = [
        ("done again", lost.lost_work_h),
        ("detection", lost.detection_h),
        ("recovery", lost.recovery_h),
        ("waiting for nodes", lost.waiting_for_spares_h),
        ("checkpoints", lost.checkpoint_stalls_h),
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
        "<figure><figcaption>{title}: {} in all</figcaption>\n{}</figure>\n",
        number(lost.total_h()),
        bar_chart(title, &rows)
    )
}

/// What a minute less is worth.
fn worths(report: &Report) -> String {
    let Some(worths) = &report.worth_of_a_minute else { return String::new() };
    let mut table = Table::new(&["A minute less of", "Hours saved", "Worth"]);
    let mut row = |name: &str, worth: &Worth| {
        let name = if worth.less_s < 60.0 {
            format!("{name} <small>(only {})</small>", duration(worth.less_s))
        } else {
            name.to_owned()
        };
        let cost = worth.usd.map_or_else(|| "no price known".to_owned(), usd);
        table.row(false, &[name, number(worth.hours), cost]);
    };
    row("detection", &worths.detection);
    row("recovery", &worths.recovery);
    row("stall at a checkpoint", &worths.checkpoint_stall);
    table.end()
}

/// How many spare nodes pay.
fn spares(report: &Report) -> String {
    let spares = &report.spares;
    let mut table = Table::new(&[
        "Spare nodes",
        "None left at a fault",
        "Mean wait",
        "Kept",
        "GPUs paid for each that trains",
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
    row("(without any)", &spares.none);
    row("(cheapest)", &spares.cheapest);
    if let Some(given) = &spares.given {
        row("(as given)", given);
    }
    format!(
        "<h3>Spare nodes</h3>\n<p>{} nodes are out for repair at a time, on average.</p>\n{}",
        number(spares.mean_nodes_out),
        table.end()
    )
}
