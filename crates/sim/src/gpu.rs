//! `gpus/N.json`: one GPU as its driver would report it.
//!
//! Values are in the units of their names. What moves with time (energy, throttled time) is a base and the
//! moment from which the present rate applies, so that a reading needs no writer.

use serde::{Deserialize, Serialize};

use crate::fault::CallFault;

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
    pub board: Board,
    /// Where it sits.
    pub pci: Pci,
    /// Whether it has fallen off the bus.
    #[serde(default)]
    pub lost: bool,
    /// What the driver asks for, by NVML's number: 0 none, 1 reset, 2 reboot, 3 drain peer-to-peer, 4 drain and reset.
    #[serde(default)]
    pub recovery_action: u32,
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
    pub events: Vec<Event>,
    /// Calls about this GPU that fail or hang.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<CallFault>,
    /// Calls that this part answers with "not supported".
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unsupported: Vec<String>,
}

/// What was built.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Board {
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

/// Where it sits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pci {
    /// PCI domain.
    pub domain: u32,
    /// PCI bus.
    pub bus: u32,
    /// PCI device.
    pub device: u32,
    /// Four hexadecimal digits below vendor `10de`.
    pub device_id: String,
    /// Four hexadecimal digits of the subsystem, whose vendor is `10de` too.
    pub subsystem_id: String,
    /// The nearest NUMA node.
    pub numa_node: u32,
    /// The processors of that node, such as `0-47`.
    pub cpus: String,
    /// The interrupt.
    pub irq: u32,
}

impl Pci {
    /// `00000000:1B:00.0`, as NVML writes it.
    pub fn bus_id(&self) -> String {
        format!("{:08X}:{:02X}:{:02X}.0", self.domain, self.bus, self.device)
    }

    /// `0000:1B:00.0`, as NVML once wrote it.
    pub fn bus_id_legacy(&self) -> String {
        format!("{:04X}:{:02X}:{:02X}.0", self.domain, self.bus, self.device)
    }

    /// `0000:1b:00.0`, as the kernel writes it.
    pub fn address(&self) -> String {
        format!("{:04x}:{:02x}:{:02x}.0", self.domain, self.bus, self.device)
    }

    /// Device and vendor in one number, as NVML gives them.
    pub fn device_and_vendor(&self) -> u32 {
        hexadecimal(&self.device_id) << 16 | 0x10de
    }

    /// Subsystem and its vendor in one number.
    pub fn subsystem_and_vendor(&self) -> u32 {
        hexadecimal(&self.subsystem_id) << 16 | 0x10de
    }
}

/// Four digits as a number; what is not one counts as nought.
fn hexadecimal(digits: &str) -> u32 {
    u32::from(u16::from_str_radix(digits, 16).unwrap_or(0))
}

/// Frame buffer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Memory {
    /// All of it.
    pub total_bytes: u64,
    /// Kept by driver and firmware.
    pub reserved_bytes: u64,
    /// In use besides what `processes` use.
    pub used_bytes: u64,
    /// The window that the host sees.
    pub bar1_total_bytes: u64,
    /// Of that window.
    pub bar1_used_bytes: u64,
    /// Lines of the memory bus.
    pub bus_width_bits: u32,
}

/// Frequencies by domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rates {
    /// Graphics.
    pub graphics: u32,
    /// Multiprocessors.
    pub sm: u32,
    /// Memory.
    pub memory: u32,
    /// Video engines.
    pub video: u32,
}

/// Lowest and highest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Range {
    /// Lowest.
    pub min: u32,
    /// Highest.
    pub max: u32,
}

/// Frequencies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Clocks {
    /// Now.
    pub current_mhz: Rates,
    /// The most that the part does.
    pub max_mhz: Rates,
    /// Graphics clock that applications asked for.
    pub application_graphics_mhz: u32,
    /// Memory clock that applications asked for.
    pub application_memory_mhz: u32,
    /// What applications get without asking.
    pub default_graphics_mhz: u32,
    /// What applications get without asking.
    pub default_memory_mhz: u32,
    /// Memory clocks that can be chosen, highest first.
    pub supported_memory_mhz: Vec<u32>,
    /// The lowest graphics clock.
    pub graphics_floor_mhz: u32,
    /// Between two graphics clocks.
    pub graphics_step_mhz: u32,
    /// Graphics clocks are held within.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locked_graphics_mhz: Option<Range>,
    /// Memory clocks are held within.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locked_memory_mhz: Option<Range>,
    /// Performance state: 0 is the fastest.
    pub performance_state: u32,
}

