//! Current faults of GPUs and host, as written by the probe and read by the rules.

use serde::{Deserialize, Serialize};

use super::reading::Reading;

/// Current state of a GPU. Unsupported values are absent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceHealth {
    /// Uncorrectable ECC errors since the driver was loaded.
    pub ecc_uncorrected: Reading<u64>,
    /// NVML clock event (throttle) reasons.
    pub clock_reasons: Reading<u64>,
    /// The PCIe link.
    pub pcie: Reading<PcieLink>,
    /// GPU utilisation in percent.
    pub utilisation_percent: Reading<u32>,
    pub links: Reading<NvlinkHealth>,
}

/// Current and maximum PCIe link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PcieLink {
    /// Drops while the GPU is idle.
    pub generation: u32,
    /// Maximum of this card in this slot.
    pub generation_max: u32,
    /// Number of lanes.
    pub width: u32,
    /// Maximum of this card in this slot.
    pub width_max: u32,
}

/// State of a GPU's `NVLink`s.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NvlinkHealth {
    /// Number of active links.
    pub up: u32,
    /// Links that are down although their remote end is connected.
    pub down: Vec<u32>,
}

/// Current state of the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostHealth {
    /// Network ports used by jobs.
    pub ports: Reading<Vec<PortHealth>>,
    /// Lines of this boot's kernel log that name an Xid.
    pub xid_lines: Reading<Vec<String>>,
}

/// Current state of a network port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortHealth {
    /// `mlx5_3`
    pub device: String,
    /// Its number, from 1.
    pub port: u32,
    /// Adapter model and network type. Ports of the same kind are expected to be in the same state.
    pub kind: String,
    /// Whether it is active and its link is up.
    pub up: Reading<bool>,
    /// Whether the link was up and went down. A port without a cable never was up.
    pub went_down: Reading<bool>,
}
