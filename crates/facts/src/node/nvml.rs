//! NVML readings. The probe process writes them, and the rules evaluate them.

use serde::{Deserialize, Serialize};

use super::health::DeviceHealth;
use super::nvml_status::NvmlStatus;
use super::reading::Reading;

/// Result of querying NVML.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NvmlReading {
    Answered(Nvml),
    /// Initialisation failed.
    Refused {
        /// `NVML_ERROR_LIB_RM_VERSION_MISMATCH`
        error: NvmlStatus,
    },
    /// No library could be loaded.
    NoLibrary {
        /// Error of the dynamic loader.
        why: String,
    },
    /// A call did not return in time, for example because the driver hangs.
    Hung {
        /// Timeout in seconds.
        after_s: u64,
        /// The pending call and its GPU.
        during: String,
        /// What NVML returned before the hang.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        read: Option<Box<Nvml>>,
    },
    /// The probe process died before it wrote its result.
    Died {
        why: String,
    },
    /// NVML was not queried.
    NotAsked {
        why: String,
    },
}

impl NvmlReading {
    /// What NVML returned, also if a later call hung. `None` if it returned nothing.
    pub fn answered(&self) -> Option<&Nvml> {
        match self {
            Self::Answered(nvml) => Some(nvml),
            Self::Hung { read, .. } => read.as_deref(),
            _ => None,
        }
    }

    /// Description of the failure. `None` if NVML answered.
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

/// What NVML returned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nvml {
    pub driver_version: Reading<String>,
    pub library_version: Reading<String>,
    /// CUDA version that the driver supports: `13000` is 13.0.
    pub cuda_version: Reading<i32>,
    /// Number of devices.
    pub count: Reading<u32>,
    pub devices: Vec<NvmlDevice>,
}

/// NVML readings of one GPU. Values that the GPU does not support are absent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NvmlDevice {
    /// NVML index.
    pub index: u32,
    /// Whether the device could be opened. If not, none of the values below was queried.
    pub handle: Reading<()>,
    pub name: Reading<String>,
    pub uuid: Reading<String>,
    /// `00000000:17:00.0`
    pub pci_address: Reading<String>,
    /// Device and vendor id, such as `0x233010de`.
    pub pci_device_id: Reading<u32>,
    pub vbios: Reading<String>,
    /// The GSP firmware in use.
    pub gsp_firmware: Reading<String>,
    /// 0 default, 1 exclusive thread, 2 prohibited, 3 exclusive process.
    pub compute_mode: Reading<u32>,
    /// Persistence mode: the driver stays initialised while no program uses the GPU.
    pub persistence: Reading<bool>,
    /// ECC mode.
    pub ecc: Reading<Setting>,
    /// MIG mode.
    pub mig: Reading<Setting>,
    pub power: Reading<PowerLimits>,
    /// `none`, `hmm` or `ats`.
    pub addressing_mode: Reading<String>,
    pub fabric: Reading<FabricState>,
    pub remapped_rows: Reading<RemappedRows>,
    /// The driver's recovery action; 0 for none.
    pub recovery_action: Reading<u32>,
    /// Whether the `InfoROM` checksum is valid; `None` if not queried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inforom_valid: Option<Reading<bool>>,
    /// Application clocks; `None` if not queried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub application_clocks: Option<Reading<GraphicsApplicationClock>>,
    /// Current faults; `None` if not queried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub now: Option<DeviceHealth>,
}

/// The graphics clock that programs get (`nvidia-smi -ac`), in MHz.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GraphicsApplicationClock {
    pub current_mhz: u32,
    /// The card's default.
    pub default_mhz: u32,
}

/// A setting for which a change takes effect at the next reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Setting {
    pub current: bool,
    /// Value after the next reset.
    pub pending: bool,
}

/// Power limits of a card, in milliwatts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PowerLimits {
    /// Current limit.
    pub limit_mw: u32,
    /// Default limit.
    pub default_mw: u32,
    /// Minimum limit.
    pub min_mw: u32,
    /// Maximum limit.
    pub max_mw: u32,
}

/// A GPU's state in the `NVLink` fabric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FabricState {
    /// 0 unsupported, 1 not started, 2 in progress, 3 completed.
    pub state: u8,
    /// NVML return code; 0 is success. Only valid if `state` is completed.
    pub status: u32,
}

/// Row-remapping state of GPU memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemappedRows {
    /// Rows remapped after correctable errors.
    pub correctable: u32,
    /// Rows remapped after uncorrectable errors.
    pub uncorrectable: u32,
    /// Whether a remapping waits for the next reset.
    pub pending: bool,
    /// Whether a remapping failed, because no spare row is left.
    pub failed: bool,
}
