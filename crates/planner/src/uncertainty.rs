//! What runs like this one were off by: the published runs nearest to a run correct its estimate and
//! say how far it may be trusted.
//!
//! A Gaussian process over the errors of the fitted model: runs that are alike are off alike. Far
//! from every published run the correction fades and the interval widens to that of the model.

use crate::coefficients::Coefficients;
use crate::fit;
use crate::fit::linear::{Cholesky, dot};
use crate::gpu::Generation;
use crate::model::Parameters;
use crate::published::Published;
use crate::run::{Run, Task};

/// How errors of runs hang together. Chosen by cross-validation.
#[derive(Debug, Clone)]
pub struct Likeness {
    /// One standard deviation of the model's error far from any published run.
    pub far: f64,
    /// Likewise of mixtures of experts, whose software changes from release to release.
    pub far_experts: f64,
    /// Likewise of mixtures before Blackwell, of which few runs are published.
    pub far_experts_before: f64,
    /// What two measurements of the same run differ by.
    pub noise: f64,
    /// What an open row adds to that.
    pub open_noise: f64,
    /// What the deviation is multiplied by, so that eight in ten rows that had no part lie inside.
    pub doubt: f64,
    /// How far errors reach: lengths of all numbers are multiplied by it.
    pub reach: f64,
    /// What a difference adds to the square of the distance: GPU, generation, precision, program,
    /// recomputation, task.
    pub kinds: [f64; 6],
}

impl Default for Likeness {
    fn default() -> Self {
        Self {
            far: 0.08,
            far_experts: 0.20,
            far_experts_before: 0.25,
            noise: 0.03,
            open_noise: 0.01,
            doubt: 1.4,
            reach: 1.4,
            kinds: [0.08, 1.5, 0.2, 1.5, 0.02, 0.15],
        }
    }
}

/// The place of the generation among a place's kinds.
const GENERATION: usize = 1;
/// The place of fused experts among its numbers.
const FUSED: usize = 8;

/// Where a run lies among others: near runs are off alike. Each is in units of a length over which
/// errors change.
#[derive(Debug, Clone)]
struct Place {
    numbers: [f64; 9],
    kinds: [u32; 6],
    experts: bool,
}

impl Place {
    fn of(run: &Run) -> Self {
        let parameters = Parameters::of(&run.model);
        let layout = &run.layout;
        let log = |count: u32| f64::from(count.max(1)).ln();
        let experts = run.model.experts.is_some();
        let numbers = [
            parameters.active.ln() / 1.2,
            f64::from(run.model.hidden).ln() / 1.0,
            run.tokens_at_once().ln() / 1.5,
            log(run.seq_len) / 1.5,
            log(layout.gpus()) / 2.5,
            log(layout.tp) / 1.5,
            log(layout.pp) / 2.0,
            log(layout.ep) / 2.0 + if experts { 3.0 } else { 0.0 },
            if run.fused_experts { 2.0 } else { 0.0 },
        ];
        let name = run
            .gpu
            .id
            .bytes()
            .fold(0, |hash: u32, byte| hash.wrapping_mul(31).wrapping_add(u32::from(byte)));
        let kinds = [
            name ^ u32::from(run.gpu.power_share < 1.0),
            run.gpu.generation as u32,
            run.precision as u32,
            run.stack as u32,
            u32::from(layout.recompute.products_again(run.layers_of_stage()) > 0.0),
            u32::from(run.task == Task::Lora),
        ];
        Self { numbers, kinds, experts }
    }
}

impl Likeness {
    /// The square of the distance.
    fn square(&self, here: &Place, there: &Place) -> f64 {
        let numbers: f64 = here
            .numbers
            .iter()
            .zip(&there.numbers)
            .map(|(here, there)| (here - there).powi(2))
            .sum();
        let kinds: f64 = here
            .kinds
            .iter()
            .zip(&there.kinds)
            .zip(self.kinds)
            .filter(|((here, there), _)| here != there)
            .map(|(_, length)| length)
            .sum();
        numbers / self.reach.powi(2) + kinds
    }

