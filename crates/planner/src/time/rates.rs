//! What a GPU reaches of its peaks in a run.

use crate::coefficients::Coefficients;
use crate::gpu::{Accelerator, Generation};
use crate::precision::Precision;
use crate::run::{Run, Stack};

/// The sizes of a product at which half of its rate is reached.
#[derive(Debug, Clone, Copy)]
pub struct Knee {
    /// Rows.
    pub rows: f64,
    /// Columns and depth.
    pub columns: f64,
}

impl Knee {
    fn new(rows: f64, columns: f64) -> Self {
        Self { rows, columns }
    }

    /// What a product takes beside one that is large in every direction.
    pub fn slowness(self, rows: f64, columns: f64, depth: f64) -> f64 {
        (1.0 + self.rows / rows) * (1.0 + self.columns / columns) * (1.0 + self.columns / depth)
    }
}

/// Rates of one GPU, for one precision and program.
#[derive(Debug, Clone, Copy)]
pub struct Rates {
    /// Large products of the linear layers, FLOP/s.
    pub products: f64,
    /// Large products that stay in 16 bits, FLOP/s.
    pub products_half: f64,
    /// Where half of the rate of the linear layers' products is reached.
    pub knee: Knee,
    /// Likewise, of those that stay in 16 bits.
    pub knee_half: Knee,
    /// The core of attention on long sequences, FLOP/s.
    pub attention: f64,
    /// Memory, bytes/s.
    pub memory: f64,
    /// `NVLink`, bytes/s.
    pub link: f64,
    /// Network of one GPU, bytes/s.
    pub network: f64,
    /// Bytes that pointwise work moves beside the least.
    pub pointwise: f64,
}

impl Rates {
    /// Of a run.
    pub fn of(run: &Run, fitted: &Coefficients) -> Self {
        let gpu = &run.gpu;
        let (half, knee_half) = half(gpu.generation, fitted);
        let (linear, knee) = linear(gpu.generation, run.precision, fitted);
        let power = gpu.power_share.powf(fitted.power_exponent);
        let peak = gpu.peak_flops(run.precision);
        let attention = match (gpu.generation, run.stack) {
            (Generation::Ampere, Stack::MegatronEarly) => {
                fitted.attention_ampere * fitted.attention_early
            }
            (Generation::Ampere, _) => fitted.attention_ampere,
            (Generation::Hopper, Stack::Fsdp | Stack::Foundry | Stack::MegatronEarly) => {
                fitted.attention_hopper * fitted.attention_eager
            }
            (Generation::Hopper, Stack::FsdpCompiled) => {
                fitted.attention_hopper * fitted.attention_compiled
            }
            (Generation::Hopper, _) => fitted.attention_hopper,
            (Generation::Blackwell, _) => fitted.attention_blackwell,
        };
        Self {
            products: peak * linear * power * ultra(gpu, run.precision, fitted),
            products_half: gpu.half_flops * half * power * ultra(gpu, Precision::Bf16, fitted),
            knee,
            knee_half,
            attention: gpu.half_flops * attention * power,
            memory: gpu.hbm_bytes_per_s * fitted.memory_rate,
            link: gpu.link_bytes_per_s * fitted.link_rate,
            network: gpu.network_bytes_per_s * fitted.network_rate,
            pointwise: match run.stack {
                Stack::Fsdp => fitted.pointwise_eager * fitted.pointwise_plain,
                Stack::Foundry => fitted.pointwise_eager,
                Stack::MegatronEarly => fitted.pointwise_early,
                _ => fitted.pointwise_fused,
            },
        }
    }

    /// Time of a product of the linear layers: `rows × depth` by `depth × columns`.
    pub fn product_s(&self, rows: f64, columns: f64, depth: f64) -> f64 {
        2.0 * rows * columns * depth / self.products * self.knee.slowness(rows, columns, depth)
    }

    /// Time of a product that stays in 16 bits.
    pub fn product_half_s(&self, rows: f64, columns: f64, depth: f64) -> f64 {
        let slowness = self.knee_half.slowness(rows, columns, depth);
        2.0 * rows * columns * depth / self.products_half * slowness
    }
}

/// Share of the 16-bit peak that large products reach on a generation, and their knee.
pub(crate) fn half(generation: Generation, fitted: &Coefficients) -> (f64, Knee) {
    match generation {
        Generation::Ampere => (
            fitted.product_half_ampere,
            Knee::new(fitted.rows_knee_half_ampere, fitted.columns_knee_half_ampere),
        ),
        Generation::Hopper => (
            fitted.product_half_hopper,
            Knee::new(fitted.rows_knee_half_hopper, fitted.columns_knee_half_hopper),
        ),
        Generation::Blackwell => (
            fitted.product_half_blackwell,
            Knee::new(fitted.rows_knee_half_blackwell, fitted.columns_knee_half_blackwell),
        ),
    }
}

/// Share of a precision's peak that large products reach on a generation, and their knee.
pub(crate) fn linear(
    generation: Generation,
    precision: Precision,
    fitted: &Coefficients,
) -> (f64, Knee) {
    let hopper = Knee::new(fitted.rows_knee_fp8_hopper, fitted.columns_knee_fp8_hopper);
    match (generation, precision) {
        (_, Precision::Fp16 | Precision::Bf16) => half(generation, fitted),
        (Generation::Blackwell, Precision::Fp8 | Precision::Fp8Row) => (
            fitted.product_fp8_blackwell,
            Knee::new(fitted.rows_knee_fp8_blackwell, fitted.columns_knee_fp8_blackwell),
        ),
        (Generation::Blackwell, Precision::Mxfp8 | Precision::Fp8Block) => (
            fitted.product_mx_blackwell,
            Knee::new(fitted.rows_knee_mx_blackwell, fitted.columns_knee_mx_blackwell),
        ),
        (Generation::Blackwell, Precision::Nvfp4) => (
            fitted.product_fp4_blackwell,
            Knee::new(fitted.rows_knee_fp4_blackwell, fitted.columns_knee_fp4_blackwell),
        ),
        (_, Precision::Fp8Block) => (fitted.product_block_hopper, hopper),
        (_, Precision::Fp8Row) => (fitted.product_row_hopper, hopper),
        // Formats that the generation has not are computed in one that it has.
        _ => (fitted.product_fp8_hopper, hopper),
    }
}

/// What the more power of B300 and GB300 brings; in 4 bits their peak is higher itself.
pub(crate) fn ultra(gpu: &Accelerator, precision: Precision, fitted: &Coefficients) -> f64 {
    if gpu.id.contains("B300") && precision != Precision::Nvfp4 {
        fitted.product_ultra
    } else {
        1.0
    }
}
