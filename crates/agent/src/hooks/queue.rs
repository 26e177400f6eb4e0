//! The state of one hook: the findings that it follows, and the notifications that wait for their
//! delivery. Pure: the caller gives the time and stores the state.
//!
//! ```text
//! finding opened ─> followed ─ fill: room in the queue? within the rate? ─> queue ─> delivered
//! finding cleared ─> followed: was it delivered? ─ yes: resolution ──────────^  └─> back-off
//!                                                └ no: dropped
//! ```
//!
//! A finding that has to wait for room or for the rate is followed, and is queued later. Only if it
//! clears before that is it dropped, and counted.

use std::collections::{BTreeMap, VecDeque};

use farrier_fleet::health::Severity;
use farrier_fleet::notify::{Notification, NotificationStatus};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::config::HookConfig;

/// Notifications that wait. A receiver that does not answer for long gets the open findings then,
/// and not the whole history.
const QUEUED_MAX: usize = 64;

/// Waits between the attempts of a delivery: from the first, doubled, to the longest.
const RETRY_FIRST: SignedDuration = SignedDuration::from_secs(1);
const RETRY_MAX: SignedDuration = SignedDuration::from_mins(5);

/// A delivery that fails for so long is given up.
const GIVE_UP_AFTER: SignedDuration = SignedDuration::from_hours(24);

const HOUR: SignedDuration = SignedDuration::from_hours(1);

/// A finding that is open.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Followed {
    notification: Notification,
    /// The last notification that was queued. `None` if there was none yet.
    queued: Option<LastQueued>,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LastQueued {
    at: Timestamp,
    severity: Severity,
    /// Notifications of this finding so far.
    count: u32,
}

/// A notification that waits for its delivery.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct QueuedDelivery {
    pub(super) notification: Notification,
    queued_at: Timestamp,
    attempts: u32,
    not_before: Timestamp,
}

/// What happened to notifications since the hook was configured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HookCounts {
    pub delivered: u64,
    /// Deliveries that were given up.
    pub failed: u64,
    /// Findings that cleared before they could be queued.
    pub dropped: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HookState {
    followed: BTreeMap<String, Followed>,
    queue: VecDeque<QueuedDelivery>,
    /// When findings were queued within the last hour.
    recent: VecDeque<Timestamp>,
    pub(super) counts: HookCounts,
    /// Why the last attempt failed. `None` if it succeeded.
    pub(super) last_error: Option<String>,
}

/// How an attempt ended.
#[derive(Debug)]
pub(super) enum Attempt {
    Delivered,
    Failed { error: String, is_retryable: bool, retry_after: Option<SignedDuration> },
}

impl HookState {
    /// A finding opened or changed. Ignores one that the hook does not select, unless the hook
    /// follows it already.
    pub(super) fn finding_open(&mut self, notification: Notification, is_selected: bool) {
        match self.followed.get_mut(&notification.group) {
            // A recurrence changes only the time.
            Some(followed) => {
                let at = followed.notification.at;
                if followed.notification != (Notification { at, ..notification.clone() }) {
                    followed.notification = notification;
                }
            }
            None if is_selected => {
                let group = notification.group.clone();
                self.followed.insert(group, Followed { notification, queued: None });
            }
            None => (),
        }
    }

    /// A finding cleared.
    pub(super) fn finding_cleared(
        &mut self,
        hook: &HookConfig,
        resolved: Notification,
        now: Timestamp,
    ) {
        let Some(followed) = self.followed.remove(&resolved.group) else { return };
        match followed.queued {
            None => self.counts.dropped += 1,
            Some(_) if hook.resolved => {
                let key = format!("{}/resolved", resolved.group);
                self.push(Notification { key, ..resolved }, now);
            }
            Some(_) => (),
        }
    }

    /// Compares with all open findings, after changes may have been missed. The end of a finding
    /// that is not open any more has the content of its last notification.
    pub(super) fn resync(
        &mut self,
        hook: &HookConfig,
        open: Vec<(Notification, bool)>,
        now: Timestamp,
    ) {
        let is_open = |group: &String| open.iter().any(|(other, _)| other.group == *group);
        let cleared: Vec<Notification> = self
            .followed
            .iter()
            .filter(|(group, _)| !is_open(group))
            .map(|(_, followed)| Notification {
                status: NotificationStatus::Resolved,
                at: now,
                ..followed.notification.clone()
            })
            .collect();
        for resolved in cleared {
            self.finding_cleared(hook, resolved, now);
        }
        for (notification, is_selected) in open {
            self.finding_open(notification, is_selected);
        }
    }

