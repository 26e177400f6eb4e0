//! Counts events that are too frequent for a log line per event. `/metrics` shows the totals, and
//! one log line per minute summarises them.

use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use farrier_fleet::fleet::NodeId;
use tonic::Code;

const SUMMARY_INTERVAL: Duration = Duration::from_secs(60);

/// Why a TLS handshake failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HandshakeFailure {
    Slow,
    /// The slot pool was full, and this handshake was the oldest in it.
    Displaced,
    Closed,
    /// The peer does not use TLS, or its certificate is from another authority.
    Tls,
}

impl HandshakeFailure {
    pub(crate) const ALL: [Self; 4] = [Self::Slow, Self::Displaced, Self::Closed, Self::Tls];
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

/// Why a request from an unauthenticated peer was not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestFailure {
    TooLarge,
    Slow,
    /// The slot pool was full, and this request was the oldest in it.
    Displaced,
    /// The client disconnected.
    CutOff,
}

impl RequestFailure {
    pub(crate) const ALL: [Self; 4] = [Self::TooLarge, Self::Slow, Self::Displaced, Self::CutOff];
}

impl fmt::Display for RequestFailure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::TooLarge => "too-large",
            Self::Slow => "slow",
            Self::Displaced => "displaced",
            Self::CutOff => "cut-off",
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EnrolmentRefusal {
    /// The token is wrong, used up, expired, revoked or for another node.
    Token,
    NameTaken,
    /// The request is malformed, or its key proof is invalid.
    Malformed,
    /// Too many concurrent enrolments.
    Busy,
    /// An internal error.
    Server,
}

impl EnrolmentRefusal {
    pub(crate) const ALL: [Self; 5] =
        [Self::Token, Self::NameTaken, Self::Malformed, Self::Busy, Self::Server];
}

impl From<Code> for EnrolmentRefusal {
    fn from(code: Code) -> Self {
        match code {
            Code::PermissionDenied => Self::Token,
            Code::AlreadyExists => Self::NameTaken,
            Code::InvalidArgument => Self::Malformed,
            Code::ResourceExhausted => Self::Busy,
            _ => Self::Server,
        }
    }
}

impl fmt::Display for EnrolmentRefusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Token => "token",
            Self::NameTaken => "name-taken",
            Self::Malformed => "malformed",
            Self::Busy => "busy",
            Self::Server => "server",
        })
    }
}

/// The number of events since the last summary, and the most recent of these events.
#[derive(Debug)]
struct Recent<T>(Mutex<(u64, Option<T>)>);

impl<T> Default for Recent<T> {
    fn default() -> Self {
        Self(Mutex::new((0, None)))
    }
}

impl<T> Recent<T> {
    fn add(&self, event: T) {
        let mut recent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        recent.0 += 1;
        recent.1 = Some(event);
    }

    /// Returns the number and the last event, and resets both to nothing.
    fn take(&self) -> Option<(u64, T)> {
        let mut recent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (count, last) = std::mem::take(&mut *recent);
        last.map(|last| (count, last))
    }
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    orders_ahead: AtomicU64,
    handshakes: [AtomicU64; HandshakeFailure::ALL.len()],
    requests: [AtomicU64; RequestFailure::ALL.len()],
    enrolments: [AtomicU64; EnrolmentRefusal::ALL.len()],
    renewals: AtomicU64,
    renewals_throttled: AtomicU64,
    names_refused: AtomicU64,
    sessions_ended: AtomicU64,
    recent_sessions_ended: Recent<(NodeId, String)>,
    recent_handshakes: Recent<(SocketAddr, HandshakeFailure)>,
    recent_requests: Recent<RequestFailure>,
    recent_enrolments: Recent<(Option<NodeId>, EnrolmentRefusal)>,
    recent_orders_ahead: Recent<(NodeId, String)>,
    recent_renewals: Recent<NodeId>,
    recent_throttled: Recent<NodeId>,
    recent_names_refused: Recent<(NodeId, NodeId)>,
}

