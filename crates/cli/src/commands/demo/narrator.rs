//! Narrates the log: one line for each finding, decision and order, with its reason.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use farrier_facts::text::first_sentence;
use farrier_fleet::fleet::{Entry, Event, NodeId, NodePhase, OrderKind, OrderStatus, Rationale};
use farrier_fleet::health::Change;

use crate::printer::{Printer, Tone};

/// Column where the text of a line starts.
const TEXT_AT: usize = 20;

/// A line of the narration, without the names of the nodes that it is about.
#[derive(Debug, Clone, PartialEq, Eq)]
struct NarratedLine {
    tone: Tone,
    word: &'static str,
    text: String,
    /// Whether the text continues a sentence that begins with the name of the node.
    is_predicate: bool,
}

impl NarratedLine {
    /// Formats the line for these nodes.
    fn for_nodes(&self, nodes: &[String]) -> String {
        let separator = match nodes {
            _ if !self.is_predicate => ": ",
            [_] => " ",
            _ => ": each ",
        };
        format!("{}{separator}{}", node_list(nodes), self.text)
    }
}

/// State of the narration, and the counters for the summary.
#[derive(Debug, Default)]
pub(super) struct Narrator {
    /// Whether a transient status line is on the terminal.
    has_status: bool,
    is_live: bool,
    status_counts: BTreeMap<NodePhase, usize>,
    /// Last order of each node.
    ordered: BTreeMap<NodeId, OrderKind>,
    /// Nodes that have been in service.
    pub(super) joined: BTreeSet<NodeId>,
    /// Nodes that are out of service and have not returned.
    out_of_service: BTreeSet<NodeId>,
    /// Acts of the script that were performed.
    pub(super) acts: usize,
    pub(super) findings: usize,
    pub(super) quarantined: usize,
    pub(super) returned: usize,
    pub(super) deferred: usize,
    pub(super) orders: usize,
}

impl Narrator {
    /// With `is_live`, a transient status line is shown below the narration.
    pub(super) fn new(is_live: bool) -> Self {
        Self { is_live, ..Self::default() }
    }

    /// Prints an act of the script. At this time, the server does not know about the act yet.
    pub(super) fn act(
        &mut self,
        at: Duration,
        text: &str,
        printer: &mut Printer,
    ) -> anyhow::Result<()> {
        self.acts += 1;
        self.line(at, Tone::Strong, "scenario", text, printer)
    }

    /// Prints that every node has joined and passed verification.
    pub(super) fn all_joined(&mut self, at: Duration, printer: &mut Printer) -> anyhow::Result<()> {
        let text = format!("{} nodes have joined and passed V0 and V1", self.joined.len());
        self.line(at, Tone::Good, "decided", &text, printer)
    }

    /// Prints log entries. The same line for several nodes is printed once.
    pub(super) fn entries(
        &mut self,
        at: Duration,
        entries: &[Entry],
        printer: &mut Printer,
    ) -> anyhow::Result<()> {
        let mut lines: Vec<(NarratedLine, Vec<String>)> = Vec::new();
        for entry in entries {
            let Some((node, line)) = self.describe(entry) else { continue };
            match lines.iter_mut().find(|(other, _)| *other == line) {
                Some((_, nodes)) => nodes.push(node),
                None => lines.push((line, vec![node])),
            }
        }
        for (line, mut nodes) in lines {
            nodes.sort();
            self.line(at, line.tone, line.word, &line.for_nodes(&nodes), printer)?;
        }
        Ok(())
    }

