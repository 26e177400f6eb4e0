//! A rate limit for certificate renewals. Each renewal costs a signature, and an agent needs only
//! one renewal every few weeks.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use farrier_fleet::fleet::NodeId;
use jiff::SignedDuration;

/// Minimum time between two renewals of one node.
const INTERVAL: Duration = Duration::from_secs(60);
/// A node may renew its certificate at least this many times during the validity of a certificate.
/// If certificates are valid for less than ten minutes, the minimum time between renewals is
/// therefore shorter than [`INTERVAL`].
const PER_LIFE: i32 = 10;

#[derive(Debug)]
pub(crate) struct RenewalLimit {
    interval: Duration,
    last: Mutex<RecentRenewals>,
}

#[derive(Debug, Default)]
struct RecentRenewals {
    renewed: HashMap<NodeId, Instant>,
    /// When old entries were last removed.
    pruned: Option<Instant>,
}

impl RenewalLimit {
    pub(crate) fn new(certificate_life: SignedDuration) -> Self {
        let share = Duration::try_from(certificate_life / PER_LIFE).unwrap_or_default();
        Self { interval: INTERVAL.min(share), last: Mutex::default() }
    }

    pub(crate) fn admits(&self, node: &NodeId, now: Instant) -> bool {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        !self.is_recent(last.renewed.get(node), now)
    }

    /// Counts a renewal. Returns false, and counts nothing, if the node may not renew yet.
    pub(crate) fn claim(&self, node: &NodeId, now: Instant) -> bool {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_recent(last.renewed.get(node), now) {
            return false;
        }
        // Old entries are removed by the first claim after an interval has passed since the last
        // removal. While nodes renew, the map therefore holds at most the nodes of two intervals.
        if !self.is_recent(last.pruned.as_ref(), now) {
            last.renewed.retain(|_, at| self.is_recent(Some(at), now));
            last.pruned = Some(now);
        }
        last.renewed.insert(node.clone(), now);
        true
    }

    fn is_recent(&self, at: Option<&Instant>, now: Instant) -> bool {
        at.is_some_and(|at| now.saturating_duration_since(*at) < self.interval)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renewals_are_limited_per_node() {
        let limit = RenewalLimit::new(SignedDuration::from_hours(24));
        let [a, b]: [NodeId; 2] = ["a", "b"].map(|other| other.parse().unwrap());
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(limit.claim(&a, start));
        assert!(!limit.admits(&a, at(59)) && !limit.claim(&a, at(59)));
        assert!(limit.claim(&b, at(1)), "other nodes are not delayed");
        assert!(limit.admits(&a, at(60)) && limit.claim(&a, at(60)));
        assert!(!limit.claim(&a, at(61)));
        assert!(limit.claim(&b, at(500)));
        assert_eq!(limit.last.lock().unwrap().renewed.len(), 1, "old entries are removed");
    }

    #[test]
    fn short_lived_certificates_may_be_renewed_in_time() {
        let limit = RenewalLimit::new(SignedDuration::from_secs(10));
        let node: NodeId = "a".parse().unwrap();
        let start = Instant::now();
        assert!(limit.claim(&node, start));
        assert!(limit.claim(&node, start + Duration::from_secs(1)));
    }
}
