//! What can go wrong with a simulated GPU.
//!
//! [`apply`] changes the GPU as the fault would and returns what the driver would print in the kernel log. It
//! is pure; [`crate::NodeDir`] writes.

use serde::{Deserialize, Serialize};

use crate::gpu::{ClockEvents, EVENT_XID, Gpu, Process, Reason};

/// A call that fails or hangs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CallFault {
    /// NVML's name of the function. Without `_v2` and the like every version of it; `*` is all functions.
    pub call: String,
    /// What the call does instead.
    pub effect: Effect,
}

/// What a call does instead of answering.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Effect {
    /// Returns this code of NVML's.
    Error(u32),
    /// Blocks for so long and then answers.
    HangMs(u64),
    /// Never returns.
    HangForever,
}

impl CallFault {
    /// Whether `call` is meant.
    pub fn is_about(&self, call: &str) -> bool {
        self.call == "*" || self.call == call || self.call == without_version(call)
    }
}

/// A name without its `_v2`.
fn without_version(call: &str) -> &str {
    match call.rsplit_once("_v") {
        Some((name, version)) if version.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => call,
    }
}

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
    /// Memory errors are counted, both since the driver was loaded and in the card's life.
    Ecc {
        /// In memory, put right.
        corrected: u64,
        /// In memory, not put right.
        uncorrected: u64,
        /// In caches and register files, put right.
        sram_corrected: u64,
        /// In caches and register files, not put right.
        sram_uncorrected: u64,
        /// So many in caches and register files that the part should be replaced.
        sram_threshold: bool,
    },
    /// Rows are taken out of service.
    Remap {
        /// For correctable errors.
        corrected: u32,
        /// For uncorrectable errors.
        uncorrected: u32,
        /// More wait for a reset.
        pending: bool,
        /// A remap failed.
        failed: bool,
    },
    /// Clocks are held down from now on. No reasons: they no longer are.
    Throttle(Vec<Reason>),
    /// A link goes down.
    LinkDown(usize),
    /// Errors on a link.
    LinkErrors {
        /// Which link.
        link: usize,
        /// Packets sent again.
        replay: u64,
        /// Times that it was trained anew.
        recovery: u64,
        /// Broken data.
        crc: u64,
    },
    /// The `PCIe` link is narrower or slower than it could be, or packets were sent again.
    Pcie {
        /// Generation now.
        generation: Option<u32>,
        /// Lanes now.
        width: Option<u32>,
        /// More packets sent again.
        replays: u32,
    },
    /// The GPU falls off the bus: every call about it says that it is lost.
    Lost,
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
    /// How busy it is, in per cent.
    Utilisation {
        /// Multiprocessors.
        gpu: u32,
        /// Memory.
        memory: u32,
    },
    /// A process holds memory.
    Process(Process),
    /// A call fails or hangs.
    Call(CallFault),
    /// All of the above is put right; settings and counters of the card's life stay.
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
    /// More than all.
    #[error("{value} is not a percentage")]
    Percent {
        /// Asked for.
        value: u32,
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
    /// Not the name of a function.
    #[error("`{call}` is not the name of an NVML function")]
    Call {
        /// Asked for.
        call: String,
    },
}

