//! How long a step takes, and on what.

pub(crate) mod block;
mod exchange;
pub(crate) mod rates;
pub(crate) mod work;

use serde::Serialize;

use crate::coefficients::Coefficients;
use crate::layout::Schedule;
use crate::pieces::fullest_and_last;
use crate::run::{Run, Stack, Task};

use exchange::Wait;

pub use rates::Rates;
pub use work::Kind;

/// What a part of a step is spent on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Products of matrices.
    Products,
    /// The core of attention.
    Attention,
    /// Norms, activations, sums, scaling, the loss.
    Pointwise,
    /// Traffic of tensor parallelism.
    Tensor,
    /// Traffic of context parallelism.
    Context,
    /// Traffic of expert parallelism.
    Expert,
    /// Traffic between stages.
    Stage,
    /// Idle stages of the pipeline.
    Bubble,
    /// Traffic between copies of the model.
    Copies,
    /// The optimizer.
    Optimizer,
    /// The host: launches that the GPU waits for, and what a step takes besides.
    Host,
    /// Waiting for the slowest.
    Jitter,
}

impl Phase {
    /// All of them, in the order of a step.
    pub const ALL: [Self; 12] = [
        Self::Products,
        Self::Attention,
        Self::Pointwise,
        Self::Tensor,
        Self::Context,
        Self::Expert,
        Self::Stage,
        Self::Bubble,
        Self::Copies,
        Self::Optimizer,
        Self::Host,
        Self::Jitter,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Products => "products",
            Self::Attention => "attention",
            Self::Pointwise => "pointwise",
            Self::Tensor => "tensor-parallel traffic",
            Self::Context => "context-parallel traffic",
            Self::Expert => "expert-parallel traffic",
            Self::Stage => "traffic between stages",
            Self::Bubble => "pipeline bubble",
            Self::Copies => "traffic between copies",
            Self::Optimizer => "optimizer",
            Self::Host => "host",
            Self::Jitter => "jitter",
        }
    }
}

/// The time of a step, by what it is spent on.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct StepTime {
    phases: [f64; 12],
    /// What of each phase is waiting for the network.
    network: [f64; 12],
}

impl StepTime {
    /// The whole step, in seconds.
    pub fn total_s(&self) -> f64 {
        self.phases.iter().sum()
    }

    /// A phase of it, in seconds.
    pub fn of(&self, phase: Phase) -> f64 {
        self.phases[phase as usize]
    }

    /// What of a phase is waiting for the network between domains of `NVLink`, in seconds.
    pub fn network_s(&self, phase: Phase) -> f64 {
        self.network[phase as usize]
    }

    fn add(&mut self, phase: Phase, seconds: f64) {
        self.phases[phase as usize] += seconds;
    }

    fn wait(&mut self, phase: Phase, wait: Wait) {
        self.phases[phase as usize] += wait.total_s();
        self.network[phase as usize] += wait.network_s;
    }

    /// Adds another so many times.
    fn add_all(&mut self, other: &Self, times: f64) {
        for phase in 0..self.phases.len() {
            self.phases[phase] += other.phases[phase] * times;
            self.network[phase] += other.network[phase] * times;
        }
    }
}

/// How long a step of a run takes.
pub fn step(run: &Run, fitted: &Coefficients) -> StepTime {
    let rates = Rates::of(run, fitted);
    let layout = &run.layout;
    let micro_batches = f64::from(run.micro_batches());
    let stages = f64::from(layout.pp);

    // The fullest stage sets the pace; the mean one fills the pipeline.
    let dense = block::dense(run, &rates, fitted);
    let mixture = block::mixture(run, &rates, fitted);
    let (dense_layers, expert_layers) =
        (f64::from(run.model.dense_layers()), f64::from(run.model.expert_layers()));
    let layers = dense_layers + expert_layers;
    let mut mean = StepTime::default();
    mean.add_all(&dense, dense_layers / stages);
    mean.add_all(&mixture, expert_layers / stages);
    let mut ends = StepTime::default();
    block::ends(run, &rates, fitted, &mut ends);
    // A block that predicts a further token is like the last one, and stands behind it.
    let last_block = if expert_layers > 0.0 { &mixture } else { &dense };
    ends.add_all(last_block, f64::from(run.model.mtp_layers));
    let (fullest, last) = fullest_and_last(run);
    let beside_mean = |blocks: u32| f64::from(blocks) * stages / layers;
    let (fullest, last) = (beside_mean(fullest), beside_mean(last));
    let at_fullest = mean.total_s() * fullest;
    let at_last = mean.total_s() * last + ends.total_s();

    let mut time = StepTime::default();
    if at_last > at_fullest {
        time.add_all(&mean, last * micro_batches);
        time.add_all(&ends, micro_batches);
    } else {
        time.add_all(&mean, fullest * micro_batches);
    }

    let stage = exchange::between_stages(run, &rates, fitted);
    time.wait(Phase::Stage, stage.times(micro_batches));
    if layout.pp > 1 {
        let pass = mean.total_s() + ends.total_s() / stages + stage.total_s();
        time.add(Phase::Bubble, idle_passes(run) * pass * fitted.bubble);
    }
    let hideable = time.total_s();
    exchange::between_copies(run, &rates, fitted, hideable, &mut time);
    block::optimizer(run, &rates, fitted, &mut time);
    time.add(Phase::Host, fitted.host_step_s);

    let doublings = (f64::from(layout.gpus()) / 8.0).log2().max(0.0);
    time.add(Phase::Jitter, time.total_s() * fitted.jitter * doublings);
    let mut scaled = StepTime::default();
    scaled.add_all(&time, stack_factor(run, fitted));
    scaled
}

