//! The state of one rule for one subject: whether its condition holds, and since when.

use super::super::finding::{Action, Evidence};
use super::super::observation::{GpuUuid, Moment, Subject};
use super::super::rule::{Clause, Limit, Measure, Rule};
use super::super::series::Series;
use super::super::signal::{Scope, Signal};
use super::coverage_gap::CoverageGap;
use super::describe;
use farrier_facts::node::Reading;

/// The result of a rule's condition for one subject.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ConditionState {
    True,
    False,
    /// A signal cannot be read now.
    Unknown(CoverageGap),
    /// The history does not cover the window yet.
    WarmingUp,
    /// The signal was never read.
    Unread(Signal),
    /// The subject does not have the signal.
    Unsupported(Signal),
    /// There are too few peers to compare with.
    NoPeers,
}

/// The state of a rule for one subject.
#[derive(Debug, Clone)]
pub(super) struct Watch {
    /// One entry per clause. `None` for clauses that need no history.
    series: Vec<Option<Series>>,
    /// Since when the condition has been true, or false, without a break.
    since_ms: Option<i64>,
    is_true: bool,
    pub(super) state: ConditionState,
    pub(super) is_open: bool,
    /// When the first value of any of its signals arrived.
    first_value_ms: i64,
}

/// If a signal is still missing this long after the other signals of its rule arrived, it will not
/// arrive soon. By then, every group of signals except the hourly one has been read several times.
const UNREAD_MS: i64 = 300_000;

/// What an evaluation does to the finding of the rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transition {
    /// The condition was true long enough to open a finding, or it is still true.
    Open,
    /// The condition was false long enough to clear the finding.
    Clear,
    Wait,
}

/// The measure of a clause, and the limit that it was compared with.
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
            is_true: false,
            state: ConditionState::WarmingUp,
            is_open,
            first_value_ms: now_ms,
        }
    }

    /// Adds a value for one of the clauses.
    pub(super) fn push(&mut self, clause: usize, at_ms: i64, value: f64) {
        if let Some(Some(series)) = self.series.get_mut(clause) {
            series.push(at_ms, value);
        }
    }

    /// Whether the history does not cover every window yet.
    pub(super) fn is_warming_up(&self, rule: &Rule, now_ms: i64) -> bool {
        let lookback_ms = |clause: &Clause| i64::from(clause.measure.lookback_s()) * 1000;
        let mut clauses = rule.when.iter().zip(&self.series);
        clauses.any(|(clause, series)| {
            series.as_ref().is_some_and(|series| series.covered_ms(now_ms) < lookback_ms(clause))
        })
    }

    /// Discards the history.
    pub(super) fn reset(&mut self, rule: &Rule, now_ms: i64) {
        *self = Self::new(rule, self.is_open, now_ms);
    }

    /// A signal that was never read counts as warming up at first, and as unknown later.
    pub(super) fn resolve_unread(&self, state: ConditionState, now_ms: i64) -> ConditionState {
        match state {
            ConditionState::Unread(signal) if now_ms - self.first_value_ms >= UNREAD_MS => {
                ConditionState::Unknown(CoverageGap::NeverRead(signal))
            }
            ConditionState::Unread(_) => ConditionState::WarmingUp,
            other => other,
        }
    }

    /// The measure of a clause, from the latest value or from the history.
    pub(super) fn measure(
        &self,
        clause_index: usize,
        clause: &Clause,
        newest: f64,
        now_ms: i64,
    ) -> Option<f64> {
        match self.series.get(clause_index) {
            Some(Some(series)) => series.measure(now_ms),
            _ => Some(mask_to_flag(clause, newest)),
        }
    }

    /// Whether the finding may clear because time passes, without a new value.
    pub(super) fn may_clear_by_time(&self, rule: &Rule, now_ms: i64) -> bool {
        let since = self.since_ms.filter(|_| self.is_open && !self.is_true);
        since.is_some_and(|since| now_ms - since >= i64::from(rule.clear_for_s) * 1000)
    }

    /// Applies the result of an evaluation.
    pub(super) fn advance(
        &mut self,
        rule: &Rule,
        state: ConditionState,
        now_ms: i64,
    ) -> Transition {
        let holds = match &state {
            ConditionState::True => true,
            ConditionState::False => false,
            ConditionState::Unknown(_)
            | ConditionState::WarmingUp
            | ConditionState::Unread(_)
            | ConditionState::Unsupported(_)
            | ConditionState::NoPeers => {
                // An unknown state neither opens nor clears a finding. The time for which the
                // condition has to hold starts again.
                self.since_ms = None;
                self.state = state;
                return Transition::Wait;
            }
        };
        if self.since_ms.is_none() || self.is_true != holds {
            self.since_ms = Some(now_ms);
            self.is_true = holds;
        }
        self.state = state;
        let unchanged_ms = now_ms - self.since_ms.unwrap_or(now_ms);
        let enough = |minimum_s: u32| unchanged_ms >= i64::from(minimum_s) * 1000;
        match (holds, self.is_open) {
            (true, true) => Transition::Open,
            (true, false) if enough(rule.for_s) => Transition::Open,
            (false, true) if enough(rule.clear_for_s) && !rule.until_recovery => Transition::Clear,
            _ => Transition::Wait,
        }
    }
}

/// Returns 1 or 0 for a mask, and any other value unchanged.
pub(super) fn mask_to_flag(clause: &Clause, value: f64) -> f64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "masks are whole, positive and below 2^53"
    )]
    clause.bits.map_or(value, |bits| f64::from(u8::from(value as u64 & bits != 0)))
}

