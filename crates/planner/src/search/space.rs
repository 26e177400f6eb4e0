//! What each number of a split may be.

use crate::layout::{Layout, Recompute, Schedule, Sharding};
use crate::model::Model;
use crate::plan::usual_stack;
use crate::run::{Run, Stack};

/// What is fixed; all else is searched.
#[derive(Debug, Clone, Default)]
pub struct Axes {
    /// GPUs that share each product.
    pub tp: Option<u32>,
    /// Stages.
    pub pp: Option<u32>,
    /// Pieces of each stage.
    pub vp: Option<u32>,
    /// GPUs that share a sequence.
    pub cp: Option<u32>,
    /// GPUs that share experts.
    pub ep: Option<u32>,
    /// What is kept once.
    pub sharding: Option<Sharding>,
    /// What is computed again.
    pub recompute: Option<Recompute>,
    /// Sequences at once.
    pub micro_batch: Option<u32>,
    /// Copies.
    pub dp: Option<u32>,
    /// The order of passes in the pipeline.
    pub schedule: Option<Schedule>,
    /// By what program; without it what people use for the split.
    pub stack: Option<Stack>,
    /// Bytes of a gradient on its way; without it what the program has.
    pub reduce_bytes: Option<u8>,
}

/// How far a search goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reach {
    /// What the programs do: what is fixed takes out of this and adds nothing to it.
    Usual,
    /// All that can be computed, where nothing usual fits.
    All,
}

/// Longer pipelines fill with bubble before they help.
pub(crate) const MOST_STAGES: u32 = 64;

/// A part of a sequence shorter than this does not keep a GPU busy.
const LEAST_TOKENS: u32 = 512;

/// Larger micro-batches bring nothing that these do not.
const MOST_AT_ONCE: u32 = 32;

/// GPUs that share products where a batch is small, whatever joins them; and at most.
const TENSOR: (u32, u32) = (8, 16);

impl Axes {
    /// The program that a split is for.
    fn stack_for(&self, layout: &Layout) -> Stack {
        self.stack.unwrap_or_else(|| usual_stack(layout))
    }

    /// The same program with nothing of the split fixed; nothing where nothing is.
    pub fn loosened(&self) -> Option<Self> {
        let is_fixed = !self.given().is_empty()
            || self.sharding.is_some()
            || self.recompute.is_some()
            || self.schedule.is_some();
        let (stack, reduce_bytes) = (self.stack, self.reduce_bytes);
        is_fixed.then(|| Self { stack, reduce_bytes, ..Self::default() })
    }

    /// Lays a run out otherwise, with the program that the split is for.
    pub fn lay_out(&self, run: &mut Run, layout: Layout) {
        run.layout = layout;
        run.stack = self.stack_for(&layout);
        run.fused_experts = run.fuses_experts();
    }

    /// What is fixed, by name.
    pub(super) fn given(&self) -> Vec<(&'static str, u32)> {
        let all = [
            ("DP", self.dp),
            ("TP", self.tp),
            ("PP", self.pp),
            ("VP", self.vp),
            ("CP", self.cp),
            ("EP", self.ep),
            ("micro-batch", self.micro_batch),
        ];
        all.into_iter().filter_map(|(name, number)| Some((name, number?))).collect()
    }

    /// Every split of `gpus` that is worth a look. No number that is fixed is 0.
    pub(super) fn layouts(&self, run: &Run, gpus: u32, reach: Reach) -> Vec<Layout> {
        let mut layouts = Vec::new();
        for tp in self.tensor(run) {
            for pp in self.stages(&run.model, gpus, reach) {
                for cp in self.context(run) {
                    let shared = u64::from(tp) * u64::from(pp) * u64::from(cp);
                    if shared > u64::from(gpus) || !u64::from(gpus).is_multiple_of(shared) {
                        continue;
                    }
                    let dp = u32::try_from(u64::from(gpus) / shared).unwrap_or(u32::MAX);
                    if self.dp.is_some_and(|asked| asked != dp) {
                        continue;
                    }
                    let split = Layout { dp, tp, pp, cp, ..run.layout };
                    self.within(run, split, reach, &mut layouts);
                }
            }
        }
        layouts
    }

    /// What is left to choose within a split of ranks.
    fn within(&self, run: &Run, split: Layout, reach: Reach, layouts: &mut Vec<Layout>) {
        let of_copy = run.global_batch / split.dp.max(1);
        for micro_batch in self.micro_batches(of_copy) {
            for vp in self.pieces(&run.model, split.pp, reach) {
                for ep in self.experts(&run.model, &split) {
                    for sharding in self.shardings(&Layout { ep, ..split }, reach) {
                        let stack = self.stack_for(&Layout { sharding, ..split });
                        for recompute in self.recomputes(stack, reach) {
                            layouts.push(Layout {
                                micro_batch,
                                vp,
                                ep,
                                sharding,
                                recompute,
                                schedule: self.schedule.unwrap_or(Schedule::OneForwardOneBackward),
                                tensor_overlap: stack.overlaps_tensor(),
                                reduce_bytes: self.reduce_bytes.unwrap_or(stack.reduce_bytes()),
                                ..split
                            });
                        }
                    }
                }
            }
        }
    }

