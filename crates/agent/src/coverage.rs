//! GPUs that cannot be read completely. An unreadable signal may hide a fault, even if no rule uses
//! the signal.

use std::collections::BTreeMap;

use farrier_facts::node::{ReadError, Reading};
use farrier_fleet::health::{GpuIdentity, GpuUuid, Signal, Subject};

use crate::monitor::CoverageLoss;
use crate::state::Values;

/// Maximum number of signals that a reason names. The reason only counts the others.
const NAMED_MAX: usize = 3;

/// GPUs without any reading: either NVML does not open them, or every read fails. Rules about such
/// GPUs wait before they open a finding, because a driver opens GPUs one after the other. During
/// this wait, the coverage losses show that the health of these GPUs is unknown.
pub(crate) fn unread_gpus(values: &Values) -> Vec<CoverageLoss> {
    let mut reasons = Vec::new();
    if let Some((opened, on_bus)) = unopened_gpus(values) {
        reasons.push(format!("NVML opens {opened} of the {on_bus} GPUs on the PCI bus"));
    }
    let silent = silent_gpus(values);
    reasons.extend(silent.map(|gpu| format!("GPU {}: no NVML call reads it", gpu.index)));
    reasons.into_iter().map(|reason| CoverageLoss { source: "gpus".to_owned(), reason }).collect()
}

/// The number of GPUs that NVML opens, and the number on the PCI bus. `None` if NVML opens all of
/// them.
pub(crate) fn unopened_gpus(values: &Values) -> Option<(u32, u32)> {
    let count = |signal| values.reading(&Subject::Node, signal).and_then(Reading::value).copied();
    let (opened, on_bus) = (count(Signal::NodeGpusNvml)?, count(Signal::NodeGpusPci)?);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the number of GPUs of a node"
    )]
    (opened < on_bus).then_some((opened as u32, on_bus as u32))
}

/// Listed GPUs for which every NVML read fails.
pub(crate) fn silent_gpus(values: &Values) -> impl Iterator<Item = &GpuIdentity> {
    values.gpus.iter().filter(|gpu| is_set(values, gpu, Signal::GpuUnreadable))
}

/// Whether a finding or another gap already reports that this GPU cannot be read: the GPU is lost,
/// waits for a reset, is avoided because a call hangs, or all its reads fail.
pub(crate) fn has_finding_or_is_silent(values: &Values, uuid: &GpuUuid) -> bool {
    let listed = values.gpus.iter().find(|gpu| gpu.uuid == *uuid);
    listed.is_some_and(|gpu| has_finding(values, gpu) || is_set(values, gpu, Signal::GpuUnreadable))
}

fn has_finding(values: &Values, gpu: &GpuIdentity) -> bool {
    let faults = [Signal::GpuLost, Signal::GpuResetRequired, Signal::NodeCallsStuck];
    faults.into_iter().any(|signal| is_set(values, gpu, signal))
}

/// Unreadable signals of listed GPUs, by GPU. Skips GPUs that are lost, wait for a reset, or are
/// avoided because a call hangs, because a finding already reports these GPUs.
pub(crate) fn unreadable_signals(
    values: &Values,
) -> BTreeMap<&GpuUuid, BTreeMap<Signal, &ReadError>> {
    let mut unreadable: BTreeMap<&GpuUuid, BTreeMap<Signal, &ReadError>> = BTreeMap::new();
    for gpu in values.gpus.iter().filter(|gpu| !has_finding(values, gpu)) {
        let gpu_values =
            values.latest.iter().filter(|(subject, _)| subject.gpu() == Some(&gpu.uuid));
        for value in gpu_values.flat_map(|(_, values)| values.iter()) {
            if let Reading::Unreadable(why) = &value.reading {
                unreadable.entry(&gpu.uuid).or_default().entry(value.signal).or_insert(why);
            }
        }
    }
    unreadable
}

/// Describes the unreadable signals as coverage losses.
pub(crate) fn unread_signals(values: &Values) -> Vec<CoverageLoss> {
    let unreadable = unreadable_signals(values);
    let listed = values.gpus.iter().filter(|gpu| !is_set(values, gpu, Signal::GpuUnreadable));
    let loss = |gpu: &GpuIdentity| {
        let signals = unreadable.get(&gpu.uuid)?;
        let why = signals.values().next()?;
        let mut names: Vec<String> =
            signals.keys().take(NAMED_MAX).map(ToString::to_string).collect();
        if signals.len() > NAMED_MAX {
            names.push(format!("{} more", signals.len() - NAMED_MAX));
        }
        let names = match names.split_last() {
            Some((last, first)) if !first.is_empty() => format!("{} and {last}", first.join(", ")),
            _ => names.concat(),
        };
        let reason = format!("GPU {}: {names} cannot be read: {why}", gpu.index);
        Some(CoverageLoss { source: "gpu-signals".to_owned(), reason })
    };
    listed.filter_map(loss).collect()
}

fn is_set(values: &Values, gpu: &GpuIdentity, signal: Signal) -> bool {
    let reading = values.reading(&Subject::Gpu(gpu.uuid.clone()), signal);
    reading.and_then(Reading::value).is_some_and(|value| *value > 0.0)
}
