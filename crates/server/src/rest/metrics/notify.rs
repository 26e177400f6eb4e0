//! Metrics of the notifier. Receivers are labels: the policy has at most 200.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::MetricsText;
use crate::notify::{Depth, NotifyStore, ReceiverStats};
use crate::rest::Call;
use crate::rest::failure::Failure;

pub(super) async fn render(call: &Call, text: &mut MetricsText) -> Result<(), Failure> {
    let notify = &call.app.notify;
    text.counter(
        "farrier_server_notification_gaps_total",
        "Times that notifications may be missing",
        notify.gaps(),
    );
    let names = call.app.controller.read(|state| {
        let receivers = &state.policy.notifications.receivers;
        receivers.keys().cloned().collect::<Vec<String>>()
    });
    let names = names.await?;
    if names.is_empty() {
        return Ok(());
    }
    let stats = notify.stats();
    let of = |count: fn(&ReceiverStats) -> u64| {
        let value = |name: &String| (name.clone(), stats.get(name).map_or(0, count));
        names.iter().map(value).collect::<Vec<_>>()
    };
    let mut counter = |name: &str, help: &str, count: fn(&ReceiverStats) -> u64| {
        let name = format!("farrier_server_notifications_{name}_total");
        text.labelled(&name, "counter", help, "receiver", of(count));
    };
    counter("delivered", "Delivered notifications", |stats| stats.delivered);
    counter("undeliverable", "Notifications that cannot be delivered", |stats| stats.failed);
    counter("retries", "Failed deliveries that are repeated", |stats| stats.retries);
    // Without its database, the queue is unknown and left out.
    let Some(Ok(depths)) = notify.with_store(NotifyStore::depths).await else { return Ok(()) };
    render_queue(text, &names, &depths);
    Ok(())
}

fn render_queue(text: &mut MetricsText, names: &[String], depths: &BTreeMap<String, Depth>) {
    let now = Timestamp::now();
    let depth = |name: &String| depths.get(name).cloned().unwrap_or_default();
    let waiting = names.iter().map(|name| (name.clone(), depth(name).waiting));
    text.labelled(
        "farrier_server_notifications_queued",
        "gauge",
        "Notifications that wait for delivery",
        "receiver",
        waiting,
    );
    let age = |name: &String| {
        let waited = depth(name).oldest.map_or(0, |oldest| now.duration_since(oldest).as_secs());
        (name.clone(), u64::try_from(waited).unwrap_or_default())
    };
    text.labelled(
        "farrier_server_notification_oldest_seconds",
        "gauge",
        "Age of the oldest notification that waits for delivery",
        "receiver",
        names.iter().map(age),
    );
}
