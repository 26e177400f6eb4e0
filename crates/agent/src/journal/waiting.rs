//! Records not yet on disk. While writes fail they are merged, so that memory is bounded.

use std::collections::BTreeMap;

use farrier_fleet::health::{Change, LastTold};

use super::record::Record;

/// Maximum records before they are merged.
const RECORDS_MAX: usize = 1000;

/// Maximum size of a merged record: far below a reader's line limit.
const PIECE_BYTES: usize = 1 << 20;

/// Maximum waiting changes. Beyond it, findings that opened and cleared meanwhile are dropped.
const CHANGES_MAX: usize = 20_000;

#[derive(Debug, Default)]
pub(super) struct Waiting {
    records: Vec<Record>,
}

impl Waiting {
    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Record> {
        self.records.iter()
    }

    pub(super) fn take(&mut self) -> Vec<Record> {
        std::mem::take(&mut self.records)
    }

    pub(super) fn push(&mut self, record: Record) {
        self.records.push(record);
        if self.records.len() > RECORDS_MAX {
            self.merge();
        }
    }

    /// Merges all records into one, or a few if the line would be very long. Keeps every opening
    /// and clearing, and the last update of each finding.
    fn merge(&mut self) {
        let Some(mut merged) = self.records.pop() else { return };
        let mut changes = Vec::new();
        let mut remembered = Vec::new();
        let mut told: BTreeMap<_, LastTold> = BTreeMap::new();
        let key = |it: &LastTold| (it.subject.clone(), it.signal);
        for record in self.records.drain(..) {
            changes.extend(record.changes);
            remembered.extend(record.remembered);
            // The driver's reports of another boot do not apply to this one.
            if record.boot == merged.boot {
                told.extend(record.told.into_iter().map(|it| (key(&it), it)));
            }
        }
        changes.append(&mut merged.changes);
        remembered.append(&mut merged.remembered);
        told.extend(merged.told.drain(..).map(|it| (key(&it), it)));
        merged.told = told.into_values().collect();
        merged.changes = bounded(last_updates(changes));
        merged.remembered = remembered.split_off(remembered.len().saturating_sub(CHANGES_MAX));
        self.records = pieces(merged);
    }
}

/// Splits a record. The pieces reuse sequence numbers of the merged records, of which there are far
/// more. Only the last piece has the kernel log cursor: after a partial write the log is read again
/// rather than a line missed.
fn pieces(whole: Record) -> Vec<Record> {
    let bare = Record {
        kernel_seq: None,
        snapshot: None,
        changes: Vec::new(),
        remembered: Vec::new(),
        told: Vec::new(),
        boot: whole.boot.clone(),
        ..whole
    };
    let mut pieces = vec![bare.clone()];
    let mut bytes = 0;
    let mut room = |pieces: &mut Vec<Record>, more: usize| {
        if bytes > 0 && bytes + more > PIECE_BYTES {
            pieces.push(bare.clone());
            bytes = 0;
        }
        bytes += more;
    };
    for change in whole.changes {
        room(&mut pieces, length(&change));
        if let Some(last) = pieces.last_mut() {
            last.changes.push(change);
        }
    }
    for remembered in whole.remembered {
        room(&mut pieces, length(&remembered));
        if let Some(last) = pieces.last_mut() {
            last.remembered.push(remembered);
        }
    }
    for (back, piece) in pieces.iter_mut().rev().enumerate() {
        piece.seq = whole.seq - back as u64;
    }
    if let Some(last) = pieces.last_mut() {
        last.kernel_seq = whole.kernel_seq;
        last.told = whole.told;
    }
    pieces
}

fn length(part: &impl serde::Serialize) -> usize {
    serde_json::to_vec(part).map_or(0, |bytes| bytes.len())
}

fn last_updates(changes: Vec<Change>) -> Vec<Change> {
    let mut last: BTreeMap<u64, usize> = BTreeMap::new();
    for (at, change) in changes.iter().enumerate() {
        last.insert(change.finding().id, at);
    }
    let keep = |at: usize, change: &Change| !matches!(change, Change::Updated(finding) if last.get(&finding.id) != Some(&at));
    let numbered = changes.into_iter().enumerate();
    numbered.filter(|(at, change)| keep(*at, change)).map(|(_, change)| change).collect()
}

/// Drops findings that both opened and cleared while writes failed, oldest first.
fn bounded(changes: Vec<Change>) -> Vec<Change> {
    let mut excess = changes.len().saturating_sub(CHANGES_MAX);
    if excess == 0 {
        return changes;
    }
    let mut opened = std::collections::BTreeSet::new();
    let mut gone = std::collections::BTreeSet::new();
    for change in &changes {
        match change {
            Change::Opened(finding) => drop(opened.insert(finding.id)),
            Change::Cleared(finding) if excess > 0 && opened.contains(&finding.id) => {
                gone.insert(finding.id);
                excess = excess.saturating_sub(2);
            }
            Change::Cleared(_) | Change::Updated(_) => (),
        }
    }
    let lost = gone.len();
    tracing::error!(lost, "findings that came and went while the disk took nothing are lost");
    changes.into_iter().filter(|change| !gone.contains(&change.finding().id)).collect()
}
