//! Prometheus text format, version 0.0.4.

use std::fmt::Write;

/// Writes metric families. A family without values is omitted.
#[derive(Debug, Default)]
pub(super) struct MetricsWriter {
    out: String,
}

pub(super) struct MetricFamily<'t> {
    text: &'t mut MetricsWriter,
    name: &'t str,
    kind: &'static str,
    help: &'t str,
    started: bool,
}

impl MetricsWriter {
    pub(super) fn family<'t>(
        &'t mut self,
        name: &'t str,
        kind: &'static str,
        help: &'t str,
    ) -> MetricFamily<'t> {
        MetricFamily { text: self, name, kind, help, started: false }
    }

    pub(super) fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.family(name, "gauge", help).value(&[], value);
    }

    pub(super) fn counter(&mut self, name: &str, help: &str, value: f64) {
        self.family(name, "counter", help).value(&[], value);
    }

    pub(super) fn finish(self) -> String {
        self.out
    }
}

impl MetricFamily<'_> {
    /// Writes a value with its labels.
    pub(super) fn value(&mut self, labels: &[(&str, &str)], value: f64) {
        let (name, kind) = (self.name, self.kind);
        let out = &mut self.text.out;
        if !self.started {
            self.started = true;
            out.push_str(&format!("# HELP {name} "));
            escape(out, self.help, false);
            out.push_str(&format!("\n# TYPE {name} {kind}\n"));
        }
        out.push_str(name);
        for (index, (label, content)) in labels.iter().enumerate() {
            out.push(if index == 0 { '{' } else { ',' });
            out.push_str(label);
            out.push_str("=\"");
            escape(out, content, true);
            out.push('"');
        }
        if !labels.is_empty() {
            out.push('}');
        }
        // Rust prints the shortest text that parses to the same number, but prints large numbers
        // with up to 300 zeros.
        let _ = match value.abs() {
            huge if huge >= HUGE && huge.is_finite() => writeln!(out, " {value:e}"),
            _ => writeln!(out, " {value}"),
        };
    }
}

/// From this size on, numbers are written with an exponent.
const HUGE: f64 = 1e21;

fn escape(out: &mut String, text: &str, quotes: bool) {
    for letter in text.chars() {
        match letter {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '"' if quotes => out.push_str("\\\""),
            letter => out.push(letter),
        }
    }
}
