//! Templates of a receiver, in Jinja syntax. They cannot include files, and their run time, memory
//! and output are limited.

mod filters;
mod rules;

use std::io::{self, Write};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use minijinja::value::{Serde, Value};
use minijinja::{AutoEscape, Environment, ErrorKind, Output, State, UndefinedBehavior};
use serde::Serialize;

pub use self::rules::RefusedSyntax;
use crate::text::{self, CleanNotification};

/// Longest source of a template.
const SOURCE_BYTES_MAX: usize = 16 << 10;
/// Longest output. Chats and mail servers accept at least this.
const OUTPUT_BYTES_MAX: usize = 64 << 10;
/// Limit of instructions. A loop over all nodes of a notification takes a few thousand.
const FUEL: u64 = 50_000;

/// Steps and filters are limited, so that only a very slow machine meets this deadline.
const DEADLINE: Duration = Duration::from_secs(20);

/// The parser, the compiler and the destructor of a template recurse into its operators, of which
/// the longest source has some thousands. Only touched pages take memory.
const STACK_BYTES: usize = 64 << 20;

/// The name of Slack's escaping.
const SLACK: &str = "slack";

/// What a template renders, which determines how values in it are escaped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Markup {
    /// Each value becomes a JSON value, with its quotation marks.
    Json,
    /// Slack's mrkdwn: `&`, `<` and `>` are escaped.
    Slack,
    Plain,
}

#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    #[error("the template is larger than {SOURCE_BYTES_MAX} bytes")]
    TooLong,
    #[error("the template is invalid")]
    Render(#[source] minijinja::Error),
    #[error("the template renders more than {OUTPUT_BYTES_MAX} bytes")]
    OutputTooLong,
    #[error(
        "the template renders invalid JSON; values need no quotation marks, as in `{{\"text\": {{{{ text }}}}}}`"
    )]
    NotJson(#[source] serde_json::Error),
    #[error("the template renders an empty text")]
    Empty,
    #[error("a template may not use {0}")]
    Refused(RefusedSyntax),
    #[error("rendering the template took longer than {} s", DEADLINE.as_secs())]
    TimedOut,
    #[error("failed to start a thread for the template")]
    Thread(#[source] io::Error),
    /// The interpreter failed.
    #[error("the template cannot be rendered")]
    Interpreter,
}

/// The variables of a template.
#[derive(Debug, Serialize)]
struct Variables<'n> {
    key: &'n str,
    group: &'n str,
    status: farrier_fleet::notify::NotificationStatus,
    severity: farrier_fleet::health::Severity,
    kind: farrier_fleet::notify::NotificationKind,
    code: &'n str,
    cause: String,
    nodes: &'n [farrier_fleet::notify::AffectedNode],
    nodes_total: u32,
    action_taken: Option<String>,
    action_needed: Option<String>,
    runbook_url: Option<String>,
    started: jiff::Timestamp,
    at: jiff::Timestamp,
    subject: String,
    text: String,
}

impl<'n> Variables<'n> {
    fn new(notification: &'n CleanNotification) -> Self {
        let clean = |text: &Option<String>| text.as_deref().map(text::one_line);
        Self {
            key: &notification.key,
            group: &notification.group,
            status: notification.status,
            severity: notification.severity,
            kind: notification.kind,
            code: &notification.code,
            cause: text::one_line(&notification.cause),
            nodes: &notification.nodes,
            nodes_total: notification.nodes_total,
            action_taken: clean(&notification.action_taken),
            action_needed: clean(&notification.action_needed),
            runbook_url: clean(&notification.runbook_url),
            started: notification.started,
            at: notification.at,
            subject: text::subject(notification),
            text: text::text(notification),
        }
    }
}

/// Renders a template. Blocks until it is rendered: async code calls it on a blocking thread.
pub(crate) fn render(
    source: &str,
    markup: Markup,
    notification: &CleanNotification,
) -> Result<String, TemplateError> {
    if source.len() > SOURCE_BYTES_MAX {
        return Err(TemplateError::TooLong);
    }
    let variables = Value::from(Serde(Variables::new(notification)));
    let (sender, receiver) = mpsc::sync_channel(1);
    let source = source.to_owned();
    let thread = thread::Builder::new().name("template".to_owned()).stack_size(STACK_BYTES);
    let spawned = thread.spawn(move || {
        let _ = sender.send(render_here(&source, markup, variables));
    });
    spawned.map_err(TemplateError::Thread)?;
    receiver.recv_timeout(DEADLINE).unwrap_or_else(|err| {
        Err(match err {
            RecvTimeoutError::Timeout => TemplateError::TimedOut,
            RecvTimeoutError::Disconnected => TemplateError::Interpreter,
        })
    })
}

/// Calls a function that renders, without blocking the runtime.
pub(crate) async fn on_blocking_thread<T, E>(
    render: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, E>
where
    T: Send + 'static,
    E: From<TemplateError> + Send + 'static,
{
    let rendered = tokio::task::spawn_blocking(render).await;
    rendered.unwrap_or_else(|_| Err(TemplateError::Interpreter.into()))
}

fn render_here(source: &str, markup: Markup, variables: Value) -> Result<String, TemplateError> {
    rules::check(source)?;
    let mut environment = Environment::empty();
    filters::add(&mut environment);
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_fuel(Some(FUEL));
    environment.set_recursion_limit(32);
    environment.set_auto_escape_callback(move |_| match markup {
        Markup::Json => AutoEscape::Json,
        Markup::Slack => AutoEscape::Custom(SLACK.into()),
        Markup::Plain => AutoEscape::None,
    });
    environment.set_formatter(write_value);
    let template = environment.template_from_str(source).map_err(TemplateError::Render)?;
    let mut output = LimitedOutput::default();
    let rendered = template.render_captured_to(variables, &mut output);
    if output.is_full {
        return Err(TemplateError::OutputTooLong);
    }
    rendered.map_err(TemplateError::Render)?;
    let text = String::from_utf8_lossy(&output.bytes).into_owned();
    if text.trim().is_empty() {
        return Err(TemplateError::Empty);
    }
    if markup == Markup::Json {
        serde_json::from_str::<serde::de::IgnoredAny>(&text).map_err(TemplateError::NotJson)?;
    }
    Ok(text)
}

fn write_value(
    output: &mut Output<'_>,
    state: &mut State<'_, '_>,
    value: &Value,
) -> Result<(), minijinja::Error> {
    if !matches!(state.auto_escape(), AutoEscape::Custom(name) if name == SLACK) {
        return minijinja::escape_formatter(output, state, value);
    }
    if value.is_undefined() {
        return Err(ErrorKind::UndefinedError.into());
    }
    let text = value.to_string();
    let text = if value.is_safe() { text } else { escape_slack(&text) };
    output.write_str(&text).map_err(|_| ErrorKind::WriteFailure.into())
}

/// Escapes the three control characters of Slack's mrkdwn. Without them no text can mention people
/// (`<!channel>`) or hide a link.
pub(crate) fn escape_slack(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[derive(Debug, Default)]
struct LimitedOutput {
    bytes: Vec<u8>,
    is_full: bool,
}

impl Write for LimitedOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > OUTPUT_BYTES_MAX {
            self.is_full = true;
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
