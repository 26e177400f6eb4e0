//! The report, with budgets.

use std::fmt::Write as _;

use anyhow::bail;

use super::FleetResults;
use super::scenarios::{
    BurstResult, CertifiedResult, FindingsResult, FloodResult, RestartResult, SteadyResult,
};
use crate::bench_facts::{machine, today};

const CORES_MAX: f64 = 1.0;
const MEMORY_MB_MAX: f64 = 2000.0;
const DECISIONS_S_MAX: f64 = 2.0;
const EVENT_MS_MAX: f64 = 250.0;
/// Maximum delay of a fatal finding in a flood, at P99.
const FLOOD_DELAY_MS_MAX: f64 = 100.0;
const RESTART_S_MAX: f64 = 5.0;

/// Published figures of another system, for reference.
const REFERENCE: &str = "\
NVSentinel's published measurements, on its own machines and with Kubernetes and MongoDB beneath it, are no race on one machine: they say what a
fleet of this size is known to cost. 57 events a second: 17.67 ms an event in its analyser, one at a time (ADR 056 of its repository). 163 s: the 90 % of
the times from fault to cordon when 375 of 1,500 nodes fail (its fault-quarantine scale test of v0.4). 235 GB: the control plane's memory at
100,000 nodes (its pull request 1789). Source: github.com/NVIDIA/NVSentinel, read in November 2026.
";

/// Scenarios over their budget.
pub(super) fn over_budget(results: &FleetResults) -> anyhow::Result<Vec<String>> {
    let mut over = Vec::new();
    for result in &results.steady {
        if result.cost.cores > CORES_MAX || result.cost.peak_rss_mb > MEMORY_MB_MAX {
            over.push(format!("{} nodes that report ({})", result.nodes, result.report));
        }
    }
    for result in &results.bursts {
        if result.measurements.get("last_failure_to_last_decision_ms")? > DECISIONS_S_MAX * 1e3 {
            over.push(format!("{} of {} nodes fail", result.failing, result.nodes));
        }
    }
    if let Some(result) = &results.findings
        && result.measurements.get("finding_to_event_p99_ms")? > EVENT_MS_MAX
    {
        over.push("from finding to event".to_owned());
    }
    if let Some(result) = &results.flood
        && result.measurements.get("flooded_p99_ms")? - result.measurements.get("quiet_p99_ms")?
            > FLOOD_DELAY_MS_MAX
    {
        over.push(format!("a fatal finding beside {} nodes that flood", result.flooding));
    }
    for result in results.restarts.iter().filter(|result| result.has_budget) {
        if result.worst_s() > RESTART_S_MAX {
            over.push(format!("restart {}", result.what));
        }
    }
    Ok(over)
}

/// Fails if the log lost or duplicated a finding. Not a budget: this applies at every size.
pub(super) fn check_nothing_lost(results: &FleetResults) -> anyhow::Result<()> {
    let Some(result) = &results.certified else { return Ok(()) };
    let get = |name: &str| result.measurements.get(name);
    let lost = get("findings_sent")? - get("findings_logged")?;
    let doubled = get("records_doubled")?;
    if lost > 0.0 || doubled > 0.0 {
        bail!("a restart lost {lost} findings and doubled {doubled} records");
    }
    Ok(())
}

pub(super) fn text(results: &FleetResults) -> anyhow::Result<String> {
    let mut text = String::new();
    writeln!(text, "# Cost and speed of the server\n")?;
    writeln!(text, "Made by `cargo xtask bench fleet` on {}: {}.", today()?, machine()?)?;
    writeln!(
        text,
        "The server is a process of its own (release), the agents are another on the same two cores; costs are the server's alone, by \
         `/proc`. The log is on disk, each commit brought there before it is acknowledged.\n"
    )?;
    writeln!(text, "{REFERENCE}")?;
    if !results.steady.is_empty() {
        steady(&mut text, &results.steady)?;
    }
    if !results.bursts.is_empty() {
        bursts(&mut text, &results.bursts)?;
    }
    if let Some(result) = &results.findings {
        findings(&mut text, result)?;
    }
    if let Some(result) = &results.flood {
        flood(&mut text, result)?;
    }
    if let Some(result) = &results.certified {
        certified(&mut text, result)?;
    }
    if !results.restarts.is_empty() {
        restarts(&mut text, &results.restarts)?;
    }
    Ok(text)
}

