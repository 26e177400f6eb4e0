//! One rule on one subject: whether its clauses hold, and for how long.

use super::super::finding::{Action, Evidence};
use super::super::observation::{GpuUuid, Moment, Subject};
use super::super::rule::{Clause, Limit, Measure, Rule};
use super::super::series::Series;
use super::super::signal::{Scope, Signal};
use super::gap::CoverageGap;
use super::words;
use farrier_facts::node::Reading;

/// Whether a condition holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Truth {
    Holds,
    HoldsNot,
    /// Unknown now.
    Unknown(CoverageGap),
    /// Warming up: the window is not covered yet.
    Early,
    /// The signal has never been read.
    Unread(Signal),
    /// The part does not have the signal.
    Unsupported(Signal),
    /// Too few peers to compare with.
    Alone,
}

/// State of a rule for a subject.
#[derive(Debug, Clone)]
pub(super) struct Watch {
    /// By clause; `None` for clauses that do not look back.
    series: Vec<Option<Series>>,
    /// Since when it holds, or does not, without a break.
    since_ms: Option<i64>,
    holding: bool,
    pub(super) truth: Truth,
    pub(super) is_open: bool,
    /// When the first of its signals arrived.
    born_ms: i64,
}

/// A signal that is still missing this long after its companions will not arrive soon: every tier
/// but the hourly one has been read several times by then.
const UNREAD_MS: i64 = 300_000;

/// Result of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// It held long enough to open a finding.
    Found,
    /// It has been false long enough to clear the finding.
    Clear,
    Wait,
}

/// A clause's measure, and the limit it was compared with.
#[derive(Debug, Clone, Copy)]
pub(super) struct Measured {
    pub(super) value: f64,
    pub(super) limit: f64,
}

impl Watch {
    pub(super) fn new(rule: &Rule, is_open: bool, now_ms: i64) -> Self {
        let series = |clause: &Clause| {
            (clause.measure != Measure::Last).then(|| Series::new(clause.measure))
        };
        Self {
            series: rule.when.iter().map(series).collect(),
            since_ms: None,
            holding: false,
            truth: Truth::Early,
            is_open,
            born_ms: now_ms,
        }
    }

    /// Adds a value for one of its clauses.
    pub(super) fn push(&mut self, clause: usize, at_ms: i64, value: f64) {
        if let Some(Some(series)) = self.series.get_mut(clause) {
            series.push(at_ms, value);
        }
    }

    /// Whether a window is not fully covered yet.
    pub(super) fn is_young(&self, rule: &Rule, now_ms: i64) -> bool {
        let reach = |clause: &Clause| i64::from(clause.measure.reach_s()) * 1000;
        let mut series = rule.when.iter().zip(&self.series);
        series
            .any(|(clause, it)| it.as_ref().is_some_and(|it| it.covered_ms(now_ms) < reach(clause)))
    }

    /// Discards the history.
    pub(super) fn forget(&mut self, rule: &Rule, now_ms: i64) {
        *self = Self::new(rule, self.is_open, now_ms);
    }

    /// A signal that was never read counts as warming up at first, and as unknown later.
    pub(super) fn judge_unread(&self, truth: Truth, now_ms: i64) -> Truth {
        match truth {
            Truth::Unread(signal) if now_ms - self.born_ms >= UNREAD_MS => {
                Truth::Unknown(CoverageGap::NeverRead(signal))
            }
            Truth::Unread(_) => Truth::Early,
            other => other,
        }
    }

    /// The measure of a clause, from the latest value or the history.
    pub(super) fn measure(
        &self,
        place: usize,
        clause: &Clause,
        newest: f64,
        now_ms: i64,
    ) -> Option<f64> {
        match self.series.get(place) {
            Some(Some(series)) => series.measure(now_ms),
            _ => Some(flag(clause, newest)),
        }
    }

    /// Whether its finding may clear by time alone.
    pub(super) fn is_ending(&self, rule: &Rule, now_ms: i64) -> bool {
        let since = self.since_ms.filter(|_| self.is_open && !self.holding);
        since.is_some_and(|since| now_ms - since >= i64::from(rule.clear_for_s) * 1000)
    }

    /// Applies the result of this turn.
    pub(super) fn step(&mut self, rule: &Rule, truth: Truth, now_ms: i64) -> Step {
        let holds = match &truth {
            Truth::Holds => true,
            Truth::HoldsNot => false,
            Truth::Unknown(_)
            | Truth::Early
            | Truth::Unread(_)
            | Truth::Unsupported(_)
            | Truth::Alone => {
                // An unknown state neither opens nor clears a finding, and restarts the running
                // period.
                self.since_ms = None;
                self.truth = truth;
                return Step::Wait;
            }
        };
        if self.since_ms.is_none() || self.holding != holds {
            self.since_ms = Some(now_ms);
            self.holding = holds;
        }
        self.truth = truth;
        let held_ms = now_ms - self.since_ms.unwrap_or(now_ms);
        let enough = |wanted_s: u32| held_ms >= i64::from(wanted_s) * 1000;
        match (holds, self.is_open) {
            (true, true) => Step::Found,
            (true, false) if enough(rule.for_s) => Step::Found,
            (false, true) if enough(rule.clear_for_s) && !rule.until_recovery => Step::Clear,
            _ => Step::Wait,
        }
    }
}

