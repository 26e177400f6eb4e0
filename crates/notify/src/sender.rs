//! Delivers a notification once. The caller repeats a delivery that failed.

use farrier_fleet::notify::{Notification, Receiver};

use crate::error::DeliveryError;
use crate::folders::{ReceiverFiles, ReceiverFolders};
use crate::receiver::{alertmanager, command, email, pagerduty, slack, webhook};
use crate::text::CleanNotification;

/// Delivers notifications. It keeps no state and no connections: secrets, root certificates and
/// names are read again for each delivery.
#[derive(Debug, Clone)]
pub struct Sender {
    files: ReceiverFiles,
}

impl Sender {
    /// Runs any program and reads any secret that this process may. Only for receivers that
    /// only the machine's administrator can change.
    pub fn unrestricted() -> Self {
        Self { files: ReceiverFiles::Any }
    }

    /// Runs only programs and reads only secrets in these folders.
    pub fn within(folders: ReceiverFolders) -> Self {
        Self { files: ReceiverFiles::within(folders) }
    }

    /// Delivers a notification once. Each step has a deadline. If the future is dropped, the
    /// connection is closed, or the command is killed.
    pub async fn deliver(
        &self,
        receiver: &Receiver,
        notification: &Notification,
    ) -> Result<(), DeliveryError> {
        let notification = &CleanNotification::new(notification);
        let files = &self.files;
        match receiver {
            Receiver::Alertmanager(receiver) => {
                alertmanager::deliver(receiver, notification, files).await
            }
            Receiver::Webhook(receiver) => webhook::deliver(receiver, notification, files).await,
            Receiver::Slack(receiver) => slack::deliver(receiver, notification, files).await,
            Receiver::Pagerduty(receiver) => {
                pagerduty::deliver(receiver, notification, files).await
            }
            Receiver::Email(receiver) => email::deliver(receiver, notification, files).await,
            Receiver::Command(receiver) => command::deliver(receiver, notification, files).await,
        }
    }
}
