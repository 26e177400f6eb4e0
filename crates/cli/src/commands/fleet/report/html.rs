//! The report as one HTML page: charts, and every table. Names and texts from nodes are escaped.
//! Pure.

use farrier_wire::hidden::escaped;

use super::charts;
use super::sections::{ReportDetail, ReportSection, ReportView, grouped, hours, percent};
use crate::charts::{escape, head_with_colours};

const STYLE: &str = include_str!("page.css");

pub(super) fn page(view: &ReportView) -> String {
    let mut html = head_with_colours(&view.title());
    html.push_str(&format!("<style>{STYLE}</style>\n"));
    let mut preamble = view.preamble().into_iter().skip(1);
    if let Some(answer) = preamble.next() {
        html.push_str(&format!("<p class=\"answer\">{}</p>\n", text(&answer)));
    }
    for note in preamble {
        html.push_str(&format!("<p class=\"warning\">{}</p>\n", text(&note)));
    }
    html.push_str(&figures(view));
    html.push_str("<div class=\"plots\">\n");
    html.push_str(&figure("Availability by pool", &charts::pools(&view.report)));
    html.push_str(&figure("Lost GPU-hours by cause", &charts::causes(&view.report)));
    html.push_str("</div>\n");
    let days = charts::days(&view.report) + &charts::causes_legend();
    html.push_str(&format!(
        "<div class=\"days\">{}</div>\n",
        figure("Lost GPU-hours per day", &days)
    ));
    for section in view.sections(ReportDetail::Page) {
        html.push_str(&table(&section));
    }
    html.push_str(
        "<footer><small>Made by <code>farrier fleet report --html</code> from the event log. \
         Times are UTC.</small></footer>\n</body>\n</html>\n",
    );
    html
}

/// The most important figures.
fn figures(view: &ReportView) -> String {
    let report = &view.report;
    let availability = report.time.availability().map_or_else(|| "–".to_owned(), percent);
    let faults: u64 = report.reliability.iter().map(|line| line.faults).sum();
    let mut figures = vec![
        (availability, "available"),
        (hours(report.time.lost_sum_ms()), "GPU-hours lost"),
        (grouped(faults), "faults"),
        (grouped(report.rma.len() as u64), "GPUs to replace"),
    ];
    if let Some(rate) = report.shadow.as_ref().and_then(|shadow| shadow.false_per_1000_node_days) {
        figures.push((format!("{rate:.2}"), "false quarantines per 1,000 node-days"));
    }
    let mut html = "<ul class=\"figures\">".to_owned();
    for (value, name) in figures {
        html.push_str(&format!("<li><b>{}</b>{name}</li>", escape(&value)));
    }
    html.push_str("</ul>\n");
    html
}

fn figure(title: &str, plot: &str) -> String {
    format!("<figure><figcaption>{title}</figcaption>{plot}</figure>\n")
}

/// Text from any source. Hidden characters become visible.
fn text(text: &str) -> String {
    escape(&escaped(text))
}

fn table(section: &ReportSection) -> String {
    let mut html = format!("<section><h2>{}</h2>\n", text(&section.title));
    for note in &section.notes {
        html.push_str(&format!("<p>{}</p>\n", text(note)));
    }
    if !section.rows.is_empty() {
        html.push_str("<div class=\"wide\"><table><thead><tr>");
        for (index, heading) in section.headings.iter().enumerate() {
            html.push_str(&format!("<th{}>{}</th>", class(section, index), text(heading)));
        }
        html.push_str("</tr></thead><tbody>\n");
        for row in &section.rows {
            html.push_str("<tr>");
            for (index, cell) in row.iter().enumerate() {
                let cell = cell_html(cell);
                html.push_str(&format!("<td{}>{cell}</td>", class(section, index)));
            }
            html.push_str("</tr>\n");
        }
        html.push_str("</tbody></table></div>\n");
    }
    html.push_str("</section>\n");
    html
}

/// A short word, such as a node name or a driver version, does not wrap.
fn cell_html(cell: &str) -> String {
    const CHARS_MAX: usize = 24;
    let html = text(cell);
    let is_word = cell.contains(['-', '.']) && !cell.contains(' ');
    if is_word && cell.chars().count() <= CHARS_MAX {
        return format!("<span class=\"word\">{html}</span>");
    }
    html
}

/// Columns with words are aligned left and may wrap. All other columns have numbers.
fn class(section: &ReportSection, column: usize) -> &'static str {
    const WORDS: [&str; 18] = [
        "Cause",
        "Node",
        "Fault or reason",
        "GPU at fault",
        "Driver",
        "Fault",
        "Pool",
        "GPU",
        "UUID",
        "Evidence",
        "Fixes until",
        "Status",
        "Meaning",
        "Outcome",
        "Farrier would have quarantined",
        "Operator",
        "Repair",
        "Serial",
    ];
    let heading = section.headings.get(column).copied().unwrap_or_default();
    match heading {
        heading if WORDS.contains(&heading) => " class=\"words\"",
        "GPU-hours" if column == 0 => " class=\"number\"",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use farrier_facts::FactSet;
    use farrier_fleet::fleet::FleetState;
    use farrier_fleet::fleet::ledger::report::{Cause, LossLine};
    use farrier_fleet::fleet::ledger::{Ledger, LedgerSpec};
    use farrier_fleet::health::GpuUuid;

    use super::*;
    use crate::commands::fleet::report::prices::Prices;

    #[test]
    fn texts_from_nodes_are_shown_and_never_become_markup() {
        let mut report = Ledger::new(FleetState::default(), LedgerSpec::whole()).finish(None);
        report.losses.push(LossLine {
            cause: Cause::Finding,
            node: "gpu-1".parse().unwrap(),
            pool: "train".parse().unwrap(),
            sku: None,
            driver: Some("<img src=x onerror=alert(1)>".to_owned()),
            code: "</td><script>alert(1)</script>".to_owned(),
            detail: "\u{202e}\"quoted\"".to_owned(),
            gpu: Some(GpuUuid("GPU-1".to_owned())),
            serial: Some("&lt;".to_owned()),
            gpu_ms: 1,
        });
        let html = page(&ReportView::new(report, Prices::default(), FactSet::embedded()));
        assert!(
            html.contains("&lt;script&gt;alert(1)&lt;/script&gt;") && html.contains("&amp;lt;")
        );
        for forbidden in ["<script", "<img", "\u{202e}", "http:", "https:", "url("] {
            assert!(!html.contains(forbidden), "the page contains {forbidden}");
        }
    }
}
