//! Messages of the NVIDIA kernel driver and of NVSwitch, and of what stands around a GPU.
//!
//! [`crate::decode`] finds them in a log; this is what they mean. The rule behind `action` and
//! `severity` is `docs/adr/0002-xid-actions.md`.

mod action;
mod sxid;
mod validate;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::decode::Kind;
use crate::origin::{Origin, OriginKind};

pub use action::{Action, Severity};
pub use sxid::{Sxid, SxidClass, SxidVerdict};
pub(crate) use validate::validate;

/// What `data/xids/` holds.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct XidFacts {
    /// Xids, by code.
    pub xid: Vec<Xid>,
    /// Xids of NVSwitch, by code.
    pub sxid: Vec<Sxid>,
    /// What an Xid 144 to 150 means.
    pub nvlink5: Vec<Nvlink5Rule>,
    /// What the registers of an Xid 74 mean.
    pub nvlink_bits: Vec<NvlinkBits>,
    /// The driver's own recovery actions.
    pub recovery_action: Vec<RecoveryAction>,
    /// NVIDIA's resolution buckets.
    pub bucket: Vec<Bucket>,
    /// Errors of the PCIe bus.
    pub bus_error: Vec<BusError>,
    /// Messages without a number, in the order in which they are tried.
    pub message: Vec<Message>,
}

impl XidFacts {
    /// The record of an Xid.
    pub fn by_code(&self, code: u32) -> Option<&Xid> {
        self.xid.iter().find(|xid| xid.code == code)
    }

    /// The record of an NVSwitch error.
    pub fn sxid_by_code(&self, code: u32) -> Option<&Sxid> {
        self.sxid.iter().find(|sxid| sxid.code == code)
    }

    /// The driver's recovery action of this number.
    pub fn recovery_action(&self, value: u32) -> Option<&RecoveryAction> {
        self.recovery_action.iter().find(|action| action.value == value)
    }

    /// What a bucket of NVIDIA's asks for, in our words.
    pub fn bucket_instruction(&self, bucket: &str) -> Option<&str> {
        self.bucket.iter().find(|record| record.name == bucket).map(|record| record.asks.as_str())
    }

    /// NVIDIA's second bucket as a sentence, with a space before it. After a reset or a reboot it is
    /// the next step; where there was little or nothing to do, it is for the next time.
    pub(crate) fn follow_up(&self, first: Action, bucket: &str) -> String {
        let Some(record) = self.bucket.iter().find(|record| record.name == bucket) else {
            return " Afterwards: see NVIDIA's catalogue.".to_owned();
        };
        let asks = &record.asks;
        match (record.action, first) {
            (Action::Ignore, _) if bucket == "IGNORE" => String::new(),
            // A condition of its own: `if other Xids came with it, follow those`.
            (Action::Ignore, _) => {
                let (first, rest) = asks.split_at(asks.chars().next().map_or(0, char::len_utf8));
                format!(" {}{rest}.", first.to_uppercase())
            }
            (_, Action::Ignore | Action::RestartApp) => format!(" If it comes back: {asks}."),
            _ => format!(" Afterwards: {asks}."),
        }
    }

    /// What an Xid means and what to do, in a few sentences.
    pub fn describe(&self, xid: &Xid) -> String {
        let mut text = xid.title();
        match (
            &xid.advice,
            xid.immediate.as_deref().and_then(|bucket| self.bucket_instruction(bucket)),
        ) {
            (Some(advice), _) => {
                text.push_str(". ");
                text.push_str(advice.trim_end_matches('.'));
            }
            (None, asks) => {
                text.push_str(": ");
                text.push_str(asks.unwrap_or(xid.action.instruction()));
            }
        }
        text.push('.');
        if let Some(then) =
            xid.investigatory.as_deref().filter(|_| xid.investigatory != xid.immediate)
        {
            text.push_str(&self.follow_up(xid.action, then));
        }
        if xid.immediate.is_none() {
            text.push_str(
                " NVIDIA's catalogue names no action; this one is our conclusion, unverified.",
            );
        }
        text
    }
}

