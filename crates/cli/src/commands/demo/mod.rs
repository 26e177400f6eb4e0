//! `farrier demo`: a server and a fleet of simulated nodes with faults, over the real protocol. The
//! demo prints findings and decisions with their reasons while it runs.

mod agents;
mod close;
mod environment;
mod narrator;
mod script;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context;

use crate::commands::Outcome;
use crate::printer::{Printer, Tone};
use environment::Environment;
use narrator::Narrator;

/// Timeout for all nodes to join, which takes seconds on an idle machine.
const JOIN_TIMEOUT: Duration = Duration::from_secs(300);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Duration, such as 90s or 5m
    #[arg(long, value_name = "TIME", default_value = "90s", value_parser = parse_duration)]
    duration: Duration,
    /// Seed of the script: which faults happen on which nodes
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    /// Number of nodes
    #[arg(
        long,
        value_name = "NUMBER",
        default_value_t = 64,
        value_parser = clap::value_parser!(u32).range(64..=5000)
    )]
    nodes: u32,
    /// Print no status line, for logs and tests
    #[arg(long)]
    headless: bool,
    /// Keep the server's data in this directory; without it, the data is deleted at the end
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Parses `90s`, `5m`.
fn parse_duration(text: &str) -> Result<Duration, String> {
    let expected = || "expected a duration such as 90s or 5m, at least 20s".to_owned();
    let (number, unit_s) = match text.strip_suffix('m') {
        Some(number) => (number, 60),
        None => (text.strip_suffix('s').ok_or_else(expected)?, 1),
    };
    let seconds: u64 = number.parse().map_err(|_| expected())?;
    let total = seconds.checked_mul(unit_s).filter(|total| (20..=86_400).contains(total));
    total.map(Duration::from_secs).ok_or_else(expected)
}

pub(crate) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("failed to start the async runtime")?;
    runtime.block_on(play(args, printer))?;
    Ok(Outcome::Fine)
}

async fn play(args: &Args, printer: &mut Printer) -> anyhow::Result<()> {
    let environment = Environment::start(args.seed, args.nodes, args.dir.as_deref()).await?;
    let title = format!(
        "{} nodes, {} of them with a real agent on simulated NVML, connected over the real protocol to {}; seed {}",
        environment.nodes(),
        agents::COUNT,
        environment.address(),
        args.seed
    );
    printer.line(&printer.toned(Tone::Strong, &title))?;
    let program = std::env::args().next().unwrap_or_else(|| "farrier".to_owned());
    let folder = environment.server_folder();
    printer.line("To watch from a second terminal, create a user, run the `farrier login` command that this prints, and query the fleet:")?;
    printer
        .line(&format!("  {program} server user add me --role admin --dir {}", folder.display()))?;
    printer.line(&format!("  {program} fleet nodes"))?;
    printer.line(&format!("  {program} fleet events --follow"))?;
    printer.line("")?;
    let mut narrator = Narrator::new(!args.headless && printer.is_terminal());
    let mut acts = script::acts(args.seed, args.nodes, args.duration).into_iter().peekable();
    let first_act = acts.peek().map_or(Duration::ZERO, |(at, _)| *at);
    let (mut tail, mut last_seq) = environment.log_tail();
    // Start of the script. The script starts after every node has joined, which is late on a slow
    // machine.
    let mut start: Option<Instant> = None;
    let mut status_interval = tokio::time::interval(Duration::from_millis(500));
    let interrupted = tokio::signal::ctrl_c();
    tokio::pin!(interrupted);
    loop {
        let (end, next) = match start {
            Some(start) => {
                let end = start + args.duration;
                (end, acts.peek().map_or(end, |(at, _)| start + *at).min(end))
            }
            None => (environment.started() + JOIN_TIMEOUT, environment.started() + JOIN_TIMEOUT),
        };
        tokio::select! {
            _ = &mut interrupted => break,
            () = tokio::time::sleep_until(next.into()) => {
                anyhow::ensure!(
                    start.is_some(),
                    "only {} of {} nodes have joined within {} s: is the machine overloaded?",
                    narrator.joined.len(),
                    environment.nodes(),
                    JOIN_TIMEOUT.as_secs()
                );
                if next >= end {
                    break;
                }
                if let Some((_, act)) = acts.next() {
                    narrator.act(environment.elapsed(), &environment.describe(&act), printer)?;
                    environment.perform(&act).await?;
                }
            }
            page = tail.next(last_seq, 256) => match page {
                Some(page) => {
                    let page = page?;
                    last_seq = page.last().map_or(last_seq, |entry| entry.seq);
                    narrator.entries(environment.elapsed(), &page, printer)?;
                    if start.is_none() && narrator.joined.len() == environment.nodes() {
                        let late = environment.elapsed().saturating_sub(first_act);
                        start = Some(environment.started() + late);
                        narrator.all_joined(environment.elapsed(), printer)?;
                    }
                }
                None => anyhow::bail!("the server has stopped"),
            },
            _ = status_interval.tick() => narrator.status(&environment.phases().await, printer)?,
        }
    }
    narrator.end(printer)?;
    close::close(environment).await?.print(&narrator, printer)
}
