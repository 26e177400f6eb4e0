//! Delivers a notification once. The caller repeats a delivery that failed.

use farrier_fleet::notify::{Notification, Receiver};

use crate::error::DeliveryError;
use crate::receiver::{alertmanager, command, email, pagerduty, slack, webhook};
use crate::text::CleanNotification;

/// Delivers notifications. It keeps no state and no connections: secrets, root certificates and
/// names are read again for each delivery.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sender;

impl Sender {
    pub fn new() -> Self {
        Self
    }

    /// Delivers a notification once. Each step has a deadline. If the future is dropped, the
    /// connection is closed, or the command is killed.
    pub async fn deliver(
        &self,
        receiver: &Receiver,
        notification: &Notification,
    ) -> Result<(), DeliveryError> {
        let notification = &CleanNotification::new(notification);
        match receiver {
            Receiver::Alertmanager(receiver) => alertmanager::deliver(receiver, notification).await,
            Receiver::Webhook(receiver) => webhook::deliver(receiver, notification).await,
            Receiver::Slack(receiver) => slack::deliver(receiver, notification).await,
            Receiver::Pagerduty(receiver) => pagerduty::deliver(receiver, notification).await,
            Receiver::Email(receiver) => email::deliver(receiver, notification).await,
            Receiver::Command(receiver) => command::deliver(receiver, notification).await,
        }
    }
}
