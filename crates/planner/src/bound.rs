//! What a run is bound by, and the speedup from relaxing each bound.

use serde::Serialize;

use crate::coefficients::Coefficients;
use crate::run::TrainingRun;
use crate::step_time::{self, StepPhase, StepTime};

/// A resource that limits a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bound {
    /// Tensor-core arithmetic.
    Tensor,
    /// GPU memory bandwidth.
    Hbm,
    /// `NVLink`, or `PCIe` within a node without `NVLink`.
    Nvlink,
    /// The network between `NVLink` domains.
    Network,
    /// Idle pipeline stages.
    Bubble,
    /// Kernel launches, host time, and stragglers.
    Launch,
}

impl Bound {
    pub const ALL: [Self; 6] =
        [Self::Tensor, Self::Hbm, Self::Nvlink, Self::Network, Self::Bubble, Self::Launch];

    pub fn name(self) -> &'static str {
        match self {
            Self::Tensor => "tensor",
            Self::Hbm => "hbm",
            Self::Nvlink => "nvlink",
            Self::Network => "network",
            Self::Bubble => "bubble",
            Self::Launch => "launch",
        }
    }

    /// Display name, depending on whether the GPU has `NVLink`.
    pub fn name_on(self, has_nvlink: bool) -> &'static str {
        match self {
            Self::Nvlink if !has_nvlink => "pcie",
            _ => self.name(),
        }
    }

    /// The dominant bound of a phase.
    pub fn for_phase(phase: StepPhase, step: &StepTime) -> Self {
        if step.network_s(phase) > 0.5 * step.phase_s(phase) {
            Self::Network
        } else {
            Self::excluding_network(phase)
        }
    }

    /// The bound of the part of a phase that does not wait for the network.
    fn excluding_network(phase: StepPhase) -> Self {
        match phase {
            StepPhase::Gemm | StepPhase::Attention => Self::Tensor,
            StepPhase::Pointwise | StepPhase::Optimizer => Self::Hbm,
            StepPhase::Tensor
            | StepPhase::Context
            | StepPhase::Expert
            | StepPhase::PipelineP2p
            | StepPhase::DataParallel => Self::Nvlink,
            StepPhase::Bubble => Self::Bubble,
            StepPhase::Host | StepPhase::Jitter => Self::Launch,
        }
    }
}

/// Share of a step limited by one bound.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct BoundShare {
    pub bound: Bound,
    pub share: f64,
    /// Relative speedup from 10 % more of the resource. For bubble and launch: from their time
    /// divided by 1.1.
    #[serde(rename = "gain_of_tenth")]
    pub gain_from_tenth_more: f64,
}

/// The bounds of a run, in the order of [`Bound::ALL`].
pub fn shares(run: &TrainingRun, step: &StepTime, coefficients: &Coefficients) -> Vec<BoundShare> {
    let total = step.total_s();
    let part = |bound: Bound, phase: StepPhase| match bound {
        Bound::Network => step.network_s(phase),
        _ if Bound::excluding_network(phase) == bound => {
            step.phase_s(phase) - step.network_s(phase)
        }
        _ => 0.0,
    };
    let share = |bound| StepPhase::ALL.iter().map(|phase| part(bound, *phase)).sum::<f64>() / total;
    let relaxed_s = |bound: Bound| {
        let (run, coefficients) = with_tenth_more(run, coefficients, bound);
        step_time::step(run.as_ref(), &coefficients).total_s()
    };
    Bound::ALL
        .into_iter()
        .map(|bound| BoundShare {
            bound,
            share: share(bound),
            gain_from_tenth_more: (total / relaxed_s(bound) - 1.0).max(0.0),
        })
        .collect()
}

/// The run and coefficients with 10 % more of a resource.
fn with_tenth_more(
    run: &TrainingRun,
    coefficients: &Coefficients,
    bound: Bound,
) -> (Box<TrainingRun>, Coefficients) {
    const MORE: f64 = 1.1;
    let mut run = Box::new(run.clone());
    let mut coefficients = coefficients.clone();
    match bound {
        Bound::Tensor => {
            run.gpu.flops_16bit *= MORE;
            run.gpu.fp8_flops *= MORE;
            run.gpu.fp4_flops *= MORE;
        }
        Bound::Hbm => run.gpu.hbm_bytes_per_s *= MORE,
        Bound::Nvlink => {
            run.gpu.link_bytes_per_s *= MORE;
            coefficients.link_hop_s /= MORE;
        }
        Bound::Network => {
            run.gpu.network_bytes_per_s *= MORE;
            coefficients.network_hop_s /= MORE;
        }
        Bound::Bubble => coefficients.bubble /= MORE,
        Bound::Launch => {
            coefficients.host_block_eager_s /= MORE;
            coefficients.host_block_fused_s /= MORE;
            coefficients.host_expert_s /= MORE;
            coefficients.host_step_s /= MORE;
            coefficients.jitter /= MORE;
        }
    }
    (run, coefficients)
}
