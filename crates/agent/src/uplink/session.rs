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
use super::identity::Term;
use super::journal_reader::{Follower, Read};
use super::number::JournalName;
use super::upload;
use super::{Parts, TalkError};
use crate::monitor::Chain;

/// Maximum messages queued for the connection. If the queue fills up, the connection is dead.
const OUT_MAX: usize = 64;
/// Maximum bytes of unacknowledged records in flight. Bounds the agent's memory.
const FLIGHT_BYTES_MAX: u64 = 1 << 20;
/// Timeout for the server's welcome message.
const WELCOME_WAIT: Duration = Duration::from_secs(15);
/// Polling interval for the first inventory. Before the health monitor has published it there is
/// nothing to send.
const MADE_OF_EVERY: Duration = Duration::from_millis(100);

/// State that outlives a stream.
pub(super) struct Session {
    pub(super) parts: Parts,
    /// Set if the server accepted the last session: the time over which agents spread their
    /// reconnects.
    pub(super) accepted: Option<Duration>,
    /// The server has acknowledged everything up to this record, including records without changes.
    pub(super) reported: u64,
    pub(super) teller: StatusSender,
    /// Term of the certificate that this stream uses.
    pub(super) term: Option<Term>,
    acked: watch::Sender<Option<u64>>,
    follower: Follower,
    name: JournalName,
    renewal_tried: Option<Instant>,
    /// The server rejected a message: the next stream starts with a snapshot of all open findings.
    must_resync: bool,
}

/// State of one stream.
struct Stream {
    node: NodeId,
    out: mpsc::Sender<AgentMessage>,
    inventory: NodeInventory,
    /// The node's cordon. A value is marked as seen once reported.
    cordon: watch::Receiver<Cordon>,
    /// The last record sent.
    sent: u64,
    /// Records in flight, with their sizes in bytes.
    flight: VecDeque<(u64, u64)>,
    /// The newest status of each order sent on this stream.
    answers: BTreeMap<u64, OrderStatus>,
    /// How far the server's clock is ahead of ours.
    ahead: SignedDuration,
    offers: JoinSet<(u64, OrderStatus)>,
    /// Uploads in progress. They end with the stream, and the executor retries them.
    uploads: JoinSet<()>,
}

impl Session {
    pub(super) fn new(
        parts: Parts,
        acked: watch::Sender<Option<u64>>,
        teller: StatusSender,
    ) -> Self {
        let follower = Follower::new(&parts.state_dir);
        let name = JournalName::new(&parts.state_dir);
        Self {
            parts,
            accepted: None,
            reported: 0,
            teller,
            term: None,
            acked,
            follower,
            name,
            renewal_tried: None,
            must_resync: false,
        }
    }

    /// Closes the journal until the next stream.
    pub(super) fn ended(&mut self) {
        self.follower.close();
    }

    /// The server rejected a message.
    pub(super) fn refused(&mut self) {
        self.must_resync = true;
    }

    pub(super) async fn run(
        &mut self,
        mut agents: Agents,
        node: NodeId,
    ) -> Result<Infallible, TalkError> {
        self.renew(&mut agents).await?;
        let inventory = self.made_of().await;
        let journal = self.name.get().map_err(TalkError::Journal)?;
        let (out, outbound) = mpsc::channel(OUT_MAX);
        let mut stream = Stream {
            inventory,
            cordon: self.parts.cordon.clone(),
            out,
            sent: 0,
            flight: VecDeque::new(),
            answers: BTreeMap::new(),
            ahead: SignedDuration::ZERO,
            offers: JoinSet::new(),
            uploads: JoinSet::new(),
            node,
        };
        let hello = self.hello(&mut stream, journal);
        stream.say(agent_message::What::Hello(hello))?;
        let mut request = Request::new(ReceiverStream::new(outbound));
        self.name_node(&stream.node, request.metadata_mut())?;
        let opening = async {
            let mut inbound = agents.session(request).await?.into_inner();
            match inbound.message().await?.ok_or(TalkError::Ended)?.what {
                Some(server_message::What::Welcome(welcome)) => Ok((inbound, welcome)),
                _ => Err(TalkError::Language),
            }
        };
        let opened = tokio::time::timeout(WELCOME_WAIT, opening).await;
        let (inbound, welcome) = opened.map_err(|_| TalkError::Slow)??;
        self.accepted = Some(Duration::from_secs(u64::from(welcome.reconnect_spread_s)));
        self.teller.connected(Timestamp::now());
        tracing::info!(server = %self.parts.url, acked = ?welcome.acked_record, "the server is told");
        self.begin(&mut stream, &welcome)?;
        let interval = Duration::from_secs(u64::from(welcome.heartbeat_interval_s.clamp(1, 3600)));
        self.go_on(agents, stream, inbound, interval).await
    }

