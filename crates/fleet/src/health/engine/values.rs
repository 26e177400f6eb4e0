//! Rules over values: latest ones, rates, trends and peers.

use std::collections::BTreeSet;

use farrier_facts::node::{ReadError, Reading};

use super::super::finding::Action;
use super::super::observation::{Batch, Moment, Subject};
use super::super::rule::{Limit, Measure, PEERS_MIN, Rule};
use super::super::series::median;
use super::super::signal::Signal;
use super::ledger::{Key, Open, Verdict};
use super::watch::{self, Measured, Step, Truth, Watch};
use super::{Engine, Recovery};

/// Added after a reboot that did not help, so that automation does not reboot forever.
const IN_VAIN: &str =
    "The node was rebooted since, and it is still so: another reboot does not mend it.";

/// How often open findings are checked for clearing. The check visits every open finding.
const ENDING_EVERY_MS: i64 = 1000;

/// Result of a rule's clauses for one subject.
struct Tried {
    place: usize,
    truth: Truth,
    /// By clause, if all hold.
    measured: Vec<Measured>,
}

impl Engine {
    /// Stores the batch's values, and returns the rules that depend on them.
    pub(super) fn take(&mut self, now: Moment, batch: &Batch) -> BTreeSet<usize> {
        let mut touched = BTreeSet::new();
        if let Some(inventory) = &batch.inventory {
            self.table.set_inventory(inventory);
        }
        let mut derived = BTreeSet::new();
        // Values of one subject arrive together, so its index is looked up once.
        let mut last: Option<(&Subject, usize)> = None;
        for sample in &batch.samples {
            let known = last.filter(|(subject, _)| **subject == sample.subject);
            let place = known.map(|(_, place)| place).or_else(|| self.table.place(&sample.subject));
            let Some(place) = place else { continue };
            last = Some((&sample.subject, place));
            self.set(place, sample.signal, sample.reading.clone(), now, &mut touched);
            match &sample.note {
                Some(note) => drop(self.notes.insert((place, sample.signal), note.clone())),
                None => drop(self.notes.remove(&(place, sample.signal))),
            }
            derived.extend(follows(sample.signal).map(|signal| (place, signal)));
        }
        for (place, signal) in derived {
            if let Some(reading) = self.derive(place, signal) {
                self.set(place, signal, reading, now, &mut touched);
            }
        }
        touched
    }

    fn set(
        &mut self,
        place: usize,
        signal: Signal,
        reading: Reading<f64>,
        now: Moment,
        touched: &mut BTreeSet<usize>,
    ) {
        let value = reading.value().copied();
        self.look_for_recovery(place, signal, value, now);
        self.table.set(place, signal, reading);
        for (at, clause_at) in self.looks[signal as usize].iter().copied() {
            let rule = self.rules.at(at);
            let subject = self.table.subject(place);
            let fits = rule.models.is_empty() && rule.except_models.is_empty()
                || self.table.model(subject).is_some_and(|name| rule.is_for_model(name));
            if !fits {
                continue;
            }
            touched.insert(at);
            let watch = self.watches[at].entry(place).or_insert_with(|| {
                let is_open = self.ledger.is_open(&key(rule, subject));
                Watch::new(rule, is_open, now.steady_ms)
            });
            let Some(clause_at) = clause_at else { continue };
            let clause = &rule.when[clause_at];
            if let (Some(value), true) = (value, clause.measure != Measure::Last) {
                watch.push(clause_at, now.steady_ms, watch::flag(clause, value));
            }
        }
    }

    /// Detects a recovery: the driver asked for one and no longer does, the driver was gone and is
    /// back, or a counter was reset to zero.
    fn look_for_recovery(&mut self, place: usize, signal: Signal, value: Option<f64>, now: Moment) {
        use Signal::{
            GpuEccCorrected, GpuEccUncorrected, GpuEnergy, GpuRecoveryAction, NodeDriverLoaded,
        };
        let tells =
            [GpuRecoveryAction, NodeDriverLoaded, GpuEccCorrected, GpuEccUncorrected, GpuEnergy];
        let Some(value) = value.filter(|_| tells.contains(&signal)) else { return };
        // A reset makes the GPU unreadable for a while, so compare with the last reported value.
        let Some(before) = self.told.insert(place, signal, value, now.steady_ms) else { return };
        let recovered = match signal {
            NodeDriverLoaded => before < 1.0 && value >= 1.0,
            GpuRecoveryAction => before >= 1.0 && value < 1.0,
            _ => value < before,
        };
        match self.table.subject(place).gpu() {
            _ if !recovered => {}
            Some(gpu) => self.recoveries.push(Recovery::Gpu(gpu.clone())),
            None => self.recoveries.push(Recovery::Driver),
        }
    }

    /// Computes a derived signal.
    fn derive(&self, place: usize, signal: Signal) -> Option<Reading<f64>> {
        let latest = |signal| self.table.latest(place, signal).cloned();
        if signal == Signal::GpuPages {
            let double = latest(Signal::GpuPagesDouble)?;
            let single = latest(Signal::GpuPagesSingle)?;
            return Some(single.and_then(|single| double.map(|double| single + double)));
        }
        if signal == Signal::GpuUnreadable {
            return self.derive_unreadable(place);
        }
        match latest(Signal::GpuSmActive) {
            Some(Reading::Absent) | None => latest(Signal::GpuUtilisation),
            measured => measured,
        }
    }

