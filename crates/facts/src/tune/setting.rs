//! The settings that a profile may name, and what it may want of them.

use std::fmt;

use serde::Serialize;

use crate::names::nearest;

/// Where the limit on locked memory is written.
pub const MEMLOCK_FILE: &str = "/etc/security/limits.d/90-farrier-memlock.conf";
/// Where unattended upgrades are told what to leave alone.
pub const GUARD_FILE: &str = "/etc/apt/apt.conf.d/52farrier";
/// Where options of the kernel module are written, a file each.
pub const MODPROBE_FOLDER: &str = "/etc/modprobe.d";
/// Where jobs' environments are written, a file a framework.
pub const ENVIRONMENTS: &str = "/etc/farrier/jobs";
/// Where the kernel says how it makes huge pages.
pub const HUGEPAGES_FILE: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
/// The daemon that keeps the driver initialised.
pub const PERSISTENCED: &str = "nvidia-persistenced";

/// A setting that people know and that cannot be given back: NVML sets it and does not say what is set.
pub const CLOCKS_LOCKED: &str = "gpu.locked-clocks";

/// The frameworks that an environment can be for.
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

/// Those without a name inside.
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

/// What is wanted of a setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DesiredValue {
    /// On or off.
    Switch(bool),
    /// NVML's number of a mode.
    Mode(u32),
    /// A power limit.
    Power(PowerTarget),
    /// Clocks.
    Clocks(ClockTarget),
    /// Instances, sorted.
    Layout(Vec<String>),
    /// A word or a text.
    Text(String),
    /// What the profile's variables say.
    Variables,
}

/// A power limit, from the card's own range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PowerTarget {
    /// The card's default.
    Default,
    /// The most that it takes.
    Max,
    /// A share of the way from the least to the most that it takes.
    Percent(u32),
    /// Watts, which the card's range must hold.
    Watts(u32),
}

/// Clocks of applications.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClockTarget {
    /// Those without a choice.
    Default,
    /// The highest.
    Max,
    /// These of the multiprocessors, which the card must list.
    Mhz(u32),
}

/// What is wrong with a setting of a profile.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingError {
    /// No such setting.
    #[error("there is no setting `{name}`")]
    Unknown {
        /// As given.
        name: String,
        /// What was probably meant.
        near: Option<String>,
    },
    /// It could not be given back.
    #[error(
        "`{CLOCKS_LOCKED}` is not set: NVML does not say which clocks are locked, so they could not be given back; \
         `gpu.application-clocks` can be"
    )]
    NoWayBack,
    /// It does not take that.
    #[error("`{name}` does not take `{want}`: it takes {takes}")]
    Value {
        /// The setting.
        name: String,
        /// As given.
        want: String,
        /// What it takes.
        takes: &'static str,
    },
}

impl SettingKind {
    /// The setting of this name.
    pub fn from_name(name: &str) -> Result<Self, SettingError> {
        if name == CLOCKS_LOCKED {
            return Err(SettingError::NoWayBack);
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
        let known = PLAIN.iter().map(|(known, _)| *known).chain(jobs.iter().map(String::as_str));
        let near = nearest(name, known).first().map(|name| (*name).to_owned());
        Err(SettingError::Unknown { name: name.to_owned(), near })
    }

    /// What it takes, in words.
    pub fn takes(&self) -> &'static str {
        match self {
            Self::Persistence | Self::Mig | Self::Ecc | Self::Accounting => "`on` or `off`",
            Self::ComputeMode => "`default`, `exclusive-process` or `prohibited`",
            Self::PowerLimit => {
                "`default`, `max`, a share of the card's range such as `70 %`, or watts such as `450 W`"
            }
            Self::ApplicationClocks => "`default`, `max`, or a clock such as `1410 MHz`",
            Self::MigLayout => "names of instances such as `3g.40gb, 3g.40gb`",
            Self::CpuGovernor | Self::Hugepages => "one word of those that the kernel lists",
            Self::Memlock => "`unlimited` or a number of KiB",
            Self::PackageHold | Self::UpgradeGuard => "`on`",
            Self::ModuleParameter(_) => "a value without blanks, quotes and line ends",
            Self::Environment(_) => "`variables`, and no `want`",
        }
    }

    /// Reads what is wanted of it.
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

    /// The file that it writes, where it writes one.
    pub fn file(&self) -> Option<String> {
        match self {
            Self::Memlock => Some(MEMLOCK_FILE.to_owned()),
            Self::UpgradeGuard => Some(GUARD_FILE.to_owned()),
            Self::ModuleParameter(name) => Some(format!("{MODPROBE_FOLDER}/farrier-{name}.conf")),
            Self::Environment(framework) => Some(format!("{ENVIRONMENTS}/{framework}.env")),
            _ => None,
        }
    }

    /// Whether a setting writes this file.
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
            (None, None) => return [MEMLOCK_FILE, GUARD_FILE].contains(&path),
        };
        Self::from_name(&name).is_ok()
    }
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

/// A number before its unit.
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
