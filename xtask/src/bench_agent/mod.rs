//! `cargo xtask bench agent`: what the agent costs and how fast it is, on a simulated node of eight H100.
//!
//! ```text
//! node ─┬─ agent and probe, scraped ─┐   (the agent tells a server, and carries out its orders)
//!       ├─ gpustat, once a second    ├─ one run ─> cost ─> (peers end) ─> latency ─> flood ─> bench/agent.md
//!       └─ nvitop, once a second     ┘
//! ```

mod node;
pub(crate) mod peers;
mod report;
mod server;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::bench::Times;
use crate::bench_size::Size;
use crate::process::{Memory, Spent};
use crate::shell::say;
use node::{Agent, Node};
use peers::Peer;
use server::Server;

/// How much of everything.
#[derive(Clone, Copy)]
struct Sizes {
    /// Until everybody has started and the agent has looked at everything once.
    warm_up: Duration,
    /// How long costs are measured.
    watch: Duration,
    /// Lines whose way to a finding is timed.
    lines_timed: usize,
    /// Lines of the flood.
    flood_lines: u64,
}

/// What the budgets are stated for; the slowest tier comes by once in the minute.
const FULL: Sizes = Sizes {
    warm_up: Duration::from_secs(15),
    watch: Duration::from_secs(60),
    lines_timed: 300,
    flood_lines: 100_000,
};
const QUICK: Sizes = Sizes {
    warm_up: Duration::from_secs(5),
    watch: Duration::from_secs(5),
    lines_timed: 20,
    flood_lines: 5_000,
};

/// As Prometheus commonly scrapes.
const SCRAPE: Duration = Duration::from_secs(15);
/// Pauses between timed lines, at most; not in step with how often the log is looked at.
const PAUSE_US_MAX: u64 = 80_000;
/// The speed of the flood.
const FLOOD_LINES_PER_S: u64 = 10_000;

/// Budgets.
const RSS_MB_MAX: f64 = 40.0;
const LATENCY_MS_MAX: f64 = 50.0;

/// Xids that no driver prints: each opens a finding of its own and no other.
const XID_UNKNOWN: usize = 1000;
/// An Xid that a faulty program prints without end.
const XID_FLOOD: usize = 31;

/// Measures and writes `bench/agent.md`.
pub(crate) fn run(size: Size) -> anyhow::Result<()> {
    size.build(&[])?;
    let (farrier, sizes) = (size.farrier(), size.pick(FULL, QUICK));
    let node = Node::make(&farrier)?;
    let server = Server::start(&farrier, &node.folder)?;
    let mut agent = node.agent(&server.enrol("bench-1")?)?;
    let costs = costs(&node, &mut agent, sizes)?;
    say("--- from line to finding");
    let latency = latency(&node, &mut agent, sizes.lines_timed)?;
    say("--- a flood");
    let flood = flood(&node, &mut agent, sizes.flood_lines)?;
    size.publish("agent", &report::text(sizes, &costs, &latency, &flood)?)?;
    let mut over = Vec::new();
    if costs[0].memory.rss_mb().max(flood.memory.rss_mb()) > RSS_MB_MAX {
        over.push("memory".to_owned());
    }
    if latency.worst_of_ninety_nine_percent_ms() > LATENCY_MS_MAX {
        over.push("from line to finding".to_owned());
    }
    size.judge(&over)
}

/// What one watcher costs.
struct Cost {
    name: &'static str,
    /// Milliseconds of processor time a second, by part.
    rates: BTreeMap<String, f64>,
    memory: Memory,
    /// How often it looked; none where it goes by tiers.
    rounds: Option<u32>,
}

impl Cost {
    fn ms_per_s(&self) -> f64 {
        self.rates.values().sum()
    }
}

