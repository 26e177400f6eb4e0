//! Rates that a GPU achieves in a run, computed from its peak rates.

use crate::coefficients::Coefficients;
use crate::gpu::{Accelerator, Generation};
use crate::precision::Precision;
use crate::run::{Framework, TrainingRun};

/// The sizes at which a GEMM reaches half of the rate of a very large GEMM.
#[derive(Debug, Clone, Copy)]
pub struct Knee {
    /// Size in dimension M.
    pub rows: f64,
    /// Size in dimensions N and K, which have the same knee.
    pub columns: f64,
}

impl Knee {
    fn new(rows: f64, columns: f64) -> Self {
        Self { rows, columns }
    }

    /// Slowdown of a GEMM, relative to a GEMM that is large in every dimension.
    pub fn slowdown(self, rows: f64, columns: f64, depth: f64) -> f64 {
        (1.0 + self.rows / rows) * (1.0 + self.columns / columns) * (1.0 + self.columns / depth)
    }
}

/// Achieved rates of one GPU, for one precision and framework.
#[derive(Debug, Clone, Copy)]
pub struct AchievedRates {
    /// Large GEMMs in the run's precision, FLOP/s.
    pub gemm_flops: f64,
    /// Large 16-bit GEMMs, FLOP/s.
    pub gemm_16bit_flops: f64,
    pub knee: Knee,
    pub knee_16bit: Knee,
    /// Attention core on long sequences, FLOP/s.
    pub attention: f64,
    /// Memory bandwidth, bytes/s.
    pub memory: f64,
    /// `NVLink`, bytes/s.
    pub link: f64,
    /// Network per GPU, bytes/s.
    pub network: f64,
    /// Memory traffic of pointwise operations, as a multiple of the minimum.
    pub pointwise: f64,
}

impl AchievedRates {
    pub fn new(run: &TrainingRun, coefficients: &Coefficients) -> Self {
        let gpu = &run.gpu;
        let (half, knee_16bit) = half(gpu.generation, coefficients);
        let (linear, knee) = linear(gpu.generation, run.precision, coefficients);
        let power = gpu.power_share.powf(coefficients.power_exponent);
        let peak = gpu.peak_flops(run.precision);
        let attention = match (gpu.generation, run.framework) {
            (Generation::Ampere | Generation::Ada, Framework::MegatronEarly) => {
                coefficients.attention_ampere * coefficients.attention_early
            }
            (Generation::Ampere | Generation::Ada, _) => coefficients.attention_ampere,
            (
                Generation::Hopper,
                Framework::Fsdp | Framework::Foundry | Framework::MegatronEarly,
            ) => coefficients.attention_hopper * coefficients.attention_eager,
            (Generation::Hopper, Framework::FsdpCompiled) => {
                coefficients.attention_hopper * coefficients.attention_compiled
            }
            (Generation::Hopper, _) => coefficients.attention_hopper,
            (Generation::Blackwell, _) => coefficients.attention_blackwell,
        };
        Self {
            gemm_flops: peak * linear * power * ultra(gpu, run.precision, coefficients),
            gemm_16bit_flops: gpu.flops_16bit
                * half
                * power
                * ultra(gpu, Precision::Bf16, coefficients),
            knee,
            knee_16bit,
            attention: gpu.flops_16bit * attention * power,
            memory: gpu.hbm_bytes_per_s * coefficients.memory_rate,
            link: gpu.link_bytes_per_s * coefficients.link_rate,
            network: gpu.network_bytes_per_s * coefficients.network_rate,
            pointwise: match run.framework {
                Framework::Fsdp => coefficients.pointwise_eager * coefficients.pointwise_plain,
                Framework::Foundry => coefficients.pointwise_eager,
                Framework::MegatronEarly => coefficients.pointwise_early,
                _ => coefficients.pointwise_fused,
            },
        }
    }

    /// Time of an M×K by K×N GEMM in the run's precision (M = `rows`, N = `columns`, K = `depth`).
    pub fn gemm_s(&self, rows: f64, columns: f64, depth: f64) -> f64 {
        2.0 * rows * columns * depth / self.gemm_flops * self.knee.slowdown(rows, columns, depth)
    }

    /// Time of a 16-bit GEMM.
    pub fn gemm_16bit_s(&self, rows: f64, columns: f64, depth: f64) -> f64 {
        let slowdown = self.knee_16bit.slowdown(rows, columns, depth);
        2.0 * rows * columns * depth / self.gemm_16bit_flops * slowdown
    }
}

/// Share of the 16-bit peak that large GEMMs reach, and their knee.
pub(crate) fn half(generation: Generation, coefficients: &Coefficients) -> (f64, Knee) {
    match generation {
        // No run on Ada is published. Its tensor cores have the instructions of Ampere's.
        Generation::Ampere | Generation::Ada => (
            coefficients.product_half_ampere,
            Knee::new(coefficients.rows_knee_half_ampere, coefficients.columns_knee_half_ampere),
        ),
        Generation::Hopper => (
            coefficients.product_half_hopper,
            Knee::new(coefficients.rows_knee_half_hopper, coefficients.columns_knee_half_hopper),
        ),
        Generation::Blackwell => (
            coefficients.product_half_blackwell,
            Knee::new(
                coefficients.rows_knee_half_blackwell,
                coefficients.columns_knee_half_blackwell,
            ),
        ),
    }
}

/// Share of a precision's peak that large GEMMs reach, and their knee.
pub(crate) fn linear(
    generation: Generation,
    precision: Precision,
    coefficients: &Coefficients,
) -> (f64, Knee) {
    let hopper = Knee::new(coefficients.rows_knee_fp8_hopper, coefficients.columns_knee_fp8_hopper);
    match (generation, precision) {
        (_, Precision::Fp16 | Precision::Bf16) | (Generation::Ada, Precision::Fp8) => {
            half(generation, coefficients)
        }
        (Generation::Blackwell, Precision::Fp8 | Precision::Fp8Row) => (
            coefficients.product_fp8_blackwell,
            Knee::new(
                coefficients.rows_knee_fp8_blackwell,
                coefficients.columns_knee_fp8_blackwell,
            ),
        ),
        (Generation::Blackwell, Precision::Mxfp8 | Precision::Fp8Block) => (
            coefficients.product_mx_blackwell,
            Knee::new(coefficients.rows_knee_mx_blackwell, coefficients.columns_knee_mx_blackwell),
        ),
        (Generation::Blackwell, Precision::Nvfp4) => (
            coefficients.product_fp4_blackwell,
            Knee::new(
                coefficients.rows_knee_fp4_blackwell,
                coefficients.columns_knee_fp4_blackwell,
            ),
        ),
        (_, Precision::Fp8Block) => (coefficients.product_block_hopper, hopper),
        (_, Precision::Fp8Row) => (coefficients.product_row_hopper, hopper),
        // Other formats run as FP8, because generations before Blackwell have no units for them.
        _ => (coefficients.product_fp8_hopper, hopper),
    }
}

/// GEMM speedup of B300 and GB300 from their higher power limit. It is 1 for FP4, because the FP4
/// peak of these GPUs is already higher.
pub(crate) fn ultra(gpu: &Accelerator, precision: Precision, coefficients: &Coefficients) -> f64 {
    if gpu.is_ultra && precision != Precision::Nvfp4 { coefficients.product_ultra } else { 1.0 }
}
