//! Publishes the agent's state for status, metrics and the uplink.

use std::sync::Arc;

use farrier_fleet::health::{Finding, Moment};

use super::gap_tracker::CoverageInputs;
use super::{HealthMonitor, pending};
use crate::coverage;
use crate::state::{JournalState, PublishedFinding, State, Values};

/// Number of ticks between two refreshes of coverage and resource usage, which are costly to
/// determine.
const REFRESH_TICKS: u64 = 10;

/// Coverage is refreshed in each of the first ticks, up to this number, because it changes until
/// every collector has reported.
const STARTUP_TICKS: u64 = 20;

impl HealthMonitor {
    pub(super) fn publish(&mut self, now: Moment, tick: bool) {
        if tick {
            self.refresh();
            self.track_gaps(now);
        }
        let durable = self.journal.durable();
        let is_durable = |finding: &Finding| {
            let stored = durable.open.get(&finding.id);
            stored.is_some_and(|stored| pending::is_mere_recurrence(stored, finding))
        };
        let findings = self.engine.findings();
        let findings = findings
            .map(|finding| PublishedFinding {
                finding: finding.clone(),
                durable: is_durable(finding),
            })
            .collect();
        let recovery = self.journal.recovery();
        let mut losses = self.self_monitor.coverage_losses(now);
        losses.extend(coverage::unread_gpus(&self.published_values));
        self.published.set(State {
            at: now,
            hostname: self.node.hostname.clone(),
            boot: self.node.boot.clone(),
            started: self.started.wall,
            up_ms: now.steady_ms - self.started.steady_ms,
            findings,
            opened: durable.opened.clone(),
            values: Arc::clone(&self.published_values),
            coverage: Arc::clone(&self.coverage),
            collectors: self.self_monitor.collectors(now),
            coverage_gaps: losses,
            gaps: self.gaps.clone(),
            skipped_checks: self.skipped_checks.clone(),
            journal: JournalState {
                seq: durable.seq,
                bytes: self.journal.bytes(),
                waiting: self.journal.waiting(),
                damaged_lines: recovery.damaged_lines,
                torn_bytes: recovery.torn_bytes,
            },
            kernel_records: self.kernel.records,
            cost: self.cost,
        });
    }

    fn track_gaps(&mut self, now: Moment) {
        let inputs = CoverageInputs {
            sources: self.self_monitor.unread_sources(),
            values: &self.published_values,
            rules: &self.coverage.gaps,
            collectors: &self.self_monitor.collectors(now),
            skipped: self.skipped_checks.as_deref().map(Vec::as_slice),
        };
        let up_ms = now.steady_ms - self.started.steady_ms;
        self.gaps = self.gap_tracker.update(&inputs, now.steady_ms, up_ms);
    }

    /// Refreshes the large fields of the published state. Runs once per tick, not with every
    /// finding.
    fn refresh(&mut self) {
        // As long as NVML does not answer, use the GPUs that were enumerated earlier in this boot.
        let listed = self.engine.inventory();
        let listed = if listed.is_empty() { self.inventory.gpus() } else { listed };
        self.values.gpus = listed.to_vec();
        self.values.delisted = self.inventory.delisted().to_vec();
        self.published_values =
            Arc::new(Values { latest: self.engine.latest().clone(), ..self.values.clone() });
        if self.ticks < STARTUP_TICKS || self.ticks.is_multiple_of(REFRESH_TICKS) {
            self.coverage = Arc::new(self.engine.coverage());
            let (cpu_us, rss_bytes) = self.clock.cost();
            (self.cost.cpu_us, self.cost.rss_bytes) = (cpu_us, rss_bytes);
        }
        self.ticks += 1;
    }
}
