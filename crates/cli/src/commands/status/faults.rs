//! Prints faults by component: the first action, then the findings and their evidence.

use std::collections::BTreeMap;

use farrier_agent::status::{FindingStatus, Group, Status};
use farrier_facts::FactSet;
use farrier_fleet::health::finding::{Action, ActionBy};
use farrier_fleet::health::{Evidence, Finding, Subject};
use farrier_fleet::runbook::page_code;

use super::print::second;
use crate::commands::runbook_pointer::{CommandPlace, CommandSubject, INDENT, RunbookPointers};
use crate::printer::{Printer, Tone};

/// Newest evidence entries shown per finding.
const EVIDENCE_SHOWN: usize = 3;

pub(super) fn print(status: &Status, printer: &mut Printer) -> anyhow::Result<()> {
    let by_id: BTreeMap<u64, &FindingStatus> =
        status.findings.iter().map(|entry| (entry.finding.id, entry)).collect();
    if status.groups.is_empty() {
        return Ok(());
    }
    let pointers = RunbookPointers::embedded()?;
    let mut reboot_for: Option<&str> = None;
    for group in &status.groups {
        printer.line("")?;
        heading(group, printer)?;
        first_action(group, reboot_for, printer)?;
        if group.first_action.action == Action::RebootNode {
            reboot_for = reboot_for.or(Some(&group.name));
        }
        let mut printed = Printed {
            remedies: vec![&group.first_action.text],
            clears_when: "",
            texts: Vec::new(),
        };
        for shown in group.findings.iter().filter_map(|id| by_id.get(id)) {
            print_finding(shown, group, &printed, printer)?;
            printed.remedies.extend(shown.finding.remedy.as_deref());
            printed.clears_when = &shown.finding.clears_when;
            printed.texts.push(&shown.finding.text);
        }
        let findings = group.findings.iter().filter_map(|id| by_id.get(id));
        let pages: Vec<String> = findings.map(|shown| runbook(&shown.finding)).collect();
        let gpu = status.gpus.iter().find(|gpu| Some(&gpu.identity.uuid) == group.uuid.as_ref());
        let gpu_index = gpu.map(|gpu| gpu.identity.index);
        let subject = CommandSubject { gpu_index, pci: group.pci.as_deref() };
        let pages = pages.iter().map(String::as_str);
        let subject = (subject, CommandPlace::Node);
        pointers.print(pages, subject, Some("farrier status"), printer)?;
    }
    Ok(())
}

/// Texts that were already printed in this group. They are not printed again.
struct Printed<'s> {
    remedies: Vec<&'s str>,
    /// When the previous finding clears.
    clears_when: &'s str,
    /// Texts of the findings so far.
    texts: Vec<&'s str>,
}

fn heading(group: &Group, printer: &mut Printer) -> anyhow::Result<()> {
    let name = printer.toned(Tone::Strong, &group.name);
    let uuid = group.uuid.as_ref().map(|uuid| uuid.0.clone()).filter(|uuid| *uuid != group.name);
    let about: Vec<String> =
        [group.model.clone(), group.pci.clone(), uuid].into_iter().flatten().collect();
    let about = if about.is_empty() { String::new() } else { format!(": {}", about.join(", ")) };
    Ok(printer.line(&format!("{name}{about}"))?)
}

fn first_action(
    group: &Group,
    reboot_for: Option<&str>,
    printer: &mut Printer,
) -> anyhow::Result<()> {
    let first = &group.first_action;
    let mut text = match (first.action, reboot_for) {
        (Action::Ignore, _) => return Ok(()),
        (Action::RebootNode, Some(other)) => {
            format!("{}: the same reboot as for {other}.", first.action)
        }
        // The text is more specific than the action "investigate".
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
    printed: &Printed<'_>,
    printer: &mut Printer,
) -> anyhow::Result<()> {
    let Finding { code, detail, severity, text, evidence, count, clears_when, .. } = &shown.finding;
    let link = match &shown.finding.subject {
        Subject::Link { link, .. } => format!(" on link {link}"),
        Subject::Nic { port, .. } => format!(" on port {port}"),
        _ => String::new(),
    };
    let detail = if detail.is_empty() { String::new() } else { format!(" {detail}") };
    let times = if *count == 1 { String::new() } else { format!(", {count} times") };
    let since = second(shown.finding.first_seen);
    let not_durable = if shown.durable { "" } else { " (not on disk yet)" };
    let action = shown.finding.action;
    let action =
        if action == group.first_action.action { String::new() } else { format!(" → {action}") };
    let head = format!("{code}{detail}{link}, since {since}{times}{not_durable}{action}");
    // Pad before adding colour, because escape codes must not count as width.
    let word = severity.to_string();
    let padded = format!("  {word:<9} ").replacen(&word, &printer.severity(*severity), 1);
    printer.line(&format!("{padded}{head}"))?;
    if !printed.texts.contains(&text.as_str()) {
        printer.paragraph("", INDENT, text)?;
    }
    for evidence in evidence.iter().rev().take(EVIDENCE_SHOWN) {
        printer.paragraph("    seen", INDENT, &evidence_text(evidence, text))?;
    }
    if let Some(remedy) = &shown.finding.remedy
        && !printed.remedies.contains(&remedy.as_str())
    {
        printer.paragraph("    do", INDENT, &format!("{remedy}."))?;
    }
    if !clears_when.is_empty() && printed.clears_when != clears_when {
        printer.paragraph("    clears", INDENT, clears_when)?;
    }
    Ok(())
}

/// Code of the finding's runbook page.
fn runbook(finding: &Finding) -> String {
    page_code(FactSet::embedded(), &finding.code, &finding.detail)
}

/// One observation of a finding. Does not repeat the text of the finding.
pub(crate) fn evidence_text(evidence: &Evidence, finding_text: &str) -> String {
    let joint = match evidence {
        Evidence::Signal { .. } | Evidence::Nvml { .. } => ": ",
        Evidence::Kernel { .. } | Evidence::Check { .. } => " ",
    };
    format!("{}{joint}{}", second(evidence.at()), evidence.describe(finding_text))
}

#[cfg(test)]
mod tests {
    use farrier_fleet::health::{GpuUuid, NvmlXid};
    use jiff::Timestamp;

    use super::*;

    #[test]
    fn evidence_from_nvml_does_not_mention_the_kernel_log_line() {
        let (text, at) = ("Off the bus.".to_owned(), Timestamp::UNIX_EPOCH);
        let xid = NvmlXid { code: 79, gpu: GpuUuid("GPU-5f2a".to_owned()), index: Some(5) };
        let by_nvml = Evidence::Nvml { xid, text: text.clone(), at };
        assert_eq!(
            evidence_text(&by_nvml, "something else"),
            "1970-01-01T00:00:00Z: Xid 79 of GPU 5, reported by NVML but not in the kernel log"
        );
        let line = "NVRM: Xid".to_owned();
        let logged = Evidence::Kernel { text, line, pid: None, process: None, at };
        let line = evidence_text(&logged, "something else");
        assert!(line.ends_with(" in the kernel log: NVRM: Xid"), "{line}");
    }
}
