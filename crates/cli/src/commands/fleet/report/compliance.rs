//! `farrier fleet report --compliance`: a list for auditors.

use farrier_fleet::fleet::event::NodeCompliance;
use farrier_wire::rest::NodeRow;
use serde_json::json;

use super::super::export;
use super::super::session::{FleetSession, Path};
use crate::cli::Output;
use crate::commands::Outcome;
use crate::printer::Printer;

pub(super) fn run(
    session: &mut FleetSession,
    output: Output,
    printer: &mut Printer,
) -> anyhow::Result<Outcome> {
    let path = Path::new("/api/v1/export").with("data", Some("state"));
    let mut rows = Vec::new();
    export::read_lines(session, &path, |line| {
        let node: NodeRow = serde_json::from_value(line)?;
        let compliance = node.compliance.unwrap_or_default();
        if output == Output::Json {
            printer.json_line(&json!({ "node": node.node, "compliance": compliance }))?;
        } else {
            let mut row = vec![node.node.to_string()];
            row.extend(cells(&compliance));
            rows.push(row);
        }
        Ok(())
    })?;
    if output == Output::Table {
        let headings = ["Node", "TPM", "Secure Boot", "Volumes encrypted", "Image policy"];
        printer.table(&headings, &rows)?;
    }
    Ok(Outcome::Fine)
}

fn cells(compliance: &NodeCompliance) -> [String; 4] {
    let flag = |flag: Option<bool>| match flag {
        Some(true) => "yes".to_owned(),
        Some(false) => "no".to_owned(),
        None => "unknown".to_owned(),
    };
    [
        flag(compliance.tpm),
        flag(compliance.secure_boot),
        flag(compliance.volumes_encrypted),
        compliance.image_policy.clone().unwrap_or_else(|| "unknown".to_owned()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_is_not_no() {
        let known = NodeCompliance { tpm: Some(false), ..NodeCompliance::default() };
        assert_eq!(cells(&known), ["no", "unknown", "unknown", "unknown"]);
    }
}
