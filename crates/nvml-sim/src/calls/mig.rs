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
    nvmlDeviceGetGpuInstanceProfileInfo(number: c_uint, info: Out<GpuInstanceProfile>) |gpu| {
        info.put(profile(gpu, number)?.1)
    };
    nvmlDeviceGetGpuInstanceProfileInfoV(number: c_uint, info: Out<GpuInstanceProfileV2>) |gpu| profile_v2(gpu, number, info);
}

/// Slices of the GPU, of its memory (of eight), the profile's id, and how often it fits.
struct Shape {
    slices: u32,
    memory_eighths: u64,
    id: u32,
    instances: u32,
    media: bool,
}

/// By NVML's number of the profile, as a real H200 lists them.
fn shape(number: u32) -> Option<Shape> {
    let (slices, memory_eighths, id, instances, media) = match number {
        0 => (1, 1, 19, 7, false),
        1 => (2, 2, 14, 3, false),
        2 => (3, 4, 9, 2, false),
        3 => (4, 4, 5, 1, false),
        4 => (7, 8, 0, 1, true),
        7 => (1, 1, 20, 1, true),
        9 => (1, 2, 15, 4, false),
        _ => return None,
    };
    Some(Shape { slices, memory_eighths, id, instances, media })
}

fn profile(gpu: &View, number: u32) -> Result<(String, GpuInstanceProfile), Code> {
    if gpu.mig.is_none() {
        return Err(Code::NOT_SUPPORTED);
    }
    let shape = shape(number).ok_or(Code::NOT_SUPPORTED)?;
    let multiprocessors = match shape.slices {
        7 => gpu.board.multiprocessors,
        // Larger parts leave some multiprocessors out of use: seven slices do not divide them.
        slices => slices * (gpu.board.multiprocessors / 8),
    };
    let memory_mb = (gpu.memory.total_bytes >> 20) * shape.memory_eighths / 8;
    let gigabytes = (memory_mb + 512) / 1024;
    let media = if shape.media && shape.slices == 1 { "+me" } else { "" };
    let info = GpuInstanceProfile {
        id: shape.id,
        p2p: 0,
        slices: shape.slices,
        instances: shape.instances,
        multiprocessors,
        copy_engines: if shape.slices == 7 { 8 } else { shape.slices },
        decoders: shape.slices,
        encoders: 0,
        jpeg: shape.slices,
        optical_flow: u32::from(shape.media),
        memory_mb,
    };
    Ok((format!("MIG {}g.{gigabytes}gb{media}", shape.slices), info))
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
