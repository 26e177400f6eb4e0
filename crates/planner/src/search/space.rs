//! Search space: candidate values of every axis of a parallelism config.

use crate::model::TransformerConfig;
use crate::parallelism::{ParallelConfig, Recompute, Schedule, Sharding};
use crate::plan::default_framework;
use crate::run::{Framework, TrainingRun};

/// Values that the user pinned. The search varies the values that are `None`, unless noted
/// otherwise.
#[derive(Debug, Clone, Default)]
pub struct Constraints {
    pub tp: Option<u32>,
    pub pp: Option<u32>,
    pub vp: Option<u32>,
    pub cp: Option<u32>,
    pub ep: Option<u32>,
    pub sharding: Option<Sharding>,
    pub recompute: Option<Recompute>,
    pub micro_batch: Option<u32>,
    pub dp: Option<u32>,
    /// The search does not vary the schedule. `None` stands for 1F1B.
    pub schedule: Option<Schedule>,
    /// `None` stands for the default framework of each config.
    pub framework: Option<Framework>,
    /// `None` stands for the framework's default.
    pub reduce_bytes: Option<u8>,
}

/// Breadth of a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Breadth {
    /// Configs that are common in practice. Pinned values only narrow this set.
    Common,
    /// Every config that can be evaluated. Used if no common config fits.
    Exhaustive,
}

/// A longer pipeline loses more time to the bubble than it gains.
pub(crate) const MAX_STAGES: u32 = 64;

/// A GPU with a shorter shard of the sequence is not fully used.
const MIN_SHARD_TOKENS: u32 = 512;

/// Larger micro-batches do not make a step faster.
const MAX_MICRO_BATCH: u32 = 32;

/// The largest TP to try is the size of the `NVLink` domain, clamped to this range.
const MAX_TP_RANGE: (u32, u32) = (8, 16);

impl Constraints {
    /// The framework of a parallelism config.
    fn framework_for(&self, parallelism: &ParallelConfig) -> Framework {
        self.framework.unwrap_or_else(|| default_framework(parallelism))
    }

    /// The same constraints without pinned parallelism. `None` if no parallelism is pinned.
    pub fn relaxed(&self) -> Option<Self> {
        let is_fixed = !self.fixed_counts().is_empty()
            || self.sharding.is_some()
            || self.recompute.is_some()
            || self.schedule.is_some();
        let (framework, reduce_bytes) = (self.framework, self.reduce_bytes);
        is_fixed.then(|| Self { framework, reduce_bytes, ..Self::default() })
    }

    /// Applies a parallelism config and its framework to a run.
    pub fn apply(&self, run: &mut TrainingRun, parallelism: ParallelConfig) {
        run.parallelism = parallelism;
        run.framework = self.framework_for(&parallelism);
        run.fused_experts = run.fuses_experts();
    }

