//! Notifications: which events of the log become messages to people, and what a message says.
//!
//! ```text
//! policy (routes, receivers) ─┐
//! Entry of the log, now ──────┴─> Router (incidents, groups, timers) ─> Outgoing ─> queue, delivery
//!                                                                       (farrier-server, farrier-notify)
//! ```

mod condition;
mod group;
mod incident;
mod message;
mod mute;
mod notification;
mod policy;
mod policy_check;
mod receiver;
mod router;

pub use condition::{Condition, IncidentKey};
pub use group::{Acknowledgement, Group, GroupId, Outcome, Sent};
pub use incident::{ActionsTaken, Incident, kind_code};
pub use mute::{Mute, MuteMatch};
pub use notification::{
    AffectedNode, NODES_MAX, Notification, NotificationKind, NotificationStatus,
};
pub use policy::{CodePattern, Escalation, GroupLabel, NotificationPolicy, Route, RouteMatch};
pub use policy_check::{NotificationProblem, ProblemKind};
pub use receiver::{
    AlertmanagerReceiver, CommandReceiver, EmailReceiver, PagerdutyReceiver, Receiver, SecretFile,
    SlackReceiver, SmtpTls, WebhookReceiver,
};
pub use router::{FleetView, Outgoing, Router, RouterChanges, RouterHead, concerned_node};
