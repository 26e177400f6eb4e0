//! Faults that can be injected into a simulated node.
//!
//! [`apply`] changes a GPU and returns the kernel log records that the driver would write.
//! [`apply_to_host`] does the same for the rest of the node. Both are pure. [`crate::NodeDir`]
//! writes the result.

mod activity;
mod call;
mod host;
mod links;
mod memory;
mod settings;
mod xid;

use crate::gpu::{Process, SimGpu, ThrottleReason};
use crate::rootfs::KernelRecord;

pub use activity::Activity;
pub use call::{
    CallEffect, CallFault, FIELD_PREFIX, NVML_ERRORS, error_code, is_node_scoped, validate_call,
};
pub use host::{
    BlockedThread, HostChange, HostFault, HostFaultError, NicChange, apply as apply_to_host,
};
pub use links::{BitErrorRate, FabricFault, LinkErrors, PcieFault, PortError};
pub use memory::{EccErrors, RemapFault, RetiredFault};
pub use settings::SettingsChange;

/// An event or fault that affects one GPU.
#[derive(Debug, Clone, PartialEq)]
pub enum Fault {
    Xid {
        number: u32,
        /// Text after the number in the kernel log. `None` stands for the driver's typical text.
        message: Option<String>,
    },
    Ecc(EccErrors),
    Remap(RemapFault),
    Retired(RetiredFault),
    UnrepairableMemory,
    /// A repair waits for a reset.
    RepairPending {
        channel: bool,
        /// Whether a texture processing cluster (TPC) needs the repair.
        tpc: bool,
    },
    /// The `InfoROM` checksum is invalid.
    InforomInvalid,
    /// The VBIOS has this version.
    Vbios(String),
    /// Sets the memory in use besides that of the listed processes, in bytes.
    MemoryUsed(u64),
    /// Sets the active throttle reasons. An empty list ends throttling.
    Throttle(Vec<ThrottleReason>),
    /// Sets the clocks without a throttle reason.
    Clocks {
        sm_mhz: Option<u32>,
        memory_mhz: Option<u32>,
    },
    LinkDown(usize),
    LinkUp(usize),
    LinkErrors {
        link: usize,
        errors: LinkErrors,
    },
    /// The PCIe link is slower or narrower than possible, or counts errors.
    Pcie(PcieFault),
    Fabric(FabricFault),
    /// The GPU falls off the bus, so every NVML call about it returns `GPU_IS_LOST`.
    Lost {
        /// Whether the kernel no longer lists the device either.
        gone: bool,
    },
    /// Sets NVML's recovery action.
    RecoveryAction(u32),
    Temperature {
        gpu_c: i32,
        memory_c: Option<i32>,
    },
    /// Sets the power draw, in milliwatts.
    Power(u32),
    /// Sets the power limit, in milliwatts.
    PowerLimit(u32),
    /// Changes settings as an administrator would.
    Settings(SettingsChange),
    /// Sets the utilisation, in percent.
    Utilisation {
        gpu: u32,
        memory: u32,
    },
    Activity(Activity),
    Process(Process),
    /// Removes the process with this PID.
    ProcessEnds(u32),
    Call(CallFault),
    /// Resets the GPU, as `nvidia-smi --gpu-reset` does.
    Reset,
    /// Clears all faults above. Lifetime counters stay.
    Clear,
}

/// Why a fault cannot apply to the GPU.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FaultError {
    #[error("there is no NVLink {link}; the GPU has {count} links")]
    Link { link: usize, count: usize },
    #[error("`{name}` has no row remapping")]
    NoRemap { name: String },
    #[error("`{name}` retires no pages; it remaps rows")]
    NoRetirement { name: String },
    #[error("`{name}` does not support MIG")]
    NoMig { name: String },
    #[error("`{name}` is not part of an NVSwitch fabric on this node")]
    NoFabric { name: String },
    #[error("{value} is not a percentage")]
    Percent { value: u32 },
    #[error("{share} is not a share from 0 to 1")]
    Share { share: String },
    #[error("the power limit must be between {min_w} W and {max_w} W")]
    PowerLimit { min_w: u32, max_w: u32 },
    #[error(
        "PCIe generation {generation} x{width} is not within 1 x1 and the maximum of generation {max_generation} x{max_width}"
    )]
    Pcie { generation: u32, width: u32, max_generation: u32, max_width: u32 },
    #[error(
        "{value} is not a recovery action: 0 none, 1 reset, 2 reboot, 3 drain peer-to-peer, 4 drain and reset, \
         5 recover IMEX domain, 6 bus reset, 7 system reboot"
    )]
    RecoveryAction { value: u32 },
    #[error("the GPU is in use by {processes} processes")]
    InUse { processes: usize },
    #[error("the GPU has fallen off the bus and needs a node reboot")]
    OffTheBus,
    #[error("`{call}` is not the name of an NVML function")]
    Call { call: String },
}

