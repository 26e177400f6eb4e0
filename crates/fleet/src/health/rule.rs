//! A rule: the signals or events that it watches, its condition, its severity and its action. Rules
//! are data in `rules/`.

mod describe;
mod parse;

use std::collections::BTreeMap;

use farrier_facts::decode;
use farrier_facts::origin::Origin;
use serde::Deserialize;

use super::finding::{Action, FindingKind, Severity};
use super::rules::RuleOverride;
use super::signal::{Scope, Signal};
use parse::{ClauseToml, LimitToml};

/// A rule. It has either clauses, which are conditions on signals (`when`), or a pattern of kernel
/// events (`on`). A rule with neither stands for the results of node checks.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Stable ID of the rule. Findings carry it.
    pub code: String,
    /// Defaults to a fault.
    #[serde(default = "fault")]
    pub kind: FindingKind,
    /// `None` if the severity comes from the event or check.
    pub severity: Option<Severity>,
    /// `None` if the action comes from the event or check.
    pub action: Option<Action>,
    /// What the finding means and what to do. `None` if the text comes from the event or check.
    pub text: Option<String>,
    /// A more specific remedy than the action. Output shows it before the action's own text.
    pub remedy: Option<String>,
    /// All clauses must hold.
    #[serde(default)]
    pub when: Vec<Clause>,
    /// How long the clauses must hold without a break before a finding opens.
    #[serde(default)]
    pub for_s: u32,
    /// How long at least one clause must be false without a break before the finding clears.
    #[serde(default = "clear_for_s")]
    pub clear_for_s: u32,
    /// Kernel events to count.
    pub on: Option<EventPattern>,
    /// Whether the finding stays open until one of these events: the node reboots, the driver is
    /// reloaded, the counters of the GPU restart, or the driver withdraws its recovery action.
    #[serde(default)]
    pub until_recovery: bool,
    /// A finding of another rule that reports the same fault on the same subject, and more. While
    /// that finding is open, it suppresses the finding of this rule.
    pub suppressed_by: Option<SuppressedBy>,
    /// The rule applies only to GPUs whose name contains one of these texts. Empty means all GPUs.
    #[serde(default)]
    pub models: Vec<String>,
    /// The rule does not apply to GPUs whose name contains one of these texts.
    #[serde(default)]
    pub except_models: Vec<String>,
    /// Severity that the configuration sets. It takes precedence over `severity`.
    #[serde(skip)]
    pub severity_override: Option<Severity>,
    /// Overrides in the configuration for single events. The key is a code such as `xid.95`.
    #[serde(skip)]
    pub event_overrides: BTreeMap<String, RuleOverride>,
    /// The source of the rule, such as an NVIDIA document.
    pub origin: Origin,
    /// How to trigger the rule on a simulated node.
    pub case: Case,
}

fn fault() -> FindingKind {
    FindingKind::Fault
}

/// One minute, because signals that are read every ten seconds have six values then.
fn clear_for_s() -> u32 {
    60
}

impl Rule {
    /// The scope of the rule's signals. `None` without clauses.
    pub fn scope(&self) -> Option<Scope> {
        self.when.first().map(|clause| clause.signal.scope())
    }

    /// Whether the rule counts occurrences in a window instead of checking a current state. The
    /// condition of such a rule becomes false when the window has passed.
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

    /// Returns the effective severity, and `own` if the configuration overrides it. `own` is the
    /// severity of the rule, event or check.
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

    /// Whether the configuration disables this event.
    pub(super) fn is_muted(&self, event: &str) -> bool {
        self.event_overrides
            .get(event)
            .is_some_and(|event_override| event_override.enabled == Some(false))
    }

    /// Whether the rule applies to a GPU with this name.
    pub fn is_for_model(&self, name: &str) -> bool {
        let lists = |list: &[String]| list.iter().any(|model| name.contains(model.as_str()));
        (self.models.is_empty() || lists(&self.models)) && !lists(&self.except_models)
    }
}

/// A finding that suppresses another one.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SuppressedBy {
    /// Code of the suppressing finding's rule.
    pub code: String,
    /// Detail of the suppressing finding.
    pub detail: String,
}

