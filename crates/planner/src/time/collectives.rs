//! What GPUs send each other, and what of it the step waits for.

use super::block::{fused, weights_per_gpu};
use super::{Phase, Rates, StepTime};
use crate::coefficients::Coefficients;
use crate::layout::{Schedule, Sharding};
use crate::model::Experts;
use crate::precision::Precision;
use crate::run::{Run, Stack, Task};

/// Waiting for others, by what carries what is waited for.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Wait {
    /// `NVLink`, seconds.
    pub(super) link_s: f64,
    /// The network between its domains, seconds.
    pub(super) network_s: f64,
}

impl Wait {
    fn link(seconds: f64) -> Self {
        Self { link_s: seconds, network_s: 0.0 }
    }

    fn network(seconds: f64) -> Self {
        Self { link_s: 0.0, network_s: seconds }
    }

    /// Of two that go on at once, the slower.
    fn slower(link_s: f64, network_s: f64) -> Self {
        if network_s > link_s { Self::network(network_s) } else { Self::link(link_s) }
    }

    fn plus(self, other: Self) -> Self {
        Self { link_s: self.link_s + other.link_s, network_s: self.network_s + other.network_s }
    }

    /// So many of it.
    pub(super) fn times(self, factor: f64) -> Self {
        Self { link_s: self.link_s * factor, network_s: self.network_s * factor }
    }

    /// All of it.
    pub(super) fn total_s(self) -> f64 {
        self.link_s + self.network_s
    }
}

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

    /// For each GPU to gather `bytes` that the group holds together, or to reduce them: a ring for
    /// each port, each of which enters and leaves every domain once.
    fn gather(self, bytes: f64, rates: &Rates, fitted: &Coefficients) -> Wait {
        if self.size <= 1.0 || bytes <= 0.0 {
            return Wait::default();
        }
        let passed = bytes * (self.size - 1.0) / self.size;
        let within = if self.near > 1.0 { passed / rates.link } else { 0.0 };
        if self.near >= self.size {
            return Wait::link(within + (self.size - 1.0) * fitted.link_hop_s);
        }
        let across = passed / (rates.network * self.near);
        let hops = (self.size / self.near - 1.0) * fitted.network_hop_s;
        Wait::slower(within, across).plus(Wait::network(hops))
    }

    /// For each GPU to send `bytes` to the others, evenly.
    fn scatter(self, bytes: f64, rates: &Rates, fitted: &Coefficients) -> Wait {
        if self.size <= 1.0 {
            return Wait::default();
        }
        let steps = self.size.log2();
        let within = bytes * (self.near - 1.0) / self.size / rates.link;
        let away = (self.size - self.near) / self.size;
        if away <= 0.0 {
            return Wait::link(within + steps * fitted.link_hop_s);
        }
        let across = bytes * away / rates.network;
        Wait::slower(within, across).plus(Wait::network(steps * fitted.network_hop_s))
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
            (true, Stack::Fsdp | Stack::Foundry | Stack::FsdpCompiled) => {
                fitted.tensor_exposed_async
            }
            (true, Stack::Megatron | Stack::Bridge | Stack::Tuned) => fitted.tensor_exposed,
        };
        let once = group.gather(bytes, rates, fitted);
        time.wait(Phase::Tensor, once.times(exchanges * exposed));
    }
    if layout.cp > 1 {
        let group = Group::new(run, layout.cp, layout.tp);
        let tokens = f64::from(layout.micro_batch) * f64::from(run.seq_len);
        let width = run.model.attention.key_value_width_of_rank(layout.tp);
        // Keys and values there, and their gradients with them on the way back.
        let again = layout.recompute.attention_again(run.layers_of_stage());
        let once = group.gather(2.0 * tokens * width, rates, fitted);
        time.wait(Phase::Context, once.times((3.0 + again) * fitted.context_exposed));
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
    let once = group.scatter(bytes, rates, fitted);
    let exposed = match layout.schedule {
        Schedule::DualPipe => fitted.expert_exposed_dual,
        _ => fitted.expert_exposed,
    };
    time.wait(Phase::Expert, once.times((4.0 + again) * exposed * fused(run, fitted)));
}

