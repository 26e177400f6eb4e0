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
#[serde(deny_unknown_fields)]
pub struct WebhookReceiver {
    pub url: String,
    /// Template of the body. Without one, the body is the notification as JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// Media type of the body that `template` renders.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// Key of the HMAC-SHA256 signature of time and body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hmac_key: Option<SecretFile>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bearer_token: Option<SecretFile>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
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
