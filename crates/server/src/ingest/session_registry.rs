//! Who is connected, and when each node was last heard. A heartbeat is one store to an atomic, and goes no further.

mod connection;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use farrier_fleet::fleet::event::Event;
use farrier_fleet::fleet::{AccessChange, Entry, FleetState, NodeId, Order};
use jiff::{SignedDuration, Timestamp};
use tokio::sync::{mpsc, oneshot};

use super::quota::{NodeQuota, ReportQuota};

/// Orders that may wait for a stream: there is one at a time.
const ORDERS_MAX: usize = 4;

/// A node is said to be silent after this part of the time after which it is taken out: so there is a doubt first, and time to
/// see whether a switch is to blame.
const DOUBT_PART: u32 = 3;

/// Why a stream is ended by the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DisconnectReason {
    /// The node has opened another one.
    Displaced,
    /// Its certificate counts no more.
    Revoked,
    /// Its certificate has come to its end.
    Expired,
    /// It is not of the fleet any more.
    Retired,
    /// It does not read what it is told.
    Slow,
    /// The server's clock was stepped: leases are counted by it, and a new stream begins with the time.
    ClockStepped,
    /// The server ends.
    Stopping,
}

/// When a node was last heard.
#[derive(Debug, Default)]
pub(crate) struct LastSeen {
    /// Milliseconds since the server started.
    heard_ms: AtomicU64,
    /// From when its heartbeat timeout is counted, where it was not observed since it was last heard: likewise.
    observed_ms: AtomicU64,
    /// Whether the log says that it is silent.
    is_silent: AtomicBool,
    /// Whether its reports wait, for its quota or for disk space.
    is_delayed: AtomicBool,
}

impl LastSeen {
    /// Its reports wait, or do no longer.
    pub(crate) fn set_delayed(&self, is_delayed: bool) {
        self.is_delayed.store(is_delayed, Ordering::Relaxed);
    }

    /// From when its heartbeat timeout is counted.
    fn counted_from_ms(&self) -> u64 {
        self.heard_ms.load(Ordering::Relaxed).max(self.observed_ms.load(Ordering::Relaxed))
    }
}

#[derive(Debug)]
struct Stream {
    number: u64,
    /// Of the certificate; none on a connection without one.
    generation: Option<u64>,
    orders: mpsc::Sender<Box<Order>>,
    cut: oneshot::Sender<DisconnectReason>,
}

#[derive(Debug)]
struct SessionEntry {
    pulse: Arc<LastSeen>,
    /// Outlives the stream: a node gets no more by connecting again.
    quota: Arc<Mutex<NodeQuota>>,
    stream: Option<Stream>,
    /// When a session was last opened, in milliseconds since the server started.
    opened_ms: Option<u64>,
    /// When the last session ended, while there is no other.
    closed_ms: Option<u64>,
}

/// What a stream gets when it takes its node's seat.
#[derive(Debug)]
pub(crate) struct RegisteredSession {
    pub(crate) number: u64,
    pub(crate) pulse: Arc<LastSeen>,
    pub(crate) quota: Arc<Mutex<NodeQuota>>,
    /// Boxed: a channel has room for thirty-two before the first is sent.
    pub(crate) orders: mpsc::Receiver<Box<Order>>,
    pub(crate) cut: oneshot::Receiver<DisconnectReason>,
}

/// Everybody who is connected, or was.
#[derive(Debug)]
pub(crate) struct SessionRegistry {
    started: Instant,
    numbers: AtomicU64,
    quota: ReportQuota,
    /// Times that a node's reports had to wait for its quota.
    throttled: AtomicU64,
    seats: Mutex<HashMap<NodeId, SessionEntry>>,
}

impl SessionRegistry {
    pub(crate) fn new(quota: ReportQuota) -> Self {
        Self::started_at(Instant::now(), quota)
    }

    pub(crate) fn started_at(started: Instant, quota: ReportQuota) -> Self {
        Self {
            started,
            numbers: AtomicU64::new(1),
            quota,
            throttled: AtomicU64::new(0),
            seats: Mutex::default(),
        }
    }

