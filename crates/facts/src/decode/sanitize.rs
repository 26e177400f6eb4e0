//! Takes out of a line what would steer a terminal: a log is written by others.

use std::borrow::Cow;

/// The line without escape sequences; every other control character becomes a space.
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

/// Whether a letter is a command to a terminal, or turns the direction of the text after it.
fn is_terminal_control(letter: char) -> bool {
    letter.is_control() || matches!(letter, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// How long a control sequence is that stands at the start, as `dmesg --color=always` prints them:
/// `ESC [`, parameters, intermediate bytes and a final byte (ECMA-48, 5.4).
fn csi_length(text: &str) -> Option<usize> {
    let body = text.strip_prefix("\u{1b}[")?;
    let end = body.find(|letter: char| !matches!(letter, ' '..='?'))?;
    let last = body[end..].chars().next().filter(|letter| matches!(letter, '@'..='~'))?;
    Some("\u{1b}[".len() + end + last.len_utf8())
}

/// A piece of a line as it can stand in a sentence of ours.
pub(super) fn excerpt(text: &str) -> String {
    /// Longer than any name of a unit or a recovery action.
    const LONGEST: usize = 48;
    text.chars()
        .take(LONGEST)
        .map(|letter| if is_terminal_control(letter) { '?' } else { letter })
        .collect()
}

/// A line of a log as it can be shown: at most `longest` letters, and none that is_terminal_control a terminal.
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
    fn a_line_is_shown_up_to_a_length() {
        assert_eq!(printable(b"Xid\x1b[0m 79\xff", 80), "Xid 79\u{fffd}");
        assert_eq!(printable("диск".as_bytes(), 3), "дис…");
    }

    #[test]
    fn colours_go_and_text_stays() {
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
