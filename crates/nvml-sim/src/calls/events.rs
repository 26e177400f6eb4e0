//! Waiting for what happens.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint};
use std::time::{Duration, Instant};

use crate::abi::{Device, Out, Token};
use crate::code::{Answer, Code};
use crate::library::{Registry, handle_of, on_device, on_node};
use crate::structs::{EventData, EventDataV1};

/// Event types of a data-centre part: all but the change of the MIG configuration's neighbours 0x20 and 0x40.
const SUPPORTED: u64 = 0xff9f;
/// How often the files are looked at while a client waits.
const POLL: Duration = Duration::from_millis(10);

static SETS: Registry<EventSet> = Registry::new();

/// What one client waits for: by index of the device.
#[derive(Default)]
struct EventSet {
    devices: BTreeMap<usize, Watch>,
}

struct Watch {
    types: u64,
    /// The last event that this set has seen.
    sequence: u64,
}

device_calls! {
    nvmlDeviceGetSupportedEventTypes(types: Out<u64>) |_gpu| types.put(SUPPORTED);
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlEventSetCreate(set: Out<Token>) -> c_int {
    on_node("nvmlEventSetCreate", |_| {
        if set.is_null() {
            Err(Code::INVALID_ARGUMENT)
        } else {
            set.put(SETS.add(EventSet::default()))
        }
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlEventSetFree(set: Token) -> c_int {
    on_node("nvmlEventSetFree", |_| SETS.remove(set))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceRegisterEvents(device: Device, types: u64, set: Token) -> c_int {
    on_device("nvmlDeviceRegisterEvents", device, |gpu| {
        if types & !SUPPORTED != 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        // What happened before is not told.
        let sequence = gpu.events.last().map_or(0, |event| event.sequence);
        SETS.with(set, |set| {
            let watch = set.devices.entry(gpu.index).or_insert(Watch { types: 0, sequence });
            watch.types |= types;
        })
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlEventSetWait_v2(
    set: Token,
    data: Out<EventData>,
    timeout_ms: c_uint,
) -> c_int {
    wait("nvmlEventSetWait_v2", set, timeout_ms, |event| {
        // Instances are said only of a GPU that has some.
        data.put(EventData {
            device: event.device,
            kind: event.kind,
            data: event.data,
            gpu_instance: u32::MAX,
            compute_instance: u32::MAX,
        })
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlEventSetWait(
    set: Token,
    data: Out<EventDataV1>,
    timeout_ms: c_uint,
) -> c_int {
    wait("nvmlEventSetWait", set, timeout_ms, |event| data.put(event))
}

/// Looks until there is an event or the time is over. No lock is held in between.
fn wait(
    name: &str,
    set: Token,
    timeout_ms: u32,
    deliver: impl FnOnce(EventDataV1) -> Answer,
) -> c_int {
    on_node(name, |session| {
        let start = Instant::now();
        let timeout = Duration::from_millis(u64::from(timeout_ms));
        loop {
            let gpus = session.gpus();
            let event = SETS.with(set, |set| next(set, &gpus))?;
            if let Some(event) = event {
                return deliver(event);
            }
            let left = timeout.saturating_sub(start.elapsed());
            if left.is_zero() {
                return Err(Code::TIMEOUT);
            }
            std::thread::sleep(left.min(POLL));
        }
    })
}

/// The next event of any device in the set, which is then seen.
fn next(
    set: &mut EventSet,
    gpus: &[(usize, std::sync::Arc<farrier_sim::Gpu>)],
) -> Option<EventDataV1> {
    for (index, gpu) in gpus {
        let Some(watch) = set.devices.get_mut(index) else {
            continue;
        };
        // A file that was made anew begins to count anew.
        if gpu.events.last().map_or(0, |event| event.sequence) < watch.sequence {
            watch.sequence = 0;
        }
        let wanted = gpu
            .events
            .iter()
            .find(|event| event.sequence > watch.sequence && event.kind & watch.types != 0);
        if let Some(event) = wanted {
            watch.sequence = event.sequence;
            return Some(EventDataV1 {
                device: handle_of(*index),
                kind: event.kind,
                data: event.data,
            });
        }
    }
    None
}