    /// Queues what is due, the worst findings first.
    pub(super) fn fill(&mut self, hook: &HookConfig, now: Timestamp) {
        self.recent.retain(|at| *at <= now && now.duration_since(*at) < HOUR);
        let mut due: Vec<(Severity, String)> = self
            .followed
            .iter()
            .filter(|(_, followed)| followed.due_at(hook).is_some_and(|at| at <= now))
            .map(|(group, followed)| (followed.notification.severity, group.clone()))
            .collect();
        due.sort_by_key(|(severity, _)| std::cmp::Reverse(*severity));
        for (_, group) in due {
            if self.queue.len() >= QUEUED_MAX || self.recent.len() >= hook.per_hour as usize {
                return;
            }
            let Some(followed) = self.followed.get_mut(&group) else { continue };
            let count = followed.queued.map_or(1, |queued| queued.count + 1);
            let severity = followed.notification.severity;
            followed.queued = Some(LastQueued { at: now, severity, count });
            let key = format!("{group}/{count}");
            let notification = Notification { key, ..followed.notification.clone() };
            self.recent.push_back(now);
            self.push(notification, now);
        }
    }

    fn push(&mut self, notification: Notification, now: Timestamp) {
        let delivery =
            QueuedDelivery { notification, queued_at: now, attempts: 0, not_before: now };
        self.queue.push_back(delivery);
    }

    /// The delivery to attempt now.
    pub(super) fn next(&self, now: Timestamp) -> Option<&QueuedDelivery> {
        self.queue.front().filter(|delivery| wait(delivery, now).is_zero())
    }

    /// Records the end of an attempt to make the first delivery of the queue.
    pub(super) fn attempted(&mut self, attempt: Attempt, now: Timestamp) {
        let Some(delivery) = self.queue.front_mut() else { return };
        match attempt {
            Attempt::Delivered => {
                self.counts.delivered += 1;
                self.last_error = None;
                self.queue.pop_front();
            }
            Attempt::Failed { error, is_retryable, retry_after } => {
                self.last_error = Some(error);
                if !is_retryable || now.duration_since(delivery.queued_at) > GIVE_UP_AFTER {
                    self.counts.failed += 1;
                    self.queue.pop_front();
                    return;
                }
                let back_off = RETRY_FIRST * 2_i32.pow(delivery.attempts.min(16));
                let wait = back_off.min(RETRY_MAX).max(retry_after.unwrap_or_default());
                delivery.attempts += 1;
                delivery.not_before = now.saturating_add(wait).unwrap_or(now);
            }
        }
    }

    /// How long until [`Self::fill`] or [`Self::next`] has something to do. `None` if nothing waits.
    pub(super) fn wait(&self, hook: &HookConfig, now: Timestamp) -> Option<SignedDuration> {
        let delivery = self.queue.front().map(|delivery| wait(delivery, now));
        let due = self.followed.values().filter_map(|followed| followed.due_at(hook)).min();
        let rate = self.recent.front().filter(|_| self.recent.len() >= hook.per_hour as usize);
        let rate = rate.map_or(SignedDuration::ZERO, |at| HOUR - now.duration_since(*at));
        let room = self.queue.len() < QUEUED_MAX;
        let due = due.filter(|_| room).map(|at| at.duration_since(now).max(rate));
        delivery.into_iter().chain(due).min().map(|wait| wait.max(SignedDuration::ZERO))
    }

    pub(super) fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Findings that wait for room in the queue or for the rate.
    pub(super) fn waiting(&self) -> usize {
        self.followed.values().filter(|followed| followed.queued.is_none()).count()
    }
}

impl Followed {
    /// When the next notification is due. `None` if the finding has to change first.
    fn due_at(&self, hook: &HookConfig) -> Option<Timestamp> {
        let Some(queued) = &self.queued else { return Some(Timestamp::MIN) };
        if self.notification.severity > queued.severity {
            return Some(Timestamp::MIN);
        }
        let repeat = SignedDuration::from_secs(hook.repeat_s.into());
        (hook.repeat_s > 0).then(|| queued.at.saturating_add(repeat).unwrap_or(Timestamp::MAX))
    }
}

/// How long a delivery has to wait. Never longer than an hour, in case the clock was set back.
fn wait(delivery: &QueuedDelivery, now: Timestamp) -> SignedDuration {
    delivery.not_before.duration_since(now).clamp(SignedDuration::ZERO, HOUR)
}
