//! Shell text as pipelines of commands with words.
//!
//! Substitutions are read as commands of their own; in the word they stay as they were written, and
//! make it one whose value is not known.

/// How deep substitutions may stand in each other before they are taken for plain text.
const DEEPEST: u32 = 48;

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
    heredoc: bool,
}

/// Commands joined by `|`.
#[derive(Debug, Default)]
pub(super) struct Pipeline {
    pub(super) commands: Vec<Command>,
    /// The text of its here-documents, with the line on which each begins.
    pub(super) heredocs: Vec<(String, u32)>,
}

/// What reading a text gives.
#[derive(Debug, Default)]
pub(super) struct Script {
    pub(super) pipelines: Vec<Pipeline>,
    pub(super) comments: Vec<(u32, String)>,
}

/// What a here-document ends with.
struct Pending {
    delimiter: String,
    indented: bool,
}

pub(super) struct Reader<'t> {
    text: &'t str,
    at: usize,
    line: u32,
    script: Script,
    depth: u32,
}

/// Reads a script whose first line is `first_line`.
pub(super) fn read(text: &str, first_line: u32) -> Script {
    let mut reader = Reader { text, at: 0, line: first_line, script: Script::default(), depth: 0 };
    while reader.at < text.len() {
        reader.list(None);
    }
    reader.script
}

