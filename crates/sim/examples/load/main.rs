//! Load generator for `cargo xtask bench fleet`: agents connected to a running server. Measurements
//! are printed to stdout as `NAME VALUE` lines. A `mark NAME` line tells the parent process to
//! inspect the server.

mod agent;
mod burst;
mod certified;
mod coordinator;
mod feed;
mod findings;
mod flood;
mod history;
mod steady;
mod webhook;

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use farrier_wire::client::{ServerUrl, connect, no_tls};

use agent::{LoadAgent, ReportMode, ServerLink};
use coordinator::Coordinator;

const AGENTS_PER_CONNECTION: usize = 1000;
/// Streams being opened concurrently.
const OPENING_MAX: usize = 2000;

/// Prints one measurement for the parent process.
fn print_metric(name: &str, value: impl std::fmt::Display) {
    let mut out = std::io::stdout().lock();
    // If stdout is closed, the parent has gone.
    let _ = writeln!(out, "{name} {value}").and_then(|()| out.flush());
}

fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let arg = |index: usize| args.get(index).map(String::as_str).context("missing argument");
    let number = |index: usize| Ok::<_, anyhow::Error>(arg(index)?.parse::<usize>()?);
    let url = || Ok::<ServerUrl, anyhow::Error>(arg(1)?.parse()?);
    match arg(0)? {
        "steady" => {
            let report =
                if arg(4)? == "inventory" { ReportMode::Inventory } else { ReportMode::Heartbeat };
            let time = Duration::from_secs(number(5)? as u64);
            runtime.block_on(steady::run(&url()?, arg(2)?, number(3)?, report, time))
        }
        "findings" => {
            let load = findings::FindingsLoad {
                nodes: number(3)?,
                findings: number(4)?,
                pause: Duration::from_micros(number(5)? as u64),
                is_notified: arg(6)? == "notified",
            };
            runtime.block_on(findings::run(&url()?, arg(2)?, load))
        }
        "burst" => {
            let share = arg(5)?.parse()?;
            runtime.block_on(burst::run(&url()?, arg(2)?, number(3)?, number(4)?, share))
        }
        "flood" => {
            let sizes = flood::FloodSizes {
                nodes: number(2)?,
                flooding: number(3)?,
                message_bytes: number(4)?,
                findings: number(5)?,
            };
            runtime.block_on(flood::run(&url()?, sizes))
        }
        "certified" => {
            let credentials = certified::Credentials {
                join: arg(2)?.to_owned(),
                fingerprint: arg(3)?.to_owned(),
                user: arg(4)?.to_owned(),
            };
            runtime.block_on(certified::run(&url()?, &credentials, number(5)?))
        }
        "history" => history::write(std::path::Path::new(arg(1)?), number(2)?, number(3)?),
        other => bail!("unknown scenario `{other}`"),
    }
}

/// Starts agents on shared plaintext connections and waits until each is connected, verified and in
/// service.
async fn start(
    url: &ServerUrl,
    nodes: usize,
    report: ReportMode,
) -> anyhow::Result<Arc<Coordinator>> {
    let coordinator = Arc::new(Coordinator::new(nodes));
    let start = tokio::time::Instant::now();
    let mut agents = Vec::new();
    for _ in 0..nodes.div_ceil(AGENTS_PER_CONNECTION) {
        agents.push(connect(url, no_tls()).await?);
    }
    for index in 0..nodes {
        let permit = Arc::clone(&coordinator.opening).acquire_owned().await?;
        let link = ServerLink::Shared(agents[index / AGENTS_PER_CONNECTION].clone());
        tokio::spawn(LoadAgent::new(index).run(
            link,
            report,
            Arc::clone(&coordinator),
            Some(permit),
        ));
    }
    coordinator.wait_until(|coordinator| coordinator.connected() == nodes).await?;
    print_metric("connect_s", start.elapsed().as_secs_f64());
    // Each node runs two verification orders before it is in service.
    coordinator.wait_until(|coordinator| coordinator.completed_orders() >= 2 * nodes).await?;
    print_metric("in_service_s", start.elapsed().as_secs_f64());
    Ok(coordinator)
}