/// Lets the fault happen at `now`. Returns the lines that the driver writes to the kernel log.
pub fn apply(gpu: &mut Gpu, fault: &Fault, now_unix_ms: u64) -> Result<Vec<String>, FaultError> {
    match fault {
        Fault::Xid { number, message } => return Ok(xid(gpu, *number, message.as_deref())),
        Fault::Ecc { corrected, uncorrected, sram_corrected, sram_uncorrected, sram_threshold } => {
            for counts in [&mut gpu.ecc.volatile, &mut gpu.ecc.aggregate] {
                add(&mut counts.dram_corrected, *corrected);
                add(&mut counts.dram_uncorrected, *uncorrected);
                add(&mut counts.sram_corrected, *sram_corrected);
                add(&mut counts.sram_uncorrected_secded, *sram_uncorrected);
            }
            gpu.ecc.sram_threshold_exceeded |= sram_threshold;
        }
        Fault::Remap { corrected, uncorrected, pending, failed } => {
            remap(gpu, *corrected, *uncorrected, *pending, *failed)?;
        }
        Fault::Throttle(reasons) => throttle(&mut gpu.clock_events, reasons.clone(), now_unix_ms),
        Fault::LinkDown(link) => link_of(gpu, *link)?.active = false,
        Fault::LinkErrors { link, replay, recovery, crc } => {
            let link = link_of(gpu, *link)?;
            add(&mut link.replay_errors, *replay);
            add(&mut link.recovery_errors, *recovery);
            add(&mut link.crc_data_errors, *crc);
        }
        Fault::Pcie { generation, width, replays } => pcie(gpu, *generation, *width, *replays)?,
        Fault::Lost => gpu.lost = true,
        Fault::RecoveryAction(value) if *value <= 7 => gpu.recovery_action = *value,
        Fault::RecoveryAction(value) => return Err(FaultError::RecoveryAction { value: *value }),
        Fault::Temperature { gpu_c, memory_c } => {
            gpu.temperature.gpu_c = *gpu_c;
            gpu.temperature.memory_c = memory_c.or(gpu.temperature.memory_c);
        }
        Fault::Power(milliwatts) => power(gpu, *milliwatts, now_unix_ms),
        Fault::Utilisation { gpu: busy, memory } => utilisation(gpu, *busy, *memory)?,
        Fault::Process(process) => {
            gpu.processes.retain(|other| other.pid != process.pid);
            gpu.processes.push(process.clone());
        }
        Fault::Call(call) => {
            check_call(&call.call)?;
            gpu.faults.retain(|other| other.call != call.call);
            gpu.faults.push(call.clone());
        }
        Fault::Clear => clear(gpu, now_unix_ms),
    }
    Ok(Vec::new())
}

/// Whether a fault may name this function.
pub fn check_call(call: &str) -> Result<(), FaultError> {
    let named = call
        .strip_prefix("nvml")
        .is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_uppercase()));
    let plain = call.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    if call == "*" || (named && plain) {
        Ok(())
    } else {
        Err(FaultError::Call { call: call.to_owned() })
    }
}

/// Whether a call is about the node and not about one of its GPUs, so that a fault of it belongs there.
pub fn is_of_node(call: &str) -> bool {
    !call.starts_with("nvmlDevice") && !call.starts_with("nvmlGpm") && call != "*"
        || without_version(call) == "nvmlDeviceGetCount"
        || matches!(call, "nvmlGpmSampleAlloc" | "nvmlGpmSampleFree" | "nvmlGpmMetricsGet")
}

/// The number of a return code of NVML's, given as such or by its name without `NVML_ERROR_`.
pub fn error_code(name: &str) -> Option<u32> {
    let wanted = name.to_ascii_uppercase().replace('-', "_");
    let wanted = wanted.strip_prefix("NVML_ERROR_").unwrap_or(&wanted);
    match wanted.parse() {
        Ok(number) => ERRORS.iter().any(|(known, _)| *known == number).then_some(number),
        Err(_) => ERRORS.iter().find(|(_, name)| *name == wanted).map(|(number, _)| *number),
    }
}

/// NVML's return codes.
pub const ERRORS: [(u32, &str); 31] = [
    (1, "UNINITIALIZED"),
    (2, "INVALID_ARGUMENT"),
    (3, "NOT_SUPPORTED"),
    (4, "NO_PERMISSION"),
    (5, "ALREADY_INITIALIZED"),
    (6, "NOT_FOUND"),
    (7, "INSUFFICIENT_SIZE"),
    (8, "INSUFFICIENT_POWER"),
    (9, "DRIVER_NOT_LOADED"),
    (10, "TIMEOUT"),
    (11, "IRQ_ISSUE"),
    (12, "LIBRARY_NOT_FOUND"),
    (13, "FUNCTION_NOT_FOUND"),
    (14, "CORRUPTED_INFOROM"),
    (15, "GPU_IS_LOST"),
    (16, "RESET_REQUIRED"),
    (17, "OPERATING_SYSTEM"),
    (18, "LIB_RM_VERSION_MISMATCH"),
    (19, "IN_USE"),
    (20, "MEMORY"),
    (21, "NO_DATA"),
    (22, "VGPU_ECC_NOT_SUPPORTED"),
    (23, "INSUFFICIENT_RESOURCES"),
    (24, "FREQ_NOT_SUPPORTED"),
    (25, "ARGUMENT_VERSION_MISMATCH"),
    (26, "DEPRECATED"),
    (27, "NOT_READY"),
    (28, "GPU_NOT_FOUND"),
    (29, "INVALID_STATE"),
    (30, "RESET_TYPE_NOT_SUPPORTED"),
    (999, "UNKNOWN"),
];