fn steady(text: &mut String, all: &[SteadyResult]) -> anyhow::Result<()> {
    writeln!(text, "## Nodes of eight GPUs that report every 10 s\n")?;
    writeln!(
        text,
        "On shared connections of 1,000 streams each, without TLS. *heartbeat*: what an agent says every 10 s while nothing changes is that \
         it lives, a message of a few bytes; readings of GPUs stay on the node. *makeup*: each report has all that the node is made of, eight GPUs with \
         name and UUID, driver, kernel and frameworks (about 640 bytes), which the server compares with what it knows. In both, 25 findings a \
         second open and 25 clear, one in ten a fault that takes its node through cordon, drain, reset, proof and back. The last three columns \
         are from a change on a node to its acknowledgement, which waits for the disk and for whatever holds the deciding thread up.\n"
    )?;
    writeln!(
        text,
        "| reports | nodes | for | CPU, cores | of these deciding | peak RSS | PSS | PSS a node | change → ack 50 % | 99 % | worst |"
    )?;
    writeln!(text, "|---|---|---|---|---|---|---|---|---|---|---|")?;
    for result in all {
        let SteadyResult { report, nodes, seconds, cost, empty_mb, measurements, .. } = result;
        #[expect(clippy::cast_precision_loss, reason = "some hundred thousand")]
        let each_kb = (cost.pss_mb - empty_mb) * 1e3 / *nodes as f64;
        writeln!(
            text,
            "| {report} | {nodes} | {seconds} s | {:.2} | {:.3} | {:.0} MB | {:.0} MB | {each_kb:.1} kB | {:.1} ms | {:.1} ms | {:.0} ms |",
            cost.cores,
            cost.controller_cores,
            cost.peak_rss_mb,
            cost.pss_mb,
            measurements.get("change_to_acknowledgement_p50_ms")?,
            measurements.get("change_to_acknowledgement_p99_ms")?,
            measurements.get("change_to_acknowledgement_max_ms")?,
        )?;
    }
    writeln!(
        text,
        "| budget | 100000 | 180 s | {CORES_MAX} | | {MEMORY_MB_MAX:.0} MB | | | | | |"
    )?;
    writeln!(text, "| NVSentinel | 100000 | | | | 235 GB | | | | | |\n")?;
    joined(text, all)
}

/// The join phase, and a restart with all nodes in the log.
fn joined(text: &mut String, all: &[SteadyResult]) -> anyhow::Result<()> {
    writeln!(
        text,
        "Before that all of them join at once: each enrols, is seen, is asked for two proofs, passes them and is put in service.\n"
    )?;
    writeln!(
        text,
        "| reports | all connected | all in service | events in the log | events a second | restart after kill -9, with all of them in the log |"
    )?;
    writeln!(text, "|---|---|---|---|---|---|")?;
    for result in all {
        let (entries, time_s) =
            (result.measurements.get("entries_joined")?, result.measurements.get("in_service_s")?);
        writeln!(
            text,
            "| {} | {:.1} s | {time_s:.1} s | {entries} | {:.0} | {:.1} s (CPU {:.1} s) |",
            result.report,
            result.measurements.get("connect_s")?,
            entries / time_s,
            result.restart.0.as_secs_f64(),
            result.restart.1.as_secs_f64(),
        )?;
    }
    writeln!(text, "| NVSentinel | | | | 57 | |\n")?;
    Ok(())
}

fn bursts(text: &mut String, all: &[BurstResult]) -> anyhow::Result<()> {
    writeln!(text, "## A quarter of a fleet fails within one second\n")?;
    writeln!(
        text,
        "Each node finds Xid 48. A decision is what the log has of the node next: that it is taken out of service, or that it should be and why it is not \
         (by default at most a tenth of the fleet may be out). Times end when the decision's event is at whoever follows the log \
         over HTTP, which is after it is on disk.\n"
    )?;
    writeln!(
        text,
        "| nodes | fail | taken out | held back | failure → decision 50 % | 99 % | worst | last failure → last decision |"
    )?;
    writeln!(text, "|---|---|---|---|---|---|---|---|")?;
    for result in all {
        let get = |name: &str| result.measurements.get(name);
        writeln!(
            text,
            "| {} | {} | {} | {} | {:.1} ms | {:.1} ms | {:.0} ms | {:.0} ms |",
            result.nodes,
            result.failing,
            get("taken_out")?,
            get("held_back")?,
            get("failure_to_decision_p50_ms")?,
            get("failure_to_decision_p99_ms")?,
            get("failure_to_decision_max_ms")?,
            get("last_failure_to_last_decision_ms")?,
        )?;
    }
    writeln!(text, "| budget: 1500 | 375 | | | | | | {:.0} ms |", DECISIONS_S_MAX * 1e3)?;
    writeln!(text, "| NVSentinel: 1500 | 375 | 375 | | | 90 %: 163 s | | |\n")?;
    Ok(())
}

