//! The history of one node, as segments in which its class does not change. A lost heartbeat is
//! noticed late. The time since the last heartbeat is then marked as unobserved, so segments are
//! counted only when the history ends.

use std::ops::Range;
use std::sync::Arc;

use super::classify::{LossReason, NodeClass};

/// A period in which nothing changed. It ends where the next segment begins.
#[derive(Debug, Clone)]
pub(super) struct TimelineSegment {
    pub(super) since_ms: i64,
    pub(super) class: Arc<NodeClass>,
    /// How many GPUs the node has. `None` before its first inventory.
    pub(super) gpus: Option<u64>,
    /// Why the server had no observation of the node in this time. GPU-time that would otherwise
    /// count as available is then unknown.
    pub(super) unobserved: Option<Arc<LossReason>>,
}

/// Segments in order of time, without gaps. The last one is open.
#[derive(Debug, Default)]
pub(super) struct Timeline(Vec<TimelineSegment>);

impl Timeline {
    pub(super) fn class(&self) -> Option<&Arc<NodeClass>> {
        self.last().map(|segment| &segment.class)
    }

    pub(super) fn last(&self) -> Option<&TimelineSegment> {
        self.0.last()
    }

    /// Forgets the time from `begin_ms` on, because the clock was wrong. The present state counts
    /// from `begin_ms` on.
    pub(super) fn take_back(&mut self, begin_ms: i64) {
        if let Some(last) = self.0.pop() {
            self.0.retain(|segment| segment.since_ms < begin_ms);
            self.0.push(TimelineSegment { since_ms: last.since_ms.min(begin_ms), ..last });
        }
    }

    /// Begins a segment, if anything changed.
    pub(super) fn change(&mut self, at_ms: i64, class: NodeClass, gpus: Option<u64>) {
        match self.0.last_mut() {
            Some(last) if *last.class == class && last.gpus == gpus => {}
            // Of several entries with the same time, only the last one counts.
            Some(last) if last.since_ms == at_ms => {
                (last.class, last.gpus) = (Arc::new(class), gpus);
            }
            _ => {
                let class = Arc::new(class);
                self.0.push(TimelineSegment { since_ms: at_ms, class, gpus, unobserved: None });
            }
        }
    }

    /// Marks this time, which ends now, as time without any observation of the node.
    pub(super) fn mark_unobserved(&mut self, time: Range<i64>, why: &Arc<LossReason>) {
        if time.is_empty() {
            return;
        }
        let first = self.0.partition_point(|segment| segment.since_ms < time.start);
        let mut marked = Vec::new();
        if let Some(before) = first.checked_sub(1).and_then(|index| self.0.get(index)) {
            marked.push(TimelineSegment { since_ms: time.start, ..before.clone() });
        }
        marked.extend(self.0.drain(first..));
        let last = marked.last().map(|last| TimelineSegment {
            since_ms: time.end,
            unobserved: None,
            ..last.clone()
        });
        for segment in &mut marked {
            segment.unobserved.get_or_insert_with(|| Arc::clone(why));
        }
        self.0.extend(marked.into_iter().filter(|segment| segment.since_ms < time.end));
        self.0.extend(last);
    }

    /// The segments, each with its end.
    pub(super) fn segments(
        &self,
        end_ms: i64,
    ) -> impl Iterator<Item = (&TimelineSegment, Range<i64>)> {
        let ends = self.0.iter().skip(1).map(|next| next.since_ms).chain([end_ms]);
        self.0.iter().zip(ends).map(|(segment, end)| (segment, segment.since_ms..end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(name: &str) -> NodeClass {
        let pool = "train".parse().unwrap();
        NodeClass { pool, driver: Some(name.to_owned()), observed: false, groups: Vec::new() }
    }

    fn shown(timeline: &Timeline, end_ms: i64) -> Vec<(String, Range<i64>, bool)> {
        let shown = timeline.segments(end_ms).map(|(segment, time)| {
            (segment.class.driver.clone().unwrap(), time, segment.unobserved.is_some())
        });
        shown.collect()
    }

    #[test]
    fn what_was_known_since_the_last_heartbeat_is_taken_back() {
        let mut timeline = Timeline::default();
        for (at, name) in [(0, "a"), (10, "b"), (20, "c")] {
            timeline.change(at, class(name), Some(1));
        }
        timeline.mark_unobserved(5..30, &LossReason::from_code("heartbeat-lost"));
        let a_to_c = [
            ("a".to_owned(), 0..5, false),
            ("a".to_owned(), 5..10, true),
            ("b".to_owned(), 10..20, true),
            ("c".to_owned(), 20..30, true),
            ("c".to_owned(), 30..40, false),
        ];
        assert_eq!(shown(&timeline, 40), a_to_c);
    }

    #[test]
    fn a_silence_from_before_the_enrolment_begins_with_it() {
        let mut timeline = Timeline::default();
        timeline.change(10, class("a"), None);
        timeline.mark_unobserved(5..20, &LossReason::from_code("heartbeat-lost"));
        let expected = [("a".to_owned(), 10..20, true), ("a".to_owned(), 20..30, false)];
        assert_eq!(shown(&timeline, 30), expected);
        timeline.mark_unobserved(20..20, &LossReason::from_code("server-stopped"));
        assert_eq!(shown(&timeline, 30), expected);
    }

    #[test]
    fn time_under_a_wrong_clock_is_taken_back() {
        let mut timeline = Timeline::default();
        timeline.change(0, class("a"), None);
        timeline.mark_unobserved(10..1000, &LossReason::from_code("clock-stepped"));
        timeline.change(1005, class("b"), None);
        timeline.take_back(10);
        let expected = [("a".to_owned(), 0..10, false), ("b".to_owned(), 10..20, false)];
        assert_eq!(shown(&timeline, 20), expected);
    }

    #[test]
    fn changes_at_one_instant_count_once() {
        let mut timeline = Timeline::default();
        timeline.change(0, class("a"), None);
        timeline.change(0, class("b"), None);
        timeline.change(5, class("b"), None);
        assert_eq!(shown(&timeline, 9), [("b".to_owned(), 0..9, false)]);
    }
}
