//! Settings that a profile can name, and their desired values.

use std::fmt;

use serde::Serialize;

use crate::names::nearest;

/// Limit on locked memory.
pub const MEMLOCK_FILE: &str = "/etc/security/limits.d/90-farrier-memlock.conf";
/// Services whose jobs inherit their limit on locked memory, because they do not log in: Slurm's
/// daemon and container runtimes.
pub const MEMLOCK_SERVICES: [&str; 8] =
    ["slurmd", "containerd", "docker", "crio", "k3s", "k3s-agent", "rke2-agent", "rke2-server"];
/// Package blacklist for unattended upgrades.
pub const GUARD_FILE: &str = "/etc/apt/apt.conf.d/52farrier";
/// Directory of kernel module options, one file each.
pub const MODPROBE_FOLDER: &str = "/etc/modprobe.d";
/// Directory of job environments, one file per framework.
pub const ENVIRONMENTS: &str = "/etc/farrier/jobs";
/// Transparent huge page mode.
pub const HUGEPAGES_FILE: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
/// The daemon that keeps the driver initialised.
pub const PERSISTENCED: &str = "nvidia-persistenced";

/// A well-known setting that cannot be reverted, because NVML cannot read it back.
pub const CLOCKS_LOCKED: &str = "gpu.locked-clocks";

/// Frameworks with a job environment.
const FRAMEWORKS: [&str; 3] = ["jax", "tensorflow", "torch"];

/// A setting.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SettingKind {
    /// `gpu.persistence`
    Persistence,
    /// `gpu.mig`
    Mig,
    /// `gpu.mig-layout`
    MigLayout,
    /// `gpu.ecc`
    Ecc,
    /// `gpu.compute-mode`
    ComputeMode,
    /// `gpu.power-limit`
    PowerLimit,
    /// `gpu.application-clocks`
    ApplicationClocks,
    /// `gpu.accounting`
    Accounting,
    /// `host.cpu-governor`
    CpuGovernor,
    /// `host.transparent-hugepages`
    Hugepages,
    /// `host.memlock`
    Memlock,
    /// `host.package-hold`
    PackageHold,
    /// `host.upgrade-guard`
    UpgradeGuard,
    /// `host.module.NVreg_…`
    ModuleParameter(String),
    /// `jobs.torch`
    Environment(String),
}

/// Settings without a parameter.
const PLAIN: [(&str, SettingKind); 13] = [
    ("gpu.persistence", SettingKind::Persistence),
    ("gpu.mig", SettingKind::Mig),
    ("gpu.mig-layout", SettingKind::MigLayout),
    ("gpu.ecc", SettingKind::Ecc),
    ("gpu.compute-mode", SettingKind::ComputeMode),
    ("gpu.power-limit", SettingKind::PowerLimit),
    ("gpu.application-clocks", SettingKind::ApplicationClocks),
    ("gpu.accounting", SettingKind::Accounting),
    ("host.cpu-governor", SettingKind::CpuGovernor),
    ("host.transparent-hugepages", SettingKind::Hugepages),
    ("host.memlock", SettingKind::Memlock),
    ("host.package-hold", SettingKind::PackageHold),
    ("host.upgrade-guard", SettingKind::UpgradeGuard),
];

/// Desired value of a setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DesiredValue {
    /// On or off.
    Switch(bool),
    /// NVML's enum value.
    Mode(u32),
    Power(PowerTarget),
    Clocks(ClockTarget),
    /// MIG instances, sorted.
    Layout(Vec<String>),
    /// A word or a text.
    Text(String),
    /// The variables of the profile.
    Variables,
}

/// A power limit, relative to the GPU's range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PowerTarget {
    Default,
    Max,
    /// Percentage of the range from minimum to maximum.
    Percent(u32),
    /// Watts, within the GPU's range.
    Watts(u32),
}

/// Desired application clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClockTarget {
    Default,
    Max,
    /// An SM clock that the GPU lists.
    Mhz(u32),
}

/// An invalid setting in a profile.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingError {
    #[error("there is no setting `{name}`")]
    Unknown {
        name: String,
        /// Suggestion.
        near: Option<String>,
    },
    /// Cannot be reverted.
    #[error(
        "`{CLOCKS_LOCKED}` is not supported: NVML cannot read back locked clocks, so they could not be reverted; \
         use `gpu.application-clocks`"
    )]
    NotRevertible,
    /// Invalid value.
    #[error("`{name}` does not take `{want}`: it takes {takes}")]
    Value {
        name: String,
        want: String,
        /// Accepted values.
        takes: &'static str,
    },
}

impl SettingKind {
    /// Parses the name of a setting.
    pub fn from_name(name: &str) -> Result<Self, SettingError> {
        if name == CLOCKS_LOCKED {
            return Err(SettingError::NotRevertible);
        }
        if let Some((_, kind)) = PLAIN.iter().find(|(known, _)| *known == name) {
            return Ok(kind.clone());
        }
        if let Some(parameter) = name.strip_prefix("host.module.NVreg_")
            && !parameter.is_empty()
            && parameter.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        {
            return Ok(Self::ModuleParameter(parameter.to_owned()));
        }
        if let Some(framework) = name.strip_prefix("jobs.")
            && FRAMEWORKS.contains(&framework)
        {
            return Ok(Self::Environment(framework.to_owned()));
        }
        let jobs = FRAMEWORKS.map(|framework| format!("jobs.{framework}"));
        let names = PLAIN.iter().map(|(known, _)| *known).chain(jobs.iter().map(String::as_str));
        let near = nearest(name, names).first().map(|name| (*name).to_owned());
        Err(SettingError::Unknown { name: name.to_owned(), near })
    }

