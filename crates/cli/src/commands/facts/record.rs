//! Prints one record: its values, which of them are unverified or disputed, and their sources.

use serde::Serialize;
use serde_json::{Map, Value};

use crate::printer::{Printer, Tone};

/// Column where values start.
pub(super) const VALUES_AT: usize = 32;

/// Prints a record under a title.
pub(super) fn print(
    title: &str,
    record: &impl Serialize,
    printer: &mut Printer,
) -> anyhow::Result<()> {
    let Value::Object(fields) = serde_json::to_value(record)? else { return Ok(()) };
    printer.line(&printer.toned(Tone::Strong, title))?;
    let unverified = texts(fields.get("unverified"));
    print_fields(&fields, "", &unverified, printer)?;
    for dispute in fields.get("disputed").and_then(Value::as_array).into_iter().flatten() {
        let text = |key: &str| dispute[key].as_str().unwrap_or_default();
        let line = format!(
            "{}: {} says {}; not used: {}",
            text("field"),
            text("source"),
            text("other"),
            text("why_not")
        );
        printer.paragraph("  disputed", VALUES_AT, &line)?;
    }
    if let Some(note) = fields.get("note").and_then(Value::as_str) {
        printer.paragraph("  note", VALUES_AT, note)?;
    }
    Ok(())
}

/// Fields that [`print`] formats separately.
const SPECIAL_FIELDS: [&str; 4] = ["unverified", "disputed", "note", "origin"];

fn print_fields(
    fields: &Map<String, Value>,
    group: &str,
    unverified: &[String],
    printer: &mut Printer,
) -> anyhow::Result<()> {
    for (key, value) in fields {
        let path = if group.is_empty() { key.clone() } else { format!("{group}.{key}") };
        let empty = value.is_null() || value.as_array().is_some_and(Vec::is_empty);
        if SPECIAL_FIELDS.contains(&key.as_str()) || empty {
            continue;
        }
        match value {
            Value::Object(inner) if inner.contains_key("origin") => {
                print_fields(inner, &path, unverified, printer)?;
            }
            value => {
                let mark = if unverified.contains(&path) { " (unverified)" } else { "" };
                let text = format!("{}{mark}", plain(value));
                printer.paragraph(&format!("  {path}"), VALUES_AT, &text)?;
            }
        }
    }
    if let Some(origin) = fields.get("origin") {
        let text = |key: &str| origin[key].as_str().unwrap_or_default();
        let source = texts(origin.get("source")).join("; ");
        let label =
            if group.is_empty() { "  source".to_owned() } else { format!("  {group}: source") };
        let line = format!("{} ({}, read {})", source, text("kind"), text("retrieved"));
        printer.paragraph(&label, VALUES_AT, &line)?;
    }
    Ok(())
}

fn texts(value: Option<&Value>) -> Vec<String> {
    let items = value.and_then(Value::as_array).into_iter().flatten();
    items.filter_map(Value::as_str).map(str::to_owned).collect()
}

/// A value without JSON quotes and braces.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => match number.as_f64() {
            Some(float) if float.fract() == 0.0 => format!("{float:.0}"),
            _ => number.to_string(),
        },
        Value::Array(items) => items.iter().map(plain).collect::<Vec<_>>().join(", "),
        Value::Object(fields) => fields
            .iter()
            .filter(|(key, value)| !value.is_null() && *key != "origin")
            .map(|(key, value)| format!("{key} {}", plain(value)))
            .collect::<Vec<_>>()
            .join(" "),
        other => other.to_string(),
    }
}
