//! NVML's structs in C layout. The ABI test compares sizes and versions with nvidia-ml-py.
#![allow(dead_code, reason = "members are part of the layout whether or not they are read here")]

use std::ffi::{c_char, c_void};

use crate::abi::{CValue, DeviceHandle};

macro_rules! c_structs {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty),* $(,)? })*) => {$(
        $(#[$doc])*
        #[repr(C)]
        #[derive(Debug, Clone, Copy)]
        pub(crate) struct $name { $(pub(crate) $field: $type),* }

        impl CValue for $name {
            unsafe fn write(self, at: *mut Self) {
                $(
                    // SAFETY: the member is within the struct that the caller guarantees to be
                    // valid.
                    unsafe { CValue::write(self.$field, &raw mut (*at).$field) };
                )*
            }
        }
    )*};
}

c_structs! {
    PciInfo { bus_id_legacy: [u8; 16], domain: u32, bus: u32, device: u32, device_id: u32, subsystem_id: u32, bus_id: [u8; 32] }
    /// Version 1 has no subsystem ID.
    PciInfoV1 { bus_id: [u8; 16], domain: u32, bus: u32, device: u32, device_id: u32 }
    PciInfoV2 { bus_id: [u8; 16], domain: u32, bus: u32, device: u32, device_id: u32, subsystem_id: u32, reserved: [u32; 4] }
    PciInfoExt { version: u32, domain: u32, bus: u32, device: u32, device_id: u32, subsystem_id: u32, base_class: u32, sub_class: u32, bus_id: [u8; 32] }
    Memory { total: u64, free: u64, used: u64 }
    MemoryV2 { version: u32, total: u64, reserved: u64, free: u64, used: u64 }
    Bar1Memory { total: u64, free: u64, used: u64 }
    ProcessInfoV1 { pid: u32, used_memory: u64 }
    ProcessInfo { pid: u32, used_memory: u64, gpu_instance: u32, compute_instance: u32 }
    ProcessDetail { pid: u32, used_memory: u64, gpu_instance: u32, compute_instance: u32, protected_memory: u64 }
    ProcessDetailList { version: u32, mode: u32, count: u32, processes: crate::abi::OutArray<ProcessDetail> }
    EccErrorCounts { l1: u64, l2: u64, device_memory: u64, register_file: u64 }
    Utilization { gpu: u32, memory: u32 }
    Sample { timestamp_us: u64, value: u64 }
    ViolationTime { reference_us: u64, violation_ns: u64 }
    FieldValue { field: u32, scope: u32, timestamp_us: i64, latency_us: i64, kind: u32, code: u32, value: u64 }
    MarginTemperature { version: u32, margin_c: i32 }
    TemperatureV1 { version: u32, sensor: u32, temperature_c: i32 }
    ThermalSensor { controller: u32, min_c: i32, max_c: i32, current_c: i32, target: u32 }
    ThermalSettings { count: u32, sensors: [ThermalSensor; 3] }
    EventDataV1 { device: DeviceHandle, kind: u64, data: u64 }
    EventData { device: DeviceHandle, kind: u64, data: u64, gpu_instance: u32, compute_instance: u32 }
    ProcessUtilizationSample { pid: u32, timestamp_us: u64, sm: u32, memory: u32, encoder: u32, decoder: u32 }
    ProcessUtilizationInfo { timestamp_us: u64, pid: u32, sm: u32, memory: u32, encoder: u32, decoder: u32, jpeg: u32, optical_flow: u32 }
    ProcessesUtilizationInfo { version: u32, count: u32, last_seen_us: u64, samples: crate::abi::OutArray<ProcessUtilizationInfo> }
    RowRemapperHistogram { max: u32, high: u32, partial: u32, low: u32, none: u32 }
    RemappedRowsV2 { corrected: u32, corrected_inactive: u32, uncorrected: u32, uncorrected_inactive: u32, pending: u32, failed: u32 }
    EccSramErrorStatus {
        version: u32, aggregate_parity: u64, aggregate_secded: u64, aggregate_corrected: u64, volatile_parity: u64,
        volatile_secded: u64, volatile_corrected: u64, l2: u64, sm: u64, pcie: u64, microcontroller: u64, other: u64,
        threshold_exceeded: u32,
    }
    RepairStatus { version: u32, channel: u32, tpc: u32 }
    /// This struct has no `version` member to check.
    UnrepairableMemory { unrepairable: u32 }
    FabricInfo { cluster_uuid: [u8; 16], status: u32, clique: u32, state: u32 }
    FabricInfoV2 { version: u32, cluster_uuid: [u8; 16], status: u32, clique: u32, state: u32, health_mask: u32 }
    FabricInfoV3 { version: u32, cluster_uuid: [u8; 16], status: u32, clique: u32, state: u32, health_mask: u32, health_summary: u8 }
    PlatformInfo { version: u32, ib_guid: [u8; 16], chassis_serial: [u8; 16], slot: u8, tray: u8, host: u8, peer_type: u8, module: u8 }
    Pdi { version: u32, value: u64 }
    AddressingMode { version: u32, value: u32 }
    Capabilities { version: u32, mask: u32 }
    DriverBranch { version: u32, branch: [u8; 80] }
    C2cModeInfo { enabled: u32 }
    GpmMetric { id: u32, code: u32, value: f64, short_name: *const c_char, long_name: *const c_char, unit: *const c_char }
    /// `nvmlGpmMetricsGet_t` up to the metrics, whose number depends on the header version.
    GpmMetricsHead { version: u32, count: u32, first: crate::abi::OpaqueHandle, second: crate::abi::OpaqueHandle }
    GpmSupport { version: u32, supported: u32 }
    ConfComputeState { environment: u32, feature: u32, dev_tools: u32 }
    ConfComputeCaps { cpu: u32, gpus: u32 }
    ConfComputeSettings { version: u32, environment: u32, feature: u32, dev_tools: u32, multi_gpu: u32 }
    ConfComputeMemSize { protected_kib: u64, unprotected_kib: u64 }
    KeyRotation { version: u32, attacker_advantage: u64 }
    PerfText { version: u32, text: [u8; 2048] }
    ClockOffset { version: u32, clock: u32, state: u32, offset_mhz: i32, min_mhz: i32, max_mhz: i32 }
    PstateUtilization { present: u32, percent: u32, increase: u32, decrease: u32 }
    DynamicPstates { flags: u32, utilization: [PstateUtilization; 8] }
    AccountingStats { gpu: u32, memory: u32, max_memory: u64, time_ms: u64, start_us: u64, running: u32, reserved: [u32; 5] }
    GpuInstanceProfile {
        id: u32, p2p: u32, slices: u32, instances: u32, multiprocessors: u32, copy_engines: u32, decoders: u32,
        encoders: u32, jpeg: u32, optical_flow: u32, memory_mb: u64,
    }
    GpuInstanceProfileV2 {
        version: u32, id: u32, p2p: u32, slices: u32, instances: u32, multiprocessors: u32, copy_engines: u32, decoders: u32,
        encoders: u32, jpeg: u32, optical_flow: u32, memory_mb: u64, name: [u8; 96],
    }
    PowerValue { version: u32, scope: u32, milliwatts: u32 }
    Uuid { version: u32, kind: u32, value: [u8; 41] }
    FbcStats { sessions: u32, fps: u32, latency: u32 }
    VersionOnly { version: u32 }
    Handle { pointer: *const c_void }
}
