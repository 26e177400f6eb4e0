//! The configuration: one TOML file in which every key is optional.
//!
//! ```text
//! text ─ toml ─> Section (takes keys one by one, keeps every problem) ─> Config, or all that is wrong with it
//!                                     `--check-config`: look_around ─> what the node does not have, does not allow
//! ```
//!
//! The file is judged whole: somebody who repairs it should not have to run the agent once for each mistake.

mod file;
mod section;
mod surroundings;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use farrier_fleet::health::RuleOverride;
use farrier_wire::client::ServerUrl;
use serde::Serialize;

pub use file::{ConfigError, read, read_as_far_as_it_goes};
pub(crate) use file::{Judgement, judge};
pub use section::Problem;
pub(crate) use surroundings::{Flags, group_id, look_around};

/// The line in the file of each key that stands there.
pub(crate) type Lines = BTreeMap<String, usize>;

/// Where the file is unless a flag says otherwise.
pub const DEFAULT_PATH: &str = "/etc/farrier/agent.toml";

/// Where jobs and `farrier status` find the agent unless the configuration says otherwise.
pub const DEFAULT_SOCKET: &str = "/run/farrier/agent.sock";

/// Where the journal is unless the configuration says otherwise.
pub const DEFAULT_STATE_DIR: &str = "/var/lib/farrier";

/// Where the node's key and certificate are unless the configuration says otherwise.
pub const DEFAULT_IDENTITY: &str = "/var/lib/farrier/identity";

/// Everything that can be set. The defaults are those of a node that nobody has configured.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Config {
    /// Where the journal is.
    pub state_dir: PathBuf,
    /// Where `/metrics` and `/healthz` are served; none: nowhere.
    pub listen: Listen,
    /// The root of the node's files.
    pub root: PathBuf,
    /// The NVML library; none: the one that the loader finds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nvml: Option<PathBuf>,
    /// GPUs that play CUDA's part, of a node that is simulated; none: those of the machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cuda: Option<PathBuf>,
    /// The socket for jobs and for `farrier status`.
    pub socket: Socket,
    /// The child that asks NVML.
    pub probe: Probe,
    /// How often the host is looked at.
    pub tiers: Tiers,
    /// What the node ought to have.
    pub expect: Expect,
    /// How much history is kept.
    pub retention: Retention,
    /// A file for shippers.
    pub sink: Sink,
    /// What `/metrics` shows.
    pub metrics: Metrics,
    /// The fleet's server.
    pub server: Server,
    /// What the server may order.
    pub orders: Orders,
    /// Changes to the rules, by their code.
    pub rules: BTreeMap<String, RuleOverride>,
}

/// An address, or nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listen {
    /// Nothing is served over TCP.
    Off,
    /// Here.
    At(SocketAddr),
}

impl Serialize for Listen {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Off => serializer.serialize_str("off"),
            Self::At(address) => serializer.collect_str(address),
        }
    }
}

impl std::str::FromStr for Listen {
    type Err = ListenError;

    fn from_str(text: &str) -> Result<Self, ListenError> {
        if text == "off" {
            return Ok(Self::Off);
        }
        text.parse().map(Self::At).map_err(|_| ListenError)
    }
}

/// A text that is neither an address nor `off`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{LISTEN}")]
pub struct ListenError;

/// What `listen` takes.
pub(crate) const LISTEN: &str = "an address and a port such as 127.0.0.1:9402, or `off`";

/// The socket for jobs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Socket {
    pub path: PathBuf,
    /// Who may open it.
    #[serde(serialize_with = "octal")]
    pub mode: u32,
    /// The group that it is given to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
}

/// The child that asks NVML.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Probe {
    /// How long a call may take before it counts as stuck.
    pub deadline_s: f64,
    /// How long a GPU is left alone about which a call did not return.
    pub avoid_s: f64,
}

/// How often the host is looked at. NVML's own tiers go by what its calls cost and are not set here.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Tiers {
    /// The state of network ports.
    pub fast_s: f64,
    /// Counters, the bus, mounts, the driver's module.
    pub medium_s: f64,
    /// Threads, memory, clock source.
    pub slow_s: f64,
}

/// What the node ought to have. None: the most that was ever seen on it at a time.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Expect {
    /// GPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpus: Option<u32>,
    /// Active network ports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nics: Option<u32>,
    /// Names of adapters that are left alone.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nics_ignored: Vec<String>,
}

/// How much history is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Retention {
    /// For how long.
    pub days: u32,
    /// In how many bytes at most.
    pub bytes: u64,
}

/// A file for shippers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Sink {
    /// Every change of a finding, once, as a line of JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
}

/// What `/metrics` shows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Metrics {
    /// Also under the names that dcgm-exporter uses.
    pub dcgm: bool,
    /// The label `Hostname`; none: the node's own name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
}