fn index<T: PartialEq>(all: &[T], value: &T) -> usize {
    all.iter().position(|other| other == value).unwrap_or_default()
}

impl Counters {
    pub(crate) fn handshake_failed(&self, from: SocketAddr, reason: HandshakeFailure) {
        self.handshakes[index(&HandshakeFailure::ALL, &reason)].fetch_add(1, Ordering::Relaxed);
        self.recent_handshakes.add((from, reason));
    }

    pub(crate) fn handshakes(&self, reason: HandshakeFailure) -> u64 {
        self.handshakes[index(&HandshakeFailure::ALL, &reason)].load(Ordering::Relaxed)
    }

    pub(crate) fn request_failed(&self, reason: RequestFailure) {
        self.requests[index(&RequestFailure::ALL, &reason)].fetch_add(1, Ordering::Relaxed);
        self.recent_requests.add(reason);
    }

    pub(crate) fn requests_failed(&self, reason: RequestFailure) -> u64 {
        self.requests[index(&RequestFailure::ALL, &reason)].load(Ordering::Relaxed)
    }

    /// `node` is `None` if the requested name is invalid.
    pub(crate) fn enrolment_refused(&self, node: Option<NodeId>, reason: EnrolmentRefusal) {
        self.enrolments[index(&EnrolmentRefusal::ALL, &reason)].fetch_add(1, Ordering::Relaxed);
        self.recent_enrolments.add((node, reason));
    }

    pub(crate) fn enrolments_refused(&self, reason: EnrolmentRefusal) -> u64 {
        self.enrolments[index(&EnrolmentRefusal::ALL, &reason)].load(Ordering::Relaxed)
    }

    /// Counts a session in which a node reported an order generation that was never issued.
    pub(crate) fn order_generation_refused(&self, node: &NodeId, reason: &impl fmt::Display) {
        self.orders_ahead.fetch_add(1, Ordering::Relaxed);
        self.recent_orders_ahead.add((node.clone(), reason.to_string()));
    }

    /// The number of sessions that were refused because of such an order generation.
    pub(crate) fn order_generations_refused(&self) -> u64 {
        self.orders_ahead.load(Ordering::Relaxed)
    }

    pub(crate) fn renewed(&self, node: &NodeId) {
        self.renewals.fetch_add(1, Ordering::Relaxed);
        self.recent_renewals.add(node.clone());
    }

    pub(crate) fn renewals(&self) -> u64 {
        self.renewals.load(Ordering::Relaxed)
    }

    pub(crate) fn renewal_throttled(&self, node: &NodeId) {
        self.renewals_throttled.fetch_add(1, Ordering::Relaxed);
        self.recent_throttled.add(node.clone());
    }

    /// The number of renewals that were refused because the node's previous renewal was too recent.
    pub(crate) fn renewals_throttled(&self) -> u64 {
        self.renewals_throttled.load(Ordering::Relaxed)
    }

    /// Counts a node that acted under another node's name.
    pub(crate) fn name_refused(&self, node: &NodeId, named: NodeId) {
        self.names_refused.fetch_add(1, Ordering::Relaxed);
        self.recent_names_refused.add((node.clone(), named));
    }

    pub(crate) fn names_refused(&self) -> u64 {
        self.names_refused.load(Ordering::Relaxed)
    }

    pub(crate) fn session_ended(&self, node: &NodeId, reason: String) {
        self.sessions_ended.fetch_add(1, Ordering::Relaxed);
        self.recent_sessions_ended.add((node.clone(), reason));
    }

    pub(crate) fn sessions_ended(&self) -> u64 {
        self.sessions_ended.load(Ordering::Relaxed)
    }

    /// Logs a summary once a minute.
    pub(crate) async fn log_summaries(self: Arc<Self>) {
        loop {
            tokio::time::sleep(SUMMARY_INTERVAL).await;
            self.log_summary();
        }
    }

