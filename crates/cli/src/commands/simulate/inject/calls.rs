//! Checks names of calls against the library of the simulated node.

use std::fs;
use std::path::Path;

use farrier_facts::names::nearest;
use farrier_sim::fault::{CallEffect, CallFault, FIELD_PREFIX};

use crate::failure::Hinted;

/// Rejects a call that the library does not export, because the fault would never occur.
pub(super) fn check(dir: &Path, fault: &CallFault) -> anyhow::Result<()> {
    let call = fault.call.as_str();
    if let Some(number) = call.strip_prefix(FIELD_PREFIX) {
        if number.parse::<u32>().is_err() {
            return Err(Hinted::error(
                format!("`{call}` is not a field"),
                format!("use a field such as `{FIELD_PREFIX}91`"),
            ));
        }
        if !matches!(fault.effect, CallEffect::Error(_)) {
            return Err(Hinted::error(
                "a single field cannot hang",
                "make `nvmlDeviceGetFieldValues` hang instead",
            ));
        }
        return Ok(());
    }
    // Without the library, there are no clients, and the names cannot be checked.
    let Ok(library) = fs::read(dir.join("lib/libnvidia-ml.so.1")) else { return Ok(()) };
    let exported = exported_calls(&library);
    if call == "*" || exported.iter().any(|name| fault.matches_call(name)) {
        return Ok(());
    }
    let hint = match nearest(call, exported.iter().copied()).first() {
        Some(suggestion) => format!("did you mean `{suggestion}`?"),
        None => "use a name such as `nvmlDeviceGetName`".to_owned(),
    };
    Err(Hinted::error(format!("`{call}` is not the name of an NVML function"), hint))
}

/// Exported NVML functions. The symbol table holds the names as C strings.
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
    fn exported_calls_are_read_from_c_strings() {
        let library = b"\x7fELF\0nvmlInit_v2\0nvml: no name\0other\0nvmlShutdown\0nvmlInit_v2\0";
        assert_eq!(exported_calls(library), ["nvmlInit_v2", "nvmlShutdown"]);
    }
}
