//! Removes secrets from text before it leaves the node.
//!
//! Logs hold what programs print: command lines with passwords, URLs with credentials, tokens. One
//! search finds the hints of all rules in a line, and a rule looks only at the text around its hint:
//! logs are long. Where it is in doubt a rule hides too much. This is a safety net: a secret without
//! a name and without a known form passes.

use std::ops::Range;
use std::sync::LazyLock;

use aho_corasick::{AhoCorasick, Input, MatchKind};
use regex_lite::Regex;

/// What stands in the place of a secret.
const REDACTED: &str = "[redacted]";

/// What a private key is between, each followed by its kind.
const BEGIN: &str = "-----BEGIN";
const END: &str = "-----END";

/// Lines of a private key; the longest in use have about a hundred.
const KEY_LINES_MAX: usize = 200;

/// The checksum after a PGP key: `=` and four characters.
const CHECKSUM_CHARS: usize = 5;

/// Input between two questions whether to go on.
const ASK_BYTES: usize = 64 << 10;

/// How far a rule looks from its hint, where it is not sure to find a secret.
const NEAR_BYTES: usize = 1024;

/// Names of secrets, whatever follows in the name: `secretString`.
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

/// `api key` and `apikey` are secrets as `api_key` is. With other words only `_key` is.
const SPOKEN_KEYS: &[&str] =
    &["api", "access", "account", "auth", "encryption", "private", "secret", "signing"];

/// Keys that are no secrets: `public_key`.
const OPEN_KEYS: &[&str] = &["public", "primary", "foreign", "sort", "partition", "cache", "fault"];

/// Programs that take a password after `-p`.
const PASSWORD_PROGRAMS: &[&str] =
    &["sshpass", "mysql", "mariadb", "ipmitool", "racadm", "docker login", "podman login"];

/// The group after a name with a qualifier.
const QUALIFIED: &str = "qualified";

/// Forms of secrets, whatever stands before them. Each has its hints.
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
    // Hashes of passwords, as in /etc/shadow.
    (
        &["$1$", "$2a$", "$2b$", "$2y$", "$5$", "$6$", "$y$"],
        r"\$[0-9a-z]{1,2}\$[A-Za-z0-9./$=,]{20,}",
    ),
    // Base64 of `-----BEGIN `: a private key, or a certificate.
    (&["ls0tls1crudjtib"], r"LS0tLS1CRUdJTiB[A-Za-z0-9+/=]{20,}"),
];

/// One kind of secret.
struct Rule {
    /// The pattern is tried where one of these occurs. Compared without regard to case.
    hints: &'static [&'static str],
    /// Whether it is to be tried, by the text before the hint and the text from the hint on.
    applies: fn(&str, &str) -> bool,
    /// Begins at the hint. Its first group stays, and the secret follows. Where it may fail late its
    /// repetitions are bounded: a line can be as long as a file.
    pattern: Regex,
    extent: Extent,
}

/// Where a secret ends.
enum Extent {
    /// Where the pattern ends, or where its second group begins.
    Pattern,
    /// Where a word ends, or what is in quotation marks. A second group is a mere space, or the like,
    /// between a name and a value: then the value must look like one. A group [`QUALIFIED`] follows a
    /// name with a qualifier: then the value must look random.
    Value,
    /// Where the line ends, or the string that has the header.
    Header,
}

struct Rules {
    hints: AhoCorasick,
    /// The rule of each hint.
    of_hint: Vec<usize>,
    all: Vec<Rule>,
}

static RULES: LazyLock<Rules> = LazyLock::new(|| {
    let all = rules();
    let hints = AhoCorasick::builder()
        .ascii_case_insensitive(true)
        .match_kind(MatchKind::LeftmostLongest)
        .build(all.iter().flat_map(|rule| rule.hints));
    let of_hint =
        all.iter().enumerate().flat_map(|(at, rule)| rule.hints.iter().map(move |_| at)).collect();
    Rules { hints: hints.expect("the hints are few and short"), of_hint, all }
});

