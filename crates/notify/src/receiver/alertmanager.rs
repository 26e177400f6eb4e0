//! Alertmanager's API v2. Alertmanager identifies an alert by its labels, so that the labels of a
//! group must not change between its first notification and its resolution.

use farrier_fleet::health::Severity;
use farrier_fleet::notify::{AlertmanagerReceiver, Notification, NotificationStatus};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value, json};

use crate::error::DeliveryError;
use crate::http::Post;
use crate::secret;
use crate::text;
use crate::url::{HttpUrl, UrlError};

/// How long Alertmanager keeps a firing alert of which it hears nothing more. Without an end, it
/// resolves an alert after five minutes (`resolve_timeout`), because Prometheus repeats its alerts
/// every minute. Farrier repeats them after hours, and reports the resolution itself.
const FIRING_FOR: SignedDuration = SignedDuration::from_hours(30 * 24);

pub(crate) async fn deliver(
    receiver: &AlertmanagerReceiver,
    notification: &Notification,
) -> Result<(), DeliveryError> {
    let body = alerts(notification).to_string().into_bytes();
    let url = url(receiver)?.join("/api/v2/alerts")?;
    let mut post = Post::new(url, "application/json", body, receiver.ca.as_deref())?;
    if let Some(file) = &receiver.bearer_token {
        post.bearer(&secret::read(file)?)?;
    }
    post.send().await
}

pub(crate) fn url(receiver: &AlertmanagerReceiver) -> Result<HttpUrl, UrlError> {
    match receiver.bearer_token {
        Some(_) => HttpUrl::parse_confidential(&receiver.url),
        None => HttpUrl::parse(&receiver.url),
    }
}

/// The alert of the group, and the resolution of the group's alerts with other severities. The
/// severity is a label, because Alertmanager routes by labels. If it changes, the alert with the
/// earlier severity ends.
fn alerts(notification: &Notification) -> Value {
    let severities = [Severity::Info, Severity::Warning, Severity::Critical, Severity::Fatal];
    let alerts = severities.into_iter().map(|severity| {
        let is_firing =
            notification.status == NotificationStatus::Firing && severity == notification.severity;
        let end = if is_firing { notification.at.saturating_add(FIRING_FOR).ok() } else { None };
        alert(notification, severity, end.unwrap_or(notification.at))
    });
    Value::Array(alerts.collect())
}

fn alert(notification: &Notification, severity: Severity, ends_at: Timestamp) -> Value {
    let mut annotations = Map::new();
    let mut annotate = |name: &str, value: Option<String>| {
        annotations.extend(value.map(|value| (name.to_owned(), Value::String(value))));
    };
    let one_line = |text: &Option<String>| text.as_deref().map(text::one_line);
    annotate("summary", Some(text::subject(notification)));
    annotate("description", Some(text::text(notification)));
    annotate("action_taken", one_line(&notification.action_taken));
    annotate("action_needed", one_line(&notification.action_needed));
    annotate("runbook_url", one_line(&notification.runbook_url));
    let names = notification.nodes.iter().map(|node| node.node.as_str());
    annotate("nodes", Some(names.collect::<Vec<_>>().join(", ")));
    annotate("nodes_total", Some(notification.nodes_total.to_string()));
    let mut alert = json!({
        "labels": {
            "alertname": "Farrier",
            "code": notification.code,
            "farrier_group": notification.group,
            "severity": severity.to_string(),
        },
        "annotations": annotations,
        "startsAt": notification.started.min(ends_at),
        "endsAt": ends_at,
    });
    // Alertmanager rejects the whole request if this is not a URL.
    let url = notification.runbook_url.as_deref();
    if let Some(url) = url.filter(|url| HttpUrl::parse(url).is_ok() || is_url_with_fragment(url)) {
        alert["generatorURL"] = json!(url);
    }
    alert
}

fn is_url_with_fragment(url: &str) -> bool {
    url.split_once('#').is_some_and(|(url, _)| HttpUrl::parse(url).is_ok())
}