    /// Sends the node's name in metadata if there is no certificate.
    fn name_node(&self, node: &NodeId, metadata: &mut MetadataMap) -> Result<(), TalkError> {
        if self.parts.url.is_plain() {
            let name: MetadataValue<_> = node.as_str().parse().map_err(|_| TalkError::Language)?;
            metadata.insert("farrier-node", name);
        }
        Ok(())
    }

    async fn made_of(&self) -> NodeInventory {
        loop {
            if let Some(inventory) = (self.parts.made_of)() {
                return inventory;
            }
            tokio::time::sleep(MADE_OF_EVERY).await;
        }
    }

    fn hello(&self, stream: &mut Stream, journal: String) -> proto::Hello {
        // Marks it as seen, so that only later changes are reported.
        let cordon = convert::cordon_message(&stream.cordon.borrow_and_update());
        stream.answers.extend(self.parts.desk.outstanding());
        let outstanding = stream
            .answers
            .iter()
            .map(|(generation, it)| convert::order_status_message(*generation, it));
        proto::Hello {
            inventory: Some(convert::inventory_message(&stream.inventory)),
            journal,
            last_record: *self.parts.durable.borrow(),
            outstanding: outstanding.collect(),
            cordon: Some(cordon),
            last_order: self.parts.desk.last_order(),
        }
    }

    /// Resumes after the last acknowledged record, or resyncs.
    fn begin(&mut self, stream: &mut Stream, welcome: &proto::Welcome) -> Result<(), TalkError> {
        if let Ok(server) = Timestamp::from_millisecond(welcome.server_time_ms) {
            stream.ahead = server.duration_since(Timestamp::now());
        }
        let durable = *self.parts.durable.borrow();
        if welcome.acked_record.is_some_and(|acked| acked > durable) {
            self.name.renew().map_err(TalkError::Journal)?;
            return Err(TalkError::NewJournal);
        }
        self.acked.send_replace(welcome.acked_record);
        if let Some(acked) = welcome.acked_record.filter(|_| !self.must_resync)
            && self.follower.resume(acked).map_err(TalkError::Journal)?
        {
            stream.sent = acked;
            return self.pump(stream);
        }
        self.resync(stream)
    }

    /// Sends a snapshot of all open findings.
    fn resync(&mut self, stream: &mut Stream) -> Result<(), TalkError> {
        let durable = *self.parts.durable.borrow();
        let (record, open) = self.follower.resync(durable).map_err(TalkError::Journal)?;
        let open = convert::findings_message(record, open);
        stream.flight.clear();
        stream.sent = record;
        stream.flight.push_back((record, open.encoded_len() as u64));
        self.must_resync = false;
        stream.report(report::What::Open(open))
    }

