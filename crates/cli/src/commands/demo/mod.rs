//! `farrier demo`: a server, a fleet of simulated nodes on the real wire, faults, and the story of what was found, decided and why.

mod agents;
mod close;
mod script;
mod stage;
mod story;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;

use crate::commands::Outcome;
use crate::printer::{Printer, Tone};
use stage::Stage;
use story::Story;

/// The demonstration.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How long, such as 90s or 5m
    #[arg(long, value_name = "TIME", default_value = "90s", value_parser = duration)]
    duration: Duration,
    /// Decides what befalls whom
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    /// No line at the bottom that changes: for logs and tests
    #[arg(long)]
    headless: bool,
    /// Where the server's folder is kept afterwards; otherwise it is gone with the demo
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Reads `90s`, `5m`.
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
    let (mut tail, mut seen) = stage.followed();
    let mut has_joined = false;
    let end = stage.began() + args.duration;
    let mut moments = tokio::time::interval(Duration::from_millis(500));
    let interrupted = tokio::signal::ctrl_c();
    tokio::pin!(interrupted);
    loop {
        let next = acts.peek().map_or(end, |(at, _)| stage.began() + *at).min(end);
        tokio::select! {
            _ = &mut interrupted => break,
            () = tokio::time::sleep_until(next.into()) => {
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
                    if !has_joined && story.joined.len() == stage.nodes() {
                        has_joined = true;
                        story.all_joined(stage.elapsed(), printer)?;
                    }
                }
                None => anyhow::bail!("the server has ended"),
            },
            _ = moments.tick() => story.status(&stage.standings().await, printer)?,
        }
    }
    story.end(printer)?;
    close::close(stage).await?.print(&story, printer)
}
