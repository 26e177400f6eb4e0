//! Whether the text around a hint is the name of a secret with its value.

/// How far a rule looks from its hint when a secret is not certain.
const NEAR_BYTES: usize = 1024;

/// With these words `api key` and `apikey` are secrets like `api_key`. With others only `_key` is.
const SPOKEN_KEYS: &[&str] =
    &["api", "access", "account", "auth", "encryption", "private", "secret", "signing"];

/// Keys that are not secret: `public_key`.
const OPEN_KEYS: &[&str] = &["public", "primary", "foreign", "sort", "partition", "cache", "fault"];

/// Programs that take a password after `-p`.
const PASSWORD_PROGRAMS: &[&str] =
    &["sshpass", "mysql", "mariadb", "ipmitool", "racadm", "docker login", "podman login"];

pub(super) fn always(_: &str, _: &str) -> bool {
    true
}

/// Whether a hint begins a word or a part of a name: `DB_PASS`, `dbPass`, but not `Bypass`.
pub(super) fn in_name(before: &str, from: &str) -> bool {
    let mut bytes = before.bytes().rev();
    let last = bytes.next().unwrap_or(b' ');
    let is_camel =
        last.is_ascii_lowercase() && from.starts_with(|it: char| it.is_ascii_uppercase());
    // The letter of an escape sequence, as in `\npass=`, is not part of the word.
    !last.is_ascii_alphanumeric() || is_camel || bytes.next() == Some(b'\\')
}

/// Whether `pass` begins a part of a name, or ends one in capitals: `SSHPASS`, but not `BYPASS`.
pub(super) fn of_pass(before: &str, from: &str) -> bool {
    let name =
        near(before).bytes().rev().take_while(|it| it.is_ascii_alphanumeric() || *it == b'_');
    let in_capitals =
        || from.starts_with("PASS") && !name.clone().any(|it| it.is_ascii_lowercase());
    in_name(before, from) || in_capitals() && !before.ends_with("BY")
}

/// Whether `key` is that of `jwt_key`, `signingKey` or `api key`, but not of `Monkey` or `P_Key`.
pub(super) fn of_secret_key(before: &str, from: &str) -> bool {
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

/// Whether a hint begins a command-line argument, or follows its first `-`.
fn of_flag(before: &str, _: &str) -> bool {
    before.is_empty() || before.ends_with([' ', '\t', '\0', '"', '\'', '-'])
}

/// Whether a hint ends the name of a flag: `--db-pass`.
pub(super) fn of_pass_flag(before: &str, from: &str) -> bool {
    of_flag(before, from) || is_flag(before)
}

pub(super) fn of_password_flag(before: &str, from: &str) -> bool {
    of_flag(before, from) && PASSWORD_PROGRAMS.iter().any(|it| near(before).contains(it))
}

pub(super) fn of_curl_flag(before: &str, from: &str) -> bool {
    of_flag(before, from) && near(before).contains("curl")
}

/// Whether the word from the hint on contains an `@`. Most URLs have none, and patterns are slow.
pub(super) fn before_at(_: &str, from: &str) -> bool {
    let mut word = from.bytes().take(NEAR_BYTES).take_while(|it| !it.is_ascii_whitespace());
    word.any(|it| it == b'@')
}

/// Whether a dot ends the first part of a possible JSON web token.
pub(super) fn before_dot(_: &str, from: &str) -> bool {
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

/// Whether the name at the end of a text is a flag.
pub(super) fn is_flag(before: &str) -> bool {
    let of_name = |it: &u8| it.is_ascii_alphanumeric() || b"_.-".contains(it);
    near(before).bytes().rev().take_while(of_name).last() == Some(b'-')
}

/// Whether the word after a name and a mere space is its value: the name is a flag, as in
/// `--password abc`, or the word is not plain language, as in `passphrase ab12cd`.
pub(super) fn is_likely(is_flag: bool, value: &str) -> bool {
    let has = |is: fn(&u8) -> bool| value.as_bytes().iter().any(is);
    let is_random = value.len() > NEAR_BYTES
        || value.len() >= 6 && has(u8::is_ascii_digit) && has(u8::is_ascii_alphabetic);
    !value.starts_with(['-', '/']) && (is_flag || is_random)
}
