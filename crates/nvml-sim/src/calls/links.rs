//! NVLink, PCIe, fabric and topology.

use std::ffi::{c_uint, c_ulong};

use farrier_sim::SimGpu;
use farrier_sim::gpu::{FabricRegistration, Link, Remote};

use crate::abi::{DeviceHandle, OutArray, OutPtr, fixed_text, struct_version};
use crate::calls::system::{cpu_list, put_devices};
use crate::error_code::{ErrorCode, NvmlResult};
use crate::library::{GpuView, handle_for};
use crate::structs::{FabricInfo, FabricInfoV2, FabricInfoV3, PciInfo, VersionOnly};

device_calls! {
    nvmlDeviceGetNvLinkState(number: c_uint, active: OutPtr<c_uint>) |gpu| active.put(u32::from(link(gpu, number)?.active));
    nvmlDeviceGetNvLinkVersion(number: c_uint, version: OutPtr<c_uint>) |gpu| {
        link(gpu, number)?;
        version.put(version_number(gpu.nvlink.generation))
    };
    nvmlDeviceGetNvLinkCapability(number: c_uint, capability: c_uint, has: OutPtr<c_uint>) |gpu| {
        if number >= LINKS_MAX {
            return Err(ErrorCode::INVALID_ARGUMENT);
        }
        link(gpu, number)?;
        match capability {
            // 0 to 3 and 5 are peer-to-peer access, system memory access, atomics for both, and a
            // valid link. 4 is an SLI bridge, which these GPUs do not have.
            0..=3 | 5 => has.put(1),
            4 => has.put(0),
            _ => Err(ErrorCode::INVALID_ARGUMENT),
        }
    };
    nvmlDeviceGetNvLinkRemoteDeviceType(number: c_uint, kind: OutPtr<c_uint>) |gpu| kind.put(match link(gpu, number)?.remote {
        Remote::Gpu => 0,
        Remote::Switch => 2,
        Remote::Unknown => 0xff,
    });
    nvmlDeviceGetNvLinkRemotePciInfo(number: c_uint, info: OutPtr<PciInfo>) |gpu| remote(link(gpu, number)?, info);
    nvmlDeviceGetNvLinkRemotePciInfo_v2(number: c_uint, info: OutPtr<PciInfo>) |gpu| remote(link(gpu, number)?, info);
    nvmlDeviceGetNvLinkErrorCounter(number: c_uint, counter: c_uint, count: OutPtr<u64>) |gpu| {
        let link = link(gpu, number)?;
        count.put(match counter {
            0 => link.replay_errors,
            1 => link.recovery_errors,
            2 => link.crc_flit_errors,
            3 => link.crc_data_errors,
            4 => return Err(ErrorCode::NOT_SUPPORTED),
            _ => return Err(ErrorCode::INVALID_ARGUMENT),
        })
    };
    nvmlDeviceGetNvLinkInfo(info: OutPtr<VersionOnly>) |_gpu| match info.version()? {
        0x100_0008 | 0x200_064c => Err(ErrorCode::NOT_SUPPORTED),
        _ => Err(ErrorCode::VERSION_MISMATCH),
    };
    nvmlDeviceGetCurrPcieLinkGeneration(generation: OutPtr<c_uint>) |gpu| generation.put(gpu.pcie.generation);
    nvmlDeviceGetMaxPcieLinkGeneration(generation: OutPtr<c_uint>) |gpu| generation.put(gpu.pcie.max_generation);
    nvmlDeviceGetGpuMaxPcieLinkGeneration(generation: OutPtr<c_uint>) |gpu| generation.put(gpu.pcie.max_generation);
    nvmlDeviceGetCurrPcieLinkWidth(width: OutPtr<c_uint>) |gpu| width.put(gpu.pcie.width);
    nvmlDeviceGetMaxPcieLinkWidth(width: OutPtr<c_uint>) |gpu| width.put(gpu.pcie.max_width);
    nvmlDeviceGetPcieLinkMaxSpeed(speed: OutPtr<c_uint>) |gpu| speed.put(gpu.pcie.max_generation);
    nvmlDeviceGetPcieSpeed(speed: OutPtr<c_uint>) |gpu| speed.put(match gpu.pcie.generation {
        1 => 2500,
        2 => 5000,
        3 => 8000,
        4 => 16_000,
        5 => 32_000,
        _ => 64_000,
    });
    nvmlDeviceGetPcieReplayCounter(count: OutPtr<c_uint>) |gpu| count.put(gpu.pcie.replays);
    nvmlDeviceGetPcieThroughput(counter: c_uint, rate: OutPtr<c_uint>) |gpu| match counter {
        0 => rate.put(gpu.pcie.transmit_kb_per_s),
        1 => rate.put(gpu.pcie.receive_kb_per_s),
        _ => Err(ErrorCode::INVALID_ARGUMENT),
    };
    nvmlDeviceGetGpuFabricInfo(info: OutPtr<FabricInfo>) |gpu| {
        let (fabric, cluster_uuid) = fabric(gpu);
        info.put(FabricInfo { cluster_uuid, status: fabric.status, clique: fabric.clique, state: fabric.state })
    };
    nvmlDeviceGetGpuFabricInfoV(info: OutPtr<FabricInfoV2>) |gpu| fabric_versions(gpu, info);
    nvmlDeviceGetP2PStatus(other: DeviceHandle, index: c_uint, status: OutPtr<c_uint>) |gpu| {
        let (peer_index, peer) = gpu.other(other)?;
        status.put(peer_status(gpu, peer_index, &peer, index))
    };
    nvmlDeviceGetTopologyCommonAncestor(other: DeviceHandle, level: OutPtr<c_uint>) |gpu| {
        let (peer_index, peer) = gpu.other(other)?;
        if peer_index == gpu.index { Err(ErrorCode::NOT_SUPPORTED) } else { level.put(ancestor(gpu, &peer)) }
    };
    nvmlDeviceGetTopologyNearestGpus(level: c_uint, count: OutPtr<c_uint>, devices: OutArray<DeviceHandle>) |gpu| {
        let others = gpu.session.gpus().into_iter().filter(|(index, _)| *index != gpu.index);
        let nearest: Vec<DeviceHandle> = others.filter(|(_, peer)| ancestor(gpu, peer) == level).map(|(index, _)| handle_for(index)).collect();
        put_devices(&nearest, count, devices)
    };
    nvmlDeviceGetCpuAffinity(size: c_uint, set: OutArray<c_ulong>) |gpu| put_bit_set(&cpu_list(&gpu.pci.cpus), size, set);
    nvmlDeviceGetCpuAffinityWithinScope(size: c_uint, set: OutArray<c_ulong>, scope: c_uint) |gpu| {
        if scope > 1 { Err(ErrorCode::INVALID_ARGUMENT) } else { put_bit_set(&cpu_list(&gpu.pci.cpus), size, set) }
    };
    nvmlDeviceGetMemoryAffinity(size: c_uint, set: OutArray<c_ulong>, scope: c_uint) |gpu| {
        if scope > 1 { Err(ErrorCode::INVALID_ARGUMENT) } else { put_bit_set(&[gpu.pci.numa_node], size, set) }
    };
}

