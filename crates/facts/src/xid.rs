//! Meaning of kernel-log messages: Xids of the NVIDIA driver, SXids of NVSwitch, PCIe errors and
//! host faults that affect GPUs.
//!
//! [`crate::decode`] finds the messages in a log. `docs/adr/0002-xid-actions.md` has the rule
//! behind `action` and `severity`.

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

/// Contents of `data/xids/`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct XidFacts {
    /// Xids, by code.
    pub xid: Vec<Xid>,
    /// NVSwitch errors, by code.
    pub sxid: Vec<Sxid>,
    /// Decoding rules for Xids 144 to 150.
    pub nvlink5: Vec<Nvlink5Rule>,
    /// Meaning of the register bits of an Xid 74.
    pub nvlink_bits: Vec<NvlinkBits>,
    /// The driver's own recovery actions.
    pub recovery_action: Vec<RecoveryAction>,
    /// NVIDIA's resolution buckets.
    pub bucket: Vec<Bucket>,
    /// Errors of the PCIe bus.
    pub bus_error: Vec<BusError>,
    /// Messages without a code, in matching order.
    pub message: Vec<Message>,
}

/// Buckets whose instruction says itself when it applies: `if it comes back on the same GPU ...`.
const CONDITIONAL_BUCKETS: [&str; 2] = ["WORKFLOW_XID_13", "WORKFLOW_XID_31"];

impl XidFacts {
    /// Looks up an Xid.
    pub fn by_code(&self, code: u32) -> Option<&Xid> {
        self.xid.iter().find(|xid| xid.code == code)
    }

    /// Looks up an NVSwitch error.
    pub fn sxid_by_code(&self, code: u32) -> Option<&Sxid> {
        self.sxid.iter().find(|sxid| sxid.code == code)
    }

    /// Looks up a recovery action by its NVML value.
    pub fn recovery_action(&self, value: u32) -> Option<&RecoveryAction> {
        self.recovery_action.iter().find(|action| action.value == value)
    }

    /// Our wording of the instruction behind an NVIDIA resolution bucket.
    pub fn bucket_instruction(&self, bucket: &str) -> Option<&str> {
        self.bucket.iter().find(|record| record.name == bucket).map(|record| record.asks.as_str())
    }

    /// NVIDIA's second bucket as a sentence with a leading space. After a reset or reboot, this
    /// second instruction is the next step. If the first action is to ignore the error or to
    /// restart the application, the second instruction applies when the error recurs.
    pub(crate) fn follow_up(&self, first: Action, bucket: &str) -> String {
        let Some(record) = self.bucket.iter().find(|record| record.name == bucket) else {
            return " Afterwards: see NVIDIA's catalogue.".to_owned();
        };
        let asks = &record.asks;
        if bucket == "IGNORE" {
            return String::new();
        }
        // The text states its own condition: `if other Xids came with it, follow those`.
        if record.action == Action::Ignore || CONDITIONAL_BUCKETS.contains(&bucket) {
            let (first, rest) = asks.split_at(asks.chars().next().map_or(0, char::len_utf8));
            return format!(" {}{rest}.", first.to_uppercase());
        }
        match first {
            Action::Ignore | Action::RestartApp => format!(" If it comes back: {asks}."),
            _ => format!(" Afterwards: {asks}."),
        }
    }

    /// Meaning and action of an Xid, in a few sentences.
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
    /// Number printed in the log.
    pub code: u32,
    /// The driver's names for it.
    pub mnemonic: Vec<String>,
    /// NVIDIA's title; `None` if the catalogue lists the code as unused on newer GPUs.
    #[serde(default)]
    pub name: Option<String>,
    pub severity: Severity,
    pub action: Action,
    #[serde(default)]
    pub advice: Option<String>,
    /// NVIDIA's bucket for the first action.
    #[serde(default)]
    pub immediate: Option<String>,
    /// NVIDIA's bucket for the follow-up.
    #[serde(default)]
    pub investigatory: Option<String>,
    #[serde(default)]
    pub gpud: Option<GpudView>,
    pub origin: Origin,
}

