//! Which calls there are to fail: those of the node's own library.

use std::fs;
use std::path::Path;

use farrier_facts::names::nearest;
use farrier_sim::fault::{CallEffect, CallFault, FIELD_PREFIX};

use crate::failure::Hinted;

/// Refuses a call that the library does not have: a fault of it would never happen.
pub(super) fn check(dir: &Path, fault: &CallFault) -> anyhow::Result<()> {
    let call = fault.call.as_str();
    if let Some(number) = call.strip_prefix(FIELD_PREFIX) {
        if number.parse::<u32>().is_err() {
            return Err(Hinted::error(
                format!("`{call}` is not a field"),
                format!("a field is such as `{FIELD_PREFIX}91`"),
            ));
        }
        if !matches!(fault.effect, CallEffect::Error(_)) {
            return Err(Hinted::error(
                "a field does not hang by itself",
                "let nvmlDeviceGetFieldValues hang",
            ));
        }
        return Ok(());
    }
    // Without its library nothing asks the node, and nothing is exported.
    let Ok(library) = fs::read(dir.join("lib/libnvidia-ml.so.1")) else { return Ok(()) };
    let exported = exported_calls(&library);
    if call == "*" || exported.iter().any(|name| fault.matches_call(name)) {
        return Ok(());
    }
    let hint = match nearest(call, exported.iter().copied()).first() {
        Some(near) => format!("did you mean `{near}`?"),
        None => "a call is such as `nvmlDeviceGetName`".to_owned(),
    };
    Err(Hinted::error(format!("`{call}` is not the name of an NVML function"), hint))
}

/// The names of a library's calls: its table of symbols holds them as C strings.
fn exported_calls(library: &[u8]) -> Vec<&str> {
    const START: &[u8] = b"\0nvml";
    let mut calls = Vec::new();
    for at in memchr::memmem::find_iter(library, START) {
        let name = &library[at + 1..];
        let end = memchr::memchr(0, name).unwrap_or(name.len());
        let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
        if name[..end].iter().all(is_name)
            && let Ok(name) = str::from_utf8(&name[..end])
        {
            calls.push(name);
        }
    }
    calls.sort_unstable();
    calls.dedup();
    calls
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_c_strings_of_the_library() {
        let library = b"\x7fELF\0nvmlInit_v2\0nvml: no name\0other\0nvmlShutdown\0nvmlInit_v2\0";
        assert_eq!(exported_calls(library), ["nvmlInit_v2", "nvmlShutdown"]);
    }
}
