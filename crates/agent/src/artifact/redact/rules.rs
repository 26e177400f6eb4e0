//! Kinds of secrets: their names, formats and hints.

use std::ops::Range;
use std::sync::LazyLock;

use aho_corasick::{AhoCorasick, MatchKind};
use regex_lite::Regex;

use super::names::{
    always, has_at, has_token_dot, is_curl_flag, is_flag, is_likely, is_pass, is_pass_flag,
    is_password_flag, is_secret_key, starts_name_part,
};
use super::values::{header_len, value_len};

/// Beginnings of the names of secrets. Other letters may follow, as in `secretString`.
const SECRETS: &[&str] = &[
    "passw",
    "passphrase",
    "pass word",
    "pass phrase",
    "dbpass",
    "keypass",
    "rootpass",
    "storepass",
    "userpass",
    "secret",
    "basic_auth",
    "basic-auth",
    "basicauth",
    "private-mac",
];

/// Name of the regex group that matches only if the name of the secret has a qualifier, such as
/// `_RO` in `GITHUB_TOKEN_RO`.
const QUALIFIED: &str = "qualified";

/// Secrets that are recognised by their format, without a name. Each entry has the hints and the
/// pattern of one format.
const FORMS: &[(&[&str], &str)] = &[
    (&["akia", "asia"], r"(?:AKIA|ASIA)[A-Z0-9]{16}"),
    (&["ghp_", "gho_", "ghu_", "ghs_", "ghr_"], r"gh[pousr]_[A-Za-z0-9]{20,}"),
    (&["github_pat_"], r"github_pat_[A-Za-z0-9_]{20,}"),
    (&["glpat-"], r"glpat-[A-Za-z0-9_-]{16,}"),
    (&["hf_"], r"hf_[A-Za-z0-9]{20,}"),
    (&["nvapi-"], r"nvapi-[A-Za-z0-9_-]{20,}"),
    (&["xox", "xapp-"], r"(?:xox[abeprs]|xapp)-[A-Za-z0-9-]{10,}"),
    (&["aiza"], r"AIza[A-Za-z0-9_-]{30,}"),
    (&["ya29."], r"ya29\.[A-Za-z0-9_.-]{20,}"),
    (&["sk_live_", "sk_test_", "rk_live_"], r"[sr]k_(?:live|test)_[A-Za-z0-9]{16,}"),
    (&["npm_"], r"npm_[A-Za-z0-9]{30,}"),
    (&["hvs.", "hvb."], r"hv[sb]\.[A-Za-z0-9_-]{20,}"),
    (&["fjoin_", "fperson_"], r"f(?:join|person)_[A-Za-z0-9_-]{20,}"),
    // Password hashes, as in /etc/shadow.
    (
        &["$1$", "$2a$", "$2b$", "$2y$", "$5$", "$6$", "$y$"],
        r"\$[0-9a-z]{1,2}\$[A-Za-z0-9./$=,]{20,}",
    ),
    // The base64 form of `-----BEGIN `, with which a private key or a certificate begins.
    (&["ls0tls1crudjtib"], r"LS0tLS1CRUdJTiB[A-Za-z0-9+/=]{20,}"),
];

pub(super) struct RedactionRule {
    /// Texts at which the pattern is tried. Upper and lower case are treated the same.
    hints: &'static [&'static str],
    /// Decides whether to try the pattern. The arguments are the text before the hint, and the text
    /// that starts at the hint.
    applies: fn(&str, &str) -> bool,
    /// Matches the text that starts at the hint. The first capture group is the text before the
    /// secret, which is kept. A line can be as long as a file, and a match may be tried at every
    /// hint in the line. Therefore a repetition of letters has an upper bound, unless it is at the
    /// end of the pattern or `applies` limits it.
    pattern: Regex,
    extent: Extent,
}

