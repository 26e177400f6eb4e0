//! Runs a simulated fleet against a real server: each node has a gRPC stream, reports its events
//! and receives orders. The streams share a few connections.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use farrier_fleet::fleet::{Event, NodeId, Order};
use farrier_wire::client::{Agents, ConnectError, ServerUrl, connect, no_tls};
use farrier_wire::convert;
use farrier_wire::proto::{
    self, AgentMessage, ServerMessage, agent_message, report, server_message,
};
use jiff::Timestamp;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Streaming};

use super::{NodeFault, SimFleet, SimNode};

/// Maximum queued messages from a node to the server.
const OUTBOUND_MAX: usize = 16;
/// Maximum queued stream events of all nodes.
const STREAM_EVENTS_MAX: usize = 4096;
/// Delay before a reconnect attempt.
const RECONNECT_DELAY: Duration = Duration::from_millis(500);

/// A request to the running fleet.
enum FleetCommand {
    InjectFault(NodeId, NodeFault),
    Repair(NodeId),
    /// Lists the faulty nodes, whether or not the server knows of their faults.
    ListFaulty(oneshot::Sender<BTreeSet<NodeId>>),
}

/// Handle of a fleet that runs against a server.
#[derive(Debug, Clone)]
pub struct ConnectedFleet {
    commands: mpsc::Sender<FleetCommand>,
}

impl ConnectedFleet {
    /// Connects the nodes over `connections` plaintext connections and runs them in real time until
    /// all handles are dropped.
    pub async fn start(
        fleet: SimFleet,
        url: &ServerUrl,
        connections: usize,
    ) -> Result<Self, ConnectError> {
        let mut agents = Vec::new();
        for _ in 0..connections.max(1) {
            agents.push(connect(url, no_tls()).await?);
        }
        let (commands, inbox) = mpsc::channel(64);
        let (event_sender, stream_events) = mpsc::channel(STREAM_EVENTS_MAX);
        let nodes = fleet.locations().map(|(id, _)| id.clone()).collect::<Vec<_>>();
        let mut runner = FleetRunner {
            fleet,
            agents,
            event_sender,
            streams: BTreeMap::new(),
            stream_tasks: JoinSet::new(),
        };
        for id in nodes {
            runner.connect(&id, Duration::ZERO);
        }
        tokio::spawn(runner.run(inbox, stream_events));
        Ok(Self { commands })
    }

    pub async fn inject_fault(&self, node: NodeId, fault: NodeFault) {
        let _ = self.commands.send(FleetCommand::InjectFault(node, fault)).await;
    }

    /// Clears all faults of a node, as a manual repair does.
    pub async fn repair(&self, node: NodeId) {
        let _ = self.commands.send(FleetCommand::Repair(node)).await;
    }

    /// Nodes that should be out of service because of a fault, whether or not the server knows of
    /// the fault.
    pub async fn faulty_nodes(&self) -> BTreeSet<NodeId> {
        let (reply, faulty) = oneshot::channel();
        let _ = self.commands.send(FleetCommand::ListFaulty(reply)).await;
        faulty.await.unwrap_or_default()
    }
}

/// An event on a node's stream.
enum StreamEvent {
    /// The server has accepted the stream. The values are the last record that the server has, and
    /// the heartbeat interval.
    Welcome(NodeId, Option<u64>, Duration),
    Order(Order),
    Resync(NodeId),
    Closed(NodeId),
}

struct FleetRunner {
    fleet: SimFleet,
    agents: Vec<Agents>,
    event_sender: mpsc::Sender<StreamEvent>,
    /// Streams of the connected nodes.
    streams: BTreeMap<NodeId, AgentStream>,
    stream_tasks: JoinSet<()>,
}

struct AgentStream {
    out: mpsc::Sender<AgentMessage>,
    is_open: bool,
    sent: u64,
    heartbeat_interval: Duration,
    next_heartbeat: tokio::time::Instant,
}

/// How often due heartbeats are sent.
const HEARTBEAT_CHECK_INTERVAL: Duration = Duration::from_millis(250);

