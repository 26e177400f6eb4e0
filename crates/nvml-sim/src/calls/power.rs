//! Watts, degrees and fans.

use std::ffi::c_uint;

use crate::abi::Out;
use crate::code::Code;
use crate::structs::{
    MarginTemperature, TemperatureV1, ThermalSensor, ThermalSettings, VersionOnly,
};

device_calls! {
    nvmlDeviceGetPowerUsage(power: Out<c_uint>) |gpu| power.put(gpu.power.average_mw);
    nvmlDeviceGetPowerManagementMode(mode: Out<c_uint>) |_gpu| mode.put(1);
    nvmlDeviceGetPowerManagementLimit(limit: Out<c_uint>) |gpu| limit.put(gpu.power.limit_mw);
    nvmlDeviceGetEnforcedPowerLimit(limit: Out<c_uint>) |gpu| limit.put(gpu.power.limit_mw);
    nvmlDeviceGetPowerManagementDefaultLimit(limit: Out<c_uint>) |gpu| limit.put(gpu.power.default_limit_mw);
    nvmlDeviceGetPowerManagementLimitConstraints(min: Out<c_uint>, max: Out<c_uint>) |gpu| {
        min.put(gpu.power.min_limit_mw)?;
        max.put(gpu.power.max_limit_mw)
    };
    nvmlDeviceGetTotalEnergyConsumption(energy: Out<u64>) |gpu| energy.put(gpu.power.energy_at(gpu.now_unix_ms()));
    nvmlDeviceGetPowerSource(source: Out<c_uint>) |_gpu| source.put(0);
    nvmlDeviceGetTemperature(sensor: c_uint, temperature: Out<c_uint>) |gpu| {
        if sensor != 0 {
            return Err(Code::INVALID_ARGUMENT);
        }
        temperature.put(u32::try_from(gpu.temperature.gpu_c).unwrap_or(0))
    };
    nvmlDeviceGetTemperatureV(temperature: Out<TemperatureV1>) |gpu| {
        if temperature.get()?.sensor != 0 {
            return Err(Code::INVALID_ARGUMENT);
        }
        temperature.change_version(1, |temperature| temperature.temperature_c = gpu.temperature.gpu_c)
    };
    nvmlDeviceGetTemperatureThreshold(threshold: c_uint, temperature: Out<c_uint>) |gpu| {
        let found = &gpu.temperature;
        let degrees = match threshold {
            0 => found.gpu_limit_c.saturating_sub(found.shutdown_margin_c),
            1 => found.gpu_limit_c.saturating_sub(found.slowdown_margin_c),
            2 if found.memory_c.is_some() => found.memory_max_c,
            3 => found.gpu_limit_c,
            2 | 4..=7 => return Err(Code::NOT_SUPPORTED),
            _ => return Err(Code::INVALID_ARGUMENT),
        };
        temperature.put(u32::try_from(degrees).unwrap_or(0))
    };
    nvmlDeviceGetMarginTemperature(margin: Out<MarginTemperature>) |gpu| margin.change_version(1, |margin| margin.margin_c = gpu.margin_c());
    nvmlDeviceGetThermalSettings(_sensor: c_uint, settings: Out<ThermalSettings>) |gpu| {
        let none = ThermalSensor { controller: 0, min_c: 0, max_c: 0, current_c: 0, target: 0 };
        let gpu = ThermalSensor { controller: 1, min_c: 0, max_c: 127, current_c: gpu.temperature.gpu_c, target: 1 };
        settings.put(ThermalSettings { count: 1, sensors: [gpu, none, none] })
    };
    // The modules have no fans: there is no first one to ask about.
    nvmlDeviceGetNumFans(count: Out<c_uint>) |_gpu| count.put(0);
    nvmlDeviceGetFanSpeed(_speed: Out<c_uint>) |_gpu| Err(Code::NOT_SUPPORTED);
    nvmlDeviceGetFanSpeed_v2(_fan: c_uint, _speed: Out<c_uint>) |_gpu| Err(Code::INVALID_ARGUMENT);
    nvmlDeviceGetTargetFanSpeed(_fan: c_uint, _speed: Out<c_uint>) |_gpu| Err(Code::INVALID_ARGUMENT);
    nvmlDeviceGetFanControlPolicy_v2(_fan: c_uint, _policy: Out<c_uint>) |_gpu| Err(Code::INVALID_ARGUMENT);
    nvmlDeviceGetMinMaxFanSpeed(_min: Out<c_uint>, _max: Out<c_uint>) |_gpu| Err(Code::INVALID_ARGUMENT);
    nvmlDeviceGetFanSpeedRPM(info: Out<VersionOnly>) |_gpu| only_version(info, 0x100_000c, Code::INVALID_ARGUMENT);
    nvmlDeviceGetCoolerInfo(info: Out<VersionOnly>) |_gpu| only_version(info, 0x100_0010, Code::NOT_SUPPORTED);
    nvmlDeviceWorkloadPowerProfileGetProfilesInfo(info: Out<VersionOnly>) |_gpu| only_version(info, 0x100_2bf8, Code::NOT_SUPPORTED);
    nvmlDeviceWorkloadPowerProfileGetCurrentProfiles(info: Out<VersionOnly>) |_gpu| only_version(info, 0x100_0064, Code::NOT_SUPPORTED);
    nvmlDeviceGetPowerMizerMode_v1(modes: Out<[u32; 3]>) |_gpu| modes.put([0, 0, 7]);
}

/// The part does not have it; a card still looks at the struct's version first.
fn only_version(info: Out<VersionOnly>, version: u32, code: Code) -> crate::code::Answer {
    Err(if info.version()? == version { code } else { Code::VERSION_MISMATCH })
}
