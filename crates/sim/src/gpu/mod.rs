//! `gpus/N.json`: one GPU as its driver would report it.
//!
//! Units are in the field names. Energy, throttled time and traffic grow with time. For each of
//! them, the file stores a value, the time of that value and the current rate. A reader can compute
//! the value at any time, so the file does not have to be updated.

mod activity;
mod clocks;
mod faults;
mod links;
mod memory;
mod modes;
mod pci;
mod power;

use serde::{Deserialize, Serialize};

use crate::fault::CallFault;

pub use activity::{ContextKind, Process, Utilisation};
pub use clocks::{ClockEvents, ClockRange, ClockRates, Clocks, ThrottleReason, ThrottledTime};
pub use links::{FabricRegistration, Link, NvLink, NvLink5Counters, Remote};
pub use memory::{Ecc, EccCounts, Memory, Remap, RemapBanks, RetiredPages};
pub use modes::{Mig, MigMemory, Modes};
pub use pci::{Pci, Pcie, PcieErrors};
pub use power::{Power, Temperature};

/// A simulated GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SimGpu {
    pub format: u32,
    /// Product name as NVML reports it.
    pub name: String,
    /// `GPU-` followed by a UUID.
    pub uuid: String,
    /// Board serial number.
    pub serial: String,
    /// Device minor number, as in `/dev/nvidiaN`.
    pub minor: u32,
    pub board: BoardInfo,
    pub pci: Pci,
    /// Whether the GPU has fallen off the bus.
    #[serde(default)]
    pub lost: bool,
    /// Whether the kernel no longer lists the PCI device either.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub gone: bool,
    /// NVML recovery action: 0 none, 1 reset, 2 reboot, 3 drain peer-to-peer, 4 drain and reset,
    /// 5 recover IMEX domain, 6 bus reset, 7 system reboot.
    #[serde(default)]
    pub recovery_action: u32,
    /// Resets since the node was created.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub resets: u32,
    pub memory: Memory,
    pub clocks: Clocks,
    pub clock_events: ClockEvents,
    pub temperature: Temperature,
    pub power: Power,
    pub utilisation: Utilisation,
    pub ecc: Ecc,
    pub remap: Remap,
    /// Retired pages. `None` on models with row remapping.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retired_pages: Option<RetiredPages>,
    /// PCIe link to the host.
    pub pcie: Pcie,
    pub nvlink: NvLink,
    /// NVSwitch fabric registration. `None` if the GPU is not in a fabric.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fabric: Option<FabricRegistration>,
    pub modes: Modes,
    /// MIG mode and slice sizes. `None` on models without MIG.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig: Option<Mig>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub processes: Vec<Process>,
    /// Events for clients in `nvmlEventSetWait`, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<GpuEvent>,
    /// Injected failures of calls about this GPU.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<CallFault>,
    /// Calls that return `NVML_ERROR_NOT_SUPPORTED` on this model.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unsupported: Vec<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's form")]
fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// Hardware identity and firmware versions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BoardInfo {
    /// Architecture name, such as `Hopper`.
    pub architecture: String,
    /// Major and minor number.
    pub compute_capability: [u32; 2],
    /// CUDA cores.
    pub cores: u32,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Part number of the board, such as `692-2G520-0282-001`.
    pub part_number: String,
    /// Part number of the chip itself.
    pub gpu_part_number: String,
    /// VBIOS version, such as `96.00.A5.00.1A`.
    pub vbios: String,
    /// Another VBIOS version than the model's, as after a failed update.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vbios_override: Option<String>,
    /// Version of the `InfoROM` image.
    pub inforom_image: String,
    /// Version of the OEM object in the `InfoROM`.
    pub inforom_oem: String,
    /// Version of the ECC object in the `InfoROM`.
    pub inforom_ecc: String,
    /// Whether the `InfoROM` checksum is valid.
    pub inforom_valid: bool,
    /// Position on the baseboard, starting at 1.
    pub module_id: u32,
    /// Per-device identifier.
    pub pdi: u64,
}

impl BoardInfo {
    /// The VBIOS version that NVML reports.
    pub fn vbios_version(&self) -> &str {
        self.vbios_override.as_deref().unwrap_or(&self.vbios)
    }
}

/// An NVML event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuEvent {
    /// Increases by one with each event of the GPU.
    pub sequence: u64,
    /// NVML event type bit.
    pub kind: u64,
    /// The Xid number for Xid events.
    pub data: u64,
}

/// NVML event type of a critical Xid.
pub const EVENT_XID: u64 = 0x8;

/// Maximum stored events. Older events are dropped. A client that is this far behind would miss
/// them on a real node too.
const EVENTS_MAX: usize = 128;

impl SimGpu {
    /// Address of the PCIe switch port above the GPU. Ports of a second baseboard use the next
    /// device number on the same bus.
    pub fn port_address(&self) -> String {
        let board = self.minor / 8;
        let bus = self.pci.bus.saturating_sub(1 + board);
        format!("0000:{bus:02x}:{board:02x}.0")
    }

    /// All memory in use, by the listed processes and otherwise.
    pub fn used_bytes(&self) -> u64 {
        let processes = self
            .processes
            .iter()
            .fold(0_u64, |sum, process| sum.saturating_add(process.used_bytes));
        self.memory
            .used_bytes
            .saturating_add(processes)
            .min(self.memory.total_bytes.saturating_sub(self.memory.reserved_bytes))
    }

    /// Appends an event with the next sequence number.
    pub fn push_event(&mut self, kind: u64, data: u64) {
        let sequence = self.events.last().map_or(1, |event| event.sequence.saturating_add(1));
        self.events.push(GpuEvent { sequence, kind, data });
        let extra = self.events.len().saturating_sub(EVENTS_MAX);
        self.events.drain(..extra);
    }

    /// Difference between the thermal limit and the GPU temperature.
    pub fn margin_c(&self) -> i32 {
        self.temperature.gpu_limit_c.saturating_sub(self.temperature.gpu_c)
    }
}
