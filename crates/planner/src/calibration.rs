//! A GPU as it is, beside a GPU as it is usual: what was measured on one rescales the model.

use serde::{Deserialize, Serialize};

use crate::coefficients::Coefficients;
use crate::gpu::{Accelerator, Generation};
use crate::precision::Precision;
use crate::time::rates;

/// What `farrier diag` measured on a GPU. What it could not measure stays as it is usual.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Measured {
    /// A product of 8192 by 8192 by 8192 in bfloat16, FLOP/s.
    pub half_flops: Option<f64>,
    /// Likewise in 8 bits.
    pub fp8_flops: Option<f64>,
    /// A copy in memory, bytes read and written, bytes/s.
    pub copy_bytes_per_s: Option<f64>,
    /// A launch on a stream, s.
    pub launch_s: Option<f64>,
}

/// How a GPU stands beside what is usual of its kind: 1 is the same, above 1 is more.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    /// The form of this document.
    pub v: u32,
    /// The part that it was measured on.
    pub gpu: String,
    /// Rate of 16-bit products.
    pub half_products: f64,
    /// Rate of 8-bit products, and of 4-bit ones.
    pub fp8_products: f64,
    /// Rate of memory.
    pub memory: f64,
    /// Speed of the host's launches.
    pub launches: f64,
    /// When it was measured, and with what.
    pub measured: String,
}

/// Why a calibration is not taken.
#[derive(Debug, thiserror::Error)]
pub enum CalibrationError {
    /// Of another part.
    #[error("the calibration is of `{measured}` and the plan is for `{planned}`")]
    OtherGpu {
        /// It was measured on.
        measured: String,
        /// It is planned for.
        planned: String,
    },
    /// A value that no GPU has.
    #[error(
        "`{name}` is {value}; a GPU of the kind is between {LEAST} and {MOST} of what is usual"
    )]
    Absurd {
        /// Of which.
        name: &'static str,
        /// As measured.
        value: f64,
    },
    /// Of a form that this program does not know.
    #[error("the calibration has form {v}; this program knows form 1: measure anew")]
    OtherForm {
        /// As it says.
        v: u32,
    },
    /// Nothing was measured.
    #[error("nothing that a plan depends on was measured")]
    Nothing,
}

/// Beyond these something else was measured than is meant.
const LEAST: f64 = 0.1;
const MOST: f64 = 3.0;

/// The size of the product that is measured, in each direction.
const SIZE: f64 = 8192.0;

/// Share of the memory's peak that a copy reaches: 4,300 of 4,800 GB/s on an H200
/// (`bench/diag_h200.md`).
const COPY_SHARE: f64 = 0.895;

/// A launch on a stream from one host thread: 3.2 to 4.4 µs on the hosts of three H200
/// (`bench/diag_h200.md`).
const LAUNCH_S: f64 = 4.0e-6;

impl Calibration {
    /// From what was measured on a part.
    pub fn of(
        gpu: &Accelerator,
        measured: &Measured,
        when: String,
    ) -> Result<Self, CalibrationError> {
        let beside = |value: Option<f64>, usual: f64| value.map_or(1.0, |value| value / usual);
        let all =
            [measured.half_flops, measured.fp8_flops, measured.copy_bytes_per_s, measured.launch_s];
        if all.iter().all(Option::is_none) {
            return Err(CalibrationError::Nothing);
        }
        let half = beside(measured.half_flops, usual_flops(gpu, Precision::Bf16));
        let calibration = Self {
            v: 1,
            gpu: gpu.id.clone(),
            half_products: half,
            fp8_products: match measured.fp8_flops {
                Some(_) => beside(measured.fp8_flops, usual_flops(gpu, Precision::Fp8)),
                None => half,
            },
            memory: beside(measured.copy_bytes_per_s, gpu.hbm_bytes_per_s * COPY_SHARE),
            launches: 1.0 / beside(measured.launch_s, LAUNCH_S),
            measured: when,
        };
        calibration.check()?;
        Ok(calibration)
    }

    /// Whether its values can be.
    pub fn check(&self) -> Result<(), CalibrationError> {
        if self.v != 1 {
            return Err(CalibrationError::OtherForm { v: self.v });
        }
        for (name, value) in [
            ("half_products", self.half_products),
            ("fp8_products", self.fp8_products),
            ("memory", self.memory),
            ("launches", self.launches),
        ] {
            if !(LEAST..=MOST).contains(&value) {
                return Err(CalibrationError::Absurd { name, value });
            }
        }
        Ok(())
    }

