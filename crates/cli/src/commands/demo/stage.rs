//! The server, the simulated nodes and the real agents, in one folder.

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use farrier_fleet::fleet::identity::Actor;
use farrier_fleet::fleet::policy::PoolPolicy;
use farrier_fleet::fleet::reconnect::HEARTBEAT_TIMEOUT_MIN_S;
use farrier_fleet::fleet::{Event, FleetState, Place, Policy, Standing};
use farrier_server::follow::Tail;
use farrier_server::run::{self, Options, Running};
use farrier_sim::fleet::wire::ConnectedFleet;
use farrier_sim::fleet::{FleetSpec, SimFleet};
use jiff::Timestamp;

use super::agents::{self, Agent};
use super::script::Act;

/// Simulated nodes; with the real agents there are 64.
pub(super) const SIMULATED: u32 = 62;

/// What takes a node minutes takes seconds here.
const HURRY: u64 = 20;

/// Everything that plays.
pub(super) struct Stage {
    folder: Folder,
    running: Running,
    herd: ConnectedFleet,
    agents: Vec<Agent>,
    began: Instant,
}

/// Where it all is.
pub(super) struct Folder {
    path: PathBuf,
    is_kept: bool,
}

impl Folder {
    fn make(kept: Option<&Path>) -> anyhow::Result<Self> {
        let name = format!("farrier-demo-{}", std::process::id());
        let path = kept.map_or_else(|| std::env::temp_dir().join(name), Path::to_owned);
        if fs::read_dir(&path).is_ok_and(|mut entries| entries.next().is_some()) {
            bail!("`{}` is not empty: name another folder", path.display());
        }
        fs::create_dir_all(&path)
            .with_context(|| format!("failed to make `{}`", path.display()))?;
        Ok(Self { path, is_kept: kept.is_some() })
    }

    /// The server's part.
    pub(super) fn server(&self) -> PathBuf {
        self.path.join("server")
    }

    /// Whether it is there afterwards.
    pub(super) fn is_kept(&self) -> bool {
        self.is_kept
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if !self.is_kept {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

impl Stage {
    /// Starts everything.
    pub(super) async fn set(seed: u64, kept: Option<&Path>) -> anyhow::Result<Self> {
        let folder = Folder::make(kept)?;
        let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let options = Options {
            plain_pool: Some("train".parse()?),
            report_interval_s: 1,
            ..Options::new(folder.server(), listen)
        };
        let running = run::start(options).await.context("failed to start the server")?;
        let policy = Event::PolicySet { policy: Box::new(policy()) };
        running.brain().take(Actor::Server, policy).await?;
        let plan = FleetSpec {
            seed,
            nodes: SIMULATED,
            mean_fault_interval_s: 0,
            time_scale: HURRY,
            ..FleetSpec::default()
        };
        let fleet = SimFleet::new(plan, Timestamp::now());
        for (node, place) in fleet.locations() {
            join(&running, node.as_str(), place.clone()).await?;
        }
        let url = format!("http://{}", running.address()).parse()?;
        let began = Instant::now();
        let herd = ConnectedFleet::start(fleet, &url, 2).await?;
        let mut agents = Vec::new();
        for number in 0..agents::COUNT {
            let agent = Agent::make(&folder.path, number, running.address()).await?;
            join(&running, agent.name(), beside_the_last()?).await?;
            agents.push(agent.start()?);
        }
        Ok(Self { folder, running, herd, agents, began })
    }

    pub(super) fn nodes(&self) -> usize {
        SIMULATED as usize + self.agents.len()
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.running.address()
    }

    pub(super) fn server_folder(&self) -> PathBuf {
        self.folder.server()
    }

    pub(super) fn began(&self) -> Instant {
        self.began
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// The log, from its beginning.
    pub(super) fn followed(&self) -> (Tail, u64) {
        (self.running.tail(), 0)
    }

    /// What the audience is told of an act, and the server is not.
    pub(super) fn told(&self, act: &Act) -> String {
        match act {
            Act::Trouble { node, trouble } => format!("{node}: {}", trouble.text),
            Act::Leaf { leaf, nodes, .. } => {
                format!("the leaf switch {leaf} fails, with {} nodes behind it", nodes.len())
            }
            Act::Xid { agent, gpu, xid } => {
                let name = self.agents.get(*agent).map_or("", Agent::name);
                format!("{name} (a real agent): the driver logs Xid {xid} for GPU {gpu}")
            }
            Act::Repair { node } => format!("{node}: a person has put in a new board"),
        }
    }

    /// Lets it happen.
    pub(super) async fn perform(&self, act: &Act) -> anyhow::Result<()> {
        match act {
            Act::Trouble { node, trouble } => self.herd.inject_fault(node.clone(), *trouble).await,
            Act::Leaf { nodes, trouble, .. } => {
                for node in nodes {
                    self.herd.inject_fault(node.clone(), *trouble).await;
                }
            }
            Act::Xid { agent, gpu, xid } => {
                if let Some(agent) = self.agents.get(*agent) {
                    agent.inject(*gpu, *xid).await?;
                }
            }
            Act::Repair { node } => {
                self.herd.repair(node.clone()).await;
                let what = farrier_fleet::fleet::event::Ask::Repaired {
                    node: node.clone(),
                    what: "a new board".to_owned(),
                };
                let by = Actor::Person("technician".to_owned());
                self.running.brain().take(by, Event::Asked { what }).await?;
            }
        }
        Ok(())
    }

    /// How many nodes stand how.
    pub(super) async fn standings(&self) -> BTreeMap<Standing, usize> {
        let count = |state: &FleetState| {
            let mut counts = BTreeMap::new();
            for node in state.nodes.values() {
                *counts.entry(node.standing()).or_default() += 1;
            }
            counts
        };
        self.running.brain().look(count).await.unwrap_or_default()
    }

    /// Ends everything, in order.
    pub(super) async fn strike(self) -> anyhow::Result<Folder> {
        let Self { folder, running, herd, agents, .. } = self;
        for agent in agents {
            agent.stop().await;
        }
        drop(herd);
        running.stop().await.context("the server did not end well")?;
        Ok(folder)
    }
}

async fn join(running: &Running, name: &str, place: Place) -> anyhow::Result<()> {
    let joined = Event::Enrolled { node: name.parse()?, place };
    running.brain().take(Actor::Server, joined).await?;
    Ok(())
}

/// Where the simulated nodes leave room: in the last rack, behind the last switch.
fn beside_the_last() -> anyhow::Result<Place> {
    let mut place = Place::in_pool("train".parse()?);
    place.rack = Some(format!("rack-{:04}", SIMULATED / 4).parse()?);
    place.leaf = Some(format!("leaf-{:04}", SIMULATED / 16).parse()?);
    Ok(place)
}

/// The usual limits, with times that suit an audience.
fn policy() -> Policy {
    let pools_default = PoolPolicy {
        drain_wait_s: 20,
        silent_s: HEARTBEAT_TIMEOUT_MIN_S,
        suspect_s: 15,
        settle_s: 5,
        lease_s: 60,
        retry_s: 3,
        ..PoolPolicy::default()
    };
    Policy { pools_default, ..Policy::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_is_one_that_a_server_takes() {
        assert_eq!(policy().check(), Ok(()));
    }
}
