//! Launch scripts for a planned run: Megatron-LM's `pretrain_gpt.py`, or torchtitan.
//!
//! ```text
//! TrainingRun ─> megatron::command ──┐
//!                torchtitan::command ┴─> LaunchCommand: flags, environment, required variables, notes
//! TrainingPlan, LaunchCommand, Nodes ─> script::write ─> bash, run on each node or given to sbatch
//! ```
//!
//! Every flag and variable is listed in `emit/flags.csv` with its source; a test enforces it.

mod error;
mod flags;
mod megatron;
mod model_flags;
mod nodes;
mod script;
mod torchtitan;

pub use error::EmitError;

use self::nodes::Nodes;
use crate::plan::TrainingPlan;
use crate::run::{Framework, TrainingRun, TrainingTask};

/// How the processes are started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Launcher {
    /// The user or a scheduler runs the script, which starts `torchrun`, once per node.
    Torchrun,
    /// The user submits the script once with `sbatch`.
    Slurm,
}

impl Launcher {
    pub const ALL: [Self; 2] = [Self::Torchrun, Self::Slurm];

    /// Name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Torchrun => "torchrun",
            Self::Slurm => "slurm",
        }
    }
}

/// A script that starts a planned run, which must have passed [`crate::check::check`].
pub fn emit(
    plan: &TrainingPlan,
    run: &TrainingRun,
    launcher: Launcher,
) -> Result<String, EmitError> {
    if run.framework == Framework::Foundry {
        return Err(EmitError::Setting {
            framework: "llm-foundry",
            what: "generated launch scripts".to_owned(),
            possible: "`--stack fsdp-compiled` for torchtitan, or one of Megatron".to_owned(),
        });
    }
    let framework =
        if run.framework.is_megatron() { megatron::FRAMEWORK } else { torchtitan::FRAMEWORK };
    if run.task == TrainingTask::Lora {
        return Err(EmitError::Adapters { framework });
    }
    let nodes = Nodes::new(&run.gpu, run.parallelism.gpus());
    let command = if run.framework.is_megatron() {
        megatron::command(plan, run, nodes)?
    } else {
        torchtitan::command(plan, run)?
    };
    Ok(script::write(plan, run, &command, nodes, launcher))
}

/// Checkpoint interval of about half an hour, in steps.
fn steps_between_checkpoints(plan: &TrainingPlan) -> u64 {
    const HALF_HOUR_S: f64 = 1800.0;
    to_u64((HALF_HOUR_S / plan.estimate.step_time_s).round().clamp(1.0, 1e6))
}

/// Converts a rounded number.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "clamped to the range of u64"
)]
fn to_u64(number: f64) -> u64 {
    number.clamp(0.0, 1e18) as u64
}

#[cfg(test)]
mod tests;
