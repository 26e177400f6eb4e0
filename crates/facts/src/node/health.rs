//! Current faults of GPUs and host. Collectors write these readings, and the rules evaluate them.

use serde::{Deserialize, Serialize};

use super::reading::Reading;

/// Current state of a GPU. Values that the GPU does not support are absent.
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
    /// Current generation. An idle GPU lowers it.
    pub generation: u32,
    /// Highest generation that both the GPU and the slot support.
    pub generation_max: u32,
    /// Current number of lanes.
    pub width: u32,
    /// Largest number of lanes that both the GPU and the slot support.
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
    /// Network ports that jobs use.
    pub ports: Reading<Vec<PortHealth>>,
    /// Lines with an Xid in the kernel log of the current boot.
    pub xid_lines: Reading<Vec<String>>,
    /// PCI bridges that redirect peer-to-peer traffic (ACS).
    pub acs_bridges: Reading<Vec<String>>,
}

/// Current state of a network port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortHealth {
    /// `mlx5_3`
    pub device: String,
    /// Number of the port, from 1.
    pub port: u32,
    /// Adapter model and network type. Ports of the same kind are expected to be in the same state.
    pub kind: String,
    /// Whether the port is active and its link is up.
    pub up: Reading<bool>,
    /// Whether the link went down after it was up. The link of a port without a cable was never up.
    pub went_down: Reading<bool>,
}
