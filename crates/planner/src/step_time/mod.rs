//! Step time of a run, by phase.

pub(crate) mod block;
mod collectives;
pub(crate) mod cost;
pub(crate) mod rates;

use serde::Serialize;

use crate::coefficients::Coefficients;
use crate::layer_assignment::fullest_and_last;
use crate::parallelism::Schedule;
use crate::run::{Framework, TrainingRun, TrainingTask};

use collectives::CommTime;

pub use cost::OpKind;
pub use rates::AchievedRates;

/// A phase of a training step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum StepPhase {
    /// GEMMs of linear layers and the output projection.
    #[serde(rename = "products")]
    Gemm,
    /// The attention core.
    Attention,
    /// Norms, activation functions, residual sums, quantization, the loss.
    Pointwise,
    /// Exposed tensor-parallel communication.
    Tensor,
    /// Exposed context-parallel communication.
    Context,
    /// Exposed expert-parallel communication (all-to-all).
    Expert,
    /// Exposed point-to-point transfers between pipeline stages.
    #[serde(rename = "stage")]
    PipelineP2p,
    /// Pipeline bubble.
    Bubble,
    /// Exposed data-parallel communication (all-reduce, all-gather, reduce-scatter).
    #[serde(rename = "copies")]
    DataParallel,
    Optimizer,
    /// Kernel launches that the GPU waits for, and per-step host work.
    Host,
    /// Waiting for stragglers.
    Jitter,
}

impl StepPhase {
    /// All phases, in the order in which reports list them.
    pub const ALL: [Self; 12] = [
        Self::Gemm,
        Self::Attention,
        Self::Pointwise,
        Self::Tensor,
        Self::Context,
        Self::Expert,
        Self::PipelineP2p,
        Self::Bubble,
        Self::DataParallel,
        Self::Optimizer,
        Self::Host,
        Self::Jitter,
    ];

    /// Display name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gemm => "GEMMs",
            Self::Attention => "attention",
            Self::Pointwise => "pointwise",
            Self::Tensor => "tensor-parallel communication",
            Self::Context => "context-parallel communication",
            Self::Expert => "expert-parallel all-to-all",
            Self::PipelineP2p => "pipeline point-to-point",
            Self::Bubble => "pipeline bubble",
            Self::DataParallel => "data-parallel communication",
            Self::Optimizer => "optimizer",
            Self::Host => "host and kernel launches",
            Self::Jitter => "stragglers",
        }
    }
}

/// Time of a step by phase.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct StepTime {
    phases: [f64; 12],
    /// The part of each phase spent on the network between `NVLink` domains.
    network: [f64; 12],
}

impl StepTime {
    /// The whole step.
    pub fn total_s(&self) -> f64 {
        self.phases.iter().sum()
    }

    pub fn phase_s(&self, phase: StepPhase) -> f64 {
        self.phases[phase as usize]
    }

    /// The part of a phase spent on the network between `NVLink` domains.
    pub fn network_s(&self, phase: StepPhase) -> f64 {
        self.network[phase as usize]
    }

    fn add(&mut self, phase: StepPhase, seconds: f64) {
        self.phases[phase as usize] += seconds;
    }

    fn add_comm(&mut self, phase: StepPhase, comm: CommTime) {
        self.phases[phase as usize] += comm.total_s();
        self.network[phase as usize] += comm.network_s;
    }

    fn add_scaled(&mut self, other: &Self, times: f64) {
        for phase in 0..self.phases.len() {
            self.phases[phase] += other.phases[phase] * times;
            self.network[phase] += other.network[phase] * times;
        }
    }
}

/// Time of one step of a run.
pub fn step(run: &TrainingRun, coefficients: &Coefficients) -> StepTime {
    let rates = AchievedRates::new(run, coefficients);
    let parallelism = &run.parallelism;
    let micro_batches = f64::from(run.micro_batches());
    let stages = f64::from(parallelism.pp);

    // The time of the slowest stage determines the time of all micro-batches. The bubble is a
    // number of passes through a stage with the mean number of layers.
    let dense = block::dense(run, &rates, coefficients);
    let moe = block::moe(run, &rates, coefficients);
    let (dense_layers, expert_layers) =
        (f64::from(run.model.dense_layers()), f64::from(run.model.expert_layers()));
    let layers = dense_layers + expert_layers;
    let mut mean = StepTime::default();
    mean.add_scaled(&dense, dense_layers / stages);
    mean.add_scaled(&moe, expert_layers / stages);
    let mut ends = StepTime::default();
    block::embedding_and_loss(run, &rates, coefficients, &mut ends);
    // A multi-token prediction (MTP) layer has the same kind as the last layer, and runs after it.
    let last_block = if expert_layers > 0.0 { &moe } else { &dense };
    ends.add_scaled(last_block, f64::from(run.model.mtp_layers));
    let (fullest, last) = fullest_and_last(run);
    let relative_to_mean = |layers_of_stage: u32| f64::from(layers_of_stage) * stages / layers;
    let (fullest, last) = (relative_to_mean(fullest), relative_to_mean(last));
    let fullest_s = mean.total_s() * fullest;
    let last_s = mean.total_s() * last + ends.total_s();

    let mut time = StepTime::default();
    if last_s > fullest_s {
        time.add_scaled(&mean, last * micro_batches);
        time.add_scaled(&ends, micro_batches);
    } else {
        time.add_scaled(&mean, fullest * micro_batches);
    }

    let p2p = collectives::pipeline_p2p(run, &rates, coefficients);
    time.add_comm(StepPhase::PipelineP2p, p2p.times(micro_batches));
    if parallelism.pp > 1 {
        let pass = mean.total_s() + ends.total_s() / stages + p2p.total_s();
        time.add(StepPhase::Bubble, bubble_passes(run) * pass * coefficients.bubble);
    }
    let overlappable_s = time.total_s();
    collectives::data_parallel(run, &rates, coefficients, overlappable_s, &mut time);
    block::optimizer(run, &rates, coefficients, &mut time);
    time.add(StepPhase::Host, coefficients.host_step_s);

    let doublings = (f64::from(parallelism.gpus()) / 8.0).log2().max(0.0);
    time.add(StepPhase::Jitter, time.total_s() * coefficients.jitter * doublings);
    let mut scaled = StepTime::default();
    scaled.add_scaled(&time, framework_factor(run, coefficients));
    scaled
}

