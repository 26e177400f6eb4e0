//! MIG mode and profiles. Instances are not simulated.

use std::ffi::{c_uint, c_void};

use crate::abi::{DeviceHandle, OutArray, OutPtr, fixed_text, struct_version};
use crate::error_code::{ErrorCode, NvmlResult};
use crate::library::GpuView;
use crate::structs::{GpuInstanceProfile, GpuInstanceProfileV2};

device_calls! {
    nvmlDeviceGetMigMode(current: OutPtr<c_uint>, pending: OutPtr<c_uint>) |gpu| {
        let mig = gpu.mig.as_ref().ok_or(ErrorCode::NOT_SUPPORTED)?;
        current.put(u32::from(mig.enabled))?;
        pending.put(u32::from(mig.pending))
    };
    nvmlDeviceGetMaxMigDeviceCount(count: OutPtr<c_uint>) |gpu| {
        count.put(gpu.mig.as_ref().filter(|mig| mig.enabled).map_or(0, |mig| mig.instances_max))
    };
    nvmlDeviceIsMigDeviceHandle(is_mig: OutPtr<c_uint>) |_gpu| is_mig.put(0);
    nvmlDeviceGetMigDeviceHandleByIndex(_index: c_uint, _device: OutPtr<DeviceHandle>) |_gpu| Err(ErrorCode::NOT_FOUND);
    nvmlDeviceGetDeviceHandleFromMigDeviceHandle(_device: OutPtr<DeviceHandle>) |_gpu| Err(ErrorCode::INVALID_ARGUMENT);
    nvmlDeviceGetGpuInstanceId(_id: OutPtr<c_uint>) |_gpu| Err(ErrorCode::INVALID_ARGUMENT);
    nvmlDeviceGetComputeInstanceId(_id: OutPtr<c_uint>) |_gpu| Err(ErrorCode::INVALID_ARGUMENT);
    nvmlDeviceGetGpuInstanceById(_id: c_uint, _instance: OutPtr<*const c_void>) |_gpu| Err(ErrorCode::NOT_FOUND);
    nvmlDeviceGetGpuInstances(_profile: c_uint, _instances: OutArray<*const c_void>, count: OutPtr<c_uint>) |gpu| {
        if gpu.mig.is_some() { count.put(0) } else { Err(ErrorCode::NOT_SUPPORTED) }
    };
    nvmlDeviceGetGpuInstanceRemainingCapacity(id: c_uint, count: OutPtr<c_uint>) |gpu| count.put(layout_by_id(gpu, id)?.instances);
    // On a real GPU, a call of version 1 without a buffer fails. The simulation rejects every call
    // of version 1.
    nvmlDeviceGetGpuInstancePossiblePlacements(_id: c_uint, _placements: OutArray<[u32; 2]>, _count: OutPtr<c_uint>) |_gpu| {
        Err(ErrorCode::INVALID_ARGUMENT)
    };
    nvmlDeviceGetGpuInstancePossiblePlacements_v2(id: c_uint, placements: OutArray<[u32; 2]>, count: OutPtr<c_uint>) |gpu| {
        let layout = layout_by_id(gpu, id)?;
        if placements.is_null() {
            return count.put(layout.placements);
        }
        // A placement starts at a multiple of its size.
        let size = layout.eighths;
        let all: Vec<[u32; 2]> = (0..layout.placements).map(|index| [index * size, size]).collect();
        placements.fill(count, &all)
    };
    nvmlDeviceGetGpuInstanceProfileInfo(number: c_uint, info: OutPtr<GpuInstanceProfile>) |gpu| {
        info.put(profile(gpu, number)?.1)
    };
    nvmlDeviceGetGpuInstanceProfileInfoV(number: c_uint, info: OutPtr<GpuInstanceProfileV2>) |gpu| profile_v2(gpu, number, info);
}

/// A MIG profile, as listed by a real H200.
struct ProfileLayout {
    slices: u32,
    /// Share of the memory in eighths.
    eighths: u32,
    /// Profile ID that other calls use.
    id: u32,
    instances: u32,
    placements: u32,
    /// Whether the profile includes the media engines.
    media: bool,
}

