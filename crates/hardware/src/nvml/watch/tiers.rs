//! Which call provides which signal, and how often it is made.
//!
//! The rate depends on the cost. The table shows the CPU time per call, measured at these rates on
//! an H200 with driver 580.159.04. In a tight loop, most calls would cost only 2 us, because a
//! cache answers them.
//!
//! ```text
//! every second       calls below 50 us, changes of the links' states (one call)
//! every ten seconds  recovery action (120 us), errors, processes
//! every 30 seconds   GPM (2 ms; the second sample of a new child already after ten seconds),
//!                    two of the throttle times (700 us each)
//! every minute       temperature margin (1.1 ms), PCIe replays (350 us) and the like; InfoROM
//!                    checksum (70 ms) of one GPU, in turn
//! every 5 minutes    energy (3.3 ms)
//! every hour, and    maximum clocks, maximum PCIe generation and width; InfoROM checksum of
//! at start           all GPUs
//! never              PCIe throughput (21 ms; GPM has it), AER counters (125 us each; in sysfs too)
//! ```

use std::ffi::{c_int, c_uint};

use farrier_fleet::health::signal::Signal;

use crate::nvml::caller::call;
use crate::nvml::ffi::{self, GpmMetricsGet, ProcessInfo};

use super::NvmlProcess;
use super::fields::{self, ThrottleFields, float};
use super::reader::{ReadFailure, Reader};

/// `NVML_CLOCK_SM`, `NVML_CLOCK_MEM`
const CLOCK_SM: c_uint = 1;
const CLOCK_MEMORY: c_uint = 2;

/// Nanoseconds to seconds: the driver counts throttle times in nanoseconds (nvml-wrapper 0.13.0
/// `device.rs`).
const NANOSECONDS: f64 = 1e-9;

/// The recovery action is read every ten seconds, and at once after an Xid.
const RECOVERY_ACTION: (c_uint, Signal, f64) =
    (ffi::FIELD_RECOVERY_ACTION, Signal::GpuRecoveryAction, 1.0);

/// Inputs of a medium request, apart from the GPU.
pub(super) struct MediumRequest<'m> {
    pub(super) throttle: ThrottleFields,
    /// Whether the two costly throttle times (hardware thermal, power brake) are due.
    pub(super) with_expensive: bool,
    /// Whether GPM activity is due.
    pub(super) with_activity: bool,
    pub(super) gpm: &'m mut GpmMetricsGet,
    pub(super) buffer: &'m mut Vec<ProcessInfo>,
    pub(super) processes: &'m mut Vec<NvmlProcess>,
}

/// Which costly values a slow request reads.
pub(super) struct SlowRequest {
    pub(super) with_energy: bool,
    /// Validate the InfoROM of this GPU. The requests take turns among the GPUs.
    pub(super) with_inforom: bool,
}

/// Reads one number of a device, unless it is known to be unsupported.
macro_rules! number {
    ($self:ident, $name:literal, $signal:expr, $unit:expr) => {
        if $self.may_have(&[$signal]) {
            let mut number: c_uint = 0;
            let called =
                call!($self.caller, ffi::DeviceNumber, $name, $self.device, &raw mut number);
            $self.put(called, &[($signal, f64::from(number) * $unit)])?;
        }
    };
}

/// Like `number!`, for a call with a selector argument.
macro_rules! choice {
    ($self:ident, $name:literal, $choice:expr, $signal:expr) => {
        if $self.may_have(&[$signal]) {
            let mut number: c_uint = 0;
            let called = call!(
                $self.caller,
                ffi::DeviceChoice,
                $name,
                $self.device,
                $choice,
                &raw mut number
            );
            $self.put(called, &[($signal, f64::from(number))])?;
        }
    };
}

/// Like `number!`, for a call that returns two numbers, of which the first is used.
macro_rules! first_of_two {
    ($self:ident, $name:literal, $signal:expr, $unit:expr) => {
        if $self.may_have(&[$signal]) {
            let (mut number, mut other): (c_uint, c_uint) = (0, 0);
            let (first, second) = (&raw mut number, &raw mut other);
            let called = call!($self.caller, ffi::DevicePair, $name, $self.device, first, second);
            $self.put(called, &[($signal, f64::from(number) * $unit)])?;
        }
    };
}

