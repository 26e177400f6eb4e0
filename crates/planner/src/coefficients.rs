//! The coefficients of the model: meaning, prior and spread of each.
//!
//! The fitted values are in `data/planner/coefficients.toml`, written by the `fit` example.

use serde::{Deserialize, Serialize};

/// A coefficient and its log-normal prior.
#[derive(Debug, Clone, Copy)]
pub struct CoefficientSpec {
    pub name: &'static str,
    /// Description, with the unit.
    pub meaning: &'static str,
    pub prior: f64,
    /// Standard deviation of the prior, in the logarithm.
    pub spread: f64,
}

macro_rules! coefficients {
    ($($name:ident = $prior:literal ~ $spread:literal, $meaning:literal;)*) => {
        /// Fitted values. All are positive.
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct Coefficients {
            $(#[doc = $meaning] pub $name: f64,)*
        }

        impl Coefficients {
            /// Meaning and prior of every coefficient.
            pub const SPECS: &'static [CoefficientSpec] = &[
                $(CoefficientSpec {
                    name: stringify!($name), meaning: $meaning, prior: $prior, spread: $spread,
                },)*
            ];

            /// The prior means.
            pub fn priors() -> Self {
                Self { $($name: $prior,)* }
            }

            /// The values, in the order of [`Self::SPECS`].
            pub fn values(&self) -> Vec<f64> {
                vec![$(self.$name,)*]
            }

            /// From one value per entry of [`Self::SPECS`], in its order.
            pub fn from_values(values: &[f64]) -> Self {
                let mut values = values.iter().copied();
                Self { $($name: values.next().expect("one value per coefficient"),)* }
            }
        }
    };
}

