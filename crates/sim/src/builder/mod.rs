//! Builds a node from GPU facts. The functions are pure, so the same seed gives the same node.

mod links;

use farrier_facts::FactSet;
use farrier_facts::gpu::{FormFactor, Gpu, GpuDevice};
use farrier_facts::version::DriverVersion;

use crate::gpu::{
    BoardInfo, ClockEvents, ClockRates, Clocks, Ecc, EccCounts, Memory, Modes, Pci, Power, Remap,
    RemapBanks, RetiredPages, SimGpu, Temperature, ThrottleReason, ThrottledTime, Utilisation,
};
use crate::node::SharedNodeState;
use crate::rng::SeededRng;
use crate::sku;

/// Temperature of an idle GPU.
pub(crate) const IDLE_GPU_C: i32 = 35;
/// Memory temperature of an idle GPU.
pub(crate) const IDLE_MEMORY_C: i32 = 39;
/// The power limit divided by this is the power draw of an idle GPU. A real H200 draws 79 W of 700
/// W.
pub(crate) const IDLE_POWER_SHARE: u32 = 9;

/// PCIe transmit and receive rate of an idle H200.
pub(crate) const IDLE_PCIE_KB_PER_S: (u32, u32) = (1087, 608);
/// Health mask of a healthy fabric: not degraded, no recovery, routes healthy, no access timeouts,
/// correct configuration.
pub(crate) const HEALTHY_FABRIC: u32 = 0x1aa;

/// Driver modes that are usual in data centres.
pub(crate) const MODES: Modes = Modes { persistence: true, compute: 0, accounting: false };

/// Uptime of a new node. It is one day, so that the boot messages in its kernel log are in the
/// past.
pub(crate) const UPTIME_MS: u64 = 86_400_000;

/// Maximum GPUs per node, limited by the PCI buses below.
pub const GPUS_MAX: u32 = 16;

/// PCI buses of the GPUs on an eight-GPU baseboard. GPU 8 uses the bus after that of GPU 0, and so
/// on up to GPU 15.
const BUSES: [u32; 8] = [0x1b, 0x43, 0x52, 0x61, 0x9d, 0xc3, 0xd1, 0xdf];

/// Specification of a node to build.
#[derive(Debug, Clone)]
pub struct NodeSpec {
    /// Any name or alias of the GPU model.
    pub sku: String,
    /// Number of GPUs.
    pub gpus: u32,
    pub driver: String,
    /// Seed of UUIDs and serial numbers.
    pub seed: u64,
    pub kernel: String,
    /// Current time, Unix milliseconds. The node booted one day earlier.
    pub now_unix_ms: u64,
}

impl NodeSpec {
    /// A node with defaults for everything but the GPUs.
    pub fn new(sku: &str, gpus: u32) -> Self {
        Self {
            sku: sku.to_owned(),
            gpus,
            driver: "580.95.05".to_owned(),
            seed: 1,
            kernel: "6.8.0-86-generic".to_owned(),
            now_unix_ms: 0,
        }
    }
}

/// Why a node could not be built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    #[error("unknown GPU `{sku}`")]
    UnknownSku {
        sku: String,
        /// Known names that are similar.
        suggestions: Vec<String>,
    },
    #[error("`{sku}` is an accelerator of {vendor}; Farrier knows NVIDIA GPUs only")]
    OtherVendor { sku: String, vendor: String },
    #[error("a simulated node has 1 to {GPUS_MAX} GPUs, not {gpus}")]
    GpuCount { gpus: u32 },
    #[error("`{driver}` is not a driver version")]
    InvalidDriver { driver: String },
    /// The driver branch is not in the facts, so its CUDA version is unknown.
    #[error("unknown driver branch {branch}")]
    UnknownBranch { branch: u32 },
}