/// Between stages, for one micro-batch.
pub(super) fn between_stages(run: &Run, rates: &Rates, fitted: &Coefficients) -> Wait {
    let layout = &run.layout;
    if layout.pp <= 1 {
        return Wait::default();
    }
    let split = if layout.sequence_parallel { f64::from(layout.tp) } else { 1.0 };
    let bytes = 2.0 * run.tokens_at_once() * f64::from(run.model.hidden) / split;
    let once = if layout.gpus() <= run.gpu.domain {
        Wait::link(bytes / rates.link + fitted.link_hop_s)
    } else {
        Wait::network(bytes / rates.network + fitted.network_hop_s)
    };
    once.times(2.0 * f64::from(layout.vp) * fitted.stage_exposed)
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
    let weight_bytes = gathered_bytes(run);
    let reduce = if frozen { 0.0 } else { f64::from(layout.reduce_bytes) };
    if layout.sharding == Sharding::Weights {
        time.wait(Phase::Copies, whole_weights(run, rates, fitted, busy, (weight_bytes, reduce)));
        return;
    }
    let weights = weights_per_gpu(run);
    let common = Group::new(run, layout.dp * layout.cp, layout.tp);
    let routed = Group::new(run, layout.expert_copies(), layout.ep);
    let both = |bytes: f64| {
        common.gather(bytes * weights.common, rates, fitted).plus(routed.gather(
            bytes * weights.routed,
            rates,
            fitted,
        ))
    };
    // A reduction of gradients and a gather of weights, or both halves of one reduction.
    let back = if layout.sharding == Sharding::None { reduce } else { weight_bytes };
    let mut exposed = both(back).plus(both(reduce)).times(fitted.copies_exposed);
    if layout.shares_gradients() {
        // Those before the last.
        let reductions = both(reduce).times(f64::from(run.micro_batches()) - 1.0);
        exposed = exposed.plus(hidden_behind(busy, reductions, fitted.weights_overlap));
    }
    time.wait(Phase::Copies, exposed);
}

/// What is left of traffic that goes on beside so many busy seconds.
fn hidden_behind(busy: f64, traffic: Wait, power: f64) -> Wait {
    let total = traffic.total_s();
    if total <= 0.0 {
        return Wait::default();
    }
    let both = (busy.powf(power) + total.powf(power)).powf(1.0 / power);
    traffic.times((both - busy) / total)
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
) -> Wait {
    let layout = &run.layout;
    let weights = weights_per_gpu(run);
    let copies = layout.dp * layout.cp;
    let pieces = f64::from(run.model.layers) / f64::from(layout.pp);
    // Experts have fewer copies than the rest, and so fewer that hold a part.
    let parts =
        [(weights.common, copies, layout.tp), (weights.routed, layout.expert_copies(), layout.ep)];
    let mut one = Wait::default();
    let mut outer = Wait::default();
    for (held, copies, stride) in parts {
        let holders = layout.holders(copies);
        let group = Group::new(run, holders, stride);
        let gathered = group.gather(bytes.0 * held / pieces, rates, fitted);
        one = one.plus(gathered.times(2.0)).plus(group.gather(
            bytes.1 * held / pieces,
            rates,
            fitted,
        ));
        if holders < copies {
            let others = Group::new(run, copies / holders, stride * holders);
            let moved = 2.0 * bytes.1 * held / f64::from(holders);
            outer = outer.plus(others.gather(moved, rates, fitted));
        }
    }
    let passes = pieces * f64::from(run.micro_batches());
    let mut total = one.times(passes);
    let mut power = fitted.weights_overlap;
    if run.stack == Stack::MegatronEarly {
        // Nothing is hidden, each tensor is gathered by itself, and few ports are used.
        let hops =
            fitted.weights_early_hops * f64::from(layout.holders(copies)) * fitted.network_hop_s;
        let moved = (2.0 * bytes.0 + bytes.1) * weights.total() / pieces;
        let seconds = moved / (rates.network * fitted.weights_early_ports);
        total = Wait::network((3.0 * hops + seconds) * passes);
        power = 1.0;
    }
    // The first gather and the last reduction have nothing to hide behind.
    hidden_behind(busy, total, power)
        .plus(one.times(1.0 / 3.0))
        .plus(outer.times(fitted.copies_exposed))
}
