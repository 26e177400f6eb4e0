//! Assesses Xid and SXid lines: the catalogue entry, refined by the line and earlier log state.

use super::nvlink;
use super::pci::PciAddress;
use super::sanitize::excerpt;
use super::state::{DeviceState, LogState};
use super::xid_line::{self, SxidLine, XidLine};
use crate::xid::{Action, BusDevice, BusErrorClass, Severity, SxidClass, SxidVerdict, XidFacts};

/// Severity, action and text for a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Assessment {
    pub(super) severity: Severity,
    pub(super) action: Action,
    pub(super) text: String,
    pub(super) source: String,
}

/// Assessment of an Xid by the catalogue alone.
pub(super) fn base(facts: &XidFacts, code: u32) -> Assessment {
    match facts.by_code(code) {
        Some(record) => Assessment {
            severity: record.severity,
            action: record.action,
            text: facts.describe(record),
            source: record.source_line(),
        },
        None => unknown_xid(code),
    }
}

/// Assessment of an Xid line: the catalogue entry refined by line and state.
pub(super) fn xid(
    facts: &XidFacts,
    state: &mut LogState,
    line: &XidLine<'_>,
    base: Assessment,
) -> Assessment {
    // Lines without an address have no device state.
    let mut anonymous = DeviceState::new(PciAddress::ZERO);
    let device = match line.pci {
        Some(pci) => state.device(pci),
        None => &mut anonymous,
    };
    if !matches!(line.code, 45 | 154) {
        device.cause = Some(line.code);
    }
    let mut assessment = match line.code {
        45 => cleanup(base, device, line),
        74 => nvlink::assess_registers(facts, device, line, base),
        144..=150 => nvlink::assess_sub_code(facts, device, line, base),
        154 => recovery(facts, device, line, base),
        _ => base,
    };
    if let Some(instance) = line.instance {
        assessment.text.push_str(&instance.to_string());
    }
    assessment
}

/// Assessment of an Xid line whose number cannot be read.
pub(super) fn unreadable_xid() -> Assessment {
    Assessment {
        severity: Severity::Warning,
        action: Action::Investigate,
        text: "The driver reported an Xid in a line that is cut short, or of a form that this fact \
               set does not know, so its number is unknown. Read the line, and follow an Xid 154 of \
               the same GPU if there is one."
            .to_owned(),
        source: "the log line, which has no readable number".to_owned(),
    }
}

/// Assessment of a PCIe error.
pub(super) fn bus_error(
    facts: &XidFacts,
    device: BusDevice,
    class: BusErrorClass,
) -> Option<Assessment> {
    let record =
        facts.bus_error.iter().find(|record| record.device == device && record.class == class)?;
    Some(Assessment {
        severity: record.severity,
        action: record.action,
        text: record.text.clone(),
        source: record.origin.line(),
    })
}

fn unknown_xid(code: u32) -> Assessment {
    Assessment {
        severity: Severity::Warning,
        action: Action::Investigate,
        text: format!(
            "Xid {code} is not in the catalogue of this fact set: a newer driver may print it. \
             Look it up in NVIDIA's Xid catalogue, and follow an Xid 154 of the same GPU if there is one."
        ),
        source: "not in this fact set".to_owned(),
    }
}

/// Xid 45 is a consequence of another Xid. Newer drivers name that Xid in the line.
fn cleanup(mut assessment: Assessment, device: &DeviceState, line: &XidLine<'_>) -> Assessment {
    let previous = xid_line::number_after(line.detail, "previous Xid ");
    let cause = previous.or(device.cause);
    assessment.text = match cause {
        Some(cause) => format!(
            "Channels were removed because of Xid {cause} of the same GPU: follow that one; \
             nothing to do for this one."
        ),
        None => {
            "Channels were removed without another Xid of this GPU before it in this log: usually \
                 a person or a scheduler ended the application. If not, and the node has NVSwitch, \
                 restart the fabric manager."
                .to_owned()
        }
    };
    assessment
}

/// `GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)`
fn recovery(
    facts: &XidFacts,
    device: &mut DeviceState,
    line: &XidLine<'_>,
    mut assessment: Assessment,
) -> Assessment {
    let new = line.detail.split(" to ").nth(1).unwrap_or("");
    let value = new
        .trim_start()
        .strip_prefix("0x")
        .map(|digits| digits.split(|digit: char| !digit.is_ascii_hexdigit()).next().unwrap_or(""))
        .and_then(|digits| u32::from_str_radix(digits, 16).ok());
    let name = new.split_once('(').and_then(|(_, name)| name.split_once(')')).map(|(name, _)| name);
    let record = value
        .and_then(|value| facts.recovery_action(value))
        .or_else(|| facts.recovery_action.iter().find(|record| Some(record.name.as_str()) == name));
    let old = line
        .detail
        .split(" to ")
        .next()
        .and_then(|old| old.split_once('('))
        .and_then(|(_, old)| old.split_once(')'))
        .map_or_else(|| "an unnamed one".to_owned(), |(old, _)| excerpt(old));
    let Some(record) = record else {
        let action = name.map_or_else(
            || "one that it does not name".to_owned(),
            |name| format!("`{}`", excerpt(name)),
        );
        assessment.text = format!(
            "The driver changed its recovery action for this GPU to {action}, which this fact set does \
             not know: read it with `nvidia-smi -q` (GPU Recovery Action) before any new work."
        );
        return assessment;
    };
    device.recovery = Some(record.value);
    assessment.severity = record.severity;
    assessment.action = record.action;
    assessment.text = format!(
        "The driver changed its own recovery action for this GPU from {old} to {}: {}. The driver's \
         action takes precedence over the one in NVIDIA's Xid catalogue.",
        record.name, record.asks
    );
    assessment.source = record.origin.line();
    assessment
}

/// Assessment of an SXid line: `Fatal` or `Non-fatal` in the line overrides the catalogue's class.
pub(super) fn sxid(facts: &XidFacts, line: &SxidLine<'_>) -> Assessment {
    let record = facts.sxid_by_code(line.code);
    let word = line.detail.split([',', ' ']).next().unwrap_or("");
    let class = match word {
        "Fatal" => Some(SxidClass::AlwaysFatal),
        "Non-fatal" | "Nonfatal" => Some(SxidClass::NonFatal),
        _ => record.map(|record| record.class),
    };
    let SxidVerdict { severity, action, text } = SxidVerdict::new(record, class);
    Assessment {
        severity,
        action,
        text,
        source: match record {
            Some(record) => record.origin.line(),
            None => "the word in the log line; the number is not in this fact set".to_owned(),
        },
    }
}
