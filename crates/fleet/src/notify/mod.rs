//! Notifications: which events of the log become messages to people, and what a message says.
//!
//! ```text
//! policy (routes, receivers) ─┐
//! Entry of the log, now ──────┴─> routing, grouping, repeats ─> Notification ─> farrier-notify (delivery)
//! ```

mod notification;
mod receiver;

pub use notification::{
    AffectedNode, NODES_MAX, Notification, NotificationKind, NotificationStatus,
};
pub use receiver::{
    AlertmanagerReceiver, CommandReceiver, EmailReceiver, PagerdutyReceiver, Receiver, SecretFile,
    SlackReceiver, SmtpTls, WebhookReceiver,
};
