//! Rust source as tokens: enough to see which method is called on what and with which literals.

/// A token and its line.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Token {
    pub(super) kind: Kind,
    pub(super) line: usize,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Kind {
    Ident(String),
    /// The content of a string literal, as it is written.
    Text(String),
    Punct(char),
    /// A number, a character or a lifetime.
    Other,
}

impl Token {
    pub(super) fn ident(&self) -> Option<&str> {
        match &self.kind {
            Kind::Ident(name) => Some(name),
            _ => None,
        }
    }

    pub(super) fn is(&self, punct: char) -> bool {
        self.kind == Kind::Punct(punct)
    }
}

pub(super) fn tokens(source: &str) -> Vec<Token> {
    let letters: Vec<char> = source.chars().collect();
    let mut tokens = Vec::new();
    let (mut at, mut line) = (0, 1);
    while at < letters.len() {
        let (kind, end) = next(&letters, at);
        if let Some(kind) = kind {
            tokens.push(Token { kind, line });
        }
        line += letters[at..end].iter().filter(|letter| **letter == '\n').count();
        at = end;
    }
    tokens
}

/// The token that begins at a place, none of blanks and comments, and where it ends.
fn next(letters: &[char], at: usize) -> (Option<Kind>, usize) {
    let is = |place: usize, letter: char| letters.get(place) == Some(&letter);
    let letter = letters[at];
    if letter == '/' && is(at + 1, '/') {
        return (None, until(letters, at, |it| it == '\n'));
    }
    if letter == '/' && is(at + 1, '*') {
        return (None, block_comment(letters, at));
    }
    if letter.is_whitespace() {
        return (None, at + 1);
    }
    if letter == '"' {
        return text(letters, at, 0, false);
    }
    if letter.is_alphabetic() || letter == '_' {
        let end = until(letters, at, |it| !(it.is_alphanumeric() || it == '_'));
        let word: String = letters[at..end].iter().collect();
        let hashes = letters[end..].iter().take_while(|it| **it == '#').count();
        let is_raw = matches!(word.as_str(), "r" | "br" | "cr");
        if is(end + hashes, '"') && (is_raw || (hashes == 0 && matches!(word.as_str(), "b" | "c")))
        {
            return text(letters, end + hashes, hashes, is_raw);
        }
        return (Some(Kind::Ident(word)), end);
    }
    if letter == '\'' {
        // `'a'` and `'\n'` are characters, `'a` is a lifetime.
        if is(at + 1, '\\') {
            return (Some(Kind::Other), until(letters, at + 3, |it| it == '\'') + 1);
        }
        return (Some(Kind::Other), if is(at + 2, '\'') { at + 3 } else { at + 1 });
    }
    if letter.is_ascii_digit() {
        return (Some(Kind::Other), until(letters, at, |it| !(it.is_alphanumeric() || it == '_')));
    }
    (Some(Kind::Punct(letter)), at + 1)
}

fn until(letters: &[char], from: usize, ends: impl Fn(char) -> bool) -> usize {
    let rest = letters.get(from..).unwrap_or_default();
    rest.iter().position(|letter| ends(*letter)).map_or(letters.len(), |place| from + place)
}

fn block_comment(letters: &[char], from: usize) -> usize {
    let (mut at, mut depth) = (from, 0);
    while at < letters.len() {
        match letters.get(at..at + 2) {
            Some(['/', '*']) => (at, depth) = (at + 2, depth + 1),
            Some(['*', '/']) => (at, depth) = (at + 2, depth - 1),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at.min(letters.len())
}

/// A string literal from its quotation mark on.
fn text(letters: &[char], quote: usize, hashes: usize, is_raw: bool) -> (Option<Kind>, usize) {
    let mut at = quote + 1;
    while at < letters.len() {
        let closes = letters[at] == '"'
            && letters[at + 1..].iter().take(hashes).filter(|it| **it == '#').count() == hashes;
        if closes {
            break;
        }
        at += if letters[at] == '\\' && !is_raw { 2 } else { 1 };
    }
    let end = at.min(letters.len());
    let content = letters[quote + 1..end].iter().collect();
    (Some(Kind::Text(content)), (end + 1 + hashes).min(letters.len()))
}

/// The place behind the bracket that closes the one at `open`; `open` itself where none is.
pub(super) fn closing(tokens: &[Token], open: usize) -> usize {
    let mut depth = 0_i32;
    for (place, token) in tokens.iter().enumerate().skip(open) {
        depth += match token.kind {
            Kind::Punct('(' | '[' | '{') => 1,
            Kind::Punct(')' | ']' | '}') => -1,
            _ => 0,
        };
        if depth <= 0 {
            return if place == open { open } else { place + 1 };
        }
    }
    tokens.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_comments_and_lifetimes_are_told_apart() {
        let source = r##"
            // "not a text"
            fn f<'a>(c: &'a str) { /* "nor /* this */" */ c == 'x' && c == '\'' && b"\"q\"" }
            r#"raw "quoted" text"#; x.y("a \" b"); 1.5e3
        "##;
        let tokens = tokens(source);
        let texts: Vec<&str> = tokens
            .iter()
            .filter_map(|it| match &it.kind {
                Kind::Text(text) => Some(text.as_str()),
                _ => None,
            })
            .collect();
        assert_eq!(texts, [r#"\"q\""#, r#"raw "quoted" text"#, r#"a \" b"#]);
        let last = tokens.iter().rfind(|it| it.ident() == Some("y")).unwrap();
        assert_eq!(last.line, 4);
    }
}
