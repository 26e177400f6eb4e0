//! Applies rules to observations, and opens, updates and clears findings.
//!
//! ```text
//! Batch ─ ingest ─> Table (latest values) ─┬─ values ─┐
//!             └──> Watch (history) ────────┘          ├─> FindingStore ─> Changes
//!       ─ events ─> EventCounter (repeats) ───────────┤
//!       ─ checks ─────────────────────────────────────┘
//! ```

mod coverage_gap;
mod describe;
mod event_counter;
mod events;
mod finding_store;
mod manual_repair;
mod rated_clocks;
mod recovery_signals;
mod removed_parts;
mod table;
mod values;
mod watch;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use farrier_facts::FactSet;
use farrier_facts::gpu::GpuFacts;
use farrier_facts::xid::XidFacts;

pub use coverage_gap::CoverageGap;
pub use event_counter::StoredEvent;
pub use events::event_detail;
pub use rated_clocks::{MEMORY_CLOCK_FLOOR, SM_CLOCK_FLOOR};
pub use recovery_signals::RecoverySignal;
pub use table::{Latest, LatestValue, SignalValues};
pub use watch::{describe_clear_condition, describe_clear_condition_of};

use super::finding::{Change, Evidence, Finding};
use super::observation::{Batch, CheckItem, GpuIdentity, GpuUuid, Moment, Subject};
use super::rule::Limit;
use super::rules::Rules;
use super::signal::Signal;
use event_counter::EventCounter;
use finding_store::{DriverAction, FindingContent, FindingKey, FindingStore};
use recovery_signals::RecoverySignals;
use table::Table;
use watch::{ConditionState, Watch};

/// Code of the rule for findings from node checks.
const CHECK: &str = "check";

/// State of the engine that the journal keeps.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EngineSnapshot {
    /// Open findings.
    pub findings: Vec<Finding>,
    /// ID of the next finding.
    pub next_id: u64,
    /// Events that repeat rules count.
    pub stored_events: Vec<StoredEvent>,
    /// The last reported recovery signals of the driver.
    pub recovery_signals: Vec<RecoverySignal>,
    /// The boot in which the state was saved.
    pub boot: String,
}

/// Result of applying a batch.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HealthDecision {
    /// Findings that opened, changed or cleared.
    pub changes: Vec<Change>,
    /// Events to store for repeat rules.
    pub events_to_store: Vec<StoredEvent>,
}

/// Which rules run, and which cannot.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Number of watched subjects, by rule code.
    pub watched: BTreeMap<String, usize>,
    /// Rule code, subject, and the signal that the subject does not have.
    pub unsupported: Vec<(String, Subject, Signal)>,
    /// Number of subjects with too few peers to compare with, by rule code.
    pub no_peers: BTreeMap<String, usize>,
    /// Number of subjects that are still warming up, by rule code.
    pub warming_up: BTreeMap<String, usize>,
    /// Rule code, subject, and the coverage gap.
    pub gaps: Vec<(String, Subject, CoverageGap)>,
}

/// The rule engine of a node.
#[derive(Debug)]
pub struct Engine {
    rules: Rules,
    /// For each signal, the rules that use it and the clause that measures it. The clause is `None`
    /// if the signal is only a limit.
    rules_by_signal: Vec<Vec<(usize, Option<usize>)>>,
    facts: XidFacts,
    /// The rated clocks of each GPU model.
    gpu_facts: GpuFacts,
    table: Table,
    /// Details of a value that its number does not show. A note is kept until the next value
    /// arrives.
    notes: BTreeMap<(usize, Signal), String>,
    /// By rule index, then by subject index.
    watches: Vec<BTreeMap<usize, Watch>>,
    event_counters: BTreeMap<usize, EventCounter>,
    /// When an event was last stored. A storm of the same event is stored once a minute.
    stored_ms: BTreeMap<(String, Subject, Option<String>), i64>,
    store: FindingStore,
    /// The last reported recovery signals of the driver.
    recovery_signals: RecoverySignals,
    /// When open findings were last checked for clearing.
    clear_check_ms: Option<i64>,
    /// Recoveries that were detected in this batch.
    recoveries: Vec<Recovery>,
    /// Findings from an earlier boot whose subject has not been observed in this boot, and since
    /// when the engine waits for it.
    awaiting_rediscovery: Option<(i64, Vec<FindingKey>)>,
}

