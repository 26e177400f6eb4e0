//! A rule: the signals or events that it watches, its condition, severity and action. Rules are
//! data in `rules/`.

mod parse;

use std::collections::BTreeMap;

use farrier_facts::decode;
use farrier_facts::origin::Origin;
use serde::Deserialize;

use super::finding::{Action, FindingKind, Severity};
use super::rules::RuleOverride;
use super::signal::{Scope, Signal};
use parse::{ClauseToml, LimitToml};

/// A rule. It has clauses over signals (`when`), or a pattern of kernel events (`on`), or neither:
/// then it represents results of node checks.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Stable ID, which findings carry.
    pub code: String,
    /// Defaults to a fault.
    #[serde(default = "fault")]
    pub kind: FindingKind,
    /// `None` takes the severity of the event or check.
    pub severity: Option<Severity>,
    /// `None` takes the action of the event or check.
    pub action: Option<Action>,
    /// Meaning of the finding and what to do. `None` takes the text of the event or check.
    pub text: Option<String>,
    /// A more specific fix than the action, shown first.
    pub remedy: Option<String>,
    /// All clauses must hold.
    #[serde(default)]
    pub when: Vec<Clause>,
    /// How long the clauses must hold without a break before a finding opens.
    #[serde(default)]
    pub for_s: u32,
    /// How long they must be false without a break before the finding clears.
    #[serde(default = "clear_for_s")]
    pub clear_for_s: u32,
    /// Kernel events to count.
    pub on: Option<EventPattern>,
    /// `true` if the finding stays open until the node reboots, the driver is reloaded, the GPU's
    /// counters restart, or the driver withdraws its recovery action.
    #[serde(default)]
    pub until_recovery: bool,
    /// Finding of another rule on the same subject that reports the same fault and more. It
    /// suppresses this one while it is open.
    pub suppressed_by: Option<SuppressedBy>,
    /// Only GPUs whose name contains one of these; empty means all.
    #[serde(default)]
    pub models: Vec<String>,
    /// Not GPUs whose name contains one of these.
    #[serde(default)]
    pub except_models: Vec<String>,
    /// Severity that a configuration sets; it takes precedence.
    #[serde(skip)]
    pub severity_override: Option<Severity>,
    /// Configuration overrides for single events, by code such as `xid.95`.
    #[serde(skip)]
    pub event_overrides: BTreeMap<String, RuleOverride>,
    /// The source of the rule.
    pub origin: Origin,
    /// How to trigger it on a simulated node.
    pub case: Case,
}

fn fault() -> FindingKind {
    FindingKind::Fault
}

/// One minute: six readings of the ten-second tier.
fn clear_for_s() -> u32 {
    60
}

impl Rule {
    /// Scope of its findings.
    pub fn scope(&self) -> Option<Scope> {
        self.when.first().map(|clause| clause.signal.scope())
    }

    /// `true` if it counts occurrences in a window, instead of checking a current state. Its
    /// condition becomes false when the window has passed.
    pub fn is_windowed(&self) -> bool {
        let looks_back = |clause: &Clause| match clause.measure {
            Measure::Last | Measure::Mean { .. } => false,
            Measure::Increase { .. }
            | Measure::Rate { .. }
            | Measure::Windows { .. }
            | Measure::Falls { .. }
            | Measure::Growth { .. } => true,
        };
        self.when.iter().any(looks_back)
    }

    /// The effective severity, and `own` if a configuration overrides it. `own` is the severity of
    /// the rule, event or check.
    pub(super) fn effective_severity(
        &self,
        event: Option<&str>,
        own: Severity,
    ) -> (Severity, Option<Severity>) {
        let event_override = event.and_then(|event| self.event_overrides.get(event));
        let effective = event_override
            .and_then(|event_override| event_override.severity)
            .or(self.severity_override)
            .unwrap_or(own);
        (effective, (effective != own).then_some(own))
    }

    /// `true` if a configuration disables this event.
    pub(super) fn is_muted(&self, event: &str) -> bool {
        self.event_overrides
            .get(event)
            .is_some_and(|event_override| event_override.enabled == Some(false))
    }

    /// `true` if it applies to a GPU with this name.
    pub fn is_for_model(&self, name: &str) -> bool {
        let lists = |list: &[String]| list.iter().any(|model| name.contains(model.as_str()));
        (self.models.is_empty() || lists(&self.models)) && !lists(&self.except_models)
    }
}

/// A finding that suppresses another.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SuppressedBy {
    /// Its rule.
    pub code: String,
    /// Its detail.
    pub detail: String,
}

/// A condition on a signal.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, try_from = "ClauseToml")]
pub struct Clause {
    pub signal: Signal,
    /// The statistic that is compared with the limit.
    pub measure: Measure,
    /// Counts as 1 while any of these bits is set, otherwise as 0.
    pub bits: Option<u64>,
    pub comparison: Comparison,
    pub limit: Limit,
    /// Limit while the finding is open: hysteresis against flapping.
    pub clear: Option<f64>,
}