/// Applies the fault at `now_unix_ms`. Returns the driver's kernel log records.
pub fn apply(
    gpu: &mut SimGpu,
    fault: &Fault,
    now_unix_ms: u64,
) -> Result<Vec<KernelRecord>, FaultError> {
    match fault {
        Fault::Xid { number, message } => return Ok(xid::xid(gpu, *number, message.as_deref())),
        Fault::Ecc(errors) => memory::ecc(gpu, errors),
        Fault::Remap(fault) => memory::remap(gpu, fault)?,
        Fault::Retired(fault) => memory::retire(gpu, fault)?,
        Fault::UnrepairableMemory => gpu.ecc.unrepairable_memory = true,
        Fault::RepairPending { channel, tpc } => {
            gpu.ecc.channel_repair_pending |= channel;
            gpu.ecc.tpc_repair_pending |= tpc;
        }
        Fault::InforomInvalid => gpu.board.inforom_valid = false,
        Fault::Vbios(version) => gpu.board.vbios_override = Some(version.clone()),
        Fault::MemoryUsed(bytes) => gpu.memory.used_bytes = *bytes,
        Fault::Throttle(reasons) => {
            activity::throttle(&mut gpu.clock_events, reasons.clone(), now_unix_ms);
        }
        Fault::Clocks { sm_mhz, memory_mhz } => {
            let now = &mut gpu.clocks.current_mhz;
            now.sm = sm_mhz.unwrap_or(now.sm);
            now.graphics = sm_mhz.unwrap_or(now.graphics);
            now.memory = memory_mhz.unwrap_or(now.memory);
        }
        Fault::LinkDown(link) => {
            // The rate of each link changes with the number of active links, so add the traffic up
            // to now first.
            gpu.nvlink.accumulate_traffic(now_unix_ms);
            links::find_link(gpu, *link)?.active = false;
        }
        Fault::LinkUp(link) => {
            gpu.nvlink.accumulate_traffic(now_unix_ms);
            links::bring_up(gpu, *link)?;
        }
        Fault::LinkErrors { link, errors } => links::link_errors(gpu, *link, errors)?,
        Fault::Pcie(fault) => return links::pcie(gpu, fault),
        Fault::Fabric(fault) => links::fabric(gpu, fault)?,
        Fault::Lost { gone } => (gpu.lost, gpu.gone) = (true, gpu.gone || *gone),
        Fault::RecoveryAction(value) if *value <= 7 => gpu.recovery_action = *value,
        Fault::RecoveryAction(value) => return Err(FaultError::RecoveryAction { value: *value }),
        Fault::Temperature { gpu_c, memory_c } => {
            gpu.temperature.gpu_c = *gpu_c;
            gpu.temperature.memory_c = memory_c.or(gpu.temperature.memory_c);
        }
        Fault::Power(milliwatts) => activity::power(gpu, *milliwatts, now_unix_ms),
        Fault::PowerLimit(milliwatts) => activity::power_limit(gpu, *milliwatts)?,
        Fault::Settings(settings) => settings::change(gpu, settings)?,
        Fault::Utilisation { gpu: busy, memory } => {
            activity::utilisation(gpu, *busy, *memory, now_unix_ms)?;
        }
        Fault::Activity(activity) => activity::activity(gpu, activity, now_unix_ms)?,
        Fault::Process(process) => {
            gpu.processes.retain(|other| other.pid != process.pid);
            gpu.processes.push(Process { started_unix_ms: now_unix_ms, ..process.clone() });
        }
        Fault::ProcessEnds(pid) => gpu.processes.retain(|other| other.pid != *pid),
        Fault::Call(call) => {
            validate_call(&call.call)?;
            gpu.faults.retain(|other| other.call != call.call);
            gpu.faults.push(call.clone());
        }
        Fault::Reset => reset(gpu, now_unix_ms)?,
        Fault::Clear => clear(gpu, now_unix_ms),
    }
    Ok(Vec::new())
}

fn add(counter: &mut u64, more: u64) {
    *counter = counter.saturating_add(more);
}

/// Applies the effect of a node reboot: the GPU is back on the bus and idle, PCIe error counters
/// restart, and injected hangs end. Other injected call faults stay.
fn apply_reboot(gpu: &mut SimGpu, now_unix_ms: u64) {
    (gpu.lost, gpu.gone) = (false, false);
    gpu.faults.retain(|fault| !fault.hangs());
    gpu.recovery_action = 0;
    gpu.processes.clear();
    gpu.events.clear();
    gpu.memory.used_bytes = 0;
    (gpu.pcie.replays, gpu.pcie.errors) = (0, crate::gpu::PcieErrors::default());
    activity::set_idle(gpu, now_unix_ms);
}

