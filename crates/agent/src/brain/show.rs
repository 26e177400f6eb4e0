//! What everybody else may see.

use std::collections::BTreeMap;
use std::sync::Arc;

use farrier_fleet::health::{Finding, Moment, Subject};

use super::{Brain, pending};
use crate::state::{JournalState, Shown, State, Values};

/// Ticks between two looks at what rules see; it changes seldom and is costly to gather.
const COVERAGE_TICKS: u64 = 10;

impl Brain {
    pub(super) fn publish(&mut self, now: Moment, tick: bool) {
        if tick {
            self.refresh();
        }
        let fold = self.journal.durable();
        let is_durable = |finding: &Finding| {
            fold.open.get(&finding.id).is_some_and(|kept| pending::says_the_same(kept, finding))
        };
        let findings = self.engine.findings();
        let findings = findings
            .map(|finding| Shown { finding: finding.clone(), durable: is_durable(finding) })
            .collect();
        let recovery = self.journal.recovery();
        self.published.set(State {
            at: now,
            hostname: self.place.hostname.clone(),
            boot: self.place.boot.clone(),
            started: self.started.wall,
            up_ms: now.steady_ms - self.started.steady_ms,
            findings,
            opened: fold.opened.clone(),
            values: Arc::clone(&self.shown_values),
            coverage: Arc::clone(&self.coverage),
            collectors: self.own.collectors(now),
            blind: self.own.blindness(now),
            unseen: self.unseen.clone(),
            journal: JournalState {
                seq: fold.seq,
                bytes: self.journal.bytes(),
                waiting: self.journal.waiting(),
                damaged_lines: recovery.damaged_lines,
                torn_bytes: recovery.torn_bytes,
            },
            kernel_records: self.kernel.records,
            cost: self.cost,
        });
    }

    /// Gathers what is large: once a tick, not with every finding.
    fn refresh(&mut self) {
        let mut latest: BTreeMap<Subject, Vec<_>> = BTreeMap::new();
        for (subject, signal, reading) in self.engine.latest() {
            match latest.get_mut(subject) {
                Some(values) => values.push((signal, reading.clone())),
                None => drop(latest.insert(subject.clone(), vec![(signal, reading.clone())])),
            }
        }
        self.values.gpus = self.engine.inventory().to_vec();
        self.shown_values = Arc::new(Values { latest, ..self.values.clone() });
        if self.ticks.is_multiple_of(COVERAGE_TICKS) {
            self.coverage = Arc::new(self.engine.coverage());
        }
        self.ticks += 1;
    }
}
