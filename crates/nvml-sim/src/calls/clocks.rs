//! Clock frequencies and throttling.

use std::ffi::c_uint;

use farrier_sim::gpu::Clocks;

use crate::abi::{OutArray, OutPtr, fixed_text};
use crate::error_code::{ErrorCode, NvmlResult};
use crate::library::GpuView;
use crate::structs::{ClockOffset, DynamicPstates, PerfText, PstateUtilization, ViolationTime};

const GRAPHICS: u32 = 0;
const SM: u32 = 1;
const MEMORY: u32 = 2;
const VIDEO: u32 = 3;

device_calls! {
    nvmlDeviceGetClockInfo(clock: c_uint, rate: OutPtr<c_uint>) |gpu| rate.put(current(&gpu.clocks, clock)?);
    nvmlDeviceGetMaxClockInfo(clock: c_uint, rate: OutPtr<c_uint>) |gpu| rate.put(maximum(&gpu.clocks, clock)?);
    nvmlDeviceGetApplicationsClock(clock: c_uint, rate: OutPtr<c_uint>) |gpu| rate.put(application(&gpu.clocks, clock)?);
    nvmlDeviceGetDefaultApplicationsClock(clock: c_uint, rate: OutPtr<c_uint>) |gpu| rate.put(default(&gpu.clocks, clock)?);
    nvmlDeviceGetMaxCustomerBoostClock(clock: c_uint, rate: OutPtr<c_uint>) |gpu| rate.put(boost(&gpu.clocks, clock)?);
    nvmlDeviceGetClock(clock: c_uint, which: c_uint, rate: OutPtr<c_uint>) |gpu| rate.put(match which {
        0 => current(&gpu.clocks, clock)?,
        1 => application(&gpu.clocks, clock)?,
        2 => default(&gpu.clocks, clock)?,
        3 => boost(&gpu.clocks, clock)?,
        _ => return Err(ErrorCode::INVALID_ARGUMENT),
    });
    nvmlDeviceGetMinMaxClockOfPState(clock: c_uint, state: c_uint, min: OutPtr<c_uint>, max: OutPtr<c_uint>) |gpu| {
        let (low, high) = range_in_state(&gpu.clocks, clock, state)?;
        min.put(low)?;
        max.put(high)
    };
    nvmlDeviceGetSupportedMemoryClocks(count: OutPtr<c_uint>, rates: OutArray<c_uint>) |gpu| {
        rates.fill(count, &gpu.clocks.supported_memory_mhz)
    };
    nvmlDeviceGetSupportedGraphicsClocks(memory: c_uint, count: OutPtr<c_uint>, rates: OutArray<c_uint>) |gpu| {
        if !gpu.clocks.supported_memory_mhz.contains(&memory) {
            return Err(ErrorCode::NOT_FOUND);
        }
        rates.fill(count, &gpu.clocks.supported_graphics_mhz())
    };
    nvmlDeviceGetSupportedPerformanceStates(states: OutArray<c_uint>, size: c_uint) |gpu| {
        let room = size as usize / size_of::<c_uint>();
        let mut supported: Vec<u32> = performance_states(&gpu.clocks);
        supported.reverse();
        supported.resize(room.max(supported.len()), UNKNOWN_STATE);
        if supported.len() > room { Err(ErrorCode::INSUFFICIENT_SIZE) } else { states.put(&supported) }
    };
    nvmlDeviceGetPerformanceState(state: OutPtr<c_uint>) |gpu| state.put(gpu.clocks.performance_state);
    nvmlDeviceGetPowerState(state: OutPtr<c_uint>) |gpu| state.put(gpu.clocks.performance_state);
    nvmlDeviceGetPerformanceModes(modes: OutPtr<PerfText>) |gpu| modes.change_version(1, |modes| {
        let states: Vec<String> = (0..gpu.clocks.supported_memory_mhz.len())
            .rev()
            .enumerate()
            .map(|(number, index)| format!("perf={number}, {}", rates(&gpu.clocks, gpu.clocks.supported_memory_mhz[index])))
            .collect();
        modes.text = fixed_text(&states.join(" ; "));
    });
    nvmlDeviceGetCurrentClockFreqs(text: OutPtr<PerfText>) |gpu| text.change_version(1, |text| {
        text.text = fixed_text(&rates(&gpu.clocks, gpu.clocks.current_mhz.memory));
    });
    nvmlDeviceGetClockOffsets(offset: OutPtr<ClockOffset>) |_gpu| offset.change_version(1, |offset| {
        (offset.offset_mhz, offset.min_mhz, offset.max_mhz) = (0, 0, 0);
    });
    nvmlDeviceGetGpcClkVfOffset(offset: OutPtr<i32>) |_gpu| offset.put(0);
    nvmlDeviceGetMemClkVfOffset(offset: OutPtr<i32>) |_gpu| offset.put(0);
    nvmlDeviceGetGpcClkMinMaxVfOffset(min: OutPtr<i32>, max: OutPtr<i32>) |_gpu| no_offsets(min, max);
    nvmlDeviceGetMemClkMinMaxVfOffset(min: OutPtr<i32>, max: OutPtr<i32>) |_gpu| no_offsets(min, max);
    nvmlDeviceGetCurrentClocksThrottleReasons(reasons: OutPtr<u64>) |gpu| reasons.put(gpu.clock_events.mask());
    nvmlDeviceGetCurrentClocksEventReasons(reasons: OutPtr<u64>) |gpu| reasons.put(gpu.clock_events.mask());
    nvmlDeviceGetSupportedClocksThrottleReasons(reasons: OutPtr<u64>) |_gpu| reasons.put(0x1ff);
    nvmlDeviceGetSupportedClocksEventReasons(reasons: OutPtr<u64>) |_gpu| reasons.put(0x1ff);
    nvmlDeviceGetViolationStatus(policy: c_uint, time: OutPtr<ViolationTime>) |gpu| {
        time.put(ViolationTime { reference_us: gpu.now_unix_us(), violation_ns: violation_ns(gpu, policy)? })
    };
    nvmlDeviceGetDynamicPstatesInfo(info: OutPtr<DynamicPstates>) |gpu| {
        let busy = [gpu.utilisation.gpu_percent, gpu.utilisation.memory_percent, gpu.utilisation.decoder_percent, 0];
        let mut utilization = [PstateUtilization { present: 0, percent: 0, increase: 0, decrease: 0 }; 8];
        for (entry, percent) in utilization.iter_mut().zip(busy) {
            (entry.present, entry.percent) = (1, percent);
        }
        info.put(DynamicPstates { flags: 0, utilization })
    };
}