coefficients! {
    product_half_ampere = 0.93 ~ 0.06, "share of the 16-bit peak that a large GEMM reaches in training, Ampere";
    product_half_hopper = 0.80 ~ 0.08, "share of the 16-bit peak that a large GEMM reaches in training, Hopper";
    product_half_blackwell = 0.67 ~ 0.10, "share of the 16-bit peak that a large GEMM reaches in training, Blackwell";
    product_fp8_hopper = 0.90 ~ 0.10, "share of the FP8 peak that an infinitely large GEMM would reach, Hopper; may exceed 1, because the knee slows every GEMM of real size";
    product_block_hopper = 0.69 ~ 0.10, "share of the FP8 peak with one scale per block, Hopper";
    product_row_hopper = 0.55 ~ 0.25, "share of the FP8 peak with one scale per row, Hopper";
    product_fp8_blackwell = 0.90 ~ 0.12, "share of the FP8 peak that a large GEMM reaches, Blackwell";
    product_mx_blackwell = 0.83 ~ 0.12, "share of the FP8 peak in MXFP8, Blackwell";
    product_fp4_blackwell = 0.69 ~ 0.15, "share of the FP4 peak in NVFP4, Blackwell";
    product_ultra = 1.08 ~ 0.08, "speedup of 16- and 8-bit GEMMs on B300 and GB300 over B200 and GB200, from their higher power limit";
    rows_knee_half_ampere = 114.0 ~ 0.5, "rows at which a 16-bit GEMM reaches half of its rate, Ampere";
    columns_knee_half_ampere = 179.0 ~ 0.5, "columns and depth at which a 16-bit GEMM reaches half of its rate, Ampere";
    rows_knee_half_hopper = 48.0 ~ 0.5, "rows at which a 16-bit GEMM reaches half of its rate, Hopper";
    columns_knee_half_hopper = 34.0 ~ 0.5, "columns and depth at which a 16-bit GEMM reaches half of its rate, Hopper";
    rows_knee_half_blackwell = 36.0 ~ 0.5, "rows at which a 16-bit GEMM reaches half of its rate, Blackwell";
    columns_knee_half_blackwell = 15.0 ~ 0.5, "columns and depth at which a 16-bit GEMM reaches half of its rate, Blackwell";
    rows_knee_fp8_hopper = 227.0 ~ 0.5, "rows at which an FP8 GEMM reaches half of its rate, Hopper";
    columns_knee_fp8_hopper = 732.0 ~ 0.5, "columns and depth at which an FP8 GEMM reaches half of its rate, Hopper";
    rows_knee_fp8_blackwell = 450.0 ~ 0.5, "rows at which an FP8 GEMM reaches half of its rate, Blackwell";
    columns_knee_fp8_blackwell = 1000.0 ~ 0.5, "columns and depth at which an FP8 GEMM reaches half of its rate, Blackwell";
    rows_knee_mx_blackwell = 239.0 ~ 0.5, "rows at which an MXFP8 GEMM reaches half of its rate, Blackwell";
    columns_knee_mx_blackwell = 588.0 ~ 0.5, "columns and depth at which an MXFP8 GEMM reaches half of its rate, Blackwell";
    rows_knee_fp4_blackwell = 521.0 ~ 0.5, "rows at which an NVFP4 GEMM reaches half of its rate, Blackwell";
    columns_knee_fp4_blackwell = 1258.0 ~ 0.5, "columns and depth at which an NVFP4 GEMM reaches half of its rate, Blackwell";
    products_expert = 0.80 ~ 0.15, "rate of the experts' grouped GEMMs relative to a single GEMM";
    products_expert_fused = 0.90 ~ 0.15, "rate of the experts' grouped GEMMs relative to a single GEMM, in fused kernels";
    experts_fused = 0.6 ~ 0.3, "share of a MoE layer's host time, dispatch traffic and all-to-all that remains with fused kernels";
    power_exponent = 0.5 ~ 0.4, "exponent of the GEMM rate as a function of power limit / default power limit";
    attention_ampere = 0.55 ~ 0.15, "share of the 16-bit peak that the attention core reaches, Ampere";
    attention_hopper = 0.45 ~ 0.2, "share of the 16-bit peak that the attention core reaches, Hopper-specific kernels";
    attention_blackwell = 0.45 ~ 0.2, "share of the 16-bit peak that the attention core reaches, Blackwell";
    attention_eager = 0.62 ~ 0.25, "rate of Ampere attention kernels on Hopper, relative to Hopper-specific ones";
    attention_compiled = 0.8 ~ 0.2, "rate of compiled PyTorch's attention kernels on Hopper, relative to Hopper-specific ones";
    attention_early = 0.5 ~ 0.4, "rate of attention as separate GEMMs and softmax (2021), relative to a fused kernel";
    attention_head_knee = 15.0 ~ 0.8, "head dimension at which attention reaches half of its rate";
    attention_knee = 300.0 ~ 0.6, "sequence length at which attention reaches half of its rate";
    pointwise_eager = 1.0 ~ 0.25, "memory traffic of norms, activations and sums relative to the minimum, eager framework with custom kernels";
    pointwise_plain = 1.6 ~ 0.25, "additional factor on `pointwise_eager` in an eager framework without custom kernels";
    pointwise_fused = 0.6 ~ 0.25, "memory traffic of norms, activations and sums relative to the minimum, compiled or hand-fused framework";
    pointwise_early = 1.2 ~ 0.3, "memory traffic of norms, activations and sums relative to the minimum, Megatron of 2021: dropout, masks";
    scaling_traffic = 0.8 ~ 0.4, "memory traffic of quantizing operands to 8 or 4 bits, relative to reading and writing each once";
    logits_traffic = 14.0 ~ 0.3, "bytes per token and vocabulary entry in the loss";
    memory_rate = 0.85 ~ 0.05, "share of the peak memory bandwidth that memory-bound kernels reach";
    link_rate = 0.74 ~ 0.06, "share of the NVLink bandwidth that large collectives reach";
    network_rate = 0.75 ~ 0.15, "share of the network bandwidth that large collectives reach";
    link_hop_s = 5.0e-6 ~ 0.4, "latency of one hop over NVLink, s";
    network_hop_s = 4.0e-6 ~ 0.6, "latency of one ring hop over the network, s";
    tensor_exposed_early = 1.0 ~ 0.15, "exposed share of tensor-parallel communication without overlap";
    tensor_exposed = 0.5 ~ 0.35, "exposed share of tensor-parallel communication, Megatron with overlap";
    tensor_exposed_async = 0.65 ~ 0.2, "exposed share of tensor-parallel communication, PyTorch async TP";
    context_exposed = 0.35 ~ 0.5, "exposed share of context-parallel communication";
    expert_exposed = 0.8 ~ 0.4, "exposed share of expert-parallel all-to-all";
    expert_exposed_dual = 0.15 ~ 0.5, "exposed share of expert-parallel all-to-all with DualPipe";
    expert_traffic = 8.0 ~ 0.4, "memory passes per routed token for dispatch and combine";
    expert_bias_traffic = 8.0 ~ 1.0, "memory passes over the output of an expert's first GEMM if experts have biases";
    copies_exposed = 0.3 ~ 0.5, "exposed share of data-parallel communication, Megatron";
    weights_early_hops = 10.0 ~ 0.5, "collectives per layer in the `ZeRO`-3 of 2021: one per tensor";
    weights_early_ports = 1.5 ~ 0.3, "NICs per node that the `ZeRO`-3 of 2021 keeps busy";
    weights_overlap = 3.0 ~ 0.4, "how well FSDP overlaps communication with compute: exponent of the p-norm of both";
    stage_exposed = 0.5 ~ 0.5, "exposed share of point-to-point transfers between pipeline stages";
    bubble = 1.0 ~ 0.1, "pipeline bubble relative to the formula";
    optimizer_traffic = 30.0 ~ 0.3, "bytes that an optimizer step moves per weight";
    host_block_eager_s = 6.0e-4 ~ 0.4, "host time per layer, forward and backward, eager framework, s";
    host_block_fused_s = 2.0e-4 ~ 0.5, "host time per layer, forward and backward, compiled framework or Megatron, s";
    host_expert_s = 6.0e-4 ~ 0.5, "additional host time per MoE layer, s";
    host_step_s = 2.0e-2 ~ 0.6, "host time per step: data loading, gradient norms, logging, s";
    jitter = 0.006 ~ 0.6, "share of the step lost to stragglers per doubling beyond eight GPUs";
    stack_megatron_early = 1.0 ~ 0.08, "step time relative to the model, Megatron of 2021";
    stack_megatron = 1.0 ~ 0.08, "step time relative to the model, Megatron and `NeMo` of 2024";
    stack_bridge = 1.0 ~ 0.03, "step time relative to the model, Megatron Bridge";
    stack_bridge_expert = 1.0 ~ 0.1, "step time of MoE models relative to the model, Megatron Bridge";
    stack_fsdp = 1.0 ~ 0.06, "step time relative to the model, eager FSDP";
    stack_fsdp_compiled = 1.0 ~ 0.06, "step time relative to the model, compiled FSDP";
    stack_tuned = 0.95 ~ 0.08, "step time relative to the model, tuned forks of Megatron";
}
