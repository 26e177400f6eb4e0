//! Notifications: which events of the log become messages to people, and what a message says.
//!
//! ```text
//! policy (routes, receivers) ─┐
//! Entry of the log, now ──────┴─> Router (incidents, groups, timers) ─> Outgoing ─> queue, delivery
//!                                                                       (farrier-server, farrier-notify)
//! ```

mod condition;
mod flush;
mod group;
mod incident;
mod index;
mod message;
mod mute;
mod notification;
mod policy;
mod policy_check;
mod receiver;
mod router;
mod view;

pub use condition::{Condition, IncidentKey};
pub use group::{Acknowledgement, AlertGroup, GroupId, IncidentEnd, RecordId, Sent};
pub use incident::{ActionsTaken, Incident};
pub use index::RouterChanges;
pub use mute::{Mute, MuteMatch};
pub use notification::{
    AffectedNode, GapId, NODES_MAX, Notification, NotificationKind, NotificationStatus,
};
pub use policy::{
    AlertCodePattern, AlertMatch, Escalation, GroupLabel, NotificationPolicy, NotificationRoute,
};
pub use policy_check::{NotificationProblem, ProblemKind};
pub use receiver::{
    AlertmanagerReceiver, CommandReceiver, EmailReceiver, PagerdutyReceiver, Receiver, SecretFile,
    SlackReceiver, SmtpTls, WebhookReceiver, WebhookUrl, WebhookUrlError,
};
pub use router::{Outgoing, Router, RouterHead};
pub use view::{FleetView, RecoveryPeriod, concerned_node};
