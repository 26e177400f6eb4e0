//! The texts of a notification. All receivers use them, and templates get them as `subject` and
//! `text`.
//!
//! ```text
//! FATAL gpu-7 GPU 3 (0000:1b:00.0): Xid 79 | done: cordoned | to do: power-cycle the node | https://...
//! ╰────────────────── subject ───────────╯
//! ```

use std::fmt::Write as _;
use std::ops::Deref;

use farrier_fleet::notify::{AffectedNode, Notification, NotificationKind, NotificationStatus};
use serde::Serialize;

use crate::receiver::key_digest;

/// Nodes that the subject names. `Notification::nodes` may have more.
const NAMED_NODES_MAX: usize = 3;

/// A longer part is cut to this many characters.
const PART_CHARS_MAX: usize = 300;

/// A longer text of a notification is cut to this many characters before it is sent.
const TEXT_CHARS_MAX: usize = 1024;

/// A notification whose texts are safe to send: each is one line without control characters and
/// characters that hide or reorder text. Causes and parts may come from a kernel log.
#[derive(Debug, Clone, Serialize)]
#[serde(transparent)]
pub(crate) struct CleanNotification(Notification);

impl CleanNotification {
    pub(crate) fn new(notification: &Notification) -> Self {
        let text = |text: &str| clean(text, TEXT_CHARS_MAX);
        let optional = |value: &Option<String>| value.as_deref().map(text);
        let nodes = notification.nodes.iter();
        Self(Notification {
            key: clean_key(&notification.key),
            group: clean_key(&notification.group),
            code: text(&notification.code),
            cause: text(&notification.cause),
            nodes: nodes
                .map(|node| AffectedNode { part: optional(&node.part), ..node.clone() })
                .collect(),
            action_taken: optional(&notification.action_taken),
            action_needed: optional(&notification.action_needed),
            runbook_url: optional(&notification.runbook_url),
            ..notification.clone()
        })
    }
}

impl Deref for CleanNotification {
    type Target = Notification;

    fn deref(&self) -> &Notification {
        &self.0
    }
}

/// The key itself, or its SHA-256 if it has characters that are not sent: two keys must not become
/// the same.
fn clean_key(key: &str) -> String {
    if clean(key, PART_CHARS_MAX) == key { key.to_owned() } else { key_digest(key) }
}

/// Severity or status, nodes and cause, in one line.
pub fn subject(notification: &Notification) -> String {
    let status = match (notification.status, notification.kind) {
        (NotificationStatus::Resolved, _) => "RESOLVED".to_owned(),
        (NotificationStatus::Firing, NotificationKind::Test) => "TEST".to_owned(),
        (NotificationStatus::Firing, _) => notification.severity.to_string().to_uppercase(),
    };
    let nodes = nodes(notification);
    let space = if nodes.is_empty() { "" } else { " " };
    format!("{status}{space}{nodes}: {}", one_line(&notification.cause))
}

/// The subject, the action taken, the action needed and the runbook page, in one line.
pub fn text(notification: &Notification) -> String {
    parts(notification).join(" | ")
}

/// The same parts as [`text`], each in a line, and the affected nodes.
pub fn body(notification: &Notification) -> String {
    let mut body = parts(notification).join("\n");
    let _ = write!(body, "\n\nsince {}", notification.started);
    if notification.status == NotificationStatus::Resolved {
        let _ = write!(body, ", resolved {}", notification.at);
    }
    for node in &notification.nodes {
        let _ = write!(body, "\n- {}", describe(node));
    }
    let more = more_nodes(notification, notification.nodes.len());
    if more > 0 {
        let _ = write!(body, "\n- and {more} more");
    }
    body.push('\n');
    body
}

fn parts(notification: &Notification) -> Vec<String> {
    let mut parts = vec![subject(notification)];
    let done = notification.action_taken.as_deref();
    parts.extend(done.map(|done| format!("done: {}", one_line(done))));
    let needed = match notification.status {
        NotificationStatus::Firing => notification.action_needed.as_deref(),
        NotificationStatus::Resolved => None,
    };
    parts.extend(needed.map(|needed| format!("to do: {}", one_line(needed))));
    parts.extend(notification.runbook_url.as_deref().map(one_line));
    parts
}