/// Pipeline bubble, in passes (forward and backward) of a micro-batch through a stage.
fn bubble_passes(run: &TrainingRun) -> f64 {
    let stages = f64::from(run.parallelism.pp);
    match run.parallelism.schedule {
        Schedule::OneForwardOneBackward => (stages - 1.0) / f64::from(run.parallelism.vp.max(1)),
        // ZB-H1 computes weight gradients during the bubble, so that a third of the bubble remains.
        // With frozen weights there are no weight gradients, so the whole bubble remains.
        Schedule::ZeroBubble if run.task == TrainingTask::Full => (stages - 1.0) / 3.0,
        Schedule::ZeroBubble => stages - 1.0,
        // The bubble of DualPipe is (PP/2 − 1)(F&B + B − 3W), arXiv:2412.19437 Table 2. F&B is a
        // whole pass, B (backward) is two thirds of it, and W (weight gradient) one third.
        Schedule::DualPipe => (stages / 2.0 - 1.0).max(0.0) * 2.0 / 3.0,
    }
}

fn framework_factor(run: &TrainingRun, coefficients: &Coefficients) -> f64 {
    match run.framework {
        Framework::MegatronEarly => coefficients.stack_megatron_early,
        Framework::Megatron => coefficients.stack_megatron,
        Framework::Bridge if run.model.experts.is_some() => coefficients.stack_bridge_expert,
        Framework::Bridge => coefficients.stack_bridge,
        Framework::Fsdp | Framework::Foundry => coefficients.stack_fsdp,
        Framework::FsdpCompiled => coefficients.stack_fsdp_compiled,
        Framework::Tuned => coefficients.stack_tuned,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::Accelerator;
    use crate::model::builtin;
    use crate::parallelism::{ParallelConfig, Recompute, Sharding};
    use crate::precision::Precision;
    use crate::run::TrainingTask;
    use farrier_facts::FactSet;

    fn run(model: &str, parallelism: ParallelConfig) -> TrainingRun {
        TrainingRun {
            model: builtin::by_name(model).unwrap().model(),
            gpu: Accelerator::by_name(FactSet::embedded(), "H100-SXM-80GB").unwrap(),
            seq_len: 8192,
            global_batch: 256,
            precision: Precision::Bf16,
            parallelism,
            task: TrainingTask::Full,
            framework: Framework::Bridge,
            fused_experts: false,
        }
    }

    fn seconds(run: &TrainingRun) -> StepTime {
        step(run, &Coefficients::priors())
    }

    #[test]
    fn frozen_sharded_weights_are_all_gathered() {
        let sharded =
            ParallelConfig { sharding: Sharding::Weights, ..ParallelConfig::data_parallel(64, 1) };
        let mut lora = run("llama3-70b", sharded);
        lora.task = TrainingTask::Lora;
        assert!(seconds(&lora).phase_s(StepPhase::DataParallel) > 0.0);
        lora.parallelism.sharding = Sharding::Optimizer;
        assert!(seconds(&lora).phase_s(StepPhase::DataParallel) <= 0.0);
    }

    #[test]
    fn mtp_layers_take_time() {
        let with =
            run("deepseek-v3", ParallelConfig { ep: 8, ..ParallelConfig::data_parallel(64, 1) });
        let mut without = with.clone();
        without.model.mtp_layers = 0;
        let ratio = seconds(&with).total_s() / seconds(&without).total_s();
        // The MTP layer is one of 62 layers, and adds a second output projection.
        assert!((1.01..1.08).contains(&ratio), "{ratio}");
    }

    #[test]
    fn slower_settings_take_longer() {
        let plain =
            run("llama3-70b", ParallelConfig { tp: 8, ..ParallelConfig::data_parallel(8, 1) });
        let time = |change: fn(&mut TrainingRun)| {
            let mut changed = plain.clone();
            change(&mut changed);
            seconds(&changed).total_s()
        };
        let base = seconds(&plain).total_s();
        assert!(time(|run| run.parallelism.recompute = Recompute::Full) > 1.2 * base);
        assert!(time(|run| run.precision = Precision::Fp8) < base);
        assert!(time(|run| run.gpu.link_bytes_per_s /= 4.0) > base);
        assert!(time(|run| run.gpu.hbm_bytes_per_s /= 4.0) > base);
        assert!(time(|run| run.parallelism.tensor_overlap = false) > base);
        assert!(time(|run| (run.parallelism.pp, run.parallelism.dp) = (8, 1)) > base);
    }
}
