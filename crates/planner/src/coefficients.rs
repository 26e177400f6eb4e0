//! What was fitted: each number with its meaning, what it was expected to be, and how sure that was.
//!
//! The values are in `data/planner/coefficients.toml`, written by the fitting program.

use serde::{Deserialize, Serialize};

/// A number of the model.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// Its name.
    pub name: &'static str,
    /// What it means, and in which unit.
    pub meaning: &'static str,
    /// What was expected before rows were looked at.
    pub prior: f64,
    /// How far off it may be: one standard deviation of its logarithm.
    pub spread: f64,
}

macro_rules! coefficients {
    ($($name:ident = $prior:literal ~ $spread:literal, $meaning:literal;)*) => {
        /// The numbers of the model. All are above zero.
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct Coefficients {
            $(#[doc = $meaning] pub $name: f64,)*
        }

        impl Coefficients {
            /// What each means.
            pub const ENTRIES: &'static [Entry] = &[
                $(Entry {
                    name: stringify!($name), meaning: $meaning, prior: $prior, spread: $spread,
                },)*
            ];

            /// What was expected before rows were looked at.
            pub fn expected() -> Self {
                Self { $($name: $prior,)* }
            }

            /// The values, in the order of [`Self::ENTRIES`].
            pub fn values(&self) -> Vec<f64> {
                vec![$(self.$name,)*]
            }

            /// From as many values as there are [`Self::ENTRIES`], in their order.
            pub fn from_values(values: &[f64]) -> Self {
                let mut values = values.iter().copied();
                Self { $($name: values.next().expect("as many values as entries"),)* }
            }
        }
    };
}