    fn tensor(&self, run: &Run) -> Vec<u32> {
        let most = run.gpu.domain.clamp(TENSOR.0, TENSOR.1).min(run.model.attention.heads());
        powers(self.tp, most, |tp| run.model.attention.heads().is_multiple_of(tp))
    }

    fn context(&self, run: &Run) -> Vec<u32> {
        let most = (run.seq_len / LEAST_TOKENS).clamp(1, 64);
        powers(self.cp, most, |cp| run.seq_len.is_multiple_of(2 * cp) || cp == 1)
    }

    fn stages(&self, model: &Model, gpus: u32, reach: Reach) -> Vec<u32> {
        let most = match reach {
            Reach::Usual => MOST_STAGES.min(model.layers),
            Reach::All => model.layers,
        };
        match self.pp {
            Some(pp) => vec![pp],
            None => (1..=most).filter(|pp| gpus.is_multiple_of(*pp)).collect(),
        }
    }

    /// Pieces of a stage that its blocks divide into; where the blocks do not divide over the stages,
    /// those that leave no piece empty.
    fn pieces(&self, model: &Model, pp: u32, reach: Reach) -> Vec<u32> {
        let each = if pp == 1 { 1 } else { model.layers.div_ceil(pp) };
        let is_usual = |vp: &u32| {
            let most = model.layers.div_ceil(pp.saturating_mul(*vp)).max(1);
            let missing = (most * pp * vp).saturating_sub(model.layers);
            if model.layers.is_multiple_of(pp) {
                each.is_multiple_of(*vp)
            } else {
                missing < most.max(3)
            }
        };
        match (self.vp, reach) {
            (Some(vp), Reach::All) => vec![vp],
            (Some(vp), Reach::Usual) => Some(vp).filter(is_usual).into_iter().collect(),
            (None, _) => (1..=each).filter(is_usual).collect(),
        }
    }

    fn experts(&self, model: &Model, split: &Layout) -> Vec<u32> {
        let Some(experts) = model.experts else { return vec![self.ep.unwrap_or(1)] };
        let ranks = split.dp * split.cp * split.tp;
        powers(self.ep, experts.count.min(ranks), |ep| {
            experts.count.is_multiple_of(ep) && ranks.is_multiple_of(ep)
        })
    }

    fn shardings(&self, split: &Layout, reach: Reach) -> Vec<Sharding> {
        let usual = |sharding: Sharding| {
            let is_megatron = self.stack_for(&Layout { sharding, ..*split }).is_megatron();
            match sharding {
                // Nobody who has the choice keeps everything on every copy; FSDP has no third way.
                Sharding::None => false,
                Sharding::Optimizer => is_megatron,
                // Megatron-FSDP takes the place of a pipeline, and of shared experts.
                Sharding::Gradients => !is_megatron || split.pp == 1 || reach == Reach::All,
                Sharding::Weights => {
                    !is_megatron || (split.pp == 1 && split.ep == 1) || reach == Reach::All
                }
            }
        };
        match self.sharding {
            None => Sharding::ALL.into_iter().filter(|sharding| usual(*sharding)).collect(),
            Some(asked @ (Sharding::None | Sharding::Optimizer)) => vec![asked],
            Some(asked) => Some(asked).filter(|asked| usual(*asked)).into_iter().collect(),
        }
    }

    fn recomputes(&self, stack: Stack, reach: Reach) -> Vec<Recompute> {
        match (self.recompute, reach) {
            (None, _) => stack.recomputes().to_vec(),
            (Some(asked), Reach::All) => {
                Some(asked).filter(|asked| stack.can_recompute(*asked)).into_iter().collect()
            }
            (Some(asked @ Recompute::Layers(_)), Reach::Usual) => vec![asked],
            (Some(asked), Reach::Usual) => {
                Some(asked).filter(|asked| stack.recomputes().contains(asked)).into_iter().collect()
            }
        }
    }

    fn micro_batches(&self, of_copy: u32) -> Vec<u32> {
        if let Some(micro_batch) = self.micro_batch {
            return vec![micro_batch];
        }
        let whole = |size: &u32| of_copy > 0 && of_copy.is_multiple_of(*size);
        let found: Vec<u32> = (1..=MOST_AT_ONCE).filter(whole).collect();
        if found.is_empty() { vec![1] } else { found }
    }
}

