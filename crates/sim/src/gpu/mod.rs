//! `gpus/N.json`: one GPU as its driver would report it.
//!
//! Values are in the units of their names. What moves with time (energy, throttled time) is a base and the
//! moment from which the present rate applies, so that a reading needs no writer.

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

pub use activity::{Process, ProcessKind, Utilisation};
pub use clocks::{ClockEvents, ClockRange, ClockRates, Clocks, ThrottleReason, ThrottledTime};
pub use links::{Fabric, Link, NvLink, NvLink5Counters, Remote};
pub use memory::{Ecc, EccCounts, Memory, Remap, RemapBanks, RetiredPages};
pub use modes::{Mig, MigMemory, Modes};
pub use pci::{Pci, Pcie, PcieErrors};
pub use power::{Power, Temperature};

/// A simulated GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gpu {
    /// The version of this form.
    pub format: u32,
    /// What NVML calls it.
    pub name: String,
    /// `GPU-` and a UUID.
    pub uuid: String,
    /// The number on its board.
    pub serial: String,
    /// The number in `/dev/nvidiaN`.
    pub minor: u32,
    /// What was built.
    pub board: BoardInfo,
    /// Where it sits.
    pub pci: Pci,
    /// Whether it has fallen off the bus.
    #[serde(default)]
    pub lost: bool,
    /// Whether the kernel no longer lists it either.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub gone: bool,
    /// What the driver asks for, by NVML's number: 0 none, 1 reset, 2 reboot, 3 drain peer-to-peer, 4 drain and reset.
    #[serde(default)]
    pub recovery_action: u32,
    /// How often it was reset since it was made.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub resets: u32,
    /// Frame buffer.
    pub memory: Memory,
    /// Frequencies.
    pub clocks: Clocks,
    /// What keeps it from its clocks.
    pub clock_events: ClockEvents,
    /// Degrees and margins.
    pub temperature: Temperature,
    /// Watts and limits.
    pub power: Power,
    /// How busy it is.
    pub utilisation: Utilisation,
    /// Memory errors.
    pub ecc: Ecc,
    /// Rows taken out of service.
    pub remap: Remap,
    /// Pages taken out of service, on parts without row remapping.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retired_pages: Option<RetiredPages>,
    /// The link to the host.
    pub pcie: Pcie,
    /// Links to peers and switches.
    pub nvlink: NvLink,
    /// Its place in an `NVSwitch` fabric; absent where it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fabric: Option<Fabric>,
    /// Settings that a person may change.
    pub modes: Modes,
    /// Partitioning; absent where the part has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig: Option<Mig>,
    /// What runs on it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub processes: Vec<Process>,
    /// What happened to it, oldest first, for clients that wait for events.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<GpuEvent>,
    /// Calls about this GPU that fail or hang.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<CallFault>,
    /// Calls that this part answers with "not supported".
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unsupported: Vec<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's form")]
fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// What was built.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BoardInfo {
    /// Such as `Hopper`.
    pub architecture: String,
    /// Major and minor number.
    pub compute_capability: [u32; 2],
    /// CUDA cores.
    pub cores: u32,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Such as `692-2G520-0282-001`.
    pub part_number: String,
    /// The part number of the GPU itself.
    pub gpu_part_number: String,
    /// Such as `96.00.A5.00.1A`.
    pub vbios: String,
    /// Version of the whole `InfoROM`.
    pub inforom_image: String,
    /// Version of its OEM object.
    pub inforom_oem: String,
    /// Version of its ECC object.
    pub inforom_ecc: String,
    /// Whether its checksum holds.
    pub inforom_valid: bool,
    /// Its place on the baseboard.
    pub module_id: u32,
    /// Per-device identifier.
    pub pdi: u64,
}

/// What happened, for clients that wait for events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuEvent {
    /// Grows by one with each event of the GPU.
    pub sequence: u64,
    /// NVML's bit of its type.
    pub kind: u64,
    /// For an Xid its number.
    pub data: u64,
}

/// NVML's event type of a critical Xid.
pub const EVENT_XID: u64 = 0x8;

/// Old events are dropped: a client that has not looked for so long has missed them on a real node too.
const EVENTS_MAX: usize = 128;

impl Gpu {
    /// Memory in use by the processes and besides.
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

    /// Adds an event after those that are there.
    pub fn push_event(&mut self, kind: u64, data: u64) {
        let sequence = self.events.last().map_or(1, |event| event.sequence.saturating_add(1));
        self.events.push(GpuEvent { sequence, kind, data });
        let extra = self.events.len().saturating_sub(EVENTS_MAX);
        self.events.drain(..extra);
    }

    /// The margin to the thermal limit.
    pub fn margin_c(&self) -> i32 {
        self.temperature.gpu_limit_c.saturating_sub(self.temperature.gpu_c)
    }
}
