//! What GPUs send each other, and what of it the step waits for.

use super::block::{fused, weights_per_gpu};
use super::{Phase, Rates, StepTime};
use crate::coefficients::Coefficients;
use crate::layout::{Schedule, Sharding};
use crate::model::Experts;
use crate::precision::Precision;
use crate::run::{Run, Stack, Task};

/// GPUs that exchange something, as the network sees them.
#[derive(Debug, Clone, Copy)]
struct Group {
    /// How many.
    size: f64,
    /// Of those, how many `NVLink` joins.
    near: f64,
}

impl Group {
    /// `size` GPUs, one in every `stride` of the numbering.
    fn new(run: &Run, size: u32, stride: u32) -> Self {
        let near = (run.gpu.domain / stride.max(1)).clamp(1, size.max(1));
        Self { size: f64::from(size.max(1)), near: f64::from(near) }
    }

    /// Seconds for each GPU to gather `bytes` that the group holds together, or to reduce them.
    fn gather_s(self, bytes: f64, rates: &Rates, fitted: &Coefficients) -> f64 {
        if self.size <= 1.0 {
            return 0.0;
        }
        let share = (self.size - 1.0) / self.size;
        let within = bytes * share / rates.link;
        if self.near >= self.size {
            return within + (self.size - 1.0) * fitted.link_hop_s;
        }
        // What enters a domain comes over the ports of all its members at once.
        let across = bytes * (1.0 - self.near / self.size) / (rates.network * self.near);
        let near_share = if self.near > 1.0 { within } else { 0.0 };
        near_share.max(across) + (self.size / self.near - 1.0) * fitted.network_hop_s
    }

    /// Seconds for each GPU to send `bytes` to the others, evenly.
    fn scatter_s(self, bytes: f64, rates: &Rates, fitted: &Coefficients) -> f64 {
        if self.size <= 1.0 {
            return 0.0;
        }
        let away = (self.size - self.near) / self.size;
        let within = bytes * (self.near - 1.0) / self.size / rates.link;
        let hops = if away > 0.0 { fitted.network_hop_s } else { fitted.link_hop_s };
        within.max(bytes * away / rates.network) + self.size.log2() * hops
    }
}

/// Of one block: `passes` products that end split over tensor-parallel ranks.
pub(super) fn tensor_parallel(
    run: &Run,
    rates: &Rates,
    fitted: &Coefficients,
    passes: f64,
    time: &mut StepTime,
) {
    let layout = &run.layout;
    if layout.tp > 1 {
        let group = Group::new(run, layout.tp, 1);
        let bytes = 2.0 * run.tokens_at_once() * f64::from(run.model.hidden);
        // Each is a gather and a reduction, there and back.
        let again = layout.recompute.products_again(run.layers_of_stage()) / 2.0;
        let exchanges = 2.0 * passes * 2.0 * (1.0 + again);
        let exposed = match (layout.tensor_overlap, run.stack) {
            (false, _) | (true, Stack::MegatronEarly) => fitted.tensor_exposed_early,
            (true, Stack::Fsdp | Stack::FsdpCompiled) => fitted.tensor_exposed_async,
            (true, Stack::Megatron | Stack::Bridge | Stack::Tuned) => fitted.tensor_exposed,
        };
        time.add(Phase::Tensor, exchanges * group.gather_s(bytes, rates, fitted) * exposed);
    }
    if layout.cp > 1 {
        let group = Group::new(run, layout.cp, layout.tp);
        let tokens = f64::from(layout.micro_batch) * f64::from(run.seq_len);
        let width = run.model.attention.key_value_width() / f64::from(layout.tp);
        // Keys and values there, and their gradients with them on the way back.
        let seconds = 3.0 * group.gather_s(2.0 * tokens * width, rates, fitted);
        time.add(Phase::Context, seconds * fitted.context_exposed);
    }
}

/// Of one block: tokens to their experts and back, on both ways.
pub(super) fn expert_parallel(
    run: &Run,
    rates: &Rates,
    fitted: &Coefficients,
    experts: Experts,
    time: &mut StepTime,
) {
    let layout = &run.layout;
    if layout.ep <= 1 {
        return;
    }
    let group = Group::new(run, layout.ep, 1);
    let tokens = run.tokens_at_once() / f64::from(layout.tp);
    // A token goes to a domain once, however many of its experts are there.
    let domains = group.size / group.near;
    let chosen = f64::from(experts.per_token);
    let copies = if domains > 1.0 {
        domains * (1.0 - (1.0 - 1.0 / domains).powf(chosen))
    } else {
        chosen.min(group.size)
    };
    let bytes = 2.0 * tokens * f64::from(run.model.hidden) * copies;
    let again = layout.recompute.products_again(run.layers_of_stage()) * 2.0;
    let seconds = (4.0 + again) * group.scatter_s(bytes, rates, fitted);
    let exposed = match layout.schedule {
        Schedule::DualPipe => fitted.expert_exposed_dual,
        _ => fitted.expert_exposed,
    };
    time.add(Phase::Expert, seconds * exposed * fused(run, fitted));
}