/// A condition on a signal.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, try_from = "ClauseToml")]
pub struct Clause {
    pub signal: Signal,
    /// The statistic that is compared with the limit.
    pub measure: Measure,
    /// For a mask: the value counts as 1 while any of these bits is set, and as 0 otherwise.
    pub bits: Option<u64>,
    pub comparison: Comparison,
    pub limit: Limit,
    /// Limit while the finding is open. It differs from `limit` so that the finding does not flap.
    pub clear: Option<f64>,
}

/// A statistic of a signal. A clause compares it with the limit.
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
    /// Number of windows in which a counter grew by more than `each_above`. The windows of
    /// `window_s` seconds are counted over the last `over_s` seconds.
    Windows { over_s: u32, window_s: u32, each_above: u32 },
    /// How often a flag fell from 1 to 0 in a window.
    Falls { over_s: u32 },
    /// Rate of a counter over the last `over_s` seconds, as a multiple of its rate over the
    /// `base_s` seconds before.
    Growth { over_s: u32, base_s: u32 },
}

impl Measure {
    /// How far back the measure looks.
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

    /// Describes the measure, such as `mean over 60 s`. Empty for the latest value.
    pub fn describe(self) -> String {
        match self {
            Self::Last => String::new(),
            Self::Mean { over_s } => format!("mean over {over_s} s"),
            Self::Increase { over_s } => format!("increase over {over_s} s"),
            Self::Rate { over_s } => format!("rate per second over {over_s} s"),
            Self::Windows { over_s, window_s, each_above } => {
                format!(
                    "number of {window_s} s windows in {over_s} s with growth above {each_above}"
                )
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

/// Compares integers that are stored as floats, so no wider tolerance is needed.
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
        /// Factor by which the value is multiplied.
        times: f64,
    },
    /// The median of the same measure over other subjects. Only subjects for which the other
    /// clauses of the rule hold count.
    Peers {
        /// Factor by which the median is multiplied.
        times: f64,
    },
}

/// Fewest other subjects for which a median is meaningful.
pub const PEERS_MIN: usize = 3;

/// Kernel events to count. All conditions must hold.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventPattern {
    /// Kinds of events. Empty means all kinds.
    #[serde(default)]
    pub kinds: Vec<decode::Kind>,
    /// Codes, such as `xid.79`. Empty means all codes.
    #[serde(default)]
    pub codes: Vec<String>,
    /// Minimum severity.
    pub severity: Option<Severity>,
    /// How often an event has to occur.
    #[serde(default = "once")]
    pub times: u32,
    /// Period in which the events have to occur. Required if `times` is more than one.
    #[serde(default)]
    pub within_s: u32,
    /// Events that follow each other within this time are one burst and count once.
    #[serde(default)]
    pub merge_s: u32,
    /// What events must have in common to count together.
    #[serde(default)]
    pub same: Same,
    /// Minimum number of different subjects.
    #[serde(default)]
    pub distinct_subjects: u32,
    /// Minimum number of different boots.
    #[serde(default)]
    pub distinct_boots: u32,
    /// Length of the quiet period: the finding clears after this long without another event.
    #[serde(default = "clear_after_s")]
    pub clear_after_s: u32,
}

impl EventPattern {
    /// Whether an event with this kind, code and severity counts. `has_unit` says whether the event
    /// names a unit.
    pub fn matches(
        &self,
        kind: decode::Kind,
        code: &str,
        severity: Severity,
        has_unit: bool,
    ) -> bool {
        (self.kinds.is_empty() || self.kinds.contains(&kind))
            && (self.codes.is_empty() || self.codes.iter().any(|own| own == code))
            && self.severity.is_none_or(|minimum| severity >= minimum)
            && (self.same != Same::Unit || has_unit)
    }
}

fn once() -> u32 {
    1
}

/// One hour, because jobs commonly restart within an hour and meet the fault again.
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
    /// GPU model of the simulated node. `None` means H100.
    pub sku: Option<String>,
    /// Steps, in order:
    ///
    /// - `inject ...` as `farrier simulate inject` takes it, `run SECONDS`, `reboot`, `check`
    /// - `repeat TIMES` to `end`
    /// - `efa` for a node with EFA adapters, `deaf` for one whose kernel log is not read
    /// - `set SIGNAL VALUE` for signals that the agent measures about itself, and for a process
    ///   that cannot be killed, which cannot be simulated
    /// - `fault` where the fault begins
    pub steps: Vec<String>,
    /// Seconds from the step `fault` until the finding opens, at most.
    pub found_within_s: Option<u32>,
}
