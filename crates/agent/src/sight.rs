//! Which GPUs are not seen, wholly or in part. A reading that failed may hide a fault, whether or not a rule looks at it.

use std::collections::BTreeMap;

use farrier_facts::node::{ReadError, Reading};
use farrier_fleet::health::{GpuIdentity, GpuUuid, Signal, Subject};

use crate::monitor::CoverageLoss;
use crate::state::Values;

/// Signals that are named in one reason; of the others there is a number.
const NAMED_MAX: usize = 3;

/// GPUs of which nothing is seen: those that NVML does not open, and those of which it reads nothing. The rules that make
/// findings of them wait, because a driver opens one GPU after the other; nobody knows of them meanwhile.
pub(crate) fn unseen_gpus(values: &Values) -> Vec<CoverageLoss> {
    let count = |signal| values.reading(&Subject::Node, signal).and_then(Reading::value).copied();
    let mut whys = Vec::new();
    if let (Some(opened), Some(on_bus)) = (count(Signal::NodeGpusNvml), count(Signal::NodeGpusPci))
        && opened < on_bus
    {
        whys.push(format!("NVML opens {opened} of the {on_bus} GPUs on the PCI bus"));
    }
    let unread = values.gpus.iter().filter(|gpu| is_set(values, gpu, Signal::GpuUnreadable));
    whys.extend(unread.map(|gpu| format!("GPU {}: no call reads anything of it", gpu.index)));
    whys.into_iter().map(|why| CoverageLoss { what: "gpus".to_owned(), why }).collect()
}

/// Signals of listed GPUs that cannot be read, by GPU. Of one that is lost, waits for a reset or is left alone because a
/// call hangs a finding says so, and what is not read of it is no news.
pub(crate) fn unreadable_signals(
    values: &Values,
) -> BTreeMap<&GpuUuid, BTreeMap<Signal, &ReadError>> {
    let is_told = |gpu: &GpuIdentity| {
        let told = [Signal::GpuLost, Signal::GpuResetRequired, Signal::NodeCallsStuck];
        told.into_iter().any(|signal| is_set(values, gpu, signal))
    };
    let mut unreadable: BTreeMap<&GpuUuid, BTreeMap<Signal, &ReadError>> = BTreeMap::new();
    for gpu in values.gpus.iter().filter(|gpu| !is_told(gpu)) {
        let own = values.latest.iter().filter(|(subject, _)| subject.gpu() == Some(&gpu.uuid));
        for (signal, reading) in own.flat_map(|(_, readings)| readings.iter()) {
            if let Reading::Unreadable(why) = reading {
                unreadable.entry(&gpu.uuid).or_default().entry(*signal).or_insert(why);
            }
        }
    }
    unreadable
}

/// The same in words.
pub(crate) fn unread(values: &Values) -> Vec<CoverageLoss> {
    let unreadable = unreadable_signals(values);
    let listed = values.gpus.iter().filter(|gpu| !is_set(values, gpu, Signal::GpuUnreadable));
    let of_gpu = |gpu: &GpuIdentity| {
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
        let why = format!("GPU {}: {names} cannot be read: {why}", gpu.index);
        Some(CoverageLoss { what: "gpu-signals".to_owned(), why })
    };
    listed.filter_map(of_gpu).collect()
}

fn is_set(values: &Values, gpu: &GpuIdentity, signal: Signal) -> bool {
    let reading = values.reading(&Subject::Gpu(gpu.uuid.clone()), signal);
    reading.and_then(Reading::value).is_some_and(|value| *value > 0.0)
}
