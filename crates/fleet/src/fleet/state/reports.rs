//! Reports from the agent of a node, and problems of the server with these reports.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::coverage::NodeCoverage;
use super::node::Node;
use super::sparse::{Empty, Sparse};
use crate::fleet::coverage::CoverageReport;
use crate::fleet::event::JournalPosition;
use crate::health::{Change, Finding};

static NO_FINDINGS: BTreeMap<u64, Finding> = BTreeMap::new();

/// Reports from the agent of a node.
///
/// If there are open findings, the journal record that they come from is also known.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Reports {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    journal: Option<Journal>,
    #[serde(default, skip_serializing_if = "Sparse::is_empty")]
    trouble: Sparse<ReportTrouble>,
    #[serde(default, skip_serializing_if = "NodeCoverage::is_unknown")]
    coverage: NodeCoverage,
}

/// The agent's journal of findings, as far as the server has received it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Journal {
    record: JournalPosition,
    findings: BTreeMap<u64, Finding>,
}

/// Problems with the reports, as opposed to problems that the reports are about.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct ReportTrouble {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    over_quota_since: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    unreadable_since: Option<Timestamp>,
}

impl Empty for ReportTrouble {
    const EMPTY: &'static Self = &Self { over_quota_since: None, unreadable_since: None };

    fn empty() -> Self {
        Self::default()
    }
}

impl Reports {
    pub(super) fn from_parts(
        record: Option<JournalPosition>,
        findings: BTreeMap<u64, Finding>,
        over_quota_since: Option<Timestamp>,
        unreadable_since: Option<Timestamp>,
    ) -> Self {
        // If the journal is unknown, an empty position is used. The agent's next report then has
        // all open findings, which replace these findings.
        let record = record.or_else(|| (!findings.is_empty()).then(JournalPosition::default));
        let journal = record.map(|record| Journal { record, findings });
        let trouble = ReportTrouble { over_quota_since, unreadable_since }.into();
        Self { journal, trouble, coverage: NodeCoverage::Unknown }
    }

    /// The last received record of the agent's journal.
    pub fn record(&self) -> Option<&JournalPosition> {
        self.journal.as_ref().map(|journal| &journal.record)
    }

    /// Whether the record was already applied.
    pub fn has(&self, record: &JournalPosition) -> bool {
        let last = self.record().filter(|last| last.journal == record.journal);
        last.is_some_and(|last| record.number <= last.number)
    }

    fn findings(&self) -> &BTreeMap<u64, Finding> {
        self.journal.as_ref().map_or(&NO_FINDINGS, |journal| &journal.findings)
    }

    pub fn over_quota_since(&self) -> Option<Timestamp> {
        self.trouble.over_quota_since
    }

    /// Since when the server cannot decode the node's findings.
    pub fn unreadable_since(&self) -> Option<Timestamp> {
        self.trouble.unreadable_since
    }

    pub fn coverage(&self) -> &NodeCoverage {
        &self.coverage
    }

    pub(super) fn replace_coverage(&mut self, report: &CoverageReport) {
        self.coverage.replace(report);
    }

    pub(super) fn extend_timeouts(&mut self, by_s: u32) {
        self.coverage.extend_timeouts(by_s);
    }

    /// Applies a record, unless it was already applied.
    pub(super) fn add(&mut self, record: &JournalPosition, changes: &[Change]) {
        if self.has(record) {
            return;
        }
        let mut findings = self.journal.take().map(|journal| journal.findings).unwrap_or_default();
        for finding in changes.iter().map(Change::finding) {
            if finding.is_open() {
                findings.insert(finding.id, finding.clone());
            } else {
                findings.remove(&finding.id);
            }
        }
        self.journal = Some(Journal { record: record.clone(), findings });
    }

    /// Replaces all open findings.
    pub(super) fn replace(&mut self, record: &JournalPosition, open: &[Finding]) {
        let findings = open.iter().map(|finding| (finding.id, finding.clone())).collect();
        self.journal = Some(Journal { record: record.clone(), findings });
    }

    pub(super) fn exceed_quota(&mut self, at: Timestamp) {
        self.trouble.change(|trouble| trouble.over_quota_since.get_or_insert(at).to_owned());
    }

    pub(super) fn keep_quota(&mut self) {
        self.trouble.change_present(|trouble| trouble.over_quota_since = None);
    }

    pub(super) fn become_unreadable(&mut self, at: Timestamp) {
        self.trouble.change(|trouble| trouble.unreadable_since.get_or_insert(at).to_owned());
    }

    pub(super) fn become_readable(&mut self) {
        self.trouble.change_present(|trouble| trouble.unreadable_since = None);
    }

    /// Adjusts to a clock that was set back: no recorded time may lie in the future.
    pub(super) fn step_back(&mut self, back: SignedDuration, now: Timestamp) {
        self.coverage.step_back(back, now);
        self.trouble.change_present(|trouble| {
            let times = [&mut trouble.over_quota_since, &mut trouble.unreadable_since];
            times.into_iter().flatten().for_each(|at| *at = (*at).min(now));
        });
    }
}

impl Node {
    /// The open findings that the agent reported, by number.
    pub fn findings(&self) -> &BTreeMap<u64, Finding> {
        self.reports.findings()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn a_record_is_applied_once() {
        let record = |number| JournalPosition { journal: "j".to_owned(), number };
        let mut reports = Reports::default();
        assert!(!reports.has(&record(0)) && reports.record().is_none());
        reports.add(&record(3), &[]);
        assert!(reports.has(&record(3)) && !reports.has(&record(4)));
        reports.add(&record(2), &[]);
        assert_eq!(reports.record(), Some(&record(3)));
        reports.replace(&JournalPosition { journal: "k".to_owned(), number: 1 }, &[]);
        assert!(!reports.has(&record(3)), "another journal counts for itself");
    }

    #[test]
    fn report_trouble_keeps_its_first_time_and_is_freed_afterwards() {
        let mut reports = Reports::default();
        reports.exceed_quota(at(5));
        reports.exceed_quota(at(6));
        reports.become_unreadable(at(7));
        assert_eq!(
            (reports.over_quota_since(), reports.unreadable_since()),
            (Some(at(5)), Some(at(7)))
        );
        reports.step_back(SignedDuration::from_secs(1), at(6));
        assert_eq!(
            (reports.over_quota_since(), reports.unreadable_since()),
            (Some(at(5)), Some(at(6)))
        );
        reports.keep_quota();
        reports.become_readable();
        assert_eq!(reports, Reports::default());
        assert!(reports.trouble.is_empty());
    }
}
