//! Slack's incoming webhooks, which other chats accept too.

use farrier_fleet::notify::SlackReceiver;
use serde_json::{Value, json};

use super::portable_key;
use super::webhook::IDEMPOTENCY_KEY;
use crate::error::DeliveryError;
use crate::folders::ReceiverFiles;
use crate::http::HttpRequest;
use crate::secret;
use crate::template::{self, Markup, TemplateError};
use crate::text::{self, CleanNotification};

pub(crate) async fn deliver(
    receiver: &SlackReceiver,
    notification: &CleanNotification,
    files: &ReceiverFiles,
) -> Result<(), DeliveryError> {
    let rendered = (receiver.clone(), notification.clone());
    let rendered = template::on_blocking_thread(move || body(&rendered.0, &rendered.1)).await;
    let body = rendered?.to_string().into_bytes();
    let url = secret::load_url(&receiver.url, files).await?;
    let mut post = HttpRequest::post(url, "application/json", body, receiver.ca.as_deref())?;
    let path = post.url.path_and_query().to_owned();
    post.hide(&path);
    post.header(IDEMPOTENCY_KEY, &portable_key(&notification.key, 255), "the idempotency key")?;
    post.send().await?;
    Ok(())
}

/// Without a template, the text has no markup: an asterisk in a cause must not become bold.
pub(crate) fn body(
    receiver: &SlackReceiver,
    notification: &CleanNotification,
) -> Result<Value, TemplateError> {
    Ok(match &receiver.template {
        Some(source) => {
            json!({ "text": template::render(source, Markup::Slack, notification)?, "mrkdwn": true })
        }
        None => {
            json!({ "text": template::escape_slack(&text::text(notification)), "mrkdwn": false })
        }
    })
}
