//! The scenarios, one function each.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;

use super::load::{self, Measurements};
use super::server::{BenchServer, ServerCost, Transport, folder};
use crate::bench_size::Size;
use crate::process::{CpuTime, MemoryUsage};
use crate::python::target;
use crate::shell::print_status;

pub(super) struct SteadyResult {
    pub(super) report: String,
    pub(super) nodes: usize,
    pub(super) seconds: usize,
    pub(super) cost: ServerCost,
    /// Memory before any node connects.
    pub(super) empty_mb: f64,
    /// Time and CPU time of the start after the server was killed.
    pub(super) restart: (Duration, Duration),
    pub(super) measurements: Measurements,
}

pub(super) fn steady(
    size: Size,
    (nodes, seconds): (usize, usize),
    report: &str,
) -> anyhow::Result<SteadyResult> {
    let folder = folder("steady")?;
    let server = BenchServer::start(size, &folder, Transport::Plain)?;
    let empty_mb = MemoryUsage::of_process(server.pid())?.pss_mb();
    let token = server.admin_token()?;
    let (count, time) = (nodes.to_string(), seconds.to_string());
    let args = ["steady", &server.url(), &token, &count, report, &time];
    let (mut before, mut cost) = (None, ServerCost::default());
    let measurements = load::run(size, &args, |mark| {
        match mark {
            "begin" => before = Some(CpuTime::measure(server.pid(), "child")?),
            _ => {
                cost =
                    ServerCost::since(before.as_ref().context("no `begin` mark")?, server.pid())?;
            }
        }
        Ok(())
    })?;
    server.kill()?;
    let server = BenchServer::start(size, &folder, Transport::Plain)?;
    let restart = (server.ready_after, server.ready_cpu);
    print_status(&format!("    restart {restart:?}"));
    server.kill()?;
    Ok(SteadyResult {
        report: report.to_owned(),
        nodes,
        seconds,
        cost,
        empty_mb,
        restart,
        measurements,
    })
}

pub(super) struct FindingsResult {
    pub(super) nodes: usize,
    pub(super) measurements: Measurements,
}

pub(super) fn findings(
    size: Size,
    (nodes, findings): (usize, usize),
) -> anyhow::Result<FindingsResult> {
    let measurements = findings_load(size, (nodes, findings), 20_000, "silent")?;
    Ok(FindingsResult { nodes, measurements })
}

fn findings_load(
    size: Size,
    (nodes, findings): (usize, usize),
    pause_us: u32,
    notified: &str,
) -> anyhow::Result<Measurements> {
    let server = BenchServer::start(size, &folder("findings")?, Transport::Plain)?;
    let token = server.admin_token()?;
    let (nodes, findings) = (nodes.to_string(), findings.to_string());
    let (url, pause) = (server.url(), pause_us.to_string());
    let args = ["findings", &url, &token, &nodes, &findings, &pause, notified];
    let measurements = load::run(size, &args, |_| Ok(()))?;
    server.kill()?;
    Ok(measurements)
}

/// Pause between findings in microseconds. With the jitter of the load, 10,000 take a minute.
const BURST_PAUSE_US: u32 = 2_500;

pub(super) struct NotifyResult {
    pub(super) nodes: usize,
    pub(super) findings: usize,
    pub(super) silent: Measurements,
    pub(super) notified: Measurements,
}

/// Runs without and with notifications alternate, so that a change of the machine's speed affects
/// both.
pub(super) fn notify(
    size: Size,
    (nodes, findings, runs): (usize, usize, usize),
) -> anyhow::Result<Vec<NotifyResult>> {
    let mut results = Vec::new();
    for _ in 0..runs {
        let run = |notified| findings_load(size, (nodes, findings), BURST_PAUSE_US, notified);
        let (silent, notified) = (run("silent")?, run("notified")?);
        results.push(NotifyResult { nodes, findings, silent, notified });
    }
    Ok(results)
}

/// Size of each flood report, close to the message limit.
const FLOOD_BYTES: usize = 1_000_000;

pub(super) struct FloodResult {
    pub(super) nodes: usize,
    pub(super) flooding: usize,
    pub(super) log_mb: f64,
    pub(super) peak_rss_mb: f64,
    pub(super) measurements: Measurements,
}

