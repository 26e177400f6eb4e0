//! What each number of a split may be.

use crate::layout::{Layout, Recompute, Schedule, Sharding};
use crate::model::Model;
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
    /// By what program; without it FSDP for sharded weights and Megatron for all else.
    pub stack: Option<Stack>,
}

/// Longer pipelines fill with bubble before they help.
const MOST_STAGES: u32 = 64;

/// Places that a pipeline may leave empty: embedding and loss take the place of a block each (Llama 3
/// 405B: 126 and 2 in 16 stages), and so does a block that predicts a further token (`DeepSeek` V3: 61
/// and 3).
const MOST_EMPTY: u32 = 3;

/// Larger micro-batches bring nothing that these do not.
const MICRO_BATCHES: [u32; 6] = [1, 2, 4, 8, 16, 32];

impl Axes {
    /// The program that a split is for.
    pub fn stack_for(&self, layout: &Layout, asked: Stack) -> Stack {
        self.stack.unwrap_or(match layout.sharding {
            Sharding::Weights if asked.is_megatron() => Stack::FsdpCompiled,
            _ => asked,
        })
    }

    /// Every split of `gpus` that is worth a look.
    pub fn layouts(&self, run: &Run, gpus: u32) -> Vec<Layout> {
        let mut layouts = Vec::new();
        for tp in self.tensor(run) {
            for pp in self.stages(&run.model) {
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
                    self.within(run, split, &mut layouts);
                }
            }
        }
        layouts
    }

    /// What is left to choose within a split of ranks.
    fn within(&self, run: &Run, split: Layout, layouts: &mut Vec<Layout>) {
        let of_copy = run.global_batch / split.dp.max(1);
        for micro_batch in self.micro_batches(of_copy) {
            for vp in self.pieces(&run.model, split.pp) {
                for ep in self.experts(&run.model, &split) {
                    for sharding in self.shardings(&Layout { ep, ..split }) {
                        for recompute in self.recomputes() {
                            layouts.push(Layout {
                                micro_batch,
                                vp,
                                ep,
                                sharding,
                                recompute,
                                schedule: self.schedule.unwrap_or(Schedule::OneForwardOneBackward),
                                tensor_overlap: sharding != Sharding::Weights,
                                reduce_bytes: reduce_bytes(sharding),
                                ..split
                            });
                        }
                    }
                }
            }
        }
    }

    fn tensor(&self, run: &Run) -> Vec<u32> {
        let most = run.gpu.domain.min(16).min(run.model.attention.heads());
        powers(self.tp, most, |tp| run.model.attention.heads().is_multiple_of(tp))
    }

    fn context(&self, run: &Run) -> Vec<u32> {
        // A part of a sequence shorter than this does not keep a GPU busy.
        let most = (run.seq_len / 4096).clamp(1, 64);
        powers(self.cp, most, |cp| run.seq_len.is_multiple_of(2 * cp) || cp == 1)
    }

    fn stages(&self, model: &Model) -> Vec<u32> {
        if let Some(pp) = self.pp {
            return vec![pp];
        }
        let even = |pp: &u32| {
            let slots = slots(model, *pp);
            slots - model.layers <= MOST_EMPTY && slots / pp * (pp - 1) < model.layers
        };
        (1..=MOST_STAGES.min(model.layers)).filter(even).collect()
    }

    fn pieces(&self, model: &Model, pp: u32) -> Vec<u32> {
        if let Some(vp) = self.vp {
            return vec![vp];
        }
        if pp == 1 {
            return vec![1];
        }
        let each = slots(model, pp) / pp;
        // All pieces of a block each, half as many, and one: what lies between does as well.
        let mut pieces: Vec<u32> = [1, 2, 4, each / 2, each]
            .into_iter()
            .filter(|vp| *vp > 0 && each.is_multiple_of(*vp))
            .collect();
        pieces.sort_unstable();
        pieces.dedup();
        pieces
    }

    fn experts(&self, model: &Model, split: &Layout) -> Vec<u32> {
        let Some(experts) = model.experts else { return vec![1] };
        let ranks = split.dp * split.cp * split.tp;
        powers(self.ep, experts.count.min(ranks), |ep| {
            experts.count.is_multiple_of(ep) && ranks.is_multiple_of(ep)
        })
    }

    fn shardings(&self, split: &Layout) -> Vec<Sharding> {
        match self.sharding {
            Some(sharding) => vec![sharding],
            None if self.stack.is_some_and(|stack| !stack.is_megatron()) => {
                vec![Sharding::Weights]
            }
            // FSDP takes the place of a pipeline.
            None if split.pp == 1 && split.ep == 1 => {
                vec![Sharding::Optimizer, Sharding::Weights]
            }
            None => vec![Sharding::Optimizer],
        }
    }

    fn recomputes(&self) -> Vec<Recompute> {
        match self.recompute {
            Some(recompute) => vec![recompute],
            None => vec![Recompute::None, Recompute::Modules, Recompute::Full],
        }
    }

    fn micro_batches(&self, of_copy: u32) -> Vec<u32> {
        if let Some(micro_batch) = self.micro_batch {
            return vec![micro_batch];
        }
        let whole = |size: &u32| of_copy > 0 && of_copy.is_multiple_of(*size);
        let found: Vec<u32> = MICRO_BATCHES.into_iter().filter(whole).collect();
        if found.is_empty() { vec![1] } else { found }
    }
}

/// Bytes of a gradient on its way, as programs have it: Megatron's recipes 2, FSDP 4.
pub fn reduce_bytes(sharding: Sharding) -> u8 {
    if sharding == Sharding::Weights { 4 } else { 2 }
}

/// Places for blocks in a pipeline of equal stages.
fn slots(model: &Model, pp: u32) -> u32 {
    model.layers.div_ceil(pp) * pp
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
        axes.layouts(&run, gpus)
    }

    #[test]
    fn what_is_given_is_kept() {
        let axes = Axes { tp: Some(4), dp: Some(2), ..Axes::default() };
        let found = layouts("llama3-70b", 64, &axes);
        assert!(!found.is_empty());
        assert!(found.iter().all(|layout| layout.tp == 4 && layout.dp == 2 && layout.gpus() == 64));
    }

    #[test]
    fn pipelines_may_leave_a_place_or_two_empty() {
        let stages = |model: &str| {
            let mut stages: Vec<u32> =
                layouts(model, 256, &Axes::default()).iter().map(|layout| layout.pp).collect();
            stages.sort_unstable();
            stages.dedup();
            stages
        };
        assert!(stages("deepseek-v3").contains(&8), "61 blocks in 8 stages");
        assert!(stages("llama3.1-405b").contains(&16), "126 blocks in 16 stages");
    }

    #[test]
    fn experts_are_not_split_over_fsdp_and_fsdp_is_not_zero_1() {
        let found = layouts("qwen3-235b-a22b", 256, &Axes::default());
        let both = |layout: &&Layout| layout.sharding == Sharding::Weights && layout.ep > 1;
        assert!(!found.iter().any(|layout| both(&layout)));
        let axes = Axes { stack: Some(Stack::FsdpCompiled), ..Axes::default() };
        let fsdp = layouts("llama3-8b", 8, &axes);
        assert!(fsdp.iter().all(|layout| layout.sharding == Sharding::Weights));
        assert!(fsdp.iter().all(|layout| layout.reduce_bytes == 4));
    }
}
