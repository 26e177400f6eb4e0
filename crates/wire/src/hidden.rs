//! Escapes invisible and control characters: control codes, bidirectional overrides and zero-width
//! characters. Texts from nodes and people may contain them, but a terminal, a table or a log line
//! must not interpret them.

use std::borrow::Cow;
use std::fmt::Write;

/// Whether a character does not display as itself.
pub fn is_hidden(letter: char) -> bool {
    letter.is_control()
        || matches!(
            letter,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{feff}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}'
        )
}

/// The same set of characters, as part of a character class in a regular expression.
pub(crate) const HIDDEN_CLASS: &str = "\\u0000-\\u001f\\u007f-\\u009f\\u00ad\\u061c\\u180e\\ufeff\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\ufff9-\\ufffb\u{e0000}-\u{e007f}";

/// Escapes hidden characters as JSON does, such as `\u202e` or `\n`. If the text is JSON, its value
/// stays the same.
pub fn escaped(text: &str) -> Cow<'_, str> {
    escaped_but(text, |_| false)
}

/// Like [`escaped`], but keeps the characters that the caller intends.
pub fn escaped_but(text: &str, is_intended: impl Fn(char) -> bool) -> Cow<'_, str> {
    let must_escape = |letter: char| is_hidden(letter) && !is_intended(letter);
    if !text.contains(must_escape) {
        return Cow::Borrowed(text);
    }
    let mut clean = String::with_capacity(text.len() + 16);
    for letter in text.chars() {
        match letter {
            letter if !must_escape(letter) => clean.push(letter),
            '\n' => clean.push_str("\\n"),
            '\r' => clean.push_str("\\r"),
            '\t' => clean.push_str("\\t"),
            letter => {
                for unit in letter.encode_utf16(&mut [0; 2]) {
                    // Writing to a string cannot fail.
                    let _ = write!(clean, "\\u{unit:04x}");
                }
            }
        }
    }
    Cow::Owned(clean)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_characters_are_escaped_and_others_kept() {
        for plain in ["", "NVIDIA H100 80GB HBM3", "grün 漢字 ▁█ 😀", "C:\\u"] {
            assert!(matches!(escaped(plain), Cow::Borrowed(text) if text == plain), "{plain}");
        }
        assert_eq!(
            escaped("a\u{202e}b\x1b[31mc\u{9b}d\n\t\u{e0041}"),
            "a\\u202eb\\u001b[31mc\\u009bd\\n\\t\\udb40\\udc41"
        );
        assert_eq!(escaped_but("a\n\u{200b}", |letter| letter == '\n'), "a\n\\u200b");
        let json = serde_json::to_string("\u{202e}\u{e0041}\u{7f}").unwrap();
        let read: String = serde_json::from_str(&escaped(&json)).unwrap();
        assert_eq!(read, "\u{202e}\u{e0041}\u{7f}", "the JSON value is unchanged");
    }
}
