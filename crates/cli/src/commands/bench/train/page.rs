//! The report as one HTML page: everything in it, no script, light and dark. Pure.

use super::about;
use super::numbers::{CapComparison, Comparison, Mode, Told, VariantRow};
use super::report::{Failed, Report};
use super::view::{self, Block};
use crate::charts::{Bar, bars, escape, head};
use crate::stats::{Stats, significant, thousands};

/// The whole page.
pub(crate) fn page(report: &Report) -> String {
    let title = match &report.gpus[..] {
        [] => "Training steps, before and after".to_owned(),
        gpus => format!("Training steps on {}, before and after", gpus.join(" and ")),
    };
    let mut html = head(&title);
    html.push_str(&machine(report));
    if let Some(mixed) = report.mixed() {
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
            "<p class=\"warning\">Shards that have not run yet: {left}. The figures are of those that have.</p>\n"
        ));
    }
    html.push_str(&changes(report));
    for found in &report.steps {
        html.push_str(&steps(report, found));
    }
    if !report.memory.is_empty() {
        html.push_str("<h2>Steps lost under a cap of memory</h2>\n<div class=\"plots\">\n");
        html.extend(report.memory.iter().map(lost));
        html.push_str("</div>\n");
        for found in &report.memory {
            html.push_str(&format!("<h3>{}</h3>\n", escape(&view::cap(found))));
            html.push_str(&table(&view::memory(found)));
        }
    }
    html.push_str(&failures(&report.failed));
    html.push_str(&method(report));
    html.push_str("</body>\n</html>\n");
    html
}

fn machine(report: &Report) -> String {
    let mut html = String::from("<dl>\n");
    for (what, value) in about::machine(report) {
        html.push_str(&format!("<dt>{what}</dt><dd>{}</dd>\n", escape(&value)));
    }
    html.push_str("</dl>\n");
    html
}

/// Rows of one thing stand together under its name.
fn changes(report: &Report) -> String {
    let changes = view::changes(report);
    if changes.rows.is_empty() {
        return String::new();
    }
    let mut html = format!(
        "<h2>{}</h2>\n<div class=\"wide\" tabindex=\"0\"><table class=\"changes\">\n<thead><tr>",
        escape(&changes.title)
    );
    // The first is a row of its own above those that it is of: on a telephone there is no room for it beside them.
    for heading in changes.headings.iter().skip(1) {
        html.push_str(&format!("<th scope=\"col\">{}</th>", escape(heading)));
    }
    html.push_str("</tr></thead>\n<tbody>\n");
    let mut before: Option<&str> = None;
    for row in &changes.rows {
        let Some((of, cells)) = row.split_first() else { continue };
        if before != Some(of) {
            html.push_str(&format!(
                "<tr class=\"of\"><th scope=\"rowgroup\" colspan=\"{}\">{}</th></tr>\n",
                cells.len(),
                escape(of)
            ));
        }
        html.push_str("<tr>");
        html.extend(cells.iter().map(|text| cell(text, " ")));
        html.push_str("</tr>\n");
        before = Some(of);
    }
    html.push_str("</tbody></table></div>\n");
    html
}

fn steps(report: &Report, found: &Comparison) -> String {
    let mut html = format!("<h2>{}</h2>\n<div class=\"plots\">\n", escape(&view::shape(found)));
    let figure = |caption: &str, of: &dyn Fn(&VariantRow) -> Bar| {
        let drawn: Vec<Bar> = found.variants.iter().map(of).collect();
        let title = format!("{caption}, {}", view::shape(found));
        format!(
            "<figure><figcaption>{}</figcaption>\n{}</figure>\n",
            escape(caption),
            bars(&title, &drawn)
        )
    };
    html.push_str(&figure("Tokens a second in a long run", &|row| {
        let ratio =
            row.to_eager.map_or_else(String::new, |it| format!(" · {}", view::times(it.median)));
        let mut bar = bar(row, row.tokens_per_s_long, thousands);
        bar.text.push_str(&ratio);
        bar.repeats.clone_from(&row.tokens_per_s_by_repeat);
        bar
    }));
    html.push_str(&figure(
        "Milliseconds in launching calls a step under the profiler · launches",
        &|row| {
            let launches = view::launches(row).map_or_else(String::new, |it| format!(" · {it}"));
            let mut bar = modal(row, row.launch_ms, |it| it.launch_ms, significant);
            bar.text.push_str(&launches);
            bar
        },
    ));
    html.push_str(&figure("GPU idle, share of a step", &|row| {
        modal(row, row.idle, |it| it.idle, view::percent)
    }));
    html.push_str(&figure("Peak reserved, GiB", &|row| bar(row, row.reserved_gib, significant)));
    html.push_str("</div>\n");
    html.push_str(&table(&view::speed(report, found)));
    html.push_str(&table(&view::burden(found)));
    for line in view::eager_repeats(found) {
        html.push_str(&format!("<p>{}.</p>\n", escape(line.trim_end_matches('.'))));
    }
    html
}

