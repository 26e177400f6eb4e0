//! Device enumeration and lookup.

use std::ffi::{c_int, c_uint};

use crate::abi::{DeviceHandle, OutPtr, TextArg, struct_version};
use crate::error_code::{ErrorCode, NvmlResult};
use crate::library::{Session, open_device};
use crate::structs::Uuid;

node_calls! {
    nvmlDeviceGetCount(count: OutPtr<c_uint>) |session| put_count(session, count);
    nvmlDeviceGetCount_v2(count: OutPtr<c_uint>) |session| put_count(session, count);
    nvmlDeviceGetHandleByIndex(index: c_uint, device: OutPtr<DeviceHandle>) |session| {
        device.put(open_device(session, "nvmlDeviceGetHandleByIndex", index as usize)?)
    };
    nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: OutPtr<DeviceHandle>) |session| {
        device.put(open_device(session, "nvmlDeviceGetHandleByIndex_v2", index as usize)?)
    };
    nvmlDeviceGetHandleByUUID(uuid: TextArg, device: OutPtr<DeviceHandle>) |session| {
        let uuid = uuid.get()?;
        find(session, "nvmlDeviceGetHandleByUUID", device, |gpu| gpu.uuid == uuid)
    };
    nvmlDeviceGetHandleByUUIDV(uuid: OutPtr<Uuid>, device: OutPtr<DeviceHandle>) |session| {
        if uuid.version()? != struct_version::<Uuid>(1) {
            return Err(ErrorCode::VERSION_MISMATCH);
        }
        let request = uuid.get()?;
        let text = match request.kind {
            1 => String::from_utf8_lossy(request.value.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned(),
            2 => bytes_as_uuid(&request.value[..16]),
            _ => return Err(ErrorCode::INVALID_ARGUMENT),
        };
        find(session, "nvmlDeviceGetHandleByUUIDV", device, |gpu| gpu.uuid == text)
    };
    nvmlDeviceGetHandleBySerial(serial: TextArg, device: OutPtr<DeviceHandle>) |session| {
        let serial = serial.get()?;
        find(session, "nvmlDeviceGetHandleBySerial", device, |gpu| gpu.serial == serial)
    };
    nvmlDeviceGetHandleByPciBusId(bus: TextArg, device: OutPtr<DeviceHandle>) |session| {
        find_by_bus(session, "nvmlDeviceGetHandleByPciBusId", bus, device)
    };
    nvmlDeviceGetHandleByPciBusId_v2(bus: TextArg, device: OutPtr<DeviceHandle>) |session| {
        find_by_bus(session, "nvmlDeviceGetHandleByPciBusId_v2", bus, device)
    };
}

device_calls! {
    nvmlDeviceGetIndex(index: OutPtr<c_uint>) |gpu| index.put(u32::try_from(gpu.index).map_err(|_| ErrorCode::UNKNOWN)?);
    nvmlDeviceOnSameBoard(other: DeviceHandle, same: OutPtr<c_int>) |gpu| same.put(c_int::from(gpu.other(other)?.0 == gpu.index));
}

fn put_count(session: &Session, count: OutPtr<c_uint>) -> NvmlResult {
    count.put(u32::try_from(session.count()).map_err(|_| ErrorCode::UNKNOWN)?)
}

fn find(
    session: &Session,
    name: &str,
    device: OutPtr<DeviceHandle>,
    matches: impl Fn(&farrier_sim::SimGpu) -> bool,
) -> NvmlResult {
    let found = session.gpus().into_iter().find(|(_, gpu)| matches(gpu)).map(|(index, _)| index);
    device.put(open_device(session, name, found.ok_or(ErrorCode::NOT_FOUND)?)?)
}

/// Finds a device by its bus ID in any common form: `00000000:1B:00.0`, `0000:1b:00.0`, `1b:00.0`.
fn find_by_bus(
    session: &Session,
    name: &str,
    bus: TextArg,
    device: OutPtr<DeviceHandle>,
) -> NvmlResult {
    let bus = bus.get()?.to_ascii_lowercase();
    let place = bus.strip_suffix(".0").ok_or(ErrorCode::INVALID_ARGUMENT)?;
    let parts: Vec<&str> = place.split(':').collect();
    let numbers: Result<Vec<u32>, _> =
        parts.iter().map(|part| u32::from_str_radix(part, 16)).collect();
    let (domain, bus, slot) = match numbers.map_err(|_| ErrorCode::INVALID_ARGUMENT)?.as_slice() {
        [domain, bus, slot] => (*domain, *bus, *slot),
        [bus, slot] => (0, *bus, *slot),
        _ => return Err(ErrorCode::INVALID_ARGUMENT),
    };
    find(session, name, device, |gpu| {
        (gpu.pci.domain, gpu.pci.bus, gpu.pci.device) == (domain, bus, slot)
    })
}

fn bytes_as_uuid(bytes: &[u8]) -> String {
    let digits: String =
        bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"));
    format!(
        "GPU-{}-{}-{}-{}-{}",
        &digits[..8],
        &digits[8..12],
        &digits[12..16],
        &digits[16..20],
        &digits[20..]
    )
}
