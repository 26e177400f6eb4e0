//! Applies rules to observations, and opens, updates and clears findings.
//!
//! ```text
//! Batch ─ take ─> Table (latest values) ─┬─ values ─┐
//!           └──> Watch (history)  ───────┘          ├─> Ledger ─ outrank ─> Changes
//!        ─ events ─> Counted (repeats) ─────────────┤
//!        ─ checks ──────────────────────────────────┘
//! ```

mod events;
mod gap;
mod gone;
mod ledger;
mod repaired;
mod repeats;
mod table;
mod told;
mod values;
mod watch;
mod words;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use farrier_facts::xid::XidFacts;

pub use gap::CoverageGap;
pub use repeats::Remembered;
pub use table::{Latest, SignalValues};
pub use told::LastTold;
pub use watch::what_clears;

use super::finding::{Change, Evidence, Finding};
use super::observation::{Batch, CheckItem, GpuIdentity, GpuUuid, Moment, Subject};
use super::rule::Limit;
use super::rules::Rules;
use super::signal::Signal;
use ledger::{Asked, Key, Ledger, Verdict};
use repeats::Counted;
use table::Table;
use told::Told;
use watch::{Truth, Watch};

/// Code of the rule for findings of node checks.
const CHECK: &str = "check";

/// Engine state that the journal keeps.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Saved {
    /// Open findings.
    pub findings: Vec<Finding>,
    /// ID of the next finding.
    pub next_id: u64,
    /// Events that repeat rules count.
    pub remembered: Vec<Remembered>,
    /// Last reported recovery signals of the driver.
    pub told: Vec<LastTold>,
    /// The boot in which it was saved.
    pub boot: String,
}

/// Result of a turn.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Decision {
    /// Findings that opened, changed or cleared.
    pub changes: Vec<Change>,
    /// Events to store for repeat rules.
    pub remembered: Vec<Remembered>,
}

/// Which rules run, and coverage gaps.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Number of watched subjects, by code.
    pub watched: BTreeMap<String, usize>,
    /// Code, subject, and the signal that the part does not have.
    pub unsupported: Vec<(String, Subject, Signal)>,
    /// Number of subjects with too few peers to compare with, by code.
    pub alone: BTreeMap<String, usize>,
    /// Number of subjects that are still warming up, by code.
    pub early: BTreeMap<String, usize>,
    /// Code, subject, and the reason for the coverage gap.
    pub blind: Vec<(String, Subject, CoverageGap)>,
}

/// The rule engine of a node.
#[derive(Debug)]
pub struct Engine {
    rules: Rules,
    /// Rules by signal index, each with the clause that measures the signal. `None` if the signal
    /// is a limit.
    looks: Vec<Vec<(usize, Option<usize>)>>,
    facts: XidFacts,
    table: Table,
    /// Details that values lack, kept until the next value.
    notes: BTreeMap<(usize, Signal), String>,
    /// By rule, then by subject.
    watches: Vec<BTreeMap<usize, Watch>>,
    counted: BTreeMap<usize, Counted>,
    /// When an event was last stored: a storm of events is stored once a minute.
    kept_ms: BTreeMap<(String, Subject, Option<String>), i64>,
    ledger: Ledger,
    /// Last reported recovery signals of the driver.
    told: Told,
    /// When findings were last checked for clearing.
    ending_ms: Option<i64>,
    /// Recoveries seen in this turn.
    recoveries: Vec<Recovery>,
    /// Findings of an earlier boot whose subject has not been seen in this one, and since when.
    unseen: Option<(i64, Vec<Key>)>,
}

#[derive(Debug)]
enum Recovery {
    Driver,
    Gpu(GpuUuid),
}

impl Engine {
    pub fn new(rules: Rules, facts: XidFacts) -> Self {
        Self {
            looks: looks(&rules),
            watches: no_watches(&rules),
            rules,
            facts,
            table: Table::default(),
            notes: BTreeMap::new(),
            counted: BTreeMap::new(),
            kept_ms: BTreeMap::new(),
            ledger: Ledger::default(),
            told: Told::default(),
            ending_ms: None,
            recoveries: Vec::new(),
            unseen: None,
        }
    }

    /// Continues from saved state. `boot` is the current boot: a reboot clears the findings that it
    /// repairs.
    pub fn restore(&mut self, saved: Saved, boot: &str, now: Moment) -> Vec<Change> {
        self.ledger.restore(saved.findings, saved.next_id, (&saved.boot, boot), now);
        for event in &saved.remembered {
            let ago_ms = now.wall.duration_since(event.at).as_millis();
            let ago_ms = i64::try_from(ago_ms).unwrap_or(i64::MAX / 2).max(0);
            let at = Moment { steady_ms: now.steady_ms - ago_ms, wall: event.at };
            self.count(event, at);
        }
        if saved.boot == boot {
            self.told.restore(saved.told, &mut self.table);
        } else {
            self.recovered(|_| true, "the node was rebooted", now);
            self.ledger.ask_for_no_more_reboots();
            self.unseen = Some((now.steady_ms, self.may_be_gone()));
        }
        self.drop_orphans(now);
        self.ledger.take_changes()
    }