/// Where the secret ends.
enum Extent {
    /// The secret ends at the end of the pattern, or where the second group begins.
    Pattern,
    /// The secret ends at the end of the value after the name. The value is a word or a quoted
    /// string. If the second group matches, only a weak separator, such as a space, separates the
    /// name from the value. The value then counts as a secret only if the name is a command-line
    /// flag or the value looks random. If the group [`QUALIFIED`] matches, the value counts as a
    /// secret only if it looks random.
    Value,
    /// The secret ends at the end of the line, or of the string that contains the header.
    Header,
}

pub(super) struct RedactionRules {
    pub(super) hints: AhoCorasick,
    /// For each hint, the rule that it belongs to.
    pub(super) rule_of_hint: Vec<usize>,
    pub(super) all: Vec<RedactionRule>,
}

pub(super) static RULES: LazyLock<RedactionRules> = LazyLock::new(|| {
    let all = rules();
    let hints = AhoCorasick::builder()
        .ascii_case_insensitive(true)
        .match_kind(MatchKind::LeftmostLongest)
        .build(all.iter().flat_map(|rule| rule.hints));
    let rule_of_hint =
        all.iter().enumerate().flat_map(|(at, rule)| rule.hints.iter().map(move |_| at)).collect();
    RedactionRules { hints: hints.expect("the hints are few and short"), rule_of_hint, all }
});

