//! Tests whether the text around a hint is the name of a secret, followed by its value.

/// How many bytes before and after its hint a rule examines.
const NEAR_BYTES: usize = 1024;

/// After these words, `key` names a secret even with a space or nothing in between, as in `api key`
/// and `apikey`. After other words, `key` names a secret only with `_`, `-` or camel case in
/// between, as in `jwt_key` and `jwtKey`.
const SPOKEN_KEYS: &[&str] =
    &["api", "access", "account", "auth", "encryption", "private", "secret", "signing"];

/// After these words, `key` does not name a secret: `public_key`.
const OPEN_KEYS: &[&str] = &["public", "primary", "foreign", "sort", "partition", "cache", "fault"];

/// Programs that take a password after `-p`.
const PASSWORD_PROGRAMS: &[&str] =
    &["sshpass", "mysql", "mariadb", "ipmitool", "racadm", "docker login", "podman login"];

pub(super) fn always(_: &str, _: &str) -> bool {
    true
}

/// `true` if a hint is at the beginning of a word or of a part of a name, as in `DB_PASS` and
/// `dbPass`, but not in `Bypass`.
pub(super) fn starts_name_part(before: &str, from: &str) -> bool {
    let mut bytes = before.bytes().rev();
    let last = bytes.next().unwrap_or(b' ');
    let is_camel =
        last.is_ascii_lowercase() && from.starts_with(|letter: char| letter.is_ascii_uppercase());
    // The letter of an escape sequence, as in `\npass=`, is not part of the word.
    !last.is_ascii_alphanumeric() || is_camel || bytes.next() == Some(b'\\')
}

/// `true` if `pass` is at the beginning of a part of a name, or at the end of one in capitals. This
/// is the case in `SSHPASS`, but not in `BYPASS`.
pub(super) fn is_pass(before: &str, from: &str) -> bool {
    let name =
        near(before).bytes().rev().take_while(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
    let in_capitals =
        || from.starts_with("PASS") && !name.clone().any(|byte| byte.is_ascii_lowercase());
    starts_name_part(before, from) || in_capitals() && !before.ends_with("BY")
}

/// `true` if `key` names a secret, as in `jwt_key`, `signingKey` or `api key`, but not in `Monkey`
/// or `P_Key`.
pub(super) fn is_secret_key(before: &str, from: &str) -> bool {
    let before = near(before);
    let stem = before.trim_end_matches(['_', '-', ' ']);
    let word =
        stem.rsplit(|letter: char| !letter.is_ascii_alphanumeric()).next().unwrap_or_default();
    let word = word.to_ascii_lowercase();
    let is_any_of = |words: &[&str]| words.iter().any(|suffix| word.ends_with(suffix));
    if starts_name_part(before, from) && !before.ends_with(' ') {
        word.len() > 1 && !is_any_of(OPEN_KEYS)
    } else {
        is_any_of(SPOKEN_KEYS)
    }
}

/// `true` if a hint is at the beginning of a command-line argument, or after the first `-` of one.
fn starts_argument(before: &str, _: &str) -> bool {
    before.is_empty() || before.ends_with([' ', '\t', '\0', '"', '\'', '-'])
}

/// `true` if a hint is at the end of the name of a flag, as in `--db-pass`.
pub(super) fn is_pass_flag(before: &str, from: &str) -> bool {
    starts_argument(before, from) || is_flag(before)
}

pub(super) fn is_password_flag(before: &str, from: &str) -> bool {
    starts_argument(before, from)
        && PASSWORD_PROGRAMS.iter().any(|program| near(before).contains(program))
}

pub(super) fn is_curl_flag(before: &str, from: &str) -> bool {
    starts_argument(before, from) && near(before).contains("curl")
}

/// `true` if the word that starts at the hint contains an `@`. Most URLs contain no `@`, and this
/// test is faster than the match of a pattern.
pub(super) fn has_at(_: &str, from: &str) -> bool {
    let mut word = from.bytes().take(NEAR_BYTES).take_while(|byte| !byte.is_ascii_whitespace());
    word.any(|byte| byte == b'@')
}

/// `true` if the text may be a JSON web token, because a dot follows its first part.
pub(super) fn has_token_dot(_: &str, from: &str) -> bool {
    let mut bytes = from.bytes().take(NEAR_BYTES);
    bytes.find(|byte| !byte.is_ascii_alphanumeric() && !b"_-".contains(byte)) == Some(b'.')
}

/// The last `NEAR_BYTES` bytes of a text.
fn near(text: &str) -> &str {
    let mut from = text.len().saturating_sub(NEAR_BYTES);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    &text[from..]
}

/// `true` if the name at the end of a text begins with `-`, as a flag does.
pub(super) fn is_flag(before: &str) -> bool {
    let is_name_byte = |byte: &u8| byte.is_ascii_alphanumeric() || b"_.-".contains(byte);
    near(before).bytes().rev().take_while(is_name_byte).last() == Some(b'-')
}

/// `true` if the word after a name is probably its value, although only a space separates them.
/// This is the case if the name is a flag, as in `--password abc`, or if the word looks random, as
/// in `passphrase ab12cd`.
pub(super) fn is_likely(is_flag: bool, value: &str) -> bool {
    let has = |is: fn(&u8) -> bool| value.as_bytes().iter().any(is);
    let is_random = value.len() > NEAR_BYTES
        || value.len() >= 6 && has(u8::is_ascii_digit) && has(u8::is_ascii_alphabetic);
    !value.starts_with(['-', '/']) && (is_flag || is_random)
}