    /// Applies a batch.
    pub fn observe(&mut self, now: Moment, batch: &Batch) -> Decision {
        let mut touched = self.take(now, batch);
        touched.extend(self.ending(now));
        self.evaluate(&touched, now);
        let remembered = self.events(&batch.kernel, now);
        if let Some(items) = &batch.checks {
            self.checks(items, now);
        }
        self.quiet(now);
        self.notice_gone(now);
        self.notice_recovery(now);
        let asked = |subject: &Subject| {
            let place = self.table.find(&Subject::Gpu(subject.gpu()?.clone()))?;
            // The last reported value: the driver may stop answering when it matters most.
            let (value, at_ms) = self.told.get(place, Signal::GpuRecoveryAction)?;
            let latest = self.table.latest(place, Signal::GpuRecoveryAction);
            let speaks = latest.is_some_and(|reading| reading.value().is_some());
            Some(Asked { value: whole(value), silent_since_ms: (!speaks).then_some(at_ms) })
        };
        self.ledger.outrank(&self.facts, asked);
        Decision { changes: self.ledger.take_changes(), remembered }
    }

    /// Replaces the rules. Clears findings of removed rules; unchanged rules keep their state.
    pub fn reconfigure(&mut self, rules: Rules, now: Moment) -> Vec<Change> {
        if rules == self.rules {
            return Vec::new();
        }
        let old = std::mem::replace(&mut self.rules, rules);
        self.looks = looks(&self.rules);
        let moved: Vec<Option<usize>> =
            old.iter().map(|rule| self.rules.iter().position(|it| it.code == rule.code)).collect();
        let same = |at: usize| {
            let place = moved[at]?;
            let (before, after) = (old.at(at), self.rules.at(place));
            (before.when == after.when && before.on == after.on).then_some(place)
        };
        let watches = std::mem::replace(&mut self.watches, no_watches(&self.rules));
        for (at, watches) in watches.into_iter().enumerate() {
            if let Some(place) = same(at) {
                self.watches[place] = watches;
            }
        }
        self.counted = std::mem::take(&mut self.counted)
            .into_iter()
            .filter_map(|(at, counted)| Some((same(at)?, counted)))
            .collect();
        self.drop_orphans(now);
        self.ledger.take_changes()
    }

    /// Open findings, by code and subject.
    pub fn findings(&self) -> impl Iterator<Item = &Finding> {
        self.ledger.iter().map(|(_, open)| &open.finding)
    }

    /// Whether [`Self::take_told`] would return anything.
    pub fn has_told(&self) -> bool {
        self.told.has_news()
    }

    /// Recovery signals of the driver that changed since the last call, for the journal.
    pub fn take_told(&mut self) -> Vec<LastTold> {
        self.told.take_news(&self.table)
    }

    /// Findings dropped because too many were open.
    pub fn dropped(&self) -> u64 {
        self.ledger.dropped()
    }

    /// Sets the GPUs that were seen in this boot, including those that left the list, so that lines
    /// naming a PCI address resolve before the first enumeration.
    pub fn know(&mut self, inventory: &[GpuIdentity], left: &[GpuIdentity]) {
        self.table.set_inventory(left);
        self.table.set_inventory(inventory);
    }

    /// The GPU at a PCI address, or else the last one there in this boot.
    pub fn gpu_at(&self, address: &str) -> Option<GpuUuid> {
        self.table.at_address(address).map(|gpu| gpu.uuid.clone())
    }

    /// The GPUs of the last enumeration.
    pub fn inventory(&self) -> &[GpuIdentity] {
        self.table.inventory()
    }

    /// The latest values, sorted by subject and signal.
    pub fn latest(&self) -> &Latest {
        self.table.all_latest()
    }

    pub fn coverage(&self) -> Coverage {
        let mut coverage = Coverage::default();
        for (rule, watches) in self.rules.iter().zip(&self.watches) {
            let code = &rule.code;
            let (mut alone, mut early, mut watched) = (0, 0, 0);
            for (place, watch) in watches {
                let subject = || self.table.subject(*place).clone();
                match &watch.truth {
                    Truth::Unsupported(signal) => {
                        coverage.unsupported.push((code.clone(), subject(), *signal));
                    }
                    Truth::Alone => alone += 1,
                    Truth::Early | Truth::Unread(_) => early += 1,
                    Truth::Unknown(why) => {
                        coverage.blind.push((code.clone(), subject(), why.clone()));
                    }
                    Truth::Holds | Truth::HoldsNot => watched += 1,
                }
            }
            for (counts, count) in [
                (&mut coverage.alone, alone),
                (&mut coverage.early, early),
                (&mut coverage.watched, watched),
            ] {
                if count > 0 {
                    counts.insert(code.clone(), count);
                }
            }
        }
        coverage
    }

