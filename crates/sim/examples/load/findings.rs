//! Latency from a finding on a node to its event at an API client, while other nodes report.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::Context;
use farrier_sim::fleet::NodeFault;
use farrier_wire::client::ServerUrl;

use crate::agent::{self, ReportMode};
use crate::coordinator::{NodeCommand, print_latencies};
use crate::feed::EventFeed;
use crate::webhook;
use crate::{print_metric, start};

/// Jitter, to stay out of step with the server's timers.
const JITTER_US: u64 = 7_000;

/// A warning that leaves its node in service.
pub(crate) fn warning() -> anyhow::Result<NodeFault> {
    NodeFault::by_code("nic.flapping", "").context("no fault for a flapping port")
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct FindingsLoad {
    pub(crate) nodes: usize,
    pub(crate) findings: usize,
    /// Minimum pause between findings.
    pub(crate) pause: Duration,
    /// Whether a webhook is notified of each finding.
    pub(crate) is_notified: bool,
}

pub(crate) async fn run(
    url: &ServerUrl,
    token: &str,
    FindingsLoad { nodes, findings, pause, is_notified }: FindingsLoad,
) -> anyhow::Result<()> {
    let coordinator = start(url, nodes, ReportMode::Heartbeat).await?;
    let messages = if is_notified { Some(webhook::receive(url, token).await?) } else { None };
    let mut feed = EventFeed::open(url, token).await?;
    let fault = warning()?;
    print_metric("mark", "begin");
    let sender = std::sync::Arc::clone(&coordinator);
    tokio::spawn(async move {
        for index in 0..findings {
            let node = index * 7919 % nodes;
            sender.send_command(node, NodeCommand::InjectFault(fault)).await;
            let jitter_us = index as u64 * 104_729 % JITTER_US;
            tokio::time::sleep(pause + Duration::from_micros(jitter_us)).await;
        }
    });
    let mut arrivals = HashMap::new();
    while arrivals.len() < findings {
        let (at, rows) = feed.next().await?;
        for row in rows.into_iter().filter(|row| row.kind == "findings-reported") {
            let opened = row.event.pointer("/findings-reported/changes/0/opened/id");
            let finding = opened.and_then(serde_json::Value::as_u64);
            let node = row.node.as_ref().and_then(agent::number);
            if let (Some(finding), Some(node)) = (finding, node) {
                arrivals.insert((node, finding), at);
            }
        }
    }
    print_metric("mark", "end");
    let times = coordinator.sent().into_iter().filter_map(|sent| {
        arrivals.get(&(sent.node, sent.finding)).map(|at| at.saturating_duration_since(sent.at))
    });
    print_latencies("finding_to_event", times.collect());
    print_latencies("finding_to_acknowledgement", coordinator.take_latencies());
    if let Some(messages) = messages {
        print_metric("messages", messages.until_quiet().await);
    }
    Ok(())
}