impl FleetRunner {
    async fn run(
        mut self,
        mut commands: mpsc::Receiver<FleetCommand>,
        mut stream_events: mpsc::Receiver<StreamEvent>,
    ) {
        let mut heartbeat_ticks = tokio::time::interval(HEARTBEAT_CHECK_INTERVAL);
        heartbeat_ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let next = self.fleet.next_at().unwrap_or(Timestamp::MAX);
            let wait =
                Duration::try_from(next.duration_since(Timestamp::now())).unwrap_or_default();
            tokio::select! {
                command = commands.recv() => match command {
                    Some(command) => self.handle_command(command),
                    None => return,
                },
                Some(event) = stream_events.recv() => self.handle_stream_event(event),
                Some(_) = self.stream_tasks.join_next() => {}
                _ = heartbeat_ticks.tick() => self.send_heartbeats(),
                () = tokio::time::sleep(wait.min(Duration::from_secs(60))) => {}
            }
            self.advance();
        }
    }

    fn handle_command(&mut self, command: FleetCommand) {
        let now = Timestamp::now();
        match command {
            FleetCommand::InjectFault(node, fault) => self.fleet.inject_fault(&node, fault, now),
            FleetCommand::Repair(node) => self.fleet.update_node(&node, |node| node.repair(now)),
            FleetCommand::ListFaulty(reply) => {
                let faulty = self.fleet.nodes.iter().filter(|(_, node)| node.is_faulty());
                let _ = reply.send(faulty.map(|(id, _)| id.clone()).collect());
            }
        }
    }

    /// Advances the fleet to the current time and sends its events.
    fn advance(&mut self) {
        for event in self.fleet.advance(Timestamp::now()) {
            let Some(id) = event.node().cloned() else { continue };
            let Some(stream) = self.streams.get_mut(&id).filter(|stream| stream.is_open) else {
                continue;
            };
            if let Some(message) = stream.message(event)
                && stream.out.try_send(message).is_err()
            {
                // The stream is stalled, so close it. The node then opens a new stream, which
                // starts with a resync if the server has missed a record.
                self.streams.remove(&id);
            }
        }
        let is_down = |id: &NodeId| !self.fleet.node(id).is_some_and(SimNode::is_up);
        let down: Vec<NodeId> = self.streams.keys().filter(|id| is_down(id)).cloned().collect();
        for id in down {
            self.streams.remove(&id);
        }
    }

    fn send_heartbeats(&mut self) {
        let now = tokio::time::Instant::now();
        for stream in self
            .streams
            .values_mut()
            .filter(|stream| stream.is_open && stream.next_heartbeat <= now)
        {
            stream.next_heartbeat = now + stream.heartbeat_interval;
            let heartbeat = report::What::Heartbeat(proto::Heartbeat {});
            let _ = stream.out.try_send(report_message(heartbeat));
        }
    }

    fn handle_stream_event(&mut self, event: StreamEvent) {
        match event {
            StreamEvent::Welcome(id, acked, heartbeat_interval) => {
                let Some(node) = self.fleet.node(&id).filter(|node| node.is_up()) else { return };
                let record = node.record().number;
                let Some(stream) = self.streams.get_mut(&id) else { return };
                (stream.is_open, stream.sent, stream.heartbeat_interval) =
                    (true, record, heartbeat_interval);
                if acked != Some(record) {
                    let _ = stream.out.try_send(resync_message(node));
                }
            }
            StreamEvent::Resync(id) => {
                if let (Some(node), Some(stream)) =
                    (self.fleet.node(&id), self.streams.get_mut(&id))
                {
                    stream.sent = node.record().number;
                    let _ = stream.out.try_send(resync_message(node));
                }
            }
            StreamEvent::Order(order) => self.fleet.deliver_order(&order, Timestamp::now()),
            StreamEvent::Closed(id) => {
                self.streams.remove(&id);
                self.connect(&id, RECONNECT_DELAY);
            }
        }
    }

    /// Opens the stream of a node after a delay. If the node is down, tries again later.
    fn connect(&mut self, id: &NodeId, after: Duration) {
        let event_sender = self.event_sender.clone();
        let Some(node) = self.fleet.node(id) else { return };
        if !node.is_up() {
            let id = id.clone();
            self.stream_tasks.spawn(async move {
                tokio::time::sleep(after.max(RECONNECT_DELAY)).await;
                let _ = event_sender.send(StreamEvent::Closed(id)).await;
            });
            return;
        }
        let (out, outbound) = mpsc::channel(OUTBOUND_MAX);
        let hello = AgentMessage { what: Some(agent_message::What::Hello(hello_message(node))) };
        let index = self.streams.len() % self.agents.len();
        let agents = self.agents[index].clone();
        let next_heartbeat = tokio::time::Instant::now();
        let stream = AgentStream {
            out,
            is_open: false,
            sent: 0,
            heartbeat_interval: HEARTBEAT_CHECK_INTERVAL,
            next_heartbeat,
        };
        if stream.out.try_send(hello).is_ok() {
            self.streams.insert(id.clone(), stream);
        }
        let id = id.clone();
        self.stream_tasks.spawn(async move {
            tokio::time::sleep(after).await;
            if let Err(err) = run_stream(agents, outbound, &id, &event_sender).await {
                tracing::debug!(node = %id, %err, "stream of a simulated node ended");
            }
            let _ = event_sender.send(StreamEvent::Closed(id)).await;
        });
    }
}

