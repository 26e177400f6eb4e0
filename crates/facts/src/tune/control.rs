//! What can be changed, and to what. These forms stand in journals: they are added to, never changed.

use serde::{Deserialize, Serialize};

use super::setting::{HUGEPAGES_FILE, PERSISTENCED, SettingKind};

/// A setting of a GPU that NVML can read and set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GpuControl {
    /// The driver stays initialised without clients.
    Persistence,
    /// Who may use the GPU.
    ComputeMode,
    /// In milliwatts.
    PowerLimit,
    /// Clocks that applications get.
    ApplicationClocks,
    /// Error correction after the next reset.
    Ecc,
    /// Partitioning after the next reset, or at once where the card can.
    Mig,
    /// Processes are accounted for.
    Accounting,
}

impl GpuControl {
    /// Whether what is set counts after the next reset.
    pub fn is_at_reset(self) -> bool {
        matches!(self, Self::Ecc | Self::Mig)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Persistence => "persistence",
            Self::ComputeMode => "compute mode",
            Self::PowerLimit => "power limit",
            Self::ApplicationClocks => "application clocks",
            Self::Ecc => "ECC",
            Self::Mig => "MIG",
            Self::Accounting => "accounting",
        }
    }
}

/// One thing that has a value.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Target {
    /// A setting of a GPU.
    Gpu {
        /// By its UUID: its number changes.
        uuid: String,
        /// Which.
        control: GpuControl,
    },
    /// A file, all of it.
    File {
        /// Below the root.
        path: String,
    },
    /// A file of the kernel's, in which one word is chosen.
    Kernel {
        /// Below the root.
        path: String,
    },
    /// Whether a package is held.
    Hold {
        /// The package.
        package: String,
    },
    /// A service.
    Service {
        /// Without `.service`.
        unit: String,
    },
}

impl Target {
    /// Whether a profile can lead to it. What is read back from a disk is held to that before it is written anywhere.
    pub fn is_allowed(&self) -> bool {
        match self {
            Self::Gpu { .. } => true,
            Self::File { path } => SettingKind::is_file(path),
            Self::Kernel { path } => path == HUGEPAGES_FILE || is_governor(path),
            Self::Hold { package } => is_package(package),
            Self::Service { unit } => unit == PERSISTENCED,
        }
    }

    /// A value of it in words, with what its numbers mean.
    pub fn words(&self, value: &Value) -> String {
        match (self, value) {
            (Self::Gpu { control: GpuControl::PowerLimit, .. }, Value::Number(milliwatts)) => {
                watts(*milliwatts)
            }
            (Self::Gpu { control: GpuControl::ComputeMode, .. }, Value::Number(mode)) => {
                mode_name(*mode)
            }
            (Self::Hold { .. }, Value::Switch(held)) => {
                if *held { "held" } else { "not held" }.to_owned()
            }
            _ => value.words(),
        }
    }
}

/// `/sys/devices/system/cpu/cpufreq/policy0/scaling_governor`, `/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor`
fn is_governor(path: &str) -> bool {
    let numbered = |word: &str, name: &str| {
        word.strip_prefix(name).is_some_and(|number| {
            !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
        })
    };
    let Some(rest) = path.strip_prefix("/sys/devices/system/cpu/") else { return false };
    match rest.split('/').collect::<Vec<_>>()[..] {
        ["cpufreq", policy, "scaling_governor"] => numbered(policy, "policy"),
        [cpu, "cpufreq", "scaling_governor"] => numbered(cpu, "cpu"),
        _ => false,
    }
}

/// A name as dpkg takes them, with or without an architecture. One that begins with a dash would be an option of apt-mark.
fn is_package(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.:".contains(&byte);
    name.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric())
        && name.bytes().all(plain)
}

/// Milliwatts as people say them.
pub(super) fn watts(milliwatts: u32) -> String {
    if milliwatts.is_multiple_of(1000) {
        format!("{} W", milliwatts / 1000)
    } else {
        format!("{}.{:03} W", milliwatts / 1000, milliwatts % 1000)
    }
}

/// A compute mode by its number.
pub(super) fn mode_name(mode: u32) -> String {
    match mode {
        0 => "default".to_owned(),
        2 => "prohibited".to_owned(),
        3 => "exclusive-process".to_owned(),
        other => format!("mode {other}"),
    }
}

/// A value of a target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Value {
    /// On or off; held or not.
    Switch(bool),
    /// A number of NVML's; milliwatts.
    Number(u32),
    /// Clocks of applications.
    Clocks {
        /// Of the memory.
        memory_mhz: u32,
        /// Of the multiprocessors.
        graphics_mhz: u32,
    },
    /// A word.
    Word(String),
    /// A file.
    File(FileContent),
    /// There is no such file.
    NoFile,
    /// A service.
    Service {
        /// It starts at boot.
        enabled: bool,
        /// It has a process.
        running: bool,
    },
}

impl Value {
    /// Whether both are the same setting. Who owns a file is no part of that, where one does not say.
    pub fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::File(left), Self::File(right)) => {
                left.content.bytes() == right.content.bytes()
                    && left.mode == right.mode
                    && (left.owner == right.owner || left.owner.is_none() || right.owner.is_none())
            }
            _ => self == other,
        }
    }

    /// In words, for a table.
    pub fn words(&self) -> String {
        match self {
            Self::Switch(true) => "on".to_owned(),
            Self::Switch(false) => "off".to_owned(),
            Self::Number(number) => number.to_string(),
            Self::Clocks { memory_mhz, graphics_mhz } => {
                format!("{graphics_mhz} MHz, memory {memory_mhz} MHz")
            }
            Self::Word(word) => word.clone(),
            Self::File(file) => format!("{} bytes", file.content.bytes().len()),
            Self::NoFile => "no file".to_owned(),
            Self::Service { enabled, running } => {
                let enabled = if *enabled { "starts at boot" } else { "does not start at boot" };
                let running = if *running { "runs" } else { "does not run" };
                format!("{enabled}, {running}")
            }
        }
    }
}

/// A file's content and what a file has besides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileContent {
    /// Its bytes.
    pub content: Content,
    /// Its permissions.
    pub mode: u32,
    /// Its user and group; none: whoever writes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<(u32, u32)>,
}

impl FileContent {
    /// A text that everybody may read.
    pub fn text(text: impl Into<String>) -> Self {
        Self { content: Content::Text(text.into()), mode: 0o644, owner: None }
    }
}

/// Bytes that are kept exactly, and legibly where they are a text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Content {
    /// UTF-8.
    Text(String),
    /// Two hexadecimal digits a byte.
    Hex(String),
}

impl Content {
    /// Of these bytes.
    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        match String::from_utf8(bytes) {
            Ok(text) => Self::Text(text),
            Err(err) => {
                let mut digits = String::new();
                for byte in err.as_bytes() {
                    digits.push_str(&format!("{byte:02x}"));
                }
                Self::Hex(digits)
            }
        }
    }

    /// The bytes. What is no hexadecimal has none.
    pub fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Text(text) => text.as_bytes().to_vec(),
            Self::Hex(digits) => digits
                .as_bytes()
                .chunks(2)
                .filter_map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
                .collect(),
        }
    }
}
