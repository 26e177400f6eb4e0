//! What a device is: names, numbers, place.

use std::ffi::c_uint;

use crate::abi::{Buffer, Out, characters, version_of};
use crate::code::{Answer, Code};
use crate::library::View;
use crate::structs::{
    AddressingMode, C2cModeInfo, Capabilities, ConfComputeMemSize, Memory, PciInfo, PciInfoExt,
    PciInfoV1, PciInfoV2, Pdi, PlatformInfo,
};

device_calls! {
    nvmlDeviceGetName(name: Buffer, length: c_uint) |gpu| name.put(length, &gpu.name);
    nvmlDeviceGetUUID(uuid: Buffer, length: c_uint) |gpu| uuid.put(length, &gpu.uuid);
    nvmlDeviceGetSerial(serial: Buffer, length: c_uint) |gpu| serial.put(length, &gpu.serial);
    nvmlDeviceGetBoardPartNumber(number: Buffer, length: c_uint) |gpu| number.put(length, &gpu.board.part_number);
    nvmlDeviceGetVbiosVersion(version: Buffer, length: c_uint) |gpu| version.put(length, &gpu.board.vbios);
    nvmlDeviceGetInforomImageVersion(version: Buffer, length: c_uint) |gpu| version.put(length, &gpu.board.inforom_image);
    nvmlDeviceGetInforomVersion(object: c_uint, version: Buffer, length: c_uint) |gpu| match object {
        0 => version.put(length, &gpu.board.inforom_oem),
        1 => version.put(length, &gpu.board.inforom_ecc),
        2 | 3 => Err(Code::NOT_SUPPORTED),
        _ => Err(Code::INVALID_ARGUMENT),
    };
    nvmlDeviceGetInforomConfigurationChecksum(checksum: Out<c_uint>) |gpu| {
        if gpu.board.inforom_valid { checksum.put(0) } else { Err(Code::CORRUPTED_INFOROM) }
    };
    nvmlDeviceValidateInforom() |gpu| if gpu.board.inforom_valid { Ok(()) } else { Err(Code::CORRUPTED_INFOROM) };
    nvmlDeviceGetLastBBXFlushTime(_timestamp: Out<u64>, _duration: Out<u64>) |_gpu| Err(Code::NOT_READY);
    // The driver and its firmware are of one version.
    nvmlDeviceGetGspFirmwareVersion(version: Buffer) |gpu| version.put(64, &gpu.node.driver);
    nvmlDeviceGetGspFirmwareMode(enabled: Out<c_uint>, default: Out<c_uint>) |gpu| {
        let has = u32::from(gpu.board.compute_capability >= [7, 5]);
        enabled.put(has)?;
        default.put(has)
    };
    nvmlDeviceGetMinorNumber(minor: Out<c_uint>) |gpu| minor.put(gpu.minor);
    nvmlDeviceGetModuleId(module: Out<c_uint>) |gpu| module.put(gpu.board.module_id);
    nvmlDeviceGetBoardId(board: Out<c_uint>) |gpu| board.put(gpu.pci.domain << 16 | gpu.pci.bus << 8 | gpu.pci.device);
    nvmlDeviceGetMultiGpuBoard(multi: Out<c_uint>) |_gpu| multi.put(0);
    // NVIDIA itself, since the older brands ended.
    nvmlDeviceGetBrand(brand: Out<c_uint>) |gpu| brand.put(if gpu.board.compute_capability[0] >= 8 { 14 } else { 2 });
    nvmlDeviceGetBusType(bus: Out<c_uint>) |_gpu| bus.put(2);
    nvmlDeviceGetIrqNum(number: Out<c_uint>) |gpu| number.put(gpu.pci.irq);
    nvmlDeviceGetNumGpuCores(cores: Out<c_uint>) |gpu| cores.put(gpu.board.cores);
    nvmlDeviceGetArchitecture(architecture: Out<c_uint>) |gpu| architecture.put(architecture_number(&gpu.board.architecture));
    nvmlDeviceGetCudaComputeCapability(major: Out<i32>, minor: Out<i32>) |gpu| {
        let [first, second] = gpu.board.compute_capability.map(|part| i32::try_from(part).unwrap_or(0));
        major.put(first)?;
        minor.put(second)
    };
    nvmlDeviceGetPciInfo(info: Out<PciInfoV1>) |gpu| info.put(PciInfoV1 {
        bus_id: characters(&gpu.pci.bus_id_legacy()),
        domain: gpu.pci.domain,
        bus: gpu.pci.bus,
        device: gpu.pci.device,
        device_id: gpu.pci.device_and_vendor(),
    });
    nvmlDeviceGetPciInfo_v2(info: Out<PciInfoV2>) |gpu| info.put(PciInfoV2 {
        bus_id: characters(&gpu.pci.bus_id_legacy()),
        domain: gpu.pci.domain,
        bus: gpu.pci.bus,
        device: gpu.pci.device,
        device_id: gpu.pci.device_and_vendor(),
        subsystem_id: gpu.pci.subsystem_and_vendor(),
        reserved: [0; 4],
    });
    nvmlDeviceGetPciInfo_v3(info: Out<PciInfo>) |gpu| info.put(PciInfo {
        bus_id_legacy: characters(&gpu.pci.bus_id_legacy()),
        domain: gpu.pci.domain,
        bus: gpu.pci.bus,
        device: gpu.pci.device,
        device_id: gpu.pci.device_and_vendor(),
        subsystem_id: gpu.pci.subsystem_and_vendor(),
        bus_id: characters(&gpu.pci.bus_id()),
    });
    nvmlDeviceGetPciInfoExt(info: Out<PciInfoExt>) |gpu| info.change_version(1, |info| {
        info.domain = gpu.pci.domain;
        info.bus = gpu.pci.bus;
        info.device = gpu.pci.device;
        info.device_id = gpu.pci.device_and_vendor();
        info.subsystem_id = gpu.pci.subsystem_and_vendor();
        (info.base_class, info.sub_class) = (3, 2);
        info.bus_id = characters(&gpu.pci.bus_id());
    });
    nvmlDeviceGetPdi(pdi: Out<Pdi>) |gpu| pdi.change_version(1, |pdi| pdi.value = gpu.board.pdi);
    nvmlDeviceGetAddressingMode(mode: Out<AddressingMode>) |_gpu| mode.change_version(1, |mode| mode.value = 0);
    nvmlDeviceGetCapabilities(capabilities: Out<Capabilities>) |_gpu| capabilities.change_version(1, |found| found.mask = 0);
    nvmlDeviceGetC2cModeInfoV(info: Out<C2cModeInfo>) |_gpu| info.put(C2cModeInfo { enabled: 0 });
    nvmlDeviceGetPlatformInfo(info: Out<PlatformInfo>) |gpu| platform(gpu, info);
    nvmlDeviceGetVirtualizationMode(mode: Out<c_uint>) |gpu| mode.put(u32::from(gpu.node.virtual_machine));
    nvmlDeviceGetDisplayMode(display: Out<c_uint>) |gpu| display.put(u32::from(gpu.board.compute_capability[0] >= 9));
    nvmlDeviceGetDisplayActive(active: Out<c_uint>) |_gpu| active.put(0);
    nvmlDeviceGetAdaptiveClockInfoStatus(status: Out<c_uint>) |_gpu| status.put(1);
    nvmlDeviceGetConfComputeMemSizeInfo(info: Out<ConfComputeMemSize>) |gpu| info.put(ConfComputeMemSize {
        protected_kib: 0,
        unprotected_kib: gpu.memory.total_bytes.saturating_sub(gpu.memory.reserved_bytes) / 1024,
    });
    nvmlDeviceGetConfComputeProtectedMemoryUsage(usage: Out<Memory>) |_gpu| usage.put(Memory { total: 0, free: 0, used: 0 });
    // No licences are needed for a part that is not shared: none supported, none listed.
    nvmlDeviceGetGridLicensableFeatures(head: Out<[u32; 2]>) |_gpu| head.put([0, 0]);
    nvmlDeviceGetGridLicensableFeatures_v2(head: Out<[u32; 2]>) |_gpu| head.put([0, 0]);
    nvmlDeviceGetGridLicensableFeatures_v3(head: Out<[u32; 2]>) |_gpu| head.put([0, 0]);
    nvmlDeviceGetGridLicensableFeatures_v4(head: Out<[u32; 2]>) |_gpu| head.put([0, 0]);
    nvmlDeviceGetConfComputeGpuCertificate(_certificate: Out<u8>) |_gpu| Err(Code::UNKNOWN);
}

/// NVML's number of a generation.
fn architecture_number(name: &str) -> u32 {
    match name {
        "Kepler" => 2,
        "Maxwell" => 3,
        "Pascal" => 4,
        "Volta" => 5,
        "Turing" => 6,
        "Ampere" => 7,
        "Ada" | "Ada Lovelace" => 8,
        "Hopper" => 9,
        "Blackwell" => 10,
        "Rubin" => 13,
        _ => u32::MAX,
    }
}

/// Version 1 and 2 have one layout. A card answers every other version as if 2 had been asked for.
fn platform(gpu: &View, info: Out<PlatformInfo>) -> Answer {
    let asked = info.version()?;
    let version =
        if asked == version_of::<PlatformInfo>(1) { asked } else { version_of::<PlatformInfo>(2) };
    info.put(PlatformInfo {
        version,
        ib_guid: [0; 16],
        chassis_serial: [0; 16],
        slot: 0,
        tray: 0,
        host: 1,
        peer_type: u8::from(gpu.fabric.is_some()),
        module: u8::try_from(gpu.board.module_id).unwrap_or(0),
    })
}