impl Reader<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    /// Takes one byte, counting lines.
    fn bump(&mut self) {
        if self.peek() == Some(b'\n') {
            self.line = self.line.saturating_add(1);
        }
        self.at += 1;
    }

    /// Reads commands up to `closing`, which stays.
    fn list(&mut self, closing: Option<u8>) {
        let mut pipeline = Pipeline::default();
        let mut command = Command::default();
        let mut pending: Vec<Pending> = Vec::new();
        let mut brackets = 0_u32;
        while let Some(byte) = self.peek() {
            if closing == Some(byte) && brackets == 0 {
                break;
            }
            match byte {
                b'(' => brackets += 1,
                b')' => brackets = brackets.saturating_sub(1),
                _ => {}
            }
            match byte {
                b'\n' => {
                    end_command(&mut pipeline, &mut command);
                    self.bump();
                    for wanted in std::mem::take(&mut pending) {
                        let body = self.heredoc(&wanted);
                        pipeline.heredocs.push(body);
                    }
                    self.end_pipeline(&mut pipeline);
                }
                b' ' | b'\t' | b'\r' => self.at += 1,
                b'\\' if self.rest().starts_with("\\\n") => {
                    self.at += 1;
                    self.bump();
                }
                b'\\' if self.rest().starts_with("\\\r\n") => {
                    self.at += 2;
                    self.bump();
                }
                b'#' => self.comment(),
                b'|' if self.rest().starts_with("||") => {
                    self.separator(2, &mut pipeline, &mut command)
                }
                b'|' => {
                    self.at += 1;
                    end_command(&mut pipeline, &mut command);
                }
                b'&' if self.rest().starts_with("&>") => self.redirect(&mut command, &mut pending),
                b'&' | b';' | b'(' | b')' => self.separator(1, &mut pipeline, &mut command),
                b'<' | b'>' if !in_test(&command) => self.redirect(&mut command, &mut pending),
                _ => self.push_word(&mut command),
            }
        }
        end_command(&mut pipeline, &mut command);
        self.end_pipeline(&mut pipeline);
    }

    fn separator(&mut self, length: usize, pipeline: &mut Pipeline, command: &mut Command) {
        self.at += length;
        end_command(pipeline, command);
        // The text of a here-document comes at the end of the line, so its command has to wait for it.
        if !pipeline.commands.iter().any(|command| command.heredoc) {
            self.end_pipeline(pipeline);
        }
    }

    fn end_pipeline(&mut self, pipeline: &mut Pipeline) {
        let pipeline = std::mem::take(pipeline);
        if !pipeline.commands.is_empty() {
            self.script.pipelines.push(pipeline);
        }
    }

    fn comment(&mut self) {
        let end = memchr::memchr(b'\n', self.rest().as_bytes()).unwrap_or(self.rest().len());
        let text = self.rest()[..end].trim_end().to_owned();
        self.script.comments.push((self.line, text));
        self.at += end;
    }

    fn push_word(&mut self, command: &mut Command) {
        let word = self.word();
        // Digits straight before a redirection are its number, not a word.
        let number = !word.quoted && word.text.bytes().all(|b| b.is_ascii_digit());
        if number && matches!(self.peek(), Some(b'<' | b'>')) && !word.text.is_empty() {
            return;
        }
        command.words.push(word);
    }

    /// `> file`, `2>&1`, `< file`, `<<END`, `<<< word`
    fn redirect(&mut self, command: &mut Command, pending: &mut Vec<Pending>) {
        let operators =
            ["<<<", "<<-", "<<", "&>>", "&>", ">>", ">&", "<&", "<>", ">|", "<(", ">(", "<", ">"];
        let operator = operators.iter().find(|operator| self.rest().starts_with(**operator));
        let operator = operator.copied().unwrap_or("<");
        if matches!(operator, "<(" | ">(") {
            // A process substitution is a command of its own.
            self.at += 2;
            self.nested(b')');
            return;
        }
        self.at += operator.len();
        while matches!(self.peek(), Some(b' ' | b'\t')) {
            self.at += 1;
        }
        let operand = self.word();
        match operator {
            "<<" | "<<-" if !operand.text.is_empty() => {
                command.heredoc = true;
                pending.push(Pending { delimiter: operand.text, indented: operator == "<<-" });
            }
            ">" | ">>" | ">|" => command.target = Some(operand.text),
            // A text that is fed in is as good as an argument.
            "<<<" => command.words.push(operand),
            _ => {}
        }
    }

    fn heredoc(&mut self, wanted: &Pending) -> (String, u32) {
        let first_line = self.line;
        let from = self.at;
        loop {
            let rest = self.rest();
            if rest.is_empty() {
                return (self.text[from..].to_owned(), first_line);
            }
            let length = memchr::memchr(b'\n', rest.as_bytes()).map_or(rest.len(), |end| end + 1);
            let line = rest[..length].trim_end_matches(['\n', '\r']);
            let line = if wanted.indented { line.trim_start_matches('\t') } else { line };
            let found = line == wanted.delimiter;
            let end = self.at;
            self.line = self.line.saturating_add(u32::from(rest[..length].ends_with('\n')));
            self.at += length;
            if found {
                return (self.text[from..end].to_owned(), first_line);
            }
        }
    }

    /// Reads a list of commands up to `closing` and takes that too.
    fn nested(&mut self, closing: u8) {
        self.depth += 1;
        self.list(Some(closing));
        self.depth -= 1;
        if self.peek() == Some(closing) {
            self.at += 1;
        }
    }

    /// One word. It ends before a blank or an operator that stands outside of quotes.
    fn word(&mut self) -> Word {
        let mut word = Word { line: self.line, ..Word::default() };
        let start = self.at;
        while let Some(byte) = self.peek() {
            match byte {
                b' ' | b'\t' | b'\n' | b'\r' | b';' | b'|' | b'&' | b'<' | b'>' | b'(' | b')' => {
                    // In a test `<` is a word; a function's `name()` is one too.
                    if self.at == start {
                        word.text.push(char::from(byte));
                        self.bump();
                    }
                    break;
                }
                b'\\' => self.escape(&mut word),
                b'\'' => {
                    word.quoted = true;
                    self.at += 1;
                    self.until(b'\'', &mut word);
                }
                b'"' => {
                    word.quoted = true;
                    self.at += 1;
                    self.double_quotes(&mut word);
                }
                b'$' | b'`' => self.dollar(&mut word),
                _ => self.plain(&mut word),
            }
        }
        word
    }

    /// One letter as it is.
    fn plain(&mut self, word: &mut Word) {
        if let Some(letter) = self.rest().chars().next() {
            word.text.push(letter);
            if letter == '\n' {
                self.line = self.line.saturating_add(1);
            }
            self.at += letter.len_utf8();
        }
    }

    fn escape(&mut self, word: &mut Word) {
        self.at += 1;
        match self.peek() {
            Some(b'\n') => self.bump(),
            Some(_) => self.plain(word),
            None => {}
        }
    }

    fn until(&mut self, quote: u8, word: &mut Word) {
        let rest = self.rest();
        let end = memchr::memchr(quote, rest.as_bytes()).unwrap_or(rest.len());
        let text = rest[..end].to_owned();
        let lines = memchr::memchr_iter(b'\n', text.as_bytes()).count();
        self.line = self.line.saturating_add(crate::lint::line_number(lines));
        self.at = (self.at + end + 1).min(self.text.len());
        word.text.push_str(&text);
    }

    fn double_quotes(&mut self, word: &mut Word) {
        while let Some(byte) = self.peek() {
            match byte {
                b'"' => {
                    self.at += 1;
                    return;
                }
                b'\\'
                    if self.rest().len() > 1
                        && b"$`\"\\\n".contains(&self.text.as_bytes()[self.at + 1]) =>
                {
                    self.escape(word);
                }
                b'$' | b'`' => self.dollar(word),
                _ => self.plain(word),
            }
        }
    }

    /// `$NAME`, `${NAME:-x}`, `$(command)`, a backquoted command. All stay in the word as written.
    fn dollar(&mut self, word: &mut Word) {
        word.dynamic = true;
        let from = self.at;
        let rest = self.rest();
        if self.depth >= DEEPEST {
            self.plain(word);
            return;
        }
        if rest.starts_with("$(") {
            self.at += 2;
            self.nested(b')');
        } else if rest.starts_with("${") {
            self.at += 2;
            while let Some(byte) = self.peek() {
                self.bump();
                if byte == b'}' {
                    break;
                }
            }
        } else if rest.starts_with('`') {
            self.at += 1;
            self.nested(b'`');
        } else {
            self.at += 1;
        }
        // Only what is short is kept: the commands of a long substitution were read on their own.
        let end = (from..=self.at.min(self.text.len()))
            .rev()
            .find(|&end| self.text.is_char_boundary(end));
        let written = &self.text[from..end.unwrap_or(from)];
        word.text.push_str(if written.len() <= 200 { written } else { "$()" });
    }
}