/// `NVML_PSTATE_UNKNOWN`, which fills the rest of the list of P-states.
const UNKNOWN_STATE: u32 = 32;

fn current(clocks: &Clocks, clock: u32) -> Result<u32, ErrorCode> {
    match clock {
        GRAPHICS => Ok(clocks.current_mhz.graphics),
        SM => Ok(clocks.current_mhz.sm),
        MEMORY => Ok(clocks.current_mhz.memory),
        VIDEO => Ok(clocks.current_mhz.video),
        4 => Err(ErrorCode::NOT_SUPPORTED),
        _ => Err(ErrorCode::INVALID_ARGUMENT),
    }
}

fn maximum(clocks: &Clocks, clock: u32) -> Result<u32, ErrorCode> {
    match clock {
        GRAPHICS => Ok(clocks.max_mhz.graphics),
        SM => Ok(clocks.max_mhz.sm),
        MEMORY => Ok(clocks.max_mhz.memory),
        VIDEO => Ok(clocks.max_mhz.video),
        _ => Err(ErrorCode::INVALID_ARGUMENT),
    }
}

fn application(clocks: &Clocks, clock: u32) -> Result<u32, ErrorCode> {
    match clock {
        GRAPHICS | SM => Ok(clocks.application_graphics_mhz),
        MEMORY => Ok(clocks.application_memory_mhz),
        VIDEO => Err(ErrorCode::NOT_SUPPORTED),
        _ => Err(ErrorCode::INVALID_ARGUMENT),
    }
}

