//! What can go wrong with a simulated node.
//!
//! [`apply`] changes a GPU as the fault would and returns what the driver would print in the kernel log;
//! [`apply_to_host`] does the same for the rest of the node. Both are pure; [`crate::NodeDir`] writes.

mod activity;
mod call;
mod host;
mod links;
mod memory;
mod settings;
mod xid;

use crate::gpu::{Gpu, Process, ThrottleReason};
use crate::rootfs::KernelRecord;

pub use activity::Activity;
pub use call::{
    CallEffect, CallFault, FIELD_PREFIX, NVML_ERRORS, error_code, is_node_scoped, validate_call,
};
pub use host::{
    BlockedThread, HostChange, HostFault, HostFaultError, NicChange, apply as apply_to_host,
};
pub use links::{BitErrorRate, FabricFault, LinkErrors, PcieFault};
pub use memory::{EccErrors, RemapFault, RetiredFault};
pub use settings::SettingsChange;

/// Something that happens to one GPU.
#[derive(Debug, Clone, PartialEq)]
pub enum Fault {
    /// The driver reports an Xid.
    Xid {
        /// Its number.
        number: u32,
        /// What follows the number in the kernel log; the driver's usual words without it.
        message: Option<String>,
    },
    /// Memory errors are counted.
    Ecc(EccErrors),
    /// Rows are taken out of service.
    Remap(RemapFault),
    /// Pages are taken out of service.
    Retired(RetiredFault),
    /// Some memory cannot be repaired.
    UnrepairableMemory,
    /// A repair waits for a reset.
    RepairPending {
        /// Of a memory channel.
        channel: bool,
        /// Of a texture processing cluster.
        tpc: bool,
    },
    /// The checksum of the `InfoROM` is wrong.
    InforomInvalid,
    /// Memory in use besides that of the processes.
    MemoryUsed(u64),
    /// Clocks are held down from now on. No reasons: they no longer are.
    Throttle(Vec<ThrottleReason>),
    /// Clocks are what they are, and nobody says why.
    Clocks {
        /// Of the multiprocessors.
        sm_mhz: Option<u32>,
        /// Of the memory.
        memory_mhz: Option<u32>,
    },
    /// A link goes down.
    LinkDown(usize),
    /// It comes up again.
    LinkUp(usize),
    /// Errors on a link.
    LinkErrors {
        /// Which link.
        link: usize,
        /// How many of each kind.
        errors: LinkErrors,
    },
    /// The `PCIe` link is narrower or slower than it could be, or counts errors.
    Pcie(PcieFault),
    /// The fabric is not as it should be.
    Fabric(FabricFault),
    /// The GPU falls off the bus: every call about it says that it is lost.
    Lost {
        /// The kernel no longer lists it either.
        gone: bool,
    },
    /// The driver asks for a recovery action, by NVML's number.
    RecoveryAction(u32),
    /// How warm it is.
    Temperature {
        /// The GPU.
        gpu_c: i32,
        /// The memory.
        memory_c: Option<i32>,
    },
    /// What it draws, in milliwatts.
    Power(u32),
    /// What an administrator allows it, in milliwatts.
    PowerLimit(u32),
    /// Somebody changed settings.
    Settings(SettingsChange),
    /// How busy it is, in per cent.
    Utilisation {
        /// Multiprocessors.
        gpu: u32,
        /// Memory.
        memory: u32,
    },
    /// How busy its parts are.
    Activity(Activity),
    /// A process holds memory.
    Process(Process),
    /// A process lets go.
    ProcessEnds(u32),
    /// A call fails or hangs.
    Call(CallFault),
    /// Somebody resets it, as `nvidia-smi --gpu-reset` does.
    Reset,
    /// All of the above is put right; counters of the card's life stay.
    Clear,
}

/// Why a fault does not fit the GPU.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FaultError {
    /// There is no such link.
    #[error("there is no NVLink {link}: the GPU has {count}")]
    Link {
        /// Asked for.
        link: usize,
        /// There are.
        count: usize,
    },
    /// The part has no row remapping.
    #[error("`{name}` has no row remapping")]
    NoRemap {
        /// The part.
        name: String,
    },
    /// The part retires no pages.
    #[error("`{name}` retires no pages: it remaps rows")]
    NoRetirement {
        /// The part.
        name: String,
    },
    /// The part cannot be partitioned.
    #[error("`{name}` has no MIG")]
    NoMig {
        /// The part.
        name: String,
    },
    /// The part is in no fabric.
    #[error("`{name}` is in no fabric here")]
    NoFabric {
        /// The part.
        name: String,
    },
    /// More than all.
    #[error("{value} is not a percentage")]
    Percent {
        /// Asked for.
        value: u32,
    },
    /// Less than none or more than all.
    #[error("{share} is not a share: from 0 to 1")]
    Share {
        /// Asked for.
        share: String,
    },
    /// The card does not take it.
    #[error("the card takes a power limit of {min_w} W to {max_w} W")]
    PowerLimit {
        /// The lowest.
        min_w: u32,
        /// The highest.
        max_w: u32,
    },
    /// The link cannot do that.
    #[error(
        "`PCIe` generation {generation} x{width} is more than the card's generation {max_generation} x{max_width}"
    )]
    Pcie {
        /// Asked for.
        generation: u32,
        /// Asked for.
        width: u32,
        /// Of the card.
        max_generation: u32,
        /// Of the card.
        max_width: u32,
    },
    /// Not a number of NVML's.
    #[error(
        "{value} is not a recovery action: 0 none, 1 reset, 2 reboot, 3 drain peer-to-peer, 4 drain and reset"
    )]
    RecoveryAction {
        /// Asked for.
        value: u32,
    },
    /// Somebody uses it.
    #[error("it is in use by {processes} processes")]
    InUse {
        /// How many.
        processes: usize,
    },
    /// It does not answer on the bus.
    #[error("it has fallen off the bus: only a reboot of the node helps")]
    OffTheBus,
    /// Not the name of a function.
    #[error("`{call}` is not the name of an NVML function")]
    Call {
        /// Asked for.
        call: String,
    },
}

