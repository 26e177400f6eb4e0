//! Processes, their utilisation and accounting.

use std::ffi::c_uint;

use farrier_sim::SimGpu;
use farrier_sim::gpu::{ContextKind, Process};

use crate::abi::{OutArray, OutPtr, struct_version};
use crate::error_code::{ErrorCode, NvmlResult};
use crate::library::GpuView;
use crate::structs::{
    AccountingStats, ProcessDetail, ProcessDetailList, ProcessInfo, ProcessInfoV1,
    ProcessUtilizationInfo, ProcessUtilizationSample, ProcessesUtilizationInfo,
};

/// MIG is not simulated, so processes have no instance.
const NO_INSTANCE: u32 = u32::MAX;
/// Length of the driver's sample ring.
const SAMPLES_MAX: u32 = 72;

device_calls! {
    nvmlDeviceGetComputeRunningProcesses(count: OutPtr<c_uint>, infos: OutArray<ProcessInfoV1>) |gpu| infos.fill(count, &process_infos_v1(gpu, ContextKind::Compute));
    nvmlDeviceGetComputeRunningProcesses_v2(count: OutPtr<c_uint>, infos: OutArray<ProcessInfo>) |gpu| infos.fill(count, &process_infos(gpu, ContextKind::Compute));
    nvmlDeviceGetComputeRunningProcesses_v3(count: OutPtr<c_uint>, infos: OutArray<ProcessInfo>) |gpu| infos.fill(count, &process_infos(gpu, ContextKind::Compute));
    nvmlDeviceGetGraphicsRunningProcesses(count: OutPtr<c_uint>, infos: OutArray<ProcessInfoV1>) |gpu| infos.fill(count, &process_infos_v1(gpu, ContextKind::Graphics));
    nvmlDeviceGetGraphicsRunningProcesses_v2(count: OutPtr<c_uint>, infos: OutArray<ProcessInfo>) |gpu| infos.fill(count, &process_infos(gpu, ContextKind::Graphics));
    nvmlDeviceGetGraphicsRunningProcesses_v3(count: OutPtr<c_uint>, infos: OutArray<ProcessInfo>) |gpu| infos.fill(count, &process_infos(gpu, ContextKind::Graphics));
    nvmlDeviceGetMPSComputeRunningProcesses(count: OutPtr<c_uint>, infos: OutArray<ProcessInfoV1>) |gpu| infos.fill(count, &process_infos_v1(gpu, ContextKind::Mps));
    nvmlDeviceGetMPSComputeRunningProcesses_v2(count: OutPtr<c_uint>, infos: OutArray<ProcessInfo>) |gpu| infos.fill(count, &process_infos(gpu, ContextKind::Mps));
    nvmlDeviceGetMPSComputeRunningProcesses_v3(count: OutPtr<c_uint>, infos: OutArray<ProcessInfo>) |gpu| infos.fill(count, &process_infos(gpu, ContextKind::Mps));
    nvmlDeviceGetRunningProcessDetailList(list: OutPtr<ProcessDetailList>) |gpu| put_details(gpu, list);
    nvmlDeviceGetProcessUtilization(samples: OutArray<ProcessUtilizationSample>, count: OutPtr<c_uint>, last_seen_us: u64) |gpu| {
        if samples.is_null() {
            count.put(SAMPLES_MAX)?;
            return Err(ErrorCode::INSUFFICIENT_SIZE);
        }
        let new_samples: Vec<ProcessUtilizationSample> = utilisation_samples(gpu, last_seen_us)?
            .map(|(timestamp_us, process)| ProcessUtilizationSample {
                pid: process.pid,
                timestamp_us,
                sm: process.sm_percent,
                memory: process.memory_percent,
                encoder: 0,
                decoder: 0,
            })
            .collect();
        samples.fill(count, &new_samples)
    };
    nvmlDeviceGetProcessesUtilizationInfo(info: OutPtr<ProcessesUtilizationInfo>) |gpu| put_utilisation(gpu, info);
    nvmlDeviceGetAccountingMode(mode: OutPtr<c_uint>) |gpu| mode.put(u32::from(gpu.modes.accounting));
    nvmlDeviceGetAccountingBufferSize(size: OutPtr<c_uint>) |_gpu| size.put(4000);
    nvmlDeviceGetAccountingPids(count: OutPtr<c_uint>, pids: OutArray<c_uint>) |gpu| {
        let accounted: Vec<u32> = if gpu.modes.accounting { gpu.processes.iter().map(|process| process.pid).collect() } else { Vec::new() };
        // A real GPU requires a buffer even for an empty list.
        if pids.is_null() {
            count.put(u32::try_from(accounted.len()).map_err(|_| ErrorCode::UNKNOWN)?)?;
            return Err(ErrorCode::INSUFFICIENT_SIZE);
        }
        pids.fill(count, &accounted)
    };
    nvmlDeviceGetAccountingStats(pid: c_uint, stats: OutPtr<AccountingStats>) |gpu| {
        let found = gpu.processes.iter().find(|process| process.pid == pid && gpu.modes.accounting);
        let process = found.ok_or(ErrorCode::NOT_FOUND)?;
        stats.put(AccountingStats {
            gpu: process.sm_percent,
            memory: process.memory_percent,
            max_memory: process.used_bytes,
            time_ms: 0,
            start_us: gpu.node.booted_unix_ms.saturating_mul(1000),
            running: 1,
            reserved: [0; 5],
        })
    };
}