impl Reader<'_, '_> {
    pub(super) fn fast(&mut self) -> Result<(), ReadFailure> {
        if std::mem::take(&mut self.gpu.had_xid) {
            // The recovery action may have changed, so read it now.
            self.fields(&[RECOVERY_ACTION])?;
        }
        self.fields(&[(fields::MEMORY_TEMPERATURE, Signal::GpuMemoryTemperature, 1.0)])?;
        choice!(self, "nvmlDeviceGetTemperature", 0, Signal::GpuTemperature);
        number!(self, "nvmlDeviceGetPowerUsage", Signal::GpuPower, 0.001);
        choice!(self, "nvmlDeviceGetClockInfo", CLOCK_SM, Signal::GpuClockSm);
        choice!(self, "nvmlDeviceGetClockInfo", CLOCK_MEMORY, Signal::GpuClockMemory);
        self.clock_reasons()?;
        self.utilisation()?;
        self.link_states()?;
        self.memory()
    }

    pub(super) fn medium(&mut self, medium: &mut MediumRequest<'_>) -> Result<(), ReadFailure> {
        self.fields(&[
            RECOVERY_ACTION,
            (fields::ECC_CORRECTED_VOLATILE, Signal::GpuEccCorrected, 1.0),
            (fields::ECC_UNCORRECTED_VOLATILE, Signal::GpuEccUncorrected, 1.0),
            (fields::ECC_CORRECTED_AGGREGATE, Signal::GpuEccCorrectedLifetime, 1.0),
            (fields::ECC_UNCORRECTED_AGGREGATE, Signal::GpuEccUncorrectedLifetime, 1.0),
            (fields::ROWS_CORRECTED, Signal::GpuRowsCorrected, 1.0),
            (fields::ROWS_UNCORRECTED, Signal::GpuRowsUncorrected, 1.0),
            (fields::ROWS_PENDING, Signal::GpuRowsPending, 1.0),
            (fields::ROWS_FAILED, Signal::GpuRowsFailed, 1.0),
            (fields::THROTTLE_POWER_CAP, Signal::GpuThrottlePowerCap, NANOSECONDS),
            (fields::THROTTLE_SYNC_BOOST, Signal::GpuThrottleSyncBoost, NANOSECONDS),
            (medium.throttle.sw_thermal, Signal::GpuThrottleSwThermal, NANOSECONDS),
        ])?;
        if medium.with_expensive {
            self.fields(&[
                (medium.throttle.hw_thermal, Signal::GpuThrottleHwThermal, NANOSECONDS),
                (medium.throttle.power_brake, Signal::GpuThrottlePowerBrake, NANOSECONDS),
            ])?;
        }
        // Take the second GPM sample without waiting half a minute, because a new child has no
        // activity to report before it.
        if medium.with_activity || !self.gpu.gpm.has_measured() {
            self.gpm(medium.gpm)?;
        }
        self.power_limits()?;
        first_of_two!(self, "nvmlDeviceGetEncoderUtilization", Signal::GpuEncoder, 0.01);
        first_of_two!(self, "nvmlDeviceGetDecoderUtilization", Signal::GpuDecoder, 0.01);
        number!(self, "nvmlDeviceGetCurrPcieLinkGeneration", Signal::GpuPcieGeneration, 1.0);
        self.nvlinks()?;
        self.processes(medium.buffer, medium.processes)
    }

    pub(super) fn slow(&mut self, request: &SlowRequest) -> Result<(), ReadFailure> {
        self.margin()?;
        self.pcie()?;
        if request.with_inforom {
            self.inforom()?;
        }
        if request.with_energy && self.may_have(&[Signal::GpuEnergy]) {
            let mut energy_mj = 0;
            let called = call!(
                self.caller,
                ffi::DeviceLong,
                "nvmlDeviceGetTotalEnergyConsumption",
                self.device,
                &raw mut energy_mj
            );
            self.put(called, &[(Signal::GpuEnergy, float(energy_mj) * 0.001)])?;
        }
        let application = Signal::GpuClockSmApplication;
        choice!(self, "nvmlDeviceGetApplicationsClock", CLOCK_SM, application);
        number!(self, "nvmlDeviceGetPersistenceMode", Signal::GpuPersistence, 1.0);
        first_of_two!(self, "nvmlDeviceGetEccMode", Signal::GpuEccEnabled, 1.0);
        self.partitioning()?;
        self.fields(&[
            (fields::RETIRED_SINGLE, Signal::GpuPagesSingle, 1.0),
            (fields::RETIRED_DOUBLE, Signal::GpuPagesDouble, 1.0),
            (fields::RETIRED_PENDING, Signal::GpuPagesPending, 1.0),
        ])?;
        self.histogram()?;
        self.sram()?;
        self.unrepairable()?;
        self.fabric()
    }

