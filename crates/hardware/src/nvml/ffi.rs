//! The types and constants of `nvml.h` used here (NVIDIA/go-nvml gen/nvml/nvml.h, read 2026-11-15).

use std::ffi::{c_char, c_int, c_uchar, c_uint, c_void};

/// `nvmlDevice_t`
pub(super) type RawDevice = *mut c_void;

/// `nvmlReturn_t`
pub(super) type Return = c_uint;

pub(super) const SUCCESS: Return = 0;
pub(super) const UNINITIALIZED: Return = 1;
pub(super) const INVALID_ARGUMENT: Return = 2;
pub(super) const NOT_SUPPORTED: Return = 3;
pub(super) const NOT_FOUND: Return = 6;
pub(super) const INSUFFICIENT_SIZE: Return = 7;
pub(super) const DRIVER_NOT_LOADED: Return = 9;
pub(super) const FUNCTION_NOT_FOUND: Return = 13;
pub(super) const CORRUPTED_INFOROM: Return = 14;
pub(super) const GPU_IS_LOST: Return = 15;
pub(super) const RESET_REQUIRED: Return = 16;
pub(super) const LIB_RM_VERSION_MISMATCH: Return = 18;
pub(super) const DEPRECATED: Return = 26;
pub(super) const GPU_NOT_FOUND: Return = 28;

/// `nvmlEventTypeXidCriticalError`
pub(super) const EVENT_XID: u64 = 0x8;

/// `NVML_VALUE_NOT_AVAILABLE`: the memory of a process that the driver does not disclose.
pub(super) const NOT_AVAILABLE: u64 = u64::MAX;

/// `NVML_FI_DEV_GET_GPU_RECOVERY_ACTION`
pub(super) const FIELD_RECOVERY_ACTION: c_uint = 230;

/// `nvmlPciInfo_t` (version 3 of the call).
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct PciInfo {
    pub(super) bus_id_legacy: [c_char; 16],
    pub(super) domain: c_uint,
    pub(super) bus: c_uint,
    pub(super) device: c_uint,
    pub(super) pci_device_id: c_uint,
    pub(super) pci_subsystem_id: c_uint,
    pub(super) bus_id: [c_char; 32],
}

/// `nvmlFieldValue_t`. The value is an eight-byte union.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct FieldValue {
    pub(super) field_id: c_uint,
    pub(super) scope_id: c_uint,
    pub(super) timestamp_us: i64,
    pub(super) latency_us: i64,
    pub(super) value_type: c_uint,
    pub(super) nvml_return: Return,
    pub(super) value: [u8; 8],
}

/// `nvmlGpuFabricInfo_v2_t`
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct FabricInfoV2 {
    pub(super) version: c_uint,
    pub(super) cluster_uuid: [c_uchar; 16],
    pub(super) status: Return,
    pub(super) clique_id: c_uint,
    pub(super) state: c_uchar,
    pub(super) health_mask: c_uint,
}

/// `nvmlDeviceAddressingMode_v1_t`
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct AddressingModeV1 {
    pub(super) version: c_uint,
    pub(super) value: c_uint,
}

/// `nvmlMemory_v2_t`
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct MemoryV2 {
    pub(super) version: c_uint,
    pub(super) total: u64,
    pub(super) reserved: u64,
    pub(super) free: u64,
    pub(super) used: u64,
}

/// `nvmlUtilization_t`
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Utilization {
    pub(super) gpu: c_uint,
    pub(super) memory: c_uint,
}

/// `nvmlProcessInfo_t` (version 2 and 3 of the calls).
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct ProcessInfo {
    pub(super) pid: c_uint,
    pub(super) used_memory: u64,
    pub(super) gpu_instance: c_uint,
    pub(super) compute_instance: c_uint,
}

/// `nvmlProcessUtilizationSample_t`
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct ProcessUtilizationSample {
    pub(super) pid: c_uint,
    pub(super) timestamp_us: u64,
    pub(super) sm: c_uint,
    pub(super) memory: c_uint,
    pub(super) encoder: c_uint,
    pub(super) decoder: c_uint,
}

/// `nvmlEventData_t`
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct EventData {
    pub(super) device: RawDevice,
    pub(super) kind: u64,
    pub(super) data: u64,
    pub(super) gpu_instance: c_uint,
    pub(super) compute_instance: c_uint,
}

