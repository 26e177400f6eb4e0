//! Load faults: utilisation, clocks, power and traffic.

use crate::gpu::{ClockEvents, SimGpu, ThrottleReason};

use super::FaultError;

/// Utilisation as a profiler reports it. `None` leaves a value unchanged. Shares range from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Activity {
    /// Share of time in which a kernel ran.
    pub graphics: Option<f64>,
    /// Share of active multiprocessors.
    pub sm: Option<f64>,
    /// Share of warp slots in use.
    pub occupancy: Option<f64>,
    /// Share of time in which tensor cores were active.
    pub tensor: Option<f64>,
    /// Share of the memory bandwidth in use.
    pub dram: Option<f64>,
    /// Share of time in which the FP64 pipe was active, without the tensor cores.
    pub fp64: Option<f64>,
    /// Share of time in which the FP32 pipe was active, without the tensor cores.
    pub fp32: Option<f64>,
    /// Share of time in which the FP16 pipe was active, without the tensor cores.
    pub fp16: Option<f64>,
    pub integer: Option<f64>,
    /// Rate over all NVLink links together.
    pub nvlink_transmit_bytes_per_s: Option<u64>,
    /// Rate over all NVLink links together.
    pub nvlink_receive_bytes_per_s: Option<u64>,
    /// Rate from the GPU to the host.
    pub pcie_transmit_bytes_per_s: Option<u64>,
    /// Rate from the host to the GPU.
    pub pcie_receive_bytes_per_s: Option<u64>,
}

pub(super) fn activity(
    gpu: &mut SimGpu,
    activity: &Activity,
    now_unix_ms: u64,
) -> Result<(), FaultError> {
    let busy = &mut gpu.utilisation;
    for (share, target) in [
        (activity.sm, &mut busy.sm_percent),
        (activity.occupancy, &mut busy.sm_occupancy_percent),
        (activity.tensor, &mut busy.tensor_percent),
        (activity.dram, &mut busy.dram_percent),
        (activity.fp64, &mut busy.fp64_percent),
        (activity.fp32, &mut busy.fp32_percent),
        (activity.fp16, &mut busy.fp16_percent),
        (activity.integer, &mut busy.integer_percent),
    ] {
        if let Some(share) = share {
            *target = percent(share)?;
        }
    }
    if let Some(share) = activity.graphics {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a share is between 0 and 1"
        )]
        let whole = percent(share)?.round() as u32;
        busy.gpu_percent = whole;
    }
    gpu.nvlink.accumulate_traffic(now_unix_ms);
    let links = &mut gpu.nvlink;
    links.transmit_bytes_per_s =
        activity.nvlink_transmit_bytes_per_s.unwrap_or(links.transmit_bytes_per_s);
    links.receive_bytes_per_s =
        activity.nvlink_receive_bytes_per_s.unwrap_or(links.receive_bytes_per_s);
    gpu.pcie.accumulate_traffic(now_unix_ms);
    let kilobytes = |bytes: u64| u32::try_from(bytes / 1000).unwrap_or(u32::MAX);
    if let Some(bytes) = activity.pcie_transmit_bytes_per_s {
        gpu.pcie.transmit_kb_per_s = kilobytes(bytes);
    }
    if let Some(bytes) = activity.pcie_receive_bytes_per_s {
        gpu.pcie.receive_kb_per_s = kilobytes(bytes);
    }
    Ok(())
}

fn percent(share: f64) -> Result<f64, FaultError> {
    if (0.0..=1.0).contains(&share) {
        Ok(share * 100.0)
    } else {
        Err(FaultError::Share { share: share.to_string() })
    }
}

pub(super) fn throttle(events: &mut ClockEvents, reasons: Vec<ThrottleReason>, now_unix_ms: u64) {
    events.throttled_us = events.throttled_at(now_unix_ms);
    events.since_unix_ms = now_unix_ms;
    events.reasons = reasons;
}

