//! One file per kind of receiver. Each has a function `deliver`, and pure functions that build the
//! message.

pub(crate) mod alertmanager;
pub(crate) mod command;
pub(crate) mod email;
pub(crate) mod pagerduty;
pub(crate) mod slack;
pub(crate) mod webhook;

use ring::digest;

use crate::hex::hexadecimal;

/// SHA-256 of a key, for places where the key itself does not fit.
pub(crate) fn key_digest(key: &str) -> String {
    hexadecimal(digest::digest(&digest::SHA256, key.as_bytes()).as_ref())
}

/// A key as the value of a header or field: the key itself if it is short and printable ASCII, or
/// else its SHA-256. Both are the same for each delivery of a notification.
pub(crate) fn portable_key(key: &str, chars_max: usize) -> String {
    let is_portable =
        (1..=chars_max).contains(&key.len()) && key.bytes().all(|byte| byte.is_ascii_graphic());
    if is_portable { key.to_owned() } else { key_digest(key) }
}

/// A value as it is in the JSON.
pub(crate) fn word(value: &impl serde::Serialize) -> String {
    let json = serde_json::to_value(value).ok();
    json.and_then(|json| json.as_str().map(str::to_owned)).unwrap_or_default()
}
