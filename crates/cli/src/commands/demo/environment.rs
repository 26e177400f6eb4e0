//! The server, the simulated nodes and the real agents of the demo, in one directory.

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use farrier_fleet::fleet::identity::Actor;
use farrier_fleet::fleet::policy::PoolPolicy;
use farrier_fleet::fleet::reconnect::HEARTBEAT_TIMEOUT_MIN_S;
use farrier_fleet::fleet::{Event, FleetState, Location, NodePhase, Policy};
use farrier_server::log_tail::LogTail;
use farrier_server::run::{self, Running, ServerOptions};
use farrier_sim::fleet::wire::ConnectedFleet;
use farrier_sim::fleet::{FleetSpec, SimFleet};
use jiff::Timestamp;

use super::agents::{self, Agent};
use super::script::Act;

/// Time scale of simulated nodes: a minute takes three seconds.
const TIME_SCALE: u64 = 20;

/// Everything that runs during the demo.
pub(super) struct Environment {
    folder: DemoDir,
    running: Running,
    fleet: ConnectedFleet,
    agents: Vec<Agent>,
    /// Number of nodes, with those of the real agents.
    nodes: u32,
    started: Instant,
}

/// Directory of the demo, deleted on drop unless kept.
pub(super) struct DemoDir {
    path: PathBuf,
    is_kept: bool,
}

impl DemoDir {
    fn create(dir: Option<&Path>) -> anyhow::Result<Self> {
        let name = format!("farrier-demo-{}", std::process::id());
        let path = dir.map_or_else(|| std::env::temp_dir().join(name), Path::to_owned);
        if fs::read_dir(&path).is_ok_and(|mut entries| entries.next().is_some()) {
            bail!("`{}` is not empty: name another directory", path.display());
        }
        fs::create_dir_all(&path)
            .with_context(|| format!("failed to create `{}`", path.display()))?;
        Ok(Self { path, is_kept: dir.is_some() })
    }

    /// Data directory of the server.
    pub(super) fn server(&self) -> PathBuf {
        self.path.join("server")
    }

    pub(super) fn is_kept(&self) -> bool {
        self.is_kept
    }
}

