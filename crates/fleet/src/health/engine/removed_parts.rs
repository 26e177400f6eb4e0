//! Clears findings about components that were replaced or removed while the node was off. The
//! subject of such a finding never returns.

use farrier_facts::node::Reading;

use super::super::observation::{Moment, Subject};
use super::super::signal::Signal;
use super::Engine;
use super::finding_store::FindingKey;

/// A component that is not detected for this long after a reboot counts as removed. Every collector
/// reports many times within this period.
const REMOVED_AFTER_MS: i64 = 600_000;

impl Engine {
    /// Findings about components other than GPUs, from rules over values. No inventory shows
    /// whether these components still exist.
    pub(super) fn findings_to_recheck(&self) -> Vec<FindingKey> {
        let is_candidate = |key: &&FindingKey| {
            let has_clauses = self.rules.get(&key.code).is_some_and(|rule| !rule.when.is_empty());
            has_clauses && key.subject.gpu().is_none()
        };
        self.store.iter().map(|(key, _)| key).filter(is_candidate).cloned().collect()
    }

    pub(super) fn clear_removed_parts(&mut self, now: Moment) {
        self.clear_removed_gpus(now);
        let due = |since: i64| now.steady_ms - since >= REMOVED_AFTER_MS;
        let Some((_, keys)) = self.awaiting_rediscovery.take_if(|(since, _)| due(*since)) else {
            return;
        };
        for key in keys.iter().filter(|key| self.table.find(&key.subject).is_none()) {
            self.store.clear(key, "the component has not been detected since the reboot", now);
        }
    }

    /// Clears findings about removed GPUs, but only if NVML lists every GPU in the node. Otherwise
    /// the GPU that is not listed may be the faulty one. GPUs are not swapped while the node runs,
    /// so findings of this boot stay open.
    fn clear_removed_gpus(&mut self, now: Moment) {
        let listed = self.table.inventory();
        let is_removed = |subject: &Subject| {
            subject.gpu().is_some_and(|gpu| !listed.iter().any(|identity| identity.uuid == *gpu))
        };
        let removed = self.store.iter().filter(|(key, _)| is_removed(&key.subject));
        let keys: Vec<FindingKey> = removed
            .filter(|(_, open)| !open.occurred_this_boot())
            .map(|(key, _)| key.clone())
            .collect();
        if keys.is_empty() || !self.lists_every_gpu() {
            return;
        }
        for key in keys {
            self.store.clear(&key, "the GPU was replaced, or is no longer in the node", now);
        }
    }

    /// Whether NVML opened every GPU on the bus, and the bus has at least as many GPUs as expected.
    fn lists_every_gpu(&self) -> bool {
        let Some(node) = self.table.find(&Subject::Node) else { return false };
        let value = |signal| match self.table.latest(node, signal) {
            Some(Reading::Value(value)) => Some(super::to_u32(*value) as usize),
            _ => None,
        };
        let listed = self.table.inventory().len();
        let (on_bus, expected) = (value(Signal::NodeGpusPci), value(Signal::NodeGpusExpected));
        matches!((on_bus, expected), (Some(on_bus), Some(expected)) if listed > 0 && listed >= on_bus && on_bus >= expected)
    }
}
