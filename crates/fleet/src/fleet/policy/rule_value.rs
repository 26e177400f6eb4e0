//! The fields of a rule as values, to compare, to explain and to tighten them.

use std::fmt;

use farrier_bundle::ModuleFlavour;
use farrier_facts::version::DriverVersion;
use serde::Serialize;

use super::changes::{AgeGate, ApprovalPolicy, ChangeRule, DriverTrack, MaxSkew};
use crate::fleet::window::Window;

/// A field of a rule that has one value for a node. Forbidden versions are not among them, because
/// they add up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RuleField {
    Owner,
    Track,
    Minimum,
    Pinned,
    Flavour,
    AgeGate,
    CadenceDays,
    SecurityDeadlineDays,
    MaxSkew,
    Windows,
    ChangeMinutes,
    Approvals,
}

impl RuleField {
    pub const ALL: [Self; 12] = [
        Self::Owner,
        Self::Track,
        Self::Minimum,
        Self::Pinned,
        Self::Flavour,
        Self::AgeGate,
        Self::CadenceDays,
        Self::SecurityDeadlineDays,
        Self::MaxSkew,
        Self::Windows,
        Self::ChangeMinutes,
        Self::Approvals,
    ];

    /// The key in the document.
    pub fn name(self) -> &'static str {
        match self {
            Self::Owner => "owner",
            Self::Track => "track",
            Self::Minimum => "minimum",
            Self::Pinned => "pinned",
            Self::Flavour => "flavour",
            Self::AgeGate => "age_gate",
            Self::CadenceDays => "cadence_days",
            Self::SecurityDeadlineDays => "security_deadline_days",
            Self::MaxSkew => "max_skew",
            Self::Windows => "windows",
            Self::ChangeMinutes => "change_minutes",
            Self::Approvals => "approvals",
        }
    }
}

impl fmt::Display for RuleField {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

/// The value of a field.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum RuleValue {
    Owner(String),
    Track(DriverTrack),
    Version(DriverVersion),
    Flavour(ModuleFlavour),
    AgeGate(AgeGate),
    Days(u32),
    MaxSkew(MaxSkew),
    Windows(Vec<Window>),
    Minutes(u32),
    Approvals(ApprovalPolicy),
}

impl fmt::Display for RuleValue {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Owner(owner) => write!(formatter, "{owner}"),
            Self::Track(track) => write!(formatter, "{track}"),
            Self::Version(version) => write!(formatter, "{version}"),
            Self::Flavour(flavour) => write!(formatter, "{flavour}"),
            Self::AgeGate(gate) => write!(formatter, "{gate}"),
            Self::Days(days) => write!(formatter, "{days} days"),
            Self::MaxSkew(skew) => write!(formatter, "{skew}"),
            Self::Windows(windows) if windows.is_empty() => formatter.write_str("at any time"),
            Self::Windows(windows) => {
                let windows: Vec<String> = windows.iter().map(ToString::to_string).collect();
                formatter.write_str(&windows.join("; "))
            }
            Self::Minutes(minutes) => write!(formatter, "{minutes} minutes"),
            Self::Approvals(approvals) => write!(formatter, "{approvals}"),
        }
    }
}

impl ChangeRule {
    /// The value of a field. `None` if the rule does not set it.
    pub fn value(&self, field: RuleField) -> Option<RuleValue> {
        match field {
            RuleField::Owner => self.owner.clone().map(RuleValue::Owner),
            RuleField::Track => self.track.map(RuleValue::Track),
            RuleField::Minimum => self.minimum.clone().map(RuleValue::Version),
            RuleField::Pinned => self.pinned.clone().map(RuleValue::Version),
            RuleField::Flavour => self.flavour.map(RuleValue::Flavour),
            RuleField::AgeGate => self.age_gate.map(RuleValue::AgeGate),
            RuleField::CadenceDays => self.cadence_days.map(RuleValue::Days),
            RuleField::SecurityDeadlineDays => self.security_deadline_days.map(RuleValue::Days),
            RuleField::MaxSkew => self.max_skew.map(RuleValue::MaxSkew),
            RuleField::Windows => self.windows.clone().map(RuleValue::Windows),
            RuleField::ChangeMinutes => self.change_minutes.map(RuleValue::Minutes),
            RuleField::Approvals => self.approvals.clone().map(RuleValue::Approvals),
        }
    }
}
