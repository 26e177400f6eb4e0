//! The session registry: it records which nodes are connected, and when each node was last seen.
//! Recording a heartbeat costs one atomic store.

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

/// Maximum number of orders in the queue of a session. A node normally has one order at a time.
const ORDERS_MAX: usize = 4;

/// A heartbeat counts as lost after the heartbeat timeout divided by this number. The node becomes
/// suspect then. The rest of the timeout leaves time to detect a common cause, such as a switch.
const HEARTBEAT_LOST_DIVISOR: u32 = 3;

/// Why the server ends a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DisconnectReason {
    /// The node opened another session.
    Displaced,
    Revoked,
    Expired,
    Retired,
    /// The node does not read its messages.
    Slow,
    /// The wall clock was stepped, and leases use the server's clock. The node gets the new time
    /// when it opens a new session.
    ClockStepped,
    Stopping,
}

#[derive(Debug, Default)]
pub(crate) struct LastSeen {
    /// When the last message arrived, in milliseconds since the server started.
    last_message_ms: AtomicU64,
    /// The last time at which the server could not observe the node, in milliseconds since the
    /// server started. If this time is later than the last message, the heartbeat timeout starts at
    /// this time.
    observed_ms: AtomicU64,
    /// Whether the log says that the node's heartbeat is lost.
    is_heartbeat_lost: AtomicBool,
    /// Whether reports from the node wait for quota or disk space.
    is_delayed: AtomicBool,
}

impl LastSeen {
    pub(crate) fn set_delayed(&self, is_delayed: bool) {
        self.is_delayed.store(is_delayed, Ordering::Relaxed);
    }

    /// Start of the heartbeat timeout.
    fn timeout_start_ms(&self) -> u64 {
        self.last_message_ms.load(Ordering::Relaxed).max(self.observed_ms.load(Ordering::Relaxed))
    }
}

#[derive(Debug)]
struct Stream {
    number: u64,
    /// Generation of the node's certificate. `None` without a certificate.
    generation: Option<u64>,
    orders: mpsc::Sender<Box<Order>>,
    disconnect: oneshot::Sender<DisconnectReason>,
}

#[derive(Debug)]
struct SessionEntry {
    last_seen: Arc<LastSeen>,
    /// Kept across sessions, so that a node gains no quota by reconnecting.
    quota: Arc<Mutex<NodeQuota>>,
    stream: Option<Stream>,
    /// When a session was last accepted, in milliseconds since the server started.
    opened_ms: Option<u64>,
    /// When the last session ended. `None` while a session is open.
    closed_ms: Option<u64>,
}

/// What a session gets when it registers.
#[derive(Debug)]
pub(crate) struct RegisteredSession {
    pub(crate) number: u64,
    pub(crate) last_seen: Arc<LastSeen>,
    pub(crate) quota: Arc<Mutex<NodeQuota>>,
    /// Boxed, because a channel allocates room for 32 orders at once.
    pub(crate) orders: mpsc::Receiver<Box<Order>>,
    pub(crate) disconnect: oneshot::Receiver<DisconnectReason>,
}

