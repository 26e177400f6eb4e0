//! `farrier facts xid`

use farrier_facts::FactSet;
use farrier_facts::xid::{Sxid, Xid};
use serde_json::Value;

use super::{Lookup, print_json, record, unknown};
use crate::cli::Output;
use crate::fact_sets;
use crate::printer::Printer;

pub(super) fn run(set: &FactSet, lookup: &Lookup, printer: &mut Printer) -> anyhow::Result<()> {
    let name = lookup.name.as_deref();
    let xids: Vec<&Xid> =
        set.xids.xid.iter().filter(|xid| name.is_none_or(|name| is_xid(xid, name))).collect();
    let sxids: Vec<&Sxid> =
        set.xids.sxid.iter().filter(|sxid| name.is_none_or(|name| is_sxid(sxid, name))).collect();
    if let Some(name) = name
        && xids.is_empty()
        && sxids.is_empty()
    {
        let known = set.xids.xid.iter().flat_map(|xid| &xid.mnemonic).map(String::as_str);
        return Err(unknown("xid", name, known));
    }
    if lookup.output == Output::Json {
        let xids = xids.iter().map(serde_json::to_value);
        let sxids = sxids.iter().map(|sxid| with_verdict(sxid));
        let all: Vec<Value> = xids.chain(sxids).collect::<Result<_, _>>()?;
        return print_json(set, "xid", &all, printer);
    }
    if name.is_some() {
        for xid in xids {
            record::print(&format!("Xid {}: {}", xid.code, xid.title()), xid, printer)?;
            printer.paragraph("  what to do", record::VALUES_AT, &set.xids.describe(xid))?;
            if let Some(other) = xid.disagreement() {
                let line = format!("{other}; not used, NVIDIA's catalogue takes precedence");
                printer.paragraph("  disputed", record::VALUES_AT, &line)?;
            }
        }
        for sxid in sxids {
            let title = format!("SXid {}: {}", sxid.code, sxid.name);
            record::print(&title, &with_verdict(sxid)?, printer)?;
            printer.paragraph("  what to do", record::VALUES_AT, &sxid.verdict().text)?;
        }
    } else {
        let headings = ["Xid", "Meaning", "Severity", "Action", "NVIDIA: first, then"];
        let rows: Vec<Vec<String>> = xids
            .iter()
            .map(|xid| {
                vec![
                    xid.code.to_string(),
                    xid.title(),
                    xid.severity.to_string(),
                    xid.action.to_string(),
                    xid.buckets(),
                ]
            })
            .collect();
        printer.table(&headings, &rows)?;
        printer.line("")?;
        printer.line(&format!("plus {} NVSwitch SXids: `farrier facts xid 24007`", sxids.len()))?;
    }
    fact_sets::print(&set.set, printer)?;
    Ok(())
}

/// Adds the severity and action that `farrier decode` assigns to an SXid record. An Xid record
/// already has both fields.
fn with_verdict(sxid: &Sxid) -> serde_json::Result<Value> {
    let mut record = serde_json::to_value(sxid)?;
    let verdict = sxid.verdict();
    record["severity"] = serde_json::to_value(verdict.severity)?;
    record["action"] = serde_json::to_value(verdict.action)?;
    Ok(record)
}

/// Matches `79`, `Xid 79`, or the driver's mnemonic.
fn is_xid(xid: &Xid, name: &str) -> bool {
    code(name, "xid") == Some(xid.code)
        || xid.mnemonic.iter().any(|mnemonic| mnemonic.eq_ignore_ascii_case(name))
}

/// Matches `24007` or `SXid 24007`.
fn is_sxid(sxid: &Sxid, name: &str) -> bool {
    code(name, "sxid") == Some(sxid.code)
}

fn code(name: &str, prefix: &str) -> Option<u32> {
    let name = name.trim().to_ascii_lowercase();
    name.strip_prefix(prefix).unwrap_or(&name).trim().parse().ok()
}
