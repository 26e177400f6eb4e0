//! Finds the end of a value.

use std::ops::Range;

use super::keys::KEY_LINES_MAX;

/// The length of a value. `name` is the name of the value, together with the separator after it.
pub(super) fn value_len(name: &str, value: &str) -> usize {
    let depth = slashes(value.bytes());
    let quoted = &value[depth..];
    if let Some(quote) = quoted.chars().next().filter(|letter| is_quote(*letter)) {
        let text = &quoted[1..];
        let len = closing(text, quote, depth)
            .map_or(text.len(), |quote| if quote.len() > depth { quote.end } else { quote.start });
        return depth + 1 + len;
    }
    // A list is redacted as a whole. If the list has no end, it is redacted up to the end of the
    // line.
    let mut open = 0_usize;
    let list_end = value.find(|letter: char| {
        open += usize::from("[{".contains(letter));
        open -= usize::from("]}".contains(letter)).min(open);
        open == 0
    });
    let Some(from) = list_end else { return value.len() };
    // If the name is quoted, the text is JSON, and this unquoted value is a number or a literal.
    let is_json = name.contains(is_quote);
    let end = value[from..].char_indices().find(|&(at, letter)| {
        letter.is_whitespace()
            || letter == '\0'
            || is_quote(letter) && !word_continues(&value[from + at + 1..])
            || is_json && at > 0 && ",}]".contains(letter)
    });
    let end = end.map_or(value.len(), |(at, _)| from + at);
    value[..end].trim_end_matches([',', ';', '\\']).len()
}

/// The length of a header's value, which may contain spaces and quotes.
pub(super) fn header_len(before: &str, name: &str, value: &str) -> usize {
    let is_name_char = |letter: char| letter.is_ascii_alphanumeric() || "-_".contains(letter);
    let outside = before.trim_end_matches(is_name_char);
    let (quote, depth) = match outside.chars().next_back() {
        Some(quote) if is_quote(quote) => (quote, slashes(outside.bytes().rev().skip(1))),
        _ if before.starts_with('{') => ('"', 0),
        _ => return value.len(),
    };
    // The name and the value are quoted separately, as in JSON.
    if name.contains(quote) && value.trim_start_matches('\\').starts_with([quote, '[', '{']) {
        return value_len(name, value);
    }
    closing(value, quote, depth).map_or(value.len(), |end| end.start)
}

/// The closing quote of a string, with its backslashes. A quote belongs to the text if it has more
/// backslashes than the opening quote, or if it is within a word.
fn closing(text: &str, quote: char, depth: usize) -> Option<Range<usize>> {
    text.match_indices(quote).find_map(|(at, _)| {
        let slashes = slashes(text[..at].bytes().rev());
        let closes = slashes <= depth && !word_continues(&text[at + 1..]);
        closes.then_some(at - slashes..at + 1)
    })
}

fn is_quote(letter: char) -> bool {
    letter == '"' || letter == '\''
}

/// `true` if a word continues after a quote. In a shell, it also continues after `'\''`.
fn word_continues(after: &str) -> bool {
    after.starts_with(|letter: char| letter.is_alphanumeric()) || after.starts_with(r"\''")
}

fn slashes(bytes: impl Iterator<Item = u8>) -> usize {
    bytes.take_while(|byte| *byte == b'\\').count()
}

/// The length of a value that follows `password: |` in YAML. The value consists of all lines with
/// deeper indentation.
pub(super) fn block_len(line: &str, rest: &str) -> usize {
    let start = line.trim_end().trim_end_matches(['+', '-']).strip_suffix(['|', '>']);
    if !start.is_some_and(|key| key.trim_end().ends_with(':')) {
        return 0;
    }
    let indent = |line: &str| line.len() - line.trim_start().len();
    let lines = rest.split_inclusive('\n').take(KEY_LINES_MAX);
    lines.take_while(|next| indent(next) > indent(line)).map(str::len).sum()
}