/// What is fixed, or the powers of two that may be.
fn powers(fixed: Option<u32>, most: u32, may: impl Fn(u32) -> bool) -> Vec<u32> {
    match fixed {
        Some(fixed) => vec![fixed],
        None => (0..32)
            .map(|power| 1_u32 << power)
            .take_while(|number| *number <= most)
            .filter(|number| may(*number))
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::Accelerator;
    use crate::model::builtin;
    use crate::precision::Precision;
    use crate::run::Task;
    use farrier_facts::FactSet;

    fn layouts(model: &str, gpus: u32, axes: &Axes) -> Vec<Layout> {
        let run = Run {
            model: builtin::named(model).unwrap().model(),
            gpu: Accelerator::named(FactSet::embedded(), "H100-SXM-80GB").unwrap(),
            seq_len: 8192,
            global_batch: 4096,
            precision: Precision::Bf16,
            layout: Layout::copies(gpus, 1),
            task: Task::Full,
            stack: Stack::Bridge,
            fused_experts: false,
        };
        axes.layouts(&run, gpus, Reach::Usual)
    }

    #[test]
    fn what_is_given_is_kept() {
        let axes = Axes { tp: Some(4), dp: Some(2), ..Axes::default() };
        let found = layouts("llama3-70b", 64, &axes);
        assert!(!found.is_empty());
        assert!(found.iter().all(|layout| layout.tp == 4 && layout.dp == 2 && layout.gpus() == 64));
    }

    #[test]
    fn pieces_are_whole_or_none_is_empty() {
        let pieces = |model: &str, pp| {
            let model = builtin::named(model).unwrap().model();
            Axes::default().pieces(&model, pp, Reach::Usual)
        };
        assert_eq!(pieces("llama3-8b", 4), [1, 2, 4, 8]);
        // 61 blocks in two stages of 31: as eight pieces of eight, of which the last has five.
        assert_eq!(pieces("deepseek-v3", 2), [1, 2, 3, 4, 8, 31]);
    }

    #[test]
    fn each_program_has_what_it_has() {
        let found = layouts("qwen3-235b-a22b", 256, &Axes::default());
        let both = |layout: &&Layout| layout.sharding == Sharding::Weights && layout.ep > 1;
        assert!(found.iter().any(|layout| both(&layout)), "torchtitan splits experts over FSDP");
        let axes = Axes { stack: Some(Stack::Bridge), ..Axes::default() };
        let found = layouts("qwen3-235b-a22b", 256, &axes);
        assert!(!found.iter().any(|layout| both(&layout)), "Megatron-FSDP does not");
        let axes = Axes { stack: Some(Stack::FsdpCompiled), ..Axes::default() };
        let fsdp = layouts("llama3-8b", 8, &axes);
        assert!(fsdp.iter().all(|layout| layout.sharding >= Sharding::Gradients));
        assert!(fsdp.iter().all(|layout| layout.reduce_bytes == 4 && !layout.tensor_overlap));
        assert!(fsdp.iter().any(|layout| layout.recompute == Recompute::Operators));
        assert!(!fsdp.iter().any(|layout| layout.recompute == Recompute::Modules));
        let axes = Axes { stack: Some(Stack::Bridge), ..Axes::default() };
        let megatron = layouts("llama3-8b", 8, &axes);
        for sharding in [Sharding::Optimizer, Sharding::Gradients, Sharding::Weights] {
            assert!(megatron.iter().any(|layout| layout.sharding == sharding), "{sharding:?}");
        }
        assert!(megatron.iter().all(|layout| layout.reduce_bytes == 2 && layout.tensor_overlap));
        assert!(!megatron.iter().any(|layout| layout.recompute == Recompute::Operators));
        let axes = Axes { reduce_bytes: Some(4), ..axes };
        assert!(layouts("llama3-8b", 8, &axes).iter().all(|layout| layout.reduce_bytes == 4));
    }

    #[test]
    fn what_is_fixed_takes_out_and_adds_nothing() {
        let all = layouts("llama3-70b", 64, &Axes::default());
        for axes in [
            Axes { vp: Some(5), ..Axes::default() },
            Axes { cp: Some(4), ..Axes::default() },
            Axes { pp: Some(16), ..Axes::default() },
            Axes { sharding: Some(Sharding::Weights), ..Axes::default() },
            Axes { sharding: Some(Sharding::Gradients), ..Axes::default() },
            Axes { recompute: Some(Recompute::Modules), ..Axes::default() },
            Axes { recompute: Some(Recompute::EverySecond), ..Axes::default() },
        ] {
            let fixed = layouts("llama3-70b", 64, &axes);
            assert!(!fixed.is_empty(), "{axes:?}");
            assert!(fixed.iter().all(|layout| all.contains(layout)), "{axes:?}");
        }
    }
}
