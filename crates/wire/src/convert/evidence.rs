//! Converts evidence.

use farrier_facts::node::Reading;
use farrier_fleet::health::{Evidence, GpuUuid, NvmlXid, Signal};

use super::finding::{nanoseconds, required, time};
use super::read_error::{read_error, read_error_message};
use super::{ConvertError, within};
use crate::limits::NAME_BYTES_MAX;
use crate::proto;
use crate::proto::evidence::What;
use crate::proto::reading;

pub(super) fn evidence(message: proto::Evidence) -> Result<Evidence, ConvertError> {
    let at = time("at_ns", message.at_ns)?;
    Ok(match required("evidence", message.what)? {
        What::Signal(message) => Evidence::Signal {
            signal: signal(&required("signal", message.signal)?)?,
            text: message.text,
            measure: message.measure,
            value: value(required("value", message.value)?)?,
            limit: required("limit", message.limit)?,
            note: message.note,
            at,
        },
        What::Kernel(message) => Evidence::Kernel {
            text: required("text", message.text)?,
            line: message.line,
            pid: message.pid,
            process: message.process,
            at,
        },
        What::Nvml(message) => {
            let code = required("xid", message.xid)?;
            let gpu = GpuUuid(required("gpu", message.gpu)?);
            let xid = NvmlXid { code, gpu, index: message.index };
            Evidence::Nvml { xid, text: required("text", message.text)?, at }
        }
        What::Check(message) => Evidence::Check { text: required("text", message.text)?, at },
    })
}

pub(super) fn evidence_message(evidence: Evidence) -> proto::Evidence {
    let (what, at) = match evidence {
        Evidence::Signal { signal, text, measure, value, limit, note, at } => {
            let signal = Some(signal.name().to_owned());
            let (value, limit) = (Some(value_message(value)), Some(limit));
            (What::Signal(proto::SignalEvidence { signal, text, measure, value, limit, note }), at)
        }
        Evidence::Kernel { text, line, pid, process, at } => {
            (What::Kernel(proto::KernelEvidence { text: Some(text), line, pid, process }), at)
        }
        Evidence::Nvml { xid: NvmlXid { code, gpu, index }, text, at } => {
            let (xid, gpu, text) = (Some(code), Some(gpu.0), Some(text));
            (What::Nvml(proto::NvmlEvidence { xid, gpu, index, text }), at)
        }
        Evidence::Check { text, at } => {
            (What::Check(proto::CheckEvidence { text: Some(text) }), at)
        }
    };
    proto::Evidence { at_ns: Some(nanoseconds(at)), what: Some(what) }
}

/// Parses the name of a signal. Checks the length first, because the parse error contains the name.
fn signal(name: &str) -> Result<Signal, ConvertError> {
    within("signal", name.len(), NAME_BYTES_MAX)?;
    Ok(name.parse()?)
}

fn value(message: proto::Reading) -> Result<Reading<f64>, ConvertError> {
    Ok(match required("value", message.what)? {
        reading::What::Value(value) => Reading::Value(value),
        reading::What::Absent(_) => Reading::Absent,
        reading::What::Unreadable(err) => Reading::Unreadable(read_error(err)?),
    })
}

fn value_message(value: Reading<f64>) -> proto::Reading {
    let what = match value {
        Reading::Value(value) => reading::What::Value(value),
        Reading::Absent => reading::What::Absent(proto::Empty {}),
        Reading::Unreadable(err) => reading::What::Unreadable(read_error_message(err)),
    };
    proto::Reading { what: Some(what) }
}
