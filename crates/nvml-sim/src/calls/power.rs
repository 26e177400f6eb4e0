//! Power, temperature and fans.

use std::ffi::c_uint;

use crate::abi::OutPtr;
use crate::error_code::ErrorCode;
use crate::structs::{
    MarginTemperature, TemperatureV1, ThermalSensor, ThermalSettings, VersionOnly,
};

device_calls! {
    nvmlDeviceGetPowerUsage(power: OutPtr<c_uint>) |gpu| power.put(gpu.power.average_mw);
    nvmlDeviceGetPowerManagementMode(mode: OutPtr<c_uint>) |_gpu| mode.put(1);
    nvmlDeviceGetPowerManagementLimit(limit: OutPtr<c_uint>) |gpu| limit.put(gpu.power.limit_mw);
    nvmlDeviceGetEnforcedPowerLimit(limit: OutPtr<c_uint>) |gpu| limit.put(gpu.power.limit_mw);
    nvmlDeviceGetPowerManagementDefaultLimit(limit: OutPtr<c_uint>) |gpu| limit.put(gpu.power.default_limit_mw);
    nvmlDeviceGetPowerManagementLimitConstraints(min: OutPtr<c_uint>, max: OutPtr<c_uint>) |gpu| {
        min.put(gpu.power.min_limit_mw)?;
        max.put(gpu.power.max_limit_mw)
    };
    nvmlDeviceGetTotalEnergyConsumption(energy: OutPtr<u64>) |gpu| energy.put(gpu.power.energy_at(gpu.now_unix_ms()));
    nvmlDeviceGetPowerSource(source: OutPtr<c_uint>) |_gpu| source.put(0);
    nvmlDeviceGetTemperature(sensor: c_uint, temperature: OutPtr<c_uint>) |gpu| {
        if sensor != 0 {
            return Err(ErrorCode::INVALID_ARGUMENT);
        }
        temperature.put(u32::try_from(gpu.temperature.gpu_c).unwrap_or(0))
    };
    nvmlDeviceGetTemperatureV(temperature: OutPtr<TemperatureV1>) |gpu| {
        if temperature.get()?.sensor != 0 {
            return Err(ErrorCode::INVALID_ARGUMENT);
        }
        temperature.change_version(1, |temperature| temperature.temperature_c = gpu.temperature.gpu_c)
    };
    nvmlDeviceGetTemperatureThreshold(threshold: c_uint, temperature: OutPtr<c_uint>) |gpu| {
        let found = &gpu.temperature;
        let degrees = match threshold {
            0 => found.gpu_limit_c.saturating_sub(found.shutdown_margin_c),
            1 => found.gpu_limit_c.saturating_sub(found.slowdown_margin_c),
            2 if found.memory_c.is_some() => found.memory_max_c,
            3 => found.gpu_limit_c,
            2 | 4..=7 => return Err(ErrorCode::NOT_SUPPORTED),
            _ => return Err(ErrorCode::INVALID_ARGUMENT),
        };
        temperature.put(u32::try_from(degrees).unwrap_or(0))
    };
    nvmlDeviceGetMarginTemperature(margin: OutPtr<MarginTemperature>) |gpu| margin.change_version(1, |margin| margin.margin_c = gpu.margin_c());
    nvmlDeviceGetThermalSettings(_sensor: c_uint, settings: OutPtr<ThermalSettings>) |gpu| {
        let none = ThermalSensor { controller: 0, min_c: 0, max_c: 0, current_c: 0, target: 0 };
        let gpu = ThermalSensor { controller: 1, min_c: 0, max_c: 127, current_c: gpu.temperature.gpu_c, target: 1 };
        settings.put(ThermalSettings { count: 1, sensors: [gpu, none, none] })
    };
    // SXM modules have no fans.
    nvmlDeviceGetNumFans(count: OutPtr<c_uint>) |_gpu| count.put(0);
    nvmlDeviceGetFanSpeed(_speed: OutPtr<c_uint>) |_gpu| Err(ErrorCode::NOT_SUPPORTED);
    nvmlDeviceGetFanSpeed_v2(_fan: c_uint, _speed: OutPtr<c_uint>) |_gpu| Err(ErrorCode::INVALID_ARGUMENT);
    nvmlDeviceGetTargetFanSpeed(_fan: c_uint, _speed: OutPtr<c_uint>) |_gpu| Err(ErrorCode::INVALID_ARGUMENT);
    nvmlDeviceGetFanControlPolicy_v2(_fan: c_uint, _policy: OutPtr<c_uint>) |_gpu| Err(ErrorCode::INVALID_ARGUMENT);
    nvmlDeviceGetMinMaxFanSpeed(_min: OutPtr<c_uint>, _max: OutPtr<c_uint>) |_gpu| Err(ErrorCode::INVALID_ARGUMENT);
    nvmlDeviceGetFanSpeedRPM(info: OutPtr<VersionOnly>) |_gpu| only_version(info, 0x100_000c, ErrorCode::INVALID_ARGUMENT);
    nvmlDeviceGetCoolerInfo(info: OutPtr<VersionOnly>) |_gpu| only_version(info, 0x100_0010, ErrorCode::NOT_SUPPORTED);
    nvmlDeviceWorkloadPowerProfileGetProfilesInfo(info: OutPtr<VersionOnly>) |_gpu| only_version(info, 0x100_2bf8, ErrorCode::NOT_SUPPORTED);
    nvmlDeviceWorkloadPowerProfileGetCurrentProfiles(info: OutPtr<VersionOnly>) |_gpu| only_version(info, 0x100_0064, ErrorCode::NOT_SUPPORTED);
    nvmlDeviceGetPowerMizerMode_v1(modes: OutPtr<[u32; 3]>) |_gpu| modes.put([0, 0, 7]);
}

/// Fails with `VERSION_MISMATCH` if the struct version is wrong, which a real GPU checks first.
/// Otherwise fails with `code`.
fn only_version(
    info: OutPtr<VersionOnly>,
    version: u32,
    code: ErrorCode,
) -> crate::error_code::NvmlResult {
    Err(if info.version()? == version { code } else { ErrorCode::VERSION_MISMATCH })
}