fn rules() -> Vec<Rule> {
    let rule = |hints, applies, pattern: &str, extent| {
        let pattern = Regex::new(&format!("^(?:{pattern})"));
        Rule { hints, applies, pattern: pattern.expect("it is a constant, and tested"), extent }
    };
    let named = |hints: &'static [&str], applies, rest: &str, value: &str| {
        let pattern = format!(r"(?i)((?:{}){rest}){value}", hints.join("|"));
        rule(hints, applies, &pattern, Extent::Value)
    };
    // Zeros stand between the arguments of a process, and escapes are colours.
    let gap = r"(?:[\s\x00]|\x1b\[[0-9;]*m)*";
    // As in `"name": "DB_PASSWORD", "value": "abc"`.
    let pair = format!(r#"(?:\\*["'],{gap}\\*["']value)?"#);
    let is = &format!(r#"{pair}\\*["']?\]?{gap}(?:(?:=>|:=|=+|:|%3[ad]){gap}|>)"#);
    let weak = r#"\\*["']?[\s\x00]+(?:is[\s\x00]+)?|\\*["'],[\s\x00]*"#;
    let more = r"[a-z0-9_-]{0,32}(?:\.(?:data|key|string|text|value))?";
    let part = r"(?:[_-]?(?:id|value|data|file|content|string|hash|base64|[0-9]{1,9})){0,3}";
    // The qualifier of `GITHUB_TOKEN_RO`; that of `token_count` has no such value.
    let qualified = &format!(r"(?:[_-][a-z0-9]{{1,32}}){{1,3}}{is}(?<{QUALIFIED}>)");
    let any = r"[^\s\x00]";

    let mut all = vec![
        named(SECRETS, always, &format!("{more}(?:{is}|({weak}))"), any),
        // `Failed to set up credentials: Protocol error` is no secret.
        named(&["credential"], always, &format!(r"{more}(?:(:\s+|{weak})|{is})"), any),
        // `tokenizer` is no secret.
        named(&["token"], always, &format!("{part}(?:{is}|({weak})|{qualified})"), any),
        // `tokens=4096` is a count, and `tokens: all of them` is a sentence.
        named(&["tokens"], always, &format!(r"(?:(:\s+)|{is})"), r#"[\["'\\]*[0-9.]*[a-z]"#),
        named(&["key"], of_secret_key, &format!("s?{part}(?:{is}|({weak})|{qualified})"), any),
        // `pass:12` is a count.
        named(
            &["pass"],
            of_pass,
            &format!("(?:[_-]?[0-9]{{0,9}}{is}|{qualified})"),
            r"(?:\d{4}|\d{0,3}[^\d\s,;])",
        ),
        named(&["-pass"], of_pass_flag, r#"(?:[\s\x00=]+|\\*["'],[\s\x00]*)"#, r"[^\s\x00-]"),
        // `PWD=/root` is a folder.
        named(&["pwd"], in_name, is, r"[^\s\x00/]"),
        named(&["jwt", "psk"], in_name, is, any),
        named(&["auth"], in_name, is, r#"[\\"']*[a-z0-9+/=]{16}"#),
        named(&["bearer"], in_name, r"[\s\x00]+", r"[a-z0-9._~+/=-]{6}"),
        named(&["identified by"], always, r"\s+(?:password\s+)?", r#"[\\"']"#),
        named(&["wandb login"], always, r"\s+(?:-\S{1,40}\s+){0,3}", any),
        named(&["from-literal"], always, r"[\s\x00=]+[^\s\x00=]{1,99}=", any),
        named(&["-p"], of_password_flag, r"[\s\x00=]*", r"[^\s\x00-]"),
        named(&["-u", "--user", "--proxy-user"], of_curl_flag, r"[\s\x00=]*", r"[^\s\x00-]"),
        rule(
            &["authorization", "cookie"],
            always,
            &format!("(?i)((?:authorization|cookie){is})."),
            Extent::Header,
        ),
        rule(
            &["echo"],
            in_name,
            r"(echo\s+)[^|]{1,200}(\|.{0,80}(?:\s-S\b|-stdin\b))",
            Extent::Pattern,
        ),
        rule(
            &["?sig", "&sig", "u0026sig", "amz-sig", "goog-sig"],
            always,
            r#"(?i)([a-z0-9?&-]{0,6}sig(?:nature)?=)[^&\s\x00"'\\]+"#,
            Extent::Pattern,
        ),
        // Up to the last `@` before the path, since a password may have one. A password with a `/`
        // is told from a host with a port: it is not of digits.
        rule(
            &["://", r":\/\/"],
            before_at,
            r#"(:\\?/\\?/)(?:[^/\s\x00"]{1,500}|[^/\s\x00"@:\[]{0,99}:[^/\s\x00"]{0,99}[^/\s\x00"0-9][^\s\x00"]{0,500})(@)"#,
            Extent::Pattern,
        ),
        rule(
            &["eyj"],
            before_dot,
            r"()eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)*",
            Extent::Pattern,
        ),
        // Within a word it is `disk-` or `task-`.
        rule(&["sk-"], in_name, r"()sk-[A-Za-z0-9_-]{20,}", Extent::Pattern),
    ];
    let forms = FORMS.iter();
    all.extend(forms.map(|(hints, it)| rule(hints, always, &format!("(){it}"), Extent::Pattern)));
    all
}

/// The text without secrets, and how many there were. What is not UTF-8 is replaced. It is `None`
/// where `keep_going`, which is asked again and again, says no.
pub(crate) fn redact(text: &[u8], keep_going: &dyn Fn() -> bool) -> Option<(Vec<u8>, u64)> {
    let text = String::from_utf8_lossy(text);
    let (mut out, mut count) = (String::with_capacity(text.len()), 0);
    let mut ask_at = 0;
    let mut ask = |at: usize| {
        if at < ask_at {
            return Some(());
        }
        ask_at = at + ASK_BYTES;
        keep_going().then_some(())
    };
    let mut rest = &*text;
    while let Some(line) = rest.split_inclusive('\n').next() {
        let at = text.len() - rest.len();
        ask(at)?;
        rest = &rest[line.len()..];
        if let Some(len) = key_len(line, rest) {
            rest = &rest[len..];
        } else if has_marker(line, END) {
            // Its beginning was cut off by a limit.
            cut_key(&mut out);
        } else {
            let found = push_redacted(&mut out, line, |within| ask(at + within))?;
            if found > 0 {
                rest = &rest[block_len(line, rest)..];
            }
            count += found;
            continue;
        }
        out.push_str("[redacted private key]\n");
        count += 1;
    }
    Some((out.into_bytes(), count))
}

/// Adds a line without its secrets, and says how many there were.
fn push_redacted(
    out: &mut String,
    line: &str,
    mut ask: impl FnMut(usize) -> Option<()>,
) -> Option<u64> {
    let rules = &*RULES;
    let text = line.trim_end_matches(['\r', '\n']);
    let (mut count, mut copied, mut at) = (0, 0, 0);
    while let Some(hint) = rules.hints.find(Input::new(text).range(at..)) {
        ask(hint.start())?;
        let rule = &rules.all[rules.of_hint[hint.pattern()]];
        if let Some(secret) = rule.secret(text, hint.start()) {
            out.push_str(&line[copied..secret.start]);
            out.push_str(REDACTED);
            count += 1;
            (copied, at) = (secret.end, secret.end);
        } else {
            // Another hint may begin within this one.
            at = hint.start() + 1;
        }
    }
    out.push_str(&line[copied..]);
    Some(count)
}

impl Rule {
    /// Where the secret of a hint is.
    fn secret(&self, line: &str, hint: usize) -> Option<Range<usize>> {
        let (before, from) = line.split_at(hint);
        if !(self.applies)(before, from) {
            return None;
        }
        let found = self.pattern.captures(from)?;
        let (kept, second) = (&found[1], found.get(2));
        let value = &from[kept.len()..];
        let len = match self.extent {
            Extent::Pattern => second.map_or(found[0].len(), |it| it.start()) - kept.len(),
            Extent::Value => value_len(kept, value),
            Extent::Header => header_len(before, kept, value),
        };
        let value = &value[..len];
        let is_secret = match self.extent {
            Extent::Value if found.name(QUALIFIED).is_some() => is_likely(false, value),
            Extent::Value if second.is_some() => is_likely(is_flag(before), value),
            _ => true,
        };
        if len == 0 || !is_secret {
            return None;
        }
        let start = hint + kept.len();
        Some(start..start + len)
    }
}

fn always(_: &str, _: &str) -> bool {
    true
}

/// Whether a hint begins a word, or a part of a name: `DB_PASS`, `dbPass`, but not `Bypass`.
fn in_name(before: &str, from: &str) -> bool {
    let mut bytes = before.bytes().rev();
    let last = bytes.next().unwrap_or(b' ');
    let is_camel =
        last.is_ascii_lowercase() && from.starts_with(|it: char| it.is_ascii_uppercase());
    // The letter of an escape, as in `\npass=`, is not of the word.
    !last.is_ascii_alphanumeric() || is_camel || bytes.next() == Some(b'\\')
}

/// Whether `pass` begins a part of a name, or ends one in capitals: `SSHPASS`, but not `BYPASS`.
fn of_pass(before: &str, from: &str) -> bool {
    let name =
        near(before).bytes().rev().take_while(|it| it.is_ascii_alphanumeric() || *it == b'_');
    let in_capitals =
        || from.starts_with("PASS") && !name.clone().any(|it| it.is_ascii_lowercase());
    in_name(before, from) || in_capitals() && !before.ends_with("BY")
}

/// Whether `key` is that of `jwt_key`, `signingKey` or `api key`, but not of `Monkey` or of `P_Key`.
fn of_secret_key(before: &str, from: &str) -> bool {
    let before = near(before);
    let stem = before.trim_end_matches(['_', '-', ' ']);
    let word = stem.rsplit(|it: char| !it.is_ascii_alphanumeric()).next().unwrap_or_default();
    let word = word.to_ascii_lowercase();
    let is_any_of = |words: &[&str]| words.iter().any(|it| word.ends_with(it));
    if in_name(before, from) && !before.ends_with(' ') {
        word.len() > 1 && !is_any_of(OPEN_KEYS)
    } else {
        is_any_of(SPOKEN_KEYS)
    }
}

/// Whether a hint begins an argument of a command, or follows the first `-` of one.
fn of_flag(before: &str, _: &str) -> bool {
    before.is_empty() || before.ends_with([' ', '\t', '\0', '"', '\'', '-'])
}

/// Whether a hint ends the name of a flag: `--db-pass`.
fn of_pass_flag(before: &str, from: &str) -> bool {
    of_flag(before, from) || is_flag(before)
}

fn of_password_flag(before: &str, from: &str) -> bool {
    of_flag(before, from) && PASSWORD_PROGRAMS.iter().any(|it| near(before).contains(it))
}

fn of_curl_flag(before: &str, from: &str) -> bool {
    of_flag(before, from) && near(before).contains("curl")
}

/// Whether a word from the hint on has an `@`. Most URLs have none, and patterns are slow.
fn before_at(_: &str, from: &str) -> bool {
    let mut word = from.bytes().take(NEAR_BYTES).take_while(|it| !it.is_ascii_whitespace());
    word.any(|it| it == b'@')
}

/// Whether a dot ends the first part of what may be a JSON web token.
fn before_dot(_: &str, from: &str) -> bool {
    let mut bytes = from.bytes().take(NEAR_BYTES);
    bytes.find(|it| !it.is_ascii_alphanumeric() && !b"_-".contains(it)) == Some(b'.')
}

/// The end of a text.
fn near(text: &str) -> &str {
    let mut from = text.len().saturating_sub(NEAR_BYTES);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    &text[from..]
}

/// Whether the name that ends a text is that of a flag.
fn is_flag(before: &str) -> bool {
    let of_name = |it: &u8| it.is_ascii_alphanumeric() || b"_.-".contains(it);
    near(before).bytes().rev().take_while(of_name).last() == Some(b'-')
}

/// Whether what follows a name after a mere space is its value: the name is a flag, as in
/// `--password abc`, or the value is no word of a sentence, as in `passphrase ab12cd`.
fn is_likely(is_flag: bool, value: &str) -> bool {
    let has = |is: fn(&u8) -> bool| value.as_bytes().iter().any(is);
    let is_random = value.len() > NEAR_BYTES
        || value.len() >= 6 && has(u8::is_ascii_digit) && has(u8::is_ascii_alphabetic);
    !value.starts_with(['-', '/']) && (is_flag || is_random)
}

/// The length of a value. `kept` is its name and what stands between them.
fn value_len(kept: &str, value: &str) -> usize {
    let depth = slashes(value.bytes());
    let quoted = &value[depth..];
    if let Some(quote) = quoted.chars().next().filter(|it| is_quote(*it)) {
        let text = &quoted[1..];
        let len = closing(text, quote, depth)
            .map_or(text.len(), |it| if it.len() > depth { it.end } else { it.start });
        return depth + 1 + len;
    }
    // A list goes as a whole, and one without an end as the rest of the line does.
    let mut open = 0_usize;
    let list_end = value.find(|it: char| {
        open += usize::from("[{".contains(it));
        open -= usize::from("]}".contains(it)).min(open);
        open == 0
    });
    let Some(from) = list_end else { return value.len() };
    // Where the name is in quotation marks it is JSON, and the value is a number or the like.
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

/// The length of the value of a header, in which there may be spaces and quotation marks.
fn header_len(before: &str, kept: &str, value: &str) -> usize {
    let name = |it: char| it.is_ascii_alphanumeric() || "-_".contains(it);
    let outside = before.trim_end_matches(name);
    let (quote, depth) = match outside.chars().next_back() {
        Some(quote) if is_quote(quote) => (quote, slashes(outside.bytes().rev().skip(1))),
        _ if before.starts_with('{') => ('"', 0),
        _ => return value.len(),
    };
    // The name is in quotation marks of its own.
    if kept.contains(quote) && value.trim_start_matches('\\').starts_with([quote, '[', '{']) {
        return value_len(kept, value);
    }
    closing(value, quote, depth).map_or(value.len(), |it| it.start)
}

/// The quotation mark that closes a string, with its backslashes. One with more of them than the
/// opening mark is of the text, as is one within a word.
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

/// Whether a word goes on after a quotation mark. `'\''` is such a mark in a shell.
fn goes_on(after: &str) -> bool {
    after.starts_with(|it: char| it.is_alphanumeric()) || after.starts_with(r"\''")
}

fn slashes(bytes: impl Iterator<Item = u8>) -> usize {
    bytes.take_while(|it| *it == b'\\').count()
}

/// The length of what belongs to a private key after the line in which one begins.
fn key_len(line: &str, rest: &str) -> Option<usize> {
    let lines = rest.split_inclusive('\n').take(KEY_LINES_MAX);
    let len_of = |count| lines.clone().take(count).map(str::len).sum();
    if let Some((_, count)) = line.split_once("Private-Lines:")
        && let Ok(count) = count.trim().parse()
    {
        return Some(len_of(count));
    }
    if !has_marker(line, BEGIN) {
        return None;
    }
    // One on a single line, as in JSON, ends there.
    if line.rfind(END) > line.rfind(BEGIN) {
        return Some(0);
    }
    // In a log each line begins with a time and more, so all lines go up to the end of the key. A
    // mere mention of a key has no end, and the end after another beginning is not its own.
    let mut own = lines.clone().take_while(|it| !has_marker(it, BEGIN));
    let is_whole = line.contains("KEY-----") || line.contains("BLOCK-----");
    if let Some(end) = own.position(|it| has_marker(it, END)).filter(|_| is_whole) {
        return Some(len_of(end + 1));
    }
    Some(len_of(lines.clone().take_while(|it| is_of_key(it)).count()))
}

/// Whether a private key begins, or ends, in a line.
fn has_marker(line: &str, marker: &str) -> bool {
    line.split_once(marker).is_some_and(|(_, rest)| rest.contains("PRIVATE KEY"))
}

/// Takes the last lines away that may belong to a private key. The last of them may be short, also
/// before the checksum of a PGP key.
fn cut_key(out: &mut String) {
    let mut may_be_short = true;
    while let Some(line) = out.split_inclusive('\n').next_back() {
        let last = last_word(line);
        if !(is_of_key(line) || may_be_short && is_base64(last)) {
            return;
        }
        may_be_short &= last.len() == CHECKSUM_CHARS && last.starts_with('=');
        out.truncate(out.len() - line.len());
    }
}

fn is_base64(text: &str) -> bool {
    text.bytes().all(|it| it.is_ascii_alphanumeric() || b"+/=".contains(&it))
}

fn last_word(line: &str) -> &str {
    line.trim().rsplit(' ').next().unwrap_or_default()
}

/// Whether a line may belong to a private key: base64, also after a time and the like, or a header.
fn is_of_key(line: &str) -> bool {
    let line = line.trim();
    let last = last_word(line);
    is_base64(line)
        || is_base64(last) && last.len() >= 32
        || ["Proc-Type:", "DEK-Info:", "Comment:", "Version:"].iter().any(|it| line.starts_with(it))
}

/// The length of the lines after `password: |`, which in YAML are the value: those further in.
fn block_len(line: &str, rest: &str) -> usize {
    let start = line.trim_end().trim_end_matches(['+', '-']).strip_suffix(['|', '>']);
    if !start.is_some_and(|it| it.trim_end().ends_with(':')) {
        return 0;
    }
    let indent = |it: &str| it.len() - it.trim_start().len();
    let lines = rest.split_inclusive('\n').take(KEY_LINES_MAX);
    lines.take_while(|it| indent(it) > indent(line)).map(str::len).sum()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn redacted(text: &str) -> (String, u64) {
        let (bytes, count) = redact(text.as_bytes(), &|| true).unwrap();
        (String::from_utf8(bytes).unwrap(), count)
    }

    #[test]
    fn secrets_go_and_what_names_them_stays() {
        let cases = [
            ("WANDB_API_KEY=0123abcd run.py\n", "WANDB_API_KEY=[redacted] run.py\n"),
            (r#"{"password": "p w, x", "a": 1}"#, r#"{"password": [redacted], "a": 1}"#),
            (r#"{"t":"{\"password\": \"p w\"}"}"#, r#"{"t":"{\"password\": [redacted]}"}"#),
            (r#"{"t":"{\"secret\": \"a\\\"b\"}"}"#, r#"{"t":"{\"secret\": [redacted]}"}"#),
            (r#"{"token":12,"a":1}"#, r#"{"token":[redacted],"a":1}"#),
            (r#"{"secrets":{"a":["b"],"c":"d"},"e":1}"#, r#"{"secrets":[redacted],"e":1}"#),
            (r#"{"log":"a\npass=b c","e":1}"#, r#"{"log":"a\npass=[redacted] c","e":1}"#),
            (
                r#"{"name":"DB_PASSWORD","value":"a"}"#,
                r#"{"name":"DB_PASSWORD","value":[redacted]}"#,
            ),
            (r#"["run","--token","a","-x"]"#, r#"["run","--token",[redacted],"-x"]"#),
            ("<password>a</password>", "<password>[redacted]"),
            (r"PASSWORD='it'\''s a b' run", "PASSWORD=[redacted] run"),
            ("train.py --hub-token abc --lr 1", "train.py --hub-token [redacted] --lr 1"),
            (
                "\x1b[3mtoken\x1b[0m\x1b[2m=\x1b[0mabc d",
                "\x1b[3mtoken\x1b[0m\x1b[2m=\x1b[0m[redacted] d",
            ),
            ("Authorization: Bearer abcdefgh.1", "Authorization: [redacted]"),
            ("Authorization: Token abc", "Authorization: [redacted]"),
            (
                "authorization: AWS4-HMAC-SHA256 Credential=a/b, Signature=c",
                "authorization: [redacted]",
            ),
            ("Cookie: a=1; session=SECRET", "Cookie: [redacted]"),
            (r#"curl -H 'Cookie: a="b"; c' x"#, "curl -H 'Cookie: [redacted]' x"),
            (r#"{"cookie":["a","b"],"c":1}"#, r#"{"cookie":[redacted],"c":1}"#),
            (
                r#"{"log":"got Cookie: a={\"b\":\"c\"}; d","e":1}"#,
                r#"{"log":"got Cookie: [redacted]","e":1}"#,
            ),
            ("got bearer abcdefgh12 from", "got bearer [redacted] from"),
            ("get https://ann:p@w@host/x", "get https://[redacted]@host/x"),
            (
                "pip install git+https://a:b@host/x@main",
                "pip install git+https://[redacted]@host/x@main",
            ),
            ("MYSQL_PWD=x1 mysqldump", "MYSQL_PWD=[redacted] mysqldump"),
            ("smtp pass: x1, port 25", "smtp pass: [redacted], port 25"),
            ("sshpass -p x1 ssh host", "sshpass -p [redacted] ssh host"),
            ("ipmitool -H bmc -U root -P x1 sel", "ipmitool -H bmc -U root -P [redacted] sel"),
            ("curl -s -u ann:x1 https://host", "curl -s -u [redacted] https://host"),
            ("curl\0-u\0ann:x1\0https://host", "curl\0-u\0[redacted]\0https://host"),
            // The rest goes too: it may belong to the key.
            ("AccountKey=abc==;End", "AccountKey=[redacted]"),
            ("GET /x?a=1&X-Amz-Signature=abc&b=2", "GET /x?a=1&X-Amz-Signature=[redacted]&b=2"),
            ("key AKIAABCDEFGHIJKLMNOP end", "key [redacted] end"),
            ("hf_abcdefghijklmnopqrstuvwx", "[redacted]"),
            ("nvapi-abcdefghijklmnopqrstuvwx", "[redacted]"),
            ("glpat-abcdefghijklmnopqrst", "[redacted]"),
            ("fjoin_abcdefghijklmnopqrstuvwxyz0123456789", "[redacted]"),
            ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0.abcdef", "[redacted]"),
            ("key sk-abcdefghijklmnopqrstuvwx", "key [redacted]"),
            ("root:$6$abcdefgh$ijklmnopqrstuvwxyz:19000", "root:[redacted]:19000"),
        ];
        for (text, wanted) in cases {
            let (got, count) = redacted(text);
            assert_eq!(got, wanted);
            assert_eq!(count, 1, "{text}");
        }
    }

    #[test]
    fn what_was_planted_goes() {
        let planted = [
            "DB_PASS=LEAKhunter01",
            "SECRET_KEY=LEAK02abcdef",
            "AWS_SECRET_KEY=LEAK03abcdef",
            r#"DJANGO_SECRET_KEY: "LEAK04abcdef""#,
            r#"curl -H "X-Api-Key: LEAK" -u ann:LEAK05pw https://host/x"#,
            r#"Cookie: sid="LEAK06"; path=/"#,
            r#"Authorization: Digest username="ann", response="LEAK07digest""#,
            r#"password="LEAK08unterminated"#,
            "password=abc,LEAK09tail",
            "password=abc;LEAK10tail",
            r#"{"password":"abc\"LEAK11tail"}"#,
            "password => 'LEAK12'",
            "-password LEAK13 (java style)",
            "postgres://u:pa/LEAK14@host/db",
            r#""passwords":["LEAK15a","LEAK15b"]"#,
            "sk_live_LEAK16abcdefghijklmnopqrstu",
            "npm_LEAK17abcdefghijklmnopqrstuvwxyz0123",
            "hvs.LEAK18abcdefghijklmnopqrstuvwxyz",
            "ya29.LEAK19abcdefghijklmnopqrstuvwxyz",
            "encryption_key=LEAK20",
            "SLURM_JWT=LEAK21",
            "aws_session_token = LEAK22",
            "Authorization:\n  Bearer LEAK23",
            r#""API Key": "LEAK24""#,
            "password is LEAK25",
            "mysql -pLEAK26 -u root",
            "--password=LEAK27 --x",
            "https://ann:LEAK28@host/x",
            r#"{"auths":{"nvcr.io":{"auth":"LEAK29ZG9ja2VyOnBhc3M="}}}"#,
            "NGC_API_KEY=LEAK30",
            "PASSWD=LEAK31",
            "user_password_hash=LEAK32",
            "X-Auth-Token: LEAK33",
            "SecretKey=LEAK34",
            "clientSecretValue=LEAK35",
            "password:\tLEAK36",
            "export TOKEN='LEAK37",
            "PGPASSWORD=LEAK38 psql",
            "access token: LEAK39",
            "http_proxy=http://ann:LEAK40@proxy:3128",
            r#"secret_access_key="LEAK41""#,
            "--set env.PASSWORD=LEAK42",
            "wandb login LEAK43aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
            "huggingface-cli login --token LEAK44",
            "docker login -u ann -p LEAK45 nvcr.io",
            "ssh-key: LEAK46",
            "basic_auth: LEAK47",
            "SAS: https://a.blob/x?sv=1&sig=LEAK48&se=2",
            "passphrase LEAK49",
            "echo LEAK50 | sudo -S x",
            "-----BEGIN PGP PRIVATE KEY BLOCK-----\nVersion: GnuPG v2\n\n\
             LEAK51QOYBGNabcdefABCDEF\n=abcd\n-----END PGP PRIVATE KEY BLOCK-----",
            "Nov 18 01:02:03 host app[1]: -----BEGIN PRIVATE KEY-----\n\
             Nov 18 01:02:03 host app[1]: LEAK52MIIEvQIBADANBgkqhkiG9w0BAQEFAASC\n\
             Nov 18 01:02:03 host app[1]: -----END PRIVATE KEY-----",
            "[   12.345678] -----BEGIN RSA PRIVATE KEY-----\n\
             [   12.345679] LEAK53MIIEvQIBADANBgkqhkiG9w0BAQEFAASC\n\
             [   12.345680] -----END RSA PRIVATE KEY-----",
            "+-----BEGIN EC PRIVATE KEY-----\n+LEAK54MHcCAQEE\n+-----END EC PRIVATE KEY-----",
            "PuTTY-User-Key-File-2: ssh-rsa\nPrivate-Lines: 1\nLEAK55AAAAB3Nz\nPrivate-MAC: LEAK55",
            "token: LEAK56\u{a0} x",
            "train --password\0LEAK59\0--lr",
            "password: |\n  LEAK60",
            "passwd LEAK61",
            "JWT_KEY=LEAK62",
            "signing-key=LEAK63",
            "wandb_key=LEAK64",
            "OPENAI_API_KEYS=LEAK65",
            r#""token": null, "secretString":"LEAK66""#,
            "TOKEN_FILE_CONTENT=LEAK67",
            "my.secret.value=LEAK68",
            "kubectl create secret generic x --from-literal=key=LEAK69",
            "AZURE_CLIENT_SECRET LEAK70",
            "vllm serve m --api-key LEAK-abc",
            r#"["vllm","--api-key","s3cr3t-LEAK"]"#,
            "vllm\0--api-key\0LEAK\0--port",
            "--access-key LEAK",
            "--account-key LEAK",
            "train --wandb-api-key LEAK",
            "WANDB_API_KEY LEAK71",
            "API_TOKENS=9f86d0LEAK72",
            r#""auth_tokens": ["9LEAK"]"#,
            "GITHUB_TOKEN_RO=LEAK73",
            "HF_TOKEN_READ=LEAK74",
            "API_KEY_OPENAI=LEAK75",
            "DB_PASS_PROD=LEAK76",
            "SSHPASS=LEAK sshpass -e ssh host",
            "BMCPASS: LEAK",
            "IPMIPASS=LEAK",
            "PGPASS=LEAK",
            r#""ADMINPASS": "LEAK""#,
            "dump --db-pass LEAK --all",
            r#"["dump","--db-pass","LEAK"]"#,
        ];
        for text in planted {
            let (got, _) = redacted(text);
            assert!(!got.contains("LEAK"), "{got}");
        }
        // As one file too: what goes for one must not hide, or show, the next.
        let (got, count) = redacted(&planted.join("\n"));
        assert!(!got.contains("LEAK"), "{got}");
        assert!(count > planted.len() as u64 && got.lines().count() > planted.len(), "{got}");
    }

    #[test]
    fn what_is_knowingly_not_seen() {
        let passes = [
            // A key with neither an end nor lines of base64.
            "-----BEGIN PRIVATE KEY----- MIIE\nLEAK57MIIEvQ with space",
            // A name that is cut in two.
            "pass\0word=LEAK58",
            // A value on a line of its own.
            "password:\nLEAK",
            // A word after a mere space.
            "the password LEAK",
            // What looks like a host and its port.
            "postgres://u:12/LEAK@host/db",
        ];
        for text in passes {
            assert!(redacted(text).0.contains("LEAK"), "it is seen now: {text}");
        }
    }

    #[test]
    fn a_private_key_goes_and_what_follows_it_stays() {
        let text = "a\n-----BEGIN EC PRIVATE KEY-----\nMHc\nAbc\n-----END EC PRIVATE KEY-----\nb\n";
        assert_eq!(redacted(text), ("a\n[redacted private key]\nb\n".to_owned(), 1));
        // One that is cut off by a limit is not shown either.
        let cut = "-----BEGIN PRIVATE KEY-----\nMHc\n";
        assert_eq!(redacted(cut), ("[redacted private key]\n".to_owned(), 1));
        let cut =
            "[1.0] -----BEGIN PRIVATE KEY-----\n[1.1] MIIEvQIBADANBgkqhkiG9w0BAQEFAASC\nb c\n";
        assert_eq!(redacted(cut), ("[redacted private key]\nb c\n".to_owned(), 1));
        let cut = "b c\nMIIEvQIBADANBgkqhkiG9w\nAbc=\n-----END PRIVATE KEY-----\n";
        assert_eq!(redacted(cut), ("b c\n[redacted private key]\n".to_owned(), 1));
        // In a log each line begins with a time; the last of the key is short.
        let end = "[1.4] -----END PRIVATE KEY-----\n";
        let cut = format!("b c.\n[1.2] MIIEvQIBADANBgkqhkiG9w0BAQEFAASC\n[1.3] Abc=\n{end}");
        assert_eq!(redacted(&cut), ("b c.\n[redacted private key]\n".to_owned(), 1));
        let cut =
            format!("b c.\n[1.1] MIIEvQIBADANBgkqhkiG9w0BAQEFAASC\n[1.2] Abc=\n[1.3] =abcd\n{end}");
        assert_eq!(redacted(&cut), ("b c.\n[redacted private key]\n".to_owned(), 1));
        let mentioned = "no -----BEGIN RSA PRIVATE KEY in it\nwhat else was wrong\n";
        assert_eq!(redacted(mentioned).0, "[redacted private key]\nwhat else was wrong\n");
        // Another key ends the mention of one.
        let two = format!("a -----BEGIN PRIVATE KEY----- was\nb c\n{text}");
        assert_eq!(redacted(&two).0, "[redacted private key]\nb c\na\n[redacted private key]\nb\n");
    }

    #[test]
    fn what_an_engineer_looks_for_stays() {
        let text = r#"NVRM: Xid (PCI:0000:1b:00): 79, pid=1234, name=python, GPU has fallen off the bus.
NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.95.05  Release Build
NVRM: GPU 0000:1b:00.0: RmInitAdapter failed! (0x62:0x40:1860)
nvidia: module verification failed: signature and/or required key missing - tainting kernel
nvidia-nvlink: Nvlink Core is being initialized, major device number 237
options nvidia NVreg_RestrictProfilingToAdminUsers=0 NVreg_EnableGpuFirmware=1
NVreg_RegistryDwords="PerfLevelSrc=0x2222;RMSecBusResetEnable=1"
    Product Name                          : NVIDIA H200
    Serial Number                         : 1650522000000
    GPU UUID                              : GPU-5f2a6b1c-0d3e-4f5a-8b7c-9d0e1f2a3b4c
        Bus Id                            : 00000000:1B:00.0
    Driver Version : 580.95.05
    Persistence Mode                      : Enabled
        SW Power Cap                      : Not Active
        Remapping Failure Occurred        : No
    ECC Mode Bypass: enabled
    L2_BYPASS=on, ATS_BYPASS: enabled
nvidia-smi -pm 1 -pl 700
mlx5_core 0000:3b:00.0: Port module event: module 0, Cable plugged
mlx5_0: local QP operation err, lkey=0x1ff, rkey: 0x2ab, P_Key: 0xffff, bad_pkey_counter: 0
pcieport 0000:00:1c.0: AER: Corrected error message received from 0000:00:1c.0
Key type asymmetric registered
Loaded X.509 cert 'Build time autogenerated kernel key: 5fa2c1d09b'
Initialise system trusted keyrings
dm-crypt: the encryption key is missing, private key not found, --sort-key name --tls-key /etc/a1.pem
keyring: .builtin_trusted_keys, Monkey: 1, hotkey=F1, public_key=abc
audit: type=1701 audit(1.2:3): pid=7 comm="python" exe="/usr/bin/python3" sig=11 res=1
nvme0n1: Device self-test: pass, passed: 3, # Totals: pass:12 fail:0 xfail:0
/dev/disk/by-id/nvme-disk-SAMSUNG_MZQL23T8HCLS_00A07
systemd[1]: Started Forward Password Requests to Wall Directory Watch.
systemd[1]: systemd-ask-password-wall.path: Deactivated successfully.
systemd[1]: nvidia-persistenced.service: Failed to set up credentials: Protocol error
sshd[1]: Failed password for root from 10.0.0.5 port 22 ssh2
sshd[1]: Accepted publickey for ann from 10.0.0.5 port 22 ssh2: RSA SHA256:abcdef
sudo: ann : TTY=pts/0 ; PWD=/home/ann ; USER=root ; COMMAND=/usr/bin/nvidia-smi
slurmd: error: Invalid job credential from 10.0.0.5
train.py --max-tokens 4096 tokens_per_second=12.5 tokenizer=llama tokens=4096 num_tokens: 12
step 12: tokens: 8192, token_count=7, the token is expired, unexpected token in line 3
https://docs.nvidia.com/deploy https://host:8080/x/@scope/y oci://host:5000/img@sha256:ab
token_limit=4096 token_type: access --rsa-key-bits=2048 SSH_KEY_PATH=/etc/a1b2.pem pass_rate: 99.5%
docker run -p 8080:80 -u 1000 nvcr.io/nvidia/pytorch:25.01-py3
{"at":"2026-11-18T05:00:00Z","code":"gpu.xid","key":"Xid 79","fault_key":"a","count":1}
"#;
        assert_eq!(redacted(text), (text.to_owned(), 0));
    }

    #[test]
    fn it_stops_when_it_is_told_to() {
        // Many lines, and one that is as long.
        for text in ["a token\n".repeat(ASK_BYTES / 2), "a token ".repeat(ASK_BYTES / 2)] {
            let asked = Cell::new(0);
            let until = |most: usize| {
                asked.set(0);
                redact(text.as_bytes(), &|| {
                    asked.set(asked.get() + 1);
                    asked.get() < most
                })
            };
            assert_eq!(until(3), None);
            assert_eq!(asked.get(), 3);
            assert_eq!(until(usize::MAX), Some((text.clone().into_bytes(), 0)));
            assert_eq!(asked.get(), text.len() / ASK_BYTES);
        }
    }
}
