//! The durable state, folded from the journal's records.

use std::collections::{BTreeMap, VecDeque};

use farrier_fleet::health::{Change, Finding, LastTold, Signal, Subject};
use jiff::Timestamp;

use super::record::{Record, Snapshot};
use farrier_fleet::health::{Remembered, Saved};

/// Maximum kernel events kept for rules that count past events. No rule counts so many.
const REMEMBERED_MAX: usize = 4096;

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Fold {
    /// The open findings, by id.
    pub open: BTreeMap<u64, Finding>,
    /// Id of the next finding.
    pub next_id: u64,
    /// Events that rules need after a restart.
    pub remembered: VecDeque<Remembered>,
    /// The driver's last recovery reports in this boot.
    pub recovery_reports: BTreeMap<(Subject, Signal), f64>,
    /// Sequence number of the last record.
    pub seq: u64,
    /// When the last record was written.
    pub at: Option<Timestamp>,
    /// The boot in which the last record was written.
    pub boot: String,
    /// Kernel log cursor of that boot.
    pub kernel_seq: Option<u64>,
    /// Findings opened so far, by code.
    pub opened: BTreeMap<String, u64>,
}

impl Fold {
    pub fn apply(&mut self, record: &Record) {
        if record.boot != self.boot {
            self.recovery_reports.clear();
        }
        if let Some(snapshot) = &record.snapshot {
            let findings = snapshot.findings.iter();
            self.open = findings.map(|finding| (finding.id, finding.clone())).collect();
            self.next_id = snapshot.next_id;
            self.remembered = snapshot.remembered.iter().cloned().collect();
            self.opened.clone_from(&snapshot.opened);
            self.recovery_reports.clear();
            self.set_recovery_reports(&snapshot.told);
        }
        self.set_recovery_reports(&record.told);
        for change in &record.changes {
            self.apply_change(change);
        }
        self.remembered.extend(record.remembered.iter().cloned());
        while self.remembered.len() > REMEMBERED_MAX {
            self.remembered.pop_front();
        }
        if record.boot != self.boot {
            self.kernel_seq = None;
            self.boot.clone_from(&record.boot);
        }
        self.kernel_seq = record.kernel_seq.or(self.kernel_seq);
        self.seq = record.seq;
        self.at = Some(record.at);
    }

    fn set_recovery_reports(&mut self, reports: &[LastTold]) {
        let entry = |report: &LastTold| ((report.subject.clone(), report.signal), report.value);
        self.recovery_reports.extend(reports.iter().map(entry));
    }

    fn recovery_reports(&self) -> Vec<LastTold> {
        let reports = self.recovery_reports.iter().map(|((subject, signal), value)| LastTold {
            subject: subject.clone(),
            signal: *signal,
            value: *value,
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

    /// The snapshot that replaces all earlier records.
    pub(super) fn snapshot(&self) -> Snapshot {
        Snapshot {
            findings: self.open.values().cloned().collect(),
            next_id: self.next_id,
            remembered: self.remembered.iter().cloned().collect(),
            opened: self.opened.clone(),
            told: self.recovery_reports(),
        }
    }

    /// The state that the engine restores.
    pub fn saved(&self) -> Saved {
        Saved {
            findings: self.open.values().cloned().collect(),
            next_id: self.next_id,
            remembered: self.remembered.iter().cloned().collect(),
            told: self.recovery_reports(),
            boot: self.boot.clone(),
        }
    }

    /// The kernel log cursor, if it belongs to the boot `boot`.
    pub fn kernel_cursor(&self, boot: &str) -> Option<u64> {
        self.kernel_seq.filter(|_| self.boot == boot)
    }
}