fn processes_of_kind(gpu: &SimGpu, kind: ContextKind) -> impl Iterator<Item = &Process> {
    gpu.processes.iter().filter(move |process| process.kind == kind)
}

fn process_infos_v1(gpu: &SimGpu, kind: ContextKind) -> Vec<ProcessInfoV1> {
    processes_of_kind(gpu, kind)
        .map(|process| ProcessInfoV1 { pid: process.pid, used_memory: process.used_bytes })
        .collect()
}

fn process_infos(gpu: &SimGpu, kind: ContextKind) -> Vec<ProcessInfo> {
    let info = |process: &Process| ProcessInfo {
        pid: process.pid,
        used_memory: process.used_bytes,
        gpu_instance: NO_INSTANCE,
        compute_instance: NO_INSTANCE,
    };
    processes_of_kind(gpu, kind).map(info).collect()
}

fn put_details(gpu: &GpuView, list: OutPtr<ProcessDetailList>) -> NvmlResult {
    let request = list.get()?;
    let kind = match request.mode {
        0 => ContextKind::Compute,
        1 => ContextKind::Graphics,
        2 => ContextKind::Mps,
        _ => return Err(ErrorCode::INVALID_ARGUMENT),
    };
    if request.version != struct_version::<ProcessDetailList>(1) {
        return Err(ErrorCode::VERSION_MISMATCH);
    }
    let details: Vec<ProcessDetail> = processes_of_kind(gpu, kind)
        .map(|process| ProcessDetail {
            pid: process.pid,
            used_memory: process.used_bytes,
            gpu_instance: NO_INSTANCE,
            compute_instance: NO_INSTANCE,
            protected_memory: 0,
        })
        .collect();
    let needed = u32::try_from(details.len()).map_err(|_| ErrorCode::UNKNOWN)?;
    list.change(|list| list.count = needed)?;
    if request.count < needed || (needed > 0 && request.processes.is_null()) {
        return Err(ErrorCode::INSUFFICIENT_SIZE);
    }
    request.processes.put(&details)
}

/// One sample per process, taken now. Fails if the caller's last sample is not older.
fn utilisation_samples(
    gpu: &GpuView,
    last_seen_us: u64,
) -> Result<impl Iterator<Item = (u64, &Process)>, ErrorCode> {
    let now = gpu.now_unix_us();
    if gpu.processes.is_empty() || now <= last_seen_us {
        return Err(ErrorCode::NOT_FOUND);
    }
    Ok(gpu.processes.iter().map(move |process| (now, process)))
}

fn put_utilisation(gpu: &GpuView, info: OutPtr<ProcessesUtilizationInfo>) -> NvmlResult {
    let request = info.get()?;
    if request.version != struct_version::<ProcessesUtilizationInfo>(1) {
        return Err(ErrorCode::VERSION_MISMATCH);
    }
    if request.samples.is_null() {
        info.change(|info| info.count = SAMPLES_MAX)?;
        return Err(ErrorCode::INSUFFICIENT_SIZE);
    }
    let samples: Vec<ProcessUtilizationInfo> = utilisation_samples(gpu, request.last_seen_us)?
        .map(|(timestamp_us, process)| ProcessUtilizationInfo {
            timestamp_us,
            pid: process.pid,
            sm: process.sm_percent,
            memory: process.memory_percent,
            encoder: 0,
            decoder: 0,
            jpeg: 0,
            optical_flow: 0,
        })
        .collect();
    let needed = u32::try_from(samples.len()).map_err(|_| ErrorCode::UNKNOWN)?;
    info.change(|info| info.count = needed)?;
    if request.count < needed {
        Err(ErrorCode::INSUFFICIENT_SIZE)
    } else {
        request.samples.put(&samples)
    }
}
