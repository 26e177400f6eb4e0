//! Publishes snapshots for status, metrics and the uplink.

use std::sync::Arc;

use farrier_fleet::health::{Finding, Moment};

use super::{HealthMonitor, pending};
use crate::sight;
use crate::state::{JournalState, Shown, State, Values};

/// Ticks between two refreshes of coverage and resource usage. Both are costly to gather.
const SELDOM_TICKS: u64 = 10;

/// Refresh with every tick at first: coverage changes until each collector has reported.
const FIRST_TICKS: u64 = 20;

impl HealthMonitor {
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
        let mut blind = self.own.blindness(now);
        blind.extend(sight::unseen_gpus(&self.shown_values));
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
            blind,
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

    /// Refreshes the large parts of the snapshot. Runs once a tick, not with every finding.
    fn refresh(&mut self) {
        // Until NVML answers, use the GPUs seen earlier in this boot.
        let known = self.engine.inventory();
        let known = if known.is_empty() { self.inventory.gpus() } else { known };
        self.values.gpus = known.to_vec();
        self.values.gone = self.inventory.gone().to_vec();
        self.shown_values =
            Arc::new(Values { latest: self.engine.latest().clone(), ..self.values.clone() });
        if self.ticks < FIRST_TICKS || self.ticks.is_multiple_of(SELDOM_TICKS) {
            self.coverage = Arc::new(self.engine.coverage());
            let (cpu_us, rss_bytes) = self.clock.cost();
            (self.cost.cpu_us, self.cost.rss_bytes) = (cpu_us, rss_bytes);
        }
        self.ticks += 1;
    }
}
