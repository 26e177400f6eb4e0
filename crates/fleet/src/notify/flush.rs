//! The notifications of a group that is due.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::condition::IncidentKey;
use super::group::{AlertGroup, GroupId, Sent};
use super::incident::Incident;
use super::message;
use super::notification::{Notification, NotificationStatus};
use super::policy::{NotificationPolicy, NotificationRoute};
use super::router::Outgoing;
use crate::fleet::state::add_seconds;

/// The notifications of a group that fires. Empty if nothing changed that people have to know, no
/// repeat or escalation is due, and each receiver knows that it fires. `is_changed` stays if the
/// group interval is not over, so that its news has to wait.
pub(super) fn fire(
    id: &GroupId,
    group: &mut AlertGroup,
    route: &NotificationRoute,
    policy: &NotificationPolicy,
    visible: &[(&IncidentKey, &Incident)],
    now: Timestamp,
) -> Vec<Outgoing> {
    let Some(notification) = message::firing(id, visible, route, policy, now) else {
        group.is_changed = false;
        return Vec::new();
    };
    // For example a repaired node that is not verified yet.
    let least = route.matches.min_severity;
    group.is_milder = least.is_some_and(|least| notification.severity < least);
    let is_waiting = group.acknowledged.is_none();
    let escalation = route.escalate.as_ref().filter(|_| is_waiting && !group.is_escalated);
    let escalation = escalation.filter(|escalation| {
        let first = group.sent.as_ref().map(|sent| sent.first_at);
        first.is_some_and(|at| add_seconds(at, escalation.after_s) <= now)
    });
    let has_update = match &group.sent {
        None => true,
        Some(sent) => add_seconds(sent.at, route.group_interval_s) <= now || escalation.is_some(),
    };
    let has_news = match &group.sent {
        None => true,
        Some(sent) => {
            let repeat = add_seconds(sent.at, route.repeat_interval_s);
            let has_new = visible.iter().any(|(_, one)| one.groups.get(id) == Some(&false));
            let is_news = has_new || message::is_news(&sent.notification, &notification);
            group.is_changed && has_update && is_news
                || is_waiting && !group.is_milder && repeat <= now
        }
    };
    let mut receivers = group.untold(route, policy);
    group.is_changed &= !has_update && !has_news;
    if !has_news && escalation.is_none() {
        return send_late(id, group, receivers, &notification);
    }
    if has_news {
        receivers.extend(route.receivers.iter().cloned());
        let told = route.escalate.as_ref().filter(|_| group.is_escalated);
        receivers.extend(told.into_iter().flat_map(|escalation| &escalation.receivers).cloned());
    }
    if let Some(escalation) = escalation {
        group.is_escalated = true;
        receivers.extend(escalation.receivers.iter().cloned());
    }
    receivers.retain(|name| policy.receivers.contains_key(name));
    send(id, group, receivers, &notification, now)
}

/// The last notifications of a group: it no longer fires.
pub(super) fn resolve(
    id: &GroupId,
    group: &mut AlertGroup,
    policy: &NotificationPolicy,
    now: Timestamp,
) -> Vec<Outgoing> {
    let Some(sent) = &group.sent else { return Vec::new() };
    let notification = Notification {
        status: NotificationStatus::Resolved,
        action_taken: Some(message::outcome_text(group.outcome)),
        action_needed: None,
        at: now,
        ..sent.notification.clone()
    };
    let receivers =
        sent.receivers.iter().filter(|name| policy.receivers.contains_key(*name)).cloned();
    let receivers = receivers.collect();
    send(id, group, receivers, &notification, now)
}

/// Tells receivers that were added to the policy what the others know already. The timers of the
/// group continue.
fn send_late(
    id: &GroupId,
    group: &mut AlertGroup,
    receivers: BTreeSet<String>,
    notification: &Notification,
) -> Vec<Outgoing> {
    if receivers.is_empty() {
        return Vec::new();
    }
    let outgoing = outgoing(id, group, &receivers, notification);
    if let Some(sent) = &mut group.sent {
        sent.removed.retain(|name| !receivers.contains(name));
        sent.receivers.extend(receivers);
    }
    outgoing
}

fn send(
    id: &GroupId,
    group: &mut AlertGroup,
    receivers: BTreeSet<String>,
    notification: &Notification,
    now: Timestamp,
) -> Vec<Outgoing> {
    let outgoing = outgoing(id, group, &receivers, notification);
    let before = group.sent.take();
    let first_at = before.as_ref().map_or(now, |sent| sent.first_at);
    let (mut told, mut removed) =
        before.map(|sent| (sent.receivers, sent.removed)).unwrap_or_default();
    removed.retain(|name| !receivers.contains(name));
    told.extend(receivers);
    let notification = notification.clone();
    group.sent = Some(Sent { first_at, at: now, receivers: told, removed, notification });
    outgoing
}

/// One notification to each of these receivers.
fn outgoing(
    id: &GroupId,
    group: &mut AlertGroup,
    receivers: &BTreeSet<String>,
    notification: &Notification,
) -> Vec<Outgoing> {
    let to = |receiver: &String| Outgoing {
        receiver: receiver.clone(),
        notification: Notification { key: group.key(id, receiver), ..notification.clone() },
    };
    let outgoing = receivers.iter().map(to).collect();
    group.number += 1;
    outgoing
}
