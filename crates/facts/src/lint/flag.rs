//! Checks flags such as `--xla_gpu_autotune_level=4`. A program that reads these flags aborts if it
//! does not know a flag.

use super::linter::{Linter, MessageArgs};
use super::{line_number, step_count};

/// Whether a text is the whole value of a setting, or only its beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TextEnd {
    /// A whole value.
    Closed,
    /// Only the beginning of a value. More text may follow at run time, so the last word may be
    /// incomplete.
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

/// Returns the name of the flag at `at`. `None` if there is no flag, or if only the beginning of
/// its name is known.
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
