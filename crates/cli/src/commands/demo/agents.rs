//! Nodes with the real agent. The agent is this binary. It runs with a simulated NVML library and
//! simulated host files.

use std::fs::{self, OpenOptions};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::process::{Child, Command};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Grace period between SIGTERM and SIGKILL.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) const COUNT: u32 = 2;

/// Restart delay of an agent that has exited. An agent exits at a simulated reboot.
const RESTART_DELAY: Duration = Duration::from_secs(2);

/// A simulated node with an agent process.
pub(super) struct Agent {
    folder: PathBuf,
    name: String,
    /// The supervisor task, and the channel that stops the task. `None` before the start.
    supervisor: Option<(JoinHandle<()>, oneshot::Sender<()>)>,
}

impl Agent {
    /// Creates the simulated node below `folder`.
    pub(super) async fn create(
        folder: &Path,
        number: usize,
        server: SocketAddr,
    ) -> anyhow::Result<Self> {
        let folder = folder.join(format!("agent-{number}"));
        let node = folder.join("node");
        fs::create_dir_all(&folder)
            .with_context(|| format!("failed to create `{}`", folder.display()))?;
        let seed = (number + 1).to_string();
        let args = ["--sku", "H200-SXM5-141GB", "--gpus", "8", "--seed", &seed];
        farrier(&["simulate", "node"], &node, &args).await?;
        let config = folder.join("agent.toml");
        fs::write(&config, agent_config(&folder, server))
            .with_context(|| format!("failed to write `{}`", config.display()))?;
        let name = fs::read_to_string(node.join("root/proc/sys/kernel/hostname"));
        let name =
            name.context("failed to read the hostname of the simulated node")?.trim().to_owned();
        Ok(Self { folder, name, supervisor: None })
    }

    /// Name under which the agent joins the fleet: the hostname of the simulated node.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Starts the agent, and restarts it whenever it exits, as a service manager does.
    pub(super) fn start(mut self) -> anyhow::Result<Self> {
        let mut child = spawn(&self.folder)?;
        let (stop, mut stopped) = oneshot::channel();
        let folder = self.folder.clone();
        let supervisor = tokio::spawn(async move {
            loop {
                tokio::select! {
                    _ = child.wait() => (),
                    _ = &mut stopped => return terminate(child).await,
                }
                tokio::select! {
                    () = tokio::time::sleep(RESTART_DELAY) => (),
                    _ = &mut stopped => return,
                }
                match spawn(&folder) {
                    Ok(next) => child = next,
                    Err(_) => return,
                }
            }
        });
        self.supervisor = Some((supervisor, stop));
        Ok(self)
    }

    /// Makes the simulated driver log an Xid.
    pub(super) async fn inject(&self, gpu: u32, xid: u32) -> anyhow::Result<()> {
        let (gpu, xid) = (gpu.to_string(), xid.to_string());
        let args = ["--gpu", &gpu, "xid", &xid];
        farrier(&["simulate", "inject"], &self.folder.join("node"), &args).await
    }

    /// Stops the agent with SIGTERM, then SIGKILL, as a service manager does.
    pub(super) async fn stop(self) {
        if let Some((supervisor, stop)) = self.supervisor {
            let _ = stop.send(());
            let _ = supervisor.await;
        }
    }
}

fn spawn(folder: &Path) -> anyhow::Result<Child> {
    let mut log = OpenOptions::new();
    let log = log.create(true).append(true).open(folder.join("log"));
    Command::new(own_executable()?)
        .args(["agent", "--config"])
        .arg(folder.join("agent.toml"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log.context("failed to create the agent's log")?)
        // The agents have a separate process group, so that Ctrl-C does not reach them. The demo
        // stops them.
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .context("failed to start an agent")
}

async fn terminate(mut child: Child) {
    if let Some(id) = child.id() {
        let signalled = Command::new("kill").args(["-TERM", &id.to_string()]).status().await;
        if signalled.is_ok_and(|status| status.success())
            && tokio::time::timeout(STOP_TIMEOUT, child.wait()).await.is_ok()
        {
            return;
        }
    }
    let _ = child.kill().await;
}

fn own_executable() -> anyhow::Result<PathBuf> {
    std::env::current_exe().context("failed to find this executable")
}

/// Runs this binary on the directory of a simulated node.
async fn farrier(command: &[&str], node: &Path, args: &[&str]) -> anyhow::Result<()> {
    let output = Command::new(own_executable()?).args(command).arg(node).args(args).output().await;
    let output =
        output.with_context(|| format!("failed to run `farrier {}`", command.join(" ")))?;
    if !output.status.success() {
        bail!(
            "`farrier {}`: {}",
            command.join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(())
}

fn agent_config(folder: &Path, server: SocketAddr) -> String {
    let path = |name: &str| folder.join(name).display().to_string();
    format!(
        "state_dir = {:?}\nlisten = \"127.0.0.1:0\"\nroot = {:?}\nnvml = {:?}\n[socket]\npath = {:?}\n\
         [server]\nurl = \"http://{server}\"\n[orders]\nenabled = true\nscheduler = \"host\"\nsettle_s = 40\n",
        path("state"),
        path("node/root"),
        path("node/lib/libnvidia-ml.so.1"),
        path("agent.sock"),
    )
}
