//! The report.

use std::fmt::Write as _;

use super::{
    AgentParams, FLOOD_LINES_PER_S, FloodResult, LATENCY_MS_MAX, RSS_MB_MAX, SCRAPE, WatcherCost,
};
use crate::bench_facts::{Timings, machine, today};

/// How the numbers compare, and what the simulation adds.
const NOTES: &str = "\
The peers run as loops in one long-lived Python process each, once a second. The agent goes by tiers: what is cheap and \
changes fast each second, the rest less often; besides NVML it reads the kernel log, PCI, network ports and the host, and \
checks the node. The simulated library answers from memory in the process of whoever calls it: a call over which a real \
driver takes long costs no more than another here. What real calls cost is in [agent_h200.md](agent_h200.md).

The kernel log of a simulated node is a file, for whose growth the reader waits with inotify (thread `kernel`); a real \
`/dev/kmsg` wakes its reader by itself.
";

pub(super) fn text(
    params: AgentParams,
    costs: &[WatcherCost],
    latency: &Timings,
    flood: &FloodResult,
) -> anyhow::Result<String> {
    let mut text = String::new();
    writeln!(text, "# Cost and speed of the agent\n")?;
    writeln!(text, "Made by `cargo xtask bench agent` on {}: {}.", today()?, machine()?)?;
    writeln!(
        text,
        "The node is simulated, with eight H100. The agent is enrolled with a server on this machine (TLS), tells it what it finds, and carries out \
         its orders. On a real GPU: [agent_h200.md](agent_h200.md).\n"
    )?;
    write_costs(&mut text, costs, params)?;
    write_parts(&mut text, &costs[0])?;
    writeln!(text, "{NOTES}")?;
    write_latency(&mut text, latency, params)?;
    write_flood(&mut text, flood, params)?;
    Ok(text)
}

fn write_costs(
    text: &mut String,
    costs: &[WatcherCost],
    params: AgentParams,
) -> anyhow::Result<()> {
    let agent = &costs[0];
    let (watch_s, scrape_s) = (params.watch.as_secs(), SCRAPE.as_secs());
    writeln!(
        text,
        "## Beside gpustat and nvitop\n\nAll at the same time for {watch_s} s; the agent is scraped every {scrape_s} s. \
         Processor time and memory are of each process with its children.\n"
    )?;
    writeln!(
        text,
        "| who | looked | CPU, ms a second | × the agent | RSS, MB | PSS, MB | budget |"
    )?;
    writeln!(text, "|---|---|---|---|---|---|---|")?;
    for cost in costs {
        let looked = cost.rounds.map_or("by tiers".to_owned(), |rounds| format!("{rounds} times"));
        let budget = cost.rounds.map_or(format!("RSS {RSS_MB_MAX:.0} MB"), |_| String::new());
        writeln!(
            text,
            "| `{}` | {looked} | {:.2} | {:.2} | {:.1} | {:.1} | {budget} |",
            cost.name,
            cost.ms_per_s(),
            cost.ms_per_s() / agent.ms_per_s(),
            cost.memory.rss_mb(),
            cost.memory.pss_mb()
        )?;
    }
    let real = agent.ms_per_s() - agent.rates.get("kernel").unwrap_or(&0.0);
    let ratio = real / agent.ms_per_s();
    writeln!(
        text,
        "| the agent without its thread `kernel`: see below | | {real:.2} | {ratio:.2} | | | |"
    )?;
    Ok(())
}

fn write_parts(text: &mut String, agent: &WatcherCost) -> anyhow::Result<()> {
    writeln!(text, "\n| part of the agent | CPU, ms a second |\n|---|---|")?;
    for (part, ms_per_s) in &agent.rates {
        let what = match part.as_str() {
            "farrier" => "main thread: metrics, socket",
            "brain" => "thread `brain`: rules, journal",
            "nvml" => "thread `nvml`: hears the probe",
            "host" => "thread `host`: /proc, /sys",
            "kernel" => "thread `kernel`: the kernel log",
            "check" => "thread `check`: the node's check, once a minute",
            "uplink" => "thread `uplink`: to the server and from it",
            "orders" => "thread `orders`: carries them out",
            "mark" => "thread `mark`: whether the node takes work",
            "probe" => "the probe, a child: every call of NVML",
            other => other,
        };
        writeln!(text, "| {what} | {ms_per_s:.2} |")?;
    }
    writeln!(text)?;
    Ok(())
}

fn write_latency(text: &mut String, latency: &Timings, params: AgentParams) -> anyhow::Result<()> {
    writeln!(
        text,
        "## From kernel line to finding\n\n{} Xid lines, each of another number, at random moments: from the write of \
         the line until its finding is in the sink's file, which comes after the journal's fsync.\n",
        params.lines_timed
    )?;
    writeln!(text, "| median | 99 % | worst | budget of 99 % |\n|---|---|---|---|")?;
    writeln!(
        text,
        "| {:.1} ms | {:.1} ms | {:.1} ms | {LATENCY_MS_MAX:.0} ms |\n",
        latency.median_ms(),
        latency.p99_ms(),
        latency.max_ms()
    )?;
    Ok(())
}

fn write_flood(text: &mut String, flood: &FloodResult, params: AgentParams) -> anyhow::Result<()> {
    writeln!(text, "## A flood of Xids\n\n| what | measured | budget |\n|---|---|---|")?;
    writeln!(
        text,
        "| lines written at {FLOOD_LINES_PER_S} a second, in {:.1} s | counted in the finding: {} | all |",
        flood.written.as_secs_f64(),
        flood.counted
    )?;
    writeln!(
        text,
        "| from the last line to the count of all (counts are written once a second) | {:.2} s | |",
        flood.counted_after.as_secs_f64()
    )?;
    writeln!(text, "| CPU meanwhile | {:.0} ms a second | |", flood.ms_per_s)?;
    writeln!(
        text,
        "| RSS of agent and probe before, with {} open findings | {:.1} MB | |",
        params.lines_timed,
        flood.memory_before.rss_mb()
    )?;
    writeln!(
        text,
        "| RSS of agent and probe after (PSS: {:.1} MB) | {:.1} MB | {RSS_MB_MAX:.0} MB |",
        flood.memory.pss_mb(),
        flood.memory.rss_mb()
    )?;
    Ok(())
}
