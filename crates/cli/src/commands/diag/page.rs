//! The report as one HTML page. Pure.

use farrier_facts::diag::{Grade, Test, Unit};

use super::print::measured;
use super::report::{GpuReport, Report, Row, Series, What};
use crate::page::{Bar, Line, bars, escape, head, lines};
use crate::spread::{Spread, figures};

/// The whole page.
pub(super) fn page(report: &Report) -> String {
    let name = match &report.gpus[..] {
        [gpu] => format!("GPU {} {}", gpu.index, gpu.name),
        gpus => format!("{} GPUs", gpus.len()),
    };
    let mut html = head(&format!("{name}: {}", report.grade));
    if report.simulated {
        html.push_str("<p class=\"warning\">Simulated: nothing here was measured on a GPU.</p>\n");
    }
    let facts = [
        ("Host", report.host.clone().unwrap_or_else(|| "not known".to_owned())),
        ("Driver", report.driver.clone().unwrap_or_else(|| "not known".to_owned())),
        ("Level", report.level.to_string()),
        ("Began", report.began.clone()),
        ("Took", format!("{:.0} s", report.took_s)),
        ("Facts", report.set.clone()),
    ];
    html.push_str("<dl>\n");
    for (term, text) in facts {
        html.push_str(&format!("<dt>{term}</dt><dd>{}</dd>\n", escape(&text)));
    }
    html.push_str("</dl>\n");
    for note in &report.notes {
        html.push_str(&format!("<p class=\"warning\">{}</p>\n", escape(note)));
    }
    for gpu in &report.gpus {
        html.push_str(&one(gpu));
    }
    html.push_str(
        "<p><small>Bars are what was measured, with the range of the repeats; the grey ones what the part reaches at least, \
         with the source below the verdict. What was not run is not a pass.</small></p>\n</body>\n</html>\n",
    );
    html
}

fn one(gpu: &GpuReport) -> String {
    let mut html = format!(
        "<h2>GPU {} {}: {}</h2>\n<dl>\n<dt>UUID</dt><dd>{}</dd>\n<dt>Part</dt><dd>{}</dd>\n",
        gpu.index,
        escape(&gpu.name),
        gpu.grade,
        escape(gpu.uuid.as_deref().unwrap_or("not known")),
        escape(gpu.part.as_deref().unwrap_or("not known")),
    );
    if let Some(about) = &gpu.about {
        let (major, minor) = about.compute_capability;
        html.push_str(&format!(
            "<dt>CUDA</dt><dd>compute capability {major}.{minor}, {} multiprocessors, {:.1} GB</dd>\n",
            about.sm_count,
            gb(about.memory_bytes)
        ));
    }
    html.push_str("</dl>\n");
    if !gpu.complete {
        let names: Vec<&str> = gpu.missing.iter().map(|test| test.name()).collect();
        html.push_str(&format!(
            "<p class=\"warning\">Not complete: {} could be tested and were not.</p>\n",
            names.join(", ")
        ));
    }
    if let Some(remedy) = &gpu.remedy {
        html.push_str(&format!("<p class=\"warning\">What to do: {}.</p>\n", escape(remedy)));
    }
    html.push_str("<div class=\"plots\">\n");
    for (unit, title) in [
        (Unit::GbPerS, "Transfers and memory, GB/s"),
        (Unit::Tflops, "Matrix products, TFLOP/s"),
        (Unit::Us, "Launches, µs each"),
    ] {
        let rows: Vec<&Row> =
            gpu.tests.iter().filter(|row| row.unit == unit && row.value.is_some()).collect();
        if !rows.is_empty() {
            html.push_str(&figure(
                title,
                &bars(title, &rows.iter().flat_map(|row| pair(row)).collect::<Vec<_>>()),
            ));
        }
    }
    for row in
        gpu.tests.iter().filter(|row| row.test == What::Test(Test::Soak) && row.samples.len() > 2)
    {
        let points =
            (0_u32..).zip(&row.samples).map(|(at, value)| (f64::from(at), *value)).collect();
        let text = format!("the product over time, {}", measured(row));
        html.push_str(&figure("Soak, TFLOP/s", &lines("Soak", &Line { points, text })));
    }
    for series in &gpu.series {
        if let Some((title, line)) = drawn(series) {
            html.push_str(&figure(title, &lines(title, &line)));
        }
    }
    html.push_str("</div>\n<div class=\"wide\"><table>\n<tr><th>Test</th><th>Verdict</th><th>Measured</th><th class=\"words\">Why</th></tr>\n");
    for row in &gpu.tests {
        html.push_str(&told(row));
    }
    html.push_str("</table></div>\n");
    html
}

fn told(row: &Row) -> String {
    let class =
        if matches!(row.grade, Grade::Fail | Grade::Degraded) { " class=\"failed\"" } else { "" };
    let source =
        row.least.as_ref().map(|least| format!("<br/><small>{}</small>", escape(&least.from)));
    let detail = match (&row.detail, &row.why) {
        (detail, why) if detail.is_empty() || detail == why => String::new(),
        (detail, _) => format!("<br/><small>{}</small>", escape(detail)),
    };
    format!(
        "<tr><td>{}<br/><small>{}</small></td><td{class}>{}</td><td>{}</td><td class=\"words\">{}{detail}{}</td></tr>\n",
        row.test.name(),
        row.meaning,
        row.grade,
        escape(&measured(row)),
        escape(&row.why),
        source.unwrap_or_default()
    )
}

/// What was measured, and what it is held to.
fn pair(row: &Row) -> Vec<Bar> {
    let value = Spread::of(row.samples.iter().copied());
    let mut bars = vec![Bar {
        label: row.test.name().to_owned(),
        value,
        repeats: Vec::new(),
        text: value.map(|value| figures(value.median)).unwrap_or_default(),
        ours: true,
    }];
    bars.extend(row.least.as_ref().map(|least| Bar {
        label: "at least".to_owned(),
        value: Spread::of([least.value]),
        repeats: Vec::new(),
        text: figures(least.value),
        ours: false,
    }));
    bars
}

fn drawn(series: &Series) -> Option<(&'static str, Line)> {
    let title = match series.signal {
        "gpu.power_w" => "Power, W",
        "gpu.temperature_c" => "Temperature, °C",
        "gpu.clock_sm_mhz" => "SM clock, MHz",
        _ => return None,
    };
    let spread = Spread::of(series.points.iter().map(|(_, value)| *value))?;
    let text = format!("{} to {}", figures(spread.least), figures(spread.most));
    (series.points.len() > 2).then(|| (title, Line { points: series.points.clone(), text }))
}

fn figure(title: &str, plot: &str) -> String {
    format!("<figure><figcaption>{}</figcaption>\n{plot}</figure>\n", escape(title))
}

#[expect(clippy::cast_precision_loss, reason = "memory of a GPU fits 52 bits")]
fn gb(bytes: u64) -> f64 {
    bytes as f64 / 1e9
}
