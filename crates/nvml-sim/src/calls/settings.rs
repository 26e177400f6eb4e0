//! Setters. If the caller has permission, a setter writes the change to the GPU's file.

use std::ffi::{c_int, c_uint};

use farrier_sim::gpu::{ClockRange, EccCounts};

use crate::abi::{OutPtr, struct_version};
use crate::error_code::{ErrorCode, NvmlResult};
use crate::library::GpuView;
use crate::structs::PowerValue;

device_calls! {
    nvmlDeviceGetPersistenceMode(mode: OutPtr<c_uint>) |gpu| mode.put(u32::from(gpu.modes.persistence));
    nvmlDeviceGetComputeMode(mode: OutPtr<c_uint>) |gpu| mode.put(gpu.modes.compute);
    nvmlDeviceGetAPIRestriction(api: c_uint, restricted: OutPtr<c_uint>) |_gpu| match api {
        0 => Err(ErrorCode::NOT_SUPPORTED),
        1 => restricted.put(0),
        _ => Err(ErrorCode::INVALID_ARGUMENT),
    };
    nvmlDeviceSetPersistenceMode(mode: c_uint) |gpu| {
        let on = switch(mode)?;
        gpu.set(|gpu| {
            gpu.modes.persistence = on;
            Ok(())
        })
    };
    nvmlDeviceSetComputeMode(mode: c_uint) |gpu| {
        // Mode 1, exclusive thread, has been removed from NVML.
        if !matches!(mode, 0 | 2 | 3) {
            return Err(ErrorCode::INVALID_ARGUMENT);
        }
        gpu.set(|gpu| {
            gpu.modes.compute = mode;
            Ok(())
        })
    };
    nvmlDeviceSetEccMode(mode: c_uint) |gpu| {
        let on = switch(mode)?;
        gpu.set(|gpu| {
            gpu.ecc.pending = on;
            Ok(())
        })
    };
    nvmlDeviceClearEccErrorCounts(counter: c_uint) |gpu| gpu.set(|gpu| {
        match counter {
            0 => gpu.ecc.volatile = EccCounts::default(),
            1 => gpu.ecc.aggregate = EccCounts::default(),
            _ => return Err(ErrorCode::INVALID_ARGUMENT),
        }
        Ok(())
    });
    nvmlDeviceSetPowerManagementLimit(limit: c_uint) |gpu| set_power_limit(gpu, limit);
    nvmlDeviceSetPowerManagementLimit_v2(value: OutPtr<PowerValue>) |gpu| {
        let value = value.get()?;
        if value.version != struct_version::<PowerValue>(2) {
            return Err(ErrorCode::VERSION_MISMATCH);
        }
        if value.scope == 0 { set_power_limit(gpu, value.milliwatts) } else { Err(ErrorCode::NOT_SUPPORTED) }
    };
    nvmlDeviceSetGpuLockedClocks(min: c_uint, max: c_uint) |gpu| {
        if min > max {
            return Err(ErrorCode::INVALID_ARGUMENT);
        }
        gpu.set(|gpu| {
            gpu.clocks.locked_graphics_mhz = Some(ClockRange { min, max });
            let (floor, top) = (gpu.clocks.graphics_floor_mhz, gpu.clocks.max_mhz.graphics);
            let rate = gpu.clocks.current_mhz.graphics.max(min).min(max).max(floor).min(top.max(floor));
            (gpu.clocks.current_mhz.graphics, gpu.clocks.current_mhz.sm) = (rate, rate);
            Ok(())
        })
    };
    nvmlDeviceResetGpuLockedClocks() |gpu| gpu.set(|gpu| {
        gpu.clocks.locked_graphics_mhz = None;
        Ok(())
    });
    nvmlDeviceSetMemoryLockedClocks(min: c_uint, max: c_uint) |gpu| {
        if min > max {
            return Err(ErrorCode::INVALID_ARGUMENT);
        }
        gpu.set(|gpu| {
            gpu.clocks.locked_memory_mhz = Some(ClockRange { min, max });
            Ok(())
        })
    };
    nvmlDeviceResetMemoryLockedClocks() |gpu| gpu.set(|gpu| {
        gpu.clocks.locked_memory_mhz = None;
        Ok(())
    });
    nvmlDeviceSetApplicationsClocks(memory: c_uint, graphics: c_uint) |gpu| {
        let is_supported = gpu.clocks.supported_memory_mhz.contains(&memory) && gpu.clocks.supported_graphics_mhz().contains(&graphics);
        if !is_supported {
            return Err(ErrorCode::INVALID_ARGUMENT);
        }
        gpu.set(|gpu| {
            gpu.clocks.application_memory_mhz = memory;
            gpu.clocks.application_graphics_mhz = graphics;
            Ok(())
        })
    };
    nvmlDeviceResetApplicationsClocks() |gpu| gpu.set(|gpu| {
        gpu.clocks.application_memory_mhz = gpu.clocks.default_memory_mhz;
        gpu.clocks.application_graphics_mhz = gpu.clocks.default_graphics_mhz;
        Ok(())
    });
    nvmlDeviceSetMigMode(mode: c_uint, activation: OutPtr<c_int>) |gpu| set_mig(gpu, mode, activation);
    nvmlDeviceSetAccountingMode(mode: c_uint) |gpu| {
        let on = switch(mode)?;
        gpu.set(|gpu| {
            gpu.modes.accounting = on;
            Ok(())
        })
    };
    nvmlDeviceClearAccountingPids() |gpu| gpu.session.may_write();
}

fn switch(mode: u32) -> Result<bool, ErrorCode> {
    match mode {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(ErrorCode::INVALID_ARGUMENT),
    }
}

fn set_power_limit(gpu: &GpuView, limit_mw: u32) -> NvmlResult {
    gpu.session.may_write()?;
    if limit_mw < gpu.power.min_limit_mw || limit_mw > gpu.power.max_limit_mw {
        return Err(ErrorCode::INVALID_ARGUMENT);
    }
    gpu.set(|gpu| {
        gpu.power.limit_mw = limit_mw;
        Ok(())
    })
}

/// Sets the MIG mode. On Hopper and newer GPUs, the mode changes at once if the GPU is idle. Older
/// GPUs need a reset. In all cases the pending mode is stored and the call succeeds.
fn set_mig(gpu: &GpuView, mode: u32, activation: OutPtr<c_int>) -> NvmlResult {
    let on = switch(mode)?;
    gpu.session.may_write()?;
    if gpu.mig.is_none() {
        return Err(ErrorCode::NOT_SUPPORTED);
    }
    let outcome = if !gpu.processes.is_empty() {
        ErrorCode::IN_USE.number()
    } else if gpu.board.compute_capability[0] >= 9 {
        ErrorCode::SUCCESS
    } else {
        ErrorCode::RESET_REQUIRED.number()
    };
    gpu.set(|gpu| {
        let mig = gpu.mig.as_mut().ok_or(ErrorCode::NOT_SUPPORTED)?;
        mig.pending = on;
        if outcome == ErrorCode::SUCCESS {
            mig.enabled = on;
        }
        Ok(())
    })?;
    activation.put(outcome)
}
