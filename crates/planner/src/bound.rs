//! What holds a run back, and what more of each would bring.

use serde::Serialize;

use crate::coefficients::Coefficients;
use crate::run::Run;
use crate::time::{self, Phase, StepTime};

/// Something that a run can be short of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bound {
    /// Arithmetic of the tensor cores.
    Tensor,
    /// The rate of the GPU's memory.
    Hbm,
    /// `NVLink`, or `PCIe` in a node without it.
    Nvlink,
    /// The network between `NVLink` domains.
    Network,
    /// Stages of the pipeline that wait for work.
    Bubble,
    /// Launches, the host, and the slowest of many.
    Launch,
}

impl Bound {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Tensor, Self::Hbm, Self::Nvlink, Self::Network, Self::Bubble, Self::Launch];

    /// Its name.
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

    /// What people call it on a part with `NVLink`, or without.
    pub fn name_on(self, has_nvlink: bool) -> &'static str {
        match self {
            Self::Nvlink if !has_nvlink => "pcie",
            _ => self.name(),
        }
    }

    /// What a phase of a step is bound by: most of it, where it waits for two.
    pub fn of(phase: Phase, step: &StepTime) -> Self {
        if step.network_s(phase) > 0.5 * step.of(phase) {
            Self::Network
        } else {
            Self::beside_network(phase)
        }
    }

    /// What of a phase that is not the network's is bound by.
    fn beside_network(phase: Phase) -> Self {
        match phase {
            Phase::Products | Phase::Attention => Self::Tensor,
            Phase::Pointwise | Phase::Optimizer => Self::Hbm,
            Phase::Tensor | Phase::Context | Phase::Expert | Phase::Stage | Phase::Copies => {
                Self::Nvlink
            }
            Phase::Bubble => Self::Bubble,
            Phase::Host | Phase::Jitter => Self::Launch,
        }
    }
}

/// A bound's share of a step, and what a tenth more of it would bring.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Share {
    /// Of what.
    pub bound: Bound,
    /// Share of the step.
    pub share: f64,
    /// Gain of speed from a tenth more of it (a tenth less, of bubble and launch).
    pub gain_of_tenth: f64,
}

/// The bounds of a run, in the order of [`Bound::ALL`].
pub fn shares(run: &Run, step: &StepTime, fitted: &Coefficients) -> Vec<Share> {
    let total = step.total_s();
    let part = |bound: Bound, phase: Phase| match bound {
        Bound::Network => step.network_s(phase),
        _ if Bound::beside_network(phase) == bound => step.of(phase) - step.network_s(phase),
        _ => 0.0,
    };
    let share = |bound| Phase::ALL.iter().map(|phase| part(bound, *phase)).sum::<f64>() / total;
    let gain = |bound: Bound| {
        let (run, fitted) = with_more(run, fitted, bound);
        time::step(run.as_ref(), &fitted).total_s()
    };
    Bound::ALL
        .into_iter()
        .map(|bound| Share {
            bound,
            share: share(bound),
            gain_of_tenth: (total / gain(bound) - 1.0).max(0.0),
        })
        .collect()
}

/// The run and the coefficients as they would be with a tenth more of something.
fn with_more(run: &Run, fitted: &Coefficients, bound: Bound) -> (Box<Run>, Coefficients) {
    const MORE: f64 = 1.1;
    let mut run = Box::new(run.clone());
    let mut fitted = fitted.clone();
    match bound {
        Bound::Tensor => {
            run.gpu.half_flops *= MORE;
            run.gpu.fp8_flops *= MORE;
            run.gpu.fp4_flops *= MORE;
        }
        Bound::Hbm => run.gpu.hbm_bytes_per_s *= MORE,
        Bound::Nvlink => {
            run.gpu.link_bytes_per_s *= MORE;
            fitted.link_hop_s /= MORE;
        }
        Bound::Network => {
            run.gpu.network_bytes_per_s *= MORE;
            fitted.network_hop_s /= MORE;
        }
        Bound::Bubble => fitted.bubble /= MORE,
        Bound::Launch => {
            fitted.host_block_eager_s /= MORE;
            fitted.host_block_fused_s /= MORE;
            fitted.host_expert_s /= MORE;
            fitted.host_step_s /= MORE;
            fitted.jitter /= MORE;
        }
    }
    (run, fitted)
}
