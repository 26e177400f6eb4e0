//! Runs a simulated fleet against a real server: each node has a gRPC stream, reports its events
//! and receives orders. The streams share a few connections.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use farrier_fleet::fleet::{Event, NodeId, Order};
use farrier_wire::client::{Agents, ConnectError, ServerUrl, connect, no_tls};
use farrier_wire::form;
use farrier_wire::proto::{self, Down, Up, down, report, up};
use jiff::Timestamp;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Streaming};

use super::{NodeFault, SimFleet, SimNode};

/// Outbound message queue of a node.
const OUTBOUND_MAX: usize = 16;
/// Queue of received messages of all nodes.
const STREAM_EVENTS_MAX: usize = 4096;
/// Delay before a reconnect attempt.
const RECONNECT_DELAY: Duration = Duration::from_millis(500);

/// A request to the running fleet.
enum FleetCommand {
    InjectFault(NodeId, NodeFault),
    Repair(NodeId),
    /// Lists the nodes with faults, whether the server knows of them or not.
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

    /// Nodes with an active fault, whether the server knows of it or not.
    pub async fn faulty_nodes(&self) -> BTreeSet<NodeId> {
        let (reply, faulty) = oneshot::channel();
        let _ = self.commands.send(FleetCommand::ListFaulty(reply)).await;
        faulty.await.unwrap_or_default()
    }
}

/// An event on a node's stream.
enum StreamEvent {
    /// The stream is open: last record that the server has, and the heartbeat interval.
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
    out: mpsc::Sender<Up>,
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
            if let Some(up) = stream.message(event)
                && stream.out.try_send(up).is_err()
            {
                // The stream is stalled. The next one starts with a resync.
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

    /// Opens the stream of a node, or retries later while the node is down.
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
        let hello = Up { what: Some(up::What::Hello(hello_message(node))) };
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
    outbound: mpsc::Receiver<Up>,
    id: &NodeId,
    event_sender: &mpsc::Sender<StreamEvent>,
) -> Result<(), tonic::Status> {
    let mut request = Request::new(ReceiverStream::new(outbound));
    let name =
        id.as_str().parse().map_err(|_| tonic::Status::invalid_argument("invalid node name"))?;
    request.metadata_mut().insert("farrier-node", name);
    let mut inbound: Streaming<Down> = agents.session(request).await?.into_inner();
    while let Some(message) = inbound.message().await? {
        let event = match message.what {
            Some(down::What::Welcome(welcome)) => {
                let interval = Duration::from_secs(u64::from(welcome.report_interval_s.max(1)));
                StreamEvent::Welcome(id.clone(), welcome.acked_record, interval)
            }
            Some(down::What::Order(order)) => match form::order(id.clone(), order) {
                Ok(order) => StreamEvent::Order(order),
                Err(_) => continue,
            },
            Some(down::What::Resync(_)) => StreamEvent::Resync(id.clone()),
            Some(down::What::Ack(_) | down::What::AnswerAck(_)) | None => continue,
        };
        if event_sender.send(event).await.is_err() {
            break;
        }
    }
    Ok(())
}

impl AgentStream {
    /// Converts an event to its message. `None` if the server already has it.
    fn message(&mut self, event: Event) -> Option<Up> {
        let what = match event {
            Event::Seen { makeup, .. } => report::What::Makeup(form::makeup_message(&makeup)),
            Event::CordonSeen { cordon, .. } => report::What::Cordon(form::cordon_message(&cordon)),
            Event::Found { record, changes, .. } if record.number > self.sent => {
                let after = std::mem::replace(&mut self.sent, record.number);
                let changes = form::changes_message(record.number, after, changes).ok()?;
                report::What::Changes(changes)
            }
            Event::Answered { generation, answer, .. } => {
                let answer = form::answer_message(generation, &answer);
                return Some(Up { what: Some(up::What::Answer(answer)) });
            }
            _ => return None,
        };
        Some(report_message(what))
    }
}

fn report_message(what: report::What) -> Up {
    Up { what: Some(up::What::Report(proto::Report { what: Some(what) })) }
}

fn resync_message(node: &SimNode) -> Up {
    let open = form::findings_message(node.record().number, node.open().cloned());
    report_message(report::What::Open(open))
}

fn hello_message(node: &SimNode) -> proto::Hello {
    let record = node.record();
    let outstanding =
        node.last_status().map(|(generation, status)| form::answer_message(*generation, status));
    proto::Hello {
        makeup: Some(form::makeup_message(&node.inventory())),
        journal: record.journal,
        last_record: record.number,
        outstanding: outstanding.into_iter().collect(),
        cordon: Some(form::cordon_message(node.cordon())),
        last_order: node.last_order(),
    }
}
