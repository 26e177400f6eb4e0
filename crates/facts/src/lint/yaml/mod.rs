//! YAML: Kubernetes and compose manifests, CI workflows.
//!
//! Scanned line by line with a stack of parent keys. That is enough for environments and commands,
//! and tolerates templates (`{{ .Values.x }}`) that are not valid YAML.

mod line;

use super::linter::{Access, Linter};
use super::{Language, line_number, scan as scan_text, shell, step_count};
use crate::setting::SettingSource;
use line::{YamlLine, flow_items, indent, scalar};

/// Keys whose value is a command or its words.
const COMMANDS: [&str; 11] = [
    "command",
    "args",
    "run",
    "script",
    "entrypoint",
    "cmd",
    "before_script",
    "after_script",
    "setup",
    "commands",
    "test",
];

/// Scans a document that starts at line `first_line`.
pub(super) fn scan(linter: &mut Linter<'_>, text: &str, first_line: u32) {
    let mut reader =
        SourceReader { linter, parents: Vec::new(), entry: EnvEntry::default(), words: Vec::new() };
    let lines: Vec<&str> = text.lines().collect();
    let mut at = 0;
    while at < lines.len() {
        step_count::steps(lines[at].len());
        let number = first_line.saturating_add(line_number(at));
        let line = YamlLine::parse(lines[at]);
        at += 1;
        if let Some(comment) = line.comment {
            reader.linter.comment(number, comment);
        }
        if line.key.is_none() && line.value.is_empty() && line.dash.is_none() {
            continue;
        }
        reader.update_parents(&line);
        if is_block(line.value) {
            let base = if line.key.is_some() { line.column } else { line.dash.unwrap_or(0) };
            let end = block_end(&lines, at, base);
            let body = dedented(&lines[at..end]);
            reader.block(&line, &body, number.saturating_add(1));
            at = end;
        } else {
            reader.value(&line, number);
        }
    }
    reader.end_entry();
    reader.end_words();
}

/// Whether a key lists the resources of a container.
fn is_resource_list(key: &str) -> bool {
    matches!(key, "limits" | "requests")
}

/// `|`, `>-`, `|2+`
fn is_block(value: &str) -> bool {
    let mut letters = value.chars();
    matches!(letters.next(), Some('|' | '>')) && letters.all(|c| matches!(c, '+' | '-' | '0'..='9'))
}

fn block_end(lines: &[&str], from: usize, base: usize) -> usize {
    let inside = |line: &&str| line.trim().is_empty() || indent(line) > base;
    let count = lines[from..].iter().take_while(|line| inside(line)).count();
    step_count::steps(count);
    from + count
}

/// The lines without their common indentation.
fn dedented(lines: &[&str]) -> String {
    let filled = lines.iter().filter(|line| !line.trim().is_empty());
    let margin = filled.map(|line| indent(line)).min().unwrap_or(0);
    let mut text = String::new();
    for line in lines {
        text.push_str(line.get(margin..).unwrap_or_default());
        text.push('\n');
    }
    text
}

/// `- name: X` and its `value: Y`, in either order.
#[derive(Default)]
struct EnvEntry {
    column: usize,
    name: Option<(String, u32)>,
    value: Option<String>,
}

struct SourceReader<'j, 'f> {
    linter: &'j mut Linter<'f>,
    /// Parent keys of the current line with their columns.
    parents: Vec<(usize, String)>,
    entry: EnvEntry,
    /// Words of a command written as a list, with their lines.
    words: Vec<(String, u32)>,
}

impl SourceReader<'_, '_> {
    /// Updates the parent keys and closes finished entries.
    fn update_parents(&mut self, line: &YamlLine<'_>) {
        let left = line.dash.unwrap_or(line.column);
        while let Some((column, _)) = self.parents.last()
            // A list may have the same indentation as its key.
            && (*column > left || *column == left && line.dash.is_none())
        {
            self.parents.pop();
        }
        if line.dash.is_some() || line.column < self.entry.column {
            self.end_entry();
        }
        self.entry.column = line.column;
        let goes_on = line.dash.is_some() && line.key.is_none() && self.in_words();
        let more = line.key == Some("args") && !self.words.is_empty();
        if !goes_on && !more {
            self.end_words();
        }
        if let Some(key) = line.key {
            self.parents.push((line.column, key.to_owned()));
        }
    }

    fn parent(&self) -> &str {
        self.parents.last().map_or("", |(_, key)| key.as_str())
    }

    /// The parent of the line's key.
    fn grandparent(&self) -> Option<&str> {
        self.parents.iter().rev().nth(1).map(|(_, key)| key.as_str())
    }

    fn in_words(&self) -> bool {
        COMMANDS.contains(&self.parent())
    }

