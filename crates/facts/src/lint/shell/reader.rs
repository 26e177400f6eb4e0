//! Parses shell text into pipelines of commands and words.
//!
//! Substitutions are parsed as separate commands. A substitution also stays in its word as written
//! and makes the word's value dynamic.

use super::script::{Pipeline, Script, ShellCommand};
use crate::lint::step_count;

/// Maximum nesting of substitutions; deeper substitutions are skipped.
const MAX_NESTING: u32 = 48;

/// A here-document whose body has not been read yet.
struct PendingHeredoc {
    delimiter: String,
    indented: bool,
}

pub(super) struct SourceReader<'t> {
    pub(super) text: &'t str,
    pub(super) at: usize,
    pub(super) line: u32,
    script: Script,
    depth: u32,
    /// Terminator of the current substitution.
    pub(super) closing: Option<u8>,
}

/// Parses a script that starts at line `first_line`.
pub(super) fn read(text: &str, first_line: u32) -> Script {
    let script = Script::default();
    let mut reader =
        SourceReader { text, at: 0, line: first_line, script, depth: 0, closing: None };
    while reader.at < text.len() {
        reader.list();
    }
    reader.script
}

impl SourceReader<'_> {
    pub(super) fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    pub(super) fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    /// Consumes one byte, counting lines.
    pub(super) fn bump(&mut self) {
        if self.peek() == Some(b'\n') {
            self.line = self.line.saturating_add(1);
        }
        self.at += 1;
    }

    /// Parses commands up to the terminator, which is not consumed.
    fn list(&mut self) {
        let mut pipeline = Pipeline::default();
        let mut command = ShellCommand::default();
        let mut pending: Vec<PendingHeredoc> = Vec::new();
        let mut brackets = 0_u32;
        while let Some(byte) = self.peek() {
            step_count::step();
            if self.closing == Some(byte) && brackets == 0 {
                break;
            }
            match byte {
                b'(' => brackets += 1,
                b')' => brackets = brackets.saturating_sub(1),
                _ => {}
            }
            match byte {
                b'\n' => {
                    pipeline.end_command(&mut command);
                    self.bump();
                    for heredoc in std::mem::take(&mut pending) {
                        let body = self.heredoc(&heredoc);
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
                    self.separator(2, &mut pipeline, &mut command);
                }
                b'|' => {
                    self.at += 1;
                    pipeline.end_command(&mut command);
                }
                b'&' if self.rest().starts_with("&>") => self.redirect(&mut command, &mut pending),
                b'&' | b';' | b'(' | b')' => self.separator(1, &mut pipeline, &mut command),
                b'<' | b'>' if !command.in_test() => self.redirect(&mut command, &mut pending),
                _ => self.push_word(&mut command),
            }
        }
        pipeline.end_command(&mut command);
        self.end_pipeline(&mut pipeline);
    }

    fn separator(&mut self, length: usize, pipeline: &mut Pipeline, command: &mut ShellCommand) {
        self.at += length;
        pipeline.end_command(command);
        // A here-document starts on the next line, so its pipeline stays open until then.
        if !pipeline.awaits_heredoc {
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

    fn push_word(&mut self, command: &mut ShellCommand) {
        let word = self.word();
        // Digits directly before a redirection are a file descriptor, not a word.
        let number = !word.quoted && word.text.bytes().all(|b| b.is_ascii_digit());
        if number && matches!(self.peek(), Some(b'<' | b'>')) && !word.text.is_empty() {
            return;
        }
        command.push(word);
    }

    /// `> file`, `2>&1`, `< file`, `<<END`, `<<< word`
    fn redirect(&mut self, command: &mut ShellCommand, pending: &mut Vec<PendingHeredoc>) {
        let operators =
            ["<<<", "<<-", "<<", "&>>", "&>", ">>", ">&", "<&", "<>", ">|", "<(", ">(", "<", ">"];
        let operator = operators.iter().find(|operator| self.rest().starts_with(**operator));
        let operator = operator.copied().unwrap_or("<");
        if matches!(operator, "<(" | ">(") {
            // A process substitution is a separate command.
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
                pending
                    .push(PendingHeredoc { delimiter: operand.text, indented: operator == "<<-" });
            }
            ">" | ">>" | ">|" => command.target = Some(operand.text),
            // Treat a here-string like an argument.
            "<<<" => command.push(operand),
            _ => {}
        }
    }

    fn heredoc(&mut self, heredoc: &PendingHeredoc) -> (String, u32) {
        let first_line = self.line;
        let from = self.at;
        loop {
            let rest = self.rest();
            if rest.is_empty() {
                return (self.text[from..].to_owned(), first_line);
            }
            let length = memchr::memchr(b'\n', rest.as_bytes()).map_or(rest.len(), |end| end + 1);
            let line = rest[..length].trim_end_matches(['\n', '\r']);
            let line = if heredoc.indented { line.trim_start_matches('\t') } else { line };
            let found = line == heredoc.delimiter;
            let end = self.at;
            self.line = self.line.saturating_add(u32::from(rest[..length].ends_with('\n')));
            self.at += length;
            if found {
                return (self.text[from..end].to_owned(), first_line);
            }
        }
    }

    /// Parses commands up to and including `closing`.
    pub(super) fn nested(&mut self, closing: u8) {
        if self.depth == MAX_NESTING {
            return self.skip_nested(closing);
        }
        let outside = self.closing.replace(closing);
        self.depth += 1;
        self.list();
        self.depth -= 1;
        self.closing = outside;
        if self.peek() == Some(closing) {
            self.at += 1;
        }
    }

    /// Skips everything up to and including `closing`, in linear time for any nesting.
    fn skip_nested(&mut self, closing: u8) {
        let mut brackets = 0_u32;
        while let Some(byte) = self.peek() {
            step_count::step();
            self.bump();
            match byte {
                _ if byte == closing && brackets == 0 => return,
                b'(' => brackets += 1,
                b')' => brackets = brackets.saturating_sub(1),
                _ => {}
            }
        }
    }
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
    fn removes_quotes_from_words() {
        assert_eq!(commands("a 'b c' \"d $e\" f\\ g # h\n"), [["a", "b c", "d $e", "f g"]]);
        assert_eq!(
            commands("a \\\n  b; c | d && e"),
            vec![vec!["a", "b"], vec!["c"], vec!["d"], vec!["e"]]
        );
        assert_eq!(commands("x 2>&1 > out.txt"), [["x"]]);
    }

    #[test]
    fn parses_substitutions_as_commands() {
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
    fn backquotes_are_terminated() {
        assert_eq!(commands("A=`b c` d\ne"), vec![vec!["b", "c"], vec!["A=`b c`", "d"], vec!["e"]]);
    }

    #[test]
    fn skips_deeply_nested_substitutions() {
        for open in ["$(", "<(", "x=$("] {
            let depth = 60;
            let text = format!("{}bad{}\nnext\n", open.repeat(depth), ")".repeat(depth));
            let found = commands(&text);
            assert!(!found.iter().flatten().any(|word| word == "bad"), "{open}: {found:?}");
            assert_eq!(found.last().unwrap(), &["next"], "{open}");
        }
    }

    #[test]
    fn here_document_belongs_to_its_pipeline() {
        let script = read("cat <<'EOF' | python3\nx = 1\nEOF\nnext\n", 1);
        assert_eq!(script.pipelines.len(), 2);
        assert_eq!(script.pipelines[0].heredocs, [("x = 1\n".to_owned(), 2)]);
        assert_eq!(script.pipelines[1].commands[0].words[0].line, 4);
    }
}
