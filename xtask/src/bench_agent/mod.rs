//! `cargo xtask bench agent`: cost and latency of the agent on a simulated node with eight H100.
//!
//! ```text
//! node ─┬─ agent and its probe child ─┐
//!       ├─ gpustat, once a second     ├─> cost ─> latency ─> flood ─> bench/agent.md
//!       └─ nvitop, once a second      ┘
//! ```
//!
//! `cost` measures all three programs at the same time. gpustat and nvitop are then stopped,
//! because `latency` and `flood` measure only the agent. During `cost`, the benchmark scrapes the
//! agent's metrics. The agent reports to a server on the same machine and executes its orders.

mod node;
pub(crate) mod peers;
mod report;
mod server;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::bench_facts::Timings;
use crate::bench_size::Size;
use crate::process::{CpuTime, MemoryUsage};
use crate::shell::print_status;
use node::{AgentProcess, BenchNode};
use peers::PeerProcess;
use server::ServerProcess;

/// Sizes of a run.
#[derive(Clone, Copy)]
struct AgentParams {
    /// Time before the cost measurement. It is long enough for all processes to start, and for the
    /// agent to read every tier once.
    warm_up: Duration,
    /// Duration of the cost measurement.
    watch: Duration,
    /// Kernel lines whose latency is measured.
    lines_timed: usize,
    flood_lines: u64,
}

/// The sizes to which the budgets apply. The agent reads its slow tier once within `watch`.
const FULL: AgentParams = AgentParams {
    warm_up: Duration::from_secs(15),
    watch: Duration::from_secs(60),
    lines_timed: 300,
    flood_lines: 100_000,
};
const QUICK: AgentParams = AgentParams {
    warm_up: Duration::from_secs(5),
    watch: Duration::from_secs(5),
    lines_timed: 20,
    flood_lines: 5_000,
};

/// Common Prometheus scrape interval.
const SCRAPE: Duration = Duration::from_secs(15);
/// Maximum of the random pause before each timed line. With a fixed pause, the lines could be in
/// step with the agent's polling.
const PAUSE_US_MAX: u64 = 80_000;
const FLOOD_LINES_PER_S: u64 = 10_000;

/// PSS of agent and probe together. Both run the same binary, and RSS would count the pages of the
/// binary twice.
const PSS_MB_MAX: f64 = 35.0;
const LATENCY_MS_MAX: f64 = 50.0;

/// First of the Xids for timed lines. No driver prints these Xids, so each of them opens exactly
/// one finding.
const FIRST_UNKNOWN_XID: usize = 1000;
/// An Xid that a faulty program can trigger endlessly.
const FLOOD_XID: usize = 31;

/// Runs the benchmark and writes `bench/agent.md`.
pub(crate) fn run(size: Size) -> anyhow::Result<()> {
    size.build(&[])?;
    let (farrier, params) = (size.farrier(), size.pick(FULL, QUICK));
    let node = BenchNode::create(&farrier)?;
    let server = ServerProcess::start(&farrier, &node.folder)?;
    let mut agent = node.agent(&server.enrol("bench-1")?)?;
    let costs = costs(&node, &mut agent, params)?;
    print_status("--- latency from kernel line to finding");
    let latency = latency(&node, &mut agent, params.lines_timed)?;
    print_status("--- flood");
    let flood = flood(&node, &mut agent, params.flood_lines)?;
    size.publish("agent", &report::text(params, &costs, &latency, &flood)?)?;
    let mut over = Vec::new();
    if costs[0].memory.pss_mb().max(flood.memory.pss_mb()) > PSS_MB_MAX {
        over.push("memory".to_owned());
    }
    if latency.p99_ms() > LATENCY_MS_MAX {
        over.push("latency from kernel line to finding".to_owned());
    }
    size.judge(&over)
}

/// Cost of one monitoring program.
struct WatcherCost {
    name: &'static str,
    /// CPU milliseconds per second, by thread or child.
    rates: BTreeMap<String, f64>,
    memory: MemoryUsage,
    /// Number of readings taken. `None` for the agent, which reads in tiers.
    rounds: Option<u32>,
}

impl WatcherCost {
    fn ms_per_s(&self) -> f64 {
        self.rates.values().sum()
    }
}

