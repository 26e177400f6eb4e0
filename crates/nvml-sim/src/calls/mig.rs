//! Partitioning: the mode, and that there are no instances.

use std::ffi::{c_uint, c_void};

use crate::abi::{Device, Out, OutArray, characters, version_of};
use crate::code::{Answer, Code};
use crate::library::View;
use crate::structs::{GpuInstanceProfile, GpuInstanceProfileV2};

device_calls! {
    nvmlDeviceGetMigMode(current: Out<c_uint>, pending: Out<c_uint>) |gpu| {
        let mig = gpu.mig.as_ref().ok_or(Code::NOT_SUPPORTED)?;
        current.put(u32::from(mig.enabled))?;
        pending.put(u32::from(mig.pending))
    };
    nvmlDeviceGetMaxMigDeviceCount(count: Out<c_uint>) |gpu| {
        count.put(gpu.mig.as_ref().filter(|mig| mig.enabled).map_or(0, |mig| mig.instances_max))
    };
    nvmlDeviceIsMigDeviceHandle(is_mig: Out<c_uint>) |_gpu| is_mig.put(0);
    nvmlDeviceGetMigDeviceHandleByIndex(_index: c_uint, _device: Out<Device>) |_gpu| Err(Code::NOT_FOUND);
    nvmlDeviceGetDeviceHandleFromMigDeviceHandle(_device: Out<Device>) |_gpu| Err(Code::INVALID_ARGUMENT);
    nvmlDeviceGetGpuInstanceId(_id: Out<c_uint>) |_gpu| Err(Code::INVALID_ARGUMENT);
    nvmlDeviceGetComputeInstanceId(_id: Out<c_uint>) |_gpu| Err(Code::INVALID_ARGUMENT);
    nvmlDeviceGetGpuInstanceById(_id: c_uint, _instance: Out<*const c_void>) |_gpu| Err(Code::NOT_FOUND);
    nvmlDeviceGetGpuInstances(_profile: c_uint, _instances: OutArray<*const c_void>, count: Out<c_uint>) |gpu| {
        if gpu.mig.is_some() { count.put(0) } else { Err(Code::NOT_SUPPORTED) }
    };
    nvmlDeviceGetGpuInstanceRemainingCapacity(id: c_uint, count: Out<c_uint>) |gpu| count.put(by_id(gpu, id)?.instances);
    // The first version wants room from the start.
    nvmlDeviceGetGpuInstancePossiblePlacements(_id: c_uint, _placements: OutArray<[u32; 2]>, _count: Out<c_uint>) |_gpu| {
        Err(Code::INVALID_ARGUMENT)
    };
    nvmlDeviceGetGpuInstancePossiblePlacements_v2(id: c_uint, placements: OutArray<[u32; 2]>, count: Out<c_uint>) |gpu| {
        let shape = by_id(gpu, id)?;
        if placements.is_null() {
            return count.put(shape.placements);
        }
        // Placements start at every place that is a multiple of their size.
        let size = shape.memory_eighths;
        let all: Vec<[u32; 2]> = (0..shape.placements).map(|place| [place * size, size]).collect();
        placements.fill(count, &all)
    };
    nvmlDeviceGetGpuInstanceProfileInfo(number: c_uint, info: Out<GpuInstanceProfile>) |gpu| {
        info.put(profile(gpu, number)?.1)
    };
    nvmlDeviceGetGpuInstanceProfileInfoV(number: c_uint, info: Out<GpuInstanceProfileV2>) |gpu| profile_v2(gpu, number, info);
}

/// A way to cut the GPU, as a real H200 lists it.
struct Shape {
    slices: u32,
    /// Of the memory, in eighths.
    memory_eighths: u32,
    /// What other calls know it by.
    id: u32,
    instances: u32,
    placements: u32,
    /// Whether it has the media engines that small instances do without.
    media: bool,
}

/// By NVML's number of the profile.
const SHAPES: [(u32, Shape); 7] = [
    (0, Shape { slices: 1, memory_eighths: 1, id: 19, instances: 7, placements: 7, media: false }),
    (1, Shape { slices: 2, memory_eighths: 2, id: 14, instances: 3, placements: 3, media: false }),
    (2, Shape { slices: 3, memory_eighths: 4, id: 9, instances: 2, placements: 2, media: false }),
    (3, Shape { slices: 4, memory_eighths: 4, id: 5, instances: 1, placements: 1, media: false }),
    (4, Shape { slices: 7, memory_eighths: 8, id: 0, instances: 1, placements: 1, media: true }),
    (7, Shape { slices: 1, memory_eighths: 1, id: 20, instances: 1, placements: 7, media: true }),
    (9, Shape { slices: 1, memory_eighths: 2, id: 15, instances: 4, placements: 4, media: false }),
];

/// Ids of profiles that other parts have.
const FOREIGN_IDS: [u32; 2] = [6, 10];

fn by_id(gpu: &View, id: u32) -> Result<&'static Shape, Code> {
    if gpu.mig.is_none() || FOREIGN_IDS.contains(&id) {
        return Err(Code::NOT_SUPPORTED);
    }
    SHAPES.iter().map(|(_, shape)| shape).find(|shape| shape.id == id).ok_or(Code::INVALID_ARGUMENT)
}

/// Multiprocessors of a shape: a slice is an eighth of them, and a shape with more memory than slices gets what is
/// then left over.
fn multiprocessors(all: u32, shape: &Shape) -> u32 {
    let slice = all / 8;
    match (shape.slices, shape.memory_eighths) {
        (7, _) => all,
        (3, _) => 4 * slice - 4,
        (1, 2) => 2 * slice - 6,
        (slices, _) => slices * slice,
    }
}

fn profile(gpu: &View, number: u32) -> Result<(String, GpuInstanceProfile), Code> {
    let mig = gpu.mig.as_ref().ok_or(Code::NOT_SUPPORTED)?;
    let (_, shape) =
        SHAPES.iter().find(|(known, _)| *known == number).ok_or(Code::NOT_SUPPORTED)?;
    let memory = mig.memory.iter().find(|memory| memory.eighths == shape.memory_eighths);
    let memory = memory.ok_or(Code::NOT_SUPPORTED)?;
    let media = if shape.media && shape.slices == 1 { "+me" } else { "" };
    let info = GpuInstanceProfile {
        id: shape.id,
        p2p: 0,
        slices: shape.slices,
        instances: shape.instances,
        multiprocessors: multiprocessors(gpu.board.multiprocessors.max(8), shape),
        copy_engines: if shape.slices == 7 { 8 } else { shape.slices },
        decoders: shape.slices,
        encoders: 0,
        jpeg: shape.slices,
        optical_flow: u32::from(shape.media),
        memory_mb: memory.mib,
    };
    Ok((format!("MIG {}g.{}gb{media}", shape.slices, memory.sold_gb), info))
}

fn profile_v2(gpu: &View, number: u32, out: Out<GpuInstanceProfileV2>) -> Answer {
    let (name, info) = profile(gpu, number)?;
    if out.version()? != version_of::<GpuInstanceProfileV2>(2) {
        return Err(Code::VERSION_MISMATCH);
    }
    out.put(GpuInstanceProfileV2 {
        // A card writes nought here.
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
        name: characters(&name),
    })
}
