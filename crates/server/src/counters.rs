//! What happens too often for a line each: counted for `/metrics`, and summed up in the log now and then.

use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How often failed handshakes are summed up in the log.
const SUMMARY_EVERY: Duration = Duration::from_secs(60);

/// Why a TLS handshake came to nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HandshakeFailure {
    /// It took too long.
    Slow,
    /// Too many others were waiting.
    Displaced,
    /// The client went away.
    Closed,
    /// What the client said is not TLS, or its certificate is none of ours.
    Tls,
}

impl HandshakeFailure {
    /// All of them.
    pub(crate) const ALL: [Self; 4] = [Self::Slow, Self::Displaced, Self::Closed, Self::Tls];

    fn place(self) -> usize {
        Self::ALL.iter().position(|it| *it == self).unwrap_or_default()
    }
}

impl fmt::Display for HandshakeFailure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Slow => "slow",
            Self::Displaced => "displaced",
            Self::Closed => "closed",
            Self::Tls => "tls",
        })
    }
}

/// Failed handshakes since they were last summed up.
#[derive(Debug, Default)]
struct Since {
    count: u64,
    last: Option<(SocketAddr, HandshakeFailure)>,
}

/// What is counted.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Hellos with an order number that was never given.
    pub(crate) orders_ahead: AtomicU64,
    handshakes: [AtomicU64; HandshakeFailure::ALL.len()],
    since: Mutex<Since>,
}

impl Counters {
    pub(crate) fn handshake_failed(&self, from: SocketAddr, why: HandshakeFailure) {
        self.handshakes[why.place()].fetch_add(1, Ordering::Relaxed);
        let mut since = self.since.lock().unwrap_or_else(PoisonError::into_inner);
        since.count += 1;
        since.last = Some((from, why));
    }

    /// Handshakes that failed for a reason.
    pub(crate) fn handshakes(&self, why: HandshakeFailure) -> u64 {
        self.handshakes[why.place()].load(Ordering::Relaxed)
    }

    /// How many failed since this was last asked, and the last of them.
    fn summed_up(&self) -> Option<(u64, SocketAddr, HandshakeFailure)> {
        let mut since = self.since.lock().unwrap_or_else(PoisonError::into_inner);
        let Since { count, last } = std::mem::take(&mut *since);
        last.map(|(from, why)| (count, from, why))
    }

    /// Says once a minute at most how many handshakes failed.
    pub(crate) async fn tell(self: Arc<Self>) {
        loop {
            tokio::time::sleep(SUMMARY_EVERY).await;
            if let Some((count, last_from, last_why)) = self.summed_up() {
                tracing::info!(count, %last_from, %last_why, "TLS handshakes have failed in the last minute");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_failures_are_one_summary_and_all_are_counted() {
        let counters = Counters::default();
        assert_eq!(counters.summed_up(), None);
        let from = |port| SocketAddr::from(([127, 0, 0, 1], port));
        for port in 1..=900 {
            counters.handshake_failed(from(port), HandshakeFailure::Tls);
        }
        counters.handshake_failed(from(7), HandshakeFailure::Slow);
        assert_eq!(counters.summed_up(), Some((901, from(7), HandshakeFailure::Slow)));
        assert_eq!(counters.summed_up(), None, "they are told once");
        let counts = HandshakeFailure::ALL.map(|why| counters.handshakes(why));
        assert_eq!(counts, [1, 0, 0, 900], "and counted on");
    }
}
