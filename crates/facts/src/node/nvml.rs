//! What NVML says, as the probe writes it and the rules read it.

use serde::{Deserialize, Serialize};

use super::health::DeviceHealth;
use super::nvml_status::NvmlStatus;
use super::reading::Reading;

/// What came of asking NVML.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NvmlReading {
    /// It answered.
    Answered(Nvml),
    /// It refused to start, with its own name for the error.
    Refused {
        /// `NVML_ERROR_LIB_RM_VERSION_MISMATCH`
        error: NvmlStatus,
    },
    /// There is no library that could be loaded.
    NoLibrary {
        /// What the loader said.
        why: String,
    },
    /// It did not answer in time. A wedged driver does that.
    Hung {
        /// How long it was given.
        after_s: u64,
        /// The last call that was begun, with the GPU that it is about.
        during: String,
        /// What it had answered before.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        read: Option<Box<Nvml>>,
    },
    /// The probe ended without an answer.
    Died {
        /// How.
        why: String,
    },
    /// It was not asked, and why.
    NotAsked {
        /// Why.
        why: String,
    },
}

impl NvmlReading {
    /// The answers, where there are any: of a library that hangs those before.
    pub fn answered(&self) -> Option<&Nvml> {
        match self {
            Self::Answered(nvml) => Some(nvml),
            Self::Hung { read, .. } => read.as_deref(),
            _ => None,
        }
    }

    /// Why there are none, in words.
    pub fn failure_reason(&self) -> Option<String> {
        match self {
            Self::Answered(_) => None,
            Self::Refused { error } => Some(format!("NVML refused to start: {error}")),
            Self::NoLibrary { why } => Some(format!("no NVML library: {why}")),
            Self::Hung { after_s, during, .. } => {
                Some(format!("NVML did not answer within {after_s} s (in {during})"))
            }
            Self::Died { why } => Some(format!("the NVML probe ended without an answer: {why}")),
            Self::NotAsked { why } => Some(format!("NVML was not asked: {why}")),
        }
    }
}

/// NVML's answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nvml {
    /// The kernel driver's version.
    pub driver_version: Reading<String>,
    /// The library's own version.
    pub library_version: Reading<String>,
    /// The CUDA of the driver: `13000` is 13.0.
    pub cuda_version: Reading<i32>,
    /// How many devices it counts.
    pub count: Reading<u32>,
    /// The devices.
    pub devices: Vec<NvmlDevice>,
}

/// One GPU's answers. What the device does not have is absent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NvmlDevice {
    /// NVML's number for it.
    pub index: u32,
    /// Whether it could be opened; when not, nothing below was asked.
    pub handle: Reading<()>,
    /// Its product name.
    pub name: Reading<String>,
    /// Its UUID.
    pub uuid: Reading<String>,
    /// Its PCI address: `00000000:17:00.0`.
    pub pci_address: Reading<String>,
    /// Its PCI device and vendor: `0x233010de`.
    pub pci_device_id: Reading<u32>,
    /// Its VBIOS.
    pub vbios: Reading<String>,
    /// The GSP firmware in use.
    pub gsp_firmware: Reading<String>,
    /// 0 default, 1 exclusive thread, 2 prohibited, 3 exclusive process.
    pub compute_mode: Reading<u32>,
    /// Whether the driver stays initialised without clients.
    pub persistence: Reading<bool>,
    /// Error correction.
    pub ecc: Reading<Setting>,
    /// Multi-instance GPU.
    pub mig: Reading<Setting>,
    /// Power limits.
    pub power: Reading<PowerLimits>,
    /// `none`, `hmm` or `ats`.
    pub addressing_mode: Reading<String>,
    /// The `NVLink` fabric.
    pub fabric: Reading<Fabric>,
    /// Remapped rows.
    pub remapped_rows: Reading<RemappedRows>,
    /// What the driver says must be done: 0 is nothing.
    pub recovery_action: Reading<u32>,
    /// What is wrong with it now; none where that was not asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub now: Option<DeviceHealth>,
}

/// A setting that takes effect at the next reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Setting {
    /// Now.
    pub current: bool,
    /// After the next reset.
    pub pending: bool,
}

/// Power limits of a card, in milliwatts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PowerLimits {
    /// What is set.
    pub limit_mw: u32,
    /// What the card starts with.
    pub default_mw: u32,
    /// The least that it takes.
    pub min_mw: u32,
    /// The most that it takes.
    pub max_mw: u32,
}

/// A GPU's place in the `NVLink` fabric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fabric {
    /// 0 unsupported, 1 not started, 2 in progress, 3 completed.
    pub state: u8,
    /// An NVML return code; 0 is success. It counts when `state` is completed.
    pub status: u32,
}

/// Rows of memory that were replaced by spare ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemappedRows {
    /// After correctable errors.
    pub correctable: u32,
    /// After uncorrectable errors.
    pub uncorrectable: u32,
    /// A replacement waits for a reset.
    pub pending: bool,
    /// No spare row was left.
    pub failed: bool,
}