    fn log_summary(&self) {
        if let Some((count, (last_from, last_reason))) = self.recent_handshakes.take() {
            tracing::info!(count, %last_from, %last_reason, "TLS handshakes failed in the last minute");
        }
        if let Some((count, last_reason)) = self.recent_requests.take() {
            tracing::info!(count, %last_reason, "requests without a certificate were not read in the last minute");
        }
        if let Some((count, (last_node, last_reason))) = self.recent_enrolments.take() {
            let last_node = last_node.as_ref().map(tracing::field::display);
            tracing::warn!(count, last_node, %last_reason, "enrolments were refused in the last minute");
        }
        if let Some((count, (last_node, last_reason))) = self.recent_orders_ahead.take() {
            tracing::warn!(count, %last_node, %last_reason, "sessions with an unknown order generation were refused in the last minute");
        }
        if let Some((count, (last_node, last_reason))) = self.recent_sessions_ended.take() {
            tracing::info!(count, %last_node, %last_reason, "the server ended sessions in the last minute");
        }
        if let Some((count, (last_node, last_named))) = self.recent_names_refused.take() {
            tracing::warn!(count, %last_node, %last_named, "sessions under another node's name were refused in the last minute");
        }
        if let Some((count, last_node)) = self.recent_renewals.take() {
            tracing::info!(count, %last_node, "certificates were renewed in the last minute");
        }
        if let Some((count, last_node)) = self.recent_throttled.take() {
            tracing::warn!(count, %last_node, "renewals were refused in the last minute because they came too soon");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_summarised_and_counted() {
        let counters = Counters::default();
        assert_eq!(counters.recent_handshakes.take(), None);
        let from = |port| SocketAddr::from(([127, 0, 0, 1], port));
        for port in 1..=900 {
            counters.handshake_failed(from(port), HandshakeFailure::Tls);
        }
        counters.handshake_failed(from(7), HandshakeFailure::Slow);
        let last = (from(7), HandshakeFailure::Slow);
        assert_eq!(counters.recent_handshakes.take(), Some((901, last)));
        assert_eq!(counters.recent_handshakes.take(), None, "returned once");
        let counts = HandshakeFailure::ALL.map(|reason| counters.handshakes(reason));
        assert_eq!(counts, [1, 0, 0, 900], "the total stays");
    }

    #[test]
    fn unread_requests_are_counted_by_reason() {
        let counters = Counters::default();
        for (reason, times) in RequestFailure::ALL.into_iter().zip(1..) {
            (0..times).for_each(|_| counters.request_failed(reason));
        }
        assert_eq!(
            RequestFailure::ALL.map(|reason| counters.requests_failed(reason)),
            [1, 2, 3, 4]
        );
        assert_eq!(counters.recent_requests.take(), Some((10, RequestFailure::CutOff)));
    }

    #[test]
    fn refused_order_generations_are_counted_and_summarised() {
        let (counters, node) = (Counters::default(), "a".parse::<NodeId>().unwrap());
        for _ in 0..3 {
            counters.order_generation_refused(&node, &"too high");
        }
        assert_eq!(counters.order_generations_refused(), 3);
        assert_eq!(counters.recent_orders_ahead.take(), Some((3, (node, "too high".to_owned()))));
    }

    #[test]
    fn refused_enrolments_are_counted_by_reason() {
        let counters = Counters::default();
        let node: NodeId = "a".parse().unwrap();
        for code in [Code::PermissionDenied, Code::AlreadyExists, Code::InvalidArgument] {
            counters.enrolment_refused(Some(node.clone()), code.into());
        }
        counters.enrolment_refused(None, Code::ResourceExhausted.into());
        counters.enrolment_refused(None, Code::Internal.into());
        let counts = EnrolmentRefusal::ALL.map(|reason| counters.enrolments_refused(reason));
        assert_eq!(counts, [1; 5]);
        let last = (None, EnrolmentRefusal::Server);
        assert_eq!(counters.recent_enrolments.take(), Some((5, last)));
    }
}
