//! `PagerDuty`'s Events API v2. The group is the deduplication key, so that repeats update one alert
//! and the resolution closes it.

use farrier_fleet::health::Severity;
use farrier_fleet::notify::{NotificationStatus, PagerdutyReceiver};
use serde_json::{Value, json};

use super::portable_key;
use super::webhook::IDEMPOTENCY_KEY;
use crate::error::DeliveryError;
use crate::folders::ReceiverFiles;
use crate::http::HttpRequest;
use crate::secret;
use crate::text::{self, CleanNotification};
use crate::url::{HttpUrl, ReceiverUrlError};

const URL: &str = "https://events.pagerduty.com/v2/enqueue";

/// Longest summary that the API accepts.
const SUMMARY_CHARS_MAX: usize = 1024;
/// Longest deduplication key that the API accepts.
const KEY_CHARS_MAX: usize = 255;

pub(crate) async fn deliver(
    receiver: &PagerdutyReceiver,
    notification: &CleanNotification,
    files: &ReceiverFiles,
) -> Result<(), DeliveryError> {
    let url = url(receiver)?;
    let routing_key = secret::load(&receiver.routing_key, files).await?;
    let body = event(routing_key.expose(), notification).to_string().into_bytes();
    let mut post = HttpRequest::post(url, "application/json", body, receiver.ca.as_deref())?;
    post.hide(routing_key.expose());
    let key = portable_key(&notification.key, KEY_CHARS_MAX);
    post.header(IDEMPOTENCY_KEY, &key, "the idempotency key")?;
    post.send().await?;
    Ok(())
}

pub(crate) fn url(receiver: &PagerdutyReceiver) -> Result<HttpUrl, ReceiverUrlError> {
    HttpUrl::parse_confidential(receiver.url.as_deref().unwrap_or(URL))
}

pub(crate) fn event(routing_key: &str, notification: &CleanNotification) -> Value {
    let dedup_key = portable_key(&notification.group, KEY_CHARS_MAX);
    let action = match notification.status {
        NotificationStatus::Firing => "trigger",
        NotificationStatus::Resolved => "resolve",
    };
    let source = notification.nodes.first().map_or("farrier", |node| node.node.as_str());
    let mut event = json!({
        "routing_key": routing_key,
        "event_action": action,
        "dedup_key": dedup_key,
        "client": "Farrier",
        "payload": {
            "summary": text::clean(&text::subject(notification), SUMMARY_CHARS_MAX),
            "source": source,
            "severity": severity(notification.severity),
            "timestamp": notification.at,
            "class": notification.code,
            "custom_details": {
                "action_taken": notification.action_taken,
                "action_needed": notification.action_needed,
                "nodes": notification.nodes,
                "nodes_total": notification.nodes_total,
                "key": notification.key,
            },
        },
    });
    if let Some(url) = &notification.runbook_url {
        event["links"] = json!([{ "href": url, "text": "runbook" }]);
    }
    event
}

/// `critical` is `PagerDuty`'s most severe level.
fn severity(severity: Severity) -> &'static str {
    match severity {
        Severity::Info => "info",
        Severity::Warning => "warning",
        Severity::Critical => "error",
        Severity::Fatal => "critical",
    }
}
