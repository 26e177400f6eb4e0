//! The session of one node. It limits the node's reports, compares each report with the state, and
//! acknowledges the report when it is durable.

mod end;
mod reports;
mod throttle;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use farrier_fleet::fleet::event::{Cordon, Event, JournalPosition, NodeInventory};
use farrier_fleet::fleet::identity::Actor;
use farrier_fleet::fleet::reconnect::reconnect_spread_s;
use farrier_fleet::fleet::state::Liveness;
use farrier_fleet::fleet::{NodeId, Order};
use farrier_wire::convert::{self, ConvertError};
use farrier_wire::identity::Identity;
use farrier_wire::limits::{NAME_BYTES_MAX, ORDER_STATUSES_MAX, ORDERS_AHEAD_MAX};
use farrier_wire::proto::{
    self, AgentMessage, ServerMessage, agent_message, report, server_message,
};
use jiff::Timestamp;
use prost::Message;
use tokio::sync::mpsc;
use tonic::{Status, Streaming};

use self::end::{SessionEnd, chain};
use self::throttle::THROTTLE_STEP;
use super::priority::ReportQueue;
use super::quota::NodeQuota;
use super::session_registry::{DisconnectReason, LastSeen, RegisteredSession, SessionRegistry};
use crate::access::AccessStore;
use crate::controller::{CommitOutcome, Controller, DecisionCost, SubmitError};
use crate::counters::Counters;
use crate::serve::NodePeer;
use crate::space::DiskSpace;

const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
const SEND_TIMEOUT: Duration = Duration::from_secs(10);
/// A session is closed if no message arrives for this many heartbeat intervals.
const MISSED_INTERVALS_MAX: u32 = 6;

/// The expiry of a certificate is checked at least this often, because the clock may be corrected.
const CLOCK_CHECK_INTERVAL: Duration = Duration::from_secs(3600);

/// The parts of the server that all sessions share.
#[derive(Debug)]
pub(crate) struct SessionContext {
    pub(crate) controller: Controller,
    pub(crate) sessions: Arc<SessionRegistry>,
    pub(crate) store: Arc<AccessStore>,
    pub(crate) space: Arc<DiskSpace>,
    pub(crate) report_queue: ReportQueue,
    pub(crate) counters: Arc<Counters>,
    pub(crate) heartbeat_interval_s: u32,
}

impl SessionContext {
    /// Whether a certificate was revoked. Returns false if the access store is unreadable, because
    /// a disk failure must not disconnect the whole fleet.
    fn refuses(&self, identity: &Identity) -> bool {
        self.store.admits(identity).is_ok_and(|admits| !admits)
    }
}

pub(crate) type Outbound = mpsc::Sender<Box<OutboundMessage>>;

/// A message to the node. It is boxed, because a channel allocates room for 32 messages at once.
pub(crate) type OutboundMessage = Result<ServerMessage, Status>;

/// Serves a session until it ends.
pub(crate) async fn serve(
    context: Arc<SessionContext>,
    node: NodeId,
    certificate: Option<NodePeer>,
    mut inbound: Streaming<AgentMessage>,
    out: Outbound,
) {
    let end = match Box::pin(hello(&mut inbound)).await {
        Ok(hello) => {
            let generation =
                certificate.as_ref().map(|certificate| certificate.identity.generation);
            let RegisteredSession { number, last_seen, quota, orders, mut disconnect } =
                context.sessions.register(&node, generation);
            let mut session = Session {
                context: &context,
                node: node.clone(),
                last_seen,
                quota,
                is_throttled: false,
                changes_to_skip: 0,
                snapshot_bytes: 0,
                logged: Logged::default(),
                is_refused: false,
                refused_inventory: None,
                out: &out,
                journal: String::new(),
                last: None,
                inventory: None,
                last_sent_order: 0,
            };
            let run = async {
                // The certificate may have been revoked after the TLS handshake and before this
                // session was registered. That revocation could not disconnect the session.
                if certificate
                    .as_ref()
                    .is_some_and(|certificate| context.refuses(&certificate.identity))
                {
                    return Err(SessionEnd::Disconnected(DisconnectReason::Revoked));
                }
                session.run(hello, &mut inbound, orders).await
            };
            let end = tokio::select! {
                // Check for a disconnect first: the last message of a revoked node must not count.
                biased;
                Ok(reason) = &mut disconnect => Err(SessionEnd::Disconnected(reason)),
                end = run => end,
                () = until_expired(certificate.as_ref().map(|certificate| certificate.until)) => Err(SessionEnd::Disconnected(DisconnectReason::Expired)),
            };
            context.sessions.deregister(&node, number);
            end.err()
        }
        Err(end) => Some(end),
    };
    let Some(end) = end else { return };
    match &end {
        SessionEnd::OrdersAhead { .. } => context.counters.order_generation_refused(&node, &end),
        SessionEnd::ClosedByNode | SessionEnd::Lost(_) => {}
        _ => context.counters.session_ended(&node, chain(&end)),
    }
    tracing::debug!(%node, reason = %chain(&end), "a session ended");
    if let Some(status) = end.status() {
        let _ = tokio::time::timeout(SEND_TIMEOUT, out.send(Box::new(Err(status)))).await;
    }
}

