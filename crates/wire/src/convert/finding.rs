//! Converts findings. Texts are moved and not copied. A missing required field is an error.

use farrier_fleet::health::finding::{ActionBy, Cleared, InBoot};
use farrier_fleet::health::{Action, Finding, FindingKind, GpuUuid, Severity, Subject};
use jiff::Timestamp;

use super::ConvertError;
use super::evidence::{evidence, evidence_message};
use super::findings::{enum_value, unknown_value};
use crate::proto;
use crate::proto::subject::What;

/// Decodes a finding. Does not check its limits.
pub(super) fn from_message(message: proto::Finding) -> Result<Finding, ConvertError> {
    let default_severity = message.own_severity.map(severity).transpose()?;
    let evidence = message.evidence.into_iter().map(evidence).collect::<Result<_, _>>()?;
    Ok(Finding {
        id: required("id", message.id)?,
        code: required("code", message.code)?,
        detail: message.detail,
        subject: subject(required("subject", message.subject)?)?,
        kind: match enum_value("kind", message.kind)? {
            proto::FindingKind::Fault => FindingKind::Fault,
            proto::FindingKind::Advice => FindingKind::Advice,
            proto::FindingKind::Unspecified => return Err(unknown_value("kind", message.kind)),
        },
        severity: severity(message.severity)?,
        default_severity,
        text: required("text", message.text)?,
        action: action(message.action)?,
        remedy: message.remedy,
        rule_action: action(message.rule_action)?,
        action_by: match enum_value("action_by", message.action_by)? {
            proto::ActionBy::Rule => ActionBy::Rule,
            proto::ActionBy::Driver => ActionBy::Driver,
            proto::ActionBy::Unspecified => {
                return Err(unknown_value("action_by", message.action_by));
            }
        },
        evidence,
        first_seen: time("first_seen_ns", message.first_seen_ns)?,
        last_seen: time("last_seen_ns", message.last_seen_ns)?,
        opened_in: message.opened_in.map(in_boot).transpose()?,
        last_in: message.last_in.map(in_boot).transpose()?,
        count: required("count", message.count)?,
        clears_when: required("clears", message.clears)?,
        cleared: message.cleared.map(cleared).transpose()?,
    })
}

pub(super) fn to_message(finding: Finding) -> proto::Finding {
    let in_boot = |moment: InBoot| proto::BootMoment {
        boot: Some(moment.boot),
        steady_ms: Some(moment.steady_ms),
    };
    let cleared = |cleared: Cleared| proto::Cleared {
        at_ns: Some(nanoseconds(cleared.at)),
        why: Some(cleared.reason),
    };
    proto::Finding {
        id: Some(finding.id),
        code: Some(finding.code),
        detail: finding.detail,
        subject: Some(subject_message(finding.subject)),
        kind: match finding.kind {
            FindingKind::Fault => proto::FindingKind::Fault,
            FindingKind::Advice => proto::FindingKind::Advice,
        }
        .into(),
        severity: severity_message(finding.severity).into(),
        own_severity: finding.default_severity.map(|severity| severity_message(severity).into()),
        text: Some(finding.text),
        action: action_message(finding.action).into(),
        remedy: finding.remedy,
        rule_action: action_message(finding.rule_action).into(),
        action_by: match finding.action_by {
            ActionBy::Rule => proto::ActionBy::Rule,
            ActionBy::Driver => proto::ActionBy::Driver,
        }
        .into(),
        evidence: finding.evidence.into_iter().map(evidence_message).collect(),
        first_seen_ns: Some(nanoseconds(finding.first_seen)),
        last_seen_ns: Some(nanoseconds(finding.last_seen)),
        opened_in: finding.opened_in.map(in_boot),
        last_in: finding.last_in.map(in_boot),
        count: Some(finding.count),
        clears: Some(finding.clears_when),
        cleared: finding.cleared.map(cleared),
    }
}

/// Returns an error if a required field is missing.
pub(super) fn required<T>(what: &'static str, value: Option<T>) -> Result<T, ConvertError> {
    value.ok_or(ConvertError::Missing(what))
}