impl Clocks {
    /// Graphics clocks that can be chosen, highest first.
    pub fn supported_graphics_mhz(&self) -> Vec<u32> {
        let step = self.graphics_step_mhz.max(1);
        let (floor, top) = (self.graphics_floor_mhz, self.max_mhz.graphics);
        // At most a thousand: a mistyped step must not fill the memory.
        (0..1000_u32)
            .map(|count| top.saturating_sub(count.saturating_mul(step)))
            .take_while(|rate| *rate >= floor && *rate > 0)
            .collect()
    }
}

/// What keeps it from its clocks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClockEvents {
    /// Reasons that hold now.
    pub reasons: Vec<Reason>,
    /// Since when they hold, milliseconds of the Unix clock.
    pub since_unix_ms: u64,
    /// Time up to then.
    pub held_us: Held,
}

/// Time that each reason has held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Held {
    /// Software power cap.
    pub sw_power_cap: u64,
    /// Sync boost.
    pub sync_boost: u64,
    /// Software thermal slowdown.
    pub sw_thermal: u64,
    /// Hardware thermal slowdown.
    pub hw_thermal: u64,
    /// Hardware power brake.
    pub hw_power_brake: u64,
}

/// A clock event reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// Nothing runs.
    GpuIdle,
    /// Application clocks.
    ApplicationClocks,
    /// The power limit.
    SwPowerCap,
    /// Any of the hardware's.
    HwSlowdown,
    /// A sync boost group.
    SyncBoost,
    /// The driver's own thermal limit.
    SwThermal,
    /// The hardware's thermal limit.
    HwThermal,
    /// The power supply asks for it.
    HwPowerBrake,
    /// A display.
    DisplayClocks,
}

impl Reason {
    /// NVML's bit.
    pub fn bit(self) -> u64 {
        match self {
            Self::GpuIdle => 0x1,
            Self::ApplicationClocks => 0x2,
            Self::SwPowerCap => 0x4,
            Self::HwSlowdown => 0x8,
            Self::SyncBoost => 0x10,
            Self::SwThermal => 0x20,
            Self::HwThermal => 0x40,
            Self::HwPowerBrake => 0x80,
            Self::DisplayClocks => 0x100,
        }
    }
}

impl ClockEvents {
    /// NVML's mask. The hardware's own reasons set the common bit too, as on a card.
    pub fn mask(&self) -> u64 {
        let mask = self.reasons.iter().fold(0, |mask, reason| mask | reason.bit());
        let hardware = Reason::HwThermal.bit() | Reason::HwPowerBrake.bit();
        if mask & hardware == 0 { mask } else { mask | Reason::HwSlowdown.bit() }
    }

    /// Time that each reason has held, at `now`.
    pub fn held_at(&self, now_unix_ms: u64) -> Held {
        let more_us = now_unix_ms.saturating_sub(self.since_unix_ms).saturating_mul(1000);
        let mut held = self.held_us;
        for reason in &self.reasons {
            let counter = match reason {
                Reason::SwPowerCap => &mut held.sw_power_cap,
                Reason::SyncBoost => &mut held.sync_boost,
                Reason::SwThermal => &mut held.sw_thermal,
                Reason::HwThermal => &mut held.hw_thermal,
                Reason::HwPowerBrake => &mut held.hw_power_brake,
                _ => continue,
            };
            *counter = counter.saturating_add(more_us);
        }
        held
    }
}

/// Degrees and margins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Temperature {
    /// The GPU's hottest place.
    pub gpu_c: i32,
    /// The memory's hottest place; absent where there is no sensor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_c: Option<i32>,
    /// Where the margin is nought.
    pub gpu_limit_c: i32,
    /// The margin at which it slows down.
    pub slowdown_margin_c: i32,
    /// The margin at which it shuts down.
    pub shutdown_margin_c: i32,
    /// The hottest that the memory should be.
    pub memory_max_c: i32,
}

/// Watts and limits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Power {
    /// Over the last second.
    pub average_mw: u32,
    /// Now.
    pub instant_mw: u32,
    /// The memory's share; absent where it is not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_average_mw: Option<u32>,
    /// In force.
    pub limit_mw: u32,
    /// What the card starts with.
    pub default_limit_mw: u32,
    /// The lowest that it takes.
    pub min_limit_mw: u32,
    /// The highest that it takes.
    pub max_limit_mw: u32,
    /// Used up to `energy_at_unix_ms`; since then `average_mw` counts.
    pub energy_mj: u64,
    /// Milliseconds of the Unix clock.
    pub energy_at_unix_ms: u64,
}

impl Power {
    /// Energy used, at `now`.
    pub fn energy_at(&self, now_unix_ms: u64) -> u64 {
        let elapsed_ms = now_unix_ms.saturating_sub(self.energy_at_unix_ms);
        self.energy_mj.saturating_add(elapsed_ms.saturating_mul(u64::from(self.average_mw)) / 1000)
    }
}