pub(crate) fn unknown_node() -> Status {
    Status::failed_precondition(
        "the node is not part of the fleet: it was retired or never enrolled",
    )
}

pub(crate) fn expired() -> Status {
    Status::unauthenticated("the certificate has expired")
}

/// Returns when a certificate expires. Without a certificate, never returns.
async fn until_expired(until: Option<Timestamp>) {
    let Some(until) = until else { return std::future::pending().await };
    loop {
        let Ok(remaining) = Duration::try_from(until.duration_since(Timestamp::now())) else {
            return;
        };
        if remaining.is_zero() {
            return;
        }
        // The clock may be corrected in the meantime.
        tokio::time::sleep(remaining.min(CLOCK_CHECK_INTERVAL)).await;
    }
}

async fn hello(inbound: &mut Streaming<AgentMessage>) -> Result<Box<proto::Hello>, SessionEnd> {
    let first = tokio::time::timeout(HELLO_TIMEOUT, inbound.message())
        .await
        .map_err(|_| SessionEnd::Idle)?;
    match first.map_err(SessionEnd::Lost)?.ok_or(SessionEnd::ClosedByNode)?.what {
        Some(agent_message::What::Hello(hello)) => Ok(Box::new(hello)),
        _ => Err(SessionEnd::Hello),
    }
}

/// Waits for the next message from the node. The message is boxed, because a future reserves space
/// for its result while it waits.
async fn next_message(
    inbound: &mut Streaming<AgentMessage>,
    idle: Duration,
) -> Result<Box<AgentMessage>, SessionEnd> {
    let message =
        tokio::time::timeout(idle, inbound.message()).await.map_err(|_| SessionEnd::Idle)?;
    message.map_err(SessionEnd::Lost)?.map(Box::new).ok_or(SessionEnd::ClosedByNode)
}

struct Session<'d> {
    context: &'d SessionContext,
    node: NodeId,
    last_seen: Arc<LastSeen>,
    quota: Arc<Mutex<NodeQuota>>,
    /// Whether reports wait for the quota.
    is_throttled: bool,
    /// Number of change messages in flight that the server skips. The node sent them before the
    /// server asked for all open findings. The report of all open findings will include these
    /// changes.
    changes_to_skip: usize,
    /// Size of the last report of all open findings.
    snapshot_bytes: usize,
    logged: Logged,
    /// Whether a report was not logged because disk space was low. When there is enough space
    /// again, the server asks for all open findings.
    is_refused: bool,
    /// An inventory that was not logged because disk space is low.
    refused_inventory: Option<Box<NodeInventory>>,
    out: &'d Outbound,
    /// ID of the node's journal. `last` is the last record of the journal that is durable in the
    /// log.
    journal: String,
    last: Option<u64>,
    /// The node's inventory. The pointer is shared with the fleet state.
    inventory: Option<Arc<NodeInventory>>,
    /// Generation of the last order sent in this session.
    last_sent_order: u64,
}

/// Problems with a node's reports that have not ended according to the log.
#[derive(Debug, Clone, Copy, Default)]
struct Logged {
    is_over_quota: bool,
    is_unreadable: bool,
}

/// What the fleet state knows about a node when the node opens a session.
struct NodeRecord {
    record: Option<JournalPosition>,
    inventory: Option<Arc<NodeInventory>>,
    /// Whether the node's heartbeat is lost, or its certificate was revoked.
    is_disconnected: bool,
    logged: Logged,
    /// Generation of the last order.
    generation: u64,
    /// Seconds over which agents spread their reconnections. The value depends on the size of the
    /// fleet.
    reconnect_spread_s: u32,
}

