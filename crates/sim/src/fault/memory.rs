//! Memory that goes wrong and is taken out of service.

use crate::gpu::{Gpu, Remap};

use super::{FaultError, add};

/// Memory errors, both since the driver was loaded and in the card's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EccErrors {
    /// In memory, put right.
    pub corrected: u64,
    /// In memory, not put right.
    pub uncorrected: u64,
    /// In caches and register files, put right.
    pub sram_corrected: u64,
    /// In caches and register files, not put right.
    pub sram_uncorrected: u64,
    /// So many in caches and register files that the part should be replaced.
    pub sram_threshold: bool,
}

/// Rows taken out of service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RemapFault {
    /// For correctable errors.
    pub corrected: u32,
    /// For uncorrectable errors.
    pub uncorrected: u32,
    /// More wait for a reset.
    pub pending: bool,
    /// A remap failed.
    pub failed: bool,
    /// RemapBanks that have few spare rows left.
    pub banks_low: u32,
    /// RemapBanks that have none left.
    pub banks_none: u32,
}

/// Pages taken out of service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RetiredFault {
    /// For many single-bit errors.
    pub single: u32,
    /// For a double-bit error.
    pub double: u32,
    /// More wait for a reset.
    pub pending: bool,
}

pub(super) fn ecc(gpu: &mut Gpu, errors: &EccErrors) {
    for counts in [&mut gpu.ecc.volatile, &mut gpu.ecc.aggregate] {
        add(&mut counts.dram_corrected, errors.corrected);
        add(&mut counts.dram_uncorrected, errors.uncorrected);
        add(&mut counts.sram_corrected, errors.sram_corrected);
        add(&mut counts.sram_uncorrected_secded, errors.sram_uncorrected);
    }
    gpu.ecc.sram_threshold_exceeded |= errors.sram_threshold;
}

pub(super) fn remap(gpu: &mut Gpu, fault: &RemapFault) -> Result<(), FaultError> {
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
    // Each remapped row is taken as one of a bank that had all its spares; a bank whose remap failed has none.
    let moved = corrected.saturating_add(uncorrected).max(u32::from(failed)).min(remap.banks.max);
    remap.banks.max -= moved;
    if failed {
        remap.banks.none = remap.banks.none.saturating_add(moved);
    } else {
        remap.banks.high = remap.banks.high.saturating_add(moved);
    }
}

pub(super) fn retire(gpu: &mut Gpu, fault: &RetiredFault) -> Result<(), FaultError> {
    /// More is a slip: a card has room for 64.
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

/// No row was ever remapped and no page retired.
pub(super) fn restore_defaults(gpu: &mut Gpu) {
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