/// An Xid of NVIDIA's catalogue.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Xid {
    /// The number in the log.
    pub code: u32,
    /// The driver's names for it.
    pub mnemonic: Vec<String>,
    /// NVIDIA's title; none where the catalogue says that newer GPUs do not use the code.
    #[serde(default)]
    pub name: Option<String>,
    /// Our severity.
    pub severity: Severity,
    /// Our action.
    pub action: Action,
    /// What to know before acting.
    #[serde(default)]
    pub advice: Option<String>,
    /// NVIDIA's bucket for the first action.
    #[serde(default)]
    pub immediate: Option<String>,
    /// NVIDIA's bucket for what comes after it.
    #[serde(default)]
    pub investigatory: Option<String>,
    /// What gpud says.
    #[serde(default)]
    pub gpud: Option<GpudView>,
    /// Where it comes from.
    pub origin: Origin,
}

impl Xid {
    /// NVIDIA's title, or the driver's name where there is none.
    pub fn title(&self) -> String {
        match &self.name {
            Some(name) => name.clone(),
            None => format!("{} (listed as unused on Ampere and newer)", self.mnemonic.join(", ")),
        }
    }

    /// NVIDIA's buckets in one line.
    pub fn buckets(&self) -> String {
        match (&self.immediate, &self.investigatory) {
            (Some(first), Some(then)) => format!("{first}, then {then}"),
            (Some(only), None) | (None, Some(only)) => only.clone(),
            (None, None) => "no bucket".to_owned(),
        }
    }

    /// What gpud says, where it is of another opinion than we are.
    ///
    /// gpud knows no reset of a GPU: its `RebootSystem` stands for a reset too.
    pub fn disagreement(&self) -> Option<String> {
        let gpud = self.gpud.as_ref()?;
        let acts = |severity: Severity| severity >= Severity::Critical;
        let reboots = gpud.repair.iter().any(|repair| repair == "RebootSystem");
        let resets =
            !matches!(self.action, Action::Ignore | Action::RestartApp | Action::Investigate);
        if acts(gpud.severity) == acts(self.severity) && (resets || !reboots) {
            return None;
        }
        let repair =
            if gpud.repair.is_empty() { "no repair".to_owned() } else { gpud.repair.join(", ") };
        Some(format!("gpud says {}, {repair}", gpud.severity))
    }

    /// The sources in one line, with the opinions that differ.
    pub fn source_line(&self) -> String {
        let source = self.origin.source.first().map_or("", String::as_str);
        let mut line = match self.origin.kind {
            OriginKind::Derived => format!("our conclusion from {source}, unverified"),
            _ => format!("{source}: {}", self.buckets()),
        };
        if let Some(other) = self.disagreement() {
            line.push_str("; ");
            line.push_str(&other);
        }
        line
    }
}

impl fmt::Display for Xid {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "Xid {}: {} [{}]: {}, {}; NVIDIA: {}",
            self.code,
            self.title(),
            self.mnemonic.join(", "),
            self.severity,
            self.action,
            self.buckets()
        )
    }
}

/// What leptonai/gpud says of an Xid.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpudView {
    /// Its severity.
    pub severity: Severity,
    /// Its repair actions.
    pub repair: Vec<String>,
}

/// A row of NVIDIA's decode sheet for NVLink 5.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nvlink5Rule {
    /// 144 to 150.
    pub xid: u32,
    /// Names of the unit, any of which the log may print.
    pub unit: Vec<String>,
    /// Patterns of the first word, in both layouts: `0`, `1` or `-`, most significant bit first.
    pub intrinfo: Vec<String>,
    /// The second word.
    pub error_status: u32,
    /// NVIDIA's bucket for the first action.
    pub resolution: String,
    /// NVIDIA's bucket for what comes after it.
    pub investigatory: String,
    /// NVIDIA's severity.
    pub class: Nvlink5Class,
    /// Whether the sheet states the severity without a mark.
    pub certain: bool,
    /// Hardware, software or firmware, as the sheet writes it.
    pub cause: String,
    /// Where it comes from.
    pub origin: Origin,
}

