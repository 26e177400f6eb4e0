//! Report quota: each node has one token bucket for log bytes and one for log entries. A message
//! may overdraw a bucket, so that even the largest permitted message is accepted. The server then
//! stops reading from the node until the bucket has recovered. The node keeps its reports in the
//! meantime, so nothing is lost.

use std::time::{Duration, Instant};

use farrier_wire::limits::MESSAGE_BYTES_MAX;

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ReportQuota {
    pub bytes_per_s: f64,
    pub entries_per_s: f64,
    /// Size of a burst: the amount that the sustained rate gives in this many seconds.
    pub burst_s: f64,
}

impl Default for ReportQuota {
    fn default() -> Self {
        // A fault that opens and clears every second stays far below this rate, and a report of all
        // open findings fits into the burst.
        Self { bytes_per_s: 65_536.0, entries_per_s: 20.0, burst_s: 50.0 }
    }
}

/// Rate limit for urgent reports. Urgent reports do not wait in the queue of ordinary reports.
/// Without a limit, a node that declares every report fatal would never wait.
const URGENT: ReportQuota = ReportQuota { bytes_per_s: 16_384.0, entries_per_s: 1.0, burst_s: 8.0 };
/// A throttled node resumes when its buckets have this many seconds of quota.
const RESUME_S: f64 = 1.0;
const ROUNDING_S: f64 = 1e-6;
/// A node counts as within its quota again if it has not exceeded the quota for this long.
const RECOVERED_AFTER: Duration = Duration::from_secs(60);

#[derive(Debug)]
struct Bucket {
    quota: ReportQuota,
    /// Remaining quota for bytes and entries, in seconds of the sustained rate.
    left_s: (f64, f64),
    at: Instant,
}

impl Bucket {
    fn new(quota: ReportQuota, now: Instant) -> Self {
        Self { quota, left_s: (quota.burst_s, quota.burst_s), at: now }
    }

    fn left_s(&self, now: Instant) -> (f64, f64) {
        let passed_s = now.saturating_duration_since(self.at).as_secs_f64();
        let refilled = |remaining: f64| (remaining + passed_s).min(self.quota.burst_s);
        (refilled(self.left_s.0), refilled(self.left_s.1))
    }

    fn charge(&mut self, entries: u32, bytes: usize, now: Instant) {
        #[expect(clippy::cast_precision_loss, reason = "a message has at most a megabyte")]
        let (bytes, bytes_max) = (bytes as f64, MESSAGE_BYTES_MAX as f64);
        let (bytes_s, entries_s) = self.left_s(now);
        let entries = f64::from(entries) / self.quota.entries_per_s;
        // The debt never exceeds the cost of one message, even across reconnects.
        let lowest_bytes_s = -(bytes_max / self.quota.bytes_per_s);
        self.left_s = (
            (bytes_s - bytes / self.quota.bytes_per_s).max(lowest_bytes_s),
            (entries_s - entries).max(-1.0 / self.quota.entries_per_s),
        );
        self.at = now;
    }

    /// Seconds until both buckets have `min_s` again. Negative if they have more.
    fn deficit_s(&self, min_s: f64, now: Instant) -> f64 {
        let (bytes_s, entries_s) = self.left_s(now);
        min_s - bytes_s.min(entries_s)
    }
}

#[derive(Debug)]
pub(crate) struct NodeQuota {
    reports: Bucket,
    urgent: Bucket,
    is_exceeded: bool,
    last_exceeded: Option<Instant>,
}

impl NodeQuota {
    pub(crate) fn new(quota: ReportQuota, now: Instant) -> Self {
        Self {
            reports: Bucket::new(quota, now),
            urgent: Bucket::new(URGENT, now),
            is_exceeded: false,
            last_exceeded: None,
        }
    }

    pub(crate) fn charge(&mut self, bytes: usize, now: Instant) {
        self.reports.charge(1, bytes, now);
    }

    /// Charges the log entries that a message caused.
    pub(crate) fn charge_entries(&mut self, entries: u32, bytes: usize, now: Instant) {
        self.reports.charge(entries, bytes, now);
    }

    /// How long to stop reading from the node. `None` if the node is within its quota.
    pub(crate) fn wait(&mut self, now: Instant) -> Option<Duration> {
        self.is_exceeded = if self.is_exceeded {
            self.reports.deficit_s(RESUME_S, now) > ROUNDING_S
        } else {
            self.reports.deficit_s(0.0, now) >= 0.0
        };
        if !self.is_exceeded {
            return None;
        }
        self.last_exceeded = Some(now);
        Some(Duration::from_secs_f64(self.reports.deficit_s(RESUME_S, now).max(0.001)))
    }

    /// After throttling, the server asks for all open findings only if their size is at most this.
    /// The value is half a second of quota, so that the report does not cause throttling again.
    pub(crate) fn resync_bytes_max(&self) -> f64 {
        self.reports.quota.bytes_per_s / 2.0
    }

    /// Charges a report to the urgent rate. Returns false, and charges nothing, if that rate is
    /// exhausted.
    pub(crate) fn admit_urgent(&mut self, bytes: usize, now: Instant) -> bool {
        let is_admitted = self.urgent.deficit_s(0.0, now) < 0.0;
        if is_admitted {
            self.urgent.charge(1, bytes, now);
        }
        is_admitted
    }

    pub(crate) fn is_within_quota(&self, now: Instant) -> bool {
        self.last_exceeded.is_none_or(|at| now.saturating_duration_since(at) >= RECOVERED_AFTER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn quota(start: Instant) -> NodeQuota {
        NodeQuota::new(ReportQuota::default(), start)
    }

    #[test]
    fn a_node_has_a_burst_and_then_its_rate() {
        let start = Instant::now();
        let mut quota = quota(start);
        let mut sent = 0;
        while quota.wait(start).is_none() {
            quota.charge(100, start);
            sent += 1;
        }
        assert!((1000..=1001).contains(&sent), "50 s of entries, not {sent}");
        let wait = quota.wait(start).unwrap();
        assert!(wait <= SECOND * 2, "{wait:?}");
        let then = start + wait;
        let mut sent = 0;
        while quota.wait(then).is_none() {
            quota.charge(100, then);
            sent += 1;
        }
        assert!((19..=21).contains(&sent), "1 s of entries, not {sent}");
    }

    #[test]
    fn the_largest_message_passes_and_is_charged() {
        let start = Instant::now();
        let mut quota = quota(start);
        for _ in 0..9 {
            quota.charge(MESSAGE_BYTES_MAX, start);
        }
        let wait = quota.wait(start).unwrap();
        assert!(
            (16.0..18.0).contains(&wait.as_secs_f64()),
            "the debt is one MiB, not nine: {wait:?}"
        );
        assert!(quota.wait(start + wait.mul_f64(0.95)).is_some(), "less than 1 s of quota");
        assert_eq!(quota.wait(start + wait), None);
        assert!(!quota.is_within_quota(start + wait));
        assert!(quota.is_within_quota(start + wait + RECOVERED_AFTER));
    }

    #[test]
    fn urgent_reports_are_limited() {
        let start = Instant::now();
        let mut quota = quota(start);
        let admitted = (0..100).filter(|_| quota.admit_urgent(1000, start)).count();
        assert_eq!(admitted, 8);
        assert!(quota.admit_urgent(1000, start + SECOND * 2));
    }
}
