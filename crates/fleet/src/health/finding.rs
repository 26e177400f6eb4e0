//! What is wrong, since when, on what evidence, and what to do.

use farrier_facts::node::Reading;
pub use farrier_facts::xid::{Action, Severity};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::observation::{NvmlXid, Subject};
use super::signal::Signal;

/// The number of the server's own finding of a node: 2^53 - 1, the largest integer that every JSON reader keeps exactly.
/// Agents number their findings from 0 upwards and stay below it.
pub const SERVER_FINDING_ID: u64 = (1 << 53) - 1;

/// Something that is, or was, wrong. One for each code, subject and detail.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Finding {
    /// Unique on the node, in the order of opening.
    pub id: u64,
    /// The rule, such as `gpu.ecc-uncorrected`.
    pub code: String,
    /// What tells findings of one rule and subject apart, such as `Xid 48`; often empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// What it is about.
    pub subject: Subject,
    /// A fault, or advice on what would make work faster.
    pub kind: FindingKind,
    pub severity: Severity,
    /// How bad it is without the configuration, where that says otherwise: what a job is asked to save does not go by who
    /// wants to be woken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own_severity: Option<Severity>,
    /// What it means, in words.
    pub text: String,
    /// What to do.
    pub action: Action,
    /// What would help, where more is known than the action says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
    /// What the rule asks for, whatever the driver says.
    pub rule_action: Action,
    /// Who says so: the driver's own verdict outranks the rule's.
    pub action_by: ActionBy,
    /// The observations behind it, newest last.
    pub evidence: Vec<Evidence>,
    /// When it was opened.
    pub first_seen: Timestamp,
    /// When it was last seen to hold.
    pub last_seen: Timestamp,
    /// The boot in which it was opened, and when in it; none in what an older agent wrote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opened_in: Option<InBoot>,
    /// The boot in which it was last seen to hold, and when in it; likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_in: Option<InBoot>,
    /// How often it happened, or how many times it was found anew.
    pub count: u64,
    /// What would clear it, in words.
    pub clears: String,
    /// When and why it was cleared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cleared: Option<Cleared>,
}

impl Finding {
    /// Whether it still holds.
    pub fn is_open(&self) -> bool {
        self.cleared.is_none()
    }

    /// Estimates how many bytes it takes in the log, which is JSON: its texts, and what every
    /// finding has beside them. Few findings take more.
    pub fn estimated_bytes(&self) -> usize {
        let texts = [&self.code, &self.detail, &self.text, &self.clears];
        let why = self.cleared.as_ref().map(|it| &it.why);
        let texts = texts.into_iter().chain(&self.remedy).chain(why);
        let texts: usize = texts.map(|text| json_bytes(text)).sum();
        let evidence: usize = self.evidence.iter().map(Evidence::estimated_bytes).sum();
        texts + evidence + FINDING_BYTES
    }
}

/// Times, numbers, the subject and names of fields of a finding.
const FINDING_BYTES: usize = 512;
/// Those of a piece of evidence.
const EVIDENCE_BYTES: usize = 256;

/// A text in JSON, without its quotation marks.
fn json_bytes(text: &str) -> usize {
    let bytes = |byte| match byte {
        b'"' | b'\\' => 2,
        // Such as \u0000.
        0..0x20 => 6,
        _ => 1,
    };
    text.bytes().map(bytes).sum()
}

/// A moment of a boot: no change of the wall clock moves it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InBoot {
    pub boot: String,
    /// Milliseconds since it began.
    pub steady_ms: i64,
}

/// A fault or advice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FindingKind {
    /// Something is wrong.
    Fault,
    /// Nothing is wrong, and something could be better.
    Advice,
}

/// Who chose the action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ActionBy {
    /// The rule.
    Rule,
    /// The driver, through its recovery action.
    Driver,
}

/// An observation behind a finding.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Evidence {
    /// A value of a signal, as the rule saw it.
    Signal {
        signal: Signal,
        /// What was seen, in words; empty in what an older agent wrote.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        text: String,
        /// What was made of it, such as `rate over 60 s`; empty for the value itself.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        measure: String,
        value: Reading<f64>,
        /// What it was held against.
        limit: f64,
        /// What the number does not say, such as the call that is stuck.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        note: Option<String>,
        at: Timestamp,
    },
    /// What the kernel log said.
    Kernel {
        /// The decoded event's text.
        text: String,
        /// The line itself, or the first of several; a long one is cut.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        line: String,
        /// The process that the line names.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pid: Option<u32>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        process: Option<String>,
        at: Timestamp,
    },
    /// An Xid that NVML reported and the kernel log did not. Journals of version 1 have it as
    /// `kernel`.
    Nvml {
        /// Which, and of which GPU.
        xid: NvmlXid,
        /// The decoded event's text.
        text: String,
        at: Timestamp,
    },
    /// What a check of the node said.
    Check { text: String, at: Timestamp },
}

impl Evidence {
    fn estimated_bytes(&self) -> usize {
        let optional = |text: &Option<String>| text.as_deref().map_or(0, json_bytes);
        let texts = match self {
            Self::Signal { text, measure, value, note, .. } => {
                // In JSON it has names of fields beside its text.
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

/// When and why a finding was cleared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cleared {
    pub at: Timestamp,
    /// Why, in words.
    pub why: String,
}

/// What the engine decided: a finding in its new form.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Change {
    /// It is new.
    Opened(Finding),
    /// It got worse, happened again, or its action changed.
    Updated(Finding),
    /// It no longer holds.
    Cleared(Finding),
}

impl Change {
    /// The finding.
    pub fn finding(&self) -> &Finding {
        match self {
            Self::Opened(finding) | Self::Updated(finding) | Self::Cleared(finding) => finding,
        }
    }
}
