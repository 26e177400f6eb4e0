//! GPU memory: usage and wear.

use farrier_fleet::health::signal::Signal;

use crate::nvml::caller::call;
use crate::nvml::ffi;

use super::fields::float;
use super::reader::{ReadFailure, Reader};

impl Reader<'_, '_> {
    pub(super) fn memory(&mut self) -> Result<(), ReadFailure> {
        if !self.may_have(&[Signal::GpuMemoryTotal]) {
            return Ok(());
        }
        let version = ffi::struct_version::<ffi::MemoryV2>(2);
        let mut memory = ffi::MemoryV2 { version, total: 0, reserved: 0, free: 0, used: 0 };
        let called = call!(
            self.caller,
            ffi::DeviceMemory,
            "nvmlDeviceGetMemoryInfo_v2",
            self.device,
            &raw mut memory
        );
        self.put(
            called,
            &[
                (Signal::GpuMemoryTotal, float(memory.total)),
                (Signal::GpuMemoryUsed, float(memory.used)),
                (Signal::GpuMemoryFree, float(memory.free)),
                (Signal::GpuMemoryReserved, float(memory.reserved)),
            ],
        )
    }

    pub(super) fn histogram(&mut self) -> Result<(), ReadFailure> {
        if !self.may_have(&[Signal::GpuBanksLow]) {
            return Ok(());
        }
        let mut banks = ffi::RowRemapperHistogram::default();
        let called = call!(
            self.caller,
            ffi::DeviceHistogram,
            "nvmlDeviceGetRowRemapperHistogram",
            self.device,
            &raw mut banks
        );
        let values = [
            (Signal::GpuBanksLow, f64::from(banks.low)),
            (Signal::GpuBanksNone, f64::from(banks.none)),
        ];
        self.put(called, &values)
    }

    pub(super) fn sram(&mut self) -> Result<(), ReadFailure> {
        if !self.may_have(&[Signal::GpuEccSramThreshold]) {
            return Ok(());
        }
        let version = ffi::struct_version::<ffi::EccSramErrorStatusV1>(1);
        let mut status = ffi::EccSramErrorStatusV1 { version, ..Default::default() };
        let called = call!(
            self.caller,
            ffi::DeviceSram,
            "nvmlDeviceGetSramEccErrorStatus",
            self.device,
            &raw mut status
        );
        let corrected = float(status.aggregate_corrected);
        self.put(called, &[(Signal::GpuEccSramCorrectedLifetime, corrected)])?;
        self.flag(called, Signal::GpuEccSramThreshold, status.threshold_exceeded != 0)
    }

    pub(super) fn unrepairable(&mut self) -> Result<(), ReadFailure> {
        if !self.may_have(&[Signal::GpuMemoryUnrepairable]) {
            return Ok(());
        }
        let version = ffi::struct_version::<ffi::UnrepairableMemory>(1);
        let mut memory = ffi::UnrepairableMemory { words: [version, 0] };
        let called = call!(
            self.caller,
            ffi::DeviceUnrepairable,
            "nvmlDeviceGetUnrepairableMemoryFlag_v1",
            self.device,
            &raw mut memory
        );
        // The driver of an H200 writes the flag over the version. NVIDIA's bindings expect it after
        // the version.
        let [first, second] = memory.words;
        let flag = if first == version { second } else { first };
        self.flag(called, Signal::GpuMemoryUnrepairable, flag != 0)
    }
}
