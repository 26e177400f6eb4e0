//! Files of `NAME=value` lines and systemd units.

use super::judge::{Act, Judge};
use super::{line_number, shell};
use crate::setting::Place;

/// Reads a file whose first line is `first_line`.
pub(super) fn scan(judge: &mut Judge<'_>, text: &str, first_line: u32) {
    for (at, line) in text.lines().enumerate() {
        let number = first_line.saturating_add(line_number(at));
        let line = line.trim();
        if line.starts_with(['#', ';']) {
            judge.comment(number, line);
            continue;
        }
        let line = line.strip_prefix("export ").unwrap_or(line);
        match line.split_once('=') {
            Some(("Environment", words)) => {
                for (word, _, _) in shell::words(words, number) {
                    pair(judge, &word, number);
                }
            }
            Some(("ExecStart" | "ExecStartPre" | "ExecStartPost", command)) => {
                let command = command.trim_start_matches(['-', '@', '+', '!', ':']);
                super::scan(judge, super::Language::Shell, command, number);
            }
            _ => pair(judge, line, number),
        }
    }
}

fn pair(judge: &mut Judge<'_>, line: &str, number: u32) {
    let Some((name, value)) = line.split_once('=') else { return };
    let name = name.trim();
    if !shell::is_variable(name) {
        return;
    }
    let value = value.trim();
    // A comment may follow a value only after a blank.
    let value = value.split(" #").next().unwrap_or(value).trim();
    let value = value.trim_matches(['"', '\'']);
    let value = (!value.contains('$')).then_some(value);
    judge.variable(Place::EnvFile, number, name, value, Act::Set);
}
