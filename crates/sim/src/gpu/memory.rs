//! Frame buffer, errors in it, and what was taken out of service.

use serde::{Deserialize, Serialize};

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
    /// RemapBanks by the spare rows that they have left.
    pub banks: RemapBanks,
}

/// RemapBanks by the spare rows that they have left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemapBanks {
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