/// `nvmlMarginTemperature_v1_t`
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct MarginTemperatureV1 {
    pub(super) version: c_uint,
    pub(super) margin_c: c_int,
}

/// `nvmlRowRemapperHistogramValues_t`
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct RowRemapperHistogram {
    pub(super) max: c_uint,
    pub(super) high: c_uint,
    pub(super) partial: c_uint,
    pub(super) low: c_uint,
    pub(super) none: c_uint,
}

/// `nvmlEccSramErrorStatus_v1_t`
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct EccSramErrorStatusV1 {
    pub(super) version: c_uint,
    pub(super) aggregate_parity: u64,
    pub(super) aggregate_secded: u64,
    pub(super) aggregate_corrected: u64,
    pub(super) volatile_parity: u64,
    pub(super) volatile_secded: u64,
    pub(super) volatile_corrected: u64,
    pub(super) buckets: [u64; 5],
    pub(super) threshold_exceeded: c_uint,
}

/// `nvmlUnrepairableMemoryStatus_v1_t`. NVIDIA's bindings have the version in the first word and
/// the flag in the second. The driver of an H200 writes the flag into the first word, so callers
/// have to check both.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct UnrepairableMemory {
    pub(super) words: [c_uint; 2],
}

/// `nvmlGpmSupport_t`
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct GpmSupport {
    pub(super) version: c_uint,
    pub(super) is_supported: c_uint,
}

/// `nvmlGpmMetric_t`
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct GpmMetric {
    pub(super) id: c_uint,
    pub(super) nvml_return: Return,
    pub(super) value: f64,
    pub(super) names: [*const c_char; 3],
}

/// `NVML_GPM_METRIC_MAX` in nvidia-ml-py 13.615.71. The library fills only the requested metrics.
pub(super) const GPM_METRICS_MAX: usize = 477;

/// `nvmlGpmSample_t`
pub(super) type GpmSample = *mut c_void;

/// `nvmlGpmMetricsGet_t`
#[repr(C)]
pub(super) struct GpmMetricsGet {
    pub(super) version: c_uint,
    pub(super) count: c_uint,
    pub(super) first: GpmSample,
    pub(super) second: GpmSample,
    pub(super) metrics: [GpmMetric; GPM_METRICS_MAX],
}

/// `nvmlEventSet_t`
pub(super) type EventSet = *mut c_void;

/// `NVML_STRUCT_VERSION`: the size, with the version in the highest byte.
pub(super) const fn struct_version<T>(version: c_uint) -> c_uint {
    #[expect(clippy::cast_possible_truncation, reason = "these structures are small")]
    let size = size_of::<T>() as c_uint;
    size | (version << 24)
}

pub(super) type Init = unsafe extern "C" fn() -> Return;
pub(super) type Text = unsafe extern "C" fn(*mut c_char, c_uint) -> Return;
pub(super) type Signed = unsafe extern "C" fn(*mut c_int) -> Return;
pub(super) type Count = unsafe extern "C" fn(*mut c_uint) -> Return;
pub(super) type HandleByIndex = unsafe extern "C" fn(c_uint, *mut RawDevice) -> Return;
pub(super) type DeviceText = unsafe extern "C" fn(RawDevice, *mut c_char, c_uint) -> Return;
pub(super) type DeviceTextUnsized = unsafe extern "C" fn(RawDevice, *mut c_char) -> Return;
pub(super) type DeviceNumber = unsafe extern "C" fn(RawDevice, *mut c_uint) -> Return;
pub(super) type DevicePair = unsafe extern "C" fn(RawDevice, *mut c_uint, *mut c_uint) -> Return;
pub(super) type DeviceFour =
    unsafe extern "C" fn(RawDevice, *mut c_uint, *mut c_uint, *mut c_uint, *mut c_uint) -> Return;
pub(super) type DevicePci = unsafe extern "C" fn(RawDevice, *mut PciInfo) -> Return;
pub(super) type DeviceFabric = unsafe extern "C" fn(RawDevice, *mut FabricInfoV2) -> Return;
pub(super) type DeviceAddressing = unsafe extern "C" fn(RawDevice, *mut AddressingModeV1) -> Return;
pub(super) type DeviceFields = unsafe extern "C" fn(RawDevice, c_int, *mut FieldValue) -> Return;

