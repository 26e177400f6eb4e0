//! A minimal agent: it opens a session, reports, resumes after the last acknowledged record and
//! completes orders at once.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use farrier_fleet::fleet::{NodeId, OrderKind, OrderStatus};
use farrier_fleet::health::finding::Cleared;
use farrier_fleet::health::{Change, Finding, GpuUuid};
use farrier_sim::fleet::NodeFault;
use farrier_wire::client::{Agents, ServerUrl, connect};
use farrier_wire::convert;
use farrier_wire::proto::{
    self, AgentMessage, ServerMessage, agent_message, report, server_message,
};
use jiff::Timestamp;
use rustls::ClientConfig;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Streaming};

use crate::coordinator::{Coordinator, NodeCommand, SentFinding};

const OUTBOUND_MAX: usize = 64;
/// GPUs per node.
const GPUS: u64 = 8;
/// Spread of the reconnect delay, so that the agents do not reconnect at the same instant.
const RECONNECT_SPREAD_MS: u64 = 250;

/// What an agent sends each heartbeat interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReportMode {
    /// A heartbeat. Real agents send heartbeats while nothing changes.
    Heartbeat,
    /// The full inventory.
    Inventory,
}

/// Connection of an agent.
pub(crate) enum ServerLink {
    /// Shared with other agents, without TLS.
    Shared(Agents),
    /// A connection for this agent alone, with mutual TLS.
    Dedicated(ServerUrl, Arc<ClientConfig>),
}

pub(crate) struct LoadAgent {
    index: usize,
    name: NodeId,
    inventory: proto::NodeInventory,
    record: u64,
    findings: u64,
    open: BTreeMap<u64, Finding>,
    /// Unacknowledged records and when they were created.
    journal: VecDeque<(proto::Changes, Instant)>,
}

pub(crate) fn name(index: usize) -> NodeId {
    format!("node-{index:06}").parse().expect("the name has only letters, digits and a dash")
}

/// Index of a node from its name.
pub(crate) fn number(node: &NodeId) -> Option<usize> {
    node.as_str().strip_prefix("node-")?.parse().ok()
}

