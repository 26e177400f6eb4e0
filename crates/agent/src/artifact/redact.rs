//! Removes secrets from text before it leaves the node.
//!
//! Logs hold what programs print: command lines with passwords, URLs with credentials, tokens. A line
//! is searched by the patterns only where one of the hints occurs in it, since logs are long. This is
//! a safety net: a secret without a name and without a known form passes.

use std::borrow::Cow;
use std::sync::LazyLock;

use aho_corasick::AhoCorasick;
use regex_lite::{Captures, Regex};

/// What stands in the place of a secret.
const REDACTED: &str = "[redacted]";

/// Lines of a private key; the longest in use have about a hundred.
const KEY_LINES_MAX: usize = 200;

/// Without one of these no pattern matches. Compared without regard to case.
const HINTS: [&str; 44] = [
    "passw",
    "passphrase",
    "_pwd",
    "pass=",
    "pass:",
    "sshpass",
    "secret",
    "token",
    "api_key",
    "api-key",
    "apikey",
    "access_key",
    "access-key",
    "accesskey",
    "accountkey",
    "private_key",
    "private-key",
    "credential",
    "authorization",
    "cookie",
    "bearer",
    "signature=",
    "sig=",
    "curl ",
    "://",
    "akia",
    "asia",
    "ghp_",
    "gho_",
    "ghu_",
    "ghs_",
    "ghr_",
    "github_pat_",
    "glpat-",
    "hf_",
    "nvapi-",
    "xox",
    "xapp-",
    "aiza",
    "sk-",
    "eyj",
    "fjoin_",
    "fperson_",
    "wandb",
];

/// A name that says that its value is a secret. `tokens`, `tokenizer` and counts of tokens do not.
const NAME: &str = r"[a-z0-9_.-]*(?:passw(?:or)?d|passphrase|_pwd|secret|token|api[_-]?key|access[_-]?key|account[_-]?key|private[_-]?key|credentials?|wandb_key)(?:_id|_value|[_-]?[0-9]+)?";

/// A value: in quotation marks up to the closing one, also where both are escaped as in JSON inside
/// of JSON; otherwise up to the next space, comma or semicolon.
const VALUE: &str = r#"(?:\\*"(?:[^"\\]|\\[^"])*\\*"|\\*'[^']*'|[^\s"',;\\]+)"#;

struct Patterns {
    hints: AhoCorasick,
    all: Vec<Regex>,
}

