//! The clocks of a GPU's model according to the fact set. They become signals that rules compare
//! with measured clocks.

use std::collections::BTreeSet;

use farrier_facts::node::{ReadError, Reading};

use super::super::observation::{GpuIdentity, Moment, Subject};
use super::super::signal::Signal;
use super::Engine;

/// If the SM clock of a busy GPU is below this share of the model's highest clock, the GPU is slow.
/// The rules `gpu.clock-low` and `gpu.clock-application-low` use the same share.
pub const SM_CLOCK_FLOOR: f64 = 0.6;
/// If the memory clock of a busy GPU is below this share of the model's clock, the GPU is slow. The
/// rule `gpu.memory-clock-low` uses the same share.
pub const MEMORY_CLOCK_FLOOR: f64 = 0.95;

impl Engine {
    /// Sets the rated clocks of the listed GPUs. They are absent if the fact set has no record of
    /// the model.
    pub(super) fn set_rated_clocks(
        &mut self,
        inventory: &[GpuIdentity],
        now: Moment,
        affected: &mut BTreeSet<usize>,
    ) {
        for gpu in inventory {
            let clocks = if let Some(name) = &gpu.name {
                let clocks = self.gpu_facts.clocks_by_name(name);
                clocks.map_or(Reading::Absent, |clocks| Reading::Value(clocks.clone()))
            } else {
                let why = "NVML does not report the name of the GPU";
                Reading::Unreadable(ReadError::unavailable(why))
            };
            let boost = clocks.as_ref().map(|clocks| f64::from(clocks.boost_mhz));
            let memory = clocks.map(|clocks| f64::from(clocks.memory_mhz));
            let subject = Subject::Gpu(gpu.uuid.clone());
            let Some(subject_index) = self.table.index_or_insert(&subject) else { continue };
            self.set(subject_index, Signal::GpuClockSmBoost, boost, now, affected);
            self.set(subject_index, Signal::GpuClockMemoryRated, memory, now, affected);
        }
    }

    /// Whether the application clock is low. The answer is no for a GPU without application clocks.
    pub(super) fn derive_application_low(&self, subject_index: usize) -> Option<Reading<f64>> {
        let latest = |signal| self.table.latest(subject_index, signal).cloned();
        let boost = latest(Signal::GpuClockSmBoost)?;
        let application = match latest(Signal::GpuClockSmApplication)? {
            Reading::Absent => return Some(boost.map(|_| 0.0)),
            application => application,
        };
        let is_low = |application: f64, boost: f64| application < boost * SM_CLOCK_FLOOR;
        Some(boost.and_then(|boost| {
            application.map(|application| f64::from(u8::from(is_low(application, boost))))
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::rule::Limit;
    use super::super::super::rules::Rules;
    use super::*;

    #[test]
    fn the_rules_use_the_same_floors() {
        let rules = Rules::embedded().unwrap();
        for (code, floor) in [
            ("gpu.clock-low", SM_CLOCK_FLOOR),
            ("gpu.clock-application-low", SM_CLOCK_FLOOR),
            ("gpu.memory-clock-low", MEMORY_CLOCK_FLOOR),
        ] {
            let Limit::Signal { times, .. } = rules.get(code).unwrap().when[0].limit else {
                panic!("{code} has no floor");
            };
            assert!((times - floor).abs() < f64::EPSILON, "{code}: {times}");
        }
    }
}