/// Builds the node and its GPUs.
pub fn build_node(
    facts: &FactSet,
    spec: &NodeSpec,
) -> Result<(SharedNodeState, Vec<SimGpu>), BuildError> {
    if spec.gpus == 0 || spec.gpus > GPUS_MAX {
        return Err(BuildError::GpuCount { gpus: spec.gpus });
    }
    let Some(found) = facts.gpus.by_name(&spec.sku) else {
        if let Some(vendor) = facts.gpus.other_vendor(&spec.sku) {
            let (sku, vendor) = (spec.sku.clone(), vendor.name.clone());
            return Err(BuildError::OtherVendor { sku, vendor });
        }
        let names = facts.gpus.gpu.iter().map(|gpu| gpu.id.as_str());
        let suggestions = farrier_facts::names::nearest(&spec.sku, names)
            .into_iter()
            .map(str::to_owned)
            .collect();
        return Err(BuildError::UnknownSku { sku: spec.sku.clone(), suggestions });
    };
    let driver: DriverVersion = spec
        .driver
        .parse()
        .map_err(|_| BuildError::InvalidDriver { driver: spec.driver.clone() })?;
    let branch = facts
        .drivers
        .branch(driver.branch())
        .ok_or(BuildError::UnknownBranch { branch: driver.branch().0 })?;
    let hostname = format!("sim-{:04x}", SeededRng::new(spec.seed, "hostname").below(0x1_0000));
    // A single SXM module has no peers, so it is simulated as passed through to a virtual machine.
    let virtual_machine = spec.gpus == 1 && found.gpu.form_factor == FormFactor::Sxm;
    let node = SharedNodeState {
        format: crate::FORMAT,
        sku: found.gpu.id.clone(),
        seed: spec.seed,
        hostname,
        kernel: spec.kernel.clone(),
        driver: spec.driver.clone(),
        booted_unix_ms: spec.now_unix_ms.saturating_sub(UPTIME_MS),
        cuda: [branch.native_cuda.major, branch.native_cuda.minor],
        as_root: None,
        clock_unix_ms: None,
        restarted: false,
        driver_loaded: true,
        replaced_by: None,
        virtual_machine,
        faults: Vec::new(),
    };
    let sku = sku::device(facts, found.gpu);
    let gpu = |number| gpu(found.gpu, &sku, spec, number, virtual_machine);
    Ok((node, (0..spec.gpus).map(gpu).collect()))
}

fn gpu(
    facts: &Gpu,
    sku: &GpuDevice,
    spec: &NodeSpec,
    number: u32,
    virtual_machine: bool,
) -> SimGpu {
    let mut rng = SeededRng::new(spec.seed, &format!("gpu {number}"));
    let capability = facts.compute_capability;
    let remap = capability.major >= 8;
    SimGpu {
        format: crate::FORMAT,
        name: facts.nvml_names.first().unwrap_or(&facts.id).clone(),
        uuid: format!("GPU-{}", rng.uuid()),
        serial: format!("165{:010}", rng.below(10_000_000_000)),
        minor: number,
        board: board(facts, sku, number, rng.next()),
        pci: pci(facts, sku, number, virtual_machine),
        lost: false,
        gone: false,
        recovery_action: 0,
        resets: 0,
        memory: Memory {
            total_bytes: sku.memory_mib << 20,
            reserved_bytes: sku.reserved_kib << 10,
            used_bytes: 0,
            bar1_total_bytes: sku.bar1_mib << 20,
            // Measured on an idle H200.
            bar1_used_bytes: 1_703_936,
            bus_width_bits: sku.bus_width_bits,
        },
        clocks: clocks(sku),
        clock_events: ClockEvents {
            reasons: vec![ThrottleReason::GpuIdle],
            since_unix_ms: spec.now_unix_ms,
            throttled_us: ThrottledTime::default(),
        },
        temperature: Temperature {
            gpu_c: IDLE_GPU_C,
            memory_c: facts
                .memory
                .as_ref()
                .filter(|memory| memory.technology.starts_with("HBM"))
                .map(|_| IDLE_MEMORY_C),
            gpu_limit_c: sku.gpu_limit_c,
            slowdown_margin_c: -2,
            shutdown_margin_c: -8,
            memory_max_c: sku.memory_max_c,
        },
        power: power(facts, sku, spec.now_unix_ms),
        utilisation: Utilisation {
            gpu_percent: 0,
            memory_percent: 0,
            encoder_percent: 0,
            decoder_percent: 0,
            jpeg_percent: 0,
            optical_flow_percent: 0,
            sm_percent: 0.0,
            sm_occupancy_percent: 0.0,
            tensor_percent: 0.0,
            dram_percent: 0.0,
            fp32_percent: 0.0,
            fp64_percent: 0.0,
            fp16_percent: 0.0,
            integer_percent: 0.0,
        },
        ecc: Ecc {
            enabled: true,
            pending: true,
            volatile: EccCounts::default(),
            aggregate: EccCounts::default(),
            sram_threshold_exceeded: false,
            channel_repair_pending: false,
            tpc_repair_pending: false,
            unrepairable_memory: false,
        },
        remap: Remap {
            supported: remap,
            corrected_rows: 0,
            uncorrected_rows: 0,
            pending: false,
            failed: false,
            banks: RemapBanks {
                max: if remap { sku.remap_banks } else { 0 },
                ..RemapBanks::default()
            },
        },
        retired_pages: (!remap).then(RetiredPages::default),
        pcie: links::pcie(facts, spec.now_unix_ms),
        nvlink: links::nvlink(facts, sku, virtual_machine, spec.now_unix_ms),
        fabric: links::fabric(facts, sku, virtual_machine),
        modes: MODES,
        mig: links::mig(facts, sku),
        processes: Vec::new(),
        events: Vec::new(),
        faults: Vec::new(),
        unsupported: unsupported(facts),
    }
}

