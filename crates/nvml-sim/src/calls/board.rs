//! Device identity: names, serials, PCI address, firmware versions.

use std::ffi::c_uint;

use crate::abi::{OutPtr, TextBuffer, fixed_text, struct_version};
use crate::error_code::{ErrorCode, NvmlResult};
use crate::library::GpuView;
use crate::structs::{
    AddressingMode, C2cModeInfo, Capabilities, ConfComputeMemSize, Memory, PciInfo, PciInfoExt,
    PciInfoV1, PciInfoV2, Pdi, PlatformInfo,
};

device_calls! {
    nvmlDeviceGetName(name: TextBuffer, length: c_uint) |gpu| name.put(length, &gpu.name);
    nvmlDeviceGetUUID(uuid: TextBuffer, length: c_uint) |gpu| uuid.put(length, &gpu.uuid);
    nvmlDeviceGetSerial(serial: TextBuffer, length: c_uint) |gpu| serial.put(length, &gpu.serial);
    nvmlDeviceGetBoardPartNumber(number: TextBuffer, length: c_uint) |gpu| number.put(length, &gpu.board.part_number);
    nvmlDeviceGetVbiosVersion(version: TextBuffer, length: c_uint) |gpu| version.put(length, gpu.board.vbios_version());
    nvmlDeviceGetInforomImageVersion(version: TextBuffer, length: c_uint) |gpu| version.put(length, &gpu.board.inforom_image);
    nvmlDeviceGetInforomVersion(object: c_uint, version: TextBuffer, length: c_uint) |gpu| match object {
        0 => version.put(length, &gpu.board.inforom_oem),
        1 => version.put(length, &gpu.board.inforom_ecc),
        2 | 3 => Err(ErrorCode::NOT_SUPPORTED),
        _ => Err(ErrorCode::INVALID_ARGUMENT),
    };
    nvmlDeviceGetInforomConfigurationChecksum(checksum: OutPtr<c_uint>) |gpu| {
        if gpu.board.inforom_valid { checksum.put(0) } else { Err(ErrorCode::CORRUPTED_INFOROM) }
    };
    nvmlDeviceValidateInforom() |gpu| if gpu.board.inforom_valid { Ok(()) } else { Err(ErrorCode::CORRUPTED_INFOROM) };
    nvmlDeviceGetLastBBXFlushTime(_timestamp: OutPtr<u64>, _duration: OutPtr<u64>) |_gpu| Err(ErrorCode::NOT_READY);
    // The GSP firmware version is the driver version.
    nvmlDeviceGetGspFirmwareVersion(version: TextBuffer) |gpu| version.put(64, &gpu.node.driver);
    nvmlDeviceGetGspFirmwareMode(enabled: OutPtr<c_uint>, default: OutPtr<c_uint>) |gpu| {
        let has = u32::from(gpu.board.compute_capability >= [7, 5]);
        enabled.put(has)?;
        default.put(has)
    };
    nvmlDeviceGetMinorNumber(minor: OutPtr<c_uint>) |gpu| minor.put(gpu.minor);
    nvmlDeviceGetModuleId(module: OutPtr<c_uint>) |gpu| module.put(gpu.board.module_id);
    nvmlDeviceGetBoardId(board: OutPtr<c_uint>) |gpu| board.put(gpu.pci.domain << 16 | gpu.pci.bus << 8 | gpu.pci.device);
    nvmlDeviceGetMultiGpuBoard(multi: OutPtr<c_uint>) |_gpu| multi.put(0);
    // `NVML_BRAND_NVIDIA` since Ampere. Older data-centre GPUs have `NVML_BRAND_TESLA`.
    nvmlDeviceGetBrand(brand: OutPtr<c_uint>) |gpu| brand.put(if gpu.board.compute_capability[0] >= 8 { 14 } else { 2 });
    nvmlDeviceGetBusType(bus: OutPtr<c_uint>) |_gpu| bus.put(2);
    nvmlDeviceGetIrqNum(number: OutPtr<c_uint>) |gpu| number.put(gpu.pci.irq);
    nvmlDeviceGetNumGpuCores(cores: OutPtr<c_uint>) |gpu| cores.put(gpu.board.cores);
    nvmlDeviceGetArchitecture(architecture: OutPtr<c_uint>) |gpu| architecture.put(architecture_number(&gpu.board.architecture));
    nvmlDeviceGetCudaComputeCapability(major: OutPtr<i32>, minor: OutPtr<i32>) |gpu| {
        let [first, second] = gpu.board.compute_capability.map(|part| i32::try_from(part).unwrap_or(0));
        major.put(first)?;
        minor.put(second)
    };
    nvmlDeviceGetPciInfo(info: OutPtr<PciInfoV1>) |gpu| info.put(PciInfoV1 {
        bus_id: fixed_text(&gpu.pci.bus_id_legacy()),
        domain: gpu.pci.domain,
        bus: gpu.pci.bus,
        device: gpu.pci.device,
        device_id: gpu.pci.device_and_vendor(),
    });
    nvmlDeviceGetPciInfo_v2(info: OutPtr<PciInfoV2>) |gpu| info.put(PciInfoV2 {
        bus_id: fixed_text(&gpu.pci.bus_id_legacy()),
        domain: gpu.pci.domain,
        bus: gpu.pci.bus,
        device: gpu.pci.device,
        device_id: gpu.pci.device_and_vendor(),
        subsystem_id: gpu.pci.subsystem_and_vendor(),
        reserved: [0; 4],
    });
    nvmlDeviceGetPciInfo_v3(info: OutPtr<PciInfo>) |gpu| info.put(PciInfo {
        bus_id_legacy: fixed_text(&gpu.pci.bus_id_legacy()),
        domain: gpu.pci.domain,
        bus: gpu.pci.bus,
        device: gpu.pci.device,
        device_id: gpu.pci.device_and_vendor(),
        subsystem_id: gpu.pci.subsystem_and_vendor(),
        bus_id: fixed_text(&gpu.pci.bus_id()),
    });
    nvmlDeviceGetPciInfoExt(info: OutPtr<PciInfoExt>) |gpu| info.change_version(1, |info| {
        info.domain = gpu.pci.domain;
        info.bus = gpu.pci.bus;
        info.device = gpu.pci.device;
        info.device_id = gpu.pci.device_and_vendor();
        info.subsystem_id = gpu.pci.subsystem_and_vendor();
        (info.base_class, info.sub_class) = (3, 2);
        info.bus_id = fixed_text(&gpu.pci.bus_id());
    });
    nvmlDeviceGetPdi(pdi: OutPtr<Pdi>) |gpu| pdi.change_version(1, |pdi| pdi.value = gpu.board.pdi);
    nvmlDeviceGetAddressingMode(mode: OutPtr<AddressingMode>) |_gpu| mode.change_version(1, |mode| mode.value = 0);
    nvmlDeviceGetCapabilities(capabilities: OutPtr<Capabilities>) |_gpu| capabilities.change_version(1, |found| found.mask = 0);
    nvmlDeviceGetC2cModeInfoV(info: OutPtr<C2cModeInfo>) |_gpu| info.put(C2cModeInfo { enabled: 0 });
    nvmlDeviceGetPlatformInfo(info: OutPtr<PlatformInfo>) |gpu| platform(gpu, info);
    nvmlDeviceGetVirtualizationMode(mode: OutPtr<c_uint>) |gpu| mode.put(u32::from(gpu.node.virtual_machine));
    nvmlDeviceGetDisplayMode(display: OutPtr<c_uint>) |gpu| display.put(u32::from(gpu.board.compute_capability[0] >= 9));
    nvmlDeviceGetDisplayActive(active: OutPtr<c_uint>) |_gpu| active.put(0);
    nvmlDeviceGetAdaptiveClockInfoStatus(status: OutPtr<c_uint>) |_gpu| status.put(1);
    nvmlDeviceGetConfComputeMemSizeInfo(info: OutPtr<ConfComputeMemSize>) |gpu| info.put(ConfComputeMemSize {
        protected_kib: 0,
        unprotected_kib: gpu.memory.total_bytes.saturating_sub(gpu.memory.reserved_bytes) / 1024,
    });
    nvmlDeviceGetConfComputeProtectedMemoryUsage(usage: OutPtr<Memory>) |_gpu| usage.put(Memory { total: 0, free: 0, used: 0 });
    // Only vGPUs need licences, so licences are not supported and none is listed.
    nvmlDeviceGetGridLicensableFeatures(head: OutPtr<[u32; 2]>) |_gpu| head.put([0, 0]);
    nvmlDeviceGetGridLicensableFeatures_v2(head: OutPtr<[u32; 2]>) |_gpu| head.put([0, 0]);
    nvmlDeviceGetGridLicensableFeatures_v3(head: OutPtr<[u32; 2]>) |_gpu| head.put([0, 0]);
    nvmlDeviceGetGridLicensableFeatures_v4(head: OutPtr<[u32; 2]>) |_gpu| head.put([0, 0]);
    nvmlDeviceGetConfComputeGpuCertificate(_certificate: OutPtr<u8>) |_gpu| Err(ErrorCode::UNKNOWN);
}

/// NVML's architecture number.
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

/// Writes the platform information. Versions 1 and 2 of the struct have the same layout. A real GPU
/// treats any other version as 2.
fn platform(gpu: &GpuView, info: OutPtr<PlatformInfo>) -> NvmlResult {
    let requested = info.version()?;
    let version = if requested == struct_version::<PlatformInfo>(1) {
        requested
    } else {
        struct_version::<PlatformInfo>(2)
    };
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
