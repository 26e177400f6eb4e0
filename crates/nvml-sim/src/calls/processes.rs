//! What runs on the device.

use std::ffi::c_uint;

use farrier_sim::Gpu;
use farrier_sim::gpu::{Process, ProcessKind};

use crate::abi::{Out, OutArray, version_of};
use crate::code::{Answer, Code};
use crate::library::View;
use crate::structs::{
    AccountingStats, ProcessDetail, ProcessDetailList, ProcessInfo, ProcessInfoV1,
    ProcessUtilizationInfo, ProcessUtilizationSample, ProcessesUtilizationInfo,
};

/// No instance: the GPU is not partitioned.
const NO_INSTANCE: u32 = u32::MAX;
/// Samples that the driver keeps.
const SAMPLES: u32 = 72;

device_calls! {
    nvmlDeviceGetComputeRunningProcesses(count: Out<c_uint>, infos: OutArray<ProcessInfoV1>) |gpu| infos.fill(count, &old(gpu, ProcessKind::Compute));
    nvmlDeviceGetComputeRunningProcesses_v2(count: Out<c_uint>, infos: OutArray<ProcessInfo>) |gpu| infos.fill(count, &new(gpu, ProcessKind::Compute));
    nvmlDeviceGetComputeRunningProcesses_v3(count: Out<c_uint>, infos: OutArray<ProcessInfo>) |gpu| infos.fill(count, &new(gpu, ProcessKind::Compute));
    nvmlDeviceGetGraphicsRunningProcesses(count: Out<c_uint>, infos: OutArray<ProcessInfoV1>) |gpu| infos.fill(count, &old(gpu, ProcessKind::Graphics));
    nvmlDeviceGetGraphicsRunningProcesses_v2(count: Out<c_uint>, infos: OutArray<ProcessInfo>) |gpu| infos.fill(count, &new(gpu, ProcessKind::Graphics));
    nvmlDeviceGetGraphicsRunningProcesses_v3(count: Out<c_uint>, infos: OutArray<ProcessInfo>) |gpu| infos.fill(count, &new(gpu, ProcessKind::Graphics));
    nvmlDeviceGetMPSComputeRunningProcesses(count: Out<c_uint>, infos: OutArray<ProcessInfoV1>) |gpu| infos.fill(count, &old(gpu, ProcessKind::Mps));
    nvmlDeviceGetMPSComputeRunningProcesses_v2(count: Out<c_uint>, infos: OutArray<ProcessInfo>) |gpu| infos.fill(count, &new(gpu, ProcessKind::Mps));
    nvmlDeviceGetMPSComputeRunningProcesses_v3(count: Out<c_uint>, infos: OutArray<ProcessInfo>) |gpu| infos.fill(count, &new(gpu, ProcessKind::Mps));
    nvmlDeviceGetRunningProcessDetailList(list: Out<ProcessDetailList>) |gpu| put_details(gpu, list);
    nvmlDeviceGetProcessUtilization(samples: OutArray<ProcessUtilizationSample>, count: Out<c_uint>, last_seen_us: u64) |gpu| {
        if samples.is_null() {
            count.put(SAMPLES)?;
            return Err(Code::INSUFFICIENT_SIZE);
        }
        let taken: Vec<ProcessUtilizationSample> = busy(gpu, last_seen_us)?
            .map(|(timestamp_us, process)| ProcessUtilizationSample {
                pid: process.pid,
                timestamp_us,
                sm: process.sm_percent,
                memory: process.memory_percent,
                encoder: 0,
                decoder: 0,
            })
            .collect();
        samples.fill(count, &taken)
    };
    nvmlDeviceGetProcessesUtilizationInfo(info: Out<ProcessesUtilizationInfo>) |gpu| put_utilisation(gpu, info);
    nvmlDeviceGetAccountingMode(mode: Out<c_uint>) |gpu| mode.put(u32::from(gpu.modes.accounting));
    nvmlDeviceGetAccountingBufferSize(size: Out<c_uint>) |_gpu| size.put(4000);
    nvmlDeviceGetAccountingPids(count: Out<c_uint>, pids: OutArray<c_uint>) |gpu| {
        let known: Vec<u32> = if gpu.modes.accounting { gpu.processes.iter().map(|process| process.pid).collect() } else { Vec::new() };
        // A card wants room even for none.
        if pids.is_null() {
            count.put(u32::try_from(known.len()).map_err(|_| Code::UNKNOWN)?)?;
            return Err(Code::INSUFFICIENT_SIZE);
        }
        pids.fill(count, &known)
    };
    nvmlDeviceGetAccountingStats(pid: c_uint, stats: Out<AccountingStats>) |gpu| {
        let found = gpu.processes.iter().find(|process| process.pid == pid && gpu.modes.accounting);
        let process = found.ok_or(Code::NOT_FOUND)?;
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

fn of_kind(gpu: &Gpu, kind: ProcessKind) -> impl Iterator<Item = &Process> {
    gpu.processes.iter().filter(move |process| process.kind == kind)
}

fn old(gpu: &Gpu, kind: ProcessKind) -> Vec<ProcessInfoV1> {
    of_kind(gpu, kind)
        .map(|process| ProcessInfoV1 { pid: process.pid, used_memory: process.used_bytes })
        .collect()
}

fn new(gpu: &Gpu, kind: ProcessKind) -> Vec<ProcessInfo> {
    let info = |process: &Process| ProcessInfo {
        pid: process.pid,
        used_memory: process.used_bytes,
        gpu_instance: NO_INSTANCE,
        compute_instance: NO_INSTANCE,
    };
    of_kind(gpu, kind).map(info).collect()
}

fn put_details(gpu: &View, list: Out<ProcessDetailList>) -> Answer {
    let asked = list.get()?;
    let kind = match asked.mode {
        0 => ProcessKind::Compute,
        1 => ProcessKind::Graphics,
        2 => ProcessKind::Mps,
        _ => return Err(Code::INVALID_ARGUMENT),
    };
    if asked.version != version_of::<ProcessDetailList>(1) {
        return Err(Code::VERSION_MISMATCH);
    }
    let details: Vec<ProcessDetail> = of_kind(gpu, kind)
        .map(|process| ProcessDetail {
            pid: process.pid,
            used_memory: process.used_bytes,
            gpu_instance: NO_INSTANCE,
            compute_instance: NO_INSTANCE,
            protected_memory: 0,
        })
        .collect();
    let needed = u32::try_from(details.len()).map_err(|_| Code::UNKNOWN)?;
    list.change(|list| list.count = needed)?;
    if asked.count < needed || (needed > 0 && asked.processes.is_null()) {
        return Err(Code::INSUFFICIENT_SIZE);
    }
    asked.processes.put(&details)
}

/// One sample a process, if it is newer than the last that the caller saw.
fn busy(gpu: &View, last_seen_us: u64) -> Result<impl Iterator<Item = (u64, &Process)>, Code> {
    let now = gpu.now_unix_us();
    if gpu.processes.is_empty() || now <= last_seen_us {
        return Err(Code::NOT_FOUND);
    }
    Ok(gpu.processes.iter().map(move |process| (now, process)))
}

fn put_utilisation(gpu: &View, info: Out<ProcessesUtilizationInfo>) -> Answer {
    let asked = info.get()?;
    if asked.version != version_of::<ProcessesUtilizationInfo>(1) {
        return Err(Code::VERSION_MISMATCH);
    }
    if asked.samples.is_null() {
        info.change(|info| info.count = SAMPLES)?;
        return Err(Code::INSUFFICIENT_SIZE);
    }
    let samples: Vec<ProcessUtilizationInfo> = busy(gpu, asked.last_seen_us)?
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
    let needed = u32::try_from(samples.len()).map_err(|_| Code::UNKNOWN)?;
    info.change(|info| info.count = needed)?;
    if asked.count < needed { Err(Code::INSUFFICIENT_SIZE) } else { asked.samples.put(&samples) }
}
