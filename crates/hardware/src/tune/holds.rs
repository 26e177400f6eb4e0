//! Packages that are held: by apt-mark on this machine, in dpkg's own file below another root.

use std::io;
use std::process::Command;

use farrier_facts::node::Reading;
use farrier_facts::tune::Value;

use super::files;
use super::hands::HandError;
use crate::root::Root;

const STATUS: &str = "/var/lib/dpkg/status";

pub(super) fn read(root: &Root, package: &str) -> Reading<bool> {
    root.text(STATUS).and_then(|text| {
        let Some(record) = record(&text, package) else { return Reading::Absent };
        let status = record.lines().find_map(|line| line.strip_prefix("Status: "));
        status.map_or_else(
            || Reading::Unreadable(format!("{STATUS} has no status for `{package}`")),
            |status| Reading::Value(status.starts_with("hold ")),
        )
    })
}

fn record<'a>(text: &'a str, package: &str) -> Option<&'a str> {
    let first = format!("Package: {package}");
    text.split("\n\n").find(|record| record.lines().any(|line| line == first))
}

pub(super) fn write(root: &Root, package: &str, held: bool) -> Result<(), HandError> {
    if root.is_this_machine() {
        return run("apt-mark", &[if held { "hold" } else { "unhold" }, package]);
    }
    write_status(root, package, held).map_err(|err| HandError::io(STATUS, err))
}

fn write_status(root: &Root, package: &str, held: bool) -> io::Result<()> {
    let Reading::Value(Value::File(mut file)) = files::read(root, STATUS) else {
        return Err(io::Error::other("it cannot be read"));
    };
    let text = String::from_utf8(file.content.bytes()).map_err(io::Error::other)?;
    let record = record(&text, package).ok_or_else(|| io::Error::other("no such package"))?;
    let changed: Vec<String> = record
        .split('\n')
        .map(|line| match line.strip_prefix("Status: ").and_then(|it| it.split_once(' ')) {
            Some((_, rest)) => format!("Status: {} {rest}", if held { "hold" } else { "install" }),
            None => line.to_owned(),
        })
        .collect();
    let place = record.as_ptr() as usize - text.as_ptr() as usize;
    let (before, after) = (&text[..place], &text[place + record.len()..]);
    let text = format!("{before}{}{after}", changed.join("\n"));
    file.content = farrier_facts::tune::Content::Text(text);
    files::write(root, STATUS, &Value::File(file))
}

/// Runs a command of the machine and says what it said where it failed.
pub(super) fn run(program: &str, words: &[&str]) -> Result<(), HandError> {
    let line = format!("{program} {}", words.join(" "));
    let ran = Command::new(program).args(words).stdin(std::process::Stdio::null()).output();
    let output =
        ran.map_err(|err| HandError::Command { line: line.clone(), why: err.to_string() })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let why = said.lines().last().map_or_else(|| output.status.to_string(), str::to_owned);
    Err(HandError::Command { line, why })
}
