//! A simulated node with eight H100 and its agent.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::process::ChildProcess;
use crate::python::target;
use crate::shell::{command, run};

/// Ends a benchmark that hangs. It is long because everything is slow on a busy machine.
pub(super) const TIMEOUT: Duration = Duration::from_secs(180);

/// Timestamp of kernel log lines, later than any uptime: the agent treats timestamps in the future
/// as now.
const LATE_US: u64 = 1_000_000_000_000_000;

/// A node in target/, which is on a real disk, because the agent fsyncs findings.
pub(super) struct BenchNode {
    pub(super) folder: PathBuf,
    farrier: PathBuf,
}

impl BenchNode {
    pub(super) fn create(farrier: &Path) -> anyhow::Result<Self> {
        let folder = target().join("bench/agent");
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        fs::create_dir_all(&folder)?;
        let node = Self { folder, farrier: farrier.to_owned() };
        let mut make = command(farrier);
        make.args(["simulate", "node"]).arg(node.at("node")).stdout(Stdio::null());
        run(make.args(["--sku", "H100-SXM5-80GB", "--gpus", "8"]), "farrier simulate node")?;
        Ok(node)
    }

    pub(super) fn at(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// PCI address of the first GPU as the driver prints it: `0000:1b:00`.
    fn gpu(&self) -> anyhow::Result<String> {
        let gpus = fs::read_dir(self.at("node/root/proc/driver/nvidia/gpus"))?;
        let first = gpus.flatten().filter_map(|gpu| gpu.file_name().into_string().ok()).min();
        Ok(first.context("the node has no GPU")?.trim_end_matches(".0").to_owned())
    }

    /// Opens the kernel log for appending.
    pub(super) fn kernel_log(&self) -> anyhow::Result<KernelLogWriter> {
        let path = self.at("node/root/dev/kmsg");
        let text = fs::read_to_string(&path)?;
        let last = text.lines().rev().find_map(|line| line.split(',').nth(1)?.parse::<u64>().ok());
        let next_seq = last.context("the kernel log is empty")? + 1;
        let file = OpenOptions::new().append(true).open(path)?;
        Ok(KernelLogWriter { file, next_seq, gpu: self.gpu()? })
    }

    /// Starts an agent with additional configuration and waits until it is healthy and connected to
    /// its server.
    pub(super) fn agent(&self, more: &str) -> anyhow::Result<AgentProcess> {
        let at = |name: &str| self.at(name).display().to_string();
        let config = format!(
            "state_dir = {:?}\nlisten = \"127.0.0.1:0\"\nroot = {:?}\nnvml = {:?}\n[socket]\npath = {:?}\n[sink]\nfile = {:?}\n{more}",
            at("state"),
            at("node/root"),
            at("node/lib/libnvidia-ml.so.1"),
            at("agent.sock"),
            at("sink.jsonl"),
        );
        fs::write(self.at("agent.toml"), config)?;
        let mut start = command(&self.farrier);
        start.arg("agent").arg("--config").arg(self.at("agent.toml"));
        let log = File::create(self.at("log"))?;
        let child = start.stdout(Stdio::null()).stderr(log).spawn();
        let process = ChildProcess(child.context("failed to start the agent")?);
        let started = Instant::now();
        while !self.is_healthy()? {
            if started.elapsed() > TIMEOUT {
                bail!("the agent did not become healthy; see its log {}", at("log"));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        let log = fs::read_to_string(self.at("log"))?;
        let address = log.lines().find_map(|line| line.split("address=").nth(1));
        let address =
            address.context("no listen address in the log of the agent")?.trim().to_owned();
        Ok(AgentProcess { process, address, sink: File::open(self.at("sink.jsonl"))? })
    }

    fn is_healthy(&self) -> anyhow::Result<bool> {
        let mut status = command(&self.farrier);
        status.arg("status").arg("--socket").arg(self.at("agent.sock"));
        status.arg("--state-dir").arg(self.at("state")).args(["--output", "json"]);
        let output = status.stderr(Stdio::null()).output()?;
        let is_connected = String::from_utf8_lossy(&output.stdout).contains("\"connected\"");
        Ok(output.status.success() && is_connected)
    }
}

/// Writes kernel log lines in place of the driver.
pub(super) struct KernelLogWriter {
    file: File,
    next_seq: u64,
    gpu: String,
}

impl KernelLogWriter {
    /// Appends this many lines with the same Xid in one write.
    pub(super) fn xid(&mut self, xid: usize, lines: u64) -> anyhow::Result<()> {
        let mut text = String::new();
        for seq in self.next_seq..self.next_seq + lines {
            text.push_str(&format!(
                "3,{seq},{LATE_US},-;NVRM: Xid (PCI:{}): {xid}, pid=7, name=python3, Ch 00000008\n",
                self.gpu
            ));
        }
        self.next_seq += lines;
        self.file.write_all(text.as_bytes()).context("failed to write the kernel log")
    }
}

pub(super) struct AgentProcess {
    pub(super) process: ChildProcess,
    address: String,
    sink: File,
}

impl AgentProcess {
    /// Scrapes the metrics, as Prometheus does.
    pub(super) fn metrics(&self) -> anyhow::Result<String> {
        let mut stream = TcpStream::connect(&self.address)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n")?;
        let mut response = String::new();
        stream.read_to_string(&mut response)?;
        if !response.starts_with("HTTP/1.1 200 ") {
            bail!(
                "unexpected response from /metrics: {}",
                response.lines().next().unwrap_or_default()
            );
        }
        Ok(response)
    }

    /// Waits for a sink line for which `matches` returns a value.
    pub(super) fn wait_for_sink_line<T>(
        &mut self,
        mut matches: impl FnMut(&str) -> Option<T>,
    ) -> anyhow::Result<T> {
        let started = Instant::now();
        let mut text = String::new();
        while started.elapsed() < TIMEOUT {
            if self.sink.read_to_string(&mut text)? == 0 {
                std::thread::sleep(Duration::from_micros(200));
                continue;
            }
            if let Some(found) = text.lines().find_map(&mut matches) {
                return Ok(found);
            }
        }
        bail!(
            "timed out waiting for the sink; last line: {}",
            text.lines().last().unwrap_or_default()
        )
    }
}
