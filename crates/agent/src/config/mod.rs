//! The configuration: one TOML file in which every key is optional.
//!
//! ```text
//! text ─ toml ─> Section (takes keys one by one, collects problems) ─> Config, or all problems
//!                     `--check-config`: preflight ─> problems with this node
//! ```
//!
//! Parsing reports all problems at once, so that correcting a file does not take one run per
//! mistake.

mod file;
mod hook;
mod preflight;
mod section;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use farrier_fleet::health::RuleOverride;
use farrier_wire::client::ServerUrl;
use serde::Serialize;

pub use file::{ConfigError, read, read_lenient};
pub(crate) use file::{ParsedFile, parse_file};
pub use hook::HookConfig;
pub(crate) use preflight::{Flags, group_id, preflight};
pub use section::ConfigProblem;

/// Line number of each key in the file.
pub(crate) type KeyLines = BTreeMap<String, usize>;

/// Default path of the configuration file.
pub const DEFAULT_PATH: &str = "/etc/farrier/agent.toml";

/// Default path of the socket for jobs and `farrier status`.
pub const DEFAULT_SOCKET: &str = "/run/farrier/agent.sock";

/// Default directory of the journal.
pub const DEFAULT_STATE_DIR: &str = "/var/lib/farrier";

/// Default directory of the node's key and certificate.
pub const DEFAULT_IDENTITY: &str = "/var/lib/farrier/identity";

/// All settings. The defaults suit an unconfigured node.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Config {
    /// Directory of the journal.
    pub state_dir: PathBuf,
    /// Address of `/metrics` and `/healthz`.
    pub listen: Listen,
    /// Root of the node's files.
    pub root: PathBuf,
    /// The NVML library. `None` for the one that the dynamic linker finds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nvml: Option<PathBuf>,
    /// File that describes simulated GPUs, which replace CUDA on a simulated node. `None` for the
    /// machine's own GPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cuda: Option<PathBuf>,
    /// The socket for jobs and `farrier status`.
    pub socket: Socket,
    pub probe: Probe,
    /// Periods of the host collector.
    pub tiers: Tiers,
    pub expect: Expect,
    pub retention: Retention,
    pub sink: SinkConfig,
    pub metrics: Metrics,
    pub server: Server,
    pub orders: OrdersConfig,
    /// Rule overrides, by code.
    pub rules: BTreeMap<String, RuleOverride>,
    /// Where findings are delivered without a server.
    #[serde(rename = "hook", skip_serializing_if = "Vec::is_empty")]
    pub hooks: Vec<HookConfig>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listen {
    /// Nothing is served over TCP.
    Off,
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

/// The expected value of `listen`.
pub(crate) const LISTEN: &str = "an address and a port such as 127.0.0.1:9402, or `off`";

/// The socket for jobs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Socket {
    pub path: PathBuf,
    /// Its file mode.
    #[serde(serialize_with = "octal")]
    pub mode: u32,
    /// Its group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
}

/// The child process that calls NVML.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Probe {
    /// Call timeout: a longer call counts as stuck.
    pub deadline_s: f64,
    /// How long to avoid a GPU after a call about it hung.
    pub avoid_s: f64,
}

/// Periods of the host collector. NVML tiers follow the measured cost of their calls, and are not
/// configurable.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Tiers {
    /// Network port state.
    pub fast_s: f64,
    /// Counters, PCI bus, mounts, driver module.
    pub medium_s: f64,
    /// Threads, memory, clock source.
    pub slow_s: f64,
}

/// Expected hardware. `None` for the largest number ever found on the node at one time.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Expect {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpus: Option<u32>,
    /// Active network ports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nics: Option<u32>,
    /// Names of adapters to ignore.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nics_ignored: Vec<String>,
}

/// How much history to keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Retention {
    pub days: u32,
    /// Maximum size.
    pub bytes: u64,
}

/// A file for log shippers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct SinkConfig {
    /// Receives every finding change once, as a JSON line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Metrics {
    /// Also export dcgm-exporter's names.
    pub dcgm: bool,
    /// The label `Hostname`. `None` for the node's own name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
}

/// The fleet's server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Server {
    /// `None` if the agent works without a server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Directory of the node's key and certificate.
    pub identity: PathBuf,
    /// The CA certificate. `None` for the one stored at enrolment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
}

impl Server {
    /// The URL, already validated when the file was read.
    pub fn parsed_url(&self) -> Option<ServerUrl> {
        self.url.as_deref()?.parse().ok()
    }
}

/// The orders that the agent accepts from the server.
#[expect(clippy::struct_excessive_bools, reason = "each is a key of the file")]
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OrdersConfig {
    /// `false` to refuse all orders.
    pub enabled: bool,
    pub scheduler: SchedulerChoice,
    /// The node's name in Slurm. `None` for the host name up to the first dot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slurm_node: Option<String>,
    /// Units that may be restarted.
    pub services: Vec<String>,
    pub allow_reset: bool,
    pub allow_reboot: bool,
    pub allow_tune: bool,
    /// How long findings may take to clear before a verification counts as failed.
    pub settle_s: u32,
}

/// The scheduler of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SchedulerChoice {
    /// Slurm if it knows the node, otherwise `Host`.
    Auto,
    /// No scheduler: a file holds the cordon.
    Host,
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

impl Default for OrdersConfig {
    fn default() -> Self {
        Self {
            enabled: false,
            scheduler: SchedulerChoice::Auto,
            slurm_node: None,
            services: Vec::new(),
            allow_reset: true,
            allow_reboot: true,
            allow_tune: true,
            // The same time that the server allows for findings to clear after a repair.
            settle_s: 180,
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            state_dir: DEFAULT_STATE_DIR.into(),
            // 9400 is dcgm-exporter's own port, and many charts use 9401 next to it.
            listen: Listen::At(SocketAddr::from(([127, 0, 0, 1], 9402))),
            root: "/".into(),
            nvml: None,
            cuda: None,
            socket: Socket { path: DEFAULT_SOCKET.into(), mode: 0o660, group: None },
            probe: Probe { deadline_s: 5.0, avoid_s: 300.0 },
            tiers: Tiers { fast_s: 1.0, medium_s: 10.0, slow_s: 60.0 },
            expect: Expect::default(),
            retention: Retention { days: 90, bytes: 64 << 20 },
            sink: SinkConfig::default(),
            metrics: Metrics { dcgm: true, hostname: None },
            server: Server { url: None, identity: DEFAULT_IDENTITY.into(), ca: None },
            orders: OrdersConfig::default(),
            rules: BTreeMap::new(),
            hooks: Vec::new(),
        }
    }
}

impl Config {
    /// The TOML text of this configuration.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).unwrap_or_else(|err| format!("# cannot be written as TOML: {err}\n"))
    }

    /// Keys that differ from `new` and take effect only after a restart.
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
        note(self.hooks != new.hooks, "hook");
        keys
    }

    /// The new configuration, except for keys that cannot change at runtime.
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
            hooks: self.hooks.clone(),
            ..new.clone()
        }
    }

    /// `true` if the monitored node is this machine.
    pub fn is_live(&self) -> bool {
        self.root == Path::new("/")
    }
}

/// Converts seconds that were validated when the file was read.
pub(crate) fn duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::from_secs(1))
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's form")]
fn octal<S: serde::Serializer>(mode: &u32, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&format!("{mode:04o}"))
}
