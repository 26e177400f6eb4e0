//! Frame buffer, ECC errors, row remapping and page retirement.

use serde::{Deserialize, Serialize};

/// Frame buffer and BAR1.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Memory {
    pub total_bytes: u64,
    /// Memory reserved by the driver and firmware.
    pub reserved_bytes: u64,
    /// Memory in use besides that of the listed processes.
    pub used_bytes: u64,
    pub bar1_total_bytes: u64,
    pub bar1_used_bytes: u64,
    pub bus_width_bits: u32,
}

/// ECC mode and counters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(clippy::struct_excessive_bools, reason = "the driver reports each of them by itself")]
pub struct Ecc {
    pub enabled: bool,
    /// Mode after the next reset.
    pub pending: bool,
    /// Errors since the driver was loaded or the GPU was reset.
    pub volatile: EccCounts,
    /// Errors during the lifetime of the GPU.
    pub aggregate: EccCounts,
    /// Whether the SRAM error count requires replacement of the GPU.
    pub sram_threshold_exceeded: bool,
    #[serde(default)]
    pub channel_repair_pending: bool,
    /// Whether the repair of a texture processing cluster (TPC) waits for a reset.
    #[serde(default)]
    pub tpc_repair_pending: bool,
    /// Whether there is memory that row remapping cannot repair.
    #[serde(default)]
    pub unrepairable_memory: bool,
}

/// Error counts by location.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EccCounts {
    pub dram_corrected: u64,
    pub dram_uncorrected: u64,
    /// Corrected errors in caches and register files.
    pub sram_corrected: u64,
    /// Uncorrected errors in caches and register files that parity detected.
    pub sram_uncorrected_parity: u64,
    /// Uncorrected errors in caches and register files that SEC-DED ECC detected.
    pub sram_uncorrected_secded: u64,
}

impl EccCounts {
    /// All corrected errors.
    pub fn corrected(&self) -> u64 {
        self.dram_corrected.saturating_add(self.sram_corrected)
    }

    /// All uncorrected SRAM errors.
    pub fn sram_uncorrected(&self) -> u64 {
        self.sram_uncorrected_parity.saturating_add(self.sram_uncorrected_secded)
    }

    /// All uncorrected errors.
    pub fn uncorrected(&self) -> u64 {
        self.dram_uncorrected.saturating_add(self.sram_uncorrected())
    }
}

/// Row remapping state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Remap {
    /// Whether the GPU model has row remapping.
    pub supported: bool,
    /// Rows remapped for correctable errors.
    pub corrected_rows: u32,
    /// Rows remapped for uncorrectable errors.
    pub uncorrected_rows: u32,
    /// Whether a remap waits for a reset.
    pub pending: bool,
    pub failed: bool,
    pub banks: RemapBanks,
}

/// Histogram of memory banks by remaining spare rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemapBanks {
    /// Banks with all spare rows left.
    pub max: u32,
    pub high: u32,
    pub partial: u32,
    pub low: u32,
    /// Banks with no spare rows left.
    pub none: u32,
}

/// Retired pages, by address.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RetiredPages {
    /// Pages retired for repeated single-bit errors.
    pub single_bit: Vec<u64>,
    /// Pages retired for a double-bit error.
    pub double_bit: Vec<u64>,
    /// Whether a retirement waits for a reset.
    pub pending: bool,
}
