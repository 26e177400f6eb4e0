//! Notifications: the queue, tests of receivers, mutes and acknowledgements.

use farrier_fleet::fleet::{Domain, NodeId};
use farrier_fleet::health::Severity;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::requests::{BoundedText, RangedU32};
use super::schema::{Schema, Schemas, view};

/// A code of findings or reasons, such as `gpu.xid`, or the beginning of codes with a final `*`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CodeText(String);

impl CodeText {
    const MAX: usize = 128;

    pub fn into_text(self) -> String {
        self.0
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected a code, such as `gpu.xid`, or the beginning of codes, such as `nic.*`")]
pub struct CodeTextError;

impl TryFrom<String> for CodeText {
    type Error = CodeTextError;

    fn try_from(text: String) -> Result<Self, CodeTextError> {
        let stem = text.strip_suffix('*').unwrap_or(&text);
        let allowed =
            |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '.' | '_' | '-');
        let is_code = (1..=Self::MAX).contains(&text.len()) && stem.chars().all(allowed);
        is_code.then_some(Self(text)).ok_or(CodeTextError)
    }
}

impl From<CodeText> for String {
    fn from(code: CodeText) -> Self {
        code.0
    }
}

impl Schema for CodeText {
    fn schema(_: &mut Schemas) -> Value {
        json!({
            "type": "string", "minLength": 1, "maxLength": Self::MAX,
            "pattern": r"^[A-Za-z0-9._-]*\*?$",
        })
    }
}

view! { lenient
    /// Why a delivery failed.
    DeliveryErrorView {
        /// Stable code, such as `connect`, `status` or `secret`.
        code: String,
        text: String,
    }
}

view! { lenient
    /// A notification in the queue.
    QueuedNotification {
        receiver: String,
        /// `waiting`, `undeliverable` or `delivered`.
        state: String,
        /// Idempotency key: the same in each delivery of this notification.
        key: String,
        /// The group, for `acknowledgements`.
        group: String,
        /// `firing` or `resolved`.
        status: String,
        severity: Severity,
        code: String,
        cause: String,
        /// Number of affected nodes.
        nodes: u32,
        queued: Timestamp,
        /// Number of attempts.
        attempts: u32,
        /// When the next attempt is due; null before the first failure and after the last attempt.
        next: Option<Timestamp>,
        /// The last failure.
        error: Option<DeliveryErrorView>,
        /// How many notifications it replaces, because the queue was full; 0 if none.
        summarised: u64,
    }
}

view! { lenient
    /// The queue of a receiver.
    ReceiverQueue {
        receiver: String,
        waiting: u64,
        /// Those that are kept, at most 1000.
        undeliverable: u64,
        /// Undeliverable ones that are not kept any more: the oldest make room for further ones.
        dropped: u64,
        /// When the oldest waiting notification was queued.
        oldest: Option<Timestamp>,
        /// Delivered since the server started.
        delivered: u64,
        /// Failed attempts that were repeated, since the server started.
        retries: u64,
    }
}

view! { lenient
    /// Notifications from before `at` may be missing or not resolved.
    NotificationGap {
        at: Timestamp,
        /// The last entry of the log that was read before; null if unknown.
        after: Option<u64>,
        /// The entry at which the notifier continued.
        end: u64,
        /// `lost`, `damaged`, `archived` or `log-replaced`.
        cause: String,
    }
}

view! { lenient
    /// The notification database fails: the server delivers nothing until it can record that.
    NotificationDatabaseFailure {
        /// The last error.
        error: String,
        since: Timestamp,
    }
}

view! { lenient
    /// Something wrong with a receiver, as the server sees it.
    ReceiverProblemView {
        receiver: String,
        /// The key of the receiver, such as `hmac_key`.
        key: String,
        /// A policy with this problem is refused. Other problems may be solved later.
        is_error: bool,
        /// Whether the state of a file on the server causes the problem.
        is_about_files: bool,
        text: String,
    }
}

view! { lenient
    /// What is wrong with the receivers of the policy in force.
    ReceiverProblemList {
        problems: Vec<ReceiverProblemView>,
    }
}

view! { lenient
    /// The notification queue.
    NotificationQueue {
        receivers: Vec<ReceiverQueue>,
        /// Oldest first, by receiver.
        messages: Vec<QueuedNotification>,
        /// Number of notifications on later pages.
        more: u64,
        /// `cursor` of the next page; null if this is the last.
        next: Option<String>,
        /// Null if the notification database works. If it fails, `messages` may be empty although
        /// notifications wait.
        database: Option<NotificationDatabaseFailure>,
        gaps: Vec<NotificationGap>,
        /// The last entry of the log that the notifier has read.
        cursor: u64,
        /// The last entry of the log.
        end: u64,
        /// Seconds for which the notifier has not read the whole log; 0 if it has.
        behind_s: u64,
    }
}

view! { strict
    /// Chooses notifications of a receiver that wait or are undeliverable.
    QueuedNotificationsRequest {
        /// The receiver. The policy need not have it any more to drop notifications.
        receiver: String,
        /// Idempotency key of the only notification; all if null.
        key: Option<String>,
    }
}

view! { lenient
    /// How many notifications were changed.
    QueuedNotificationsChanged {
        count: u64,
        /// Undeliverable notifications that were dropped instead of retried, because what they tell
        /// is over. Null if notifications were dropped on request.
        obsolete: Option<u64>,
    }
}

view! { strict
    /// Sends a test message to a receiver.
    NotificationTestRequest {
        /// A receiver of the policy.
        receiver: String,
    }
}

view! { lenient
    /// The result of a test message.
    NotificationTestResult {
        delivered: bool,
        /// Why it was not delivered.
        error: Option<DeliveryErrorView>,
    }
}

view! { strict
    /// Sends no notifications of some alerts for a time. Without `node`, `domain` and `code`, of all alerts.
    MuteRequest {
        node: Option<NodeId>,
        domain: Option<Domain>,
        code: Option<CodeText>,
        /// Duration in seconds. Give either this or `until`.
        duration_s: Option<RangedU32<1, 31_536_000>>,
        /// End, by the server's clock. It must be in the future and within a year.
        until: Option<Timestamp>,
        reason: BoundedText,
    }
}

view! { strict
    /// Ends a mute.
    UnmuteRequest {
        /// Number of the mute.
        mute: u64,
    }
}

view! { strict
    /// An operator takes care of a group of alerts: it is neither repeated nor escalated.
    AcknowledgeRequest {
        /// The group, as in its notifications.
        group: String,
    }
}

view! { lenient
    /// A mute.
    MuteRow {
        mute: u64,
        node: Option<NodeId>,
        domain: Option<Domain>,
        code: Option<String>,
        /// What the operator could see. The mute does not apply to other nodes.
        scope: Domain,
        since: Timestamp,
        until: Timestamp,
        by: String,
        reason: String,
    }
}

view! { lenient
    /// The mutes in force.
    MuteList {
        mutes: Vec<MuteRow>,
    }
}