#[derive(Debug)]
enum Recovery {
    Driver,
    Gpu(GpuUuid),
}

impl Engine {
    pub fn new(rules: Rules, facts: &FactSet) -> Self {
        Self {
            rules_by_signal: rules_by_signal(&rules),
            watches: empty_watches(&rules),
            rules,
            facts: XidFacts::clone(&facts.xids),
            gpu_facts: GpuFacts::clone(&facts.gpus),
            table: Table::default(),
            notes: BTreeMap::new(),
            event_counters: BTreeMap::new(),
            stored_ms: BTreeMap::new(),
            store: FindingStore::default(),
            recovery_signals: RecoverySignals::default(),
            clear_check_ms: None,
            recoveries: Vec::new(),
            awaiting_rediscovery: None,
        }
    }

    /// Continues from saved state. `boot` is the current boot. If the node was rebooted after the
    /// state was saved, findings that a reboot repairs are cleared.
    pub fn restore(&mut self, saved: EngineSnapshot, boot: &str, now: Moment) -> Vec<Change> {
        self.store.restore(saved.findings, saved.next_id, (&saved.boot, boot), now);
        for event in &saved.stored_events {
            let ago_ms = now.wall.duration_since(event.at).as_millis();
            let ago_ms = i64::try_from(ago_ms).unwrap_or(i64::MAX / 2).max(0);
            let at = Moment { steady_ms: now.steady_ms - ago_ms, wall: event.at };
            self.count(event, at);
        }
        if saved.boot == boot {
            self.recovery_signals.restore(saved.recovery_signals, &mut self.table);
        } else {
            self.clear_recovered(|_| true, "the node was rebooted", now);
            self.store.downgrade_reboots();
            self.awaiting_rediscovery = Some((now.steady_ms, self.findings_to_recheck()));
        }
        self.clear_disabled(now);
        self.store.take_changes()
    }

    /// Applies a batch.
    pub fn observe(&mut self, now: Moment, batch: &Batch) -> HealthDecision {
        let mut affected = self.ingest(now, batch);
        affected.extend(self.rules_due_to_clear(now));
        self.evaluate(&affected, now);
        let events_to_store = self.events(&batch.kernel, now);
        if let Some(items) = &batch.checks {
            self.checks(items, now);
        }
        self.clear_quiet_events(now);
        self.clear_removed_parts(now);
        self.apply_recoveries(now);
        let requested = |subject: &Subject| {
            let gpu_index = self.table.find(&Subject::Gpu(subject.gpu()?.clone()))?;
            // Use the last value that the driver reported, because the driver may stop answering
            // when its request matters most.
            let (value, at_ms) = self.recovery_signals.get(gpu_index, Signal::GpuRecoveryAction)?;
            let latest = self.table.latest(gpu_index, Signal::GpuRecoveryAction);
            let is_readable = latest.is_some_and(|reading| reading.value().is_some());
            Some(DriverAction {
                value: to_u32(value),
                silent_since_ms: (!is_readable).then_some(at_ms),
            })
        };
        self.store.apply_driver_action(&self.facts, requested);
        HealthDecision { changes: self.store.take_changes(), events_to_store }
    }

    /// Replaces the rules. Clears the findings of removed rules. Unchanged rules keep their state.
    pub fn reconfigure(&mut self, rules: Rules, now: Moment) -> Vec<Change> {
        if rules == self.rules {
            return Vec::new();
        }
        let old = std::mem::replace(&mut self.rules, rules);
        self.rules_by_signal = rules_by_signal(&self.rules);
        let new_indices: Vec<Option<usize>> =
            old.iter().map(|rule| self.rules.index(&rule.code)).collect();
        let unchanged = |old_index: usize| {
            let index = new_indices[old_index]?;
            let (before, after) = (old.at(old_index), self.rules.at(index));
            (before.when == after.when && before.on == after.on).then_some(index)
        };
        let watches = std::mem::replace(&mut self.watches, empty_watches(&self.rules));
        for (old_index, watches) in watches.into_iter().enumerate() {
            if let Some(index) = unchanged(old_index) {
                self.watches[index] = watches;
            }
        }
        self.event_counters = std::mem::take(&mut self.event_counters)
            .into_iter()
            .filter_map(|(old_index, counter)| Some((unchanged(old_index)?, counter)))
            .collect();
        self.clear_disabled(now);
        self.store.take_changes()
    }