impl Xid {
    /// NVIDIA's title, or the driver's mnemonic if there is none.
    pub fn title(&self) -> String {
        match &self.name {
            Some(name) => name.clone(),
            None => format!("{} (listed as unused on Ampere and newer)", self.mnemonic.join(", ")),
        }
    }

    /// Whether every line with this Xid requires the same action. The action of the other Xids also
    /// depends on the register bits, the sub-code or the recovery action in the line.
    pub fn has_fixed_action(&self) -> bool {
        !matches!(self.code, 74 | 144..=150 | 154)
    }

    /// NVIDIA's buckets in one line.
    pub fn buckets(&self) -> String {
        match (&self.immediate, &self.investigatory) {
            (Some(first), Some(then)) => format!("{first}, then {then}"),
            (Some(only), None) | (None, Some(only)) => only.clone(),
            (None, None) => "no bucket".to_owned(),
        }
    }

    /// gpud's assessment, if it differs from Farrier's.
    ///
    /// gpud has no GPU reset action, so its `RebootSystem` also covers resets.
    pub fn disagreement(&self) -> Option<String> {
        let gpud = self.gpud.as_ref()?;
        let acts = |severity: Severity| severity >= Severity::Critical;
        let reboots = gpud.repair.iter().any(|repair| repair == "RebootSystem");
        let resets =
            !matches!(self.action, Action::Ignore | Action::RestartApp | Action::Investigate);
        if acts(gpud.severity) == acts(self.severity) && (resets || !reboots) {
            return None;
        }
        let repair = gpud.repairs().unwrap_or_else(|| "no repair".to_owned());
        Some(format!("gpud says {}, {repair}", gpud.severity))
    }

    /// The sources in one line, including sources that disagree.
    pub fn source_line(&self) -> String {
        let source = self.origin.source.first().map_or("", String::as_str);
        if self.origin.kind == OriginKind::Derived {
            return self.derived_source_line(source);
        }
        let mut line = format!("{source}: {}", self.buckets());
        if let Some(other) = self.disagreement() {
            line.push_str("; ");
            line.push_str(&other);
        }
        line
    }

    /// The source line of an Xid whose severity and action are our own conclusion.
    fn derived_source_line(&self, source: &str) -> String {
        let own = "severity and action are our own conclusion, unverified";
        let Some(gpud) = &self.gpud else { return format!("{own}; name from {source}") };
        let repair = gpud
            .repairs()
            .map_or_else(|| "no repair".to_owned(), |repairs| format!("repair {repairs}"));
        format!("{own}; {source} lists severity {}, {repair}", gpud.severity)
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

/// Assessment of an Xid by leptonai/gpud.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpudView {
    pub severity: Severity,
    pub repair: Vec<String>,
}

impl GpudView {
    /// The repairs in one line. `None` if there is none.
    fn repairs(&self) -> Option<String> {
        (!self.repair.is_empty()).then(|| self.repair.join(", "))
    }
}

/// A row of NVIDIA's NVLink 5 decode sheet.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nvlink5Rule {
    /// 144 to 150.
    pub xid: u32,
    /// Alternative names of the unit in the log.
    pub unit: Vec<String>,
    /// Patterns of the interrupt information, the first number in the log line: `0`, `1` or `-`
    /// (any), most significant bit first. The decode sheet has two bit layouts, so each has a
    /// pattern.
    pub intrinfo: Vec<String>,
    /// Error status, the second number in the log line.
    pub error_status: u32,
    /// NVIDIA's bucket for the first action.
    pub resolution: String,
    /// NVIDIA's bucket for the follow-up.
    pub investigatory: String,
    /// NVIDIA's severity.
    pub class: Nvlink5Class,
    /// False if the sheet marks the severity as uncertain.
    pub certain: bool,
    /// Hardware, software or firmware, in the sheet's spelling.
    pub cause: String,
    pub origin: Origin,
}

