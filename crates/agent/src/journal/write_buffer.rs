//! Records that wait to be written. While writes fail, the records are merged, so that memory use
//! is limited.

use std::collections::BTreeMap;

use farrier_fleet::health::{Change, RecoverySignal};

use super::record::JournalRecord;

/// Maximum number of waiting records. If there are more, they are merged.
const RECORDS_MAX: usize = 1000;

/// Maximum size of a merged record. It is far below the limit that readers have for a line.
const PIECE_BYTES: usize = 1 << 20;

/// Maximum number of waiting changes. If there are more, findings that both opened and cleared
/// while writes failed are dropped.
const CHANGES_MAX: usize = 20_000;

#[derive(Debug, Default)]
pub(super) struct WriteBuffer {
    records: Vec<JournalRecord>,
}

impl WriteBuffer {
    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &JournalRecord> {
        self.records.iter()
    }

    pub(super) fn take(&mut self) -> Vec<JournalRecord> {
        std::mem::take(&mut self.records)
    }

    pub(super) fn push(&mut self, record: JournalRecord) {
        self.records.push(record);
        if self.records.len() > RECORDS_MAX {
            self.merge();
        }
    }

    /// Merges all records into one record, or into a few if the line would be very long. Keeps
    /// every opening, every clearing, and the last update of each finding.
    fn merge(&mut self) {
        let Some(mut merged) = self.records.pop() else { return };
        let mut changes = Vec::new();
        let mut stored_events = Vec::new();
        let mut reports: BTreeMap<_, RecoverySignal> = BTreeMap::new();
        let key = |report: &RecoverySignal| (report.subject.clone(), report.signal);
        for record in self.records.drain(..) {
            changes.extend(record.changes);
            stored_events.extend(record.stored_events);
            // Recovery signals from another boot do not apply to this boot.
            if record.boot == merged.boot {
                reports.extend(
                    record.recovery_signals.into_iter().map(|report| (key(&report), report)),
                );
            }
        }
        changes.append(&mut merged.changes);
        stored_events.append(&mut merged.stored_events);
        reports.extend(merged.recovery_signals.drain(..).map(|report| (key(&report), report)));
        merged.recovery_signals = reports.into_values().collect();
        merged.changes = drop_excess(without_superseded_updates(changes));
        merged.stored_events =
            stored_events.split_off(stored_events.len().saturating_sub(CHANGES_MAX));
        self.records = split(merged);
    }
}

/// Splits a merged record into pieces below the size limit. The pieces reuse the sequence numbers
/// of the merged records. There are always enough numbers, because there are far more merged
/// records than pieces. Only the last piece has the kernel log cursor. If only some pieces are on
/// disk after a crash, the agent therefore reads log lines twice, and misses none.
fn split(whole: JournalRecord) -> Vec<JournalRecord> {
    let empty = JournalRecord {
        kernel_seq: None,
        snapshot: None,
        changes: Vec::new(),
        stored_events: Vec::new(),
        recovery_signals: Vec::new(),
        boot: whole.boot.clone(),
        ..whole
    };
    let mut pieces = vec![empty.clone()];
    let mut bytes = 0;
    let mut make_room = |pieces: &mut Vec<JournalRecord>, more: usize| {
        if bytes > 0 && bytes + more > PIECE_BYTES {
            pieces.push(empty.clone());
            bytes = 0;
        }
        bytes += more;
    };
    for change in whole.changes {
        make_room(&mut pieces, encoded_bytes(&change));
        if let Some(last) = pieces.last_mut() {
            last.changes.push(change);
        }
    }
    for stored_event in whole.stored_events {
        make_room(&mut pieces, encoded_bytes(&stored_event));
        if let Some(last) = pieces.last_mut() {
            last.stored_events.push(stored_event);
        }
    }
    for (back, piece) in pieces.iter_mut().rev().enumerate() {
        piece.seq = whole.seq - back as u64;
    }
    if let Some(last) = pieces.last_mut() {
        last.kernel_seq = whole.kernel_seq;
        last.recovery_signals = whole.recovery_signals;
    }
    pieces
}

fn encoded_bytes(value: &impl serde::Serialize) -> usize {
    serde_json::to_vec(value).map_or(0, |bytes| bytes.len())
}

fn without_superseded_updates(changes: Vec<Change>) -> Vec<Change> {
    let mut last: BTreeMap<u64, usize> = BTreeMap::new();
    for (index, change) in changes.iter().enumerate() {
        last.insert(change.finding().id, index);
    }
    let keep = |index: usize, change: &Change| !matches!(change, Change::Updated(finding) if last.get(&finding.id) != Some(&index));
    let numbered = changes.into_iter().enumerate();
    numbered.filter(|(index, change)| keep(*index, change)).map(|(_, change)| change).collect()
}

/// Drops findings that both opened and cleared while writes failed, oldest first.
fn drop_excess(changes: Vec<Change>) -> Vec<Change> {
    let mut excess = changes.len().saturating_sub(CHANGES_MAX);
    if excess == 0 {
        return changes;
    }
    let mut opened = std::collections::BTreeSet::new();
    let mut dropped = std::collections::BTreeSet::new();
    for change in &changes {
        match change {
            Change::Opened(finding) => drop(opened.insert(finding.id)),
            Change::Cleared(finding) if excess > 0 && opened.contains(&finding.id) => {
                dropped.insert(finding.id);
                excess = excess.saturating_sub(2);
            }
            Change::Cleared(_) | Change::Updated(_) => (),
        }
    }
    let count = dropped.len();
    tracing::error!(count, "dropped findings that opened and cleared while writes failed");
    changes.into_iter().filter(|change| !dropped.contains(&change.finding().id)).collect()
}
