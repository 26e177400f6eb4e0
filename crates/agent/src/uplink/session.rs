//! One session with the server over one stream, from the hello message to its end.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farrier_fleet::fleet::event::{Cordon, NodeInventory};
use farrier_fleet::fleet::{NodeId, Order, OrderStatus};
use farrier_wire::client::Agents;
use farrier_wire::convert;
use farrier_wire::limits::FLIGHT_MAX;
use farrier_wire::proof::{NodeKey, Purpose};
use farrier_wire::proto::{
    self, AgentMessage, ServerMessage, agent_message, report, server_message,
};
use jiff::{SignedDuration, Timestamp};
use prost::Message;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Request, Streaming};

use super::connection_status::StatusSender;
use super::identity::Validity;
use super::journal_name::JournalName;
use super::journal_reader::{JournalRead, JournalReader};
use super::upload;
use super::{Parts, SessionError, coverage};
use crate::monitor::{Chain, ObservedGap};

/// Maximum number of messages in the queue for the connection. If the queue is full, the connection
/// is dead.
const OUTBOUND_MAX: usize = 64;
/// Maximum number of bytes of unacknowledged records in flight. It limits the memory of the agent.
const FLIGHT_BYTES_MAX: u64 = 1 << 20;
/// Timeout for the server's welcome message.
const WELCOME_WAIT: Duration = Duration::from_secs(15);
/// Polling interval for the first inventory. There is nothing to send until the health monitor has
/// published its state.
const INVENTORY_POLL: Duration = Duration::from_millis(100);

/// State that is kept when a stream ends.
pub(super) struct UplinkSession {
    pub(super) parts: Parts,
    /// Set if the server accepted the last session. The value is the time over which agents spread
    /// their reconnects.
    pub(super) accepted: Option<Duration>,
    /// The server has acknowledged every record that contains changes, up to the record with this
    /// sequence number.
    pub(super) reported: u64,
    pub(super) status: StatusSender,
    /// Validity of the certificate that this stream uses.
    pub(super) validity: Option<Validity>,
    acked: watch::Sender<Option<u64>>,
    reader: JournalReader,
    name: JournalName,
    renewal_tried: Option<Instant>,
    /// Whether the server rejected a message. The next stream then starts by sending all open
    /// findings.
    must_resync: bool,
}

/// State of one stream.
struct Stream {
    node: NodeId,
    out: mpsc::Sender<AgentMessage>,
    inventory: NodeInventory,
    /// The coverage gaps sent last. `None` if none were sent yet.
    coverage: Option<Vec<ObservedGap>>,
    /// The cordon of the node. A value is marked as seen when it is reported.
    cordon: watch::Receiver<Cordon>,
    /// Sequence number of the last record sent.
    sent: u64,
    /// Records in flight, with their sizes in bytes.
    in_flight: VecDeque<(u64, u64)>,
    /// The newest status of each order sent on this stream.
    statuses: BTreeMap<u64, OrderStatus>,
    /// Server time minus local time.
    clock_offset: SignedDuration,
    submissions: JoinSet<(u64, OrderStatus)>,
    /// Uploads in progress. They end with the stream. The order executor retries them.
    uploads: JoinSet<()>,
}

impl UplinkSession {
    pub(super) fn new(
        parts: Parts,
        acked: watch::Sender<Option<u64>>,
        status: StatusSender,
    ) -> Self {
        let reader = JournalReader::new(&parts.state_dir);
        let name = JournalName::new(&parts.state_dir);
        Self {
            parts,
            accepted: None,
            reported: 0,
            status,
            validity: None,
            acked,
            reader,
            name,
            renewal_tried: None,
            must_resync: false,
        }
    }

    /// Closes the journal until the next stream.
    pub(super) fn close(&mut self) {
        self.reader.close();
    }

    /// Makes the next stream start with a resync, because the server rejected a message.
    pub(super) fn require_resync(&mut self) {
        self.must_resync = true;
    }

