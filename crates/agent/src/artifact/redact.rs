//! Removes secrets from text before it leaves the node.
//!
//! Logs hold what programs print: command lines with passwords, URLs with credentials, tokens. A line
//! is searched by the patterns only where one of the hints occurs in it, since logs are long.

use std::borrow::Cow;
use std::sync::LazyLock;

use aho_corasick::AhoCorasick;
use regex_lite::{Captures, Regex};

/// What stands in the place of a secret.
const REDACTED: &str = "[redacted]";

/// Without one of these no pattern matches. Compared without regard to case.
const HINTS: [&str; 26] = [
    "passw",
    "passphrase",
    "secret",
    "token",
    "api_key",
    "api-key",
    "apikey",
    "access_key",
    "access-key",
    "accesskey",
    "private_key",
    "private-key",
    "credential",
    "authorization",
    "cookie",
    "bearer",
    "://",
    "akia",
    "asia",
    "gh",
    "hf_",
    "xox",
    "sk-",
    "eyj",
    "fjoin_",
    "fperson_",
];

/// `NAME=VALUE`, `"name": "value"`, `--name value`, where the name says that the value is a secret.
const NAMED: &str = r#"(?i)((?:[a-z0-9_.-]*(?:passw(?:or)?d|passphrase|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|credential)[a-z0-9_.-]*|authorization|(?:set-)?cookie)["']?\s*[:=]\s*["']?(?:bearer\s+|basic\s+)?|--[a-z0-9-]*(?:passw(?:or)?d|passphrase|secret|token|api-key|access-key|credential)[a-z0-9-]*\s+["']?)[^\s"',;]+"#;

/// Values that are secrets whatever stands before them.
const SHAPES: [&str; 8] = [
    r"(?i)(bearer\s+)[a-z0-9._~+/=-]{8,}",
    r"()\b(?:AKIA|ASIA)[A-Z0-9]{16}\b",
    r"()\bgh[pousr]_[A-Za-z0-9]{20,}",
    r"()\bhf_[A-Za-z0-9]{20,}",
    r"()\bxox[abprs]-[A-Za-z0-9-]{10,}",
    r"()\bsk-[A-Za-z0-9_-]{20,}",
    r"()\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{4,}",
    r"()\bf(?:join|person)_[A-Za-z0-9_-]{20,}",
];

/// `scheme://user:password@host`.
const USER_INFO: &str = r"([A-Za-z][A-Za-z0-9+.-]*://)[^/\s@]+@";

struct Patterns {
    hints: AhoCorasick,
    all: Vec<Regex>,
}

static PATTERNS: LazyLock<Patterns> = LazyLock::new(|| {
    let hints = AhoCorasick::builder().ascii_case_insensitive(true).build(HINTS);
    let all = [NAMED, USER_INFO].into_iter().chain(SHAPES).map(Regex::new);
    Patterns {
        hints: hints.expect("the hints are few and short"),
        all: all.collect::<Result<_, _>>().expect("the patterns are constants, and tested"),
    }
});

/// The text without secrets, and how many there were. What is not UTF-8 is replaced.
pub(crate) fn redact(text: &[u8]) -> (Vec<u8>, u64) {
    let text = String::from_utf8_lossy(text);
    let (mut out, mut count) = (String::with_capacity(text.len()), 0);
    let mut in_key = false;
    for line in text.split_inclusive('\n') {
        let begins = line.contains("-----BEGIN") && line.contains("PRIVATE KEY");
        if begins && !in_key {
            out.push_str("[redacted private key]\n");
            count += 1;
        }
        in_key |= begins;
        if in_key {
            in_key = !line.contains("-----END");
            continue;
        }
        out.push_str(&line_redacted(line, &mut count));
    }
    (out.into_bytes(), count)
}

fn line_redacted<'l>(line: &'l str, count: &mut u64) -> Cow<'l, str> {
    let patterns = &*PATTERNS;
    let mut line = Cow::Borrowed(line);
    if !patterns.hints.is_match(line.as_ref()) {
        return line;
    }
    for pattern in &patterns.all {
        let mut found = 0;
        let changed = pattern.replace_all(&line, |captures: &Captures<'_>| {
            // An earlier pattern has been here.
            if captures[0].ends_with(REDACTED) || captures[0].ends_with(&REDACTED[..9]) {
                return captures[0].to_owned();
            }
            found += 1;
            let end = if pattern.as_str() == USER_INFO { "@" } else { "" };
            format!("{}{REDACTED}{end}", &captures[1])
        });
        if found > 0 {
            *count += found;
            line = Cow::Owned(changed.into_owned());
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redacted(text: &str) -> (String, u64) {
        let (bytes, count) = redact(text.as_bytes());
        (String::from_utf8(bytes).unwrap(), count)
    }

    #[test]
    fn secrets_go_and_what_names_them_stays() {
        let cases = [
            ("WANDB_API_KEY=0123abcd run.py\n", "WANDB_API_KEY=[redacted] run.py\n"),
            (r#"{"password": "p w", "a": 1}"#, r#"{"password": "[redacted] w", "a": 1}"#),
            ("train.py --hub-token abc --lr 1", "train.py --hub-token [redacted] --lr 1"),
            ("Authorization: Bearer abcdefgh.1", "Authorization: Bearer [redacted]"),
            ("got bearer abcdefgh12 from", "got bearer [redacted] from"),
            ("get https://ann:pw@host/x", "get https://[redacted]@host/x"),
            ("key AKIAABCDEFGHIJKLMNOP end", "key [redacted] end"),
            ("hf_abcdefghijklmnopqrstuvwx", "[redacted]"),
            ("fjoin_abcdefghijklmnopqrstuvwxyz0123456789", "[redacted]"),
            ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0.abcdef", "[redacted]"),
        ];
        for (text, wanted) in cases {
            let (got, count) = redacted(text);
            assert_eq!(got, wanted);
            assert_eq!(count, 1, "{text}");
        }
    }

    #[test]
    fn a_private_key_goes_as_a_whole() {
        let text = "a\n-----BEGIN EC PRIVATE KEY-----\nMHc\nAbc\n-----END EC PRIVATE KEY-----\nb\n";
        assert_eq!(redacted(text), ("a\n[redacted private key]\nb\n".to_owned(), 1));
        // One that is cut off by a limit is not shown either.
        let cut = "-----BEGIN PRIVATE KEY-----\nMHc\n";
        assert_eq!(redacted(cut), ("[redacted private key]\n".to_owned(), 1));
    }

    #[test]
    fn what_an_engineer_looks_for_stays() {
        let text = "NVRM: Xid (PCI:0000:1b:00): 79, pid=1234, name=python, GPU has fallen off the bus.\n\
                    Serial Number : 1650522000000\nGPU UUID : GPU-5f2a\nhttps://docs.nvidia.com/deploy\n\
                    Driver Version : 580.95.05\nmlx5_core 0000:3b:00.0: Port module event: module 0, Cable plugged\n";
        assert_eq!(redacted(text), (text.to_owned(), 0));
    }
}
