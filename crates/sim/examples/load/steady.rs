//! Many nodes that report, with a trickle of changes among them.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use farrier_sim::fleet::Trouble;
use farrier_wire::client::{RestClient, ServerUrl, no_tls};
use farrier_wire::rest::EventPage;

use crate::agent::Report;
use crate::board::{Ask, Board, say_times};
use crate::findings::warning;
use crate::{say, start};

/// Nodes on which something begins in a second; each ends again.
const OPENED_PER_S: u64 = 25;
/// After this long, where no repair ends it.
const LASTS: Duration = Duration::from_secs(5);
/// One of so many is a fault that takes its node out of service; the rest are warnings.
const FAULT_EVERY: usize = 10;
/// Until what was said while they joined is on disk and quiet; not longer than is measured.
const REST: Duration = Duration::from_secs(12);

pub(crate) async fn run(
    url: &ServerUrl,
    token: &str,
    nodes: usize,
    report: Report,
    time: Duration,
) -> anyhow::Result<()> {
    let board = start(url, nodes, report).await?;
    let _ = board.acknowledged();
    let mut asker = RestClient::connect(url, no_tls(), token).await?;
    let page: EventPage = asker.get("/api/v1/events?limit=1").await?;
    say("entries_joined", page.end);
    tokio::time::sleep(REST.min(time)).await;
    say("mark", "begin");
    let end = tokio::time::Instant::now() + time;
    let trickle = tokio::spawn(trickle(Arc::clone(&board), nodes, end));
    tokio::time::sleep_until(end).await;
    say("mark", "end");
    trickle.await??;
    tokio::time::sleep(LASTS).await;
    say("still_connected", board.connected());
    say_times("change_to_acknowledgement", board.acknowledged());
    Ok(())
}

async fn trickle(board: Arc<Board>, nodes: usize, end: tokio::time::Instant) -> anyhow::Result<()> {
    let warning = warning()?;
    let fault = Trouble::named("gpu.xid", "Xid 48").context("the simulation knows Xid 48")?;
    let mut ticks = tokio::time::interval(Duration::from_millis(1000 / OPENED_PER_S));
    for index in 0_usize.. {
        ticks.tick().await;
        if tokio::time::Instant::now() >= end {
            break;
        }
        let node = index * 7919 % nodes;
        if index % FAULT_EVERY == 0 {
            // It ends when the server has the GPU reset.
            board.ask(node, Ask::Befall(fault)).await;
            continue;
        }
        board.ask(node, Ask::Befall(warning)).await;
        let board = Arc::clone(&board);
        tokio::spawn(async move {
            tokio::time::sleep(LASTS).await;
            board.ask(node, Ask::Mend).await;
        });
    }
    Ok(())
}
