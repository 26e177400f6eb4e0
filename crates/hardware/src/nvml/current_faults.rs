//! Reads a GPU's faults once.

use std::ffi::c_uint;

use farrier_facts::node::{DeviceHealth, NvlinkHealth, PcieLink, ReadError, Reading};

use super::caller::{CallResult, NvmlCaller, call, outcome};
use super::ffi::{self, FieldValue, RawDevice};
use super::watch::fields;
use super::watch::links::{LINKS_MAX, REMOTE_UNKNOWN, STATE};

impl NvmlCaller<'_> {
    pub(super) fn current_faults(&mut self, device: RawDevice) -> DeviceHealth {
        DeviceHealth {
            ecc_uncorrected: self.field(device, fields::ECC_UNCORRECTED_VOLATILE, 0).map(to_u64),
            clock_reasons: self.clock_reasons(device),
            pcie: self.pcie(device),
            utilisation_percent: self.utilisation(device),
            links: self.links(device),
        }
    }

    /// The value of a field, for the device or one of its links (`scope`).
    fn field(&mut self, device: RawDevice, id: c_uint, scope: c_uint) -> Reading<f64> {
        let mut requested: [FieldValue; 1] = [fields::field(id, scope)];
        let called = fields::read(self, device, &mut requested);
        let [field] = requested;
        let (field_result, value) = fields::outcome(&field);
        absent_if_missing(if called == Ok(ffi::SUCCESS) { field_result } else { called }, || value)
    }

    fn clock_reasons(&mut self, device: RawDevice) -> Reading<u64> {
        let mut reasons = 0;
        let out = &raw mut reasons;
        let mut called =
            call!(self, ffi::DeviceLong, "nvmlDeviceGetCurrentClocksEventReasons", device, out);
        if called.is_err() {
            // The name in older libraries.
            let name = call!(
                self,
                ffi::DeviceLong,
                "nvmlDeviceGetCurrentClocksThrottleReasons",
                device,
                out
            );
            called = name;
        }
        absent_if_missing(called, || reasons)
    }

    fn pcie(&mut self, device: RawDevice) -> Reading<PcieLink> {
        let generation = self.number(device, "nvmlDeviceGetCurrPcieLinkGeneration");
        let generation_max = self.number(device, "nvmlDeviceGetMaxPcieLinkGeneration");
        let width = self.number(device, "nvmlDeviceGetCurrPcieLinkWidth");
        let width_max = self.number(device, "nvmlDeviceGetMaxPcieLinkWidth");
        generation.and_then(|generation| {
            generation_max.and_then(|generation_max| {
                width.and_then(|width| {
                    width_max.map(|width_max| PcieLink {
                        generation,
                        generation_max,
                        width,
                        width_max,
                    })
                })
            })
        })
    }

    fn utilisation(&mut self, device: RawDevice) -> Reading<u32> {
        let mut rates = ffi::Utilization { gpu: 0, memory: 0 };
        let out = &raw mut rates;
        let called =
            call!(self, ffi::DeviceUtilization, "nvmlDeviceGetUtilizationRates", device, out);
        absent_if_missing(called, || rates.gpu)
    }

    /// Which links are up, and which are down although a remote device is connected.
    fn links(&mut self, device: RawDevice) -> Reading<NvlinkHealth> {
        let count = match self.field(device, fields::LINK_COUNT, 0) {
            Reading::Value(count) => to_u64(count).min(u64::from(LINKS_MAX)),
            Reading::Absent => return Reading::Absent,
            Reading::Unreadable(why) => return Reading::Unreadable(why),
        };
        let mut links = NvlinkHealth { up: 0, down: Vec::new() };
        for link in 0..u32::try_from(count).unwrap_or(0) {
            match self.field(device, STATE, link) {
                Reading::Value(state) if state > 0.0 => links.up += 1,
                Reading::Value(_) if self.is_wired(device, link) => links.down.push(link),
                Reading::Value(_) | Reading::Absent => {}
                Reading::Unreadable(why) => {
                    return Reading::Unreadable(ReadError::Link { link, err: Box::new(why) });
                }
            }
        }
        Reading::Value(links)
    }

    fn is_wired(&mut self, device: RawDevice, link: u32) -> bool {
        let mut kind: c_uint = REMOTE_UNKNOWN;
        let out = &raw mut kind;
        let name = call!(
            self,
            ffi::DeviceChoice,
            "nvmlDeviceGetNvLinkRemoteDeviceType",
            device,
            link,
            out
        );
        name == Ok(ffi::SUCCESS) && kind != REMOTE_UNKNOWN
    }
}

/// Converts a call's result. If an older library lacks the function, the value is absent.
fn absent_if_missing<T>(called: CallResult, value: impl FnOnce() -> T) -> Reading<T> {
    match called {
        Err(_) | Ok(ffi::FUNCTION_NOT_FOUND) => Reading::Absent,
        called => outcome(called, value),
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "GPU counters are small and never negative"
)]
fn to_u64(number: f64) -> u64 {
    number.max(0.0) as u64
}
