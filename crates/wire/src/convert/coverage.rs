//! Converts coverage reports. A coverage gap matters more than its details, so an unknown source or
//! cause is not an error.

use farrier_facts::node::ReadError;
use farrier_fleet::fleet::coverage::{
    CoverageReport, GAP_NAMES_MAX, GAPS_MAX, GapNames, GapSource, NodeCoverageGap,
};
use farrier_fleet::health::{GpuUuid, Subject};
use jiff::{SignedDuration, Timestamp};
use prost::Message;

use super::finding::{required, subject, subject_message};
use super::inventory::escape;
use super::read_error::{read_error, read_error_message};
use super::{ConvertError, within};
use crate::limits::{GAP_CAUSE_BYTES_MAX, NAME_BYTES_MAX};
use crate::proto;
use crate::proto::coverage_gap::Source;

/// Decodes a report that arrived at `now`.
pub fn coverage(message: proto::Coverage, now: Timestamp) -> Result<CoverageReport, ConvertError> {
    within("gaps", message.gaps.len(), GAPS_MAX)?;
    let gaps = message.gaps.into_iter().map(|gap| decode(gap, now));
    Ok(CoverageReport { gaps: gaps.collect::<Result<_, _>>()?, more: message.more })
}

fn decode(message: proto::CoverageGap, now: Timestamp) -> Result<NodeCoverageGap, ConvertError> {
    let age = SignedDuration::from_millis(i64::try_from(message.age_ms).unwrap_or(i64::MAX));
    Ok(NodeCoverageGap {
        subject: bounded_subject(subject(required("subject", message.subject)?)?)?,
        source: message.source.map_or(Ok(GapSource::Unknown), source)?,
        cause: cause(message.cause),
        since: now.checked_sub(age).unwrap_or(Timestamp::MIN).max(Timestamp::UNIX_EPOCH),
    })
}

fn bounded_subject(subject: Subject) -> Result<Subject, ConvertError> {
    let name = |text: String| within("subject", text.len(), NAME_BYTES_MAX).map(|()| escape(text));
    Ok(match subject {
        Subject::Gpu(gpu) => Subject::Gpu(GpuUuid(name(gpu.0)?)),
        Subject::Link { gpu, link } => Subject::Link { gpu: GpuUuid(name(gpu.0)?), link },
        Subject::Nic { device, port } => Subject::Nic { device: name(device)?, port },
        Subject::Pci(address) => Subject::Pci(name(address)?),
        Subject::Node | Subject::Agent => subject,
    })
}

fn source(source: Source) -> Result<GapSource, ConvertError> {
    Ok(match source {
        Source::Nvml(_) => GapSource::Nvml,
        Source::Gpus(proto::GpusOpened { opened, on_bus }) => GapSource::Gpus { opened, on_bus },
        Source::Gpu(_) => GapSource::Gpu,
        Source::Signals(message) => GapSource::Signals(names(message)?),
        Source::Peers(_) => GapSource::Peers,
        Source::KernelLog(_) => GapSource::KernelLog,
        Source::Journal(_) => GapSource::Journal,
        Source::Collectors(message) => GapSource::Collectors(names(message)?),
        Source::Monitor(_) => GapSource::Monitor,
        Source::NodeCheck(_) => GapSource::NodeCheck,
        Source::Check(check) => {
            within("check", check.len(), NAME_BYTES_MAX)?;
            GapSource::Check { check: escape(check) }
        }
    })
}

fn names(message: proto::GapNames) -> Result<GapNames, ConvertError> {
    within("names", message.first.len(), GAP_NAMES_MAX)?;
    let first = message.first.into_iter().map(|name| {
        within("name", name.len(), NAME_BYTES_MAX)?;
        Ok(escape(name))
    });
    Ok(GapNames { first: first.collect::<Result<_, ConvertError>>()?, more: message.more })
}

/// Decodes the cause of a gap. Converts a cause to text if this server does not know the cause or
/// if it is too long.
fn cause(message: Option<proto::ReadError>) -> ReadError {
    let unknown = || ReadError::malformed("for a reason that this server does not know");
    let Some(message) = message else { return unknown() };
    let is_long = message.encoded_len() > GAP_CAUSE_BYTES_MAX;
    let Ok(cause) = read_error(message) else { return unknown() };
    let text = cause.to_string();
    let escaped = escape(text.clone());
    if !is_long && escaped == text {
        return cause;
    }
    ReadError::malformed(cut(&escaped))
}

/// Cuts a text so that it fits into a cause.
fn cut(text: &str) -> String {
    let limit = GAP_CAUSE_BYTES_MAX - 32;
    if text.len() <= limit {
        return text.to_owned();
    }
    let end = (0..=limit).rev().find(|at| text.is_char_boundary(*at)).unwrap_or_default();
    format!("{}…", &text[..end])
}