fn default(clocks: &Clocks, clock: u32) -> Result<u32, ErrorCode> {
    match clock {
        GRAPHICS | SM => Ok(clocks.default_graphics_mhz),
        MEMORY => Ok(clocks.default_memory_mhz),
        VIDEO => Err(ErrorCode::NOT_SUPPORTED),
        _ => Err(ErrorCode::INVALID_ARGUMENT),
    }
}

fn boost(clocks: &Clocks, clock: u32) -> Result<u32, ErrorCode> {
    match clock {
        GRAPHICS | SM => Ok(clocks.max_mhz.graphics),
        MEMORY | VIDEO => Err(ErrorCode::NOT_SUPPORTED),
        _ => Err(ErrorCode::INVALID_ARGUMENT),
    }
}

/// The supported P-states, one per memory clock. 0 is the fastest, followed by 2.
fn performance_states(clocks: &Clocks) -> Vec<u32> {
    [0, 2, 5, 8].into_iter().take(clocks.supported_memory_mhz.len().max(1)).collect()
}

fn range_in_state(clocks: &Clocks, clock: u32, state: u32) -> Result<(u32, u32), ErrorCode> {
    if clock > VIDEO || state >= UNKNOWN_STATE {
        return Err(ErrorCode::INVALID_ARGUMENT);
    }
    // A real GPU also returns `UNKNOWN` for a P-state that it does not support.
    let index = performance_states(clocks)
        .iter()
        .position(|supported| *supported == state)
        .ok_or(ErrorCode::UNKNOWN)?;
    Ok(match clock {
        MEMORY => {
            let rate =
                clocks.supported_memory_mhz.get(index).copied().unwrap_or(clocks.max_mhz.memory);
            (rate, rate)
        }
        VIDEO => (clocks.current_mhz.video.min(clocks.max_mhz.video), clocks.max_mhz.video),
        _ => (clocks.graphics_floor_mhz, clocks.max_mhz.graphics),
    })
}

fn rates(clocks: &Clocks, memory_mhz: u32) -> String {
    let (now, floor, top) =
        (clocks.current_mhz.graphics, clocks.graphics_floor_mhz, clocks.max_mhz.graphics);
    let transfers = memory_mhz.saturating_mul(2);
    format!(
        "nvclock={now}, nvclockmin={floor}, nvclockmax={top}, nvclockeditable=0, memclock={memory_mhz}, memclockmin={memory_mhz}, \
         memclockmax={memory_mhz}, memclockeditable=0, memTransferRate={transfers}, memTransferRatemin={transfers}, \
         memTransferRatemax={transfers}, memTransferRateeditable=0"
    )
}

fn no_offsets(min: OutPtr<i32>, max: OutPtr<i32>) -> NvmlResult {
    min.put(0)?;
    max.put(0)
}

/// Violation time of a policy. It is computed from the throttle counters.
pub(crate) fn violation_ns(gpu: &GpuView, policy: u32) -> Result<u64, ErrorCode> {
    let throttled = gpu.clock_events.throttled_at(gpu.now_unix_ms());
    let throttled_us = match policy {
        0 => throttled.sw_power_cap,
        1 => throttled.sw_thermal.saturating_add(throttled.hw_thermal),
        2 => throttled.sync_boost,
        3 => throttled.hw_power_brake,
        4 | 5 | 10 | 11 => 0,
        _ => return Err(ErrorCode::INVALID_ARGUMENT),
    };
    Ok(throttled_us.saturating_mul(1000))
}
