//! A rule: what it watches, when that is wrong, how bad it is and what to do. Rules are data in
//! `rules/`.

mod form;

use std::collections::BTreeMap;

use farrier_facts::decode;
use farrier_facts::origin::Origin;
use serde::Deserialize;

use super::finding::{Action, FindingKind, Severity};
use super::rules::RuleOverride;
use super::signal::{Scope, Signal};
use form::{ClauseForm, LimitForm};

/// A rule. It has clauses over signals (`when`), or a pattern of kernel events (`on`), or neither:
/// then it represents results of node checks.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Stable; findings carry it.
    pub code: String,
    /// Defaults to a fault.
    #[serde(default = "fault")]
    pub kind: FindingKind,
    /// `None` takes the severity of the event or check.
    pub severity: Option<Severity>,
    /// `None` takes the action of the event or check.
    pub action: Option<Action>,
    /// What it means and what to do. `None` takes the text of the event or check.
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
    /// Whether the finding stays open until the node reboots, the driver is reloaded, the GPU's
    /// counters restart, or the driver withdraws its recovery action.
    #[serde(default)]
    pub until_recovery: bool,
    /// Finding of another rule on the same subject that reports the same fault and more. It
    /// suppresses this one while it is open.
    pub told_by: Option<ToldBy>,
    /// Only GPUs whose name contains one of these; empty means all.
    #[serde(default)]
    pub models: Vec<String>,
    /// Not GPUs whose name contains one of these.
    #[serde(default)]
    pub except_models: Vec<String>,
    /// Severity that a configuration sets; it takes precedence.
    #[serde(skip)]
    pub severity_set: Option<Severity>,
    /// Configuration overrides for single events, by code such as `xid.95`.
    #[serde(skip)]
    pub of_event: BTreeMap<String, RuleOverride>,
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

    /// Whether it counts occurrences in a window, so that it ends by itself when the window has
    /// passed, instead of checking a current state.
    pub fn judges_happenings(&self) -> bool {
        let is_of_the_past = |clause: &Clause| match clause.measure {
            Measure::Last | Measure::Mean { .. } => false,
            Measure::Increase { .. }
            | Measure::Rate { .. }
            | Measure::Windows { .. }
            | Measure::Falls { .. }
            | Measure::Growth { .. } => true,
        };
        self.when.iter().any(is_of_the_past)
    }

    /// The effective severity, and `own` if a configuration overrides it. `own` is the severity of
    /// the rule, event or check.
    pub(super) fn judge(&self, event: Option<&str>, own: Severity) -> (Severity, Option<Severity>) {
        let of_event = event.and_then(|event| self.of_event.get(event)).and_then(|it| it.severity);
        let set = of_event.or(self.severity_set).unwrap_or(own);
        (set, (set != own).then_some(own))
    }

    /// Whether a configuration disables this event.
    pub(super) fn passes_over(&self, event: &str) -> bool {
        self.of_event.get(event).is_some_and(|it| it.enabled == Some(false))
    }

    /// Whether it applies to a GPU with this name.
    pub fn is_for_model(&self, name: &str) -> bool {
        let named = |list: &[String]| list.iter().any(|model| name.contains(model.as_str()));
        (self.models.is_empty() || named(&self.models)) && !named(&self.except_models)
    }
}

/// A finding that suppresses another.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToldBy {
    /// Its rule.
    pub code: String,
    /// Its detail.
    pub detail: String,
}

/// A condition on a signal.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, try_from = "ClauseForm")]
pub struct Clause {
    pub signal: Signal,
    /// Computed from the signal before the comparison.
    pub measure: Measure,
    /// Counts as 1 while any of these bits is set, otherwise as 0.
    pub bits: Option<u64>,
    pub comparison: Comparison,
    pub limit: Limit,
    /// Limit while the finding is open: hysteresis against flapping.
    pub clear: Option<f64>,
}

/// What is computed from a signal before the comparison.
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
    pub fn reach_s(self) -> u32 {
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
    pub fn words(self) -> String {
        match self {
            Self::Last => String::new(),
            Self::Mean { over_s } => format!("mean over {over_s} s"),
            Self::Increase { over_s } => format!("increase over {over_s} s"),
            Self::Rate { over_s } => format!("rate per second over {over_s} s"),
            Self::Windows { over_s, window_s, each_above } => {
                format!("windows of {window_s} s in {over_s} s that grew by more than {each_above}")
            }
            Self::Falls { over_s } => format!("times it fell in {over_s} s"),
            Self::Growth { over_s, base_s } => {
                format!("rate over {over_s} s as a multiple of that over the {base_s} s before")
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
            Self::Equals => same(value, limit),
            Self::Differs => !same(value, limit),
        }
    }

    pub fn words(self) -> &'static str {
        match self {
            Self::Above => "above",
            Self::AtLeast => "at least",
            Self::Below => "below",
            Self::Equals => "equal to",
            Self::Differs => "other than",
        }
    }
}

/// States are integers throughout, so no tolerance is needed.
fn same(value: f64, limit: f64) -> bool {
    (value - limit).abs() < f64::EPSILON
}

#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, try_from = "LimitForm")]
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
    /// What must match for events to count together.
    #[serde(default)]
    pub same: Same,
    /// Minimum number of different subjects.
    #[serde(default)]
    pub distinct_subjects: u32,
    /// Minimum number of different boots.
    #[serde(default)]
    pub distinct_boots: u32,
    /// The finding clears after this long without another event.
    #[serde(default = "quiet_s")]
    pub quiet_s: u32,
}

fn once() -> u32 {
    1
}

/// One hour: the longest that jobs commonly take to restart and hit the fault again.
fn quiet_s() -> u32 {
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
    /// - `efa` for a node with such adapters, `deaf` for one whose kernel log is not read
    /// - `set SIGNAL VALUE` for what the agent observes about itself, and for what no simulation
    ///   can do: a process that cannot be killed
    pub steps: Vec<String>,
}
