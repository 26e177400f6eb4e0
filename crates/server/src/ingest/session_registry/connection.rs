//! The connection state of a node's agent, for display only. Decisions use the heartbeat timeout
//! and the log.

use std::sync::atomic::Ordering;
use std::time::Duration;

use farrier_fleet::fleet::NodeId;
use farrier_wire::rest::{ConnectionState, ConnectionView};
use jiff::{SignedDuration, Timestamp};

use super::{SessionEntry, SessionRegistry};

/// If an open session has no message for this many heartbeat intervals, it is late. After six
/// intervals, the server closes it.
const LATE_INTERVALS: u32 = 3;

/// Times of a session, in milliseconds since the server started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct SessionTimes {
    is_open: bool,
    /// `None` if there was no session since the server started.
    opened_ms: Option<u64>,
    closed_ms: Option<u64>,
    last_message_ms: u64,
    /// When the server last read from the session. While the server deliberately does not read,
    /// this time is still updated.
    observed_ms: u64,
    is_delayed: bool,
}

impl SessionTimes {
    fn from_entry(session: &SessionEntry) -> Self {
        Self {
            is_open: session.stream.is_some(),
            opened_ms: session.opened_ms,
            closed_ms: session.closed_ms,
            last_message_ms: session.last_seen.last_message_ms.load(Ordering::Relaxed),
            observed_ms: session.last_seen.timeout_start_ms(),
            is_delayed: session.last_seen.is_delayed.load(Ordering::Relaxed),
        }
    }

    /// Returns the connection state, when it began, and the age of the last message. A session
    /// without a message for `late_ms` is late.
    fn state(self, uptime_ms: u64, late_ms: u64) -> (ConnectionState, u64, Option<u64>) {
        let Some(opened_ms) = self.opened_ms else { return (ConnectionState::Never, 0, None) };
        let age_ms = uptime_ms.saturating_sub(self.last_message_ms);
        let (state, since_ms) = match self.is_open {
            true if uptime_ms.saturating_sub(self.observed_ms) > late_ms => {
                (ConnectionState::HeartbeatLate, opened_ms)
            }
            true if self.is_delayed => (ConnectionState::ReportsDelayed, opened_ms),
            true => (ConnectionState::Connected, opened_ms),
            // `closed_ms` is not set yet if the server has just disconnected the session.
            false => {
                (ConnectionState::Disconnected, self.closed_ms.unwrap_or(self.last_message_ms))
            }
        };
        (state, since_ms, Some(age_ms))
    }
}

impl SessionRegistry {
    pub(crate) fn connection(
        &self,
        node: &NodeId,
        heartbeat_interval: Duration,
        now: Timestamp,
    ) -> ConnectionView {
        let session = self.by_node().get(node).map(SessionTimes::from_entry).unwrap_or_default();
        let uptime_ms = self.uptime_ms();
        let late = heartbeat_interval.saturating_mul(LATE_INTERVALS);
        let late_ms = u64::try_from(late.as_millis()).unwrap_or(u64::MAX);
        let (state, since_ms, age_ms) = session.state(uptime_ms, late_ms);
        let ago = SignedDuration::from_millis(uptime_ms.saturating_sub(since_ms).cast_signed());
        let since = now.checked_sub(ago).unwrap_or(now);
        ConnectionView { state, since, last_heartbeat_age_s: age_ms.map(|ms| ms / 1000) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATE_MS: u64 = 30_000;

    #[test]
    fn the_connection_state_follows_the_session() {
        let open = SessionTimes {
            is_open: true,
            opened_ms: Some(1000),
            closed_ms: None,
            last_message_ms: 5000,
            observed_ms: 5000,
            is_delayed: false,
        };
        let delayed = SessionTimes { is_delayed: true, ..open };
        let closed = SessionTimes { is_open: false, closed_ms: Some(6000), ..open };
        let cut = SessionTimes { is_open: false, ..open };
        let enrolled = SessionTimes { last_message_ms: 5000, ..SessionTimes::default() };
        for (session, uptime_ms, expected) in [
            (open, 7000, (ConnectionState::Connected, 1000, Some(2000))),
            (open, 35_000, (ConnectionState::Connected, 1000, Some(30_000))),
            (open, 35_001, (ConnectionState::HeartbeatLate, 1000, Some(30_001))),
            (delayed, 7000, (ConnectionState::ReportsDelayed, 1000, Some(2000))),
            (delayed, 35_001, (ConnectionState::HeartbeatLate, 1000, Some(30_001))),
            (closed, 7000, (ConnectionState::Disconnected, 6000, Some(2000))),
            (closed, 90_000, (ConnectionState::Disconnected, 6000, Some(85_000))),
            (cut, 7000, (ConnectionState::Disconnected, 5000, Some(2000))),
            (SessionTimes::default(), 7000, (ConnectionState::Never, 0, None)),
            (enrolled, 7000, (ConnectionState::Never, 0, None)),
        ] {
            assert_eq!(session.state(uptime_ms, LATE_MS), expected, "{session:?} at {uptime_ms}");
        }
    }

    #[test]
    fn a_node_keeps_its_last_sessions_state_until_the_next() {
        let sessions = SessionRegistry::new(crate::ingest::ReportQuota::default());
        let node: NodeId = "a".parse().unwrap();
        let now = Timestamp::now();
        let connection = || sessions.connection(&node, Duration::from_secs(10), now);
        let never = connection();
        assert_eq!((never.state, never.last_heartbeat_age_s), (ConnectionState::Never, None));
        let refused = sessions.register(&node, None);
        assert_eq!(connection().state, ConnectionState::Never, "a refused hello is no session");
        sessions.deregister(&node, refused.number);
        let register = || {
            let registered = sessions.register(&node, None);
            let _ = sessions.mark_accepted(&node, &registered.last_seen);
            registered
        };
        let first = register();
        assert_eq!(connection().state, ConnectionState::Connected);
        let second = register();
        sessions.deregister(&node, first.number);
        assert_eq!(connection().state, ConnectionState::Connected, "the later session is open");
        sessions.deregister(&node, second.number);
        assert_eq!(connection().state, ConnectionState::Disconnected);
        let _third = register();
        assert_eq!(connection().state, ConnectionState::Connected);
    }
}
