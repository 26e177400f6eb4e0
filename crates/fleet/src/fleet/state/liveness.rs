//! The liveness of a node's agent.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::timers::{add_seconds, whole_seconds};

/// Whether heartbeats arrive, and whether the certificates of the agent are revoked.
///
/// Uncounted seconds exist only while heartbeats are lost. All other combinations are possible,
/// because a certificate can be revoked before or after heartbeats are lost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Liveness {
    #[default]
    Connected,
    HeartbeatLost(HeartbeatLoss),
    /// All certificates of the node are revoked. It may not connect, so its state is unknown.
    CertificateRevoked {
        at: Timestamp,
        /// `None` until the controller detects that the session has ended.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        heartbeat_lost: Option<HeartbeatLoss>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeartbeatLoss {
    /// When the last heartbeat arrived.
    pub since: Timestamp,
    /// Seconds since then that do not count towards the heartbeat timeout, because the controller
    /// did not run or the clock was stepped.
    #[serde(default, skip_serializing_if = "super::is_zero")]
    pub uncounted_s: u32,
}

impl Liveness {
    /// Returns `None` while heartbeats arrive.
    pub fn heartbeat_loss(&self) -> Option<&HeartbeatLoss> {
        match self {
            Self::Connected => None,
            Self::HeartbeatLost(loss) => Some(loss),
            Self::CertificateRevoked { heartbeat_lost, .. } => heartbeat_lost.as_ref(),
        }
    }

    fn heartbeat_loss_mut(&mut self) -> Option<&mut HeartbeatLoss> {
        match self {
            Self::Connected => None,
            Self::HeartbeatLost(loss) => Some(loss),
            Self::CertificateRevoked { heartbeat_lost, .. } => heartbeat_lost.as_mut(),
        }
    }

    /// When the last heartbeat arrived. `None` while heartbeats arrive.
    pub fn heartbeat_lost_since(&self) -> Option<Timestamp> {
        self.heartbeat_loss().map(|loss| loss.since)
    }

    /// When the certificates were revoked. `None` if they are valid.
    pub fn certificate_revoked_at(&self) -> Option<Timestamp> {
        match self {
            Self::CertificateRevoked { at, .. } => Some(*at),
            Self::Connected | Self::HeartbeatLost(_) => None,
        }
    }

    pub(super) fn lose_heartbeat(&mut self, since: Timestamp) {
        let loss = HeartbeatLoss { since, uncounted_s: 0 };
        match self {
            Self::CertificateRevoked { heartbeat_lost, .. } => *heartbeat_lost = Some(loss),
            Self::Connected | Self::HeartbeatLost(_) => *self = Self::HeartbeatLost(loss),
        }
    }

    pub(super) fn revoke_certificate(&mut self, at: Timestamp) {
        let heartbeat_lost = self.heartbeat_loss().copied();
        *self = Self::CertificateRevoked { at, heartbeat_lost };
    }

    pub(super) fn restore(&mut self) {
        *self = Self::Connected;
    }

    /// When the heartbeat timeout expires. `None` while heartbeats arrive.
    pub(super) fn deadline(&self, timeout_s: u32) -> Option<Timestamp> {
        let loss = self.heartbeat_loss()?;
        Some(add_seconds(loss.since, timeout_s.saturating_add(loss.uncounted_s)))
    }

    /// Extends a running heartbeat timeout.
    pub(super) fn extend_timeout(&mut self, by_s: u32) {
        if let Some(loss) = self.heartbeat_loss_mut() {
            loss.uncounted_s = loss.uncounted_s.saturating_add(by_s);
        }
    }

    /// Adjusts to a clock that was set back by `back`: no recorded time may lie in the future.
    pub(super) fn step_back(&mut self, back: SignedDuration, now: Timestamp) {
        if let Self::CertificateRevoked { at, .. } = self {
            *at = (*at).min(now);
        }
        if let Some(loss) = self.heartbeat_loss_mut() {
            loss.since = loss.since.min(now);
            let passed_s = whole_seconds(now.duration_since(loss.since));
            loss.uncounted_s = loss.uncounted_s.saturating_sub(whole_seconds(back)).min(passed_s);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn a_timeout_counts_from_the_last_heartbeat_without_uncounted_time() {
        let mut liveness = Liveness::default();
        liveness.extend_timeout(50);
        assert_eq!((liveness, liveness.deadline(10)), (Liveness::Connected, None));
        liveness.lose_heartbeat(at(100));
        liveness.extend_timeout(50);
        assert_eq!(liveness.deadline(10), Some(at(160)));
        liveness.lose_heartbeat(at(120));
        assert_eq!(liveness.deadline(10), Some(at(130)), "another loss has no uncounted time");
        liveness.restore();
        assert_eq!(liveness, Liveness::Connected);
    }

    #[test]
    fn a_revocation_and_a_heartbeat_loss_can_occur_in_either_order() {
        let loss = HeartbeatLoss { since: at(5), uncounted_s: 0 };
        let both = Liveness::CertificateRevoked { at: at(9), heartbeat_lost: Some(loss) };
        let (mut one, mut other) = (Liveness::default(), Liveness::default());
        one.lose_heartbeat(at(5));
        one.revoke_certificate(at(9));
        other.revoke_certificate(at(9));
        assert_eq!(other.heartbeat_lost_since(), None);
        other.lose_heartbeat(at(5));
        assert_eq!((one, other), (both, both));
    }

    #[test]
    fn after_a_clock_step_back_no_time_lies_in_the_future() {
        let mut liveness = Liveness::default();
        liveness.lose_heartbeat(at(100));
        liveness.extend_timeout(40);
        liveness.revoke_certificate(at(150));
        liveness.step_back(SignedDuration::from_secs(70), at(110));
        let loss = HeartbeatLoss { since: at(100), uncounted_s: 0 };
        let expected = Liveness::CertificateRevoked { at: at(110), heartbeat_lost: Some(loss) };
        assert_eq!(liveness, expected);
    }
}
