//! What is measured, one function each.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;

use super::load::{self, Figures};
use super::server::{Cost, Door, Server, folder};
use crate::bench_size::Size;
use crate::process::{Memory, Spent};
use crate::python::target;
use crate::shell::say;

pub(super) struct Steady {
    pub(super) report: String,
    pub(super) nodes: usize,
    pub(super) seconds: usize,
    pub(super) cost: Cost,
    /// Memory before anybody came.
    pub(super) empty_mb: f64,
    /// How long the next start took, after it was killed, and of that its processor time.
    pub(super) restart: (Duration, Duration),
    pub(super) figures: Figures,
}

pub(super) fn steady(
    size: Size,
    (nodes, seconds): (usize, usize),
    report: &str,
) -> anyhow::Result<Steady> {
    let folder = folder("steady")?;
    let server = Server::start(size, &folder, Door::Plain)?;
    let empty_mb = Memory::of(server.pid())?.pss_mb();
    let token = server.person()?;
    let (of, time) = (nodes.to_string(), seconds.to_string());
    let words = ["steady", &server.url(), &token, &of, report, &time];
    let (mut before, mut cost) = (None, Cost::default());
    let figures = load::run(size, &words, |mark| {
        match mark {
            "begin" => before = Some(Spent::by(server.pid(), "child")?),
            _ => cost = Cost::since(before.as_ref().context("it has begun")?, server.pid())?,
        }
        Ok(())
    })?;
    server.kill()?;
    let server = Server::start(size, &folder, Door::Plain)?;
    let restart = (server.ready_after, server.ready_cpu);
    say(&format!("    restart {restart:?}"));
    server.kill()?;
    Ok(Steady { report: report.to_owned(), nodes, seconds, cost, empty_mb, restart, figures })
}

pub(super) struct Findings {
    pub(super) nodes: usize,
    pub(super) figures: Figures,
}

pub(super) fn findings(size: Size, (nodes, findings): (usize, usize)) -> anyhow::Result<Findings> {
    let server = Server::start(size, &folder("findings")?, Door::Plain)?;
    let token = server.person()?;
    let (count, of) = (findings.to_string(), nodes.to_string());
    let figures = load::run(size, &["findings", &server.url(), &token, &of, &count], |_| Ok(()))?;
    server.kill()?;
    Ok(Findings { nodes, figures })
}

/// Bytes of each report in a flood: about what a message may have.
const FLOOD_BYTES: usize = 1_000_000;

pub(super) struct Flood {
    pub(super) nodes: usize,
    pub(super) flooding: usize,
    pub(super) log_mb: f64,
    pub(super) peak_rss_mb: f64,
    pub(super) figures: Figures,
}

pub(super) fn flood(
    size: Size,
    (nodes, flooding, findings): (usize, usize, usize),
) -> anyhow::Result<Flood> {
    let folder = folder("flood")?;
    let server = Server::start(size, &folder, Door::Plain)?;
    let bytes = size.pick(FLOOD_BYTES, 256 << 10);
    let words = [nodes, flooding, bytes, findings].map(|it| it.to_string());
    let [nodes_word, flooding_word, bytes, findings] = &words;
    let url = server.url();
    let words = ["flood", &url, nodes_word, flooding_word, bytes, findings];
    let mut peak_rss_mb = 0.0;
    let figures = load::run(size, &words, |mark| {
        if mark == "end" {
            peak_rss_mb =
                Cost::since(&Spent::by(server.pid(), "child")?, server.pid())?.peak_rss_mb;
        }
        Ok(())
    })?;
    server.kill()?;
    let log =
        ["log", "log-wal"].map(|name| fs::metadata(folder.join(name)).map_or(0, |it| it.len()));
    #[expect(clippy::cast_precision_loss, reason = "some gigabytes")]
    let log_mb = log.iter().sum::<u64>() as f64 / 1e6;
    Ok(Flood { nodes, flooding, log_mb, peak_rss_mb, figures })
}

pub(super) struct Burst {
    pub(super) nodes: usize,
    pub(super) failing: usize,
    pub(super) figures: Figures,
}

pub(super) fn burst(
    size: Size,
    (nodes, failing): (usize, usize),
    share: &str,
) -> anyhow::Result<Burst> {
    let server = Server::start(size, &folder("burst")?, Door::Plain)?;
    let token = server.person()?;
    let (of, count) = (nodes.to_string(), failing.to_string());
    let figures =
        load::run(size, &["burst", &server.url(), &token, &of, &count, share], |_| Ok(()))?;
    server.kill()?;
    Ok(Burst { nodes, failing, figures })
}

pub(super) struct Certified {
    pub(super) nodes: usize,
    /// Memory before and with all connections.
    pub(super) pss_mb: (f64, f64),
    pub(super) peak_rss_mb: f64,
    pub(super) figures: Figures,
}

impl Certified {
    pub(super) fn bytes_each(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "some thousands")]
        let nodes = self.nodes as f64;
        (self.pss_mb.1 - self.pss_mb.0) * 1e6 / nodes
    }
}