/// Profiles by NVML's profile number.
const LAYOUTS: [(u32, ProfileLayout); 7] = [
    (0, ProfileLayout { slices: 1, eighths: 1, id: 19, instances: 7, placements: 7, media: false }),
    (1, ProfileLayout { slices: 2, eighths: 2, id: 14, instances: 3, placements: 3, media: false }),
    (2, ProfileLayout { slices: 3, eighths: 4, id: 9, instances: 2, placements: 2, media: false }),
    (3, ProfileLayout { slices: 4, eighths: 4, id: 5, instances: 1, placements: 1, media: false }),
    (4, ProfileLayout { slices: 7, eighths: 8, id: 0, instances: 1, placements: 1, media: true }),
    (7, ProfileLayout { slices: 1, eighths: 1, id: 20, instances: 1, placements: 7, media: true }),
    (9, ProfileLayout { slices: 1, eighths: 2, id: 15, instances: 4, placements: 4, media: false }),
];

/// Profile IDs that only other GPU models have.
const OTHER_GPU_IDS: [u32; 2] = [6, 10];

fn layout_by_id(gpu: &GpuView, id: u32) -> Result<&'static ProfileLayout, ErrorCode> {
    if gpu.mig.is_none() || OTHER_GPU_IDS.contains(&id) {
        return Err(ErrorCode::NOT_SUPPORTED);
    }
    LAYOUTS
        .iter()
        .map(|(_, layout)| layout)
        .find(|layout| layout.id == id)
        .ok_or(ErrorCode::INVALID_ARGUMENT)
}

/// Multiprocessors of a profile. A slice has an eighth of the GPU's multiprocessors. A profile with
/// more eighths of the memory than slices also gets part of another slice. The profile with seven
/// slices gets all multiprocessors.
fn multiprocessors(all: u32, layout: &ProfileLayout) -> u32 {
    let slice = all / 8;
    match (layout.slices, layout.eighths) {
        (7, _) => all,
        (3, _) => 4 * slice - 4,
        (1, 2) => 2 * slice - 6,
        (slices, _) => slices * slice,
    }
}

fn profile(gpu: &GpuView, number: u32) -> Result<(String, GpuInstanceProfile), ErrorCode> {
    let mig = gpu.mig.as_ref().ok_or(ErrorCode::NOT_SUPPORTED)?;
    let (_, layout) =
        LAYOUTS.iter().find(|(profile, _)| *profile == number).ok_or(ErrorCode::NOT_SUPPORTED)?;
    let memory = mig.memory.iter().find(|memory| memory.eighths == layout.eighths);
    let memory = memory.ok_or(ErrorCode::NOT_SUPPORTED)?;
    let media = if layout.media && layout.slices == 1 { "+me" } else { "" };
    let info = GpuInstanceProfile {
        id: layout.id,
        p2p: 0,
        slices: layout.slices,
        instances: layout.instances,
        multiprocessors: multiprocessors(gpu.board.multiprocessors.max(8), layout),
        copy_engines: if layout.slices == 7 { 8 } else { layout.slices },
        decoders: layout.slices,
        encoders: 0,
        jpeg: layout.slices,
        optical_flow: u32::from(layout.media),
        memory_mb: memory.mib,
    };
    Ok((format!("MIG {}g.{}gb{media}", layout.slices, memory.sold_gb), info))
}

fn profile_v2(gpu: &GpuView, number: u32, out: OutPtr<GpuInstanceProfileV2>) -> NvmlResult {
    let (name, info) = profile(gpu, number)?;
    if out.version()? != struct_version::<GpuInstanceProfileV2>(2) {
        return Err(ErrorCode::VERSION_MISMATCH);
    }
    out.put(GpuInstanceProfileV2 {
        // A real GPU writes 0 as the version.
        version: 0,
        id: info.id,
        p2p: info.p2p,
        slices: info.slices,
        instances: info.instances,
        multiprocessors: info.multiprocessors,
        copy_engines: info.copy_engines,
        decoders: info.decoders,
        encoders: info.encoders,
        jpeg: info.jpeg,
        optical_flow: info.optical_flow,
        memory_mb: info.memory_mb,
        name: fixed_text(&name),
    })
}
