//! Event sets.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint};
use std::time::{Duration, Instant};

use crate::abi::{DeviceHandle, OpaqueHandle, OutPtr};
use crate::error_code::{ErrorCode, NvmlResult};
use crate::library::{Registry, handle_for, on_device, on_node};
use crate::structs::{EventData, EventDataV1};

/// Event types of a data-centre GPU: all but 0x20 and 0x40.
const SUPPORTED: u64 = 0xff9f;
/// Interval at which the files are polled while a client waits.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

static SETS: Registry<EventSet> = Registry::new();

/// The subscriptions of one event set, by device index.
#[derive(Default)]
struct EventSet {
    devices: BTreeMap<usize, Subscription>,
}

struct Subscription {
    types: u64,
    /// Sequence number of the last event delivered to this set.
    sequence: u64,
}

device_calls! {
    nvmlDeviceGetSupportedEventTypes(types: OutPtr<u64>) |_gpu| types.put(SUPPORTED);
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlEventSetCreate(set: OutPtr<OpaqueHandle>) -> c_int {
    on_node("nvmlEventSetCreate", |_| {
        if set.is_null() {
            Err(ErrorCode::INVALID_ARGUMENT)
        } else {
            set.put(SETS.add(EventSet::default()))
        }
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlEventSetFree(set: OpaqueHandle) -> c_int {
    on_node("nvmlEventSetFree", |_| SETS.remove(set))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceRegisterEvents(
    device: DeviceHandle,
    types: u64,
    set: OpaqueHandle,
) -> c_int {
    on_device("nvmlDeviceRegisterEvents", device, |gpu| {
        if types & !SUPPORTED != 0 {
            return Err(ErrorCode::NOT_SUPPORTED);
        }
        // The set does not receive events from before the subscription.
        let sequence = gpu.events.last().map_or(0, |event| event.sequence);
        SETS.with(set, |set| {
            let subscription =
                set.devices.entry(gpu.index).or_insert(Subscription { types: 0, sequence });
            subscription.types |= types;
        })
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlEventSetWait_v2(
    set: OpaqueHandle,
    data: OutPtr<EventData>,
    timeout_ms: c_uint,
) -> c_int {
    wait("nvmlEventSetWait_v2", set, timeout_ms, |event| {
        // There are no instance IDs, because MIG instances are not simulated.
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
    set: OpaqueHandle,
    data: OutPtr<EventDataV1>,
    timeout_ms: c_uint,
) -> c_int {
    wait("nvmlEventSetWait", set, timeout_ms, |event| data.put(event))
}

/// Polls until an event arrives or the timeout expires. Holds no lock while it sleeps.
fn wait(
    name: &str,
    set: OpaqueHandle,
    timeout_ms: u32,
    deliver: impl FnOnce(EventDataV1) -> NvmlResult,
) -> c_int {
    on_node(name, |session| {
        let start = Instant::now();
        let timeout = Duration::from_millis(u64::from(timeout_ms));
        loop {
            let gpus = session.gpus();
            let event = SETS.with(set, |set| next_event(set, &gpus))?;
            if let Some(event) = event {
                return deliver(event);
            }
            let left = timeout.saturating_sub(start.elapsed());
            if left.is_zero() {
                return Err(ErrorCode::TIMEOUT);
            }
            std::thread::sleep(left.min(POLL_INTERVAL));
        }
    })
}

/// Takes the next event of any device in the set.
fn next_event(
    set: &mut EventSet,
    gpus: &[(usize, std::sync::Arc<farrier_sim::SimGpu>)],
) -> Option<EventDataV1> {
    for (index, gpu) in gpus {
        let Some(subscription) = set.devices.get_mut(index) else {
            continue;
        };
        // If the file was recreated, the sequence numbers have restarted.
        if gpu.events.last().map_or(0, |event| event.sequence) < subscription.sequence {
            subscription.sequence = 0;
        }
        let event = gpu.events.iter().find(|event| {
            event.sequence > subscription.sequence && event.kind & subscription.types != 0
        });
        if let Some(event) = event {
            subscription.sequence = event.sequence;
            return Some(EventDataV1 {
                device: handle_for(*index),
                kind: event.kind,
                data: event.data,
            });
        }
    }
    None
}
