//! The work of a GPU against the two roofs over it: arithmetic and memory.
//!
//! Times are those of [`crate::time`]; bytes are what each kernel must move at least, or, where the
//! time is that of memory, what it is reckoned to move.

use serde::Serialize;

use crate::coefficients::Coefficients;
use crate::layout::Sharding;
use crate::model::{Attention, Experts};
use crate::run::{Run, Stack, Task};
use crate::time::{self, Rates};

/// Operations for each number that pointwise work must move: a norm does about five for two
/// numbers, a gate five for three, a sum one for three. Our count.
const POINTWISE_FLOPS: f64 = 2.0;
/// Operations of Adam for each weight: its two moments 3 and 4, the step with its root, quotient and
/// decay 6. Our count.
const ADAM_FLOPS: f64 = 13.0;

/// A kind of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Projections of attention.
    AttentionProducts,
    /// Products of feed-forward parts that every token passes.
    FeedForwardProducts,
    /// Products of experts that tokens are routed to.
    ExpertProducts,
    /// The core of attention.
    AttentionCore,
    /// Norms, activations, sums, scaling, and moving tokens to experts.
    Pointwise,
    /// The output projection and the loss.
    Logits,
    /// The optimizer.
    Optimizer,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::AttentionProducts,
        Self::FeedForwardProducts,
        Self::ExpertProducts,
        Self::AttentionCore,
        Self::Pointwise,
        Self::Logits,
        Self::Optimizer,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::AttentionProducts => "products of attention",
            Self::FeedForwardProducts => "products of feed-forward",
            Self::ExpertProducts => "products of experts",
            Self::AttentionCore => "core of attention",
            Self::Pointwise => "pointwise",
            Self::Logits => "output projection and loss",
            Self::Optimizer => "optimizer",
        }
    }

    /// Whether it is computed in 16 bits whatever the run's precision.
    pub fn is_half(self) -> bool {
        matches!(self, Self::AttentionCore | Self::Logits)
    }
}

/// The roofs of a GPU, and where a run's work lies under them.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Roofline {
    /// Peak of the run's precision, FLOP/s.
    pub peak_flops_per_s: f64,
    /// Peak of 16 bits, which attention and the output projection are held to.
    pub half_peak_flops_per_s: f64,
    /// Peak of memory, bytes/s.
    pub hbm_bytes_per_s: f64,
    /// The kinds of work that the run has, in the order of [`Kind::ALL`].
    pub work: Vec<Work>,
}

/// A kind of work of a run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Work {
    /// What it is.
    pub kind: Kind,
    /// Operations for each byte of memory.
    pub flops_per_byte: f64,
    /// What it reaches.
    pub flops_per_s: f64,
    /// Share that it has of the time of all of them.
    pub time_share: f64,
}

impl Roofline {
    /// Of a run.
    pub fn of(run: &Run, fitted: &Coefficients) -> Self {
        let rates = Rates::of(run, fitted);
        let sums: Vec<(Kind, Sum)> = Kind::ALL
            .into_iter()
            .map(|kind| (kind, step(kind, run, &rates, fitted)))
            .filter(|(_, sum)| sum.time_s > 0.0)
            .collect();
        let all_s: f64 = sums.iter().map(|(_, sum)| sum.time_s).sum();
        let work = sums.into_iter().map(|(kind, sum)| Work {
            kind,
            flops_per_byte: sum.flops / sum.bytes,
            flops_per_s: sum.flops / sum.time_s,
            time_share: sum.time_s / all_s,
        });
        Self {
            peak_flops_per_s: run.gpu.peak_flops(run.precision),
            half_peak_flops_per_s: run.gpu.half_flops,
            hbm_bytes_per_s: run.gpu.hbm_bytes_per_s,
            work: work.collect(),
        }
    }

    /// The roof over a kind of work at an intensity, FLOP/s.
    pub fn roof_flops_per_s(&self, work: &Work) -> f64 {
        let peak =
            if work.kind.is_half() { self.half_peak_flops_per_s } else { self.peak_flops_per_s };
        peak.min(work.flops_per_byte * self.hbm_bytes_per_s)
    }
}

/// Work added up.
#[derive(Debug, Clone, Copy, Default)]
struct Sum {
    flops: f64,
    bytes: f64,
    time_s: f64,
}

impl Sum {
    fn plus(self, other: Self) -> Self {
        Self {
            flops: self.flops + other.flops,
            bytes: self.bytes + other.bytes,
            time_s: self.time_s + other.time_s,
        }
    }

