//! Many nodes that report, with a trickle of changes.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use farrier_sim::fleet::NodeFault;
use farrier_wire::client::{RestClient, ServerUrl, no_tls};
use farrier_wire::rest::EventPage;

use crate::agent::ReportMode;
use crate::coordinator::{Coordinator, NodeCommand, print_latencies};
use crate::findings::warning;
use crate::{print_metric, start};

/// Findings opened per second. Each clears again.
const OPENED_PER_S: u64 = 25;
/// Lifetime of a warning.
const WARNING_LIFETIME: Duration = Duration::from_secs(5);
/// Every tenth finding is a fault that takes its node out of service; the rest are warnings.
const FAULT_EVERY: usize = 10;
/// Settling time after the join phase. The settling time is never longer than the measurement.
const SETTLE_TIME: Duration = Duration::from_secs(12);

pub(crate) async fn run(
    url: &ServerUrl,
    token: &str,
    nodes: usize,
    report: ReportMode,
    time: Duration,
) -> anyhow::Result<()> {
    let coordinator = start(url, nodes, report).await?;
    let _ = coordinator.take_latencies();
    let mut client = RestClient::connect(url, no_tls(), token).await?;
    let page: EventPage = client.get("/api/v1/events?limit=1").await?;
    print_metric("entries_joined", page.end);
    tokio::time::sleep(SETTLE_TIME.min(time)).await;
    print_metric("mark", "begin");
    let end = tokio::time::Instant::now() + time;
    let trickle = tokio::spawn(trickle(Arc::clone(&coordinator), nodes, end));
    tokio::time::sleep_until(end).await;
    print_metric("mark", "end");
    trickle.await??;
    tokio::time::sleep(WARNING_LIFETIME).await;
    print_metric("still_connected", coordinator.connected());
    print_latencies("change_to_acknowledgement", coordinator.take_latencies());
    Ok(())
}

async fn trickle(
    coordinator: Arc<Coordinator>,
    nodes: usize,
    end: tokio::time::Instant,
) -> anyhow::Result<()> {
    let warning = warning()?;
    let fault = NodeFault::by_code("gpu.xid", "Xid 48").context("no fault for Xid 48")?;
    let mut ticks = tokio::time::interval(Duration::from_millis(1000 / OPENED_PER_S));
    for index in 0_usize.. {
        ticks.tick().await;
        if tokio::time::Instant::now() >= end {
            break;
        }
        let node = index * 7919 % nodes;
        if index % FAULT_EVERY == 0 {
            // The fault clears when the server orders a reset of the GPU.
            coordinator.send_command(node, NodeCommand::InjectFault(fault)).await;
            continue;
        }
        coordinator.send_command(node, NodeCommand::InjectFault(warning)).await;
        let coordinator = Arc::clone(&coordinator);
        tokio::spawn(async move {
            tokio::time::sleep(WARNING_LIFETIME).await;
            coordinator.send_command(node, NodeCommand::ClearFault).await;
        });
    }
    Ok(())
}