fn add(counter: &mut u64, more: u64) {
    *counter = counter.saturating_add(more);
}

fn link_of(gpu: &mut Gpu, link: usize) -> Result<&mut crate::gpu::Link, FaultError> {
    let count = gpu.nvlink.links.len();
    gpu.nvlink.links.get_mut(link).ok_or(FaultError::Link { link, count })
}

fn remap(
    gpu: &mut Gpu,
    corrected: u32,
    uncorrected: u32,
    pending: bool,
    failed: bool,
) -> Result<(), FaultError> {
    if !gpu.remap.supported {
        return Err(FaultError::NoRemap { name: gpu.name.clone() });
    }
    let remap = &mut gpu.remap;
    remap.corrected_rows = remap.corrected_rows.saturating_add(corrected);
    remap.uncorrected_rows = remap.uncorrected_rows.saturating_add(uncorrected);
    remap.pending |= pending;
    remap.failed |= failed;
    // Each remapped row is taken as one of a bank that had all its spares; a bank whose remap failed has none.
    let moved = corrected.saturating_add(uncorrected).min(remap.banks.max);
    remap.banks.max -= moved;
    if failed {
        remap.banks.none = remap.banks.none.saturating_add(moved.max(1));
    } else {
        remap.banks.high = remap.banks.high.saturating_add(moved);
    }
    Ok(())
}

fn throttle(events: &mut ClockEvents, reasons: Vec<Reason>, now_unix_ms: u64) {
    events.held_us = events.held_at(now_unix_ms);
    events.since_unix_ms = now_unix_ms;
    events.reasons = reasons;
}

fn pcie(
    gpu: &mut Gpu,
    generation: Option<u32>,
    width: Option<u32>,
    replays: u32,
) -> Result<(), FaultError> {
    let link = &mut gpu.pcie;
    let (generation, width) = (generation.unwrap_or(link.generation), width.unwrap_or(link.width));
    if generation > link.max_generation || width > link.max_width || generation == 0 || width == 0 {
        let (max_generation, max_width) = (link.max_generation, link.max_width);
        return Err(FaultError::Pcie { generation, width, max_generation, max_width });
    }
    (link.generation, link.width) = (generation, width);
    link.replays = link.replays.saturating_add(replays);
    link.errors.correctable = link.errors.correctable.saturating_add(replays);
    Ok(())
}

fn power(gpu: &mut Gpu, milliwatts: u32, now_unix_ms: u64) {
    gpu.power.energy_mj = gpu.power.energy_at(now_unix_ms);
    gpu.power.energy_at_unix_ms = now_unix_ms;
    gpu.power.average_mw = milliwatts;
    gpu.power.instant_mw = milliwatts;
}

fn utilisation(gpu: &mut Gpu, busy: u32, memory: u32) -> Result<(), FaultError> {
    if let Some(value) = [busy, memory].into_iter().find(|value| *value > 100) {
        return Err(FaultError::Percent { value });
    }
    let now = &mut gpu.utilisation;
    now.gpu_percent = busy;
    now.memory_percent = memory;
    // A training step keeps most multiprocessors busy and its tensor cores about half of the time.
    now.sm_percent = f64::from(busy) * 0.9;
    now.sm_occupancy_percent = f64::from(busy) * 0.4;
    now.tensor_percent = f64::from(busy) * 0.5;
    now.fp32_percent = f64::from(busy) * 0.1;
    now.dram_percent = f64::from(memory);
    let clocks = &mut gpu.clocks;
    let rate = if busy == 0 { clocks.graphics_floor_mhz } else { clocks.default_graphics_mhz };
    let rate = clocks
        .locked_graphics_mhz
        .map_or(rate, |range| rate.clamp(range.min, range.max.max(range.min)));
    (clocks.current_mhz.graphics, clocks.current_mhz.sm) = (rate, rate);
    gpu.clock_events.reasons.retain(|reason| *reason != Reason::GpuIdle);
    if busy == 0 && gpu.clock_events.reasons.is_empty() {
        gpu.clock_events.reasons.push(Reason::GpuIdle);
    }
    Ok(())
}

