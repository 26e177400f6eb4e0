//! Prints findings by component. Findings of one component mostly have one cause, so the advice,
//! the first command and the runbook are printed once per component.

use farrier_fleet::fleet::NodeId;
use farrier_wire::rest::{ComponentView, FindingGroup, GroupedFinding};
use jiff::SignedDuration;

use crate::commands::runbook_pointer::{CommandSubject, INDENT, RunbookPointers};
use crate::printer::{Printer, Tone};

/// A finding of a component that opens within this time of the component's most urgent finding
/// counts as another sign of the same cause. The rules about a GPU that is gone open their findings
/// within half a minute of the GPU's first Xid.
const SAME_CAUSE: SignedDuration = SignedDuration::from_secs(60);

/// A group of findings, and its node if the output is about several nodes.
pub(super) struct NodeGroup<'g> {
    pub(super) node: Option<&'g NodeId>,
    pub(super) group: &'g FindingGroup,
}

pub(super) fn print(groups: &[NodeGroup<'_>], printer: &mut Printer) -> anyhow::Result<()> {
    let pointers = RunbookPointers::embedded()?;
    groups.iter().try_for_each(|group| print_group(group, &pointers, printer))
}

fn print_group(
    NodeGroup { node, group }: &NodeGroup<'_>,
    pointers: &RunbookPointers,
    printer: &mut Printer,
) -> anyhow::Result<()> {
    let FindingGroup { component, action, text, findings } = group;
    let heading = match node {
        Some(node) => format!("{node}: {}", component.name),
        None => component.name.clone(),
    };
    printer.line("")?;
    printer.line(&printer.toned(Tone::Strong, &heading))?;
    printer.paragraph("  do first", INDENT, &format!("{action}: {text}."))?;
    let Some((first, rest)) = findings.split_first() else { return Ok(()) };
    let (signs, others): (Vec<_>, Vec<_>) = rest
        .iter()
        .partition(|finding| finding.since.duration_since(first.since).abs() <= SAME_CAUSE);
    print_finding(first, component, printer)?;
    if !signs.is_empty() {
        let signs: Vec<String> = signs
            .iter()
            .map(|finding| format!("{} {}", finding.severity, name(finding, component)))
            .collect();
        printer.paragraph("    with it", INDENT, &signs.join(", "))?;
    }
    others.iter().try_for_each(|finding| print_finding(finding, component, printer))?;
    let subject = CommandSubject { gpu_index: component.gpu_index, pci: component.pci.as_deref() };
    let pages = findings.iter().map(|finding| finding.runbook.as_str());
    pointers.print(pages, subject, None, printer)
}

fn print_finding(
    finding: &GroupedFinding,
    component: &ComponentView,
    printer: &mut Printer,
) -> anyhow::Result<()> {
    let GroupedFinding { severity, text, count, since, clears, .. } = finding;
    let times = if *count == 1 { String::new() } else { format!(", {count} times") };
    // Pad before adding colour, because escape codes must not count as width.
    let word = severity.to_string();
    let padded = format!("  {word:<9} ").replacen(&word, &printer.severity(*severity), 1);
    printer.line(&format!("{padded}{}, since {since:.0}{times}", name(finding, component)))?;
    printer.paragraph("", INDENT, text)?;
    if !clears.is_empty() {
        printer.paragraph("    clears", INDENT, clears)?;
    }
    Ok(())
}

/// Names a finding, such as `gpu.xid (Xid 79)`. If the finding is about a part of the component,
/// the part is added.
fn name(finding: &GroupedFinding, component: &ComponentView) -> String {
    let GroupedFinding { code, detail, subject, .. } = finding;
    let detail = if detail.is_empty() { String::new() } else { format!(" ({detail})") };
    let part = if *subject == component.name { String::new() } else { format!(" on {subject}") };
    format!("{code}{detail}{part}")
}
