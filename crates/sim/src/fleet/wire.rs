//! The nodes of a fleet in memory on the real wire: each has its stream to a server, says there what it has to say, and hears its
//! orders. They go over a few connections, as many streams each.

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

use super::{Fleet, SimNode, Trouble};

/// Messages of a node that wait for the server.
const OUT_MAX: usize = 16;
/// What the nodes have heard and nobody has looked at yet.
const HEARD_MAX: usize = 4096;
/// How long a node waits that was not let in.
const AGAIN: Duration = Duration::from_millis(500);

/// What is asked of a running fleet from outside.
enum Ask {
    /// Something befalls a node.
    Befall(NodeId, Trouble),
    /// A person with a spare part mends a node.
    Repair(NodeId),
    /// How the nodes are, by what is really wrong with them.
    Ill(oneshot::Sender<BTreeSet<NodeId>>),
}

/// A fleet that runs.
#[derive(Debug, Clone)]
pub struct Herd {
    asks: mpsc::Sender<Ask>,
}

impl Herd {
    /// Connects the nodes of a fleet with a server that takes them without TLS, on `connections` connections, and lets them
    /// live in real time until all handles are gone.
    pub async fn start(
        fleet: Fleet,
        url: &ServerUrl,
        connections: usize,
    ) -> Result<Self, ConnectError> {
        let mut agents = Vec::new();
        for _ in 0..connections.max(1) {
            agents.push(connect(url, no_tls()).await?);
        }
        let (asks, inbox) = mpsc::channel(64);
        let (heard, hearing) = mpsc::channel(HEARD_MAX);
        let nodes = fleet.places().map(|(id, _)| id.clone()).collect::<Vec<_>>();
        let mut run = Run { fleet, agents, heard, lines: BTreeMap::new(), streams: JoinSet::new() };
        for id in nodes {
            run.connect(&id, Duration::ZERO);
        }
        tokio::spawn(run.live(inbox, hearing));
        Ok(Self { asks })
    }

    /// Something befalls a node.
    pub async fn befall(&self, node: NodeId, trouble: Trouble) {
        let _ = self.asks.send(Ask::Befall(node, trouble)).await;
    }

    /// A person with a spare part mends a node.
    pub async fn repair(&self, node: NodeId) {
        let _ = self.asks.send(Ask::Repair(node)).await;
    }

    /// Nodes with which something is wrong, whether anybody has found out or not.
    pub async fn ill(&self) -> BTreeSet<NodeId> {
        let (reply, ill) = oneshot::channel();
        let _ = self.asks.send(Ask::Ill(reply)).await;
        ill.await.unwrap_or_default()
    }
}

/// What a node's stream has to tell.
enum Heard {
    /// It is open; the server has this record of the journal, and wants to hear so often that the node lives.
    Welcome(NodeId, Option<u64>, Duration),
    Order(Order),
    Resync(NodeId),
    Ended(NodeId),
}

struct Run {
    fleet: Fleet,
    agents: Vec<Agents>,
    heard: mpsc::Sender<Heard>,
    /// The way out of each node that has a stream; the last record that was sent on it.
    lines: BTreeMap<NodeId, Line>,
    streams: JoinSet<()>,
}

struct Line {
    out: mpsc::Sender<AgentMessage>,
    is_open: bool,
    sent: u64,
    beat_every: Duration,
    beat_at: tokio::time::Instant,
}

/// How often it is looked whether a node has to say that it lives.
const BEATS: Duration = Duration::from_millis(250);

