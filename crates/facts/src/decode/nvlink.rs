//! NVLink errors: the registers of an Xid 74, and the sub-codes of Xids 144 to 150.

use super::assessment::Assessment;
use super::sanitize::excerpt;
use super::state::DeviceState;
use super::xid_line::{self, XidLine};
use crate::xid::{Action, Nvlink5Class, Nvlink5Rule, NvlinkBits, Severity, XidFacts};

/// An Xid 74: `NVLink: fatal error detected on link 14(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)`.
pub(super) fn assess_registers(
    facts: &XidFacts,
    device: &mut DeviceState,
    xid: &XidLine<'_>,
    mut assessment: Assessment,
) -> Assessment {
    let words = xid_line::hex_words(xid.detail);
    let link = xid_line::number_after(xid.detail, "link ");
    let matched: Vec<&NvlinkBits> = facts
        .nvlink_bits
        .iter()
        .filter(|record| {
            let word = words.get(record.register).copied().unwrap_or(0);
            record.bits.iter().any(|bit| word >> bit & 1 == 1)
        })
        .collect();
    let Some(worst) = matched.iter().max_by_key(|record| (record.action, record.severity)) else {
        return assessment;
    };
    assessment.action = worst.action;
    assessment.severity = worst.severity;
    let location = link.map_or_else(|| "an unnamed link".to_owned(), |link| format!("link {link}"));
    // Report only the bits that call for the worst action.
    let mut meanings: Vec<&str> = Vec::new();
    for record in matched.iter().filter(|record| record.action == worst.action) {
        if !meanings.contains(&record.meaning.as_str()) {
            meanings.push(&record.meaning);
        }
    }
    assessment.text = format!(
        "NVLink error on {location}; the register bits, read as on Hopper, say: {}.",
        meanings.join("; ")
    );
    if let Some((link, from)) =
        link.zip(matched.iter().filter_map(|record| record.replace_from).min())
        && device.count_link_failure(link) >= from
        && assessment.action < Action::DrainAndReplace
    {
        assessment.action = Action::DrainAndReplace;
        assessment.severity = Severity::Fatal;
        assessment.text.push_str(&format!(
            " This link failed in this way {from} times or more in this log, which points at the hardware."
        ));
    }
    assessment.text.push_str(match assessment.action {
        Action::Ignore => " Nothing to do.",
        Action::DrainAndReplace => {
            " Drain the node, check the connection and re-seat, run a field diagnostic, and have the \
             part replaced."
        }
        _ if matched.iter().any(|record| record.replace_from.is_some()) => {
            " Drain the GPU, reset it and run `farrier diag` on it; if the error recurs after that, \
             have the part replaced."
        }
        _ => " Drain the GPU and reset it.",
    });
    assessment.source = worst.origin.line();
    assessment
}

/// An Xid 144 to 150: `NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000000 ...)`.
pub(super) fn assess_sub_code(
    facts: &XidFacts,
    device: &DeviceState,
    xid: &XidLine<'_>,
    mut assessment: Assessment,
) -> Assessment {
    let mut words = xid.detail.split_whitespace();
    // Unit names are upper case; free text is not.
    let is_unit = |word: &&str| !word.contains(|letter: char| letter.is_ascii_lowercase());
    let unit = words.next().filter(is_unit).unwrap_or("");
    let fatal = words.next() == Some("Fatal");
    let hex = xid_line::hex_words(xid.detail);
    let rule = match hex[..] {
        [intrinfo, status, ..] => matching_rule(facts, xid.code, unit, intrinfo, status),
        _ => None,
    };
    let Some(rule) = rule else {
        if fatal {
            assessment.severity = Severity::Critical;
        }
        assessment.text = format!(
            "NVLink 5 error{}{}: follow an Xid 154 of this GPU if there is one; otherwise collect \
             nvidia-bug-report and open a ticket.",
            if fatal { ", fatal according to the driver," } else { "" },
            unlisted(facts, xid.code, unit, &hex),
        );
        return assessment;
    };
    let (severity, action) = assess(facts, device, rule);
    let asks = |bucket: &str| {
        facts.bucket_instruction(bucket).unwrap_or("see NVIDIA's catalogue").to_owned()
    };
    let class = match rule.class {
        Nvlink5Class::Fatal => "fatal",
        Nvlink5Class::LinkFatal => "fatal to the link",
        Nvlink5Class::NonFatal => "not fatal",
    };
    let doubt = if rule.certain { "" } else { " (marked as uncertain)" };
    let link = xid.detail.split_once(" Link ").and_then(|(_, rest)| rest.split(' ').next());
    let location = match link {
        Some("-1") | None => String::new(),
        Some(link) => {
            format!(" on link {}", link.trim_start_matches('0').parse::<u8>().unwrap_or(0))
        }
    };
    let first = match (rule.resolution.as_str(), device.recovery) {
        ("XID_154_EVAL", Some(value)) => facts.recovery_action(value).map_or_else(
            || asks(&rule.resolution),
            |recovery| format!("the driver asks for {}: {}", recovery.name, recovery.asks),
        ),
        _ => asks(&rule.resolution),
    };
    let then = if rule.investigatory == rule.resolution {
        String::new()
    } else {
        facts.follow_up(action, &rule.investigatory)
    };
    assessment.text = format!(
        "NVLink 5 error{location}, unit {}, {class}{doubt}, cause {}: {first}.{then}",
        rule.unit.join("/"),
        rule.cause
    );
    assessment.severity = severity;
    assessment.action = action;
    assessment.source = format!("{}: {}", rule.origin.line(), rule.resolution);
    assessment
}

