//! Counts repeated events.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use farrier_facts::decode;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::super::finding::Severity;
use super::super::observation::{Moment, Subject};
use super::super::rule::{EventPattern, Same};

/// An event as stored in the journal, so that repeats are recognised after a restart or a reboot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Remembered {
    /// The event's code, such as `xid.79`.
    pub code: String,
    pub kind: decode::Kind,
    pub subject: Subject,
    /// The GPU unit that the line named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<String>,
    pub severity: Severity,
    pub at: Timestamp,
    pub boot: String,
}

impl Remembered {
    pub(super) fn is_meant_by(&self, pattern: &EventPattern) -> bool {
        (pattern.kinds.is_empty() || pattern.kinds.contains(&self.kind))
            && (pattern.codes.is_empty() || pattern.codes.contains(&self.code))
            && pattern.severity.is_none_or(|least| self.severity >= least)
            && (pattern.same != Same::Unit || self.unit.is_some())
    }

    /// The group that it counts in.
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

/// Occurrences kept per group: more than any rule counts to.
const OCCURRENCES_MAX: usize = 64;
/// Groups kept per rule: a node has some dozen devices.
const GROUPS_MAX: usize = 512;

#[derive(Debug, Clone)]
struct Occurrence {
    at_ms: i64,
    subject: Subject,
    boot: String,
}

/// Occurrences that one rule has counted.
#[derive(Debug, Default)]
pub(super) struct Counted {
    groups: BTreeMap<(Subject, String), VecDeque<Occurrence>>,
}

impl Counted {
    /// Drops occurrences up to that time.
    pub(super) fn forget_until(&mut self, until_ms: i64) {
        self.groups.retain(|_, seen| {
            seen.retain(|it| it.at_ms > until_ms);
            !seen.is_empty()
        });
    }

    /// Counts the event. Returns whether it completes the pattern and is more than the continuation
    /// of a burst.
    pub(super) fn count(&mut self, pattern: &EventPattern, event: &Remembered, at: Moment) -> bool {
        if self.groups.len() >= GROUPS_MAX {
            let oldest = self.groups.iter().min_by_key(|(_, seen)| seen.back().map(|it| it.at_ms));
            if let Some(key) = oldest.map(|(key, _)| key.clone()) {
                self.groups.remove(&key);
            }
        }
        let seen = self.groups.entry(event.group(pattern.same)).or_default();
        let merge_ms = i64::from(pattern.merge_s) * 1000;
        let burst = seen.iter_mut().rev().find(|it| {
            it.subject == event.subject
                && it.boot == event.boot
                && at.steady_ms - it.at_ms <= merge_ms
        });
        let continues = match burst {
            Some(burst) if merge_ms > 0 => {
                burst.at_ms = burst.at_ms.max(at.steady_ms);
                true
            }
            _ => {
                let (subject, boot) = (event.subject.clone(), event.boot.clone());
                seen.push_back(Occurrence { at_ms: at.steady_ms, subject, boot });
                false
            }
        };
        let oldest_ms = at.steady_ms - i64::from(pattern.within_s) * 1000;
        seen.retain(|it| it.at_ms >= oldest_ms);
        while seen.len() > OCCURRENCES_MAX {
            seen.pop_front();
        }
        let distinct = |count: usize, wanted: u32| count >= wanted as usize;
        let subjects: BTreeSet<&Subject> = seen.iter().map(|it| &it.subject).collect();
        let boots: BTreeSet<&str> = seen.iter().map(|it| it.boot.as_str()).collect();
        !continues
            && distinct(seen.len(), pattern.times)
            && distinct(subjects.len(), pattern.distinct_subjects)
            && distinct(boots.len(), pattern.distinct_boots)
    }
}
