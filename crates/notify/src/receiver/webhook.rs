//! A webhook: the notification as JSON, or a template, in a `POST` request that can be signed.

use farrier_fleet::notify::{WebhookReceiver, WebhookUrl};
use hyper::header::HeaderName;
use jiff::Timestamp;
use ring::hmac;

use super::portable_key;
use crate::error::DeliveryError;
use crate::folders::ReceiverFiles;
use crate::hex::hexadecimal;
use crate::http::HttpRequest;
use crate::secret::{self, SecretText};
use crate::template::{self, Markup, TemplateError};
use crate::text::CleanNotification;
use crate::url::HttpUrl;

const JSON: &str = "application/json";

pub(crate) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// Time of the delivery in Unix seconds. It is signed, so that a receiver can refuse old requests.
const TIMESTAMP: HeaderName = HeaderName::from_static("x-farrier-timestamp");
const SIGNATURE: HeaderName = HeaderName::from_static("x-farrier-signature");

/// Longest `Idempotency-Key`; the limit of the services that define the header.
const KEY_CHARS_MAX: usize = 255;

pub(crate) async fn deliver(
    receiver: &WebhookReceiver,
    notification: &CleanNotification,
    files: &ReceiverFiles,
) -> Result<(), DeliveryError> {
    let url = load_url(receiver, files).await?;
    let content_type = content_type(receiver);
    let rendered = (receiver.clone(), notification.clone());
    let rendered = template::on_blocking_thread(move || body(&rendered.0, &rendered.1)).await;
    let body = rendered?.into_bytes();
    let key = secret::load_any(receiver.hmac_key.as_ref(), files).await?;
    let signature = key.map(|key| {
        let timestamp = Timestamp::now().as_second();
        (timestamp, signature(&key, timestamp, &body))
    });
    let mut post = HttpRequest::post(url, content_type, body, receiver.ca.as_deref())?;
    let key = portable_key(&notification.key, KEY_CHARS_MAX);
    post.header(IDEMPOTENCY_KEY, &key, "the idempotency key")?;
    if let Some((timestamp, signature)) = signature {
        post.header(TIMESTAMP, &timestamp.to_string(), "the timestamp")?;
        post.header(SIGNATURE, &signature, "the signature")?;
    }
    if let WebhookUrl::Secret(_) = receiver.url {
        let path = post.url.path_and_query().to_owned();
        post.hide(&path);
    }
    if let Some(token) = secret::load_token(receiver.bearer_token.as_ref(), files).await? {
        post.bearer(&token);
    }
    post.send().await?;
    Ok(())
}

/// The URL. The key of a signature is not sent, so that only a token or a secret URL requires TLS.
pub(crate) fn url(
    receiver: &WebhookReceiver,
    files: &ReceiverFiles,
) -> Result<HttpUrl, DeliveryError> {
    Ok(match (&receiver.url, &receiver.bearer_token) {
        (WebhookUrl::Public(url), None) => HttpUrl::parse(url)?,
        (WebhookUrl::Public(url), Some(_)) => HttpUrl::parse_confidential(url)?,
        (WebhookUrl::Secret(file), _) => secret::read_url(file, files)?,
    })
}

/// Reads the URL without blocking the runtime.
async fn load_url(
    receiver: &WebhookReceiver,
    files: &ReceiverFiles,
) -> Result<HttpUrl, DeliveryError> {
    match &receiver.url {
        WebhookUrl::Public(_) => url(receiver, files),
        WebhookUrl::Secret(file) => secret::load_url(file, files).await,
    }
}

/// The body of the request.
pub(crate) fn body(
    receiver: &WebhookReceiver,
    notification: &CleanNotification,
) -> Result<String, TemplateError> {
    let Some(source) = &receiver.template else {
        return serde_json::to_string(notification).map_err(TemplateError::NotJson);
    };
    let is_json = is_json(content_type(receiver));
    template::render(source, if is_json { Markup::Json } else { Markup::Plain }, notification)
}

fn content_type(receiver: &WebhookReceiver) -> &str {
    receiver.content_type.as_deref().filter(|_| receiver.template.is_some()).unwrap_or(JSON)
}

/// `application/json` or a type with the suffix `+json` (RFC 6839).
fn is_json(content_type: &str) -> bool {
    let essence = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    essence == JSON || essence.ends_with("+json")
}

/// `v1=` and the HMAC-SHA256 of the timestamp, a dot and the body.
fn signature(key: &SecretText, timestamp: i64, body: &[u8]) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key.expose().as_bytes());
    let mut context = hmac::Context::with_key(&key);
    context.update(format!("{timestamp}.").as_bytes());
    context.update(body);
    format!("v1={}", hexadecimal(context.sign().as_ref()))
}