fn bar(row: &VariantRow, value: Option<Stats>, write: fn(f64) -> String) -> Bar {
    let text = match value {
        Some(value) => write(value.median),
        None if row.done == 0 => "failed".to_owned(),
        None => "unknown".to_owned(),
    };
    let ours = row.variant == "ours";
    Bar { label: row.variant.clone(), value, repeats: Vec::new(), text, ours }
}

/// A bar of what goes with the launches. Where those differ it is as long as the largest, and no middle is drawn.
fn modal(
    row: &VariantRow,
    all: Option<Stats>,
    of: fn(&Mode) -> Option<Stats>,
    write: fn(f64) -> String,
) -> Bar {
    let mut bar = bar(row, all, write);
    if row.modes.len() > 1 {
        bar.value = all.map(|all| Stats { median: all.max, ..all });
        bar.repeats = row.modes.iter().filter_map(|it| Some(of(it)?.median)).collect();
        bar.text = view::by_mode(row, all, of, write);
    }
    bar
}

fn lost(found: &CapComparison) -> String {
    let drawn: Vec<Bar> = found
        .variants
        .iter()
        .map(|row| Bar {
            label: row.variant.clone(),
            // The bar is the rate over all seeds; the whisker spans the seeds'.
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
    let title = format!("Share of steps lost, {}", view::cap(found));
    format!(
        "<figure><figcaption>{}</figcaption>\n{}</figure>\n",
        escape(&title),
        bars(&title, &drawn)
    )
}

fn table(block: &Block) -> String {
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

/// A cell; what stands in brackets is the lesser part of it, and comes after `between`.
fn cell(text: &str, between: &str) -> String {
    if text == "failed" || text.ends_with("failed)") {
        return format!("<td class=\"failed\">{}</td>", escape(text));
    }
    match text.split_once(" (") {
        Some((main, rest)) => {
            format!("<td>{}{between}<small>({}</small></td>", escape(main), escape(rest))
        }
        None => format!("<td>{}</td>", escape(text)),
    }
}

fn failures(failed: &[Failed]) -> String {
    if failed.is_empty() {
        return String::new();
    }
    let mut html = String::from("<h2>Shards without a result</h2>\n");
    for it in failed {
        html.push_str(&format!(
            "<h3>{}</h3>\n<p class=\"failed\">{}: {}</p>\n",
            escape(&it.name),
            escape(&it.what),
            escape(&it.why)
        ));
        if !it.stderr.is_empty() {
            html.push_str(&format!("<pre>{}</pre>\n", escape(&it.stderr.join("\n"))));
        }
    }
    html
}

fn method(report: &Report) -> String {
    let mut html = String::from("<h2>How it was measured</h2>\n<ul>\n");
    for note in about::notes(report) {
        html.push_str(&format!("<li>{}</li>\n", escape(&note)));
    }
    html.push_str("</ul>\n");
    if !report.commands.is_empty() {
        html.push_str(&format!("<pre>{}</pre>\n", escape(&report.commands.join("\n"))));
    }
    let said: Vec<(String, &str)> = report
        .steps
        .iter()
        .flat_map(said)
        .chain(report.memory.iter().flat_map(|found| {
            found.variants.iter().filter_map(|row| {
                Some((format!("{}, {}", view::cap(found), row.variant), row.report.as_deref()?))
            })
        }))
        .collect();
    if !said.is_empty() {
        html.push_str("<h2>What farrier reported of its own steps</h2>\n");
    }
    for (what, report) in said {
        html.push_str(&format!("<h3>{}</h3>\n<pre>{}</pre>\n", escape(&what), escape(report)));
    }
    html
}

/// What farrier reported of its steps of one shape, and of which.
fn said(found: &Comparison) -> Vec<(String, &str)> {
    let mut said = Vec::new();
    for row in &found.variants {
        for Told { repeat, report, eager_because } in &row.told {
            let how = if eager_because.is_some() { ", eager in the end" } else { "" };
            let what = format!("{}, {}, repeat {repeat}{how}", view::shape(found), row.variant);
            said.push((what, report.as_str()));
        }
    }
    said
}
