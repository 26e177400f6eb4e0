//! Removes secrets from text before it leaves the node.
//!
//! Logs contain what programs print: command lines with passwords, URLs with credentials, and
//! tokens. A rule finds one kind of secret. Each rule has hints, which are short fixed strings. A
//! rule can match only where one of its hints occurs. Logs are long, so a single search finds the
//! hints of all rules, and a rule inspects only the text around its hint. In doubtful cases, a rule
//! removes too much rather than too little. Redaction is only a safety net: a secret with neither a
//! known name nor a known format is not removed.

mod keys;
mod names;
mod rules;
#[cfg(test)]
mod tests;
mod values;

use aho_corasick::Input;

use self::keys::{END, cut_key, has_marker, key_len};
use self::rules::RULES;
use self::values::block_len;

/// Replacement for a secret.
const REDACTED: &str = "[redacted]";

/// `keep_going` is called after this many bytes of input.
const CHECK_BYTES: usize = 64 << 10;

/// Returns the text without secrets, and the number of secrets that were removed. Invalid UTF-8 is
/// replaced. `keep_going` is called after every `CHECK_BYTES`. If it returns false, the result is
/// `None`.
pub(crate) fn redact(text: &[u8], keep_going: &dyn Fn() -> bool) -> Option<(Vec<u8>, u64)> {
    let text = String::from_utf8_lossy(text);
    let (mut out, mut count) = (String::with_capacity(text.len()), 0);
    let mut check_at = 0;
    let mut check = |at: usize| {
        if at < check_at {
            return Some(());
        }
        check_at = at + CHECK_BYTES;
        keep_going().then_some(())
    };
    let mut rest = &*text;
    while let Some(line) = rest.split_inclusive('\n').next() {
        let at = text.len() - rest.len();
        check(at)?;
        rest = &rest[line.len()..];
        if let Some(len) = key_len(line, rest) {
            rest = &rest[len..];
        } else if has_marker(line, END) {
            // The beginning of the key is missing, because the size limit cut it.
            cut_key(&mut out);
        } else {
            let redactions = push_redacted(&mut out, line, |within| check(at + within))?;
            if redactions > 0 {
                rest = &rest[block_len(line, rest)..];
            }
            count += redactions;
            continue;
        }
        out.push_str("[redacted private key]\n");
        count += 1;
    }
    Some((out.into_bytes(), count))
}

/// Appends a line without its secrets. Returns the number of secrets removed.
fn push_redacted(
    out: &mut String,
    line: &str,
    mut check: impl FnMut(usize) -> Option<()>,
) -> Option<u64> {
    let rules = &*RULES;
    let text = line.trim_end_matches(['\r', '\n']);
    let (mut count, mut copied, mut at) = (0, 0, 0);
    while let Some(hint) = rules.hints.find(Input::new(text).range(at..)) {
        check(hint.start())?;
        let rule = &rules.all[rules.rule_of_hint[hint.pattern()]];
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
