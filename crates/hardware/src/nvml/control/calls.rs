//! The NVML calls behind each setting.

use std::ffi::{CString, c_int, c_uint};

use farrier_facts::node::{ReadError, Reading};
use farrier_facts::tune::{ApplicationClocks, GpuControl, GpuReadings, GpusSeen, Value};

use super::GpuSetError;
use crate::nvml::caller::{CallResult, NvmlCaller, call, outcome};
use crate::nvml::ffi::{self, RawDevice};
use crate::nvml::snapshot::DEVICES_MAX;

/// `NVML_CLOCK_GRAPHICS`
pub(in crate::nvml) const GRAPHICS: c_uint = 0;
/// `NVML_CLOCK_MEM`
const MEMORY: c_uint = 2;
/// Maximum clocks in a list. No GPU has more.
const CLOCKS_MAX: usize = 1024;
/// Maximum MIG instances of a GPU. `nvmlDeviceGetMaxMigDeviceCount` returns seven today.
const INSTANCES_MAX: u32 = 64;

impl NvmlCaller<'_> {
    pub(super) fn all_controls(&mut self) -> GpusSeen {
        let mut count: c_uint = 0;
        let called = call!(self, ffi::Count, "nvmlDeviceGetCount_v2", &raw mut count);
        match outcome(called, || count) {
            Reading::Value(count) => {
                let gpus = (0..count.min(DEVICES_MAX)).map(|index| self.gpu_controls(index));
                GpusSeen::Answered(gpus.collect())
            }
            Reading::Absent => GpusSeen::Silent("NVML does not report a GPU count".to_owned()),
            Reading::Unreadable(why) => GpusSeen::Silent(format!("failed to count GPUs: {why}")),
        }
    }

    fn gpu_controls(&mut self, index: u32) -> GpuReadings {
        let mut device: RawDevice = std::ptr::null_mut();
        let out = &raw mut device;
        let called = call!(self, ffi::HandleByIndex, "nvmlDeviceGetHandleByIndex_v2", index, out);
        if let Reading::Unreadable(why) = outcome(called, || ()) {
            return unopened(index, &why);
        }
        GpuReadings {
            index,
            uuid: self.device_text(device, "nvmlDeviceGetUUID"),
            name: self.device_text(device, "nvmlDeviceGetName"),
            persistence: self.switch(device, "nvmlDeviceGetPersistenceMode"),
            compute_mode: self.number(device, "nvmlDeviceGetComputeMode"),
            power: self.power(device),
            clocks: self.application_clocks(device),
            ecc: self.setting(device, "nvmlDeviceGetEccMode"),
            mig: self.setting(device, "nvmlDeviceGetMigMode"),
            mig_layout: self.mig_layout(device),
            accounting: self.switch(device, "nvmlDeviceGetAccountingMode"),
        }
    }

    fn switch(&mut self, device: RawDevice, name: &'static str) -> Reading<bool> {
        self.number(device, name).map(|number| number != 0)
    }

    pub(in crate::nvml) fn application_clock(
        &mut self,
        device: RawDevice,
        clock: c_uint,
    ) -> Reading<u32> {
        let mut mhz: c_uint = 0;
        let out = &raw mut mhz;
        let called =
            call!(self, ffi::DeviceChoice, "nvmlDeviceGetApplicationsClock", device, clock, out);
        absent_if_removed(called, || mhz)
    }

    pub(in crate::nvml) fn default_clock(
        &mut self,
        device: RawDevice,
        clock: c_uint,
    ) -> Reading<u32> {
        let mut mhz: c_uint = 0;
        let out = &raw mut mhz;
        let name = call!(
            self,
            ffi::DeviceChoice,
            "nvmlDeviceGetDefaultApplicationsClock",
            device,
            clock,
            out
        );
        absent_if_removed(name, || mhz)
    }

    fn application_clocks(&mut self, device: RawDevice) -> Reading<ApplicationClocks> {
        let clocks = [
            self.application_clock(device, MEMORY),
            self.application_clock(device, GRAPHICS),
            self.default_clock(device, MEMORY),
            self.default_clock(device, GRAPHICS),
        ];
        let [memory, graphics, default_memory, default_graphics] = clocks;
        memory.and_then(|memory_mhz| {
            let supported = self.supported_clocks(device, memory_mhz);
            graphics.and_then(|graphics_mhz| {
                default_memory.and_then(|default_memory_mhz| {
                    default_graphics.and_then(|default_graphics_mhz| {
                        supported.map(|supported_graphics_mhz| ApplicationClocks {
                            memory_mhz,
                            graphics_mhz,
                            default_memory_mhz,
                            default_graphics_mhz,
                            supported_graphics_mhz,
                        })
                    })
                })
            })
        })
    }

    fn supported_clocks(&mut self, device: RawDevice, memory_mhz: u32) -> Reading<Vec<u32>> {
        let mut clocks: [c_uint; CLOCKS_MAX] = [0; CLOCKS_MAX];
        let mut count = c_uint::try_from(CLOCKS_MAX).unwrap_or(c_uint::MAX);
        let called = call!(
            self,
            ffi::DeviceClocks,
            "nvmlDeviceGetSupportedGraphicsClocks",
            device,
            memory_mhz,
            &raw mut count,
            clocks.as_mut_ptr()
        );
        outcome(called, || clocks.iter().take(count as usize).copied().collect())
    }

    /// Profile names of the MIG instances. Absent if MIG is off or unsupported.
    fn mig_layout(&mut self, device: RawDevice) -> Reading<Vec<String>> {
        match self.setting(device, "nvmlDeviceGetMigMode") {
            Reading::Value(mig) if mig.current => {}
            Reading::Unreadable(why) => return Reading::Unreadable(why),
            Reading::Value(_) | Reading::Absent => return Reading::Absent,
        }
        let most = match self.number(device, "nvmlDeviceGetMaxMigDeviceCount") {
            Reading::Value(most) => most.min(INSTANCES_MAX),
            Reading::Absent => return Reading::Absent,
            Reading::Unreadable(why) => return Reading::Unreadable(why),
        };
        let mut names = Vec::new();
        for index in 0..most {
            let mut instance: RawDevice = std::ptr::null_mut();
            let called = call!(
                self,
                ffi::DeviceInstance,
                "nvmlDeviceGetMigDeviceHandleByIndex",
                device,
                index,
                &raw mut instance
            );
            // An index without an instance returns NOT_FOUND.
            if matches!(called, Ok(ffi::NOT_FOUND | ffi::NOT_SUPPORTED)) {
                continue;
            }
            let name = outcome(called, || instance)
                .and_then(|instance| self.device_text(instance, "nvmlDeviceGetName"));
            match name {
                // `NVIDIA H100 80GB HBM3 MIG 1g.10gb`
                Reading::Value(name) => {
                    names.push(name.rsplit(' ').next().unwrap_or_default().to_owned());
                }
                Reading::Absent => {}
                Reading::Unreadable(why) => return Reading::Unreadable(why),
            }
        }
        names.sort();
        Reading::Value(names)
    }

    /// The device with this UUID. Absent if NVML has none.
    fn by_uuid(&mut self, uuid: &str) -> Reading<RawDevice> {
        let Ok(text) = CString::new(uuid) else {
            return Reading::Unreadable(ReadError::malformed("the UUID contains a NUL"));
        };
        let mut device: RawDevice = std::ptr::null_mut();
        let out = &raw mut device;
        let called =
            call!(self, ffi::HandleByUuid, "nvmlDeviceGetHandleByUUID", text.as_ptr(), out);
        match called {
            Ok(ffi::NOT_FOUND) => Reading::Absent,
            called => outcome(called, || device),
        }
    }

    pub(super) fn get_control(&mut self, uuid: &str, control: GpuControl) -> Reading<Value> {
        let device = match self.by_uuid(uuid) {
            Reading::Value(device) => device,
            Reading::Absent => return Reading::Absent,
            Reading::Unreadable(why) => return Reading::Unreadable(why),
        };
        match control {
            GpuControl::Persistence => {
                self.switch(device, "nvmlDeviceGetPersistenceMode").map(Value::Switch)
            }
            GpuControl::Accounting => {
                self.switch(device, "nvmlDeviceGetAccountingMode").map(Value::Switch)
            }
            GpuControl::ComputeMode => {
                self.number(device, "nvmlDeviceGetComputeMode").map(Value::Number)
            }
            GpuControl::PowerLimit => {
                self.number(device, "nvmlDeviceGetPowerManagementLimit").map(Value::Number)
            }
            GpuControl::ApplicationClocks => {
                let graphics = self.application_clock(device, GRAPHICS);
                self.application_clock(device, MEMORY).and_then(|memory_mhz| {
                    graphics.map(|graphics_mhz| Value::Clocks { memory_mhz, graphics_mhz })
                })
            }
            GpuControl::Ecc => {
                let setting = self.setting(device, "nvmlDeviceGetEccMode");
                setting.map(|setting| Value::Switch(setting.pending))
            }
            GpuControl::Mig => {
                let setting = self.setting(device, "nvmlDeviceGetMigMode");
                setting.map(|setting| Value::Switch(setting.pending))
            }
        }
    }

    /// The value in force for a setting that takes effect at the next reset.
    pub(super) fn in_force(&mut self, uuid: &str, control: GpuControl) -> Reading<Value> {
        let name = match control {
            GpuControl::Ecc => "nvmlDeviceGetEccMode",
            GpuControl::Mig => "nvmlDeviceGetMigMode",
            _ => return self.get_control(uuid, control),
        };
        match self.by_uuid(uuid) {
            Reading::Value(device) => {
                self.setting(device, name).map(|setting| Value::Switch(setting.current))
            }
            Reading::Absent => Reading::Absent,
            Reading::Unreadable(why) => Reading::Unreadable(why),
        }
    }

    pub(super) fn set_control(
        &mut self,
        uuid: &str,
        control: GpuControl,
        value: &Value,
    ) -> Result<(), GpuSetError> {
        let device = match self.by_uuid(uuid) {
            Reading::Value(device) => device,
            Reading::Absent => return Err(GpuSetError::NoSuchGpu),
            Reading::Unreadable(why) => return Err(GpuSetError::Call(why)),
        };
        let called = match (control, value) {
            (GpuControl::Persistence, Value::Switch(on)) => {
                let on = c_uint::from(*on);
                call!(self, ffi::DeviceSet, "nvmlDeviceSetPersistenceMode", device, on)
            }
            (GpuControl::Accounting, Value::Switch(on)) => {
                let on = c_uint::from(*on);
                call!(self, ffi::DeviceSet, "nvmlDeviceSetAccountingMode", device, on)
            }
            (GpuControl::ComputeMode, Value::Number(mode)) => {
                call!(self, ffi::DeviceSet, "nvmlDeviceSetComputeMode", device, *mode)
            }
            (GpuControl::PowerLimit, Value::Number(limit)) => {
                call!(self, ffi::DeviceSet, "nvmlDeviceSetPowerManagementLimit", device, *limit)
            }
            (GpuControl::ApplicationClocks, Value::Clocks { memory_mhz, graphics_mhz }) => call!(
                self,
                ffi::DeviceSetTwo,
                "nvmlDeviceSetApplicationsClocks",
                device,
                *memory_mhz,
                *graphics_mhz
            ),
            (GpuControl::Ecc, Value::Switch(on)) => {
                let on = c_uint::from(*on);
                call!(self, ffi::DeviceSet, "nvmlDeviceSetEccMode", device, on)
            }
            (GpuControl::Mig, Value::Switch(on)) => {
                let mut activation: c_int = 0;
                // If the activation status is not success, a reset is pending. The mode itself is
                // set.
                call!(
                    self,
                    ffi::DeviceSetMig,
                    "nvmlDeviceSetMigMode",
                    device,
                    c_uint::from(*on),
                    &raw mut activation
                )
            }
            _ => return Err(GpuSetError::Value),
        };
        match called {
            Ok(ffi::SUCCESS) => Ok(()),
            Ok(code) => Err(GpuSetError::Call(ReadError::nvml(code))),
            Err(missing) => Err(GpuSetError::Call(missing.into())),
        }
    }
}

/// Converts the result of a call that newer libraries lack or stub out. With such a library, the
/// setting is absent.
fn absent_if_removed<T>(called: CallResult, value: impl FnOnce() -> T) -> Reading<T> {
    match called {
        Ok(ffi::DEPRECATED | ffi::FUNCTION_NOT_FOUND) | Err(_) => Reading::Absent,
        called => outcome(called, value),
    }
}

fn unopened(index: u32, why: &ReadError) -> GpuReadings {
    fn unread<T>(why: &ReadError) -> Reading<T> {
        Reading::Unreadable(why.clone())
    }
    GpuReadings {
        index,
        uuid: unread(why),
        name: unread(why),
        persistence: unread(why),
        compute_mode: unread(why),
        power: unread(why),
        clocks: unread(why),
        ecc: unread(why),
        mig: unread(why),
        mig_layout: unread(why),
        accounting: unread(why),
    }
}
