//! Deduplicates Xids that both NVML and the kernel log report. The kernel log has more detail and
//! wins. An Xid from NVML counts only while the log is unreadable, and around lost lines.

use std::collections::VecDeque;

use farrier_fleet::health::{GpuUuid, Moment};

/// Matching window. Both reports usually come within a second of each other; a busy node may be
/// late.
const APART_MS: i64 = 5000;

/// How long after lost lines an Xid that only NVML reports counts.
const LOST_MS: i64 = 60_000;

/// How long to wait for the state of a log that has not been tried.
const PATIENCE_MS: i64 = 60_000;

/// Maximum waiting Xids; the oldest are dropped first. A storm of one Xid needs no more.
const WAITING_MAX: usize = 256;

pub(super) type Xid = (GpuUuid, u64);

/// State of the kernel log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Log {
    Untried,
    Read,
    Unreadable,
}

/// Unmatched Xids of both sources, with their times.
#[derive(Debug, Default)]
pub(super) struct XidDedup {
    by_nvml: VecDeque<(i64, Xid)>,
    by_log: VecDeque<(i64, Xid)>,
    lost_ms: Option<i64>,
}

impl XidDedup {
    /// Records an Xid from NVML.
    pub(super) fn nvml(&mut self, now: Moment, xid: Xid) {
        if !cancel(&mut self.by_log, &xid) {
            push(&mut self.by_nvml, now, xid);
        }
    }

    /// Records an Xid from the kernel log.
    pub(super) fn log(&mut self, now: Moment, xid: Xid) {
        if !cancel(&mut self.by_nvml, &xid) {
            push(&mut self.by_log, now, xid);
        }
    }

    /// Records that kernel log lines were lost.
    pub(super) fn lost(&mut self, now: Moment) {
        self.lost_ms = Some(now.steady_ms);
    }

    /// Takes the Xids that only NVML reported and that count.
    pub(super) fn due(&mut self, now: Moment, log: Log) -> Vec<Xid> {
        let mut due = Vec::new();
        let lost_ms = self.lost_ms;
        self.by_log.retain(|(at, _)| now.steady_ms - at < APART_MS);
        self.by_nvml.retain(|(at, xid)| {
            let age_ms = now.steady_ms - at;
            let near_loss =
                lost_ms.is_some_and(|lost| (lost - APART_MS..=lost + LOST_MS).contains(at));
            let (stays, counts) = match log {
                Log::Unreadable => (false, true),
                Log::Untried => (age_ms < PATIENCE_MS, true),
                Log::Read => (age_ms < APART_MS, near_loss),
            };
            if !stays && counts {
                due.push(xid.clone());
            }
            stays
        });
        due
    }
}

fn cancel(told: &mut VecDeque<(i64, Xid)>, xid: &Xid) -> bool {
    let place = told.iter().position(|(_, other)| other == xid);
    place.is_some_and(|place| told.remove(place).is_some())
}

fn push(told: &mut VecDeque<(i64, Xid)>, now: Moment, xid: Xid) {
    told.push_back((now.steady_ms, xid));
    if told.len() > WAITING_MAX {
        told.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    fn at(steady_ms: i64) -> Moment {
        Moment { steady_ms, wall: Timestamp::UNIX_EPOCH }
    }

    fn xid(number: u64) -> Xid {
        (GpuUuid("GPU-0".to_owned()), number)
    }

    #[test]
    fn the_log_outranks_nvml_whoever_comes_first() {
        let mut told = XidDedup::default();
        told.lost(at(0));
        told.nvml(at(100), xid(79));
        told.log(at(200), xid(79));
        told.log(at(300), xid(48));
        told.nvml(at(400), xid(48));
        assert!(told.due(at(10_000), Log::Read).is_empty());
    }

    #[test]
    fn around_lost_lines_nvml_is_believed_and_otherwise_not() {
        let mut told = XidDedup::default();
        told.nvml(at(0), xid(79));
        assert!(told.due(at(10_000), Log::Read).is_empty(), "nothing was lost");
        told.lost(at(20_000));
        told.nvml(at(19_000), xid(48));
        told.nvml(at(70_000), xid(63));
        assert!(told.due(at(21_000), Log::Read).is_empty(), "the log may still bring it");
        assert_eq!(told.due(at(75_000), Log::Read), [xid(48), xid(63)]);
        told.nvml(at(90_000), xid(94));
        assert!(told.due(at(99_000), Log::Read).is_empty(), "the loss is long ago");
    }

    #[test]
    fn before_the_log_is_known_they_wait() {
        let mut told = XidDedup::default();
        told.nvml(at(0), xid(79));
        assert!(told.due(at(10_000), Log::Untried).is_empty());
        assert_eq!(told.due(at(11_000), Log::Unreadable), [xid(79)]);
        told.nvml(at(12_000), xid(79));
        assert_eq!(told.due(at(72_000), Log::Untried), [xid(79)]);
    }

    #[test]
    fn a_storm_is_bounded() {
        let mut told = XidDedup::default();
        for number in 0..10_000 {
            told.nvml(at(0), xid(number));
            told.log(at(0), xid(100_000 + number));
        }
        assert_eq!((told.by_nvml.len(), told.by_log.len()), (WAITING_MAX, WAITING_MAX));
    }
}
