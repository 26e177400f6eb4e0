//! Held packages. On this machine, `apt-mark` holds and releases packages. Below another root, the
//! code edits dpkg's status file instead.

use std::io;

use farrier_facts::node::{ReadError, Reading};
use farrier_facts::tune::Value;

use super::actuator::SettingActuatorError;
use super::files;
use super::system_commands::SystemCommands;
use crate::root::Root;

const STATUS: &str = "/var/lib/dpkg/status";

pub(super) fn read(root: &Root, package: &str) -> Reading<bool> {
    root.text(STATUS).and_then(|text| {
        let Some(record) = record(&text, package) else { return Reading::Absent };
        let status = record.lines().find_map(|line| line.strip_prefix("Status: "));
        status.map_or_else(
            || {
                Reading::Unreadable(ReadError::malformed(format!(
                    "{STATUS} has no status for `{package}`"
                )))
            },
            |status| Reading::Value(status.starts_with("hold ")),
        )
    })
}

/// The record of a package. If `package` has an architecture, the record must have it too, because
/// dpkg may have several packages of one name.
fn record<'a>(text: &'a str, package: &str) -> Option<&'a str> {
    let (name, architecture) =
        package.split_once(':').map_or((package, None), |(name, suffix)| (name, Some(suffix)));
    let has = |record: &str, field: &str, value: &str| {
        record.lines().any(|line| {
            line.strip_prefix(field).and_then(|rest| rest.strip_prefix(": ")) == Some(value)
        })
    };
    text.split("\n\n").find(|record| {
        has(record, "Package", name)
            && architecture.is_none_or(|name| has(record, "Architecture", name))
    })
}

pub(super) fn write(
    root: &Root,
    commands: Option<&SystemCommands>,
    package: &str,
    held: bool,
) -> Result<(), SettingActuatorError> {
    if let Some(commands) = commands {
        return commands.apt_mark(&[if held { "hold" } else { "unhold" }, package]);
    }
    write_status(root, package, held).map_err(|err| SettingActuatorError::from_io(STATUS, err))
}

fn write_status(root: &Root, package: &str, held: bool) -> io::Result<()> {
    let Reading::Value(Value::File(mut file)) = files::read(root, STATUS) else {
        return Err(io::Error::other("failed to read it"));
    };
    let text = String::from_utf8(file.content.bytes()).map_err(io::Error::other)?;
    let record = record(&text, package).ok_or_else(|| io::Error::other("no such package"))?;
    let changed: Vec<String> = record
        .split('\n')
        .map(|line| match line.strip_prefix("Status: ").and_then(|status| status.split_once(' ')) {
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