fn rules() -> Vec<RedactionRule> {
    let rule = |hints, applies, pattern: &str, extent| {
        let pattern = Regex::new(&format!("^(?:{pattern})"));
        RedactionRule {
            hints,
            applies,
            pattern: pattern.expect("a constant, covered by tests"),
            extent,
        }
    };
    let named = |hints: &'static [&str], applies, rest: &str, value: &str| {
        let pattern = format!(r"(?i)((?:{}){rest}){value}", hints.join("|"));
        rule(hints, applies, &pattern, Extent::Value)
    };
    // NUL separates the arguments of a process, and ANSI escapes set colours.
    let gap = r"(?:[\s\x00]|\x1b\[[0-9;]*m)*";
    // The name and the value may be a pair, as in `"name": "DB_PASSWORD", "value": "abc"`.
    let pair = format!(r#"(?:\\*["'],{gap}\\*["']value)?"#);
    let is = &format!(r#"{pair}\\*["']?\]?{gap}(?:(?:=>|:=|=+|:|%3[ad]){gap}|>)"#);
    let weak = r#"\\*["']?[\s\x00]+(?:is[\s\x00]+)?|\\*["'],[\s\x00]*"#;
    let more = r"[a-z0-9_-]{0,32}(?:\.(?:data|key|string|text|value))?";
    let part = r"(?:[_-]?(?:id|value|data|file|content|string|hash|base64|[0-9]{1,9})){0,3}";
    // The name may have a qualifier, such as `_RO` in `GITHUB_TOKEN_RO`. In `token_count=7`, the
    // value is not a secret, because it does not look random.
    let qualified = &format!(r"(?:[_-][a-z0-9]{{1,32}}){{1,3}}{is}(?<{QUALIFIED}>)");
    let any = r"[^\s\x00]";

    let mut all = vec![
        named(SECRETS, always, &format!("{more}(?:{is}|({weak}))"), any),
        // In `Failed to set up credentials: Protocol error`, there is no secret.
        named(&["credential"], always, &format!(r"{more}(?:(:\s+|{weak})|{is})"), any),
        // `tokenizer` is not a secret.
        named(&["token"], always, &format!("{part}(?:{is}|({weak})|{qualified})"), any),
        // In `tokens=4096`, the value is a count, and in `tokens: all of them`, the text is a
        // sentence.
        named(&["tokens"], always, &format!(r"(?:(:\s+)|{is})"), r#"[\["'\\]*[0-9.]*[a-z]"#),
        named(&["key"], is_secret_key, &format!("s?{part}(?:{is}|({weak})|{qualified})"), any),
        // In `pass:12`, the value is a count.
        named(
            &["pass"],
            is_pass,
            &format!("(?:[_-]?[0-9]{{0,9}}{is}|{qualified})"),
            r"(?:\d{4}|\d{0,3}[^\d\s,;])",
        ),
        named(&["-pass"], is_pass_flag, r#"(?:[\s\x00=]+|\\*["'],[\s\x00]*)"#, r"[^\s\x00-]"),
        // In `PWD=/root`, the value is a directory.
        named(&["pwd"], starts_name_part, is, r"[^\s\x00/]"),
        named(&["jwt", "psk"], starts_name_part, is, any),
        named(&["auth"], starts_name_part, is, r#"[\\"']*[a-z0-9+/=]{16}"#),
        named(&["bearer"], starts_name_part, r"[\s\x00]+", r"[a-z0-9._~+/=-]{6}"),
        named(&["identified by"], always, r"\s+(?:password\s+)?", r#"[\\"']"#),
        named(&["wandb login"], always, r"\s+(?:-\S{1,40}\s+){0,3}", any),
        named(&["from-literal"], always, r"[\s\x00=]+[^\s\x00=]{1,99}=", any),
        named(&["-p"], is_password_flag, r"[\s\x00=]*", r"[^\s\x00-]"),
        named(&["-u", "--user", "--proxy-user"], is_curl_flag, r"[\s\x00=]*", r"[^\s\x00-]"),
        rule(
            &["authorization", "cookie"],
            always,
            &format!("(?i)((?:authorization|cookie){is})."),
            Extent::Header,
        ),
        rule(
            &["echo"],
            starts_name_part,
            r"(echo\s+)[^|]{1,200}(\|.{0,80}(?:\s-S\b|-stdin\b))",
            Extent::Pattern,
        ),
        rule(
            &["?sig", "&sig", "u0026sig", "amz-sig", "goog-sig"],
            always,
            r#"(?i)([a-z0-9?&-]{0,6}sig(?:nature)?=)[^&\s\x00"'\\]+"#,
            Extent::Pattern,
        ),
        // The secret ends at the last `@` before the path, because a password may contain an `@`. A
        // password may also contain a `/`. If the text between `:` and `/` has only digits, it is a
        // port and not part of a password.
        rule(
            &["://", r":\/\/"],
            has_at,
            r#"(:\\?/\\?/)(?:[^/\s\x00"]{1,500}|[^/\s\x00"@:\[]{0,99}:[^/\s\x00"]{0,99}[^/\s\x00"0-9][^\s\x00"]{0,500})(@)"#,
            Extent::Pattern,
        ),
        rule(
            &["eyj"],
            has_token_dot,
            r"()eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)*",
            Extent::Pattern,
        ),
        // Match `sk-` only at the beginning of a word, because `disk-` and `task-` also contain it.
        rule(&["sk-"], starts_name_part, r"()sk-[A-Za-z0-9_-]{20,}", Extent::Pattern),
    ];
    let forms = FORMS.iter();
    all.extend(
        forms.map(|(hints, form)| rule(hints, always, &format!("(){form}"), Extent::Pattern)),
    );
    all
}

impl RedactionRule {
    /// The range of the secret at a hint.
    pub(super) fn secret(&self, line: &str, hint: usize) -> Option<Range<usize>> {
        let (before, from) = line.split_at(hint);
        if !(self.applies)(before, from) {
            return None;
        }
        let captures = self.pattern.captures(from)?;
        let (name, second) = (&captures[1], captures.get(2));
        let value = &from[name.len()..];
        let len = match self.extent {
            Extent::Pattern => second.map_or(captures[0].len(), |group| group.start()) - name.len(),
            Extent::Value => value_len(name, value),
            Extent::Header => header_len(before, name, value),
        };
        let value = &value[..len];
        let is_secret = match self.extent {
            Extent::Value if captures.name(QUALIFIED).is_some() => is_likely(false, value),
            Extent::Value if second.is_some() => is_likely(is_flag(before), value),
            _ => true,
        };
        if len == 0 || !is_secret {
            return None;
        }
        let start = hint + name.len();
        Some(start..start + len)
    }
}
