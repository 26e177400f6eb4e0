//! The calls. Each is looked up when it is made: an older library lacks some, which is no failure of
//! the others.

use std::ffi::{CStr, OsStr, c_char, c_uint};

use farrier_facts::node::{
    Fabric, Nvml, NvmlDevice, NvmlReading, PowerLimits, Reading, RemappedRows, Setting,
};
use libloading::Library;

use super::ffi::{self, Device, Return};

/// Longest text that NVML gives back (`NVML_DEVICE_NAME_V2_BUFFER_SIZE`,
/// `NVML_DEVICE_UUID_V2_BUFFER_SIZE`: 96), with room.
const TEXT_BYTES: usize = 128;

/// No node has more GPUs; a count beyond it is nonsense from a broken library.
const DEVICES_MAX: u32 = 1024;

/// Loads the library and asks it everything. `before` hears of each call before it is made.
pub fn read(path: &OsStr, before: &mut dyn FnMut(&str)) -> NvmlReading {
    before("dlopen");
    // SAFETY: loading runs the library's constructors. It is NVIDIA's library or the one that the
    // caller named, which is what they ask for; the caller is a process made for nothing else.
    let library = match unsafe { Library::new(path) } {
        Ok(library) => library,
        Err(err) => {
            return NvmlReading::NoLibrary { why: err.to_string() };
        }
    };
    let mut caller = Caller { library, before };
    caller.start().unwrap_or_else(|| NvmlReading::Answered(caller.everything()))
}

struct Caller<'a> {
    library: Library,
    before: &'a mut dyn FnMut(&str),
}

/// Looks a call up and makes it. The result is its return code, or that the library lacks it.
macro_rules! call {
    ($self:ident, $type:ty, $name:literal $(, $argument:expr)*) => {{
        ($self.before)($name);
        // SAFETY: the name is NVML's and the type is that of its declaration in nvml.h.
        match unsafe { $self.library.get::<$type>($name.as_bytes()) } {
            // SAFETY: NVML is initialised (or this is the initialisation), the handle came from it,
            // and every pointer is to a live local of the declared size.
            Ok(function) => Ok(unsafe { function($($argument),*) }),
            Err(_) => Err(concat!("the library has no ", $name)),
        }
    }};
}

