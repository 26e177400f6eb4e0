//! NCCL cost model: time of collectives and point-to-point transfers that the step waits for.

use super::block::{fused_factor, weights_per_gpu};
use super::{AchievedRates, StepPhase, StepTime};
use crate::coefficients::Coefficients;
use crate::model::Experts;
use crate::parallelism::{Schedule, Sharding};
use crate::precision::Precision;
use crate::run::{Framework, TrainingRun, TrainingTask};

/// Communication time, by interconnect.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct CommTime {
    pub(super) nvlink_s: f64,
    /// The network between `NVLink` domains.
    pub(super) network_s: f64,
}

impl CommTime {
    fn nvlink(seconds: f64) -> Self {
        Self { nvlink_s: seconds, network_s: 0.0 }
    }

    fn network(seconds: f64) -> Self {
        Self { nvlink_s: 0.0, network_s: seconds }
    }

    /// The slower of two concurrent transfers.
    fn slower(nvlink_s: f64, network_s: f64) -> Self {
        if network_s > nvlink_s { Self::network(network_s) } else { Self::nvlink(nvlink_s) }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            nvlink_s: self.nvlink_s + other.nvlink_s,
            network_s: self.network_s + other.network_s,
        }
    }

    pub(super) fn times(self, factor: f64) -> Self {
        Self { nvlink_s: self.nvlink_s * factor, network_s: self.network_s * factor }
    }

    pub(super) fn total_s(self) -> f64 {
        self.nvlink_s + self.network_s
    }
}

/// A communicator.
#[derive(Debug, Clone, Copy)]
struct CommGroup {
    size: f64,
    /// Ranks per `NVLink` domain.
    per_domain: f64,
}

impl CommGroup {
    /// `size` ranks with a stride of `stride` in global rank order.
    fn new(run: &TrainingRun, size: u32, stride: u32) -> Self {
        let per_domain = (run.gpu.domain / stride.max(1)).clamp(1, size.max(1));
        Self { size: f64::from(size.max(1)), per_domain: f64::from(per_domain) }
    }

    /// All-gather or reduce-scatter of `bytes` in total: one ring per NIC, each of which enters and
    /// leaves every `NVLink` domain once.
    fn all_gather(
        self,
        bytes: f64,
        rates: &AchievedRates,
        coefficients: &Coefficients,
    ) -> CommTime {
        if self.size <= 1.0 || bytes <= 0.0 {
            return CommTime::default();
        }
        let ring_bytes = bytes * (self.size - 1.0) / self.size;
        let within = if self.per_domain > 1.0 { ring_bytes / rates.link } else { 0.0 };
        if self.per_domain >= self.size {
            return CommTime::nvlink(within + (self.size - 1.0) * coefficients.link_hop_s);
        }
        let across = ring_bytes / (rates.network * self.per_domain);
        let hops = (self.size / self.per_domain - 1.0) * coefficients.network_hop_s;
        CommTime::slower(within, across).plus(CommTime::network(hops))
    }

    /// All-to-all in which every rank sends `bytes`, spread evenly over the group.
    fn all_to_all(
        self,
        bytes: f64,
        rates: &AchievedRates,
        coefficients: &Coefficients,
    ) -> CommTime {
        if self.size <= 1.0 {
            return CommTime::default();
        }
        let steps = self.size.log2();
        let within = bytes * (self.per_domain - 1.0) / self.size / rates.link;
        let away = (self.size - self.per_domain) / self.size;
        if away <= 0.0 {
            return CommTime::nvlink(within + steps * coefficients.link_hop_s);
        }
        let across = bytes * away / rates.network;
        CommTime::slower(within, across).plus(CommTime::network(steps * coefficients.network_hop_s))
    }
}

