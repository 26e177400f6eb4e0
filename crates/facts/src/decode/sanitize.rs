//! Removes terminal control sequences: log contents are untrusted.

use std::borrow::Cow;

/// Removes escape sequences and replaces other control characters with spaces.
pub(super) fn sanitize(line: Cow<'_, str>) -> Cow<'_, str> {
    if line.bytes().all(|byte| (b' '..0x7f).contains(&byte))
        || !line.chars().any(is_terminal_control)
    {
        return line;
    }
    let mut cleaned = String::with_capacity(line.len());
    let mut rest: &str = &line;
    while let Some(at) = rest.find(is_terminal_control) {
        cleaned.push_str(&rest[..at]);
        rest = &rest[at..];
        if let Some(length) = csi_length(rest) {
            rest = &rest[length..];
        } else {
            cleaned.push(' ');
            rest = rest.strip_prefix(is_terminal_control).unwrap_or("");
        }
    }
    cleaned.push_str(rest);
    Cow::Owned(cleaned)
}

/// Whether a character controls the terminal or changes the text direction.
fn is_terminal_control(letter: char) -> bool {
    letter.is_control() || matches!(letter, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Length of a CSI sequence at the start, as `dmesg --color=always` prints them: `ESC [`,
/// parameters, intermediate bytes and a final byte (ECMA-48, 5.4).
fn csi_length(text: &str) -> Option<usize> {
    let body = text.strip_prefix("\u{1b}[")?;
    let end = body.find(|letter: char| !matches!(letter, ' '..='?'))?;
    let last = body[end..].chars().next().filter(|letter| matches!(letter, '@'..='~'))?;
    Some("\u{1b}[".len() + end + last.len_utf8())
}

/// A piece of a line, sanitised and truncated for use in Farrier's messages.
pub(super) fn excerpt(text: &str) -> String {
    /// Longer than any unit or recovery action name.
    const LONGEST: usize = 48;
    text.chars()
        .take(LONGEST)
        .map(|letter| if is_terminal_control(letter) { '?' } else { letter })
        .collect()
}

/// A log line for display: at most `longest` characters, without terminal control characters.
pub fn printable(line: &[u8], longest: usize) -> String {
    let line = sanitize(String::from_utf8_lossy(line));
    match line.char_indices().nth(longest) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printable_truncates_lines() {
        assert_eq!(printable(b"Xid\x1b[0m 79\xff", 80), "Xid 79\u{fffd}");
        assert_eq!(printable("диск".as_bytes(), 3), "дис…");
    }

    #[test]
    fn removes_colours_and_keeps_text() {
        for (line, expected) in [
            ("NVRM: Xid (PCI:0000:17:00): 79, x", "NVRM: Xid (PCI:0000:17:00): 79, x"),
            (
                "\u{1b}[32m[  1.0] \u{1b}[0m\u{1b}[33mNVRM: \u{1b}[0m\u{1b}[1mXid",
                "[  1.0] NVRM: Xid",
            ),
            ("a\u{1b}[38;5;12 qb", "ab"),
            ("a\u{1b}]0;title\u{7}b", "a ]0;title b"),
            ("a\u{1b}[31", "a [31"),
            ("a\u{0}\u{9b}\tb", "a   b"),
            ("диск \u{202e}x", "диск  x"),
        ] {
            assert_eq!(sanitize(line.into()), expected, "{line:?}");
        }
    }
}