impl Drop for DemoDir {
    fn drop(&mut self) {
        if !self.is_kept {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

impl Environment {
    /// Starts the server, the simulated nodes and the agents.
    pub(super) async fn start(seed: u64, nodes: u32, dir: Option<&Path>) -> anyhow::Result<Self> {
        let folder = DemoDir::create(dir)?;
        let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let options = ServerOptions {
            plain_pool: Some("train".parse()?),
            heartbeat_interval_s: 1,
            ..ServerOptions::new(folder.server(), listen)
        };
        let running = run::start(options).await.context("failed to start the server")?;
        let policy = Event::PolicySet { policy: Box::new(policy()) };
        running.controller().submit(Actor::Server, policy).await?;
        let spec = FleetSpec {
            seed,
            nodes: simulated(nodes),
            mean_fault_interval_s: 0,
            time_scale: TIME_SCALE,
            ..FleetSpec::default()
        };
        let fleet = SimFleet::new(spec, Timestamp::now());
        for (node, location) in fleet.locations() {
            join(&running, node.as_str(), location.clone()).await?;
        }
        let url = format!("http://{}", running.address()).parse()?;
        let started = Instant::now();
        let fleet = ConnectedFleet::start(fleet, &url, 2).await?;
        let mut agents = Vec::new();
        for number in 0..agents::COUNT as usize {
            let agent = Agent::create(&folder.path, number, running.address()).await?;
            join(&running, agent.name(), agents_location(nodes)?).await?;
            agents.push(agent.start()?);
        }
        Ok(Self { folder, running, fleet, agents, nodes, started })
    }

    pub(super) fn nodes(&self) -> usize {
        self.nodes as usize
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.running.address()
    }

    pub(super) fn server_folder(&self) -> PathBuf {
        self.folder.server()
    }

    pub(super) fn started(&self) -> Instant {
        self.started
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Follows the log from its first entry.
    pub(super) fn log_tail(&self) -> (LogTail, u64) {
        (self.running.tail(), 0)
    }

    /// Describes an act for the viewer; this text is not sent to the server.
    pub(super) fn describe(&self, act: &Act) -> String {
        match act {
            Act::NodeFault { node, fault } => format!("{node}: {}", fault.text),
            Act::LeafFailure { leaf, nodes, .. } => {
                format!("leaf switch {leaf} fails, with {} nodes behind it", nodes.len())
            }
            Act::Xid { agent, gpu, xid } => {
                let name = self.agents.get(*agent).map_or("", Agent::name);
                format!("{name} (a real agent): the driver logs Xid {xid} for GPU {gpu}")
            }
            Act::Repair { node } => format!("{node}: a technician replaces the board"),
        }
    }

    /// Carries out an act.
    pub(super) async fn perform(&self, act: &Act) -> anyhow::Result<()> {
        match act {
            Act::NodeFault { node, fault } => self.fleet.inject_fault(node.clone(), *fault).await,
            Act::LeafFailure { nodes, fault, .. } => {
                for node in nodes {
                    self.fleet.inject_fault(node.clone(), *fault).await;
                }
            }
            Act::Xid { agent, gpu, xid } => {
                if let Some(agent) = self.agents.get(*agent) {
                    agent.inject(*gpu, *xid).await?;
                }
            }
            Act::Repair { node } => {
                self.fleet.repair(node.clone()).await;
                let request = farrier_fleet::fleet::event::OperatorRequest::Repaired {
                    node: node.clone(),
                    repair: "replaced the board".to_owned(),
                };
                let by = Actor::User("technician".to_owned());
                self.running.controller().submit(by, Event::OperatorRequested { request }).await?;
            }
        }
        Ok(())
    }

    /// Counts nodes by phase.
    pub(super) async fn phases(&self) -> BTreeMap<NodePhase, usize> {
        let count = |state: &FleetState| {
            let mut counts = BTreeMap::new();
            for node in state.nodes.values() {
                *counts.entry(node.phase()).or_default() += 1;
            }
            counts
        };
        self.running.controller().read(count).await.unwrap_or_default()
    }

    /// Stops the agents, then the simulated nodes, then the server.
    pub(super) async fn shut_down(self) -> anyhow::Result<DemoDir> {
        let Self { folder, running, fleet, agents, .. } = self;
        for agent in agents {
            agent.stop().await;
        }
        drop(fleet);
        running.stop().await.context("the server did not shut down cleanly")?;
        Ok(folder)
    }
}

/// Number of nodes that are simulated over the protocol. The others have real agents.
pub(super) fn simulated(nodes: u32) -> u32 {
    nodes.saturating_sub(agents::COUNT)
}

async fn join(running: &Running, name: &str, location: Location) -> anyhow::Result<()> {
    let enrolled = Event::Enrolled { node: name.parse()?, location };
    running.controller().submit(Actor::Server, enrolled).await?;
    Ok(())
}

/// Location of the real agents: the last rack and leaf switch, which the simulated nodes do not
/// fill.
fn agents_location(nodes: u32) -> anyhow::Result<Location> {
    let mut location = Location::in_pool("train".parse()?);
    location.rack = Some(format!("rack-{:04}", simulated(nodes) / 4).parse()?);
    location.leaf = Some(format!("leaf-{:04}", simulated(nodes) / 16).parse()?);
    Ok(location)
}

/// The default policy, with timeouts short enough for a demo.
fn policy() -> Policy {
    let pools_default = PoolPolicy {
        drain_timeout_s: 20,
        heartbeat_timeout_s: HEARTBEAT_TIMEOUT_MIN_S,
        suspect_timeout_s: 15,
        settle_s: 5,
        lease_s: 60,
        retry_backoff_s: 3,
        ..PoolPolicy::default()
    };
    Policy { pools_default, ..Policy::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_demo_policy_is_valid() {
        assert_eq!(policy().check(), Ok(()));
    }
}