/// Returns the limit: a number, or the value of another signal. The caller handles limits from
/// peers.
pub(super) fn resolve_limit<'t>(
    clause: &Clause,
    is_open: bool,
    latest: impl Fn(Signal) -> Option<&'t Reading<f64>>,
) -> Result<f64, ConditionState> {
    if let (true, Some(clear)) = (is_open, clause.clear) {
        return Ok(clear);
    }
    match clause.limit {
        Limit::Number(number) => Ok(number),
        Limit::Signal { signal, times } => {
            resolve_value(signal, latest(signal)).map(|value| value * times)
        }
        Limit::Peers { .. } => Err(ConditionState::Unknown(CoverageGap::PeersNotRead)),
    }
}

/// Returns the latest value. If there is none, returns the state of the condition without it.
pub(super) fn resolve_value(
    signal: Signal,
    latest: Option<&Reading<f64>>,
) -> Result<f64, ConditionState> {
    match latest {
        Some(Reading::Value(value)) => Ok(*value),
        Some(Reading::Absent) => Err(ConditionState::Unsupported(signal)),
        Some(Reading::Unreadable(err)) => {
            Err(ConditionState::Unknown(CoverageGap::Unreadable(signal, err.clone())))
        }
        None => Err(ConditionState::Unread(signal)),
    }
}

pub(super) fn evidence(
    rule: &Rule,
    measured: &[Measured],
    now: Moment,
    note: impl Fn(Signal) -> Option<String>,
) -> Vec<Evidence> {
    let clause_evidence = |(clause, measured): (&Clause, &Measured)| Evidence::Signal {
        signal: clause.signal,
        text: describe::observed(clause, *measured),
        measure: clause.measure.describe(),
        value: Reading::Value(measured.value),
        limit: measured.limit,
        note: note(clause.signal),
        at: now.wall,
    };
    rule.when.iter().zip(measured).map(clause_evidence).collect()
}

/// Whether a finding of this rule stays open until the GPU, the driver or the node restarts. An
/// event is momentary, but its fault persists: a period without events does not reset a GPU.
pub(super) fn waits_for_recovery(rule: &Rule, action: Action) -> bool {
    let needs_restart = matches!(action, Action::ResetGpu | Action::RebootNode);
    rule.until_recovery || (rule.on.is_some() && needs_restart)
}

/// Whether a finding of this rule stays open at least until the node is rebooted, because a period
/// without events does not replace a component. After a reboot, the finding clears after the rule's
/// quiet period, because no signal reports a re-seated card or a replaced module. Findings about
/// network ports do not wait for a reboot, because cables and transceivers are changed while the
/// node runs.
pub(super) fn waits_for_replacement(rule: &Rule, action: Action) -> bool {
    action == Action::DrainAndReplace
        && !rule.until_recovery
        && rule.scope() != Some(Scope::Nic)
        && (rule.on.is_some() || rule.is_windowed())
}

/// This command makes the server send the agent an order that acknowledges the repair.
const MANUAL_REPAIR: &str = "a manual repair is reported (`farrier fleet repaired`)";

/// Describes what clears the findings of a rule, for the rules reference. The text continues a
/// sentence that starts with `It clears`, and has no full stop at its end. Rules about GPUs
/// and about `NVLink`s get the text for a GPU.
pub fn describe_clear_condition(rule: &Rule) -> String {
    let subject = described_subject(rule);
    match rule.action {
        Some(action) => clear_condition(rule, action, &subject),
        None if rule.on.is_some() => {
            let otherwise = clear_condition(rule, Action::Investigate, &subject);
            let after_restart = clear_condition(rule, Action::RebootNode, &subject);
            if otherwise == after_restart {
                return otherwise;
            }
            format!(
                "{otherwise}. But if the event requires a reset or a reboot, it clears only \
                 {after_restart}"
            )
        }
        None => clear_condition(rule, Action::Investigate, &subject),
    }
}

/// Like [`describe_clear_condition`], for an event that requires this action.
pub fn describe_clear_condition_of(rule: &Rule, action: Action) -> String {
    let clearing = clear_condition(rule, action, &described_subject(rule));
    if waits_for_recovery(rule, action) {
        format!("{clearing}. Time alone does not clear it")
    } else {
        clearing
    }
}

fn described_subject(rule: &Rule) -> Subject {
    let is_about_gpu = rule.code.starts_with("gpu.") || rule.scope() == Some(Scope::Link);
    if is_about_gpu { Subject::Gpu(GpuUuid(String::new())) } else { Subject::Node }
}

/// Describes what clears a finding of this rule.
pub(super) fn clear_condition(rule: &Rule, action: Action, subject: &Subject) -> String {
    let is_gpu = subject.gpu().is_some();
    if waits_for_recovery(rule, action) {
        return if is_gpu {
            "when the node is rebooted, the driver is reloaded, the GPU's counters are reset, or the \
             driver withdraws its recovery action"
        } else {
            "when the node is rebooted"
        }
        .to_owned();
    }
    let clearing = match &rule.on {
        Some(pattern) => {
            format!("after {} without another event", describe::duration(pattern.clear_after_s))
        }
        None => describe::clear_condition(rule),
    };
    match (waits_for_replacement(rule, action), is_gpu) {
        (true, true) => {
            format!(
                "when the GPU is replaced, {MANUAL_REPAIR}, or, once the node is rebooted, {clearing}"
            )
        }
        (true, false) => format!("when {MANUAL_REPAIR}, or, once the node is rebooted, {clearing}"),
        (false, _) => clearing,
    }
}