pub(super) fn certified(size: Size, nodes: usize) -> anyhow::Result<Certified> {
    let folder = folder("certified")?;
    let first = Server::start(size, &folder, Door::Tls)?;
    let (url, address) = (first.url(), first.address);
    let person = first.person()?;
    let (join, fingerprint) = first.join(nodes)?;
    let mut server = Some(first);
    let (mut pss_mb, mut peak_rss_mb) = ((0.0, 0.0), 0.0);
    let words = ["certified", &url, &join, &fingerprint, &person, &nodes.to_string()];
    let figures = load::run(size, &words, |mark| {
        let running = || server.as_ref().context("the server runs").map(Server::pid);
        match mark {
            "enrolled" => {
                // Enrolled by one that is fresh, so that what enrolling left behind is not counted for connections.
                server.take().context("the server runs")?.stop()?;
                server = Some(Server::start_at(size, &folder, Door::Tls, address)?);
                let pid = server.as_ref().context("the server runs")?.pid();
                pss_mb.0 = Memory::of(pid)?.pss_mb();
            }
            "connected" => {
                let pid = running()?;
                pss_mb.1 = Memory::of(pid)?.pss_mb();
                peak_rss_mb = Cost::since(&Spent::by(pid, "child")?, pid)?.peak_rss_mb;
                server.take().context("the server runs")?.kill()?;
            }
            "gone" => server = Some(Server::start_at(size, &folder, Door::Tls, address)?),
            _ => {}
        }
        Ok(())
    })?;
    server.context("the server runs")?.stop()?;
    Ok(Certified { nodes, pss_mb, peak_rss_mb, figures })
}

pub(super) struct Restart {
    pub(super) what: &'static str,
    pub(super) has_budget: bool,
    pub(super) entries: f64,
    pub(super) nodes: f64,
    pub(super) days: f64,
    pub(super) times: Vec<Duration>,
    pub(super) cpu: Vec<Duration>,
}

impl Restart {
    pub(super) fn worst_s(&self) -> f64 {
        self.times.iter().max().map_or(0.0, Duration::as_secs_f64)
    }

    pub(super) fn worst_cpu_s(&self) -> f64 {
        self.cpu.iter().max().map_or(0.0, Duration::as_secs_f64)
    }
}

/// Starts of each kind.
const STARTS: usize = 3;

pub(super) fn restarts(
    size: Size,
    (entries, unkept): (usize, usize),
) -> anyhow::Result<Vec<Restart>> {
    let made = target().join("bench/fleet").join(format!("history-{entries}-{unkept}"));
    let known = made.join("figures");
    if !is_newer(&known, &size.example("load")) {
        let _ = fs::remove_dir_all(&made);
        let path = made.to_string_lossy().into_owned();
        let words = ["history", &path, &entries.to_string(), &unkept.to_string()];
        let figures = load::run(size, &words, |_| Ok(()))?;
        let line = ["entries", "nodes", "days"].map(|it| figures.get(it).map(|it| it.to_string()));
        let line = line.into_iter().collect::<anyhow::Result<Vec<_>>>()?.join(" ");
        fs::write(&known, line)?;
    }
    let text = fs::read_to_string(&known)?;
    let mut numbers = text.split(' ').map(str::parse::<f64>);
    let mut next = || Ok::<_, anyhow::Error>(numbers.next().context("a figure")??);
    let (entries, nodes, days) = (next()?, next()?, next()?);
    let folder = folder("restart")?;
    copy(&made, &folder)?;
    let mut restarts = Vec::new();
    let mut measure = |what,
                       has_budget,
                       before: &dyn Fn() -> anyhow::Result<()>,
                       ends: &dyn Fn(Server) -> anyhow::Result<()>| {
        let (mut times, mut cpu) = (Vec::new(), Vec::new());
        for _ in 0..STARTS {
            before()?;
            let server = Server::start(size, &folder, Door::Plain)?;
            times.push(server.ready_after);
            cpu.push(server.ready_cpu);
            ends(server)?;
        }
        say(&format!("    {what}: {times:?}"));
        restarts.push(Restart { what, has_budget, entries, nodes, days, times, cpu });
        Ok::<_, anyhow::Error>(())
    };
    let worst = || copy(&made, &folder);
    measure("after kill -9, just before the state is kept next", true, &worst, &Server::kill)?;
    // One that was stopped in order leaves its state; the copy above is from before.
    Server::start(size, &folder, Door::Plain)?.stop()?;
    measure("after it was stopped", true, &|| Ok(()), &Server::stop)?;
    let none = || forget(&folder);
    measure("with no state that was kept", false, &none, &Server::kill)?;
    Ok(restarts)
}

/// Whether a file is there and was written after the other. A history that an older program wrote may
/// have another format.
fn is_newer(file: &Path, than: &Path) -> bool {
    let written = |path: &Path| fs::metadata(path).and_then(|it| it.modified());
    matches!((written(file), written(than)), (Ok(file), Ok(than)) if file > than)
}

/// Copies a server's folder: the log, the state that was kept and the authority, without which a
/// server does not take up a log.
fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    forget(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        // Files that nodes have sent are not needed.
        if entry.file_type()?.is_file() {
            fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

/// Removes states that were kept.
fn forget(folder: &Path) -> anyhow::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with("log.state") {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}
