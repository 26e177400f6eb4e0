//! Calibration: measurements of one GPU rescale the model's coefficients.

use serde::{Deserialize, Serialize};

use crate::coefficients::Coefficients;
use crate::gpu::{Accelerator, Generation};
use crate::precision::Precision;
use crate::step_time::rates;

/// `farrier diag` results of a GPU. `None` keeps the reference value.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Measurements {
    /// An 8192×8192×8192 GEMM in bfloat16, FLOP/s.
    pub flops_16bit: Option<f64>,
    /// The same GEMM in FP8, FLOP/s.
    pub fp8_flops: Option<f64>,
    /// Device-to-device copy, bytes read and written per second.
    pub copy_bytes_per_s: Option<f64>,
    /// Kernel launch on a stream.
    pub launch_s: Option<f64>,
}

/// Speed of a GPU relative to the reference of its SKU: above 1 is faster.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    /// Version of this JSON document.
    pub v: u32,
    /// The SKU of the measured GPU.
    pub gpu: String,
    /// 16-bit GEMM rate.
    #[serde(rename = "half_products")]
    pub gemm_16bit: f64,
    /// FP8 GEMM rate, also used for FP4.
    #[serde(rename = "fp8_products")]
    pub gemm_fp8: f64,
    /// Memory bandwidth.
    pub memory: f64,
    /// Kernel launch rate of the host.
    pub launches: f64,
    /// When, and with which driver, the GPU was measured.
    pub measured: String,
}

/// Why a calibration is rejected.
#[derive(Debug, thiserror::Error)]
pub enum CalibrationError {
    /// Measured on another SKU.
    #[error("the calibration was measured on `{measured}`, but the plan is for `{planned}`")]
    GpuMismatch { measured: String, planned: String },
    /// No GPU of the SKU is this slow or fast.
    #[error("`{name}` is {value}; expected {MIN_RATIO} to {MAX_RATIO} times the reference")]
    OutOfRange { name: &'static str, value: f64 },
    /// Unknown document version.
    #[error("the calibration has version {v}, but only version 1 is supported; calibrate again")]
    UnsupportedVersion { v: u32 },
    #[error("none of the measurements that a plan depends on is available")]
    NoMeasurements,
}

/// A ratio outside this range means that something else was measured.
const MIN_RATIO: f64 = 0.1;
const MAX_RATIO: f64 = 3.0;

/// M, N and K of the measured GEMM.
const SIZE: f64 = 8192.0;

/// Share of the peak memory bandwidth that a copy reaches: 4,300 of 4,800 GB/s on an H200
/// (`bench/diag_h200.md`).
const COPY_PEAK_SHARE: f64 = 0.895;

/// Kernel launch on a stream from one host thread: 3.2 to 4.4 µs on the hosts of three H200
/// (`bench/diag_h200.md`).
const LAUNCH_S: f64 = 4.0e-6;

impl Calibration {
    /// Compares measurements of a GPU to the reference of its SKU.
    pub fn new(
        gpu: &Accelerator,
        measured: &Measurements,
        when: String,
    ) -> Result<Self, CalibrationError> {
        let ratio =
            |value: Option<f64>, reference: f64| value.map_or(1.0, |value| value / reference);
        let all = [
            measured.flops_16bit,
            measured.fp8_flops,
            measured.copy_bytes_per_s,
            measured.launch_s,
        ];
        if all.iter().all(Option::is_none) {
            return Err(CalibrationError::NoMeasurements);
        }
        let half = ratio(measured.flops_16bit, reference_flops(gpu, Precision::Bf16));
        let calibration = Self {
            v: 1,
            gpu: gpu.id.clone(),
            gemm_16bit: half,
            gemm_fp8: match measured.fp8_flops {
                Some(_) => ratio(measured.fp8_flops, reference_flops(gpu, Precision::Fp8)),
                None => half,
            },
            memory: ratio(measured.copy_bytes_per_s, gpu.hbm_bytes_per_s * COPY_PEAK_SHARE),
            launches: 1.0 / ratio(measured.launch_s, LAUNCH_S),
            measured: when,
        };
        calibration.check()?;
        Ok(calibration)
    }

    /// Checks version and plausibility.
    pub fn check(&self) -> Result<(), CalibrationError> {
        if self.v != 1 {
            return Err(CalibrationError::UnsupportedVersion { v: self.v });
        }
        for (name, value) in [
            ("half_products", self.gemm_16bit),
            ("fp8_products", self.gemm_fp8),
            ("memory", self.memory),
            ("launches", self.launches),
        ] {
            if !(MIN_RATIO..=MAX_RATIO).contains(&value) {
                return Err(CalibrationError::OutOfRange { name, value });
            }
        }
        Ok(())
    }