coefficients! {
    product_half_ampere = 0.93 ~ 0.06, "share of the 16-bit peak that a large product reaches in training, Ampere";
    product_half_hopper = 0.80 ~ 0.08, "share of the 16-bit peak that a large product reaches in training, Hopper";
    product_half_blackwell = 0.67 ~ 0.10, "share of the 16-bit peak that a large product reaches in training, Blackwell";
    product_fp8_hopper = 0.90 ~ 0.10, "share of the 8-bit peak that an endless product would reach, Hopper: above 1, since products of real sizes lose more to their knee";
    product_block_hopper = 0.69 ~ 0.10, "share of the 8-bit peak with a scale for each block, Hopper";
    product_row_hopper = 0.55 ~ 0.25, "share of the 8-bit peak with a scale for each row, Hopper";
    product_fp8_blackwell = 0.90 ~ 0.12, "share of the 8-bit peak that a large product reaches, Blackwell";
    product_mx_blackwell = 0.83 ~ 0.12, "share of the 8-bit peak in MXFP8, Blackwell";
    product_fp4_blackwell = 0.69 ~ 0.15, "share of the 4-bit peak in NVFP4, Blackwell";
    product_ultra = 1.08 ~ 0.08, "16- and 8-bit products of B300 and GB300 beside their elder kin: more power";
    rows_knee_half_ampere = 114.0 ~ 0.5, "rows of a 16-bit product at which half of its rate is reached, Ampere";
    columns_knee_half_ampere = 179.0 ~ 0.5, "columns and depth of a 16-bit product at which half of its rate is reached, Ampere";
    rows_knee_half_hopper = 48.0 ~ 0.5, "rows likewise, Hopper";
    columns_knee_half_hopper = 34.0 ~ 0.5, "columns and depth likewise, Hopper";
    rows_knee_half_blackwell = 36.0 ~ 0.5, "rows likewise, Blackwell";
    columns_knee_half_blackwell = 15.0 ~ 0.5, "columns and depth likewise, Blackwell";
    rows_knee_fp8_hopper = 227.0 ~ 0.5, "rows likewise in 8 bits, Hopper";
    columns_knee_fp8_hopper = 732.0 ~ 0.5, "columns and depth likewise in 8 bits, Hopper";
    rows_knee_fp8_blackwell = 450.0 ~ 0.5, "rows likewise in 8 bits, Blackwell";
    columns_knee_fp8_blackwell = 1000.0 ~ 0.5, "columns and depth likewise in 8 bits, Blackwell";
    rows_knee_mx_blackwell = 239.0 ~ 0.5, "rows likewise in MXFP8, Blackwell";
    columns_knee_mx_blackwell = 588.0 ~ 0.5, "columns and depth likewise in MXFP8, Blackwell";
    rows_knee_fp4_blackwell = 521.0 ~ 0.5, "rows likewise in NVFP4, Blackwell";
    columns_knee_fp4_blackwell = 1258.0 ~ 0.5, "columns and depth likewise in NVFP4, Blackwell";
    products_expert = 0.80 ~ 0.15, "rate of grouped products of experts beside one product";
    products_expert_fused = 0.90 ~ 0.15, "likewise, in kernels that fuse a group";
    experts_fused = 0.6 ~ 0.3, "what such kernels leave of the other work of a block of experts";
    power_exponent = 0.5 ~ 0.4, "rate of products goes as the power limit's share to this power";
    attention_ampere = 0.55 ~ 0.15, "share of the 16-bit peak that the core of attention reaches, Ampere";
    attention_hopper = 0.45 ~ 0.2, "likewise, Hopper with kernels made for it";
    attention_blackwell = 0.45 ~ 0.2, "likewise, Blackwell";
    attention_eager = 0.62 ~ 0.25, "likewise on Hopper with kernels made for Ampere, beside those made for it";
    attention_compiled = 0.8 ~ 0.2, "likewise on Hopper with the kernels of compiled PyTorch, beside those made for it";
    attention_early = 0.5 ~ 0.4, "core of attention written as products and softmax (2021): share of its rate";
    attention_head_knee = 15.0 ~ 0.8, "width of a head at which attention reaches half of its rate";
    attention_knee = 300.0 ~ 0.6, "tokens of a sequence at which attention reaches half of its rate";
    pointwise_eager = 1.0 ~ 0.25, "traffic of norms, activations and sums in an eager program with kernels for them, beside the least";
    pointwise_plain = 1.6 ~ 0.25, "more of it in an eager program without such kernels";
    pointwise_fused = 0.6 ~ 0.25, "likewise in a compiled or hand-fused program";
    pointwise_early = 1.2 ~ 0.3, "likewise in the Megatron of 2021: dropout, masks";
    scaling_traffic = 0.8 ~ 0.4, "traffic of scaling operands to 8 or 4 bits, beside reading and writing each once";
    logits_traffic = 14.0 ~ 0.3, "bytes for each token and word of the vocabulary in the loss";
    memory_rate = 0.85 ~ 0.05, "share of the memory's peak that such kernels reach";
    link_rate = 0.74 ~ 0.06, "share of NVLink's rate that large collectives reach";
    network_rate = 0.75 ~ 0.15, "share of the network's rate that large collectives reach";
    link_hop_s = 5.0e-6 ~ 0.4, "time of a hop within NVLink, s";
    network_hop_s = 4.0e-6 ~ 0.6, "time of a hop of a ring over the network, s";
    tensor_exposed_early = 1.0 ~ 0.15, "share of tensor-parallel traffic that is not hidden where nothing hides it";
    tensor_exposed = 0.5 ~ 0.35, "likewise, Megatron with overlap";
    tensor_exposed_async = 0.65 ~ 0.2, "likewise, PyTorch with asynchronous tensor parallelism";
    context_exposed = 0.35 ~ 0.5, "share of context-parallel traffic that is not hidden";
    expert_exposed = 0.8 ~ 0.4, "share of expert-parallel traffic that is not hidden";
    expert_exposed_dual = 0.15 ~ 0.5, "likewise, in a pipeline of two streams";
    expert_traffic = 8.0 ~ 0.4, "times that a routed token passes memory on its way to an expert and back";
    expert_bias_traffic = 8.0 ~ 1.0, "times that what an expert's first product puts out passes memory where experts have biases";
    copies_exposed = 0.3 ~ 0.5, "share of the traffic between copies that is not hidden, Megatron";
    weights_early_hops = 10.0 ~ 0.5, "collectives for each block of the `ZeRO` 3 of 2021: one for each of its tensors";
    weights_early_ports = 1.5 ~ 0.3, "ports of a node that it keeps busy";
    weights_overlap = 3.0 ~ 0.4, "how sharply FSDP hides its traffic behind work: exponent of the norm of both";
    stage_exposed = 0.5 ~ 0.5, "share of the traffic between stages that is not hidden";
    bubble = 1.0 ~ 0.1, "idle time of the pipeline beside the formula";
    optimizer_traffic = 30.0 ~ 0.3, "bytes that a step of the optimizer moves for each of its weights";
    host_block_eager_s = 6.0e-4 ~ 0.4, "host's time for a block of an eager program, forward and back, s";
    host_block_fused_s = 2.0e-4 ~ 0.5, "likewise, compiled or of Megatron, s";
    host_expert_s = 6.0e-4 ~ 0.5, "likewise, in addition for a block of experts, s";
    host_step_s = 2.0e-2 ~ 0.6, "what a step takes besides: data, norms of gradients, logs, s";
    jitter = 0.006 ~ 0.6, "lost to the slowest for each doubling beyond eight GPUs";
    stack_megatron_early = 1.0 ~ 0.08, "step time beside the model, Megatron of 2021";
    stack_megatron = 1.0 ~ 0.08, "step time beside the model, Megatron and `NeMo` of 2024";
    stack_bridge = 1.0 ~ 0.03, "step time beside the model, Megatron Bridge";
    stack_bridge_expert = 1.0 ~ 0.1, "step time of mixtures beside the model, Megatron Bridge";
    stack_fsdp = 1.0 ~ 0.06, "step time beside the model, eager FSDP";
    stack_fsdp_compiled = 1.0 ~ 0.06, "step time beside the model, compiled FSDP";
    stack_tuned = 0.95 ~ 0.08, "step time beside the model, tuned forks of Megatron";
}
