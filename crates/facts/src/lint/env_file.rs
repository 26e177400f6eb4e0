//! Files of `NAME=value` lines and systemd units.

use super::linter::{Access, Linter};
use super::{line_number, shell};
use crate::setting::SettingSource;

/// Scans a file that starts at line `first_line`.
pub(super) fn scan(linter: &mut Linter<'_>, text: &str, first_line: u32) {
    for (at, line) in text.lines().enumerate() {
        let number = first_line.saturating_add(line_number(at));
        let line = line.trim();
        if line.starts_with(['#', ';']) {
            linter.comment(number, line);
            continue;
        }
        let line = line.strip_prefix("export ").unwrap_or(line);
        match line.split_once('=') {
            Some(("Environment", words)) => {
                for (word, _, _) in shell::words(words, number) {
                    pair(linter, &word, number);
                }
            }
            Some(("ExecStart" | "ExecStartPre" | "ExecStartPost", command)) => {
                let command = command.trim_start_matches(['-', '@', '+', '!', ':']);
                super::scan(linter, super::Language::Shell, command, number);
            }
            _ => pair(linter, line, number),
        }
    }
}

fn pair(linter: &mut Linter<'_>, line: &str, number: u32) {
    let Some((name, value)) = line.split_once('=') else { return };
    let name = name.trim();
    if !shell::is_variable(name) {
        return;
    }
    let value = value.trim();
    // A trailing comment needs a preceding blank.
    let value = value.split(" #").next().unwrap_or(value).trim();
    let value = value.trim_matches(['"', '\'']);
    if value.contains('$') {
        linter.partial_value(SettingSource::EnvFile, number, name, value);
    }
    let value = (!value.contains('$')).then_some(value);
    linter.variable(SettingSource::EnvFile, number, name, value, Access::Set);
}