/// How busy it is, in per cent and bytes a second.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Utilisation {
    /// Share of time in which a kernel ran.
    pub gpu_percent: u32,
    /// Share of time in which memory was read or written.
    pub memory_percent: u32,
    /// Encoders.
    pub encoder_percent: u32,
    /// Decoders.
    pub decoder_percent: u32,
    /// JPEG engines.
    pub jpeg_percent: u32,
    /// Optical flow.
    pub optical_flow_percent: u32,
    /// Share of multiprocessors at work.
    pub sm_percent: f64,
    /// Share of warps in use.
    pub sm_occupancy_percent: f64,
    /// Share of time in which tensor cores worked.
    pub tensor_percent: f64,
    /// Share of the memory bandwidth.
    pub dram_percent: f64,
    /// Single precision outside the tensor cores.
    pub fp32_percent: f64,
}

/// Memory errors.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(clippy::struct_excessive_bools, reason = "the driver reports each of them by itself")]
pub struct Ecc {
    /// On now.
    pub enabled: bool,
    /// On after the next reset.
    pub pending: bool,
    /// Since the driver was loaded.
    pub volatile: EccCounts,
    /// In the card's life.
    pub aggregate: EccCounts,
    /// Whether so many SRAM errors came that the part should be replaced.
    pub sram_threshold_exceeded: bool,
    /// A memory channel waits for repair.
    #[serde(default)]
    pub channel_repair_pending: bool,
    /// A texture processing cluster waits for repair.
    #[serde(default)]
    pub tpc_repair_pending: bool,
    /// Memory that no repair helps.
    #[serde(default)]
    pub unrepairable_memory: bool,
}

/// Errors by place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EccCounts {
    /// Memory, put right.
    pub dram_corrected: u64,
    /// Memory, not put right.
    pub dram_uncorrected: u64,
    /// Caches and register files, put right.
    pub sram_corrected: u64,
    /// Found by parity.
    pub sram_uncorrected_parity: u64,
    /// Found by a code that corrects one bit and sees two.
    pub sram_uncorrected_secded: u64,
}

impl EccCounts {
    /// All that were put right.
    pub fn corrected(&self) -> u64 {
        self.dram_corrected.saturating_add(self.sram_corrected)
    }

    /// SRAM errors that were not put right.
    pub fn sram_uncorrected(&self) -> u64 {
        self.sram_uncorrected_parity.saturating_add(self.sram_uncorrected_secded)
    }

    /// All that were not put right.
    pub fn uncorrected(&self) -> u64 {
        self.dram_uncorrected.saturating_add(self.sram_uncorrected())
    }
}

/// Rows taken out of service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Remap {
    /// Whether the part has row remapping.
    pub supported: bool,
    /// For correctable errors.
    pub corrected_rows: u32,
    /// For uncorrectable errors.
    pub uncorrected_rows: u32,
    /// More wait for a reset.
    pub pending: bool,
    /// A remap failed.
    pub failed: bool,
    /// Banks by the spare rows that they have left.
    pub banks: Banks,
}

/// Banks by the spare rows that they have left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Banks {
    /// All.
    pub max: u32,
    /// Most.
    pub high: u32,
    /// Some.
    pub partial: u32,
    /// Few.
    pub low: u32,
    /// None.
    pub none: u32,
}

/// Pages taken out of service.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RetiredPages {
    /// Addresses retired for many single-bit errors.
    pub single_bit: Vec<u64>,
    /// Addresses retired for a double-bit error.
    pub double_bit: Vec<u64>,
    /// More wait for a reset.
    pub pending: bool,
}

/// The link to the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pcie {
    /// Now.
    pub generation: u32,
    /// Of card and slot.
    pub max_generation: u32,
    /// Lanes now.
    pub width: u32,
    /// Lanes of card and slot.
    pub max_width: u32,
    /// Packets sent again.
    pub replays: u32,
    /// Times that the packet counter began anew.
    pub replay_rollovers: u32,
    /// To the host, kilobytes a second.
    pub transmit_kb_per_s: u32,
    /// From the host, kilobytes a second.
    pub receive_kb_per_s: u32,
    /// Errors seen on the bus.
    pub errors: PcieErrors,
}

/// Errors seen on the bus.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PcieErrors {
    /// Put right by the link.
    pub correctable: u32,
    /// Uncorrectable, not fatal.
    pub non_fatal: u32,
    /// Fatal.
    pub fatal: u32,
    /// Broken packets.
    pub bad_tlp: u32,
    /// Broken link packets.
    pub bad_dllp: u32,
    /// The link was trained anew.
    pub recoveries: u32,
}