    /// `with_expensive`: also validate the InfoROM, as the slow requests do for one GPU each.
    pub(super) fn rare(&mut self, with_expensive: bool) -> Result<(), ReadFailure> {
        choice!(self, "nvmlDeviceGetMaxClockInfo", CLOCK_SM, Signal::GpuClockSmMax);
        choice!(self, "nvmlDeviceGetMaxClockInfo", CLOCK_MEMORY, Signal::GpuClockMemoryMax);
        number!(self, "nvmlDeviceGetMaxPcieLinkGeneration", Signal::GpuPcieGenerationMax, 1.0);
        number!(self, "nvmlDeviceGetMaxPcieLinkWidth", Signal::GpuPcieWidthMax, 1.0);
        if with_expensive {
            self.inforom()?;
        }
        Ok(())
    }

    fn inforom(&mut self) -> Result<(), ReadFailure> {
        if !self.may_have(&[Signal::GpuInforomValid]) {
            return Ok(());
        }
        let called = call!(self.caller, ffi::DeviceOnly, "nvmlDeviceValidateInforom", self.device);
        let valid = called == Ok(ffi::SUCCESS);
        let called = if called == Ok(ffi::CORRUPTED_INFOROM) { Ok(ffi::SUCCESS) } else { called };
        self.flag(called, Signal::GpuInforomValid, valid)
    }

    /// Reads the power limits from fields, which cost 2 us, or with a call, which costs 175 us.
    /// Older drivers have only the call.
    fn power_limits(&mut self) -> Result<(), ReadFailure> {
        if !self.gpu.has_limits_by_call {
            let mut limits = [
                fields::field(fields::POWER_LIMIT, 0),
                fields::field(fields::POWER_LIMIT_DEFAULT, 0),
            ];
            let called = fields::read(self.caller, self.device, &mut limits);
            let [limit, default] = limits.map(|field| fields::outcome(&field));
            if called == Ok(ffi::SUCCESS) && limit.0 != Ok(ffi::NOT_SUPPORTED) {
                self.put(limit.0, &[(Signal::GpuPowerLimit, limit.1 * 0.001)])?;
                return self.put(default.0, &[(Signal::GpuPowerLimitDefault, default.1 * 0.001)]);
            }
            self.gpu.has_limits_by_call = called == Ok(ffi::SUCCESS);
        }
        number!(self, "nvmlDeviceGetEnforcedPowerLimit", Signal::GpuPowerLimit, 0.001);
        let default = Signal::GpuPowerLimitDefault;
        number!(self, "nvmlDeviceGetPowerManagementDefaultLimit", default, 0.001);
        Ok(())
    }

    fn clock_reasons(&mut self) -> Result<(), ReadFailure> {
        if !self.may_have(&[Signal::GpuClockReasons]) {
            return Ok(());
        }
        let mut reasons = 0;
        let (device, out) = (self.device, &raw mut reasons);
        let mut called = call!(
            self.caller,
            ffi::DeviceLong,
            "nvmlDeviceGetCurrentClocksEventReasons",
            device,
            out
        );
        if called.is_err() {
            // The name in older libraries.
            called = call!(
                self.caller,
                ffi::DeviceLong,
                "nvmlDeviceGetCurrentClocksThrottleReasons",
                device,
                out
            );
        }
        self.put(called, &[(Signal::GpuClockReasons, float(reasons))])
    }

    fn utilisation(&mut self) -> Result<(), ReadFailure> {
        if !self.may_have(&[Signal::GpuUtilisation]) {
            return Ok(());
        }
        let mut rates = ffi::Utilization { gpu: 0, memory: 0 };
        let called = call!(
            self.caller,
            ffi::DeviceUtilization,
            "nvmlDeviceGetUtilizationRates",
            self.device,
            &raw mut rates
        );
        let share = |percent: c_uint| f64::from(percent) * 0.01;
        self.put(
            called,
            &[
                (Signal::GpuUtilisation, share(rates.gpu)),
                (Signal::GpuMemoryCopy, share(rates.memory)),
            ],
        )
    }

    fn pcie(&mut self) -> Result<(), ReadFailure> {
        number!(self, "nvmlDeviceGetCurrPcieLinkGeneration", Signal::GpuPcieGeneration, 1.0);
        number!(self, "nvmlDeviceGetCurrPcieLinkWidth", Signal::GpuPcieWidth, 1.0);
        number!(self, "nvmlDeviceGetPcieReplayCounter", Signal::GpuPcieReplays, 1.0);
        let value_of = |signal: Signal| {
            let found = self.own.values.iter().find(|(number, _)| *number == signal as u8);
            found.map(|(_, value)| *value)
        };
        let link = value_of(Signal::GpuPcieGeneration).zip(value_of(Signal::GpuPcieWidth));
        if let Some(limit) = link.and_then(|(generation, width)| replay_limit(generation, width)) {
            self.value(Signal::GpuPcieReplayLimit, limit);
        }
        Ok(())
    }