    /// Whether NVML lists a GPU of which nothing can be read. A GPU that is lost, needs a reset or
    /// is skipped because a call hangs has its own signal. If NVML itself does not answer, the
    /// result is unknown.
    fn derive_unreadable(&self, place: usize) -> Option<Reading<f64>> {
        let gpu = self.table.subject(place).gpu()?;
        if !self.table.inventory().iter().any(|it| it.uuid == *gpu) {
            return Some(Reading::Unreadable(ReadError::NotListed));
        }
        let latest = |signal| self.table.latest(place, signal);
        let told = [Signal::GpuLost, Signal::GpuResetRequired, Signal::NodeCallsStuck];
        let fails = |it: &&Reading<f64>| matches!(it, Reading::Unreadable(_));
        if let Some(silent) = told.iter().filter_map(|it| latest(*it)).find(fails) {
            return Some(silent.clone());
        }
        let is_told = told.iter().any(|it| latest(*it).and_then(Reading::value) == Some(&1.0));
        let mut basic = BASIC.iter().filter_map(|it| latest(*it)).peekable();
        basic.peek()?;
        let reads = basic.clone().any(|it| it.value().is_some());
        let is_unreadable = !reads && !is_told && basic.any(|it| fails(&it));
        Some(Reading::Value(f64::from(u8::from(is_unreadable))))
    }

    /// Evaluates these rules.
    pub(super) fn evaluate(&mut self, touched: &BTreeSet<usize>, now: Moment) {
        self.mark_open();
        for at in touched {
            let tried = self.try_all(*at, now);
            for it in tried {
                self.settle(*at, it, now);
            }
        }
    }

    /// Rules with a finding that may clear by time alone, without a new value. Measures over a
    /// window wait for their next value. Only open findings are visited: they are few, while there
    /// are thousands of watches.
    pub(super) fn ending(&mut self, now: Moment) -> BTreeSet<usize> {
        if self.ending_ms.is_some_and(|asked| now.steady_ms - asked < ENDING_EVERY_MS) {
            return BTreeSet::new();
        }
        self.ending_ms = Some(now.steady_ms);
        let due = |(key, _): (&Key, &Open)| {
            let at = self.rules.place(&key.code)?;
            let rule = self.rules.at(at);
            let watch = self.watches[at].get(&self.table.find(&key.subject)?)?;
            let newest = rule.when.iter().all(|clause| clause.measure == Measure::Last);
            (newest && watch.is_ending(rule, now.steady_ms)).then_some(at)
        };
        self.ledger.iter().filter_map(due).collect()
    }

    /// Evaluates a rule over all its subjects. Peers are compared once the other clauses are known.
    fn try_all(&self, at: usize, now: Moment) -> Vec<Tried> {
        let rule = self.rules.at(at);
        let watches = &self.watches[at];
        let mut tried: Vec<Tried> =
            watches.iter().map(|(place, watch)| self.try_one(rule, *place, watch, now)).collect();
        let compares = rule.when.iter().any(|it| matches!(it.limit, Limit::Peers { .. }));
        let has_it = |it: &&mut Tried| !matches!(it.truth, Truth::Unsupported(_));
        if compares && tried.iter_mut().filter(has_it).count() <= PEERS_MIN {
            // It can never hold here. A finding opened while there were more peers is over.
            for it in tried.iter_mut().filter(has_it) {
                let is_open = watches.get(&it.place).is_some_and(|watch| watch.is_open);
                it.truth = if is_open { Truth::HoldsNot } else { Truth::Alone };
            }
            return tried;
        }
        for (clause_at, clause) in rule.when.iter().enumerate() {
            let Limit::Peers { times } = clause.limit else { continue };
            let values: Vec<(usize, f64)> = tried
                .iter()
                .filter(|it| it.truth == Truth::Holds)
                .map(|it| (it.place, it.measured[clause_at].value))
                .collect();
            for it in tried.iter_mut().filter(|it| it.truth == Truth::Holds) {
                let mut others: Vec<f64> = values
                    .iter()
                    .filter(|(place, _)| *place != it.place)
                    .map(|(_, value)| *value)
                    .collect();
                let middle = median(&mut others).filter(|_| others.len() >= PEERS_MIN);
                let Some(middle) = middle else {
                    it.truth = Truth::HoldsNot;
                    continue;
                };
                let limit = middle * times;
                it.measured[clause_at].limit = limit;
                if !clause.comparison.holds(it.measured[clause_at].value, limit) {
                    it.truth = Truth::HoldsNot;
                }
            }
        }
        tried
    }