/// Between stages, for one micro-batch.
pub(super) fn between_stages(run: &Run, rates: &Rates, fitted: &Coefficients) -> f64 {
    let layout = &run.layout;
    if layout.pp <= 1 {
        return 0.0;
    }
    let split = if layout.sequence_parallel { f64::from(layout.tp) } else { 1.0 };
    let bytes = 2.0 * run.tokens_at_once() * f64::from(run.model.hidden) / split;
    let inside = layout.gpus() <= run.gpu.domain;
    let rate = if inside { rates.link } else { rates.network };
    2.0 * f64::from(layout.vp) * (bytes / rate + fitted.network_hop_s) * fitted.stage_exposed
}

/// Gradients and weights between copies, for a step that takes `busy` seconds without them.
pub(super) fn between_copies(
    run: &Run,
    rates: &Rates,
    fitted: &Coefficients,
    busy: f64,
    time: &mut StepTime,
) {
    let layout = &run.layout;
    let frozen = run.task == Task::Lora;
    if frozen && layout.sharding != Sharding::Weights {
        // Adapters are too small to count.
        return;
    }
    let weights = weights_per_gpu(run);
    let copies = layout.dp * layout.cp;
    let weight_bytes = gathered_bytes(run);
    let reduce = if frozen { 0.0 } else { f64::from(layout.reduce_bytes) };
    if layout.sharding == Sharding::Weights {
        let seconds = whole_weights(run, rates, fitted, busy, (weight_bytes, reduce));
        time.add(Phase::Copies, seconds);
        let states = 16.0 * weights.total() / f64::from(layout.holders(copies));
        let pressed = fitted.memory_pressure * (states / run.gpu.hbm_bytes - 0.5).max(0.0);
        time.add(Phase::Host, (busy + seconds) * pressed);
        return;
    }
    let common = Group::new(run, copies, layout.tp);
    let routed = Group::new(run, layout.expert_copies(), layout.ep);
    // A reduction of gradients and a gather of weights, or both halves of one reduction.
    let back = if layout.sharding == Sharding::None { reduce } else { weight_bytes };
    let seconds = common.gather_s(reduce * weights.common, rates, fitted)
        + common.gather_s(back * weights.common, rates, fitted)
        + routed.gather_s(reduce * weights.routed, rates, fitted)
        + routed.gather_s(back * weights.routed, rates, fitted);
    time.add(Phase::Copies, seconds * fitted.copies_exposed);
}

/// Bytes of a weight on its way to those that multiply with it.
fn gathered_bytes(run: &Run) -> f64 {
    let narrow = matches!(run.precision, Precision::Fp8 | Precision::Mxfp8);
    if narrow && run.stack == Stack::Bridge { 1.0 } else { 2.0 }
}

/// What a step waits for where weights are kept once: they are gathered on the way there and again on
/// the way back, and gradients reduced, in each micro-batch. `bytes` are of a gathered weight and of
/// a reduced gradient.
fn whole_weights(
    run: &Run,
    rates: &Rates,
    fitted: &Coefficients,
    busy: f64,
    bytes: (f64, f64),
) -> f64 {
    let layout = &run.layout;
    let weights = weights_per_gpu(run);
    let copies = layout.dp * layout.cp;
    let pieces = f64::from(run.model.layers) / f64::from(layout.pp);
    // Experts have fewer copies than the rest, and so fewer that hold a part.
    let parts = [
        (weights.common, layout.holders(copies), layout.tp),
        (weights.routed, layout.holders(layout.expert_copies()), layout.ep),
    ];
    let mut one = 0.0;
    for (held, holders, stride) in parts {
        let group = Group::new(run, holders, stride);
        one += 2.0 * group.gather_s(bytes.0 * held / pieces, rates, fitted)
            + group.gather_s(bytes.1 * held / pieces, rates, fitted);
    }
    let passes = pieces * f64::from(run.micro_batches());
    let mut total = one * passes;
    let mut power = fitted.weights_overlap;
    if run.stack == Stack::MegatronEarly {
        // Nothing is hidden, each tensor is gathered by itself, and few ports are used.
        let hops =
            fitted.weights_early_hops * f64::from(layout.holders(copies)) * fitted.network_hop_s;
        let moved = (2.0 * bytes.0 + bytes.1) * weights.total() / pieces;
        let seconds = moved / (rates.network * fitted.weights_early_ports);
        total = (3.0 * hops + seconds) * passes;
        power = 1.0;
    }
    let both = (busy.powf(power) + total.powf(power)).powf(1.0 / power);
    // The first gather and the last reduction have nothing to hide behind.
    let mut exposed = both - busy + one / 3.0;
    let shard = layout.holders(copies);
    if shard < copies {
        let outer = Group::new(run, copies / shard, layout.tp * shard);
        let moved = 2.0 * bytes.1 * weights.total() / f64::from(shard);
        exposed += outer.gather_s(moved, rates, fitted) * fitted.copies_exposed;
    }
    exposed
}
