//! Reads NVML once, for a node check.

use std::cell::{Cell, RefCell};
use std::ffi::{OsStr, c_uint};

use farrier_facts::node::{
    FabricState, GraphicsApplicationClock, Nvml, NvmlDevice, NvmlReading, PowerLimits, ReadError,
    Reading, RemappedRows,
};

use super::caller::{NvmlCaller, TEXT_BYTES, call, decode_text, outcome};
use super::control::GRAPHICS;
use super::ffi::{self, RawDevice};
use super::probe::ProbeMessage;
use super::watch::DriverCall;

/// Maximum devices. A larger count comes from a broken library.
pub(super) const DEVICES_MAX: u32 = 1024;

/// Loads the library and reads everything. `emit` is called before each NVML call and after each
/// GPU, because a later call may never return.
pub fn read(path: &OsStr, emit: &mut dyn FnMut(&ProbeMessage)) -> NvmlReading {
    let emit = RefCell::new(emit);
    let current_gpu: Cell<Option<u32>> = Cell::new(None);
    let mut on_call = |call: &str| {
        let call = DriverCall { name: call.to_owned().into(), gpu: current_gpu.get() };
        emit.borrow_mut()(&ProbeMessage::Call(call.to_string()));
    };
    let mut caller = match NvmlCaller::load(path, &mut on_call) {
        Ok(caller) => caller,
        Err(err) => return NvmlReading::NoLibrary { why: err.to_string() },
    };
    if let Some(refusal) = caller.init() {
        return refusal;
    }
    let mut nvml = caller.system();
    emit.borrow_mut()(&ProbeMessage::System(nvml.clone()));
    for index in 0..nvml.count.value().copied().unwrap_or(0).min(DEVICES_MAX) {
        current_gpu.set(Some(index));
        let device = caller.device(index);
        emit.borrow_mut()(&ProbeMessage::Device(Box::new(device.clone())));
        nvml.devices.push(device);
    }
    current_gpu.set(None);
    let _ = call!(caller, ffi::Init, "nvmlShutdown");
    NvmlReading::Answered(nvml)
}

impl NvmlCaller<'_> {
    /// Values that belong to no particular GPU.
    pub(super) fn system(&mut self) -> Nvml {
        let driver_version = self.system_text("nvmlSystemGetDriverVersion");
        let library_version = self.system_text("nvmlSystemGetNVMLVersion");
        let mut cuda = 0;
        let called = call!(self, ffi::Signed, "nvmlSystemGetCudaDriverVersion_v2", &raw mut cuda);
        let cuda_version = outcome(called, || cuda);
        let mut number: c_uint = 0;
        let called = call!(self, ffi::Count, "nvmlDeviceGetCount_v2", &raw mut number);
        let count = outcome(called, || number);
        Nvml { driver_version, library_version, cuda_version, count, devices: Vec::new() }
    }

    fn device(&mut self, index: u32) -> NvmlDevice {
        let mut device: RawDevice = std::ptr::null_mut();
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
        let inforom_valid = Some(self.inforom_valid(device));
        NvmlDevice { inforom_valid, ..self.opened(index, device) }
    }

    /// Everything about an open device, except the `InfoROM`: its validation takes 70 ms.
    pub(super) fn opened(&mut self, index: u32, device: RawDevice) -> NvmlDevice {
        let pci = self.pci(device);
        NvmlDevice {
            index,
            handle: Reading::Value(()),
            name: self.device_text(device, "nvmlDeviceGetName"),
            uuid: self.device_text(device, "nvmlDeviceGetUUID"),
            pci_address: pci.as_ref().map(|pci| decode_text(&pci.bus_id)),
            pci_device_id: pci.map(|pci| pci.pci_device_id),
            vbios: self.device_text(device, "nvmlDeviceGetVbiosVersion"),
            gsp_firmware: self.gsp_firmware(device),
            compute_mode: self.number(device, "nvmlDeviceGetComputeMode"),
            persistence: self.number(device, "nvmlDeviceGetPersistenceMode").map(|mode| mode != 0),
            ecc: self.setting(device, "nvmlDeviceGetEccMode"),
            mig: self.setting(device, "nvmlDeviceGetMigMode"),
            power: self.power(device),
            addressing_mode: self.addressing_mode(device),
            fabric: self.fabric(device),
            remapped_rows: self.remapped_rows(device),
            recovery_action: self.recovery_action(device),
            inforom_valid: None,
            application_clocks: Some(self.graphics_clocks(device)),
            now: Some(self.current_faults(device)),
        }
    }

    fn inforom_valid(&mut self, device: RawDevice) -> Reading<bool> {
        match call!(self, ffi::DeviceOnly, "nvmlDeviceValidateInforom", device) {
            Ok(ffi::CORRUPTED_INFOROM) => Reading::Value(false),
            called => outcome(called, || true),
        }
    }

    fn graphics_clocks(&mut self, device: RawDevice) -> Reading<GraphicsApplicationClock> {
        let current = self.application_clock(device, GRAPHICS);
        let default = self.default_clock(device, GRAPHICS);
        current.and_then(|current_mhz| {
            default.map(|default_mhz| GraphicsApplicationClock { current_mhz, default_mhz })
        })
    }

    fn gsp_firmware(&mut self, device: RawDevice) -> Reading<String> {
        // The buffer is larger than NVML_GSP_FIRMWARE_VERSION_BUF_SIZE, which is 0x40.
        let mut text = [0; TEXT_BYTES];
        let called = call!(
            self,
            ffi::DeviceTextUnsized,
            "nvmlDeviceGetGspFirmwareVersion",
            device,
            text.as_mut_ptr()
        );
        outcome(called, || decode_text(&text))
    }

    pub(super) fn power(&mut self, device: RawDevice) -> Reading<PowerLimits> {
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

    fn addressing_mode(&mut self, device: RawDevice) -> Reading<String> {
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

    fn fabric(&mut self, device: RawDevice) -> Reading<FabricState> {
        let (called, fabric) = self.fabric_info(device);
        outcome(called, || FabricState { state: fabric.state, status: fabric.status })
    }

    fn remapped_rows(&mut self, device: RawDevice) -> Reading<RemappedRows> {
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

    fn recovery_action(&mut self, device: RawDevice) -> Reading<u32> {
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
        // The call can succeed while the field itself fails. The value is an `unsigned int`.
        outcome(called, || ()).and_then(|()| {
            let [a, b, c, d, ..] = field.value;
            outcome(Ok(field.nvml_return), || u32::from_ne_bytes([a, b, c, d]))
        })
    }
}

/// A device that could not be opened.
pub(super) fn unopened(index: u32, handle: Reading<()>) -> NvmlDevice {
    fn unread<T>() -> Reading<T> {
        Reading::Unreadable(ReadError::DeviceNotOpened)
    }
    NvmlDevice {
        index,
        handle,
        name: unread(),
        uuid: unread(),
        pci_address: unread(),
        pci_device_id: unread(),
        vbios: unread(),
        gsp_firmware: unread(),
        compute_mode: unread(),
        persistence: unread(),
        ecc: unread(),
        mig: unread(),
        power: unread(),
        addressing_mode: unread(),
        fabric: unread(),
        remapped_rows: unread(),
        recovery_action: unread(),
        inforom_valid: None,
        application_clocks: None,
        now: None,
    }
}