/// Links to peers and switches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NvLink {
    /// Generation, 0 without links.
    pub generation: u32,
    /// Of each link in each direction, millions of bytes a second as the driver counts.
    pub link_mb_per_s: u32,
    /// The links.
    pub links: Vec<Link>,
}

/// A link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Whether it is up.
    pub active: bool,
    /// What is at the other end.
    pub remote: Remote,
    /// Where that is.
    pub remote_address: String,
    /// Packets sent again.
    #[serde(default)]
    pub replay_errors: u64,
    /// Times that it was trained anew.
    #[serde(default)]
    pub recovery_errors: u64,
    /// Broken flow-control units.
    #[serde(default)]
    pub crc_flit_errors: u64,
    /// Broken data.
    #[serde(default)]
    pub crc_data_errors: u64,
    /// Sent since the driver was loaded.
    #[serde(default)]
    pub transmitted_kib: u64,
    /// Received since the driver was loaded.
    #[serde(default)]
    pub received_kib: u64,
}

/// What is at the other end of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Remote {
    /// Another GPU.
    Gpu,
    /// A switch.
    Switch,
    /// A Grace CPU or nothing known.
    Unknown,
}

/// Its place in an `NVSwitch` fabric.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fabric {
    /// NVML's number: 1 not started, 2 in progress, 3 completed.
    pub state: u32,
    /// NVML's return code of the registration.
    pub status: u32,
    /// Its clique.
    pub clique: u32,
    /// Thirty-two hexadecimal digits, in groups or not.
    pub cluster_uuid: String,
    /// NVML's health mask.
    pub health_mask: u32,
}

/// Settings that a person may change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Modes {
    /// The driver stays loaded without clients.
    pub persistence: bool,
    /// NVML's number: 0 default, 2 prohibited, 3 exclusive process.
    pub compute: u32,
    /// Processes are accounted for.
    pub accounting: bool,
}

/// Partitioning.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mig {
    /// On now.
    pub enabled: bool,
    /// On after the next reset.
    pub pending: bool,
    /// Most instances.
    pub instances_max: u32,
    /// What instances get of the memory, by share.
    #[serde(default)]
    pub memory: Vec<MigMemory>,
}

/// What an instance gets of the memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MigMemory {
    /// Of the whole.
    pub eighths: u32,
    /// In mebibytes.
    pub mib: u64,
    /// In gigabytes, as in the profile's name.
    pub sold_gb: u64,
}

/// A process on the GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// What it holds a context for.
    pub kind: ProcessKind,
    /// Frame buffer.
    pub used_bytes: u64,
    /// Its share of the multiprocessors.
    #[serde(default)]
    pub sm_percent: u32,
    /// Its share of the memory's time.
    #[serde(default)]
    pub memory_percent: u32,
}

/// What a process holds a context for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProcessKind {
    /// CUDA.
    Compute,
    /// OpenGL, Vulkan.
    Graphics,
    /// CUDA through the multi-process service.
    Mps,
}

/// What happened, for clients that wait for events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Event {
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
const EVENTS_KEPT: usize = 128;

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
        self.events.push(Event { sequence, kind, data });
        let extra = self.events.len().saturating_sub(EVENTS_KEPT);
        self.events.drain(..extra);
    }

    /// The margin to the thermal limit.
    pub fn margin_c(&self) -> i32 {
        self.temperature.gpu_limit_c.saturating_sub(self.temperature.gpu_c)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn held_time_counts_from_the_moment_on() {
        let events = ClockEvents {
            reasons: vec![Reason::HwThermal],
            since_unix_ms: 1000,
            held_us: Held { hw_thermal: 5, ..Held::default() },
        };
        assert_eq!(events.held_at(3000).hw_thermal, 2_000_005);
        assert_eq!(events.held_at(3000).sw_thermal, 0);
        assert_eq!(events.held_at(0).hw_thermal, 5, "a clock that was set back adds nothing");
        assert_eq!(events.mask(), 0x48);
    }

    #[test]
    fn addresses() {
        let pci = Pci {
            domain: 0,
            bus: 0x1b,
            device: 0,
            device_id: "2330".to_owned(),
            subsystem_id: "16c1".to_owned(),
            numa_node: 0,
            cpus: "0-47".to_owned(),
            irq: 100,
        };
        assert_eq!(pci.bus_id(), "00000000:1B:00.0");
        assert_eq!(pci.address(), "0000:1b:00.0");
        assert_eq!(pci.device_and_vendor(), 0x2330_10de);
    }
}
