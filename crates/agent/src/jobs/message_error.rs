//! Why the agent rejects a client's message.

use super::job::{STEP_S_MAX, TOKENS_MAX};
use super::protocol::VERSION;

/// Why the agent rejects a client's message. The client gets the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum MessageError {
    #[error("there is no version 0 of the protocol; this agent speaks 1 to {VERSION}")]
    NoVersion,
    #[error("hello comes once: open another connection for another rank")]
    SecondHello,
    #[error("`job` is empty: a job has a name")]
    NoName,
    #[error("`gpu` is a UUID as the driver writes it: `GPU-...` or `MIG-...`")]
    NoUuid,
    #[error("say hello first")]
    NoHello,
    #[error("`seconds` of `step_end`: expected 0 to {STEP_S_MAX}")]
    StepSeconds,
    #[error("`tokens` of `step_end`: expected 0 to {TOKENS_MAX}")]
    StepTokens,
}