/// Lets the fault happen at `now`. Returns the records that the driver writes to the kernel log.
pub fn apply(
    gpu: &mut Gpu,
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
            // What the others carried up to now is theirs.
            gpu.nvlink.accumulate_traffic(now_unix_ms);
            links::find_link(gpu, *link)?.active = false;
        }
        Fault::LinkUp(link) => {
            gpu.nvlink.accumulate_traffic(now_unix_ms);
            links::find_link(gpu, *link)?.active = true;
        }
        Fault::LinkErrors { link, errors } => links::link_errors(gpu, *link, errors)?,
        Fault::Pcie(fault) => links::pcie(gpu, fault)?,
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

/// What a restart of the node does to a GPU: it is on the bus again if it can be, nothing runs on it, and its driver does
/// not hang. Calls that fail go on failing.
fn apply_reboot(gpu: &mut Gpu, now_unix_ms: u64) {
    (gpu.lost, gpu.gone) = (false, false);
    gpu.faults.retain(|fault| !fault.hangs());
    gpu.recovery_action = 0;
    gpu.processes.clear();
    gpu.events.clear();
    gpu.memory.used_bytes = 0;
    (gpu.pcie.replays, gpu.pcie.errors) = (0, crate::gpu::PcieErrors::default());
    activity::set_idle(gpu, now_unix_ms);
}

/// What a reset does: rows that waited are remapped, settings that waited take effect, what was counted since the driver was
/// loaded is forgotten, and the driver asks for nothing any more. Calls that fail go on failing, but for those that wait for it.
fn reset(gpu: &mut Gpu, now_unix_ms: u64) -> Result<(), FaultError> {
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

fn clear(gpu: &mut Gpu, now_unix_ms: u64) {
    (gpu.lost, gpu.gone) = (false, false);
    gpu.recovery_action = 0;
    gpu.faults.clear();
    gpu.processes.clear();
    gpu.memory.used_bytes = 0;
    gpu.board.inforom_valid = true;
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

    fn h100() -> Gpu {
        let facts = farrier_facts::FactSet::embedded();
        build_node(facts, &NodeSpec { now_unix_ms: 1_000, ..NodeSpec::new("H100-SXM5-80GB", 8) })
            .unwrap()
            .1
            .remove(0)
    }

    #[test]
    fn an_xid_is_an_event_and_a_line() {
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
    fn events_are_bounded_and_keep_counting() {
        let mut gpu = h100();
        for _ in 0..300 {
            apply(&mut gpu, &Fault::Xid { number: 31, message: None }, 0).unwrap();
        }
        assert_eq!(gpu.events.len(), 128);
        assert_eq!(gpu.events.last().unwrap().sequence, 300);
    }

    #[test]
    fn clear_puts_right_what_faults_did() {
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
            "time that was lost stays counted"
        );
        gpu.clock_events = before.clock_events.clone();
        gpu.power = before.power.clone();
        assert_eq!(gpu.pcie.transmitted_bytes, 2 * 1_087_000, "so does traffic");
        (gpu.pcie.transmitted_bytes, gpu.pcie.received_bytes) = (0, 0);
        (gpu.pcie.traffic_at_unix_ms, gpu.nvlink.traffic_at_unix_ms) = (1_000, 1_000);
        assert!(gpu == before, "{gpu:#?}");
    }

    #[test]
    fn a_reset_mends_what_a_reset_mends_and_needs_a_gpu_that_is_idle() {
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
        assert_eq!(gpu.ecc.aggregate.dram_uncorrected, 1, "the card's life");
        assert_eq!(gpu.remap.uncorrected_rows, 1);
        assert!(gpu.mig.as_ref().unwrap().enabled);
        assert_eq!(gpu.faults.len(), 1);
        let mut busy = gpu.clone();
        busy.processes.push(Process {
            pid: 7,
            name: "python".to_owned(),
            kind: crate::gpu::ProcessKind::Compute,
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
    fn what_the_part_cannot_is_refused() {
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
