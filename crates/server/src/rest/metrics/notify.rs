//! Metrics of the notifier. Receivers are labels: the policy has at most 200.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::families;
use super::page::{Family, MetricsPage};
use crate::notify::{Depth, NotifyStore, ReceiverStats};
use crate::rest::Call;

/// `receivers` are the receivers of the policy in force.
pub(super) async fn write(page: &mut MetricsPage, call: &Call, receivers: &[String]) {
    let notify = &call.app.notify;
    page.value(&families::NOTIFICATION_GAPS, notify.gaps());
    let lag = notify.log_lag(call.app.tail.end());
    page.value(&families::NOTIFICATION_LAG_ENTRIES, lag.entries);
    page.value(&families::NOTIFICATION_LAG_SECONDS, lag.behind_s);
    let failed_s = notify.database_failure().map_or(0, |failure| failure.lasts().as_secs());
    page.value(&families::NOTIFICATION_DATABASE_FAILED, failed_s);
    let stats = notify.stats();
    let mut counter = |family: &Family, count: fn(&ReceiverStats) -> u64| {
        let sample = |name: &String| (vec![name.clone()], stats.get(name).map_or(0, count));
        page.family(family, receivers.iter().map(sample));
    };
    counter(&families::NOTIFICATIONS_DELIVERED, |stats| stats.delivered);
    counter(&families::NOTIFICATIONS_UNDELIVERABLE, |stats| stats.failed);
    counter(&families::NOTIFICATIONS_RETRIES, |stats| stats.retries);
    // Without its database, the queue is unknown and left out. The scrape does not wait for it.
    if let Some(Ok(depths)) = notify.with_open_store(NotifyStore::depths).await {
        queue(page, receivers, &depths);
    }
}

fn queue(page: &mut MetricsPage, receivers: &[String], depths: &BTreeMap<String, Depth>) {
    let now = Timestamp::now();
    let depth = |name: &String| depths.get(name).cloned().unwrap_or_default();
    let waiting = receivers.iter().map(|name| (vec![name.clone()], depth(name).waiting));
    page.family(&families::NOTIFICATIONS_QUEUED, waiting);
    let kept = receivers.iter().map(|name| (vec![name.clone()], depth(name).undeliverable));
    page.family(&families::NOTIFICATIONS_KEPT, kept);
    let dropped = receivers.iter().map(|name| (vec![name.clone()], depth(name).dropped));
    page.family(&families::NOTIFICATIONS_DROPPED, dropped);
    let age = |name: &String| {
        let age_s = depth(name).oldest.map_or(0, |oldest| now.duration_since(oldest).as_secs());
        (vec![name.clone()], age_s.max(0))
    };
    page.family(&families::NOTIFICATION_OLDEST, receivers.iter().map(age));
}
