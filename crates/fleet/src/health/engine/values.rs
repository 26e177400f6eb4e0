//! Rules over values: latest values, rates, trends and comparisons with peers.

use std::collections::BTreeSet;

use farrier_facts::node::{ReadError, Reading};

use super::super::finding::Action;
use super::super::observation::{Batch, Moment, Subject};
use super::super::rule::{Limit, Measure, PEERS_MIN, Rule};
use super::super::series::median;
use super::super::signal::Signal;
use super::finding_store::{FindingContent, FindingKey, OpenFinding};
use super::table::LatestValue;
use super::watch::{self, ConditionState, Measured, Transition, Watch};
use super::{Engine, Recovery};

/// This sentence is added to the text if the fault persists after a reboot. The action changes too,
/// so that automation does not reboot the node again and again.
const REBOOT_DID_NOT_HELP: &str =
    "The node was rebooted since and the fault persists: another reboot does not help.";

/// How often open findings are checked for clearing. The check visits every open finding, so
/// running it with every batch would cost too much.
const CLEAR_CHECK_EVERY_MS: i64 = 1000;

/// The result of a rule's clauses for one subject.
struct Evaluation {
    subject_index: usize,
    state: ConditionState,
    /// One entry per clause, if all clauses hold.
    measured: Vec<Measured>,
}

impl Engine {
    /// Stores the values of the batch. Returns the indices of the rules that depend on them.
    pub(super) fn ingest(&mut self, now: Moment, batch: &Batch) -> BTreeSet<usize> {
        let mut affected = BTreeSet::new();
        if let Some(inventory) = &batch.inventory {
            self.table.set_inventory(inventory);
            self.set_rated_clocks(inventory, now, &mut affected);
        }
        let mut derived = BTreeSet::new();
        // The values of one subject arrive together, so its index is looked up only once.
        let mut last: Option<(&Subject, usize)> = None;
        for sample in &batch.samples {
            let cached = last.filter(|(subject, _)| **subject == sample.subject);
            let index = cached.map(|(_, index)| index);
            let index = index.or_else(|| self.table.index_or_insert(&sample.subject));
            let Some(subject_index) = index else { continue };
            last = Some((&sample.subject, subject_index));
            self.set(subject_index, sample.signal, sample.reading.clone(), now, &mut affected);
            match &sample.note {
                Some(note) => drop(self.notes.insert((subject_index, sample.signal), note.clone())),
                None => drop(self.notes.remove(&(subject_index, sample.signal))),
            }
            derived.extend(derived_signals(sample.signal).map(|signal| (subject_index, signal)));
        }
        for (subject_index, signal) in derived {
            if let Some(reading) = self.derive(subject_index, signal) {
                self.set(subject_index, signal, reading, now, &mut affected);
            }
        }
        affected
    }

    pub(super) fn set(
        &mut self,
        subject_index: usize,
        signal: Signal,
        reading: Reading<f64>,
        now: Moment,
        affected: &mut BTreeSet<usize>,
    ) {
        let value = reading.value().copied();
        self.detect_recovery(subject_index, signal, value, now);
        self.table.set(subject_index, LatestValue { signal, reading, read_ms: now.steady_ms });
        for (rule_index, clause_index) in self.rules_by_signal[signal as usize].iter().copied() {
            let rule = self.rules.at(rule_index);
            let subject = self.table.subject(subject_index);
            let applies = rule.models.is_empty() && rule.except_models.is_empty()
                || self.table.model(subject).is_some_and(|name| rule.is_for_model(name));
            if !applies {
                continue;
            }
            affected.insert(rule_index);
            let watch = self.watches[rule_index].entry(subject_index).or_insert_with(|| {
                let is_open = self.store.is_open(&finding_key(rule, subject));
                Watch::new(rule, is_open, now.steady_ms)
            });
            let Some(clause_index) = clause_index else { continue };
            let clause = &rule.when[clause_index];
            if let (Some(value), true) = (value, clause.measure != Measure::Last) {
                watch.push(clause_index, now.steady_ms, watch::mask_to_flag(clause, value));
            }
        }
    }

