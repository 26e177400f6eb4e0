//! Seeded Monte Carlo simulation of a run, to validate the closed form.

use super::closed_form::{steady_state, storage_every};
use super::timing::{RunTiming, StorageTier};

/// splitmix64 (Steele, Lea, Flood 2014).
struct SplitMix64(u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A random number in (0, 1].
    fn share(&mut self) -> f64 {
        let bits = u32::try_from(self.next() >> 32).unwrap();
        (f64::from(bits) + 1.0) / 4_294_967_296.0
    }

    fn exponential(&mut self, mean: f64) -> f64 {
        -mean * self.share().ln()
    }
}

/// Spare nodes in the simulation.
#[derive(Debug, Clone, Copy)]
struct Standby {
    spares: usize,
    repair_s: f64,
    repair_share: f64,
}

/// State of a simulated run. Positions are counted in intervals.
struct SimulatedRun<'a> {
    timing: &'a RunTiming,
    interval_s: f64,
    standby: Option<Standby>,
    random: SplitMix64,
    wall_s: f64,
    failures: u32,
    /// When each failed node is back.
    repairs: Vec<f64>,
    position: u64,
    /// Intervals between two writes to storage.
    storage_every: u64,
    in_storage: u64,
    /// Position being written to storage, and the remaining training time until the write is
    /// complete.
    writing: Option<(u64, f64)>,
}

impl SimulatedRun<'_> {
    fn next_failure_s(&mut self) -> f64 {
        self.random.exponential(1.0 / self.timing.failures_per_s)
    }

    fn write(&mut self, seconds: f64) {
        if let Some((position, left_s)) = self.writing {
            if left_s <= seconds {
                self.in_storage = position;
                self.writing = None;
            } else {
                self.writing = Some((position, left_s - seconds));
            }
        }
    }

    /// Trains until the next failure, then moves the position back to the last settled checkpoint.
    /// `recover` moves it back further if the run has to restart from storage.
    fn train(&mut self) {
        let restored = self.position;
        let period_s = self.interval_s + self.timing.stall_s;
        let mut left_s = self.next_failure_s();
        self.wall_s += left_s;
        while left_s >= period_s {
            left_s -= period_s;
            self.write(period_s);
            self.position += 1;
            if let Some(storage_tier) = &self.timing.storage_tier
                && self.position.is_multiple_of(self.storage_every)
                && self.writing.is_none()
            {
                self.writing = Some((self.position, storage_tier.write_s));
            }
        }
        self.write(left_s);
        if self.position > restored && left_s < self.timing.settle_s {
            self.position -= 1;
        }
        if self.writing.is_some_and(|(position, _)| position > self.position) {
            self.writing = None;
        }
    }

    /// Advances the time from a failure until the run trains again.
    fn recover(&mut self) {
        let mut from_storage = false;
        loop {
            self.failures += 1;
            self.wall_s += self.timing.detection_s;
            self.wait_for_a_node();
            if let Some(storage_tier) = &self.timing.storage_tier
                && self.random.share() <= storage_tier.share
            {
                from_storage = true;
                self.position = self.in_storage;
                self.writing = None;
            }
            let recovery_s = match &self.timing.storage_tier {
                Some(storage_tier) if from_storage => storage_tier.recovery_s,
                _ => self.timing.recovery_s,
            };
            let left_s = self.next_failure_s();
            self.wall_s += left_s.min(recovery_s);
            if left_s >= recovery_s {
                return;
            }
        }
    }

    fn wait_for_a_node(&mut self) {
        let Some(standby) = self.standby else { return };
        if self.random.share() > standby.repair_share {
            return;
        }
        let back_s = self.wall_s + self.random.exponential(standby.repair_s);
        self.repairs.push(back_s);
        self.repairs.retain(|at_s| *at_s > self.wall_s);
        if self.repairs.len() > standby.spares {
            let first_s = self.repairs.iter().copied().fold(f64::INFINITY, f64::min);
            self.wall_s = first_s;
            self.repairs.retain(|at_s| *at_s > first_s);
        }
    }
}

/// Kept share of time over this many failures.
fn simulate(
    timing: &RunTiming,
    interval_s: f64,
    standby: Option<Standby>,
    failures: u32,
    seed: u64,
) -> f64 {
    let every = timing
        .storage_tier
        .map_or(1.0, |storage_tier| storage_every(timing, &storage_tier, interval_s));
    let mut simulated = SimulatedRun {
        timing,
        interval_s,
        standby,
        random: SplitMix64(seed),
        wall_s: 0.0,
        failures: 0,
        repairs: Vec::new(),
        position: 0,
        storage_every: (1..100_000_u32).find(|count| f64::from(*count) >= every).unwrap().into(),
        in_storage: 0,
        writing: None,
    };
    while simulated.failures < failures {
        simulated.train();
        simulated.recover();
    }
    let kept = u32::try_from(simulated.position).unwrap();
    f64::from(kept) * interval_s / simulated.wall_s
}