    pub(super) async fn run(
        &mut self,
        mut agents: Agents,
        node: NodeId,
    ) -> Result<Infallible, SessionError> {
        self.renew(&mut agents).await?;
        let inventory = self.wait_for_inventory().await;
        let journal = self.name.get().map_err(SessionError::Journal)?;
        let (out, outbound) = mpsc::channel(OUTBOUND_MAX);
        let mut stream = Stream {
            inventory,
            coverage: None,
            cordon: self.parts.cordon.clone(),
            out,
            sent: 0,
            in_flight: VecDeque::new(),
            statuses: BTreeMap::new(),
            clock_offset: SignedDuration::ZERO,
            submissions: JoinSet::new(),
            uploads: JoinSet::new(),
            node,
        };
        let hello = self.hello(&mut stream, journal);
        stream.send(agent_message::What::Hello(hello))?;
        let mut request = Request::new(ReceiverStream::new(outbound));
        self.name_node(&stream.node, request.metadata_mut())?;
        let opening = async {
            let mut inbound = agents.session(request).await?.into_inner();
            match inbound.message().await?.ok_or(SessionError::Ended)?.what {
                Some(server_message::What::Welcome(welcome)) => Ok((inbound, welcome)),
                _ => Err(SessionError::Protocol),
            }
        };
        let opened = tokio::time::timeout(WELCOME_WAIT, opening).await;
        let (inbound, welcome) = opened.map_err(|_| SessionError::TimedOut)??;
        self.accepted = Some(Duration::from_secs(u64::from(welcome.reconnect_spread_s)));
        self.status.connected(Timestamp::now());
        tracing::info!(server = %self.parts.url, acked = ?welcome.acked_record, "connected to the server");
        self.resume(&mut stream, &welcome)?;
        let interval = Duration::from_secs(u64::from(welcome.heartbeat_interval_s.clamp(1, 3600)));
        self.run_stream(agents, stream, inbound, interval).await
    }

    /// Adds the node's name to the metadata if the connection has no certificate.
    fn name_node(&self, node: &NodeId, metadata: &mut MetadataMap) -> Result<(), SessionError> {
        if self.parts.url.is_plain() {
            let name: MetadataValue<_> =
                node.as_str().parse().map_err(|_| SessionError::Protocol)?;
            metadata.insert("farrier-node", name);
        }
        Ok(())
    }

    async fn wait_for_inventory(&self) -> NodeInventory {
        loop {
            if let Some(inventory) = (self.parts.inventory)() {
                return inventory;
            }
            tokio::time::sleep(INVENTORY_POLL).await;
        }
    }

    fn hello(&self, stream: &mut Stream, journal: String) -> proto::Hello {
        // Mark the value as seen, so that only later changes are reported.
        let cordon = convert::cordon_message(&stream.cordon.borrow_and_update());
        stream.statuses.extend(self.parts.order_handler.outstanding());
        let outstanding = stream
            .statuses
            .iter()
            .map(|(generation, status)| convert::order_status_message(*generation, status));
        stream.coverage = (self.parts.coverage)();
        proto::Hello {
            inventory: Some(convert::inventory_message(&stream.inventory)),
            journal,
            last_record: *self.parts.durable.borrow(),
            outstanding: outstanding.collect(),
            cordon: Some(cordon),
            last_order: self.parts.order_handler.last_order(),
            coverage: stream.coverage.as_deref().map(coverage::message),
        }
    }

    /// Resumes after the last acknowledged record. If this is impossible, sends all open findings.
    fn resume(
        &mut self,
        stream: &mut Stream,
        welcome: &proto::Welcome,
    ) -> Result<(), SessionError> {
        if let Ok(server) = Timestamp::from_millisecond(welcome.server_time_ms) {
            stream.clock_offset = server.duration_since(Timestamp::now());
        }
        let durable = *self.parts.durable.borrow();
        if welcome.acked_record.is_some_and(|acked| acked > durable) {
            self.name.renew().map_err(SessionError::Journal)?;
            return Err(SessionError::NewJournal);
        }
        self.acked.send_replace(welcome.acked_record);
        if let Some(acked) = welcome.acked_record.filter(|_| !self.must_resync)
            && self.reader.resume(acked).map_err(SessionError::Journal)?
        {
            stream.sent = acked;
            return self.pump(stream);
        }
        self.resync(stream)
    }

    /// Sends all open findings. They replace the findings that the server has.
    fn resync(&mut self, stream: &mut Stream) -> Result<(), SessionError> {
        let durable = *self.parts.durable.borrow();
        let (record, open) = self.reader.resync(durable).map_err(SessionError::Journal)?;
        let open = convert::findings_message(record, open);
        stream.in_flight.clear();
        stream.sent = record;
        stream.in_flight.push_back((record, open.encoded_len() as u64));
        self.must_resync = false;
        stream.report(report::What::Open(open))
    }

