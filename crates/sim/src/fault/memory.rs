//! Memory faults: ECC errors, row remapping and page retirement.

use crate::gpu::{Remap, SimGpu};

use super::{FaultError, add};

/// ECC error increments, added to the volatile and the aggregate counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EccErrors {
    pub corrected: u64,
    pub uncorrected: u64,
    /// Corrected errors in caches and register files.
    pub sram_corrected: u64,
    /// Uncorrected errors in caches and register files.
    pub sram_uncorrected: u64,
    /// Whether the errors exceed the SRAM threshold, so that the GPU should be replaced.
    pub sram_threshold: bool,
}

/// Row remapping changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RemapFault {
    /// Rows remapped for correctable errors.
    pub corrected: u32,
    /// Rows remapped for uncorrectable errors.
    pub uncorrected: u32,
    pub pending: bool,
    pub failed: bool,
    /// Additional banks with few spare rows left.
    pub banks_low: u32,
    /// Additional banks without spare rows.
    pub banks_none: u32,
}

/// Page retirements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RetiredFault {
    /// Pages retired for repeated single-bit errors.
    pub single: u32,
    /// Pages retired for a double-bit error.
    pub double: u32,
    pub pending: bool,
}

pub(super) fn ecc(gpu: &mut SimGpu, errors: &EccErrors) {
    for counts in [&mut gpu.ecc.volatile, &mut gpu.ecc.aggregate] {
        add(&mut counts.dram_corrected, errors.corrected);
        add(&mut counts.dram_uncorrected, errors.uncorrected);
        add(&mut counts.sram_corrected, errors.sram_corrected);
        add(&mut counts.sram_uncorrected_secded, errors.sram_uncorrected);
    }
    gpu.ecc.sram_threshold_exceeded |= errors.sram_threshold;
}

pub(super) fn remap(gpu: &mut SimGpu, fault: &RemapFault) -> Result<(), FaultError> {
    if !gpu.remap.supported {
        return Err(FaultError::NoRemap { name: gpu.name.clone() });
    }
    let banks = &mut gpu.remap.banks;
    let low = fault.banks_low.min(banks.max);
    banks.max -= low;
    banks.low = banks.low.saturating_add(low);
    let none = fault.banks_none.min(banks.max);
    banks.max -= none;
    banks.none = banks.none.saturating_add(none);
    remap_rows(&mut gpu.remap, fault.corrected, fault.uncorrected, fault.pending, fault.failed);
    Ok(())
}

pub(super) fn remap_rows(
    remap: &mut Remap,
    corrected: u32,
    uncorrected: u32,
    pending: bool,
    failed: bool,
) {
    remap.corrected_rows = remap.corrected_rows.saturating_add(corrected);
    remap.uncorrected_rows = remap.uncorrected_rows.saturating_add(uncorrected);
    remap.pending |= pending;
    remap.failed |= failed;
    // Assume that each remapped row is in a different bank that still has all its spare rows. A
    // failed remap uses up the spare rows of its bank.
    let moved = corrected.saturating_add(uncorrected).max(u32::from(failed)).min(remap.banks.max);
    remap.banks.max -= moved;
    if failed {
        remap.banks.none = remap.banks.none.saturating_add(moved);
    } else {
        remap.banks.high = remap.banks.high.saturating_add(moved);
    }
}

pub(super) fn retire(gpu: &mut SimGpu, fault: &RetiredFault) -> Result<(), FaultError> {
    /// Maximum pages of each kind to retire at once. A real GPU can retire 64 pages.
    const PAGES_MAX: u32 = 64;
    let Some(pages) = gpu.retired_pages.as_mut() else {
        return Err(FaultError::NoRetirement { name: gpu.name.clone() });
    };
    let mut next = 0x1000 * (1 + pages.single_bit.len() + pages.double_bit.len()) as u64;
    for (list, more) in
        [(&mut pages.single_bit, fault.single), (&mut pages.double_bit, fault.double)]
    {
        for _ in 0..more.min(PAGES_MAX) {
            list.push(next);
            next += 0x1000;
        }
    }
    pages.pending |= fault.pending;
    Ok(())
}

/// Removes all remapped rows and retired pages.
pub(super) fn restore_defaults(gpu: &mut SimGpu) {
    let banks = gpu.remap.banks;
    let all = [banks.max, banks.high, banks.partial, banks.low, banks.none];
    gpu.remap = Remap {
        supported: gpu.remap.supported,
        corrected_rows: 0,
        uncorrected_rows: 0,
        pending: false,
        failed: false,
        banks: crate::gpu::RemapBanks { max: all.iter().sum(), ..Default::default() },
    };
    if let Some(pages) = gpu.retired_pages.as_mut() {
        *pages = crate::gpu::RetiredPages::default();
    }
}
