//! Reports of findings, and their limits. Each finding is encoded and decoded separately, so a
//! report is refused at the first finding that does not fit.

use std::cmp::Reverse;

use farrier_fleet::health::{Change, Evidence, Finding, SERVER_FINDING_ID, Subject};
use prost::Message;
use prost::bytes::Bytes;

use super::finding::{from_message, to_message};
use super::{ConvertError, within};
use crate::limits::{
    EVIDENCE_MAX, FINDINGS_BYTES_MAX, FINDINGS_MAX, LOGGED_BYTES_MAX, NAME_BYTES_MAX,
    TEXT_BYTES_MAX,
};
use crate::proto;

/// Decodes the changes of a record.
pub fn changes(message: proto::Changes) -> Result<Vec<Change>, ConvertError> {
    let what = "changes";
    check_total_bytes(what, &message.changes)?;
    let mut logged = 0;
    let each = message.changes.into_iter().map(|encoded| {
        let proto::Change { kind, finding } = proto::Change::decode(encoded)?;
        let finding = from_message(finding.ok_or(ConvertError::Missing("finding"))?)?;
        check_limits(&finding, &mut logged)?;
        let is_open = finding.is_open();
        let id = finding.id;
        let change = match enum_value("change", kind)? {
            proto::ChangeKind::Opened => Change::Opened(finding),
            proto::ChangeKind::Updated => Change::Updated(finding),
            proto::ChangeKind::Cleared => Change::Cleared(finding),
            proto::ChangeKind::Unspecified => return Err(unknown_value("change", kind)),
        };
        if is_open == matches!(change, Change::Cleared(_)) {
            return Err(ConvertError::Contradiction(id));
        }
        Ok(change)
    });
    each.collect()
}

/// Decodes a report of all open findings.
pub fn open_findings(message: proto::Findings) -> Result<Vec<Finding>, ConvertError> {
    check_total_bytes("findings", &message.open)?;
    let mut logged = 0;
    let each = message.open.into_iter().map(|encoded| {
        let finding = from_message(proto::Finding::decode(encoded)?)?;
        check_limits(&finding, &mut logged)?;
        if finding.is_open() { Ok(finding) } else { Err(ConvertError::Contradiction(finding.id)) }
    });
    each.collect()
}

/// Encodes the changes of a record. Fails if the changes exceed the limits of one message.
pub fn changes_message(
    record: u64,
    after: u64,
    changes: Vec<Change>,
) -> Result<proto::Changes, ConvertError> {
    let mut logged = 0;
    let each = changes.into_iter().map(|change| {
        let (kind, finding) = match change {
            Change::Opened(finding) => (proto::ChangeKind::Opened, finding),
            Change::Updated(finding) => (proto::ChangeKind::Updated, finding),
            Change::Cleared(finding) => (proto::ChangeKind::Cleared, finding),
        };
        check_limits(&finding, &mut logged)?;
        let change = proto::Change { kind: kind.into(), finding: Some(to_message(finding)) };
        Ok(change.encode_to_vec().into())
    });
    let changes: Vec<Bytes> = each.collect::<Result<_, ConvertError>>()?;
    check_total_bytes("changes", &changes)?;
    Ok(proto::Changes { record, after, changes })
}

/// Encodes a report of all open findings. If the findings exceed the limits of one message, drops
/// all evidence. If that is not enough, also drops the least severe findings.
pub fn findings_message(
    record: u64,
    findings: impl IntoIterator<Item = Finding>,
) -> proto::Findings {
    let mut findings: Vec<Finding> = findings.into_iter().collect();
    if let Some(open) = encode_all(&findings) {
        return proto::Findings { record, open };
    }
    findings.sort_by_key(|finding| (Reverse(finding.severity), finding.id));
    let (mut open, mut bytes, mut logged) = (Vec::new(), 0, 0);
    for mut finding in findings.into_iter().take(FINDINGS_MAX) {
        finding.evidence.clear();
        // Skip a finding that exceeds the limits by itself.
        if check_limits(&finding, &mut 0).is_err() {
            continue;
        }
        let fits_log = check_limits(&finding, &mut logged).is_ok();
        let encoded = Bytes::from(to_message(finding).encode_to_vec());
        bytes += field_bytes(&encoded);
        if !fits_log || bytes > FINDINGS_BYTES_MAX {
            break;
        }
        open.push(encoded);
    }
    proto::Findings { record, open }
}

