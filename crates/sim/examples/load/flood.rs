//! Nodes that report as much as the wire takes, beside a few that have something to report: how long a fatal finding takes to its
//! acknowledgement, before the flood and in it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context;
use farrier_fleet::health::{Finding, GpuUuid};
use farrier_sim::fleet::Trouble;
use farrier_wire::client::{Agents, ServerUrl, connect, no_tls};
use farrier_wire::convert;
use farrier_wire::proto::{self, AgentMessage, agent_message, report};
use jiff::Timestamp;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Request;

use crate::agent::{Report, inventory, name, reported};
use crate::board::{Ask, Board, say_times};
use crate::{say, start};

/// Bytes of text in each finding of a flood, within what one may have.
const TEXT_BYTES: usize = 8 << 10;
/// From one fatal finding to the next.
const PAUSE: Duration = Duration::from_millis(50);

/// How much of everything.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    pub(crate) nodes: usize,
    pub(crate) flooding: usize,
    pub(crate) message_bytes: usize,
    /// Fatal findings, before the flood and in it.
    pub(crate) findings: usize,
}

pub(crate) async fn run(url: &ServerUrl, sizes: Sizes) -> anyhow::Result<()> {
    let board = start(url, sizes.nodes, Report::Heartbeat).await?;
    let fatal = Trouble::named("gpu.xid", "Xid 48").context("the simulation knows Xid 48")?;
    // Who is taken out stays out.
    board.begin_work();
    say_times("quiet", fatal_findings(&board, sizes, fatal).await?);
    let sent = Arc::new(AtomicU64::new(0));
    let reports = [0, 1].map(|odd| Arc::new(open(sizes.message_bytes, odd, fatal)));
    for index in 0..sizes.flooding {
        let agents = connect(url, no_tls()).await?;
        let flood = flood(agents, sizes.nodes + index, reports.clone(), Arc::clone(&sent));
        tokio::spawn(flood);
    }
    // Each has sent something, or waits to be read.
    board.until(|_| sent.load(Ordering::Relaxed) >= sizes.flooding as u64).await?;
    say("mark", "begin");
    say_times("flooded", fatal_findings(&board, sizes, fatal).await?);
    say("mark", "end");
    say("reports_sent", sent.load(Ordering::Relaxed));
    Ok(())
}

/// Fatal findings on one node after the other, and how long each took to its acknowledgement.
async fn fatal_findings(
    board: &Board,
    sizes: Sizes,
    fatal: Trouble,
) -> anyhow::Result<Vec<Duration>> {
    drop(board.acknowledged());
    let mut times = Vec::new();
    for index in 0..sizes.findings {
        board.ask(index % sizes.nodes, Ask::Befall(fatal)).await;
        tokio::time::sleep(PAUSE).await;
        times.extend(board.acknowledged());
    }
    board.until(|board| times.len() + board.acknowledged_count() >= sizes.findings).await?;
    times.extend(board.acknowledged());
    Ok(times)
}

/// Every open finding of a node, in so many bytes; odd ones and even ones differ in each.
fn open(bytes: usize, odd: u64, trouble: Trouble) -> proto::Findings {
    let finding = |id| Finding {
        text: "x".repeat(TEXT_BYTES),
        count: 1 + odd,
        severity: farrier_fleet::health::Severity::Warning,
        ..trouble.finding(id, &GpuUuid("GPU-1".to_owned()), Timestamp::UNIX_EPOCH)
    };
    convert::findings_message(0, (1..=(bytes / (TEXT_BYTES + 1024)) as u64).map(finding))
}

/// Reports again and again, and reads nothing.
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
        out.send(reported(report::What::Open(open))).await?;
        sent.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}
