//! A server of its own in a folder of its own, and what it costs.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::bench_size::Size;
use crate::process::{Memory, Running, Spent, own_time};
use crate::python::target;
use crate::shell::command;

/// Longer than a start may ever take.
const START_WAIT: Duration = Duration::from_secs(180);

/// A folder for a server, empty.
pub(super) fn folder(name: &str) -> anyhow::Result<PathBuf> {
    let folder = target().join("bench/fleet").join(name);
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    // A server keeps its keys there, and refuses a folder that others may use.
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
    Ok(folder)
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Door {
    /// Loopback without TLS: whoever says a name is believed.
    Plain,
    Tls,
}

pub(super) struct Server {
    pub(super) process: Running,
    pub(super) address: SocketAddr,
    /// From the start of the process until it answered.
    pub(super) ready_after: Duration,
    /// Processor time until then.
    pub(super) ready_cpu: Duration,
    farrier: PathBuf,
    folder: PathBuf,
    door: Door,
}

impl Server {
    /// Starts one on a port that the kernel chooses.
    pub(super) fn start(size: Size, folder: &Path, door: Door) -> anyhow::Result<Self> {
        Self::start_at(size, folder, door, SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
    }

    pub(super) fn start_at(
        size: Size,
        folder: &Path,
        door: Door,
        listen: SocketAddr,
    ) -> anyhow::Result<Self> {
        let (farrier, log) = (size.farrier(), folder.join("said"));
        let begun = Instant::now();
        let mut run = command(&farrier);
        run.args(["server", "run", "--listen", &listen.to_string(), "--dir"]).arg(folder);
        if door == Door::Plain {
            run.args(["--plain", "train"]);
        }
        let child = run.stdin(Stdio::null()).stderr(File::create(&log)?).spawn()?;
        let mut process = Running(child);
        let address = loop {
            if let Some(address) = served_at(&log)
                && (door == Door::Tls || is_healthy(address))
            {
                break address;
            }
            let ended = process.must_run("the server");
            ended.with_context(|| fs::read_to_string(&log).unwrap_or_default())?;
            if begun.elapsed() > START_WAIT {
                bail!("the server does not answer");
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let ready_after = begun.elapsed();
        let ready_cpu = own_time(process.pid()).context("the server runs")?;
        let folder = folder.to_owned();
        Ok(Self { process, address, ready_after, ready_cpu, farrier, folder, door })
    }

    pub(super) fn url(&self) -> String {
        let scheme = if self.door == Door::Plain { "http" } else { "https" };
        format!("{scheme}://{}", self.address)
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// A token of a person who may do everything.
    pub(super) fn person(&self) -> anyhow::Result<String> {
        let said = self.asked(&["user", "add", "bench", "--role", "admin", "--expires", "1d"])?;
        said.lines().next().map(str::to_owned).context("no token")
    }

    /// A token that so many nodes may join with, and the authority's fingerprint.
    pub(super) fn join(&self, nodes: usize) -> anyhow::Result<(String, String)> {
        let uses = nodes.to_string();
        let said = self.asked(&["token", "create", "--pool", "train", "--uses", &uses])?;
        let mut words = said.split_whitespace();
        let token = words.next().context("no token")?.to_owned();
        words.find(|word| *word == "--ca-fingerprint");
        Ok((token, words.next().context("no fingerprint")?.to_owned()))
    }

    fn asked(&self, words: &[&str]) -> anyhow::Result<String> {
        let mut ask = command(&self.farrier);
        let output = ask.arg("server").args(words).arg("--dir").arg(&self.folder).output()?;
        if !output.status.success() {
            bail!("`{}` failed: {}", words.join(" "), String::from_utf8_lossy(&output.stderr));
        }
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Ends it as a power cut would.
    pub(super) fn kill(mut self) -> anyhow::Result<()> {
        self.process.0.kill()?;
        self.process.0.wait()?;
        Ok(())
    }

    /// Ends it in order.
    pub(super) fn stop(mut self) -> anyhow::Result<()> {
        let pid = self.pid().to_string();
        command("kill").args(["-TERM", &pid]).status()?;
        self.process.0.wait()?;
        Ok(())
    }
}

/// The address that the server's log names once it serves.
fn served_at(log: &Path) -> Option<SocketAddr> {
    let text = fs::read_to_string(log).ok()?;
    let line = text.lines().find(|line| line.contains("listening for agents"))?;
    line.split("address=").nth(1)?.split_whitespace().next()?.parse().ok()
}

fn is_healthy(address: SocketAddr) -> bool {
    let ask = || -> std::io::Result<bool> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(START_WAIT))?;
        stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer.starts_with("HTTP/1.1 200"))
    };
    ask().unwrap_or(false)
}

/// What a server costs between two moments.
#[derive(Default, Clone)]
pub(super) struct Cost {
    /// Of one core.
    pub(super) cores: f64,
    /// Of these on the thread that decides.
    pub(super) brain_cores: f64,
    pub(super) pss_mb: f64,
    pub(super) peak_rss_mb: f64,
}

impl Cost {
    pub(super) fn since(before: &Spent, pid: u32) -> anyhow::Result<Self> {
        let rates = Spent::by(pid, "child")?.rates_since(before);
        let memory = Memory::of(pid)?;
        Ok(Self {
            cores: rates.values().sum::<f64>() / 1e3,
            brain_cores: rates.get("brain").copied().unwrap_or_default() / 1e3,
            pss_mb: memory.pss_mb(),
            peak_rss_mb: peak_rss_mb(pid)?,
        })
    }
}

/// The most that was ever resident.
fn peak_rss_mb(pid: u32) -> anyhow::Result<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u32>().ok());
    Ok(f64::from(kib.context("no VmHWM")?) * 1024.0 / 1e6)
}