pub(super) fn power(gpu: &mut SimGpu, milliwatts: u32, now_unix_ms: u64) {
    gpu.power.energy_mj = gpu.power.energy_at(now_unix_ms);
    gpu.power.energy_at_unix_ms = now_unix_ms;
    gpu.power.average_mw = milliwatts;
    gpu.power.instant_mw = milliwatts;
}

pub(super) fn power_limit(gpu: &mut SimGpu, milliwatts: u32) -> Result<(), FaultError> {
    let (min_mw, max_mw) = (gpu.power.min_limit_mw, gpu.power.max_limit_mw);
    if (min_mw..=max_mw).contains(&milliwatts) {
        gpu.power.limit_mw = milliwatts;
        Ok(())
    } else {
        Err(FaultError::PowerLimit { min_w: min_mw / 1000, max_w: max_mw / 1000 })
    }
}

pub(super) fn utilisation(
    gpu: &mut SimGpu,
    busy: u32,
    memory: u32,
    now_unix_ms: u64,
) -> Result<(), FaultError> {
    if let Some(value) = [busy, memory].into_iter().find(|value| *value > 100) {
        return Err(FaultError::Percent { value });
    }
    let now = &mut gpu.utilisation;
    now.gpu_percent = busy;
    now.memory_percent = memory;
    // These ratios are typical of training: most multiprocessors are busy, and the tensor cores are
    // active about half of the time.
    now.sm_percent = f64::from(busy) * 0.9;
    now.sm_occupancy_percent = f64::from(busy) * 0.4;
    now.tensor_percent = f64::from(busy) * 0.5;
    now.fp32_percent = f64::from(busy) * 0.1;
    now.dram_percent = f64::from(memory);
    (now.fp64_percent, now.fp16_percent, now.integer_percent) = (0.0, 0.0, 0.0);
    set_clocks(gpu);
    let mut reasons = gpu.clock_events.reasons.clone();
    reasons.retain(|reason| *reason != ThrottleReason::GpuIdle);
    if busy == 0 && reasons.is_empty() {
        reasons.push(ThrottleReason::GpuIdle);
    }
    // This also adds the time up to now to the counters. Throttle reasons other than idle stay
    // active.
    throttle(&mut gpu.clock_events, reasons, now_unix_ms);
    Ok(())
}

/// Sets the clocks as the driver would for the GPU's load and settings.
pub(super) fn set_clocks(gpu: &mut SimGpu) {
    let is_idle = gpu.utilisation.gpu_percent == 0;
    let clocks = &mut gpu.clocks;
    let rate = if is_idle { clocks.graphics_floor_mhz } else { clocks.application_graphics_mhz };
    let rate = clocks
        .locked_graphics_mhz
        .map_or(rate, |range| rate.clamp(range.min, range.max.max(range.min)));
    (clocks.current_mhz.graphics, clocks.current_mhz.sm) = (rate, rate);
    clocks.current_mhz.memory = clocks.max_mhz.memory;
}

/// Makes the GPU idle and not throttled, with the default power limit.
pub(super) fn set_idle(gpu: &mut SimGpu, now_unix_ms: u64) {
    throttle(&mut gpu.clock_events, Vec::new(), now_unix_ms);
    let _ = utilisation(gpu, 0, 0, now_unix_ms);
    gpu.nvlink.accumulate_traffic(now_unix_ms);
    (gpu.nvlink.transmit_bytes_per_s, gpu.nvlink.receive_bytes_per_s) = (0, 0);
    gpu.pcie.accumulate_traffic(now_unix_ms);
    (gpu.pcie.transmit_kb_per_s, gpu.pcie.receive_kb_per_s) = crate::builder::IDLE_PCIE_KB_PER_S;
    gpu.temperature.gpu_c = crate::builder::IDLE_GPU_C;
    gpu.temperature.memory_c = gpu.temperature.memory_c.map(|_| crate::builder::IDLE_MEMORY_C);
    gpu.power.limit_mw = gpu.power.default_limit_mw;
    power(gpu, gpu.power.default_limit_mw / crate::builder::IDLE_POWER_SHARE, now_unix_ms);
}