    /// Sends durable records as long as the bytes and the number of records in flight are below
    /// their limits.
    fn pump(&mut self, stream: &mut Stream) -> Result<(), SessionError> {
        let durable = *self.parts.durable.borrow_and_update();
        loop {
            let in_flight_bytes: u64 = stream.in_flight.iter().map(|(_, bytes)| bytes).sum();
            if stream.in_flight.len() >= FLIGHT_MAX || in_flight_bytes >= FLIGHT_BYTES_MAX {
                return Ok(());
            }
            // Read one record at a time, and stop at the limit. The file stays open in between.
            let records = match self.reader.read(durable, 1).map_err(SessionError::Journal)? {
                JournalRead::Records(records) if records.is_empty() => {
                    if stream.in_flight.is_empty() {
                        self.reported = durable;
                    }
                    return Ok(());
                }
                JournalRead::Records(records) => records,
                JournalRead::Gap => return self.resync(stream),
            };
            for record in records {
                let message = convert::changes_message(record.seq, stream.sent, record.changes);
                let changes = match message {
                    Ok(changes) => changes,
                    Err(err) => {
                        let err = Chain(&err);
                        tracing::warn!(record = record.seq, %err, "failed to encode a record, resyncing");
                        return self.resync(stream);
                    }
                };
                stream.sent = record.seq;
                stream.in_flight.push_back((record.seq, changes.encoded_len() as u64));
                stream.report(report::What::Changes(changes))?;
            }
        }
    }

    async fn run_stream(
        &mut self,
        mut agents: Agents,
        mut stream: Stream,
        mut inbound: Streaming<ServerMessage>,
        interval: Duration,
    ) -> Result<Infallible, SessionError> {
        let mut heartbeats = tokio::time::interval(interval);
        let mut renewals = tokio::time::interval(self.renewal_check_interval());
        renewals.reset();
        heartbeats.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let status_changed = Arc::clone(&self.parts.status_changed);
        let mut durable = self.parts.durable.clone();
        loop {
            tokio::select! {
                message = inbound.message() => {
                    let message = message?.ok_or(SessionError::Ended)?;
                    self.handle(&mut stream, message)?;
                }
                Ok(()) = durable.changed() => {
                    durable.mark_unchanged();
                    self.pump(&mut stream)?;
                }
                () = status_changed.notified() => self.send_statuses(&mut stream)?,
                Ok(()) = stream.cordon.changed() => {
                    let cordon = convert::cordon_message(&stream.cordon.borrow_and_update());
                    stream.report(report::What::Cordon(cordon))?;
                }
                Some(Ok((generation, status))) = stream.submissions.join_next() => {
                    stream.send_status(generation, &status)?;
                }
                Some(sending) = self.parts.artifacts.recv() => {
                    let mut metadata = MetadataMap::new();
                    self.name_node(&stream.node, &mut metadata)?;
                    stream.uploads.spawn(upload::upload(agents.clone(), metadata, sending));
                }
                Some(_) = stream.uploads.join_next() => {}
                _ = heartbeats.tick() => self.send_heartbeat(&mut stream)?,
                _ = renewals.tick() => self.renew(&mut agents).await?,
            }
        }
    }

    fn send_heartbeat(&mut self, stream: &mut Stream) -> Result<(), SessionError> {
        self.send_statuses(stream)?;
        self.send_coverage(stream)?;
        match (self.parts.inventory)().filter(|inventory| *inventory != stream.inventory) {
            Some(inventory) => {
                stream.inventory = inventory;
                let message = convert::inventory_message(&stream.inventory);
                stream.report(report::What::Inventory(message))
            }
            None => stream.report(report::What::Heartbeat(proto::Heartbeat {})),
        }
    }

    /// Sends the coverage gaps if they changed.
    fn send_coverage(&self, stream: &mut Stream) -> Result<(), SessionError> {
        let Some(gaps) = (self.parts.coverage)() else { return Ok(()) };
        if stream.coverage.as_ref().is_some_and(|sent| coverage::is_same(sent, &gaps)) {
            return Ok(());
        }
        let message = coverage::message(&gaps);
        stream.coverage = Some(gaps);
        stream.report(report::What::Coverage(message))
    }

    fn handle(&mut self, stream: &mut Stream, message: ServerMessage) -> Result<(), SessionError> {
        match message.what {
            Some(server_message::What::Ack(proto::Ack { record })) => {
                while stream.in_flight.front().is_some_and(|(number, _)| *number <= record) {
                    stream.in_flight.pop_front();
                }
                self.acked.send_replace(Some(record));
                self.pump(stream)
            }
            Some(server_message::What::Resync(_)) => self.resync(stream),
            Some(server_message::What::Order(order)) => self.submit(stream, order),
            Some(server_message::What::OrderStatusAck(proto::OrderStatusAck {
                generation,
                accepted,
            })) => {
                // Ignore an acknowledgement of `Accepted`. The order may have ended in the
                // meantime, and its final status is not acknowledged yet.
                if !accepted {
                    stream.statuses.remove(&generation);
                    self.parts.order_handler.acknowledge(generation);
                }
                Ok(())
            }
            Some(server_message::What::Welcome(_)) => Err(SessionError::Protocol),
            // This type of message is from a newer server.
            None => Ok(()),
        }
    }