    /// Scans a block scalar: a script, or a file whose name is the key.
    fn block(&mut self, line: &YamlLine<'_>, body: &str, number: u32) {
        if line.key.is_none() && self.in_words() {
            self.words.push((body.to_owned(), number));
            return;
        }
        let by_key = self.parents.last().and_then(|(_, key)| Language::by_name(key));
        let command = line.key.is_some_and(|key| COMMANDS.contains(&key));
        let by_content = || {
            let detected = Language::by_content(body.as_bytes());
            detected.filter(|_| command || body.starts_with("#!"))
        };
        let as_shell = command.then_some(Language::Shell);
        if let Some(language) = by_key.or_else(by_content).or(as_shell) {
            // A command is a script even if it looks like a mapping.
            let language =
                if command && language == Language::Yaml { Language::Shell } else { language };
            scan_text(self.linter, language, body, number);
        }
    }

    fn value(&mut self, line: &YamlLine<'_>, number: u32) {
        let value = line.value;
        match line.key {
            Some(key) => {
                if value.is_empty() {
                    return;
                }
                if self.grandparent().is_some_and(is_resource_list) {
                    self.linter.resource(number, key, &scalar(value));
                }
                match key {
                    "name" => self.entry.name = Some((scalar(value), number)),
                    "value" => self.entry.value = Some(scalar(value)),
                    _ if COMMANDS.contains(&key) => self.command(value, number),
                    _ if value.starts_with('{') => self.flow_map(value, number),
                    _ if value.starts_with('[') => self.flow_list(value, number),
                    _ => self.variable(key, &scalar(value), number),
                }
            }
            None if value.starts_with('{') => self.flow_map(value, number),
            None => self.item(value, number),
        }
    }

    /// Handles a list item: a word of a command, or `NAME=value`.
    fn item(&mut self, value: &str, number: u32) {
        let text = scalar(value);
        if self.in_words() {
            self.words.push((text, number));
        } else if let Some((name, value)) = shell::assignment(&text) {
            self.variable(name, value, number);
        }
    }

    fn command(&mut self, value: &str, number: u32) {
        if value.starts_with('[') {
            let items = flow_items(value);
            self.words.extend(items.into_iter().map(|item| (scalar(item), number)));
        } else {
            scan_text(self.linter, Language::Shell, &scalar(value), number);
        }
    }

    /// `env: {A: b}`, `{name: A, value: b}`
    fn flow_map(&mut self, value: &str, number: u32) {
        let mut entry = EnvEntry::default();
        for item in flow_items(value) {
            let Some((key, value)) = item.split_once(':') else { continue };
            let (key, value) = (scalar(key), scalar(value));
            if is_resource_list(self.parent()) {
                self.linter.resource(number, &key, &value);
            }
            match key.as_str() {
                "name" => entry.name = Some((value, number)),
                "value" => entry.value = Some(value),
                _ => self.variable(&key, &value, number),
            }
        }
        if let (Some((name, line)), value) = (entry.name, entry.value) {
            self.set(&name, value.as_deref(), line);
        }
    }

    fn flow_list(&mut self, value: &str, number: u32) {
        for item in flow_items(value) {
            if item.starts_with('{') {
                self.flow_map(item, number);
            } else if let Some((name, value)) = shell::assignment(&scalar(item)) {
                self.variable(name, value, number);
            }
        }
    }

    /// In a manifest only upper-case names are environment variables.
    fn variable(&mut self, name: &str, value: &str, number: u32) {
        let capitals = !name.bytes().any(|b| b.is_ascii_lowercase());
        if shell::is_variable(name) && capitals {
            self.set(name, Some(value), number);
        }
    }

    fn set(&mut self, name: &str, value: Option<&str>, number: u32) {
        let is_dynamic = |value: &str| value.contains(['$', '{']);
        if let Some(text) = value.filter(|value| is_dynamic(value)) {
            self.linter.partial_value(SettingSource::Manifest, number, name, text);
        }
        let value = value.filter(|value| !is_dynamic(value));
        self.linter.variable(SettingSource::Manifest, number, name, value, Access::Set);
    }

    fn end_entry(&mut self) {
        let entry = std::mem::take(&mut self.entry);
        if let Some((name, line)) = entry.name
            && shell::is_variable(&name)
        {
            self.set(&name, entry.value.as_deref(), line);
        }
    }

    /// Scans a command written as a list as one shell line, keeping the line of each word.
    fn end_words(&mut self) {
        let words = std::mem::take(&mut self.words);
        let Some((_, first_line)) = words.first() else { return };
        let mut text = String::new();
        let mut line = *first_line;
        for (word, number) in &words {
            while line < *number {
                text.push_str("\\\n");
                line += 1;
            }
            text.push('\'');
            text.push_str(&word.replace('\'', "'\\''"));
            text.push_str("' ");
            line = line.saturating_add(shell::lines_before(word, word.len()));
        }
        scan_text(self.linter, Language::Shell, &text, *first_line);
        // In a CI job, each item of the list is a whole command and not one word. Items with a space
        // or a newline are therefore also scanned as scripts of their own.
        for (word, number) in words.iter().filter(|(word, _)| word.trim().contains([' ', '\n'])) {
            let python = Language::by_content(word.as_bytes()) == Some(Language::Python);
            let language = if python { Language::Python } else { Language::Shell };
            scan_text(self.linter, language, word, *number);
        }
    }
}
