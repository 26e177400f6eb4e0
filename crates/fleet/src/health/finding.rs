//! Findings: what is wrong, since when, the evidence, and the action to take.

use farrier_facts::node::Reading;
pub use farrier_facts::xid::{Action, Severity};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::observation::{NvmlXid, Subject};
use super::signal::Signal;

/// ID of the server's own finding about a node: 2^53 - 1, the largest integer that every JSON
/// parser keeps exactly. Agents number their findings from 0 and stay below it.
pub const SERVER_FINDING_ID: u64 = (1 << 53) - 1;

/// Something that is, or was, wrong. There is one finding per code, subject and detail.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Finding {
    /// Unique on the node. Findings are numbered in the order in which they open.
    pub id: u64,
    /// Code of the rule, such as `gpu.ecc-uncorrected`.
    pub code: String,
    /// Distinguishes findings of the same rule and subject, such as `Xid 48`. Often empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
    pub subject: Subject,
    /// A fault, or advice to improve performance.
    pub kind: FindingKind,
    pub severity: Severity,
    /// Severity before a configuration override. `None` without an override. Checkpoint requests
    /// use this severity, because an override is only meant to change alerts.
    /// use it, because an override is only meant to change alerts.
    #[serde(rename = "own_severity", default, skip_serializing_if = "Option::is_none")]
    pub default_severity: Option<Severity>,
    /// What the finding means.
    pub text: String,
    pub action: Action,
    /// A more specific remedy than the action, if one is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
    /// The action of the rule, before the action of the driver takes precedence.
    pub rule_action: Action,
    /// Where the action comes from. If the driver requests a recovery action, it takes precedence
    /// over the action of the rule.
    pub action_by: ActionBy,
    /// The observations that the finding is based on, newest last.
    pub evidence: Vec<Evidence>,
    pub first_seen: Timestamp,
    /// When the finding last happened, or when its condition was last true.
    pub last_seen: Timestamp,
    /// The boot in which the finding opened, and the time within it. `None` from agents that are
    /// older than this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opened_in: Option<InBoot>,
    /// The boot in which the finding last happened, and the time within it. `None` from agents that
    /// are older than this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_in: Option<InBoot>,
    /// How often the finding happened or was detected again.
    pub count: u64,
    /// What would clear the finding.
    #[serde(rename = "clears")]
    pub clears_when: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cleared: Option<Cleared>,
}

impl Finding {
    pub fn is_open(&self) -> bool {
        self.cleared.is_none()
    }

    /// Estimates the size of the finding in the log, which is JSON: its texts plus a fixed size.
    /// Few findings are larger than the estimate.
    pub fn estimated_bytes(&self) -> usize {
        let texts = [&self.code, &self.detail, &self.text, &self.clears_when];
        let reason = self.cleared.as_ref().map(|cleared| &cleared.reason);
        let texts = texts.into_iter().chain(&self.remedy).chain(reason);
        let texts: usize = texts.map(|text| json_bytes(text)).sum();
        let evidence: usize = self.evidence.iter().map(Evidence::estimated_bytes).sum();
        texts + evidence + FINDING_BYTES
    }
}

/// Whether a finding with this kind, severity and action ends the work on its GPU. Training jobs
/// are then asked for a checkpoint.
pub fn ends_work(kind: FindingKind, severity: Severity, action: Action) -> bool {
    kind == FindingKind::Fault && severity >= Severity::Critical && action >= Action::ResetGpu
}

/// Fixed size of a finding in the estimate: times, numbers, subject and field names.
const FINDING_BYTES: usize = 512;
/// Fixed size of a piece of evidence in the estimate.
const EVIDENCE_BYTES: usize = 256;

/// Length of a text in JSON, without the quotation marks.
fn json_bytes(text: &str) -> usize {
    let bytes = |byte| match byte {
        b'"' | b'\\' => 2,
        // Escaped, such as \u0000.
        0..0x20 => 6,
        _ => 1,
    };
    text.bytes().map(bytes).sum()
}

