//! Goodput of a run in days and dollars.

use serde::Serialize;

use super::closed_form::TimeBreakdown;
use super::conditions::Conditions;
use super::error::{GoodputError, positive};
use super::interval::{daly_s, young_s};
use super::marginal_value::MarginalValues;
use super::no_progress::NoProgress;
use super::spares::{Outage, SpareChoice, SpareSizing};
use super::timing::RunTiming;
use super::{Goodput, closed_form};

/// Amount and speed of training.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Training {
    /// Tokens to train on. `None` if not requested.
    pub tokens: Option<f64>,
    /// Throughput of the whole cluster while it trains.
    pub tokens_per_s: f64,
    /// P10 and P90 of `tokens_per_s`. `None` if the speed was measured.
    pub tokens_per_s_p10_p90: Option<[f64; 2]>,
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

/// Goodput of a run, with cost, spares and marginal values.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GoodputReport {
    /// Goodput at the best interval.
    pub best: Goodput,
    /// Goodput at the requested interval.
    #[serde(rename = "given")]
    pub requested: Option<Goodput>,
    /// Young's interval for the same stall; `null` if nothing fails.
    pub young_interval_s: f64,
    /// Daly's interval for the same stall; `null` if nothing fails.
    pub daly_interval_s: f64,
    /// The best interval, if the run is shorter than the interval and therefore needs no
    /// checkpoint.
    pub interval_beyond_run_s: Option<f64>,
    /// Duration and cost at the requested interval, or else at the best interval. `None` if the run
    /// makes no progress or no tokens were requested.
    pub run: Option<RunCost>,
    #[serde(rename = "no_headway")]
    pub no_progress: Option<NoProgress>,
    /// Value of a minute less of detection, recovery or checkpoint stall; `None` if `run` is
    /// `None`.
    #[serde(rename = "worth_of_a_minute")]
    pub value_of_a_minute: Option<MarginalValues>,
    pub spares: SpareSizing,
}

/// Duration and cost of a run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct RunCost {
    /// Duration without failures, checkpoints and planned stops.
    pub productive_h: f64,
    pub hours: f64,
    pub days: f64,
    /// Range due to the uncertainty of the speed; `None` if the speed was measured.
    pub days_p10: Option<f64>,
    pub days_p90: Option<f64>,
    /// Expected number of failures.
    pub failures: f64,
    pub lost: LostTime,
    /// Cost of the run, including spares.
    pub usd: Option<f64>,
    pub usd_p10: Option<f64>,
    pub usd_p90: Option<f64>,
    pub lost_usd: Option<f64>,
    pub usd_per_million_tokens: Option<f64>,
}

/// Hours of a run that are not spent on kept training.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LostTime {
    pub checkpoint_stalls_h: f64,
    /// Training rolled back and repeated.
    pub lost_work_h: f64,
    pub detection_h: f64,
    pub recovery_h: f64,
    pub waiting_for_spares_h: f64,
    pub planned_h: f64,
}

impl LostTime {
    fn new(breakdown: &TimeBreakdown, hours: f64) -> Self {
        Self {
            checkpoint_stalls_h: breakdown.checkpoint_stalls_share * hours,
            lost_work_h: breakdown.lost_work_share * hours,
            detection_h: breakdown.detection_share * hours,
            recovery_h: breakdown.recovery_share * hours,
            waiting_for_spares_h: breakdown.waiting_share * hours,
            planned_h: breakdown.planned_share * hours,
        }
    }

    pub fn total_h(&self) -> f64 {
        self.checkpoint_stalls_h
            + self.lost_work_h
            + self.detection_h
            + self.recovery_h
            + self.waiting_for_spares_h
            + self.planned_h
    }
}