/// Resets the GPU: pending remaps and modes take effect, volatile counters restart, and the
/// recovery action becomes none. Injected call faults stay, except `RESET_REQUIRED`.
fn reset(gpu: &mut SimGpu, now_unix_ms: u64) -> Result<(), FaultError> {
    if gpu.lost || gpu.gone {
        return Err(FaultError::OffTheBus);
    }
    if !gpu.processes.is_empty() {
        return Err(FaultError::InUse { processes: gpu.processes.len() });
    }
    gpu.resets = gpu.resets.saturating_add(1);
    gpu.recovery_action = 0;
    gpu.faults.retain(|fault| !fault.requires_reset());
    gpu.memory.used_bytes = 0;
    gpu.ecc.volatile = crate::gpu::EccCounts::default();
    gpu.ecc.enabled = gpu.ecc.pending;
    (gpu.ecc.channel_repair_pending, gpu.ecc.tpc_repair_pending) = (false, false);
    gpu.remap.pending = false;
    if let Some(pages) = gpu.retired_pages.as_mut() {
        pages.pending = false;
    }
    if let Some(mig) = gpu.mig.as_mut() {
        mig.enabled = mig.pending;
    }
    activity::set_idle(gpu, now_unix_ms);
    Ok(())
}

fn clear(gpu: &mut SimGpu, now_unix_ms: u64) {
    (gpu.lost, gpu.gone) = (false, false);
    gpu.recovery_action = 0;
    gpu.faults.clear();
    gpu.processes.clear();
    gpu.memory.used_bytes = 0;
    gpu.board.inforom_valid = true;
    gpu.board.vbios_override = None;
    gpu.ecc.volatile = crate::gpu::EccCounts::default();
    gpu.ecc.unrepairable_memory = false;
    gpu.ecc.sram_threshold_exceeded = false;
    (gpu.ecc.channel_repair_pending, gpu.ecc.tpc_repair_pending) = (false, false);
    settings::restore_defaults(gpu);
    memory::restore_defaults(gpu);
    activity::set_idle(gpu, now_unix_ms);
    links::restore_defaults(gpu);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builder::{NodeSpec, build_node};

    fn h100() -> SimGpu {
        let facts = farrier_facts::FactSet::embedded();
        build_node(facts, &NodeSpec { now_unix_ms: 1_000, ..NodeSpec::new("H100-SXM5-80GB", 8) })
            .unwrap()
            .1
            .remove(0)
    }

    #[test]
    fn xid_adds_an_event_and_a_kernel_record() {
        let mut gpu = h100();
        let lines = apply(&mut gpu, &Fault::Xid { number: 79, message: None }, 0).unwrap();
        assert!(lines[0].text.starts_with("NVRM: Xid (PCI:0000:1b:00): 79, "), "{lines:?}");
        assert!(gpu.lost);
        assert_eq!(
            gpu.events.last().map(|event| (event.sequence, event.kind, event.data)),
            Some((1, 8, 79))
        );
        apply(&mut gpu, &Fault::Xid { number: 31, message: None }, 0).unwrap();
        assert_eq!(gpu.events.last().map(|event| event.sequence), Some(2));
    }

    #[test]
    fn event_queue_is_bounded_and_sequence_continues() {
        let mut gpu = h100();
        for _ in 0..300 {
            apply(&mut gpu, &Fault::Xid { number: 31, message: None }, 0).unwrap();
        }
        assert_eq!(gpu.events.len(), 128);
        assert_eq!(gpu.events.last().unwrap().sequence, 300);
    }

    #[test]
    fn clear_reverts_all_faults() {
        let before = h100();
        let mut gpu = before.clone();
        for fault in [
            Fault::Lost { gone: true },
            Fault::LinkDown(3),
            Fault::RecoveryAction(2),
            Fault::Pcie(PcieFault {
                generation: Some(3),
                width: Some(8),
                replays: 7,
                aer_correctable: 3,
                aer_non_fatal: 2,
                aer_fatal: 1,
                port_error: Some(PortError::LinkDown),
            }),
            Fault::Temperature { gpu_c: 91, memory_c: Some(99) },
            Fault::Utilisation { gpu: 100, memory: 80 },
            Fault::Remap(RemapFault {
                uncorrected: 3,
                failed: true,
                banks_low: 2,
                banks_none: 1,
                ..RemapFault::default()
            }),
            Fault::UnrepairableMemory,
            Fault::InforomInvalid,
            Fault::Vbios("1".to_owned()),
            Fault::RepairPending { channel: true, tpc: true },
            Fault::Settings(SettingsChange {
                persistence: Some(false),
                compute: Some(3),
                ecc: Some(false),
                mig: Some(true),
                application_graphics_mhz: Some(1200),
            }),
            Fault::MemoryUsed(1 << 30),
            Fault::Clocks { sm_mhz: Some(1200), memory_mhz: Some(1593) },
            Fault::LinkErrors {
                link: 4,
                errors: LinkErrors { symbol: 2, speed_mb_per_s: Some(1), ..LinkErrors::default() },
            },
            Fault::Fabric(FabricFault { health_mask: Some(0x1a9), ..FabricFault::default() }),
            Fault::PowerLimit(400_000),
            Fault::Activity(Activity { fp64: Some(0.5), ..Activity::default() }),
            Fault::Throttle(vec![ThrottleReason::HwThermal]),
            Fault::Call(CallFault {
                call: "nvmlDeviceGetName".to_owned(),
                effect: CallEffect::Error(999),
            }),
        ] {
            apply(&mut gpu, &fault, 2_000).unwrap();
        }
        apply(&mut gpu, &Fault::Clear, 3_000).unwrap();
        assert_eq!(
            gpu.clock_events.throttled_us.hw_thermal, 1_000_000,
            "throttled time stays counted"
        );
        gpu.clock_events = before.clock_events.clone();
        gpu.power = before.power.clone();
        assert_eq!(gpu.pcie.transmitted_bytes, 2 * 1_087_000, "so does traffic");
        (gpu.pcie.transmitted_bytes, gpu.pcie.received_bytes) = (0, 0);
        (gpu.pcie.traffic_at_unix_ms, gpu.nvlink.traffic_at_unix_ms) = (1_000, 1_000);
        assert!(gpu == before, "{gpu:#?}");
    }

    #[test]
    fn reset_clears_volatile_state_and_needs_an_idle_gpu() {
        let mut gpu = h100();
        for number in [48, 63, 154] {
            apply(&mut gpu, &Fault::Xid { number, message: None }, 0).unwrap();
        }
        let reset_required =
            NVML_ERRORS.iter().find(|(_, name)| *name == "RESET_REQUIRED").unwrap().0;
        for (call, code) in [("*", reset_required), ("nvmlDeviceGetName", 999)] {
            let call = CallFault { call: call.to_owned(), effect: CallEffect::Error(code) };
            apply(&mut gpu, &Fault::Call(call), 0).unwrap();
        }
        gpu.mig.as_mut().unwrap().pending = true;
        apply(&mut gpu, &Fault::Reset, 1_000).unwrap();
        assert_eq!((gpu.recovery_action, gpu.remap.pending, gpu.resets), (0, false, 1));
        assert_eq!(gpu.ecc.volatile.dram_uncorrected, 0);
        assert_eq!(gpu.ecc.aggregate.dram_uncorrected, 1, "lifetime counter");
        assert_eq!(gpu.remap.uncorrected_rows, 1);
        assert!(gpu.mig.as_ref().unwrap().enabled);
        assert_eq!(gpu.faults.len(), 1);
        let mut busy = gpu.clone();
        busy.processes.push(Process {
            pid: 7,
            name: "python".to_owned(),
            kind: crate::gpu::ContextKind::Compute,
            used_bytes: 0,
            sm_percent: 0,
            memory_percent: 0,
            command: String::new(),
            cgroup: String::new(),
            started_unix_ms: 0,
        });
        assert_eq!(apply(&mut busy, &Fault::Reset, 0), Err(FaultError::InUse { processes: 1 }));
        apply(&mut gpu, &Fault::Lost { gone: false }, 0).unwrap();
        assert_eq!(apply(&mut gpu, &Fault::Reset, 0), Err(FaultError::OffTheBus));
    }

    #[test]
    fn unsupported_faults_are_rejected() {
        let mut gpu = h100();
        assert_eq!(
            apply(&mut gpu, &Fault::LinkDown(18), 0),
            Err(FaultError::Link { link: 18, count: 18 })
        );
        assert!(apply(&mut gpu, &Fault::Utilisation { gpu: 101, memory: 0 }, 0).is_err());
        assert!(
            apply(
                &mut gpu,
                &Fault::Pcie(PcieFault { generation: Some(6), ..PcieFault::default() }),
                0
            )
            .is_err()
        );
        assert!(validate_call("nvmlDeviceGetName").is_ok());
        assert!(validate_call("rm -rf").is_err());
    }
}
