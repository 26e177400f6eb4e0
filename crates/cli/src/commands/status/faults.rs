//! Faults for people: by part, with one thing to do first, and what supports it below.

use std::collections::BTreeMap;

use farrier_agent::status::{FindingStatus, Group, Status};
use farrier_facts::node::Reading;
use farrier_fleet::health::finding::{Action, ActionBy};
use farrier_fleet::health::{Evidence, Finding, Subject};

use super::print::second;
use crate::printer::{Printer, Tone};

/// The width of `do first` or of the longest severity, with spaces, as in `farrier decode`.
const INDENT: usize = 12;

/// Of a finding's evidence the newest that are shown.
const EVIDENCE_SHOWN: usize = 3;

pub(super) fn print(status: &Status, printer: &mut Printer) -> anyhow::Result<()> {
    let by_id: BTreeMap<u64, &FindingStatus> =
        status.findings.iter().map(|it| (it.finding.id, it)).collect();
    let mut reboot_for: Option<&str> = None;
    for group in &status.groups {
        printer.line("")?;
        heading(group, printer)?;
        do_first(group, reboot_for, printer)?;
        if group.do_first.action == Action::RebootNode {
            reboot_for = reboot_for.or(Some(&group.name));
        }
        let mut said = Said { remedies: vec![&group.do_first.text], clears: "" };
        for shown in group.findings.iter().filter_map(|id| by_id.get(id)) {
            print_finding(shown, group, &said, printer)?;
            said.remedies.extend(shown.finding.remedy.as_deref());
            said.clears = &shown.finding.clears;
        }
    }
    Ok(())
}

/// What stands above a finding in its group and is not said again.
struct Said<'s> {
    remedies: Vec<&'s str>,
    /// By the one before.
    clears: &'s str,
}

fn heading(group: &Group, printer: &mut Printer) -> anyhow::Result<()> {
    let name = printer.toned(Tone::Strong, &group.name);
    let uuid = group.uuid.as_ref().map(|uuid| uuid.0.clone()).filter(|uuid| *uuid != group.name);
    let about: Vec<String> =
        [group.model.clone(), group.pci.clone(), uuid].into_iter().flatten().collect();
    let about = if about.is_empty() { String::new() } else { format!(": {}", about.join(", ")) };
    Ok(printer.line(&format!("{name}{about}"))?)
}

fn do_first(group: &Group, reboot_for: Option<&str>, printer: &mut Printer) -> anyhow::Result<()> {
    let first = &group.do_first;
    let mut text = match (first.action, reboot_for) {
        (Action::Ignore, _) => return Ok(()),
        (Action::RebootNode, Some(other)) => {
            format!("{}: the same reboot as for {other}.", first.action)
        }
        // What is to be done is known: "investigate" would say less.
        (Action::Investigate, _) if first.text != first.action.instruction() => {
            format!("{}.", first.text)
        }
        (action, _) => format!("{action}: {}.", first.text),
    };
    if first.action_by == ActionBy::Driver {
        text.push_str(" The driver itself says so.");
    }
    Ok(printer.paragraph("  do first", INDENT, &text)?)
}

fn print_finding(
    shown: &FindingStatus,
    group: &Group,
    said: &Said<'_>,
    printer: &mut Printer,
) -> anyhow::Result<()> {
    let Finding { code, detail, severity, text, evidence, count, clears, .. } = &shown.finding;
    let link = match &shown.finding.subject {
        Subject::Link { link, .. } => format!(" on link {link}"),
        Subject::Nic { port, .. } => format!(" on port {port}"),
        _ => String::new(),
    };
    let detail = if detail.is_empty() { String::new() } else { format!(" {detail}") };
    let times = if *count == 1 { String::new() } else { format!(", {count} times") };
    let since = second(shown.finding.first_seen);
    let not_kept = if shown.durable { "" } else { " (not on disk yet)" };
    let action = shown.finding.action;
    let action =
        if action == group.do_first.action { String::new() } else { format!(" → {action}") };
    let head = format!("{code}{detail}{link}, since {since}{times}{not_kept}{action}");
    // The colour's letters must not count as width: padded first, coloured after.
    let word = severity.to_string();
    let padded = format!("  {word:<9} ").replacen(&word, &printer.severity(*severity), 1);
    printer.line(&format!("{padded}{head}"))?;
    printer.paragraph("", INDENT, text)?;
    for evidence in evidence.iter().rev().take(EVIDENCE_SHOWN) {
        printer.paragraph("    seen", INDENT, &evidence_text(evidence, text))?;
    }
    if let Some(remedy) = &shown.finding.remedy
        && !said.remedies.contains(&remedy.as_str())
    {
        printer.paragraph("    do", INDENT, &format!("{remedy}."))?;
    }
    if !clears.is_empty() && said.clears != clears {
        printer.paragraph("    clears", INDENT, clears)?;
    }
    Ok(())
}

fn evidence_text(evidence: &Evidence, said: &str) -> String {
    let (who, text, at) = match evidence {
        Evidence::Signal { signal, text, value, note, at, .. } => {
            let text = match value {
                _ if !text.is_empty() => text.clone(),
                Reading::Value(value) => format!("{signal} was {value}"),
                Reading::Absent => format!("{signal} was not there"),
                Reading::Unreadable(why) => format!("{signal} was not readable: {why}"),
            };
            let note = note.as_ref().map(|note| format!(": {note}")).unwrap_or_default();
            return format!("{}: {text}{note}", second(*at));
        }
        Evidence::Nvml { xid, at, .. } => return format!("{}: {xid}", second(*at)),
        // Journals of before have no line.
        Evidence::Kernel { text, line, at, .. } => {
            ("in the kernel log", if line.is_empty() { text } else { line }, at)
        }
        Evidence::Check { text, at } => ("by the check of the node", text, at),
    };
    // What the finding says already is not said again.
    let text = if text == said { String::new() } else { format!(": {text}") };
    format!("{} {who}{text}", second(*at))
}

#[cfg(test)]
mod tests {
    use farrier_fleet::health::{GpuUuid, NvmlXid};
    use jiff::Timestamp;

    use super::*;

    #[test]
    fn what_nvml_told_is_not_said_to_stand_in_the_log() {
        let (text, at) = ("Off the bus.".to_owned(), Timestamp::UNIX_EPOCH);
        let xid = NvmlXid { code: 79, gpu: GpuUuid("GPU-5f2a".to_owned()), index: Some(5) };
        let by_nvml = Evidence::Nvml { xid, text: text.clone(), at };
        assert_eq!(
            evidence_text(&by_nvml, "something else"),
            "1970-01-01T00:00:00Z: Xid 79 of GPU 5, told by NVML and not by the kernel log"
        );
        let line = "NVRM: Xid".to_owned();
        let logged = Evidence::Kernel { text, line, pid: None, process: None, at };
        let said = evidence_text(&logged, "something else");
        assert!(said.ends_with(" in the kernel log: NVRM: Xid"), "{said}");
    }
}
