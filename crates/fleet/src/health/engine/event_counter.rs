//! Counts repeated events.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use farrier_facts::decode;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::super::finding::Severity;
use super::super::observation::{Moment, Subject};
use super::super::rule::{EventPattern, Same};

/// An event as the journal stores it. The agent recognises repeats of the event even after a
/// restart or a reboot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoredEvent {
    /// Code of the event, such as `xid.79`.
    pub code: String,
    pub kind: decode::Kind,
    pub subject: Subject,
    /// The GPU unit that the log line names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<String>,
    pub severity: Severity,
    pub at: Timestamp,
    pub boot: String,
}

impl StoredEvent {
    pub(super) fn matches_pattern(&self, pattern: &EventPattern) -> bool {
        pattern.matches(self.kind, &self.code, self.severity, self.unit.is_some())
    }

    /// The group of the event. A rule counts events of the same group together.
    pub(super) fn group(&self, same: Same) -> (Subject, String) {
        match same {
            Same::Code => (self.subject.clone(), self.code.clone()),
            Same::Subject => (self.subject.clone(), String::new()),
            Same::Unit => (
                self.subject.clone(),
                format!("{} {}", self.code, self.unit.as_deref().unwrap_or_default()),
            ),
            Same::NodeCode => (Subject::Node, self.code.clone()),
        }
    }
}

/// Maximum number of occurrences per group. No rule needs a higher count.
const OCCURRENCES_MAX: usize = 64;
/// Maximum number of groups per rule. A node has some dozen devices.
const GROUPS_MAX: usize = 512;

#[derive(Debug, Clone)]
struct Occurrence {
    at_ms: i64,
    subject: Subject,
    boot: String,
}

/// Recent occurrences of the events of one rule, by group.
#[derive(Debug, Default)]
pub(super) struct EventCounter {
    groups: BTreeMap<(Subject, String), VecDeque<Occurrence>>,
}

impl EventCounter {
    /// Drops the occurrences up to and including `until_ms`.
    pub(super) fn drop_until(&mut self, until_ms: i64) {
        self.groups.retain(|_, occurrences| {
            occurrences.retain(|occurrence| occurrence.at_ms > until_ms);
            !occurrences.is_empty()
        });
    }

    /// Counts the event. Returns `true` if the event completes the pattern. An event that only
    /// continues a burst returns `false`.
    pub(super) fn count(
        &mut self,
        pattern: &EventPattern,
        event: &StoredEvent,
        at: Moment,
    ) -> bool {
        if self.groups.len() >= GROUPS_MAX {
            let last_ms =
                |occurrences: &VecDeque<Occurrence>| occurrences.back().map(|last| last.at_ms);
            let oldest = self.groups.iter().min_by_key(|(_, occurrences)| last_ms(occurrences));
            if let Some(key) = oldest.map(|(key, _)| key.clone()) {
                self.groups.remove(&key);
            }
        }
        let occurrences = self.groups.entry(event.group(pattern.same)).or_default();
        let merge_ms = i64::from(pattern.merge_s) * 1000;
        let burst = occurrences.iter_mut().rev().find(|earlier| {
            earlier.subject == event.subject
                && earlier.boot == event.boot
                && at.steady_ms - earlier.at_ms <= merge_ms
        });
        let continues_burst = match burst {
            Some(burst) if merge_ms > 0 => {
                burst.at_ms = burst.at_ms.max(at.steady_ms);
                true
            }
            _ => {
                let (subject, boot) = (event.subject.clone(), event.boot.clone());
                occurrences.push_back(Occurrence { at_ms: at.steady_ms, subject, boot });
                false
            }
        };
        let oldest_ms = at.steady_ms - i64::from(pattern.within_s) * 1000;
        occurrences.retain(|occurrence| occurrence.at_ms >= oldest_ms);
        while occurrences.len() > OCCURRENCES_MAX {
            occurrences.pop_front();
        }
        let reaches = |count: usize, minimum: u32| count >= minimum as usize;
        let subjects: BTreeSet<&Subject> =
            occurrences.iter().map(|occurrence| &occurrence.subject).collect();
        let boots: BTreeSet<&str> =
            occurrences.iter().map(|occurrence| occurrence.boot.as_str()).collect();
        !continues_burst
            && reaches(occurrences.len(), pattern.times)
            && reaches(subjects.len(), pattern.distinct_subjects)
            && reaches(boots.len(), pattern.distinct_boots)
    }
}