async fn run_stream(
    mut agents: Agents,
    outbound: mpsc::Receiver<AgentMessage>,
    id: &NodeId,
    event_sender: &mpsc::Sender<StreamEvent>,
) -> Result<(), tonic::Status> {
    let mut request = Request::new(ReceiverStream::new(outbound));
    let name =
        id.as_str().parse().map_err(|_| tonic::Status::invalid_argument("invalid node name"))?;
    request.metadata_mut().insert("farrier-node", name);
    let mut inbound: Streaming<ServerMessage> = agents.session(request).await?.into_inner();
    while let Some(message) = inbound.message().await? {
        let event = match message.what {
            Some(server_message::What::Welcome(welcome)) => {
                let interval = Duration::from_secs(u64::from(welcome.heartbeat_interval_s.max(1)));
                StreamEvent::Welcome(id.clone(), welcome.acked_record, interval)
            }
            Some(server_message::What::Order(order)) => match convert::order(id.clone(), order) {
                Ok(order) => StreamEvent::Order(order),
                Err(_) => continue,
            },
            Some(server_message::What::Resync(_)) => StreamEvent::Resync(id.clone()),
            Some(server_message::What::Ack(_) | server_message::What::OrderStatusAck(_)) | None => {
                continue;
            }
        };
        if event_sender.send(event).await.is_err() {
            break;
        }
    }
    Ok(())
}

impl AgentStream {
    /// Converts an event to its message. `None` if the event was already sent or has no message.
    fn message(&mut self, event: Event) -> Option<AgentMessage> {
        let what = match event {
            Event::InventoryReported { inventory, .. } => {
                report::What::Inventory(convert::inventory_message(&inventory))
            }
            Event::CordonObserved { cordon, .. } => {
                report::What::Cordon(convert::cordon_message(&cordon))
            }
            Event::FindingsReported { record, changes, .. } if record.number > self.sent => {
                let after = std::mem::replace(&mut self.sent, record.number);
                let changes = convert::changes_message(record.number, after, changes).ok()?;
                report::What::Changes(changes)
            }
            Event::OrderStatusReported { generation, status, .. } => {
                let status = convert::order_status_message(generation, &status);
                return Some(AgentMessage { what: Some(agent_message::What::OrderStatus(status)) });
            }
            _ => return None,
        };
        Some(report_message(what))
    }
}

fn report_message(what: report::What) -> AgentMessage {
    AgentMessage { what: Some(agent_message::What::Report(proto::Report { what: Some(what) })) }
}

fn resync_message(node: &SimNode) -> AgentMessage {
    let open = convert::findings_message(node.record().number, node.open().cloned());
    report_message(report::What::Open(open))
}

fn hello_message(node: &SimNode) -> proto::Hello {
    let record = node.record();
    let outstanding = node
        .last_status()
        .map(|(generation, status)| convert::order_status_message(*generation, status));
    proto::Hello {
        inventory: Some(convert::inventory_message(&node.inventory())),
        journal: record.journal,
        last_record: record.number,
        outstanding: outstanding.into_iter().collect(),
        cordon: Some(convert::cordon_message(node.cordon())),
        last_order: node.last_order(),
        coverage: Some(proto::Coverage::default()),
    }
}
