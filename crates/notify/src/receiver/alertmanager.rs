//! Alertmanager's API v2. Alertmanager identifies an alert by all of its labels. If the labels of a
//! group change, such as its severity, the alert with the earlier labels is ended.

use std::collections::BTreeMap;

use farrier_fleet::fleet::identity::{Pool, Tenant, Unit};
use farrier_fleet::notify::{AffectedNode, AlertmanagerReceiver, NotificationStatus};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::{portable_key, word};
use crate::error::DeliveryError;
use crate::folders::ReceiverFiles;
use crate::http::HttpRequest;
use crate::secret::{self, BearerToken};
use crate::text::{self, CleanNotification};
use crate::url::{HttpUrl, ReceiverUrlError};

/// How long Alertmanager keeps a firing alert of which it hears nothing more. Without an end, it
/// resolves an alert after five minutes (`resolve_timeout`), because Prometheus repeats its alerts
/// every minute. Farrier repeats them after hours, and reports the resolution itself.
const FIRING_FOR: SignedDuration = SignedDuration::from_hours(30 * 24);

/// The alerts of one group are far smaller.
const ALERTS_BYTES_MAX: usize = 1 << 20;

/// The label that all alerts of a group have, and no others.
const GROUP: &str = "farrier_group";

/// Longest value of [`GROUP`].
const GROUP_CHARS_MAX: usize = 255;

type Labels = BTreeMap<String, String>;

/// An alert that Alertmanager has.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ActiveAlert {
    labels: Labels,
    starts_at: Timestamp,
}

/// An alert that is sent.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Alert {
    labels: Labels,
    annotations: BTreeMap<&'static str, String>,
    starts_at: Timestamp,
    ends_at: Timestamp,
    #[serde(rename = "generatorURL", skip_serializing_if = "Option::is_none")]
    generator_url: Option<String>,
}

pub(crate) async fn deliver(
    receiver: &AlertmanagerReceiver,
    notification: &CleanNotification,
    files: &ReceiverFiles,
) -> Result<(), DeliveryError> {
    let token = secret::load_token(receiver.bearer_token.as_ref(), files).await?;
    let url = url(receiver)?;
    let active = active_alerts(receiver, &url, token.as_ref(), notification).await?;
    let alerts = serde_json::to_vec(&alerts(notification, active));
    let body = alerts.map_err(|_| DeliveryError::Invalid { what: "the alert" })?;
    let url = url.join("/api/v2/alerts")?;
    let mut post = HttpRequest::post(url, "application/json", body, receiver.ca.as_deref())?;
    if let Some(token) = &token {
        post.bearer(token);
    }
    post.send().await?;
    Ok(())
}

pub(crate) fn url(receiver: &AlertmanagerReceiver) -> Result<HttpUrl, ReceiverUrlError> {
    match receiver.bearer_token {
        Some(_) => HttpUrl::parse_confidential(&receiver.url),
        None => HttpUrl::parse(&receiver.url),
    }
}

/// The alerts of the group that Alertmanager has not resolved.
async fn active_alerts(
    receiver: &AlertmanagerReceiver,
    url: &HttpUrl,
    token: Option<&BearerToken>,
    notification: &CleanNotification,
) -> Result<Vec<ActiveAlert>, DeliveryError> {
    let group = group(notification).replace('\\', "\\\\").replace('"', "\\\"");
    let filter = percent_encode(&format!("{GROUP}=\"{group}\""));
    let url = url.join(&format!("/api/v2/alerts?filter={filter}"))?;
    let host = url.host().to_owned();
    let mut get = HttpRequest::get(url, ALERTS_BYTES_MAX, receiver.ca.as_deref());
    if let Some(token) = token {
        get.bearer(token);
    }
    let body = get.send().await?;
    serde_json::from_slice(&body).map_err(|_| DeliveryError::Response { host })
}

/// The alert of the group, and the end of its alerts with other labels.
fn alerts(notification: &CleanNotification, active: Vec<ActiveAlert>) -> Vec<Alert> {
    let current = labels(notification);
    let end = match notification.status {
        NotificationStatus::Firing => notification.at.saturating_add(FIRING_FOR),
        NotificationStatus::Resolved => Ok(notification.at),
    };
    let end = end.unwrap_or(Timestamp::MAX);
    let group = group(notification);
    // Alertmanager filters by the group too, unless something else answers for it.
    let superseded = active
        .into_iter()
        .filter(|alert| alert.labels != current && alert.labels.get(GROUP) == Some(&group));
    let superseded: Vec<Alert> = superseded
        .map(|active| alert(notification, active.labels, active.starts_at, notification.at))
        .collect();
    let mut alerts = vec![alert(notification, current, notification.started, end)];
    alerts.extend(superseded);
    alerts
}

fn alert(
    notification: &CleanNotification,
    labels: Labels,
    starts_at: Timestamp,
    ends_at: Timestamp,
) -> Alert {
    let one_line = |text: &Option<String>| text.as_deref().map(text::one_line);
    let names = notification.nodes.iter().map(|node| node.node.as_str());
    let annotations = [
        ("key", Some(notification.key.clone())),
        ("summary", Some(text::subject(notification))),
        ("description", Some(text::text(notification))),
        ("action_taken", one_line(&notification.action_taken)),
        ("action_needed", one_line(&notification.action_needed)),
        ("runbook_url", one_line(&notification.runbook_url)),
        ("nodes", Some(names.collect::<Vec<_>>().join(", "))),
        ("nodes_total", Some(notification.nodes_total.to_string())),
        ("idempotency_key", Some(notification.key.clone())),
    ];
    let annotations = annotations.into_iter().filter_map(|(name, text)| Some((name, text?)));
    // Alertmanager rejects the request if the alert ends before it starts, or if its link is not a
    // URL.
    Alert {
        labels,
        annotations: annotations.collect(),
        starts_at: starts_at.min(ends_at),
        ends_at,
        generator_url: notification.runbook_url.clone().filter(|url| is_url(url)),
    }
}

/// The labels by which Alertmanager routes.
fn labels(notification: &CleanNotification) -> Labels {
    let nodes = &notification.nodes;
    let common = |field: fn(&AffectedNode) -> Option<&str>| {
        let first = field(nodes.first()?)?;
        let is_common = nodes.len() == notification.nodes_total as usize
            && nodes.iter().all(|node| field(node) == Some(first));
        is_common.then(|| first.to_owned())
    };
    let labels = [
        ("alertname", Some(text::one_line(&notification.code))),
        (GROUP, Some(group(notification))),
        ("severity", Some(notification.severity.to_string())),
        ("kind", Some(word(&notification.kind))),
        ("node", common(|node| Some(node.node.as_str()))),
        ("pool", common(|node| node.pool.as_ref().map(Pool::as_str))),
        ("site", common(|node| node.site.as_ref().map(Unit::as_str))),
        ("tenant", common(|node| node.tenant.as_ref().map(Tenant::as_str))),
    ];
    // To Alertmanager, an empty label is a missing one.
    let labels = labels.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    labels.filter(|(_, value)| !value.is_empty()).collect()
}

fn group(notification: &CleanNotification) -> String {
    portable_key(&notification.group, GROUP_CHARS_MAX)
}

fn is_url(text: &str) -> bool {
    HttpUrl::parse(text.split('#').next().unwrap_or_default()).is_ok()
}

fn percent_encode(text: &str) -> String {
    let encode = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
            char::from(byte).to_string()
        }
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(encode).collect()
}