/// The affected nodes: `gpu-7 GPU 3`, or `12 nodes (gpu-1, gpu-2, gpu-3, ...)`.
fn nodes(notification: &Notification) -> String {
    let named = &notification.nodes;
    if let ([node], 0) = (named.as_slice(), more_nodes(notification, 1)) {
        let part = node.part.as_deref().map(|part| format!(" {}", one_line(part)));
        return format!("{}{}", node.node, part.unwrap_or_default());
    }
    // A node with several faulty parts is listed several times.
    let mut names: Vec<&str> = Vec::new();
    for node in named {
        if !names.contains(&node.node.as_str()) {
            names.push(node.node.as_str());
        }
    }
    let total = named_total(notification, names.len());
    match (total, names.as_slice()) {
        (0, _) => String::new(),
        (1, [name]) => (*name).to_owned(),
        _ => {
            let shown = names.iter().take(NAMED_NODES_MAX).copied().collect::<Vec<_>>().join(", ");
            let more = if total > names.len().min(NAMED_NODES_MAX) { ", ..." } else { "" };
            format!("{total} nodes ({shown}{more})")
        }
    }
}

fn more_nodes(notification: &Notification, named: usize) -> usize {
    named_total(notification, named) - named
}

/// `nodes_total`, which is wrong if it is less than the number of named nodes.
fn named_total(notification: &Notification, named: usize) -> usize {
    usize::try_from(notification.nodes_total).unwrap_or(usize::MAX).max(named)
}

fn describe(node: &AffectedNode) -> String {
    let labels = [
        node.pool.as_ref().map(|pool| format!("pool {pool}")),
        node.site.as_ref().map(|site| format!("site {site}")),
        node.tenant.as_ref().map(|tenant| format!("tenant {tenant}")),
    ];
    let labels = labels.into_iter().flatten().collect::<Vec<_>>().join(", ");
    let labels = if labels.is_empty() { labels } else { format!(" ({})", one_line(&labels)) };
    let part = node.part.as_deref().map(|part| format!(": {}", one_line(part)));
    format!("{}{labels}{}", node.node, part.unwrap_or_default())
}

/// A text without line breaks and other control characters, cut to [`PART_CHARS_MAX`].
pub(crate) fn one_line(text: &str) -> String {
    clean(text, PART_CHARS_MAX)
}

/// Replaces each run of control characters and white space with a space, and removes characters
/// that change the direction of text. Cuts the text to `chars_max` characters.
pub(crate) fn clean(text: &str, chars_max: usize) -> String {
    let mut cleaned = String::new();
    let mut chars = 0;
    for word in text.split(|char: char| char.is_control() || char.is_whitespace()) {
        for char in word.chars().filter(|char| !is_invisible(*char)) {
            if chars >= chars_max {
                return cleaned + "...";
            }
            cleaned.push(char);
            chars += 1;
        }
        if !cleaned.is_empty() && !cleaned.ends_with(' ') {
            cleaned.push(' ');
            chars += 1;
        }
    }
    cleaned.truncate(cleaned.trim_end().len());
    cleaned
}

/// Characters with which a hostile text could hide or reorder what people read: the controls of the
/// Unicode bidirectional algorithm (UAX 9), the characters with the property
/// `Default_Ignorable_Code_Point`, interlinear annotations and blanks that are no white space.
fn is_invisible(char: char) -> bool {
    matches!(
        char,
        '\u{ad}'
            | '\u{34f}'
            | '\u{61c}'
            | '\u{115f}'..='\u{1160}'
            | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}'
            | '\u{202a}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{2800}'
            | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}'
            | '\u{feff}'
            | '\u{ffa0}'
            | '\u{fff0}'..='\u{fffb}'
            | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}'
    )
}
