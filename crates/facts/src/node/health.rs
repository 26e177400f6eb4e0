//! What one look shows of faults that are there now, as the probe writes it and the rules read it.

use serde::{Deserialize, Serialize};

use super::reading::Reading;

/// A GPU at the moment of the look. What the part or its driver does not have is absent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceHealth {
    /// Memory errors since the driver was loaded that could not be corrected.
    pub ecc_uncorrected: Reading<u64>,
    /// NVML's bits for why clocks are held down.
    pub clock_reasons: Reading<u64>,
    /// The PCIe link.
    pub pcie: Reading<PcieLink>,
    /// How busy it is, in percent.
    pub utilisation_percent: Reading<u32>,
    /// Its `NVLink`s.
    pub links: Reading<NvlinkHealth>,
}

/// A PCIe link, and the most that card and slot can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PcieLink {
    /// It sinks while the GPU is idle.
    pub generation: u32,
    /// With this card in this slot.
    pub generation_max: u32,
    /// Lanes.
    pub width: u32,
    /// With this card in this slot.
    pub width_max: u32,
}

/// The `NVLink`s of a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NvlinkHealth {
    /// Those that are up.
    pub up: u32,
    /// Numbers of those that are down although something is at their other end.
    pub down: Vec<u32>,
}

/// What stands around the GPUs, at the moment of the look.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostHealth {
    /// Ports of network adapters for jobs.
    pub ports: Reading<Vec<PortHealth>>,
    /// Lines of this boot's kernel log that name an Xid.
    pub xid_lines: Reading<Vec<String>>,
}

/// A port of a network adapter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortHealth {
    /// `mlx5_3`
    pub device: String,
    /// Its number, from 1.
    pub port: u32,
    /// The adapter's model and its network: ports of one kind are used alike.
    pub kind: String,
    /// Whether it is active and its link is up.
    pub up: Reading<bool>,
    /// Whether its link was up before and went down; a port without a cable never was.
    pub went_down: Reading<bool>,
}
