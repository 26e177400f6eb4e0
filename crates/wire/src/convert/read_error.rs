//! Converts read errors.

use farrier_facts::node::{NvmlStatus, ReadError};

use super::finding::required;
use super::{ConvertError, within};
use crate::proto;
use crate::proto::PlainReadError as Plain;
use crate::proto::read_error::What;

/// How deep causes may be nested. The errors of a Farrier agent have one or two levels. JSON
/// parsers refuse deep nesting, so deeper errors could make the log unreadable.
const DEPTH_MAX: usize = 4;

pub(super) fn read_error(message: proto::ReadError) -> Result<ReadError, ConvertError> {
    at_depth(message, 1)
}

fn at_depth(message: proto::ReadError, depth: usize) -> Result<ReadError, ConvertError> {
    within("unreadable", depth, DEPTH_MAX)?;
    let inner = |err: Option<Box<proto::ReadError>>| {
        at_depth(*required("err", err)?, depth + 1).map(Box::new)
    };
    Ok(match required("unreadable", message.what)? {
        What::NvmlStatus(status) => ReadError::nvml(status),
        What::MissingCall(message) => ReadError::MissingCall { call: message.call.map(Into::into) },
        What::Errno(errno) => ReadError::Os { errno },
        What::Plain(value) => plain(value)?,
        What::TooLargeBytes(limit_bytes) => ReadError::TooLarge { limit_bytes },
        What::TooManyEntries(limit) => {
            ReadError::TooManyEntries { limit: usize::try_from(limit).unwrap_or(usize::MAX) }
        }
        What::NotTextPath(path) => ReadError::NotText { path },
        What::GpusNotOpened(message) => {
            let gpus = message.gpus.into_iter().map(|gpu| (gpu.index, NvmlStatus(gpu.nvml_status)));
            ReadError::GpusNotOpened { gpus: gpus.collect() }
        }
        What::CallHung(call) => ReadError::CallHung { call },
        What::CallStuck(message) => ReadError::CallStuck { avoid_s: message.avoid_s },
        What::DeadlineS(limit_s) => ReadError::Deadline { limit_s },
        What::Link(message) => ReadError::Link { link: message.link, err: inner(message.err)? },
        What::LinkCount(err) => ReadError::LinkCount { err: inner(Some(err))? },
        What::At(message) => {
            ReadError::At { place: message.place.into(), err: inner(message.err)? }
        }
        What::Malformed(detail) => ReadError::Malformed { detail: detail.into() },
        What::ProbeEnded(detail) => ReadError::ProbeEnded { detail },
        What::NoLibrary(detail) => ReadError::NoLibrary { detail },
        What::Unavailable(detail) => ReadError::Unavailable { detail: detail.into() },
        What::Legacy(text) => ReadError::Legacy(text),
    })
}

fn plain(value: i32) -> Result<ReadError, ConvertError> {
    Ok(match Plain::try_from(value).unwrap_or_default() {
        Plain::Unspecified => return Err(ConvertError::UnknownValue { what: "unreadable", value }),
        Plain::NotRegularFile => ReadError::NotRegularFile,
        Plain::NotALink => ReadError::NotALink,
        Plain::LinkNotUtf8 => ReadError::LinkNotUtf8,
        Plain::LinkLoop => ReadError::LinkLoop,
        Plain::NotInCapture => ReadError::NotInCapture,
        Plain::DeviceNotOpened => ReadError::DeviceNotOpened,
        Plain::NotListed => ReadError::NotListed,
        Plain::NoLongerListed => ReadError::NoLongerListed,
        Plain::NotReadSince => ReadError::NotReadSince,
        Plain::NotReadYet => ReadError::NotReadYet,
        Plain::AgentNotRunning => ReadError::AgentNotRunning,
        Plain::NotANumber => ReadError::NotANumber,
    })
}

pub(super) fn read_error_message(err: ReadError) -> proto::ReadError {
    message_at_depth(err, 1)
}

