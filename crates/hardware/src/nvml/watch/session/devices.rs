//! Enumerates and opens GPUs: at the start, when a GPU recovers, and when the set of GPUs changes.

use std::ffi::{CString, c_uint};
use std::ptr;

use farrier_facts::node::NvmlStatus;
use farrier_fleet::health::observation::{GpuIdentity, GpuUuid};

use crate::nvml::caller::{CallResult, NvmlCaller, TEXT_BYTES, call, decode_text, length};
use crate::nvml::ffi::{self, EventSet, RawDevice, Return};
use crate::nvml::snapshot::DEVICES_MAX;
use crate::nvml::watch::reader::{ReadFailure, WatchedGpu};
use crate::nvml::watch::wire::WireUnavailable;

use super::{AVOIDED, ProbeSession, is_lost};

impl ProbeSession<'_> {
    /// Counts and opens all GPUs.
    pub(super) fn open(&mut self, known: &[GpuIdentity]) -> Result<(), WireUnavailable> {
        self.driver = self.caller.system_text("nvmlSystemGetDriverVersion");
        self.count = self.read_count()?;
        let count = self.count.min(DEVICES_MAX);
        let mut gpus: Vec<WatchedGpu> = Vec::new();
        let mut failed = Vec::new();
        for index in 0..count {
            self.current_gpu.set(Some(index));
            match self.open_one(index)? {
                Ok(gpu) => gpus.push(gpu),
                Err(code) => failed.push((index, code)),
            }
        }
        self.current_gpu.set(None);
        // NVML lists a GPU once. So a known GPU that opened under another index is not the GPU that
        // failed to open.
        self.unidentified = Vec::new();
        for (index, code) in failed {
            let is_new =
                |identity: &GpuIdentity| gpus.iter().all(|gpu| gpu.identity.uuid != identity.uuid);
            match known.iter().find(|known| known.index == index && is_new(known)) {
                Some(identity) => gpus.push(WatchedGpu::new(identity.clone(), Err(code))),
                // In interactive mode, show a lost or hung GPU even if its identity is unknown.
                None if self.interactive && (is_down(code) || code == AVOIDED) => {
                    gpus.push(WatchedGpu::new(unidentified(index), Err(code)));
                }
                None => self.unidentified.push((index, code)),
            }
        }
        gpus.sort_by_key(|gpu| gpu.identity.index);
        for gpu in &mut gpus {
            let before = self.gpus.iter().find(|other| other.identity.uuid == gpu.identity.uuid);
            if let Some(before) = before {
                gpu.links_wired = before.links_wired;
                gpu.links_up = before.links_up;
                gpu.links_reported = before.links_reported;
            }
        }
        self.gpus = gpus;
        self.register_events();
        Ok(())
    }

    /// Counts the GPUs. An error fails the session, because nothing can be read without a count,
    /// and a count of zero would look like a node without GPUs.
    fn read_count(&mut self) -> Result<u32, WireUnavailable> {
        let mut count: c_uint = 0;
        match call!(self.caller, ffi::Count, "nvmlDeviceGetCount_v2", &raw mut count) {
            Ok(ffi::SUCCESS) => Ok(count),
            Ok(code) => Err(WireUnavailable::Refused(NvmlStatus(code))),
            Err(why) => Err(WireUnavailable::NoLibrary(why.to_string())),
        }
    }

    /// GPUs that NVML lists but cannot open, for a reason that no finding covers. Lost GPUs, GPUs
    /// that need a reset and skipped GPUs have findings already if they are identified.
    pub(super) fn unopened(&self) -> impl Iterator<Item = (u32, Return)> {
        let has_finding = |code: Return| is_down(code) || code == AVOIDED;
        let known = self.gpus.iter().filter_map(move |gpu| {
            gpu.handle
                .err()
                .filter(|code| !has_finding(*code))
                .map(|code| (gpu.identity.index, code))
        });
        let unidentified = self.unidentified.iter().copied().filter(|(_, code)| *code != AVOIDED);
        known.chain(unidentified)
    }

    /// Opens a GPU by index. The inner error concerns only this GPU.
    fn open_one(&mut self, index: u32) -> Result<Result<WatchedGpu, Return>, WireUnavailable> {
        if self.avoided.contains(&index) {
            return Ok(Err(AVOIDED));
        }
        let mut device: RawDevice = ptr::null_mut();
        let out = &raw mut device;
        let called =
            call!(self.caller, ffi::HandleByIndex, "nvmlDeviceGetHandleByIndex_v2", index, out);
        let identified = match called {
            Ok(ffi::SUCCESS) => self.identify(index, device),
            other => Err(other),
        };
        match identified {
            Ok(identity) => Ok(Ok(WatchedGpu::new(identity, Ok(device)))),
            Err(Err(why)) => Err(WireUnavailable::NoLibrary(why.to_string())),
            Err(Ok(code)) => {
                if let Some(ReadFailure::Library(code)) = ReadFailure::from_code(code) {
                    return Err(WireUnavailable::Refused(NvmlStatus(code)));
                }
                Ok(Err(code))
            }
        }
    }

    fn identify(&mut self, index: u32, device: RawDevice) -> Result<GpuIdentity, CallResult> {
        let uuid = self.uuid(device)?;
        let pci = self.caller.pci(device).value().map(|pci| {
            // Use the kernel's format. NVML's format has an eight-digit domain and upper case.
            format!("{:04x}:{:02x}:{:02x}.0", pci.domain, pci.bus, pci.device)
        });
        Ok(GpuIdentity {
            uuid,
            index,
            minor: self.caller.number(device, "nvmlDeviceGetMinorNumber").value().copied(),
            pci,
            name: self.caller.device_text(device, "nvmlDeviceGetName").value().cloned(),
        })
    }

    fn uuid(&mut self, device: RawDevice) -> Result<GpuUuid, CallResult> {
        let mut text = [0; TEXT_BYTES];
        let room = length(&text);
        let out = text.as_mut_ptr();
        match call!(self.caller, ffi::DeviceText, "nvmlDeviceGetUUID", device, out, room) {
            Ok(ffi::SUCCESS) => Ok(GpuUuid(decode_text(&text))),
            other => Err(other),
        }
    }

    /// Registers all GPUs for Xid events. If this fails, the kernel log still reports every Xid.
    fn register_events(&mut self) {
        let mut set: EventSet = ptr::null_mut();
        let called = call!(self.caller, ffi::EventsCreate, "nvmlEventSetCreate", &raw mut set);
        if called != Ok(ffi::SUCCESS) {
            return;
        }
        self.events = set;
        for gpu in &self.gpus {
            if let Ok(device) = gpu.handle {
                let _ = register(&mut self.caller, device, set);
            }
        }
    }

    /// Tries again to open GPUs that do not answer.
    pub(super) fn reopen(&mut self) {
        for gpu in &mut self.gpus {
            let is_healthy = gpu.handle.is_ok() && gpu.failure.iter().all(Option::is_none);
            // An unidentified GPU is retried by index, at the next count.
            if is_healthy || gpu.handle == Err(AVOIDED) || gpu.identity.uuid.is_placeholder() {
                continue;
            }
            self.current_gpu.set(Some(gpu.identity.index));
            let Ok(uuid) = CString::new(gpu.identity.uuid.0.as_str()) else { continue };
            let mut device: RawDevice = ptr::null_mut();
            let out = &raw mut device;
            let name = uuid.as_ptr();
            match call!(self.caller, ffi::HandleByUuid, "nvmlDeviceGetHandleByUUID", name, out) {
                Ok(ffi::SUCCESS) if gpu.handle != Ok(device) => {
                    gpu.gpm.free(&mut self.caller);
                    gpu.reset_capabilities();
                    gpu.handle = Ok(device);
                    let _ = register(&mut self.caller, device, self.events);
                }
                Ok(code) if code != ffi::SUCCESS && gpu.handle.is_err() => gpu.handle = Err(code),
                _ => {}
            }
        }
        self.current_gpu.set(None);
    }

    /// Counts the GPUs again and reinitialises NVML if the set has changed.
    ///
    /// A GPU that was reset stays lost for a client that had it open, so a lost GPU also triggers
    /// reinitialisation. Attempts become less frequent, because each attempt to open a broken GPU
    /// leaves lines in the kernel log.
    pub(super) fn recount(&mut self) -> Result<(), WireUnavailable> {
        let before = self.count;
        self.count = self.read_count()?;
        let is_lost = self.gpus.iter().any(|gpu| {
            let opened = gpu.handle.is_ok() || gpu.handle == Err(AVOIDED);
            !opened || gpu.failure.iter().flatten().any(|code| is_lost(*code))
        });
        // An unidentified GPU may open by now.
        let is_lost = is_lost || self.unidentified.iter().any(|(_, code)| *code != AVOIDED);
        // Reinitialising right after the start would only discard measurements.
        let is_lost = is_lost && !std::mem::take(&mut self.is_fresh);
        self.lost_rounds = if is_lost { self.lost_rounds.saturating_add(1) } else { 0 };
        let is_retry_due = self.lost_rounds.is_power_of_two()
            || self.lost_rounds != 0 && self.lost_rounds.is_multiple_of(64);
        if self.count == before && !is_retry_due && self.uuids_unchanged() {
            return Ok(());
        }
        let known: Vec<GpuIdentity> = self.gpus.iter().map(|gpu| gpu.identity.clone()).collect();
        self.shut_down();
        match call!(self.caller, ffi::Init, "nvmlInit_v2") {
            Ok(ffi::SUCCESS) => self.open(&known),
            Ok(code) => Err(WireUnavailable::Refused(NvmlStatus(code))),
            Err(why) => Err(WireUnavailable::NoLibrary(why.to_string())),
        }
    }

    /// Whether every index still refers to the same GPU.
    fn uuids_unchanged(&mut self) -> bool {
        (0..self.gpus.len()).all(|position| {
            let gpu = &self.gpus[position];
            let (index, handle) = (gpu.identity.index, gpu.handle);
            self.current_gpu.set(Some(index));
            let Ok(device) = handle else { return true };
            match self.uuid(device) {
                Ok(uuid) => uuid == self.gpus[position].identity.uuid,
                // A failed read does not mean that this is another GPU.
                Err(_) => true,
            }
        })
    }

    fn shut_down(&mut self) {
        self.current_gpu.set(None);
        for gpu in &mut self.gpus {
            gpu.gpm.free(&mut self.caller);
        }
        if !self.events.is_null() {
            let _ = call!(self.caller, ffi::EventsFree, "nvmlEventSetFree", self.events);
            self.events = ptr::null_mut();
        }
        let _ = call!(self.caller, ffi::Init, "nvmlShutdown");
    }
}

/// Whether a GPU is lost or needs a reset.
pub(super) fn is_down(code: Return) -> bool {
    is_lost(code) || code == ffi::RESET_REQUIRED
}

/// The identity of a GPU that never reported one.
fn unidentified(index: u32) -> GpuIdentity {
    GpuIdentity { uuid: GpuUuid::placeholder(index), index, minor: None, pci: None, name: None }
}

fn register(nvml: &mut NvmlCaller<'_>, device: RawDevice, set: EventSet) -> CallResult {
    if set.is_null() {
        return Ok(ffi::NOT_SUPPORTED);
    }
    call!(nvml, ffi::EventsRegister, "nvmlDeviceRegisterEvents", device, ffi::EVENT_XID, set)
}