    /// The node that an entry is about, and the line for it; `None` if the entry is not shown.
    fn describe(&mut self, entry: &Entry) -> Option<(String, NarratedLine)> {
        let line = |node: &dyn std::fmt::Display, tone, word, text: String| {
            Some((node.to_string(), NarratedLine { tone, word, text, is_predicate: false }))
        };
        let sentence = |node: &NodeId, tone, word, text: String| {
            Some((node.to_string(), NarratedLine { tone, word, text, is_predicate: true }))
        };
        match &entry.event {
            Event::FindingsReported { node, changes, .. } => {
                let text = self.opened_findings(changes)?;
                line(node, Tone::Caution, "found", text)
            }
            Event::PhaseChanged { node, to, rationale } => {
                let (tone, text) = self.phase_changed(node, *to, rationale)?;
                sentence(node, tone, "decided", text)
            }
            Event::OrderIssued { order } => {
                self.orders += 1;
                self.ordered.insert(order.node.clone(), order.kind.clone());
                // Every joining node is verified, which is not worth a line.
                let is_joining =
                    order.generation <= 2 && matches!(order.kind, OrderKind::Verify { .. });
                let text = match &order.kind {
                    OrderKind::ResetGpu { .. } => "reset the GPU".to_owned(),
                    other => other.to_string(),
                };
                if is_joining { None } else { line(&order.node, Tone::Strong, "ordered", text) }
            }
            Event::OrderStatusReported {
                node,
                status: OrderStatus::Failed { reason } | OrderStatus::Inconclusive { reason },
                ..
            } => {
                let text = match self.ordered.get(node) {
                    Some(OrderKind::Verify { level }) => format!("failed {level}: {reason}"),
                    Some(order) => format!("failed `{order}`: {reason}"),
                    None => format!("failed: {reason}"),
                };
                sentence(node, Tone::Bad, "failed", text)
            }
            Event::OrderStatusReported {
                node, status: OrderStatus::Refused { reason }, ..
            } => sentence(node, Tone::Bad, "refused", format!("refused: {reason}")),
            Event::Deferred { node, rationale } => {
                self.deferred += 1;
                let Rationale { reason, unblocked_by } = rationale;
                let text = format!("{reason}; until {unblocked_by}");
                line(node, Tone::Caution, "deferred", text)
            }
            Event::DomainFaultDetected { domain, nodes, rationale, .. } => {
                let text =
                    format!("domain fault, not {} node faults: {}", nodes.len(), rationale.reason);
                line(domain, Tone::Bad, "fault", text)
            }
            Event::DomainFaultCleared { domain, rationale } => line(
                domain,
                Tone::Good,
                "cleared",
                format!("domain fault cleared: {}", rationale.reason),
            ),
            Event::HeartbeatLost { node, .. } => {
                sentence(node, Tone::Caution, "heartbeat", "stopped sending heartbeats".to_owned())
            }
            Event::HeartbeatRestored { node } => {
                sentence(node, Tone::Good, "heartbeat", "sends heartbeats again".to_owned())
            }
            Event::OrderCancelled { node, reason, .. } => {
                line(node, Tone::Caution, "cancelled", format!("order cancelled: {reason}"))
            }
            _ => None,
        }
    }

    fn opened_findings(&mut self, changes: &[Change]) -> Option<String> {
        let opened = changes.iter().filter_map(|change| match change {
            Change::Opened(finding) => Some(finding),
            _ => None,
        });
        let opened: Vec<String> = opened
            .map(|finding| {
                let detail = Some(&finding.detail).filter(|text| !text.is_empty());
                let detail = detail.map_or(String::new(), |text| format!(" ({text})"));
                let text = first_sentence(&finding.text);
                format!("{} {}{detail}: {text}", finding.severity, finding.code)
            })
            .collect();
        self.findings += opened.len();
        let (first, others) = (opened.first()?, opened.len() - 1);
        Some(if others > 0 { format!("{first}, and {others} more") } else { first.clone() })
    }

    fn phase_changed(
        &mut self,
        node: &NodeId,
        to: NodePhase,
        rationale: &Rationale,
    ) -> Option<(Tone, String)> {
        let tone = match to {
            NodePhase::InService => Tone::Good,
            NodePhase::Suspect | NodePhase::Verifying | NodePhase::Joining => Tone::Caution,
            NodePhase::Quarantined | NodePhase::Repairing | NodePhase::Held => Tone::Bad,
        };
        self.quarantined += usize::from(to == NodePhase::Quarantined);
        match to {
            NodePhase::Quarantined | NodePhase::Repairing | NodePhase::Held => {
                self.out_of_service.insert(node.clone());
            }
            NodePhase::InService => {
                // A node may fail before it was in service for the first time. It then counts as
                // joined when it enters service.
                let is_first = self.joined.insert(node.clone());
                let is_back = self.out_of_service.remove(node);
                self.returned += usize::from(is_back);
                if is_first && !is_back {
                    return None;
                }
            }
            NodePhase::Joining | NodePhase::Suspect | NodePhase::Verifying => {}
        }
        Some((tone, format!("is {to}: {}", rationale.reason)))
    }

