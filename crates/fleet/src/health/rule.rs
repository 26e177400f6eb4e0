//! A rule: what is watched, when it is wrong, how bad that is and what to do. Rules are data in `rules/`.

mod form;

use std::collections::BTreeMap;

use farrier_facts::decode;
use farrier_facts::origin::Origin;
use serde::Deserialize;

use super::finding::{Action, FindingKind, Severity};
use super::rules::RuleOverride;
use super::signal::{Scope, Signal};
use form::{ClauseForm, LimitForm};

/// A rule. It has clauses over signals (`when`), or a pattern of kernel events (`on`), or neither: then it is
/// what a check of the node becomes.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Stable; findings carry it.
    pub code: String,
    /// A fault unless it says otherwise.
    #[serde(default = "fault")]
    pub kind: FindingKind,
    /// How bad. Absent: as bad as the event or check says.
    pub severity: Option<Severity>,
    /// What to do. Absent: what the event or check says.
    pub action: Option<Action>,
    /// What it means and what to do, in words. Absent: what the event or check says.
    pub text: Option<String>,
    /// What would help, where more is known than the action says; it stands where one looks first.
    pub remedy: Option<String>,
    /// All must hold.
    #[serde(default)]
    pub when: Vec<Clause>,
    /// For so long without a break before it is a finding.
    #[serde(default)]
    pub for_s: u32,
    /// For so long without a break not, before the finding is cleared.
    #[serde(default = "clear_for_s")]
    pub clear_for_s: u32,
    /// The kernel events that count.
    pub on: Option<EventPattern>,
    /// The finding stays until the node is rebooted, the driver is loaded anew, the GPU's counters start anew, or the
    /// driver takes back the recovery action that it asked for.
    #[serde(default)]
    pub until_recovery: bool,
    /// The finding of another rule on the same subject that tells of the same, and more: while it is open this one
    /// is not.
    pub told_by: Option<ToldBy>,
    /// Only on GPUs whose name holds one of these; empty is all.
    #[serde(default)]
    pub models: Vec<String>,
    /// Not on GPUs whose name holds one of these.
    #[serde(default)]
    pub except_models: Vec<String>,
    /// How bad a configuration says it is, whatever stands above.
    #[serde(skip)]
    pub severity_set: Option<Severity>,
    /// What a configuration says of single events, by code such as `xid.95`.
    #[serde(skip)]
    pub of_event: BTreeMap<String, RuleOverride>,
    /// Who says so.
    pub origin: Origin,
    /// How to see it fire on a simulated node.
    pub case: Case,
}

fn fault() -> FindingKind {
    FindingKind::Fault
}

/// A minute: six readings of the ten-second tier.
fn clear_for_s() -> u32 {
    60
}

impl Rule {
    /// What its findings are about.
    pub fn scope(&self) -> Option<Scope> {
        self.when.first().map(|clause| clause.signal.scope())
    }

    /// Whether it looks at what happened in a window, which is over by itself when the window has passed, and not at what is.
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

    /// How bad it is where `own` is what rule, event or check say, and that, where a configuration says otherwise.
    pub(super) fn judge(&self, event: Option<&str>, own: Severity) -> (Severity, Option<Severity>) {
        let of_event = event.and_then(|event| self.of_event.get(event)).and_then(|it| it.severity);
        let set = of_event.or(self.severity_set).unwrap_or(own);
        (set, (set != own).then_some(own))
    }

    /// Whether a configuration passes over this event.
    pub(super) fn passes_over(&self, event: &str) -> bool {
        self.of_event.get(event).is_some_and(|it| it.enabled == Some(false))
    }

    /// Whether it applies to a GPU of this name.
    pub fn is_for_model(&self, name: &str) -> bool {
        let named = |list: &[String]| list.iter().any(|model| name.contains(model.as_str()));
        (self.models.is_empty() || named(&self.models)) && !named(&self.except_models)
    }
}

/// A finding that makes another superfluous.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToldBy {
    /// Its rule.
    pub code: String,
    /// What tells findings of that rule apart.
    pub detail: String,
}