/// The fleet's server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Server {
    /// Where it is; none: the agent works alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The node's key and certificate.
    pub identity: PathBuf,
    /// The authority's certificate; none: the one that was kept when the node enrolled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
}

impl Server {
    /// Where it is, as it was checked when the file was read.
    pub fn parsed_url(&self) -> Option<ServerUrl> {
        self.url.as_deref()?.parse().ok()
    }
}

/// What the server may order.
#[expect(clippy::struct_excessive_bools, reason = "each is a key of the file")]
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Orders {
    /// Whether orders are carried out at all.
    pub enabled: bool,
    /// Who gives work to the node.
    pub scheduler: SchedulerChoice,
    /// The node's name in Slurm; none: the host's, up to the first dot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slurm_node: Option<String>,
    /// Units that may be started anew.
    pub services: Vec<String>,
    /// GPUs may be reset.
    pub allow_reset: bool,
    /// The node may be rebooted.
    pub allow_reboot: bool,
    /// Its settings may be changed.
    pub allow_tune: bool,
    /// How long findings may take to clear before a proof counts as failed.
    pub settle_s: u32,
}

/// Who gives work to the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SchedulerChoice {
    /// Slurm where it knows the node, and nobody otherwise.
    Auto,
    /// Nobody: a file says that the node is to be left alone.
    Host,
    /// Slurm.
    Slurm,
}

impl std::fmt::Display for SchedulerChoice {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.pad(match self {
            Self::Auto => "auto",
            Self::Host => "host",
            Self::Slurm => "slurm",
        })
    }
}

impl Default for Orders {
    fn default() -> Self {
        Self {
            enabled: false,
            scheduler: SchedulerChoice::Auto,
            slurm_node: None,
            services: Vec::new(),
            allow_reset: true,
            allow_reboot: true,
            allow_tune: true,
            // As long as the server gives findings to clear after a repair.
            settle_s: 180,
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            state_dir: DEFAULT_STATE_DIR.into(),
            // 9400 is dcgm-exporter's own port, 9401 its remote engine's neighbour in many charts.
            listen: Listen::At(SocketAddr::from(([127, 0, 0, 1], 9402))),
            root: "/".into(),
            nvml: None,
            cuda: None,
            socket: Socket { path: DEFAULT_SOCKET.into(), mode: 0o660, group: None },
            probe: Probe { deadline_s: 5.0, avoid_s: 300.0 },
            tiers: Tiers { fast_s: 1.0, medium_s: 10.0, slow_s: 60.0 },
            expect: Expect::default(),
            retention: Retention { days: 90, bytes: 64 << 20 },
            sink: Sink::default(),
            metrics: Metrics { dcgm: true, hostname: None },
            server: Server { url: None, identity: DEFAULT_IDENTITY.into(), ca: None },
            orders: Orders::default(),
            rules: BTreeMap::new(),
        }
    }
}

impl Config {
    /// The file's text that would give this configuration.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).unwrap_or_else(|err| format!("# cannot be written as TOML: {err}\n"))
    }

    /// Keys that differ from `new` and take effect only when the agent starts again.
    pub fn needs_restart(&self, new: &Self) -> Vec<&'static str> {
        let mut keys = Vec::new();
        let mut note = |differs: bool, key: &'static str| {
            if differs {
                keys.push(key);
            }
        };
        note(self.state_dir != new.state_dir, "state_dir");
        note(self.listen != new.listen, "listen");
        note(self.root != new.root, "root");
        note(self.nvml != new.nvml, "nvml");
        note(self.cuda != new.cuda, "cuda");
        note(self.socket != new.socket, "socket");
        note(self.probe != new.probe, "probe");
        note(self.tiers != new.tiers, "tiers");
        note(self.expect != new.expect, "expect");
        note(self.server != new.server, "server");
        note(self.orders != new.orders, "orders");
        keys
    }

    /// The new configuration with what can not change while the agent runs as it was.
    #[must_use]
    pub fn reloaded(&self, new: &Self) -> Self {
        Self {
            state_dir: self.state_dir.clone(),
            listen: self.listen,
            root: self.root.clone(),
            nvml: self.nvml.clone(),
            cuda: self.cuda.clone(),
            socket: self.socket.clone(),
            probe: self.probe,
            tiers: self.tiers,
            expect: self.expect.clone(),
            server: self.server.clone(),
            orders: self.orders.clone(),
            ..new.clone()
        }
    }

    /// Whether the node that is watched is the machine that the agent runs on.
    pub fn is_live(&self) -> bool {
        self.root == Path::new("/")
    }
}

/// Seconds of the configuration, which were checked when it was read.
pub(crate) fn duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::from_secs(1))
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's form")]
fn octal<S: serde::Serializer>(mode: &u32, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&format!("{mode:04o}"))
}
