//! A server process with its own folder, and its cost.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::bench_size::Size;
use crate::process::{ChildProcess, CpuTime, MemoryUsage, process_cpu_time};
use crate::python::target;
use crate::shell::command;

/// Longer than any start should take.
const START_TIMEOUT: Duration = Duration::from_secs(180);

/// Creates an empty folder for a server.
pub(super) fn folder(name: &str) -> anyhow::Result<PathBuf> {
    let folder = target().join("bench/fleet").join(name);
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    // The folder holds keys, so the server requires mode 0700.
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
    Ok(folder)
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Transport {
    /// Plaintext on loopback, where node names are not authenticated.
    Plain,
    Tls,
}

pub(super) struct BenchServer {
    pub(super) process: ChildProcess,
    pub(super) address: SocketAddr,
    /// Time from process start until the first response, or with TLS until the server listens.
    pub(super) ready_after: Duration,
    /// CPU time up to the same moment.
    pub(super) ready_cpu: Duration,
    farrier: PathBuf,
    folder: PathBuf,
    transport: Transport,
}

impl BenchServer {
    /// Starts a server on a port chosen by the kernel.
    pub(super) fn start(size: Size, folder: &Path, transport: Transport) -> anyhow::Result<Self> {
        Self::start_at(size, folder, transport, SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
    }

    pub(super) fn start_at(
        size: Size,
        folder: &Path,
        transport: Transport,
        listen: SocketAddr,
    ) -> anyhow::Result<Self> {
        let (farrier, log) = (size.farrier(), folder.join("server.log"));
        let started = Instant::now();
        let mut run = command(&farrier);
        run.args(["server", "run", "--listen", &listen.to_string(), "--dir"]).arg(folder);
        if transport == Transport::Plain {
            run.args(["--plain", "train"]);
        }
        let child = run.stdin(Stdio::null()).stderr(File::create(&log)?).spawn()?;
        let mut process = ChildProcess(child);
        let address = loop {
            if let Some(address) = listen_address(&log)
                && (transport == Transport::Tls || is_healthy(address))
            {
                break address;
            }
            let ended = process.ensure_running("the server");
            ended.with_context(|| fs::read_to_string(&log).unwrap_or_default())?;
            if started.elapsed() > START_TIMEOUT {
                bail!("the server did not respond in time");
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let ready_after = started.elapsed();
        let ready_cpu = process_cpu_time(process.pid()).context("the server is not running")?;
        let folder = folder.to_owned();
        Ok(Self { process, address, ready_after, ready_cpu, farrier, folder, transport })
    }

    pub(super) fn url(&self) -> String {
        let scheme = if self.transport == Transport::Plain { "http" } else { "https" };
        format!("{scheme}://{}", self.address)
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Creates an admin user and returns its token.
    pub(super) fn admin_token(&self) -> anyhow::Result<String> {
        let output =
            self.run_command(&["user", "add", "bench", "--role", "admin", "--expires", "1d"])?;
        output.lines().next().map(str::to_owned).context("no token")
    }

    /// Creates a join token for this many nodes. Returns the token and the fingerprint of the CA.
    pub(super) fn join_token(&self, nodes: usize) -> anyhow::Result<(String, String)> {
        let uses = nodes.to_string();
        let output = self.run_command(&["token", "create", "--pool", "train", "--uses", &uses])?;
        let mut words = output.split_whitespace();
        let token = words.next().context("no token")?.to_owned();
        words.find(|word| *word == "--ca-fingerprint");
        Ok((token, words.next().context("no fingerprint")?.to_owned()))
    }

    fn run_command(&self, args: &[&str]) -> anyhow::Result<String> {
        let mut farrier = command(&self.farrier);
        let output = farrier.arg("server").args(args).arg("--dir").arg(&self.folder).output()?;
        if !output.status.success() {
            bail!("`{}` failed: {}", args.join(" "), String::from_utf8_lossy(&output.stderr));
        }
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Kills the server, as a power cut would.
    pub(super) fn kill(mut self) -> anyhow::Result<()> {
        self.process.0.kill()?;
        self.process.0.wait()?;
        Ok(())
    }

    /// Stops the server with SIGTERM.
    pub(super) fn stop(mut self) -> anyhow::Result<()> {
        let pid = self.pid().to_string();
        command("kill").args(["-TERM", &pid]).status()?;
        self.process.0.wait()?;
        Ok(())
    }
}

/// The listen address from the server's log.
fn listen_address(log: &Path) -> Option<SocketAddr> {
    let text = fs::read_to_string(log).ok()?;
    let line = text.lines().find(|line| line.contains("listening for agents"))?;
    line.split("address=").nth(1)?.split_whitespace().next()?.parse().ok()
}

fn is_healthy(address: SocketAddr) -> bool {
    let request = || -> std::io::Result<bool> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(START_TIMEOUT))?;
        stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n\r\n")?;
        let mut response = String::new();
        stream.read_to_string(&mut response)?;
        Ok(response.starts_with("HTTP/1.1 200"))
    };
    request().unwrap_or(false)
}

/// Cost of a server over a time interval.
#[derive(Default, Clone)]
pub(super) struct ServerCost {
    /// CPU, in cores.
    pub(super) cores: f64,
    /// CPU of the controller thread, in cores.
    pub(super) controller_cores: f64,
    pub(super) pss_mb: f64,
    pub(super) peak_rss_mb: f64,
}

impl ServerCost {
    pub(super) fn since(before: &CpuTime, pid: u32) -> anyhow::Result<Self> {
        let rates = CpuTime::measure(pid, "child")?.rates_since(before);
        let memory = MemoryUsage::of_process(pid)?;
        Ok(Self {
            cores: rates.values().sum::<f64>() / 1e3,
            controller_cores: rates.get("controller").copied().unwrap_or_default() / 1e3,
            pss_mb: memory.pss_mb(),
            peak_rss_mb: peak_rss_mb(pid)?,
        })
    }
}

/// Peak resident memory.
fn peak_rss_mb(pid: u32) -> anyhow::Result<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u32>().ok());
    Ok(f64::from(kib.context("no VmHWM")?) * 1024.0 / 1e6)
}