    /// Open findings, by code and subject.
    pub fn findings(&self) -> impl Iterator<Item = &Finding> {
        self.store.iter().map(|(_, open)| &open.finding)
    }

    /// Whether [`Self::take_recovery_signals`] would return anything.
    pub fn has_recovery_signals(&self) -> bool {
        self.recovery_signals.has_changes()
    }

    /// The recovery signals of the driver that changed since the last call. The journal stores
    /// them.
    pub fn take_recovery_signals(&mut self) -> Vec<RecoverySignal> {
        self.recovery_signals.take_changed(&self.table)
    }

    /// The number of findings that were dropped because too many were open.
    pub fn dropped(&self) -> u64 {
        self.store.dropped()
    }

    /// Sets the GPUs that were listed in this boot, including those that have left the list. Kernel
    /// log lines with a PCI address can then be resolved before the first enumeration.
    pub fn restore_inventory(&mut self, inventory: &[GpuIdentity], left: &[GpuIdentity]) {
        self.table.set_inventory(left);
        self.table.set_inventory(inventory);
    }

    /// The GPU at a PCI address. If no GPU is there now, the last GPU that was there in this boot.
    pub fn gpu_at(&self, address: &str) -> Option<GpuUuid> {
        self.table.gpu_at_address(address).map(|gpu| gpu.uuid.clone())
    }

    /// The GPUs of the last enumeration.
    pub fn inventory(&self) -> &[GpuIdentity] {
        self.table.inventory()
    }

    /// The latest values, sorted by subject and signal.
    pub fn latest(&self) -> &Latest {
        self.table.latest_values()
    }

    pub fn coverage(&self) -> Coverage {
        let mut coverage = Coverage::default();
        for (rule, watches) in self.rules.iter().zip(&self.watches) {
            let code = &rule.code;
            let (mut no_peers, mut early, mut watched) = (0, 0, 0);
            for (subject_index, watch) in watches {
                let subject = || self.table.subject(*subject_index).clone();
                match &watch.state {
                    ConditionState::Unsupported(signal) => {
                        coverage.unsupported.push((code.clone(), subject(), *signal));
                    }
                    ConditionState::NoPeers => no_peers += 1,
                    ConditionState::WarmingUp | ConditionState::Unread(_) => early += 1,
                    ConditionState::Unknown(gap) => {
                        coverage.gaps.push((code.clone(), subject(), gap.clone()));
                    }
                    ConditionState::True | ConditionState::False => watched += 1,
                }
            }
            for (counts, count) in [
                (&mut coverage.no_peers, no_peers),
                (&mut coverage.warming_up, early),
                (&mut coverage.watched, watched),
            ] {
                if count > 0 {
                    counts.insert(code.clone(), count);
                }
            }
        }
        coverage
    }

    /// Applies the result of a node check. Opens findings for the problems that the check reports,
    /// and clears the findings of problems that it no longer reports.
    fn checks(&mut self, items: &[CheckItem], now: Moment) {
        let Some(rule) = self.rules.get(CHECK) else { return };
        let (kind, clears_when) =
            (rule.kind, "when a check of the node no longer reports it".to_owned());
        let mut reported: BTreeMap<FindingKey, FindingContent> = BTreeMap::new();
        for item in items {
            let key = FindingKey {
                code: CHECK.to_owned(),
                detail: item.code.clone(),
                subject: Subject::Node,
            };
            let (severity, default_severity) =
                rule.effective_severity(None, rule.severity.unwrap_or(item.severity));
            let action = rule.action.unwrap_or(item.action);
            let (text, clears_when) = (item.text.clone(), clears_when.clone());
            match reported.entry(key) {
                Entry::Vacant(entry) => {
                    let remedy = item.remedy.clone();
                    let content = FindingContent {
                        kind,
                        severity,
                        default_severity,
                        action,
                        text,
                        remedy,
                        clears_when,
                    };
                    entry.insert(content);
                }
                // Problems with the same code become one finding that names them all.
                Entry::Occupied(mut entry) => {
                    let content = entry.get_mut();
                    content.severity = content.severity.max(severity);
                    content.default_severity = content.default_severity.max(default_severity);
                    content.action = content.action.max(action);
                    content.text = format!("{}; {text}", content.text);
                    content.remedy = content.remedy.take().or_else(|| item.remedy.clone());
                }
            }
        }
        for (key, content) in &reported {
            let evidence = vec![Evidence::Check { text: content.text.clone(), at: now.wall }];
            self.store.upsert(key.clone(), content.clone(), evidence, now, false);
        }
        let gone: Vec<FindingKey> = self
            .store
            .iter()
            .map(|(key, _)| key)
            .filter(|key| key.code == CHECK && !reported.contains_key(key))
            .cloned()
            .collect();
        for key in gone {
            self.store.clear(&key, "the check no longer reports it", now);
        }
    }