    /// Detects a recovery. There are three kinds: the driver no longer requests a recovery action,
    /// the driver was gone and is back, or a counter was reset.
    fn detect_recovery(
        &mut self,
        subject_index: usize,
        signal: Signal,
        value: Option<f64>,
        now: Moment,
    ) {
        use Signal::{
            GpuEccCorrected, GpuEccUncorrected, GpuEnergy, GpuRecoveryAction, NodeDriverLoaded,
        };
        let reset_indicators =
            [GpuRecoveryAction, NodeDriverLoaded, GpuEccCorrected, GpuEccUncorrected, GpuEnergy];
        let Some(value) = value.filter(|_| reset_indicators.contains(&signal)) else { return };
        // A reset makes the GPU unreadable for a while, so compare with the last value that was
        // reported, even if a read has failed since then.
        let Some(before) =
            self.recovery_signals.insert(subject_index, signal, value, now.steady_ms)
        else {
            return;
        };
        let recovered = match signal {
            NodeDriverLoaded => before < 1.0 && value >= 1.0,
            GpuRecoveryAction => before >= 1.0 && value < 1.0,
            _ => value < before,
        };
        match self.table.subject(subject_index).gpu() {
            _ if !recovered => {}
            Some(gpu) => self.recoveries.push(Recovery::Gpu(gpu.clone())),
            None => self.recoveries.push(Recovery::Driver),
        }
    }

    /// Computes a derived signal.
    fn derive(&self, subject_index: usize, signal: Signal) -> Option<Reading<f64>> {
        let latest = |signal| self.table.latest(subject_index, signal).cloned();
        if signal == Signal::GpuPages {
            let double = latest(Signal::GpuPagesDouble)?;
            let single = latest(Signal::GpuPagesSingle)?;
            return Some(single.and_then(|single| double.map(|double| single + double)));
        }
        if signal == Signal::GpuUnreadable {
            return self.derive_unreadable(subject_index);
        }
        if signal == Signal::GpuClockApplicationLow {
            return self.derive_application_low(subject_index);
        }
        match latest(Signal::GpuSmActive) {
            Some(Reading::Absent) | None => latest(Signal::GpuUtilisation),
            measured => measured,
        }
    }

    /// Returns 1 if NVML lists the GPU but every read from it fails. A GPU that is lost, needs a
    /// reset, or is skipped because a call hangs has another signal, and the result is then 0. If
    /// NVML itself does not answer, the result is unreadable.
    fn derive_unreadable(&self, subject_index: usize) -> Option<Reading<f64>> {
        let gpu = self.table.subject(subject_index).gpu()?;
        if !self.table.inventory().iter().any(|identity| identity.uuid == *gpu) {
            return Some(Reading::Unreadable(ReadError::NotListed));
        }
        let latest = |signal| self.table.latest(subject_index, signal);
        let covered_elsewhere = [Signal::GpuLost, Signal::GpuResetRequired, Signal::NodeCallsStuck];
        let is_error = |reading: &&Reading<f64>| matches!(reading, Reading::Unreadable(_));
        let mut readings = covered_elsewhere.iter().filter_map(|signal| latest(*signal));
        if let Some(unreadable) = readings.find(is_error) {
            return Some(unreadable.clone());
        }
        let is_covered = covered_elsewhere
            .iter()
            .any(|signal| latest(*signal).and_then(Reading::value) == Some(&1.0));
        let mut basic = BASIC.iter().filter_map(|signal| latest(*signal)).peekable();
        basic.peek()?;
        let is_readable = basic.clone().any(|reading| reading.value().is_some());
        let is_unreadable = !is_readable && !is_covered && basic.any(|reading| is_error(&reading));
        Some(Reading::Value(f64::from(u8::from(is_unreadable))))
    }

    /// Evaluates the rules, and opens or clears their findings.
    pub(super) fn evaluate(&mut self, rule_indices: &BTreeSet<usize>, now: Moment) {
        self.refresh_open_flags();
        for rule_index in rule_indices {
            for evaluation in self.evaluate_rule(*rule_index, now) {
                self.apply_evaluation(*rule_index, evaluation, now);
            }
        }
    }

    /// Returns the rules with an open finding that may clear without a new value, because enough
    /// time has passed. A measure over a window waits for its next value. Only open findings are
    /// visited, because they are few, while there are thousands of watches.
    pub(super) fn rules_due_to_clear(&mut self, now: Moment) -> BTreeSet<usize> {
        if self.clear_check_ms.is_some_and(|last_ms| now.steady_ms - last_ms < CLEAR_CHECK_EVERY_MS)
        {
            return BTreeSet::new();
        }
        self.clear_check_ms = Some(now.steady_ms);
        let due = |(key, _): (&FindingKey, &OpenFinding)| {
            let rule_index = self.rules.index(&key.code)?;
            let rule = self.rules.at(rule_index);
            let watch = self.watches[rule_index].get(&self.table.find(&key.subject)?)?;
            let uses_latest = rule.when.iter().all(|clause| clause.measure == Measure::Last);
            (uses_latest && watch.may_clear_by_time(rule, now.steady_ms)).then_some(rule_index)
        };
        self.store.iter().filter_map(due).collect()
    }

