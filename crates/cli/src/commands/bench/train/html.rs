//! The report as an HTML page. Pure.

use super::aggregate::{CapComparison, LaunchMode, SelfReport, VariantComparison, VariantRow};
use super::report::{BenchReport, FailedShard};
use super::summary;
use super::view::{self, TextTable};
use crate::charts::{Bar, bar_chart, escape, head};
use crate::stats::{Stats, significant, thousands};

pub(crate) fn page(report: &BenchReport) -> String {
    let title = match &report.gpus[..] {
        [] => "Training steps, before and after".to_owned(),
        gpus => format!("Training steps on {}, before and after", gpus.join(" and ")),
    };
    let mut html = head(&title);
    html.push_str(&machine(report));
    if let Some(mixed) = report.incomparable() {
        html.push_str(&format!(
            "<p class=\"warning\"><strong>Not comparable:</strong> {}.</p>\n",
            escape(&mixed)
        ));
    }
    if let Some(hosts) = report.hosts_differ() {
        html.push_str(&format!(
            "<p class=\"warning\"><strong>Several hosts:</strong> {}.</p>\n",
            escape(&hosts)
        ));
    }
    if let Some(left) = report.shards_left.filter(|&left| left > 0) {
        html.push_str(&format!(
            "<p class=\"warning\">{left} shards have not run yet. The figures cover the others.</p>\n"
        ));
    }
    html.push_str(&changes(report));
    for comparison in &report.steps {
        html.push_str(&steps(report, comparison));
    }
    if !report.memory.is_empty() {
        html.push_str("<h2>Steps lost under a memory cap</h2>\n<div class=\"plots\">\n");
        html.extend(report.memory.iter().map(lost_steps));
        html.push_str("</div>\n");
        for comparison in &report.memory {
            html.push_str(&format!("<h3>{}</h3>\n", escape(&view::cap(comparison))));
            html.push_str(&table(&view::memory(comparison)));
        }
    }
    html.push_str(&failures(&report.failed));
    html.push_str(&method(report));
    html.push_str("</body>\n</html>\n");
    html
}

fn machine(report: &BenchReport) -> String {
    let mut html = String::from("<dl>\n");
    for (name, value) in summary::machine(report) {
        html.push_str(&format!("<dt>{name}</dt><dd>{}</dd>\n", escape(&value)));
    }
    html.push_str("</dl>\n");
    html
}

/// The changes, grouped by shape or cap.
fn changes(report: &BenchReport) -> String {
    let changes = view::changes(report);
    if changes.rows.is_empty() {
        return String::new();
    }
    let mut html = format!(
        "<h2>{}</h2>\n<div class=\"wide\" tabindex=\"0\"><table class=\"changes\">\n<thead><tr>",
        escape(&changes.title)
    );
    // The first column becomes a separate row above its group, because a phone screen is too narrow
    // for another column.
    for heading in changes.headings.iter().skip(1) {
        html.push_str(&format!("<th scope=\"col\">{}</th>", escape(heading)));
    }
    html.push_str("</tr></thead>\n<tbody>\n");
    let mut before: Option<&str> = None;
    for row in &changes.rows {
        let Some((group, cells)) = row.split_first() else { continue };
        if before != Some(group) {
            html.push_str(&format!(
                "<tr class=\"of\"><th scope=\"rowgroup\" colspan=\"{}\">{}</th></tr>\n",
                cells.len(),
                escape(group)
            ));
        }
        html.push_str("<tr>");
        html.extend(cells.iter().map(|text| cell(text, " ")));
        html.push_str("</tr>\n");
        before = Some(group);
    }
    html.push_str("</tbody></table></div>\n");
    html
}

fn steps(report: &BenchReport, comparison: &VariantComparison) -> String {
    let mut html =
        format!("<h2>{}</h2>\n<div class=\"plots\">\n", escape(&view::shape(comparison)));
    let figure = |caption: &str, bar_for: &dyn Fn(&VariantRow) -> Bar| {
        let bars: Vec<Bar> = comparison.variants.iter().map(bar_for).collect();
        let title = format!("{caption}, {}", view::shape(comparison));
        format!(
            "<figure><figcaption>{}</figcaption>\n{}</figure>\n",
            escape(caption),
            bar_chart(&title, &bars)
        )
    };
    html.push_str(&figure("Tokens per second in a long run", &|row| {
        let ratio = row
            .to_eager
            .map_or_else(String::new, |ratio| format!(" · {}", view::times(ratio.median)));
        let mut bar = bar(row, row.tokens_per_s_long, thousands);
        bar.text.push_str(&ratio);
        bar.repeats.clone_from(&row.tokens_per_s_by_repeat);
        bar
    }));
    html.push_str(&figure(
        "Time in launch calls per step (ms, under the profiler) · number of launches",
        &|row| {
            let launches =
                view::launches(row).map_or_else(String::new, |launches| format!(" · {launches}"));
            let mut bar = bar_by_mode(row, row.launch_ms, |mode| mode.launch_ms, significant);
            bar.text.push_str(&launches);
            bar
        },
    ));
    html.push_str(&figure("GPU idle, share of a step", &|row| {
        bar_by_mode(row, row.idle, |mode| mode.idle, view::percent)
    }));
    html.push_str(&figure("Peak reserved, GiB", &|row| bar(row, row.reserved_gib, significant)));
    html.push_str("</div>\n");
    html.push_str(&table(&view::speed(report, comparison)));
    html.push_str(&table(&view::resources(comparison)));
    for line in view::eager_repeats(comparison) {
        html.push_str(&format!("<p>{}.</p>\n", escape(line.trim_end_matches('.'))));
    }
    html
}

