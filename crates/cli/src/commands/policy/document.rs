//! Reads policies from files and from the server.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::Context;
use farrier_fleet::fleet::Policy;
use farrier_wire::rest::PolicyView;
use farrier_wire::strict_json;
use serde_json::Value;

use crate::commands::fleet::session::FleetSession;
use crate::failure::Hinted;

/// The server's limit for a policy document.
const POLICY_BYTES_MAX: u64 = 1 << 20;

/// Reads a text file, or stdin for `-`.
pub(super) fn read_text(file: &Path, bytes_max: u64) -> anyhow::Result<String> {
    let mut text = String::new();
    let read = if file.as_os_str() == "-" {
        std::io::stdin().take(bytes_max).read_to_string(&mut text)
    } else {
        let open = File::open(file);
        open.and_then(|file| file.take(bytes_max).read_to_string(&mut text))
    };
    read.with_context(|| format!("failed to read `{}`", file.display()))?;
    Ok(text)
}

/// Reads a document in JSON or TOML. JSON begins with `{`.
pub(crate) fn read_value(file: &Path) -> anyhow::Result<Value> {
    let text = read_text(file, POLICY_BYTES_MAX)?;
    if text.trim_start().starts_with('{') {
        return strict_json::parse(text.as_bytes()).context("the policy is not valid JSON");
    }
    toml::from_str(&text).map_err(|err| {
        Hinted::error(
            format!("the policy is not valid TOML: {}", err.message()),
            "a policy is TOML, or JSON that begins with `{`; write dates and times in quotes",
        )
    })
}

pub(crate) fn read(file: &Path) -> anyhow::Result<Policy> {
    typed(read_value(file)?)
}

pub(super) fn typed(value: Value) -> anyhow::Result<Policy> {
    serde_json::from_value(value).map_err(|err| {
        Hinted::error(format!("the policy is invalid: {err}"), "docs/policy.md lists every key")
    })
}

pub(super) fn from_server(session: &mut FleetSession) -> anyhow::Result<Policy> {
    let PolicyView { policy } = session.get("/api/v1/policy")?;
    Ok(policy)
}