/// A mask as 1 or 0; any other value unchanged.
pub(super) fn flag(clause: &Clause, value: f64) -> f64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "masks are whole, positive and below 2^53"
    )]
    clause.bits.map_or(value, |bits| f64::from(u8::from(value as u64 & bits != 0)))
}

/// A constant, or the value of another signal. The caller handles peers.
pub(super) fn limit_of<'t>(
    clause: &Clause,
    is_open: bool,
    latest: impl Fn(Signal) -> Option<&'t Reading<f64>>,
) -> Result<f64, Truth> {
    if let (true, Some(clear)) = (is_open, clause.clear) {
        return Ok(clear);
    }
    match clause.limit {
        Limit::Number(number) => Ok(number),
        Limit::Signal { signal, times } => {
            value_of(signal, latest(signal)).map(|value| value * times)
        }
        Limit::Peers { .. } => Err(Truth::Unknown(CoverageGap::PeersNotAsked)),
    }
}

/// The latest value, or the meaning of its absence.
pub(super) fn value_of(signal: Signal, latest: Option<&Reading<f64>>) -> Result<f64, Truth> {
    match latest {
        Some(Reading::Value(value)) => Ok(*value),
        Some(Reading::Absent) => Err(Truth::Unsupported(signal)),
        Some(Reading::Unreadable(err)) => {
            Err(Truth::Unknown(CoverageGap::Unreadable(signal, err.clone())))
        }
        None => Err(Truth::Unread(signal)),
    }
}

pub(super) fn evidence(
    rule: &Rule,
    measured: &[Measured],
    now: Moment,
    note: impl Fn(Signal) -> Option<String>,
) -> Vec<Evidence> {
    let of = |(clause, measured): (&Clause, &Measured)| Evidence::Signal {
        signal: clause.signal,
        text: words::saw(clause, *measured),
        measure: clause.measure.words(),
        value: Reading::Value(measured.value),
        limit: measured.limit,
        note: note(clause.signal),
        at: now.wall,
    };
    rule.when.iter().zip(measured).map(of).collect()
}

/// Whether a finding of this rule stays open until the GPU, driver or node restarts. An event is
/// over at once, but its fault is not: a quiet period does not reset a GPU.
pub(super) fn waits_for_recovery(rule: &Rule, action: Action) -> bool {
    let asks = matches!(action, Action::ResetGpu | Action::RebootNode);
    rule.until_recovery || (rule.on.is_some() && asks)
}

/// Whether a finding of this rule stays open at least until the node was off: a quiet period does
/// not replace a part. After a reboot it clears after the rule's quiet period, because no signal
/// reports a re-seated card or a replaced module. Cables and transceivers are changed while the
/// node runs, so a port's own counters suffice.
pub(super) fn waits_for_replacement(rule: &Rule, action: Action) -> bool {
    action == Action::DrainAndReplace
        && !rule.until_recovery
        && rule.scope() != Some(Scope::Nic)
        && (rule.on.is_some() || rule.judges_happenings())
}

/// The server informs the agent by an order.
const BY_HAND: &str = "a person has it repaired (`farrier fleet repaired`)";

/// What clears findings of a rule, for its reference. Names the GPU for rules about GPUs.
pub fn what_clears(rule: &Rule) -> String {
    let gpu = Subject::Gpu(GpuUuid(String::new()));
    let subject = if rule.code.starts_with("gpu.") { gpu } else { Subject::Node };
    match rule.action {
        Some(action) => clears(rule, action, &subject),
        None if rule.on.is_some() => {
            let otherwise = clears(rule, Action::Investigate, &subject);
            let mended = clears(rule, Action::RebootNode, &subject);
            if otherwise == mended {
                return otherwise;
            }
            format!("{otherwise}; where a reset or a reboot is asked for, {mended}")
        }
        None => clears(rule, Action::Investigate, &subject),
    }
}

/// What clears a finding of this rule.
pub(super) fn clears(rule: &Rule, action: Action, subject: &Subject) -> String {
    let is_gpu = subject.gpu().is_some();
    if waits_for_recovery(rule, action) {
        return if is_gpu {
            "when the node is rebooted, the driver is loaded anew, the GPU's counters start anew, or the driver takes back \
             the recovery action that it asked for"
        } else {
            "when the node is rebooted"
        }
        .to_owned();
    }
    let ends = match &rule.on {
        Some(pattern) => format!("after {} without another", words::duration(pattern.quiet_s)),
        None => words::clears(rule),
    };
    match (waits_for_replacement(rule, action), is_gpu) {
        (true, true) => {
            format!("when the GPU is replaced, {BY_HAND}, or, once the node is rebooted, {ends}")
        }
        (true, false) => format!("when {BY_HAND}, or, once the node is rebooted, {ends}"),
        (false, _) => ends,
    }
}