    /// Sends durable records while the flight window has room.
    fn pump(&mut self, stream: &mut Stream) -> Result<(), TalkError> {
        let durable = *self.parts.durable.borrow_and_update();
        loop {
            let flying: u64 = stream.flight.iter().map(|(_, bytes)| bytes).sum();
            if stream.flight.len() >= FLIGHT_MAX || flying >= FLIGHT_BYTES_MAX {
                return Ok(());
            }
            // One at a time, to read no more than fits the window. The file stays open.
            let records = match self.follower.read(durable, 1).map_err(TalkError::Journal)? {
                Read::Records(records) if records.is_empty() => {
                    if stream.flight.is_empty() {
                        self.reported = durable;
                    }
                    return Ok(());
                }
                Read::Records(records) => records,
                Read::Gap => return self.resync(stream),
            };
            for record in records {
                let message = convert::changes_message(record.seq, stream.sent, record.changes);
                let changes = match message {
                    Ok(changes) => changes,
                    Err(err) => {
                        let why = Chain(&err);
                        tracing::warn!(record = record.seq, %why, "reporting all open findings");
                        return self.resync(stream);
                    }
                };
                stream.sent = record.seq;
                stream.flight.push_back((record.seq, changes.encoded_len() as u64));
                stream.report(report::What::Changes(changes))?;
            }
        }
    }

    async fn go_on(
        &mut self,
        mut agents: Agents,
        mut stream: Stream,
        mut inbound: Streaming<ServerMessage>,
        interval: Duration,
    ) -> Result<Infallible, TalkError> {
        let mut beats = tokio::time::interval(interval);
        let mut renewals = tokio::time::interval(self.look_every());
        renewals.reset();
        beats.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let bell = Arc::clone(&self.parts.bell);
        let mut durable = self.parts.durable.clone();
        loop {
            tokio::select! {
                said = inbound.message() => {
                    let said = said?.ok_or(TalkError::Ended)?;
                    self.take(&mut stream, said)?;
                }
                Ok(()) = durable.changed() => {
                    durable.mark_unchanged();
                    self.pump(&mut stream)?;
                }
                () = bell.notified() => self.answer(&mut stream)?,
                Ok(()) = stream.cordon.changed() => {
                    let cordon = convert::cordon_message(&stream.cordon.borrow_and_update());
                    stream.report(report::What::Cordon(cordon))?;
                }
                Some(Ok((generation, answer))) = stream.offers.join_next() => {
                    stream.answer(generation, &answer)?;
                }
                Some(sending) = self.parts.artifacts.recv() => {
                    let mut metadata = MetadataMap::new();
                    self.name_node(&stream.node, &mut metadata)?;
                    stream.uploads.spawn(upload::upload(agents.clone(), metadata, sending));
                }
                Some(_) = stream.uploads.join_next() => {}
                _ = beats.tick() => self.beat(&mut stream)?,
                _ = renewals.tick() => self.renew(&mut agents).await?,
            }
        }
    }

    fn beat(&mut self, stream: &mut Stream) -> Result<(), TalkError> {
        self.answer(stream)?;
        match (self.parts.made_of)().filter(|inventory| *inventory != stream.inventory) {
            Some(inventory) => {
                stream.inventory = inventory;
                let message = convert::inventory_message(&stream.inventory);
                stream.report(report::What::Inventory(message))
            }
            None => stream.report(report::What::Heartbeat(proto::Heartbeat {})),
        }
    }

    fn take(&mut self, stream: &mut Stream, said: ServerMessage) -> Result<(), TalkError> {
        match said.what {
            Some(server_message::What::Ack(proto::Ack { record })) => {
                while stream.flight.front().is_some_and(|(number, _)| *number <= record) {
                    stream.flight.pop_front();
                }
                self.acked.send_replace(Some(record));
                self.pump(stream)
            }
            Some(server_message::What::Resync(_)) => self.resync(stream),
            Some(server_message::What::Order(order)) => self.offer(stream, order),
            Some(server_message::What::OrderStatusAck(proto::OrderStatusAck {
                generation,
                accepted,
            })) => {
                // Ignore an acknowledgement of `Accepted`: the order may have ended meanwhile.
                if !accepted {
                    stream.answers.remove(&generation);
                    self.parts.desk.acknowledged(generation);
                }
                Ok(())
            }
            Some(server_message::What::Welcome(_)) => Err(TalkError::Language),
            // A message type from a newer server.
            None => Ok(()),
        }
    }