/// The agent and its peers at the same time; the agent is first.
fn costs(node: &Node, agent: &mut Agent, sizes: Sizes) -> anyhow::Result<Vec<Cost>> {
    let mut peers = peers::start(node)?;
    say(&format!("--- costs: {} s", (sizes.warm_up + sizes.watch).as_secs()));
    scraped_for(agent, sizes.warm_up)?;
    let rounds =
        |peers: &[Peer]| peers.iter().map(Peer::rounds).collect::<anyhow::Result<Vec<_>>>();
    let spent = |agent: &Agent, peers: &[Peer]| {
        let pids = peers.iter().map(|peer| peer.process.pid());
        let pids = std::iter::once(agent.process.pid()).chain(pids);
        pids.map(|pid| Spent::by(pid, "probe")).collect::<anyhow::Result<Vec<_>>>()
    };
    let (spent_before, rounds_before) = (spent(agent, &peers)?, rounds(&peers)?);
    scraped_for(agent, sizes.watch)?;
    let (spent_after, rounds_after) = (spent(agent, &peers)?, rounds(&peers)?);
    let mut rates =
        spent_after.iter().zip(&spent_before).map(|(after, before)| after.rates_since(before));
    agent.process.must_run("the agent")?;
    let mut costs = vec![Cost {
        name: "farrier agent",
        rates: rates.next().context("the agent was measured")?,
        memory: Memory::of(agent.process.pid())?,
        rounds: None,
    }];
    let rounds = rounds_after.iter().zip(&rounds_before).map(|(after, before)| after - before);
    for ((peer, rates), rounds) in peers.iter_mut().zip(rates).zip(rounds) {
        peer.process.must_run(peer.name)?;
        let memory = Memory::of(peer.process.pid())?;
        costs.push(Cost { name: peer.name, rates, memory, rounds: Some(rounds) });
    }
    Ok(costs)
}

fn scraped_for(agent: &Agent, time: Duration) -> anyhow::Result<()> {
    let end = Instant::now() + time;
    while Instant::now() < end {
        agent.metrics()?;
        std::thread::sleep(SCRAPE.min(end.saturating_duration_since(Instant::now())));
    }
    Ok(())
}

/// From the write of a kernel line to its finding in the sink, which comes after the disk has it.
fn latency(node: &Node, agent: &mut Agent, lines: usize) -> anyhow::Result<Times> {
    let mut log = node.kernel_log()?;
    // Knuth's generator, as in `bench_log`.
    let mut state = 42_u64;
    let mut times = Vec::with_capacity(lines);
    for xid in XID_UNKNOWN..XID_UNKNOWN + lines {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        std::thread::sleep(Duration::from_micros((state >> 33) % PAUSE_US_MAX));
        let wanted = format!("\"detail\":\"Xid {xid}\"");
        let start = Instant::now();
        log.xid(xid, 1)?;
        agent.until_sunk(|line| line.contains(&wanted).then_some(()))?;
        times.push(start.elapsed());
    }
    Ok(Times::of(times))
}

/// What a flood came to.
struct Flood {
    /// How long it was written.
    written: Duration,
    /// From the last line to the sink's count of all of them; counts are written once a second.
    counted_after: Duration,
    counted: u64,
    /// Processor time of the agent while it was written and counted, in milliseconds a second.
    ms_per_s: f64,
    memory: Memory,
    memory_before: Memory,
}

fn flood(node: &Node, agent: &mut Agent, lines: u64) -> anyhow::Result<Flood> {
    const WRITES_PER_S: u64 = 100;
    let pid = agent.process.pid();
    let mut log = node.kernel_log()?;
    let (spent_before, memory_before) = (Spent::by(pid, "probe")?, Memory::of(pid)?);
    let begun = Instant::now();
    for write in 0..lines * WRITES_PER_S / FLOOD_LINES_PER_S {
        let due = begun + Duration::from_secs(write) / u32::try_from(WRITES_PER_S)?;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        log.xid(XID_FLOOD, FLOOD_LINES_PER_S / WRITES_PER_S)?;
    }
    let last_line = Instant::now();
    let wanted = format!("\"detail\":\"Xid {XID_FLOOD}\"");
    let counted = agent.until_sunk(|line| {
        let count = line.contains(&wanted).then(|| line.split("\"count\":").nth(1))??;
        let count = count.split(',').next()?.parse::<u64>().ok()?;
        (count >= lines).then_some(count)
    })?;
    let (written, counted_after) = (last_line - begun, last_line.elapsed());
    let lost = "\nfarrier_agent_kernel_lines_lost_total 0\n";
    if counted != lines || !agent.metrics()?.contains(lost) {
        bail!("{counted} of {lines} lines were counted, or lines were lost");
    }
    let ms_per_s = Spent::by(pid, "probe")?.rates_since(&spent_before).values().sum();
    let memory = Memory::of(pid)?;
    Ok(Flood { written, counted_after, counted, ms_per_s, memory, memory_before })
}