fn message_at_depth(err: ReadError, depth: usize) -> proto::ReadError {
    let plain = |plain: Plain| What::Plain(plain.into());
    let inner = |err: Box<ReadError>| {
        // Causes beyond the limit are sent as text.
        let err = if depth + 1 < DEPTH_MAX { *err } else { ReadError::malformed(err.to_string()) };
        Box::new(message_at_depth(err, depth + 1))
    };
    let what = match err {
        ReadError::Nvml { status } => What::NvmlStatus(status.0),
        ReadError::MissingCall { call } => {
            What::MissingCall(proto::MissingCall { call: call.map(Into::into) })
        }
        ReadError::Os { errno } => What::Errno(errno),
        ReadError::NotRegularFile => plain(Plain::NotRegularFile),
        ReadError::NotALink => plain(Plain::NotALink),
        ReadError::LinkNotUtf8 => plain(Plain::LinkNotUtf8),
        ReadError::LinkLoop => plain(Plain::LinkLoop),
        ReadError::TooLarge { limit_bytes } => What::TooLargeBytes(limit_bytes),
        ReadError::TooManyEntries { limit } => What::TooManyEntries(limit as u64),
        ReadError::NotText { path } => What::NotTextPath(path),
        ReadError::NotInCapture => plain(Plain::NotInCapture),
        ReadError::DeviceNotOpened => plain(Plain::DeviceNotOpened),
        ReadError::GpusNotOpened { gpus } => {
            let gpus = gpus
                .into_iter()
                .map(|(index, status)| proto::GpuNotOpened { index, nvml_status: status.0 });
            What::GpusNotOpened(proto::GpusNotOpened { gpus: gpus.collect() })
        }
        ReadError::NotListed => plain(Plain::NotListed),
        ReadError::NoLongerListed => plain(Plain::NoLongerListed),
        ReadError::CallHung { call } => What::CallHung(call),
        ReadError::CallStuck { avoid_s } => What::CallStuck(proto::CallStuck { avoid_s }),
        ReadError::Deadline { limit_s } => What::DeadlineS(limit_s),
        ReadError::NotReadSince => plain(Plain::NotReadSince),
        ReadError::NotReadYet => plain(Plain::NotReadYet),
        ReadError::AgentNotRunning => plain(Plain::AgentNotRunning),
        ReadError::NotANumber => plain(Plain::NotANumber),
        ReadError::Link { link, err } => {
            What::Link(Box::new(proto::LinkReadError { link, err: Some(inner(err)) }))
        }
        ReadError::LinkCount { err } => What::LinkCount(inner(err)),
        ReadError::At { place, err } => {
            let (place, err) = (place.into(), Some(inner(err)));
            What::At(Box::new(proto::ReadErrorAt { place, err }))
        }
        ReadError::Malformed { detail } => What::Malformed(detail.into()),
        ReadError::ProbeEnded { detail } => What::ProbeEnded(detail),
        ReadError::NoLibrary { detail } => What::NoLibrary(detail),
        ReadError::Unavailable { detail } => What::Unavailable(detail.into()),
        ReadError::Legacy(text) => What::Legacy(text),
    };
    proto::ReadError { what: Some(what) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deeply_nested_causes_are_refused_and_never_sent() {
        let mut deep = proto::ReadError { what: Some(What::Errno(5)) };
        for _ in 0..DEPTH_MAX {
            deep = proto::ReadError { what: Some(What::LinkCount(Box::new(deep))) };
        }
        assert!(matches!(read_error(deep), Err(ConvertError::TooMuch { what: "unreadable", .. })));
        let mut err = ReadError::NotListed;
        for place in ["a", "b", "c", "d", "e", "f"] {
            err = err.at(place);
        }
        let text = err.to_string();
        assert_eq!(read_error(read_error_message(err)).unwrap().to_string(), text);
    }
}