/// A time within a boot. Changes of the wall clock do not affect it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InBoot {
    pub boot: String,
    /// Milliseconds since boot.
    pub steady_ms: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FindingKind {
    Fault,
    /// Nothing is wrong, but something could be better.
    Advice,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ActionBy {
    Rule,
    /// The driver, through its recovery action.
    Driver,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Evidence {
    /// A value of a signal, as the rule saw it.
    Signal {
        signal: Signal,
        /// A description of the value. Empty from agents that are older than this field.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        text: String,
        /// How the value was computed, such as `mean over 60 s`. Empty for the latest value.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        measure: String,
        value: Reading<f64>,
        /// The limit that the rule compared the value with.
        limit: f64,
        /// Details of the value that its number does not show, such as the call that is stuck.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        note: Option<String>,
        at: Timestamp,
    },
    /// A line of the kernel log.
    Kernel {
        /// Text of the decoded event.
        text: String,
        /// The line, or the first of several lines. Long lines are cut.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        line: String,
        /// The process that the line names.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pid: Option<u32>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        process: Option<String>,
        at: Timestamp,
    },
    /// An Xid that NVML reported, but that is not in the kernel log. In journals of version 1, the
    /// code of this variant is `kernel`.
    Nvml {
        xid: NvmlXid,
        /// Text of the decoded event.
        text: String,
        at: Timestamp,
    },
    /// The result of a node check.
    Check { text: String, at: Timestamp },
}

impl Evidence {
    pub fn at(&self) -> Timestamp {
        match self {
            Self::Signal { at, .. }
            | Self::Kernel { at, .. }
            | Self::Nvml { at, .. }
            | Self::Check { at, .. } => *at,
        }
    }

    /// The observation in one line, without its time. Does not repeat the text of the finding.
    pub fn describe(&self, finding_text: &str) -> String {
        let (source, text) = match self {
            Self::Signal { signal, text, value, note, .. } => {
                let text = match value {
                    _ if !text.is_empty() => text.clone(),
                    Reading::Value(value) => format!("{signal} was {value}"),
                    Reading::Absent => format!("{signal} was absent"),
                    Reading::Unreadable(why) => format!("{signal} was unreadable: {why}"),
                };
                let note = note.as_ref().map(|note| format!(": {note}")).unwrap_or_default();
                return format!("{text}{note}");
            }
            Self::Nvml { xid, .. } => return xid.to_string(),
            // Evidence in older journals does not contain the line.
            Self::Kernel { text, line, .. } => {
                ("in the kernel log", if line.is_empty() { text } else { line })
            }
            Self::Check { text, .. } => ("in the node check", text),
        };
        if text == finding_text { source.to_owned() } else { format!("{source}: {text}") }
    }

    fn estimated_bytes(&self) -> usize {
        let optional = |text: &Option<String>| text.as_deref().map_or(0, json_bytes);
        let texts = match self {
            Self::Signal { text, measure, value, note, .. } => {
                // In JSON, an error has field names in addition to its text, so the size of the
                // text is doubled.
                let unreadable = value.why_unreadable().map(ToString::to_string);
                let unreadable = unreadable.map_or(0, |text| 2 * json_bytes(&text));
                json_bytes(text) + json_bytes(measure) + unreadable + optional(note)
            }
            Self::Kernel { text, line, process, .. } => {
                json_bytes(text) + json_bytes(line) + optional(process)
            }
            Self::Nvml { text, xid, .. } => json_bytes(text) + json_bytes(&xid.gpu.0),
            Self::Check { text, .. } => json_bytes(text),
        };
        texts + EVIDENCE_BYTES
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cleared {
    pub at: Timestamp,
    #[serde(rename = "why")]
    pub reason: String,
}

/// A change of a finding. Each variant has the new content of the finding.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Change {
    Opened(Finding),
    /// The finding got worse, happened again, or its action changed.
    Updated(Finding),
    Cleared(Finding),
}

impl Change {
    pub fn finding(&self) -> &Finding {
        match self {
            Self::Opened(finding) | Self::Updated(finding) | Self::Cleared(finding) => finding,
        }
    }
}
