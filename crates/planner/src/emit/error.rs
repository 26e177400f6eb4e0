//! Why a launch script cannot be written, and which settings would be possible.

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EmitError {
    /// LoRA, with a framework that trains all weights.
    #[error(
        "{framework} trains all weights, but the plan is for LoRA; possible: a plan for full \
         training, or LoRA in Megatron Bridge or PEFT with the parallelism of this plan"
    )]
    Adapters { framework: &'static str },
    /// The framework cannot build the model.
    #[error("{framework} has no flag for {what} of `{model}`; possible: {possible}")]
    Model { framework: &'static str, model: String, what: &'static str, possible: &'static str },
    /// The framework lacks a parallelism feature or a setting.
    #[error("{framework} does not support {what}; possible: {possible}")]
    Setting { framework: &'static str, what: String, possible: String },
}