/// Exposed tensor- and context-parallel communication of one layer with `passes` row-parallel
/// GEMMs.
pub(super) fn tensor_parallel(
    run: &TrainingRun,
    rates: &AchievedRates,
    coefficients: &Coefficients,
    passes: f64,
    time: &mut StepTime,
) {
    let parallelism = &run.parallelism;
    if parallelism.tp > 1 {
        let group = CommGroup::new(run, parallelism.tp, 1);
        let bytes = 2.0 * run.tokens_per_micro_batch() * f64::from(run.model.hidden);
        // Per GEMM one all-gather and one reduce-scatter, forward and backward.
        let recomputed = parallelism.recompute.recomputed_gemm_share(run.layers_per_stage()) / 2.0;
        let collectives = 2.0 * passes * 2.0 * (1.0 + recomputed);
        let exposed = match (parallelism.tensor_overlap, run.framework) {
            (false, _) | (true, Framework::MegatronEarly) => coefficients.tensor_exposed_early,
            (true, Framework::Fsdp | Framework::Foundry | Framework::FsdpCompiled) => {
                coefficients.tensor_exposed_async
            }
            (true, Framework::Megatron | Framework::Bridge | Framework::Tuned) => {
                coefficients.tensor_exposed
            }
        };
        let once = group.all_gather(bytes, rates, coefficients);
        time.add_comm(StepPhase::Tensor, once.times(collectives * exposed));
    }
    if parallelism.cp > 1 {
        let group = CommGroup::new(run, parallelism.cp, parallelism.tp);
        let tokens = f64::from(parallelism.micro_batch) * f64::from(run.seq_len);
        let width = run.model.attention.key_value_width_of_rank(parallelism.tp);
        // The forward pass communicates keys and values; the backward pass communicates keys and
        // values again, and their gradients.
        let recomputed = parallelism.recompute.recomputed_attention_share(run.layers_per_stage());
        let once = group.all_gather(2.0 * tokens * width, rates, coefficients);
        time.add_comm(
            StepPhase::Context,
            once.times((3.0 + recomputed) * coefficients.context_exposed),
        );
    }
}

/// Exposed expert-parallel communication of one layer: dispatch and combine, forward and backward.
pub(super) fn expert_parallel(
    run: &TrainingRun,
    rates: &AchievedRates,
    coefficients: &Coefficients,
    experts: Experts,
    time: &mut StepTime,
) {
    let parallelism = &run.parallelism;
    if parallelism.ep <= 1 {
        return;
    }
    let group = CommGroup::new(run, parallelism.ep, 1);
    let tokens = run.tokens_per_micro_batch() / f64::from(parallelism.tp);
    // A token is sent to each domain once, even if several of its experts are there.
    let domains = group.size / group.per_domain;
    let chosen = f64::from(experts.per_token);
    let copies = if domains > 1.0 {
        domains * (1.0 - (1.0 - 1.0 / domains).powf(chosen))
    } else {
        chosen.min(group.size)
    };
    let bytes = 2.0 * tokens * f64::from(run.model.hidden) * copies;
    let recomputed = parallelism.recompute.recomputed_gemm_share(run.layers_per_stage()) * 2.0;
    let once = group.all_to_all(bytes, rates, coefficients);
    let exposed = match parallelism.schedule {
        Schedule::DualPipe => coefficients.expert_exposed_dual,
        _ => coefficients.expert_exposed,
    };
    time.add_comm(
        StepPhase::Expert,
        once.times((4.0 + recomputed) * exposed * fused_factor(run, coefficients)),
    );
}

/// Exposed point-to-point time between pipeline stages for one micro-batch.
pub(super) fn pipeline_p2p(
    run: &TrainingRun,
    rates: &AchievedRates,
    coefficients: &Coefficients,
) -> CommTime {
    let parallelism = &run.parallelism;
    if parallelism.pp <= 1 {
        return CommTime::default();
    }
    let shards = if parallelism.sequence_parallel { f64::from(parallelism.tp) } else { 1.0 };
    let bytes = 2.0 * run.tokens_per_micro_batch() * f64::from(run.model.hidden) / shards;
    let once = if parallelism.gpus() <= run.gpu.domain {
        CommTime::nvlink(bytes / rates.link + coefficients.link_hop_s)
    } else {
        CommTime::network(bytes / rates.network + coefficients.network_hop_s)
    };
    once.times(2.0 * f64::from(parallelism.vp) * coefficients.stage_exposed)
}

