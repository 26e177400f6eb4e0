//! Reading one GPU: what a call's return code means for the values, the GPU and the library.

use std::ffi::c_uint;

use farrier_facts::node::{ReadError, Reading};
use farrier_fleet::health::observation::GpuIdentity;
use farrier_fleet::health::signal::Signal;

use crate::nvml::caller::{Called, Caller};
use crate::nvml::ffi::{self, Device, FieldValue, Return};

use super::fields;
use super::gpm::Gpm;
use super::links::Links;
use super::wire::{SignalSet, Values};

/// What concerns more than one value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trouble {
    /// The GPU no longer answers, or not before a reset.
    Gpu(Return),
    /// The library no longer works: the driver is gone, or another one is there.
    Library(Return),
}

impl Trouble {
    /// Whether a return code is trouble.
    pub(super) fn of(code: Return) -> Option<Self> {
        match code {
            ffi::GPU_IS_LOST | ffi::GPU_NOT_FOUND | ffi::RESET_REQUIRED => Some(Self::Gpu(code)),
            ffi::UNINITIALIZED | ffi::DRIVER_NOT_LOADED | ffi::LIB_RM_VERSION_MISMATCH => {
                Some(Self::Library(code))
            }
            _ => None,
        }
    }
}

/// A GPU as it is known between requests.
pub(super) struct Gpu {
    pub(super) identity: GpuIdentity,
    /// Its handle, or why there is none.
    pub(super) handle: Result<Device, Return>,
    /// What went wrong in each tier when it was last read.
    pub(super) trouble: [Option<Return>; 4],
    /// What the part does not have; asked again after the rare tier.
    pub(super) absent: SignalSet,
    /// Its links, once they are known.
    pub(super) links: Option<Links>,
    /// How many of them something was said of, first to last.
    pub(super) links_said: u32,
    /// Links that were up or that have something at their other end, one bit each.
    pub(super) links_wired: u64,
    /// Links that lead nowhere as far as the driver knows; asked again after the rare tier.
    pub(super) links_unwired: u64,
    /// Whether NVML told of an Xid since the last fast request.
    pub(super) had_xid: bool,
    pub(super) gpm: Gpm,
    /// Whether it is partitioned, as far as is known.
    pub(super) is_partitioned: bool,
    /// Whether power limits have no field and need a call.
    pub(super) has_limits_by_call: bool,
    /// The newest sample of what processes had of it.
    pub(super) shares_seen_us: u64,
}

impl Gpu {
    pub(super) fn of(identity: GpuIdentity, handle: Result<Device, Return>) -> Self {
        Self {
            identity,
            handle,
            trouble: [None; 4],
            absent: SignalSet::default(),
            links: None,
            links_said: 0,
            links_wired: 0,
            links_unwired: 0,
            had_xid: false,
            gpm: Gpm::default(),
            is_partitioned: false,
            has_limits_by_call: false,
            shares_seen_us: 0,
        }
    }

    /// Asks everything anew.
    pub(super) fn forget(&mut self) {
        self.absent = SignalSet::default();
        self.links = None;
        self.links_unwired = 0;
        self.has_limits_by_call = false;
        self.gpm.ask_support_again();
    }
}

/// Reads one GPU for one answer.
pub(super) struct Reader<'r, 'a> {
    pub(super) caller: &'r mut Caller<'a>,
    pub(super) device: Device,
    pub(super) gpu: &'r mut Gpu,
    pub(super) own: Values,
    pub(super) links: Vec<(u32, Values)>,
}

impl Reader<'_, '_> {
    /// Whether any of these may have a value.
    pub(super) fn wants(&self, signals: &[Signal]) -> bool {
        signals.iter().any(|signal| !self.gpu.absent.contains(*signal))
    }

    pub(super) fn value(&mut self, signal: Signal, value: f64) {
        self.own.put(signal, Reading::Value(value));
    }

    /// What a call gave.
    pub(super) fn put(&mut self, called: Called, values: &[(Signal, f64)]) -> Result<(), Trouble> {
        for (signal, value) in values {
            let reading = reading(called, *value)?;
            if reading == Reading::Absent {
                self.gpu.absent.insert(*signal);
            }
            self.own.put(*signal, reading);
        }
        Ok(())
    }

    /// A flag of several bits or none.
    pub(super) fn flag(&mut self, called: Called, signal: Signal, on: bool) -> Result<(), Trouble> {
        self.put(called, &[(signal, f64::from(u8::from(on)))])
    }

    /// Fields that are one signal's each.
    pub(super) fn fields(&mut self, wanted: &[(c_uint, Signal, f64)]) -> Result<(), Trouble> {
        let wanted: Vec<&(c_uint, Signal, f64)> =
            wanted.iter().filter(|(_, signal, _)| self.wants(&[*signal])).collect();
        let mut asked: Vec<FieldValue> =
            wanted.iter().map(|(id, ..)| fields::field(*id, 0)).collect();
        let called = fields::ask(self.caller, self.device, &mut asked);
        for ((_, signal, unit), field) in wanted.into_iter().zip(&asked) {
            let (outcome, value) = fields::outcome(field);
            self.put(
                called.and_then(|code| if code == ffi::SUCCESS { outcome } else { called }),
                &[(*signal, value * unit)],
            )?;
        }
        Ok(())
    }
}

/// The value, or why there is none. A call that this library does not have, and a value that this part does not
/// have, are absent: neither will be there in the next second.
pub(super) fn reading(called: Called, value: f64) -> Result<Reading<f64>, Trouble> {
    match called {
        Ok(ffi::SUCCESS) => Ok(Reading::Value(value)),
        Ok(ffi::NOT_SUPPORTED | ffi::FUNCTION_NOT_FOUND) | Err(_) => Ok(Reading::Absent),
        Ok(code) => match Trouble::of(code) {
            Some(trouble) => Err(trouble),
            None => Ok(Reading::Unreadable(ReadError::nvml(code))),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvml::caller::MissingCall;

    #[test]
    fn codes_are_about_a_value_a_gpu_or_all() {
        assert_eq!(reading(Ok(0), 4.0), Ok(Reading::Value(4.0)));
        assert_eq!(reading(Ok(3), 4.0), Ok(Reading::Absent));
        assert_eq!(reading(Err(MissingCall { name: None }), 4.0), Ok(Reading::Absent));
        let unknown = Ok(Reading::Unreadable(ReadError::nvml(999)));
        assert_eq!(reading(Ok(999), 4.0), unknown);
        assert_eq!(reading(Ok(15), 4.0), Err(Trouble::Gpu(15)));
        assert_eq!(reading(Ok(16), 4.0), Err(Trouble::Gpu(16)));
        for code in [1, 9, 18] {
            assert_eq!(reading(Ok(code), 4.0), Err(Trouble::Library(code)));
        }
    }
}