pub(super) fn time(what: &'static str, value: Option<i64>) -> Result<Timestamp, ConvertError> {
    let value = required(what, value)?;
    Timestamp::from_nanosecond(value.into()).map_err(|err| ConvertError::Time { what, err })
}

/// Converts a date to nanoseconds since 1970. An earlier date than 1677 or a later date than 2262
/// comes from a wrong clock. Such a date is replaced by the nearest valid date, so that the finding
/// is not lost.
pub(super) fn nanoseconds(at: Timestamp) -> i64 {
    let end = if at < Timestamp::UNIX_EPOCH { i64::MIN } else { i64::MAX };
    i64::try_from(at.as_nanosecond()).unwrap_or(end)
}

fn in_boot(message: proto::BootMoment) -> Result<InBoot, ConvertError> {
    let boot = required("boot", message.boot)?;
    Ok(InBoot { boot, steady_ms: required("steady_ms", message.steady_ms)? })
}

fn cleared(message: proto::Cleared) -> Result<Cleared, ConvertError> {
    Ok(Cleared { at: time("at_ns", message.at_ns)?, reason: required("why", message.why)? })
}

pub(super) fn subject(message: proto::Subject) -> Result<Subject, ConvertError> {
    Ok(match required("subject", message.what)? {
        What::Node(_) => Subject::Node,
        What::Agent(_) => Subject::Agent,
        What::Gpu(gpu) => Subject::Gpu(GpuUuid(gpu)),
        What::Link(proto::Link { gpu, link }) => {
            let gpu = GpuUuid(required("gpu", gpu)?);
            Subject::Link { gpu, link: required("link", link)? }
        }
        What::Nic(proto::NicPort { device, port }) => {
            Subject::Nic { device: required("device", device)?, port: required("port", port)? }
        }
        What::Pci(address) => Subject::Pci(address),
    })
}

pub(super) fn subject_message(subject: Subject) -> proto::Subject {
    let what = match subject {
        Subject::Node => What::Node(proto::Empty {}),
        Subject::Agent => What::Agent(proto::Empty {}),
        Subject::Gpu(gpu) => What::Gpu(gpu.0),
        Subject::Link { gpu, link } => {
            What::Link(proto::Link { gpu: Some(gpu.0), link: Some(link) })
        }
        Subject::Nic { device, port } => {
            What::Nic(proto::NicPort { device: Some(device), port: Some(port) })
        }
        Subject::Pci(address) => What::Pci(address),
    };
    proto::Subject { what: Some(what) }
}

fn severity(value: i32) -> Result<Severity, ConvertError> {
    Ok(match enum_value("severity", value)? {
        proto::Severity::Info => Severity::Info,
        proto::Severity::Warning => Severity::Warning,
        proto::Severity::Critical => Severity::Critical,
        proto::Severity::Fatal => Severity::Fatal,
        proto::Severity::Unspecified => return Err(unknown_value("severity", value)),
    })
}

fn severity_message(severity: Severity) -> proto::Severity {
    match severity {
        Severity::Info => proto::Severity::Info,
        Severity::Warning => proto::Severity::Warning,
        Severity::Critical => proto::Severity::Critical,
        Severity::Fatal => proto::Severity::Fatal,
    }
}

fn action(value: i32) -> Result<Action, ConvertError> {
    Ok(match enum_value("action", value)? {
        proto::Action::Ignore => Action::Ignore,
        proto::Action::RestartApp => Action::RestartApp,
        proto::Action::Investigate => Action::Investigate,
        proto::Action::ResetGpu => Action::ResetGpu,
        proto::Action::RebootNode => Action::RebootNode,
        proto::Action::DrainAndReplace => Action::DrainAndReplace,
        proto::Action::Unspecified => return Err(unknown_value("action", value)),
    })
}

fn action_message(action: Action) -> proto::Action {
    match action {
        Action::Ignore => proto::Action::Ignore,
        Action::RestartApp => proto::Action::RestartApp,
        Action::Investigate => proto::Action::Investigate,
        Action::ResetGpu => proto::Action::ResetGpu,
        Action::RebootNode => proto::Action::RebootNode,
        Action::DrainAndReplace => proto::Action::DrainAndReplace,
    }
}