    fn offer(&self, stream: &mut Stream, message: proto::Order) -> Result<(), TalkError> {
        let order = match convert::order(stream.node.clone(), message) {
            Ok(order) => order,
            Err(err) => {
                return stream
                    .answer(err.generation, &OrderStatus::Refused { reason: err.to_string() });
            }
        };
        let order = by_own_clock(order, stream.ahead);
        let desk = Arc::clone(&self.parts.desk);
        stream.offers.spawn_blocking(move || (order.generation, desk.offer(order)));
        Ok(())
    }

    /// Sends order statuses that changed since they were last sent.
    fn answer(&self, stream: &mut Stream) -> Result<(), TalkError> {
        for (generation, answer) in self.parts.desk.outstanding() {
            if stream.answers.get(&generation) != Some(&answer) {
                stream.answer(generation, &answer)?;
            }
        }
        Ok(())
    }

    /// Renews the certificate once two thirds of its term have passed. If renewal fails, this one
    /// stays in use.
    async fn renew(&mut self, agents: &mut Agents) -> Result<(), TalkError> {
        // A timer may fire slightly early.
        let soon = self.look_every().mul_f64(0.9);
        let is_early = self.renewal_tried.is_some_and(|at| at.elapsed() < soon);
        let is_due = self.term.is_some_and(|term| term.is_due(Timestamp::now()));
        if is_early || !is_due {
            return Ok(());
        }
        // Limits attempts: with a clock weeks ahead, every stream would renew.
        self.renewal_tried = Some(Instant::now());
        match self.next_certificate(agents).await {
            Ok(()) => {
                tracing::info!("the certificate was renewed");
                Err(TalkError::Renewed)
            }
            Err(err) => {
                tracing::warn!(why = %Chain(&err), "the certificate is not renewed");
                Ok(())
            }
        }
    }

    fn look_every(&self) -> Duration {
        self.term.map_or(Duration::from_secs(600), Term::look_every)
    }

    async fn next_certificate(&self, agents: &mut Agents) -> Result<(), TalkError> {
        let key = NodeKey::generate()?;
        let request = proto::RenewRequest { key: Some(key.prove(Purpose::Renew)?) };
        let signed = tokio::time::timeout(WELCOME_WAIT, agents.renew(request)).await;
        let signed = signed.map_err(|_| TalkError::Slow)??.into_inner();
        Ok(self.parts.keep.store(&key, &signed)?)
    }
}

impl Stream {
    fn say(&self, what: agent_message::What) -> Result<(), TalkError> {
        match self.out.try_send(AgentMessage { what: Some(what) }) {
            Err(mpsc::error::TrySendError::Full(_)) => Err(TalkError::Slow),
            // The stream's error is about to be read.
            Err(mpsc::error::TrySendError::Closed(_)) | Ok(()) => Ok(()),
        }
    }

    fn report(&self, what: report::What) -> Result<(), TalkError> {
        self.say(agent_message::What::Report(proto::Report { what: Some(what) }))
    }

    fn answer(&mut self, generation: u64, answer: &OrderStatus) -> Result<(), TalkError> {
        self.answers.insert(generation, answer.clone());
        self.say(agent_message::What::OrderStatus(convert::order_status_message(
            generation, answer,
        )))
    }
}

/// Converts the lease from the server's clock to ours, which the executor uses.
fn by_own_clock(order: Order, ahead: SignedDuration) -> Order {
    let lease_until = order.lease_until.checked_sub(ahead).unwrap_or(order.lease_until);
    Order { lease_until, ..order }
}

#[cfg(test)]
mod tests {
    use farrier_fleet::fleet::OrderKind;

    use super::*;

    #[test]
    fn a_lease_holds_as_long_as_the_server_meant_whatever_this_clock_says() {
        let server: Timestamp = "2026-11-15T12:00:00Z".parse().unwrap();
        let lease = SignedDuration::from_mins(10);
        for ahead in
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
            let own = server - ahead;
            assert_eq!(by_own_clock(order, ahead).lease_until.duration_since(own), lease);
        }
    }
}
