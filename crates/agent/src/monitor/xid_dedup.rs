//! Xids that NVML told of. The kernel log tells of the same ones, and says more; they count only where it does not: while it
//! cannot be read, and around lines of it that were lost.

use std::collections::VecDeque;

use farrier_fleet::health::{GpuUuid, Moment};

/// The line of an Xid and the word of NVML come within a second of each other; a busy node is late at times.
const APART_MS: i64 = 5000;

/// For so long after lines were lost NVML is believed where the log is silent.
const LOST_MS: i64 = 60_000;

/// Whoever has not heard of the log for so long does not wait for it any more.
const PATIENCE_MS: i64 = 60_000;

/// Xids that wait: beyond it the oldest go. A storm of one Xid needs no more to be seen.
const WAITING_MAX: usize = 256;

/// An Xid of a GPU.
pub(super) type Xid = (GpuUuid, u64);

/// What is known of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Log {
    /// It has not been tried yet.
    Untried,
    /// It is read.
    Read,
    /// It cannot be read.
    Unreadable,
}

/// Who told what, and when.
#[derive(Debug, Default)]
pub(super) struct XidDedup {
    by_nvml: VecDeque<(i64, Xid)>,
    by_log: VecDeque<(i64, Xid)>,
    lost_ms: Option<i64>,
}

impl XidDedup {
    /// NVML told of an Xid.
    pub(super) fn nvml(&mut self, now: Moment, xid: Xid) {
        if !cancel(&mut self.by_log, &xid) {
            push(&mut self.by_nvml, now, xid);
        }
    }

    /// The log told of an Xid.
    pub(super) fn log(&mut self, now: Moment, xid: Xid) {
        if !cancel(&mut self.by_nvml, &xid) {
            push(&mut self.by_log, now, xid);
        }
    }

    /// Lines of the log were lost.
    pub(super) fn lost(&mut self, now: Moment) {
        self.lost_ms = Some(now.steady_ms);
    }

    /// Those that only NVML told of and that count.
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
