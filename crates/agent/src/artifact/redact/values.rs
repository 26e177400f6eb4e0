//! Where the value of a name ends.

use std::ops::Range;

use super::keys::KEY_LINES_MAX;

/// The length of a value. `kept` is its name and the separator.
pub(super) fn value_len(kept: &str, value: &str) -> usize {
    let depth = slashes(value.bytes());
    let quoted = &value[depth..];
    if let Some(quote) = quoted.chars().next().filter(|it| is_quote(*it)) {
        let text = &quoted[1..];
        let len = closing(text, quote, depth)
            .map_or(text.len(), |it| if it.len() > depth { it.end } else { it.start });
        return depth + 1 + len;
    }
    // A list is redacted as a whole; one without an end, up to the end of the line.
    let mut open = 0_usize;
    let list_end = value.find(|it: char| {
        open += usize::from("[{".contains(it));
        open -= usize::from("]}".contains(it)).min(open);
        open == 0
    });
    let Some(from) = list_end else { return value.len() };
    // A quoted name means JSON, and the value is a number or a literal.
    let is_json = kept.contains(is_quote);
    let end = value[from..].char_indices().find(|&(at, it)| {
        it.is_whitespace()
            || it == '\0'
            || is_quote(it) && !goes_on(&value[from + at + 1..])
            || is_json && at > 0 && ",}]".contains(it)
    });
    let end = end.map_or(value.len(), |(at, _)| from + at);
    value[..end].trim_end_matches([',', ';', '\\']).len()
}

/// The length of a header's value, which may contain spaces and quotes.
pub(super) fn header_len(before: &str, kept: &str, value: &str) -> usize {
    let name = |it: char| it.is_ascii_alphanumeric() || "-_".contains(it);
    let outside = before.trim_end_matches(name);
    let (quote, depth) = match outside.chars().next_back() {
        Some(quote) if is_quote(quote) => (quote, slashes(outside.bytes().rev().skip(1))),
        _ if before.starts_with('{') => ('"', 0),
        _ => return value.len(),
    };
    // The name has quotes of its own.
    if kept.contains(quote) && value.trim_start_matches('\\').starts_with([quote, '[', '{']) {
        return value_len(kept, value);
    }
    closing(value, quote, depth).map_or(value.len(), |it| it.start)
}

/// The closing quote of a string, with its backslashes. A quote with more backslashes than the
/// opening one belongs to the text, as does one within a word.
fn closing(text: &str, quote: char, depth: usize) -> Option<Range<usize>> {
    text.match_indices(quote).find_map(|(at, _)| {
        let slashes = slashes(text[..at].bytes().rev());
        let closes = slashes <= depth && !goes_on(&text[at + 1..]);
        closes.then_some(at - slashes..at + 1)
    })
}

fn is_quote(it: char) -> bool {
    it == '"' || it == '\''
}

/// Whether a word continues after a quote. `'\''` is such a quote in a shell.
fn goes_on(after: &str) -> bool {
    after.starts_with(|it: char| it.is_alphanumeric()) || after.starts_with(r"\''")
}

fn slashes(bytes: impl Iterator<Item = u8>) -> usize {
    bytes.take_while(|it| *it == b'\\').count()
}

/// The length of the lines after `password: |`, which in YAML are the value: those with deeper
/// indentation.
pub(super) fn block_len(line: &str, rest: &str) -> usize {
    let start = line.trim_end().trim_end_matches(['+', '-']).strip_suffix(['|', '>']);
    if !start.is_some_and(|it| it.trim_end().ends_with(':')) {
        return 0;
    }
    let indent = |it: &str| it.len() - it.trim_start().len();
    let lines = rest.split_inclusive('\n').take(KEY_LINES_MAX);
    lines.take_while(|it| indent(it) > indent(line)).map(str::len).sum()
}