fn board(facts: &Gpu, sku: &GpuDevice, number: u32, pdi: u64) -> BoardInfo {
    let device_id = facts.pci_device_ids.first().map_or("0000", String::as_str).to_uppercase();
    BoardInfo {
        architecture: facts.architecture.clone(),
        compute_capability: [facts.compute_capability.major, facts.compute_capability.minor],
        cores: sku.multiprocessors * sku.cores_per_multiprocessor,
        multiprocessors: sku.multiprocessors,
        part_number: sku.part_number.clone(),
        gpu_part_number: format!("{device_id}-{}", sku.gpu_part_suffix),
        vbios: sku.vbios.clone(),
        vbios_override: None,
        inforom_image: sku.inforom_image.clone(),
        inforom_oem: sku.inforom_oem.clone(),
        inforom_ecc: sku.inforom_ecc.clone(),
        inforom_valid: true,
        // Module IDs start at 1.
        module_id: 1 + number % 8,
        pdi,
    }
}

fn pci(facts: &Gpu, sku: &GpuDevice, number: u32, virtual_machine: bool) -> Pci {
    let bus = BUSES[(number % 8) as usize] + number / 8;
    let is_second_socket = number % 8 >= 4;
    let (bus, device) = if virtual_machine { (0, 6) } else { (bus, 0) };
    Pci {
        domain: 0,
        bus,
        device,
        device_id: facts.pci_device_ids.first().map_or("0000", String::as_str).to_owned(),
        subsystem_id: sku.subsystem_id.clone(),
        numa_node: u32::from(is_second_socket),
        cpus: match (virtual_machine, is_second_socket) {
            (true, _) => "0-15",
            (false, false) => "0-47",
            (false, true) => "48-95",
        }
        .to_owned(),
        irq: 200 + number,
    }
}

fn clocks(sku: &GpuDevice) -> Clocks {
    let graphics = sku.max_graphics_mhz.unwrap_or_default();
    let memory = sku.max_memory_mhz.unwrap_or_default();
    Clocks {
        current_mhz: ClockRates {
            graphics: sku.idle_graphics_mhz,
            sm: sku.idle_graphics_mhz,
            memory,
            video: sku.idle_video_mhz,
        },
        max_mhz: ClockRates { graphics, sm: graphics, memory, video: sku.max_video_mhz },
        application_graphics_mhz: sku.default_graphics_mhz,
        application_memory_mhz: memory,
        default_graphics_mhz: sku.default_graphics_mhz,
        default_memory_mhz: memory,
        supported_memory_mhz: [&[memory][..], &sku.lower_memory_mhz].concat(),
        graphics_floor_mhz: sku.graphics_floor_mhz,
        graphics_step_mhz: 15,
        locked_graphics_mhz: None,
        locked_memory_mhz: None,
        performance_state: 0,
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the facts' watts are small and positive"
)]
fn power(facts: &Gpu, sku: &GpuDevice, now_unix_ms: u64) -> Power {
    let milliwatts = |watts: f64| (watts * 1000.0) as u32;
    let default = facts.power.as_ref().map_or(300_000, |power| milliwatts(power.default_w));
    let max = facts.power.as_ref().and_then(|power| power.max_w).map_or(default, milliwatts);
    let min = facts
        .power
        .as_ref()
        .and_then(|power| power.min_w)
        .map_or(sku.min_power_w * 1000, milliwatts);
    Power {
        average_mw: default / IDLE_POWER_SHARE,
        instant_mw: default / IDLE_POWER_SHARE,
        memory_average_mw: (facts.architecture == "Hopper").then_some(default / 16),
        limit_mw: default,
        default_limit_mw: default,
        min_limit_mw: min.min(default),
        max_limit_mw: max,
        energy_mj: 0,
        energy_at_unix_ms: now_unix_ms,
    }
}