/// Passes of a micro-batch through a stage that the pipeline stands idle for.
fn idle_passes(run: &Run) -> f64 {
    let stages = f64::from(run.layout.pp);
    match run.layout.schedule {
        Schedule::OneForwardOneBackward => (stages - 1.0) / f64::from(run.layout.vp.max(1)),
        // The gradient of weights, a third of a pass, fills the gap; where weights do not learn
        // there is nothing to fill it with.
        Schedule::ZeroBubble if run.task == Task::Full => (stages - 1.0) / 3.0,
        Schedule::ZeroBubble => stages - 1.0,
        // Half of the stages but one, for a pass there and back under way together, a way back and
        // less three gradients of weights (arXiv:2412.19437, Table 2), where a way back is two
        // thirds of a pass and the gradient of weights one.
        Schedule::DualPipe => (stages / 2.0 - 1.0).max(0.0) * 2.0 / 3.0,
    }
}

fn stack_factor(run: &Run, fitted: &Coefficients) -> f64 {
    match run.stack {
        Stack::MegatronEarly => fitted.stack_megatron_early,
        Stack::Megatron => fitted.stack_megatron,
        Stack::Bridge if run.model.experts.is_some() => fitted.stack_bridge_expert,
        Stack::Bridge => fitted.stack_bridge,
        Stack::Fsdp | Stack::Foundry => fitted.stack_fsdp,
        Stack::FsdpCompiled => fitted.stack_fsdp_compiled,
        Stack::Tuned => fitted.stack_tuned,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::Accelerator;
    use crate::layout::{Layout, Recompute, Sharding};
    use crate::model::builtin;
    use crate::precision::Precision;
    use crate::run::Task;
    use farrier_facts::FactSet;

    fn run(model: &str, layout: Layout) -> Run {
        Run {
            model: builtin::named(model).unwrap().model(),
            gpu: Accelerator::named(FactSet::embedded(), "H100-SXM-80GB").unwrap(),
            seq_len: 8192,
            global_batch: 256,
            precision: Precision::Bf16,
            layout,
            task: Task::Full,
            stack: Stack::Bridge,
            fused_experts: false,
        }
    }

    fn seconds(run: &Run) -> StepTime {
        step(run, &Coefficients::expected())
    }

    #[test]
    fn frozen_weights_that_are_shared_are_gathered() {
        let shared = Layout { sharding: Sharding::Weights, ..Layout::copies(64, 1) };
        let mut lora = run("llama3-70b", shared);
        lora.task = Task::Lora;
        assert!(seconds(&lora).of(Phase::Copies) > 0.0);
        lora.layout.sharding = Sharding::Optimizer;
        assert!(seconds(&lora).of(Phase::Copies) <= 0.0);
    }

    #[test]
    fn blocks_that_predict_further_tokens_take_time() {
        let with = run("deepseek-v3", Layout { ep: 8, ..Layout::copies(64, 1) });
        let mut without = with.clone();
        without.model.mtp_layers = 0;
        let ratio = seconds(&with).total_s() / seconds(&without).total_s();
        // One of 62 blocks, and another output projection.
        assert!((1.01..1.08).contains(&ratio), "{ratio}");
    }

    #[test]
    fn each_thing_that_costs_costs() {
        let plain = run("llama3-70b", Layout { tp: 8, ..Layout::copies(8, 1) });
        let time = |change: fn(&mut Run)| {
            let mut changed = plain.clone();
            change(&mut changed);
            seconds(&changed).total_s()
        };
        let base = seconds(&plain).total_s();
        assert!(time(|run| run.layout.recompute = Recompute::Full) > 1.2 * base);
        assert!(time(|run| run.precision = Precision::Fp8) < base);
        assert!(time(|run| run.gpu.link_bytes_per_s /= 4.0) > base);
        assert!(time(|run| run.gpu.hbm_bytes_per_s /= 4.0) > base);
        assert!(time(|run| run.layout.tensor_overlap = false) > base);
        assert!(time(|run| (run.layout.pp, run.layout.dp) = (8, 1)) > base);
    }
}