    /// Applies a check of the whole node: opens its problems, and clears those it no longer
    /// reports.
    fn checks(&mut self, items: &[CheckItem], now: Moment) {
        let Some(rule) = self.rules.get(CHECK) else { return };
        let (kind, clears) = (rule.kind, "when a check of the node no longer finds it".to_owned());
        let mut found: BTreeMap<Key, Verdict> = BTreeMap::new();
        for item in items {
            let key =
                Key { code: CHECK.to_owned(), detail: item.code.clone(), subject: Subject::Node };
            let (severity, own_severity) = rule.judge(None, rule.severity.unwrap_or(item.severity));
            let action = rule.action.unwrap_or(item.action);
            let (text, clears) = (item.text.clone(), clears.clone());
            match found.entry(key) {
                Entry::Vacant(free) => {
                    let remedy = item.remedy.clone();
                    let said =
                        Verdict { kind, severity, own_severity, action, text, remedy, clears };
                    free.insert(said);
                }
                // Several problems with the same code become one finding that names them all.
                Entry::Occupied(mut taken) => {
                    let verdict = taken.get_mut();
                    verdict.severity = verdict.severity.max(severity);
                    verdict.own_severity = verdict.own_severity.max(own_severity);
                    verdict.action = verdict.action.max(action);
                    verdict.text = format!("{}; {text}", verdict.text);
                    verdict.remedy = verdict.remedy.take().or_else(|| item.remedy.clone());
                }
            }
        }
        for (key, verdict) in &found {
            let evidence = vec![Evidence::Check { text: verdict.text.clone(), at: now.wall }];
            self.ledger.found(key.clone(), verdict.clone(), evidence, now, false);
        }
        let gone: Vec<Key> = self
            .ledger
            .iter()
            .map(|(key, _)| key)
            .filter(|key| key.code == CHECK && !found.contains_key(key))
            .cloned()
            .collect();
        for key in gone {
            self.ledger.clear(&key, "the check no longer finds it", now);
        }
    }

    /// After a GPU reset or a driver reload, clears the findings that waited for it and restarts
    /// their windows.
    fn notice_recovery(&mut self, now: Moment) {
        for recovery in std::mem::take(&mut self.recoveries) {
            let (gpu, why) = match recovery {
                Recovery::Driver => (None, "the driver was loaded anew"),
                Recovery::Gpu(gpu) => {
                    (Some(gpu), "the GPU was reset, or its driver asks for no recovery any more")
                }
            };
            let whose = |subject: &Subject| match &gpu {
                Some(gpu) => subject.gpu() == Some(gpu),
                None => subject.gpu().is_some(),
            };
            self.recovered(whose, why, now);
            for (rule, watches) in self.rules.iter().zip(&mut self.watches) {
                for (place, watch) in watches {
                    if whose(self.table.subject(*place)) {
                        watch.forget(rule, now.steady_ms);
                    }
                }
            }
        }
    }

    fn recovered(&mut self, whose: impl Fn(&Subject) -> bool, why: &str, now: Moment) {
        let mut keys = Vec::new();
        for (key, open) in self.ledger.iter() {
            let Some(rule) = self.rules.get(&key.code) else { continue };
            if whose(&key.subject) && watch::waits_for_recovery(rule, open.finding.rule_action) {
                keys.push(key.clone());
            }
        }
        for key in keys {
            self.ledger.clear(&key, why, now);
        }
    }

    fn drop_orphans(&mut self, now: Moment) {
        let gone: Vec<Key> = self
            .ledger
            .iter()
            .map(|(key, _)| key)
            .filter(|key| {
                self.rules.get(&key.code).is_none_or(|rule| rule.passes_over(&event_of(key)))
            })
            .cloned()
            .collect();
        for key in gone {
            self.ledger.clear(&key, "its rule is not in force any more", now);
        }
    }
}

/// `xid.48` for a finding of `Xid 48`; not a valid event code for others.
fn event_of(key: &Key) -> String {
    key.detail.to_ascii_lowercase().replace(' ', ".")
}

/// A state signal as an integer.
fn whole(value: f64) -> u32 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the cast saturates, and states are small"
    )]
    let whole = value as u32;
    whole
}

fn no_watches(rules: &Rules) -> Vec<BTreeMap<usize, Watch>> {
    rules.iter().map(|_| BTreeMap::new()).collect()
}

fn looks(rules: &Rules) -> Vec<Vec<(usize, Option<usize>)>> {
    let mut looks = vec![Vec::new(); Signal::ALL.len()];
    for (rule_at, rule) in rules.iter().enumerate() {
        for (clause_at, clause) in rule.when.iter().enumerate() {
            looks[clause.signal as usize].push((rule_at, Some(clause_at)));
            if let Limit::Signal { signal, .. } = clause.limit {
                looks[signal as usize].push((rule_at, None));
            }
        }
    }
    looks
}

#[cfg(test)]
mod tests;
