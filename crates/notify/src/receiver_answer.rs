//! What an error quotes of a receiver's answer. A receiver that repeats a secret may have escaped,
//! split or cut it, so that replacing the exact text does not hide it. Such an answer is withheld.

use std::collections::HashSet;

use crate::text;

/// Characters of an answer that an error shows.
pub(crate) const SHOWN_CHARS_MAX: usize = 200;

/// Letters and digits of a secret in sequence that an answer may not repeat.
const RUN_CHARS: usize = 8;

const WITHHELD: &str = "(the answer repeats a secret; withheld)";

/// Secrets in the form in which answers are searched for them.
#[derive(Default)]
pub(crate) struct AnswerSecrets(Vec<Vec<char>>);

impl AnswerSecrets {
    pub(crate) fn add(&mut self, secret: &str) {
        self.0.push(normalised(secret));
    }

    /// Adds what looks like a token in the path and query of a URL: parts that are long enough.
    pub(crate) fn add_url(&mut self, path_and_query: &str) {
        for part in path_and_query.split(['/', '?', '&', '=', ';']) {
            let part = normalised(part);
            if part.len() >= RUN_CHARS {
                self.0.push(part);
            }
        }
    }

    /// An answer in one short line, without control characters.
    pub(crate) fn shown(&self, answer: &str) -> String {
        if self.is_in(answer) {
            return WITHHELD.to_owned();
        }
        text::clean(answer, SHOWN_CHARS_MAX)
    }

    fn is_in(&self, answer: &str) -> bool {
        if self.0.is_empty() || answer.trim().is_empty() {
            return false;
        }
        let mut forms = vec![answer.to_owned()];
        // Escapes may be nested: JSON in JSON, or a URL in JSON.
        for _ in 0..3 {
            let last = forms.last().cloned().unwrap_or_default();
            forms.push(unescape(&last));
        }
        let forms: Vec<Vec<char>> = forms.iter().map(|form| normalised(form)).collect();
        self.0.iter().any(|secret| {
            // A secret without letters and digits cannot be found, so nothing is quoted.
            let run = secret.len().min(RUN_CHARS);
            if run < 2 {
                return true;
            }
            let reversed: Vec<char> = secret.iter().rev().copied().collect();
            let runs: HashSet<&[char]> = secret.windows(run).chain(reversed.windows(run)).collect();
            forms.iter().any(|form| form.windows(run).any(|window| runs.contains(window)))
        })
    }
}

/// The letters and digits of a text, in lower case.
fn normalised(text: &str) -> Vec<char> {
    text.chars().filter(|char| char.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

/// Replaces `%41`, `\u0041`, `\x41`, `=41` and `&#x41;` by `A`, once. What is no valid escape stays.
fn unescape(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let escapes = [("%", 2), ("=", 2), ("\\x", 2), ("\\u", 4)];
        let hexadecimal = escapes.iter().find_map(|(prefix, digits)| {
            let digits = rest.strip_prefix(prefix)?.get(..*digits)?;
            Some((u32::from_str_radix(digits, 16).ok()?, prefix.len() + digits.len()))
        });
        let (code, length) = hexadecimal.or_else(|| entity(rest)).unwrap_or((0, 0));
        match (length, char::from_u32(code)) {
            (0, _) | (_, None) => {
                bytes.extend_from_slice(first.encode_utf8(&mut [0; 4]).as_bytes());
                rest = &rest[first.len_utf8()..];
            }
            // A byte of UTF-8, of which several make a character.
            (3, Some(_)) if rest.starts_with('%') || rest.starts_with('=') => {
                bytes.extend(u8::try_from(code));
                rest = &rest[length..];
            }
            (_, Some(char)) => {
                bytes.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes());
                rest = &rest[length..];
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A numeric character reference of HTML: its code point and length.
fn entity(text: &str) -> Option<(u32, usize)> {
    let number = text.strip_prefix("&#")?;
    let (number, _) = number.get(..number.len().min(10)).unwrap_or(number).split_once(';')?;
    let code = match number.strip_prefix(['x', 'X']) {
        Some(digits) => u32::from_str_radix(digits, 16).ok()?,
        None => number.parse().ok()?,
    };
    Some((code, number.len() + 3))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(secret: &str, answer: &str) -> String {
        let mut secrets = AnswerSecrets::default();
        secrets.add(secret);
        secrets.shown(answer)
    }

    #[test]
    fn an_answer_that_repeats_a_secret_in_any_form_is_withheld() {
        let secret = "xoxb-12/Se+cr%et-T0ken";
        for answer in [
            "no xoxb-12/Se+cr%et-T0ken here",
            r#"{"token":"xoxb-12\/Se+cr%et-T0ken"}"#,
            "xoxb\u{200b}-12/S\u{ad}e+c\u{2060}r%et-T0k\u{e0041}en",
            "xoxb-12%2FSe%2Bcr%25et%2DT0ken",
            "xoxb-12%252FSe%252Bcr%2525et-T0ken",
            "%78%6f%78%62%2d%31%32%2f%53%65%2b",
            r"\u0078\u006f\u0078\u0062\u002d\u0031\u0032\u002f\u0053\u0065",
            "&#x78;&#x6F;&#120;b-12/Se",
            "XOXB-12/SE+CR%ET-T0KEN",
            "x o x b - 1 2 / S e + c r % e t",
            "xoxb-\r\n12/Se\x1b[31m+cr%et\x1b[0m-T0ken",
            "nek0T-te%rc+eS/21-bxox",
            // The answer was cut.
            "your token starts with xoxb-12/Se",
            "your token ends with r%et-T0ken",
        ] {
            assert_eq!(shown(secret, answer), WITHHELD, "{answer:?}");
        }
        for secret in ["hunter2", "p\u{e4}ssw\u{f6}rd1"] {
            assert_eq!(shown(secret, &format!("no {secret}")), WITHHELD);
        }
        assert_eq!(shown("p\u{e4}ssw\u{f6}rd1", "p%C3%A4ssw%C3%B6rd1"), WITHHELD);
        // It cannot be recognised.
        assert_eq!(shown("!!!!!", "bad request"), WITHHELD);
    }

    #[test]
    fn other_answers_are_shown() {
        for answer in ["no such team", "invalid_token", "550 5.1.1 no such user", "100% \\ &#; ="] {
            assert_eq!(shown("xoxb-12/Se+cr%et-T0ken", answer), answer);
        }
        assert_eq!(shown("x", ""), "");
        assert_eq!(AnswerSecrets::default().shown("a\r\nb\u{202e}c"), "a bc");
    }

    #[test]
    fn long_parts_of_a_url_are_secrets() {
        let mut secrets = AnswerSecrets::default();
        secrets.add_url("/hooks/farrier/Zm9vYmFyYmF6?team=gpu&token=0123456789abcdef");
        for answer in ["POST /hooks/farrier/Zm9vYmFyYmF6", "bad token 0123456789ABCDEF"] {
            assert_eq!(secrets.shown(answer), WITHHELD);
        }
        assert_eq!(secrets.shown("cannot POST /hooks/farrier"), "cannot POST /hooks/farrier");
    }

    proptest::proptest! {
        #[test]
        fn no_answer_crashes(answer in "(%[0-9a-f]{0,2}|\\\\u[0-9a-f]{0,4}|&#x?[0-9]{0,9};?|=|.){0,60}") {
            let mut secrets = AnswerSecrets::default();
            secrets.add("a secret token");
            let _ = secrets.shown(&answer);
        }
    }
}