/// What a signal must be for the rule to hold.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, try_from = "ClauseForm")]
pub struct Clause {
    pub signal: Signal,
    /// Made of it before it is compared.
    pub measure: Measure,
    /// Counts as 1 while it has one of these bits, else as 0.
    pub bits: Option<u64>,
    /// How it is compared.
    pub comparison: Comparison,
    pub limit: Limit,
    /// With what while the finding is open, so that it does not come and go.
    pub clear: Option<f64>,
}

/// What is made of a signal before it is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measure {
    /// The newest value.
    Last,
    /// The mean of the last seconds.
    Mean {
        /// So many.
        over_s: u32,
    },
    /// By how much a counter grew in the last seconds.
    Increase {
        /// So many.
        over_s: u32,
    },
    /// By how much a counter grew each second, in the last seconds.
    Rate {
        /// So many.
        over_s: u32,
    },
    /// In how many windows of the last seconds a counter grew by more than `each_above`.
    Windows {
        /// Last seconds.
        over_s: u32,
        /// Length of a window.
        window_s: u32,
        /// More than so much.
        each_above: u32,
    },
    /// How often a flag fell from 1 to 0 in the last seconds.
    Falls {
        /// So many.
        over_s: u32,
    },
    /// The rate of a counter in the last seconds as a multiple of its rate in the seconds before.
    Growth {
        /// Last seconds.
        over_s: u32,
        /// Seconds before them.
        base_s: u32,
    },
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

    /// In words, such as `rate over 60 s`; empty for the value itself.
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

/// How a measure and its limit are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparison {
    /// More.
    Above,
    /// As much or more.
    AtLeast,
    /// Less.
    Below,
    /// The same.
    Equals,
    /// Not the same.
    Differs,
}

impl Comparison {
    /// Whether it holds.
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

/// States are whole numbers and come from whole numbers: no tolerance is due.
fn same(value: f64, limit: f64) -> bool {
    (value - limit).abs() < f64::EPSILON
}

/// What a measure is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, try_from = "LimitForm")]
pub enum Limit {
    /// A number.
    Number(f64),
    /// Another signal of the same subject.
    Signal {
        signal: Signal,
        /// So many times it.
        times: f64,
    },
    /// The median of the same measure over the other subjects for which the rule's other clauses hold.
    Peers {
        /// So many times it.
        times: f64,
    },
}

/// As few peers as make a median mean something.
pub const PEERS_MIN: usize = 3;

/// The kernel events that count.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventPattern {
    /// Of these kinds; empty is all.
    #[serde(default)]
    pub kinds: Vec<decode::Kind>,
    /// With these codes, such as `xid.79`; empty is all.
    #[serde(default)]
    pub codes: Vec<String>,
    /// As bad as this or worse.
    pub severity: Option<Severity>,
    /// So often.
    #[serde(default = "once")]
    pub times: u32,
    /// Within so long. Needed where `times` is more than one.
    #[serde(default)]
    pub within_s: u32,
    /// Events of one burst, with no more than this between them, count as one.
    #[serde(default)]
    pub merge_s: u32,
    /// What must be the same for events to count together.
    #[serde(default)]
    pub same: Same,
    /// On so many different subjects.
    #[serde(default)]
    pub distinct_subjects: u32,
    /// In so many different boots.
    #[serde(default)]
    pub distinct_boots: u32,
    /// A finding is cleared after so long without another.
    #[serde(default = "quiet_s")]
    pub quiet_s: u32,
}

fn once() -> u32 {
    1
}

/// An hour: the longest that jobs commonly take to come back and meet the fault again.
fn quiet_s() -> u32 {
    3600
}

/// What must be the same for events to count together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Same {
    /// The subject and the event's code.
    #[default]
    Code,
    /// The subject.
    Subject,
    /// The subject, the code and the unit of the GPU that the line names. An event without a unit does not count.
    Unit,
    /// The node and the code.
    NodeCode,
}

/// How to see a rule fire on a simulated node.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// The GPU model of the node; H100s otherwise.
    pub sku: Option<String>,
    /// Steps, in order: `inject ...` as `farrier simulate inject` takes it, `run SECONDS`, `reboot`, `check`,
    /// `repeat TIMES` to `end`, `efa` for a node with such adapters, `deaf` for one whose kernel log is not read, or `set SIGNAL
    /// VALUE` for what the agent observes of itself, and for what no simulation can do: a process that cannot be killed.
    pub steps: Vec<String>,
}