    fn seat<'s>(
        &self,
        seats: &'s mut HashMap<NodeId, SessionEntry>,
        node: &NodeId,
    ) -> &'s mut SessionEntry {
        seats.entry(node.clone()).or_insert_with(|| SessionEntry {
            pulse: Arc::default(),
            quota: Arc::new(Mutex::new(NodeQuota::new(self.quota, Instant::now()))),
            stream: None,
            opened_ms: None,
            closed_ms: None,
        })
    }

    /// A node is not read, because its reports wait for its quota: what it does not say meanwhile counts as no missed heartbeat.
    pub(crate) fn skip_heartbeats(&self, pulse: &LastSeen) {
        pulse.observed_ms.store(self.up_ms(), Ordering::Relaxed);
    }

    pub(crate) fn count_throttled(&self) {
        self.throttled.fetch_add(1, Ordering::Relaxed);
    }

    /// Times that a node's reports had to wait for its quota.
    pub(crate) fn times_throttled(&self) -> u64 {
        self.throttled.load(Ordering::Relaxed)
    }

    /// Has a seat for every node of the fleet. Before this server nobody was heard: it begins to wait when it starts.
    pub(crate) fn expect(&self, state: &FleetState) {
        let mut seats = self.seats();
        for (id, node) in &state.nodes {
            let seat = self.seat(&mut seats, id);
            seat.pulse.is_silent.store(node.liveness.heartbeat_loss().is_some(), Ordering::Relaxed);
        }
    }

    fn seats(&self) -> MutexGuard<'_, HashMap<NodeId, SessionEntry>> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A node's stream. One that it had before is ended: it is half open, or somebody copied its key.
    pub(crate) fn sit(&self, node: &NodeId, generation: Option<u64>) -> RegisteredSession {
        let (order, orders) = mpsc::channel(ORDERS_MAX);
        let (cut, is_cut) = oneshot::channel();
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let mut seats = self.seats();
        let seat = self.seat(&mut seats, node);
        let stream = Stream { number, generation, orders: order, cut };
        if let Some(before) = seat.stream.replace(stream) {
            let _ = before.cut.send(DisconnectReason::Displaced);
        }
        let (pulse, quota) = (Arc::clone(&seat.pulse), Arc::clone(&seat.quota));
        RegisteredSession { number, pulse, quota, orders, cut: is_cut }
    }

    /// The server has accepted a node's hello. One that it refuses is not heard, however often it comes. Whether the log says that it is
    /// silent, or is about to.
    #[must_use]
    pub(crate) fn accepted(&self, node: &NodeId, pulse: &LastSeen) -> bool {
        if let Some(seat) = self.seats().get_mut(node) {
            (seat.opened_ms, seat.closed_ms) = (Some(self.up_ms()), None);
        }
        pulse.set_delayed(false);
        self.heard(pulse)
    }

    /// The stream has ended; the pulse stays.
    pub(crate) fn leave(&self, node: &NodeId, number: u64) {
        if let Some(seat) = self.seats().get_mut(node) {
            seat.stream.take_if(|stream| stream.number == number);
            // One that was never accepted leaves the last as it was.
            if seat.stream.is_none() && seat.opened_ms.is_some() {
                seat.closed_ms.get_or_insert(self.up_ms());
            }
        }
    }

    fn up_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// A node was heard. Whether the log says that it is silent, once.
    pub(crate) fn heard(&self, pulse: &LastSeen) -> bool {
        pulse.heard_ms.store(self.up_ms(), Ordering::Relaxed);
        pulse.is_silent.load(Ordering::Relaxed) && pulse.is_silent.swap(false, Ordering::Relaxed)
    }

    /// Sends what was decided to whom it concerns. What a stream does not take it gets when it is opened anew.
    pub(crate) fn dispatch(&self, entries: &[Entry]) {
        for entry in entries {
            match &entry.event {
                Event::OrderIssued { order } => {
                    let mut seats = self.seats();
                    let Some(seat) = seats.get_mut(&order.node) else { continue };
                    let full = seat.stream.as_ref().is_some_and(|stream| {
                        matches!(
                            stream.orders.try_send(Box::new(order.clone())),
                            Err(mpsc::error::TrySendError::Full(_))
                        )
                    });
                    if full && let Some(stream) = seat.stream.take() {
                        let _ = stream.cut.send(DisconnectReason::Slow);
                    }
                }
                Event::Enrolled { node, .. } => {
                    let pulse = Arc::clone(&self.seat(&mut self.seats(), node).pulse);
                    self.heard(&pulse);
                }
                Event::AccessChanged {
                    change: AccessChange::CertificateRevoked { node }, ..
                } => {
                    // Streams of what was revoked are cut before the log says so. One that is open has enrolled anew meanwhile, and
                    // is heard again with what it says next.
                    let seats = self.seats();
                    if let Some(seat) = seats.get(node).filter(|it| it.stream.is_some()) {
                        seat.pulse.is_silent.store(true, Ordering::Relaxed);
                    }
                }
                Event::Retired { node, .. } => {
                    let gone = self.seats().remove(node).and_then(|seat| seat.stream);
                    if let Some(stream) = gone {
                        let _ = stream.cut.send(DisconnectReason::Retired);
                    }
                }
                _ => (),
            }
        }
    }

    /// Ends every stream for which there is a reason.
    pub(crate) fn cut(
        &self,
        reason: impl Fn(&NodeId, Option<u64>) -> Option<DisconnectReason>,
    ) -> usize {
        let mut ended = 0;
        for (node, seat) in self.seats().iter_mut() {
            let cut = seat.stream.as_ref().and_then(|stream| reason(node, stream.generation));
            if let (Some(cut), Some(stream)) = (cut, seat.stream.take_if(|_| cut.is_some())) {
                let _ = stream.cut.send(cut);
                ended += 1;
            }
        }
        ended
    }

    /// Streams that are open.
    pub(crate) fn connected(&self) -> usize {
        self.seats().values().filter(|seat| seat.stream.is_some()).count()
    }

    /// For so long nobody was observed: that counts towards no heartbeat timeout.
    pub(crate) fn extend_timeouts(&self, by: Duration) {
        let (up_ms, by_ms) = (self.up_ms(), u64::try_from(by.as_millis()).unwrap_or(u64::MAX));
        for seat in self.seats().values() {
            let from_ms = seat.pulse.counted_from_ms().saturating_add(by_ms).min(up_ms);
            seat.pulse.observed_ms.store(from_ms, Ordering::Relaxed);
        }
    }

    /// Nodes that were not heard for too long and of which the log does not say so.
    ///
    /// Of a large fleet nearly all were heard lately: for these nothing but their pulse is looked at, because whoever decides waits for it.
    pub(crate) fn silent(&self, state: &FleetState, now: Timestamp) -> Vec<Event> {
        let patience_ms =
            |heartbeat_timeout_s: u32| u64::from((heartbeat_timeout_s / DOUBT_PART).max(1)) * 1000;
        let pools = state.policy.pools.values().map(|pool| pool.heartbeat_timeout_s);
        let shortest_s =
            pools.chain([state.policy.pools_default.heartbeat_timeout_s]).min().unwrap_or_default();
        let soonest_ms = patience_ms(shortest_s);
        let up_ms = self.up_ms();
        let mut silent = Vec::new();
        for (id, seat) in self.seats().iter() {
            let pulse = &seat.pulse;
            let quiet_ms = up_ms.saturating_sub(pulse.counted_from_ms());
            if quiet_ms <= soonest_ms {
                continue;
            }
            let Some(node) =
                state.nodes.get(id).filter(|node| node.liveness.heartbeat_loss().is_none())
            else {
                continue;
            };
            if quiet_ms
                > patience_ms(state.policy.for_pool(&node.location.pool).heartbeat_timeout_s)
            {
                pulse.is_silent.store(true, Ordering::Relaxed);
                // The rest of the timeout is counted from there, too.
                let ago = SignedDuration::from_millis(quiet_ms.cast_signed());
                let since = now.checked_sub(ago).unwrap_or(now);
                silent.push(Event::HeartbeatLost { node: id.clone(), since });
            }
        }
        // In an order of their own, which is not that of a map's chance.
        silent.sort_by(|a, b| a.node().cmp(&b.node()));
        silent
    }
}
