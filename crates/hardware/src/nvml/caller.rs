//! Calls into NVML. Each function is looked up when it is called. An older library lacks some
//! functions, and this must not affect calls of the functions that it has.

use std::borrow::Cow;
use std::error::Error;
use std::ffi::{CStr, OsStr, c_char, c_uint};
use std::fmt;

use farrier_facts::node::{NvmlReading, NvmlStatus, ReadError, Reading, Setting};
use libloading::Library;

use super::ffi::{self, RawDevice, Return};

/// Buffer for the longest text that NVML returns (`NVML_DEVICE_NAME_V2_BUFFER_SIZE`,
/// `NVML_DEVICE_UUID_V2_BUFFER_SIZE`: 96), with headroom.
pub(super) const TEXT_BYTES: usize = 128;

/// A loaded library.
pub(super) struct NvmlCaller<'a> {
    pub(super) library: Library,
    pub(super) on_call: &'a mut dyn FnMut(&str),
}

/// The library is too old to have a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MissingCall {
    /// `None` if the name of the function is not a literal at the place of the call.
    pub(super) name: Option<&'static str>,
}

#[derive(Debug)]
pub(super) struct LoadError(libloading::Error);

impl fmt::Display for LoadError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The loader's message is the source. The error itself only says that loading failed.
        match self.0.source() {
            Some(source) => fmt::Display::fmt(source, out),
            None => fmt::Display::fmt(&self.0, out),
        }
    }
}

impl Error for LoadError {}

/// A return code, or an error if the library lacks the function.
pub(super) type CallResult = Result<Return, MissingCall>;

impl From<MissingCall> for ReadError {
    fn from(missing: MissingCall) -> Self {
        Self::MissingCall { call: missing.name.map(Cow::Borrowed) }
    }
}

impl fmt::Display for MissingCall {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&ReadError::from(*self), out)
    }
}

/// Looks up a function and calls it. Yields a [`CallResult`].
macro_rules! call {
    ($caller:expr, $type:ty, $name:literal $(, $argument:expr)*) => {{
        ($caller.on_call)($name);
        // SAFETY: the name is an NVML function and the type matches its declaration in nvml.h.
        match unsafe { $caller.library.get::<$type>(concat!($name, "\0").as_bytes()) } {
            // SAFETY: NVML is initialised (or this call initialises it), the handle came from it,
            // and every pointer refers to a live local of the declared size.
            Ok(function) => Ok(unsafe { function($($argument),*) }),
            Err(_) => Err($crate::nvml::caller::MissingCall { name: Some($name) }),
        }
    }};
}

pub(super) use call;

impl<'a> NvmlCaller<'a> {
    /// Loads the library. `on_call` runs before each call with the function's name.
    pub(super) fn load(path: &OsStr, on_call: &'a mut dyn FnMut(&str)) -> Result<Self, LoadError> {
        on_call("dlopen");
        // SAFETY: loading runs the library's constructors. It is NVIDIA's library or one that the
        // user named explicitly, and this process exists only to call it.
        let library = unsafe { Library::new(path) }.map_err(LoadError)?;
        Ok(Self { library, on_call })
    }

    /// Initialises the library. Returns the failure, if any.
    pub(super) fn init(&mut self) -> Option<NvmlReading> {
        match call!(self, ffi::Init, "nvmlInit_v2") {
            Ok(ffi::SUCCESS) => None,
            Ok(code) => Some(NvmlReading::Refused { error: NvmlStatus(code) }),
            Err(missing) => Some(NvmlReading::NoLibrary { why: missing.to_string() }),
        }
    }

    pub(super) fn system_text(&mut self, name: &'static str) -> Reading<String> {
        let mut text = [0; TEXT_BYTES];
        (self.on_call)(name);
        // SAFETY: both system strings have this type in nvml.h.
        let called = match unsafe { self.library.get::<ffi::Text>(name.as_bytes()) } {
            // SAFETY: the buffer is live and its length is passed.
            Ok(function) => Ok(unsafe { function(text.as_mut_ptr(), length(&text)) }),
            Err(_) => Err(MissingCall { name: None }),
        };
        outcome(called, || decode_text(&text))
    }

    pub(super) fn device_text(&mut self, device: RawDevice, name: &'static str) -> Reading<String> {
        let mut text = [0; TEXT_BYTES];
        (self.on_call)(name);
        // SAFETY: every device string requested here has this type in nvml.h.
        let called = match unsafe { self.library.get::<ffi::DeviceText>(name.as_bytes()) } {
            // SAFETY: the handle came from NVML; the buffer is live and its length is passed.
            Ok(function) => Ok(unsafe { function(device, text.as_mut_ptr(), length(&text)) }),
            Err(_) => Err(MissingCall { name: None }),
        };
        outcome(called, || decode_text(&text))
    }

    pub(super) fn number(&mut self, device: RawDevice, name: &'static str) -> Reading<u32> {
        let mut number: c_uint = 0;
        (self.on_call)(name);
        // SAFETY: every device number requested here has this type in nvml.h; its enumerations are
        // C `unsigned int`s.
        let called = match unsafe { self.library.get::<ffi::DeviceNumber>(name.as_bytes()) } {
            // SAFETY: the handle came from NVML and the pointer refers to a live local.
            Ok(function) => Ok(unsafe { function(device, &raw mut number) }),
            Err(_) => Err(MissingCall { name: None }),
        };
        outcome(called, || number)
    }

    pub(super) fn setting(&mut self, device: RawDevice, name: &'static str) -> Reading<Setting> {
        let (mut current, mut pending): (c_uint, c_uint) = (0, 0);
        (self.on_call)(name);
        // SAFETY: ECC and MIG mode have this type in nvml.h.
        let called = match unsafe { self.library.get::<ffi::DevicePair>(name.as_bytes()) } {
            // SAFETY: the handle came from NVML and the pointers refer to live locals.
            Ok(function) => Ok(unsafe { function(device, &raw mut current, &raw mut pending) }),
            Err(_) => Err(MissingCall { name: None }),
        };
        outcome(called, || Setting { current: current != 0, pending: pending != 0 })
    }

    pub(super) fn pci(&mut self, device: RawDevice) -> Reading<ffi::PciInfo> {
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

    /// The device's NVLink fabric state, with the call's result.
    pub(super) fn fabric_info(&mut self, device: RawDevice) -> (CallResult, ffi::FabricInfoV2) {
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
        (called, fabric)
    }
}

/// Converts a call's result. A value that the device does not support is absent.
pub(super) fn outcome<T>(called: CallResult, value: impl FnOnce() -> T) -> Reading<T> {
    match called {
        Ok(ffi::SUCCESS) => Reading::Value(value()),
        Ok(ffi::NOT_SUPPORTED) => Reading::Absent,
        Ok(code) => Reading::Unreadable(ReadError::nvml(code)),
        Err(missing) => Reading::Unreadable(missing.into()),
    }
}

pub(super) fn length(text: &[c_char]) -> c_uint {
    c_uint::try_from(text.len()).unwrap_or(c_uint::MAX)
}

/// The text up to its NUL, or the whole buffer if the library did not terminate it.
pub(super) fn decode_text(text: &[c_char]) -> String {
    let bytes: Vec<u8> = text.iter().map(|letter| letter.to_ne_bytes()[0]).collect();
    match CStr::from_bytes_until_nul(&bytes) {
        Ok(text) => text.to_string_lossy().into_owned(),
        Err(_) => String::from_utf8_lossy(&bytes).into_owned(),
    }
}
