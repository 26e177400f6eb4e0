//! NVLink: every counter of every link, in few calls.

use std::ffi::c_uint;

use farrier_facts::node::Reading;
use farrier_fleet::health::signal::Signal;

use crate::nvml::ffi::{self, FieldValue};

use super::fields;
use super::reader::{Reader, Trouble, reading};
use super::wire::Values;

/// `NVML_NVLINK_MAX_LINKS` of the newest header; more is nonsense.
const LINKS_MAX: u32 = 36;

/// Fields whose scope is the link's number. From 206 on the part has to have NVLink 5.
const FIELDS: [(c_uint, Signal); 12] = [
    (165, Signal::LinkActive),
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
        let Some(count) = self.link_count()? else { return Ok(()) };
        let wanted: Vec<(c_uint, Signal)> =
            FIELDS.into_iter().filter(|(_, signal)| self.wants(&[*signal])).collect();
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
                values.put(*signal, reading(called, in_our_unit(*signal, value))?);
            }
            found.push((link, values));
        }
        // What no link has, the part does not have.
        for (_, signal) in wanted {
            let number = signal as u8;
            if found.iter().all(|(_, values)| values.absent.contains(&number)) {
                self.gpu.absent.insert(signal);
            }
        }
        self.links.append(&mut found);
        Ok(())
    }

    /// How many links the part has; `None` where that cannot be read now.
    fn link_count(&mut self) -> Result<Option<u32>, Trouble> {
        if self.gpu.links.is_some() {
            return Ok(self.gpu.links);
        }
        let mut field = [fields::field(fields::LINK_COUNT, 0)];
        let called = fields::ask(self.caller, self.device, &mut field);
        let (outcome, value) = fields::outcome(&field[0]);
        let called = if called == Ok(ffi::SUCCESS) { outcome } else { called };
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it is clamped to a small number"
        )]
        let count = match reading(called, value)? {
            Reading::Value(count) => Some(count.clamp(0.0, f64::from(LINKS_MAX)) as u32),
            Reading::Absent => Some(0),
            Reading::Unreadable(_) => None,
        };
        self.gpu.links = count;
        Ok(count)
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
