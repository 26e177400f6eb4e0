//! A minimal Rust lexer: enough to see which method is called on what and with which literals.

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Token {
    pub(super) kind: TokenKind,
    pub(super) line: usize,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum TokenKind {
    Ident(String),
    /// Content of a string literal, with escapes as written.
    Text(String),
    Punct(char),
    /// A number, a character or a lifetime.
    Other,
}

impl Token {
    pub(super) fn ident(&self) -> Option<&str> {
        match &self.kind {
            TokenKind::Ident(name) => Some(name),
            _ => None,
        }
    }

    pub(super) fn is(&self, punct: char) -> bool {
        self.kind == TokenKind::Punct(punct)
    }
}

pub(super) fn tokens(source: &str) -> Vec<Token> {
    let chars: Vec<char> = source.chars().collect();
    let mut tokens = Vec::new();
    let (mut at, mut line) = (0, 1);
    while at < chars.len() {
        let (kind, end) = next(&chars, at);
        if let Some(kind) = kind {
            tokens.push(Token { kind, line });
        }
        line += chars[at..end].iter().filter(|ch| **ch == '\n').count();
        at = end;
    }
    tokens
}

/// The token at `at`, or `None` for whitespace and comments, and the index after it.
fn next(chars: &[char], at: usize) -> (Option<TokenKind>, usize) {
    let is = |index: usize, ch: char| chars.get(index) == Some(&ch);
    let ch = chars[at];
    if ch == '/' && is(at + 1, '/') {
        return (None, until(chars, at, |ch| ch == '\n'));
    }
    if ch == '/' && is(at + 1, '*') {
        return (None, block_comment(chars, at));
    }
    if ch.is_whitespace() {
        return (None, at + 1);
    }
    if ch == '"' {
        return text(chars, at, 0, false);
    }
    if ch.is_alphabetic() || ch == '_' {
        let end = until(chars, at, |ch| !(ch.is_alphanumeric() || ch == '_'));
        let word: String = chars[at..end].iter().collect();
        let hashes = chars[end..].iter().take_while(|ch| **ch == '#').count();
        let is_raw = matches!(word.as_str(), "r" | "br" | "cr");
        if is(end + hashes, '"') && (is_raw || (hashes == 0 && matches!(word.as_str(), "b" | "c")))
        {
            return text(chars, end + hashes, hashes, is_raw);
        }
        return (Some(TokenKind::Ident(word)), end);
    }
    if ch == '\'' {
        // `'a'` and `'\n'` are characters, `'a` is a lifetime.
        if is(at + 1, '\\') {
            return (Some(TokenKind::Other), until(chars, at + 3, |ch| ch == '\'') + 1);
        }
        return (Some(TokenKind::Other), if is(at + 2, '\'') { at + 3 } else { at + 1 });
    }
    if ch.is_ascii_digit() {
        return (
            Some(TokenKind::Other),
            until(chars, at, |ch| !(ch.is_alphanumeric() || ch == '_')),
        );
    }
    (Some(TokenKind::Punct(ch)), at + 1)
}

fn until(chars: &[char], from: usize, ends: impl Fn(char) -> bool) -> usize {
    let rest = chars.get(from..).unwrap_or_default();
    rest.iter().position(|ch| ends(*ch)).map_or(chars.len(), |index| from + index)
}

fn block_comment(chars: &[char], from: usize) -> usize {
    let (mut at, mut depth) = (from, 0);
    while at < chars.len() {
        match chars.get(at..at + 2) {
            Some(['/', '*']) => (at, depth) = (at + 2, depth + 1),
            Some(['*', '/']) => (at, depth) = (at + 2, depth - 1),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at.min(chars.len())
}

/// A string literal that starts at its opening quote.
fn text(chars: &[char], quote: usize, hashes: usize, is_raw: bool) -> (Option<TokenKind>, usize) {
    let mut at = quote + 1;
    while at < chars.len() {
        let closes = chars[at] == '"'
            && chars[at + 1..].iter().take(hashes).filter(|ch| **ch == '#').count() == hashes;
        if closes {
            break;
        }
        at += if chars[at] == '\\' && !is_raw { 2 } else { 1 };
    }
    let end = at.min(chars.len());
    let content = chars[quote + 1..end].iter().collect();
    (Some(TokenKind::Text(content)), (end + 1 + hashes).min(chars.len()))
}

/// The index after the bracket that closes the bracket at `open`, or `open` if no bracket is there.
pub(super) fn group_end(tokens: &[Token], open: usize) -> usize {
    let mut depth = 0_i32;
    for (index, token) in tokens.iter().enumerate().skip(open) {
        depth += match token.kind {
            TokenKind::Punct('(' | '[' | '{') => 1,
            TokenKind::Punct(')' | ']' | '}') => -1,
            _ => 0,
        };
        if depth <= 0 {
            return if index == open { open } else { index + 1 };
        }
    }
    tokens.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lexer_separates_literals_comments_and_lifetimes() {
        let source = r##"
            // "not a text"
            fn f<'a>(c: &'a str) { /* "nor /* this */" */ c == 'x' && c == '\'' && b"\"q\"" }
            r#"raw "quoted" text"#; x.y("a \" b"); 1.5e3
        "##;
        let tokens = tokens(source);
        let texts: Vec<&str> = tokens
            .iter()
            .filter_map(|token| match &token.kind {
                TokenKind::Text(text) => Some(text.as_str()),
                _ => None,
            })
            .collect();
        assert_eq!(texts, [r#"\"q\""#, r#"raw "quoted" text"#, r#"a \" b"#]);
        let last = tokens.iter().rfind(|token| token.ident() == Some("y")).unwrap();
        assert_eq!(last.line, 4);
    }
}
