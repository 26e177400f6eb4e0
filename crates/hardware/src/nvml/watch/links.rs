//! NVLink: every counter of every link, in few calls.

use std::ffi::c_uint;
use std::ops::Range;

use farrier_facts::node::{ReadError, Reading};
use farrier_fleet::health::signal::Signal;

use crate::nvml::caller::call;
use crate::nvml::ffi::{self, FieldValue};

use super::fields;
use super::reader::{ReadFailure, Reader, reading};
use super::wire::WireValues;

/// `NVML_NVLINK_MAX_LINKS` in the newest header. A larger count comes from a broken library.
pub(in crate::nvml) const LINKS_MAX: u32 = 36;

/// `NVML_FI_DEV_NVLINK_GET_VERSION`, and its value from NVLink 5 on (`NVML_NVLINK_VERSION_5_0`).
const VERSION: c_uint = 166;
const VERSION_5: f64 = 7.0;
/// `NVML_NVLINK_VERSION_4_0`: from Hopper on, [`CRC`] counts the CRC errors of flits as well.
const VERSION_4: f64 = 6.0;

/// `NVML_FI_DEV_NVLINK_ERROR_DL_CRC`.
const CRC: c_uint = 163;

/// `NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_L0` and `_L6`: CRC errors of flits before NVLink 4, one
/// field per link.
const CRC_FLIT_L0: c_uint = 32;
const CRC_FLIT_L6: c_uint = 96;

/// `NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS`: replaces field 162 on NVLink 5.
const RECOVERY_5: c_uint = 215;

/// `NVML_FI_DEV_NVLINK_GET_STATE`: 0 is down, 1 up, 2 asleep.
pub(in crate::nvml) const STATE: c_uint = 165;

/// `NVML_NVLINK_DEVICE_TYPE_UNKNOWN`
pub(in crate::nvml) const REMOTE_UNKNOWN: c_uint = 0xff;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LinkInfo {
    count: u32,
    is_nvlink5: bool,
    /// Whether CRC errors of flits have fields of their own.
    has_flit_fields: bool,
}

/// Fields whose scope is the link index. Fields from 206 on require NVLink 5.
const FIELDS: [(c_uint, Signal); 12] = [
    (STATE, Signal::LinkActive),
    (164, Signal::LinkSpeed),
    (161, Signal::LinkReplay),
    (162, Signal::LinkRecovery),
    (CRC, Signal::LinkCrc),
    (206, Signal::LinkMalformed),
    (207, Signal::LinkDropped),
    (208, Signal::LinkRxErrors),
    (211, Signal::LinkIntegrity),
    (220, Signal::LinkEffectiveBer),
    (222, Signal::LinkSymbolBer),
    (295, Signal::LinkPlrRetries),
];

