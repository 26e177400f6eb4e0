//! Findings travel as the JSON that the agent's journal has: one form, with one version of it to keep readable.

use farrier_fleet::health::{Change, Evidence, Finding, SERVER_FINDING_ID, Subject};

use super::{FormError, within};
use crate::limits::{
    EVIDENCE_MAX, FINDINGS_BYTES_MAX, FINDINGS_MAX, NAME_BYTES_MAX, TEXT_BYTES_MAX,
};

/// Reads the changes of a record. A number that JSON does not have (it writes `null` for it) is refused.
pub fn changes(json: &[u8]) -> Result<Vec<Change>, FormError> {
    within("changes", json.len(), FINDINGS_BYTES_MAX)?;
    let changes: Vec<Change> = serde_json::from_slice(json).map_err(FormError::Findings)?;
    within("changes", changes.len(), FINDINGS_MAX)?;
    for change in &changes {
        let finding = change.finding();
        bounded(finding)?;
        if finding.is_open() == matches!(change, Change::Cleared(_)) {
            return Err(FormError::Contradiction(finding.id));
        }
    }
    Ok(changes)
}

/// Reads all open findings.
pub fn open_findings(json: &[u8]) -> Result<Vec<Finding>, FormError> {
    within("findings", json.len(), FINDINGS_BYTES_MAX)?;
    let findings: Vec<Finding> = serde_json::from_slice(json).map_err(FormError::Findings)?;
    within("findings", findings.len(), FINDINGS_MAX)?;
    for finding in &findings {
        bounded(finding)?;
        if !finding.is_open() {
            return Err(FormError::Contradiction(finding.id));
        }
    }
    Ok(findings)
}

fn bounded(finding: &Finding) -> Result<(), FormError> {
    let name = |what, text: &str| within(what, text.len(), NAME_BYTES_MAX);
    let text = |what, text: &str| within(what, text.len(), TEXT_BYTES_MAX);
    if finding.id >= SERVER_FINDING_ID {
        return Err(FormError::ReservedId(finding.id));
    }
    name("code", &finding.code)?;
    text("detail", &finding.detail)?;
    text("text", &finding.text)?;
    text("clears", &finding.clears)?;
    text("remedy", finding.remedy.as_deref().unwrap_or_default())?;
    text("cleared", finding.cleared.as_ref().map_or("", |it| &it.why))?;
    match &finding.subject {
        Subject::Gpu(gpu) | Subject::Link { gpu, .. } => name("subject", &gpu.0)?,
        Subject::Nic { device, .. } => name("subject", device)?,
        Subject::Pci(address) => name("subject", address)?,
        Subject::Node | Subject::Agent => (),
    }
    within("evidence", finding.evidence.len(), EVIDENCE_MAX)?;
    finding.evidence.iter().try_for_each(|evidence| match evidence {
        Evidence::Signal { text: said, .. } | Evidence::Check { text: said, .. } => {
            text("evidence", said)
        }
        Evidence::Kernel { text: said, line, .. } => {
            text("evidence", said)?;
            text("evidence", line)
        }
    })
}

/// Writes the changes of a record; none: they are too many to be said at once, or have a number that JSON has not.
pub fn changes_json(all: &[Change]) -> Option<Vec<u8>> {
    let bytes = serde_json::to_vec(all).ok()?;
    changes(&bytes).ok().map(|_| bytes)
}

/// Writes all open findings. Where they are too many first their evidence goes, then the least severe.
pub fn findings_json(all: impl IntoIterator<Item = Finding>) -> Vec<u8> {
    let mut findings: Vec<Finding> = all.into_iter().collect();
    let fits = |findings: &[Finding]| {
        let bytes = serde_json::to_vec(findings).ok()?;
        open_findings(&bytes).is_ok().then_some(bytes)
    };
    if let Some(bytes) = fits(&findings) {
        return bytes;
    }
    for finding in &mut findings {
        finding.evidence.clear();
    }
    // One that cannot be said alone is not said at all.
    findings.retain(|finding| fits(std::slice::from_ref(finding)).is_some());
    findings.sort_by_key(|finding| (std::cmp::Reverse(finding.severity), finding.id));
    loop {
        if let Some(bytes) = fits(&findings) {
            return bytes;
        }
        findings.truncate(findings.len() / 2);
    }
}
