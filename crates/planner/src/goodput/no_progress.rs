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
    /// The planned stops, where they are to blame.
    pub stops: Option<TooManyStops>,
    /// The most GPUs with which half of the time would be kept; none where one is too many, or where
    /// the interval or planned stops are to blame.
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

/// Planned stops that leave no headway where none would.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct TooManyStops {
    /// As asked for.
    pub per_day: f64,
    /// Share of time that they take.
    pub stopped_share: f64,
    /// Share of time that is kept without them.
    pub share_without: f64,
}

impl std::fmt::Display for NoHeadway {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (kept, least) = (self.share * 100.0, HEADWAY_SHARE * 100.0);
        write!(f, "makes no headway: {kept:.2} % of the time is kept, less than {least:.0} %; ")?;
        if let Some(wrong) = &self.interval {
            return wrong.tell(self.mtbf_s, f);
        }
        if let Some(stops) = &self.stops {
            return stops.tell(f);
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

impl TooManyStops {
    /// Of a run at an interval.
    fn of(conditions: &Conditions, chosen: &Goodput) -> Option<Self> {
        let stopped_share = chosen.split.planned_share;
        let share_without = chosen.share / (1.0 - stopped_share);
        let per_day = conditions.planned_stops_per_day;
        (share_without >= HEADWAY_SHARE).then_some(Self { per_day, stopped_share, share_without })
    }

    fn tell(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (stopped, kept) = (100.0 * self.stopped_share, 100.0 * self.share_without);
        let each_min = 24.0 * 60.0 * self.stopped_share / self.per_day;
        write!(
            f,
            "{} planned stops a day of {each_min:.1} min take {stopped:.1} %; without them \
             {kept:.1} % would be kept",
            self.per_day
        )
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
        let stops = if interval.is_some() { None } else { TooManyStops::of(conditions, chosen) };
        let is_told = interval.is_some() || stops.is_some();
        Self {
            share: chosen.share,
            mtbf_s: chosen.mtbf_s,
            down_s: chosen.down_s,
            wait_s: chosen.wait_s,
            interval,
            stops,
            most_gpus: if is_told { None } else { most_gpus(conditions) },
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

#[cfg(test)]
mod tests {
    use super::super::checkpoint::{Checkpoint, CheckpointKind};
    use super::*;

    #[test]
    fn planned_stops_are_blamed_where_they_take_the_time() {
        let checkpoint = Checkpoint::new(CheckpointKind::Asynchronous, 1e12, 2e11);
        let mut conditions = Conditions::new(64, checkpoint, 5.0);
        conditions.planned_stops_per_day = 0.97 * 86_400.0 / Timing::of(&conditions).stop_s();
        let best = Goodput::best(&conditions).unwrap();
        assert!(!best.makes_headway && (best.split.planned_share - 0.97).abs() < 1e-9);
        let said = NoHeadway::of(&conditions, &best, None).to_string();
        assert!(said.contains("planned stops a day of 5.") && said.contains("97.0 %"), "{said}");
        assert!(!said.contains("fails"), "{said}");
        conditions.planned_stops_per_day = 0.0;
        let without = Goodput::best(&conditions).unwrap().share;
        let kept = format!("without them {:.1} % would be kept", 100.0 * without);
        assert!(said.ends_with(&kept), "{said}");
    }
}
