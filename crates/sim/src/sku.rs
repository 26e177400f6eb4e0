//! Values that a GPU reports and that are not in the facts: memory to the mebibyte, clocks and part
//! numbers.
//!
//! The H200 values were read from a real GPU. The others come from `nvidia-smi -q` listings and
//! were not measured. They only make a simulated GPU plausible. No decision depends on them, so
//! they are not facts.

use farrier_facts::gpu::{FormFactor, Gpu};

/// Simulation constants of a GPU model.
#[derive(Debug, Clone)]
pub(crate) struct Sku {
    pub(crate) memory_mib: u64,
    pub(crate) reserved_kib: u64,
    pub(crate) bar1_mib: u64,
    pub(crate) bus_width_bits: u32,
    pub(crate) multiprocessors: u32,
    pub(crate) cores_per_multiprocessor: u32,
    pub(crate) max_graphics_mhz: u32,
    pub(crate) default_graphics_mhz: u32,
    pub(crate) idle_graphics_mhz: u32,
    pub(crate) graphics_floor_mhz: u32,
    pub(crate) max_video_mhz: u32,
    pub(crate) idle_video_mhz: u32,
    pub(crate) memory_mhz: &'static [u32],
    pub(crate) subsystem_id: &'static str,
    pub(crate) part_number: &'static str,
    pub(crate) gpu_part_suffix: &'static str,
    pub(crate) vbios: &'static str,
    pub(crate) inforom_image: &'static str,
    pub(crate) inforom_oem: &'static str,
    pub(crate) inforom_ecc: &'static str,
    pub(crate) min_power_w: u32,
    pub(crate) links: u32,
    pub(crate) link_mb_per_s: u32,
    pub(crate) switches: u32,
    pub(crate) gpu_limit_c: i32,
    pub(crate) memory_max_c: i32,
    pub(crate) remap_banks: u32,
    /// MIG slice sizes where known: (eighths of the memory, MiB).
    pub(crate) slices_mib: &'static [(u32, u64)],
}

const H200: Sku = Sku {
    memory_mib: 143_771,
    reserved_kib: 629_824,
    bar1_mib: 262_144,
    bus_width_bits: 6016,
    multiprocessors: 132,
    cores_per_multiprocessor: 128,
    max_graphics_mhz: 1980,
    default_graphics_mhz: 1980,
    idle_graphics_mhz: 345,
    graphics_floor_mhz: 345,
    max_video_mhz: 1545,
    idle_video_mhz: 765,
    memory_mhz: &[3201, 2201],
    subsystem_id: "18bf",
    part_number: "692-2G520-0282-001",
    gpu_part_suffix: "895-A1",
    vbios: "96.00.A5.00.1A",
    inforom_image: "G520.0282.02.02",
    inforom_oem: "2.1",
    inforom_ecc: "7.16",
    min_power_w: 200,
    links: 18,
    link_mb_per_s: 26_562,
    switches: 4,
    gpu_limit_c: 87,
    memory_max_c: 95,
    remap_banks: 3072,
    slices_mib: &[(1, 16_384), (2, 33_280), (4, 71_424), (8, 143_360)],
};

const H100_SXM: Sku = Sku {
    memory_mib: 81_559,
    reserved_kib: 564_224,
    bar1_mib: 131_072,
    bus_width_bits: 5120,
    memory_mhz: &[2619, 1593],
    subsystem_id: "16c1",
    part_number: "692-2G520-0200-000",
    gpu_part_suffix: "886-A1",
    vbios: "96.00.74.00.01",
    inforom_image: "G520.0200.00.05",
    remap_banks: 2560,
    slices_mib: &[],
    ..H200
};

const H100_PCIE: Sku = Sku {
    memory_mhz: &[1593],
    multiprocessors: 114,
    max_graphics_mhz: 1755,
    default_graphics_mhz: 1755,
    subsystem_id: "1626",
    part_number: "900-21010-0000-000",
    vbios: "96.00.5E.00.01",
    inforom_image: "1010.0200.00.02",
    links: 0,
    switches: 0,
    ..H100_SXM
};

const A100_SXM_80: Sku = Sku {
    memory_mib: 81_920,
    reserved_kib: 626_688,
    multiprocessors: 108,
    cores_per_multiprocessor: 64,
    max_graphics_mhz: 1410,
    default_graphics_mhz: 1275,
    idle_graphics_mhz: 210,
    graphics_floor_mhz: 210,
    max_video_mhz: 1290,
    idle_video_mhz: 585,
    memory_mhz: &[1593],
    subsystem_id: "1463",
    part_number: "692-2G506-0212-003",
    gpu_part_suffix: "895-A1",
    vbios: "92.00.45.00.05",
    inforom_image: "G506.0212.00.01",
    inforom_oem: "2.0",
    inforom_ecc: "6.16",
    min_power_w: 100,
    links: 12,
    link_mb_per_s: 25_000,
    switches: 6,
    gpu_limit_c: 85,
    remap_banks: 640,
    ..H100_SXM
};

