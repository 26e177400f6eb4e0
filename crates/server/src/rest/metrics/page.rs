//! The page in the Prometheus text format, version 0.0.4.

use std::fmt::{Display, Write};

use crate::histogram::HistogramSnapshot;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MetricKind {
    Gauge,
    Counter,
    Histogram,
}

impl MetricKind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Gauge => "gauge",
            Self::Counter => "counter",
            Self::Histogram => "histogram",
        }
    }
}

/// A metric family. The reference page has one row per family.
#[derive(Debug)]
pub(super) struct Family {
    pub(super) name: &'static str,
    pub(super) kind: MetricKind,
    pub(super) labels: &'static [&'static str],
    pub(super) help: &'static str,
}

#[derive(Default)]
pub(super) struct MetricsPage(String);

impl MetricsPage {
    /// Writes the samples of a family. A sample consists of the values of the labels, in the order
    /// of the labels, and a number. A family without samples is left out.
    pub(super) fn family<V: Display>(
        &mut self,
        family: &Family,
        samples: impl IntoIterator<Item = (Vec<String>, V)>,
    ) {
        let mut samples = samples.into_iter().peekable();
        if samples.peek().is_some() {
            self.head(family);
        }
        for (values, value) in samples {
            let labels = family.labels.iter().copied().zip(values.iter().map(String::as_str));
            self.sample(family.name, labels, value);
        }
    }

    /// Writes a family without labels.
    pub(super) fn value(&mut self, family: &Family, value: impl Display) {
        self.family(family, [(Vec::new(), value)]);
    }

    pub(super) fn histogram(&mut self, family: &Family, snapshot: &HistogramSnapshot) {
        self.head(family);
        let bucket = format!("{}_bucket", family.name);
        for (bound, count) in &snapshot.buckets {
            self.sample(&bucket, [("le", bound.to_string().as_str())], count);
        }
        self.sample(&bucket, [("le", "+Inf")], snapshot.count);
        self.sample(&format!("{}_sum", family.name), [], snapshot.sum_s);
        self.sample(&format!("{}_count", family.name), [], snapshot.count);
    }

    pub(super) fn finish(self) -> String {
        self.0
    }

    fn head(&mut self, family: &Family) {
        let Family { name, kind, help, .. } = family;
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {}", kind.name());
    }

    fn sample<'l>(
        &mut self,
        name: &str,
        labels: impl IntoIterator<Item = (&'l str, &'l str)>,
        value: impl Display,
    ) {
        self.0.push_str(name);
        let mut opening = '{';
        for (label, content) in labels {
            let _ = write!(self.0, "{opening}{label}=\"");
            escape(&mut self.0, content);
            self.0.push('"');
            opening = ',';
        }
        let closing = if opening == ',' { "}" } else { "" };
        let _ = writeln!(self.0, "{closing} {value}");
    }
}

/// Escapes a label value. Codes of findings come from agents, so a value may contain any character.
fn escape(out: &mut String, text: &str) {
    for letter in text.chars() {
        match letter {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '"' => out.push_str("\\\""),
            letter => out.push(letter),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAMILY: Family = Family {
        name: "nodes",
        kind: MetricKind::Gauge,
        labels: &["pool", "code"],
        help: "Nodes.",
    };

    #[test]
    fn labels_are_escaped_and_a_family_without_samples_is_left_out() {
        let mut page = MetricsPage::default();
        page.family(&FAMILY, Vec::<(Vec<String>, u32)>::new());
        let odd = vec!["a".to_owned(), "x\"y\\z\n".to_owned()];
        page.family(&FAMILY, [(odd, 3)]);
        let expected = "# HELP nodes Nodes.\n# TYPE nodes gauge\nnodes{pool=\"a\",code=\"x\\\"y\\\\z\\n\"} 3\n";
        assert_eq!(page.finish(), expected);
    }

    #[test]
    fn a_histogram_has_cumulative_buckets() {
        let snapshot =
            HistogramSnapshot { buckets: vec![(0.001, 1), (1.0, 4)], count: 5, sum_s: 7.5 };
        let mut page = MetricsPage::default();
        page.histogram(&Family { kind: MetricKind::Histogram, labels: &[], ..FAMILY }, &snapshot);
        let text = page.finish();
        let samples: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let expected = [
            "nodes_bucket{le=\"0.001\"} 1",
            "nodes_bucket{le=\"1\"} 4",
            "nodes_bucket{le=\"+Inf\"} 5",
            "nodes_sum 7.5",
            "nodes_count 5",
        ];
        assert_eq!(samples, expected);
    }
}