/// Encodes the coverage of a node: the first gaps, up to the limit, each with its age.
pub fn coverage_message<'g>(
    gaps: impl ExactSizeIterator<Item = (&'g Subject, &'g GapSource, &'g ReadError, u64)>,
) -> proto::Coverage {
    let more = u32::try_from(gaps.len().saturating_sub(GAPS_MAX)).unwrap_or(u32::MAX);
    let message = |(subject, source, cause, age_ms): (&Subject, &GapSource, &ReadError, u64)| {
        let mut cause_message = read_error_message(cause.clone());
        if cause_message.encoded_len() > GAP_CAUSE_BYTES_MAX {
            cause_message = read_error_message(ReadError::malformed(cut(&cause.to_string())));
        }
        proto::CoverageGap {
            subject: Some(subject_message(subject.clone())),
            cause: Some(cause_message),
            age_ms,
            source: source_message(source.clone()),
        }
    };
    proto::Coverage { gaps: gaps.take(GAPS_MAX).map(message).collect(), more }
}

fn source_message(source: GapSource) -> Option<Source> {
    let empty = proto::Empty {};
    let names = |names: GapNames| proto::GapNames { first: names.first, more: names.more };
    Some(match source {
        GapSource::Nvml => Source::Nvml(empty),
        GapSource::Gpus { opened, on_bus } => Source::Gpus(proto::GpusOpened { opened, on_bus }),
        GapSource::Gpu => Source::Gpu(empty),
        GapSource::Signals(signals) => Source::Signals(names(signals)),
        GapSource::Peers => Source::Peers(empty),
        GapSource::KernelLog => Source::KernelLog(empty),
        GapSource::Journal => Source::Journal(empty),
        GapSource::Collectors(collectors) => Source::Collectors(names(collectors)),
        GapSource::Monitor => Source::Monitor(empty),
        GapSource::NodeCheck => Source::NodeCheck(empty),
        GapSource::Check { check } => Source::Check(check),
        GapSource::Unknown => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Timestamp {
        Timestamp::from_second(1_800_000_000).unwrap()
    }

    fn gpu() -> Subject {
        Subject::Gpu(GpuUuid("GPU-1".to_owned()))
    }

    fn sent(source: &GapSource, cause: &ReadError) -> NodeCoverageGap {
        let gap = (&gpu(), source, cause, 90_000);
        let message = coverage_message([gap].into_iter());
        coverage(message, now()).unwrap().gaps.remove(0)
    }

    #[test]
    fn every_source_survives_the_wire_with_its_age_on_the_servers_clock() {
        let names = || GapNames::new(["a", "b", "c", "d", "e"].map(str::to_owned));
        for source in [
            GapSource::Nvml,
            GapSource::Gpus { opened: 7, on_bus: 8 },
            GapSource::Gpu,
            GapSource::Signals(names()),
            GapSource::Peers,
            GapSource::KernelLog,
            GapSource::Journal,
            GapSource::Collectors(names()),
            GapSource::Monitor,
            GapSource::NodeCheck,
            GapSource::Check { check: "ecc-pending".to_owned() },
            GapSource::Unknown,
        ] {
            let gap = sent(&source, &ReadError::nvml(999));
            assert_eq!((gap.source, gap.cause), (source, ReadError::nvml(999)));
            assert_eq!(gap.since, Timestamp::from_second(1_800_000_000 - 90).unwrap());
        }
    }

    #[test]
    fn a_cause_that_the_server_does_not_know_keeps_the_gap() {
        let message = proto::CoverageGap {
            subject: Some(subject_message(gpu())),
            cause: Some(proto::ReadError { what: None }),
            age_ms: u64::MAX,
            source: None,
        };
        let report = proto::Coverage { gaps: vec![message], more: 0 };
        let gap = coverage(report, now()).unwrap().gaps.remove(0);
        assert_eq!((gap.source, gap.since), (GapSource::Unknown, Timestamp::UNIX_EPOCH));
        assert!(matches!(gap.cause, ReadError::Malformed { .. }));
    }

    #[test]
    fn reports_are_bounded() {
        let source = GapSource::Gpu;
        let cause = ReadError::NoLibrary { detail: "\u{202e}ä".repeat(4000) };
        let subject = gpu();
        let gaps = vec![(&subject, &source, &cause, 0); GAPS_MAX + 3];
        let message = coverage_message(gaps.into_iter());
        assert!(message.encoded_len() < GAPS_MAX * 1024, "{}", message.encoded_len());
        let report = coverage(message.clone(), now()).unwrap();
        assert_eq!((report.gaps.len(), report.more), (GAPS_MAX, 3));
        let text = report.gaps[0].cause.to_string();
        assert!(text.len() < 600 && !text.contains('\u{202e}'), "{text}");
        let mut too_many = message.clone();
        too_many.gaps.push(message.gaps[0].clone());
        assert!(coverage(too_many, now()).is_err());
        let mut long = message.clone();
        long.gaps[0].source = Some(Source::Check("x".repeat(NAME_BYTES_MAX + 1)));
        assert!(coverage(long, now()).is_err());
        let mut names = message;
        let first = vec!["x".to_owned(); GAP_NAMES_MAX + 1];
        names.gaps[0].source = Some(Source::Signals(proto::GapNames { first, more: 0 }));
        assert!(coverage(names, now()).is_err());
    }
}