/// NVIDIA's severity of an NVLink 5 error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Nvlink5Class {
    /// To the GPU.
    Fatal,
    /// To the link.
    LinkFatal,
    /// To neither.
    NonFatal,
}

/// Bits of a register that an Xid 74 prints.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NvlinkBits {
    /// Which of the seven registers, from 0.
    pub register: usize,
    /// The bits, any of which counts.
    pub bits: Vec<u32>,
    /// What to do.
    pub action: Action,
    /// How bad.
    pub severity: Severity,
    /// From how many occurrences on one link the hardware is to be replaced.
    #[serde(default)]
    pub replace_from: Option<u32>,
    /// What the bits say.
    pub meaning: String,
    /// Where it comes from.
    pub origin: Origin,
}

/// What the driver itself asks for, in Xid 154 and in NVML field 230.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecoveryAction {
    /// NVML's number.
    pub value: u32,
    /// The driver's words.
    pub name: String,
    /// Our action.
    pub action: Action,
    /// Our severity.
    pub severity: Severity,
    /// What it means.
    pub asks: String,
    /// Where it comes from.
    pub origin: Origin,
}

/// A resolution bucket of NVIDIA's catalogue.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bucket {
    /// As the catalogue writes it.
    pub name: String,
    /// The action that it becomes.
    pub action: Action,
    /// What it asks for.
    pub asks: String,
    /// Where it comes from.
    pub origin: Origin,
}

/// An error of the PCIe bus, as the kernel's AER driver reports it.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BusError {
    /// Whose error.
    pub device: BusDevice,
    /// How the kernel classes it.
    pub class: BusErrorClass,
    /// How bad.
    pub severity: Severity,
    /// What to do.
    pub action: Action,
    /// What it means and what to do, in a sentence or two.
    pub text: String,
    /// Where it comes from.
    pub origin: Origin,
}

/// The devices whose bus errors are ours to report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BusDevice {
    /// A GPU or an NVSwitch.
    Gpu,
    /// A ConnectX NIC.
    Nic,
}

impl fmt::Display for BusDevice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::Gpu => "gpu",
            Self::Nic => "nic",
        })
    }
}

/// How the kernel classes an error of the PCIe bus.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BusErrorClass {
    /// The link repeated the packet.
    Corrected,
    /// A transaction was lost, the link works.
    NonFatal,
    /// The link is not reliable any more.
    Fatal,
    /// The kernel tried to recover the device and could not.
    Unrecovered,
}

impl fmt::Display for BusErrorClass {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::Corrected => "corrected",
            Self::NonFatal => "non-fatal",
            Self::Fatal => "fatal",
            Self::Unrecovered => "unrecovered",
        })
    }
}

/// A message that carries no number.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Message {
    /// Our name for it.
    pub id: String,
    /// What it is about.
    pub kind: Kind,
    /// Texts that all stand in the line.
    pub all: Vec<String>,
    /// Texts of which one stands in the line; empty asks for none.
    #[serde(default)]
    pub any: Vec<String>,
    /// Texts of which none stands in the line.
    #[serde(default)]
    pub none: Vec<String>,
    /// How the line names a process, where it does.
    #[serde(default)]
    pub process: Option<ProcessFormat>,
    /// The text before the name of the part at fault, such as a disk or a server, where the line names one.
    #[serde(default)]
    pub unit: Option<String>,
    /// How bad.
    pub severity: Severity,
    /// What to do.
    pub action: Action,
    /// What it means and what to do, in a sentence or two.
    pub text: String,
    /// Where it comes from.
    pub origin: Origin,
}

/// How a line of the kernel names a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProcessFormat {
    /// `[python3:2254956]` at the end.
    Bracket,
    /// `task python3:2254956 blocked`.
    Task,
    /// `Killed process 2254956 (python3)`.
    Killed,
    /// `python3[2254956]: segfault`.
    Segfault,
}
