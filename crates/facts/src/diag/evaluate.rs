//! Grades test results by correctness, by the minimum of the SKU, and by the GPU's history.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::baseline::Baseline;
use super::test::{Test, TestOutcome, Unit};

/// Grade of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Grade {
    Pass,
    /// Not tested. The GPU may be healthy or faulty.
    NotRun,
    /// Correct, but too slow.
    Degraded,
    /// Wrong result or no result.
    Fail,
}

impl fmt::Display for Grade {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::Pass => "pass",
            Self::NotRun => "not run",
            Self::Degraded => "degraded",
            Self::Fail => "fail",
        })
    }
}

/// Values of earlier runs that passed, of the same GPU with the same driver. Oldest first.
#[derive(Debug, Clone, Copy, Default)]
pub struct History<'a>(pub &'a [f64]);

/// Minimum number of runs for a typical value.
pub const HISTORY_MIN_RUNS: usize = 3;

/// Number of oldest runs, and of newest runs, that [`History::typical`] considers.
const HISTORY_WINDOW: usize = 10;

/// A result that is worse than the typical value by more than this share is a regression.
/// `SuperBench` uses the same margin for its baselines.
pub const REGRESSION_MARGIN: f64 = 0.05;

/// The margin for launch times. This margin is wider, because launch times vary with the load of
/// the host.
const LAUNCH_REGRESSION_MARGIN: f64 = 0.5;

impl History<'_> {
    /// The median of the oldest runs or that of the newest runs, whichever is better. So a GPU that
    /// becomes slower gradually is still compared with its best runs. `None` with too few runs.
    pub fn typical(self, unit: Unit) -> Option<f64> {
        if self.0.len() < HISTORY_MIN_RUNS {
            return None;
        }
        let window = HISTORY_WINDOW.min(self.0.len());
        let oldest = median(&self.0[..window])?;
        let newest = median(&self.0[self.0.len() - window..])?;
        Some(if unit == Unit::Us { oldest.min(newest) } else { oldest.max(newest) })
    }
}

/// Grade of a result, with the reason.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TestVerdict {
    pub grade: Grade,
    /// The reason, also for a pass.
    pub why: String,
    /// Minimum for the SKU; `None` if unknown.
    pub least: Option<Baseline>,
    /// Typical value of this GPU. `None` with too few runs.
    pub usual: Option<f64>,
}

/// Evaluates one result.
pub fn evaluate(
    test: Test,
    outcome: &TestOutcome,
    least: Option<Baseline>,
    history: History<'_>,
) -> TestVerdict {
    let usual = history.typical(test.unit());
    let (grade, why) = match outcome {
        TestOutcome::NotRun { why } | TestOutcome::Unsupported { why } => {
            (Grade::NotRun, why.clone())
        }
        TestOutcome::Failed { why } => (Grade::Fail, why.clone()),
        TestOutcome::Wrong { what } => (Grade::Fail, what.join("; ")),
        TestOutcome::Done { value: None, detail, .. } => (Grade::Pass, detail.clone()),
        TestOutcome::Done { value: Some(value), .. } if !value.is_finite() || *value <= 0.0 => {
            (Grade::Fail, format!("measured {value} {}, which is impossible", test.unit()))
        }
        TestOutcome::Done { value: Some(value), samples, .. } => {
            let decay = if test == Test::Soak { throughput_decay(samples) } else { None };
            decay.unwrap_or_else(|| compare(test, *value, least.as_ref(), usual))
        }
    };
    TestVerdict { grade, why, least, usual }
}

/// Detects throughput that falls during a sustained load. Skips the first eighth of the samples,
/// when the GPU is still cool and its clocks are high.
fn throughput_decay(samples: &[f64]) -> Option<(Grade, String)> {
    let eighth = (samples.len() / 8).max(1);
    let first = median(samples.get(eighth..eighth * 3)?)?;
    let last = median(samples.get(samples.len().checked_sub(eighth * 2)?..)?)?;
    let ratio = last / first;
    let why = format!("throughput fell to {:.1} % of its initial value", ratio * 100.0);
    (samples.len() >= 8 && ratio < 1.0 - REGRESSION_MARGIN).then_some((Grade::Degraded, why))
}

/// The median. `None` if the slice is empty.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (low, high) = (sorted.len().checked_sub(1)? / 2, sorted.len() / 2);
    Some(f64::midpoint(sorted[low], sorted[high]))
}

/// Compares a correct result with the minimum of the SKU and the typical value of the GPU.
fn compare(
    test: Test,
    value: f64,
    least: Option<&Baseline>,
    usual: Option<f64>,
) -> (Grade, String) {
    let unit = test.unit();
    if unit == Unit::Gb {
        return (Grade::Pass, "all bytes read back as written".to_owned());
    }
    let is_time = unit == Unit::Us;
    // Ratio to the reference. 1 is as good as the reference, and less is worse, also for times.
    let reached = |reference: f64| if is_time { reference / value } else { value / reference };
    let percent = |ratio: f64| format!("{:.1} %", ratio * 100.0);
    let loss = if is_time { LAUNCH_REGRESSION_MARGIN } else { REGRESSION_MARGIN };
    let mut below = Vec::new();
    let mut sufficient = Vec::new();
    match least {
        Some(least) => {
            let share = reached(least.value);
            let figure = three_digits(least.value);
            let comparison =
                format!("{} of the minimum for this SKU, {figure} {unit}", percent(share));
            if share < 1.0 { below.push(comparison) } else { sufficient.push(comparison) }
        }
        None => sufficient.push("no baseline to compare with".to_owned()),
    }
    if let Some(usual) = usual {
        let ratio = reached(usual);
        let comparison = format!(
            "{} of the typical value of this GPU, {} {unit}",
            percent(ratio),
            three_digits(usual)
        );
        if ratio < 1.0 - loss {
            below.push(format!("{comparison} (after a hardware change: --forget-history)"));
        } else {
            sufficient.push(comparison);
        }
    }
    if below.is_empty() {
        (Grade::Pass, sufficient.join("; "))
    } else {
        (Grade::Degraded, below.join("; "))
    }
}

/// Three significant digits, the precision of these measurements.
fn three_digits(value: f64) -> String {
    if value >= 100.0 {
        format!("{value:.0}")
    } else if value >= 10.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.2}")
    }
}