/// A statistic of a signal, which is compared with the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measure {
    /// The latest value.
    Last,
    /// Mean over a window.
    Mean { over_s: u32 },
    /// Growth of a counter over a window.
    Increase { over_s: u32 },
    /// Growth of a counter per second, over a window.
    Rate { over_s: u32 },
    /// Number of windows, in the last `over_s` seconds, in which a counter grew by more than
    /// `each_above`.
    Windows { over_s: u32, window_s: u32, each_above: u32 },
    /// How often a flag fell from 1 to 0 in a window.
    Falls { over_s: u32 },
    /// Rate of a counter over the last `over_s` seconds, as a multiple of its rate over the
    /// `base_s` seconds before.
    Growth { over_s: u32, base_s: u32 },
}

impl Measure {
    /// How far back it looks.
    pub fn lookback_s(self) -> u32 {
        match self {
            Self::Last => 0,
            Self::Mean { over_s }
            | Self::Increase { over_s }
            | Self::Rate { over_s }
            | Self::Windows { over_s, .. }
            | Self::Falls { over_s } => over_s,
            Self::Growth { over_s, base_s } => over_s.saturating_add(base_s),
        }
    }

    /// A description, such as `rate over 60 s`; empty for the latest value.
    pub fn describe(self) -> String {
        match self {
            Self::Last => String::new(),
            Self::Mean { over_s } => format!("mean over {over_s} s"),
            Self::Increase { over_s } => format!("increase over {over_s} s"),
            Self::Rate { over_s } => format!("rate per second over {over_s} s"),
            Self::Windows { over_s, window_s, each_above } => {
                format!("windows of {window_s} s in {over_s} s with growth above {each_above}")
            }
            Self::Falls { over_s } => format!("falls in {over_s} s"),
            Self::Growth { over_s, base_s } => {
                format!("rate over {over_s} s relative to the {base_s} s before")
            }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparison {
    Above,
    AtLeast,
    Below,
    Equals,
    Differs,
}

impl Comparison {
    pub fn holds(self, value: f64, limit: f64) -> bool {
        match self {
            Self::Above => value > limit,
            Self::AtLeast => value >= limit,
            Self::Below => value < limit,
            Self::Equals => is_equal(value, limit),
            Self::Differs => !is_equal(value, limit),
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Above => "above",
            Self::AtLeast => "at least",
            Self::Below => "below",
            Self::Equals => "equal to",
            Self::Differs => "other than",
        }
    }
}

/// Compared values are integers, so no wider tolerance is needed.
fn is_equal(value: f64, limit: f64) -> bool {
    (value - limit).abs() < f64::EPSILON
}

#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, try_from = "LimitToml")]
pub enum Limit {
    Number(f64),
    /// Another signal of the same subject.
    Signal {
        signal: Signal,
        /// Factor.
        times: f64,
    },
    /// The median of the same measure over the other subjects for which the rule's other clauses
    /// hold.
    Peers {
        /// Factor.
        times: f64,
    },
}

/// Fewest peers for a meaningful median.
pub const PEERS_MIN: usize = 3;

/// Kernel events to count. All conditions must hold.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventPattern {
    /// Kinds; empty means all.
    #[serde(default)]
    pub kinds: Vec<decode::Kind>,
    /// Codes, such as `xid.79`; empty means all.
    #[serde(default)]
    pub codes: Vec<String>,
    /// Minimum severity.
    pub severity: Option<Severity>,
    /// Number of occurrences.
    #[serde(default = "once")]
    pub times: u32,
    /// Period of the occurrences. Required if `times` is more than one.
    #[serde(default)]
    pub within_s: u32,
    /// Events with at most this gap between them are one burst and count once.
    #[serde(default)]
    pub merge_s: u32,
    /// The attributes that events must share to count together.
    #[serde(default)]
    pub same: Same,
    /// Minimum number of different subjects.
    #[serde(default)]
    pub distinct_subjects: u32,
    /// Minimum number of different boots.
    #[serde(default)]
    pub distinct_boots: u32,
    /// The finding clears after this long without another event.
    #[serde(default = "clear_after_s")]
    pub clear_after_s: u32,
}

fn once() -> u32 {
    1
}

/// One hour: jobs commonly restart, and hit the fault again, within it.
fn clear_after_s() -> u32 {
    3600
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Same {
    /// Subject and event code.
    #[default]
    Code,
    /// Subject.
    Subject,
    /// Subject, code, and the GPU unit that the line names. Events without a unit do not count.
    Unit,
    /// Node and code.
    NodeCode,
}

/// How to trigger a rule on a simulated node.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// GPU model of the node; `None` means H100.
    pub sku: Option<String>,
    /// Steps, in order:
    ///
    /// - `inject ...` as `farrier simulate inject` takes it, `run SECONDS`, `reboot`, `check`
    /// - `repeat TIMES` to `end`
    /// - `efa` for a node with EFA adapters, `deaf` for one whose kernel log is not read
    /// - `set SIGNAL VALUE` for signals that the agent measures about itself, and for a process
    ///   that cannot be killed, which cannot be simulated
    pub steps: Vec<String>,
}