/// The sessions of all nodes. Nodes that are not connected have an entry, too.
#[derive(Debug)]
pub(crate) struct SessionRegistry {
    started: Instant,
    numbers: AtomicU64,
    quota: ReportQuota,
    /// How often a node was throttled.
    throttled: AtomicU64,
    by_node: Mutex<HashMap<NodeId, SessionEntry>>,
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
            by_node: Mutex::default(),
        }
    }

    fn entry_for<'s>(
        &self,
        by_node: &'s mut HashMap<NodeId, SessionEntry>,
        node: &NodeId,
    ) -> &'s mut SessionEntry {
        by_node.entry(node.clone()).or_insert_with(|| SessionEntry {
            last_seen: Arc::default(),
            quota: Arc::new(Mutex::new(NodeQuota::new(self.quota, Instant::now()))),
            stream: None,
            opened_ms: None,
            closed_ms: None,
        })
    }

    /// Restarts the heartbeat timeout. The server calls this function while it does not read from
    /// the node.
    pub(crate) fn skip_heartbeats(&self, last_seen: &LastSeen) {
        last_seen.observed_ms.store(self.uptime_ms(), Ordering::Relaxed);
    }

    pub(crate) fn count_throttled(&self) {
        self.throttled.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn times_throttled(&self) -> u64 {
        self.throttled.load(Ordering::Relaxed)
    }

    /// Adds all nodes of the fleet. Their heartbeat timeouts start now.
    pub(crate) fn track_nodes(&self, state: &FleetState) {
        let mut by_node = self.by_node();
        for (id, node) in &state.nodes {
            let session = self.entry_for(&mut by_node, id);
            session
                .last_seen
                .is_heartbeat_lost
                .store(node.liveness.heartbeat_loss().is_some(), Ordering::Relaxed);
        }
    }

    fn by_node(&self) -> MutexGuard<'_, HashMap<NodeId, SessionEntry>> {
        self.by_node.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a session of a node. Disconnects an earlier session of this node: either its
    /// connection is half open, or another machine has a copy of the node's key.
    pub(crate) fn register(&self, node: &NodeId, generation: Option<u64>) -> RegisteredSession {
        let (order, orders) = mpsc::channel(ORDERS_MAX);
        let (disconnect, disconnected) = oneshot::channel();
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let mut by_node = self.by_node();
        let session = self.entry_for(&mut by_node, node);
        let stream = Stream { number, generation, orders: order, disconnect };
        if let Some(before) = session.stream.replace(stream) {
            let _ = before.disconnect.send(DisconnectReason::Displaced);
        }
        let (last_seen, quota) = (Arc::clone(&session.last_seen), Arc::clone(&session.quota));
        RegisteredSession { number, last_seen, quota, orders, disconnect: disconnected }
    }

    /// Marks the hello from the node as accepted. A refused hello does not count as a heartbeat.
    /// Returns whether the log says that the node's heartbeat is lost, or is about to say so.
    #[must_use]
    pub(crate) fn mark_accepted(&self, node: &NodeId, last_seen: &LastSeen) -> bool {
        if let Some(session) = self.by_node().get_mut(node) {
            (session.opened_ms, session.closed_ms) = (Some(self.uptime_ms()), None);
        }
        last_seen.set_delayed(false);
        self.record_message(last_seen)
    }

    /// Removes a session. The time at which the node was last seen is kept.
    pub(crate) fn deregister(&self, node: &NodeId, number: u64) {
        if let Some(session) = self.by_node().get_mut(node) {
            session.stream.take_if(|stream| stream.number == number);
            // A session that was never accepted does not change the times of the last accepted
            // session.
            if session.stream.is_none() && session.opened_ms.is_some() {
                session.closed_ms.get_or_insert(self.uptime_ms());
            }
        }
    }

    fn uptime_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Records a message. Returns true if this is the first message after a lost heartbeat.
    pub(crate) fn record_message(&self, last_seen: &LastSeen) -> bool {
        last_seen.last_message_ms.store(self.uptime_ms(), Ordering::Relaxed);
        last_seen.is_heartbeat_lost.load(Ordering::Relaxed)
            && last_seen.is_heartbeat_lost.swap(false, Ordering::Relaxed)
    }

    /// Passes log entries to the sessions that they concern. If a session cannot receive an order,
    /// the node gets the order when it reconnects.
    pub(crate) fn dispatch(&self, entries: &[Entry]) {
        for entry in entries {
            match &entry.event {
                Event::OrderIssued { order } => {
                    let mut by_node = self.by_node();
                    let Some(session) = by_node.get_mut(&order.node) else { continue };
                    let is_full = session.stream.as_ref().is_some_and(|stream| {
                        matches!(
                            stream.orders.try_send(Box::new(order.clone())),
                            Err(mpsc::error::TrySendError::Full(_))
                        )
                    });
                    if is_full && let Some(stream) = session.stream.take() {
                        let _ = stream.disconnect.send(DisconnectReason::Slow);
                    }
                }
                Event::Enrolled { node, .. } => {
                    let last_seen =
                        Arc::clone(&self.entry_for(&mut self.by_node(), node).last_seen);
                    self.record_message(&last_seen);
                }
                Event::AccessChanged {
                    change: AccessChange::CertificateRevoked { node }, ..
                } => {
                    // The sessions of a revoked node are disconnected before this entry is logged.
                    // If a session is open now, the node has enrolled again, and the node's next
                    // message restores its heartbeat.
                    let by_node = self.by_node();
                    if let Some(session) =
                        by_node.get(node).filter(|session| session.stream.is_some())
                    {
                        session.last_seen.is_heartbeat_lost.store(true, Ordering::Relaxed);
                    }
                }
                Event::Retired { node, .. } => {
                    let stream = self.by_node().remove(node).and_then(|session| session.stream);
                    if let Some(stream) = stream {
                        let _ = stream.disconnect.send(DisconnectReason::Retired);
                    }
                }
                _ => (),
            }
        }
    }

    /// Disconnects all sessions for which `reason_for` returns a reason. Returns their number.
    pub(crate) fn disconnect(
        &self,
        reason_for: impl Fn(&NodeId, Option<u64>) -> Option<DisconnectReason>,
    ) -> usize {
        let mut ended = 0;
        for (node, session) in self.by_node().iter_mut() {
            let reason =
                session.stream.as_ref().and_then(|stream| reason_for(node, stream.generation));
            if let (Some(reason), Some(stream)) =
                (reason, session.stream.take_if(|_| reason.is_some()))
            {
                let _ = stream.disconnect.send(reason);
                ended += 1;
            }
        }
        ended
    }

    pub(crate) fn connected(&self) -> usize {
        self.by_node().values().filter(|session| session.stream.is_some()).count()
    }

    /// Extends all heartbeat timeouts by the time in which the server could not observe any node.
    pub(crate) fn extend_timeouts(&self, by: Duration) {
        let (uptime_ms, by_ms) =
            (self.uptime_ms(), u64::try_from(by.as_millis()).unwrap_or(u64::MAX));
        for session in self.by_node().values() {
            let from_ms = session.last_seen.timeout_start_ms().saturating_add(by_ms).min(uptime_ms);
            session.last_seen.observed_ms.store(from_ms, Ordering::Relaxed);
        }
    }

    /// Returns an event for each node whose heartbeat is lost, unless the log already has that
    /// event.
    ///
    /// The controller blocks on this call, so it has to be fast in a large fleet. For nodes that
    /// were seen recently, which are nearly all nodes, it reads only `last_seen`.
    pub(crate) fn heartbeat_losses(&self, state: &FleetState, now: Timestamp) -> Vec<Event> {
        let timeout_ms = |heartbeat_timeout_s: u32| {
            u64::from((heartbeat_timeout_s / HEARTBEAT_LOST_DIVISOR).max(1)) * 1000
        };
        let pools = state.policy.pools.values().map(|pool| pool.heartbeat_timeout_s);
        let shortest_s =
            pools.chain([state.policy.pools_default.heartbeat_timeout_s]).min().unwrap_or_default();
        let shortest_ms = timeout_ms(shortest_s);
        let uptime_ms = self.uptime_ms();
        let mut losses = Vec::new();
        for (id, session) in self.by_node().iter() {
            let last_seen = &session.last_seen;
            let idle_ms = uptime_ms.saturating_sub(last_seen.timeout_start_ms());
            if idle_ms <= shortest_ms {
                continue;
            }
            let Some(node) =
                state.nodes.get(id).filter(|node| node.liveness.heartbeat_loss().is_none())
            else {
                continue;
            };
            if idle_ms > timeout_ms(state.policy.for_pool(&node.location.pool).heartbeat_timeout_s)
            {
                last_seen.is_heartbeat_lost.store(true, Ordering::Relaxed);
                // `since` is the time at which the node was last observed. The remaining heartbeat
                // timeout counts from this time.
                let ago = SignedDuration::from_millis(idle_ms.cast_signed());
                let since = now.checked_sub(ago).unwrap_or(now);
                losses.push(Event::HeartbeatLost { node: id.clone(), since });
            }
        }
        // Sorted, because the order of a hash map is random.
        losses.sort_by(|a, b| a.node().cmp(&b.node()));
        losses
    }
}
