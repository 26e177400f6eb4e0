//! Why a stream ends, and what the node is told of it.

use farrier_wire::convert::ConvertError;
use farrier_wire::limits::ORDERS_AHEAD_MAX;
use tonic::{Code, Status};

use super::super::session_registry::DisconnectReason;
use super::{expired, stranger};
use crate::controller::SubmitError;

/// Why a stream ends.
#[derive(Debug, thiserror::Error)]
pub(super) enum End {
    #[error("the node has ended it")]
    Left,
    #[error("the node is gone: {0}")]
    Lost(Status),
    #[error("it was cut: {0:?}")]
    DisconnectReason(DisconnectReason),
    #[error("nothing was heard for too long")]
    Idle,
    #[error("the node does not read what it is told")]
    Unread,
    #[error("the first message must be a hello, and only the first")]
    Hello,
    #[error(
        "the node says that it had order {said}, and this server has given {given}: at most {ORDERS_AHEAD_MAX} more are believed. \
         With another enrolment its orders are counted anew"
    )]
    OrdersAhead { said: u64, given: u64 },
    #[error(transparent)]
    Form(#[from] ConvertError),
    #[error(transparent)]
    Take(#[from] SubmitError),
}

impl End {
    /// Whether a report ended the stream because the server cannot read it: in a form that it does not know, or too large.
    pub(super) fn is_unreadable_report(&self) -> bool {
        match self {
            Self::Form(_) => true,
            Self::Lost(status) => status.code() == Code::OutOfRange,
            _ => false,
        }
    }

    /// What the node is told, where it still listens.
    pub(super) fn status(&self) -> Option<Status> {
        let text = self.to_string();
        Some(match self {
            Self::Lost(status) => match status.code() {
                // It was too large, or no message at all: so much tonic says of what it read.
                Code::OutOfRange | Code::ResourceExhausted => status.clone(),
                Code::Internal => Status::invalid_argument("a message does not read"),
                _ => return None,
            },
            Self::Left | Self::Unread => return None,
            Self::DisconnectReason(DisconnectReason::Displaced) => {
                Status::aborted("the node has opened another stream")
            }
            Self::DisconnectReason(DisconnectReason::Revoked) => {
                Status::permission_denied("the certificate was revoked")
            }
            Self::DisconnectReason(DisconnectReason::Expired) => expired(),
            Self::DisconnectReason(DisconnectReason::Retired)
            | Self::Take(SubmitError::Stranger(_)) => stranger(),
            Self::DisconnectReason(DisconnectReason::Slow | DisconnectReason::Stopping)
            | Self::Take(SubmitError::Ended) => {
                Status::unavailable("the server ends or has no time")
            }
            Self::DisconnectReason(DisconnectReason::ClockStepped) => {
                Status::unavailable("the server's clock was stepped: connect again for the time")
            }
            Self::Take(SubmitError::TooMany(_) | SubmitError::LowSpace) => {
                Status::resource_exhausted(text)
            }
            Self::Idle => Status::deadline_exceeded(text),
            Self::OrdersAhead { .. } => Status::failed_precondition(text),
            Self::Hello | Self::Form(_) => Status::invalid_argument(chain(self)),
        })
    }
}

pub(super) fn chain(err: &dyn std::error::Error) -> String {
    let mut text = err.to_string();
    let mut cause = err.source();
    while let Some(err) = cause {
        text.push_str(&format!(": {err}"));
        cause = err.source();
    }
    text
}