impl Caller<'_> {
    /// Initialises the library; what stands in the way, where something does.
    fn start(&mut self) -> Option<NvmlReading> {
        match call!(self, ffi::Init, "nvmlInit_v2") {
            Ok(ffi::SUCCESS) => None,
            Ok(code) => Some(NvmlReading::Refused { error: ffi::error_name(code) }),
            Err(why) => Some(NvmlReading::NoLibrary { why: why.to_owned() }),
        }
    }

    fn everything(&mut self) -> Nvml {
        let driver_version = self.system_text("nvmlSystemGetDriverVersion");
        let library_version = self.system_text("nvmlSystemGetNVMLVersion");
        let mut cuda = 0;
        let called = call!(self, ffi::Signed, "nvmlSystemGetCudaDriverVersion_v2", &raw mut cuda);
        let cuda_version = outcome(called, || cuda);
        let mut number: c_uint = 0;
        let called = call!(self, ffi::Count, "nvmlDeviceGetCount_v2", &raw mut number);
        let count = outcome(called, || number);
        let most = count.value().copied().unwrap_or(0).min(DEVICES_MAX);
        let devices = (0..most).map(|index| self.device(index)).collect();
        let _ = call!(self, ffi::Init, "nvmlShutdown");
        Nvml { driver_version, library_version, cuda_version, count, devices }
    }

    fn system_text(&mut self, name: &'static str) -> Reading<String> {
        let mut text = [0; TEXT_BYTES];
        (self.before)(name);
        // SAFETY: both texts of the system have this type in nvml.h.
        let called = match unsafe { self.library.get::<ffi::Text>(name.as_bytes()) } {
            // SAFETY: the buffer is live and its length is passed.
            Ok(function) => Ok(unsafe { function(text.as_mut_ptr(), length(&text)) }),
            Err(_) => Err("the library lacks the call"),
        };
        outcome(called, || text_of(&text))
    }

    fn device(&mut self, index: u32) -> NvmlDevice {
        let mut device: Device = std::ptr::null_mut();
        let called = call!(
            self,
            ffi::HandleByIndex,
            "nvmlDeviceGetHandleByIndex_v2",
            index,
            &raw mut device
        );
        let handle = outcome(called, || ());
        if handle.value().is_none() {
            return unopened(index, handle);
        }
        let pci = self.pci(device);
        NvmlDevice {
            index,
            handle,
            name: self.device_text(device, "nvmlDeviceGetName"),
            uuid: self.device_text(device, "nvmlDeviceGetUUID"),
            pci_address: pci.as_ref().map(|pci| text_of(&pci.bus_id)),
            pci_device_id: pci.map(|pci| pci.pci_device_id),
            vbios: self.device_text(device, "nvmlDeviceGetVbiosVersion"),
            gsp_firmware: self.gsp_firmware(device),
            compute_mode: self.number(device, "nvmlDeviceGetComputeMode"),
            persistence: self.number(device, "nvmlDeviceGetPersistenceMode").map(|it| it != 0),
            ecc: self.setting(device, "nvmlDeviceGetEccMode"),
            mig: self.setting(device, "nvmlDeviceGetMigMode"),
            power: self.power(device),
            addressing_mode: self.addressing_mode(device),
            fabric: self.fabric(device),
            remapped_rows: self.remapped_rows(device),
            recovery_action: self.recovery_action(device),
        }
    }

    fn device_text(&mut self, device: Device, name: &'static str) -> Reading<String> {
        let mut text = [0; TEXT_BYTES];
        (self.before)(name);
        // SAFETY: every text of a device that is asked for here has this type in nvml.h.
        let called = match unsafe { self.library.get::<ffi::DeviceText>(name.as_bytes()) } {
            // SAFETY: the handle came from NVML; the buffer is live and its length is passed.
            Ok(function) => Ok(unsafe { function(device, text.as_mut_ptr(), length(&text)) }),
            Err(_) => Err("the library lacks the call"),
        };
        outcome(called, || text_of(&text))
    }

    fn gsp_firmware(&mut self, device: Device) -> Reading<String> {
        // NVML_GSP_FIRMWARE_VERSION_BUF_SIZE is 0x40.
        let mut text = [0; TEXT_BYTES];
        let called = call!(
            self,
            ffi::DeviceTextUnsized,
            "nvmlDeviceGetGspFirmwareVersion",
            device,
            text.as_mut_ptr()
        );
        outcome(called, || text_of(&text))
    }

    fn number(&mut self, device: Device, name: &'static str) -> Reading<u32> {
        let mut number: c_uint = 0;
        (self.before)(name);
        // SAFETY: every number of a device that is asked for here has this type in nvml.h; its
        // enumerations are C `unsigned int`s.
        let called = match unsafe { self.library.get::<ffi::DeviceNumber>(name.as_bytes()) } {
            // SAFETY: the handle came from NVML and the pointer is to a live local.
            Ok(function) => Ok(unsafe { function(device, &raw mut number) }),
            Err(_) => Err("the library lacks the call"),
        };
        outcome(called, || number)
    }

    fn setting(&mut self, device: Device, name: &'static str) -> Reading<Setting> {
        let (mut current, mut pending): (c_uint, c_uint) = (0, 0);
        (self.before)(name);
        // SAFETY: ECC and MIG have this type in nvml.h.
        let called = match unsafe { self.library.get::<ffi::DevicePair>(name.as_bytes()) } {
            // SAFETY: the handle came from NVML and the pointers are to live locals.
            Ok(function) => Ok(unsafe { function(device, &raw mut current, &raw mut pending) }),
            Err(_) => Err("the library lacks the call"),
        };
        outcome(called, || Setting { current: current != 0, pending: pending != 0 })
    }

    fn pci(&mut self, device: Device) -> Reading<ffi::PciInfo> {
        let mut pci = ffi::PciInfo {
            bus_id_legacy: [0; 16],
            domain: 0,
            bus: 0,
            device: 0,
            pci_device_id: 0,
            pci_subsystem_id: 0,
            bus_id: [0; 32],
        };
        let called = call!(self, ffi::DevicePci, "nvmlDeviceGetPciInfo_v3", device, &raw mut pci);
        outcome(called, || pci)
    }

    fn power(&mut self, device: Device) -> Reading<PowerLimits> {
        let limit = self.number(device, "nvmlDeviceGetPowerManagementLimit");
        let default = self.number(device, "nvmlDeviceGetPowerManagementDefaultLimit");
        let (mut min_mw, mut max_mw): (c_uint, c_uint) = (0, 0);
        let called = call!(
            self,
            ffi::DevicePair,
            "nvmlDeviceGetPowerManagementLimitConstraints",
            device,
            &raw mut min_mw,
            &raw mut max_mw
        );
        let range = outcome(called, || (min_mw, max_mw));
        limit.and_then(|limit_mw| {
            default.and_then(|default_mw| {
                range.map(|(min_mw, max_mw)| PowerLimits { limit_mw, default_mw, min_mw, max_mw })
            })
        })
    }

    fn addressing_mode(&mut self, device: Device) -> Reading<String> {
        let mut mode = ffi::AddressingModeV1 {
            version: ffi::struct_version::<ffi::AddressingModeV1>(1),
            value: 0,
        };
        let called = call!(
            self,
            ffi::DeviceAddressing,
            "nvmlDeviceGetAddressingMode",
            device,
            &raw mut mode
        );
        outcome(called, || match mode.value {
            0 => "none".to_owned(),
            1 => "hmm".to_owned(),
            2 => "ats".to_owned(),
            other => format!("mode {other}"),
        })
    }

    fn fabric(&mut self, device: Device) -> Reading<Fabric> {
        let mut fabric = ffi::FabricInfoV2 {
            version: ffi::struct_version::<ffi::FabricInfoV2>(2),
            cluster_uuid: [0; 16],
            status: 0,
            clique_id: 0,
            state: 0,
            health_mask: 0,
        };
        let called =
            call!(self, ffi::DeviceFabric, "nvmlDeviceGetGpuFabricInfoV", device, &raw mut fabric);
        outcome(called, || Fabric { state: fabric.state, status: fabric.status })
    }

    fn remapped_rows(&mut self, device: Device) -> Reading<RemappedRows> {
        let mut values: [c_uint; 4] = [0; 4];
        let [correctable, uncorrectable, pending, failed] = &mut values;
        let called = call!(
            self,
            ffi::DeviceFour,
            "nvmlDeviceGetRemappedRows",
            device,
            std::ptr::from_mut(correctable),
            std::ptr::from_mut(uncorrectable),
            std::ptr::from_mut(pending),
            std::ptr::from_mut(failed)
        );
        outcome(called, || RemappedRows {
            correctable: values[0],
            uncorrectable: values[1],
            pending: values[2] != 0,
            failed: values[3] != 0,
        })
    }

    fn recovery_action(&mut self, device: Device) -> Reading<u32> {
        let mut field = ffi::FieldValue {
            field_id: ffi::FIELD_RECOVERY_ACTION,
            scope_id: 0,
            timestamp_us: 0,
            latency_us: 0,
            value_type: 0,
            nvml_return: ffi::NOT_SUPPORTED,
            value: [0; 8],
        };
        let called =
            call!(self, ffi::DeviceFields, "nvmlDeviceGetFieldValues", device, 1, &raw mut field);
        // The call succeeds also where the field does not. The value is an `unsigned int`.
        outcome(called, || ()).and_then(|()| {
            let [a, b, c, d, ..] = field.value;
            outcome(Ok(field.nvml_return), || u32::from_ne_bytes([a, b, c, d]))
        })
    }
}