fn clear(gpu: &mut Gpu, now_unix_ms: u64) {
    gpu.lost = false;
    gpu.recovery_action = 0;
    gpu.faults.clear();
    gpu.processes.clear();
    gpu.ecc.volatile = crate::gpu::EccCounts::default();
    gpu.remap.pending = false;
    for link in &mut gpu.nvlink.links {
        // A link that never had a peer stays down.
        link.active = link.remote != crate::gpu::Remote::Unknown;
        (link.replay_errors, link.recovery_errors, link.crc_flit_errors, link.crc_data_errors) =
            (0, 0, 0, 0);
    }
    (gpu.pcie.generation, gpu.pcie.width) = (gpu.pcie.max_generation, gpu.pcie.max_width);
    throttle(&mut gpu.clock_events, Vec::new(), now_unix_ms);
    let _ = utilisation(gpu, 0, 0);
    gpu.temperature.gpu_c = crate::make::IDLE_GPU_C;
    gpu.temperature.memory_c = gpu.temperature.memory_c.map(|_| crate::make::IDLE_MEMORY_C);
    let idle = gpu.power.default_limit_mw / crate::make::IDLE_POWER_SHARE;
    power(gpu, idle, now_unix_ms);
}

/// The event, the counters that go with it, and the driver's line.
fn xid(gpu: &mut Gpu, number: u32, message: Option<&str>) -> Vec<String> {
    gpu.push_event(EVENT_XID, u64::from(number));
    match number {
        48 => {
            add(&mut gpu.ecc.volatile.dram_uncorrected, 1);
            add(&mut gpu.ecc.aggregate.dram_uncorrected, 1);
        }
        63 if gpu.remap.supported => {
            let _ = remap(gpu, 0, 1, true, false);
        }
        64 if gpu.remap.supported => {
            let _ = remap(gpu, 0, 0, true, true);
        }
        79 => gpu.lost = true,
        _ => {}
    }
    let place = format!("PCI:{:04x}:{:02x}:{:02x}", gpu.pci.domain, gpu.pci.bus, gpu.pci.device);
    let mut lines = vec![format!(
        "NVRM: Xid ({place}): {number}, {}",
        message.unwrap_or_else(|| usual_words(number))
    )];
    if number == 79 {
        lines.push(format!("NVRM: GPU {}: GPU has fallen off the bus.", gpu.pci.address()));
    }
    lines
}