/// Each has the part that stays as its first group, and may have one that follows as its second.
fn patterns() -> Vec<String> {
    let mut all = vec![
        // The scheme, and the rest of the line: credentials have spaces and parameters.
        r#"(?i)((?:proxy-)?authorization\\*["']?\s*[:=]\s*\\*["']?)[^"'\r\n]+"#.to_owned(),
        r#"(?i)((?:set-)?cookie\\*["']?\s*[:=]\s*\\*["']?)[^"'\r\n]+"#.to_owned(),
        format!(r#"(?i)(\b{NAME}\\*["']?\s*[:=]\s*){VALUE}"#),
        format!(r"(?i)(--{NAME}[\s=]+){VALUE}"),
        format!(r"(?i)(\bpass\s*[:=]\s*){VALUE}"),
        format!(r"(?i)(\bsshpass\s+-p\s*){VALUE}"),
        format!(r"(?i)(\bcurl\b.*?\s(?:-u|--user)[\s=]*){VALUE}"),
        r"(?i)([?&](?:sig|signature|x-amz-signature|x-goog-signature)=)[^&\s]+".to_owned(),
        // The last `@` before the path: a password may have one.
        r"([A-Za-z][A-Za-z0-9+.-]*://)[^/\s]+(@)".to_owned(),
        r"(?i)(\bbearer\s+)[a-z0-9._~+/=-]{8,}".to_owned(),
    ];
    // Values that are secrets whatever stands before them.
    let shapes = [
        r"(?:AKIA|ASIA)[A-Z0-9]{16}",
        r"gh[pousr]_[A-Za-z0-9]{20,}",
        r"github_pat_[A-Za-z0-9_]{20,}",
        r"glpat-[A-Za-z0-9_-]{16,}",
        r"hf_[A-Za-z0-9]{20,}",
        r"nvapi-[A-Za-z0-9_-]{20,}",
        r"(?:xox[abprs]|xapp)-[A-Za-z0-9-]{10,}",
        r"AIza[A-Za-z0-9_-]{30,}",
        r"sk-[A-Za-z0-9_-]{20,}",
        r"eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{4,}",
        r"f(?:join|person)_[A-Za-z0-9_-]{20,}",
    ];
    all.extend(shapes.map(|shape| format!(r"(\b){shape}")));
    all
}

static PATTERNS: LazyLock<Patterns> = LazyLock::new(|| {
    let hints = AhoCorasick::builder().ascii_case_insensitive(true).build(HINTS);
    let all = patterns().iter().map(|pattern| Regex::new(pattern)).collect::<Result<_, _>>();
    Patterns {
        hints: hints.expect("the hints are few and short"),
        all: all.expect("the patterns are constants, and tested"),
    }
});

/// The text without secrets, and how many there were. What is not UTF-8 is replaced.
pub(crate) fn redact(text: &[u8]) -> (Vec<u8>, u64) {
    let text = String::from_utf8_lossy(text);
    let (mut out, mut count) = (String::with_capacity(text.len()), 0);
    let mut key_lines = 0;
    for line in text.split_inclusive('\n') {
        if key_lines > 0 && is_of_key(line) {
            key_lines -= 1;
            if line.contains("-----END") {
                key_lines = 0;
            }
            continue;
        }
        key_lines = 0;
        if line.contains("-----BEGIN") && line.contains("PRIVATE KEY") {
            count += 1;
            out.push_str("[redacted private key]\n");
            // One on a single line, as in JSON, ends there.
            key_lines = if line.contains("-----END") { 0 } else { KEY_LINES_MAX };
            continue;
        }
        out.push_str(&line_redacted(line, &mut count));
    }
    (out.into_bytes(), count)
}

/// Whether a line may belong to a private key: base64, a header of PEM, or the end.
fn is_of_key(line: &str) -> bool {
    let line = line.trim();
    let is_base64 = |byte: u8| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte);
    line.contains("-----END")
        || line.is_empty()
        || line.bytes().all(is_base64)
        || ["Proc-Type:", "DEK-Info:", "Comment:"].iter().any(|it| line.starts_with(it))
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
            if captures[0].contains(REDACTED) {
                return captures[0].to_owned();
            }
            found += 1;
            let after = captures.get(2).map_or("", |it| it.as_str());
            format!("{}{REDACTED}{after}", &captures[1])
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
            (r#"{"password": "p w, x", "a": 1}"#, r#"{"password": [redacted], "a": 1}"#),
            (r#"{"t":"{\"password\": \"p w\"}"}"#, r#"{"t":"{\"password\": [redacted]}"}"#),
            ("train.py --hub-token abc --lr 1", "train.py --hub-token [redacted] --lr 1"),
            ("Authorization: Bearer abcdefgh.1", "Authorization: [redacted]"),
            ("Authorization: Token abc", "Authorization: [redacted]"),
            (
                "authorization: AWS4-HMAC-SHA256 Credential=a/b, Signature=c",
                "authorization: [redacted]",
            ),
            ("Cookie: a=1; session=SECRET", "Cookie: [redacted]"),
            ("got bearer abcdefgh12 from", "got bearer [redacted] from"),
            ("get https://ann:p@w@host/x", "get https://[redacted]@host/x"),
            ("MYSQL_PWD=x1 mysqldump", "MYSQL_PWD=[redacted] mysqldump"),
            ("smtp pass: x1, port 25", "smtp pass: [redacted], port 25"),
            ("sshpass -p x1 ssh host", "sshpass -p [redacted] ssh host"),
            ("curl -s -u ann:x1 https://host", "curl -s -u [redacted] https://host"),
            ("AccountKey=abc==;End", "AccountKey=[redacted];End"),
            ("GET /x?a=1&X-Amz-Signature=abc&b=2", "GET /x?a=1&X-Amz-Signature=[redacted]&b=2"),
            ("key AKIAABCDEFGHIJKLMNOP end", "key [redacted] end"),
            ("hf_abcdefghijklmnopqrstuvwx", "[redacted]"),
            ("nvapi-abcdefghijklmnopqrstuvwx", "[redacted]"),
            ("glpat-abcdefghijklmnopqrst", "[redacted]"),
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
    fn a_private_key_goes_and_what_follows_it_stays() {
        let text = "a\n-----BEGIN EC PRIVATE KEY-----\nMHc\nAbc\n-----END EC PRIVATE KEY-----\nb\n";
        assert_eq!(redacted(text), ("a\n[redacted private key]\nb\n".to_owned(), 1));
        // One that is cut off by a limit is not shown either.
        let cut = "-----BEGIN PRIVATE KEY-----\nMHc\n";
        assert_eq!(redacted(cut), ("[redacted private key]\n".to_owned(), 1));
        let mentioned = "no -----BEGIN RSA PRIVATE KEY in it\nwhat else was wrong\n";
        assert_eq!(redacted(mentioned).0, "[redacted private key]\nwhat else was wrong\n");
    }

    #[test]
    fn what_an_engineer_looks_for_stays() {
        let text = "NVRM: Xid (PCI:0000:1b:00): 79, pid=1234, name=python, GPU has fallen off the bus.\n\
                    Serial Number : 1650522000000\nGPU UUID : GPU-5f2a\nhttps://docs.nvidia.com/deploy\n\
                    Driver Version : 580.95.05\nmlx5_core 0000:3b:00.0: Port module event: module 0, Cable plugged\n\
                    train.py --max-tokens 4096 tokens_per_second=12.5 tokenizer=llama\n";
        assert_eq!(redacted(text), (text.to_owned(), 0));
    }
}
