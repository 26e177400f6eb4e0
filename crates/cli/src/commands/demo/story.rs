//! What the log says, for an audience: a line for each thing that was found, decided and done, and why.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use farrier_facts::text::first_sentence;
use farrier_fleet::fleet::{Answer, Entry, Event, NodeId, OrderKind, Standing, Why};
use farrier_fleet::health::Change;

use crate::printer::{Printer, Tone};

/// Where the text of a line begins.
const TEXT_AT: usize = 19;

/// A line, but for whom it is about.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Said {
    tone: Tone,
    word: &'static str,
    text: String,
}

impl Said {
    /// The line, about these nodes.
    fn of(&self, nodes: &[String]) -> String {
        let between = match nodes {
            // An order is sent to a node: the node is not the subject of the sentence.
            _ if self.word == "ordered" => ": ",
            [_] => " ",
            _ => ": each ",
        };
        format!("{}{between}{}", named(nodes), self.text)
    }
}

/// The story so far.
#[derive(Debug, Default)]
pub(super) struct Story {
    /// Whether the last line on the terminal is one that changes.
    has_status: bool,
    is_live: bool,
    last: BTreeMap<Standing, usize>,
    /// What each node was last told to do.
    ordered: BTreeMap<NodeId, OrderKind>,
    /// Nodes that were in service.
    pub(super) joined: BTreeSet<NodeId>,
    /// Nodes that were taken out and are not back.
    taken_out: BTreeSet<NodeId>,
    pub(super) told: usize,
    pub(super) found: usize,
    pub(super) quarantined: usize,
    pub(super) returned: usize,
    pub(super) held_back: usize,
    pub(super) orders: usize,
}

impl Story {
    /// `is_live`: with a line at the bottom that changes.
    pub(super) fn new(is_live: bool) -> Self {
        Self { is_live, ..Self::default() }
    }

    /// Something happens, and the server does not know yet.
    pub(super) fn happens(
        &mut self,
        at: Duration,
        text: &str,
        printer: &mut Printer,
    ) -> anyhow::Result<()> {
        self.told += 1;
        self.line(at, Tone::Strong, "happens", text, printer)
    }

    /// Every node is there and proven.
    pub(super) fn all_joined(&mut self, at: Duration, printer: &mut Printer) -> anyhow::Result<()> {
        let text = format!("{} nodes have joined and passed V0 and V1", self.joined.len());
        self.line(at, Tone::Good, "decided", &text, printer)
    }

    /// Entries of the log. What is said of several nodes alike is one line.
    pub(super) fn hear(
        &mut self,
        at: Duration,
        entries: &[Entry],
        printer: &mut Printer,
    ) -> anyhow::Result<()> {
        let mut said: Vec<(Said, Vec<String>)> = Vec::new();
        for entry in entries {
            let Some((node, line)) = self.words(entry) else { continue };
            match said.iter_mut().find(|(other, _)| *other == line) {
                Some((_, nodes)) => nodes.push(node),
                None => said.push((line, vec![node])),
            }
        }
        for (said, mut nodes) in said {
            nodes.sort();
            self.line(at, said.tone, said.word, &said.of(&nodes), printer)?;
        }
        Ok(())
    }

    /// Of whom it speaks, and what it says of them.
    fn words(&mut self, entry: &Entry) -> Option<(String, Said)> {
        let said = |node: &dyn std::fmt::Display, tone, word, text: String| {
            Some((node.to_string(), Said { tone, word, text }))
        };
        match &entry.event {
            Event::Found { node, changes, .. } => {
                let text = self.findings(changes)?;
                said(node, Tone::Caution, "found", text)
            }
            Event::Moved { node, to, why } => {
                let (tone, text) = self.moved(node, *to, why)?;
                said(node, tone, "decided", text)
            }
            Event::Ordered { order } => {
                self.orders += 1;
                self.ordered.insert(order.node.clone(), order.what.clone());
                // Every node that joins is proven: that says nothing to an audience.
                let joins = order.generation <= 2 && matches!(order.what, OrderKind::Verify { .. });
                let text = match &order.what {
                    OrderKind::ResetGpu { .. } => "reset of the GPU".to_owned(),
                    other => other.to_string(),
                };
                if joins { None } else { said(&order.node, Tone::Strong, "ordered", text) }
            }
            Event::Answered { node, answer: Answer::Failed { why }, .. } => {
                let text = match self.ordered.get(node) {
                    Some(OrderKind::Verify { rung }) => format!("did not pass {rung}: {why}"),
                    Some(what) => format!("could not carry out `{what}`: {why}"),
                    None => why.clone(),
                };
                said(node, Tone::Bad, "failed", text)
            }
            Event::Answered { node, answer: Answer::Refused { why }, .. } => {
                said(node, Tone::Bad, "refused", format!("did not begin: {why}"))
            }
            Event::HeldBack { node, why } => {
                self.held_back += 1;
                let text = format!("waits: {}; until {}", why.reason, why.unblocked_by);
                said(node, Tone::Caution, "held", text)
            }
            Event::Blamed { domain, nodes, why, .. } => {
                let text =
                    format!("is to blame, and not its {} nodes: {}", nodes.len(), why.reason);
                said(domain, Tone::Bad, "blamed", text)
            }
            Event::Absolved { domain, why } => said(
                domain,
                Tone::Good,
                "cleared",
                format!("is not to blame any longer: {}", why.reason),
            ),
            Event::Silent { node, .. } => {
                said(node, Tone::Caution, "silent", "is not heard any more".to_owned())
            }
            Event::Heard { node } => said(node, Tone::Good, "heard", "is heard again".to_owned()),
            Event::Withdrawn { node, why, .. } => {
                said(node, Tone::Caution, "dropped", format!("is not waited for any longer: {why}"))
            }
            _ => None,
        }
    }