/// What the driver writes after the number, as seen in public reports of each Xid.
fn usual_words(number: u32) -> &'static str {
    match number {
        13 => {
            "pid='<unknown>', name=<unknown>, Graphics SM Warp Exception on (GPC 2, TPC 1, SM 0): Out Of Range Address"
        }
        31 => {
            "pid=4242, name=python, Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted @ 0x7f2a_00000000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ"
        }
        32 => "pid='<unknown>', name=<unknown>, Channel ID 00000008 intr0 00040000",
        43 | 45 => "pid=4242, name=python, Ch 00000008",
        48 => {
            "pid='<unknown>', name=<unknown>, DBE (double bit error) ECC Error, subpartition 0, partition 3"
        }
        61 => "pid='<unknown>', name=<unknown>, 0d02(31c4) 00000000 00000000",
        62 => "pid='<unknown>', name=<unknown>, 0000(0000) 00000000 00000000",
        63 => {
            "pid='<unknown>', name=<unknown>, Row Remapper: New row marked for remapping, reset gpu to activate."
        }
        64 => "pid='<unknown>', name=<unknown>, Row Remapper: Error while attempting to remap row.",
        74 => {
            "pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 3(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)"
        }
        79 => "pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        92 => "pid='<unknown>', name=<unknown>, High single-bit ECC error rate",
        94 => "pid=4242, name=python, Contained: SM (0x1). RST: No, D-RST: No",
        95 => "pid=4242, name=python, Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No",
        109 => "pid=4242, name=python, Ch 00000008, errorString CTX SWITCH TIMEOUT, Info 0x3c046",
        119 => {
            "pid=4242, name=nvidia-smi, Timeout after 6s of waiting for RPC response from GPU0 GSP! Expected function 76 (GSP_RM_CONTROL) (0x2080a097 0x0)."
        }
        120 => {
            "pid='<unknown>', name=<unknown>, GSP task exception: Load access page fault (cause:0xd) @ pc:0x1d8a4"
        }
        140 => {
            "pid='<unknown>', name=<unknown>, An uncorrectable ECC error detected (possible firmware handling failure) DRAM:-1, LTC:2, MMU:0, PCIE:0"
        }
        143 => "pid='<unknown>', name=<unknown>, GPU Initialization Failure",
        154 => {
            "pid='<unknown>', name=<unknown>, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
        }
        _ => "pid='<unknown>', name=<unknown>",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::make::{Spec, node};

    fn h100() -> Gpu {
        let facts = farrier_facts::FactSet::embedded();
        node(facts, &Spec { now_unix_ms: 1_000, ..Spec::of("H100-SXM5-80GB", 8) })
            .unwrap()
            .1
            .remove(0)
    }

    #[test]
    fn an_xid_is_an_event_and_a_line() {
        let mut gpu = h100();
        let lines = apply(&mut gpu, &Fault::Xid { number: 79, message: None }, 0).unwrap();
        assert!(lines[0].starts_with("NVRM: Xid (PCI:0000:1b:00): 79, "), "{lines:?}");
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
            Fault::Lost,
            Fault::LinkDown(3),
            Fault::RecoveryAction(2),
            Fault::Pcie { generation: Some(3), width: Some(8), replays: 0 },
            Fault::Temperature { gpu_c: 91, memory_c: Some(99) },
            Fault::Utilisation { gpu: 100, memory: 80 },
            Fault::Throttle(vec![Reason::HwThermal]),
            Fault::Call(CallFault {
                call: "nvmlDeviceGetName".to_owned(),
                effect: Effect::Error(999),
            }),
        ] {
            apply(&mut gpu, &fault, 2_000).unwrap();
        }
        apply(&mut gpu, &Fault::Clear, 3_000).unwrap();
        assert_eq!(
            gpu.clock_events.held_us.hw_thermal, 1_000_000,
            "time that was lost stays counted"
        );
        gpu.clock_events = before.clock_events.clone();
        gpu.power = before.power.clone();
        assert_eq!(gpu, before);
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
            apply(&mut gpu, &Fault::Pcie { generation: Some(6), width: None, replays: 0 }, 0)
                .is_err()
        );
        assert!(check_call("nvmlDeviceGetName").is_ok());
        assert!(check_call("rm -rf").is_err());
    }

    #[test]
    fn codes_and_places_of_calls() {
        assert_eq!(error_code("gpu-is-lost"), Some(15));
        assert_eq!(error_code("NVML_ERROR_UNKNOWN"), Some(999));
        assert_eq!(error_code("18"), Some(18));
        assert_eq!(error_code("1000"), None);
        assert!(is_of_node("nvmlInit_v2") && is_of_node("nvmlDeviceGetCount_v2"));
        assert!(
            !is_of_node("nvmlDeviceGetName") && !is_of_node("*") && !is_of_node("nvmlGpmSampleGet")
        );
    }

    #[test]
    fn versions_of_a_call() {
        let fault = |call: &str| CallFault { call: call.to_owned(), effect: Effect::HangForever };
        assert!(fault("nvmlDeviceGetCount").is_about("nvmlDeviceGetCount_v2"));
        assert!(!fault("nvmlDeviceGetCount_v2").is_about("nvmlDeviceGetCount"));
        assert!(fault("*").is_about("nvmlInit_v2"));
        assert!(!fault("nvmlDeviceGetGpuFabricInfo").is_about("nvmlDeviceGetGpuFabricInfoV"));
    }
}
