//! Parses one line of YAML: indent, key, value and comment.

/// A line, parsed without context.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct YamlLine<'t> {
    /// Column of the first `-`, if the line starts a list item.
    pub(super) dash: Option<usize>,
    /// Column of the key or value.
    pub(super) column: usize,
    pub(super) key: Option<&'t str>,
    /// Text after the key or dash, without the comment.
    pub(super) value: &'t str,
    pub(super) comment: Option<&'t str>,
}

impl<'t> YamlLine<'t> {
    pub(super) fn parse(text: &'t str) -> Self {
        let (content, comment) = split_comment(text);
        let mut rest = content.trim_end();
        let mut column = indent(rest);
        rest = &rest[column..];
        let mut dash = None;
        while let Some(after) = rest.strip_prefix('-')
            && (after.is_empty() || after.starts_with(' '))
        {
            dash = dash.or(Some(column));
            let blanks = indent(after);
            column += 1 + blanks;
            rest = &after[blanks..];
        }
        let (key, value) = split_key(rest);
        Self { dash, column, key, value, comment }
    }
}

/// Number of leading blanks.
pub(super) fn indent(text: &str) -> usize {
    text.len() - text.trim_start_matches(' ').len()
}

/// Splits off a comment: `#` at the start or after a blank, outside quotes.
fn split_comment(text: &str) -> (&str, Option<&str>) {
    let bytes = text.as_bytes();
    let mut quote: Option<u8> = None;
    for (at, &byte) in bytes.iter().enumerate() {
        let begins = at == 0 || matches!(bytes[at - 1], b' ' | b'\t' | b'[' | b'{' | b',' | b':');
        match (quote, byte) {
            (Some(open), _) if byte == open => quote = None,
            (None, b'"' | b'\'') if begins => quote = Some(byte),
            (None, b'#') if at == 0 || matches!(bytes[at - 1], b' ' | b'\t') => {
                return (&text[..at], Some(text[at..].trim_end()));
            }
            _ => {}
        }
    }
    (text, None)
}

/// `key: value`, `"key": value`, `key:`
fn split_key(rest: &str) -> (Option<&str>, &str) {
    if let Some(quote) = rest.chars().next().filter(|c| matches!(c, '"' | '\'')) {
        let Some(close) = rest[1..].find(quote) else { return (None, rest) };
        let after = rest[close + 2..].trim_start();
        return match after.strip_prefix(':') {
            Some(value) => (Some(&rest[1..=close]), value.trim()),
            None => (None, rest),
        };
    }
    if rest.starts_with(['{', '[', '|', '>']) {
        return (None, rest);
    }
    match rest.split_once(": ") {
        Some((key, value)) if !key.contains(' ') => (Some(key), value.trim()),
        None if rest.ends_with(':') && !rest.contains(' ') => (Some(&rest[..rest.len() - 1]), ""),
        _ => (None, rest),
    }
}

/// A scalar without quotes, anchor and tag.
pub(super) fn scalar(text: &str) -> String {
    let mut text = text.trim();
    while text.starts_with(['&', '!']) {
        text = text.split_once(' ').map_or("", |(_, rest)| rest.trim_start());
    }
    if let Some(inner) = text.strip_prefix('"') {
        let inner = inner.strip_suffix('"').unwrap_or(inner);
        return inner.replace("\\n", "\n").replace("\\\"", "\"").replace("\\\\", "\\");
    }
    if let Some(inner) = text.strip_prefix('\'') {
        return inner.strip_suffix('\'').unwrap_or(inner).replace("''", "'");
    }
    text.to_owned()
}

/// The items of `[a, "b, c", d]` or `{A: b}`, as written.
pub(super) fn flow_items(text: &str) -> Vec<&str> {
    let inner = text.trim().strip_prefix(['[', '{']).unwrap_or(text);
    let inner = inner.trim_end().strip_suffix([']', '}']).unwrap_or(inner);
    let mut items = Vec::new();
    let (mut from, mut quote, mut depth) = (0, None, 0_u32);
    for (at, byte) in inner.bytes().enumerate() {
        match (quote, byte) {
            (Some(open), _) => quote = Some(open).filter(|open| *open != byte),
            (None, b'"' | b'\'') => quote = Some(byte),
            (None, b'[' | b'{') => depth += 1,
            (None, b']' | b'}') => depth = depth.saturating_sub(1),
            (None, b',') if depth == 0 => {
                items.push(inner[from..at].trim());
                from = at + 1;
            }
            _ => {}
        }
    }
    items.push(inner[from..].trim());
    items.retain(|item| !item.is_empty());
    items
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_key_value_and_comment() {
        let line = YamlLine::parse("  - name: \"NCCL_DEBUG\" # why");
        assert_eq!((line.dash, line.column, line.key), (Some(2), 4, Some("name")));
        assert_eq!((line.value, line.comment), ("\"NCCL_DEBUG\"", Some("# why")));
        let line = YamlLine::parse("- NCCL_DEBUG=INFO");
        assert_eq!((line.key, line.value), (None, "NCCL_DEBUG=INFO"));
        assert_eq!(YamlLine::parse("image: a#b").value, "a#b");
        assert_eq!(YamlLine::parse("env:").key, Some("env"));
        assert_eq!(scalar("'it''s'"), "it's");
        assert_eq!(flow_items("[a, \"b, c\", {d: e}]"), ["a", "\"b, c\"", "{d: e}"]);
    }
}
