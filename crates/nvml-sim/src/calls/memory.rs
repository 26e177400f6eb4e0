//! Frame buffer, ECC errors, row remapping and page retirement.

use std::ffi::c_uint;

use farrier_sim::SimGpu;
use farrier_sim::gpu::{EccCounts, RetiredPages};

use crate::abi::{OutArray, OutPtr, struct_version};
use crate::error_code::ErrorCode;
use crate::library::GpuView;
use crate::structs::{
    Bar1Memory, EccErrorCounts, EccSramErrorStatus, Memory, MemoryV2, RemappedRowsV2, RepairStatus,
    RowRemapperHistogram, UnrepairableMemory, VersionOnly,
};

device_calls! {
    // Version 1 counts reserved memory as used.
    nvmlDeviceGetMemoryInfo(memory: OutPtr<Memory>) |gpu| {
        let (total, used) = (gpu.memory.total_bytes, gpu.used_bytes().saturating_add(gpu.memory.reserved_bytes));
        memory.put(Memory { total, free: total.saturating_sub(used), used })
    };
    nvmlDeviceGetMemoryInfo_v2(memory: OutPtr<MemoryV2>) |gpu| {
        // A real GPU returns FUNCTION_NOT_FOUND for an unknown version.
        if memory.version()? != struct_version::<MemoryV2>(2) {
            return Err(ErrorCode::FUNCTION_NOT_FOUND);
        }
        memory.change(|memory| {
            let (total, reserved, used) = (gpu.memory.total_bytes, gpu.memory.reserved_bytes, gpu.used_bytes());
            (memory.total, memory.reserved, memory.used) = (total, reserved, used);
            memory.free = total.saturating_sub(reserved).saturating_sub(used);
        })
    };
    nvmlDeviceGetBAR1MemoryInfo(memory: OutPtr<Bar1Memory>) |gpu| {
        let (total, used) = (gpu.memory.bar1_total_bytes, gpu.memory.bar1_used_bytes);
        memory.put(Bar1Memory { total, free: total.saturating_sub(used), used })
    };
    nvmlDeviceGetMemoryBusWidth(width: OutPtr<c_uint>) |gpu| width.put(gpu.memory.bus_width_bits);
    nvmlDeviceGetEccMode(current: OutPtr<c_uint>, pending: OutPtr<c_uint>) |gpu| {
        current.put(u32::from(gpu.ecc.enabled))?;
        pending.put(u32::from(gpu.ecc.pending))
    };
    nvmlDeviceGetDefaultEccMode(mode: OutPtr<c_uint>) |_gpu| mode.put(1);
    nvmlDeviceGetTotalEccErrors(kind: c_uint, counter: c_uint, count: OutPtr<u64>) |gpu| count.put(total_errors(gpu, kind, counter)?);
    nvmlDeviceGetDetailedEccErrors(kind: c_uint, counter: c_uint, counts: OutPtr<EccErrorCounts>) |gpu| {
        let device_memory = count_at(gpu, kind, counter, DRAM)?;
        counts.put(EccErrorCounts { l1: 0, l2: 0, device_memory, register_file: 0 })
    };
    nvmlDeviceGetMemoryErrorCounter(kind: c_uint, counter: c_uint, location: c_uint, count: OutPtr<u64>) |gpu| {
        count.put(count_at(gpu, kind, counter, location)?)
    };
    nvmlDeviceGetRemappedRows(corrected: OutPtr<c_uint>, uncorrected: OutPtr<c_uint>, pending: OutPtr<c_uint>, failed: OutPtr<c_uint>) |gpu| {
        let remap = remapper(gpu)?;
        corrected.put(remap.corrected_rows)?;
        uncorrected.put(remap.uncorrected_rows)?;
        pending.put(u32::from(remap.pending))?;
        failed.put(u32::from(remap.failed))
    };
    // This struct has no version member.
    nvmlDeviceGetRemappedRows_v2(rows: OutPtr<RemappedRowsV2>) |gpu| {
        let remap = remapper(gpu)?;
        rows.put(RemappedRowsV2 {
            corrected: remap.corrected_rows,
            corrected_inactive: 0,
            uncorrected: remap.uncorrected_rows,
            uncorrected_inactive: 0,
            pending: u32::from(remap.pending),
            failed: u32::from(remap.failed),
        })
    };
    nvmlDeviceGetRowRemapperHistogram(histogram: OutPtr<RowRemapperHistogram>) |gpu| {
        let banks = remapper(gpu)?.banks;
        histogram.put(RowRemapperHistogram { max: banks.max, high: banks.high, partial: banks.partial, low: banks.low, none: banks.none })
    };
    nvmlDeviceGetRetiredPages(cause: c_uint, count: OutPtr<c_uint>, addresses: OutArray<u64>) |gpu| {
        addresses.fill(count, retired(gpu, cause)?)
    };
    nvmlDeviceGetRetiredPages_v2(cause: c_uint, count: OutPtr<c_uint>, addresses: OutArray<u64>, times: OutArray<u64>) |gpu| {
        let pages = retired(gpu, cause)?;
        addresses.fill(count, pages)?;
        times.put(&vec![0; pages.len()])
    };
    nvmlDeviceGetRetiredPagesPendingStatus(pending: OutPtr<c_uint>) |gpu| {
        pending.put(u32::from(gpu.retired_pages.as_ref().ok_or(ErrorCode::NOT_SUPPORTED)?.pending))
    };
    nvmlDeviceGetSramEccErrorStatus(status: OutPtr<EccSramErrorStatus>) |gpu| status.change_version(1, |status| {
        let (volatile, aggregate) = (gpu.ecc.volatile, gpu.ecc.aggregate);
        status.aggregate_parity = aggregate.sram_uncorrected_parity;
        status.aggregate_secded = aggregate.sram_uncorrected_secded;
        status.aggregate_corrected = aggregate.sram_corrected;
        status.volatile_parity = volatile.sram_uncorrected_parity;
        status.volatile_secded = volatile.sram_uncorrected_secded;
        status.volatile_corrected = volatile.sram_corrected;
        status.l2 = aggregate.sram_uncorrected();
        (status.sm, status.pcie, status.microcontroller, status.other) = (0, 0, 0, 0);
        status.threshold_exceeded = u32::from(gpu.ecc.sram_threshold_exceeded);
    });
    nvmlDeviceGetSramUniqueUncorrectedEccErrorCounts(counts: OutPtr<[u64; 2]>) |_gpu| {
        if counts.version()? == struct_version::<[u64; 2]>(1) { Err(ErrorCode::NOT_SUPPORTED) } else { Err(ErrorCode::VERSION_MISMATCH) }
    };
    nvmlDeviceGetRepairStatus(status: OutPtr<RepairStatus>) |gpu| status.change_version(1, |status| {
        status.channel = u32::from(gpu.ecc.channel_repair_pending);
        status.tpc = u32::from(gpu.ecc.tpc_repair_pending);
    });
    nvmlDeviceGetUnrepairableMemoryFlag_v1(flag: OutPtr<UnrepairableMemory>) |gpu| {
        flag.put(UnrepairableMemory { unrepairable: u32::from(gpu.ecc.unrepairable_memory) })
    };
    nvmlDeviceGetDramEncryptionMode(_current: OutPtr<VersionOnly>, _pending: OutPtr<VersionOnly>) |_gpu| Err(ErrorCode::NOT_SUPPORTED);
}

