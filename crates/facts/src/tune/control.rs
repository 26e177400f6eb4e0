//! Change targets and values. Journals contain their serialised form: add fields and variants, but
//! do not change existing fields and variants.

use serde::{Deserialize, Serialize};

use super::setting::{HUGEPAGES_FILE, PERSISTENCED, SettingKind};

/// A GPU setting that NVML can read and write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GpuControl {
    /// Persistence mode.
    Persistence,
    /// Compute mode.
    ComputeMode,
    /// Power limit, in milliwatts.
    PowerLimit,
    /// Application clocks.
    ApplicationClocks,
    /// ECC after the next reset.
    Ecc,
    /// MIG mode after the next reset, or at once if the GPU supports it.
    Mig,
    /// Per-process accounting.
    Accounting,
}

impl GpuControl {
    /// Whether a change takes effect at the next reset.
    pub fn is_at_reset(self) -> bool {
        matches!(self, Self::Ecc | Self::Mig)
    }

    /// Name for display.
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

/// A thing that can be changed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Target {
    Gpu {
        /// The UUID, because the index can change.
        uuid: String,
        control: GpuControl,
    },
    /// A whole file.
    File {
        /// Absolute path below the root.
        path: String,
    },
    /// A sysfs file that selects one of several words.
    Kernel {
        /// Absolute path below the root.
        path: String,
    },
    /// `apt-mark hold` of a package.
    Hold { package: String },
    /// A systemd service.
    Service {
        /// Unit name without `.service`.
        unit: String,
    },
}

impl Target {
    /// Whether a profile can produce this target. Checked for targets that were read from disk,
    /// such as targets in the journal, before they are changed.
    pub fn is_allowed(&self) -> bool {
        match self {
            Self::Gpu { .. } => true,
            Self::File { path } => SettingKind::is_file(path),
            Self::Kernel { path } => path == HUGEPAGES_FILE || is_governor(path),
            Self::Hold { package } => is_package(package),
            Self::Service { unit } => unit == PERSISTENCED,
        }
    }

    /// A value of this target for display, with units.
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

/// `/sys/devices/system/cpu/cpufreq/policy0/scaling_governor`,
/// `/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor`
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

/// Whether a name is a valid dpkg package name, with or without an architecture. A leading dash
/// would be an option of apt-mark.
fn is_package(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.:".contains(&byte);
    name.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric())
        && name.bytes().all(plain)
}

/// Formats milliwatts as watts.
pub(super) fn watts(milliwatts: u32) -> String {
    if milliwatts.is_multiple_of(1000) {
        format!("{} W", milliwatts / 1000)
    } else {
        format!("{}.{:03} W", milliwatts / 1000, milliwatts % 1000)
    }
}

/// Name of a compute mode.
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
    /// On or off; held or not held.
    Switch(bool),
    /// An NVML enum value, or milliwatts.
    Number(u32),
    /// Application clocks.
    Clocks {
        memory_mhz: u32,
        graphics_mhz: u32,
    },
    Word(String),
    File(FileContent),
    /// The file does not exist.
    NoFile,
    /// A systemd service.
    Service {
        /// Enabled at boot.
        enabled: bool,
        /// Has a running process.
        running: bool,
    },
}

impl Value {
    /// Whether both values are equivalent. File owners are ignored if one of the two owners is
    /// unspecified.
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

    /// For display.
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

/// Content and metadata of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileContent {
    pub content: Content,
    /// Permission bits.
    pub mode: u32,
    /// User and group ids. `None` stands for the ids of the writing process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<(u32, u32)>,
}

impl FileContent {
    /// A world-readable text file.
    pub fn text(text: impl Into<String>) -> Self {
        Self { content: Content::Text(text.into()), mode: 0o644, owner: None }
    }
}

/// Exact file content, stored as text if possible.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Content {
    /// UTF-8.
    Text(String),
    /// Two hexadecimal digits per byte.
    Hex(String),
}

impl Content {
    /// Encodes bytes.
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

    /// Decodes the bytes; invalid hexadecimal digits are skipped.
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
