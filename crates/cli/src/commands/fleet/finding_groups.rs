//! Prints findings by component. Findings of one component mostly have one cause, so the advice,
//! the first command and the runbook are printed once per component. Components and nodes with
//! equal findings share one block, such as `GPUs 0-7` or `node-[00032-00047]: mlx5_0/1`.

use std::collections::BTreeSet;

use farrier_fleet::fleet::NodeId;
use farrier_fleet::health::{Action, Severity};
use farrier_wire::rest::{FindingGroup, GroupedFinding};
use jiff::{SignedDuration, Timestamp};

use super::node_names::folded;
use super::nodes::with_age;
use crate::commands::runbook_pointer::{CommandPlace, CommandSubject, INDENT, RunbookPointers};
use crate::printer::{Printer, Tone};

/// A finding of a component that opens within this time of the component's most urgent finding
/// counts as another sign of the same cause. The rules about a GPU that is gone open their findings
/// within half a minute of the GPU's first Xid.
const SAME_CAUSE: SignedDuration = SignedDuration::from_secs(60);

/// Maximum number of observations that a block shows for one finding.
const EVIDENCE_MAX: usize = 3;
/// Maximum number of components that a heading names.
const NAMES_MAX: usize = 4;

/// A group of findings, and its node if the output is about several nodes.
#[derive(Debug, Clone, Copy)]
pub(super) struct NodeGroup<'g> {
    pub(super) node: Option<&'g NodeId>,
    pub(super) group: &'g FindingGroup,
}

/// Groups with equal findings, which share one block.
struct Block<'g> {
    members: Vec<NodeGroup<'g>>,
}

pub(super) fn print(groups: &[NodeGroup<'_>], printer: &mut Printer) -> anyhow::Result<()> {
    let pointers = RunbookPointers::embedded()?;
    blocks(groups).iter().try_for_each(|block| print_block(block, &pointers, printer))
}

/// Merges equal components of a node, then nodes with equal components. A block is where its first
/// group was.
fn blocks<'g>(groups: &[NodeGroup<'g>]) -> Vec<Block<'g>> {
    let mut by_node: Vec<Block<'g>> = Vec::new();
    for group in groups {
        let same = by_node.iter_mut().find(|block| {
            block.first().node == group.node && is_alike(block.first().group, group.group)
        });
        match same {
            Some(block) => block.members.push(*group),
            None => by_node.push(Block { members: vec![*group] }),
        }
    }
    let mut blocks: Vec<(String, Block<'g>)> = Vec::new();
    for block in by_node {
        let name = block.components();
        let same = blocks.iter_mut().find(|(other, merged)| {
            *other == name && is_alike(merged.first().group, block.first().group)
        });
        match same {
            Some((_, merged)) => merged.members.extend(block.members),
            None => blocks.push((name, block)),
        }
    }
    blocks.into_iter().map(|(_, block)| block).collect()
}

/// Whether two groups differ only in their component, their node and their times.
fn is_alike(one: &FindingGroup, other: &FindingGroup) -> bool {
    type Key<'k> = (Severity, &'k str, &'k str, &'k str, &'k str, Option<&'k str>);
    fn key<'k>(group: &'k FindingGroup, finding: &'k GroupedFinding) -> Key<'k> {
        let GroupedFinding { severity, code, detail, text, clears, subject, .. } = finding;
        let part = Some(subject.as_str()).filter(|subject| *subject != group.component.name);
        (*severity, code, detail, text, clears, part)
    }
    let advice = |group: &FindingGroup| {
        (group.action, group.text.clone(), group.first_step.clone(), group.findings.len())
    };
    let mut pairs = one.findings.iter().zip(&other.findings);
    advice(one) == advice(other) && pairs.all(|(left, right)| key(one, left) == key(other, right))
}