/// NVML calls that the GPU model never supports. If support depends on the arguments, the call
/// itself decides.
fn unsupported(facts: &Gpu) -> Vec<String> {
    let mut calls: Vec<&str> = Vec::new();
    if facts.compute_capability.major < 9 {
        // Only Hopper and newer GPUs support these calls.
        calls.extend([
            "nvmlDeviceGetMarginTemperature",
            "nvmlDeviceGetModuleId",
            "nvmlDeviceGetConfComputeMemSizeInfo",
            "nvmlDeviceGetConfComputeProtectedMemoryUsage",
            "nvmlDeviceGetJpgUtilization",
            "nvmlDeviceGetOfaUtilization",
        ]);
    }
    calls.into_iter().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_gpu_model_can_be_simulated() {
        let facts = FactSet::embedded();
        for gpu in &facts.gpus.gpu {
            let (node, gpus) = build_node(facts, &NodeSpec::new(&gpu.id, 2)).unwrap();
            assert_eq!(node.sku, gpu.id);
            for built in &gpus {
                assert!(built.memory.total_bytes > built.memory.reserved_bytes, "{}", gpu.id);
                assert!(built.power.min_limit_mw <= built.power.default_limit_mw, "{}", gpu.id);
                assert!(built.power.default_limit_mw <= built.power.max_limit_mw, "{}", gpu.id);
                assert!(built.nvlink.links.len() <= 18, "{}", gpu.id);
            }
            let text = serde_json::to_string(&gpus[0]).unwrap();
            assert_eq!(serde_json::from_str::<SimGpu>(&text).unwrap(), gpus[0], "{}", gpu.id);
        }
    }

    #[test]
    fn the_seed_determines_the_node() {
        let facts = FactSet::embedded();
        let spec = NodeSpec::new("H100-SXM5-80GB", 8);
        assert_eq!(build_node(facts, &spec), build_node(facts, &spec));
        let other = build_node(facts, &NodeSpec { seed: 2, ..spec.clone() }).unwrap();
        assert_ne!(build_node(facts, &spec).unwrap().1[0].uuid, other.1[0].uuid);
        let (_, gpus) = build_node(facts, &spec).unwrap();
        let mut buses: Vec<u32> = gpus.iter().map(|gpu| gpu.pci.bus).collect();
        buses.dedup();
        assert_eq!(buses.len(), 8);
    }

    #[test]
    fn invalid_specs_are_rejected() {
        let facts = FactSet::embedded();
        let unknown = build_node(facts, &NodeSpec::new("H100-SXM5-81GB", 8)).unwrap_err();
        assert!(
            matches!(unknown, BuildError::UnknownSku { suggestions, .. } if !suggestions.is_empty())
        );
        assert!(matches!(
            build_node(facts, &NodeSpec::new("H100-SXM5-80GB", 0)),
            Err(BuildError::GpuCount { gpus: 0 })
        ));
        let driver =
            |driver: &str| NodeSpec { driver: driver.to_owned(), ..NodeSpec::new("T4", 1) };
        assert!(matches!(
            build_node(facts, &driver("latest")),
            Err(BuildError::InvalidDriver { .. })
        ));
        assert!(matches!(
            build_node(facts, &driver("12.34")),
            Err(BuildError::UnknownBranch { branch: 12 })
        ));
    }
}