    fn times(self, factor: f64) -> Self {
        Self {
            flops: self.flops * factor,
            bytes: self.bytes * factor,
            time_s: self.time_s * factor,
        }
    }
}

/// A kind of work in a step, on a GPU of the mean stage.
fn step(kind: Kind, run: &Run, rates: &Rates, fitted: &Coefficients) -> Sum {
    let micro_batches = f64::from(run.micro_batches());
    let of_stage = |layers: u32| f64::from(layers) / f64::from(run.layout.pp) * micro_batches;
    let blocks = of_stage(run.model.layers);
    let dense = of_stage(run.model.dense_layers());
    let mixture = of_stage(run.model.expert_layers());
    let ffn = |width: u32| feed_forward(run, rates, f64::from(width));
    match (kind, run.model.experts) {
        (Kind::AttentionProducts, _) => attention_products(run, rates).times(blocks),
        (Kind::FeedForwardProducts, None) => ffn(run.model.ffn).times(dense),
        (Kind::FeedForwardProducts, Some(experts)) => {
            let every = if dense > 0.0 { ffn(run.model.ffn).times(dense) } else { Sum::default() };
            let shared =
                if experts.shared_ffn > 0 { ffn(experts.shared_ffn) } else { Sum::default() };
            every.plus(shared.times(mixture))
        }
        (Kind::ExpertProducts, None) => Sum::default(),
        (Kind::ExpertProducts, Some(experts)) => {
            expert_products(run, rates, fitted, experts).times(mixture)
        }
        (Kind::AttentionCore, _) => attention_core(run, rates, fitted).times(blocks),
        (Kind::Pointwise, None) => {
            pointwise(run, rates, fitted, f64::from(run.model.ffn)).times(dense)
        }
        (Kind::Pointwise, Some(experts)) => {
            let width = f64::from(experts.per_token) * f64::from(experts.ffn)
                + f64::from(experts.shared_ffn);
            pointwise(run, rates, fitted, f64::from(run.model.ffn)).times(dense).plus(
                pointwise(run, rates, fitted, width)
                    .plus(expert_moves(run, rates, fitted, experts))
                    .times(mixture),
            )
        }
        (Kind::Logits, _) => {
            logits(run, rates, fitted).times(micro_batches / f64::from(run.layout.pp))
        }
        (Kind::Optimizer, _) => optimizer(run, rates, fitted),
    }
}

/// A linear layer: there, back to its input, back to its weights where they learn, and again.
fn linear(run: &Run, rates: &Rates, rows: f64, columns: f64, depth: f64) -> Sum {
    let there = 1.0 + run.layout.recompute.products_again(run.layers_of_stage());
    let weights = if run.task == Task::Full { 1.0 } else { 0.0 };
    // Operands are read in the precision of products, results written in 16 bits.
    let product = |rows: f64, columns: f64, depth: f64| Sum {
        flops: 2.0 * rows * columns * depth,
        bytes: run.precision.operand_bytes() * depth * (rows + columns) + 2.0 * rows * columns,
        time_s: rates.product_s(rows, columns, depth),
    };
    product(rows, columns, depth)
        .times(there)
        .plus(product(rows, depth, columns))
        .plus(product(columns, depth, rows).times(weights))
}

fn attention_products(run: &Run, rates: &Rates) -> Sum {
    let tokens = run.tokens_at_once();
    let hidden = f64::from(run.model.hidden);
    let split = f64::from(run.layout.tp);
    let shape = run.model.attention;
    let linear = |columns: f64, depth: f64| linear(run, rates, tokens, columns, depth);
    let into = match shape {
        Attention::Grouped { .. } => {
            linear((shape.query_width() + shape.key_value_width()) / split, hidden)
        }
        Attention::Latent { heads, q_rank, kv_rank, nope_dim, rope_dim, v_dim } => {
            let (q_rank, kv_rank) = (f64::from(q_rank), f64::from(kv_rank));
            let key_value = f64::from(heads) / split * f64::from(nope_dim + v_dim);
            let query_depth = if q_rank > 0.0 { q_rank } else { hidden };
            linear(q_rank + kv_rank + f64::from(rope_dim), hidden)
                .plus(linear(shape.query_width() / split, query_depth))
                .plus(linear(key_value, kv_rank))
        }
    };
    into.plus(linear(hidden, shape.value_width() / split))
}

