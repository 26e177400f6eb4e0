//! Runs without progress: cause and remedy.

use serde::Serialize;

use super::conditions::Conditions;
use super::timing::RunTiming;
use super::{Goodput, MIN_PROGRESS_SHARE, closed_form, interval};

/// Why a run makes no progress, and what would help.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct NoProgress {
    /// ETTR.
    pub share: f64,
    pub mtbf_s: f64,
    /// Time from a failure until the run trains again.
    pub down_s: f64,
    /// Mean wait for a node.
    pub wait_s: f64,
    /// Set if the requested interval is the cause.
    pub interval: Option<WrongInterval>,
    /// Set if the planned stops are the cause.
    pub stops: Option<TooManyStops>,
    /// The most GPUs with an ETTR of at least 50 %. `None` if even one is too many, or if the
    /// interval or the planned stops are the cause.
    #[serde(rename = "most_gpus")]
    pub max_gpus: Option<u32>,
}

/// A checkpoint interval that prevents progress, although another interval would allow progress.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct WrongInterval {
    #[serde(rename = "given_s")]
    pub requested_s: f64,
    /// Stall of training per checkpoint.
    pub stall_s: f64,
    /// The best interval; infinite (`null`) if the run ends before a checkpoint pays off.
    pub best_s: f64,
    /// ETTR at the best interval.
    pub best_share: f64,
}

/// Planned stops that prevent progress.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct TooManyStops {
    pub per_day: f64,
    /// Share of time that the stops take.
    pub stopped_share: f64,
    /// ETTR without the stops.
    pub share_without: f64,
}

impl std::fmt::Display for NoProgress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (ettr, min) = (self.share * 100.0, MIN_PROGRESS_SHARE * 100.0);
        write!(f, "makes no progress: ETTR is {ettr:.2} %, less than {min:.0} %; ")?;
        if let Some(wrong) = &self.interval {
            return wrong.write_cause(self.mtbf_s, f);
        }
        if let Some(stops) = &self.stops {
            return stops.write_cause(f);
        }
        write!(
            f,
            "a failure occurs every {:.1} min, and recovery takes {:.1} min",
            minutes(self.mtbf_s),
            minutes(self.down_s + self.wait_s),
        )?;
        match self.max_gpus {
            Some(gpus) => write!(f, "; with {gpus} GPUs or fewer ETTR would be at least 50 %"),
            None => write!(f, "; fewer GPUs do not help, a faster recovery does"),
        }
    }
}

impl WrongInterval {
    fn write_cause(&self, mtbf_s: f64, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let requested = minutes(self.requested_s);
        if self.requested_s > self.stall_s {
            let mtbf = minutes(mtbf_s);
            write!(
                f,
                "a checkpoint every {requested:.1} min is too rare for a failure every {mtbf:.1} min"
            )?;
        } else {
            let stall = minutes(self.stall_s);
            write!(
                f,
                "a checkpoint every {requested:.1} min is too often: each takes {stall:.1} min"
            )?;
        }
        let ettr = self.best_share * 100.0;
        if self.best_s.is_finite() {
            write!(
                f,
                "; the best interval is {:.1} min, with an ETTR of {ettr:.1} %",
                minutes(self.best_s)
            )
        } else {
            write!(f, "; without checkpoints ETTR would be {ettr:.1} %")
        }
    }
}

impl TooManyStops {
    /// `None` if the run makes no progress even without planned stops.
    fn detect(conditions: &Conditions, chosen: &Goodput) -> Option<Self> {
        let stopped_share = chosen.breakdown.planned_share;
        let share_without = chosen.share / (1.0 - stopped_share);
        let per_day = conditions.planned_stops_per_day;
        (share_without >= MIN_PROGRESS_SHARE).then_some(Self {
            per_day,
            stopped_share,
            share_without,
        })
    }

    fn write_cause(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (stopped, ettr) = (100.0 * self.stopped_share, 100.0 * self.share_without);
        let each_min = 24.0 * 60.0 * self.stopped_share / self.per_day;
        write!(
            f,
            "{} planned stops per day of {each_min:.1} min take {stopped:.1} %; without them \
             ETTR would be {ettr:.1} %",
            self.per_day
        )
    }
}

fn minutes(seconds: f64) -> f64 {
    seconds / 60.0
}

impl NoProgress {
    /// Diagnoses a run at the requested interval, or else at the best.
    pub(super) fn new(
        conditions: &Conditions,
        best: &Goodput,
        requested: Option<&Goodput>,
    ) -> Self {
        let chosen = requested.unwrap_or(best);
        let interval = requested.filter(|_| best.makes_progress).map(|requested| WrongInterval {
            requested_s: requested.interval_s,
            stall_s: requested.stall_s,
            best_s: best.interval_s,
            best_share: best.share,
        });
        let stops =
            if interval.is_some() { None } else { TooManyStops::detect(conditions, chosen) };
        let has_cause = interval.is_some() || stops.is_some();
        Self {
            share: chosen.share,
            mtbf_s: chosen.mtbf_s,
            down_s: chosen.down_s,
            wait_s: chosen.wait_s,
            interval,
            stops,
            max_gpus: if has_cause { None } else { max_gpus(conditions) },
        }
    }
}

/// The most GPUs with an ETTR of at least 50 %, by bisection.
fn max_gpus(conditions: &Conditions) -> Option<u32> {
    let is_half = |gpus: u32| {
        let timing = RunTiming::new(&Conditions { gpus, ..*conditions });
        closed_form::steady_state(&timing, interval::best_s(&timing)).breakdown.useful_share >= 0.5
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
    fn planned_stops_are_blamed_if_they_take_the_time() {
        let checkpoint = Checkpoint::new(CheckpointKind::Asynchronous, 1e12, 2e11);
        let mut conditions = Conditions::new(64, checkpoint, 5.0);
        conditions.planned_stops_per_day = 0.97 * 86_400.0 / RunTiming::new(&conditions).stop_s();
        let best = Goodput::best(&conditions).unwrap();
        assert!(!best.makes_progress && (best.breakdown.planned_share - 0.97).abs() < 1e-9);
        let message = NoProgress::new(&conditions, &best, None).to_string();
        assert!(
            message.contains("planned stops per day of 5.") && message.contains("97.0 %"),
            "{message}"
        );
        assert!(!message.contains("failure"), "{message}");
        conditions.planned_stops_per_day = 0.0;
        let without = Goodput::best(&conditions).unwrap().share;
        let ettr = format!("without them ETTR would be {:.1} %", 100.0 * without);
        assert!(message.ends_with(&ettr), "{message}");
    }
}