impl Session<'_> {
    async fn run(
        &mut self,
        hello: Box<proto::Hello>,
        inbound: &mut Streaming<AgentMessage>,
        mut orders: mpsc::Receiver<Box<Order>>,
    ) -> Result<(), SessionEnd> {
        // Boxed, like the futures below, to keep idle sessions small: there may be 100,000 of them.
        Box::pin(self.handshake(*hello)).await?;
        let end = self.read(inbound, &mut orders).await;
        if end.as_ref().is_err_and(SessionEnd::is_unreadable_report) {
            Box::pin(self.log_unreadable()).await;
        }
        end
    }

    /// Handles messages until the stream ends.
    async fn read(
        &mut self,
        inbound: &mut Streaming<AgentMessage>,
        orders: &mut mpsc::Receiver<Box<Order>>,
    ) -> Result<(), SessionEnd> {
        let idle = Duration::from_secs(
            u64::from(self.context.heartbeat_interval_s * MISSED_INTERVALS_MAX).max(5),
        );
        loop {
            let wait = self.quota().wait(Instant::now());
            Box::pin(self.throttle(wait.is_some())).await?;
            tokio::select! {
                message = next_message(inbound, idle), if wait.is_none() => {
                    Box::pin(self.handle(message?)).await?;
                }
                () = tokio::time::sleep(wait.unwrap_or_default().min(THROTTLE_STEP)), if wait.is_some() => {}
                // The server reads nothing while the node is throttled. It therefore needs this
                // branch to detect a closed connection.
                () = self.out.closed(), if wait.is_some() => return Err(SessionEnd::ClosedByNode),
                Some(order) = orders.recv() => Box::pin(self.order(&order)).await?,
            }
        }
    }

    /// Handles the hello from the node, and tells the node where to resume.
    async fn handshake(&mut self, hello: proto::Hello) -> Result<(), SessionEnd> {
        self.quota().charge(hello.encoded_len(), Instant::now());
        let proto::Hello {
            inventory,
            journal,
            last_record: _,
            outstanding,
            cordon,
            last_order,
            coverage,
        } = hello;
        check_limit("journal", journal.len(), NAME_BYTES_MAX)?;
        check_limit("outstanding", outstanding.len(), ORDER_STATUSES_MAX)?;
        let inventory = convert::inventory(inventory.ok_or(ConvertError::Missing("inventory"))?)?;
        let cordon = convert::cordon(cordon.unwrap_or_default())?;
        let node_record = self.node_record().await?;
        if last_order > node_record.generation.saturating_add(ORDERS_AHEAD_MAX) {
            return Err(SessionEnd::OrdersAhead {
                reported: last_order,
                issued: node_record.generation,
            });
        }
        self.last = node_record
            .record
            .filter(|record| record.journal == journal)
            .map(|record| record.number);
        self.journal = journal;
        self.inventory = node_record.inventory;
        self.logged = node_record.logged;
        self.send(server_message::What::Welcome(proto::Welcome {
            acked_record: self.last,
            server_time_ms: self.context.controller.now().as_millisecond(),
            heartbeat_interval_s: self.context.heartbeat_interval_s,
            reconnect_spread_s: node_record.reconnect_spread_s,
        }))
        .await?;
        let is_back = self.context.sessions.mark_accepted(&self.node, &self.last_seen)
            || node_record.is_disconnected;
        // The events of a hello wait for the quota, like every report. A restored heartbeat does
        // not wait.
        if !is_back {
            self.wait_for_quota().await?;
        }
        // Submit this first, because the next events may lead to an order.
        if last_order > node_record.generation {
            tracing::warn!(node = %self.node, last_order, issued = node_record.generation, "the node had orders that are not in the log: the log is from an older backup, and later decisions, revocations and approvals are lost");
            let node = self.node.clone();
            self.submit(Event::OrderGenerationObserved { node, generation: last_order }).await?;
        }
        if is_back {
            self.submit(Event::HeartbeatRestored { node: self.node.clone() }).await?;
            self.wait_for_quota().await?;
        }
        self.report_inventory(inventory).await?;
        // If the cordon is unknown, keep the cordon that was observed before.
        if cordon != Cordon::Unknown {
            self.report_cordon(cordon).await?;
        }
        for status in outstanding {
            self.report_order_status(status).await?;
        }
        // Without coverage, keep the gaps that were reported before.
        if let Some(coverage) = coverage {
            self.report_coverage(coverage).await?;
        }
        let node = self.node.clone();
        let pending = move |state: &farrier_fleet::fleet::FleetState| {
            state
                .nodes
                .get(&node)
                .and_then(|node| node.orders.pending())
                .map(|node| node.order.clone())
        };
        if let Some(order) = self.context.controller.read(pending).await? {
            self.order(&order).await?;
        }
        // The node may have nothing new to report, although its findings are readable now.
        // Therefore ask for all open findings.
        if self.logged.is_unreadable {
            self.send(server_message::What::Resync(proto::Resync {})).await?;
        }
        Ok(())
    }

    async fn node_record(&self) -> Result<NodeRecord, SessionEnd> {
        let node = self.node.clone();
        let node_record = self.context.controller.read(move |state| {
            state.nodes.get(&node).map(|node| NodeRecord {
                record: node.reports.record().cloned(),
                inventory: node.reported_inventory().cloned(),
                is_disconnected: node.liveness != Liveness::Connected,
                logged: Logged {
                    is_over_quota: node.reports.over_quota_since().is_some(),
                    is_unreadable: node.reports.unreadable_since().is_some(),
                },
                generation: node.orders.generation(),
                reconnect_spread_s: reconnect_spread_s(state.nodes.len()),
            })
        });
        Ok(node_record.await?.ok_or_else(|| SubmitError::UnknownNode(self.node.clone()))?)
    }

    /// Handles a message, then clears the conditions that no longer hold.
    async fn handle(&mut self, message: Box<AgentMessage>) -> Result<(), SessionEnd> {
        self.charge(&message);
        self.dispatch(*message).await?;
        self.clear_conditions().await
    }

    async fn dispatch(&mut self, message: AgentMessage) -> Result<(), SessionEnd> {
        if self.context.sessions.record_message(&self.last_seen) {
            self.submit(Event::HeartbeatRestored { node: self.node.clone() }).await?;
        }
        match message.what {
            Some(agent_message::What::Report(proto::Report { what })) => match what {
                Some(report::What::Changes(changes)) => self.report_changes(changes).await,
                Some(report::What::Open(open)) => self.report_open_findings(open).await,
                Some(report::What::Inventory(inventory)) => {
                    self.report_inventory(convert::inventory(inventory)?).await
                }
                Some(report::What::Cordon(cordon)) => {
                    self.report_cordon(convert::cordon(cordon)?).await
                }
                Some(report::What::Coverage(coverage)) => self.report_coverage(coverage).await,
                // `None` is a message that only newer agents know. It is ignored, but counts as a
                // heartbeat.
                Some(report::What::Heartbeat(_)) | None => Ok(()),
            },
            Some(agent_message::What::OrderStatus(status)) => {
                self.report_order_status(status).await
            }
            Some(agent_message::What::Hello(_)) => Err(SessionEnd::Hello),
            None => Ok(()),
        }
    }

    async fn order(&mut self, order: &Order) -> Result<(), SessionEnd> {
        if order.generation <= self.last_sent_order {
            return Ok(());
        }
        self.last_sent_order = order.generation;
        self.send(server_message::What::Order(convert::order_message(order))).await
    }

    async fn acknowledge(&self) -> Result<(), SessionEnd> {
        let record = self.last.unwrap_or_default();
        self.send(server_message::What::Ack(proto::Ack { record })).await
    }

    async fn submit(&self, event: Event) -> Result<(), SessionEnd> {
        let outcome = self.context.controller.submit(Actor::Node(self.node.clone()), event).await?;
        // The decisions that a report causes also count towards the node's quota.
        if let CommitOutcome::Logged(DecisionCost { entries, bytes }) = outcome {
            self.quota().charge_entries(entries, bytes, Instant::now());
        }
        Ok(())
    }

    async fn send(&self, what: server_message::What) -> Result<(), SessionEnd> {
        let sent = self.out.send(Box::new(Ok(ServerMessage { what: Some(what) })));
        match tokio::time::timeout(SEND_TIMEOUT, sent).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(SessionEnd::ClosedByNode),
            Err(_) => Err(SessionEnd::NotReading),
        }
    }
}

fn check_limit(what: &'static str, found: usize, most: usize) -> Result<(), ConvertError> {
    if found <= most { Ok(()) } else { Err(ConvertError::TooMuch { what, found, most }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The size of a future, without creating one.
    fn size_of_future<A, F: Future>(_: impl Fn(A) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn an_idle_session_is_small() {
        type Parts =
            (Arc<SessionContext>, NodeId, Option<NodePeer>, Streaming<AgentMessage>, Outbound);
        let served =
            |(context, node, peer, inbound, out): Parts| serve(context, node, peer, inbound, out);
        let bytes = size_of_future(served);
        assert!(bytes < 1792, "{bytes} bytes per connected node");
    }
}
