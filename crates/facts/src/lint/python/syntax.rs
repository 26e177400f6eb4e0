//! Detects text that is not Python, as far as possible without a grammar. A text that was not
//! understood must not get a clean result.

use super::token::{Source, TokenKind, tokens};

/// Keywords, which may be adjacent to names, numbers and strings.
const KEYWORDS: [&str; 35] = [
    "False", "None", "True", "and", "as", "assert", "async", "await", "break", "class", "continue",
    "def", "del", "elif", "else", "except", "finally", "for", "from", "global", "if", "import",
    "in", "is", "lambda", "nonlocal", "not", "or", "pass", "raise", "return", "try", "while",
    "with", "yield",
];

/// Soft keywords and old statements: `match x:`, `type X = int`, `print "x"`.
const STATEMENTS: [&str; 6] = ["match", "case", "type", "print", "exec", "lazy"];

/// Line and description of the first syntax error. `None` does not mean that Python would accept
/// the text.
pub(in crate::lint) fn syntax_error(text: &str) -> Option<(u32, String)> {
    let source = tokens(text.strip_prefix('\u{feff}').unwrap_or(text), 1);
    if source.uncertain {
        return None;
    }
    let words = adjacent_words(&source);
    [source.syntax_error, words].into_iter().flatten().min_by_key(|(line, _)| *line)
}

/// Finds two adjacent words without an operator, as in prose.
fn adjacent_words(source: &Source<'_>) -> Option<(u32, String)> {
    for line in &source.lines {
        let words = &source.tokens[line.start..line.end];
        for (index, pair) in words.windows(2).enumerate() {
            let [one, other] = pair else { continue };
            let plain = |text: &str| !KEYWORDS.contains(&text);
            let starts_statement = index == 0 && STATEMENTS.contains(&one.text);
            let first = matches!(one.kind, TokenKind::Name) && plain(one.text) && !starts_statement;
            let second = match other.kind {
                TokenKind::Name => plain(other.text),
                TokenKind::Number | TokenKind::Text | TokenKind::Template => true,
                TokenKind::Operator => false,
            };
            if first && second {
                let other = if other.kind == TokenKind::Name { other.text } else { "a value" };
                return Some((
                    one.line,
                    format!("`{}` and {other} are adjacent without an operator", one.text),
                ));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::syntax_error;

    fn message(text: &str) -> Option<String> {
        syntax_error(text).map(|(line, what)| format!("{line}: {what}"))
    }

    #[test]
    fn reports_syntax_errors_with_line() {
        for (text, what) in [
            ("x = 1\ndef f(:\n    pass\n", "2: `(` is not closed"),
            ("x = (1]\n", "1: `]` has no matching open bracket"),
            ("x = 1)\n", "1: `)` has no matching open bracket"),
            ("x = 'a\ny = 2\n", "1: a string is not closed"),
            ("x = 1\ny = \"\"\"a\n", "2: a string is not closed"),
            ("pip install $NAME\n", "1: `$` is not Python syntax"),
            ("!pip install torch\n", "1: `!` is not Python syntax"),
            ("These are words.\n", "1: `These` and are are adjacent without an operator"),
            (
                "import os\nx = open \"file\"\n",
                "2: `open` and a value are adjacent without an operator",
            ),
        ] {
            assert_eq!(message(text).as_deref(), Some(what), "{text}");
        }
    }

    #[test]
    fn accepts_python_of_any_version() {
        for text in [
            "",
            "\u{feff}x = 1\n",
            "x = {'a': [1, (2, 3)]}\n",
            "match point:\n    case Point(x=0) if x != 1:\n        pass\n",
            "type Vector = list[float]\n",
            "print \"a\", b\n",
            "x = a if not b else c\nasync def f(): return await g()\n",
            "x = f\"{y['a']}\" f'{z!r:>{width}}'\n",
            "x = f\"{\n    y\n}\"\n",
            "x = 1_000j if a is not b else 0xFFl\n",
            "@decorator\ndef f(a, /, b, *, c: int = 1) -> None: ...\n",
            "x = 'a' \\\n    'b'\n",
            "del x; global y\n",
        ] {
            assert_eq!(message(text), None, "{text}");
        }
    }
}