/// Encodes all findings with their evidence. Returns `None` if the findings exceed the limits of
/// one message.
fn encode_all(findings: &[Finding]) -> Option<Vec<Bytes>> {
    let mut logged = 0;
    let each = findings.iter().map(|finding| {
        check_limits(finding, &mut logged).ok()?;
        Some(to_message(finding.clone()).encode_to_vec().into())
    });
    let open: Vec<Bytes> = each.collect::<Option<_>>()?;
    check_total_bytes("findings", &open).is_ok().then_some(open)
}

/// Checks the number and the total size of encoded findings before any of them is decoded.
fn check_total_bytes(what: &'static str, encoded: &[Bytes]) -> Result<(), ConvertError> {
    within(what, encoded.len(), FINDINGS_MAX)?;
    within(what, encoded.iter().map(field_bytes).sum(), FINDINGS_BYTES_MAX)
}

/// Size of the encoded field, including the tag and the length prefix.
fn field_bytes(encoded: &Bytes) -> usize {
    1 + prost::length_delimiter_len(encoded.len()) + encoded.len()
}

/// Checks the limits of a finding. Adds the estimated size of the finding in the log to `logged`.
fn check_limits(finding: &Finding, logged: &mut usize) -> Result<(), ConvertError> {
    let name = |what, text: &str| within(what, text.len(), NAME_BYTES_MAX);
    let text = |what, text: &str| within(what, text.len(), TEXT_BYTES_MAX);
    if finding.id >= SERVER_FINDING_ID {
        return Err(ConvertError::ReservedId(finding.id));
    }
    name("code", &finding.code)?;
    text("detail", &finding.detail)?;
    text("text", &finding.text)?;
    text("clears", &finding.clears_when)?;
    text("remedy", finding.remedy.as_deref().unwrap_or_default())?;
    text("cleared", finding.cleared.as_ref().map_or("", |cleared| &cleared.reason))?;
    for moment in [&finding.opened_in, &finding.last_in].into_iter().flatten() {
        name("boot", &moment.boot)?;
    }
    match &finding.subject {
        Subject::Gpu(gpu) | Subject::Link { gpu, .. } => name("subject", &gpu.0)?,
        Subject::Nic { device, .. } => name("subject", device)?,
        Subject::Pci(address) => name("subject", address)?,
        Subject::Node | Subject::Agent => (),
    }
    within("evidence", finding.evidence.len(), EVIDENCE_MAX)?;
    finding.evidence.iter().try_for_each(check_evidence_limits)?;
    *logged += finding.estimated_bytes();
    within("findings", *logged, LOGGED_BYTES_MAX)
}

fn check_evidence_limits(evidence: &Evidence) -> Result<(), ConvertError> {
    let text = |text: &str| within("evidence", text.len(), TEXT_BYTES_MAX);
    let finite = |number: f64| {
        if number.is_finite() { Ok(()) } else { Err(ConvertError::NotFinite("evidence")) }
    };
    match evidence {
        Evidence::Signal { text: description, measure, value, limit, note, .. } => {
            text(description)?;
            text(measure)?;
            text(note.as_deref().unwrap_or_default())?;
            text(&value.why_unreadable().map(ToString::to_string).unwrap_or_default())?;
            finite(value.value().copied().unwrap_or_default())?;
            finite(*limit)
        }
        Evidence::Kernel { text: description, line, process, .. } => {
            text(description)?;
            text(line)?;
            text(process.as_deref().unwrap_or_default())
        }
        Evidence::Nvml { xid, text: description, .. } => {
            within("evidence", xid.gpu.0.len(), NAME_BYTES_MAX)?;
            text(description)
        }
        Evidence::Check { text: description, .. } => text(description),
    }
}

/// Returns an error if an enum value is unknown.
pub(super) fn enum_value<T: TryFrom<i32>>(
    what: &'static str,
    value: i32,
) -> Result<T, ConvertError> {
    T::try_from(value).map_err(|_| unknown_value(what, value))
}

pub(super) fn unknown_value(what: &'static str, value: i32) -> ConvertError {
    ConvertError::UnknownValue { what, value }
}