    fn far(&self, place: &Place) -> f64 {
        match (place.experts, place.kinds[GENERATION] == Generation::Blackwell as u32) {
            (false, _) => self.far,
            (true, true) => self.far_experts,
            (true, false) => self.far_experts_before,
        }
    }

    /// How alike two runs are off.
    fn between(&self, here: &Place, there: &Place) -> f64 {
        self.far(here).min(self.far(there)).powi(2) * (-0.5 * self.square(here, there)).exp()
    }
}

/// The published runs and what the model is off by on each.
#[derive(Debug, Clone)]
pub struct Neighbours {
    likeness: Likeness,
    places: Vec<Place>,
    weights: Vec<f64>,
    factor: Cholesky,
}

/// A correction of an estimate, and its doubt, both of the logarithm of step time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Correction {
    /// To be added.
    pub shift: f64,
    /// One standard deviation of what is left.
    pub deviation: f64,
}

impl Neighbours {
    /// Of rows, with coefficients that were fitted to them.
    pub fn of(rows: &[&Published], fitted: &Coefficients, likeness: Likeness) -> Self {
        let places: Vec<Place> = rows.iter().map(|row| Place::of(&row.run)).collect();
        let noise = |row: &Published| {
            let open = if row.assumed.is_empty() { 0.0 } else { likeness.open_noise };
            likeness.noise.powi(2) + open.powi(2)
        };
        let matrix: Vec<Vec<f64>> = places
            .iter()
            .enumerate()
            .map(|(index, place)| {
                let mut row: Vec<f64> =
                    places.iter().map(|other| likeness.between(place, other)).collect();
                row[index] += noise(rows[index]);
                row
            })
            .collect();
        let factor = Cholesky::of(matrix).expect("likeness with noise is positive definite");
        // An error beyond what the model may be off by is a state of software that is not modelled:
        // it is not carried over to others.
        let errors: Vec<f64> = rows
            .iter()
            .zip(&places)
            .map(|(row, place)| {
                let most = 3.0 * likeness.far(place);
                -fit::error(row, fitted).clamp(-most, most)
            })
            .collect();
        let weights = factor.solve(&errors);
        Self { likeness, places, weights, factor }
    }

    /// What to add to the logarithm of a run's step time, without its doubt: for searches.
    pub fn shift(&self, run: &Run) -> f64 {
        let here = Place::of(run);
        let alike = self.places.iter().map(|place| self.likeness.between(&here, place));
        alike.zip(&self.weights).map(|(alike, weight)| alike * weight).sum()
    }

    /// What to add to the logarithm of a run's step time.
    pub fn correction(&self, run: &Run) -> Correction {
        let here = Place::of(run);
        let alike: Vec<f64> =
            self.places.iter().map(|place| self.likeness.between(&here, place)).collect();
        let shift = dot(&alike, &self.weights);
        let half = self.factor.half(&alike);
        let known = dot(&half, &half);
        let far = self.likeness.far(&here);
        let left = (far.powi(2) - known).max(0.0) + self.likeness.noise.powi(2);
        Correction { shift, deviation: left.sqrt() * self.likeness.doubt }
    }

    /// How far each row is from a run, in the order of those given to [`Self::of`].
    pub fn distances(&self, run: &Run) -> impl Iterator<Item = f64> {
        let here = Place::of(run);
        // A run in another precision or on another part is no measurement of this one, however alike
        // the two are off. Which kernels it had few sources say.
        self.places.iter().map(move |place| {
            let mut here = here.clone();
            here.numbers[FUSED] = place.numbers[FUSED];
            let differs = |kind: usize| here.kinds[kind] != place.kinds[kind];
            let others = [0, GENERATION, 2].into_iter().filter(|kind| differs(*kind)).count();
            (self.likeness.square(&here, place) + [0.0, 1.5, 3.0, 4.5][others]).sqrt()
        })
    }
}
