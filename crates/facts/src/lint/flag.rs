//! Flags of programs that abort on an unknown one, such as `--xla_gpu_autotune_level=4`.

use super::linter::{Linter, MessageArgs};
use super::{line_number, step_count};

/// Whether a text is a whole value, or only its beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TextEnd {
    /// A whole value.
    Closed,
    /// The program may append more, even to the last word.
    Open,
}

/// Checks the flags in a text that starts at `line`.
pub(super) fn check_flags(linter: &mut Linter<'_>, line: u32, text: &str, end: TextEnd) {
    let facts = linter.facts;
    for list in &facts.flag_list {
        let (mut line, mut counted) = (line, 0);
        for (at, _) in text.match_indices(&list.prefix) {
            step_count::step();
            let Some(name) = flag_at(text, at, end) else { continue };
            let lines = memchr::memchr_iter(b'\n', &text.as_bytes()[counted..at]).count();
            line = line.saturating_add(line_number(lines));
            counted = at;
            if list.removed.iter().any(|removed| removed == name) {
                let args = MessageArgs { name, ..MessageArgs::default() };
                linter.report(&list.removed_verdict, line, args);
            } else if !list.names.iter().chain(&list.others).any(|known| known == name) {
                let near = linter.correction(&list.prefix, name, &list.names);
                let near = near.map_or("leave it out".to_owned(), |near| format!("`--{near}`"));
                linter.report(&list.unknown, line, MessageArgs { name, value: "", near: &near });
            }
        }
    }
}

/// The name of the flag whose name starts at `at`; `None` if it is no flag, or not known in full.
fn flag_at(text: &str, at: usize, end: TextEnd) -> Option<&str> {
    let before = text[..at].strip_suffix("--")?;
    if before.ends_with(|c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_')) {
        return None;
    }
    let rest = &text[at..];
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let length = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
    match rest[length..].chars().next() {
        None if end == TextEnd::Open => None,
        None | Some('=' | ' ' | '\t' | '\r' | '\n' | '"' | '\'' | '\\' | ',') => {
            Some(&rest[..length])
        }
        // The name goes on: `--xla_gpu_${name}`.
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_is_known_in_full() {
        let name = |text: &'static str, end| flag_at(text, text.find("xla_gpu_").unwrap(), end);
        assert_eq!(name("a --xla_gpu_x=1", TextEnd::Open), Some("xla_gpu_x"));
        assert_eq!(name("--xla_gpu_x", TextEnd::Closed), Some("xla_gpu_x"));
        assert_eq!(name("--xla_gpu_x ", TextEnd::Open), Some("xla_gpu_x"));
        assert_eq!(name("--xla_gpu_x", TextEnd::Open), None);
        assert_eq!(name("--xla_gpu_x${y}", TextEnd::Closed), None);
        assert_eq!(name("dump/xla_gpu_x ", TextEnd::Closed), None);
        assert_eq!(name("no--xla_gpu_x ", TextEnd::Closed), None);
    }
}