/// NVML's maximum number of links per GPU.
const LINKS_MAX: u32 = 18;

/// Finds a link. A GPU without NVLink links does not support the calls that need one.
fn link(gpu: &GpuView, number: u32) -> Result<&Link, ErrorCode> {
    if gpu.nvlink.links.is_empty() {
        return Err(ErrorCode::NOT_SUPPORTED);
    }
    gpu.nvlink.links.get(number as usize).ok_or(ErrorCode::INVALID_ARGUMENT)
}

/// NVML's version number for an NVLink generation.
pub(crate) fn version_number(generation: u32) -> u32 {
    match generation {
        1 => 1,
        2 => 3,
        3 => 5,
        4 => 6,
        5 => 7,
        6 => 8,
        _ => 0,
    }
}

/// Writes the PCI info of the remote device, which is assumed to be an NVSwitch.
fn remote(link: &Link, info: OutPtr<PciInfo>) -> NvmlResult {
    let parts: Vec<u32> = link
        .remote_address
        .split([':', '.'])
        .filter_map(|part| u32::from_str_radix(part, 16).ok())
        .collect();
    let [domain, bus, device, _] = parts.as_slice() else {
        return Err(ErrorCode::NOT_SUPPORTED);
    };
    info.put(PciInfo {
        bus_id_legacy: fixed_text(&format!("{domain:04X}:{bus:02X}:{device:02X}.0")),
        domain: *domain,
        bus: *bus,
        device: *device,
        device_id: 0x22a3_10de,
        subsystem_id: 0,
        bus_id: fixed_text(&link.remote_address),
    })
}