    /// Accepted values for messages.
    pub fn takes(&self) -> &'static str {
        match self {
            Self::Persistence | Self::Mig | Self::Ecc | Self::Accounting => "`on` or `off`",
            Self::ComputeMode => "`default`, `exclusive-process` or `prohibited`",
            Self::PowerLimit => {
                "`default`, `max`, a share of the card's range such as `70 %`, or watts such as `450 W`"
            }
            Self::ApplicationClocks => "`default`, `max`, or a clock such as `1410 MHz`",
            Self::MigLayout => "names of instances such as `3g.40gb, 3g.40gb`",
            Self::CpuGovernor | Self::Hugepages => "one of the words that the kernel lists",
            Self::Memlock => "`unlimited` or a number of KiB",
            Self::PackageHold | Self::UpgradeGuard => "`on`",
            Self::ModuleParameter(_) => "a value without blanks, quotes and line ends",
            Self::Environment(_) => "`variables`, and no `want`",
        }
    }

    /// Parses the desired value.
    pub fn parse_desired(&self, text: &str) -> Result<DesiredValue, SettingError> {
        let refused = || SettingError::Value {
            name: self.to_string(),
            want: text.to_owned(),
            takes: self.takes(),
        };
        let plain = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\'' | b'\\');
        let word = !text.is_empty() && text.bytes().all(plain);
        let want = match self {
            Self::Persistence | Self::Mig | Self::Ecc | Self::Accounting => match text {
                "on" => Some(DesiredValue::Switch(true)),
                "off" => Some(DesiredValue::Switch(false)),
                _ => None,
            },
            Self::PackageHold | Self::UpgradeGuard => {
                (text == "on").then_some(DesiredValue::Switch(true))
            }
            Self::ComputeMode => match text {
                "default" => Some(DesiredValue::Mode(0)),
                "prohibited" => Some(DesiredValue::Mode(2)),
                "exclusive-process" => Some(DesiredValue::Mode(3)),
                _ => None,
            },
            Self::PowerLimit => power(text).map(DesiredValue::Power),
            Self::ApplicationClocks => clocks(text).map(DesiredValue::Clocks),
            Self::MigLayout => layout(text).map(DesiredValue::Layout),
            Self::Memlock => (text == "unlimited" || text.parse::<u64>().is_ok())
                .then(|| DesiredValue::Text(text.to_owned())),
            Self::CpuGovernor | Self::Hugepages | Self::ModuleParameter(_) => {
                word.then(|| DesiredValue::Text(text.to_owned()))
            }
            Self::Environment(_) => None,
        };
        want.ok_or_else(refused)
    }

    /// The file that the setting writes, if any.
    pub fn file(&self) -> Option<String> {
        match self {
            Self::Memlock => Some(MEMLOCK_FILE.to_owned()),
            Self::UpgradeGuard => Some(GUARD_FILE.to_owned()),
            Self::ModuleParameter(name) => Some(format!("{MODPROBE_FOLDER}/farrier-{name}.conf")),
            Self::Environment(framework) => Some(format!("{ENVIRONMENTS}/{framework}.env")),
            _ => None,
        }
    }

    /// Whether any setting writes this file.
    pub fn is_file(path: &str) -> bool {
        let parameter = path
            .strip_prefix(MODPROBE_FOLDER)
            .and_then(|rest| rest.strip_prefix("/farrier-")?.strip_suffix(".conf"));
        let framework = path
            .strip_prefix(ENVIRONMENTS)
            .and_then(|rest| rest.strip_prefix('/')?.strip_suffix(".env"));
        let name = match (parameter, framework) {
            (Some(parameter), _) => format!("host.module.NVreg_{parameter}"),
            (None, Some(framework)) => format!("jobs.{framework}"),
            (None, None) => {
                return [MEMLOCK_FILE, GUARD_FILE].contains(&path)
                    || MEMLOCK_SERVICES.iter().any(|unit| memlock_drop_in(unit) == path);
            }
        };
        Self::from_name(&name).is_ok()
    }
}

/// The drop-in that sets the limit on locked memory of a service.
pub fn memlock_drop_in(unit: &str) -> String {
    format!("/etc/systemd/system/{unit}.service.d/90-farrier-memlock.conf")
}

impl fmt::Display for SettingKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ModuleParameter(name) => write!(formatter, "host.module.NVreg_{name}"),
            Self::Environment(framework) => write!(formatter, "jobs.{framework}"),
            plain => {
                let name = PLAIN.iter().find(|(_, kind)| kind == plain).map(|(name, _)| *name);
                formatter.pad(name.unwrap_or_default())
            }
        }
    }
}

/// Parses a number with a unit.
fn number(text: &str, unit: &str) -> Option<u32> {
    text.strip_suffix(unit)?.trim_end().parse().ok()
}

fn power(text: &str) -> Option<PowerTarget> {
    match text {
        "default" => Some(PowerTarget::Default),
        "max" => Some(PowerTarget::Max),
        _ => number(text, "%")
            .filter(|percent| *percent <= 100)
            .map(PowerTarget::Percent)
            .or_else(|| number(text, "W").map(PowerTarget::Watts)),
    }
}

fn clocks(text: &str) -> Option<ClockTarget> {
    match text {
        "default" => Some(ClockTarget::Default),
        "max" => Some(ClockTarget::Max),
        _ => number(text, "MHz").map(ClockTarget::Mhz),
    }
}

fn layout(text: &str) -> Option<Vec<String>> {
    let mut names: Vec<String> = text.split(',').map(|name| name.trim().to_owned()).collect();
    names.sort();
    let is_name = |name: &String| {
        let slices = name.split_once("g.").map(|(slices, _)| slices);
        slices.is_some_and(|slices| slices.parse::<u32>().is_ok())
    };
    names.iter().all(is_name).then_some(names)
}
