//! Finds what is wrong with a receiver before the first delivery, without sending anything.

use std::fmt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use farrier_fleet::fleet::NodeId;
use farrier_fleet::health::Severity;
use farrier_fleet::notify::{
    AffectedNode, AlertmanagerReceiver, CommandReceiver, EmailReceiver, Notification,
    NotificationKind, NotificationStatus, PagerdutyReceiver, Receiver, SecretFile, SlackReceiver,
    WebhookReceiver, WebhookUrl,
};
use hyper::header::HeaderValue;
use jiff::Timestamp;

use crate::error::{CommandError, DeliveryError, SecretError};
use crate::folders::{FolderError, ReceiverFiles};
use crate::receiver::{alertmanager, command, email, pagerduty, slack, webhook};
use crate::secret;
use crate::text::CleanNotification;
use crate::tls;

/// Something wrong with a receiver.
#[derive(Debug)]
pub struct ReceiverProblem {
    /// The key of the receiver, such as `hmac_key`.
    pub key: &'static str,
    pub err: DeliveryError,
}

impl fmt::Display for ReceiverProblem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "`{}`: {}", self.key, self.text())
    }
}

impl ReceiverProblem {
    /// The error and its causes in one line.
    pub fn text(&self) -> String {
        let mut text = self.err.to_string();
        let mut cause = std::error::Error::source(&self.err);
        while let Some(err) = cause {
            text = format!("{text}: {err}");
            cause = err.source();
        }
        text
    }

    /// Whether a receiver must not be configured like this. Other problems, such as a missing file
    /// of a secret, may be solved later.
    pub fn is_error(&self) -> bool {
        let is_refused = match &self.err {
            DeliveryError::Folder(_) | DeliveryError::Command(CommandError::Start { .. }) => true,
            DeliveryError::Secret(err) => {
                matches!(err, SecretError::NotUrl { .. } | SecretError::NotToken { .. })
            }
            _ => false,
        };
        is_refused || !self.err.is_retryable()
    }

    /// Whether the state of the file system causes the problem, so that another machine may not
    /// have it.
    pub fn is_about_files(&self) -> bool {
        match &self.err {
            DeliveryError::Secret(err) => !matches!(err, SecretError::NotAbsolute),
            DeliveryError::Roots(_) | DeliveryError::Command(CommandError::Start { .. }) => true,
            DeliveryError::Folder(err) => !matches!(err, FolderError::Outside { .. }),
            _ => false,
        }
    }
}

/// Checks a receiver: its URL, its template with a sample, whether its files exist and are private,
/// and whether it may use them. Sends nothing.
pub fn check(receiver: &Receiver, files: &ReceiverFiles) -> Vec<ReceiverProblem> {
    let mut problems = Problems { found: Vec::new(), files };
    match receiver {
        Receiver::Alertmanager(receiver) => check_alertmanager(receiver, &mut problems),
        Receiver::Webhook(receiver) => check_webhook(receiver, &mut problems),
        Receiver::Slack(receiver) => check_slack(receiver, &mut problems),
        Receiver::Pagerduty(receiver) => check_pagerduty(receiver, &mut problems),
        Receiver::Email(receiver) => check_email(receiver, &mut problems),
        Receiver::Command(receiver) => check_command(receiver, &mut problems),
    }
    problems.found
}

struct Problems<'f> {
    found: Vec<ReceiverProblem>,
    files: &'f ReceiverFiles,
}

impl Problems<'_> {
    fn add<T>(&mut self, key: &'static str, result: Result<T, impl Into<DeliveryError>>) {
        if let Err(err) = result {
            self.found.push(ReceiverProblem { key, err: err.into() });
        }
    }

    fn secret(&mut self, key: &'static str, file: Option<&SecretFile>) {
        if let Some(file) = file {
            self.add(key, secret::read(file, self.files));
        }
    }

    fn token(&mut self, key: &'static str, file: Option<&SecretFile>) {
        if let Some(file) = file {
            self.add(key, secret::read_token(file, self.files));
        }
    }

    fn ca(&mut self, path: Option<&Path>) {
        if let Some(path) = path {
            self.add("ca", tls::read_ca(path));
        }
    }
}

fn check_alertmanager(receiver: &AlertmanagerReceiver, problems: &mut Problems<'_>) {
    problems.add("url", alertmanager::url(receiver));
    problems.token("bearer_token", receiver.bearer_token.as_ref());
    problems.ca(receiver.ca.as_deref());
}