    fn submit(&self, stream: &mut Stream, message: proto::Order) -> Result<(), SessionError> {
        let order = match convert::order(stream.node.clone(), message) {
            Ok(order) => order,
            Err(err) => {
                return stream.send_status(
                    err.generation,
                    &OrderStatus::Refused { reason: err.to_string() },
                );
            }
        };
        let order = to_local_clock(order, stream.clock_offset);
        let handler = Arc::clone(&self.parts.order_handler);
        stream.submissions.spawn_blocking(move || (order.generation, handler.submit(order)));
        Ok(())
    }

    /// Sends order statuses that changed since they were last sent.
    fn send_statuses(&self, stream: &mut Stream) -> Result<(), SessionError> {
        for (generation, status) in self.parts.order_handler.outstanding() {
            if stream.statuses.get(&generation) != Some(&status) {
                stream.send_status(generation, &status)?;
            }
        }
        Ok(())
    }

    /// Renews the certificate when two thirds of its validity have passed. If the renewal fails,
    /// the old certificate stays in use.
    async fn renew(&mut self, agents: &mut Agents) -> Result<(), SessionError> {
        // A timer may fire slightly early, so the minimum is a tenth shorter than the interval.
        let min_interval = self.renewal_check_interval().mul_f64(0.9);
        let is_early = self.renewal_tried.is_some_and(|at| at.elapsed() < min_interval);
        let is_due =
            self.validity.is_some_and(|validity| validity.is_renewal_due(Timestamp::now()));
        if is_early || !is_due {
            return Ok(());
        }
        // Limit the attempts. If the clock is weeks ahead, a renewal is due on every stream.
        self.renewal_tried = Some(Instant::now());
        match self.next_certificate(agents).await {
            Ok(()) => {
                tracing::info!("certificate renewed");
                Err(SessionError::Renewed)
            }
            Err(err) => {
                tracing::warn!(err = %Chain(&err), "failed to renew the certificate");
                Ok(())
            }
        }
    }

    fn renewal_check_interval(&self) -> Duration {
        self.validity.map_or(Duration::from_secs(600), Validity::renewal_check_interval)
    }

    async fn next_certificate(&self, agents: &mut Agents) -> Result<(), SessionError> {
        let key = NodeKey::generate()?;
        let request = proto::RenewRequest { key: Some(key.prove(Purpose::Renew)?) };
        let signed = tokio::time::timeout(WELCOME_WAIT, agents.renew(request)).await;
        let signed = signed.map_err(|_| SessionError::TimedOut)??.into_inner();
        Ok(self.parts.identity_store.store(&key, &signed)?)
    }
}

impl Stream {
    fn send(&self, what: agent_message::What) -> Result<(), SessionError> {
        match self.out.try_send(AgentMessage { what: Some(what) }) {
            Err(mpsc::error::TrySendError::Full(_)) => Err(SessionError::TimedOut),
            // The stream has ended. The session will read the error next.
            Err(mpsc::error::TrySendError::Closed(_)) | Ok(()) => Ok(()),
        }
    }

    fn report(&self, what: report::What) -> Result<(), SessionError> {
        self.send(agent_message::What::Report(proto::Report { what: Some(what) }))
    }

    fn send_status(&mut self, generation: u64, status: &OrderStatus) -> Result<(), SessionError> {
        self.statuses.insert(generation, status.clone());
        self.send(agent_message::What::OrderStatus(convert::order_status_message(
            generation, status,
        )))
    }
}

/// Converts the lease from the server's clock to the clock of this machine, which the executor
/// uses.
fn to_local_clock(order: Order, clock_offset: SignedDuration) -> Order {
    let lease_until = order.lease_until.checked_sub(clock_offset).unwrap_or(order.lease_until);
    Order { lease_until, ..order }
}

#[cfg(test)]
mod tests {
    use farrier_fleet::fleet::OrderKind;

    use super::*;

    #[test]
    fn a_lease_lasts_as_long_as_on_the_servers_clock() {
        let server: Timestamp = "2026-11-15T12:00:00Z".parse().unwrap();
        let lease = SignedDuration::from_mins(10);
        for clock_offset in
            [SignedDuration::from_hours(-1), SignedDuration::ZERO, SignedDuration::from_hours(1)]
        {
            let order = Order {
                node: "a".parse().unwrap(),
                generation: 1,
                kind: OrderKind::Cordon,
                boot: None,
                lease_until: server + lease,
                reason: farrier_fleet::fleet::Reason::Enrolled,
            };
            let local = server - clock_offset;
            assert_eq!(
                to_local_clock(order, clock_offset).lease_until.duration_since(local),
                lease
            );
        }
    }
}
