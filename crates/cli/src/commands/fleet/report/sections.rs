//! The report as sections of text and tables, for the terminal and for HTML. Pure.

mod fleet;
mod shadow;

use farrier_facts::FactSet;
use farrier_fleet::fleet::Domain;
use farrier_fleet::fleet::ledger::report::{Cause, FleetReport, ratio};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::prices::Prices;
use super::support::{BranchSupport, branches};

const HOUR_MS: u64 = 3_600_000;
/// Rows of a long table in the terminal.
const TERMINAL_ROWS: usize = 10;
/// Rows of a long table in HTML.
const PAGE_ROWS: usize = 50;

/// How many rows of a long table are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReportDetail {
    Terminal,
    Page,
}

impl ReportDetail {
    fn rows(self) -> usize {
        match self {
            Self::Terminal => TERMINAL_ROWS,
            Self::Page => PAGE_ROWS,
        }
    }
}

/// A heading, notes below it, and a table.
#[derive(Debug, Default)]
pub(super) struct ReportSection {
    pub(super) title: String,
    pub(super) notes: Vec<String>,
    pub(super) headings: Vec<&'static str>,
    pub(super) rows: Vec<Vec<String>>,
}

pub(super) struct ReportView {
    pub(super) report: FleetReport,
    pub(super) prices: Prices,
    pub(super) support: Vec<BranchSupport>,
}

impl ReportView {
    pub(super) fn new(report: FleetReport, prices: Prices, facts: &FactSet) -> Self {
        let support = branches(&report, facts);
        Self { report, prices, support }
    }

    pub(super) fn title(&self) -> String {
        let scope = match &self.report.scope {
            Domain::Fleet => "Fleet".to_owned(),
            scope => format!("Fleet, {scope}"),
        };
        let period = &self.report.period;
        format!("{scope}: {} to {}", minute(period.from), minute(period.to))
    }

    /// What the report is about, and what it lacks.
    pub(super) fn preamble(&self) -> Vec<String> {
        let (report, period) = (&self.report, &self.report.period);
        let time = &report.time;
        let available = time.availability().map_or_else(|| "unknown".to_owned(), percent);
        let mut lines = vec![
            self.title(),
            format!(
                "{available} of {} GPU-hours were available. {} GPU-hours were lost; every one of them has a cause, and the parts add up to the whole{}.",
                hours(time.total_ms),
                hours(time.lost_sum_ms()),
                if time.adds_up() { "" } else { " EXCEPT FOR AN ERROR OF THIS PROGRAM" },
            ),
        ];
        if let Some(begins) = period.missing_before {
            lines.push(format!(
                "The log begins at {}: earlier entries are archived, and the time before is in no figure. `--log DIR --archive FILE` includes archives.",
                minute(begins)
            ));
        }
        if let Some(until) = period.missing_after {
            lines.push(format!(
                "The log ends at {}: the time from there to {} is in no figure.",
                minute(period.to),
                minute(until)
            ));
        }
        if report.uncounted_node_ms > 0 {
            lines.push(format!(
                "{} node-hours of nodes that had not reported their GPUs yet are in no figure.",
                hours(report.uncounted_node_ms)
            ));
        }
        lines
    }

    pub(super) fn sections(&self, detail: ReportDetail) -> Vec<ReportSection> {
        let mut sections = vec![
            self.causes(),
            self.pools(),
            self.losses(detail),
            self.exposure(detail),
            self.reliability(),
            self.offenders(detail),
            self.repairs(),
            self.rma(detail),
            self.drivers(),
            self.support(),
        ];
        sections.extend(self.shadow(detail));
        sections
    }

    /// Costs by cause and pool. `null` without prices.
    pub(super) fn costs(&self) -> Value {
        if self.prices.is_empty() {
            return Value::Null;
        }
        let causes = Cause::ALL.map(|cause| (cause.code(), self.cost_of(&[cause])));
        let pools = self.report.pools.iter().map(|pool| {
            json!({ "pool": pool.pool, "lost": self.prices.lost(&pool.pool, &pool.skus, &Cause::ALL) })
        });
        json!({
            "lost": self.cost_of(&Cause::ALL),
            "by_cause": causes.iter().map(|(code, cost)| json!({ "cause": code, "lost": cost })).collect::<Vec<_>>(),
            "by_pool": pools.collect::<Vec<_>>(),
            "unpriced_gpu_ms": self.prices.unpriced_ms(&self.report),
        })
    }

    /// Cost of the lost time with these causes, as far as GPUs have prices.
    fn cost_of(&self, causes: &[Cause]) -> Option<f64> {
        let pools = self.report.pools.iter();
        let costs = pools.filter_map(|pool| self.prices.lost(&pool.pool, &pool.skus, causes));
        costs.reduce(|one, other| one + other)
    }
}

pub(super) fn cause_name(cause: Cause) -> &'static str {
    match cause {
        Cause::Finding => "finding",
        Cause::IdleByCordon => "idle by cordon",
        Cause::Verification => "verification",
        Cause::Hold => "hold",
        Cause::Maintenance => "maintenance",
        Cause::Unknown => "unknown",
    }
}

/// Hours with one decimal and separators, such as `1,234.5`.
pub(super) fn hours(gpu_ms: u64) -> String {
    let tenths = (gpu_ms + HOUR_MS / 20) / (HOUR_MS / 10);
    if tenths == 0 && gpu_ms > 0 {
        return "< 0.1".to_owned();
    }
    format!("{}.{}", grouped(tenths / 10), tenths % 10)
}

pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A share as a percentage. It is 100 % only for the whole, and 0 % only for nothing.
pub(super) fn percent(share: f64) -> String {
    // Two decimals would show these shares as the whole, or as nothing.
    if (0.999_95..1.0).contains(&share) {
        return "> 99.99 %".to_owned();
    }
    if share > 0.0 && share < 0.000_05 {
        return "< 0.01 %".to_owned();
    }
    format!("{:.2} %", 100.0 * share)
}

fn share(part: u64, whole: u64) -> String {
    if whole == 0 { "–".to_owned() } else { percent(ratio(part, whole)) }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a cost is not negative, and saturates"
)]
fn money(cost: Option<f64>) -> String {
    cost.map_or_else(|| "no price".to_owned(), |cost| grouped(cost.round() as u64))
}

pub(super) fn minute(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M UTC").to_string()
}

fn or_unknown(text: Option<&String>) -> String {
    text.cloned().unwrap_or_else(|| "unknown".to_owned())
}

fn with_detail(code: &str, detail: &str) -> String {
    if detail.is_empty() { code.to_owned() } else { format!("{code} ({detail})") }
}

/// Notes how many rows are not shown.
fn omitted(rows: usize, shown: usize) -> Option<String> {
    let omitted = rows.checked_sub(shown).filter(|omitted| *omitted > 0)?;
    Some(format!("The first {shown} of {rows}; {omitted} more are in `--output json`."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hours_and_shares_never_hide_a_rest() {
        assert_eq!(hours(1_234 * HOUR_MS + HOUR_MS / 2), "1,234.5");
        assert_eq!((hours(1), hours(0)), ("< 0.1".to_owned(), "0.0".to_owned()));
        assert_eq!(percent(0.999_999), "> 99.99 %");
        assert_eq!((percent(1.0), percent(0.0)), ("100.00 %".to_owned(), "0.00 %".to_owned()));
        assert_eq!(percent(0.000_01), "< 0.01 %");
    }
}
