//! What a result comes to.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::baseline::Baseline;
use super::test::{Outcome, Test, Unit};

/// How well a GPU did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Grade {
    /// As it ought to.
    Pass,
    /// Not tested: nothing is said of it, and it is not healthy for that.
    NotRun,
    /// Right, and slower than it ought to be.
    Degraded,
    /// Wrong, or not at all.
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

/// What this card reached before with the driver that it has, oldest first, by runs that passed.
#[derive(Debug, Clone, Copy, Default)]
pub struct History<'a>(pub &'a [f64]);

/// So many earlier runs say what is usual for a card.
pub const HISTORY_MIN_RUNS: usize = 3;

/// So many of the first runs, and so many of the newest, are looked at.
const HISTORY_WINDOW: usize = 10;

/// A card that is so much worse than it used to be has changed: the margin that `SuperBench` takes for its baselines.
pub const REGRESSION_MARGIN: f64 = 0.05;

/// Times of launches are the host's as much as the card's, and vary with its load.
const LAUNCH_REGRESSION_MARGIN: f64 = 0.5;

impl History<'_> {
    /// The median of the first runs or of the newest, whichever is better: one that followed the newest alone would
    /// follow a card that decays slowly. None where there are too few.
    pub fn usual(self, unit: Unit) -> Option<f64> {
        if self.0.len() < HISTORY_MIN_RUNS {
            return None;
        }
        let part = HISTORY_WINDOW.min(self.0.len());
        let first = median(&self.0[..part])?;
        let newest = median(&self.0[self.0.len() - part..])?;
        Some(if unit == Unit::Us { first.min(newest) } else { first.max(newest) })
    }
}

/// What a result comes to, and why.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TestVerdict {
    /// In a word.
    pub grade: Grade,
    /// In words: what it rests on, also where it passed.
    pub why: String,
    /// What the part reaches at least; none: nobody can say.
    pub least: Option<Baseline>,
    /// What this card used to reach; none: too few runs are known.
    pub usual: Option<f64>,
}

/// Judges one result.
pub fn evaluate(
    test: Test,
    outcome: &Outcome,
    least: Option<Baseline>,
    history: History<'_>,
) -> TestVerdict {
    let usual = history.usual(test.unit());
    let (grade, why) = match outcome {
        Outcome::NotRun { why } | Outcome::Unsupported { why } => (Grade::NotRun, why.clone()),
        Outcome::Failed { why } => (Grade::Fail, why.clone()),
        Outcome::Wrong { what } => (Grade::Fail, what.join("; ")),
        Outcome::Done { value: None, detail, .. } => (Grade::Pass, detail.clone()),
        Outcome::Done { value: Some(value), .. } if !value.is_finite() || *value <= 0.0 => {
            (Grade::Fail, format!("measured {value} {}, which cannot be", test.unit()))
        }
        Outcome::Done { value: Some(value), samples, .. } => {
            let decay = if test == Test::Soak { throughput_decay(samples) } else { None };
            decay.unwrap_or_else(|| compare(test, *value, least.as_ref(), usual))
        }
    };
    TestVerdict { grade, why, least, usual }
}

/// Load that a card does not keep up. Its first eighth does not count: it is cool then, and its clocks are high.
fn throughput_decay(samples: &[f64]) -> Option<(Grade, String)> {
    let part = (samples.len() / 8).max(1);
    let first = median(samples.get(part..part * 3)?)?;
    let last = median(samples.get(samples.len().checked_sub(part * 2)?..)?)?;
    let ratio = last / first;
    let why = format!("it ended at {:.1} % of what it reached at first", ratio * 100.0);
    (samples.len() >= 8 && ratio < 1.0 - REGRESSION_MARGIN).then_some((Grade::Degraded, why))
}

/// The middle, or between the two in the middle; none of nothing.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (low, high) = (sorted.len().checked_sub(1)? / 2, sorted.len() / 2);
    Some(f64::midpoint(sorted[low], sorted[high]))
}

fn compare(
    test: Test,
    value: f64,
    least: Option<&Baseline>,
    usual: Option<f64>,
) -> (Grade, String) {
    let unit = test.unit();
    if unit == Unit::Gb {
        return (Grade::Pass, "every byte was as it was written".to_owned());
    }
    let is_time = unit == Unit::Us;
    // How much of what it is reference to was reached: of a time, less is more.
    let reached = |reference: f64| if is_time { reference / value } else { value / reference };
    let percent = |ratio: f64| format!("{:.1} %", ratio * 100.0);
    let loss = if is_time { LAUNCH_REGRESSION_MARGIN } else { REGRESSION_MARGIN };
    let mut short = Vec::new();
    let mut fine = Vec::new();
    match least {
        Some(least) => {
            let share = reached(least.value);
            let figure = figures(least.value);
            let comparison =
                format!("{} of the least for this part, {figure} {unit}", percent(share));
            if share < 1.0 { short.push(comparison) } else { fine.push(comparison) }
        }
        None => fine.push("there is no figure to hold it to".to_owned()),
    }
    if let Some(usual) = usual {
        let ratio = reached(usual);
        let comparison = format!(
            "{} of what this card used to reach, {} {unit}",
            percent(ratio),
            figures(usual)
        );
        if ratio < 1.0 - loss {
            short.push(format!("{comparison} (after a change of the machine: --forget-history)"));
        } else {
            fine.push(comparison);
        }
    }
    if short.is_empty() {
        (Grade::Pass, fine.join("; "))
    } else {
        (Grade::Degraded, short.join("; "))
    }
}

/// Three figures are what such a measurement has.
fn figures(value: f64) -> String {
    if value >= 100.0 {
        format!("{value:.0}")
    } else if value >= 10.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.2}")
    }
}
