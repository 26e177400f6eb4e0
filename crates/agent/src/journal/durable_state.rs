//! The durable state, which is computed from the records of the journal.

use std::collections::{BTreeMap, VecDeque};

use farrier_fleet::health::{Change, Finding, RecoverySignal, Signal, Subject};
use jiff::Timestamp;

use super::record::{JournalRecord, JournalSnapshot};
use farrier_fleet::health::{EngineSnapshot, StoredEvent};

/// Maximum number of kernel events that are kept for rules that count past events. No rule needs a
/// higher count.
const STORED_EVENTS_MAX: usize = 4096;

#[derive(Debug, Clone, Default, PartialEq)]
pub struct DurableState {
    /// The open findings, by id.
    pub open: BTreeMap<u64, Finding>,
    /// Id of the next finding.
    pub next_id: u64,
    /// Events that rules need after a restart.
    pub stored_events: VecDeque<StoredEvent>,
    /// The last value of each recovery signal, which is a signal in which the driver reports
    /// whether a GPU needs recovery. The values are cleared at a reboot.
    pub recovery_signals: BTreeMap<(Subject, Signal), f64>,
    /// Sequence number of the last record.
    pub seq: u64,
    /// When the last record was written.
    pub at: Option<Timestamp>,
    /// The boot in which the last record was written.
    pub boot: String,
    /// Kernel log cursor of that boot: the last log record whose events have been processed.
    pub kernel_seq: Option<u64>,
    /// Findings opened so far, by code.
    pub opened: BTreeMap<String, u64>,
}

impl DurableState {
    pub fn apply(&mut self, record: &JournalRecord) {
        if record.boot != self.boot {
            self.recovery_signals.clear();
        }
        if let Some(snapshot) = &record.snapshot {
            let findings = snapshot.findings.iter();
            self.open = findings.map(|finding| (finding.id, finding.clone())).collect();
            self.next_id = snapshot.next_id;
            self.stored_events = snapshot.stored_events.iter().cloned().collect();
            self.opened.clone_from(&snapshot.opened);
            self.recovery_signals.clear();
            self.set_recovery_signals(&snapshot.recovery_signals);
        }
        self.set_recovery_signals(&record.recovery_signals);
        for change in &record.changes {
            self.apply_change(change);
        }
        self.stored_events.extend(record.stored_events.iter().cloned());
        while self.stored_events.len() > STORED_EVENTS_MAX {
            self.stored_events.pop_front();
        }
        if record.boot != self.boot {
            self.kernel_seq = None;
            self.boot.clone_from(&record.boot);
        }
        self.kernel_seq = record.kernel_seq.or(self.kernel_seq);
        self.seq = record.seq;
        self.at = Some(record.at);
    }

    fn set_recovery_signals(&mut self, reports: &[RecoverySignal]) {
        let entry =
            |report: &RecoverySignal| ((report.subject.clone(), report.signal), report.value);
        self.recovery_signals.extend(reports.iter().map(entry));
    }

    fn recovery_signals(&self) -> Vec<RecoverySignal> {
        let reports = self.recovery_signals.iter().map(|((subject, signal), value)| {
            RecoverySignal { subject: subject.clone(), signal: *signal, value: *value }
        });
        reports.collect()
    }

    fn apply_change(&mut self, change: &Change) {
        let finding = change.finding();
        self.next_id = self.next_id.max(finding.id + 1);
        match change {
            Change::Opened(_) => {
                *self.opened.entry(finding.code.clone()).or_default() += 1;
                self.open.insert(finding.id, finding.clone());
            }
            Change::Updated(_) => drop(self.open.insert(finding.id, finding.clone())),
            Change::Cleared(_) => drop(self.open.remove(&finding.id)),
        }
    }

    /// The snapshot of this state. It replaces all earlier records.
    pub(super) fn snapshot(&self) -> JournalSnapshot {
        JournalSnapshot {
            findings: self.open.values().cloned().collect(),
            next_id: self.next_id,
            stored_events: self.stored_events.iter().cloned().collect(),
            opened: self.opened.clone(),
            recovery_signals: self.recovery_signals(),
        }
    }

    /// The state that the engine restores.
    pub fn saved(&self) -> EngineSnapshot {
        EngineSnapshot {
            findings: self.open.values().cloned().collect(),
            next_id: self.next_id,
            stored_events: self.stored_events.iter().cloned().collect(),
            recovery_signals: self.recovery_signals(),
            boot: self.boot.clone(),
        }
    }

    /// The kernel log cursor, if it belongs to the boot `boot`.
    pub fn kernel_cursor(&self, boot: &str) -> Option<u64> {
        self.kernel_seq.filter(|_| self.boot == boot)
    }
}