impl GoodputReport {
    /// Full report of a run at the best interval and, if an interval was requested, also at that
    /// interval.
    pub fn new(
        conditions: &Conditions,
        training: &Training,
        interval_s: Option<f64>,
    ) -> Result<Self, GoodputError> {
        training.check()?;
        let timing = RunTiming::new(conditions);
        let productive_s = training.tokens.map(|tokens| tokens / training.tokens_per_s);
        let ends_before = |interval_s: f64| productive_s.filter(|run_s| interval_s >= *run_s);
        let endless = Goodput::best(conditions)?;
        let ends_first = ends_before(endless.interval_s).filter(|_| timing.failures_per_s > 0.0);
        let best = ends_first.map_or(endless, |run_s| {
            Goodput::for_run_without_checkpoints(&timing, run_s, f64::INFINITY)
        });
        let requested = interval_s
            .map(|seconds| {
                let at = Goodput::at(conditions, seconds)?;
                Ok(ends_before(seconds).map_or(at, |run_s| {
                    Goodput::for_run_without_checkpoints(&timing, run_s, seconds)
                }))
            })
            .transpose()?;
        let chosen = requested.unwrap_or(best);
        // The marginal values and the spares use the same interval. If the run ends before its
        // first checkpoint, they assume no checkpoints.
        let (effective_timing, every_s) = match ends_before(chosen.interval_s) {
            Some(run_s) => (timing.without_checkpoints(), Some(run_s)),
            None => (timing, interval_s),
        };
        let usd_per_hour = training.usd_per_gpu_hour.map(|usd| usd * conditions.paid_gpus());
        let makes_progress = chosen.makes_progress;
        let productive_h = productive_s.filter(|_| makes_progress).map(|seconds| seconds / 3_600.0);
        Ok(Self {
            best,
            requested,
            young_interval_s: young_s(timing.stall_s, best.mtbf_s),
            daly_interval_s: daly_s(timing.stall_s, best.mtbf_s),
            interval_beyond_run_s: ends_first.map(|_| endless.interval_s),
            run: productive_h.map(|hours| RunCost::new(&chosen, training, hours, usd_per_hour)),
            no_progress: (!makes_progress)
                .then(|| NoProgress::new(conditions, &best, requested.as_ref())),
            value_of_a_minute: productive_h
                .map(|hours| MarginalValues::new(&effective_timing, every_s, hours, usd_per_hour)),
            spares: spares(conditions, &effective_timing, every_s.unwrap_or(chosen.interval_s)),
        })
    }
}

impl RunCost {
    fn new(
        goodput: &Goodput,
        training: &Training,
        productive_h: f64,
        usd_per_hour: Option<f64>,
    ) -> Self {
        let hours = productive_h / goodput.share;
        let usd = usd_per_hour.map(|usd| usd * hours);
        // A faster run is shorter; its ETTR hardly depends on the step time.
        let time_factor = |rate: usize| {
            training.tokens_per_s_p10_p90.map(|rates| training.tokens_per_s / rates[rate])
        };
        let (p10, p90) = (time_factor(1), time_factor(0));
        let times = |value: Option<f64>, factor: Option<f64>| Some(value? * factor?);
        let days = hours / 24.0;
        Self {
            productive_h,
            hours,
            days,
            days_p10: times(Some(days), p10),
            days_p90: times(Some(days), p90),
            failures: goodput.failures_per_day * days,
            lost: LostTime::new(&goodput.breakdown, hours),
            usd,
            usd_p10: times(usd, p10),
            usd_p90: times(usd, p90),
            lost_usd: usd_per_hour.map(|usd| usd * (hours - productive_h)),
            usd_per_million_tokens: times(usd, training.tokens.map(|tokens| 1e6 / tokens)),
        }
    }
}

fn spares(conditions: &Conditions, timing: &RunTiming, interval_s: f64) -> SpareSizing {
    let outage = Outage::new(conditions);
    let choice = |nodes: u32| {
        let mut with = *conditions;
        with.spares.nodes = Some(nodes);
        let wait_s = outage.mean_wait_s(nodes);
        let share = closed_form::steady_state(&RunTiming { wait_s, ..*timing }, interval_s)
            .breakdown
            .useful_share;
        SpareChoice {
            nodes,
            none_left_share: outage.none_left(nodes),
            more_out_share: outage.more_out_than(nodes),
            mean_wait_s: wait_s,
            share,
            cost_factor: with.paid_gpus() / f64::from(conditions.gpus) / share,
        }
    };
    SpareSizing {
        mean_nodes_out: outage.mean_out,
        none: choice(0),
        cheapest: choice(outage.cheapest(conditions)),
        requested: conditions.spares.nodes.map(choice),
    }
}