/// NVML's error locations that current GPUs use.
const DRAM: u32 = 2;
const SRAM: u32 = 7;

fn counts(gpu: &SimGpu, counter: u32) -> Result<&EccCounts, ErrorCode> {
    if !gpu.ecc.enabled {
        return Err(ErrorCode::NOT_SUPPORTED);
    }
    match counter {
        0 => Ok(&gpu.ecc.volatile),
        1 => Ok(&gpu.ecc.aggregate),
        _ => Err(ErrorCode::INVALID_ARGUMENT),
    }
}

/// Error total. `kind`: 0 corrected, 1 uncorrected. `counter`: 0 volatile, 1 aggregate.
pub(crate) fn total_errors(gpu: &SimGpu, kind: u32, counter: u32) -> Result<u64, ErrorCode> {
    let counts = counts(gpu, counter)?;
    match kind {
        0 => Ok(counts.corrected()),
        1 => Ok(counts.uncorrected()),
        _ => Err(ErrorCode::INVALID_ARGUMENT),
    }
}

fn count_at(gpu: &SimGpu, kind: u32, counter: u32, location: u32) -> Result<u64, ErrorCode> {
    let counts = counts(gpu, counter)?;
    match (kind, location) {
        (0, DRAM) => Ok(counts.dram_corrected),
        (1, DRAM) => Ok(counts.dram_uncorrected),
        (0, SRAM) => Ok(counts.sram_corrected),
        (1, SRAM) => Ok(counts.sram_uncorrected()),
        (0 | 1, 0..=6) => Err(ErrorCode::NOT_SUPPORTED),
        _ => Err(ErrorCode::INVALID_ARGUMENT),
    }
}

pub(crate) fn remapper(gpu: &GpuView) -> Result<&farrier_sim::gpu::Remap, ErrorCode> {
    if gpu.remap.supported { Ok(&gpu.remap) } else { Err(ErrorCode::NOT_SUPPORTED) }
}

fn retired(gpu: &GpuView, cause: u32) -> Result<&[u64], ErrorCode> {
    let pages: fn(&RetiredPages) -> &[u64] = match cause {
        0 => |pages| &pages.single_bit,
        1 => |pages| &pages.double_bit,
        _ => return Err(ErrorCode::INVALID_ARGUMENT),
    };
    gpu.retired_pages.as_ref().map(pages).ok_or(ErrorCode::NOT_SUPPORTED)
}