    /// Evaluates a rule for all its subjects. Comparisons with peers come last, because they need
    /// the results of the other clauses.
    fn evaluate_rule(&self, rule_index: usize, now: Moment) -> Vec<Evaluation> {
        let rule = self.rules.at(rule_index);
        let watches = &self.watches[rule_index];
        let mut evaluations: Vec<Evaluation> = watches
            .iter()
            .map(|(index, watch)| self.evaluate_clauses(rule, *index, watch, now))
            .collect();
        let compares_peers =
            rule.when.iter().any(|clause| matches!(clause.limit, Limit::Peers { .. }));
        let is_supported = |evaluation: &&mut Evaluation| {
            !matches!(evaluation.state, ConditionState::Unsupported(_))
        };
        if compares_peers && evaluations.iter_mut().filter(is_supported).count() <= PEERS_MIN {
            // There are too few peers for the condition to hold. A finding that opened while there
            // were more peers has to clear.
            for evaluation in evaluations.iter_mut().filter(is_supported) {
                let is_open =
                    watches.get(&evaluation.subject_index).is_some_and(|watch| watch.is_open);
                evaluation.state =
                    if is_open { ConditionState::False } else { ConditionState::NoPeers };
            }
            return evaluations;
        }
        for (clause_index, clause) in rule.when.iter().enumerate() {
            let Limit::Peers { times } = clause.limit else { continue };
            let values: Vec<(usize, f64)> = evaluations
                .iter()
                .filter(|evaluation| evaluation.state == ConditionState::True)
                .map(|matching| (matching.subject_index, matching.measured[clause_index].value))
                .collect();
            for evaluation in
                evaluations.iter_mut().filter(|candidate| candidate.state == ConditionState::True)
            {
                let mut others: Vec<f64> = values
                    .iter()
                    .filter(|(index, _)| *index != evaluation.subject_index)
                    .map(|(_, value)| *value)
                    .collect();
                let median = median(&mut others).filter(|_| others.len() >= PEERS_MIN);
                let Some(median) = median else {
                    evaluation.state = ConditionState::False;
                    continue;
                };
                let limit = median * times;
                evaluation.measured[clause_index].limit = limit;
                if !clause.comparison.holds(evaluation.measured[clause_index].value, limit) {
                    evaluation.state = ConditionState::False;
                }
            }
        }
        evaluations
    }

    /// Evaluates all clauses, except comparisons with peers.
    fn evaluate_clauses(
        &self,
        rule: &Rule,
        subject_index: usize,
        watch: &Watch,
        now: Moment,
    ) -> Evaluation {
        let is_open = watch.is_open;
        let latest = |signal| self.table.latest(subject_index, signal);
        // Measured values are kept only for subjects that may match. A healthy node has hardly any
        // such subjects.
        let mut measured = Vec::new();
        // If a clause does not hold, the other clauses do not matter. Otherwise a signal that the
        // subject does not have takes precedence over a signal that is unknown now.
        let mut unsupported = None;
        let mut unknown = None;
        let mut is_false = false;
        for (clause_index, clause) in rule.when.iter().enumerate() {
            let value =
                watch::resolve_value(clause.signal, latest(clause.signal)).and_then(|newest| {
                    watch
                        .measure(clause_index, clause, newest, now.steady_ms)
                        .ok_or(ConditionState::WarmingUp)
                });
            let limit = match clause.limit {
                Limit::Peers { .. } => Ok(0.0),
                _ => watch::resolve_limit(clause, is_open, latest),
            };
            match value.and_then(|value| Ok(Measured { value, limit: limit? })) {
                Ok(result) => {
                    let by_peers = matches!(clause.limit, Limit::Peers { .. });
                    is_false |= !by_peers && !clause.comparison.holds(result.value, result.limit);
                    if !is_false {
                        measured.push(result);
                    }
                }
                Err(ConditionState::Unsupported(signal)) => {
                    unsupported = Some(ConditionState::Unsupported(signal));
                }
                Err(state) => unknown = Some(state),
            }
        }
        let state = unsupported
            .or(is_false.then_some(ConditionState::False))
            .or(unknown)
            .unwrap_or(ConditionState::True);
        // The finding opened before a restart, and the history since then is too short to clear it.
        let too_soon =
            state == ConditionState::False && is_open && watch.is_warming_up(rule, now.steady_ms);
        let state = if too_soon {
            ConditionState::WarmingUp
        } else {
            watch.resolve_unread(state, now.steady_ms)
        };
        Evaluation { subject_index, state, measured }
    }