/// What a call came to. What the device does not support is absent.
fn outcome<T>(called: Result<Return, &'static str>, value: impl FnOnce() -> T) -> Reading<T> {
    match called {
        Ok(ffi::SUCCESS) => Reading::Value(value()),
        Ok(ffi::NOT_SUPPORTED) => Reading::Absent,
        Ok(code) => Reading::Unreadable(ffi::error_name(code)),
        Err(why) => Reading::Unreadable(why.to_owned()),
    }
}

fn length(text: &[c_char]) -> c_uint {
    c_uint::try_from(text.len()).unwrap_or(c_uint::MAX)
}

/// The text up to its NUL; all of it where a library forgot the NUL.
fn text_of(text: &[c_char]) -> String {
    let bytes: Vec<u8> = text.iter().map(|letter| letter.to_ne_bytes()[0]).collect();
    match CStr::from_bytes_until_nul(&bytes) {
        Ok(text) => text.to_string_lossy().into_owned(),
        Err(_) => String::from_utf8_lossy(&bytes).into_owned(),
    }
}

fn unopened(index: u32, handle: Reading<()>) -> NvmlDevice {
    fn unasked<T>() -> Reading<T> {
        Reading::Unreadable("the device could not be opened".to_owned())
    }
    NvmlDevice {
        index,
        handle,
        name: unasked(),
        uuid: unasked(),
        pci_address: unasked(),
        pci_device_id: unasked(),
        vbios: unasked(),
        gsp_firmware: unasked(),
        compute_mode: unasked(),
        persistence: unasked(),
        ecc: unasked(),
        mig: unasked(),
        power: unasked(),
        addressing_mode: unasked(),
        fabric: unasked(),
        remapped_rows: unasked(),
        recovery_action: unasked(),
    }
}
