//! The report as one HTML page. Pure.

use farrier_facts::diag::{Grade, Test, Unit};

use super::print::measured;
use super::report::{DiagReport, GpuReport, RowKind, SignalSeries, TestRow};
use crate::charts::{Bar, LineSeries, bar_chart, escape, head, line_chart};
use crate::stats::{Stats, significant};

pub(super) fn page(report: &DiagReport) -> String {
    let name = match &report.gpus[..] {
        [gpu] => format!("GPU {} {}", gpu.index, gpu.name),
        gpus => format!("{} GPUs", gpus.len()),
    };
    let mut html = head(&format!("{name}: {}", report.grade));
    if report.simulated {
        html.push_str("<p class=\"warning\">Simulated: no real GPU was measured.</p>\n");
    }
    let facts = [
        ("Host", report.host.clone().unwrap_or_else(|| "unknown".to_owned())),
        ("Driver", report.driver.clone().unwrap_or_else(|| "unknown".to_owned())),
        ("Level", report.level.to_string()),
        ("Started", report.began.clone()),
        ("Duration", format!("{:.0} s", report.took_s)),
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
        html.push_str(&gpu_section(gpu));
    }
    html.push_str(
        "<p><small>Bars are measurements, with the range of the repeats; grey bars are the minimum for the GPU model, \
         with the source below the verdict. A test that was not run is not a pass.</small></p>\n</body>\n</html>\n",
    );
    html
}

fn gpu_section(gpu: &GpuReport) -> String {
    let mut html = format!(
        "<h2>GPU {} {}: {}</h2>\n<dl>\n<dt>UUID</dt><dd>{}</dd>\n<dt>Model</dt><dd>{}</dd>\n",
        gpu.index,
        escape(&gpu.name),
        gpu.grade,
        escape(gpu.uuid.as_deref().unwrap_or("unknown")),
        escape(gpu.part.as_deref().unwrap_or("unknown")),
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
            "<p class=\"warning\">Incomplete: {} apply to this GPU and were not run.</p>\n",
            names.join(", ")
        ));
    }
    if let Some(remedy) = &gpu.remedy {
        html.push_str(&format!("<p class=\"warning\">What to do: {}.</p>\n", escape(remedy)));
    }
    html.push_str("<div class=\"plots\">\n");
    for (unit, title) in [
        (Unit::GbPerS, "Transfers and memory, GB/s"),
        (Unit::Tflops, "GEMM, TFLOP/s"),
        (Unit::Us, "Launches, µs each"),
    ] {
        let rows: Vec<&TestRow> =
            gpu.tests.iter().filter(|row| row.unit == unit && row.value.is_some()).collect();
        if !rows.is_empty() {
            html.push_str(&figure(
                title,
                &bar_chart(title, &rows.iter().flat_map(|row| bars_for(row)).collect::<Vec<_>>()),
            ));
        }
    }
    for row in gpu
        .tests
        .iter()
        .filter(|row| row.test == RowKind::Test(Test::Soak) && row.samples.len() > 2)
    {
        let points =
            (0_u32..).zip(&row.samples).map(|(at, value)| (f64::from(at), *value)).collect();
        let text = format!("GEMM over time, {}", measured(row));
        html.push_str(&figure("Soak, TFLOP/s", &line_chart("Soak", &LineSeries { points, text })));
    }
    for series in &gpu.series {
        if let Some((title, line)) = line_for(series) {
            html.push_str(&figure(title, &line_chart(title, &line)));
        }
    }
    html.push_str("</div>\n<div class=\"wide\"><table>\n<tr><th>Test</th><th>Verdict</th><th>Measured</th><th class=\"words\">Why</th></tr>\n");
    for row in &gpu.tests {
        html.push_str(&table_row(row));
    }
    html.push_str("</table></div>\n");
    html
}

fn table_row(row: &TestRow) -> String {
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

/// The measurement, and the minimum for the SKU.
fn bars_for(row: &TestRow) -> Vec<Bar> {
    let value = Stats::from_samples(row.samples.iter().copied());
    let mut bars = vec![Bar {
        label: row.test.name().to_owned(),
        value,
        repeats: Vec::new(),
        text: value.map(|value| significant(value.median)).unwrap_or_default(),
        ours: true,
    }];
    bars.extend(row.least.as_ref().map(|least| Bar {
        label: "minimum".to_owned(),
        value: Stats::from_samples([least.value]),
        repeats: Vec::new(),
        text: significant(least.value),
        ours: false,
    }));
    bars
}

fn line_for(series: &SignalSeries) -> Option<(&'static str, LineSeries)> {
    let title = match series.signal {
        "gpu.power_w" => "Power, W",
        "gpu.temperature_c" => "Temperature, °C",
        "gpu.clock_sm_mhz" => "SM clock, MHz",
        _ => return None,
    };
    let stats = Stats::from_samples(series.points.iter().map(|(_, value)| *value))?;
    let text = format!("{} to {}", significant(stats.min), significant(stats.max));
    (series.points.len() > 2).then(|| (title, LineSeries { points: series.points.clone(), text }))
}

fn figure(title: &str, plot: &str) -> String {
    format!("<figure><figcaption>{}</figcaption>\n{plot}</figure>\n", escape(title))
}

#[expect(clippy::cast_precision_loss, reason = "memory of a GPU fits 52 bits")]
fn gb(bytes: u64) -> f64 {
    bytes as f64 / 1e9
}
