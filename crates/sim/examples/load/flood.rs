//! Latency of fatal findings, before and while other nodes flood the server with reports.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context;
use farrier_fleet::health::{Finding, GpuUuid};
use farrier_sim::fleet::NodeFault;
use farrier_wire::client::{Agents, ServerUrl, connect, no_tls};
use farrier_wire::convert;
use farrier_wire::proto::{self, AgentMessage, agent_message, report};
use jiff::Timestamp;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Request;

use crate::agent::{ReportMode, inventory, name, report_message};
use crate::coordinator::{Coordinator, NodeCommand, print_latencies};
use crate::{print_metric, start};

/// Text size of each flooding finding, below the limit for a finding.
const TEXT_BYTES: usize = 8 << 10;
/// Pause between fatal findings.
const PAUSE: Duration = Duration::from_millis(50);

/// Sizes of a flood run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FloodSizes {
    pub(crate) nodes: usize,
    pub(crate) flooding: usize,
    pub(crate) message_bytes: usize,
    /// Fatal findings, before the flood and again during it.
    pub(crate) findings: usize,
}

pub(crate) async fn run(url: &ServerUrl, sizes: FloodSizes) -> anyhow::Result<()> {
    let coordinator = start(url, sizes.nodes, ReportMode::Heartbeat).await?;
    let fatal = NodeFault::by_code("gpu.xid", "Xid 48").context("no fault for Xid 48")?;
    // With endless jobs, no drain ends, so the nodes with a fatal finding stay out of service.
    coordinator.start_endless_jobs();
    print_latencies("quiet", fatal_findings(&coordinator, sizes, fatal).await?);
    let sent = Arc::new(AtomicU64::new(0));
    let reports = [0, 1].map(|odd| Arc::new(open(sizes.message_bytes, odd, fatal)));
    for index in 0..sizes.flooding {
        let agents = connect(url, no_tls()).await?;
        let flood = flood(agents, sizes.nodes + index, reports.clone(), Arc::clone(&sent));
        tokio::spawn(flood);
    }
    // Wait until the flooding agents have sent one report each on average.
    coordinator.wait_until(|_| sent.load(Ordering::Relaxed) >= sizes.flooding as u64).await?;
    print_metric("mark", "begin");
    print_latencies("flooded", fatal_findings(&coordinator, sizes, fatal).await?);
    print_metric("mark", "end");
    print_metric("reports_sent", sent.load(Ordering::Relaxed));
    Ok(())
}

/// Opens fatal findings on one node after the other and returns their acknowledgement latencies.
async fn fatal_findings(
    coordinator: &Coordinator,
    sizes: FloodSizes,
    fatal: NodeFault,
) -> anyhow::Result<Vec<Duration>> {
    drop(coordinator.take_latencies());
    let mut times = Vec::new();
    for index in 0..sizes.findings {
        coordinator.send_command(index % sizes.nodes, NodeCommand::InjectFault(fatal)).await;
        tokio::time::sleep(PAUSE).await;
        times.extend(coordinator.take_latencies());
    }
    coordinator
        .wait_until(|coordinator| times.len() + coordinator.pending_latencies() >= sizes.findings)
        .await?;
    times.extend(coordinator.take_latencies());
    Ok(times)
}

/// A findings snapshot of about `bytes` bytes. Odd and even snapshots differ in every finding.
fn open(bytes: usize, odd: u64, fault: NodeFault) -> proto::Findings {
    let finding = |id| Finding {
        text: "x".repeat(TEXT_BYTES),
        count: 1 + odd,
        severity: farrier_fleet::health::Severity::Warning,
        ..fault.finding(id, &GpuUuid("GPU-1".to_owned()), Timestamp::UNIX_EPOCH)
    };
    convert::findings_message(0, (1..=(bytes / (TEXT_BYTES + 1024)) as u64).map(finding))
}

/// Sends snapshots as fast as the server reads them, and never reads the server's messages.
async fn flood(
    mut agents: Agents,
    index: usize,
    reports: [Arc<proto::Findings>; 2],
    sent: Arc<AtomicU64>,
) -> anyhow::Result<()> {
    let (out, outbound) = mpsc::channel(1);
    let hello = proto::Hello {
        inventory: Some(inventory(index)),
        journal: "flood".to_owned(),
        ..proto::Hello::default()
    };
    let mut request = Request::new(ReceiverStream::new(outbound));
    request.metadata_mut().insert("farrier-node", name(index).as_str().parse()?);
    let hello = AgentMessage { what: Some(agent_message::What::Hello(hello)) };
    out.send(hello).await?;
    let _inbound = agents.session(request).await?.into_inner();
    for record in 1.. {
        let open = &reports[usize::from(record % 2 == 0)].open;
        let open = proto::Findings { record, open: open.clone() };
        out.send(report_message(report::What::Open(open))).await?;
        sent.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}