impl Run {
    async fn live(mut self, mut asks: mpsc::Receiver<Ask>, mut hearing: mpsc::Receiver<Heard>) {
        let mut beats = tokio::time::interval(BEATS);
        beats.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let next = self.fleet.next_at().unwrap_or(Timestamp::MAX);
            let wait =
                Duration::try_from(next.duration_since(Timestamp::now())).unwrap_or_default();
            tokio::select! {
                ask = asks.recv() => match ask {
                    Some(ask) => self.asked(ask),
                    None => return,
                },
                Some(heard) = hearing.recv() => self.hear(heard),
                Some(_) = self.streams.join_next() => {}
                _ = beats.tick() => self.beat(),
                () = tokio::time::sleep(wait.min(Duration::from_secs(60))) => {}
            }
            self.pass();
        }
    }

    fn asked(&mut self, ask: Ask) {
        let now = Timestamp::now();
        match ask {
            Ask::Befall(node, trouble) => self.fleet.befall(&node, trouble, now),
            Ask::Repair(node) => self.fleet.change(&node, |node| node.repair(now)),
            Ask::Ill(reply) => {
                let ill = self.fleet.nodes.iter().filter(|(_, node)| node.is_ill());
                let _ = reply.send(ill.map(|(id, _)| id.clone()).collect());
            }
        }
    }

    /// Lets time pass, and sends what the nodes say.
    fn pass(&mut self) {
        for event in self.fleet.advance(Timestamp::now()) {
            let Some(id) = event.node().cloned() else { continue };
            let Some(line) = self.lines.get_mut(&id).filter(|line| line.is_open) else { continue };
            if let Some(up) = line.message(event)
                && line.out.try_send(up).is_err()
            {
                // The stream is no longer read: the next one tells everything anew.
                self.lines.remove(&id);
            }
        }
        let gone = |id: &NodeId| !self.fleet.node(id).is_some_and(SimNode::is_up);
        let gone: Vec<NodeId> = self.lines.keys().filter(|id| gone(id)).cloned().collect();
        for id in gone {
            self.lines.remove(&id);
        }
    }

    fn beat(&mut self) {
        let now = tokio::time::Instant::now();
        for line in self.lines.values_mut().filter(|line| line.is_open && line.beat_at <= now) {
            line.beat_at = now + line.beat_every;
            let beat = report::What::Heartbeat(proto::Heartbeat {});
            let _ = line.out.try_send(reported(beat));
        }
    }

    fn hear(&mut self, heard: Heard) {
        match heard {
            Heard::Welcome(id, acked, beat_every) => {
                let Some(node) = self.fleet.node(&id).filter(|node| node.is_up()) else { return };
                let record = node.record().number;
                let Some(line) = self.lines.get_mut(&id) else { return };
                (line.is_open, line.sent, line.beat_every) = (true, record, beat_every);
                if acked != Some(record) {
                    let _ = line.out.try_send(resync(node));
                }
            }
            Heard::Resync(id) => {
                if let (Some(node), Some(line)) = (self.fleet.node(&id), self.lines.get_mut(&id)) {
                    line.sent = node.record().number;
                    let _ = line.out.try_send(resync(node));
                }
            }
            Heard::Order(order) => self.fleet.order(&order, Timestamp::now()),
            Heard::Ended(id) => {
                self.lines.remove(&id);
                self.connect(&id, AGAIN);
            }
        }
    }

    /// Opens a node's stream; while the node is gone it is tried again and again.
    fn connect(&mut self, id: &NodeId, after: Duration) {
        let heard = self.heard.clone();
        let Some(node) = self.fleet.node(id) else { return };
        if !node.is_up() {
            let id = id.clone();
            self.streams.spawn(async move {
                tokio::time::sleep(after.max(AGAIN)).await;
                let _ = heard.send(Heard::Ended(id)).await;
            });
            return;
        }
        let (out, outbound) = mpsc::channel(OUT_MAX);
        let hello = AgentMessage { what: Some(agent_message::What::Hello(hello(node))) };
        let place = self.lines.len() % self.agents.len();
        let agents = self.agents[place].clone();
        let beat_at = tokio::time::Instant::now();
        let line = Line { out, is_open: false, sent: 0, beat_every: BEATS, beat_at };
        if line.out.try_send(hello).is_ok() {
            self.lines.insert(id.clone(), line);
        }
        let id = id.clone();
        self.streams.spawn(async move {
            tokio::time::sleep(after).await;
            if let Err(err) = stream(agents, outbound, &id, &heard).await {
                tracing::debug!(node = %id, %err, "a simulated node's stream has ended");
            }
            let _ = heard.send(Heard::Ended(id)).await;
        });
    }
}

async fn stream(
    mut agents: Agents,
    outbound: mpsc::Receiver<AgentMessage>,
    id: &NodeId,
    heard: &mpsc::Sender<Heard>,
) -> Result<(), tonic::Status> {
    let mut request = Request::new(ReceiverStream::new(outbound));
    let name = id.as_str().parse().map_err(|_| tonic::Status::invalid_argument("the name"))?;
    request.metadata_mut().insert("farrier-node", name);
    let mut inbound: Streaming<ServerMessage> = agents.session(request).await?.into_inner();
    while let Some(said) = inbound.message().await? {
        let told = match said.what {
            Some(server_message::What::Welcome(welcome)) => {
                let every = Duration::from_secs(u64::from(welcome.heartbeat_interval_s.max(1)));
                Heard::Welcome(id.clone(), welcome.acked_record, every)
            }
            Some(server_message::What::Order(order)) => match convert::order(id.clone(), order) {
                Ok(order) => Heard::Order(order),
                Err(_) => continue,
            },
            Some(server_message::What::Resync(_)) => Heard::Resync(id.clone()),
            Some(server_message::What::Ack(_) | server_message::What::OrderStatusAck(_)) | None => {
                continue;
            }
        };
        if heard.send(told).await.is_err() {
            break;
        }
    }
    Ok(())
}

impl Line {
    /// What a node says, as it travels. None: it is said already.
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
        Some(reported(what))
    }
}

fn reported(what: report::What) -> AgentMessage {
    AgentMessage { what: Some(agent_message::What::Report(proto::Report { what: Some(what) })) }
}

fn resync(node: &SimNode) -> AgentMessage {
    let open = convert::findings_message(node.record().number, node.open().cloned());
    reported(report::What::Open(open))
}

fn hello(node: &SimNode) -> proto::Hello {
    let record = node.record();
    let outstanding =
        node.answered().map(|(generation, it)| convert::order_status_message(*generation, it));
    proto::Hello {
        inventory: Some(convert::inventory_message(&node.inventory())),
        journal: record.journal,
        last_record: record.number,
        outstanding: outstanding.into_iter().collect(),
        cordon: Some(convert::cordon_message(node.cordon())),
        last_order: node.last_order(),
    }
}
