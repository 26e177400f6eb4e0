//! Values that a GPU reports through NVML and that no decision depends on: memory to the mebibyte,
//! clocks, part numbers. A simulated GPU reports the same values.

use serde::{Deserialize, Serialize};

use crate::origin::Origin;

/// The values that one SKU reports.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuDevice {
    /// The [`super::Gpu::id`]. `None` in the one record that stands for every SKU without a record
    /// of its own.
    pub gpu: Option<String>,
    pub memory_mib: u64,
    /// Memory that the driver keeps for itself.
    pub reserved_kib: u64,
    pub bar1_mib: u64,
    pub bus_width_bits: u32,
    pub multiprocessors: u32,
    pub cores_per_multiprocessor: u32,
    /// Highest clocks, only for a SKU without a record in `clocks`.
    #[serde(default)]
    pub max_graphics_mhz: Option<u32>,
    #[serde(default)]
    pub max_memory_mhz: Option<u32>,
    pub default_graphics_mhz: u32,
    pub idle_graphics_mhz: u32,
    pub graphics_floor_mhz: u32,
    pub max_video_mhz: u32,
    pub idle_video_mhz: u32,
    /// Supported memory clocks below the highest one, highest first.
    #[serde(default)]
    pub lower_memory_mhz: Vec<u32>,
    /// PCI subsystem id, four hexadecimal digits.
    pub subsystem_id: String,
    pub part_number: String,
    pub gpu_part_suffix: String,
    pub vbios: String,
    pub inforom_image: String,
    pub inforom_oem: String,
    pub inforom_ecc: String,
    pub min_power_w: u32,
    /// Number of `NVLink` links.
    pub links: u32,
    /// Rate of one link and direction.
    pub link_mb_per_s: u32,
    /// `NVSwitches` on the baseboard.
    pub switches: u32,
    pub gpu_limit_c: i32,
    pub memory_max_c: i32,
    /// Memory banks with spare rows.
    pub remap_banks: u32,
    /// Sizes of MIG slices where known: eighths of the memory, and MiB.
    #[serde(default)]
    pub slices_mib: Vec<(u32, u64)>,
    pub origin: Origin,
}