fn gpu(node: usize, gpu: u64) -> String {
    let mixed = (node as u64 * GPUS + gpu + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    format!("GPU-{:08x}-{:04x}-4000-8000-{mixed:012.12x}", mixed >> 32, mixed & 0xffff)
}

pub(crate) fn inventory(index: usize) -> proto::NodeInventory {
    let gpus = (0..GPUS).map(|number| proto::Gpu {
        uuid: gpu(index, number),
        name: Some("NVIDIA H200".to_owned()),
        index: u32::try_from(number).ok(),
        pci: Some(format!("0000:{:02x}:00.0", 0x1b + number * 0x10)),
        serial: Some(format!("{:013}", index as u64 * GPUS + number)),
    });
    let framework = |name: &str, version: &str| proto::Framework {
        name: name.to_owned(),
        version: version.to_owned(),
    };
    proto::NodeInventory {
        boot: format!("{index:08x}-0d2c-4b5e-9d1f-8f3a6c1e7b90"),
        agent: env!("CARGO_PKG_VERSION").to_owned(),
        kernel: Some("6.8.0-90-generic".to_owned()),
        driver: Some("580.95.05".to_owned()),
        cuda: Some("13.0".to_owned()),
        gpus: Some(proto::Gpus { gpus: gpus.collect() }),
        frameworks: vec![framework("torch", "2.9.1"), framework("nccl", "2.28.3")],
        compliance: None,
    }
}

impl LoadAgent {
    pub(crate) fn new(index: usize) -> Self {
        Self {
            index,
            name: name(index),
            inventory: inventory(index),
            record: 0,
            findings: 0,
            open: BTreeMap::new(),
            journal: VecDeque::new(),
        }
    }

    /// Runs one session after the other: reconnects when a session ends.
    pub(crate) async fn run(
        mut self,
        link: ServerLink,
        report: ReportMode,
        coordinator: Arc<Coordinator>,
        mut permit: Option<OwnedSemaphorePermit>,
    ) {
        let Some(mut commands) = coordinator.inbox(self.index) else { return };
        loop {
            let agents = match &link {
                ServerLink::Shared(agents) => Ok(agents.clone()),
                ServerLink::Dedicated(url, tls) => connect(url, Arc::clone(tls)).await,
            };
            if let Ok(agents) = agents {
                let mut is_connected = false;
                let session = self.run_session(
                    agents,
                    report,
                    &coordinator,
                    &mut commands,
                    &mut permit,
                    &mut is_connected,
                );
                let result = session.await;
                if is_connected {
                    coordinator.record_disconnected();
                }
                if let Err(err) = result {
                    tracing::debug!(node = %self.name, %err, "stream ended");
                }
            }
            let wait_ms = RECONNECT_SPREAD_MS / 2 + self.index as u64 % RECONNECT_SPREAD_MS;
            tokio::time::sleep(Duration::from_millis(wait_ms)).await;
        }
    }

    async fn run_session(
        &mut self,
        mut agents: Agents,
        report_mode: ReportMode,
        coordinator: &Coordinator,
        commands: &mut mpsc::Receiver<NodeCommand>,
        permit: &mut Option<OwnedSemaphorePermit>,
        is_connected: &mut bool,
    ) -> anyhow::Result<()> {
        let (out, outbound) = mpsc::channel(OUTBOUND_MAX);
        out.send(AgentMessage { what: Some(agent_message::What::Hello(self.hello())) }).await?;
        let mut request = Request::new(ReceiverStream::new(outbound));
        request.metadata_mut().insert("farrier-node", self.name.as_str().parse()?);
        let mut inbound: Streaming<ServerMessage> = agents.session(request).await?.into_inner();
        let first = inbound.message().await?.context("stream ended")?;
        let Some(server_message::What::Welcome(welcome)) = first.what else {
            anyhow::bail!("expected a welcome message");
        };
        self.resume(&out, welcome.acked_record).await?;
        coordinator.record_connected();
        *is_connected = true;
        drop(permit.take());
        let interval = Duration::from_secs(u64::from(welcome.heartbeat_interval_s.max(1)));
        // Staggers the heartbeats of the agents.
        let first_ms = self.index as u64 * 7919 % u64::try_from(interval.as_millis())?;
        let start = tokio::time::Instant::now() + Duration::from_millis(first_ms);
        let mut heartbeats = tokio::time::interval_at(start, interval);
        loop {
            tokio::select! {
                message = inbound.message() => {
                    let message = message?.context("stream ended")?;
                    self.handle_message(&out, message, coordinator).await?;
                }
                _ = heartbeats.tick() => out.send(self.report(report_mode)).await?,
                Some(command) = commands.recv() => {
                    self.handle_command(command, coordinator);
                    self.send_last_change(&out).await?;
                }
            }
        }
    }

    fn hello(&self) -> proto::Hello {
        proto::Hello {
            inventory: Some(self.inventory.clone()),
            journal: format!("{}-journal", self.name),
            last_record: self.record,
            outstanding: Vec::new(),
            cordon: Some(convert::cordon_message(&farrier_fleet::fleet::event::Cordon::None)),
            last_order: 0,
            coverage: Some(proto::Coverage::default()),
        }
    }

    fn report(&self, report: ReportMode) -> AgentMessage {
        report_message(match report {
            ReportMode::Heartbeat => report::What::Heartbeat(proto::Heartbeat {}),
            ReportMode::Inventory => report::What::Inventory(self.inventory.clone()),
        })
    }

    /// Resends the records after the last record that the server has. If the server has none, sends
    /// all open findings.
    async fn resume(
        &mut self,
        out: &mpsc::Sender<AgentMessage>,
        acked: Option<u64>,
    ) -> anyhow::Result<()> {
        let Some(acked) = acked else { return self.send_open_findings(out).await };
        self.journal.retain(|(changes, _)| changes.record > acked);
        for (changes, _) in &self.journal {
            out.send(report_message(report::What::Changes(changes.clone()))).await?;
        }
        Ok(())
    }

    async fn send_open_findings(&self, out: &mpsc::Sender<AgentMessage>) -> anyhow::Result<()> {
        let open = convert::findings_message(self.record, self.open.values().cloned());
        Ok(out.send(report_message(report::What::Open(open))).await?)
    }

    async fn send_last_change(&self, out: &mpsc::Sender<AgentMessage>) -> anyhow::Result<()> {
        let Some((changes, _)) = self.journal.back() else { return Ok(()) };
        Ok(out.send(report_message(report::What::Changes(changes.clone()))).await?)
    }

    async fn handle_message(
        &mut self,
        out: &mpsc::Sender<AgentMessage>,
        message: ServerMessage,
        coordinator: &Coordinator,
    ) -> anyhow::Result<()> {
        match message.what {
            Some(server_message::What::Ack(proto::Ack { record })) => {
                while let Some((_, at)) =
                    self.journal.front().filter(|entry| entry.0.record <= record)
                {
                    coordinator.record_acknowledged(at.elapsed());
                    self.journal.pop_front();
                }
                Ok(())
            }
            Some(server_message::What::Resync(_)) => self.send_open_findings(out).await,
            Some(server_message::What::Order(order)) => {
                let order = convert::order(self.name.clone(), order)?;
                if matches!(order.kind, OrderKind::Drain { .. }) && coordinator.has_endless_jobs() {
                    return Ok(());
                }
                let evidence = "completed by the load generator".to_owned();
                let status = convert::order_status_message(
                    order.generation,
                    &OrderStatus::Done { evidence },
                );
                out.send(AgentMessage { what: Some(agent_message::What::OrderStatus(status)) })
                    .await?;
                coordinator.record_order_status();
                if matches!(order.kind, OrderKind::ResetGpu { .. } | OrderKind::Reboot) {
                    self.handle_command(NodeCommand::ClearFault, coordinator);
                    self.send_last_change(out).await?;
                }
                Ok(())
            }
            Some(server_message::What::Welcome(_) | server_message::What::OrderStatusAck(_))
            | None => Ok(()),
        }
    }

    /// Applies a command to the node and journals the resulting change.
    fn handle_command(&mut self, command: NodeCommand, coordinator: &Coordinator) {
        let now = Timestamp::now();
        let change = match command {
            NodeCommand::InjectFault(fault) => {
                let finding = self.open_finding(fault, now);
                let sent =
                    SentFinding { node: self.index, finding: finding.id, at: Instant::now() };
                coordinator.record_sent(sent);
                Change::Opened(finding)
            }
            NodeCommand::ClearFault => {
                let Some((_, finding)) = self.open.pop_first() else { return };
                let cleared = Cleared { at: now, reason: "fault cleared".to_owned() };
                Change::Cleared(Finding { cleared: Some(cleared), ..finding })
            }
        };
        let record = self.record + 1;
        let Ok(changes) = convert::changes_message(record, self.record, vec![change]) else {
            return;
        };
        self.record = record;
        self.journal.push_back((changes, Instant::now()));
    }

    fn open_finding(&mut self, fault: NodeFault, now: Timestamp) -> Finding {
        self.findings += 1;
        let gpu = GpuUuid(gpu(self.index, self.findings % GPUS));
        let finding = fault.finding(self.findings, &gpu, now);
        self.open.insert(finding.id, finding.clone());
        finding
    }
}

pub(crate) fn report_message(what: report::What) -> AgentMessage {
    AgentMessage { what: Some(agent_message::What::Report(proto::Report { what: Some(what) })) }
}
