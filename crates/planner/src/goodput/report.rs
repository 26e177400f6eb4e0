//! A run in days and dollars.

use serde::Serialize;

use super::closed_form::Split;
use super::conditions::Conditions;
use super::error::{GoodputError, positive};
use super::interval::{daly_s, young_s};
use super::no_headway::NoHeadway;
use super::spares::{Outage, SpareChoice, SparesThatPay};
use super::timing::Timing;
use super::worth::Worths;
use super::{Goodput, closed_form};

/// What is to be trained, and at what pace.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Training {
    /// Tokens of the run, if that was said.
    pub tokens: Option<f64>,
    /// Tokens a second over all GPUs, while it trains.
    pub tokens_per_s: f64,
    /// What one run in ten is slower than, and one in ten faster; none where it was measured.
    pub tokens_per_s_p10_p90: Option<[f64; 2]>,
    /// Price of a GPU, if there is one.
    pub usd_per_gpu_hour: Option<f64>,
}

impl Training {
    fn check(&self) -> Result<(), GoodputError> {
        self.tokens.map_or(Ok(()), |tokens| positive("tokens", tokens))?;
        positive("tokens_per_s", self.tokens_per_s)?;
        for rate in self.tokens_per_s_p10_p90.into_iter().flatten() {
            positive("tokens_per_s_p10_p90", rate)?;
        }
        self.usd_per_gpu_hour
            .map_or(Ok(()), |usd| super::error::at_least_zero("usd_per_gpu_hour", usd))
    }
}

/// All about a run's goodput.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// At the best interval.
    pub best: Goodput,
    /// At the interval given, if one was.
    pub given: Option<Goodput>,
    /// Young's interval for the same stall; `null` where nothing fails.
    pub young_interval_s: f64,
    /// Daly's interval for the same stall; `null` where nothing fails.
    pub daly_interval_s: f64,
    /// The interval that would be best, where the run ends before: no checkpoint pays.
    pub interval_beyond_run_s: Option<f64>,
    /// The run at the interval given, or else at the best; none where it makes no headway, or where
    /// its tokens were not said.
    pub run: Option<RunCost>,
    /// Why it gets nowhere, if it does not.
    pub no_headway: Option<NoHeadway>,
    /// What a minute less is worth; none where there is no run.
    pub worth_of_a_minute: Option<Worths>,
    /// How many spares pay.
    pub spares: SparesThatPay,
}

/// How long a run takes, and what it costs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct RunCost {
    /// Were nothing lost.
    pub productive_h: f64,
    /// In truth.
    pub hours: f64,
    /// The same in days.
    pub days: f64,
    /// One run in ten takes less, as its speed is doubtful; none where that was measured.
    pub days_p10: Option<f64>,
    /// One in ten takes more.
    pub days_p90: Option<f64>,
    /// Failures to expect.
    pub failures: f64,
    /// Where the rest goes.
    pub lost: LostTime,
    /// All of it, spares with it.
    pub usd: Option<f64>,
    /// One run in ten costs less.
    pub usd_p10: Option<f64>,
    /// One in ten costs more.
    pub usd_p90: Option<f64>,
    /// What the lost hours cost.
    pub lost_usd: Option<f64>,
    /// For a million tokens.
    pub usd_per_million_tokens: Option<f64>,
}

/// Hours of a run that are not training which is kept.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LostTime {
    /// Waiting for checkpoints.
    pub checkpoint_stalls_h: f64,
    /// Training that was done again.
    pub lost_work_h: f64,
    /// Until failures were known.
    pub detection_h: f64,
    /// Restart, load, warm-up.
    pub recovery_h: f64,
    /// Waiting for a node.
    pub waiting_for_spares_h: f64,
    /// Planned stops.
    pub planned_h: f64,
}

impl LostTime {
    fn of(split: &Split, hours: f64) -> Self {
        Self {
            checkpoint_stalls_h: split.checkpoint_stalls_share * hours,
            lost_work_h: split.lost_work_share * hours,
            detection_h: split.detection_share * hours,
            recovery_h: split.recovery_share * hours,
            waiting_for_spares_h: split.waiting_share * hours,
            planned_h: split.planned_share * hours,
        }
    }

    /// All of it.
    pub fn total_h(&self) -> f64 {
        self.checkpoint_stalls_h
            + self.lost_work_h
            + self.detection_h
            + self.recovery_h
            + self.waiting_for_spares_h
            + self.planned_h
    }
}