    /// After a GPU reset or a driver reload, clears the findings that waited for it, and restarts
    /// the windows of all rules about the affected GPUs.
    fn apply_recoveries(&mut self, now: Moment) {
        for recovery in std::mem::take(&mut self.recoveries) {
            let (gpu, why) = match recovery {
                Recovery::Driver => (None, "the driver was reloaded"),
                Recovery::Gpu(gpu) => {
                    (Some(gpu), "the GPU was reset, or the driver withdrew its recovery action")
                }
            };
            let applies_to = |subject: &Subject| match &gpu {
                Some(gpu) => subject.gpu() == Some(gpu),
                None => subject.gpu().is_some(),
            };
            self.clear_recovered(applies_to, why, now);
            for (rule, watches) in self.rules.iter().zip(&mut self.watches) {
                for (subject_index, watch) in watches {
                    if applies_to(self.table.subject(*subject_index)) {
                        watch.reset(rule, now.steady_ms);
                    }
                }
            }
        }
    }

    fn clear_recovered(&mut self, applies_to: impl Fn(&Subject) -> bool, why: &str, now: Moment) {
        let mut keys = Vec::new();
        for (key, open) in self.store.iter() {
            let Some(rule) = self.rules.get(&key.code) else { continue };
            if applies_to(&key.subject) && watch::waits_for_recovery(rule, open.finding.rule_action)
            {
                keys.push(key.clone());
            }
        }
        for key in keys {
            self.store.clear(&key, why, now);
        }
    }

    fn clear_disabled(&mut self, now: Moment) {
        let gone: Vec<FindingKey> = self
            .store
            .iter()
            .map(|(key, _)| key)
            .filter(|key| {
                self.rules.get(&key.code).is_none_or(|rule| rule.is_muted(&event_code(key)))
            })
            .cloned()
            .collect();
        for key in gone {
            self.store.clear(&key, "its rule was removed or disabled", now);
        }
    }
}

/// Returns `xid.48` for a finding with the detail `Xid 48`, and `sxid.48` for `SXid 48`. If the
/// detail of a finding does not have this form, its rule has no event override for the result.
fn event_code(key: &FindingKey) -> String {
    key.detail.to_ascii_lowercase().replace(' ', ".")
}

/// The value of a state signal as an integer.
fn to_u32(value: f64) -> u32 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the cast saturates, and states are small"
    )]
    let integer = value as u32;
    integer
}

fn empty_watches(rules: &Rules) -> Vec<BTreeMap<usize, Watch>> {
    rules.iter().map(|_| BTreeMap::new()).collect()
}

fn rules_by_signal(rules: &Rules) -> Vec<Vec<(usize, Option<usize>)>> {
    let mut rules_by_signal = vec![Vec::new(); Signal::ALL.len()];
    for (rule_index, rule) in rules.iter().enumerate() {
        for (clause_index, clause) in rule.when.iter().enumerate() {
            rules_by_signal[clause.signal as usize].push((rule_index, Some(clause_index)));
            if let Limit::Signal { signal, .. } = clause.limit {
                rules_by_signal[signal as usize].push((rule_index, None));
            }
        }
    }
    rules_by_signal
}

#[cfg(test)]
mod tests;
