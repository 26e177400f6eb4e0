//! The work of a GPU against the two roofs over it: arithmetic and memory.
//!
//! Times are those of [`crate::time`]; bytes are what each kernel must move at least, or, where the
//! time is that of memory, what it is reckoned to move.

use serde::Serialize;

use crate::coefficients::Coefficients;
use crate::run::Run;
pub use crate::time::Kind;
use crate::time::work::ByKind;
use crate::time::{Rates, block};

/// The roofs of a GPU, and where a run's work lies under them.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Roofline {
    /// Peak of the run's precision, FLOP/s.
    pub peak_flops_per_s: f64,
    /// Peak of 16 bits, which attention and the output projection are held to.
    pub half_peak_flops_per_s: f64,
    /// Peak of memory, bytes/s.
    pub hbm_bytes_per_s: f64,
    /// The kinds of work that the run has, in the order of [`Kind::ALL`].
    pub work: Vec<Work>,
}

/// A kind of work of a run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Work {
    /// What it is.
    pub kind: Kind,
    /// Operations for each byte of memory.
    pub flops_per_byte: f64,
    /// What it reaches.
    pub flops_per_s: f64,
    /// Share that it has of the time of all of them.
    pub time_share: f64,
}

impl Roofline {
    /// Of a run.
    pub fn of(run: &Run, fitted: &Coefficients) -> Self {
        let all = step(run, fitted);
        let all_s: f64 = Kind::ALL.into_iter().map(|kind| all.of(kind).seconds).sum();
        let sums = Kind::ALL
            .into_iter()
            .map(|kind| (kind, all.of(kind)))
            .filter(|(_, sum)| sum.seconds > 0.0);
        let work = sums.map(|(kind, sum)| Work {
            kind,
            flops_per_byte: sum.flops / sum.bytes,
            flops_per_s: sum.flops / sum.seconds,
            time_share: sum.seconds / all_s,
        });
        Self {
            peak_flops_per_s: run.gpu.peak_flops(run.precision),
            half_peak_flops_per_s: run.gpu.half_flops,
            hbm_bytes_per_s: run.gpu.hbm_bytes_per_s,
            work: work.collect(),
        }
    }

    /// The roof over a kind of work at an intensity, FLOP/s.
    pub fn roof_flops_per_s(&self, work: &Work) -> f64 {
        let peak =
            if work.kind.is_half() { self.half_peak_flops_per_s } else { self.peak_flops_per_s };
        peak.min(work.flops_per_byte * self.hbm_bytes_per_s)
    }
}

/// The work of a step, on a GPU of the mean stage.
fn step(run: &Run, fitted: &Coefficients) -> ByKind {
    let rates = Rates::of(run, fitted);
    let model = &run.model;
    let of_stage = f64::from(run.micro_batches()) / f64::from(run.layout.pp);
    let (mut dense, mut mixture, mut ends) =
        (ByKind::default(), ByKind::default(), ByKind::default());
    block::dense_work(run, &rates, fitted, &mut dense);
    block::ends(run, &rates, fitted, &mut ends);
    let further = f64::from(model.mtp_layers);
    let mut all = ByKind::default();
    if let Some(experts) = model.experts {
        block::mixture_work(run, &rates, fitted, experts, &mut mixture);
        all.add_all(&mixture, (f64::from(model.expert_layers()) + further) * of_stage);
        all.add_all(&dense, f64::from(model.dense_layers()) * of_stage);
    } else {
        all.add_all(&dense, (f64::from(model.dense_layers()) + further) * of_stage);
    }
    all.add_all(&ends, of_stage);
    block::optimizer(run, &rates, fitted, &mut all);
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::estimate::Planner;
    use crate::published::{self, Published};
    use crate::run::Task;
    use crate::time::{self, Phase};
    use farrier_facts::FactSet;

    fn rows() -> Vec<Published> {
        published::read(FactSet::embedded(), published::embedded())
            .unwrap()
            .into_iter()
            .flatten()
            .collect()
    }

    /// The same work as the step's: where all of it is on one stage, its phases take the same time.
    #[test]
    fn times_are_those_of_the_step() {
        let fitted = &Planner::shipped().fitted;
        let mut rows_seen = 0;
        for row in rows().into_iter().filter(|row| row.run.layout.pp == 1) {
            rows_seen += 1;
            let run = &row.run;
            let all = step(run, fitted);
            let of = |kind| all.of(kind).seconds;
            let here = [
                of(Kind::AttentionProducts)
                    + of(Kind::FeedForwardProducts)
                    + of(Kind::ExpertProducts),
                of(Kind::AttentionCore),
                of(Kind::Pointwise),
                of(Kind::Optimizer),
            ];
            let ends = of(Kind::Logits);
            let time = time::step(run, fitted);
            let there = [Phase::Products, Phase::Attention, Phase::Pointwise, Phase::Optimizer]
                .map(|phase| time.of(phase));
            // The program's factor is on all phases alike.
            let factor = there[1] / here[1];
            let alike = |left: f64, right: f64| (left - right).abs() <= 1e-9 * right.abs();
            let both = here[0] + here[2] + ends;
            assert!(alike(both * factor, there[0] + there[2]), "{} {run:?}", both * factor);
            assert!(alike(here[3] * factor, there[3]), "{run:?}");
        }
        assert!(rows_seen > 30, "{rows_seen}");
    }

    #[test]
    fn nothing_is_above_its_roof_and_kinds_lie_where_they_should() {
        let fitted = &Planner::shipped().fitted;
        for row in rows() {
            let roofline = Roofline::of(&row.run, fitted);
            let share: f64 = roofline.work.iter().map(|work| work.time_share).sum();
            assert!((share - 1.0).abs() < 1e-9);
            for work in &roofline.work {
                let reached = work.flops_per_s / roofline.roof_flops_per_s(work);
                assert!(reached > 0.0 && reached <= 1.0, "{work:?} {reached} {:?}", row.run);
            }
            let of = |kind| roofline.work.iter().find(|work| work.kind == kind);
            let pointwise = of(Kind::Pointwise).unwrap();
            assert!(pointwise.flops_per_byte < 5.0, "{pointwise:?}");
            let products = of(Kind::AttentionProducts).unwrap();
            assert!(products.flops_per_byte > 50.0, "{products:?} {:?}", row.run);
        }
    }

    #[test]
    fn only_mixtures_have_experts_and_only_what_learns_has_an_optimizer() {
        let fitted = &Planner::shipped().fitted;
        for row in rows() {
            let kinds: Vec<Kind> =
                Roofline::of(&row.run, fitted).work.iter().map(|work| work.kind).collect();
            let experts = row.run.model.experts.is_some();
            assert_eq!(kinds.contains(&Kind::ExpertProducts), experts);
            assert_eq!(kinds.contains(&Kind::Optimizer), row.run.task == Task::Full);
        }
    }
}