    /// Evaluates all clauses except peer comparisons.
    fn try_one(&self, rule: &Rule, place: usize, watch: &Watch, now: Moment) -> Tried {
        let is_open = watch.is_open;
        let latest = |signal| self.table.latest(place, signal);
        // Collected only for subjects that may match: on a healthy node hardly any do.
        let mut measured = Vec::new();
        // A missing signal takes precedence over one that is unknown now. A clause that does not
        // hold decides, whatever the others are.
        let mut lacking = None;
        let mut unknown = None;
        let mut fails = false;
        for (clause_at, clause) in rule.when.iter().enumerate() {
            let value = watch::value_of(clause.signal, latest(clause.signal)).and_then(|newest| {
                watch.measure(clause_at, clause, newest, now.steady_ms).ok_or(Truth::Early)
            });
            let limit = match clause.limit {
                Limit::Peers { .. } => Ok(0.0),
                _ => watch::limit_of(clause, is_open, latest),
            };
            match value.and_then(|value| Ok(Measured { value, limit: limit? })) {
                Ok(it) => {
                    let by_peers = matches!(clause.limit, Limit::Peers { .. });
                    fails |= !by_peers && !clause.comparison.holds(it.value, it.limit);
                    if !fails {
                        measured.push(it);
                    }
                }
                Err(Truth::Unsupported(signal)) => lacking = Some(Truth::Unsupported(signal)),
                Err(truth) => unknown = Some(truth),
            }
        }
        let truth =
            lacking.or(fails.then_some(Truth::HoldsNot)).or(unknown).unwrap_or(Truth::Holds);
        // A finding from before a restart: its window is too short yet to clear it.
        let too_soon = truth == Truth::HoldsNot && is_open && watch.is_young(rule, now.steady_ms);
        let truth = if too_soon { Truth::Early } else { watch.judge_unread(truth, now.steady_ms) };
        Tried { place, truth, measured }
    }

    fn settle(&mut self, at: usize, tried: Tried, now: Moment) {
        let rule = self.rules.at(at);
        let Some(watch) = self.watches[at].get_mut(&tried.place) else { return };
        match watch.step(rule, tried.truth, now.steady_ms) {
            Step::Wait => {}
            Step::Clear => {
                let key = key(rule, self.table.subject(tried.place));
                let Some(open) = self.ledger.get(&key) else { return };
                let waits = watch::waits_for_replacement(rule, open.finding.rule_action);
                if !(waits && open.is_of_this_boot()) {
                    self.ledger.clear(&key, "it no longer holds", now);
                }
            }
            Step::Found => {
                let key = key(rule, self.table.subject(tried.place));
                if let Some(other) = &rule.told_by {
                    let (code, detail) = (other.code.clone(), other.detail.clone());
                    let subject = key.subject.clone();
                    if self.ledger.is_open(&Key { code, detail, subject }) {
                        let why = format!("`{} {}` tells of it", other.code, other.detail);
                        self.ledger.clear(&key, &why, now);
                        return;
                    }
                }
                let (Some(severity), Some(action), Some(text)) =
                    (rule.severity, rule.action, &rule.text)
                else {
                    return;
                };
                let before = self.ledger.get(&key);
                let in_vain =
                    action == Action::RebootNode && before.is_some_and(Open::outlived_a_reboot);
                let (action, text) = if in_vain {
                    (Action::Investigate, format!("{text} {IN_VAIN}"))
                } else {
                    (action, text.clone())
                };
                let clears = watch::clears(rule, action, &key.subject);
                let (kind, remedy) = (rule.kind, rule.remedy.clone());
                let (severity, own_severity) = rule.judge(None, severity);
                let verdict =
                    Verdict { kind, severity, own_severity, action, text, remedy, clears };
                let evidence = watch::evidence(rule, &tried.measured, now, |signal| {
                    self.notes.get(&(tried.place, signal)).cloned()
                });
                self.ledger.found(key, verdict, evidence, now, false);
            }
        }
    }

    /// Updates the open flag of the watches after changes. Looking it up for each evaluation would
    /// cost more than the evaluation.
    pub(super) fn mark_open(&mut self) {
        if !self.ledger.moved() {
            return;
        }
        for (rule, watches) in self.rules.iter().zip(&mut self.watches) {
            for (place, watch) in watches {
                let key = key(rule, self.table.subject(*place));
                watch.is_open = self.ledger.is_open(&key);
            }
        }
    }
}

/// Signals derived from this one.
fn follows(signal: Signal) -> impl Iterator<Item = Signal> {
    let sum = match signal {
        Signal::GpuSmActive | Signal::GpuUtilisation => Some(Signal::GpuBusy),
        Signal::GpuPagesSingle | Signal::GpuPagesDouble => Some(Signal::GpuPages),
        _ => None,
    };
    let is_basic = BASIC.contains(&signal) || signal == Signal::GpuLost;
    sum.into_iter().chain(is_basic.then_some(Signal::GpuUnreadable))
}

/// Signals that every GPU reports within ten seconds.
const BASIC: [Signal; 5] = [
    Signal::GpuTemperature,
    Signal::GpuPower,
    Signal::GpuClockSm,
    Signal::GpuUtilisation,
    Signal::GpuMemoryUsed,
];

fn key(rule: &Rule, subject: &Subject) -> Key {
    Key { code: rule.code.clone(), detail: String::new(), subject: subject.clone() }
}