impl Reader<'_, '_> {
    /// Reads all links. A GPU without links reports nothing.
    pub(super) fn nvlinks(&mut self) -> Result<(), ReadFailure> {
        let LinkInfo { count, is_nvlink5, has_flit_fields } = match self.link_info()? {
            Ok(links) => links,
            Err(why) => {
                self.unreadable_links(why);
                return Ok(());
            }
        };
        // These links were reported before the count was known, and do not exist.
        self.put_all(count..self.gpu.links_reported, &Reading::Absent);
        self.gpu.links_reported = count;
        let supported: Vec<(c_uint, Signal)> = FIELDS
            .into_iter()
            .filter(|(_, signal)| self.may_have(&[*signal]))
            .map(|(id, signal)| match signal {
                Signal::LinkRecovery if is_nvlink5 => (RECOVERY_5, signal),
                _ => (id, signal),
            })
            .collect();
        let mut requested: Vec<FieldValue> = (0..count)
            .flat_map(|link| supported.iter().map(move |(id, _)| fields::field(*id, link)))
            .collect();
        if requested.is_empty() {
            return Ok(());
        }
        let called = fields::read(self.caller, self.device, &mut requested);
        let flit_errors = if has_flit_fields { self.flit_errors(count)? } else { Vec::new() };
        let mut links = Vec::new();
        for (link, answers) in (0..count).zip(requested.chunks_exact(supported.len())) {
            let mut values = WireValues::default();
            for ((_, signal), field) in supported.iter().zip(answers) {
                let (outcome, value) = fields::outcome(field);
                let called = if called == Ok(ffi::SUCCESS) { outcome } else { called };
                let mut reading = reading(called, to_signal_unit(*signal, value))?;
                if *signal == Signal::LinkActive {
                    reading = self.activity(link, reading)?;
                }
                if *signal == Signal::LinkCrc {
                    reading = with_flit_errors(reading, flit_errors.get(link as usize));
                }
                values.put(*signal, reading);
            }
            links.push((link, values));
        }
        // A signal that no link has is unsupported on this GPU.
        for (_, signal) in supported {
            let number = signal as u8;
            // `LinkActive` never counts as unsupported, because a link may still come up.
            let is_lasting = signal != Signal::LinkActive;
            if is_lasting && links.iter().all(|(_, values)| values.absent.contains(&number)) {
                self.gpu.absent.insert(signal);
            }
        }
        self.links.append(&mut links);
        Ok(())
    }

    /// Reads only whether the links are up, and reports those that went down or came up since they
    /// were last read. This detects a link that flaps between two reads of all counters. The call
    /// has one field per link, and costs about as much as the other calls of the fast tier.
    pub(super) fn link_states(&mut self) -> Result<(), ReadFailure> {
        let count = self.gpu.links.map_or(0, |links| links.count);
        if count == 0 {
            return Ok(());
        }
        let mut requested: Vec<FieldValue> =
            (0..count).map(|link| fields::field(STATE, link)).collect();
        let called = fields::read(self.caller, self.device, &mut requested);
        for (link, field) in (0..count).zip(&requested) {
            let (outcome, value) = fields::outcome(field);
            let called = if called == Ok(ffi::SUCCESS) { outcome } else { called };
            // The medium tier reports what cannot be read, and finds out which links are connected.
            let Reading::Value(value) = reading(called, value)? else { continue };
            let (bit, is_up) = (1 << link, value > 0.0);
            let was_up = self.gpu.links_up & bit != 0;
            if self.gpu.links_wired & bit == 0 || is_up == was_up {
                continue;
            }
            self.gpu.links_up ^= bit;
            let mut values = WireValues::default();
            values.put(Signal::LinkActive, Reading::Value(f64::from(u8::from(is_up))));
            self.links.push((link, values));
        }
        Ok(())
    }

    /// CRC errors of flits by link. `None` if the GPU does not count them.
    fn flit_errors(&mut self, count: u32) -> Result<Vec<Option<f64>>, ReadFailure> {
        let field = |link: u32| match link {
            0..6 => Some(CRC_FLIT_L0 + link),
            6..12 => Some(CRC_FLIT_L6 + link - 6),
            _ => None,
        };
        let mut requested: Vec<FieldValue> =
            (0..count).filter_map(field).map(|id| fields::field(id, 0)).collect();
        let called = fields::read(self.caller, self.device, &mut requested);
        let errors = |field: &FieldValue| {
            let (outcome, value) = fields::outcome(field);
            let called = if called == Ok(ffi::SUCCESS) { outcome } else { called };
            Ok(reading(called, value)?.value().copied())
        };
        requested.iter().map(errors).collect()
    }

