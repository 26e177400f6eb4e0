//! What the log says, for an audience: a line for each thing that was found, decided and done, and why.

use std::collections::BTreeMap;
use std::time::Duration;

use farrier_fleet::fleet::event::Why;
use farrier_fleet::fleet::{Answer, Entry, Event, OrderKind, Standing};
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

/// The story so far.
#[derive(Debug, Default)]
pub(super) struct Story {
    /// Whether the last line on the terminal is one that changes.
    has_status: bool,
    is_live: bool,
    last: BTreeMap<Standing, usize>,
    pub(super) joined: usize,
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
        let text =
            format!("{} nodes have joined, passed V0 and V1, and are in service", self.joined);
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
        for (Said { tone, word, text }, mut nodes) in said {
            nodes.sort();
            let text = match nodes.as_slice() {
                [one] => format!("{one} {text}"),
                [one, two] => format!("{one} and {two} {}", of_several(&text)),
                [first, .., last] => {
                    format!("{} nodes ({first} to {last}) {}", nodes.len(), of_several(&text))
                }
                [] => continue,
            };
            self.line(at, tone, word, &text, printer)?;
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
                let (tone, text) = self.moved(*to, why)?;
                said(node, tone, "decided", text)
            }
            Event::Ordered { order } => {
                self.orders += 1;
                // Every node that joins is proven: that says nothing to an audience.
                let joins = order.generation <= 2 && matches!(order.what, OrderKind::Verify { .. });
                let text = match &order.what {
                    OrderKind::ResetGpu { .. } => "reset of the GPU".to_owned(),
                    other => other.to_string(),
                };
                if joins { None } else { said(&order.node, Tone::Strong, "ordered", text) }
            }
            Event::Answered { node, answer: Answer::Failed { why }, .. } => {
                said(node, Tone::Bad, "failed", format!("did not: {why}"))
            }
            Event::Answered { node, answer: Answer::Refused { why }, .. } => {
                said(node, Tone::Bad, "refused", why.clone())
            }
            Event::HeldBack { node, why } => {
                self.held_back += 1;
                let text = format!("waits: {}; until {}", why.text, why.until);
                said(node, Tone::Caution, "held", text)
            }
            Event::Blamed { domain, nodes, why, .. } => {
                let text = format!("and not its {} nodes: {}", nodes.len(), why.text);
                said(domain, Tone::Bad, "blamed", text)
            }
            Event::Absolved { domain, why } => {
                said(domain, Tone::Good, "cleared", why.text.clone())
            }
            Event::Silent { node, .. } => {
                said(node, Tone::Caution, "silent", "not heard any more".to_owned())
            }
            Event::Heard { node } => said(node, Tone::Good, "heard", "heard again".to_owned()),
            Event::Withdrawn { node, why, .. } => said(node, Tone::Caution, "dropped", why.clone()),
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
                let text = it.text.split(". ").next().unwrap_or(&it.text);
                format!("{} {}{detail}: {text}", it.severity, it.code)
            })
            .collect();
        self.found += opened.len();
        let (first, more) = (opened.first()?, opened.len() - 1);
        Some(if more > 0 { format!("{first}, and {more} more") } else { first.clone() })
    }

    fn moved(&mut self, to: Standing, why: &Why) -> Option<(Tone, String)> {
        let tone = match to {
            Standing::InService => Tone::Good,
            Standing::Suspect | Standing::Verifying | Standing::Joining => Tone::Caution,
            Standing::Quarantined | Standing::InRepair | Standing::Held => Tone::Bad,
        };
        self.quarantined += usize::from(to == Standing::Quarantined);
        if to == Standing::InService && why.text.contains("enrolled") {
            self.joined += 1;
            return None;
        }
        self.returned +=
            usize::from(to == Standing::InService && why.text.contains("passed what its pool"));
        // The GPU's UUID says nothing to an audience.
        let text = why.text.split(" on GPU-").next().unwrap_or(&why.text);
        Some((tone, format!("is {}: {text}", to.words())))
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
            printer.take_back()?;
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

/// What is said of one, said of several.
fn of_several(text: &str) -> String {
    for (one, several) in [("is ", "are "), ("waits: ", "wait: ")] {
        if let Some(rest) = text.strip_prefix(one) {
            return format!("{several}{rest}");
        }
    }
    text.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_are_and_wait() {
        assert_eq!(of_several("is suspect: heat"), "are suspect: heat");
        assert_eq!(of_several("waits: the breaker"), "wait: the breaker");
        assert_eq!(of_several("cordon"), "cordon");
    }
}