/// Describes what NVIDIA's decode sheet does not list, as a sentence with a leading space.
fn unlisted(facts: &XidFacts, code: u32, unit: &str, words: &[u32]) -> String {
    if unit.is_empty() {
        return " without a unit name, so NVIDIA's decode sheet does not cover it".to_owned();
    }
    let name = excerpt(unit);
    let units: Vec<&str> = unit.split('/').collect();
    let lists_unit = |rule: &Nvlink5Rule| {
        rule.xid == code && rule.unit.iter().any(|name| units.contains(&name.as_str()))
    };
    match words {
        _ if !facts.nvlink5.iter().any(lists_unit) => {
            format!(" of unit {name} that NVIDIA's decode sheet does not list")
        }
        [intrinfo, status, ..] => format!(
            " of unit {name} with bits that NVIDIA's decode sheet does not list for it \
             ({intrinfo:#010x}, status {status:#010x})"
        ),
        _ => format!(
            " of unit {name} without the two words that NVIDIA's decode sheet tells errors apart by"
        ),
    }
}

/// The rule's action; with `XID_154_EVAL`, the driver's last recovery action for this GPU.
fn assess(facts: &XidFacts, device: &DeviceState, rule: &Nvlink5Rule) -> (Severity, Action) {
    let bucket = facts.bucket.iter().find(|bucket| bucket.name == rule.resolution);
    let mut action = bucket.map_or(Action::Investigate, |bucket| bucket.action);
    let mut severity = match action {
        Action::Ignore => Severity::Info,
        Action::RestartApp | Action::Investigate => Severity::Warning,
        Action::ResetGpu => Severity::Critical,
        Action::RebootNode | Action::DrainAndReplace => Severity::Fatal,
    };
    let recovery = device.recovery.and_then(|value| facts.recovery_action(value));
    if let Some(recovery) = recovery.filter(|_| rule.resolution == "XID_154_EVAL") {
        action = recovery.action;
        severity = recovery.severity;
    }
    let severity = match rule.class {
        Nvlink5Class::Fatal => Severity::Fatal,
        Nvlink5Class::LinkFatal => severity.max(Severity::Critical),
        Nvlink5Class::NonFatal => severity,
    };
    (severity, action)
}

/// The matching row of NVIDIA's decode sheet. If the status has several bits set, the worst of
/// their rows.
fn matching_rule<'a>(
    facts: &'a XidFacts,
    xid: u32,
    unit: &str,
    intrinfo: u32,
    status: u32,
) -> Option<&'a Nvlink5Rule> {
    let units: Vec<&str> = unit.split('/').collect();
    let layouts = facts.nvlink5.iter().map(|rule| rule.intrinfo.len()).max().unwrap_or(0);
    (0..layouts).find_map(|layout| {
        let matches_rule = |rule: &&Nvlink5Rule| {
            rule.xid == xid
                && rule.unit.iter().any(|name| units.contains(&name.as_str()))
                && rule.intrinfo.get(layout).is_some_and(|pattern| matches(pattern, intrinfo))
        };
        let rules = || facts.nvlink5.iter().filter(matches_rule);
        rules().find(|rule| rule.error_status == status).or_else(|| {
            // NETIR units print the status as a number, other units as a bit set.
            rules()
                .filter(|rule| !rule.unit[0].starts_with("NETIR"))
                .filter(|rule| {
                    rule.error_status != 0 && status & rule.error_status == rule.error_status
                })
                .max_by_key(|rule| {
                    (rule.class == Nvlink5Class::Fatal, rule.resolution == "RESET_GPU")
                })
        })
    })
}

/// Whether a word matches a pattern of `0`, `1` and `-`, most significant bit first.
fn matches(pattern: &str, word: u32) -> bool {
    pattern.len() == 32
        && pattern.bytes().enumerate().all(|(index, bit)| {
            let set = word >> (31 - index) & 1 == 1;
            match bit {
                b'0' => !set,
                b'1' => set,
                _ => true,
            }
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_start_with_the_most_significant_bit() {
        assert!(matches("------000100----------0111000110", 0x0045_05c6));
        assert!(!matches("------000000----------0111000110", 0x0045_05c6));
        assert!(matches("------000000----------0000000110", 0x000f_e406));
        assert!(!matches("0", 0));
    }
}