pub(super) fn flood(
    size: Size,
    (nodes, flooding, findings): (usize, usize, usize),
) -> anyhow::Result<FloodResult> {
    let folder = folder("flood")?;
    let server = BenchServer::start(size, &folder, Transport::Plain)?;
    let bytes = size.pick(FLOOD_BYTES, 256 << 10);
    let numbers = [nodes, flooding, bytes, findings].map(|number| number.to_string());
    let [nodes_arg, flooding_arg, bytes, findings] = &numbers;
    let url = server.url();
    let args = ["flood", &url, nodes_arg, flooding_arg, bytes, findings];
    let mut peak_rss_mb = 0.0;
    let measurements = load::run(size, &args, |mark| {
        if mark == "end" {
            peak_rss_mb =
                ServerCost::since(&CpuTime::measure(server.pid(), "child")?, server.pid())?
                    .peak_rss_mb;
        }
        Ok(())
    })?;
    server.kill()?;
    let log = ["log", "log-wal"]
        .map(|name| fs::metadata(folder.join(name)).map_or(0, |metadata| metadata.len()));
    #[expect(clippy::cast_precision_loss, reason = "a few gigabytes")]
    let log_mb = log.iter().sum::<u64>() as f64 / 1e6;
    Ok(FloodResult { nodes, flooding, log_mb, peak_rss_mb, measurements })
}

pub(super) struct BurstResult {
    pub(super) nodes: usize,
    pub(super) failing: usize,
    pub(super) measurements: Measurements,
}

pub(super) fn burst(
    size: Size,
    (nodes, failing): (usize, usize),
    share: &str,
) -> anyhow::Result<BurstResult> {
    let server = BenchServer::start(size, &folder("burst")?, Transport::Plain)?;
    let token = server.admin_token()?;
    let (nodes_arg, failing_arg) = (nodes.to_string(), failing.to_string());
    let measurements = load::run(
        size,
        &["burst", &server.url(), &token, &nodes_arg, &failing_arg, share],
        |_| Ok(()),
    )?;
    server.kill()?;
    Ok(BurstResult { nodes, failing, measurements })
}

pub(super) struct CertifiedResult {
    pub(super) nodes: usize,
    /// PSS before the first connection, and with all connections.
    pub(super) pss_mb: (f64, f64),
    pub(super) peak_rss_mb: f64,
    pub(super) measurements: Measurements,
}

impl CertifiedResult {
    pub(super) fn bytes_each(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "a few thousand")]
        let nodes = self.nodes as f64;
        (self.pss_mb.1 - self.pss_mb.0) * 1e6 / nodes
    }
}

pub(super) fn certified(size: Size, nodes: usize) -> anyhow::Result<CertifiedResult> {
    let folder = folder("certified")?;
    let first = BenchServer::start(size, &folder, Transport::Tls)?;
    let (url, address) = (first.url(), first.address);
    let user_token = first.admin_token()?;
    let (join, fingerprint) = first.join_token(nodes)?;
    let mut server = Some(first);
    let (mut pss_mb, mut peak_rss_mb) = ((0.0, 0.0), 0.0);
    let args = ["certified", &url, &join, &fingerprint, &user_token, &nodes.to_string()];
    let measurements = load::run(size, &args, |mark| {
        let running = || server.as_ref().context("the server is not running").map(BenchServer::pid);
        match mark {
            "enrolled" => {
                // Start a fresh server, so that memory left over from enrolment is not attributed
                // to connections.
                server.take().context("the server is not running")?.stop()?;
                server = Some(BenchServer::start_at(size, &folder, Transport::Tls, address)?);
                let pid = server.as_ref().context("the server is not running")?.pid();
                pss_mb.0 = MemoryUsage::of_process(pid)?.pss_mb();
            }
            "connected" => {
                let pid = running()?;
                pss_mb.1 = MemoryUsage::of_process(pid)?.pss_mb();
                peak_rss_mb = ServerCost::since(&CpuTime::measure(pid, "child")?, pid)?.peak_rss_mb;
                server.take().context("the server is not running")?.kill()?;
            }
            "gone" => server = Some(BenchServer::start_at(size, &folder, Transport::Tls, address)?),
            _ => {}
        }
        Ok(())
    })?;
    server.context("the server is not running")?.stop()?;
    Ok(CertifiedResult { nodes, pss_mb, peak_rss_mb, measurements })
}