    /// The pinned integers, by name.
    pub(super) fn fixed_counts(&self) -> Vec<(&'static str, u32)> {
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

    /// Candidate configs for `gpus` GPUs. Pinned values must not be 0.
    pub(super) fn configs(
        &self,
        run: &TrainingRun,
        gpus: u32,
        breadth: Breadth,
    ) -> Vec<ParallelConfig> {
        let mut configs = Vec::new();
        for tp in self.tensor(run) {
            for pp in self.stages(&run.model, gpus, breadth) {
                for cp in self.context(run) {
                    let shared = u64::from(tp) * u64::from(pp) * u64::from(cp);
                    if shared > u64::from(gpus) || !u64::from(gpus).is_multiple_of(shared) {
                        continue;
                    }
                    let dp = u32::try_from(u64::from(gpus) / shared).unwrap_or(u32::MAX);
                    if self.dp.is_some_and(|fixed| fixed != dp) {
                        continue;
                    }
                    let ranks = ParallelConfig { dp, tp, pp, cp, ..run.parallelism };
                    self.push_variants(run, ranks, breadth, &mut configs);
                }
            }
        }
        configs
    }

    /// Adds the configs with the given DP, TP, PP and CP.
    fn push_variants(
        &self,
        run: &TrainingRun,
        ranks: ParallelConfig,
        breadth: Breadth,
        configs: &mut Vec<ParallelConfig>,
    ) {
        let per_replica = run.global_batch / ranks.dp.max(1);
        for micro_batch in self.micro_batches(per_replica) {
            for vp in self.virtual_stages(&run.model, ranks.pp, breadth) {
                for ep in self.experts(&run.model, &ranks) {
                    for sharding in self.shardings(&ParallelConfig { ep, ..ranks }, breadth) {
                        let framework = self.framework_for(&ParallelConfig { sharding, ..ranks });
                        for recompute in self.recompute_modes(framework, breadth) {
                            configs.push(ParallelConfig {
                                micro_batch,
                                vp,
                                ep,
                                sharding,
                                recompute,
                                schedule: self.schedule.unwrap_or(Schedule::OneForwardOneBackward),
                                tensor_overlap: framework.overlaps_tp(),
                                reduce_bytes: self.reduce_bytes.unwrap_or(framework.reduce_bytes()),
                                ..ranks
                            });
                        }
                    }
                }
            }
        }
    }

    fn tensor(&self, run: &TrainingRun) -> Vec<u32> {
        let max =
            run.gpu.domain.clamp(MAX_TP_RANGE.0, MAX_TP_RANGE.1).min(run.model.attention.heads());
        powers(self.tp, max, |tp| run.model.attention.heads().is_multiple_of(tp))
    }

    fn context(&self, run: &TrainingRun) -> Vec<u32> {
        let max = (run.seq_len / MIN_SHARD_TOKENS).clamp(1, 64);
        powers(self.cp, max, |cp| run.seq_len.is_multiple_of(2 * cp) || cp == 1)
    }

    fn stages(&self, model: &TransformerConfig, gpus: u32, breadth: Breadth) -> Vec<u32> {
        let max = match breadth {
            Breadth::Common => MAX_STAGES.min(model.layers),
            Breadth::Exhaustive => model.layers,
        };
        match self.pp {
            Some(pp) => vec![pp],
            None => (1..=max).filter(|pp| gpus.is_multiple_of(*pp)).collect(),
        }
    }

    /// Possible numbers of virtual stages. If each pipeline stage has the same number of layers,
    /// the virtual stages must divide it evenly. Otherwise no virtual stage may be empty.
    fn virtual_stages(&self, model: &TransformerConfig, pp: u32, breadth: Breadth) -> Vec<u32> {
        let per_stage = if pp == 1 { 1 } else { model.layers.div_ceil(pp) };
        let is_common = |vp: &u32| {
            let layers_max = model.layers.div_ceil(pp.saturating_mul(*vp)).max(1);
            let missing = (layers_max * pp * vp).saturating_sub(model.layers);
            if model.layers.is_multiple_of(pp) {
                per_stage.is_multiple_of(*vp)
            } else {
                missing < layers_max.max(3)
            }
        };
        match (self.vp, breadth) {
            (Some(vp), Breadth::Exhaustive) => vec![vp],
            (Some(vp), Breadth::Common) => Some(vp).filter(is_common).into_iter().collect(),
            (None, _) => (1..=per_stage).filter(is_common).collect(),
        }
    }

    fn experts(&self, model: &TransformerConfig, config: &ParallelConfig) -> Vec<u32> {
        let Some(experts) = model.experts else { return vec![self.ep.unwrap_or(1)] };
        let ranks = config.dp * config.cp * config.tp;
        powers(self.ep, experts.count.min(ranks), |ep| {
            experts.count.is_multiple_of(ep) && ranks.is_multiple_of(ep)
        })
    }

    fn shardings(&self, config: &ParallelConfig, breadth: Breadth) -> Vec<Sharding> {
        let is_common = |sharding: Sharding| {
            let is_megatron =
                self.framework_for(&ParallelConfig { sharding, ..*config }).is_megatron();
            match sharding {
                // Full replication has no advantage over ZeRO-1, and FSDP supports neither.
                Sharding::None => false,
                Sharding::Optimizer => is_megatron,
                // Megatron-FSDP is used instead of pipeline and expert parallelism.
                Sharding::Gradients => {
                    !is_megatron || config.pp == 1 || breadth == Breadth::Exhaustive
                }
                Sharding::Weights => {
                    !is_megatron
                        || (config.pp == 1 && config.ep == 1)
                        || breadth == Breadth::Exhaustive
                }
            }
        };
        match self.sharding {
            None => Sharding::ALL.into_iter().filter(|sharding| is_common(*sharding)).collect(),
            Some(fixed @ (Sharding::None | Sharding::Optimizer)) => vec![fixed],
            Some(fixed) => Some(fixed).filter(|fixed| is_common(*fixed)).into_iter().collect(),
        }
    }

    fn recompute_modes(&self, framework: Framework, breadth: Breadth) -> Vec<Recompute> {
        match (self.recompute, breadth) {
            (None, _) => framework.recompute_modes().to_vec(),
            (Some(fixed), Breadth::Exhaustive) => Some(fixed)
                .filter(|fixed| framework.supports_recompute(*fixed))
                .into_iter()
                .collect(),
            (Some(fixed @ Recompute::Layers(_)), Breadth::Common) => vec![fixed],
            (Some(fixed), Breadth::Common) => Some(fixed)
                .filter(|fixed| framework.recompute_modes().contains(fixed))
                .into_iter()
                .collect(),
        }
    }

    fn micro_batches(&self, per_replica: u32) -> Vec<u32> {
        if let Some(micro_batch) = self.micro_batch {
            return vec![micro_batch];
        }
        let divides = |size: &u32| per_replica > 0 && per_replica.is_multiple_of(*size);
        let found: Vec<u32> = (1..=MAX_MICRO_BATCH).filter(divides).collect();
        if found.is_empty() { vec![1] } else { found }
    }
}

/// The pinned value, or the powers of two up to `max` that satisfy `is_possible`.
fn powers(fixed: Option<u32>, max: u32, is_possible: impl Fn(u32) -> bool) -> Vec<u32> {
    match fixed {
        Some(fixed) => vec![fixed],
        None => (0..32)
            .map(|power| 1_u32 << power)
            .take_while(|number| *number <= max)
            .filter(|number| is_possible(*number))
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::Accelerator;
    use crate::model::builtin;
    use crate::precision::Precision;
    use crate::run::TrainingTask;
    use farrier_facts::FactSet;

    fn configs(model: &str, gpus: u32, constraints: &Constraints) -> Vec<ParallelConfig> {
        let run = TrainingRun {
            model: builtin::by_name(model).unwrap().model(),
            gpu: Accelerator::by_name(FactSet::embedded(), "H100-SXM-80GB").unwrap(),
            seq_len: 8192,
            global_batch: 4096,
            precision: Precision::Bf16,
            parallelism: ParallelConfig::data_parallel(gpus, 1),
            task: TrainingTask::Full,
            framework: Framework::Bridge,
            fused_experts: false,
        };
        constraints.configs(&run, gpus, Breadth::Common)
    }

    #[test]
    fn fixed_values_are_kept() {
        let constraints = Constraints { tp: Some(4), dp: Some(2), ..Constraints::default() };
        let found = configs("llama3-70b", 64, &constraints);
        assert!(!found.is_empty());
        assert!(found.iter().all(|parallelism| parallelism.tp == 4
            && parallelism.dp == 2
            && parallelism.gpus() == 64));
    }

    #[test]
    fn virtual_stages_divide_evenly_or_none_is_empty() {
        let virtual_stages = |model: &str, pp| {
            let model = builtin::by_name(model).unwrap().model();
            Constraints::default().virtual_stages(&model, pp, Breadth::Common)
        };
        assert_eq!(virtual_stages("llama3-8b", 4), [1, 2, 4, 8]);
        // 61 layers in two stages of 31. With VP 4 there are eight virtual stages of eight layers,
        // of which the last has five.
        assert_eq!(virtual_stages("deepseek-v3", 2), [1, 2, 3, 4, 8, 31]);
    }

    #[test]
    fn candidates_follow_the_framework() {
        let found = configs("qwen3-235b-a22b", 256, &Constraints::default());
        let both = |parallelism: &&ParallelConfig| {
            parallelism.sharding == Sharding::Weights && parallelism.ep > 1
        };
        assert!(found.iter().any(|config| both(&config)), "torchtitan combines EP with FSDP");
        let constraints =
            Constraints { framework: Some(Framework::Bridge), ..Constraints::default() };
        let found = configs("qwen3-235b-a22b", 256, &constraints);
        assert!(!found.iter().any(|parallelism| both(&parallelism)), "Megatron-FSDP does not");
        let constraints =
            Constraints { framework: Some(Framework::FsdpCompiled), ..Constraints::default() };
        let fsdp = configs("llama3-8b", 8, &constraints);
        assert!(fsdp.iter().all(|parallelism| parallelism.sharding >= Sharding::Gradients));
        assert!(
            fsdp.iter()
                .all(|parallelism| parallelism.reduce_bytes == 4 && !parallelism.tensor_overlap)
        );
        assert!(fsdp.iter().any(|parallelism| parallelism.recompute == Recompute::Operators));
        assert!(!fsdp.iter().any(|parallelism| parallelism.recompute == Recompute::Modules));
        let constraints =
            Constraints { framework: Some(Framework::Bridge), ..Constraints::default() };
        let megatron = configs("llama3-8b", 8, &constraints);
        for sharding in [Sharding::Optimizer, Sharding::Gradients, Sharding::Weights] {
            assert!(
                megatron.iter().any(|parallelism| parallelism.sharding == sharding),
                "{sharding:?}"
            );
        }
        assert!(
            megatron
                .iter()
                .all(|parallelism| parallelism.reduce_bytes == 2 && parallelism.tensor_overlap)
        );
        assert!(!megatron.iter().any(|parallelism| parallelism.recompute == Recompute::Operators));
        let constraints = Constraints { reduce_bytes: Some(4), ..constraints };
        assert!(
            configs("llama3-8b", 8, &constraints)
                .iter()
                .all(|parallelism| parallelism.reduce_bytes == 4)
        );
    }

    #[test]
    fn fixed_values_only_narrow_the_search() {
        let all = configs("llama3-70b", 64, &Constraints::default());
        for constraints in [
            Constraints { vp: Some(5), ..Constraints::default() },
            Constraints { cp: Some(4), ..Constraints::default() },
            Constraints { pp: Some(16), ..Constraints::default() },
            Constraints { sharding: Some(Sharding::Weights), ..Constraints::default() },
            Constraints { sharding: Some(Sharding::Gradients), ..Constraints::default() },
            Constraints { recompute: Some(Recompute::Modules), ..Constraints::default() },
            Constraints { recompute: Some(Recompute::EverySecond), ..Constraints::default() },
        ] {
            let fixed = configs("llama3-70b", 64, &constraints);
            assert!(!fixed.is_empty(), "{constraints:?}");
            assert!(fixed.iter().all(|parallelism| all.contains(parallelism)), "{constraints:?}");
        }
    }
}