/// The fabric registration and the bytes of the cluster UUID. If the GPU is not in a fabric, all
/// values are 0 and the call still succeeds.
fn fabric(gpu: &SimGpu) -> (FabricRegistration, [u8; 16]) {
    let none = || FabricRegistration {
        state: 0,
        status: 0,
        clique: 0,
        cluster_uuid: String::new(),
        health_mask: 0,
    };
    let fabric = gpu.fabric.clone().unwrap_or_else(none);
    let digits: Vec<u8> = fabric.cluster_uuid.bytes().filter(u8::is_ascii_hexdigit).collect();
    let mut uuid = [0; 16];
    for (byte, pair) in uuid.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = std::str::from_utf8(pair)
            .ok()
            .and_then(|pair| u8::from_str_radix(pair, 16).ok())
            .unwrap_or(0);
    }
    (fabric, uuid)
}

fn fabric_versions(gpu: &GpuView, info: OutPtr<FabricInfoV2>) -> NvmlResult {
    let (fabric, cluster_uuid) = fabric(gpu);
    let version = info.version()?;
    let FabricRegistration { state, status, clique, health_mask, .. } = fabric;
    let two = FabricInfoV2 { version, cluster_uuid, status, clique, state, health_mask };
    if version == struct_version::<FabricInfoV2>(2) {
        info.put(two)
    } else if version == struct_version::<FabricInfoV3>(3) {
        info.put(two)?;
        // 1 is healthy, 2 unhealthy and 3 limited capacity. 0 means that there is no fabric.
        let limited = health_mask & 0x3 == 1;
        let unhealthy = health_mask >> 4 & 0x3 == 1 || health_mask >> 8 & 0xf > 1;
        let summary = match (state, unhealthy, limited) {
            (0, ..) => 0,
            (_, true, _) => 2,
            (_, false, true) => 3,
            (_, false, false) => 1,
        };
        info.extended::<FabricInfoV3>().change(|info| info.health_summary = summary)
    } else {
        Err(ErrorCode::VERSION_MISMATCH)
    }
}

fn ancestor(gpu: &SimGpu, peer: &SimGpu) -> u32 {
    if gpu.pci.numa_node == peer.pci.numa_node { 40 } else { 50 }
}

/// Peer-to-peer status. GPUs with active NVLink links have full access to each other, and other
/// GPUs have none.
fn peer_status(gpu: &GpuView, peer_index: usize, peer: &SimGpu, index: u32) -> u32 {
    const OK: u32 = 0;
    const CHIPSET_NOT_SUPPORTED: u32 = 1;
    const NOT_SUPPORTED: u32 = 5;
    let linked = |gpu: &SimGpu| gpu.nvlink.links.iter().any(|link| link.active);
    match index {
        0..=4 if peer_index == gpu.index => NOT_SUPPORTED,
        0..=4 if linked(gpu) && linked(peer) => OK,
        0 | 1 | 3 | 4 => CHIPSET_NOT_SUPPORTED,
        2 => NOT_SUPPORTED,
        _ => OK,
    }
}

/// Writes a set of numbers as a bit set of `size` words.
fn put_bit_set(numbers: &[u32], size: u32, set: OutArray<c_ulong>) -> NvmlResult {
    if size == 0 {
        return Err(ErrorCode::INVALID_ARGUMENT);
    }
    let mut words = vec![0 as c_ulong; (size as usize).min(1024)];
    for number in numbers {
        if let Some(word) = words.get_mut((number / c_ulong::BITS) as usize) {
            *word |= 1 << (number % c_ulong::BITS);
        }
    }
    set.put(&words)
}