impl<'g> Block<'g> {
    fn first(&self) -> NodeGroup<'g> {
        self.members[0]
    }

    /// The components of the first node: `GPUs 0-7`, or their names.
    fn components(&self) -> String {
        let node = self.first().node;
        let groups = self.members.iter().filter(|member| member.node == node);
        let components: Vec<_> = groups.map(|member| &member.group.component).collect();
        let indexes: Option<Vec<u32>> =
            components.iter().map(|component| component.gpu_index).collect();
        match (components.as_slice(), indexes) {
            ([one], _) => one.name.clone(),
            (_, Some(indexes)) => format!("GPUs {}", ranges(&indexes)),
            (several, None) if several.len() > NAMES_MAX => {
                format!("{} and {} more", several[0].name, several.len() - 1)
            }
            (several, None) => {
                several.iter().map(|one| one.name.as_str()).collect::<Vec<_>>().join(", ")
            }
        }
    }

    fn heading(&self) -> String {
        let nodes: BTreeSet<&str> =
            self.members.iter().filter_map(|member| Some(member.node?.as_str())).collect();
        let components = self.components();
        if nodes.is_empty() {
            return components;
        }
        let count =
            if nodes.len() > 1 { format!(" ({} nodes)", nodes.len()) } else { String::new() };
        format!("{}{count}: {components}", folded(nodes))
    }

    /// The finding at this place in each group.
    fn findings(&self, place: usize) -> impl Iterator<Item = (NodeGroup<'g>, &'g GroupedFinding)> {
        let findings = self
            .members
            .iter()
            .filter_map(move |member| Some((*member, member.group.findings.get(place)?)));
        findings.collect::<Vec<_>>().into_iter()
    }
}

