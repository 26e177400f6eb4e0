//! Meaning and action of NVSwitch errors.

use serde::{Deserialize, Serialize};

use super::{Action, Severity};
use crate::origin::Origin;

/// An error of an NVSwitch.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sxid {
    /// Number printed in the log.
    pub code: u32,
    pub name: String,
    pub class: SxidClass,
    /// Whether it stops a GPU's traffic although it is not fatal.
    pub stalls: bool,
    /// gpud's repair actions.
    pub gpud_repair: Vec<String>,
    pub origin: Origin,
}

/// NVIDIA's class of an NVSwitch error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SxidClass {
    /// Corrected or contained.
    NonFatal,
    /// The log line says whether it is fatal.
    PotentiallyFatal,
    /// Always fatal.
    AlwaysFatal,
}

/// Severity and action of an NVSwitch error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SxidVerdict {
    pub severity: Severity,
    pub action: Action,
    /// Meaning and action.
    pub text: String,
}

impl Sxid {
    /// The verdict by the documented class, without a log line.
    pub fn verdict(&self) -> SxidVerdict {
        SxidVerdict::new(Some(self), Some(self.class))
    }
}

impl SxidVerdict {
    /// The verdict on a known or unknown error, with the class from the log line or the guide.
    pub(crate) fn new(record: Option<&Sxid>, class: Option<SxidClass>) -> Self {
        let name =
            record.map_or("an error that this fact set does not know", |record| &record.name);
        let (severity, action, advice) = advice(record, class);
        Self { severity, action, text: format!("NVSwitch: {name}: {advice}") }
    }
}

fn advice(record: Option<&Sxid>, class: Option<SxidClass>) -> (Severity, Action, &'static str) {
    match (class, record) {
        (Some(SxidClass::AlwaysFatal), _) => (
            Severity::Fatal,
            Action::RebootNode,
            "fatal to the fabric: its GPUs and switches have to be reset together, which a reboot does. \
             Drain the node and reboot it; if it recurs on the same link, have the hardware checked.",
        ),
        (Some(SxidClass::NonFatal), Some(record)) if record.stalls => (
            Severity::Warning,
            Action::RestartApp,
            "not fatal to the fabric, but the traffic of a GPU stops and its jobs end with Xid 45: \
             restart them.",
        ),
        (Some(SxidClass::NonFatal), Some(_)) => (
            Severity::Info,
            Action::Ignore,
            "corrected or contained: nothing to do, watch the rate.",
        ),
        (Some(SxidClass::PotentiallyFatal), _) => (
            Severity::Critical,
            Action::Investigate,
            "the log line says whether it is fatal; if it is, reboot the node. If the line does not say, look \
             at the lines around it.",
        ),
        (Some(SxidClass::NonFatal), None) | (None, _) => (
            Severity::Warning,
            Action::Investigate,
            "look it up in the fabric manager's user guide.",
        ),
    }
}
