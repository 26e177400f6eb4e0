//! A launch file for a planned run: Megatron-LM's `pretrain_gpt.py`, or torchtitan.
//!
//! ```text
//! Run ─> megatron::command ──┐
//!        torchtitan::command ┴─> Command: flags, environment, what to ask for, notes
//! Plan, Command, Nodes ─> script::write ─> bash, to be run on each node or given to sbatch
//! ```
//!
//! Every flag and variable is in `emit/flags.csv` with the source that it was read in; a test holds
//! the files to it.

mod error;
mod flags;
mod known;
mod megatron;
mod nodes;
mod script;
mod torchtitan;

pub use error::EmitError;

use self::nodes::Nodes;
use crate::plan::Plan;
use crate::run::{Run, Stack, Task};

/// What starts the processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Launcher {
    /// `torchrun`, by hand or by another scheduler, once on each node.
    Torchrun,
    /// `sbatch`, once.
    Slurm,
}

impl Launcher {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Torchrun, Self::Slurm];

    /// Its name, as on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Torchrun => "torchrun",
            Self::Slurm => "slurm",
        }
    }
}

/// A file that starts a planned run. The run must have passed [`crate::check::check`].
pub fn emit(plan: &Plan, run: &Run, launcher: Launcher) -> Result<String, EmitError> {
    if run.stack == Stack::Foundry {
        return Err(EmitError::Setting {
            program: "llm-foundry",
            what: "flags that are written here".to_owned(),
            possible: "`--stack fsdp-compiled` for torchtitan, or one of Megatron".to_owned(),
        });
    }
    let program = if run.stack.is_megatron() { megatron::PROGRAM } else { torchtitan::PROGRAM };
    if run.task == Task::Lora {
        return Err(EmitError::Adapters { program });
    }
    let nodes = Nodes::of(&run.gpu, run.layout.gpus());
    let command = if run.stack.is_megatron() {
        megatron::command(plan, run, nodes)?
    } else {
        torchtitan::command(plan, run)?
    };
    Ok(script::write(plan, run, &command, nodes, launcher))
}

/// Steps between checkpoints that are about half an hour apart.
fn steps_between_checkpoints(plan: &Plan) -> u64 {
    const HALF_HOUR_S: f64 = 1800.0;
    whole((HALF_HOUR_S / plan.estimate.step_time_s).round().clamp(1.0, 1e6))
}

/// A number that is whole and not negative.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "clamped to what fits and is not negative"
)]
fn whole(number: f64) -> u64 {
    number.clamp(0.0, 1e18) as u64
}

#[cfg(test)]
mod tests;
