//! A run that gets nowhere: why, and what would.

use serde::Serialize;

use super::conditions::Conditions;
use super::timing::Timing;
use super::{Goodput, HEADWAY_SHARE, closed_form, interval};

/// A run that gets nowhere, and what would.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct NoHeadway {
    /// Share of time that is kept.
    pub share: f64,
    /// Between two failures.
    pub mtbf_s: f64,
    /// From a failure to training again.
    pub down_s: f64,
    /// Mean wait for a node.
    pub wait_s: f64,
    /// The interval that was asked for, where it alone is to blame.
    pub interval: Option<WrongInterval>,
    /// The most GPUs with which half of the time would be kept; none where one is too many, or where
    /// the interval is to blame.
    pub most_gpus: Option<u32>,
}

/// An interval between checkpoints that leaves no headway where another would.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct WrongInterval {
    /// As asked for.
    pub given_s: f64,
    /// What training waits for at a checkpoint.
    pub stall_s: f64,
    /// The best; without end (`null`) where the run ends before a checkpoint pays.
    pub best_s: f64,
    /// Share of time that is kept at the best.
    pub best_share: f64,
}

impl std::fmt::Display for NoHeadway {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (kept, least) = (self.share * 100.0, HEADWAY_SHARE * 100.0);
        write!(f, "makes no headway: {kept:.2} % of the time is kept, less than {least:.0} %; ")?;
        if let Some(wrong) = &self.interval {
            return wrong.tell(self.mtbf_s, f);
        }
        write!(
            f,
            "something fails every {:.1} min, and {:.1} min go by until it trains again",
            minutes(self.mtbf_s),
            minutes(self.down_s + self.wait_s),
        )?;
        match self.most_gpus {
            Some(gpus) => write!(f, "; with {gpus} GPUs or fewer half of it would be kept"),
            None => write!(f, "; fewer GPUs do not help, a faster recovery does"),
        }
    }
}

impl WrongInterval {
    fn tell(&self, mtbf_s: f64, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let given = minutes(self.given_s);
        if self.given_s > self.stall_s {
            let mtbf = minutes(mtbf_s);
            write!(
                f,
                "a checkpoint every {given:.1} min is too rare for a fault every {mtbf:.1} min"
            )?;
        } else {
            let stall = minutes(self.stall_s);
            write!(f, "a checkpoint every {given:.1} min is too often: each takes {stall:.1} min")?;
        }
        let kept = self.best_share * 100.0;
        if self.best_s.is_finite() {
            write!(
                f,
                "; the best is every {:.1} min, which keeps {kept:.1} %",
                minutes(self.best_s)
            )
        } else {
            write!(f, "; without a checkpoint {kept:.1} % is kept")
        }
    }
}

fn minutes(seconds: f64) -> f64 {
    seconds / 60.0
}

impl NoHeadway {
    /// Of a run at an interval, which is not the best if one was asked for.
    pub(super) fn of(conditions: &Conditions, best: &Goodput, given: Option<&Goodput>) -> Self {
        let chosen = given.unwrap_or(best);
        let interval = given.filter(|_| best.makes_headway).map(|given| WrongInterval {
            given_s: given.interval_s,
            stall_s: given.stall_s,
            best_s: best.interval_s,
            best_share: best.share,
        });
        Self {
            share: chosen.share,
            mtbf_s: chosen.mtbf_s,
            down_s: chosen.down_s,
            wait_s: chosen.wait_s,
            interval,
            most_gpus: if interval.is_some() { None } else { most_gpus(conditions) },
        }
    }
}

/// The most GPUs with which half of the time would be kept.
fn most_gpus(conditions: &Conditions) -> Option<u32> {
    let is_half = |gpus: u32| {
        let timing = Timing::of(&Conditions { gpus, ..*conditions });
        closed_form::balance(&timing, interval::best_s(&timing)).split.useful_share >= 0.5
    };
    let (mut enough, mut too_many) = (0, conditions.gpus);
    while too_many - enough > 1 {
        let middle = enough.midpoint(too_many);
        if is_half(middle) {
            enough = middle;
        } else {
            too_many = middle;
        }
    }
    (enough > 0).then_some(enough)
}
