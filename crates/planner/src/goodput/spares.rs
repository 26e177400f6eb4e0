//! Waiting for nodes, and how many that stand by pay for themselves.
//!
//! A node that failed is back after its repair. The run stops when one more is out than stands by,
//! and trains again when one is back. While it stops nothing more fails, so the number of nodes out
//! is that of busy lines in Erlang's loss system, and the chance that a failure finds no spare is
//! his formula B. It holds for any spread of repair times with this mean; the wait itself,
//! repair/(spares + 1), is that of exponential ones.

use serde::Serialize;

use super::conditions::{Conditions, MOST_SPARES};

/// Nodes out for repair.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Outage {
    /// Repairs under way on average, were there spares without end.
    pub(super) mean_out: f64,
    repair_s: f64,
    repair_share: f64,
}

impl Outage {
    /// That of conditions which have been checked.
    pub(super) fn of(conditions: &Conditions) -> Self {
        let per_s = conditions.hazard.per_hour(conditions.gpus) / 3_600.0;
        let repair_s = conditions.spares.repair_h * 3_600.0;
        let repair_share = conditions.spares.repair_share;
        // Nothing more fails until a failure is known.
        let failing_per_s = per_s / (1.0 + per_s * conditions.detection_s);
        Self { mean_out: failing_per_s * repair_share * repair_s, repair_s, repair_share }
    }

    /// Whether so many spares are as good as any number.
    fn is_plenty(&self, spares: u32) -> bool {
        f64::from(spares) > self.mean_out + 12.0 * self.mean_out.sqrt() + 40.0
    }

    /// The chance that a failure which takes a node finds no spare.
    pub(super) fn none_left(&self, spares: u32) -> f64 {
        if self.is_plenty(spares) {
            return 0.0;
        }
        (1..=spares).fold(1.0, |blocked, count| erlang(blocked, self.mean_out, count))
    }

    /// The mean wait for a node, over all failures.
    pub(super) fn mean_wait_s(&self, spares: u32) -> f64 {
        self.wait_s(self.none_left(spares), spares)
    }

    fn wait_s(&self, none_left: f64, spares: u32) -> f64 {
        self.repair_share * none_left * self.repair_s / (f64::from(spares) + 1.0)
    }

    /// The chance that more nodes are out at once than stand by, were training to go on (Poisson).
    pub(super) fn more_out_than(&self, spares: u32) -> f64 {
        if self.mean_out <= 0.0 || self.is_plenty(spares) {
            return 0.0;
        }
        // The chance of exactly so many, over that of so many or fewer, is Erlang's formula.
        let log_exactly = (1..=spares)
            .fold(-self.mean_out, |log, count| log + (self.mean_out / f64::from(count)).ln());
        (1.0 - log_exactly.exp() / self.none_left(spares)).clamp(0.0, 1.0)
    }

    /// The number of spares at which a run costs least.
    ///
    /// A run takes `1 + λ·(detection + wait)` times what it would if neither were, and pays for
    /// the spares all along. At most [`MOST_SPARES`] are looked at.
    pub(super) fn cheapest(&self, conditions: &Conditions) -> u32 {
        let per_s = conditions.hazard.per_hour(conditions.gpus) / 3_600.0;
        let cost = |spares: u32, wait_s: f64| {
            let gpus = f64::from(conditions.gpus)
                + f64::from(spares) * f64::from(conditions.gpus_per_node);
            gpus * (1.0 + per_s * (conditions.detection_s + wait_s))
        };
        let mut none_left = 1.0;
        let mut best = 0;
        let mut least = cost(0, self.wait_s(none_left, 0));
        let mut spares = 0;
        while spares < MOST_SPARES && !self.is_plenty(spares) {
            spares += 1;
            none_left = erlang(none_left, self.mean_out, spares);
            let with = cost(spares, self.wait_s(none_left, spares));
            if with < least {
                (best, least) = (spares, with);
            }
        }
        best
    }
}

/// Erlang's formula B for one line more.
fn erlang(blocked: f64, load: f64, lines: u32) -> f64 {
    load * blocked / (f64::from(lines) + load * blocked)
}

/// What a number of spares does.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct SpareChoice {
    /// Nodes that stand by.
    pub nodes: u32,
    /// The chance that a failure which takes a node finds none of them.
    pub none_left_share: f64,
    /// The chance that more nodes are out at once than stand by, were training to go on.
    pub more_out_share: f64,
    /// Mean wait for a node, over all failures.
    pub mean_wait_s: f64,
    /// Share of time that is training which is kept.
    pub share: f64,
    /// GPUs paid for, for each GPU that trains without loss: what to hold against other numbers.
    pub cost_factor: f64,
}

/// How many spares pay.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct SparesThatPay {
    /// Nodes out for repair at a time, on average.
    pub mean_nodes_out: f64,
    /// Without any.
    pub none: SpareChoice,
    /// At the number that costs least.
    pub cheapest: SpareChoice,
    /// As given, where a number was.
    pub given: Option<SpareChoice>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outage(mean_out: f64) -> Outage {
        Outage { mean_out, repair_s: 86_400.0, repair_share: 1.0 }
    }

    #[test]
    fn erlang_b_is_that_of_the_tables() {
        // 5 erlang on 10 lines: 1.84 %; 10 erlang on 10 lines: 21.46 %.
        assert!((outage(5.0).none_left(10) - 0.0184).abs() < 1e-4);
        assert!((outage(10.0).none_left(10) - 0.2146).abs() < 1e-4);
        assert!((outage(3.0).none_left(0) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn the_chance_of_more_is_poissons() {
        // P(N > 2) of mean 1: 1 - 2.5/e.
        let expected = 1.0 - 2.5 / std::f64::consts::E;
        assert!((outage(1.0).more_out_than(2) - expected).abs() < 1e-12);
        // Where e^-mean is 0 in floating point the chance is still one.
        let half = outage(2_000.0).more_out_than(2_000);
        assert!((half - 0.494).abs() < 0.01, "{half}");
        assert!(outage(2.0).more_out_than(u32::MAX).abs() < 1e-12);
    }

    #[test]
    fn the_cheapest_is_found_in_time_however_much_is_out() {
        use super::super::checkpoint::{Checkpoint, CheckpointKind};

        let checkpoint = Checkpoint::new(CheckpointKind::Asynchronous, 1e12, 2e11);
        let conditions = Conditions::new(1_024, checkpoint, 5.0);
        for mean_out in [1e7, 1e15, f64::MAX, f64::INFINITY] {
            assert!(outage(mean_out).cheapest(&conditions) <= MOST_SPARES, "{mean_out}");
        }
    }

    #[test]
    fn without_spares_every_repair_is_waited_for() {
        assert!((outage(4.0).mean_wait_s(0) - 86_400.0).abs() < 1e-9);
    }
}