pub(super) struct RestartResult {
    pub(super) label: &'static str,
    pub(super) has_budget: bool,
    pub(super) entries: f64,
    pub(super) nodes: f64,
    pub(super) days: f64,
    pub(super) times: Vec<Duration>,
    pub(super) cpu: Vec<Duration>,
}

impl RestartResult {
    pub(super) fn worst_s(&self) -> f64 {
        self.times.iter().max().map_or(0.0, Duration::as_secs_f64)
    }

    pub(super) fn worst_cpu_s(&self) -> f64 {
        self.cpu.iter().max().map_or(0.0, Duration::as_secs_f64)
    }
}

/// Measured starts per row of the table.
const STARTS: usize = 3;

pub(super) fn restarts(
    size: Size,
    (entries, after_snapshot): (usize, usize),
) -> anyhow::Result<Vec<RestartResult>> {
    let history = target().join("bench/fleet").join(format!("history-{entries}-{after_snapshot}"));
    let summary = history.join("figures");
    if !is_newer(&summary, &size.example("load")) {
        let _ = fs::remove_dir_all(&history);
        let path = history.to_string_lossy().into_owned();
        let args = ["history", &path, &entries.to_string(), &after_snapshot.to_string()];
        let measurements = load::run(size, &args, |_| Ok(()))?;
        let line = ["entries", "nodes", "days"]
            .map(|name| measurements.get(name).map(|value| value.to_string()));
        let line = line.into_iter().collect::<anyhow::Result<Vec<_>>>()?.join(" ");
        fs::write(&summary, line)?;
    }
    let text = fs::read_to_string(&summary)?;
    let mut numbers = text.split(' ').map(str::parse::<f64>);
    let mut next =
        || Ok::<_, anyhow::Error>(numbers.next().context("missing value in the summary")??);
    let (entries, nodes, days) = (next()?, next()?, next()?);
    let folder = folder("restart")?;
    copy_server_dir(&history, &folder)?;
    let mut restarts = Vec::new();
    let mut measure = |label,
                       has_budget,
                       before: &dyn Fn() -> anyhow::Result<()>,
                       ends: &dyn Fn(BenchServer) -> anyhow::Result<()>| {
        let (mut times, mut cpu) = (Vec::new(), Vec::new());
        for _ in 0..STARTS {
            before()?;
            let server = BenchServer::start(size, &folder, Transport::Plain)?;
            times.push(server.ready_after);
            cpu.push(server.ready_cpu);
            ends(server)?;
        }
        print_status(&format!("    {label}: {times:?}"));
        restarts.push(RestartResult { label, has_budget, entries, nodes, days, times, cpu });
        Ok::<_, anyhow::Error>(())
    };
    let from_history = || copy_server_dir(&history, &folder);
    measure(
        "after kill -9, just before the next snapshot",
        true,
        &from_history,
        &BenchServer::kill,
    )?;
    // The copied history has no snapshot at its end; a clean stop writes one.
    BenchServer::start(size, &folder, Transport::Plain)?.stop()?;
    measure("after a clean stop", true, &|| Ok(()), &BenchServer::stop)?;
    let without_snapshots = || remove_snapshots(&folder);
    measure("without a snapshot", false, &without_snapshots, &BenchServer::kill)?;
    Ok(restarts)
}

/// Whether `file` exists and is newer than `than`. A history that is older than the load generator
/// may have another format.
fn is_newer(file: &Path, than: &Path) -> bool {
    let written = |path: &Path| fs::metadata(path).and_then(|metadata| metadata.modified());
    matches!((written(file), written(than)), (Ok(file), Ok(than)) if file > than)
}

/// Copies a server folder: the log, its snapshots, and the CA, without which a server does not open
/// a log.
fn copy_server_dir(from: &Path, to: &Path) -> anyhow::Result<()> {
    remove_snapshots(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        // Folders hold uploads from nodes, which a start does not need.
        if entry.file_type()?.is_file() {
            fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

fn remove_snapshots(folder: &Path) -> anyhow::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with("log.state") {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}
