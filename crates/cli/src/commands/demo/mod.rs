//! `farrier demo`: a server, a fleet of simulated nodes over the real protocol, faults, and a
//! running account of what was found and decided, and why.

mod agents;
mod close;
mod script;
mod stage;
mod story;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context;

use crate::commands::Outcome;
use crate::printer::{Printer, Tone};
use stage::Stage;
use story::Story;

/// Timeout for all nodes to join, which takes seconds on an idle machine.
const JOINED_WITHIN: Duration = Duration::from_secs(300);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Duration, such as 90s or 5m
    #[arg(long, value_name = "TIME", default_value = "90s", value_parser = duration)]
    duration: Duration,
    /// Seed of the script: which faults happen on which nodes
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    /// Print no status line, for logs and tests
    #[arg(long)]
    headless: bool,
    /// Keep the server's data in this directory; without it, the data is deleted at the end
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Parses `90s`, `5m`.
fn duration(text: &str) -> Result<Duration, String> {
    let expected = || "expected a time such as 90s or 5m, 20s at least".to_owned();
    let (number, unit_s) = match text.strip_suffix('m') {
        Some(number) => (number, 60),
        None => (text.strip_suffix('s').ok_or_else(expected)?, 1),
    };
    let seconds: u64 = number.parse().map_err(|_| expected())?;
    let all = seconds.checked_mul(unit_s).filter(|it| (20..=86_400).contains(it));
    all.map(Duration::from_secs).ok_or_else(expected)
}

pub(crate) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("failed to start")?;
    runtime.block_on(play(args, printer))?;
    Ok(Outcome::Fine)
}

async fn play(args: &Args, printer: &mut Printer) -> anyhow::Result<()> {
    let stage = Stage::set(args.seed, args.dir.as_deref()).await?;
    let title = format!(
        "{} nodes, {} of them with a real agent on simulated NVML, on the real wire at {}; seed {}",
        stage.nodes(),
        agents::COUNT,
        stage.address(),
        args.seed
    );
    printer.line(&printer.toned(Tone::Strong, &title))?;
    let program = std::env::args().next().unwrap_or_else(|| "farrier".to_owned());
    let folder = stage.server_folder();
    printer.line("To look in from a second terminal while it runs, log in as the first of these says, and ask:")?;
    printer
        .line(&format!("  {program} server user add me --role admin --dir {}", folder.display()))?;
    printer.line(&format!("  {program} fleet nodes"))?;
    printer.line(&format!("  {program} fleet events --follow"))?;
    printer.line("")?;
    let mut story = Story::new(!args.headless && printer.is_terminal());
    let mut acts = script::acts(args.seed, args.duration).into_iter().peekable();
    let first_act = acts.peek().map_or(Duration::ZERO, |(at, _)| *at);
    let (mut tail, mut seen) = stage.followed();
    // Start of the script. On a slow machine it is late: the first act waits until every node has
    // joined.
    let mut start: Option<Instant> = None;
    let mut moments = tokio::time::interval(Duration::from_millis(500));
    let interrupted = tokio::signal::ctrl_c();
    tokio::pin!(interrupted);
    loop {
        let (end, next) = match start {
            Some(start) => {
                let end = start + args.duration;
                (end, acts.peek().map_or(end, |(at, _)| start + *at).min(end))
            }
            None => (stage.began() + JOINED_WITHIN, stage.began() + JOINED_WITHIN),
        };
        tokio::select! {
            _ = &mut interrupted => break,
            () = tokio::time::sleep_until(next.into()) => {
                anyhow::ensure!(
                    start.is_some(),
                    "{} of {} nodes have joined within {} s: is the machine overloaded?",
                    story.joined.len(),
                    stage.nodes(),
                    JOINED_WITHIN.as_secs()
                );
                if next >= end {
                    break;
                }
                if let Some((_, act)) = acts.next() {
                    story.happens(stage.elapsed(), &stage.told(&act), printer)?;
                    stage.perform(&act).await?;
                }
            }
            page = tail.next(seen, 256) => match page {
                Some(page) => {
                    let page = page?;
                    seen = page.last().map_or(seen, |entry| entry.seq);
                    story.hear(stage.elapsed(), &page, printer)?;
                    if start.is_none() && story.joined.len() == stage.nodes() {
                        let late = stage.elapsed().saturating_sub(first_act);
                        start = Some(stage.began() + late);
                        story.all_joined(stage.elapsed(), printer)?;
                    }
                }
                None => anyhow::bail!("the server has ended"),
            },
            _ = moments.tick() => story.status(&stage.phases().await, printer)?,
        }
    }
    story.end(printer)?;
    close::close(stage).await?.print(&story, printer)
}
