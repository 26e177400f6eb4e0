//! One rule over one subject: whether its clauses hold, and for how long.

use super::super::finding::{Action, Evidence};
use super::super::observation::{GpuUuid, Moment, Subject};
use super::super::rule::{Clause, Limit, Measure, Rule};
use super::super::series::Series;
use super::super::signal::{Scope, Signal};
use super::gap::CoverageGap;
use super::words;
use farrier_facts::node::Reading;

/// Whether something holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Truth {
    Holds,
    HoldsNot,
    /// Nobody knows now, and why.
    Unknown(CoverageGap),
    /// Its window has not been watched for long enough yet.
    Early,
    /// This signal has never been read.
    Unread(Signal),
    /// The part does not have this signal.
    Unsupported(Signal),
    /// There are too few peers to compare with.
    Alone,
}

/// What a rule remembers of a subject.
#[derive(Debug, Clone)]
pub(super) struct Watch {
    /// For each clause that looks back.
    series: Vec<Option<Series>>,
    /// Since when it holds, or does not, without a break.
    since_ms: Option<i64>,
    holding: bool,
    pub(super) truth: Truth,
    /// Whether its finding is open.
    pub(super) is_open: bool,
    /// When the first of its signals came.
    born_ms: i64,
}

/// A signal that has not come for so long after its companions does not come soon: every tier but the hourly one has
/// been read several times by then.
const UNREAD_MS: i64 = 300_000;

/// What a turn comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// It has held for long enough.
    Found,
    /// It has not held for long enough.
    Clear,
    /// Neither.
    Wait,
}

/// What a clause came to: the measure and what it was held against.
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

    /// Takes a value for one of its clauses.
    pub(super) fn push(&mut self, clause: usize, at_ms: i64, value: f64) {
        if let Some(Some(series)) = self.series.get_mut(clause) {
            series.push(at_ms, value);
        }
    }

    /// Whether a window has not been watched for all of its length.
    pub(super) fn is_young(&self, rule: &Rule, now_ms: i64) -> bool {
        let reach = |clause: &Clause| i64::from(clause.measure.reach_s()) * 1000;
        let mut series = rule.when.iter().zip(&self.series);
        series
            .any(|(clause, it)| it.as_ref().is_some_and(|it| it.covered_ms(now_ms) < reach(clause)))
    }

    /// What was before does not count any more.
    pub(super) fn forget(&mut self, rule: &Rule, now_ms: i64) {
        *self = Self::new(rule, self.is_open, now_ms);
    }

    /// A signal that was never read is early at first, and then nobody knows it.
    pub(super) fn judge_unread(&self, truth: Truth, now_ms: i64) -> Truth {
        match truth {
            Truth::Unread(signal) if now_ms - self.born_ms >= UNREAD_MS => {
                Truth::Unknown(CoverageGap::NeverRead(signal))
            }
            Truth::Unread(_) => Truth::Early,
            other => other,
        }
    }

    /// The measure of a clause, from the newest value or the past.
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

    /// Whether its finding has not held for long enough to be over.
    pub(super) fn is_ending(&self, rule: &Rule, now_ms: i64) -> bool {
        let since = self.since_ms.filter(|_| self.is_open && !self.holding);
        since.is_some_and(|since| now_ms - since >= i64::from(rule.clear_for_s) * 1000)
    }

    /// Takes the truth of this turn.
    pub(super) fn step(&mut self, rule: &Rule, truth: Truth, now_ms: i64) -> Step {
        let holds = match &truth {
            Truth::Holds => true,
            Truth::HoldsNot => false,
            Truth::Unknown(_)
            | Truth::Early
            | Truth::Unread(_)
            | Truth::Unsupported(_)
            | Truth::Alone => {
                // What is not known neither opens nor clears; a stretch that it interrupts begins anew.
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

/// A mask as 1 or 0; anything else as it is.
pub(super) fn flag(clause: &Clause, value: f64) -> f64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "masks are whole, positive and below 2^53"
    )]
    clause.bits.map_or(value, |bits| f64::from(u8::from(value as u64 & bits != 0)))
}

/// A number of the clause's own, or that of another signal. Peers are for the caller to ask.
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

/// The newest value, or what its lack means.
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

/// What stands in the finding.
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

/// Whether a finding of this rule stays until the GPU, the driver or the node started anew. An event is over in a
/// moment, what it asks for is not: quiet does not reset a GPU.
pub(super) fn waits_for_recovery(rule: &Rule, action: Action) -> bool {
    let asks = matches!(action, Action::ResetGpu | Action::RebootNode);
    rule.until_recovery || (rule.on.is_some() && asks)
}

/// Whether a finding of this rule stays at least until the node has been off: quiet does not replace a part. After a
/// reboot it is over once nothing has come for as long as the rule says, since nobody tells of a card that was re-seated or of a
/// module that was replaced. Cables and transceivers are changed while the node runs, so that a port's own counters are believed.
pub(super) fn waits_for_replacement(rule: &Rule, action: Action) -> bool {
    action == Action::DrainAndReplace
        && !rule.until_recovery
        && rule.scope() != Some(Scope::Nic)
        && (rule.on.is_some() || rule.judges_happenings())
}

/// The server tells the agent of it.
const BY_HAND: &str = "a person has it repaired (`farrier fleet repaired`)";

/// What clears findings of a rule, in words, for its reference: of the GPU where it is a rule of GPUs.
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

/// What would clear a finding of this rule, in words.
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
