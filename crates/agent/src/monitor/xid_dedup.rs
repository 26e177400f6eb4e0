//! Deduplicates Xids that both NVML and the kernel log report. The report in the kernel log is
//! used, because it has more detail. An Xid that only NVML reports counts only in two cases: while
//! the log is unreadable, or shortly after log lines were lost.

use std::collections::VecDeque;

use farrier_fleet::health::{GpuUuid, Moment};

/// How long an Xid waits for the report from the other source. Both reports usually arrive within a
/// second of each other, but a busy node may be slower.
const MATCH_MS: i64 = 5000;

/// For how long after a loss of log lines an Xid counts that only NVML reports.
const LOST_MS: i64 = 60_000;

/// How long an Xid from NVML waits if the agent has not tried to read the log yet.
const NOT_TRIED_WAIT_MS: i64 = 60_000;

/// Maximum number of waiting Xids per source. If there are more, the oldest are dropped.
const UNMATCHED_MAX: usize = 256;

pub(super) type XidKey = (GpuUuid, u64);

/// State of the kernel log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LogAvailability {
    NotTried,
    Read,
    Unreadable,
}

/// Unmatched Xids of both sources, with their times.
#[derive(Debug, Default)]
pub(super) struct XidDedup {
    from_nvml: VecDeque<(i64, XidKey)>,
    from_log: VecDeque<(i64, XidKey)>,
    lost_ms: Option<i64>,
}

impl XidDedup {
    /// Records an Xid from NVML.
    pub(super) fn add_nvml(&mut self, now: Moment, xid: XidKey) {
        if !take_match(&mut self.from_log, &xid) {
            push(&mut self.from_nvml, now, xid);
        }
    }

    /// Records an Xid from the kernel log.
    pub(super) fn add_log(&mut self, now: Moment, xid: XidKey) {
        if !take_match(&mut self.from_nvml, &xid) {
            push(&mut self.from_log, now, xid);
        }
    }

    /// Records that kernel log lines were lost.
    pub(super) fn record_lost_lines(&mut self, now: Moment) {
        self.lost_ms = Some(now.steady_ms);
    }

    /// Removes the Xids from NVML whose wait is over. Returns those that count.
    pub(super) fn take_due(&mut self, now: Moment, log: LogAvailability) -> Vec<XidKey> {
        let mut due = Vec::new();
        let lost_ms = self.lost_ms;
        self.from_log.retain(|(at, _)| now.steady_ms - at < MATCH_MS);
        self.from_nvml.retain(|(at, xid)| {
            let age_ms = now.steady_ms - at;
            let near_loss =
                lost_ms.is_some_and(|lost| (lost - MATCH_MS..=lost + LOST_MS).contains(at));
            let (stays, counts) = match log {
                LogAvailability::Unreadable => (false, true),
                LogAvailability::NotTried => (age_ms < NOT_TRIED_WAIT_MS, true),
                LogAvailability::Read => (age_ms < MATCH_MS, near_loss),
            };
            if !stays && counts {
                due.push(xid.clone());
            }
            stays
        });
        due
    }
}

fn take_match(unmatched: &mut VecDeque<(i64, XidKey)>, xid: &XidKey) -> bool {
    let index = unmatched.iter().position(|(_, other)| other == xid);
    index.is_some_and(|index| unmatched.remove(index).is_some())
}

fn push(unmatched: &mut VecDeque<(i64, XidKey)>, now: Moment, xid: XidKey) {
    unmatched.push_back((now.steady_ms, xid));
    if unmatched.len() > UNMATCHED_MAX {
        unmatched.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    fn at(steady_ms: i64) -> Moment {
        Moment { steady_ms, wall: Timestamp::UNIX_EPOCH }
    }

    fn xid(number: u64) -> XidKey {
        (GpuUuid("GPU-0".to_owned()), number)
    }

    #[test]
    fn the_log_wins_over_nvml_in_either_order() {
        let mut dedup = XidDedup::default();
        dedup.record_lost_lines(at(0));
        dedup.add_nvml(at(100), xid(79));
        dedup.add_log(at(200), xid(79));
        dedup.add_log(at(300), xid(48));
        dedup.add_nvml(at(400), xid(48));
        assert!(dedup.take_due(at(10_000), LogAvailability::Read).is_empty());
    }

    #[test]
    fn an_xid_that_only_nvml_reports_counts_only_around_lost_lines() {
        let mut dedup = XidDedup::default();
        dedup.add_nvml(at(0), xid(79));
        assert!(dedup.take_due(at(10_000), LogAvailability::Read).is_empty(), "nothing was lost");
        dedup.record_lost_lines(at(20_000));
        dedup.add_nvml(at(19_000), xid(48));
        dedup.add_nvml(at(70_000), xid(63));
        assert!(
            dedup.take_due(at(21_000), LogAvailability::Read).is_empty(),
            "the log may still report it"
        );
        assert_eq!(dedup.take_due(at(75_000), LogAvailability::Read), [xid(48), xid(63)]);
        dedup.add_nvml(at(90_000), xid(94));
        assert!(
            dedup.take_due(at(99_000), LogAvailability::Read).is_empty(),
            "the loss was long ago"
        );
    }

    #[test]
    fn xids_of_nvml_wait_for_the_state_of_the_log() {
        let mut dedup = XidDedup::default();
        dedup.add_nvml(at(0), xid(79));
        assert!(dedup.take_due(at(10_000), LogAvailability::NotTried).is_empty());
        assert_eq!(dedup.take_due(at(11_000), LogAvailability::Unreadable), [xid(79)]);
        dedup.add_nvml(at(12_000), xid(79));
        assert_eq!(dedup.take_due(at(72_000), LogAvailability::NotTried), [xid(79)]);
    }

    #[test]
    fn unmatched_xids_are_bounded() {
        let mut dedup = XidDedup::default();
        for number in 0..10_000 {
            dedup.add_nvml(at(0), xid(number));
            dedup.add_log(at(0), xid(100_000 + number));
        }
        assert_eq!((dedup.from_nvml.len(), dedup.from_log.len()), (UNMATCHED_MAX, UNMATCHED_MAX));
    }
}