/// `0-3,6`
fn ranges(numbers: &[u32]) -> String {
    let mut sorted = numbers.to_vec();
    sorted.sort_unstable();
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for number in sorted {
        match ranges.last_mut() {
            Some((_, last)) if number <= last.saturating_add(1) => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    let text = |(first, last): &(u32, u32)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    ranges.iter().map(text).collect::<Vec<_>>().join(",")
}

fn print_block(
    block: &Block<'_>,
    pointers: &RunbookPointers,
    printer: &mut Printer,
) -> anyhow::Result<()> {
    let FindingGroup { component, action, text, first_step, findings } = block.first().group;
    printer.line("")?;
    printer.line(&printer.toned(Tone::Strong, &block.heading()))?;
    let step = match (first_step, action) {
        (Some(step), _) => step.clone(),
        // The text is more specific than the action "investigate".
        (None, Action::Investigate) if *text != action.instruction() => text.clone(),
        (None, _) => format!("{action}: {text}"),
    };
    printer.paragraph("  do first", INDENT, &format!("{step}."))?;
    let Some(first) = findings.first() else { return Ok(()) };
    let is_sign =
        |finding: &GroupedFinding| finding.since.duration_since(first.since).abs() <= SAME_CAUSE;
    print_finding(block, 0, printer)?;
    let signs: Vec<String> = findings[1..]
        .iter()
        .filter(|finding| is_sign(finding))
        .map(|finding| format!("{} {}", finding.severity, name(finding, &component.name)))
        .collect();
    if !signs.is_empty() {
        printer.paragraph("    with it", INDENT, &signs.join(", "))?;
    }
    for (place, finding) in findings.iter().enumerate().skip(1) {
        if !is_sign(finding) {
            print_finding(block, place, printer)?;
        }
    }
    let subject = match block.members.as_slice() {
        [_] => CommandSubject { gpu_index: component.gpu_index, pci: component.pci.as_deref() },
        _ => CommandSubject { gpu_index: None, pci: None },
    };
    let pages = findings.iter().map(|finding| finding.runbook.as_str());
    let place = if first_step.is_some() { CommandPlace::Nowhere } else { CommandPlace::Client };
    pointers.print(pages, (subject, place), None, printer)
}

/// Prints the finding at this place in each group of the block.
fn print_finding(block: &Block<'_>, place: usize, printer: &mut Printer) -> anyhow::Result<()> {
    let Some((member, finding)) = block.findings(place).next() else { return Ok(()) };
    let GroupedFinding { severity, text, clears, .. } = finding;
    let since: Timestamp =
        block.findings(place).map(|(_, finding)| finding.since).min().unwrap_or(finding.since);
    let count: u64 = block.findings(place).map(|(_, finding)| finding.count).sum();
    let members = block.members.len() as u64;
    let times = match (members, count) {
        (1, 1) => String::new(),
        (1, count) => format!(", {count} times"),
        (members, count) if members == count => format!(", {members} findings"),
        (members, count) => format!(", {members} findings, {count} times"),
    };
    // Pad before adding colour, because escape codes must not count as width.
    let word = severity.to_string();
    let padded = format!("  {word:<9} ").replacen(&word, &printer.severity(*severity), 1);
    let name = name(finding, &member.group.component.name);
    printer.line(&format!("{padded}{name}, since {}{times}", with_age(since)))?;
    printer.paragraph("", INDENT, text)?;
    for evidence in observations(block, place) {
        printer.paragraph("    seen", INDENT, &evidence)?;
    }
    if !clears.is_empty() {
        printer.paragraph("    clears", INDENT, clears)?;
    }
    Ok(())
}

/// The last observation of each group, with the name of its component if there are several groups.
fn observations(block: &Block<'_>, place: usize) -> Vec<String> {
    let mut texts: Vec<String> = Vec::new();
    for (member, finding) in block.findings(place) {
        let Some(evidence) = &finding.evidence else { continue };
        if block.members.len() == 1 {
            return vec![evidence.clone()];
        }
        let component = &member.group.component;
        let part = component
            .gpu_index
            .map_or_else(|| component.name.clone(), |index| format!("GPU {index}"));
        let node = member.node.map(|node| format!("{node} ")).unwrap_or_default();
        texts.push(format!("{node}{part}: {evidence}"));
    }
    let more = texts.len().saturating_sub(EVIDENCE_MAX);
    texts.truncate(EVIDENCE_MAX);
    if let (Some(last), true) = (texts.last_mut(), more > 0) {
        last.push_str(&format!("; and {more} more"));
    }
    texts
}

/// Names a finding, such as `gpu.xid (Xid 79)`. If the finding is about a part of the component,
/// the part is added.
fn name(finding: &GroupedFinding, component: &str) -> String {
    let GroupedFinding { code, detail, subject, .. } = finding;
    let detail = if detail.is_empty() { String::new() } else { format!(" ({detail})") };
    let part = if subject == component { String::new() } else { format!(" on {subject}") };
    format!("{code}{detail}{part}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn group(component: &str, index: Option<u32>, text: &str) -> FindingGroup {
        serde_json::from_value(json!({
            "component": { "name": component, "gpu_index": index },
            "action": "investigate", "text": "inspect it by hand",
            "findings": [{
                "id": 1, "severity": "critical", "code": "gpu.slowdown-thermal", "detail": "",
                "subject": component, "text": text, "count": 1, "since": "2026-11-15T12:00:00Z",
                "clears": "", "runbook": "gpu.slowdown-thermal",
                "evidence": format!("{component} is at 93 °C, the limit is 90 °C"),
            }],
        }))
        .unwrap()
    }

    fn headings(groups: &[NodeGroup<'_>]) -> Vec<String> {
        blocks(groups).iter().map(Block::heading).collect()
    }

    #[test]
    fn equal_gpus_and_equal_nodes_share_a_block() {
        let gpus: Vec<FindingGroup> = (0..8)
            .map(|index| group(&format!("GPU {index} at 0000:{index}b:00.0"), Some(index), "hot"))
            .collect();
        let other = group("GPU 3 at 0000:3b:00.0", Some(3), "slow");
        let of = |node| move |group| NodeGroup { node, group };
        let alone: Vec<NodeGroup<'_>> = gpus.iter().chain([&other]).map(of(None)).collect();
        assert_eq!(headings(&alone), ["GPUs 0-7", "GPU 3 at 0000:3b:00.0"]);
        let nodes: Vec<NodeId> =
            (32..48).map(|number| format!("node-{number:05}").parse().unwrap()).collect();
        let all: Vec<NodeGroup<'_>> =
            nodes.iter().flat_map(|node| gpus.iter().map(of(Some(node)))).collect();
        assert_eq!(headings(&all), ["node-[00032-00047] (16 nodes): GPUs 0-7"]);
    }

    #[test]
    fn a_block_shows_the_values_of_some_of_its_components() {
        let gpus = [0, 1, 2, 3].map(|index| group(&format!("GPU {index}"), Some(index), "hot"));
        let groups: Vec<NodeGroup<'_>> =
            gpus.iter().map(|group| NodeGroup { node: None, group }).collect();
        let blocks = blocks(&groups);
        let observations = observations(&blocks[0], 0);
        assert_eq!(observations.len(), EVIDENCE_MAX);
        assert!(observations[0].starts_with("GPU 0: ") && observations[2].contains("and 1 more"));
    }

    #[test]
    fn numbers_are_folded_into_ranges() {
        assert_eq!(ranges(&[3, 0, 1, 2, 6]), "0-3,6");
        assert_eq!(ranges(&[5]), "5");
    }
}