/// NVIDIA's severity of an NVLink 5 error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Nvlink5Class {
    /// Fatal to the GPU.
    Fatal,
    /// Fatal to the link.
    LinkFatal,
    NonFatal,
}

/// Bits of a register that an Xid 74 prints.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NvlinkBits {
    /// Index of the register, 0 to 6.
    pub register: usize,
    /// Matches if any of these bits is set.
    pub bits: Vec<u32>,
    pub action: Action,
    pub severity: Severity,
    /// After this many occurrences on one link, the hardware should be replaced.
    #[serde(default)]
    pub replace_from: Option<u32>,
    pub meaning: String,
    pub origin: Origin,
}

/// The driver's own recovery action, reported by Xid 154 and NVML field 230.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecoveryAction {
    /// NVML's value.
    pub value: u32,
    /// The driver's name for it.
    pub name: String,
    pub action: Action,
    pub severity: Severity,
    /// Our wording of the instruction.
    pub asks: String,
    pub origin: Origin,
}

/// A resolution bucket of NVIDIA's catalogue.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bucket {
    /// Spelling of the catalogue.
    pub name: String,
    pub action: Action,
    /// Our wording of the instruction.
    pub asks: String,
    pub origin: Origin,
}

/// A PCIe error as reported by the kernel's AER driver.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BusError {
    pub device: BusDevice,
    pub class: BusErrorClass,
    pub severity: Severity,
    pub action: Action,
    /// Meaning and action, in a sentence or two.
    pub text: String,
    pub origin: Origin,
}

/// Devices whose PCIe errors are reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BusDevice {
    /// A GPU or an NVSwitch.
    Gpu,
    /// A ConnectX NIC.
    Nic,
    /// A port of a root complex or a PCIe switch. The log does not say what is below it.
    Port,
}

impl fmt::Display for BusDevice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::Gpu => "gpu",
            Self::Nic => "nic",
            Self::Port => "port",
        })
    }
}

/// The kernel's class of a PCIe error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BusErrorClass {
    /// The link layer retransmitted the packet.
    Corrected,
    /// A transaction was lost; the link works.
    NonFatal,
    /// The link is no longer reliable.
    Fatal,
    /// The kernel failed to recover the device.
    Unrecovered,
    /// The port cut the link to stop an error (Downstream Port Containment).
    Contained,
    /// The link below a hot-plug port went down.
    LinkDown,
}

impl BusErrorClass {
    pub(crate) const ALL: [Self; 6] = [
        Self::Corrected,
        Self::NonFatal,
        Self::Fatal,
        Self::Unrecovered,
        Self::Contained,
        Self::LinkDown,
    ];
}

impl fmt::Display for BusErrorClass {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::Corrected => "corrected",
            Self::NonFatal => "non-fatal",
            Self::Fatal => "fatal",
            Self::Unrecovered => "unrecovered",
            Self::Contained => "contained",
            Self::LinkDown => "link-down",
        })
    }
}

/// A message without a code.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Message {
    /// Our stable id.
    pub id: String,
    pub kind: Kind,
    /// All of these must occur in the line.
    pub all: Vec<String>,
    /// One of these must occur in the line; ignored if empty.
    #[serde(default)]
    pub any: Vec<String>,
    /// None of these may occur in the line.
    #[serde(default)]
    pub none: Vec<String>,
    /// Syslog identifiers of the processes that write it, `*` for any process. Empty: the kernel
    /// writes it.
    #[serde(default)]
    pub writers: Vec<String>,
    /// Format of the process name in the line, if any.
    #[serde(default)]
    pub process: Option<ProcessFormat>,
    /// Text before the name of the faulty component, such as a disk or a server, if the line names
    /// one.
    #[serde(default)]
    pub unit: Option<String>,
    pub severity: Severity,
    pub action: Action,
    /// Meaning and action, in a sentence or two.
    pub text: String,
    pub origin: Origin,
}

/// How a kernel message names a process.
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