fn timing(mtbf_s: f64, stall_s: f64, settle_s: f64) -> RunTiming {
    RunTiming {
        failures_per_s: 1.0 / mtbf_s,
        detection_s: 600.0,
        wait_s: 0.0,
        recovery_s: 420.0,
        stall_s,
        settle_s,
        step_s: 5.0,
        planned_per_s: 0.0,
        storage_tier: None,
    }
}

/// Asserts that the closed form and the simulation differ by less than 1.5 % of the kept share, or
/// by less than 0.003. With 1,000,000 failures, every difference
/// was below 1 % of the kept share or below 0.002.
fn assert_agrees(timing: &RunTiming, interval_s: f64, standby: Option<Standby>) {
    let formula = steady_state(timing, interval_s).breakdown.useful_share;
    // With many failures or long waits little is kept, and more samples are needed for the same
    // error.
    let many = timing.failures_per_s > 1.0 / 5_000.0 || standby.is_some();
    let failures = if many { 400_000 } else { 10_000 };
    let simulated_share = simulate(timing, interval_s, standby, failures, 20_240_716);
    let error = (formula - simulated_share).abs();
    assert!(
        error < (0.015 * simulated_share).max(0.003),
        "formula {formula:.4}, simulation {simulated_share:.4}: interval {interval_s}, {timing:?}, {standby:?}"
    );
}

#[test]
fn closed_form_agrees_for_synchronous_and_asynchronous_checkpoints() {
    for mtbf_s in [1_500.0, 11_136.0, 100_000.0] {
        for (stall_s, settle_s) in
            [(0.5, 0.0), (60.0, 0.0), (300.0, 0.0), (1.0, 200.0), (10.0, 900.0)]
        {
            for interval_s in [900.0, 3_600.0] {
                assert_agrees(&timing(mtbf_s, stall_s, settle_s), interval_s, None);
            }
        }
    }
}

#[test]
fn closed_form_agrees_for_in_memory_checkpoints() {
    for mtbf_s in [2_000.0, 11_136.0, 60_000.0] {
        for share in [0.02, 0.1, 0.5, 1.0] {
            for (write_s, every_s) in [(30.0, 0.0), (600.0, 0.0), (600.0, 3_600.0)] {
                let mut timing = timing(mtbf_s, 2.0, 5.0);
                timing.recovery_s = 200.0;
                let recovery_s = 200.0 + write_s;
                timing.storage_tier =
                    Some(StorageTier { share, write_s, recovery_s, interval_s: every_s });
                for interval_s in [60.0, 400.0] {
                    assert_agrees(&timing, interval_s, None);
                }
            }
        }
    }
}

#[test]
fn closed_form_agrees_for_spares() {
    use super::conditions::Conditions;
    use super::{Checkpoint, CheckpointKind, Hazard};
    for hours in [3.0, 30.0] {
        for spares in [0_u8, 1, 4, 8] {
            let checkpoint = Checkpoint::new(CheckpointKind::Synchronous, 1e13, 1e11);
            let mut conditions = Conditions::new(1_024, checkpoint, 5.0);
            conditions.hazard = Hazard::with_mtbf(hours).unwrap();
            conditions.spares.nodes = Some(u32::from(spares));
            let timing = RunTiming::new(&conditions);
            let standby = Standby {
                spares: usize::from(spares),
                repair_s: conditions.spares.repair_h * 3_600.0,
                repair_share: conditions.spares.repair_share,
            };
            assert_agrees(&timing, 1_800.0, Some(standby));
        }
    }
}

#[test]
fn best_interval_is_best_in_simulation() {
    let mut memory = timing(11_136.0, 5.0, 5.0);
    memory.storage_tier =
        Some(StorageTier { share: 0.1, write_s: 300.0, recovery_s: 720.0, interval_s: 0.0 });
    for timing in [timing(11_136.0, 60.0, 0.0), timing(5_000.0, 5.0, 100.0), memory] {
        let best_s = super::interval::best_s(&timing);
        let at = |interval_s| simulate(&timing, interval_s, None, 60_000, 7);
        let best = at(best_s);
        for factor in [0.4, 2.5] {
            let other_s = best_s * factor;
            if other_s >= timing.settle_s {
                assert!(best > at(other_s), "{best_s} against {other_s}: {timing:?}");
            }
        }
    }
}

#[test]
fn best_interval_is_best_in_closed_form() {
    for share in [0.01, 0.084, 0.5, 1.0] {
        for (stall_s, write_s) in [(0.1, 10.0), (5.0, 300.0), (30.0, 1_800.0)] {
            let mut timing = timing(11_136.0, stall_s, 2.0);
            timing.storage_tier =
                Some(StorageTier { share, write_s, recovery_s: 720.0, interval_s: 0.0 });
            let best =
                steady_state(&timing, super::interval::best_s(&timing)).breakdown.useful_share;
            for steps in 1..2_000_u32 {
                let other = steady_state(&timing, 5.0 * f64::from(steps)).breakdown.useful_share;
                assert!(other < best + 0.001, "{steps}: {other} against {best}, {timing:?}");
            }
        }
    }
}