fn check_webhook(receiver: &WebhookReceiver, problems: &mut Problems<'_>) {
    let key = match receiver.url {
        WebhookUrl::Public(_) => "url",
        WebhookUrl::Secret(_) => "url_file",
    };
    problems.add(key, webhook::url(receiver, problems.files));
    for sample in samples() {
        let rendered = webhook::body(receiver, &sample);
        if rendered.is_err() {
            problems.add("template", rendered);
            break;
        }
    }
    if let Some(content_type) = &receiver.content_type {
        let what = "the media type";
        let header = HeaderValue::from_str(content_type);
        problems.add("content_type", header.map_err(|_| DeliveryError::Invalid { what }));
    }
    problems.secret("hmac_key", receiver.hmac_key.as_ref());
    problems.token("bearer_token", receiver.bearer_token.as_ref());
    problems.ca(receiver.ca.as_deref());
}

fn check_slack(receiver: &SlackReceiver, problems: &mut Problems<'_>) {
    problems.add("url", secret::read_url(&receiver.url, problems.files));
    for sample in samples() {
        let rendered = slack::body(receiver, &sample);
        if rendered.is_err() {
            problems.add("template", rendered);
            break;
        }
    }
    problems.ca(receiver.ca.as_deref());
}

fn check_pagerduty(receiver: &PagerdutyReceiver, problems: &mut Problems<'_>) {
    problems.add("url", pagerduty::url(receiver));
    problems.secret("routing_key", Some(&receiver.routing_key));
    problems.ca(receiver.ca.as_deref());
}

fn check_email(receiver: &EmailReceiver, problems: &mut Problems<'_>) {
    if let Err(err) = email::Envelope::new(receiver) {
        let key = err.key();
        problems.add(key, Err::<(), _>(err));
    }
    for sample in samples() {
        let rendered = email::body(receiver, &sample);
        if rendered.is_err() {
            problems.add("template", rendered);
            break;
        }
    }
    problems.secret("password", receiver.password.as_ref());
    problems.ca(receiver.ca.as_deref());
}

fn check_command(receiver: &CommandReceiver, problems: &mut Problems<'_>) {
    problems.add("argv", check_program(receiver, problems.files));
    if receiver.timeout_s == 0 {
        problems
            .add("timeout_s", Err::<(), _>(DeliveryError::Invalid { what: "a timeout of 0 s" }));
    }
}

fn check_program(receiver: &CommandReceiver, files: &ReceiverFiles) -> Result<(), DeliveryError> {
    let program = command::program(receiver)?;
    let start_error = |err| CommandError::Start { program: program.clone(), err };
    let meta = files.program(&program).map_err(start_error)??.metadata().map_err(start_error)?;
    if !meta.is_file() || meta.permissions().mode() & 0o111 == 0 {
        return Err(start_error(std::io::ErrorKind::PermissionDenied.into()).into());
    }
    Ok(())
}

/// Notifications with all optional fields and with none, so that a template fails here if it needs
/// a field that may be missing.
fn samples() -> [CleanNotification; 2] {
    let node = AffectedNode {
        node: NodeId::try_from("gpu-7".to_owned()).expect("a valid name"),
        pool: None,
        site: None,
        tenant: None,
        part: Some("GPU 3 (0000:1b:00.0)".to_owned()),
    };
    let full = Notification {
        key: "sample-1".to_owned(),
        group: "sample".to_owned(),
        status: NotificationStatus::Firing,
        severity: Severity::Fatal,
        kind: NotificationKind::Test,
        code: "gpu.xid".to_owned(),
        cause: "Xid 79: a sample with \"quotes\", <tags> & more".to_owned(),
        nodes: vec![node],
        nodes_total: 1,
        action_taken: Some("cordoned".to_owned()),
        action_needed: Some("power-cycle the node".to_owned()),
        runbook_url: Some("https://runbooks.example/xid.79".to_owned()),
        started: Timestamp::UNIX_EPOCH,
        at: Timestamp::UNIX_EPOCH,
    };
    let bare = Notification {
        status: NotificationStatus::Resolved,
        nodes: Vec::new(),
        nodes_total: 0,
        action_taken: None,
        action_needed: None,
        runbook_url: None,
        ..full.clone()
    };
    [full, bare].map(|sample| CleanNotification::new(&sample))
}