/// Measures the agent and the other monitors at the same time. The first result is that of the
/// agent.
fn costs(
    node: &BenchNode,
    agent: &mut AgentProcess,
    params: AgentParams,
) -> anyhow::Result<Vec<WatcherCost>> {
    let mut peers = peers::start(node)?;
    print_status(&format!("--- costs: {} s", (params.warm_up + params.watch).as_secs()));
    scrape_for(agent, params.warm_up)?;
    let rounds = |peers: &[PeerProcess]| {
        peers.iter().map(PeerProcess::rounds).collect::<anyhow::Result<Vec<_>>>()
    };
    let cpu_times = |agent: &AgentProcess, peers: &[PeerProcess]| {
        let pids = peers.iter().map(|peer| peer.process.pid());
        let pids = std::iter::once(agent.process.pid()).chain(pids);
        pids.map(|pid| CpuTime::measure(pid, "probe")).collect::<anyhow::Result<Vec<_>>>()
    };
    let (cpu_before, rounds_before) = (cpu_times(agent, &peers)?, rounds(&peers)?);
    scrape_for(agent, params.watch)?;
    let (cpu_after, rounds_after) = (cpu_times(agent, &peers)?, rounds(&peers)?);
    let mut rates =
        cpu_after.iter().zip(&cpu_before).map(|(after, before)| after.rates_since(before));
    agent.process.ensure_running("the agent")?;
    let mut costs = vec![WatcherCost {
        name: "farrier agent",
        rates: rates.next().context("the agent was not measured")?,
        memory: MemoryUsage::of_process(agent.process.pid())?,
        rounds: None,
    }];
    let rounds = rounds_after.iter().zip(&rounds_before).map(|(after, before)| after - before);
    for ((peer, rates), rounds) in peers.iter_mut().zip(rates).zip(rounds) {
        peer.process.ensure_running(peer.name)?;
        let memory = MemoryUsage::of_process(peer.process.pid())?;
        costs.push(WatcherCost { name: peer.name, rates, memory, rounds: Some(rounds) });
    }
    Ok(costs)
}

fn scrape_for(agent: &AgentProcess, time: Duration) -> anyhow::Result<()> {
    let end = Instant::now() + time;
    while Instant::now() < end {
        agent.metrics()?;
        std::thread::sleep(SCRAPE.min(end.saturating_duration_since(Instant::now())));
    }
    Ok(())
}

/// Measures the time from the write of a kernel log line until its finding is in the sink file, to
/// which the agent writes each finding after the journal's fsync.
fn latency(node: &BenchNode, agent: &mut AgentProcess, lines: usize) -> anyhow::Result<Timings> {
    let mut log = node.kernel_log()?;
    // The same linear congruential generator as in `bench_log`.
    let mut state = 42_u64;
    let mut times = Vec::with_capacity(lines);
    for xid in FIRST_UNKNOWN_XID..FIRST_UNKNOWN_XID + lines {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        std::thread::sleep(Duration::from_micros((state >> 33) % PAUSE_US_MAX));
        let needle = format!("\"detail\":\"Xid {xid}\"");
        let start = Instant::now();
        log.xid(xid, 1)?;
        agent.wait_for_sink_line(|line| line.contains(&needle).then_some(()))?;
        times.push(start.elapsed());
    }
    Ok(Timings::new(times))
}

struct FloodResult {
    /// Time taken to write the lines.
    written: Duration,
    /// Time from the last line until the sink file has the complete count. The agent writes counts
    /// once a second.
    counted_after: Duration,
    counted: u64,
    /// CPU milliseconds per second of the agent, from the first line until the count is complete.
    ms_per_s: f64,
    memory: MemoryUsage,
    memory_before: MemoryUsage,
}

fn flood(node: &BenchNode, agent: &mut AgentProcess, lines: u64) -> anyhow::Result<FloodResult> {
    const WRITES_PER_S: u64 = 100;
    let pid = agent.process.pid();
    let mut log = node.kernel_log()?;
    let (cpu_before, memory_before) =
        (CpuTime::measure(pid, "probe")?, MemoryUsage::of_process(pid)?);
    let started = Instant::now();
    for write in 0..lines * WRITES_PER_S / FLOOD_LINES_PER_S {
        let due = started + Duration::from_secs(write) / u32::try_from(WRITES_PER_S)?;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        log.xid(FLOOD_XID, FLOOD_LINES_PER_S / WRITES_PER_S)?;
    }
    let last_line = Instant::now();
    let needle = format!("\"detail\":\"Xid {FLOOD_XID}\"");
    let counted = agent.wait_for_sink_line(|line| {
        let count = line.contains(&needle).then(|| line.split("\"count\":").nth(1))??;
        let count = count.split(',').next()?.parse::<u64>().ok()?;
        (count >= lines).then_some(count)
    })?;
    let (written, counted_after) = (last_line - started, last_line.elapsed());
    let lost = "\nfarrier_agent_kernel_lines_lost_total 0\n";
    if counted != lines || !agent.metrics()?.contains(lost) {
        bail!("wrote {lines} lines, but the agent counted {counted} or reports lost lines");
    }
    let ms_per_s = CpuTime::measure(pid, "probe")?.rates_since(&cpu_before).values().sum();
    let memory = MemoryUsage::of_process(pid)?;
    Ok(FloodResult { written, counted_after, counted, ms_per_s, memory, memory_before })
}
