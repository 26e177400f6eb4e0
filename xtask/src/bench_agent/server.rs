//! A server on this machine, to which the agent connects over TLS.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use super::node::TIMEOUT;
use crate::process::ChildProcess;
use crate::shell::command;

pub(super) struct ServerProcess {
    farrier: PathBuf,
    folder: PathBuf,
    url: String,
    fingerprint: String,
    _process: ChildProcess,
}

impl ServerProcess {
    pub(super) fn start(farrier: &Path, folder: &Path) -> anyhow::Result<Self> {
        let log = folder.join("server.log");
        // Run a copy of the binary. Otherwise the kernel would share the pages of the binary
        // between server, agent and probe, and the PSS of the agent would be too low.
        let binary = folder.join("farrier-server");
        fs::copy(farrier, &binary).context("failed to copy the binary for the server")?;
        let mut start = command(&binary);
        start.args(["server", "run", "--listen", "127.0.0.1:0", "--dir"]);
        start.arg(folder.join("server")).stdout(Stdio::null()).stderr(File::create(&log)?);
        let process = ChildProcess(start.spawn().context("failed to start the server")?);
        let started = Instant::now();
        let (address, fingerprint) = loop {
            let text = fs::read_to_string(&log)?;
            let field = |name: &str| {
                let value = text.split(name).nth(1)?.split_whitespace().next()?;
                Some(value.to_owned())
            };
            if let (Some(address), Some(fingerprint)) = (field("address="), field("fingerprint=")) {
                break (address, fingerprint);
            }
            if started.elapsed() > TIMEOUT {
                bail!("the server did not start; see its log {}", log.display());
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        Ok(Self {
            farrier: farrier.to_owned(),
            folder: folder.to_owned(),
            url: format!("https://{address}"),
            fingerprint,
            _process: process,
        })
    }

    /// Enrols a node and returns the configuration for its agent. The configuration disables
    /// reboots and resets, because the server would order them after the Xids of the benchmark.
    pub(super) fn enrol(&self, node: &str) -> anyhow::Result<String> {
        let identity = self.folder.join("identity");
        let mut create = command(&self.farrier);
        create.args(["server", "token", "create", "--pool", "bench", "--dir"]);
        let made = create.arg(self.folder.join("server")).output()?;
        let token = String::from_utf8(made.stdout)?;
        let token = token.lines().next().context("no token in the output")?;
        let mut enrol = command(&self.farrier);
        enrol.args(["agent", "enrol", "--server", &self.url, "--node", node, "--token", token]);
        enrol.args(["--ca-fingerprint", &self.fingerprint, "--identity"]).arg(&identity);
        if !enrol.stdout(Stdio::null()).status()?.success() {
            bail!("failed to enrol the node");
        }
        Ok(format!(
            "[server]\nurl = {:?}\nidentity = {:?}\n[orders]\nenabled = true\nscheduler = \"host\"\nallow_reboot = false\nallow_reset = false\n",
            self.url,
            identity.display().to_string()
        ))
    }
}
