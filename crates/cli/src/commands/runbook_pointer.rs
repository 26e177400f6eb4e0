//! The last lines of a group of findings. They show the first command of the runbook page, and how
//! to open the page.

use std::borrow::Cow;

use farrier_facts::FactSet;
use farrier_fleet::health::Rules;
use farrier_fleet::runbook::{FirstCommands, RunbookSources};

use crate::fact_sets;
use crate::printer::Printer;

/// Column where texts start. The labels of lines, such as `do first`, and the severities of
/// findings fit before it.
pub(crate) const INDENT: usize = 12;

/// Where the person is who reads the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CommandPlace {
    /// On the node that the findings are about.
    Node,
    /// At a client of the server.
    Client,
    /// At a client, but no command is shown, because the first step is another one.
    Nowhere,
}

impl CommandPlace {
    /// The command, and where it has to run if that is elsewhere.
    pub(crate) fn describe(self, command: &str) -> String {
        let is_here = self == Self::Node || command.starts_with("farrier fleet ");
        if is_here { command.to_owned() } else { format!("on the node: {command}") }
    }
}

/// The component that findings are about, for the placeholders of commands.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CommandSubject<'c> {
    pub(crate) gpu_index: Option<u32>,
    pub(crate) pci: Option<&'c str>,
}

/// Finds first commands.
pub(crate) struct RunbookPointers {
    facts: Cow<'static, FactSet>,
    rules: Rules,
    commands: FirstCommands,
}

impl RunbookPointers {
    pub(crate) fn embedded() -> anyhow::Result<Self> {
        let facts = fact_sets::active();
        Ok(Self { facts, rules: Rules::embedded()?, commands: FirstCommands::embedded()? })
    }

    /// Prints one command of the first page, then the code of each page once. The command is the
    /// page's first, or the next one if the first is `shown_by`, the command that runs now. A
    /// finding of a newer agent may have no page here.
    pub(crate) fn print<'p>(
        &self,
        pages: impl Iterator<Item = &'p str>,
        (subject, place): (CommandSubject<'_>, CommandPlace),
        shown_by: Option<&str>,
        printer: &mut Printer,
    ) -> anyhow::Result<()> {
        let is_replaced = place == CommandPlace::Nowhere;
        let Self { facts, rules, commands } = self;
        let sources = RunbookSources { rules, facts, commands };
        let mut codes: Vec<&str> = Vec::new();
        let mut first_page = None;
        for code in pages {
            if !codes.contains(&code)
                && let Some(page) = sources.page(code)
            {
                codes.push(code);
                first_page.get_or_insert(page);
            }
        }
        let (Some((first, others)), Some(page)) = (codes.split_first(), first_page) else {
            return Ok(());
        };
        let mut commands = page.first_commands.iter().map(|command| command.run.as_str());
        if !is_replaced && let Some(command) = commands.find(|command| Some(*command) != shown_by) {
            printer.paragraph("  run", INDENT, &place.describe(&for_subject(command, subject)))?;
        }
        let others = match others {
            [] => String::new(),
            others => format!(" (also {})", others.join(", ")),
        };
        Ok(printer.paragraph("  runbook", INDENT, &format!("farrier runbook {first}{others}"))?)
    }
}

/// Replaces the placeholders of a command. If a value is unknown, its placeholder stays.
fn for_subject(command: &str, subject: CommandSubject<'_>) -> String {
    let index = subject.gpu_index.map(|index| index.to_string());
    let word = |word: &str| match (word, &index, subject.pci) {
        ("GPU", Some(index), _) => index.clone(),
        ("BUS", _, Some(pci)) => pci.to_owned(),
        _ => word.to_owned(),
    };
    command.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_become_the_component_and_unknown_ones_stay() {
        let gpu = CommandSubject { gpu_index: Some(3), pci: Some("0000:3b:00.0") };
        assert_eq!(for_subject("nvidia-smi -q -i GPU -d ECC", gpu), "nvidia-smi -q -i 3 -d ECC");
        assert_eq!(for_subject("lspci -s BUS | grep x", gpu), "lspci -s 0000:3b:00.0 | grep x");
        let node = CommandSubject { gpu_index: None, pci: None };
        let command = "nvidia-smi -q -i GPU; lspci -s BUS; ibstat PORT";
        assert_eq!(for_subject(command, node), command);
    }
}