/// Exposed data-parallel communication of a step that takes `busy` seconds without it.
pub(super) fn data_parallel(
    run: &TrainingRun,
    rates: &AchievedRates,
    coefficients: &Coefficients,
    busy: f64,
    time: &mut StepTime,
) {
    let parallelism = &run.parallelism;
    let frozen = run.task == TrainingTask::Lora;
    if frozen && parallelism.sharding != Sharding::Weights {
        // The gradients of adapters are too small to count.
        return;
    }
    let weight_bytes = all_gather_bytes_per_weight(run);
    let reduce_bytes = if frozen { 0.0 } else { f64::from(parallelism.reduce_bytes) };
    if parallelism.sharding == Sharding::Weights {
        time.add_comm(
            StepPhase::DataParallel,
            zero3(run, rates, coefficients, busy, (weight_bytes, reduce_bytes)),
        );
        return;
    }
    let weights = weights_per_gpu(run);
    let common = CommGroup::new(run, parallelism.dp * parallelism.cp, parallelism.tp);
    let routed = CommGroup::new(run, parallelism.expert_replicas(), parallelism.ep);
    let both = |bytes: f64| {
        common.all_gather(bytes * weights.common, rates, coefficients).plus(routed.all_gather(
            bytes * weights.routed,
            rates,
            coefficients,
        ))
    };
    // Reduce-scatter of gradients and all-gather of weights, or the two halves of an all-reduce.
    let second = if parallelism.sharding == Sharding::None { reduce_bytes } else { weight_bytes };
    let mut comm = both(second).plus(both(reduce_bytes)).times(coefficients.copies_exposed);
    if parallelism.shards_gradients() {
        // ZeRO-2 reduces in every micro-batch; the last one is counted above.
        let reductions = both(reduce_bytes).times(f64::from(run.micro_batches()) - 1.0);
        comm = comm.plus(exposed(busy, reductions, coefficients.weights_overlap));
    }
    time.add_comm(StepPhase::DataParallel, comm);
}

/// The part of `comm` that remains exposed when it overlaps with `busy` seconds of compute: a
/// smooth maximum (p-norm with exponent `power`) of both, less `busy`.
fn exposed(busy: f64, comm: CommTime, power: f64) -> CommTime {
    let total = comm.total_s();
    if total <= 0.0 {
        return CommTime::default();
    }
    let both = (busy.powf(power) + total.powf(power)).powf(1.0 / power);
    comm.times((both - busy) / total)
}

/// Bytes per weight in the all-gather before a forward pass. Megatron Bridge gathers FP8 weights.
fn all_gather_bytes_per_weight(run: &TrainingRun) -> f64 {
    let narrow = matches!(run.precision, Precision::Fp8 | Precision::Mxfp8);
    if narrow && run.framework == Framework::Bridge { 1.0 } else { 2.0 }
}

/// Exposed communication of ZeRO-3 / FSDP: every micro-batch all-gathers the weights in the forward
/// pass and again in the backward pass, and reduce-scatters the gradients. `bytes` is the size of
/// an all-gathered weight and of a reduced gradient.
fn zero3(
    run: &TrainingRun,
    rates: &AchievedRates,
    coefficients: &Coefficients,
    busy: f64,
    bytes: (f64, f64),
) -> CommTime {
    let parallelism = &run.parallelism;
    let weights = weights_per_gpu(run);
    let replicas = parallelism.dp * parallelism.cp;
    let layers = f64::from(run.model.layers) / f64::from(parallelism.pp);
    // Experts have fewer data-parallel replicas, hence smaller sharding groups.
    let parts = [
        (weights.common, replicas, parallelism.tp),
        (weights.routed, parallelism.expert_replicas(), parallelism.ep),
    ];
    let mut per_layer = CommTime::default();
    let mut outer = CommTime::default();
    for (weights, replicas, stride) in parts {
        let shards = parallelism.shard_group_size(replicas);
        let group = CommGroup::new(run, shards, stride);
        let all_gather = group.all_gather(bytes.0 * weights / layers, rates, coefficients);
        per_layer = per_layer.plus(all_gather.times(2.0)).plus(group.all_gather(
            bytes.1 * weights / layers,
            rates,
            coefficients,
        ));
        if shards < replicas {
            // HSDP: all-reduce of the sharded gradients between sharding groups.
            let outer_group = CommGroup::new(run, replicas / shards, stride * shards);
            let reduced = 2.0 * bytes.1 * weights / f64::from(shards);
            outer = outer.plus(outer_group.all_gather(reduced, rates, coefficients));
        }
    }
    let passes = layers * f64::from(run.micro_batches());
    let mut total = per_layer.times(passes);
    let mut power = coefficients.weights_overlap;
    if run.framework == Framework::MegatronEarly {
        // No overlap, one collective per tensor, and few NICs in use.
        let hops = coefficients.weights_early_hops
            * f64::from(parallelism.shard_group_size(replicas))
            * coefficients.network_hop_s;
        let moved = (2.0 * bytes.0 + bytes.1) * weights.total() / layers;
        let seconds = moved / (rates.network * coefficients.weights_early_ports);
        total = CommTime::network((3.0 * hops + seconds) * passes);
        power = 1.0;
    }
    // The first all-gather and the last reduce-scatter have nothing to overlap with.
    exposed(busy, total, power)
        .plus(per_layer.times(1.0 / 3.0))
        .plus(outer.times(coefficients.copies_exposed))
}