    fn findings(&mut self, changes: &[Change]) -> Option<String> {
        let opened = changes.iter().filter_map(|change| match change {
            Change::Opened(finding) => Some(finding),
            _ => None,
        });
        let opened: Vec<String> = opened
            .map(|it| {
                let detail = Some(&it.detail).filter(|text| !text.is_empty());
                let detail = detail.map_or(String::new(), |text| format!(" ({text})"));
                let text = first_sentence(&it.text);
                format!("{} {}{detail}: {text}", it.severity, it.code)
            })
            .collect();
        self.found += opened.len();
        let (first, more) = (opened.first()?, opened.len() - 1);
        Some(if more > 0 { format!("{first}, and {more} more") } else { first.clone() })
    }

    fn moved(&mut self, node: &NodeId, to: Standing, why: &Why) -> Option<(Tone, String)> {
        let tone = match to {
            Standing::InService => Tone::Good,
            Standing::Suspect | Standing::Verifying | Standing::Joining => Tone::Caution,
            Standing::Quarantined | Standing::InRepair | Standing::Held => Tone::Bad,
        };
        self.quarantined += usize::from(to == Standing::Quarantined);
        match to {
            Standing::Quarantined | Standing::InRepair | Standing::Held => {
                self.taken_out.insert(node.clone());
            }
            Standing::InService => {
                // A fault may come before a node was ever in service: it has joined when it comes back.
                let is_first = self.joined.insert(node.clone());
                let is_back = self.taken_out.remove(node);
                self.returned += usize::from(is_back);
                if is_first && !is_back {
                    return None;
                }
            }
            Standing::Joining | Standing::Suspect | Standing::Verifying => {}
        }
        Some((tone, format!("is {}: {}", to.words(), why.reason)))
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
        let word = printer.toned(tone, &format!("{word:<8}"));
        let begin = format!("{:>6.1} s  {word}", at.as_secs_f64());
        if self.is_live {
            printer.paragraph(&begin, TEXT_AT, text)?;
        } else {
            printer.line(&format!("{begin} {text}"))?;
        }
        printer.finish()?;
        Ok(())
    }

    /// How the fleet stands, at the bottom.
    pub(super) fn status(
        &mut self,
        counts: &BTreeMap<Standing, usize>,
        printer: &mut Printer,
    ) -> anyhow::Result<()> {
        if !self.is_live || *counts == self.last && self.has_status {
            return Ok(());
        }
        self.clear(printer)?;
        let text: Vec<String> = counts
            .iter()
            .map(|(standing, count)| format!("{count} {}", standing.words()))
            .collect();
        printer.transient(&text.join(", "))?;
        self.last.clone_from(counts);
        self.has_status = true;
        Ok(())
    }

    fn clear(&mut self, printer: &mut Printer) -> anyhow::Result<()> {
        if std::mem::take(&mut self.has_status) {
            printer.clear_transient()?;
        }
        Ok(())
    }

    /// The last line is a line like others.
    pub(super) fn end(&mut self, printer: &mut Printer) -> anyhow::Result<()> {
        self.clear(printer)?;
        printer.finish()?;
        Ok(())
    }
}

/// Several by name: all of a few; a range where it has no gaps; else the first few.
fn named(nodes: &[String]) -> String {
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

/// Whether each is numbered one more than the one before.
fn is_range(nodes: &[String]) -> bool {
    let numbered = |name: &String| {
        let at = name.trim_end_matches(|it: char| it.is_ascii_digit()).len();
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
    fn several_nodes_share_a_line() {
        let said = |word| Said { tone: Tone::Caution, word, text: "waits: a budget".to_owned() };
        let nodes = ["a".to_owned(), "b".to_owned()];
        assert_eq!(said("held").of(&nodes[..1]), "a waits: a budget");
        assert_eq!(said("held").of(&nodes), "a and b: each waits: a budget");
        assert_eq!(said("ordered").of(&nodes), "a and b: waits: a budget");
    }

    #[test]
    fn a_range_has_no_gaps() {
        let nodes = |numbers: &[u32]| -> Vec<String> {
            numbers.iter().map(|it| format!("node-{it:05}")).collect()
        };
        assert_eq!(named(&nodes(&[7])), "node-00007");
        assert_eq!(named(&nodes(&[7, 9])), "node-00007 and node-00009");
        assert_eq!(named(&nodes(&[7, 9, 10])), "node-00007, node-00009, node-00010");
        assert_eq!(named(&nodes(&[9, 10, 11, 12])), "4 nodes (node-00009 to node-00012)");
        let gaps = "5 nodes (node-00001, node-00003, node-00004, and 2 more)";
        assert_eq!(named(&nodes(&[1, 3, 4, 5, 6])), gaps);
    }
}
