//! What a shell text is made of.

/// A word, without its quotes.
#[derive(Debug, Clone, Default)]
pub(super) struct Word {
    pub(super) text: String,
    pub(super) line: u32,
    /// Something in it is known only at run time.
    pub(super) dynamic: bool,
    /// Some of it stood in quotes.
    pub(super) quoted: bool,
}

/// A simple command.
#[derive(Debug, Default)]
pub(super) struct Command {
    pub(super) words: Vec<Word>,
    /// Where its output goes, if to a file.
    pub(super) target: Option<String>,
    /// A here-document waits for its end.
    pub(super) heredoc: bool,
    /// Whether its first own word is `[[`; none before there is one.
    test: Option<bool>,
}

/// Words that may stand before a `[[`.
const BEFORE_TEST: [&str; 8] = ["if", "elif", "while", "until", "!", "then", "do", "else"];

impl Command {
    pub(super) fn push(&mut self, word: Word) {
        if self.test.is_none() && !BEFORE_TEST.contains(&word.text.as_str()) {
            self.test = Some(word.text == "[[");
        }
        self.words.push(word);
    }

    /// Whether it is an open `[[`, in which `<` compares.
    pub(super) fn in_test(&self) -> bool {
        self.test == Some(true) && self.words.last().is_some_and(|word| word.text != "]]")
    }
}

/// Commands joined by `|`.
#[derive(Debug, Default)]
pub(super) struct Pipeline {
    pub(super) commands: Vec<Command>,
    /// The text of its here-documents, with the line on which each begins.
    pub(super) heredocs: Vec<(String, u32)>,
    /// One of its commands waits for a here-document.
    pub(super) waits: bool,
}

impl Pipeline {
    /// Takes a command that has ended.
    pub(super) fn end_command(&mut self, command: &mut Command) {
        let command = std::mem::take(command);
        if !command.words.is_empty() || command.heredoc {
            self.waits |= command.heredoc;
            self.commands.push(command);
        }
    }
}

/// What reading a text gives.
#[derive(Debug, Default)]
pub(super) struct Script {
    pub(super) pipelines: Vec<Pipeline>,
    pub(super) comments: Vec<(u32, String)>,
}