const A100_SXM_40: Sku = Sku {
    memory_mib: 40_960,
    reserved_kib: 516_096,
    bar1_mib: 65_536,
    default_graphics_mhz: 1095,
    memory_mhz: &[1215],
    subsystem_id: "134f",
    part_number: "692-2G506-0200-002",
    vbios: "92.00.19.00.01",
    inforom_image: "G506.0200.00.04",
    remap_banks: 512,
    ..A100_SXM_80
};

const B200: Sku = Sku {
    memory_mib: 183_359,
    reserved_kib: 722_944,
    bar1_mib: 262_144,
    bus_width_bits: 7680,
    multiprocessors: 148,
    max_graphics_mhz: 1965,
    default_graphics_mhz: 1965,
    idle_graphics_mhz: 120,
    graphics_floor_mhz: 120,
    max_video_mhz: 1600,
    idle_video_mhz: 600,
    memory_mhz: &[3996],
    subsystem_id: "1999",
    part_number: "692-2G525-0220-000",
    gpu_part_suffix: "886-A1",
    vbios: "97.00.88.00.0F",
    inforom_image: "G525.0220.00.03",
    link_mb_per_s: 53_125,
    switches: 2,
    remap_banks: 4096,
    slices_mib: &[],
    ..H200
};

/// Defaults for models without constants here.
const OTHER: Sku = Sku {
    memory_mib: 0,
    reserved_kib: 524_288,
    bar1_mib: 32_768,
    bus_width_bits: 384,
    multiprocessors: 80,
    max_graphics_mhz: 1800,
    default_graphics_mhz: 1800,
    idle_graphics_mhz: 210,
    graphics_floor_mhz: 210,
    max_video_mhz: 1500,
    idle_video_mhz: 555,
    memory_mhz: &[6251],
    subsystem_id: "0000",
    part_number: "900-00000-0000-000",
    gpu_part_suffix: "850-A1",
    vbios: "95.00.00.00.00",
    inforom_image: "0000.0000.00.01",
    links: 0,
    switches: 0,
    remap_banks: 192,
    ..H100_SXM
};

impl Sku {
    /// The constants of a GPU model. For unlisted models, they are derived from the facts.
    pub(crate) fn for_gpu(gpu: &Gpu) -> Self {
        let constants = match gpu.id.as_str() {
            "H200-SXM5-141GB" => Some(H200),
            "H100-SXM5-80GB" => Some(H100_SXM),
            "H100-PCIe-80GB" => Some(H100_PCIE),
            "A100-SXM4-80GB" => Some(A100_SXM_80),
            "A100-SXM4-40GB" => Some(A100_SXM_40),
            "B200-SXM6-180GB" => Some(B200),
            _ => None,
        };
        constants.unwrap_or_else(|| Self::from_facts(gpu))
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "gigabytes, watts and link rates of the facts are small and positive"
    )]
    fn from_facts(gpu: &Gpu) -> Self {
        // A vendor's gigabytes are nearly gibibytes. The difference is the memory reserved for ECC
        // and firmware.
        let memory_mib =
            gpu.memory.as_ref().map_or(16_384, |memory| (memory.capacity_gb * 1019.0) as u64);
        let rate = |links: &farrier_facts::gpu::GpuLinks| {
            links.nvlink_gb_per_s.zip(links.nvlink_generation)
        };
        let (links, link_mb_per_s) = match gpu.links.as_ref().and_then(rate) {
            None => (0, 0),
            Some((all, generation)) => {
                // Bidirectional bandwidth of one link in GB/s, by NVLink generation.
                let one = match generation {
                    1 => 40.0,
                    2..=4 => 50.0,
                    _ => 100.0,
                };
                ((all / one) as u32, (one * 1000.0 / 2.0) as u32)
            }
        };
        let switches = if gpu.form_factor == FormFactor::Sxm { 4 } else { 0 };
        let min_power_w = gpu
            .power
            .as_ref()
            .map_or(100, |power| power.min_w.unwrap_or(power.default_w / 3.0) as u32);
        Self { memory_mib, min_power_w, links, link_mb_per_s, switches, ..OTHER }
    }
}