impl Report {
    /// All about the goodput of a run; at an interval too, if one is given.
    pub fn of(
        conditions: &Conditions,
        training: &Training,
        interval_s: Option<f64>,
    ) -> Result<Self, GoodputError> {
        training.check()?;
        let timing = Timing::of(conditions);
        let productive_s = training.tokens.map(|tokens| tokens / training.tokens_per_s);
        let whole = |interval_s: f64| productive_s.filter(|whole_s| interval_s >= *whole_s);
        let endless = Goodput::best(conditions)?;
        let ends_first = whole(endless.interval_s).filter(|_| timing.per_s > 0.0);
        let best = ends_first
            .map_or(endless, |whole_s| Goodput::of_whole_run(&timing, whole_s, f64::INFINITY));
        let given = interval_s
            .map(|seconds| {
                let at = Goodput::at(conditions, seconds)?;
                Ok(whole(seconds)
                    .map_or(at, |whole_s| Goodput::of_whole_run(&timing, whole_s, seconds)))
            })
            .transpose()?;
        let chosen = given.unwrap_or(best);
        // What else is asked about the run, at the same interval.
        let (played, every_s) = match whole(chosen.interval_s) {
            Some(whole_s) => (timing.without_checkpoints(), Some(whole_s)),
            None => (timing, interval_s),
        };
        let usd_per_hour = training.usd_per_gpu_hour.map(|usd| usd * conditions.paid_gpus());
        let trains = chosen.makes_headway;
        let productive_h = productive_s.filter(|_| trains).map(|seconds| seconds / 3_600.0);
        Ok(Self {
            best,
            given,
            young_interval_s: young_s(timing.stall_s, best.mtbf_s),
            daly_interval_s: daly_s(timing.stall_s, best.mtbf_s),
            interval_beyond_run_s: ends_first.map(|_| endless.interval_s),
            run: productive_h.map(|hours| RunCost::of(&chosen, training, hours, usd_per_hour)),
            no_headway: (!trains).then(|| NoHeadway::of(conditions, &best, given.as_ref())),
            worth_of_a_minute: productive_h
                .map(|hours| Worths::of(&played, every_s, hours, usd_per_hour)),
            spares: spares(conditions, &played, every_s.unwrap_or(chosen.interval_s)),
        })
    }
}

impl RunCost {
    fn of(
        goodput: &Goodput,
        training: &Training,
        productive_h: f64,
        usd_per_hour: Option<f64>,
    ) -> Self {
        let hours = productive_h / goodput.share;
        let usd = usd_per_hour.map(|usd| usd * hours);
        // A faster run is a shorter one; what is kept of its time hardly depends on its step.
        let beside = |rate: usize| {
            training.tokens_per_s_p10_p90.map(|rates| training.tokens_per_s / rates[rate])
        };
        let (less, more) = (beside(1), beside(0));
        let times = |value: Option<f64>, factor: Option<f64>| Some(value? * factor?);
        let days = hours / 24.0;
        Self {
            productive_h,
            hours,
            days,
            days_p10: times(Some(days), less),
            days_p90: times(Some(days), more),
            failures: goodput.failures_per_day * days,
            lost: LostTime::of(&goodput.split, hours),
            usd,
            usd_p10: times(usd, less),
            usd_p90: times(usd, more),
            lost_usd: usd_per_hour.map(|usd| usd * (hours - productive_h)),
            usd_per_million_tokens: times(usd, training.tokens.map(|tokens| 1e6 / tokens)),
        }
    }
}

fn spares(conditions: &Conditions, timing: &Timing, interval_s: f64) -> SparesThatPay {
    let outage = Outage::of(conditions);
    let choice = |nodes: u32| {
        let mut with = *conditions;
        with.spares.nodes = Some(nodes);
        let wait_s = outage.mean_wait_s(nodes);
        let share =
            closed_form::balance(&Timing { wait_s, ..*timing }, interval_s).split.useful_share;
        SpareChoice {
            nodes,
            none_left_share: outage.none_left(nodes),
            more_out_share: outage.more_out_than(nodes),
            mean_wait_s: wait_s,
            share,
            cost_factor: with.paid_gpus() / f64::from(conditions.gpus) / share,
        }
    };
    SparesThatPay {
        mean_nodes_out: outage.mean_out,
        none: choice(0),
        cheapest: choice(outage.cheapest(conditions)),
        given: conditions.spares.nodes.map(choice),
    }
}