    fn margin(&mut self) -> Result<(), ReadFailure> {
        if !self.may_have(&[Signal::GpuTemperatureMargin]) {
            return Ok(());
        }
        let version = ffi::struct_version::<ffi::MarginTemperatureV1>(1);
        let mut margin = ffi::MarginTemperatureV1 { version, margin_c: 0 };
        let called = call!(
            self.caller,
            ffi::DeviceMargin,
            "nvmlDeviceGetMarginTemperature",
            self.device,
            &raw mut margin
        );
        let margin_c: c_int = margin.margin_c;
        self.put(called, &[(Signal::GpuTemperatureMargin, f64::from(margin_c))])
    }

    fn partitioning(&mut self) -> Result<(), ReadFailure> {
        first_of_two!(self, "nvmlDeviceGetMigMode", Signal::GpuMigEnabled, 1.0);
        let number = Signal::GpuMigEnabled as u8;
        let found = self.own.values.iter().find(|(signal, _)| *signal == number);
        let is_partitioned = found.is_some_and(|(_, value)| *value > 0.0);
        if found.is_some() && is_partitioned != self.gpu.is_partitioned {
            // The set of supported calls changes with MIG mode.
            self.gpu.reset_capabilities();
            self.gpu.is_partitioned = is_partitioned;
        }
        Ok(())
    }

    fn fabric(&mut self) -> Result<(), ReadFailure> {
        if !self.may_have(&[Signal::GpuFabricState]) {
            return Ok(());
        }
        let (called, fabric) = self.caller.fabric_info(self.device);
        // A GPU outside a fabric returns 0, which means that it has no fabric state.
        let called = match (called, fabric.state) {
            (Ok(ffi::SUCCESS), 0) => Ok(ffi::NOT_SUPPORTED),
            (called, _) => called,
        };
        self.put(
            called,
            &[
                (Signal::GpuFabricState, f64::from(fabric.state)),
                (Signal::GpuFabricStatus, f64::from(fabric.status)),
            ],
        )?;
        self.flag(called, Signal::GpuFabricUnhealthy, is_unhealthy(fabric.health_mask))
    }
}

/// Replays per minute that a healthy link may have: DCGM's limit per lane, which assumes a bit
/// error rate of 1e-12 (NVIDIA/DCGM `DcgmHealthWatch.cpp`), times the number of lanes.
fn replay_limit(generation: f64, lanes: f64) -> Option<f64> {
    let per_lane = match generation {
        value if value < 2.0 => return None,
        value if value < 3.0 => 0.30,
        value if value < 4.0 => 0.48,
        value if value < 5.0 => 0.96,
        value if value < 6.0 => 1.92,
        value if value < 7.0 => 3.84,
        _ => return None,
    };
    (lanes > 0.0).then(|| (lanes * per_lane).ceil())
}

/// Whether a fabric health mask reports a problem (nvml.h `NVML_GPU_FABRIC_HEALTH_MASK_*`). Four
/// two-bit members are 1 when true: degraded bandwidth, route recovery, route unhealthy, access
/// timeout recovery. Then four bits of configuration status: 1 is correct, 0 is unknown, everything
/// else is incorrect.
fn is_unhealthy(mask: u32) -> bool {
    let is_set = (0..4).any(|member| mask >> (2 * member) & 0x3 == 1);
    is_set || mask >> 8 & 0xf > 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replay_limit_by_generation_and_width() {
        assert_eq!(replay_limit(5.0, 16.0), Some(31.0));
        assert_eq!(replay_limit(4.0, 16.0), Some(16.0));
        assert_eq!(replay_limit(3.0, 8.0), Some(4.0));
        assert_eq!(replay_limit(1.0, 16.0), None);
        assert_eq!(replay_limit(5.0, 0.0), None);
    }

    #[test]
    fn fabric_health_masks() {
        // First all members are unsupported, then all are false with a correct configuration.
        assert!(!is_unhealthy(0));
        assert!(!is_unhealthy(0b01_10_10_10_10));
        for wrong in [0x1, 0x4, 0x10, 0x40, 0x200, 0x500] {
            assert!(is_unhealthy(wrong), "{wrong:#x}");
        }
        // An assigned partition is not a fault.
        assert!(!is_unhealthy(0x1000));
    }
}