fn feed_forward(run: &Run, rates: &Rates, width: f64) -> Sum {
    let tokens = run.tokens_at_once();
    let hidden = f64::from(run.model.hidden);
    let up = if run.model.gated { 2.0 } else { 1.0 };
    let width = width / f64::from(run.layout.tp);
    linear(run, rates, tokens, up * width, hidden).plus(linear(run, rates, tokens, hidden, width))
}

/// Tokens that reach the experts of a GPU, with an even spread.
fn routed_tokens(run: &Run, experts: Experts) -> f64 {
    run.tokens_at_once() / f64::from(run.layout.tp) * f64::from(experts.per_token)
}

fn expert_products(run: &Run, rates: &Rates, fitted: &Coefficients, experts: Experts) -> Sum {
    let hidden = f64::from(run.model.hidden);
    let local = (f64::from(experts.count) / f64::from(run.layout.ep)).max(1.0);
    let each = (routed_tokens(run, experts) / local).max(1.0);
    let width = f64::from(experts.ffn);
    let up = if run.model.gated { 2.0 } else { 1.0 };
    let rate =
        if run.fused_experts { fitted.products_expert_fused } else { fitted.products_expert };
    let one =
        linear(run, rates, each, up * width, hidden).plus(linear(run, rates, each, hidden, width));
    let all = one.times(local);
    Sum { time_s: all.time_s / rate, ..all }
}

/// Tokens on their way to experts and back: moved, not computed with.
fn expert_moves(run: &Run, rates: &Rates, fitted: &Coefficients, experts: Experts) -> Sum {
    let fused = if run.fused_experts { fitted.experts_fused } else { 1.0 };
    let hidden = f64::from(run.model.hidden);
    let bytes = fitted.expert_traffic * routed_tokens(run, experts) * hidden * 2.0 * fused;
    Sum { flops: 0.0, bytes, time_s: bytes / rates.memory }
}

fn attention_core(run: &Run, rates: &Rates, fitted: &Coefficients) -> Sum {
    let tokens = run.tokens_at_once();
    let split = f64::from(run.layout.tp);
    let shape = run.model.attention;
    let span = run.model.window.mean_causal_span(run.seq_len);
    let computed = if run.stack == Stack::MegatronEarly { f64::from(run.seq_len) } else { span };
    let head = shape.query_width() / f64::from(shape.heads());
    let forward = 2.0 * tokens * computed * (shape.query_width() + shape.value_width()) / split;
    let slowness = (1.0 + fitted.attention_knee / f64::from(run.seq_len))
        * (1.0 + fitted.attention_head_knee / head)
        / (1.0 + fitted.attention_head_knee / 128.0);
    let again = run.layout.recompute.attention_again(run.layers_of_stage());
    let flops = forward * (3.5 + again);
    // There it reads queries, keys and values and writes its result; back it reads these and the
    // result's gradient, and writes the gradients of all three. Scores stay on the chip, and keys of
    // the whole sequence pass, however it is split.
    let keys = shape.key_value_width() * f64::from(run.layout.cp);
    let once = 2.0 * tokens / split * (shape.query_width() + shape.value_width() + keys);
    let bytes = once * (3.0 + again);
    Sum { flops, bytes, time_s: flops / rates.attention * slowness }
}

fn pointwise(run: &Run, rates: &Rates, fitted: &Coefficients, ffn_width: f64) -> Sum {
    let tokens = run.tokens_at_once();
    let layout = &run.layout;
    let split = f64::from(layout.tp);
    let stream = f64::from(run.model.hidden) / if layout.sequence_parallel { split } else { 1.0 };
    let shape = run.model.attention;
    let heads = (shape.query_width() + shape.key_value_width()) / split;
    let gates = if run.model.gated { 3.0 } else { 2.0 };
    let passes = 3.0 + layout.recompute.pointwise_again(run.layers_of_stage());
    let numbers = tokens * (10.0 * stream + 2.0 * heads + gates * ffn_width / split) * passes;
    let mut bytes = 2.0 * numbers * rates.pointwise;
    if run.precision.is_scaled() {
        let operands = stream * 2.0 + heads + gates * ffn_width / split;
        bytes += 3.0 * tokens * operands * (2.0 + 1.0) * fitted.scaling_traffic;
    }
    Sum { flops: POINTWISE_FLOPS * numbers, bytes, time_s: bytes / rates.memory }
}