fn end_command(pipeline: &mut Pipeline, command: &mut Command) {
    let command = std::mem::take(command);
    if !command.words.is_empty() || command.heredoc {
        pipeline.commands.push(command);
    }
}

/// Whether the command is an open `[[`, in which `<` compares.
fn in_test(command: &Command) -> bool {
    let reserved = ["if", "elif", "while", "until", "!", "then", "do", "else"];
    let first = command.words.iter().find(|word| !reserved.contains(&word.text.as_str()));
    first.is_some_and(|word| word.text == "[[")
        && command.words.last().is_some_and(|word| word.text != "]]")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn commands(text: &str) -> Vec<Vec<String>> {
        let script = read(text, 1);
        script
            .pipelines
            .iter()
            .flat_map(|pipeline| &pipeline.commands)
            .map(|command| command.words.iter().map(|word| word.text.clone()).collect())
            .collect()
    }

    #[test]
    fn words_lose_their_quotes() {
        assert_eq!(commands("a 'b c' \"d $e\" f\\ g # h\n"), [["a", "b c", "d $e", "f g"]]);
        assert_eq!(
            commands("a \\\n  b; c | d && e"),
            vec![vec!["a", "b"], vec!["c"], vec!["d"], vec!["e"]]
        );
        assert_eq!(commands("x 2>&1 > out.txt"), [["x"]]);
    }

    #[test]
    fn substitutions_are_commands_too() {
        let found = commands("A=$(b \"$(c d)\") e");
        assert_eq!(
            found,
            vec![vec!["c", "d"], vec!["b", "$(c d)"], vec!["A=$(b \"$(c d)\")", "e"]]
        );
        assert_eq!(
            commands("[[ $A < 12.8 ]] && b"),
            vec![vec!["[[", "$A", "<", "12.8", "]]"], vec!["b"]]
        );
    }

    #[test]
    fn a_here_document_belongs_to_its_pipeline() {
        let script = read("cat <<'EOF' | python3\nx = 1\nEOF\nnext\n", 1);
        assert_eq!(script.pipelines.len(), 2);
        assert_eq!(script.pipelines[0].heredocs, [("x = 1\n".to_owned(), 2)]);
        assert_eq!(script.pipelines[1].commands[0].words[0].line, 4);
    }
}
