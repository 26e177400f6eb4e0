//! Waiting for nodes, and the number of spares that minimizes cost.
//!
//! A failed node returns after its repair. The run stops when more nodes are out than there are
//! spares, and continues when a node returns. While it is stopped nothing else fails, so the nodes
//! out of service behave like the busy lines of Erlang's loss system: the probability that a
//! failure finds no spare is Erlang B. This holds for any distribution of repair times with this
//! mean. The wait itself, repair/(spares + 1), assumes exponentially distributed repair times.

use serde::Serialize;

use super::conditions::{Conditions, MAX_SPARES};

/// Nodes out for repair.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Outage {
    /// Mean number of concurrent repairs with unlimited spares.
    pub(super) mean_out: f64,
    repair_s: f64,
    repair_share: f64,
}

impl Outage {
    /// The conditions must have been checked.
    pub(super) fn new(conditions: &Conditions) -> Self {
        let failures_per_s = conditions.hazard.per_hour(conditions.gpus) / 3_600.0;
        let repair_s = conditions.spares.repair_h * 3_600.0;
        let repair_share = conditions.spares.repair_share;
        // Nothing else fails until a failure is detected.
        let failing_per_s = failures_per_s / (1.0 + failures_per_s * conditions.detection_s);
        Self { mean_out: failing_per_s * repair_share * repair_s, repair_s, repair_share }
    }

    /// Whether this many spares are as good as unlimited.
    fn is_plenty(&self, spares: u32) -> bool {
        f64::from(spares) > self.mean_out + 12.0 * self.mean_out.sqrt() + 40.0
    }

    /// Probability that a failure which takes out a node finds no spare (Erlang B).
    pub(super) fn none_left(&self, spares: u32) -> f64 {
        if self.is_plenty(spares) {
            return 0.0;
        }
        (1..=spares).fold(1.0, |blocked, count| erlang(blocked, self.mean_out, count))
    }

    /// Mean wait for a node, over all failures.
    pub(super) fn mean_wait_s(&self, spares: u32) -> f64 {
        self.wait_s(self.none_left(spares), spares)
    }

    fn wait_s(&self, none_left: f64, spares: u32) -> f64 {
        self.repair_share * none_left * self.repair_s / (f64::from(spares) + 1.0)
    }

    /// Probability that more nodes are out than there are spares, if training continued (Poisson).
    pub(super) fn more_out_than(&self, spares: u32) -> f64 {
        if self.mean_out <= 0.0 || self.is_plenty(spares) {
            return 0.0;
        }
        // With a Poisson variable N of mean `mean_out`, Erlang B is P(N = spares) / P(N <= spares).
        let log_exactly = (1..=spares)
            .fold(-self.mean_out, |log, count| log + (self.mean_out / f64::from(count)).ln());
        (1.0 - log_exactly.exp() / self.none_left(spares)).clamp(0.0, 1.0)
    }

    /// The number of spares with the lowest cost.
    ///
    /// A run takes `1 + λ·(detection + wait)` times as long as without detection and wait, and pays
    /// for the spares the whole time. Tries at most [`MAX_SPARES`].
    pub(super) fn cheapest(&self, conditions: &Conditions) -> u32 {
        let failures_per_s = conditions.hazard.per_hour(conditions.gpus) / 3_600.0;
        let cost = |spares: u32, wait_s: f64| {
            let gpus = f64::from(conditions.gpus)
                + f64::from(spares) * f64::from(conditions.gpus_per_node);
            gpus * (1.0 + failures_per_s * (conditions.detection_s + wait_s))
        };
        let mut none_left = 1.0;
        let mut best = 0;
        let mut lowest = cost(0, self.wait_s(none_left, 0));
        let mut spares = 0;
        while spares < MAX_SPARES && !self.is_plenty(spares) {
            spares += 1;
            none_left = erlang(none_left, self.mean_out, spares);
            let with = cost(spares, self.wait_s(none_left, spares));
            if with < lowest {
                (best, lowest) = (spares, with);
            }
        }
        best
    }
}

/// Recursion step of Erlang B.
fn erlang(blocked: f64, load: f64, lines: u32) -> f64 {
    load * blocked / (f64::from(lines) + load * blocked)
}

/// Effect of a number of spares.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct SpareChoice {
    pub nodes: u32,
    /// Probability that a failure which takes out a node finds no spare.
    pub none_left_share: f64,
    /// Probability that more nodes are out than there are spares, if training continued.
    pub more_out_share: f64,
    /// Mean wait for a node, over all failures.
    pub mean_wait_s: f64,
    /// ETTR.
    pub share: f64,
    /// GPUs paid for per GPU that trains without loss.
    pub cost_factor: f64,
}

/// Number of spares that minimizes cost.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct SpareSizing {
    /// Mean number of nodes out for repair.
    pub mean_nodes_out: f64,
    pub none: SpareChoice,
    pub cheapest: SpareChoice,
    #[serde(rename = "given")]
    pub requested: Option<SpareChoice>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outage(mean_out: f64) -> Outage {
        Outage { mean_out, repair_s: 86_400.0, repair_share: 1.0 }
    }

    #[test]
    fn erlang_b_matches_published_tables() {
        // Erlang B for 10 lines: 1.84 % of calls are blocked at a load of 5 erlang, and 21.46 % at
        // a load of 10.
        assert!((outage(5.0).none_left(10) - 0.0184).abs() < 1e-4);
        assert!((outage(10.0).none_left(10) - 0.2146).abs() < 1e-4);
        assert!((outage(3.0).none_left(0) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn more_out_than_matches_poisson() {
        // For a Poisson variable N with mean 1, P(N > 2) is 1 - 2.5/e.
        let expected = 1.0 - 2.5 / std::f64::consts::E;
        assert!((outage(1.0).more_out_than(2) - expected).abs() < 1e-12);
        // The result is correct even if e^-mean underflows.
        let half = outage(2_000.0).more_out_than(2_000);
        assert!((half - 0.494).abs() < 0.01, "{half}");
        assert!(outage(2.0).more_out_than(u32::MAX).abs() < 1e-12);
    }

    #[test]
    fn cheapest_terminates_for_any_load() {
        use super::super::checkpoint::{Checkpoint, CheckpointKind};

        let checkpoint = Checkpoint::new(CheckpointKind::Asynchronous, 1e12, 2e11);
        let conditions = Conditions::new(1_024, checkpoint, 5.0);
        for mean_out in [1e7, 1e15, f64::MAX, f64::INFINITY] {
            assert!(outage(mean_out).cheapest(&conditions) <= MAX_SPARES, "{mean_out}");
        }
    }

    #[test]
    fn every_repair_is_waited_for_without_spares() {
        assert!((outage(4.0).mean_wait_s(0) - 86_400.0).abs() < 1e-9);
    }
}
