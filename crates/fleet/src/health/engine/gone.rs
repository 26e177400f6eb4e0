//! Clears findings of parts that were replaced or removed while the node was off: their subject
//! never returns.

use farrier_facts::node::Reading;

use super::super::observation::{Moment, Subject};
use super::super::signal::Signal;
use super::Engine;
use super::ledger::Key;

/// A part not seen for this long after a reboot has left the node. Every collector has reported
/// many times by then.
const GONE_AFTER_MS: i64 = 600_000;

impl Engine {
    /// Value-based findings about parts other than GPUs, for which there is no inventory.
    pub(super) fn may_be_gone(&self) -> Vec<Key> {
        let of_values = |key: &&Key| {
            let is_of_values = self.rules.get(&key.code).is_some_and(|it| !it.when.is_empty());
            is_of_values && key.subject.gpu().is_none()
        };
        self.ledger.iter().map(|(key, _)| key).filter(of_values).cloned().collect()
    }

    pub(super) fn notice_gone(&mut self, now: Moment) {
        self.notice_gone_gpus(now);
        let due = |since: i64| now.steady_ms - since >= GONE_AFTER_MS;
        let Some((_, keys)) = self.unseen.take_if(|(since, _)| due(*since)) else { return };
        for key in keys.iter().filter(|key| self.table.find(&key.subject).is_none()) {
            self.ledger.clear(key, "it has not been in the node since the reboot", now);
        }
    }

    /// Clears findings of removed GPUs, but only if NVML lists every GPU in the node: an unlisted
    /// one may be the faulty one. GPUs are not swapped while the node runs, so findings of this
    /// boot stay.
    fn notice_gone_gpus(&mut self, now: Moment) {
        let listed = self.table.inventory();
        let is_gone = |subject: &Subject| {
            subject.gpu().is_some_and(|gpu| !listed.iter().any(|it| it.uuid == *gpu))
        };
        let of_gone = self.ledger.iter().filter(|(key, _)| is_gone(&key.subject));
        let keys: Vec<Key> = of_gone
            .filter(|(_, open)| !open.is_of_this_boot())
            .map(|(key, _)| key.clone())
            .collect();
        if keys.is_empty() || !self.lists_every_gpu() {
            return;
        }
        for key in keys {
            self.ledger.clear(&key, "the GPU was replaced, or is no longer in the node", now);
        }
    }

    /// Whether NVML opened every GPU on the bus, and the bus has as many as expected.
    fn lists_every_gpu(&self) -> bool {
        let Some(node) = self.table.find(&Subject::Node) else { return false };
        let value = |signal| match self.table.latest(node, signal) {
            Some(Reading::Value(value)) => Some(super::whole(*value) as usize),
            _ => None,
        };
        let listed = self.table.inventory().len();
        let (on_bus, expected) = (value(Signal::NodeGpusPci), value(Signal::NodeGpusExpected));
        matches!((on_bus, expected), (Some(on_bus), Some(expected)) if listed > 0 && listed >= on_bus && on_bus >= expected)
    }
}
