//! Why the agent rejects a client's message.

use super::job::{STEP_S_MAX, TOKENS_MAX};
use super::protocol::VERSION;

/// Why the agent rejects a client's message. The client gets this text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum MessageError {
    #[error("protocol version 0 does not exist; this agent supports 1 to {VERSION}")]
    InvalidVersion,
    #[error("second hello: open another connection for another rank")]
    SecondHello,
    #[error("`job` is empty: expected the job's name")]
    EmptyJobName,
    #[error("`gpu`: expected a UUID as the driver writes it, `GPU-...` or `MIG-...`")]
    InvalidUuid,
    #[error("expected hello first")]
    MissingHello,
    #[error("`seconds` of `step_end`: expected 0 to {STEP_S_MAX}")]
    StepSeconds,
    #[error("`tokens` of `step_end`: expected 0 to {TOKENS_MAX}")]
    StepTokens,
}
