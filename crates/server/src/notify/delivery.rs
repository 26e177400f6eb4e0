//! Delivers one notification. A trait, so that tests can stand in for a receiver.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use farrier_fleet::notify::{Notification, Receiver};
use farrier_notify::{DeliveryError, ReceiverFolders, Sender};

/// Why a delivery failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeliveryFailure {
    /// Stable code, such as `connect`.
    pub code: String,
    pub text: String,
    /// Whether the same delivery may succeed later.
    pub is_retryable: bool,
    /// Whether the receiver was reached, so that this notification may be the cause.
    pub reached_receiver: bool,
    /// How long the receiver asks to wait.
    pub retry_after: Option<Duration>,
}

impl DeliveryFailure {
    /// The policy does not have the receiver.
    pub(super) fn receiver_removed() -> Self {
        Self {
            code: "receiver-removed".to_owned(),
            text: "the policy no longer has this receiver".to_owned(),
            is_retryable: false,
            reached_receiver: false,
            retry_after: None,
        }
    }
}

/// The result of a delivery, later.
pub type DeliveryFuture<'a> =
    Pin<Box<dyn Future<Output = Result<(), DeliveryFailure>> + Send + 'a>>;

pub trait Deliver: fmt::Debug + Send + Sync {
    fn deliver<'a>(
        &'a self,
        receiver: &'a Receiver,
        notification: &'a Notification,
    ) -> DeliveryFuture<'a>;
}

/// Delivers over the network, or runs the command. A policy names programs and secrets, and is set
/// over the network, so only those in the server's folders are used.
#[derive(Debug, Clone)]
pub struct SenderDelivery(Sender);

impl SenderDelivery {
    pub fn new(folders: ReceiverFolders) -> Self {
        Self(Sender::within(folders))
    }
}

impl Default for SenderDelivery {
    fn default() -> Self {
        Self::new(ReceiverFolders::default())
    }
}

impl Deliver for SenderDelivery {
    fn deliver<'a>(
        &'a self,
        receiver: &'a Receiver,
        notification: &'a Notification,
    ) -> DeliveryFuture<'a> {
        Box::pin(async move {
            self.0.deliver(receiver, notification).await.map_err(|err| DeliveryFailure::from(&err))
        })
    }
}

impl From<&DeliveryError> for DeliveryFailure {
    fn from(err: &DeliveryError) -> Self {
        Self {
            code: code(err).to_owned(),
            text: with_causes(err),
            is_retryable: err.is_retryable(),
            reached_receiver: err.reached_receiver(),
            retry_after: err.retry_after(),
        }
    }
}

/// The error and its causes in one line, for the queue.
fn with_causes(err: &dyn std::error::Error) -> String {
    let mut text = err.to_string();
    let mut cause = err.source();
    while let Some(err) = cause {
        text = format!("{text}: {err}");
        cause = err.source();
    }
    text
}

fn code(err: &DeliveryError) -> &'static str {
    match err {
        DeliveryError::Url(_) => "url",
        DeliveryError::Secret(_) => "secret",
        DeliveryError::Folder(_) => "folder",
        DeliveryError::Roots(_) => "root-certificates",
        DeliveryError::Template(_) => "template",
        DeliveryError::Email(_) => "email",
        DeliveryError::Command(_) => "command",
        DeliveryError::Invalid { .. } => "invalid",
        DeliveryError::Response { .. } => "response",
        DeliveryError::Connect { .. } => "connect",
        DeliveryError::Tls { .. } => "tls",
        DeliveryError::TimedOut { .. } => "timed-out",
        DeliveryError::Http { .. } => "http",
        DeliveryError::Status { .. } => "status",
        DeliveryError::NoStarttls { .. } => "no-starttls",
        DeliveryError::NoAuth { .. } => "no-auth",
        DeliveryError::Smtp { .. } => "smtp",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A policy of an earlier version may be in force, which was set without a check of its paths.
    #[tokio::test]
    async fn a_program_outside_the_folder_waits_for_the_administrator() {
        let receiver =
            serde_json::from_value(serde_json::json!({ "command": { "argv": ["/bin/true"] } }));
        let notification = Notification::test("page", "ann", jiff::Timestamp::UNIX_EPOCH);
        let delivery = SenderDelivery::default();
        let failure = delivery.deliver(&receiver.unwrap(), &notification).await.unwrap_err();
        assert_eq!(failure.code, "folder");
        assert!(failure.is_retryable && !failure.reached_receiver, "{failure:?}");
        assert!(failure.text.contains("is not in `/etc/farrier/commands`"), "{failure:?}");
        assert!(failure.text.contains("--notify-commands"), "{failure:?}");
    }
}
