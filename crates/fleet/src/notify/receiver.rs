//! Receivers of notifications. The policy names the files of secrets, never the secrets.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A file with a secret in its first line. The sender reads it for each delivery, so that a new
/// secret needs no restart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SecretFile(pub PathBuf);

/// Where a notification is delivered. The name of a receiver is its key in the policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Receiver {
    Alertmanager(AlertmanagerReceiver),
    Webhook(WebhookReceiver),
    /// Slack, or a chat that accepts Slack's incoming webhooks.
    Slack(SlackReceiver),
    /// Events API v2.
    Pagerduty(PagerdutyReceiver),
    Email(EmailReceiver),
    Command(CommandReceiver),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AlertmanagerReceiver {
    /// Base URL, such as `http://alertmanager:9093`. `/api/v2/alerts` is appended.
    pub url: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bearer_token: Option<SecretFile>,
    /// PEM file of additional root certificates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "WebhookKeys", into = "WebhookKeys")]
pub struct WebhookReceiver {
    pub url: WebhookUrl,
    /// Template of the body. Without one, the body is the notification as JSON.
    pub template: Option<String>,
    /// Media type of the body that `template` renders.
    pub content_type: Option<String>,
    /// Key of the HMAC-SHA256 signature of time and body.
    pub hmac_key: Option<SecretFile>,
    pub bearer_token: Option<SecretFile>,
    pub ca: Option<PathBuf>,
}

/// Where a webhook is. Its URL often has a token in it, and is then a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WebhookUrl {
    /// The key `url`.
    Public(String),
    /// The key `url_file`.
    Secret(SecretFile),
}

/// The keys of a [`WebhookReceiver`] in a policy or a configuration.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WebhookKeys {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    url: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    url_file: Option<SecretFile>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    template: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    content_type: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hmac_key: Option<SecretFile>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bearer_token: Option<SecretFile>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ca: Option<PathBuf>,
}

/// A webhook with no URL, or with two. The message does not show them, because one is a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected either `url` or `url_file`, the path of a file with the URL")]
pub struct WebhookUrlError;

impl TryFrom<WebhookKeys> for WebhookReceiver {
    type Error = WebhookUrlError;

    fn try_from(keys: WebhookKeys) -> Result<Self, WebhookUrlError> {
        let url = match (keys.url, keys.url_file) {
            (Some(url), None) => WebhookUrl::Public(url),
            (None, Some(file)) => WebhookUrl::Secret(file),
            (Some(_), Some(_)) | (None, None) => return Err(WebhookUrlError),
        };
        Ok(Self {
            url,
            template: keys.template,
            content_type: keys.content_type,
            hmac_key: keys.hmac_key,
            bearer_token: keys.bearer_token,
            ca: keys.ca,
        })
    }
}

impl From<WebhookReceiver> for WebhookKeys {
    fn from(receiver: WebhookReceiver) -> Self {
        let (url, url_file) = match receiver.url {
            WebhookUrl::Public(url) => (Some(url), None),
            WebhookUrl::Secret(file) => (None, Some(file)),
        };
        Self {
            url,
            url_file,
            template: receiver.template,
            content_type: receiver.content_type,
            hmac_key: receiver.hmac_key,
            bearer_token: receiver.bearer_token,
            ca: receiver.ca,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlackReceiver {
    /// The webhook URL is a secret.
    pub url: SecretFile,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PagerdutyReceiver {
    pub routing_key: SecretFile,
    /// For a compatible service or a proxy. Without it, the public service is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EmailReceiver {
    /// `host:port` of the SMTP server.
    pub server: String,
    pub from: String,
    pub to: Vec<String>,
    #[serde(default)]
    pub tls: SmtpTls,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password: Option<SecretFile>,
    /// Template of the text. The subject is always the summary line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SmtpTls {
    /// Refuses a server without STARTTLS.
    #[default]
    Starttls,
    /// TLS from the first byte, usually on port 465.
    Implicit,
    /// No encryption. Only for a server on a loopback address.
    None,
}

/// A program on the machine that delivers. It gets the notification as JSON on stdin and its main
/// fields as environment variables. It is started without a shell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CommandReceiver {
    /// Program and arguments. The program is an absolute path.
    pub argv: Vec<String>,
    #[serde(default = "default_timeout_s")]
    pub timeout_s: u32,
}

fn default_timeout_s() -> u32 {
    30
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_webhook_has_one_url_and_keeps_its_form() {
        for keys in [
            json!({ "url": "https://hooks.example/", "template": "{}" }),
            json!({ "url_file": "/etc/farrier/secrets/hook", "hmac_key": "/k" }),
        ] {
            let receiver: WebhookReceiver = serde_json::from_value(keys.clone()).unwrap();
            assert_eq!(serde_json::to_value(receiver).unwrap(), keys);
        }
        for keys in [
            json!({ "template": "{}" }),
            json!({ "url": "https://h.example/s3cret", "url_file": "/etc/farrier/secrets/hook" }),
        ] {
            let err = serde_json::from_value::<WebhookReceiver>(keys).unwrap_err().to_string();
            assert!(err.contains("either `url` or `url_file`"), "{err}");
            assert!(!err.contains("s3cret"), "{err}");
        }
        let unknown = json!({ "url": "https://hooks.example/", "uri": "x" });
        serde_json::from_value::<WebhookReceiver>(unknown).unwrap_err();
    }
}
