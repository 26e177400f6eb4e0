//! What an error of an NVSwitch means and asks for.

use serde::{Deserialize, Serialize};

use super::{Action, Severity};
use crate::origin::Origin;

/// An error of an NVSwitch.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sxid {
    /// The number in the log.
    pub code: u32,
    /// NVIDIA's name.
    pub name: String,
    /// NVIDIA's class.
    pub class: SxidClass,
    /// Whether it stops the traffic of a GPU though it is not fatal.
    pub stalls: bool,
    /// gpud's repair actions.
    pub gpud_repair: Vec<String>,
    /// Where it comes from.
    pub origin: Origin,
}

/// NVIDIA's class of an NVSwitch error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SxidClass {
    /// Corrected or contained.
    NonFatal,
    /// Fatal or not, as the log line says.
    PotentiallyFatal,
    /// Always fatal.
    AlwaysFatal,
}

/// How bad an error of an NVSwitch is, and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SxidVerdict {
    /// How bad.
    pub severity: Severity,
    /// What to do.
    pub action: Action,
    /// What it means and what to do, in words.
    pub text: String,
}

impl Sxid {
    /// The verdict by the class in the guide, where no line of a log says more.
    pub fn verdict(&self) -> SxidVerdict {
        SxidVerdict::new(Some(self), Some(self.class))
    }
}

impl SxidVerdict {
    /// The verdict on an error, known or not, of a class that a log line or the guide names.
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
             Drain the node and reboot it; a second time on the same link, have the hardware checked.",
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
            "fatal or not, as the log line says: `Fatal` calls for a reboot of the node. Where the line does \
             not say, look at the lines around it.",
        ),
        (Some(SxidClass::NonFatal), None) | (None, _) => (
            Severity::Warning,
            Action::Investigate,
            "look it up in the fabric manager's user guide.",
        ),
    }
}