    /// The coefficients for plans on the calibrated SKU.
    pub fn rescale(
        &self,
        gpu: &Accelerator,
        coefficients: &Coefficients,
    ) -> Result<Coefficients, CalibrationError> {
        self.check()?;
        if self.gpu != gpu.id {
            let (measured, planned) = (self.gpu.clone(), gpu.id.clone());
            return Err(CalibrationError::GpuMismatch { measured, planned });
        }
        let mut scaled = coefficients.clone();
        match gpu.generation {
            Generation::Ampere | Generation::Ada => scaled.product_half_ampere *= self.gemm_16bit,
            Generation::Hopper => {
                scaled.product_half_hopper *= self.gemm_16bit;
                scaled.product_fp8_hopper *= self.gemm_fp8;
                scaled.product_block_hopper *= self.gemm_fp8;
                scaled.product_row_hopper *= self.gemm_fp8;
            }
            Generation::Blackwell => {
                scaled.product_half_blackwell *= self.gemm_16bit;
                scaled.product_fp8_blackwell *= self.gemm_fp8;
                scaled.product_mx_blackwell *= self.gemm_fp8;
                scaled.product_fp4_blackwell *= self.gemm_fp8;
            }
        }
        scaled.attention_ampere *= self.gemm_16bit;
        scaled.attention_hopper *= self.gemm_16bit;
        scaled.attention_blackwell *= self.gemm_16bit;
        scaled.memory_rate *= self.memory;
        scaled.host_block_eager_s /= self.launches;
        scaled.host_block_fused_s /= self.launches;
        scaled.host_expert_s /= self.launches;
        Ok(scaled)
    }
}

/// Reference FLOP/s of the measured GEMM, from the prior tables.
fn reference_flops(gpu: &Accelerator, precision: Precision) -> f64 {
    let tables = Coefficients::priors();
    let (share, knee) = rates::linear(gpu.generation, precision, &tables);
    let share = share * rates::ultra(gpu, precision, &tables);
    gpu.peak_flops(precision) * share / knee.slowdown(SIZE, SIZE, SIZE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use farrier_facts::FactSet;

    fn h200() -> Accelerator {
        Accelerator::by_name(FactSet::embedded(), "H200").unwrap()
    }

    /// Measurements of a healthy H200 (`docs/diag_h200.json`) are close to the reference.
    #[test]
    fn healthy_h200_is_close_to_the_reference() {
        let measured = Measurements {
            flops_16bit: Some(760e12),
            fp8_flops: Some(1367e12),
            copy_bytes_per_s: Some(4300e9),
            launch_s: Some(4.27e-6),
        };
        let calibration = Calibration::new(&h200(), &measured, "test".to_owned()).unwrap();
        for value in
            [calibration.gemm_16bit, calibration.gemm_fp8, calibration.memory, calibration.launches]
        {
            assert!((value - 1.0).abs() < 0.1, "{calibration:?}");
        }
    }

    /// The expected speedup of B300 over B200 is part of its reference and not counted twice.
    #[test]
    fn reference_of_b300_includes_its_speedup() {
        let gpu = Accelerator::by_name(FactSet::embedded(), "B300").unwrap();
        let b200 = Accelerator { is_ultra: false, ..gpu.clone() };
        for precision in [Precision::Bf16, Precision::Fp8] {
            let ratio = reference_flops(&gpu, precision) / reference_flops(&b200, precision);
            assert!((ratio - Coefficients::priors().product_ultra).abs() < 1e-9, "{ratio}");
        }
    }

    #[test]
    fn slow_gpu_slows_only_its_own_plans() {
        let measured = Measurements { flops_16bit: Some(380e12), ..Measurements::default() };
        let calibration = Calibration::new(&h200(), &measured, "test".to_owned()).unwrap();
        assert!(calibration.gemm_16bit < 0.52 && (calibration.memory - 1.0).abs() < 1e-12);
        let before = Coefficients::priors();
        let after = calibration.rescale(&h200(), &before).unwrap();
        assert!(after.product_half_hopper < 0.52 * before.product_half_hopper);
        let h100 = Accelerator::by_name(FactSet::embedded(), "H100").unwrap();
        assert!(matches!(
            calibration.rescale(&h100, &before),
            Err(CalibrationError::GpuMismatch { .. })
        ));
    }

    #[test]
    fn implausible_measurements_are_rejected() {
        let gpu = h200();
        let absurd = Measurements { copy_bytes_per_s: Some(f64::NAN), ..Measurements::default() };
        assert!(Calibration::new(&gpu, &absurd, String::new()).is_err());
        assert!(Calibration::new(&gpu, &Measurements::default(), String::new()).is_err());
    }
}
