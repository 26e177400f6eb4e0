//! The commands that a runbook page lists first, from `runbooks/commands.toml`.

use serde::{Deserialize, Serialize};

const FILE: &str = include_str!("../../runbooks/commands.toml");

/// A command that an operator runs first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FirstCommand {
    pub run: String,
    /// What the output of the command shows.
    pub shows: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FirstCommands {
    subjects: Vec<SubjectCommands>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct SubjectCommands {
    prefix: Vec<String>,
    command: Vec<FirstCommand>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CommandsFile {
    subject: Vec<SubjectCommands>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("failed to parse `commands.toml`")]
pub struct CommandsError(#[from] toml::de::Error);

impl FirstCommands {
    pub fn embedded() -> Result<Self, CommandsError> {
        let file: CommandsFile = toml::from_str(FILE)?;
        Ok(Self { subjects: file.subject })
    }

    /// The commands of the subject whose prefix of this code is longest. Empty if no prefix
    /// matches.
    pub(super) fn for_code(&self, code: &str) -> Vec<FirstCommand> {
        let matching = |subject: &SubjectCommands| {
            let prefixes = subject.prefix.iter().filter(|prefix| is_prefix(prefix, code));
            prefixes.map(String::len).max()
        };
        let longest = self.subjects.iter().max_by_key(|subject| matching(subject));
        longest
            .filter(|subject| matching(subject).is_some())
            .map(|subject| subject.command.clone())
            .unwrap_or_default()
    }
}

/// Whether the prefix matches the code. The number of an Xid has to match as a whole: `xid.7` is no
/// prefix of `xid.79`.
fn is_prefix(prefix: &str, code: &str) -> bool {
    let is_xid = prefix.starts_with("xid.") && prefix != "xid.";
    if is_xid { prefix == code } else { code.starts_with(prefix) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_prefix_applies() {
        let commands = FirstCommands::embedded().unwrap();
        let first = |code: &str| commands.for_code(code).first().map(|first| first.run.clone());
        assert_eq!(
            first("gpu.ecc-uncorrected").unwrap(),
            "nvidia-smi -q -i GPU -d ECC,ROW_REMAPPER,PAGE_RETIREMENT"
        );
        assert_eq!(first("gpu.hang-suspected").unwrap(), "farrier status");
        assert_eq!(first("xid.4").unwrap(), "farrier status");
        assert_eq!(first("fan.broken"), None);
    }
}