fn flood(text: &mut String, result: &FloodResult) -> anyhow::Result<()> {
    let get = |name: &str| result.measurements.get(name);
    writeln!(text, "## A fatal finding while nodes flood the server\n")?;
    writeln!(
        text,
        "{} nodes, each on a connection of its own, send reports of 1 MB as fast as the server reads them. Meanwhile {} other nodes have \
         {} fatal findings, 20 a second: from the finding to its acknowledgement, which is after it is on disk. The load is on the same two cores. \
         The log grew to {:.0} MB, the server's peak RSS was {:.0} MB.\n",
        result.flooding,
        result.nodes,
        get("flooded_count")?,
        result.log_mb,
        result.peak_rss_mb
    )?;
    writeln!(text, "| | 50 % | 99 % | worst |")?;
    writeln!(text, "|---|---|---|---|")?;
    for (what, name) in [("before the flood", "quiet"), ("in the flood", "flooded")] {
        writeln!(
            text,
            "| {what} | {:.1} ms | {:.1} ms | {:.1} ms |",
            get(&format!("{name}_p50_ms"))?,
            get(&format!("{name}_p99_ms"))?,
            get(&format!("{name}_max_ms"))?,
        )?;
    }
    writeln!(text, "| budget | | {FLOOD_DELAY_MS_MAX:.0} ms later than before | |\n")?;
    Ok(())
}

fn findings(text: &mut String, result: &FindingsResult) -> anyhow::Result<()> {
    let get = |name: &str| result.measurements.get(name);
    writeln!(text, "## From a finding on a node to its event at a reader\n")?;
    writeln!(
        text,
        "{} findings, about 40 a second, on {} nodes that report; the reader follows `/api/v1/events/stream`.\n",
        get("finding_to_event_count")?,
        result.nodes
    )?;
    writeln!(text, "| 50 % | 99 % | worst | budget of 99 % |")?;
    writeln!(text, "|---|---|---|---|")?;
    writeln!(
        text,
        "| {:.1} ms | {:.1} ms | {:.1} ms | {EVENT_MS_MAX:.0} ms |\n",
        get("finding_to_event_p50_ms")?,
        get("finding_to_event_p99_ms")?,
        get("finding_to_event_max_ms")?,
    )?;
    Ok(())
}

fn certified(text: &mut String, result: &CertifiedResult) -> anyhow::Result<()> {
    let get = |name: &str| result.measurements.get(name);
    writeln!(text, "## A connection and a certificate each\n")?;
    writeln!(
        text,
        "{} nodes enrol with a token and connect by mutual TLS, each on a connection of its own. Then the server is killed (`kill -9`) while each \
         sends one more finding, and started again; every node tries again after 125 to 375 ms, far sooner than agents do.\n",
        result.nodes
    )?;
    writeln!(text, "| what | measured |")?;
    writeln!(text, "|---|---|")?;
    writeln!(
        text,
        "| all enrolled, each a signature and two writes to disk | {:.1} s |",
        get("enrol_s")?
    )?;
    writeln!(text, "| all connected | {:.1} s |", get("connect_s")?)?;
    writeln!(
        text,
        "| memory a connection, with its node's state (PSS from {:.0} to {:.0} MB; peak RSS {:.0} MB) | {:.1} kB |",
        result.pss_mb.0,
        result.pss_mb.1,
        result.peak_rss_mb,
        result.bytes_each() / 1e3
    )?;
    writeln!(
        text,
        "| all back after the restart, from when it accepts | {:.1} s |",
        get("reconnect_s")?
    )?;
    writeln!(
        text,
        "| findings sent, in the log, records twice in the log | {}, {}, {} |\n",
        get("findings_sent")?,
        get("findings_logged")?,
        get("records_doubled")?
    )?;
    Ok(())
}

fn restarts(text: &mut String, all: &[RestartResult]) -> anyhow::Result<()> {
    let Some(first) = all.first() else { return Ok(()) };
    writeln!(text, "## Restart with a long log\n")?;
    writeln!(
        text,
        "{} entries: {} days of {} simulated nodes that join, fall ill, are taken out, mended, proven and given back. From the start of the process until \
         `/healthz` answers.\n",
        first.entries, first.days, first.nodes
    )?;
    writeln!(text, "| start | each | worst | CPU, worst | budget |")?;
    writeln!(text, "|---|---|---|---|---|")?;
    for result in all {
        let each: Vec<String> =
            result.times.iter().map(|time| format!("{:.2} s", time.as_secs_f64())).collect();
        let budget =
            if result.has_budget { format!("{RESTART_S_MAX:.0} s") } else { String::new() };
        writeln!(
            text,
            "| {} | {} | {:.2} s | {:.2} s | {budget} |",
            result.what,
            each.join(", "),
            result.worst_s(),
            result.worst_cpu_s()
        )?;
    }
    Ok(())
}
