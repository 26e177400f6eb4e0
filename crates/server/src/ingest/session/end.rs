//! Why a session ends, and which gRPC status the node gets.

use farrier_wire::convert::ConvertError;
use farrier_wire::limits::ORDERS_AHEAD_MAX;
use tonic::{Code, Status};

use super::super::session_registry::DisconnectReason;
use super::{expired, unknown_node};
use crate::controller::SubmitError;

#[derive(Debug, thiserror::Error)]
pub(super) enum SessionEnd {
    #[error("the node closed the session")]
    ClosedByNode,
    #[error("the connection was lost: {0}")]
    Lost(Status),
    #[error("the server ended the session: {0:?}")]
    Disconnected(DisconnectReason),
    #[error("no message within the timeout")]
    Idle,
    #[error("the node does not read its messages")]
    NotReading,
    #[error("the first message, and only the first, must be a hello")]
    Hello,
    #[error(
        "the node reports order {reported}, but this server issued {issued}: at most {ORDERS_AHEAD_MAX} more \
         are accepted. Enrol the node again to reset its order generations"
    )]
    OrdersAhead { reported: u64, issued: u64 },
    #[error(transparent)]
    Convert(#[from] ConvertError),
    #[error(transparent)]
    Submit(#[from] SubmitError),
}

impl SessionEnd {
    /// Whether the session ended because a report was malformed or too large.
    pub(super) fn is_unreadable_report(&self) -> bool {
        match self {
            Self::Convert(_) => true,
            Self::Lost(status) => status.code() == Code::OutOfRange,
            _ => false,
        }
    }

    /// The status for the node. `None` if the node no longer listens.
    pub(super) fn status(&self) -> Option<Status> {
        let text = self.to_string();
        Some(match self {
            Self::Lost(status) => match status.code() {
                // tonic uses these codes for messages that are too large or malformed.
                Code::OutOfRange | Code::ResourceExhausted => status.clone(),
                Code::Internal => Status::invalid_argument("malformed message"),
                _ => return None,
            },
            Self::ClosedByNode | Self::NotReading => return None,
            Self::Disconnected(DisconnectReason::Displaced) => {
                Status::aborted("the node opened another session")
            }
            Self::Disconnected(DisconnectReason::Revoked) => {
                Status::permission_denied("the certificate was revoked")
            }
            Self::Disconnected(DisconnectReason::Expired) => expired(),
            Self::Disconnected(DisconnectReason::Retired)
            | Self::Submit(SubmitError::UnknownNode(_)) => unknown_node(),
            Self::Disconnected(DisconnectReason::Slow | DisconnectReason::Stopping)
            | Self::Submit(SubmitError::Stopped) => {
                Status::unavailable("the server is stopping or overloaded")
            }
            Self::Disconnected(DisconnectReason::ClockStepped) => {
                Status::unavailable("the server's clock was stepped; reconnect for the new time")
            }
            Self::Submit(SubmitError::TooManyFindings(_) | SubmitError::LowSpace) => {
                Status::resource_exhausted(text)
            }
            Self::Idle => Status::deadline_exceeded(text),
            Self::OrdersAhead { .. } => Status::failed_precondition(text),
            Self::Hello | Self::Convert(_) => Status::invalid_argument(chain(self)),
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