    /// The coefficients for plans on the part.
    pub fn rescale(
        &self,
        gpu: &Accelerator,
        fitted: &Coefficients,
    ) -> Result<Coefficients, CalibrationError> {
        self.check()?;
        if self.gpu != gpu.id {
            let (measured, planned) = (self.gpu.clone(), gpu.id.clone());
            return Err(CalibrationError::OtherGpu { measured, planned });
        }
        let mut scaled = fitted.clone();
        match gpu.generation {
            Generation::Ampere => scaled.product_half_ampere *= self.half_products,
            Generation::Hopper => {
                scaled.product_half_hopper *= self.half_products;
                scaled.product_fp8_hopper *= self.fp8_products;
                scaled.product_block_hopper *= self.fp8_products;
                scaled.product_row_hopper *= self.fp8_products;
            }
            Generation::Blackwell => {
                scaled.product_half_blackwell *= self.half_products;
                scaled.product_fp8_blackwell *= self.fp8_products;
                scaled.product_mx_blackwell *= self.fp8_products;
                scaled.product_fp4_blackwell *= self.fp8_products;
            }
        }
        scaled.attention_ampere *= self.half_products;
        scaled.attention_hopper *= self.half_products;
        scaled.attention_blackwell *= self.half_products;
        scaled.memory_rate *= self.memory;
        scaled.host_block_eager_s /= self.launches;
        scaled.host_block_fused_s /= self.launches;
        scaled.host_expert_s /= self.launches;
        Ok(scaled)
    }
}

/// What the measured product usually reaches, by the tables that the priors are from.
fn usual_flops(gpu: &Accelerator, precision: Precision) -> f64 {
    let tables = Coefficients::expected();
    let (share, knee) = rates::linear(gpu.generation, precision, &tables);
    let share = share * rates::ultra(gpu, precision, &tables);
    gpu.peak_flops(precision) * share / knee.slowness(SIZE, SIZE, SIZE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use farrier_facts::FactSet;

    fn h200() -> Accelerator {
        Accelerator::named(FactSet::embedded(), "H200").unwrap()
    }

    /// What was measured on an H200 (`docs/diag_h200.json`) is usual of an H200.
    #[test]
    fn a_sound_gpu_is_usual() {
        let measured = Measured {
            half_flops: Some(760e12),
            fp8_flops: Some(1367e12),
            copy_bytes_per_s: Some(4300e9),
            launch_s: Some(4.27e-6),
        };
        let found = Calibration::of(&h200(), &measured, "test".to_owned()).unwrap();
        for value in [found.half_products, found.fp8_products, found.memory, found.launches] {
            assert!((value - 1.0).abs() < 0.1, "{found:?}");
        }
    }

    /// What plans expect of a B300 above its elder kin is usual of it, and not counted twice.
    #[test]
    fn a_sound_b300_is_usual() {
        let gpu = Accelerator::named(FactSet::embedded(), "B300").unwrap();
        let elder = Accelerator { id: "B200".to_owned(), ..gpu.clone() };
        for precision in [Precision::Bf16, Precision::Fp8] {
            let beside = usual_flops(&gpu, precision) / usual_flops(&elder, precision);
            assert!((beside - Coefficients::expected().product_ultra).abs() < 1e-9, "{beside}");
        }
    }

    #[test]
    fn a_slow_gpu_slows_its_plans_and_no_others() {
        let measured = Measured { half_flops: Some(380e12), ..Measured::default() };
        let found = Calibration::of(&h200(), &measured, "test".to_owned()).unwrap();
        assert!(found.half_products < 0.52 && (found.memory - 1.0).abs() < 1e-12);
        let before = Coefficients::expected();
        let after = found.rescale(&h200(), &before).unwrap();
        assert!(after.product_half_hopper < 0.52 * before.product_half_hopper);
        let h100 = Accelerator::named(FactSet::embedded(), "H100").unwrap();
        assert!(matches!(found.rescale(&h100, &before), Err(CalibrationError::OtherGpu { .. })));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let gpu = h200();
        let absurd = Measured { copy_bytes_per_s: Some(f64::NAN), ..Measured::default() };
        assert!(Calibration::of(&gpu, &absurd, String::new()).is_err());
        assert!(Calibration::of(&gpu, &Measured::default(), String::new()).is_err());
    }
}