    /// Whether a link is up. A link that is down is a fault only if it was up before or has a
    /// remote device. Otherwise the signal is absent, because the links of a PCIe card are not
    /// connected without a bridge.
    fn activity(&mut self, link: u32, active: Reading<f64>) -> Result<Reading<f64>, ReadFailure> {
        let bit = 1 << link;
        if active == Reading::Value(1.0) {
            self.gpu.links_wired |= bit;
            self.gpu.links_up |= bit;
        } else {
            self.gpu.links_up &= !bit;
        }
        if active != Reading::Value(0.0) || self.gpu.links_wired & bit != 0 {
            return Ok(active);
        }
        if self.gpu.links_unwired & bit != 0 {
            return Ok(Reading::Absent);
        }
        let mut kind: c_uint = REMOTE_UNKNOWN;
        let (device, out) = (self.device, &raw mut kind);
        let called = call!(
            self.caller,
            ffi::DeviceChoice,
            "nvmlDeviceGetNvLinkRemoteDeviceType",
            device,
            link,
            out
        );
        match reading(called, f64::from(kind))? {
            Reading::Value(_) if kind != REMOTE_UNKNOWN => self.gpu.links_wired |= bit,
            Reading::Value(_) | Reading::Absent => {
                self.gpu.links_unwired |= bit;
                return Ok(Reading::Absent);
            }
            Reading::Unreadable(why) => return Ok(Reading::Unreadable(why)),
        }
        Ok(active)
    }

    /// Marks links as unreadable because their count cannot be read: the links known so far, or
    /// link 0 if none is known. Without these samples, the links would look healthy, or the GPU
    /// would seem to have no links.
    fn unreadable_links(&mut self, why: ReadError) {
        self.gpu.links_reported = self.gpu.links_reported.max(1);
        let why = ReadError::LinkCount { err: Box::new(why) };
        self.put_all(0..self.gpu.links_reported, &Reading::Unreadable(why));
    }

    /// Reports the same reading for a range of links.
    fn put_all(&mut self, links: Range<u32>, reading: &Reading<f64>) {
        for link in links {
            let mut values = WireValues::default();
            for (_, signal) in FIELDS {
                if self.may_have(&[signal]) {
                    values.put(signal, reading.clone());
                }
            }
            self.links.push((link, values));
        }
    }

    /// The GPU's links, or why they cannot be read now.
    fn link_info(&mut self) -> Result<Result<LinkInfo, ReadError>, ReadFailure> {
        if let Some(links) = self.gpu.links {
            return Ok(Ok(links));
        }
        let mut requested = [fields::field(fields::LINK_COUNT, 0), fields::field(VERSION, 0)];
        let called = fields::read(self.caller, self.device, &mut requested);
        let [count, version] = requested.map(|field| fields::outcome(&field));
        let called = if called == Ok(ffi::SUCCESS) { count.0 } else { called };
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "clamped to a small range"
        )]
        let count = match reading(called, count.1)? {
            Reading::Value(count) => count.clamp(0.0, f64::from(LINKS_MAX)) as u32,
            Reading::Absent => 0,
            Reading::Unreadable(why) => return Ok(Err(why)),
        };
        let has_version = version.0 == Ok(ffi::SUCCESS);
        let is_nvlink5 = has_version && version.1 >= VERSION_5;
        let has_flit_fields = has_version && version.1 < VERSION_4;
        let links = LinkInfo { count, is_nvlink5, has_flit_fields };
        self.gpu.links = Some(links);
        Ok(Ok(links))
    }
}

/// CRC errors of data and flits together.
fn with_flit_errors(data: Reading<f64>, flits: Option<&Option<f64>>) -> Reading<f64> {
    match (data, flits.copied().flatten()) {
        (Reading::Value(data), Some(flits)) => Reading::Value(data + flits),
        (Reading::Absent, Some(flits)) => Reading::Value(flits),
        (data, _) => data,
    }
}

fn to_signal_unit(signal: Signal, value: f64) -> f64 {
    match signal {
        // A sleeping link (2) counts as up.
        Signal::LinkActive => f64::from(u8::from(value > 0.0)),
        Signal::LinkEffectiveBer | Signal::LinkSymbolBer => fields::bit_error_rate(value),
        _ => value,
    }
}
