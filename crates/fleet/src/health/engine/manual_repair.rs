//! Manual repairs: clears findings that only a person can repair, and resets counters.

use jiff::Timestamp;

use super::super::finding::Change;
use super::super::observation::Moment;
use super::finding_store::FindingKey;
use super::{Engine, watch};

impl Engine {
    /// Clears findings that opened or happened up to `at` and waited for a replacement, and stops
    /// counting events up to `at`. If a fault persists, a new finding opens.
    ///
    /// Idempotent: if the same repair is applied twice, anything that happened after the repair
    /// stays unchanged.
    pub fn apply_manual_repair(
        &mut self,
        at: Timestamp,
        description: &str,
        now: Moment,
    ) -> Vec<Change> {
        for key in self.awaiting_replacement(at) {
            if let Some(rule_index) = self.rules.iter().position(|rule| rule.code == key.code)
                && let Some(subject) = self.table.find(&key.subject)
            {
                // The window contains values from before the repair, so discard it.
                self.watches[rule_index].remove(&subject);
            }
            self.store.clear(&key, &format!("manually repaired: {description}"), now);
        }
        let ago_ms = i64::try_from(now.wall.duration_since(at).as_millis()).unwrap_or(i64::MAX / 2);
        for counter in self.event_counters.values_mut() {
            counter.drop_until(now.steady_ms.saturating_sub(ago_ms));
        }
        self.store.take_changes()
    }

    fn awaiting_replacement(&self, at: Timestamp) -> Vec<FindingKey> {
        let open = self.store.iter().filter(|(key, open)| {
            let finding = &open.finding;
            self.rules.get(&key.code).is_some_and(|rule| {
                // A finding of an event counts as repaired unless the event happened again after
                // the repair. A rule over values matches with every reading, so its first match
                // decides whether the fault is older than the repair. If the value is still wrong,
                // a new finding opens.
                let last = if rule.on.is_some() { finding.last_seen } else { finding.first_seen };
                last <= at && watch::waits_for_replacement(rule, finding.rule_action)
            })
        });
        open.map(|(key, _)| key.clone()).collect()
    }
}
