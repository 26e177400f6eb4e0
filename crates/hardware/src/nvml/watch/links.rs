//! NVLink: every counter of every link, in few calls.

use std::ffi::c_uint;
use std::ops::Range;

use farrier_facts::node::{ReadError, Reading};
use farrier_fleet::health::signal::Signal;

use crate::nvml::caller::call;
use crate::nvml::ffi::{self, FieldValue};

use super::fields;
use super::reader::{Reader, Trouble, reading};
use super::wire::Values;

/// `NVML_NVLINK_MAX_LINKS` of the newest header; more is nonsense.
pub(in crate::nvml) const LINKS_MAX: u32 = 36;

/// `NVML_FI_DEV_NVLINK_GET_VERSION`, and its value from NVLink 5 on (`NVML_NVLINK_VERSION_5_0`).
const VERSION: c_uint = 166;
const VERSION_5: f64 = 7.0;

/// `NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS`: what NVLink 5 has in place of 162.
const RECOVERY_5: c_uint = 215;

/// `NVML_FI_DEV_NVLINK_GET_STATE`: 0 is down, 1 up, 2 asleep.
pub(in crate::nvml) const STATE: c_uint = 165;

/// `NVML_NVLINK_DEVICE_TYPE_UNKNOWN`
pub(in crate::nvml) const REMOTE_UNKNOWN: c_uint = 0xff;

/// The links of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Links {
    count: u32,
    is_fifth: bool,
}

/// Fields whose scope is the link's number. From 206 on the part has to have NVLink 5.
const FIELDS: [(c_uint, Signal); 12] = [
    (STATE, Signal::LinkActive),
    (164, Signal::LinkSpeed),
    (161, Signal::LinkReplay),
    (162, Signal::LinkRecovery),
    (163, Signal::LinkCrc),
    (206, Signal::LinkMalformed),
    (207, Signal::LinkDropped),
    (208, Signal::LinkRxErrors),
    (211, Signal::LinkIntegrity),
    (220, Signal::LinkEffectiveBer),
    (222, Signal::LinkSymbolBer),
    (295, Signal::LinkPlrRetries),
];

impl Reader<'_, '_> {
    /// Reads all links. A part without any has nothing to say about them.
    pub(super) fn nvlinks(&mut self) -> Result<(), Trouble> {
        let Links { count, is_fifth } = match self.links_of()? {
            Ok(links) => links,
            Err(why) => {
                self.unreadable_links(why);
                return Ok(());
            }
        };
        // One that was spoken of before their number was known, and that is not there.
        self.speak_of(count..self.gpu.links_said, &Reading::Absent);
        self.gpu.links_said = count;
        let wanted: Vec<(c_uint, Signal)> = FIELDS
            .into_iter()
            .filter(|(_, signal)| self.wants(&[*signal]))
            .map(|(id, signal)| match signal {
                Signal::LinkRecovery if is_fifth => (RECOVERY_5, signal),
                _ => (id, signal),
            })
            .collect();
        let mut asked: Vec<FieldValue> = (0..count)
            .flat_map(|link| wanted.iter().map(move |(id, _)| fields::field(*id, link)))
            .collect();
        if asked.is_empty() {
            return Ok(());
        }
        let called = fields::ask(self.caller, self.device, &mut asked);
        let mut found = Vec::new();
        for (link, answers) in (0..count).zip(asked.chunks_exact(wanted.len())) {
            let mut values = Values::default();
            for ((_, signal), field) in wanted.iter().zip(answers) {
                let (outcome, value) = fields::outcome(field);
                let called = if called == Ok(ffi::SUCCESS) { outcome } else { called };
                let mut reading = reading(called, in_our_unit(*signal, value))?;
                if *signal == Signal::LinkActive {
                    reading = self.activity(link, reading)?;
                }
                values.put(*signal, reading);
            }
            found.push((link, values));
        }
        // What no link has, the part does not have.
        for (_, signal) in wanted {
            let number = signal as u8;
            // A link may yet come up.
            let is_lasting = signal != Signal::LinkActive;
            if is_lasting && found.iter().all(|(_, values)| values.absent.contains(&number)) {
                self.gpu.absent.insert(signal);
            }
        }
        self.links.append(&mut found);
        Ok(())
    }

    /// Whether a link is up. One that is down is a fault where it was up before, or where it is known what is at its
    /// other end: without a bridge the links of a card in a PCIe slot lead nowhere.
    fn activity(&mut self, link: u32, active: Reading<f64>) -> Result<Reading<f64>, Trouble> {
        let bit = 1 << link;
        if active == Reading::Value(1.0) {
            self.gpu.links_wired |= bit;
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

    /// How many links there are cannot be read, so that none is: those that are known, or the first for all of them
    /// where none is. Silence would look like links that are well, or like a part without any.
    fn unreadable_links(&mut self, why: ReadError) {
        self.gpu.links_said = self.gpu.links_said.max(1);
        let why = ReadError::LinkCount { err: Box::new(why) };
        self.speak_of(0..self.gpu.links_said, &Reading::Unreadable(why));
    }

    /// Says the same of some links.
    fn speak_of(&mut self, links: Range<u32>, reading: &Reading<f64>) {
        for link in links {
            let mut values = Values::default();
            for (_, signal) in FIELDS {
                if self.wants(&[signal]) {
                    values.put(signal, reading.clone());
                }
            }
            self.links.push((link, values));
        }
    }

    /// Which links the part has, or why that cannot be read now.
    fn links_of(&mut self) -> Result<Result<Links, ReadError>, Trouble> {
        if let Some(links) = self.gpu.links {
            return Ok(Ok(links));
        }
        let mut asked = [fields::field(fields::LINK_COUNT, 0), fields::field(VERSION, 0)];
        let called = fields::ask(self.caller, self.device, &mut asked);
        let [count, version] = asked.map(|field| fields::outcome(&field));
        let called = if called == Ok(ffi::SUCCESS) { count.0 } else { called };
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it is clamped to a small number"
        )]
        let count = match reading(called, count.1)? {
            Reading::Value(count) => count.clamp(0.0, f64::from(LINKS_MAX)) as u32,
            Reading::Absent => 0,
            Reading::Unreadable(why) => return Ok(Err(why)),
        };
        let is_fifth = version.0 == Ok(ffi::SUCCESS) && version.1 >= VERSION_5;
        let links = Links { count, is_fifth };
        self.gpu.links = Some(links);
        Ok(Ok(links))
    }
}

fn in_our_unit(signal: Signal, value: f64) -> f64 {
    match signal {
        // A link that sleeps (2) is up.
        Signal::LinkActive => f64::from(u8::from(value > 0.0)),
        Signal::LinkEffectiveBer | Signal::LinkSymbolBer => fields::bit_error_rate(value),
        _ => value,
    }
}
