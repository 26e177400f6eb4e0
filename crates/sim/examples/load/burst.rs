//! A quarter of a fleet fails within a second. Measures the latency until each decision is in the
//! log and streamed.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::Context;
use farrier_fleet::fleet::Policy;
use farrier_fleet::fleet::identity::DomainKind;
use farrier_sim::fleet::NodeFault;
use farrier_wire::client::{RestClient, ServerUrl, no_tls};
use serde_json::Value;

use crate::agent::{self, ReportMode};
use crate::coordinator::{NodeCommand, print_latencies};
use crate::feed::EventFeed;
use crate::{print_metric, start};

pub(crate) async fn run(
    url: &ServerUrl,
    token: &str,
    nodes: usize,
    failing: usize,
    share: f64,
) -> anyhow::Result<()> {
    let coordinator = start(url, nodes, ReportMode::Heartbeat).await?;
    let mut policy = Policy::default();
    for kind in [DomainKind::Fleet, DomainKind::Pool] {
        if let Some(budget) = policy.disruption_budgets.get_mut(&kind) {
            budget.share = budget.share.max(share);
        }
    }
    let mut client = RestClient::connect(url, no_tls(), token).await?;
    let _: Value = client.put("/api/v1/policy", &policy).await?;
    let fault = NodeFault::by_code("gpu.xid", "Xid 48").context("no fault for Xid 48")?;
    let mut feed = EventFeed::open(url, token).await?;
    // With endless jobs, no drain ends. Nodes that are taken out stay out of service, and use up
    // the disruption budget.
    coordinator.start_endless_jobs();
    print_metric("mark", "begin");
    let start = tokio::time::Instant::now();
    let sender = std::sync::Arc::clone(&coordinator);
    tokio::spawn(async move {
        for index in 0..failing {
            let at = Duration::from_micros(1_000_000 * index as u64 / failing as u64);
            tokio::time::sleep_until(start + at).await;
            sender.send_command(index * nodes / failing, NodeCommand::InjectFault(fault)).await;
        }
    });
    // First decision on each node: when, and of which kind.
    let mut decided: HashMap<usize, (Instant, String)> = HashMap::new();
    while decided.len() < failing {
        let (at, rows) = feed.next().await?;
        for row in rows {
            let Some(node) = row.node.as_ref().and_then(agent::number) else { continue };
            let to = row.event.pointer("/phase-changed/to").and_then(Value::as_str);
            let is_out = to.is_some_and(|to| to != "suspect");
            if (is_out || row.kind == "deferred") && node % (nodes / failing) == 0 {
                decided.entry(node).or_insert((at, row.kind));
            }
        }
    }
    print_metric("mark", "end");
    let sent = coordinator.sent();
    let last = sent.iter().map(|finding| finding.at).max().context("no finding was sent")?;
    let times = sent.iter().filter_map(|finding| {
        decided.get(&finding.node).map(|(at, _)| at.saturating_duration_since(finding.at))
    });
    print_latencies("failure_to_decision", times.collect());
    let done = decided.values().map(|(at, _)| *at).max().context("no decision was made")?;
    let after = done.saturating_duration_since(last);
    print_metric("last_failure_to_last_decision_ms", after.as_secs_f64() * 1e3);
    print_metric("taken_out", decided.values().filter(|(_, kind)| kind == "phase-changed").count());
    print_metric("deferred", decided.values().filter(|(_, kind)| kind == "deferred").count());
    Ok(())
}
