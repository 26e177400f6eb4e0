//! Manual repairs: clears findings that only a person can repair, and resets counters.

use jiff::Timestamp;

use super::super::finding::Change;
use super::super::observation::Moment;
use super::ledger::Key;
use super::{Engine, watch};

impl Engine {
    /// Clears findings that waited for a part until then, and stops counting earlier events. A
    /// fault that persists opens again.
    ///
    /// Idempotent: applying the same repair twice keeps everything that happened after it.
    pub fn repaired(&mut self, at: Timestamp, what: &str, now: Moment) -> Vec<Change> {
        for key in self.waits_for_a_part(at) {
            if let Some(place) = self.rules.iter().position(|rule| rule.code == key.code)
                && let Some(subject) = self.table.find(&key.subject)
            {
                // The window belongs to the part before the repair.
                self.watches[place].remove(&subject);
            }
            self.ledger.clear(&key, &format!("a person has repaired it: {what}"), now);
        }
        let ago_ms = i64::try_from(now.wall.duration_since(at).as_millis()).unwrap_or(i64::MAX / 2);
        for counted in self.counted.values_mut() {
            counted.forget_until(now.steady_ms.saturating_sub(ago_ms));
        }
        self.ledger.take_changes()
    }

    fn waits_for_a_part(&self, at: Timestamp) -> Vec<Key> {
        let open = self.ledger.iter().filter(|(key, open)| {
            let finding = &open.finding;
            self.rules.get(&key.code).is_some_and(|rule| {
                // An event is over unless it recurred. A value matches all the time, and opens
                // again if it still does.
                let last = if rule.on.is_some() { finding.last_seen } else { finding.first_seen };
                last <= at && watch::waits_for_replacement(rule, finding.rule_action)
            })
        });
        open.map(|(key, _)| key.clone()).collect()
    }
}