fn bar(row: &VariantRow, value: Option<Stats>, format: fn(f64) -> String) -> Bar {
    let text = match value {
        Some(value) => format(value.median),
        None if row.done == 0 => "failed".to_owned(),
        None => "unknown".to_owned(),
    };
    let ours = row.variant == "ours";
    Bar { label: row.variant.clone(), value, repeats: Vec::new(), text, ours }
}

/// A bar for a figure that depends on the number of launches. If the repeats have different numbers
/// of launches, the bar ends at the maximum instead of the median.
fn bar_by_mode(
    row: &VariantRow,
    all: Option<Stats>,
    field: fn(&LaunchMode) -> Option<Stats>,
    format: fn(f64) -> String,
) -> Bar {
    let mut bar = bar(row, all, format);
    if row.modes.len() > 1 {
        bar.value = all.map(|all| Stats { median: all.max, ..all });
        bar.repeats = row.modes.iter().filter_map(|mode| Some(field(mode)?.median)).collect();
        bar.text = view::by_mode(row, all, field, format);
    }
    bar
}

fn lost_steps(comparison: &CapComparison) -> String {
    let bars: Vec<Bar> = comparison
        .variants
        .iter()
        .map(|row| Bar {
            label: row.variant.clone(),
            // The bar shows the rate over all seeds, and the whisker shows the range of the seeds.
            value: row.oom_rate.and_then(|rate| {
                let seeds = Stats::from_samples(row.oom_rate_by_seed.iter().copied())?;
                Some(Stats { median: rate, ..seeds })
            }),
            repeats: row.oom_rate_by_seed.clone(),
            text: row.oom_rate.map_or_else(
                || "failed".to_owned(),
                |rate| format!("{} · {} of {}", view::percent(rate), row.steps_lost, row.steps),
            ),
            ours: row.variant == "ours",
        })
        .collect();
    let title = format!("Share of steps lost, {}", view::cap(comparison));
    format!(
        "<figure><figcaption>{}</figcaption>\n{}</figure>\n",
        escape(&title),
        bar_chart(&title, &bars)
    )
}

fn table(block: &TextTable) -> String {
    let mut html = String::from("<div class=\"wide\" tabindex=\"0\"><table>\n<thead><tr>");
    for heading in &block.headings {
        html.push_str(&format!("<th scope=\"col\">{}</th>", escape(heading)));
    }
    html.push_str("</tr></thead>\n<tbody>\n");
    for row in &block.rows {
        let ours = row.first().is_some_and(|name| name == "ours" || name.starts_with("ours ("));
        html.push_str(if ours { "<tr class=\"ours\">" } else { "<tr>" });
        for text in row {
            html.push_str(&cell(text, "<br/>"));
        }
        html.push_str("</tr>\n");
    }
    html.push_str("</tbody></table></div>\n");
    html
}

/// A table cell. Text in brackets is printed small, after `separator`.
fn cell(text: &str, separator: &str) -> String {
    if text == "failed" || text.ends_with("failed)") {
        return format!("<td class=\"failed\">{}</td>", escape(text));
    }
    match text.split_once(" (") {
        Some((main, rest)) => {
            format!("<td>{}{separator}<small>({}</small></td>", escape(main), escape(rest))
        }
        None => format!("<td>{}</td>", escape(text)),
    }
}

fn failures(failed: &[FailedShard]) -> String {
    if failed.is_empty() {
        return String::new();
    }
    let mut html = String::from("<h2>Failed shards</h2>\n");
    for shard in failed {
        html.push_str(&format!(
            "<h3>{}</h3>\n<p class=\"failed\">{}: {}</p>\n",
            escape(&shard.name),
            escape(&shard.what),
            escape(&shard.why)
        ));
        if !shard.stderr.is_empty() {
            html.push_str(&format!("<pre>{}</pre>\n", escape(&shard.stderr.join("\n"))));
        }
    }
    html
}

fn method(report: &BenchReport) -> String {
    let mut html = String::from("<h2>Method</h2>\n<ul>\n");
    for note in summary::notes(report) {
        html.push_str(&format!("<li>{}</li>\n", escape(&note)));
    }
    html.push_str("</ul>\n");
    if !report.commands.is_empty() {
        html.push_str(&format!("<pre>{}</pre>\n", escape(&report.commands.join("\n"))));
    }
    let self_reports: Vec<(String, &str)> = report
        .steps
        .iter()
        .flat_map(self_reports)
        .chain(report.memory.iter().flat_map(|comparison| {
            comparison.variants.iter().filter_map(|row| {
                let title = format!("{}, {}", view::cap(comparison), row.variant);
                Some((title, row.report.as_deref()?))
            })
        }))
        .collect();
    if !self_reports.is_empty() {
        html.push_str("<h2>Reports of farrier's own steps</h2>\n");
    }
    for (title, report) in self_reports {
        html.push_str(&format!("<h3>{}</h3>\n<pre>{}</pre>\n", escape(&title), escape(report)));
    }
    html
}

/// Farrier's reports of its steps for one shape, with titles.
fn self_reports(comparison: &VariantComparison) -> Vec<(String, &str)> {
    let mut reports = Vec::new();
    for row in &comparison.variants {
        for SelfReport { repeat, report, eager_because } in &row.self_reports {
            let eager = if eager_because.is_some() { ", ended eager" } else { "" };
            let shape = view::shape(comparison);
            let title = format!("{shape}, {}, repeat {repeat}{eager}", row.variant);
            reports.push((title, report.as_str()));
        }
    }
    reports
}