pub(super) type HandleByUuid = unsafe extern "C" fn(*const c_char, *mut RawDevice) -> Return;
pub(super) type DeviceOnly = unsafe extern "C" fn(RawDevice) -> Return;
pub(super) type DeviceLong = unsafe extern "C" fn(RawDevice, *mut u64) -> Return;
pub(super) type DeviceChoice = unsafe extern "C" fn(RawDevice, c_uint, *mut c_uint) -> Return;
pub(super) type DeviceClocks =
    unsafe extern "C" fn(RawDevice, c_uint, *mut c_uint, *mut c_uint) -> Return;
pub(super) type DeviceSet = unsafe extern "C" fn(RawDevice, c_uint) -> Return;
pub(super) type DeviceSetTwo = unsafe extern "C" fn(RawDevice, c_uint, c_uint) -> Return;
pub(super) type DeviceSetMig = unsafe extern "C" fn(RawDevice, c_uint, *mut c_int) -> Return;
pub(super) type DeviceUtilization = unsafe extern "C" fn(RawDevice, *mut Utilization) -> Return;
pub(super) type DeviceMemory = unsafe extern "C" fn(RawDevice, *mut MemoryV2) -> Return;
pub(super) type DeviceProcesses =
    unsafe extern "C" fn(RawDevice, *mut c_uint, *mut ProcessInfo) -> Return;
pub(super) type DeviceProcessUtilization =
    unsafe extern "C" fn(RawDevice, *mut ProcessUtilizationSample, *mut c_uint, u64) -> Return;
pub(super) type DeviceMargin = unsafe extern "C" fn(RawDevice, *mut MarginTemperatureV1) -> Return;
pub(super) type DeviceHistogram =
    unsafe extern "C" fn(RawDevice, *mut RowRemapperHistogram) -> Return;
pub(super) type DeviceSram = unsafe extern "C" fn(RawDevice, *mut EccSramErrorStatusV1) -> Return;
pub(super) type DeviceUnrepairable =
    unsafe extern "C" fn(RawDevice, *mut UnrepairableMemory) -> Return;
pub(super) type DeviceInstance = unsafe extern "C" fn(RawDevice, c_uint, *mut RawDevice) -> Return;
pub(super) type DeviceGpmSupport = unsafe extern "C" fn(RawDevice, *mut GpmSupport) -> Return;
pub(super) type GpmAlloc = unsafe extern "C" fn(*mut GpmSample) -> Return;
pub(super) type GpmFree = unsafe extern "C" fn(GpmSample) -> Return;
pub(super) type GpmGet = unsafe extern "C" fn(RawDevice, GpmSample) -> Return;
pub(super) type GpmMetrics = unsafe extern "C" fn(*mut GpmMetricsGet) -> Return;
pub(super) type EventsCreate = unsafe extern "C" fn(*mut EventSet) -> Return;
pub(super) type EventsFree = unsafe extern "C" fn(EventSet) -> Return;
pub(super) type EventsRegister = unsafe extern "C" fn(RawDevice, u64, EventSet) -> Return;
pub(super) type EventsWait = unsafe extern "C" fn(EventSet, *mut EventData, c_uint) -> Return;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_are_those_of_the_header() {
        assert_eq!(size_of::<PciInfo>(), 68);
        assert_eq!(size_of::<FieldValue>(), 40);
        // The values that the macros in nvml.h give.
        assert_eq!(struct_version::<FabricInfoV2>(2), 0x0200_0024);
        assert_eq!(struct_version::<AddressingModeV1>(1), 0x0100_0008);
        assert_eq!(struct_version::<MemoryV2>(2), 0x0200_0028);
        assert_eq!(struct_version::<EccSramErrorStatusV1>(1), 0x0100_0068);
        assert_eq!(struct_version::<MarginTemperatureV1>(1), 0x0100_0008);
        assert_eq!(size_of::<ProcessInfo>(), 24);
        assert_eq!(size_of::<EventData>(), 32);
        assert_eq!(size_of::<GpmMetric>(), 40);
    }
}
