//! Utilisation and its sample rings.

use std::ffi::c_uint;

use crate::abi::{OutArray, OutPtr};
use crate::error_code::{ErrorCode, NvmlResult};
use crate::library::GpuView;
use crate::structs::{FbcStats, Sample, Utilization};

/// Sampling period that the driver reports for encoder, decoder and similar engines.
const ENGINE_PERIOD_US: u32 = 100_000;

device_calls! {
    nvmlDeviceGetUtilizationRates(rates: OutPtr<Utilization>) |gpu| {
        // NVML reports no utilisation for a GPU in MIG mode.
        if gpu.mig.as_ref().is_some_and(|mig| mig.enabled) {
            return Err(ErrorCode::NOT_SUPPORTED);
        }
        rates.put(Utilization { gpu: gpu.utilisation.gpu_percent, memory: gpu.utilisation.memory_percent })
    };
    nvmlDeviceGetEncoderUtilization(percent: OutPtr<c_uint>, period: OutPtr<c_uint>) |gpu| engine(gpu.utilisation.encoder_percent, percent, period);
    nvmlDeviceGetDecoderUtilization(percent: OutPtr<c_uint>, period: OutPtr<c_uint>) |gpu| engine(gpu.utilisation.decoder_percent, percent, period);
    nvmlDeviceGetJpgUtilization(percent: OutPtr<c_uint>, period: OutPtr<c_uint>) |gpu| engine(gpu.utilisation.jpeg_percent, percent, period);
    nvmlDeviceGetOfaUtilization(percent: OutPtr<c_uint>, period: OutPtr<c_uint>) |gpu| engine(gpu.utilisation.optical_flow_percent, percent, period);
    nvmlDeviceGetEncoderCapacity(query: c_uint, capacity: OutPtr<c_uint>) |_gpu| match query {
        0 | 1 => capacity.put(100),
        _ => Err(ErrorCode::NOT_SUPPORTED),
    };
    nvmlDeviceGetEncoderStats(sessions: OutPtr<c_uint>, fps: OutPtr<c_uint>, latency: OutPtr<c_uint>) |_gpu| {
        sessions.put(0)?;
        fps.put(0)?;
        latency.put(0)
    };
    nvmlDeviceGetEncoderSessions(count: OutPtr<c_uint>, _sessions: OutArray<u32>) |_gpu| count.put(0);
    nvmlDeviceGetFBCStats(stats: OutPtr<FbcStats>) |_gpu| stats.put(FbcStats { sessions: 0, fps: 0, latency: 0 });
    nvmlDeviceGetFBCSessions(count: OutPtr<c_uint>, _sessions: OutArray<u32>) |_gpu| count.put(0);
    nvmlDeviceGetSamples(kind: c_uint, last_seen_us: u64, value_type: OutPtr<c_uint>, count: OutPtr<c_uint>, samples: OutArray<Sample>) |gpu| {
        put_samples(gpu, kind, last_seen_us, value_type, count, samples)
    };
}

fn engine(busy: u32, percent: OutPtr<c_uint>, period: OutPtr<c_uint>) -> NvmlResult {
    percent.put(busy)?;
    period.put(ENGINE_PERIOD_US)
}

/// The driver's sample ring: length, period in µs and current value. Modelled on a real H200.
fn ring(gpu: &GpuView, kind: u32) -> Result<(u32, u64, Option<u32>), ErrorCode> {
    let busy = &gpu.utilisation;
    Ok(match kind {
        0 => (120, 20_000, Some(gpu.power.average_mw)),
        1 => (72, 200_000, Some(busy.gpu_percent)),
        2 => (72, 200_000, Some(busy.memory_percent)),
        3 => (72, 200_000, Some(busy.encoder_percent)),
        4 => (72, 200_000, Some(busy.decoder_percent)),
        // The rings of the clocks are always empty.
        5 | 6 => (100, 20_000, None),
        8 => (72, 200_000, Some(busy.jpeg_percent)),
        _ => return Err(ErrorCode::INVALID_ARGUMENT),
    })
}

fn put_samples(
    gpu: &GpuView,
    kind: u32,
    last_seen_us: u64,
    value_type: OutPtr<u32>,
    count: OutPtr<u32>,
    samples: OutArray<Sample>,
) -> NvmlResult {
    let (length, period_us, value) = ring(gpu, kind)?;
    // `NVML_VALUE_TYPE_UNSIGNED_INT`.
    value_type.put(1)?;
    if samples.is_null() {
        return count.put(length);
    }
    let value = value.ok_or(ErrorCode::NOT_FOUND)?;
    let room = u64::from(count.get()?.min(length.saturating_sub(1)));
    let newest = gpu.now_unix_us() / period_us;
    let oldest = newest.saturating_sub(room).max(last_seen_us / period_us);
    let new_samples: Vec<Sample> = (oldest + 1..=newest)
        .map(|tick| Sample {
            timestamp_us: tick.saturating_mul(period_us),
            value: u64::from(value),
        })
        .collect();
    if new_samples.is_empty() {
        return Err(ErrorCode::NOT_FOUND);
    }
    count.put(u32::try_from(new_samples.len()).map_err(|_| ErrorCode::UNKNOWN)?)?;
    samples.put(&new_samples)
}
