//! Limits on reconnections that agents and the server share.

/// Longest time, in seconds, that an agent waits between two connection attempts.
///
/// With 30 s, a node reconnects soon after a server restart, and the 20,000 connections that one
/// server accepts are spread over half a minute.
pub const RECONNECT_WAIT_MAX_S: u32 = 30;

/// Shortest heartbeat timeout (`heartbeat_timeout_s`) that a policy may set.
///
/// A node becomes suspect after a third of its heartbeat timeout. That third must be at least the
/// longest wait of an agent. Otherwise a server restart would make healthy nodes suspect.
pub const HEARTBEAT_TIMEOUT_MIN_S: u32 = 3 * RECONNECT_WAIT_MAX_S;

/// Number of seconds over which the agents of a fleet spread their first connection attempts after
/// they lost their sessions.
///
/// A TLS handshake costs about a millisecond of one core, so 1,000 agents per second keep one core
/// busy.
pub fn reconnect_spread_s(nodes: usize) -> u32 {
    let seconds = u32::try_from(nodes.div_ceil(1000)).unwrap_or(u32::MAX);
    seconds.clamp(1, RECONNECT_WAIT_MAX_S)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_larger_fleet_spreads_over_more_time_up_to_the_longest_back_off() {
        let spreads = [0, 1, 26, 1000, 1001, 20_000, 100_000, usize::MAX].map(reconnect_spread_s);
        assert_eq!(spreads, [1, 1, 1, 1, 2, 20, 30, 30]);
    }
}