fn logits(run: &Run, rates: &Rates, fitted: &Coefficients) -> Sum {
    let tokens = run.tokens_at_once();
    let hidden = f64::from(run.model.hidden);
    let vocab = f64::from(run.model.vocab) / f64::from(run.layout.tp);
    let heads = 1.0 + f64::from(run.model.mtp_layers);
    let passes = if run.task == Task::Full { 3.0 } else { 2.0 };
    let moved = heads * tokens * vocab * fitted.logits_traffic + tokens * hidden * 12.0;
    let products = heads * passes;
    Sum {
        flops: products * 2.0 * tokens * vocab * hidden,
        bytes: moved + products * 2.0 * (tokens * hidden + hidden * vocab),
        time_s: products * rates.product_half_s(tokens, vocab, hidden) + moved / rates.memory,
    }
}

fn optimizer(run: &Run, rates: &Rates, fitted: &Coefficients) -> Sum {
    if run.task == Task::Lora {
        return Sum::default();
    }
    let weights = time::weights_per_gpu(run);
    let kept = if run.layout.sharding == Sharding::None {
        weights.total()
    } else {
        let holders = |copies: u32| f64::from(run.layout.holders(copies));
        weights.common / holders(run.layout.dp * run.layout.cp)
            + weights.routed / holders(run.layout.expert_copies())
    };
    let bytes = kept * fitted.optimizer_traffic;
    Sum { flops: kept * ADAM_FLOPS, bytes, time_s: bytes / rates.memory }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::estimate::Planner;
    use crate::published::{self, Published};
    use crate::time::Phase;
    use farrier_facts::FactSet;

    fn rows() -> Vec<Published> {
        published::read(FactSet::embedded(), published::embedded())
            .unwrap()
            .into_iter()
            .flatten()
            .collect()
    }

    /// The same work as the step's: where all of it is on one stage, its phases take the same time.
    #[test]
    fn times_are_those_of_the_step() {
        let fitted = &Planner::shipped().fitted;
        let mut rows_seen = 0;
        for row in rows().into_iter().filter(|row| row.run.layout.pp == 1) {
            rows_seen += 1;
            let run = &row.run;
            let rates = Rates::of(run, fitted);
            let of = |kind| step(kind, run, &rates, fitted).time_s;
            let here = [
                of(Kind::AttentionProducts)
                    + of(Kind::FeedForwardProducts)
                    + of(Kind::ExpertProducts),
                of(Kind::AttentionCore),
                of(Kind::Pointwise),
                of(Kind::Optimizer),
            ];
            let ends = of(Kind::Logits);
            let time = time::step(run, fitted);
            let there = [Phase::Products, Phase::Attention, Phase::Pointwise, Phase::Optimizer]
                .map(|phase| time.of(phase));
            // The program's factor is on all phases alike.
            let factor = there[1] / here[1];
            let alike = |left: f64, right: f64| (left - right).abs() <= 1e-9 * right.abs();
            let both = here[0] + here[2] + ends;
            assert!(alike(both * factor, there[0] + there[2]), "{} {run:?}", both * factor);
            assert!(alike(here[3] * factor, there[3]), "{run:?}");
        }
        assert!(rows_seen > 30, "{rows_seen}");
    }

    #[test]
    fn nothing_is_above_its_roof_and_kinds_lie_where_they_should() {
        let fitted = &Planner::shipped().fitted;
        for row in rows() {
            let roofline = Roofline::of(&row.run, fitted);
            let share: f64 = roofline.work.iter().map(|work| work.time_share).sum();
            assert!((share - 1.0).abs() < 1e-9);
            for work in &roofline.work {
                let reached = work.flops_per_s / roofline.roof_flops_per_s(work);
                assert!(reached > 0.0 && reached <= 1.0, "{work:?} {reached} {:?}", row.run);
            }
            let of = |kind| roofline.work.iter().find(|work| work.kind == kind);
            let pointwise = of(Kind::Pointwise).unwrap();
            assert!(pointwise.flops_per_byte < 5.0, "{pointwise:?}");
            let products = of(Kind::AttentionProducts).unwrap();
            assert!(products.flops_per_byte > 50.0, "{products:?} {:?}", row.run);
        }
    }

    #[test]
    fn only_mixtures_have_experts_and_only_what_learns_has_an_optimizer() {
        let fitted = &Planner::shipped().fitted;
        for row in rows() {
            let kinds: Vec<Kind> =
                Roofline::of(&row.run, fitted).work.iter().map(|work| work.kind).collect();
            let experts = row.run.model.experts.is_some();
            assert_eq!(kinds.contains(&Kind::ExpertProducts), experts);
            assert_eq!(kinds.contains(&Kind::Optimizer), row.run.task == Task::Full);
        }
    }
}
