//! A run in days and dollars.

use serde::Serialize;

use super::closed_form::Split;
use super::conditions::Conditions;
use super::error::{GoodputError, positive};
use super::interval::{self, daly_s, young_s};
use super::spares::{Outage, SpareChoice, SparesThatPay};
use super::timing::Timing;
use super::worth::Worths;
use super::{Goodput, closed_form};

/// What is to be trained, and at what pace.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Training {
    /// Tokens of the run.
    pub tokens: f64,
    /// Tokens a second over all GPUs, while it trains.
    pub tokens_per_s: f64,
    /// Price of a GPU, if there is one.
    pub usd_per_gpu_hour: Option<f64>,
}

impl Training {
    fn check(&self) -> Result<(), GoodputError> {
        positive("tokens", self.tokens)?;
        positive("tokens_per_s", self.tokens_per_s)?;
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
    /// The run at the interval given, or else at the best; none where it makes no headway.
    pub run: Option<RunCost>,
    /// Why there is no run.
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
    /// Failures to expect.
    pub failures: f64,
    /// Where the rest goes.
    pub lost: LostTime,
    /// All of it, spares with it.
    pub usd: Option<f64>,
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
    /// The most GPUs with which half of the time would be kept; none where one is too many.
    pub most_gpus: Option<u32>,
}

impl std::fmt::Display for NoHeadway {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let minutes = |seconds: f64| seconds / 60.0;
        write!(
            f,
            "makes no headway: something fails every {:.1} min, and {:.1} min go by until it \
             trains again; {:.2} % of the time is kept",
            minutes(self.mtbf_s),
            minutes(self.down_s + self.wait_s),
            self.share * 100.0,
        )?;
        match self.most_gpus {
            Some(gpus) => write!(f, "; with {gpus} GPUs or fewer half of it would be"),
            None => write!(f, "; fewer GPUs do not help, a faster recovery does"),
        }
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
        let best = Goodput::best(conditions)?;
        let given = interval_s.map(|seconds| Goodput::at(conditions, seconds)).transpose()?;
        let chosen = given.unwrap_or(best);
        let timing = Timing::of(conditions);
        let productive_h = training.tokens / training.tokens_per_s / 3_600.0;
        let usd_per_hour = training.usd_per_gpu_hour.map(|usd| usd * conditions.paid_gpus());
        let trains = chosen.makes_headway;
        Ok(Self {
            best,
            given,
            young_interval_s: young_s(timing.stall_s, best.mtbf_s),
            daly_interval_s: daly_s(timing.stall_s, best.mtbf_s),
            run: trains.then(|| run(&chosen, training, productive_h, usd_per_hour)),
            no_headway: (!trains).then(|| no_headway(conditions, &chosen)),
            worth_of_a_minute: trains
                .then(|| Worths::of(&timing, interval_s, productive_h, usd_per_hour)),
            spares: spares(conditions, &timing, chosen.interval_s),
        })
    }
}

fn run(
    goodput: &Goodput,
    training: &Training,
    productive_h: f64,
    usd_per_hour: Option<f64>,
) -> RunCost {
    let hours = productive_h / goodput.share;
    let usd = usd_per_hour.map(|usd| usd * hours);
    RunCost {
        productive_h,
        hours,
        days: hours / 24.0,
        failures: goodput.failures_per_day * hours / 24.0,
        lost: LostTime::of(&goodput.split, hours),
        usd,
        lost_usd: usd_per_hour.map(|usd| usd * (hours - productive_h)),
        usd_per_million_tokens: usd.map(|usd| usd / training.tokens * 1e6),
    }
}

fn no_headway(conditions: &Conditions, goodput: &Goodput) -> NoHeadway {
    let is_half = |gpus: u32| {
        let fewer = Conditions { gpus, ..*conditions };
        let timing = Timing::of(&fewer);
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
    NoHeadway {
        share: goodput.share,
        mtbf_s: goodput.mtbf_s,
        down_s: goodput.down_s,
        wait_s: goodput.wait_s,
        most_gpus: (enough > 0).then_some(enough),
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
