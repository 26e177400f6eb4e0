//! Why no launch file can be written, and what would be possible.

/// Why no launch file can be written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EmitError {
    /// Adapters, by a program that trains all weights.
    #[error(
        "{program} trains all weights and the plan is for adapters; possible: a plan for full \
         training, or the LoRA of Megatron Bridge or PEFT by hand with the split of this plan"
    )]
    Adapters {
        /// The program.
        program: &'static str,
    },
    /// A model that the program cannot build.
    #[error("{program} has no flag for {what} of `{model}`; possible: {possible}")]
    Model {
        /// The program.
        program: &'static str,
        /// The model.
        model: String,
        /// What it cannot build.
        what: &'static str,
        /// What could be done.
        possible: &'static str,
    },
    /// A split or a setting that the program does not know.
    #[error("{program} has no {what}; possible: {possible}")]
    Setting {
        /// The program.
        program: &'static str,
        /// What it lacks.
        what: String,
        /// What it has.
        possible: String,
    },
}
