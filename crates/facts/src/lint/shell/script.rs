//! Syntax elements of a shell script.

/// A word, without its quotes.
#[derive(Debug, Clone, Default)]
pub(super) struct Word {
    pub(super) text: String,
    pub(super) line: u32,
    /// Contains a part known only at run time.
    pub(super) dynamic: bool,
    /// Was partly quoted.
    pub(super) quoted: bool,
}

/// A simple command.
#[derive(Debug, Default)]
pub(super) struct ShellCommand {
    pub(super) words: Vec<Word>,
    /// File that stdout is redirected to.
    pub(super) target: Option<String>,
    /// Has a pending here-document.
    pub(super) heredoc: bool,
    /// Whether the first word is `[[`; `None` before the first word.
    test: Option<bool>,
}

/// Words allowed before `[[`.
const BEFORE_TEST: [&str; 8] = ["if", "elif", "while", "until", "!", "then", "do", "else"];

impl ShellCommand {
    pub(super) fn push(&mut self, word: Word) {
        if self.test.is_none() && !BEFORE_TEST.contains(&word.text.as_str()) {
            self.test = Some(word.text == "[[");
        }
        self.words.push(word);
    }

    /// Whether inside `[[`, where `<` is a comparison.
    pub(super) fn in_test(&self) -> bool {
        self.test == Some(true) && self.words.last().is_some_and(|word| word.text != "]]")
    }
}

/// Commands joined by `|`.
#[derive(Debug, Default)]
pub(super) struct Pipeline {
    pub(super) commands: Vec<ShellCommand>,
    /// Here-documents with their first line.
    pub(super) heredocs: Vec<(String, u32)>,
    /// A command has a pending here-document.
    pub(super) awaits_heredoc: bool,
}

impl Pipeline {
    /// Adds a complete command.
    pub(super) fn end_command(&mut self, command: &mut ShellCommand) {
        let command = std::mem::take(command);
        if !command.words.is_empty() || command.heredoc {
            self.awaits_heredoc |= command.heredoc;
            self.commands.push(command);
        }
    }
}

/// A parsed script.
#[derive(Debug, Default)]
pub(super) struct Script {
    pub(super) pipelines: Vec<Pipeline>,
    pub(super) comments: Vec<(u32, String)>,
}
