//! Groups: incidents that share their notifications, and when these are due.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write};

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::notification::Notification;
use super::policy::{GroupLabel, NotificationPolicy, NotificationRoute};
use crate::fleet::identity::Actor;
use crate::fleet::state::add_seconds;

/// Identifies a group in notifications and commands. Derived from the route and the labels, so it
/// is the same each time the group fires.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GroupId(pub String);

impl GroupId {
    pub(super) fn new(route: &str, labels: &BTreeMap<GroupLabel, String>) -> Self {
        let labels = labels.iter().map(|(label, value)| format!("{label}={value}"));
        let parts: Vec<String> = std::iter::once(route.to_owned()).chain(labels).collect();
        Self(digest(parts.iter().map(String::as_str), 12))
    }
}

impl fmt::Display for GroupId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(&self.0)
    }
}

/// The first hexadecimal digits of a digest of these texts.
pub(super) fn digest<'t>(parts: impl Iterator<Item = &'t str>, digits: usize) -> String {
    let mut digest = Sha256::new();
    for part in parts {
        digest.update((part.len() as u64).to_be_bytes());
        digest.update(part.as_bytes());
    }
    let mut hex = String::new();
    for byte in digest.finalize() {
        let _ = write!(hex, "{byte:02x}");
    }
    hex.truncate(digits);
    hex
}

/// The record in which positions of the log are unique. A database that replaces a lost one begins
/// again at a position that the lost one may have had, and an older copy of a log has its positions
/// again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordId {
    /// Identity of the notification database. The one that replaces it after a loss has another.
    pub database: String,
    /// How many times this database lost track of the log.
    pub losses: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AlertGroup {
    pub route: String,
    pub labels: BTreeMap<GroupLabel, String>,
    /// The record when it was opened. `None` if a version without records opened it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<RecordId>,
    /// When its first alert appeared, and the position in the log.
    pub opened: Timestamp,
    pub opened_seq: u64,
    /// The last entry that changed it.
    pub cause_seq: u64,
    /// How many times it was notified.
    pub number: u32,
    /// Whether something changed since its last notification.
    pub is_changed: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent: Option<Sent>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acknowledged: Option<Acknowledgement>,
    pub is_escalated: bool,
    /// What fires has become milder than the route takes, so it is not repeated.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_milder: bool,
    /// How the last incident that left the group ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<IncidentEnd>,
}

/// What was notified last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sent {
    pub first_at: Timestamp,
    pub at: Timestamp,
    /// Receivers that were told that the group fires. They are also told when it ends.
    pub receivers: BTreeSet<String>,
    /// Those of `receivers` that a later policy did not have. What was queued for them was given
    /// up, so they are told again when the route has them again.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub removed: BTreeSet<String>,
    pub notification: Notification,
}

impl Sent {
    /// Remembers which receivers this policy does not have.
    pub(super) fn adopt(&mut self, policy: &NotificationPolicy) {
        let gone = self.receivers.iter().filter(|name| !policy.receivers.contains_key(*name));
        self.removed.extend(gone.cloned());
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Acknowledgement {
    pub by: Actor,
    pub at: Timestamp,
}

/// How an incident ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IncidentEnd {
    ReturnedToService,
    Cleared,
    Retired,
    /// The node moved, and others are told of it now.
    Moved,
}

/// What a group's timers depend on besides the group.
#[derive(Debug, Clone, Copy)]
pub(super) struct Membership {
    /// Whether it has an incident.
    pub(super) fires: bool,
    /// Whether it has an incident that is not suppressed.
    pub(super) is_visible: bool,
}

impl AlertGroup {
    pub(super) fn new(
        route: &NotificationRoute,
        labels: BTreeMap<GroupLabel, String>,
        at: Timestamp,
        seq: u64,
        record: Option<&RecordId>,
    ) -> Self {
        Self {
            route: route.name.clone(),
            labels,
            record: record.cloned(),
            opened: at,
            opened_seq: seq,
            cause_seq: seq,
            number: 0,
            is_changed: false,
            sent: None,
            acknowledged: None,
            is_escalated: false,
            is_milder: false,
            outcome: None,
        }
    }

    /// The receivers of its route that do not know that it fires, although others were told: the
    /// policy did not have them then, or not all the time since.
    pub(super) fn untold(
        &self,
        route: &NotificationRoute,
        policy: &NotificationPolicy,
    ) -> BTreeSet<String> {
        let Some(sent) = &self.sent else { return BTreeSet::new() };
        let escalation = route.escalate.as_ref().filter(|_| self.is_escalated);
        let escalation = escalation.into_iter().flat_map(|escalate| &escalate.receivers);
        let is_untold = |name: &&String| {
            policy.receivers.contains_key(*name)
                && (!sent.receivers.contains(*name) || sent.removed.contains(*name))
        };
        route.receivers.iter().chain(escalation).filter(is_untold).cloned().collect()
    }

    /// When the next notification is due. `None` if none is. If the policy no longer has its route,
    /// only the end of the group is notified.
    pub(super) fn due(
        &self,
        policy: &NotificationPolicy,
        members: Membership,
    ) -> Option<Timestamp> {
        let route = policy.route(&self.route);
        let Some(sent) = &self.sent else {
            let route = route.filter(|_| members.is_visible)?;
            return Some(add_seconds(self.opened, route.group_wait_s));
        };
        if !members.fires {
            let interval_s = route.map_or(0, |route| route.group_interval_s);
            return Some(add_seconds(sent.at, interval_s));
        }
        let route = route.filter(|_| members.is_visible)?;
        let update = self.is_changed.then(|| add_seconds(sent.at, route.group_interval_s));
        let is_waiting = self.acknowledged.is_none();
        let repeat =
            (is_waiting && !self.is_milder).then(|| add_seconds(sent.at, route.repeat_interval_s));
        let escalation = route.escalate.as_ref().filter(|_| is_waiting && !self.is_escalated);
        let escalation = escalation.map(|escalate| add_seconds(sent.first_at, escalate.after_s));
        let untold = (!self.untold(route, policy).is_empty()).then_some(sent.at);
        [update, repeat, escalation, untold].into_iter().flatten().min()
    }

    /// The idempotency key of its next notification to a receiver.
    pub(super) fn key(&self, id: &GroupId, receiver: &str) -> String {
        let (opened, cause, number) =
            (self.opened_seq.to_string(), self.cause_seq.to_string(), self.number.to_string());
        let mut parts = vec![&*self.route, &*id.0, receiver, &*opened, &*cause, &*number];
        let losses = self.record.as_ref().map(|record| record.losses.to_string());
        if let Some((record, losses)) = self.record.as_ref().zip(losses.as_deref()) {
            parts.extend([&*record.database, losses]);
        }
        digest(parts.into_iter(), 32)
    }

    /// Shifts the start times of the timers by the step, so the timers keep their remaining time. A
    /// timer that was started after the clock was stepped, but before this entry was applied,
    /// already has the new time. A forward shift would put it into the future, so no start time
    /// becomes later than `to`.
    pub(super) fn step(&mut self, by: SignedDuration, to: Timestamp) {
        let step = |at: &mut Timestamp| *at = at.checked_add(by).unwrap_or(to).min(to);
        step(&mut self.opened);
        if let Some(sent) = &mut self.sent {
            step(&mut sent.first_at);
            step(&mut sent.at);
        }
    }
}
