//! What a GPU reaches of its peaks in a run.

use crate::coefficients::Coefficients;
use crate::gpu::Generation;
use crate::precision::Precision;
use crate::run::{Run, Stack};

/// Rates of one GPU, for one precision and program.
#[derive(Debug, Clone, Copy)]
pub struct Rates {
    /// Large products of the linear layers, FLOP/s.
    pub products: f64,
    /// Large products that stay in 16 bits, FLOP/s.
    pub products_half: f64,
    /// Rows of a product at which half of that is reached.
    pub rows_knee: f64,
    /// Columns and depth likewise.
    pub columns_knee: f64,
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
        let half = match gpu.generation {
            Generation::Ampere => fitted.product_half_ampere,
            Generation::Hopper => fitted.product_half_hopper,
            Generation::Blackwell => fitted.product_half_blackwell,
        };
        let linear = match (gpu.generation, run.precision) {
            (_, Precision::Fp16 | Precision::Bf16) => half,
            (Generation::Blackwell, Precision::Fp8 | Precision::Fp8Block) => {
                fitted.product_fp8_blackwell
            }
            (Generation::Blackwell, Precision::Mxfp8) => fitted.product_mx_blackwell,
            (Generation::Blackwell, Precision::Nvfp4) => fitted.product_fp4_blackwell,
            (_, Precision::Fp8Block) => fitted.product_block_hopper,
            // Formats that the generation has not are computed in one that it has.
            _ => fitted.product_fp8_hopper,
        };
        let power = gpu.power_share.powf(fitted.power_exponent)
            * if gpu.id.contains("B300") { fitted.product_ultra } else { 1.0 };
        // Twice the arithmetic for the same memory and launches needs twice the rows to be busy.
        let peak = gpu.peak_flops(run.precision);
        let breadth = (peak / 312e12).sqrt();
        let attention = match (gpu.generation, run.stack) {
            (Generation::Ampere, Stack::MegatronEarly) => {
                fitted.attention_ampere * fitted.attention_early
            }
            (Generation::Ampere, _) => fitted.attention_ampere,
            (Generation::Hopper, Stack::Fsdp | Stack::FsdpCompiled | Stack::MegatronEarly) => {
                fitted.attention_hopper * fitted.attention_eager
            }
            (Generation::Hopper, _) => fitted.attention_hopper,
            (Generation::Blackwell, _) => fitted.attention_blackwell,
        };
        Self {
            products: peak * linear * power,
            products_half: gpu.half_flops * half * power,
            rows_knee: fitted.rows_knee * breadth,
            columns_knee: fitted.columns_knee * breadth,
            attention: gpu.half_flops * attention * gpu.power_share.powf(fitted.power_exponent),
            memory: gpu.hbm_bytes_per_s * fitted.memory_rate,
            link: gpu.link_bytes_per_s * fitted.link_rate,
            network: gpu.network_bytes_per_s * fitted.network_rate,
            pointwise: match run.stack {
                Stack::Fsdp => fitted.pointwise_eager,
                Stack::MegatronEarly => fitted.pointwise_early,
                _ => fitted.pointwise_fused,
            },
        }
    }

    /// Time of a product of the linear layers: `rows × depth` by `depth × columns`.
    pub fn product_s(&self, rows: f64, columns: f64, depth: f64) -> f64 {
        let slowness = (1.0 + self.rows_knee / rows)
            * (1.0 + self.columns_knee / columns)
            * (1.0 + self.columns_knee / depth);
        2.0 * rows * columns * depth / self.products * slowness
    }

    /// Time of a product that stays in 16 bits.
    pub fn product_half_s(&self, rows: f64, columns: f64, depth: f64) -> f64 {
        self.product_s(rows, columns, depth) * self.products / self.products_half
    }
}
