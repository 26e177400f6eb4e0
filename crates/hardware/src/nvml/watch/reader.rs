//! Reads one GPU, and maps return codes to failures of a value, the GPU or the library.

use std::ffi::c_uint;

use farrier_facts::node::{ReadError, Reading};
use farrier_fleet::health::observation::GpuIdentity;
use farrier_fleet::health::signal::Signal;

use crate::nvml::caller::{CallResult, NvmlCaller};
use crate::nvml::ffi::{self, FieldValue, RawDevice, Return};

use super::fields;
use super::gpm::Gpm;
use super::links::LinkInfo;
use super::wire::{SignalSet, WireValues};

/// A failure that affects more than one value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReadFailure {
    /// The GPU no longer answers, or answers only after a reset.
    Gpu(Return),
    /// The library no longer works, because the driver was unloaded or replaced.
    Library(Return),
}

impl ReadFailure {
    /// Classifies a return code. `None` if it concerns a single value.
    pub(super) fn from_code(code: Return) -> Option<Self> {
        match code {
            ffi::GPU_IS_LOST | ffi::GPU_NOT_FOUND | ffi::RESET_REQUIRED => Some(Self::Gpu(code)),
            ffi::UNINITIALIZED | ffi::DRIVER_NOT_LOADED | ffi::LIB_RM_VERSION_MISMATCH => {
                Some(Self::Library(code))
            }
            _ => None,
        }
    }
}

/// State of a GPU between requests.
pub(super) struct WatchedGpu {
    pub(super) identity: GpuIdentity,
    /// The handle, or the error from opening it.
    pub(super) handle: Result<RawDevice, Return>,
    /// The error of the last read, by tier.
    pub(super) failure: [Option<Return>; 4],
    /// Unsupported signals. They are tried again after the rare tier.
    pub(super) absent: SignalSet,
    /// `None` until read.
    pub(super) links: Option<LinkInfo>,
    /// Number of links that were reported, counted from link 0.
    pub(super) links_reported: u32,
    /// Bit mask of links that were up or have a remote device.
    pub(super) links_wired: u64,
    /// Bit mask of links that were up at the last read.
    pub(super) links_up: u64,
    /// Bit mask of links without a remote device, as far as the driver knows. They are tried again
    /// after the rare tier.
    pub(super) links_unwired: u64,
    /// Whether NVML reported an Xid since the last fast request.
    pub(super) had_xid: bool,
    pub(super) gpm: Gpm,
    /// MIG mode as last read.
    pub(super) is_partitioned: bool,
    /// Whether power limits need a call, because the driver has no field for them.
    pub(super) has_limits_by_call: bool,
    /// Timestamp of the newest process utilization sample.
    pub(super) utilization_until_us: u64,
}

impl WatchedGpu {
    pub(super) fn new(identity: GpuIdentity, handle: Result<RawDevice, Return>) -> Self {
        Self {
            identity,
            handle,
            failure: [None; 4],
            absent: SignalSet::default(),
            links: None,
            links_reported: 0,
            links_wired: 0,
            links_up: 0,
            links_unwired: 0,
            had_xid: false,
            gpm: Gpm::default(),
            is_partitioned: false,
            has_limits_by_call: false,
            utilization_until_us: 0,
        }
    }

    /// Forgets which values are unsupported, so that all are tried again.
    pub(super) fn reset_capabilities(&mut self) {
        self.absent = SignalSet::default();
        self.links = None;
        self.links_unwired = 0;
        self.has_limits_by_call = false;
        self.gpm.reset_support();
    }
}

/// Reads one GPU for one response.
pub(super) struct Reader<'r, 'a> {
    pub(super) caller: &'r mut NvmlCaller<'a>,
    pub(super) device: RawDevice,
    pub(super) gpu: &'r mut WatchedGpu,
    pub(super) own: WireValues,
    pub(super) links: Vec<(u32, WireValues)>,
}

impl Reader<'_, '_> {
    /// Whether any of these signals may be supported.
    pub(super) fn may_have(&self, signals: &[Signal]) -> bool {
        signals.iter().any(|signal| !self.gpu.absent.contains(*signal))
    }

    pub(super) fn value(&mut self, signal: Signal, value: f64) {
        self.own.put(signal, Reading::Value(value));
    }

    /// Stores the values of a call.
    pub(super) fn put(
        &mut self,
        called: CallResult,
        values: &[(Signal, f64)],
    ) -> Result<(), ReadFailure> {
        for (signal, value) in values {
            let reading = reading(called, *value)?;
            if reading == Reading::Absent {
                self.gpu.absent.insert(*signal);
            }
            self.own.put(*signal, reading);
        }
        Ok(())
    }

    pub(super) fn flag(
        &mut self,
        called: CallResult,
        signal: Signal,
        on: bool,
    ) -> Result<(), ReadFailure> {
        self.put(called, &[(signal, f64::from(u8::from(on)))])
    }

    /// Reads fields that map to one signal each.
    pub(super) fn fields(
        &mut self,
        requested: &[(c_uint, Signal, f64)],
    ) -> Result<(), ReadFailure> {
        let requested: Vec<&(c_uint, Signal, f64)> =
            requested.iter().filter(|(_, signal, _)| self.may_have(&[*signal])).collect();
        let mut values: Vec<FieldValue> =
            requested.iter().map(|(id, ..)| fields::field(*id, 0)).collect();
        let called = fields::read(self.caller, self.device, &mut values);
        for ((_, signal, unit), field) in requested.into_iter().zip(&values) {
            let (outcome, value) = fields::outcome(field);
            self.put(
                called.and_then(|code| if code == ffi::SUCCESS { outcome } else { called }),
                &[(*signal, value * unit)],
            )?;
        }
        Ok(())
    }
}

/// The value, or why there is none. A value is absent if the library lacks the function or the GPU
/// does not support the value, because neither changes within seconds.
pub(super) fn reading(called: CallResult, value: f64) -> Result<Reading<f64>, ReadFailure> {
    match called {
        Ok(ffi::SUCCESS) => Ok(Reading::Value(value)),
        Ok(ffi::NOT_SUPPORTED | ffi::FUNCTION_NOT_FOUND) | Err(_) => Ok(Reading::Absent),
        Ok(code) => match ReadFailure::from_code(code) {
            Some(failure) => Err(failure),
            None => Ok(Reading::Unreadable(ReadError::nvml(code))),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvml::caller::MissingCall;

    #[test]
    fn codes_classify_value_gpu_and_library_failures() {
        assert_eq!(reading(Ok(0), 4.0), Ok(Reading::Value(4.0)));
        assert_eq!(reading(Ok(3), 4.0), Ok(Reading::Absent));
        assert_eq!(reading(Err(MissingCall { name: None }), 4.0), Ok(Reading::Absent));
        let unknown = Ok(Reading::Unreadable(ReadError::nvml(999)));
        assert_eq!(reading(Ok(999), 4.0), unknown);
        assert_eq!(reading(Ok(15), 4.0), Err(ReadFailure::Gpu(15)));
        assert_eq!(reading(Ok(16), 4.0), Err(ReadFailure::Gpu(16)));
        for code in [1, 9, 18] {
            assert_eq!(reading(Ok(code), 4.0), Err(ReadFailure::Library(code)));
        }
    }
}