    fn apply_evaluation(&mut self, rule_index: usize, evaluation: Evaluation, now: Moment) {
        let rule = self.rules.at(rule_index);
        let Some(watch) = self.watches[rule_index].get_mut(&evaluation.subject_index) else {
            return;
        };
        match watch.advance(rule, evaluation.state, now.steady_ms) {
            Transition::Wait => {}
            Transition::Clear => {
                let key = finding_key(rule, self.table.subject(evaluation.subject_index));
                let Some(open) = self.store.get(&key) else { return };
                let awaits_replacement =
                    watch::waits_for_replacement(rule, open.finding.rule_action);
                if !(awaits_replacement && open.occurred_this_boot()) {
                    self.store.clear(&key, "the condition no longer holds", now);
                }
            }
            Transition::Open => {
                let key = finding_key(rule, self.table.subject(evaluation.subject_index));
                if let Some(other) = &rule.suppressed_by {
                    let (code, detail) = (other.code.clone(), other.detail.clone());
                    let subject = key.subject.clone();
                    if self.store.is_open(&FindingKey { code, detail, subject }) {
                        let why = format!("suppressed by `{} {}`", other.code, other.detail);
                        self.store.clear(&key, &why, now);
                        return;
                    }
                }
                let (Some(severity), Some(action), Some(text)) =
                    (rule.severity, rule.action, &rule.text)
                else {
                    return;
                };
                let previous = self.store.get(&key);
                let reboot_did_not_help = action == Action::RebootNode
                    && previous.is_some_and(OpenFinding::survived_reboot);
                let (action, text) = if reboot_did_not_help {
                    (Action::Investigate, format!("{text} {REBOOT_DID_NOT_HELP}"))
                } else {
                    (action, text.clone())
                };
                let clears_when = watch::clear_condition(rule, action, &key.subject);
                let (kind, remedy) = (rule.kind, rule.remedy.clone());
                let (severity, default_severity) = rule.effective_severity(None, severity);
                let content = FindingContent {
                    kind,
                    severity,
                    default_severity,
                    action,
                    text,
                    remedy,
                    clears_when,
                };
                let evidence = watch::evidence(rule, &evaluation.measured, now, |signal| {
                    self.notes.get(&(evaluation.subject_index, signal)).cloned()
                });
                self.store.upsert(key, content, evidence, now, false);
            }
        }
    }

    /// Sets the open flags of the watches after findings opened or cleared. A search for the
    /// finding in each evaluation would cost more than the evaluation itself.
    pub(super) fn refresh_open_flags(&mut self) {
        if !self.store.take_open_set_changed() {
            return;
        }
        for (rule, watches) in self.rules.iter().zip(&mut self.watches) {
            for (subject_index, watch) in watches {
                let key = finding_key(rule, self.table.subject(*subject_index));
                watch.is_open = self.store.is_open(&key);
            }
        }
    }
}

/// The signals that are computed from the given signal.
fn derived_signals(signal: Signal) -> impl Iterator<Item = Signal> {
    let combined = match signal {
        Signal::GpuSmActive | Signal::GpuUtilisation => Some(Signal::GpuBusy),
        Signal::GpuPagesSingle | Signal::GpuPagesDouble => Some(Signal::GpuPages),
        Signal::GpuClockSmApplication => Some(Signal::GpuClockApplicationLow),
        _ => None,
    };
    let is_basic = BASIC.contains(&signal) || signal == Signal::GpuLost;
    combined.into_iter().chain(is_basic.then_some(Signal::GpuUnreadable))
}

/// Signals that every GPU reports within ten seconds.
const BASIC: [Signal; 5] = [
    Signal::GpuTemperature,
    Signal::GpuPower,
    Signal::GpuClockSm,
    Signal::GpuUtilisation,
    Signal::GpuMemoryUsed,
];

fn finding_key(rule: &Rule, subject: &Subject) -> FindingKey {
    FindingKey { code: rule.code.clone(), detail: String::new(), subject: subject.clone() }
}
