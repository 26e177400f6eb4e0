//! One record of a log: header and message, from a line of text or of JSON.

use std::borrow::Cow;

use jiff::Timestamp;
use serde_json::Value;

use super::header::{self, LineHeader, LineWriter};
use super::sanitize::sanitize;

/// Header and message of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LogRecord<'a> {
    pub(super) header: LineHeader<'a>,
    pub(super) message: Cow<'a, str>,
}

impl<'a> LogRecord<'a> {
    /// Parses a line. The message of JSON may have several lines.
    pub(super) fn parse(line: &'a [u8]) -> Self {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.trim_ascii_start().starts_with(b"{")
            && let Some(record) = json(line)
        {
            return record;
        }
        match sanitize(String::from_utf8_lossy(line)) {
            Cow::Borrowed(text) => {
                let (header, message) = header::split(text);
                Self { header, message: Cow::Borrowed(message) }
            }
            Cow::Owned(text) => Self::split_owned(&text),
        }
    }

    fn split_owned<'b>(text: &str) -> LogRecord<'b> {
        let (header, message) = header::split(text);
        LogRecord { header: header.into_owned(), message: Cow::Owned(message.to_owned()) }
    }
}

/// A record of `journalctl --output json`, or of a log shipper. A line that was cut short still
/// has its message.
fn json(line: &[u8]) -> Option<LogRecord<'static>> {
    let Ok(Value::Object(fields)) = serde_json::from_slice::<Value>(line) else {
        let text = String::from_utf8_lossy(line);
        let (_, message) = text.split_once("\"MESSAGE\":\"")?;
        return Some(LogRecord::split_owned(&sanitize(Cow::Borrowed(message))));
    };
    let field = |keys: &[&str]| keys.iter().find_map(|key| fields.get(*key));
    let text = |keys: &[&str]| field(keys).and_then(text_of);
    let message = text(&["MESSAGE", "message", "msg", "log"])?;
    let identifier = text(&["SYSLOG_IDENTIFIER"]);
    let transport = text(&["_TRANSPORT"]);
    let mut record = match (identifier.as_deref(), transport.as_deref()) {
        (Some("kernel"), _) | (_, Some("kernel")) => named(LineWriter::Kernel, message),
        (Some(_), _) | (None, Some(_)) => {
            let name = identifier.or(transport).unwrap_or_default();
            named(LineWriter::Process(Cow::Owned(name)), message)
        }
        // The text itself may be a line with a header.
        (None, None) => {
            let (first, rest) = message.split_once('\n').unwrap_or((&message, ""));
            let first = sanitize(Cow::Borrowed(first));
            let (header, text) = header::split(&first);
            LogRecord {
                header: header.into_owned(),
                message: Cow::Owned(format!("{text}\n{rest}")),
            }
        }
    };
    let own = |text: String| Some(Cow::Owned(sanitize(text.into()).into_owned()));
    let header = &mut record.header;
    header.host = text(&["_HOSTNAME", "hostname", "host"]).and_then(own).or(header.host.take());
    let since_epoch = text(&["__REALTIME_TIMESTAMP"]).and_then(|digits| wall_clock(&digits));
    let time = since_epoch.or_else(|| text(&["time", "timestamp", "@timestamp"]));
    header.time = time.and_then(own).or(header.time.take());
    Some(record)
}

fn named(writer: LineWriter<'static>, message: String) -> LogRecord<'static> {
    let header = LineHeader { writer, ..LineHeader::default() };
    LogRecord { header, message: Cow::Owned(message) }
}

/// The text of a JSON value. The journal writes a text that is not UTF-8, or that has control
/// characters, as an array of bytes.
fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Array(items) => {
            let byte = |item: &Value| item.as_u64().and_then(|byte| u8::try_from(byte).ok());
            let bytes: Option<Vec<u8>> = items.iter().map(byte).collect();
            bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        }
        _ => None,
    }
}

/// The journal's microseconds since 1970 as a date.
fn wall_clock(digits: &str) -> Option<String> {
    let microseconds = digits.parse().ok()?;
    Timestamp::from_microsecond(microseconds).ok().map(|time| time.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> LogRecord<'_> {
        LogRecord::parse(line.as_bytes())
    }

    #[test]
    fn reads_a_journal_record_with_host_and_time() {
        let record = parse(
            r#"{"_TRANSPORT":"kernel","MESSAGE":"NVRM: \"x\"","_HOSTNAME":"gpu-17","__REALTIME_TIMESTAMP":"1763173528123456"}"#,
        );
        assert_eq!(record.message, "NVRM: \"x\"");
        assert_eq!(record.header.writer, LineWriter::Kernel);
        assert_eq!(record.header.host.as_deref(), Some("gpu-17"));
        assert_eq!(record.header.time.as_deref(), Some("2025-11-15T02:25:28.123456Z"));
    }

    #[test]
    fn reads_a_message_of_bytes() {
        let record = parse(r#"{"SYSLOG_IDENTIFIER":"kernel","MESSAGE":[78,86,82,77,58,32,255]}"#);
        assert_eq!(record.message, "NVRM: \u{fffd}");
        let not_bytes = parse(r#"{"MESSAGE":[78,860]}"#);
        assert_eq!(not_bytes.message, r#"{"MESSAGE":[78,860]}"#);
    }

    #[test]
    fn names_the_process_of_a_journal_record() {
        let process = |name: &'static str| LineWriter::Process(Cow::Borrowed(name));
        for (line, writer) in [
            (
                r#"{"SYSLOG_IDENTIFIER":"train.py","_TRANSPORT":"stdout","MESSAGE":"x"}"#,
                process("train.py"),
            ),
            (r#"{"_TRANSPORT":"stdout","MESSAGE":"x"}"#, process("stdout")),
            (r#"{"MESSAGE":"x"}"#, LineWriter::Unnamed),
            (r#"{"log":"[  1.0] x\n","stream":"stdout"}"#, LineWriter::Kernel),
            (r#"{"MESSAGE":"NVRM: Xid (PCI:0000:17:00): 79, cut"#, LineWriter::Unnamed),
        ] {
            assert_eq!(parse(line).header.writer, writer, "{line}");
        }
    }
}