    fn line(
        &mut self,
        at: Duration,
        tone: Tone,
        word: &str,
        text: &str,
        printer: &mut Printer,
    ) -> anyhow::Result<()> {
        self.clear(printer)?;
        let word = printer.toned(tone, &format!("{word:<9}"));
        let begin = format!("{:>6.1} s  {word}", at.as_secs_f64());
        if self.is_live {
            printer.paragraph(&begin, TEXT_AT, text)?;
        } else {
            printer.line(&format!("{begin} {text}"))?;
        }
        printer.finish()?;
        Ok(())
    }

    /// Updates the status line: nodes by phase.
    pub(super) fn status(
        &mut self,
        counts: &BTreeMap<NodePhase, usize>,
        printer: &mut Printer,
    ) -> anyhow::Result<()> {
        if !self.is_live || *counts == self.status_counts && self.has_status {
            return Ok(());
        }
        self.clear(printer)?;
        let text: Vec<String> =
            counts.iter().map(|(phase, count)| format!("{count} {phase}")).collect();
        printer.transient(&text.join(", "))?;
        self.status_counts.clone_from(counts);
        self.has_status = true;
        Ok(())
    }

    fn clear(&mut self, printer: &mut Printer) -> anyhow::Result<()> {
        if std::mem::take(&mut self.has_status) {
            printer.clear_transient()?;
        }
        Ok(())
    }

    /// Removes the status line.
    pub(super) fn end(&mut self, printer: &mut Printer) -> anyhow::Result<()> {
        self.clear(printer)?;
        printer.finish()?;
        Ok(())
    }
}

/// Lists nodes. One or two nodes are named in full. If more nodes are consecutive, the first and
/// the last are named, and otherwise the first three.
fn node_list(nodes: &[String]) -> String {
    const NAMED_MAX: usize = 3;
    match nodes {
        [one] => one.clone(),
        [one, two] => format!("{one} and {two}"),
        [first, .., last] if is_range(nodes) => {
            format!("{} nodes ({first} to {last})", nodes.len())
        }
        nodes if nodes.len() <= NAMED_MAX => nodes.join(", "),
        nodes => {
            let (count, more) = (nodes.len(), nodes.len() - NAMED_MAX);
            format!("{count} nodes ({}, and {more} more)", nodes[..NAMED_MAX].join(", "))
        }
    }
}

/// Whether the numbers at the end of the names are consecutive.
fn is_range(nodes: &[String]) -> bool {
    let numbered = |name: &String| {
        let at = name.trim_end_matches(|letter: char| letter.is_ascii_digit()).len();
        Some((name[..at].to_owned(), name[at..].parse::<u64>().ok()?))
    };
    let follows = |pair: &[String]| match (numbered(&pair[0]), numbered(&pair[1])) {
        (Some((one, first)), Some((other, next))) => one == other && next == first + 1,
        _ => false,
    };
    nodes.windows(2).all(follows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_with_the_same_text_share_a_line() {
        let line = |text: &str, is_predicate| NarratedLine {
            tone: Tone::Caution,
            word: "decided",
            text: text.to_owned(),
            is_predicate,
        };
        let nodes = ["a".to_owned(), "b".to_owned()];
        let suspect = line("is suspect: Xid 48", true);
        assert_eq!(suspect.for_nodes(&nodes[..1]), "a is suspect: Xid 48");
        assert_eq!(suspect.for_nodes(&nodes), "a and b: each is suspect: Xid 48");
        assert_eq!(line("reboot", false).for_nodes(&nodes), "a and b: reboot");
    }

    #[test]
    fn only_consecutive_nodes_are_shown_as_a_range() {
        let nodes = |numbers: &[u32]| -> Vec<String> {
            numbers.iter().map(|number| format!("node-{number:05}")).collect()
        };
        assert_eq!(node_list(&nodes(&[7])), "node-00007");
        assert_eq!(node_list(&nodes(&[7, 9])), "node-00007 and node-00009");
        assert_eq!(node_list(&nodes(&[7, 9, 10])), "node-00007, node-00009, node-00010");
        assert_eq!(node_list(&nodes(&[9, 10, 11, 12])), "4 nodes (node-00009 to node-00012)");
        let gaps = "5 nodes (node-00001, node-00003, node-00004, and 2 more)";
        assert_eq!(node_list(&nodes(&[1, 3, 4, 5, 6])), gaps);
    }
}
